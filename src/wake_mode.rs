//! The ways in which waiters are woken.

use std::fmt;

pub use watchlock_core::wake_source::{HoldWatch, WakeSource};

/// The way in which a client's waiters learn of a release at present.
///
/// All modes have the same semantics: the same requests, the same queue, the same order. Only the latency differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeMode {
    /// A change stream wakes the first waiters at once, and notifies holders of a loss. A waiter further back checks
    /// its queue position every 2 s, and opens the stream when its turn comes near.
    ChangeStream,
    /// The same for waiters. Holders read their locks four times a second, or as
    /// [`hold_watch`](crate::LockClientBuilder::hold_watch) says: the streams of all that hold would cost the server more
    /// than that allows.
    StreamForWaiters,
    /// Waiters ask for their queue positions repeatedly, and holders check their locks twice a second.
    Polling(PollingReason),
}

/// The reason why a client polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PollingReason {
    /// The builder requested it.
    Configured,
    /// The server has no change streams: it is a standalone.
    Standalone,
    /// The user of the connection lacks the privilege `changeStream` (or `find`) on the collection.
    NotPermitted,
    /// The stream broke or could not be opened, and a waiter, holder or observer needs it; it is being re-opened.
    Interrupted,
}

impl WakeMode {
    /// Returns the mode of a client that begins on a server with change streams.
    pub(crate) fn of(source: WakeSource) -> Self {
        match source {
            WakeSource::Polling => Self::Polling(PollingReason::Configured),
            _ => Self::ChangeStream,
        }
    }

    /// Returns the mode of another session of this client as it begins: a stream that was unavailable for a while may
    /// be available next time, and how busy the set is, it has not seen.
    pub(crate) fn at_rest(self) -> Self {
        match self {
            Self::Polling(PollingReason::Interrupted) | Self::StreamForWaiters => Self::ChangeStream,
            other => other,
        }
    }
}

impl fmt::Display for WakeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChangeStream => f.write_str("change stream"),
            Self::StreamForWaiters => f.write_str("change stream for waiters, reads for holders"),
            Self::Polling(reason) => write!(f, "polling, {reason}"),
        }
    }
}

impl fmt::Display for PollingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configured => "as configured",
            Self::Standalone => "as the server is a standalone",
            Self::NotPermitted => "as the privilege changeStream is missing",
            Self::Interrupted => "as the change stream is interrupted",
        })
    }
}
