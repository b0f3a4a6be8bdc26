//! The number of renewals that are on their way at once, and the wait for one before another goes out beside it.

use std::time::Duration;

use tokio::time::Instant;

use super::agenda::Queue;
use crate::error::ServerError;

/// Maximum number of documents in one command: a few hundred kilobytes, and some milliseconds of the server's time.
pub(super) const RENEWED_TOGETHER: usize = 1_000;

/// Part of the renewal interval after which another renewal goes out beside an unanswered one; after twice as long,
/// one more goes out beside both.
const RENEWED_BESIDE: u32 = 5;

/// Minimum pause between two renewals, even if little time is left: more of them would only load the server.
pub(super) const SOONEST: Duration = Duration::from_millis(50);

/// Maximum number of renewals on their way at once, except those that had another sent beside them.
const RENEWALS_AT_ONCE: usize = 64;

/// Maximum number of them that are no repetitions. The server runs them side by side, so each takes longer with more
/// of them; and they leave room in the connection pool, which is the user's.
const FIRST_AT_ONCE: usize = 4;

/// The same while the first of them is no later than the renewal interval, when nothing is at stake yet. After each of
/// these comes a pause as long as its answer took, so that a client with very many locks leaves the server to other
/// clients' acquires; a shorter one where they don't come round in time.
const FIRST_IN_TIME: usize = 1;

/// Divisor of that pause while renewals fall behind.
const PAUSE_BEHIND: u32 = 4;

/// The renewals of a session that are on their way, and their recent answer times.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// Number of those without another sent beside them so far.
    awaited: usize,
    /// Number of these that are no repetitions, and not urgent.
    first: usize,
    /// Number of these that are urgent.
    urgent: usize,
    /// The longest recent answer time.
    slowest: Duration,
    /// When the last of the first renewals was answered, and the time that its answer took.
    answered: Option<(Instant, Duration)>,
    /// When it was reported that renewals are overdue, until they are not any more.
    pub(super) overdue_since: Option<Instant>,
    /// Since when none has been, as far as the server has acknowledged a write since.
    pub(super) in_time_since: Option<Instant>,
    /// The reason for which the last renewal failed.
    pub(super) failure: Option<ServerError>,
}

/// Pause before another look where renewals yield to acquires.
const YIELD: Duration = Duration::from_millis(20);

/// The time that renewals have, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// Very many locks are held, and acquires wait for a slot: these go first, until a renewal would soon be urgent.
    Yielding,
    InTime,
    /// Very many locks are held, whose renewals don't come round in time, and no acquire waits: they rest less, so that
    /// there is time to yield again.
    Behind,
    /// The first due one is late by more than an interval; with very many locks, it would be urgent at once.
    Late,
}

/// The reason for a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// It is due.
    First,
    /// It is due, and there is little time left.
    Urgent,
    /// Earlier ones were sent in vain.
    Again,
}

impl Renewals {
    /// Whether there is room for another.
    pub(super) fn has_room(&self, lane: Lane, haste: Haste, now: Instant) -> bool {
        self.room_from(lane, haste, now).is_some_and(|from| from <= now)
    }

    /// Returns from when there is room for another, unless one must end before.
    fn room_from(&self, lane: Lane, haste: Haste, now: Instant) -> Option<Instant> {
        let (has_room, from) = match lane {
            Lane::First => match haste {
                Haste::Late => (self.first < FIRST_AT_ONCE, None),
                Haste::InTime => (self.first < FIRST_IN_TIME, self.paused_until(1)),
                Haste::Behind => (self.first < FIRST_IN_TIME, self.paused_until(PAUSE_BEHIND)),
                Haste::Yielding => (self.first < FIRST_IN_TIME, Some(now + YIELD)),
            },
            Lane::Urgent => (self.urgent < FIRST_AT_ONCE, None),
            Lane::Again => (true, None),
        };
        (has_room && self.awaited < RENEWALS_AT_ONCE).then(|| from.map_or(now, |from| from.max(now)))
    }

    /// Returns when the first renewals have paused for such a part of the time that the last answer took.
    fn paused_until(&self, part: u32) -> Option<Instant> {
        self.answered.map(|(at, took)| at + took / part)
    }

    /// Returns the same for a hold of this queue.
    pub(super) fn room_for(&self, queue: Queue, haste: Haste, now: Instant) -> Option<Instant> {
        let room = |lane| self.room_from(lane, haste, now);
        match queue {
            Queue::First => room(Lane::First),
            // An urgent renewal without room in its own lane goes with the others.
            Queue::Urgent => room(Lane::Urgent).or_else(|| room(Lane::First)),
            Queue::InVain(_) | Queue::Guarded | Queue::Refused => room(Lane::Again),
        }
    }

