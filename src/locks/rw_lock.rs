//! A lock with many readers or one writer.

use std::sync::Arc;

use crate::{
    locks::acquire::{Acquire, Share, TryAcquire},
    name::LockName,
    protocol::Kind,
    session::{Session, UserHandle},
};

/// Number of permits of a readers-writer lock: a reader takes one, a writer all. It allows more readers than anybody
/// has processes.
pub(crate) const PERMITS: i64 = 1 << 30;

/// A lock with many readers or one writer, among all processes. Made by
/// [`LockClient::rw_lock`](crate::LockClient::rw_lock).
///
/// # Guarantees
///
/// - While a writer's handle is valid, no other handle is.
/// - First come, first served, as with a [`Mutex`](crate::Mutex): readers that come after a waiting writer wait behind
///   it, so that writers are not starved.
/// - A writer becomes a reader without letting go: [`LockHandle::downgrade`](crate::LockHandle::downgrade).
/// - Readers of one client need the server for few of their reads while nobody waits to write: they
///   [share a hold](crate::guarantees#inside-a-process).
/// - The lock of a reader or writer that died stays taken for the rest of its lease.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let prices = locks.rw_lock("prices");
/// let (one, other) = (prices.read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none());
/// drop((one, other));
/// let write = prices.write().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    session: UserHandle<Arc<Session>>,
    name: LockName,
}

impl RwLock {
    pub(crate) fn new(session: UserHandle<Arc<Session>>, name: LockName) -> Self {
        Self { session, name }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Acquires the lock to read, shared with other readers, waiting for its turn. Await the returned action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`](crate::AcquireError).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let read = locks.rw_lock("prices").read().await?;
    /// # Ok(()) }
    /// ```
    pub fn read(&self) -> Acquire {
        Acquire::new(self.share(1))
    }

    /// Acquires the lock to write, alone, waiting for its turn. Await the returned action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`](crate::AcquireError).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let write = locks.rw_lock("prices").write().await?;
    /// # Ok(()) }
    /// ```
    pub fn write(&self) -> Acquire {
        Acquire::new(self.share(PERMITS))
    }

    /// Acquires the lock to read, like [`read`](Self::read), if there is no writer and no waiter; `None` otherwise.
    /// Await the returned action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`](crate::AcquireError).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// assert!(locks.rw_lock("prices").try_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_read(&self) -> TryAcquire {
        TryAcquire::new(self.share(1))
    }

    /// Acquires the lock to write, like [`write`](Self::write), if nobody holds it or waits for it; `None` otherwise.
    /// Await the returned action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`](crate::AcquireError).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// assert!(locks.rw_lock("prices").try_write().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_write(&self) -> TryAcquire {
        TryAcquire::new(self.share(PERMITS))
    }

    fn share(&self, permits: i64) -> Share {
        Share {
            session: self.session.clone(),
            name: self.name.clone(),
            kind: Kind::RwLock,
            capacity: PERMITS,
            permits,
        }
    }
}
