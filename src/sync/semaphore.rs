//! A lock with a number of permits.

use super::{Action, block_on};
use crate::{
    error::OperateError,
    locks::acquire::{Acquire, TryAcquire},
};

/// A number of permits that all processes share: [`watchlock::Semaphore`] for threads.
///
/// [`watchlock::Semaphore`]: crate::Semaphore
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let exports = locks.semaphore("exports", 4);
/// let two = exports.acquire_many(2).run()?;
/// assert_eq!(exports.available_permits()?, 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    semaphore: crate::Semaphore,
}

impl Semaphore {
    pub(super) fn new(semaphore: crate::Semaphore) -> Self {
        Self { semaphore }
    }

    /// Returns the name of the semaphore.
    pub fn name(&self) -> &str {
        self.semaphore.name()
    }

    /// Returns the number of its permits, including held ones.
    pub fn permits(&self) -> u32 {
        self.semaphore.permits()
    }

    /// Acquires one permit, waiting for its turn. [`run`](Action::run) the returned action.
    pub fn acquire(&self) -> Action<Acquire> {
        Action::new(self.semaphore.acquire())
    }

    /// Acquires `permits` permits at once, waiting for its turn. [`run`](Action::run) the returned action.
    pub fn acquire_many(&self, permits: u32) -> Action<Acquire> {
        Action::new(self.semaphore.acquire_many(permits))
    }

    /// Acquires one permit if one is free and nobody waits. [`run`](Action::run) the returned action.
    pub fn try_acquire(&self) -> Action<TryAcquire> {
        Action::new(self.semaphore.try_acquire())
    }

    /// Acquires `permits` permits if that many are free and nobody waits. [`run`](Action::run) the returned action.
    pub fn try_acquire_many(&self, permits: u32) -> Action<TryAcquire> {
        Action::new(self.semaphore.try_acquire_many(permits))
    }

    /// Returns how many permits are free at this moment; see
    /// [`Semaphore::available_permits`](crate::Semaphore::available_permits).
    ///
    /// # Errors
    ///
    /// If the name is out of bounds or in use as something else, or the server can't be reached.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn available_permits(&self) -> Result<u32, OperateError> {
        block_on(self.semaphore.available_permits())
    }
}
