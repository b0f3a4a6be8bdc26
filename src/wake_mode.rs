//! How waiters are woken.

use std::fmt;

/// How the waiters of a client learn of a release at present.
///
/// Both modes have the same semantics: the same requests, the same queue, the same order. Only the latency differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeMode {
    /// A change stream wakes waiters at once, and tells holders of a loss. Who waits far back opens it when its turn comes
    /// near, and until then looks at its place every half second to two seconds.
    ChangeStream,
    /// Waiters ask again and again, and holders look after their locks every second.
    Polling(PollingReason),
}

/// Why a client polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PollingReason {
    /// The builder said so.
    Configured,
    /// The server has no change streams: it is a standalone.
    Standalone,
    /// The user of the connection lacks the privilege `changeStream` (or `find`) on the collection.
    NotPermitted,
    /// The stream broke or could not be opened, and somebody needs it; it is being re-opened.
    Interrupted,
    /// The client has as many change streams open as it may have; see
    /// [`max_streams`](crate::LockClientBuilder::max_streams). The stream of the locks always has room: this is the reason
    /// of [locks in documents](crate::DocumentLocks::wake_mode).
    StreamLimit,
}

impl WakeMode {
    /// What is to be expected once nobody needs a stream: what could not be had for a while may be had the next time.
    pub(crate) fn at_rest(self) -> Self {
        match self {
            Self::Polling(PollingReason::Interrupted | PollingReason::StreamLimit) => Self::ChangeStream,
            other => other,
        }
    }
}

impl fmt::Display for WakeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChangeStream => f.write_str("change stream"),
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
            Self::StreamLimit => "as the client has as many change streams as it may have",
        })
    }
}

/// Where waiters may learn of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeSource {
    /// The change stream where there is one, polling where and while there is none.
    #[default]
    Auto,
    /// As `Auto`, but a server that has no change streams is refused when the client is built.
    ChangeStream,
    /// Only polling: no change stream is opened.
    Polling,
}

impl WakeSource {
    pub(crate) fn may_stream(self) -> bool {
        self != Self::Polling
    }
}
