//! The process that a client was made in, as opposed to its forks.
//!
//! A fork copies the memory and none of the threads: nothing of ours runs in it, and a mutex that another thread held
//! stays locked for ever. The parent's holds go on being renewed, released and lost without the child's knowledge. So
//! every request in a fork fails before it looks at anything else.

/// A process, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this code runs in it, and not in a fork of it.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }
}
