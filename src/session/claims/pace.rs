//! The pace at which a waiting claim tries again.
//!
//! Every insertion and every change of a document may be the one that a claim waits for. In a busy collection most are
//! not, and a try for each would cost the server more than the work itself. So the first event after a quiet time is
//! answered at once. The following events are answered together, after a pause that grows with each try in vain and
//! with the duration of a try.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum pause after a try in vain.
const LEAST: Duration = Duration::from_millis(1);

/// Maximum pause after quick tries: the time for which a freed document may go unnoticed in a busy collection.
const CLAIM_PAUSE_MOST: Duration = Duration::from_millis(100);

/// Maximum pause after slow tries, as a multiple of the duration of a try, so that a claim keeps the server busy for a
/// fifth of the time at most.
const SHARE: u32 = 4;

/// Pause between two looks for the ends of leases, as a multiple of the duration of one: a look reads everything that
/// matches.
const LOOK_SHARE: u32 = 20;

/// Maximum pause between two looks, unless each takes so long that they would keep the server busy for more than a
/// fifth of the time: a lease that ends sooner than others may be noticed this much late.
const LOOK_MOST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Pace {
    pause: Duration,
    /// The earliest instant of the next try.
    ready_at: Instant,
    look_at: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pause: Duration::ZERO,
            ready_at: now,
            look_at: now,
        }
    }

    pub(super) fn ready_at(&self) -> Instant {
        self.ready_at
    }

    /// Notes that a try found nothing, or that the server gave it up for lack of time.
    pub(super) fn tried(&mut self, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began);
        let was_quiet = began >= self.ready_at + self.pause;
        let before = if was_quiet { Duration::ZERO } else { self.pause };
        self.pause = (before * 2)
            .max(took * 2)
            .max(LEAST)
            .min(CLAIM_PAUSE_MOST.max(took * SHARE));
        self.ready_at = now + self.pause;
    }

    /// Returns when the next look for the ends of leases is due.
    pub(super) fn look_at(&self) -> Instant {
        self.look_at
    }

    pub(super) fn looked(&mut self, began: Instant, now: Instant) {
        self.look_at = now + rest_after(now.saturating_duration_since(began));
    }
}

/// Returns the pause after a look that took so long.
pub(super) fn rest_after(took: Duration) -> Duration {
    (took * LOOK_SHARE).min(LOOK_MOST.max(took * SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn events_in_quick_succession_are_answered_together() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            now = now.max(pace.ready_at());
            pace.tried(now, now + millis(1));
            now += millis(1);
            pauses.push((pace.ready_at() - now).as_millis());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100, 100]);
        // The first after a quiet time is answered at once, and the next soon.
        now += millis(250);
        assert!(pace.ready_at() < now);
        pace.tried(now, now + millis(1));
        assert_eq!(pace.ready_at() - now, millis(3));
    }

    #[test]
    fn slow_tries_are_made_seldom() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        for _ in 0..5 {
            now = now.max(pace.ready_at());
            pace.tried(now, now + millis(500));
            now += millis(500);
        }
        assert_eq!(pace.ready_at() - now, millis(2_000));
        pace.looked(now, now + millis(5));
        assert_eq!(pace.look_at() - now, millis(105));
        pace.looked(now, now + millis(200));
        assert_eq!(pace.look_at() - now, millis(1_200));
        pace.looked(now, now + millis(500));
        assert_eq!(pace.look_at() - now, millis(2_500));
    }
}
