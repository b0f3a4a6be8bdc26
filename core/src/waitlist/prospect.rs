//! The prospect of a waiter: how soon it may be served, and so whether it needs the change stream.
//!
//! An open stream costs the server some of its time for every write of the whole replica set. So it is for holders,
//! which learn of a loss by it, and for waiters that may be served within moments. A waiter further back looks at its
//! queue position by a small read from time to time, and has the stream opened when its turn comes near. If all those
//! ahead of it go at once, it is served late: by the time between two looks, which is less than a claim lease.
//!
//! Where there is no stream, all waiters look, as often as the lock's pace asks for.

use std::time::Duration;

use tokio::time::Instant;

use super::{Context, Waiting};
use crate::{
    config::Config,
    protocol::{Ahead, Kind, ServerTime},
};

/// Time until its turn below which a waiter needs the stream: opening it takes milliseconds, and those ahead can be
/// faster than they have been.
const SOON: Duration = Duration::from_secs(2);

/// Pause between two looks of a waiter that does without the stream as it is far back: the shortest, so that its client
/// sends at most two small reads a second for a name, and the longest, which is how late the waiter may be served if
/// its turn comes before its next look.
const LOOKS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// Part of the time until its turn may come near after which a waiter looks again.
const PART: u32 = 4;

/// Multiple of the usual number of waiters that open streams while a holder seems to be asleep. With more of them, they
/// would take the time of a server that is slow from the one that is asleep.
const AWAKE: u64 = 4;

/// Part of the present hold's age after which a waiter without a stream looks again: looking delays a hand-over by at
/// most that part.
const AGE_PART: u32 = 3;

/// Part of the time that the hand-overs before its turn take, if they are quick, after which it looks.
const STEPS_PART: u32 = 2;

/// A hand-over slower than the pace raises that by this part of the difference.
const SLOWER_PART: u32 = 16;

/// The expected time of a waiter's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Distance {
    /// Soon: it is one of the next, or may become one within moments.
    Near,
    /// Later: it looks at its queue position after this time.
    Far(Duration),
}

/// The time of a hand-over in a queue, rather less than more, as its waiters here have seen it so far.
///
/// A wait that began while somebody held for long makes all hand-overs seem slow, and a waiter that relied on it would
/// come late for its turn once the others are fast again. So a quicker one counts at once, a slower one in part, and as
/// twice the estimate at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace(pub Duration);

impl Pace {
    pub fn per_step(self, config: &Config) -> Duration {
        self.0.max(config.poll_quickest)
    }

    /// Notes that so many hand-overs have taken this long, each for itself.
    fn note(&mut self, took: Duration, times: u64, config: &Config) {
        let mut step = self.per_step(config).min(took);
        // After so many, next to nothing is left of what was reckoned before.
        for _ in 0..times.min(16 * u64::from(SLOWER_PART)) {
            step += (took.min(step * 2) - step) / SLOWER_PART;
        }
        self.0 = step.max(config.poll_quickest);
    }
}

/// A waiter's knowledge of the queue, from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prospect {
    /// The waiter's entry.
    pub entry: String,
    seen: (u64, ServerTime),
    pub(super) seen_at: Instant,
    /// The number of waiters ahead of it.
    pub(super) position: u64,
    /// Number of steps in which those ahead of it are served, each of a hold.
    pub(super) steps: u64,
    pub turn: Distance,
    /// Age of the present hold; `None` while nobody holds the lock.
    age: Option<Duration>,
}

impl Prospect {
    /// Creates it from the waiter's present sight of the queue, and from the knowledge before.
    pub(crate) fn new<T>(
        waiting: &Waiting<T>,
        ahead: &Ahead,
        before: Option<&Self>,
        pace: &mut Pace,
        context: &Context<'_>,
    ) -> Self {
        let config = context.config;
        let before = before.filter(|before| before.entry == waiting.entry);
        let seen = before.map(|before| before.seen);
        let steps = match waiting.used.0 {
            // Readers go in together, and out before a writer.
            Kind::RwLock => ahead.turns.min(ahead.position),
            // The permits of a semaphore come back one after the other.
            _ => ahead.position,
        };
        if let Some(before) = before {
            let moved = before.steps.saturating_sub(steps);
            let took = u32::try_from(moved).ok();
            let took = took.and_then(|moved| ahead.now.since(before.seen.1).checked_div(moved));
            took.into_iter().for_each(|took| pace.note(took, moved, config));
        }
        Self {
            entry: waiting.entry.clone(),
            seen: (ahead.turns, ahead.now),
            seen_at: context.now,
            position: ahead.position,
            steps,
            turn: turn(ahead, seen, waiting.terms.lease(config).claim, config),
            age: age(ahead),
        }
    }

    /// Returns the pause before the next look without a stream, where the lock is held and so has a pace: the waiters
    /// of a lock that changes hands fast follow it.
    ///
    /// The present hold is expected to last for as long again as it has lasted, and each of the next ones for as long
    /// as a quick one. A waiter that looks too late holds up all that are behind it, and makes them reckon with slow
    /// hand-overs; so a single slow one must not count for all the others.
    pub(crate) fn pause(&self, pace: Pace, config: &Config) -> Option<Duration> {
        let age = self.age?;
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        let before_its_turn = pace.per_step(config).saturating_mul(steps) / STEPS_PART;
        Some(
            (age / AGE_PART)
                .saturating_add(before_its_turn)
                .max(config.poll_quickest),
        )
    }

