//! The bounds of numbers, lengths and durations.

use std::{fmt, ops::RangeInclusive, time::Duration};

use super::InvalidInput;
use crate::protocol::Kind;

/// Longest duration of any setting; longer ones are slips, and their sums would not fit a date.
pub const DURATION_MOST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Returns a duration that somebody has set, or that follows from settings, to the millisecond.
pub fn setting(duration: Duration) -> String {
    let rounded = Duration::new(duration.as_secs(), 0) + Duration::from_millis(duration.subsec_millis().into());
    // Less than a millisecond is as it was set.
    format!("{:?}", if rounded.is_zero() { duration } else { rounded })
}

/// Checks how many of a unit something has.
pub fn check_count<N: Default + PartialOrd + fmt::Display>(
    of: impl fmt::Display,
    count: N,
    unit: &str,
    bounds: RangeInclusive<N>,
) -> Result<(), InvalidInput> {
    if bounds.contains(&count) {
        return Ok(());
    }
    let (least, most) = bounds.into_inner();
    let range = if least == N::default() {
        format!("at most {most}")
    } else {
        format!("{least} to {most}")
    };
    Err(InvalidInput::new(format!(
        "the {of} has {count} {unit}; it must have {range}"
    )))
}

/// Checks the permits that a lock has, and those that are requested of it.
pub fn check_permits(kind: Kind, capacity: i64, permits: i64) -> Result<(), InvalidInput> {
    if capacity < 1 {
        let message = format!("the {kind} has {capacity} permits; it must have at least 1");
        return Err(InvalidInput::new(message));
    }
    if !(1..=capacity).contains(&permits) {
        let message = format!("{permits} permits are requested; for this {kind} it must be 1 to {capacity}");
        return Err(InvalidInput::new(message));
    }
    Ok(())
}

pub fn at_least(name: &str, value: Duration, least: Duration) -> Result<(), InvalidInput> {
    check(value >= least, name, value, &["shorter than"], least)
}

pub fn at_most(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = ["longer than the ", bound_name, ","];
    check(value <= bound, name, value, &than, bound)
}

pub fn below(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = ["not shorter than the ", bound_name, ","];
    check(value < bound, name, value, &than, bound)
}

pub(crate) fn above(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = ["not longer than ", bound_name, ","];
    check(value > bound, name, value, &than, bound)
}

fn check(is_fit: bool, name: &str, value: Duration, than: &[&str], bound: Duration) -> Result<(), InvalidInput> {
    if is_fit {
        return Ok(());
    }
    let (value, than, bound) = (setting(value), than.concat(), setting(bound));
    Err(InvalidInput::new(format!("the {name} of {value} is {than} {bound}")))
}

/// Checks that a duration is no longer than any may be.
pub fn check_duration(name: &str, value: Duration) -> Result<(), InvalidInput> {
    at_most(name, value, "longest accepted value", DURATION_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_to_the_millisecond() {
        for (nanos, shown) in [
            (34_559_999_989_581_108, "34559999.989s"),
            (1_500_000_000, "1.5s"),
            (499_999_999, "499ms"),
            (100_000, "100µs"),
            (0, "0ns"),
        ] {
            assert_eq!(setting(Duration::from_nanos(nanos)), shown);
        }
    }
}
