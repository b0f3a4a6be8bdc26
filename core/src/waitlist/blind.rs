//! The times for which a waiter without a change stream only asks, as its looks fail.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// Time after the first look that was not answered in time: a single one says little of the next.
const BLIND_FIRST: Duration = Duration::from_millis(500);

/// Upper limit, and the time after a look that was refused, as the next one would be too: a look in vain costs as much
/// as one that shows something, and delays the request that follows.
const BLIND_MOST: Duration = Duration::from_secs(10);

/// The time for which looks are expected to fail, twice as long after each that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blind {
    until: Option<Instant>,
    backoff: Backoff,
}

impl Default for Blind {
    fn default() -> Self {
        Self {
            until: None,
            backoff: Backoff::between(BLIND_FIRST, BLIND_MOST),
        }
    }
}

impl Blind {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Notes that a look has failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.until = Some(now + self.backoff.failed());
    }

    /// Notes that a look was refused, as the next one would be.
    pub(super) fn refused(&mut self, now: Instant) {
        self.backoff.failed();
        self.until = Some(now + BLIND_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_rest_for_longer_after_each_that_fails() {
        let (mut blind, now) = (Blind::default(), Instant::now());
        assert!(blind.is_over(now));
        let mut rests = || {
            blind.failed(now);
            let until = blind.until.unwrap();
            assert!(!blind.is_over(until - Duration::from_millis(1)) && blind.is_over(until));
            (until - now).as_millis()
        };
        let doubled: Vec<u128> = (0..6).map(|_| rests()).collect();
        assert_eq!(doubled, [500, 1_000, 2_000, 4_000, 8_000, 10_000]);
        blind = Blind::default();
        blind.refused(now);
        assert_eq!(blind.until, Some(now + BLIND_MOST));
    }
}