    /// Notes that the waiter was served. All hand-overs before that count as one: a single long hold may be among them.
    pub(super) fn served(&self, pace: &mut Pace, context: &Context<'_>) {
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX).saturating_add(1);
        let took = context.now.saturating_duration_since(self.seen_at) / steps;
        pace.note(took, 1, context.config);
    }
}

fn age(ahead: &Ahead) -> Option<Duration> {
    // After a fail-over the clock can be behind the one by which the grant was made.
    let served_at = ahead.served_at.filter(|served_at| *served_at <= ahead.now)?;
    Some(ahead.now.since(served_at))
}

/// Estimates the time of a hand-over: a hold that has lasted for long is expected to last as long again, and as long as
/// a recent hand-over took.
fn hand_over(ahead: &Ahead, before: Option<(u64, ServerTime)>) -> Option<Duration> {
    let lasted = age(ahead)?;
    let took = before.map_or(Duration::ZERO, |(turns, at)| {
        let passed = turns.saturating_sub(ahead.turns).max(1);
        ahead.now.since(at) / u32::try_from(passed).unwrap_or(u32::MAX)
    });
    Some(lasted.max(took))
}

/// Estimates the turn.
fn turn(ahead: &Ahead, before: Option<(u64, ServerTime)>, claim: Duration, config: &Config) -> Distance {
    let Some(turns) = ahead.turns.checked_sub(config.near) else {
        return Distance::Near;
    };
    let most = look_most(claim);
    let least = LOOKS.0.min(most);
    let Some(hand_over) = hand_over(ahead, before) else {
        return Distance::Near;
    };
    // The sleeping waiter was served sooner than it reckoned, and others may be too: not all of them, as it may be dead.
    if ahead.asleep && turns < config.near.saturating_mul(AWAKE) {
        return Distance::Near;
    }
    let turns = u32::try_from(turns).unwrap_or(u32::MAX).saturating_add(1);
    let soonest = hand_over.saturating_mul(turns);
    if soonest < SOON {
        return Distance::Near;
    }
    // A waiter that is served out of turn has a claim lease to notice.
    Distance::Far((soonest / PART).clamp(least, most))
}

