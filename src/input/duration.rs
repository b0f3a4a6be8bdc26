//! Durations: of settings, and of single requests.

use std::time::Duration;

use super::InvalidInput;

/// Longest duration of any setting; longer ones are slips, and their sums would not fit a date.
pub(crate) const DURATION_MOST: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn at_least(name: &str, value: Duration, least: Duration) -> Result<(), InvalidInput> {
    if value < least {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is shorter than {least:?}"
        )));
    }
    Ok(())
}

pub(crate) fn at_most(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    if value > bound {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is longer than the {bound_name}, {bound:?}"
        )));
    }
    Ok(())
}

pub(crate) fn below(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    if value >= bound {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is not shorter than the {bound_name}, {bound:?}"
        )));
    }
    Ok(())
}

pub(crate) fn not_below(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    if value < bound {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is shorter than the {bound_name}, {bound:?}"
        )));
    }
    Ok(())
}

pub(crate) fn above(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    if value <= bound {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is not longer than {bound_name}, {bound:?}"
        )));
    }
    Ok(())
}

/// Checks that a duration is no longer than any may be.
pub(crate) fn check_duration(name: &str, value: Duration) -> Result<(), InvalidInput> {
    at_most(name, value, "longest accepted value", DURATION_MOST)
}

/// Checks a timeout: from zero to longer than anybody lives, but short enough to add it to the clock.
pub(crate) fn check_timeout(timeout: Duration) -> Result<(), InvalidInput> {
    check_duration("timeout", timeout)
}

/// Checks the time for which a lock stays with the client after its last release. The lock then waits to be handed on
/// to the next task, so a client that does not hand locks on can't keep one.
pub(crate) fn check_keep_idle(keep: Duration, hands_on: bool) -> Result<(), InvalidInput> {
    check_duration("time to keep an idle lock", keep)?;
    if !hands_on && !keep.is_zero() {
        return Err(InvalidInput::new(format!(
            "keep_idle of {keep:?} requires hand_on_locally, which is off"
        )));
    }
    Ok(())
}
