//! The entries ahead of a waiter: computed from a document, and by the server for a small answer.

use mongodb::bson::{Bson, Document, doc};

use super::{
    Location, ServerTime, State,
    document::{Malformed, whole},
};

/// A summary of the entries ahead of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Hand-overs until it is the waiter's turn, if entries that are granted together also leave together.
    pub turns: u64,
    /// The number of waiters ahead of it.
    pub position: u64,
    /// The permits that nobody holds.
    pub free: i64,
    /// The latest grant among the holders; `None` if nobody holds the lock.
    pub served_at: Option<ServerTime>,
    /// The earliest end of a lease among the holders and the waiters ahead.
    pub first_end: Option<ServerTime>,
    pub now: ServerTime,
}

impl Ahead {
    /// Returns the summary for an entry; `None` if it is not in the queue.
    pub fn of(state: &State, entry: &str, now: ServerTime) -> Option<Self> {
        let position = state.queue.iter().position(|waiter| waiter.id == entry)?;
        let before = &state.queue[..position];
        let permits = before
            .iter()
            .fold(0_i64, |permits, waiter| permits.saturating_add(waiter.permits));
        let taken = state.holders.iter().map(|holder| holder.permits);
        let holders = state.holders.iter().map(|holder| holder.until);
        Some(Self {
            turns: turns(permits, state.capacity),
            position: position as u64,
            free: state.capacity.saturating_sub(taken.fold(0, i64::saturating_add)),
            served_at: state.holders.iter().map(|holder| holder.since).max(),
            first_end: holders.chain(before.iter().map(|waiter| waiter.until)).min(),
            now,
        })
    }
}

/// Returns how often a lock of this capacity is handed over until this many permits were granted.
fn turns(permits: i64, capacity: i64) -> u64 {
    u64::try_from(permits / capacity.max(1)).unwrap_or(0)
}

/// Returns the projection of a find by which the server computes the summary. `position` is -1 if the entry is not in
/// the queue.
///
/// The whole document would have some 175 bytes for each waiter.
pub fn projection(at: &Location, entry: &str) -> Document {
    let position = doc! { "$indexOfArray": [at.value("queue.id"), { "$literal": entry }] };
    // `$slice` takes no length of 0.
    let before = |field: &str, fold: &str, nothing: Bson| {
        let before = doc! { "$slice": [at.value(&format!("queue.{field}")), "$$position"] };
        doc! { "$cond": [{ "$gt": ["$$position", 0] }, { fold: before }, nothing] }
    };
    let of = |value: Document| doc! { "$let": { "vars": { "position": &position }, "in": value } };
    let holders = at.value("holders");
    let taken = doc! { "$cond": [{ "$isArray": &holders }, { "$sum": at.value("holders.permits") }, null] };
    doc! {
        "_id": 0,
        "position": &position,
        "permits": of(before("permits", "$sum", Bson::Int64(0))),
        "capacity": at.value("capacity"),
        "taken": taken,
        "served_at": { "$max": at.value("holders.since") },
        "first_end": { "$min": [{ "$min": at.value("holders.until") }, of(before("until", "$min", Bson::Null))] },
    }
}

/// Reads the answer to such a find; `None` if the entry is not in the queue, or there is no lock.
pub fn read(found: &Document, now: ServerTime) -> Result<Option<Ahead>, Malformed> {
    let number = |field: &str| found.get(field).and_then(whole);
    let required = |shown: &str, field: &str, problem| {
        let field = field.to_owned();
        number(shown).ok_or(Malformed::Field { field, problem })
    };
    if number("position").is_none() && number("capacity").is_none() {
        return Ok(None);
    }
    let Ok(position) = u64::try_from(required("position", "queue", "is not an array")?) else {
        return Ok(None);
    };
    let capacity = required("capacity", "capacity", "is not a whole number")?;
    let taken = required("taken", "holders", "is not an array")?;
    let permits = required("permits", "queue.permits", "is not a whole number")?;
    Ok(Some(Ahead {
        turns: turns(permits, capacity),
        position,
        free: capacity.saturating_sub(taken),
        served_at: ServerTime::in_field(found, "served_at"),
        first_end: ServerTime::in_field(found, "first_end"),
        now,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        Holder, Waiter,
        fixtures::{PERMITS, holder, lock, waiter},
    };

    #[test]
    fn entries_that_are_granted_together_count_as_one_turn() {
        assert_eq!(turns(12, 5), 2);
        assert_eq!(turns(4, 5), 0);
        assert_eq!(turns(7, 1), 7);
        assert_eq!(
            (turns(-7, 1), turns(7, 0), turns(i64::MAX, -3)),
            (0, 7, i64::MAX.unsigned_abs())
        );
    }

    #[test]
    fn a_waiter_sees_the_holders_and_the_waiters_ahead_of_it() {
        let held = |since, until, permits| Holder {
            since: ServerTime(since),
            until: ServerTime(until),
            permits,
            ..holder("a-1", 7)
        };
        let waits = |id: &str, until, permits| Waiter {
            until: ServerTime(until),
            permits,
            ..waiter(id)
        };
        let queue = [waits("b-1", 70, 8), waits("b-2", 60, 4), waits("b-3", 10, 1)];
        let state = lock(PERMITS, [held(3, 90, 4), held(5, 80, 3)], queue);
        let now = ServerTime(6);
        for (entry, turns, position, first_end) in [("b-1", 0, 0, 80), ("b-2", 0, 1, 70), ("b-3", 1, 2, 60)] {
            let ahead = Ahead {
                turns,
                position,
                free: 3,
                served_at: Some(ServerTime(5)),
                first_end: Some(ServerTime(first_end)),
                now,
            };
            assert_eq!(Ahead::of(&state, entry, now), Some(ahead), "{entry}");
        }
        assert_eq!(Ahead::of(&state, "a-1", now), None, "it does not wait");
    }

    fn answer() -> Document {
        doc! {
            "position": 2, "permits": 12, "capacity": 10, "taken": 7,
            "served_at": ServerTime(5), "first_end": ServerTime(60),
        }
    }

    #[test]
    fn the_answer_of_the_server_is_read_in_full() {
        let now = ServerTime(10);
        let ahead = Ahead {
            turns: 1,
            position: 2,
            free: 3,
            served_at: Some(ServerTime(5)),
            first_end: Some(ServerTime(60)),
            now,
        };
        assert_eq!(read(&answer(), now), Ok(Some(ahead)));
        let mut is_not_in_line = answer();
        is_not_in_line.insert("position", -1);
        let no_lock = doc! { "position": null, "capacity": null };
        for nothing in [is_not_in_line, no_lock, doc! {}] {
            assert_eq!(read(&nothing, now), Ok(None), "{nothing}");
        }
    }

    #[test]
    fn an_answer_of_something_else_than_a_lock_is_an_error() {
        for (shown, field) in [
            ("position", "queue"),
            ("capacity", "capacity"),
            ("taken", "holders"),
            ("permits", "queue.permits"),
        ] {
            let mut foreign = answer();
            foreign.insert(shown, Bson::Null);
            let error = read(&foreign, ServerTime(10)).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
    }

    #[test]
    fn the_server_is_asked_for_all_that_is_read() {
        let asked = projection(&Location::under("a.lock"), "me-1");
        for field in answer().keys() {
            assert!(asked.contains_key(field), "{field}");
        }
        assert_eq!(asked.get_str("capacity").unwrap(), "$a.lock.capacity");
    }
}
