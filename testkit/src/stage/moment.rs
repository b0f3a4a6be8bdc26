//! Moments that one process tells another, and how they are shown to people.
//!
//! All processes run on one machine, so the wall clock is one clock for all of them, and unlike `Instant` it can be
//! written down.

use std::time::{Duration, SystemTime};

/// A moment as one word, in nanoseconds.
pub fn to_word(moment: SystemTime) -> String {
    since(SystemTime::UNIX_EPOCH, moment).as_nanos().to_string()
}

/// What [`to_word`] wrote; `None` when it did not.
pub fn from_word(word: &str) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(word.parse().ok()?))
}

/// Zero where the clock was set back in between.
pub fn since(earlier: SystemTime, later: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap_or_default()
}

/// A duration as people read it.
pub fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

/// The time of the day.
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
