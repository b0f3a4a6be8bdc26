//! The times in which a line expects no event, so that its client need not ask for any.
//!
//! The server wakes a waiting `getMore` for every write of the whole replica set, and checks each write of a lock for
//! whether it concerns this client. When many clients take one lock in turn, that is most of the cost of a hand-over:
//! each write wakes all of them, and concerns one. So a client that has just been served, or that is further back in a
//! moving queue, requests the next events only shortly before its turn. None is lost: the stream resumes after the last
//! one.

use std::time::Duration;

use tokio::time::Instant;

/// Time after a grant for which no event is expected: a hold that is this short is followed by another request, whose
/// answer says more. The loss of a hold, or another client's request, is noticed this much later at most.
const GRANTED: Duration = Duration::from_millis(2);

/// Time after an operation was sent for which its answer is expected to bring all news.
const ANSWERED: Duration = Duration::from_millis(20);

/// Number of waiters at the front, which need every event, as some of those ahead may cancel. A waiter further back
/// requests no events until one of these is about to be served.
const NEXT: u64 = 3;

/// Maximum time for which a waiter asks for no events. Those ahead of it can all leave at once: then it is served so
/// much later, which is less than where it only looks at its queue position.
const CALM_MOST: Duration = Duration::from_millis(250);

/// The line's situation, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Situation {
    /// Nothing is held or waited for: the line is about to go.
    Unused,
    /// Something is held, the oldest of it since then.
    Holding(Instant),
    /// An operation was sent then, and is on its way.
    Asking(Instant),
    /// It waits for this many hand-overs before its turn.
    Queued(u64),
    /// Anything else.
    Other,
}

/// The time of a hand-over, as the client's last two waits for the lock have shown it.
///
/// A wait that began while somebody held for long makes all hand-overs seem slow. A waiter that relied on it would
/// sleep through its turn once the others are fast again. So the quicker of the two counts, and one alone does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerTurn {
    last: Duration,
    before: Option<Duration>,
}

impl PerTurn {
    fn expected(self) -> Option<Duration> {
        self.before.map(|before| before.min(self.last))
    }
}

/// The known pace at which the lock is handed over.
#[derive(Debug, Default)]
pub(super) struct Calm {
    /// The waiter whose turn is awaited, the hand-overs before it, and when that was seen first.
    waiter: Option<(String, u64, Instant)>,
    /// When the queue was seen last.
    seen_at: Option<Instant>,
    per_turn: Option<PerTurn>,
}

impl Calm {
    pub(super) fn new(per_turn: Option<PerTurn>) -> Self {
        Self {
            per_turn,
            ..Self::default()
        }
    }

    pub(super) fn pace(&self) -> Option<PerTurn> {
        self.per_turn
    }

    /// Notes the hand-overs before a waiter's turn, as the server has just shown them.
    pub(super) fn saw(&mut self, entry: &str, turns: u64, now: Instant) {
        self.seen_at = Some(now);
        if self.waiter.as_ref().is_none_or(|(waiter, ..)| waiter != entry) {
            self.waiter = Some((entry.to_owned(), turns, now));
        }
    }

    /// Notes that a waiter was served.
    pub(super) fn served(&mut self, entry: &str, now: Instant) {
        if let Some((waiter, turns, since)) = self.waiter.take()
            && waiter == entry
        {
            let turns = u32::try_from(turns).unwrap_or(u32::MAX).saturating_add(1);
            self.per_turn = Some(PerTurn {
                last: now.saturating_duration_since(since) / turns,
                before: self.per_turn.map(|before| before.last),
            });
        }
        self.seen_at = None;
    }

