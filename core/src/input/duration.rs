//! Durations: of settings, and of single requests.

use std::{fmt, time::Duration};

use super::InvalidInput;
use crate::hold_watch::HoldWatch;

/// Longest duration of any setting; longer ones are slips, and their sums would not fit a date.
pub(crate) const DURATION_MOST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Shortest and longest pause between two reads of the held locks: a read takes about a millisecond, and a hold that is
/// looked at less often than once a minute may as well not be looked at.
const HOLD_READS_LEAST: Duration = Duration::from_millis(10);
const HOLD_READS_MOST: Duration = Duration::from_secs(60);

/// Largest budget of change streams, in thousandths of a core: more cores than a server of a replica set has.
const MILLICORES_MOST: u32 = 64_000;

/// A duration that somebody has set, or that follows from settings: to the millisecond.
#[derive(Debug)]
pub struct Setting(pub Duration);

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = Duration::new(self.0.as_secs(), 0) + Duration::from_millis(self.0.subsec_millis().into());
        // Less than a millisecond is as it was set.
        write!(f, "{:?}", if rounded.is_zero() { self.0 } else { rounded })
    }
}

pub fn at_least(name: &str, value: Duration, least: Duration) -> Result<(), InvalidInput> {
    check(value >= least, name, value, "shorter than", least)
}

pub(crate) fn at_most(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = format!("longer than the {bound_name},");
    check(value <= bound, name, value, &than, bound)
}

pub fn below(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = format!("not shorter than the {bound_name},");
    check(value < bound, name, value, &than, bound)
}

pub(crate) fn not_below(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = format!("shorter than the {bound_name},");
    check(value >= bound, name, value, &than, bound)
}

pub fn above(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    let than = format!("not longer than {bound_name},");
    check(value > bound, name, value, &than, bound)
}

fn check(is_fit: bool, name: &str, value: Duration, than: &str, bound: Duration) -> Result<(), InvalidInput> {
    if is_fit {
        return Ok(());
    }
    let (value, bound) = (Setting(value), Setting(bound));
    Err(InvalidInput::new(format!("the {name} of {value} is {than} {bound}")))
}

/// Checks that a duration is no longer than any may be.
pub fn check_duration(name: &str, value: Duration) -> Result<(), InvalidInput> {
    at_most(name, value, "longest accepted value", DURATION_MOST)
}

/// Checks a timeout: from zero to longer than anybody lives, but short enough to add it to the clock.
pub fn check_timeout(timeout: Duration) -> Result<(), InvalidInput> {
    check_duration("timeout", timeout)
}

/// Checks how holders learn of a loss: what their streams may cost, or the pause between two reads.
pub(crate) fn check_hold_watch(watch: HoldWatch) -> Result<(), InvalidInput> {
    match watch {
        HoldWatch::Stream => Ok(()),
        HoldWatch::Budget { millicores } if (1..=MILLICORES_MOST).contains(&millicores) => Ok(()),
        HoldWatch::Budget { millicores } => Err(InvalidInput::new(format!(
            "the budget of the holders' change streams is {millicores} thousandths of a core; it must be 1 to \
             {MILLICORES_MOST}"
        ))),
        HoldWatch::Reads(pause) => {
            at_least("pause between two reads of held locks", pause, HOLD_READS_LEAST)?;
            at_most(
                "pause between two reads of held locks",
                pause,
                "longest accepted value",
                HOLD_READS_MOST,
            )
        }
    }
}

/// Checks the time for which a lock stays with the client after its last release. The lock then waits to be handed on
/// to the next task, so a client that does not hand locks on can't keep one.
pub(crate) fn check_keep_idle(keep: Duration, hands_on: bool) -> Result<(), InvalidInput> {
    check_duration("time to keep an idle lock", keep)?;
    if !hands_on && !keep.is_zero() {
        return Err(InvalidInput::new(format!(
            "keep_idle of {} requires hand_on_locally, which is off",
            Setting(keep)
        )));
    }
    Ok(())
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
            assert_eq!(Setting(Duration::from_nanos(nanos)).to_string(), shown);
        }
    }
}
