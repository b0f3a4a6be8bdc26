//! The prospect of a queue: whether its head may be served soon, and so needs the change stream, and when it asks for its
//! queue position next.
//!
//! An open stream costs the server some of its time for every write of the whole replica set. So it is for holders,
//! which learn of a loss by it, and for waiters that may be served within moments. A waiter further back repeats its
//! request from time to time, which writes every third of a lease while it stays where it is, and has the stream opened
//! when its turn comes near. If all those ahead of it go at once, it is served late: by the time between two questions,
//! which is less than a claim lease.
//!
//! Where there is no stream, all waiters ask, as often as the lock's pace demands.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Context, Hold, StreamState, Waiting, Waitlist,
    timing::{ASK_EVERY, poll_interval},
};
use crate::{
    config::Config,
    protocol::{Entry, ServerTime, State},
};

/// A head's knowledge of the queue, from one sight of it to the next.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prospect {
    /// The head's entry.
    pub(super) entry: String,
    /// Number of waiters ahead of it.
    pub(super) position: usize,
    /// Hand-overs until it is its turn, if entries that are granted together also leave together.
    pub(super) turns: u64,
    /// The latest grant among the holders; `None` if nobody holds the lock.
    pub(super) served_at: Option<ServerTime>,
    /// When it was seen, by the server's clock and by ours.
    pub(super) now: ServerTime,
    pub(super) seen_at: Instant,
    /// Whether its turn may come before it would ask again.
    pub(super) is_near: bool,
}

impl Prospect {
    /// Returns the head's sight of the queue; `None` if it is not in it.
    fn of<T>(state: &State, head: &Waiting<T>, now: ServerTime, seen_at: Instant) -> Option<Self> {
        let position = state.queue.iter().position(|waiter| waiter.id == head.entry)?;
        let permits = |entries: &[Entry]| entries.iter().map(|entry| entry.permits).fold(0, i64::saturating_add);
        Some(Self {
            entry: head.entry.clone(),
            position,
            turns: turns(permits(&state.queue[..position]), state.capacity),
            served_at: state.holders.iter().map(|holder| holder.since).max(),
            now,
            seen_at,
            is_near: false,
        })
    }

    /// Returns the time that a hand-over has taken since an earlier sight, if there was one.
    pub(super) fn pace_since(&self, before: &Self) -> Option<Duration> {
        let moved = before.turns.saturating_sub(self.turns);
        let passed = self.now.since(before.now);
        passed
            .checked_div(saturated(moved))
            .filter(|_| before.entry == self.entry)
    }

    /// Returns the time that each hand-over has taken if the head is served now. All of them count alike: a single long
    /// hold may be among them.
    pub(super) fn pace_until(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.seen_at) / saturated(self.turns.saturating_add(1))
    }

    /// Returns most of the time that the hand-overs before its turn take at this pace, after the present hold, but for
    /// the last ones.
    pub(super) fn hand_overs(&self, but: u32, pace: Duration, config: &Config) -> Duration {
        (pace.max(config.poll_quickest) / 4 * 3).saturating_mul(saturated(self.turns).saturating_sub(but))
    }

    /// Returns the pause before the next question without a stream, where the lock is held and so has a pace. The present
    /// hold is expected to last for as long again as it has lasted, and half of that may pass.
    pub(super) fn pause(&self, pace: Duration, config: &Config) -> Option<Duration> {
        let pause = (self.age()? / 2).saturating_add(self.hand_overs(0, pace, config));
        Some(pause.max(config.poll_quickest))
    }

    /// Returns the age of the present hold; `None` while nobody holds the lock.
    fn age(&self) -> Option<Duration> {
        // After a fail-over the clock can be behind the one by which the grant was made.
        let served_at = self.served_at.filter(|served_at| *served_at <= self.now)?;
        Some(self.now.since(served_at))
    }

    /// Returns whether the turn may come within the pause between two questions; `before`: the sight before. A hold that has
    /// lasted for long is expected to last as long again, and as long as a hand-over has taken since the sight before. As
    /// many as have gone since then may go again.
    pub(super) fn comes_near(&self, before: Option<&Self>, near: u64) -> bool {
        let Some(age) = self.age() else { return true };
        let before = before.filter(|before| before.entry == self.entry);
        let moved = before.map_or(0, |before| before.turns.saturating_sub(self.turns));
        let passed = before.map_or(Duration::ZERO, |before| self.now.since(before.now));
        let Some(beyond) = self.turns.checked_sub(near.saturating_add(moved)) else {
            return true;
        };
        let each = age.max(passed / saturated(moved.max(1)));
        each.saturating_mul(saturated(beyond.saturating_add(1))) < ASK_EVERY
    }
}