    /// Returns until when no event is expected, if none was requested since `begun`. The events are requested in time
    /// even if a lock goes often from task to task of this client, or the client often asks for the lock.
    pub(super) fn until(&self, situation: Situation, begun: Instant, claim: Duration, now: Instant) -> Instant {
        match situation {
            Situation::Unused => begun + CALM_MOST,
            Situation::Holding(since) => since.min(begun) + GRANTED,
            Situation::Asking(sent) => sent.min(begun) + ANSWERED,
            Situation::Queued(turns) => {
                let most = CALM_MOST.min(claim / 8);
                let per_turn = self.per_turn.and_then(PerTurn::expected);
                let per_turn = per_turn.filter(|per_turn| *per_turn <= most);
                let (Some(seen_at), Some(per_turn)) = (self.seen_at, per_turn) else {
                    // Nothing is known of the pace, or a pause would make no difference.
                    return now;
                };
                let turns = u32::try_from(turns.saturating_sub(NEXT - 1)).unwrap_or(u32::MAX);
                // Those ahead may be faster this time.
                let until = seen_at + (per_turn / 4 * 3).saturating_mul(turns).min(most);
                until.min(begun + most)
            }
            Situation::Other => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Duration = Duration::from_secs(5);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A client that was served after this many hand-overs, in this time; and that was so the time before.
    fn served(turns: u64, took: Duration, began: Instant) -> Calm {
        let mut calm = Calm::default();
        wait(&mut calm, turns, took, began);
        wait(&mut calm, turns, took, began);
        calm
    }

    fn wait(calm: &mut Calm, turns: u64, took: Duration, began: Instant) {
        calm.saw("a-1", turns, began);
        calm.saw("a-1", 1, began + took / 2);
        calm.served("a-1", began + took);
    }

    #[test]
    fn a_waiter_asks_for_no_events_until_shortly_before_its_turn() {
        let now = Instant::now();
        let mut calm = served(31, millis(64), now);
        assert_eq!(calm.pace().and_then(PerTurn::expected), Some(millis(2)));
        calm.saw("a-2", 30, now);
        let until = |calm: &Calm, turns| calm.until(Situation::Queued(turns), now, CLAIM, now) - now;
        assert_eq!(until(&calm, 30), millis(42));
        // Those who may be next ask for every event.
        assert_eq!((until(&calm, 4), until(&calm, 2)), (millis(3), Duration::ZERO));
        // For any length of the queue and of a claim lease.
        let mut slow = served(9, millis(400), now);
        slow.saw("a-2", 30, now);
        assert_eq!(until(&slow, 30), CALM_MOST);
        // A lock that is held for long is another matter.
        let mut held_long = served(9, millis(90_000), now);
        held_long.saw("a-2", 30, now);
        assert_eq!(until(&held_long, 30), Duration::ZERO);
        assert_eq!(
            slow.until(Situation::Queued(30), now, millis(400), now) - now,
            millis(50)
        );
        // It counts from when the queue was seen, and no longer than from the last events.
        let at = now + millis(40);
        assert_eq!(calm.until(Situation::Queued(30), at, CLAIM, at) - now, millis(42));
        slow.saw("a-2", 30, at);
        assert_eq!(slow.until(Situation::Queued(30), now, CLAIM, at) - now, CALM_MOST);
    }

    #[test]
    fn events_of_a_queue_whose_pace_is_not_known_are_asked_for_at_once() {
        let now = Instant::now();
        let queued = |calm: &Calm| calm.until(Situation::Queued(30), now, CLAIM, now) - now;
        let mut calm = Calm::default();
        calm.saw("a-1", 30, now);
        assert_eq!(queued(&calm), Duration::ZERO);
        // Another entry was served than the one that was seen.
        calm.served("a-2", now + millis(10));
        assert_eq!(calm.pace(), None);
        // A remembered pace of a name counts as much as an observed one.
        let mut calm = Calm::new(served(31, millis(64), now).pace());
        calm.saw("a-1", 30, now);
        assert_eq!(queued(&calm), millis(42));
    }

    #[test]
    fn who_came_while_somebody_held_for_long_does_not_sleep_when_the_queue_is_fast() {
        let now = Instant::now();
        let mut calm = Calm::default();
        let until = |calm: &mut Calm| {
            calm.saw("a-2", 8, now);
            calm.until(Situation::Queued(8), now, CLAIM, now) - now
        };
        wait(&mut calm, 7, millis(500), now);
        // One wait may have been anything.
        assert_eq!(until(&mut calm), Duration::ZERO);
        wait(&mut calm, 8, millis(18), now);
        assert_eq!(until(&mut calm), millis(9));
        // Another long hold, and a queue that has become slow.
        wait(&mut calm, 8, millis(540), now);
        assert_eq!(until(&mut calm), millis(9));
        wait(&mut calm, 8, millis(270), now);
        assert_eq!(until(&mut calm), millis(135));
    }

    #[test]
    fn nothing_that_happens_here_puts_off_the_events_for_long() {
        let begun = Instant::now();
        let now = begun + millis(100);
        let calm = Calm::default();
        let until = |situation| calm.until(situation, begun, CLAIM, now) - begun;
        // A lock that goes from task to task, or was held before the last events; an operation that hangs.
        assert_eq!(until(Situation::Holding(now)), GRANTED);
        assert_eq!(until(Situation::Asking(now)), ANSWERED);
        assert_eq!(
            calm.until(Situation::Holding(begun), begun + millis(1), CLAIM, now) - begun,
            GRANTED
        );
        assert_eq!(until(Situation::Other), millis(100));
    }
}
