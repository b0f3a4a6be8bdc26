//! A lock with one holder at a time.

use std::{future::Future, sync::Arc};

use crate::{
    acquire::{Acquire, Share, TryAcquire},
    error::RunError,
    handle::LockView,
    name::LockName,
    protocol::Kind,
    session::Session,
};

/// A lock with one holder at a time, among all processes. Made by [`LockClient::mutex`](crate::LockClient::mutex).
///
/// # Guarantees
///
/// - One valid [`LockHandle`](crate::LockHandle) at a time.
/// - First come, first served: among the tasks of one client in the order in which they were polled first, and among
///   clients in the order in which the server's queue got their first waiting task.
/// - Not re-entrant unless that is [asked for](Acquire::reentrant): a task that acquires what it holds waits for itself.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let mutex = locks.mutex("invoice-42");
/// let handle = mutex.acquire().await?;
/// // ... bill the invoice ...
/// handle.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    session: Arc<Session>,
    name: LockName,
}

impl Mutex {
    pub(crate) fn new(session: Arc<Session>, name: LockName) -> Self {
        Self { session, name }
    }

    /// The name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Acquires the lock, waiting for its turn. Await the returned action.
    ///
    /// While the server can't be reached it goes on waiting, and asking: set a [`timeout`](Acquire::timeout) to bound
    /// that too.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`](crate::AcquireError).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: when the future is dropped, its place in the queue, or the lock if it was granted in that moment,
    /// is given back in the background. The place is taken when the future is polled first.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// let handle = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).reason("billing").await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.share())
    }

    /// Acquires the lock if it is free and nobody waits for it; `None` otherwise. Await the returned action.
    ///
    /// It asks the server once (twice when the driver retries), so it returns an error when the server can't be
    /// reached: after the driver's server selection timeout (30 s unless set), or longer when the server hangs. Set a
    /// [`timeout`](TryAcquire::timeout) to bound that; with [`or_held`](TryAcquire::or_held) it tells who has the lock.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`](crate::AcquireError).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// if let Some(handle) = locks.mutex("nightly-job").try_acquire().await? {
    ///     // ... run the job ...
    ///     handle.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> TryAcquire {
        TryAcquire::new(self.share())
    }

    fn share(&self) -> Share {
        Share {
            session: self.session.clone(),
            name: self.name.clone(),
            kind: Kind::Mutex,
            capacity: 1,
            permits: 1,
        }
    }

    /// Acquires the lock, runs the future that `work` makes, and releases the lock.
    ///
    /// When the lock is lost the future is dropped at its next await point, and the loss is returned. The future's
    /// own output, a `Result` too, is returned as it is.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] when the lock was not acquired, [`RunError::Lost`] when it was lost on the way. A release
    /// that can't be confirmed is no error: the work is done, and the lease bounds the rest.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work's future and releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let token = locks.mutex("nightly-job").run(|held| async move { held.token() }).await?;
    /// assert!(token < locks.mutex("nightly-job").run(|held| async move { held.token() }).await?);
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(&self, work: F) -> Result<Fut::Output, RunError>
    where
        F: FnOnce(LockView) -> Fut,
        Fut: Future,
    {
        let handle = self.acquire().await?;
        let output = tokio::select! {
            // The loss first: work that is done at the same moment was not surely done under the lock.
            biased;
            reason = handle.lost() => return Err(reason.into()),
            output = work(handle.view()) => output,
        };
        // An event tells of what could not be confirmed.
        let _ = handle.release().await;
        Ok(output)
    }
}
