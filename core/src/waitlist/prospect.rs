//! The prospect of a queue: whether its head may be served soon, and so needs the change stream, and when it looks at its
//! queue position next.
//!
//! An open stream costs the server some of its time for every write of the whole replica set. So it is for holders,
//! which learn of a loss by it, and for waiters that may be served within moments. A waiter further back looks at its
//! queue position by a read from time to time, and has the stream opened when its turn comes near. If all those
//! ahead of it go at once, it is served late: by the time between two looks, which is less than a claim lease.
//!
//! Where there is no stream, all waiters look, as often as the lock's pace asks for. A client that the queue had no room
//! for looks for room.
//!
//! A look holds up no operation, and one that is sent beside it knows better. It grants nothing, so each hand-over
//! costs a request on top of it. A look is answered by one member alone, which may be the primary no more, and what it
//! shows can still be undone. The answer to a request, also to one that writes nothing, is what a majority has.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Context, Hold, Step, StreamState, Waiting, Waitlist,
    timing::{asks_after, poll_interval},
};
use crate::{
    config::Config,
    protocol::{Entry, ServerTime, State},
};

/// Pause between two looks of a head that does without the stream: how late it may be served if its turn comes before
/// its next look. A head whose turn may come sooner needs the stream.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A look at the document, by the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The number of entries that the queue has room for, if it looks for room; otherwise it looks at its queue position.
    pub room: Option<usize>,
    begun: Instant,
}

/// A head's knowledge of the queue, from one sight of it to the next.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prospect {
    /// The head's entry.
    pub(super) entry: String,
    /// Number of waiters ahead of it.
    pub(super) position: u64,
    /// Hand-overs until it is its turn, if entries that are granted together also leave together.
    pub(super) turns: u64,
    /// The permits that nobody holds.
    pub(super) free: i64,
    /// The latest grant among the holders; `None` if nobody holds the lock.
    pub(super) served_at: Option<ServerTime>,
    /// The earliest end of a lease among the holders and the waiters ahead.
    pub(super) first_end: Option<ServerTime>,
    /// When it was seen, by the server's clock and by ours.
    pub(super) now: ServerTime,
    pub(super) seen_at: Instant,
    /// Whether its turn may come before it would look again.
    pub(super) is_near: bool,
}

