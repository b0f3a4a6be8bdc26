//! How many renewals are on their way at once, and how long one is waited for before another goes out beside it.

use std::time::Duration;

use tokio::time::Instant;

use super::agenda::Queue;

/// Documents in one command: a few hundred kilobytes, and some milliseconds of the server's time.
pub(super) const RENEWED_TOGETHER: usize = 1_000;

/// Another renewal goes out beside an unanswered one after this part of the renewal interval, and beside both after
/// twice as long.
const BESIDE: u32 = 5;

/// However little time is left, so many renewals do no good.
pub(super) const SOONEST: Duration = Duration::from_millis(50);

/// The most renewals that are on their way at once, but for those that had another sent beside them.
const RENEWALS_AT_ONCE: usize = 64;

/// The most of them that are no repetitions. The server does them side by side, so with more of them each only takes
/// longer; and they leave room in the connection pool, which is the user's.
const FIRST_AT_ONCE: usize = 4;

/// And while the first of them is no later than the renewal interval, when nothing is at stake yet. After each of these there
/// is a rest as long as its answer took, so that a client that holds very many locks leaves the server to those who acquire.
const FIRST_IN_TIME: usize = 1;

/// The renewals of a session that are on their way, and how long their answers take.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// Those that had no other sent beside them so far.
    awaited: usize,
    /// Those of them that are no repetitions, and not urgent.
    first: usize,
    /// Those of them that are urgent.
    urgent: usize,
    /// The longest that an answer took of late.
    slowest: Duration,
    /// Until when those that come first rest, unless they are late.
    rest_until: Option<Instant>,
}

/// Why a renewal goes out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// It is due.
    First,
    /// It is due, and there is little time left.
    Urgent,
    /// As others were sent in vain.
    Again,
}

impl Renewals {
    /// Whether there is room for another.
    pub(super) fn has_room(&self, lane: Lane, late: bool, now: Instant) -> bool {
        self.room_from(lane, late, now).is_some_and(|from| from <= now)
    }

    /// From when there is room for another, unless one has to end before. `late`: the first of those that are due is.
    fn room_from(&self, lane: Lane, late: bool, now: Instant) -> Option<Instant> {
        let (has_room, from) = match lane {
            Lane::First if late => (self.first < FIRST_AT_ONCE, None),
            Lane::First => (self.first < FIRST_IN_TIME, self.rest_until),
            Lane::Urgent => (self.urgent < FIRST_AT_ONCE, None),
            Lane::Again => (true, None),
        };
        (has_room && self.awaited < RENEWALS_AT_ONCE).then(|| from.map_or(now, |from| from.max(now)))
    }

    /// The same for any of a queue.
    pub(super) fn room_for(&self, queue: Queue, late: bool, now: Instant) -> Option<Instant> {
        let room = |lane| self.room_from(lane, late, now);
        match queue {
            Queue::First => room(Lane::First),
            // What finds no room in its own lane goes with the others.
            Queue::Urgent => room(Lane::Urgent).or_else(|| room(Lane::First)),
            Queue::InVain(_) | Queue::Guarded | Queue::Refused => room(Lane::Again),
        }
    }

    pub(super) fn begin(&mut self, lane: Lane) {
        self.awaited += 1;
        self.first += usize::from(lane == Lane::First);
        self.urgent += usize::from(lane == Lane::Urgent);
    }

    /// One has ended, or another was sent beside it.
    pub(super) fn end(&mut self, lane: Lane) {
        self.awaited -= 1;
        self.first -= usize::from(lane == Lane::First);
        self.urgent -= usize::from(lane == Lane::Urgent);
    }

    /// One for which `pause` was waited was answered. A single one that hung does not tell of the others.
    pub(super) fn answered(&mut self, took: Duration, pause: Duration, lane: Lane) {
        if lane == Lane::First {
            self.rest_until = Some(Instant::now() + took);
        }
        self.slowest = took.min(pause * 2).max(self.slowest * 3 / 4);
    }

    /// How long a renewal is waited for until another goes out beside it, after so many in vain.
    pub(super) fn pause(&self, interval: Duration, in_vain: u32, left: Duration) -> Duration {
        let least = self.slowest.min(interval / 2) * 2;
        let pause = (interval / BESIDE).max(least);
        let pause = pause.saturating_mul(2_u32.saturating_pow(in_vain));
        // In time for the deadline, be it that of a claim; however slow the server is, once more before it.
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
        // However slow it is, there is another before the deadline.
        assert_eq!(pause(&renewals, 9, 1_000), millis(500));
        assert_eq!(pause(&renewals, 9, 60), SOONEST);
        // And however long one hung, a connection that hangs is found out about.
        renewals.answered(millis(20_000), millis(900), Lane::Again);
        assert_eq!(pause(&renewals, 0, 7_000), millis(2_000));
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_that_are_not_late_leave_the_server_to_others() {
        let mut renewals = Renewals::default();
        let room = |renewals: &Renewals, late| renewals.room_for(Queue::First, late, Instant::now());
        let begun = Instant::now();
        assert_eq!(room(&renewals, false), Some(begun));
        renewals.begin(Lane::First);
        assert_eq!((room(&renewals, false), room(&renewals, true)), (None, Some(begun)));
        // What is urgent has its own room.
        assert_eq!(renewals.room_for(Queue::Urgent, false, begun), Some(begun));
        let took = Duration::from_millis(80);
        tokio::time::advance(took).await;
        renewals.end(Lane::First);
        renewals.answered(took, Duration::from_secs(1), Lane::First);
        assert_eq!(
            (room(&renewals, false), room(&renewals, true)),
            (Some(begun + 2 * took), Some(begun + took))
        );
        assert!(!renewals.has_room(Lane::First, false, begun + took));
        assert!(renewals.has_room(Lane::First, false, begun + 2 * took));
        for _ in 0..FIRST_AT_ONCE {
            assert!(renewals.has_room(Lane::First, true, begun + took));
            renewals.begin(Lane::First);
        }
        assert!(!renewals.has_room(Lane::First, true, begun + took));
    }
}
