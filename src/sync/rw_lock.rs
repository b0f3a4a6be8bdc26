//! A lock with many readers or one writer.

use super::Action;
use crate::locks::acquire::{Acquire, TryAcquire};

/// A lock with many readers or one writer, among all processes: [`watchlock::RwLock`] for threads.
///
/// [`watchlock::RwLock`]: crate::RwLock
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let prices = locks.rw_lock("prices");
/// let (one, other) = (prices.read().run()?, prices.read().run()?);
/// assert!(prices.try_write().run()?.is_none());
/// drop((one, other));
/// let write = prices.write().run()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    lock: crate::RwLock,
}

impl RwLock {
    pub(super) fn new(lock: crate::RwLock) -> Self {
        Self { lock }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Acquires the lock to read, waiting for its turn. [`run`](Action::run) the returned action.
    pub fn read(&self) -> Action<Acquire> {
        Action::new(self.lock.read())
    }

    /// Acquires the lock to write, waiting for its turn. [`run`](Action::run) the returned action.
    pub fn write(&self) -> Action<Acquire> {
        Action::new(self.lock.write())
    }

    /// Acquires the lock to read, like [`read`](Self::read), if there is no writer and no waiter. [`run`](Action::run)
    /// the returned action.
    pub fn try_read(&self) -> Action<TryAcquire> {
        Action::new(self.lock.try_read())
    }

    /// Acquires the lock to write, like [`write`](Self::write), if nobody holds it or waits for it.
    /// [`run`](Action::run) the returned action.
    pub fn try_write(&self) -> Action<TryAcquire> {
        Action::new(self.lock.try_write())
    }
}
