//! Growing pauses between tries that fail.

use std::time::Duration;

/// Pause after the first failure: a primary that steps down or a connection that broke costs no wait that anybody
/// notices.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Upper limit of a pause, so that a waiting caller goes on within a second of the server's return.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Rest after work that keeps the server busy, as a multiple of its duration: the work takes a tenth of the time at most.
pub const REST: u32 = 9;

/// The pauses between tries of one thing: each is twice the one before, up to the longest.
///
/// Every loop of the library that repeats a failed step takes its pauses from here, and starts anew only when a success
/// has earned it. Two repetitions have other pauses, as they are bound by other times: a failed renewal is sent again by
/// the time that its leases have left, and an observer reads again when its next reading is due anyway. Questions that
/// were answered (polling, claims) and readings beside unanswered ones have not failed: their paces are with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::between(FIRST_PAUSE, LONGEST_PAUSE)
    }
}

impl Backoff {
    /// Returns pauses for tries that are less urgent, or more, than the usual ones.
    pub const fn between(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Returns these pauses as they are after so many failures.
    pub const fn after(self, failures: u32) -> Self {
        Self { failures, ..self }
    }

    /// Returns the number of failures so far.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure, and returns the pause after it.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.pause()
    }

    /// Returns the pause after the last failure; zero if there was none.
    pub fn pause(&self) -> Duration {
        match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                let pause = self.first.saturating_mul(2_u32.saturating_pow(doublings));
                pause.min(self.longest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(), Duration::ZERO);
        let pauses: Vec<u128> = (0..7).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000]);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.failed(), LONGEST_PAUSE);
    }
}