impl<H: Hold> Waitlist<H> {
    /// Returns the head's sight of the queue in this document; `None` if it is not in it.
    pub(super) fn sees(&self, state: &State, now: ServerTime, context: &Context<'_>) -> Option<Prospect> {
        Prospect::of(state, self.waiting.front()?, now, context.now)
    }

    /// Notes the head's present sight of the queue. Returns the pause until it needs the next.
    pub(super) fn see_ahead(&mut self, mut prospect: Prospect, context: &Context<'_>) -> Option<Duration> {
        let before = self.prospect.take();
        prospect.is_near = prospect.comes_near(before.as_ref(), context.config.near);
        let took = before.as_ref().and_then(|before| prospect.pace_since(before));
        took.into_iter().for_each(|took| self.note_pace(took, context));
        self.prospect = Some(prospect);
        self.asks_in(context)
    }

    /// Notes that hand-overs took this long each.
    pub(super) fn note_pace(&mut self, took: Duration, context: &Context<'_>) {
        self.pace = paced(self.pace, took, context.config);
    }

    /// Returns the pause until the head asks for its queue position, if it does.
    fn asks_in(&self, context: &Context<'_>) -> Option<Duration> {
        let (head, prospect) = (self.waiting.front()?, self.prospect.as_ref()?);
        let may_do_without = match context.stream {
            // Its events come by the stream. One that closes has every head ask.
            StreamState::Open if !prospect.is_near || prospect.turns < context.config.near => return None,
            // It has the stream because of its queue position, and may find that it does not need it.
            StreamState::Open => true,
            StreamState::OnDemand => !prospect.is_near,
            StreamState::Opening | StreamState::Unavailable => false,
        };
        Some(if may_do_without {
            // One that is served out of turn has as long to take up its grant as it takes to notice, at least.
            ASK_EVERY.min(context.config.usable(head.lease.claim) / 2)
        } else {
            // By the pace of the lock where that is known, and never longer than where it is not; and a grant must be
            // noticed while its claim lease runs.
            let waited = context.now.saturating_duration_since(head.since);
            let usual = poll_interval(context.config, prospect.position, waited);
            let paced = prospect.pause(self.pace, context.config).unwrap_or(usual);
            paced.min(usual).min(head.lease.claim / 4)
        })
    }
}

/// Returns the pace of a queue after hand-overs that took this long each, where it was `before`.
///
/// A wait that began while somebody held for long makes all hand-overs seem slow. A waiter that relied on it would come
/// late for its turn once the others are fast again, hold up all that are behind it, and make them reckon with slow
/// hand-overs. So a quicker one counts at once, and a slower one as twice the pace at most.
pub(super) fn paced(before: Duration, took: Duration, config: &Config) -> Duration {
    let quickest = config.poll_quickest;
    took.clamp(quickest, before.max(quickest).saturating_mul(2))
}

