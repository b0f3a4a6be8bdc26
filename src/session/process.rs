//! The process that a client was made in, and those that are forked from it.
//!
//! A fork copies what is in memory and none of the threads: nothing of ours runs in it, a mutex that another thread held
//! stays locked for ever, and what the parent holds goes on being renewed, released and lost without the child's
//! knowledge. So whoever asks for anything there is told so before anything else is looked at.

/// A process, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether we are in it, and not in one that was forked from it.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }
}
