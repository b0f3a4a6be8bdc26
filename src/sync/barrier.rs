//! A barrier.

use std::time::Duration;

use super::block_on;
use crate::{
    error::{AcquireError, BarrierError},
    input::check_timeout,
    locks::barrier::{self, BarrierPass},
};

/// A number of parties, in any processes, that wait for each other: [`watchlock::Barrier`] for threads.
///
/// [`watchlock::Barrier`]: crate::Barrier
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let phase = locks.barrier("rebuild/phase", 2);
/// let other = std::thread::spawn({
///     let phase = phase.clone();
///     move || phase.wait()
/// });
/// let pass = phase.wait()?;
/// assert_eq!(pass.generation(), other.join().expect("it does not panic")?.generation());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    barrier: barrier::Barrier,
}

impl Barrier {
    pub(super) fn new(barrier: barrier::Barrier) -> Self {
        Self { barrier }
    }

    /// Returns the name of the barrier.
    pub fn name(&self) -> &str {
        self.barrier.name()
    }

    /// Returns the number of parties that wait for each other.
    pub fn parties(&self) -> u32 {
        self.barrier.parties()
    }

    /// Waits until as many calls as there are parties wait, and passes with them.
    ///
    /// # Errors
    ///
    /// See [`Barrier::wait`](crate::Barrier::wait).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn wait(&self) -> Result<BarrierPass, BarrierError> {
        block_on(self.barrier.wait())
    }

    /// Does the same for at most `timeout` (up to 366 days). Returns `None` if this party gave up; others may have
    /// passed with it counted, if they had seen all there by then.
    ///
    /// # Errors
    ///
    /// See [`Barrier::wait`](crate::Barrier::wait); a timeout out of bounds is invalid.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<BarrierPass>, BarrierError> {
        check_timeout(timeout).map_err(AcquireError::from)?;
        let waited = block_on(async { tokio::time::timeout(timeout, self.barrier.wait()).await });
        waited.map_or(Ok(None), |passed| passed.map(Some))
    }
}
