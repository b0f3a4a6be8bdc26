//! Work under a lock: acquired, done, and released, in one call.

use std::future::Future;

use super::{
    acquire::{Acquire, TryAcquire},
    multi::{MultiAcquire, MultiHandle, MultiView, TryMultiAcquire},
};
use crate::{
    error::RunError,
    handle::{LockHandle, LockView},
};

/// Runs the work until it is done or the lock is lost. The loss comes first: work that finished at the same moment may
/// not have been done under the lock.
pub(crate) async fn unless_lost<L, Fut: Future>(lost: impl Future<Output = L>, work: Fut) -> Result<Fut::Output, L> {
    tokio::select! {
        biased;
        reason = lost => Err(reason),
        output = work => Ok(output),
    }
}

async fn under<F, Fut>(handle: LockHandle, work: F) -> Result<Fut::Output, RunError>
where
    F: FnOnce(LockView) -> Fut,
    Fut: Future,
{
    let output = unless_lost(handle.lost(), async { work(handle.view()).await }).await?;
    // An event reports an unconfirmed release.
    let _ = handle.release().await;
    Ok(output)
}

async fn under_all<F, Fut>(handle: MultiHandle, work: F) -> Result<Fut::Output, RunError>
where
    F: FnOnce(MultiView) -> Fut,
    Fut: Future,
{
    let output = unless_lost(handle.lost(), async { work(handle.view()).await }).await?;
    // An event reports an unconfirmed release.
    let _ = handle.release().await;
    Ok(output)
}

impl Acquire {
    /// Acquires the lock, runs the future that `work` makes, and releases the lock. Set other options first.
    ///
    /// If the lock is lost, the future is dropped at its next await point, and the loss is returned. The future's own
    /// output, even a `Result`, is returned unchanged.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the lock was not acquired, [`RunError::Lost`] if it was lost on the way. A release that
    /// can't be confirmed is not an error: the work is done, and the lease limits the rest.
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
    /// use std::time::Duration;
    ///
    /// let prices = locks.rw_lock("prices");
    /// let read = prices.read().timeout(Duration::from_secs(5)).reason("a quote");
    /// let token = read.run(|held| async move { held.token() }).await?;
    /// # assert!(prices.try_write().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output, RunError>
    where
        F: FnOnce(LockView) -> Fut,
        Fut: Future,
    {
        under(self.await?, work).await
    }
}

impl TryAcquire {
    /// Runs the future that `work` makes under the lock, if the lock is free and nobody waits for it; `None` otherwise,
    /// and then `work` is not called. Set other options first.
    ///
    /// # Errors
    ///
    /// Same as for [`Acquire::run`].
    ///
    /// # Cancel safety
    ///
    /// Same as for [`Acquire::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let exports = locks.semaphore("exports", 4);
    /// let done = exports.try_acquire_many(2).reason("report 7").run(|held| async move { held.permits() }).await?;
    /// assert_eq!(done, Some(2));
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Option<Fut::Output>, RunError>
    where
        F: FnOnce(LockView) -> Fut,
        Fut: Future,
    {
        match self.await? {
            Some(handle) => under(handle, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl MultiAcquire {
    /// Acquires all parts, runs the future that `work` makes, and releases them; see
    /// [`Acquire::run`](crate::Acquire::run). Set other options first.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if they were not acquired, [`RunError::Lost`] if one was lost on the way: the
    /// future was dropped at its next await point. A release that can't be confirmed is not an error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work's future and releases all parts in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let accounts = locks.multi(["a", "b"]).acquire().reason("transfer");
    /// let token = accounts.run(|held| async move { held.token("a") }).await?;
    /// assert!(token.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output, RunError>
    where
        F: FnOnce(MultiView) -> Fut,
        Fut: Future,
    {
        under_all(self.await?, work).await
    }
}

impl TryMultiAcquire {
    /// Runs the future that `work` makes under all parts, if every one is free and nobody waits for any; `None`
    /// otherwise, and then `work` is not called. Set other options first.
    ///
    /// # Errors
    ///
    /// Same as for [`MultiAcquire::run`].
    ///
    /// # Cancel safety
    ///
    /// Same as for [`MultiAcquire::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let other = locks.mutex("b").acquire().await?;
    /// let done = locks.multi(["a", "b"]).try_acquire().run(|_| async { "done" }).await?;
    /// assert_eq!(done, None);
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Option<Fut::Output>, RunError>
    where
        F: FnOnce(MultiView) -> Fut,
        Fut: Future,
    {
        match self.await? {
            Some(handle) => under_all(handle, work).await.map(Some),
            None => Ok(None),
        }
    }
}
