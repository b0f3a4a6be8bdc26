//! Readings of the server's clock, the only clock by which the protocol decides, and the exchanges that bring them.

use std::time::{Duration, SystemTime};

use mongodb::bson::{Document, Timestamp};
use tokio::time::Instant;

/// A reading of the server's clock, in milliseconds since the Unix epoch (the resolution of a BSON date).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(pub i64);

impl ServerTime {
    /// Reads a field of a document; `None` if it is not a date.
    pub fn in_field(document: &Document, field: &str) -> Option<Self> {
        let time = document.get_datetime(field).ok()?;
        Some(Self(time.timestamp_millis()))
    }

    pub fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Returns how far `self` lies ahead of `earlier`; zero if it does not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<ServerTime> for SystemTime {
    fn from(time: ServerTime) -> Self {
        let millis = Duration::from_millis(time.0.unsigned_abs());
        let moved = if time.0 >= 0 {
            Self::UNIX_EPOCH.checked_add(millis)
        } else {
            Self::UNIX_EPOCH.checked_sub(millis)
        };
        moved.unwrap_or(Self::UNIX_EPOCH)
    }
}

/// A position in the log of a replica set's writes.
pub type LogTime = Timestamp;

/// One exchange with the server: its clock read `now` some time after `sent` and before `received` on ours.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub sent: Instant,
    pub received: Instant,
    /// `None` when the answer has no time: the server answers a retried command from its record of the first try.
    pub now: Option<ServerTime>,
    /// A time in the server's log, no later than which its documents were as the answer has them; `None` where it has no
    /// log, or does not report it.
    pub logged_by: Option<LogTime>,
}

impl Exchange {
    /// Returns an exchange that shows no time in the log.
    pub fn new(sent: Instant, received: Instant, now: Option<ServerTime>) -> Self {
        let logged_by = None;
        Self {
            sent,
            received,
            now,
            logged_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn a_time_is_after_an_earlier_one_and_not_at_all_after_a_later_one() {
        let (earlier, later) = (ServerTime(1_000), ServerTime(1_000).plus_millis(250));
        assert_eq!(later.since(earlier), Duration::from_millis(250));
        assert_eq!(earlier.since(later), Duration::ZERO);
        assert_eq!(later.plus_millis(i64::MAX), ServerTime(i64::MAX));
    }

    #[test]
    fn only_a_date_is_read_as_a_time() {
        let document = doc! { "at": ServerTime(7), "number": 7 };
        let read = ["at", "number", "missing"].map(|field| ServerTime::in_field(&document, field));
        assert_eq!(read, [Some(ServerTime(7)), None, None]);
    }
}