/// Returns the longest pause between two looks of a waiter whose queue position is of no interest yet.
pub(crate) fn look_most(claim: Duration) -> Duration {
    LOOKS.1.min(claim / 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Settings,
        waitlist::made_up::{MUTEX, ahead, in_context, task},
    };

    #[test]
    fn a_hand_over_takes_as_long_as_the_present_hold_or_as_the_last_ones() {
        let millis = Duration::from_millis;
        assert_eq!(hand_over(&ahead(3, 40), None), Some(millis(40)));
        // Four hand-overs in 200 ms.
        assert_eq!(
            hand_over(&ahead(3, 40), Some((7, ServerTime(999_800)))),
            Some(millis(50))
        );
        assert_eq!(
            hand_over(&ahead(3, 90), Some((7, ServerTime(999_800)))),
            Some(millis(90))
        );
        let free = Ahead {
            served_at: None,
            ..ahead(3, 0)
        };
        assert_eq!(hand_over(&free, None), None);
    }

    /// Follows a waiter through looks: at its position, the age of the hold, and the time since the look before, in
    /// milliseconds. Returns the pauses after them.
    fn pauses(looks: &[(u64, i64, i64)], context: &Context<'_>) -> Vec<Option<u128>> {
        let waiting = waiting(Kind::Mutex, 1);
        let (mut before, mut now, mut pace) = (None, 1_000_000, Pace::default());
        let pause = |(position, age, passed)| {
            now += passed;
            let ahead = Ahead {
                now: ServerTime(now),
                served_at: Some(ServerTime(now - age)),
                ..ahead(position, 0)
            };
            let prospect = Prospect::new(&waiting, &ahead, before.as_ref(), &mut pace, context);
            let pause = before.insert(prospect).pause(pace, context.config);
            pause.map(|pause| pause.as_millis())
        };
        looks.iter().copied().map(pause).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_stream_the_waiters_of_a_lock_that_changes_hands_fast_follow_it() {
        in_context(|context| {
            // The head: a third of the age of the hold, and at most once a millisecond.
            let head = pauses(&[(0, 0, 0), (0, 6, 6), (0, 30, 24), (0, 600, 570)], context);
            assert_eq!(head, [Some(1), Some(2), Some(10), Some(200)]);
            // Further back: as if the queue moved as fast as it can, until that is known: 10 positions in 30 ms.
            let back = pauses(&[(30, 0, 0), (30, 3, 3), (20, 3, 30)], context);
            assert_eq!(back, [Some(15), Some(16), Some(18)]);
            // A single slow hand-over counts for a part of the double, and a quick one at once: after a pace of 1.8 ms, one
            // of 43 ms makes it 1.9 ms, and those of 1 ms make it that.
            let late = pauses(&[(30, 3, 0), (20, 3, 30), (19, 3, 43), (9, 3, 10)], context);
            assert_eq!(late[2..], [Some(1 + 18), Some(1 + 4)]);
            // Of many, each counts: after 300 that took 17 ms each, nothing is left of the quicker estimate before.
            let slow = pauses(&[(500, 3, 0), (200, 3, 300 * 17)], context);
            assert_eq!(slow[1], Some(1 + 1_699));
            // A clock that goes back makes the queue seem fast, and the present hold one of no known age.
            let back = pauses(&[(30, 3, 0), (20, 3, 30), (10, 3, -800), (10, -5, 0)], context);
            assert_eq!(back[2..], [Some(1 + 5), None]);
            // The shortest pause that is set is never undercut.
            let settings = Settings {
                poll_interval: Some((millis(20), millis(500))),
                ..Settings::default()
            };
            let config = &settings.unchecked();
            assert_eq!(pauses(&[(0, 3, 0)], &Context { config, ..*context }), [Some(20)]);
            // Nobody holds it.
            let free = Ahead {
                served_at: None,
                ..ahead(3, 0)
            };
            let mut pace = Pace::default();
            let prospect = Prospect::new(&waiting(Kind::Mutex, 1), &free, None, &mut pace, context);
            assert_eq!(prospect.pause(pace, context.config), None);
        });
    }

    fn waiting(kind: Kind, capacity: i64) -> Waiting<u64> {
        task(1, ((kind, capacity), 1))
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_go_in_together_are_one_step_and_the_permits_of_a_semaphore_are_not() {
        in_context(|context| {
            let pause = |kind, turns, position| {
                let ahead = Ahead {
                    position,
                    ..ahead(turns, 6)
                };
                let mut pace = Pace::default();
                let prospect = Prospect::new(&waiting(kind, 1_000), &ahead, None, &mut pace, context);
                prospect.pause(pace, context.config).map(|pause| pause.as_millis())
            };
            // Forty readers ahead, all of whom get in after the present writer; and with two more writers among them.
            assert_eq!(pause(Kind::RwLock, 0, 40), Some(2));
            assert_eq!(pause(Kind::RwLock, 2, 42), Some(2 + 1));
            assert_eq!(pause(Kind::Semaphore, 0, 40), Some(2 + 20));
        });
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn who_is_near_the_front_or_moves_fast_needs_the_stream() {
        let config = Settings::default().validate().unwrap();
        let turn_of = |ahead: Ahead, before| turn(&ahead, before, config.claim_lease, &config);
        // One of the next, however long it takes.
        assert_eq!(turn_of(ahead(3, 3_600_000), None), Distance::Near);
        // Further back, where holds are short.
        assert_eq!(turn_of(ahead(50, 10), None), Distance::Near);
        // And where they are long.
        assert_eq!(
            turn_of(ahead(4, 2_000), None),
            Distance::Far(Duration::from_millis(500))
        );
        assert_eq!(
            turn_of(ahead(7, 1_000), None),
            Distance::Far(Duration::from_millis(1_000))
        );
        let claim_third = config.claim_lease / 3;
        assert_eq!(turn_of(ahead(200, 60_000), None), Distance::Far(claim_third));
        // The present hold is young, but the queue has not moved for a second, or by two positions.
        let before = (50, ServerTime(999_000));
        assert_eq!(turn_of(ahead(50, 10), Some(before)), Distance::Far(claim_third));
        let before = (12, ServerTime(999_000));
        assert_eq!(
            turn_of(ahead(10, 10), Some(before)),
            Distance::Far(Duration::from_millis(875))
        );
        // Nobody holds it.
        let free = Ahead {
            served_at: None,
            ..ahead(200, 0)
        };
        assert_eq!(turn_of(free, None), Distance::Near);
        // While a holder seems to be asleep, four times as many as usual beyond the usual ones: 16 and 4. All others
        // look as seldom as ever.
        let asleep = Ahead {
            asleep: true,
            ..ahead(19, 60_000)
        };
        assert_eq!(turn_of(asleep, None), Distance::Near);
        let asleep = Ahead { turns: 20, ..asleep };
        assert_eq!(turn_of(asleep, None), Distance::Far(claim_third));
    }

    #[tokio::test(start_paused = true)]
    async fn who_came_while_somebody_held_for_long_does_not_sleep_when_the_queue_is_fast() {
        in_context(|context| {
            let mut pace = Pace(millis(2));
            let mut waits = |turns, took| {
                let prospect = Prospect::new(&task(1, MUTEX), &ahead(turns, 0), None, &mut Pace::default(), context);
                let now = context.now + took;
                prospect.served(&mut pace, &Context { now, ..*context });
                pace.0.as_micros()
            };
            assert_eq!(waits(7, millis(540)), 2_125);
            assert_eq!(waits(0, millis(60_000)), 2_257);
            assert_eq!(waits(7, millis(16)), 2_000);
        });
    }
}
