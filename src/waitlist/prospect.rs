//! How soon a waiter may be served, and so whether it needs the change stream.
//!
//! An open stream costs the server some of its time for every write of the whole replica set. So it is for holders, who
//! hear of a loss by it, and for those who may be served within moments. Whoever stands further back looks at its place by
//! a small read from time to time, and has the stream opened when its turn comes near. It is served late where all those
//! before it go at once: by the time between two looks, which is less than a claim lease.

use std::time::Duration;

use crate::{
    config::Config,
    protocol::{Ahead, ServerTime},
};

/// Whoever may be served within this time needs the stream: opening it takes milliseconds, and those before it can be
/// faster than they have been.
const SOON: Duration = Duration::from_secs(2);

/// Pause between two looks: the shortest, so that a client sends two small reads a second for a name at the most, and the longest,
/// which is how late a waiter may be served whose turn came sooner than it looked.
const LOOKS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// Of the time until its turn may come near, a waiter lets this part pass before it looks again.
const PART: u32 = 4;

/// Where a holder sleeps, so many times as many have streams opened as do at the least.
const AWAKE: u64 = 16;

/// When it may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// As one of the next, or of those who come up to that within moments.
    Near,
    /// Later: its place is to be looked at after this time.
    Far(Duration),
}

/// What a waiter knows of the queue, from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prospect {
    /// The waiter's entry.
    pub(crate) entry: String,
    seen: (u64, ServerTime),
    pub(crate) turn: Turn,
}

impl Prospect {
    /// From what the entry sees now, and what was known of it before.
    pub(crate) fn new(entry: &str, ahead: &Ahead, before: Option<&Self>, config: &Config) -> Self {
        let before = before.filter(|before| before.entry == entry).map(|before| before.seen);
        Self {
            entry: entry.to_owned(),
            seen: (ahead.turns, ahead.now),
            turn: turn(ahead, before, config),
        }
    }
}

/// A hold that has lasted for long is taken to last for as long again, and as long as a hand-over took of late.
fn turn(ahead: &Ahead, before: Option<(u64, ServerTime)>, config: &Config) -> Turn {
    let Some(turns) = ahead.turns.checked_sub(config.near) else {
        return Turn::Near;
    };
    let most = LOOKS.1.min(config.claim_lease / 3);
    let least = LOOKS.0.min(most);
    let Some(served_at) = ahead.served_at else {
        return Turn::Near;
    };
    if ahead.asleep {
        // Whoever sleeps was served sooner than it reckoned, and so may others be: not all of them, as it may be dead.
        return if turns < config.near.saturating_mul(AWAKE) {
            Turn::Near
        } else {
            Turn::Far(least)
        };
    }
    let lasted = ahead.now.since(served_at);
    let took = before.map_or(Duration::ZERO, |(turns, at)| {
        let passed = turns.saturating_sub(ahead.turns).max(1);
        ahead.now.since(at) / u32::try_from(passed).unwrap_or(u32::MAX)
    });
    let turns = u32::try_from(turns).unwrap_or(u32::MAX).saturating_add(1);
    let soonest = lasted.max(took).saturating_mul(turns);
    if soonest < SOON {
        return Turn::Near;
    }
    // Served out of turn, it has a claim lease to notice.
    Turn::Far((soonest / PART).clamp(least, most))
}

/// After how long a waiter that is served soon, by what it knows, and is none of the next, looks whether it is still so.
pub(crate) fn reconsider(config: &Config) -> Duration {
    SOON.min(config.lease / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn ahead(turns: u64, lasted: i64) -> Ahead {
        Ahead {
            turns,
            served_at: Some(ServerTime(1_000_000 - lasted)),
            first_end: None,
            asleep: false,
            now: ServerTime(1_000_000),
        }
    }

    #[test]
    fn who_is_near_the_front_or_moves_fast_needs_the_stream() {
        let config = Settings::default().validate().unwrap();
        let turn_of = |ahead: Ahead, before| turn(&ahead, before, &config);
        // One of the next, however long it takes.
        assert_eq!(turn_of(ahead(3, 3_600_000), None), Turn::Near);
        // Further back, where holds are short.
        assert_eq!(turn_of(ahead(50, 10), None), Turn::Near);
        // And where they are long.
        assert_eq!(turn_of(ahead(4, 2_000), None), Turn::Far(Duration::from_millis(500)));
        assert_eq!(turn_of(ahead(7, 1_000), None), Turn::Far(Duration::from_millis(1_000)));
        let claim_third = config.claim_lease / 3;
        assert_eq!(turn_of(ahead(200, 60_000), None), Turn::Far(claim_third));
        // The present hold is young, but the queue has not moved for a second, or by two places.
        let before = (50, ServerTime(999_000));
        assert_eq!(turn_of(ahead(50, 10), Some(before)), Turn::Far(claim_third));
        let before = (12, ServerTime(999_000));
        assert_eq!(
            turn_of(ahead(10, 10), Some(before)),
            Turn::Far(Duration::from_millis(875))
        );
        // Nobody holds it.
        let free = Ahead {
            served_at: None,
            ..ahead(200, 0)
        };
        assert_eq!(turn_of(free, None), Turn::Near);
        let asleep = Ahead {
            asleep: true,
            ..ahead(50, 60_000)
        };
        assert_eq!(turn_of(asleep, None), Turn::Near);
        let asleep = Ahead { turns: 200, ..asleep };
        assert_eq!(turn_of(asleep, None), Turn::Far(Duration::from_millis(500)));
    }
}
