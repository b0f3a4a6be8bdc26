//! A lock with one holder at a time.

use super::{Action, LockView};
use crate::{
    error::RunError,
    locks::acquire::{Acquire, TryAcquire},
};

/// A lock with one holder at a time, among all processes: [`watchlock::Mutex`] for threads.
///
/// The threads of a process wait in line, like the tasks of an async one.
///
/// [`watchlock::Mutex`]: crate::Mutex
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let mutex = locks.mutex("invoice-42");
/// let handle = mutex.acquire().run()?;
/// // ... bill the invoice ...
/// handle.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    mutex: crate::Mutex,
}

impl Mutex {
    pub(super) fn new(mutex: crate::Mutex) -> Self {
        Self { mutex }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        self.mutex.name()
    }

    /// Acquires the lock, waiting for its turn. [`run`](Action::run) the returned action.
    pub fn acquire(&self) -> Action<Acquire> {
        Action::new(self.mutex.acquire())
    }

    /// Acquires the lock if it is free and nobody waits for it. [`run`](Action::run) the returned action.
    pub fn try_acquire(&self) -> Action<TryAcquire> {
        Action::new(self.mutex.try_acquire())
    }

    /// Acquires the lock, does the work, and releases the lock: short for `acquire().run_with(work)`, which takes
    /// options.
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the lock was not acquired; [`RunError::Lost`] if it was lost before the work finished,
    /// in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// let token = locks.mutex("nightly-job").run(|held| held.token())?;
    /// assert!(token < locks.mutex("nightly-job").run(|held| held.token())?);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, work: impl FnOnce(LockView) -> T) -> Result<T, RunError> {
        self.acquire().run_with(work)
    }

    /// Does the work under the lock, if the lock is free and nobody waits for it; `None` otherwise. Short for
    /// `try_acquire().run_with(work)`, which takes options.
    ///
    /// # Errors
    ///
    /// Same as for [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// Same as for [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// let held = locks.mutex("nightly-job").acquire().run()?;
    /// assert_eq!(locks.mutex("nightly-job").try_run(|_| "done")?, None);
    /// # Ok(()) }
    /// ```
    pub fn try_run<T>(&self, work: impl FnOnce(LockView) -> T) -> Result<Option<T>, RunError> {
        self.try_acquire().run_with(work)
    }
}