impl Prospect {
    /// Returns the head's sight of the queue; `None` if it is not in it.
    fn of<T>(state: &State, head: &Waiting<T>, now: ServerTime, seen_at: Instant) -> Option<Self> {
        let position = state.queue.iter().position(|waiter| waiter.id == head.entry)?;
        let before = &state.queue[..position];
        let permits = |entries: &[Entry]| entries.iter().map(|entry| entry.permits).fold(0, i64::saturating_add);
        Some(Self {
            entry: head.entry.clone(),
            position: position as u64,
            turns: turns(permits(before), state.capacity),
            free: state.capacity.saturating_sub(permits(&state.holders)),
            served_at: state.holders.iter().map(|holder| holder.since).max(),
            first_end: state.holders.iter().chain(before).map(|entry| entry.until).min(),
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

    /// Returns the pause before the next look without a stream, where the lock is held and so has a pace. The present
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

    /// Returns whether the turn may come within the pause between two looks; `before`: the sight before. A hold that has
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
        each.saturating_mul(saturated(beyond.saturating_add(1))) < LOOK_EVERY
    }
}

impl<H: Hold> Waitlist<H> {
    /// Whether this look is on its way, and no operation has overtaken it.
    pub fn is_looking(&self, look: Look) -> bool {
        self.looking == Some(look)
    }
}

impl<H: Hold> Step<'_, H> {
    /// Returns the head's look at the document, if it is due. It is on its way from now on, until [`looked`](Self::looked)
    /// notes what it shows, or an operation is sent.
    pub fn next_look(&mut self) -> Option<Look> {
        let begun = self.context.now;
        if self.under_way.is_some() || self.look_at.is_none_or(|at| at > begun) || !self.may_look() {
            return None;
        }
        let room = self.is_kept_out().then_some(self.context.room);
        (self.look_at, self.looking) = (None, Some(Look { room, begun }));
        self.looking
    }

    /// Notes what a look has shown, and the server's time then; `None`: there was no answer. One for room shows the lock
    /// only if [its queue is full](State::is_full). A head that is no longer in the queue asks, and so does one that has
    /// come near the front and is about to have the stream.
    pub fn looked(&mut self, look: Look, seen: Option<Option<&State>>, now: Option<ServerTime>) {
        if self.looking.take_if(|looking| *looking == look).is_none() {
            // An operation was sent, or the head asks already.
            return;
        }
        if self.is_kept_out() {
            // A server that is too slow to answer gets a request for every other look only.
            let is_first = self.blind_until.is_none() && seen.is_none();
            self.blind_until = is_first.then_some(self.context.now);
            if is_first || seen.flatten().is_some() {
                return self.look_for_room();
            }
            self.is_full = false;
        }
        let (list, context) = (&mut *self.list, self.context);
        let Some(head) = list.waiting.front().filter(|head| head.is_queued()) else {
            return;
        };
        let seen = seen.flatten().zip(now);
        let prospect = seen.and_then(|(state, now)| list.sees(state, now, context));
        // Every write of the protocol grants to all that fit. If the first in line fits now, another program's write
        // has made room, and no client has written since.
        let fits = |prospect: &Prospect| prospect.position == 0 && head.wants.permits <= prospect.free;
        let Some(prospect) = prospect.filter(|prospect| !fits(prospect)) else {
            // The answer can show the opposite, and the next look too: an old primary answers looks for a while.
            list.blind_until = Some(context.now + list.looks_failed.failed());
            list.ask_at = Some(context.now);
            return;
        };
        (list.blind_until, list.looks_failed) = Default::default();
        let was_far = list.is_far();
        list.see_ahead(prospect, context);
        list.look_at = list.next_look_at(context);
        if context.stream == StreamState::OnDemand && was_far && !list.is_far() {
            list.ask_at = Some(context.now);
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Whether a look shows anything to the head: its queue position, or that there is room for it.
    pub(super) fn may_look(&self) -> bool {
        self.is_queued() || self.is_kept_out()
    }

    /// Returns the head's sight of the queue in this document; `None` if it is not in it.
    pub(super) fn sees(&self, state: &State, now: ServerTime, context: &Context<'_>) -> Option<Prospect> {
        Prospect::of(state, self.waiting.front()?, now, context.now)
    }

    /// Notes the head's present sight of the queue.
    pub(super) fn see_ahead(&mut self, mut prospect: Prospect, context: &Context<'_>) {
        let before = self.prospect.take();
        prospect.is_near = prospect.comes_near(before.as_ref(), context.config.near);
        let took = before.as_ref().and_then(|before| prospect.pace_since(before));
        took.into_iter().for_each(|took| self.note_pace(took, context));
        let end = prospect.first_end;
        // Only a write makes the first lease end later: a renewal, or a new holder. Without one a look must not put the
        // question off, as there may be another look before that.
        let is_same = before.and_then(|before| before.first_end) == end;
        let planned = self.expiry_at.filter(|_| is_same);
        let anew = end.and_then(|end| asks_after(end, prospect.position, context));
        self.expiry_at = planned.into_iter().chain(anew).min();
        self.prospect = Some(prospect);
    }

    /// Notes that hand-overs took this long each.
    pub(super) fn note_pace(&mut self, took: Duration, context: &Context<'_>) {
        self.pace = paced(self.pace, took, context.config);
    }

    /// Returns when the head looks at its queue position next, if at all.
    pub(super) fn next_look_at(&self, context: &Context<'_>) -> Option<Instant> {
        let (head, prospect) = (self.waiting.front()?, self.prospect.as_ref()?);
        let may_do_without = match context.stream {
            // Its events come by the stream. One that closes has every head ask, and look from then on.
            StreamState::Open if !prospect.is_near || prospect.turns < context.config.near => return None,
            // It has the stream because of its queue position, and may find that it does not need it.
            StreamState::Open => true,
            StreamState::OnDemand => !prospect.is_near,
            StreamState::Opening | StreamState::Unavailable => false,
        };
        let pause = if may_do_without {
            // One that is served out of turn has a claim lease to notice.
            LOOK_EVERY.min(head.lease.claim / 3)
        } else {
            // By the pace of the lock where that is known, and never longer than where it is not; and a grant must be
            // noticed while its claim lease runs.
            let waited = context.now.saturating_duration_since(head.since);
            let usual = poll_interval(context.config, prospect.position, waited);
            let paced = prospect.pause(self.pace, context.config).unwrap_or(usual);
            paced.min(usual).min(head.lease.claim / 4)
        };
        Some(context.now + pause)
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
            fixtures::{MUTEX, NOW, PERMIT, PlainHold, ahead, in_context, queued, state, task, waiter, waitlist},
            leaving::Leaving,
        },
    };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_sees_the_holders_and_the_waiters_ahead_of_it() {
        let held = |since, until, permits| Entry {
            since: ServerTime(since),
            until: ServerTime(until),
            permits,
            ..fixtures::holder("a-1", 7)
        };
        let waits = |id: &str, until, permits| Entry {
            until: ServerTime(until),
            permits,
            ..fixtures::waiter(id)
        };
        let queue = [waits("me-1", 70, 8), waits("me-2", 60, 4), waits("me-3", 10, 1)];
        let state = fixtures::lock(fixtures::PERMITS, [held(3, 90, 4), held(5, 80, 3)], queue);
        let (now, seen_at) = (ServerTime(6), Instant::now());
        for (key, turns, position, first_end) in [(1, 0, 0, 80), (2, 0, 1, 70), (3, 1, 2, 60)] {
            let prospect = Prospect {
                entry: format!("me-{key}"),
                turns,
                position,
                free: 3,
                served_at: Some(ServerTime(5)),
                first_end: Some(ServerTime(first_end)),
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

    /// Follows a head through looks: at its position, the age of the hold, and the time since the look before, in
    /// milliseconds. Returns the pauses after them, in microseconds.
    fn pauses(looks: &[(u64, i64, i64)], context: &Context<'_>) -> Vec<Option<u128>> {
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
        looks.iter().copied().map(pause).collect()
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
        assert!(ahead(7, 499).comes_near(None, 4) && !ahead(7, 500).comes_near(None, 4));
        assert!(!ahead(4, 2_000).comes_near(None, 4) && !ahead(200, 60_000).comes_near(None, 4));
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

    /// Has the head look at a document with so many other waiters ahead of it, and so many permits of the holder.
    fn look(waitlist: &mut Waitlist<PlainHold>, others: usize, permits: i64, context: &Context<'_>) {
        waitlist.look_at = Some(context.now);
        let look = waitlist.step(context).next_look().expect("it is due");
        let others = (1..=others).map(|number| waiter(&format!("other-{number}"), 30_000));
        let mut shown = state(others.chain([waiter("me-1", 30_000)]).collect());
        (shown.capacity, shown.holders[0].permits) = (waitlist.waiting[0].wants.used.1, permits);
        shown.holders[0].since = NOW.plus_millis(-1_000);
        waitlist.step(context).looked(look, Some(Some(&shown)), Some(NOW));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_holds_up_no_operation_which_knows_better() {
        in_context(|context| {
            let mut waitlist = waitlist([queued(1, MUTEX)]);
            let later = context.now + millis(1);
            (waitlist.ask_at, waitlist.look_at) = (Some(later), Some(later));
            assert_eq!(waitlist.step(context).next_look(), None);
            waitlist.look_at = Some(context.now);
            let look = waitlist.step(context).next_look().expect("it is due");
            assert_eq!(
                waitlist.due_at(),
                Some(later),
                "it asks also if the look is never answered"
            );
            let leaving = Leaving::new("me-0".to_owned(), Duration::ZERO, context);
            waitlist.leaving.push(leaving);
            assert_eq!(waitlist.due_at(), Some(context.now));
            assert!(waitlist.step(context).next_operation().is_some() && waitlist.look_at == Some(context.now));
            assert_eq!(
                waitlist.step(context).next_look(),
                None,
                "the answer of the operation says more"
            );
            let shown = state(vec![waiter("other-1", 30_000), waiter("me-1", 30_000)]);
            let before = waitlist.clone();
            waitlist.step(context).looked(look, Some(Some(&shown)), Some(NOW));
            assert_eq!(waitlist, before);
        });
    }

    /// Those ahead leave, so that it is no longer its turn to be the last to ask for a dead holder.
    #[tokio::test(start_paused = true)]
    async fn the_question_at_the_end_of_a_lease_comes_forward_with_the_head() {
        in_context(|context| {
            let mut clock = crate::waitlist::clock::ServerClock::default();
            let exchange = crate::protocol::Exchange::new(context.now, context.now, Some(NOW));
            assert_eq!(clock.note(&exchange, context.config), None);
            let clock = &clock;
            let context = Context { clock, ..*context };
            let mut waitlist = waitlist([queued(1, MUTEX)]);
            let mut asks = |position| {
                let first_end = Some(NOW.plus_millis(5_000));
                let seen = Prospect {
                    first_end,
                    ..ahead(position, 0)
                };
                waitlist.see_ahead(seen, &context);
                waitlist.expiry_at.expect("the clock is known")
            };
            let first = asks(40);
            let moved = asks(0);
            assert_eq!(first - moved, millis(800));
            assert_eq!(asks(3), moved, "a look puts it off no more");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_shows_the_head_as_the_first_in_line_and_as_fitting_has_it_ask() {
        in_context(|context| {
            let stream = StreamState::Unavailable;
            let context = Context { stream, ..*context };
            for (others, permits, asks) in [(0, 3, true), (0, 4, false), (1, 1, false)] {
                let mut waitlist = waitlist([queued(1, PERMIT)]);
                waitlist.ask_at = Some(context.now + millis(9));
                look(&mut waitlist, others, permits, &context);
                assert_eq!(waitlist.ask_at == Some(context.now), asks, "{others}, {permits}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_has_the_head_ask_if_it_comes_near_the_front_and_is_about_to_have_the_stream() {
        in_context(|context| {
            let (far, near) = (7, 3);
            for (stream, before, seen, asks) in [
                (StreamState::OnDemand, far, near, true),
                (StreamState::OnDemand, near, near, false),
                (StreamState::OnDemand, far, far, false),
                (StreamState::Open, far, near, false),
                (StreamState::Unavailable, far, near, false),
            ] {
                let context = Context { stream, ..*context };
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                waitlist.prospect = Some(ahead(before, 1_000));
                waitlist.ask_at = Some(context.now + millis(9));
                look(&mut waitlist, usize::try_from(seen).unwrap(), 1, &context);
                let has_asked = waitlist.ask_at == Some(context.now);
                assert_eq!(has_asked, asks, "{stream:?}, {before:?}, {seen:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_looks_again_by_its_distance_from_the_front_and_by_the_stream_that_it_has() {
        in_context(|context| {
            let looks = |stream, seen: Prospect| {
                let context = Context { stream, ..*context };
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                waitlist.see_ahead(seen, &context);
                let look_at = waitlist.next_look_at(&context);
                look_at.map(|at| (at - context.now).as_millis())
            };
            // Its turn is four holds of a second away.
            let far = || ahead(7, 1_000);
            assert_eq!(looks(StreamState::OnDemand, far()), Some(1_666));
            // The stream is open for others: beyond a number of heads that look, one stream costs less.
            assert_eq!(looks(StreamState::Open, far()), None);
            // Who polls does so after 10 ms for itself and for each waiter ahead, by the pace of the lock at the most, and
            // in time for a grant.
            assert_eq!(looks(StreamState::Unavailable, far()), Some(80));
            assert_eq!(looks(StreamState::OnDemand, ahead(3, 1_000)), Some(40));
            assert_eq!(looks(StreamState::Unavailable, ahead(4, 10)), Some(8));
            // Near the front only as the lock changes hands fast; and one of the next.
            assert_eq!(looks(StreamState::Open, ahead(4, 10)), Some(1_666));
            assert_eq!(looks(StreamState::Open, ahead(3, 10)), None);
        });
    }
}