    pub(super) fn begin(&mut self, lane: Lane) {
        self.awaited += 1;
        self.first += usize::from(lane == Lane::First);
        self.urgent += usize::from(lane == Lane::Urgent);
    }

    /// Frees the slot of a renewal that has ended, or had another sent beside it.
    pub(super) fn end(&mut self, lane: Lane) {
        self.awaited -= 1;
        self.first -= usize::from(lane == Lane::First);
        self.urgent -= usize::from(lane == Lane::Urgent);
    }

    /// Notes the answer time of one that was awaited for `pause`. A single one that hung says nothing of the
    /// others.
    pub(super) fn answered(&mut self, took: Duration, pause: Duration, lane: Lane) {
        if lane == Lane::First {
            self.answered = Some((Instant::now(), took.min(pause * 2)));
        }
        self.slowest = took.min(pause * 2).max(self.slowest * 3 / 4);
    }

    /// Returns how long to wait for a renewal until another goes out beside it, after so many in vain.
    pub(super) fn pause(&self, interval: Duration, in_vain: u32, left: Duration) -> Duration {
        let least = self.slowest.min(interval / 2) * 2;
        let pause = (interval / RENEWED_BESIDE).max(least);
        let pause = pause.saturating_mul(2_u32.saturating_pow(in_vain));
        // In time for the deadline, even that of a claim, and at least once more before it, even on a slow server.
        pause.min(left / 3).max(least.min(left / 2)).max(SOONEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_renewal_comes_the_later_the_slower_answers_are() {
        let millis = Duration::from_millis;
        let mut renewals = Renewals::default();
        let pause = |renewals: &Renewals, in_vain, left| renewals.pause(millis(2_000), in_vain, millis(left));
        assert_eq!(pause(&renewals, 0, 7_000), millis(400));
        assert_eq!(pause(&renewals, 2, 7_000), millis(1_600));
        assert_eq!(pause(&renewals, 9, 6_000), millis(2_000));
        assert_eq!(pause(&renewals, 9, 60), SOONEST);
        renewals.answered(millis(600), millis(400), Lane::Again);
        assert_eq!(pause(&renewals, 0, 7_000), millis(1_200));
        // One fast answer does not make a fast server.
        renewals.answered(millis(1), millis(1_200), Lane::Again);
        assert_eq!(pause(&renewals, 0, 7_000), millis(900));
        // Even on a slow server there is another before the deadline.
        assert_eq!(pause(&renewals, 9, 1_000), millis(500));
        assert_eq!(pause(&renewals, 9, 60), SOONEST);
        // A connection that hangs is noticed, even after one that hung for long.
        renewals.answered(millis(20_000), millis(900), Lane::Again);
        assert_eq!(pause(&renewals, 0, 7_000), millis(2_000));
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_that_are_not_late_leave_the_server_to_others() {
        let mut renewals = Renewals::default();
        let room = |renewals: &Renewals, haste| renewals.room_for(Queue::First, haste, Instant::now());
        let begun = Instant::now();
        assert_eq!(room(&renewals, Haste::InTime), Some(begun));
        assert_eq!(room(&renewals, Haste::Yielding), Some(begun + YIELD));
        renewals.begin(Lane::First);
        assert_eq!(
            (room(&renewals, Haste::InTime), room(&renewals, Haste::Late)),
            (None, Some(begun))
        );
        // Urgent renewals have their own room.
        assert_eq!(renewals.room_for(Queue::Urgent, Haste::Yielding, begun), Some(begun));
        let took = Duration::from_millis(80);
        tokio::time::advance(took).await;
        renewals.end(Lane::First);
        renewals.answered(took, Duration::from_secs(1), Lane::First);
        assert_eq!(
            (room(&renewals, Haste::InTime), room(&renewals, Haste::Late)),
            (Some(begun + 2 * took), Some(begun + took))
        );
        assert_eq!(room(&renewals, Haste::Behind), Some(begun + took + took / 4));
        assert!(!renewals.has_room(Lane::First, Haste::InTime, begun + took));
        assert!(renewals.has_room(Lane::First, Haste::InTime, begun + 2 * took));
        for _ in 0..FIRST_AT_ONCE {
            assert!(renewals.has_room(Lane::First, Haste::Late, begun + took));
            renewals.begin(Lane::First);
        }
        assert!(!renewals.has_room(Lane::First, Haste::Late, begun + took));
    }
}
