//! The choice of what wakes waiters.

// `watchlock` has it in its public face.
#![warn(missing_docs)]

/// The source from which waiters may learn of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeSource {
    /// The change stream if there is one, polling if and while there is none.
    #[default]
    Auto,
    /// Like `Auto`, but building the client fails on a server without change streams.
    ChangeStream,
    /// Only polling: no change stream is opened.
    Polling,
}
