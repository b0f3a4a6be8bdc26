//! Readings of the server's clock, the only clock by which the protocol decides.

use std::time::Duration;

/// A reading of the server's clock, in milliseconds since the Unix epoch (the resolution of a BSON date).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerTime(pub(crate) i64);

impl ServerTime {
    pub(crate) fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Returns how far `self` lies ahead of `earlier`; zero if it does not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
