//! Numbers: of settings, permits, places and attempts.

use super::InvalidInput;
use crate::protocol::{HISTORY_MOST, Kind};

/// Maximum number of a client's operations at once: no driver's pool that was seen is larger.
const OPERATIONS_MOST: usize = 1_000;

/// Maximum number of locks of a client with metrics of their own: each is some hundred time series, most of them
/// buckets, and so many locks are what a Prometheus server takes from one process without notice.
const METERED_MOST: usize = 100;

pub(crate) fn check_operations(operations: usize) -> Result<(), InvalidInput> {
    if !(1..=OPERATIONS_MOST).contains(&operations) {
        return Err(InvalidInput::new(format!(
            "the maximum number of operations at once is {operations}; it must be 1 to {OPERATIONS_MOST}"
        )));
    }
    Ok(())
}

/// Checks the number of ends of holds that the documents keep.
pub(crate) fn check_history(history: usize) -> Result<(), InvalidInput> {
    if history > HISTORY_MOST {
        return Err(InvalidInput::new(format!(
            "the history of {history} holds is longer than {HISTORY_MOST}"
        )));
    }
    Ok(())
}

/// Checks the number of locks with metrics of their own.
pub(crate) fn check_metered(names: usize) -> Result<(), InvalidInput> {
    if names > METERED_MOST {
        return Err(InvalidInput::new(format!(
            "metrics are requested for the names of {names} locks; at most {METERED_MOST} locks can have metrics of their \
             own"
        )));
    }
    Ok(())
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

/// Checks the number of places of a barrier or a latch; `of` names what takes them.
pub fn check_places(kind: Kind, count: u32, of: &str, most: u32) -> Result<(), InvalidInput> {
    if !(1..=most).contains(&count) {
        let message = format!("the {kind} has {count} {of}; it must have 1 to {most}");
        return Err(InvalidInput::new(message));
    }
    Ok(())
}

/// Checks the maximum number of documents that one claim takes.
pub fn check_claims(documents: usize, most: usize) -> Result<(), InvalidInput> {
    if documents < 1 || documents > most {
        return Err(InvalidInput::new(format!(
            "a claim of {documents} documents is refused; the number must be from 1 to {most}"
        )));
    }
    Ok(())
}

/// Checks the maximum number of attempts at a document.
pub fn check_attempts(most: i64) -> Result<(), InvalidInput> {
    if most < 1 {
        return Err(InvalidInput::new(format!(
            "max_attempts is {most}; it must be at least 1"
        )));
    }
    Ok(())
}