/// Returns how often a lock of this capacity is handed over until this many permits were granted.
fn turns(permits: i64, capacity: i64) -> u64 {
    u64::try_from(permits / capacity.max(1)).unwrap_or(0)
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        protocol::{ServerTime, fixtures},
        waitlist::{
            StreamState,
            fixtures::{MUTEX, ahead, in_context, queued, task, waitlist},
        },
    };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_sees_the_holders_and_the_waiters_ahead_of_it() {
        let held = |since, permits| Entry {
            since: ServerTime(since),
            permits,
            ..fixtures::holder("a-1", 7)
        };
        let waits = |id: &str, permits| Entry {
            permits,
            ..fixtures::waiter(id)
        };
        let queue = [waits("me-1", 8), waits("me-2", 4), waits("me-3", 1)];
        let state = fixtures::lock(fixtures::PERMITS, [held(3, 4), held(5, 3)], queue);
        let (now, seen_at) = (ServerTime(6), Instant::now());
        for (key, turns, position) in [(1, 0, 0), (2, 0, 1), (3, 1, 2)] {
            let prospect = Prospect {
                entry: format!("me-{key}"),
                turns,
                position,
                served_at: Some(ServerTime(5)),
                now,
                seen_at,
                is_near: false,
            };
            let head = task(key, (fixtures::PERMITS, 1));
            assert_eq!(Prospect::of(&state, &head, now, seen_at), Some(prospect), "{key}");
        }
        let head = task(4, (fixtures::PERMITS, 1));
        assert_eq!(Prospect::of(&state, &head, now, seen_at), None, "it does not wait");
    }

    /// Follows a head through sights: of its position, the age of the hold, and the time since the sight before, in
    /// milliseconds. Returns the pauses after them, in microseconds.
    fn pauses(sights: &[(u64, i64, i64)], context: &Context<'_>) -> Vec<Option<u128>> {
        let (mut before, mut now, mut pace): (Option<Prospect>, _, _) = (None, 1_000_000, Duration::ZERO);
        let pause = |(position, age, passed)| {
            now += passed;
            let prospect = Prospect {
                now: ServerTime(now),
                served_at: Some(ServerTime(now - age)),
                ..ahead(position, 0)
            };
            if let Some(took) = before.as_ref().and_then(|before| prospect.pace_since(before)) {
                pace = paced(pace, took, context.config);
            }
            let pause = before.insert(prospect).pause(pace, context.config);
            pause.map(|pause| pause.as_micros())
        };
        sights.iter().copied().map(pause).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_stream_the_waiters_of_a_lock_that_changes_hands_fast_follow_it() {
        in_context(|context| {
            // The head: half of the age of the hold, and at most once a millisecond.
            let head = pauses(&[(0, 0, 0), (0, 6, 6), (0, 30, 24), (0, 600, 570)], context);
            assert_eq!(head, [Some(1_000), Some(3_000), Some(15_000), Some(300_000)]);
            // Further back: as if the queue moved as fast as it can, until that is known: 10 positions in 20 ms.
            let back = pauses(&[(40, 0, 0), (40, 4, 4), (30, 4, 20)], context);
            assert_eq!(back, [Some(30_000), Some(32_000), Some(2_000 + 45_000)]);
            // A slow hand-over counts as twice the pace, and a quick one at once.
            let late = pauses(&[(40, 4, 0), (30, 4, 20), (29, 4, 43), (19, 4, 10)], context);
            assert_eq!(late[2..], [Some(2_000 + 87_000), Some(2_000 + 14_250)]);
            // A clock that goes back makes the queue seem fast, and the present hold one of no known age.
            let back = pauses(&[(40, 4, 0), (30, 4, 20), (20, 4, -800), (20, -5, 0)], context);
            assert_eq!(back[2..], [Some(2_000 + 15_000), None]);
            // The shortest pause that is set is never undercut.
            let mut config = Config::default();
            config.set_poll_interval(millis(20), millis(500));
            let config = &config;
            assert_eq!(pauses(&[(0, 3, 0)], &Context { config, ..*context }), [Some(20_000)]);
            // Nobody holds it.
            let free = Prospect {
                served_at: None,
                ..ahead(3, 0)
            };
            assert_eq!(free.pause(Duration::ZERO, context.config), None);
        });
    }

    #[test]
    fn a_head_near_the_front_or_in_a_fast_queue_needs_the_stream() {
        // One of the next, however long it takes.
        assert!(ahead(3, 3_600_000).comes_near(None, 4));
        // Further back, where holds are short; and where they are long.
        assert!(ahead(50, 10).comes_near(None, 4));
        assert!(ahead(7, 624).comes_near(None, 4) && !ahead(7, 625).comes_near(None, 4));
        assert!(!ahead(4, 2_500).comes_near(None, 4) && !ahead(200, 60_000).comes_near(None, 4));
        // Nobody holds it.
        let free = Prospect {
            served_at: None,
            ..ahead(200, 0)
        };
        assert!(free.comes_near(None, 4));
        // The present hold is young, but the queue has not moved for a second, or has by two positions.
        let before = |turns| Prospect {
            now: ServerTime(999_000),
            ..ahead(turns, 0)
        };
        assert!(!ahead(50, 10).comes_near(Some(&before(50)), 4));
        assert!(!ahead(10, 10).comes_near(Some(&before(12)), 4));
        // As many as have gone may go again.
        assert!(ahead(10, 60_000).comes_near(Some(&before(17)), 4));
        assert!(!ahead(10, 60_000).comes_near(Some(&before(16)), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_came_while_somebody_held_for_long_does_not_sleep_when_the_queue_is_fast() {
        in_context(|context| {
            let mut pace = millis(2);
            let mut waits = |turns, took| {
                let prospect = ahead(turns, 0);
                pace = paced(pace, prospect.pace_until(context.now + took), context.config);
                pace
            };
            assert_eq!(waits(7, millis(24)), millis(3));
            assert_eq!(waits(7, millis(540)), millis(6));
            assert_eq!(waits(0, millis(60_000)), millis(12));
            assert_eq!(waits(7, millis(16)), millis(2));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_asks_again_by_its_distance_from_the_front_and_by_the_stream_that_it_has() {
        in_context(|context| {
            let asks = |stream, seen: Prospect| {
                let context = Context { stream, ..*context };
                let pause = waitlist([queued(1, MUTEX)]).see_ahead(seen, &context);
                pause.map(|pause| pause.as_millis())
            };
            // Its turn is four holds of a second away.
            let far = || ahead(7, 1_000);
            assert_eq!(asks(StreamState::OnDemand, far()), Some(1_997));
            // The stream is open for others: beyond a number of heads that ask, one stream costs less.
            assert_eq!(asks(StreamState::Open, far()), None);
            // Who polls does so after 10 ms for itself and for each waiter ahead, by the pace of the lock at the most, and
            // in time for a grant.
            assert_eq!(asks(StreamState::Unavailable, far()), Some(80));
            assert_eq!(asks(StreamState::OnDemand, ahead(3, 1_000)), Some(40));
            assert_eq!(asks(StreamState::Unavailable, ahead(4, 10)), Some(8));
            // Near the front only as the lock changes hands fast; and one of the next.
            assert_eq!(asks(StreamState::Open, ahead(4, 10)), Some(1_997));
            assert_eq!(asks(StreamState::Open, ahead(3, 10)), None);
            // It has half of the time for which a grant on its claim lease counts, however much the clocks may differ.
            let claims = |millis: u64| {
                let mut head = queued(1, MUTEX);
                head.lease.claim = Duration::from_millis(millis);
                let context = Context {
                    stream: StreamState::OnDemand,
                    ..*context
                };
                let pause = waitlist([head]).see_ahead(far(), &context);
                pause.map(|pause| pause.as_millis())
            };
            assert_eq!([2_100, 20_000].map(claims), [Some(548), Some(2_500)]);
        });
    }
}
