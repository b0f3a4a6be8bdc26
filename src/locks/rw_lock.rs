//! A lock with many readers or one writer.

use std::{future::Future, marker::PhantomData};

use super::{
    acquire::{Acquire, Try, Wait},
    multi::Part,
    request::Share,
    targets::{Read, UpgradeableRead, Write},
};
use crate::{
    error::RenewError,
    handle::Held,
    name::LockName,
    protocol::Kind,
    world::{Async, World},
};

/// Number of permits of a readers-writer lock: a reader takes one, a writer all. It allows more readers than anybody
/// has processes.
pub(crate) const PERMITS: i64 = 1 << 30;

/// Number of permits of an upgradeable reader: more than half, so that there is one at a time. Half a billion readers
/// still fit beside it. To become a writer, it takes the others too.
const UPGRADEABLE: i64 = PERMITS / 2 + 1;

/// A lock with many readers or one writer, among all processes. Made by
/// [`LockClient::rw_lock`](crate::LockClient::rw_lock).
///
/// # Guarantees
///
/// - While a writer's handle is valid, no other handle is, except that of the reader that it was.
/// - First come, first served, as with a [`Mutex`](crate::locks::Mutex): readers that come after a waiting writer wait
///   behind it, so that writers are not starved.
/// - A writer becomes a reader without letting go: [`Held::downgrade`](crate::Held::downgrade). An
///   [upgradeable reader](Self::upgradeable_read) becomes a writer: [`Held::upgrade`](crate::Held::upgrade).
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
    pub(crate) fn new(share: Share) -> Self {
        Self { share, of: PhantomData }
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
    /// See [`RwLock`].
    pub fn read(&self) -> Acquire<Read, Wait, W> {
        Acquire::new(self.share.clone())
    }

    /// Acquires the lock to read in a way that can [become a writer's](crate::Held::upgrade), waiting for its turn. It is
    /// shared with readers, and not with a writer or another upgradeable reader. Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let prices = locks.rw_lock("prices");
    /// let held = prices.upgradeable_read().await?;
    /// assert!(prices.try_read().await?.is_some());
    /// assert!(prices.try_upgradeable_read().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn upgradeable_read(&self) -> Acquire<UpgradeableRead, Wait, W> {
        Acquire::new(self.share.of(UPGRADEABLE))
    }

    /// Acquires the lock to write, alone, waiting for its turn. Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// See [`RwLock`].
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

    /// Acquires the lock to read, like [`upgradeable_read`](Self::upgradeable_read), if there is no writer, no other
    /// upgradeable reader and no waiter; `None` otherwise. Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// assert!(locks.rw_lock("prices").try_upgradeable_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_upgradeable_read(&self) -> Acquire<UpgradeableRead, Try, W> {
        Acquire::new(self.share.of(UPGRADEABLE))
    }

    /// Acquires the lock to write, like [`write`](Self::write), if nobody holds it or waits for it; `None` otherwise.
    /// Await the returned action.
    ///
    /// Errors and cancel safety are those of an [`Acquire`].
    ///
    /// # Examples
    ///
    /// See [`RwLock`].
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
    /// readers that wait to become writers would wait for each other. A writer that was an
    /// [upgradeable reader](Held::upgrade) becomes a plain reader beside that; to be the upgradeable reader alone again,
    /// release it.
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
        W::call(self.own.become_reader())
    }
}

/// # An upgradeable reader of a readers-writer lock
impl<W: World> Held<UpgradeableRead, W> {
    /// Makes the reader a writer, without letting go in between: what it has read is still so. Await the returned action.
    ///
    /// It gives the handle of the writer, beside that of the reader. The writer's has a token of its own, which is larger
    /// than that of every earlier holder; write under that. Once it is released, in whatever way, the reader is an
    /// upgradeable reader again, under the token that it had. As long as the writer's handle lives, the reader's hold
    /// lasts too, also if its own handle is gone; then both leave in one write. The writer's hold is
    /// [lost](crate::View::lost) when either is. It is on the terms of its reader (lease, limits, fixed time).
    ///
    /// It waits for the readers beside it, and goes before everybody else who waits: a writer in the queue waits for this
    /// reader. Readers that come meanwhile wait. There is one upgradeable reader, so no two wait for each other. A task
    /// that has a plain reader of this lock too waits for itself, as one does that asks to [`write`](RwLock::write)
    /// beside a reader of its own.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`], and [`AcquireError::Lost`](crate::errors::AcquireError::Lost) if the reader is lost, or
    /// was released. After any other error it is the reader that it was.
    /// [`AcquireError::Invalid`](crate::errors::AcquireError::Invalid) if it was [downgraded](Self::downgrade), or for
    /// terms of its own ([`lease`](Acquire::lease), [`lose_after`](Acquire::lose_after), [`reentrant`](Acquire::reentrant)
    /// and the like).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the action is dropped, its place in the queue is given back in the background, and the reader is
    /// what it was.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// # let outdated = true;
    /// use std::time::Duration;
    ///
    /// let prices = locks.rw_lock("prices");
    /// let read = prices.upgradeable_read().await?;
    /// if outdated {
    ///     let write = read.upgrade().timeout(Duration::from_secs(10)).await?;
    ///     assert!(write.token() > read.token());
    ///     // ... write ...
    ///     write.release().await?;
    /// }
    /// assert!(prices.try_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// A plain reader can't become a writer:
    ///
    /// ```compile_fail,E0599
    /// # async fn example(locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
    /// let write = locks.rw_lock("prices").read().await?.upgrade().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias("UpgradeToWriteLockAsync", "upgrade_to_write_lock"))]
    pub fn upgrade(&self) -> Acquire<Write, Wait, W> {
        Acquire::new(self.writer())
    }

    /// Makes the reader a writer, like [`upgrade`](Self::upgrade), if there is no other reader; `None` otherwise, and the
    /// reader is what it was. Await the returned action.
    ///
    /// Errors and cancel safety are those of [`upgrade`](Self::upgrade).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let prices = locks.rw_lock("prices");
    /// let (held, other) = (prices.upgradeable_read().await?, prices.read().await?);
    /// assert!(held.try_upgrade().await?.is_none());
    /// assert!(held.is_held());
    /// # Ok(()) }
    /// ```
    pub fn try_upgrade(&self) -> Acquire<Write, Try, W> {
        Acquire::new(self.writer())
    }

    /// Makes it a plain reader, without letting go: from now on another client can be the upgradeable reader.
    ///
    /// Errors and cancel safety are those of a [writer's](Held::downgrade). [`RenewError::Invalid`] comes also while
    /// the reader is, or waits to become, a writer.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let prices = locks.rw_lock("prices");
    /// let read = prices.upgradeable_read().await?;
    /// read.downgrade().await?;
    /// assert!(prices.try_upgradeable_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn downgrade(&self) -> W::Call<impl Future<Output = Result<(), RenewError>>> {
        W::call(self.own.become_reader())
    }

    /// Returns the demand of the permits that it lacks as a writer.
    fn writer(&self) -> Share {
        let (hold, session) = (self.hold(), self.own.session());
        let name = LockName::new(hold.name.clone());
        Share {
            permits: PERMITS - UPGRADEABLE,
            upgrades: Some(hold.clone()),
            ..Share::one_of(PERMITS, session.clone(), name, Kind::RwLock)
        }
    }
}
