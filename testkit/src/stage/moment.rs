//! Moments that one process reports to another, and their form for people.
//!
//! All processes run on one machine, so the wall clock is one clock for all of them, and unlike `Instant` it can be
//! written down. It can also be set; if a moment is evidence, [`uptime`] is the clock.

use std::time::{Duration, SystemTime};

/// Returns the reading of the machine's monotonic clock: one clock for all its processes, that nobody can set.
pub fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns a moment as one word, in nanoseconds.
pub fn to_word(moment: SystemTime) -> String {
    since(SystemTime::UNIX_EPOCH, moment).as_nanos().to_string()
}

/// Parses what [`to_word`] wrote; `None` for anything else.
pub fn from_word(word: &str) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(word.parse().ok()?))
}

/// Returns the time between two moments; zero if the clock was set back in between.
pub fn since(earlier: SystemTime, later: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap_or_default()
}

/// Returns a duration in a form for people.
pub fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

/// Returns the time of the day.
pub fn clock(moment: SystemTime) -> String {
    let since_epoch = since(SystemTime::UNIX_EPOCH, moment);
    let (seconds, millis) = (since_epoch.as_secs() % 86_400, since_epoch.subsec_millis());
    format!(
        "{:02}:{:02}:{:02}.{millis:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}
