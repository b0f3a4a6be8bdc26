//! The clock that all processes of one machine share.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A reading of the machine's monotonic clock, in nanoseconds: the one that [`std::time::Instant`] counts on too. It is
/// the same for all processes, and goes on while one of them is frozen.
pub(crate) type Moment = u64;

/// One millisecond of a [`Moment`].
pub(crate) const MILLI: u64 = 1_000_000;

/// One second of a [`Moment`].
pub(crate) const SECOND: u64 = 1_000 * MILLI;

/// Reads the clock.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * SECOND + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Returns how far the wall clock, by which the servers decide, is ahead of the monotonic one, in nanoseconds.
pub(crate) fn wall_ahead() -> i128 {
    // The tightest of some, as the process may be suspended between the two readings.
    let read = |_| {
        let before = now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ahead = i128::try_from(wall.as_nanos()).unwrap_or(0) - i128::from(before);
        (now() - before, ahead)
    };
    (0..10).map(read).min().map_or(0, |(_, ahead)| ahead)
}
