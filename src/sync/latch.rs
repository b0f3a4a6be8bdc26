//! A count-down latch.

use std::time::Duration;

use super::block_on;
use crate::{error::AcquireError, input::check_timeout, locks::latch};

/// A count-down latch among all processes: [`watchlock::Latch`] for threads.
///
/// [`watchlock::Latch`]: crate::Latch
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// use std::time::Duration;
///
/// let ready = locks.latch("deploy-7/ready", 2);
/// ready.count_down_as("worker-0")?;
/// assert_eq!(ready.missing()?, 1);
/// assert!(!ready.wait_timeout(Duration::from_millis(10))?);
/// ready.count_down_as("worker-1")?;
/// ready.wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    latch: latch::Latch,
}

impl Latch {
    pub(super) fn new(latch: latch::Latch) -> Self {
        Self { latch }
    }

    /// Returns the name of the latch.
    pub fn name(&self) -> &str {
        self.latch.name()
    }

    /// Returns the number of arrivals that open it.
    pub fn count(&self) -> u32 {
        self.latch.count()
    }

    /// Sets for how long each arrival counts; see [`Latch::counts_for`](crate::Latch::counts_for).
    pub fn counts_for(self, time: Duration) -> Self {
        Self::new(self.latch.counts_for(time))
    }

    /// Counts an arrival; see [`Latch::count_down`](crate::Latch::count_down).
    ///
    /// # Errors
    ///
    /// Same as for [`Latch::count_down`](crate::Latch::count_down).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn count_down(&self) -> Result<(), AcquireError> {
        block_on(self.latch.count_down())
    }

    /// Counts the arrival of a named party once; see [`Latch::count_down_as`](crate::Latch::count_down_as).
    ///
    /// # Errors
    ///
    /// Same as for [`Latch::count_down_as`](crate::Latch::count_down_as).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn count_down_as(&self, party: impl Into<String>) -> Result<(), AcquireError> {
        block_on(self.latch.count_down_as(party))
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    ///
    /// See [`Latch::wait`](crate::Latch::wait).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn wait(&self) -> Result<(), AcquireError> {
        block_on(self.latch.wait())
    }

    /// Waits until the latch is open, for at most `timeout` (up to 366 days). Returns whether it is open.
    ///
    /// # Errors
    ///
    /// See [`Latch::wait`](crate::Latch::wait); a timeout out of bounds is invalid.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, AcquireError> {
        check_timeout(timeout)?;
        let waited = block_on(async { tokio::time::timeout(timeout, self.latch.wait()).await });
        waited.map_or(Ok(false), |opened| opened.map(|()| true))
    }

    /// Returns how many arrivals are missing at this moment.
    ///
    /// # Errors
    ///
    /// See [`Latch::missing`](crate::Latch::missing).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn missing(&self) -> Result<u32, AcquireError> {
        block_on(self.latch.missing())
    }
}
