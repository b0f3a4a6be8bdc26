//! The server's clock in memory.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::protocol::{Exchange, ServerTime};

/// A clock that starts at the wall clock's time and runs with tokio's clock, which tests can pause.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: ServerTime,
    started: Instant,
    /// Milliseconds by which a simulated server's clock is ahead of that.
    #[cfg(test)]
    ahead: std::sync::atomic::AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self::begin(ServerTime(i64::try_from(since_epoch.as_millis()).unwrap_or(0)))
    }
}

impl Clock {
    pub(super) fn begin(epoch: ServerTime) -> Self {
        Self {
            epoch,
            started: Instant::now(),
            #[cfg(test)]
            ahead: Default::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn run_ahead(&self, millis: i64) {
        self.ahead.store(millis, std::sync::atomic::Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> ServerTime {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        #[cfg(test)]
        let elapsed = elapsed.saturating_add(self.ahead.load(std::sync::atomic::Ordering::Relaxed));
        self.epoch.plus_millis(elapsed)
    }

    /// Returns an exchange that takes no time, and the clock's reading in it.
    pub(super) fn exchange(&self) -> (Exchange, ServerTime) {
        let instant = Instant::now();
        let now = self.now();
        (Exchange::new(instant, instant, Some(now)), now)
    }
}
