//! The entries ahead of a waiter.

use super::{ServerTime, State};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        Entry,
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
        let held = |since, until, permits| Entry {
            since: ServerTime(since),
            until: ServerTime(until),
            permits,
            ..holder("a-1", 7)
        };
        let waits = |id: &str, until, permits| Entry {
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
}
