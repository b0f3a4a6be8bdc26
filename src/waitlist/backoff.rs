//! Growing pauses between tries that fail.

use std::time::Duration;

/// Pause after the first failure: a primary that steps down or a connection that broke costs no wait that anybody
/// notices.
const SHORTEST: Duration = Duration::from_millis(50);

/// Upper limit of a pause, so that a waiting caller goes on within a second of the server's return.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);

/// The pauses between tries of one thing: each is twice the one before, up to [`LONGEST`].
///
/// Every loop of the library that repeats a failed step takes its pauses from here, and starts anew with
/// [`Backoff::default`] only when a success has earned it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure, and returns the pause after it.
    pub(crate) fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.pause()
    }

    /// Returns the pause after the last failure; zero if there was none.
    pub(crate) fn pause(&self) -> Duration {
        match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => SHORTEST.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST),
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
        assert_eq!(backoff.failed(), LONGEST);
    }
}
