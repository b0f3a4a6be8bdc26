//! How waiters are woken.

use std::fmt;

/// How the waiters of a client learn of a release at present.
///
/// Both modes have the same semantics: the same requests, the same queue, the same order. Only the latency differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeMode {
    /// A change stream wakes waiters at once, and tells holders of a loss.
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
    /// The stream broke or could not be opened; it is being re-opened.
    Interrupted,
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
