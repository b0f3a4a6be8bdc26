//! A lock with many readers or one writer.

use std::{future::Future, marker::PhantomData};

use super::{
    acquire::Acquire,
    multi::Part,
    patience::{Try, Wait},
    request::Share,
    targets::{Read, Write},
};
use crate::{
    error::{InvalidInput, RenewError},
    handle::Held,
    name::LockName,
    protocol::Kind,
    session::UserHandle,
    truncated_debug::shown,
    world::{Async, World},
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
/// - First come, first served, as with a [`Mutex`](crate::locks::Mutex): readers that come after a waiting writer wait
///   behind it, so that writers are not starved.
/// - A writer becomes a reader without letting go: [`Held::downgrade`](crate::Held::downgrade).
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
#[doc(alias("ReadWriteLock", "RReadWriteLock"))]
#[derive(Clone, Debug)]
pub struct RwLock<W: World = Async> {
    /// That of a reader.
    share: Share,
    of: PhantomData<fn() -> W>,
}

impl<W: World> RwLock<W> {
    pub(crate) fn new(session: UserHandle, name: LockName) -> Self {
        let share = Share::whole(session, name, Kind::RwLock);
        Self {
            share: Share {
                capacity: PERMITS,
                ..share
            },
            of: PhantomData,
        }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.share.name
    }

    /// Acquires the lock to read, shared with other readers, waiting for its turn. Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let read = locks.rw_lock("prices").read().await?;
    /// # Ok(()) }
    /// ```
    pub fn read(&self) -> Acquire<Read, Wait, W> {
        Acquire::new(self.share.clone())
    }

    /// Acquires the lock to write, alone, waiting for its turn. Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let write = locks.rw_lock("prices").write().await?;
    /// # Ok(()) }
    /// ```
    pub fn write(&self) -> Acquire<Write, Wait, W> {
        Acquire::new(self.share.of(PERMITS))
    }

    /// Acquires the lock to read, like [`read`](Self::read), if there is no writer and no waiter; `None` otherwise.
    /// Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// assert!(locks.rw_lock("prices").try_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_read(&self) -> Acquire<Read, Try, W> {
        Acquire::new(self.share.clone())
    }

    /// Acquires the lock to write, like [`write`](Self::write), if nobody holds it or waits for it; `None` otherwise.
    /// Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// assert!(locks.rw_lock("prices").try_write().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_write(&self) -> Acquire<Write, Try, W> {
        Acquire::new(self.share.of(PERMITS))
    }

    /// Returns a reader as a part of a [multi-lock](crate::LockClient::multi).
    pub fn read_part(&self) -> Part {
        Part::of(self.share.clone())
    }

    /// Returns the writer as a part of a [multi-lock](crate::LockClient::multi).
    pub fn write_part(&self) -> Part {
        Part::of(self.share.of(PERMITS))
    }
}

/// # A writer of a readers-writer lock
impl<W: World> Held<Write, W> {
    /// Makes a writer of a [readers-writer lock](crate::locks::RwLock) a reader, without letting go in between: its
    /// changes are still there when it reads.
    ///
    /// Readers that wait at the head of the queue get in with the same write; they stay behind a writer that came
    /// before them. The token, the lease and the handle stay the same. A reader stays a reader. There is no way back:
    /// readers that wait to become writers would wait for each other.
    ///
    /// # Errors
    ///
    /// [`RenewError::Invalid`] for a hold that was [acquired re-entrantly](crate::Acquire::reentrant) and has other
    /// handles, which still count on it; nothing was sent.
    /// [`RenewError::Lost`] if the lock is lost. [`RenewError::Server`] if the server refused, or did not answer before
    /// the deadline of the hold: this handle is a reader's nevertheless, and others may have to wait until it is
    /// released, or until another call of `downgrade` succeeds.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the handle is a reader's, and others may have to wait as after an error. It can be
    /// called again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let prices = locks.rw_lock("prices");
    /// let handle = prices.write().await?;
    /// // ... write ...
    /// handle.downgrade().await?;
    /// assert!(prices.try_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// Only a writer has it:
    ///
    /// ```compile_fail,E0599
    /// # async fn example(locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
    /// locks.rw_lock("prices").read().await?.downgrade().await?;
    /// # Ok(()) }
    /// ```
    pub fn downgrade(&self) -> W::Call<impl Future<Output = Result<(), RenewError>>> {
        W::call(self.become_reader())
    }

    /// Keeps one permit, that of a reader.
    async fn become_reader(&self) -> Result<(), RenewError> {
        let (own, session) = (&self.own, self.own.session());
        self.check()?;
        session.ensure_usable()?;
        if let Err(handles) = own.hold().downgrade(1) {
            return Err(InvalidInput::new(format!(
                "the writer of `{}` has {handles} handles and can't be downgraded; it must have 1",
                shown(self.name().escape_debug())
            ))
            .into());
        }
        own.note_reader();
        own.keep_permits(1).await
    }
}
