//! A lock with many readers or one writer.

use std::{future::Future, marker::PhantomData};

use super::{
    acquire::{Acquire, Try, Wait},
    multi::Part,
    request::Share,
    targets::{Read, UpgradeableRead, Write},
};
use crate::{
    error::HoldError,
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
///
/// Options, errors and cancel safety of its acquires and tries are those of an [`Acquire`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// use std::time::Duration;
///
/// let prices = locks.rw_lock("prices");
/// let (one, other) = (prices.upgradeable_read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none() && prices.try_upgradeable_read().await?.is_none());
///
/// // An upgradeable reader becomes a writer while it is the only reader, and is a reader again afterwards.
/// assert!(one.try_upgrade().await?.is_none());
/// other.release().await?;
/// let write = one.upgrade().timeout(Duration::from_secs(10)).await?;
/// assert!(write.token() > one.token());
/// write.release().await?;
/// one.release().await?;
///
/// // A writer becomes a reader: its changes are still there when it reads.
/// let write = prices.write().await?;
/// write.downgrade().await?;
/// assert!(prices.try_read().await?.is_some());
/// # Ok(()) }
/// ```
///
/// A plain reader can become neither:
///
/// ```compile_fail,E0599
/// # async fn example(locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let write = locks.rw_lock("prices").read().await?.upgrade().await?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0599
/// # async fn example(locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// locks.rw_lock("prices").read().await?.downgrade().await?;
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

    /// Acquires the lock to read, shared with other readers, waiting for its turn.
    pub fn read(&self) -> Acquire<Read, Wait, W> {
        Acquire::new(self.share.clone())
    }

    /// Acquires the lock to read in a way that can [become a writer's](crate::Held::upgrade), waiting for its turn. It
    /// is shared with readers, and not with a writer or another upgradeable reader.
    pub fn upgradeable_read(&self) -> Acquire<UpgradeableRead, Wait, W> {
        Acquire::new(self.share.of(UPGRADEABLE))
    }

    /// Acquires the lock to write, alone, waiting for its turn.
    pub fn write(&self) -> Acquire<Write, Wait, W> {
        Acquire::new(self.share.of(PERMITS))
    }

    /// Acquires the lock to read, like [`read`](Self::read), if there is no writer and no waiter; `None` otherwise.
    pub fn try_read(&self) -> Acquire<Read, Try, W> {
        Acquire::new(self.share.clone())
    }

    /// Acquires the lock to read, like [`upgradeable_read`](Self::upgradeable_read), if there is no writer, no other
    /// upgradeable reader and no waiter; `None` otherwise.
    pub fn try_upgradeable_read(&self) -> Acquire<UpgradeableRead, Try, W> {
        Acquire::new(self.share.of(UPGRADEABLE))
    }

    /// Acquires the lock to write, like [`write`](Self::write), if nobody holds it or waits for it; `None` otherwise.
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
    /// Makes a writer of a [readers-writer lock](crate::locks::RwLock), whose docs have an example, a reader, without
    /// letting go in between: its changes are still there when it reads.
    ///
    /// Readers that wait at the head of the queue get in with the same write; they stay behind a writer that came
    /// before them. The token, the lease and the handle stay the same. There is no way back: readers that wait to
    /// become writers would wait for each other. A writer that was an [upgradeable reader](Held::upgrade) becomes a
    /// plain reader beside that; to be the upgradeable reader alone again, release it.
    ///
    /// # Errors
    ///
    /// [`HoldError::Invalid`] for a hold that was [acquired re-entrantly](crate::Acquire::reentrant) and has other
    /// handles, which still count on it. [`HoldError::Lost`] if the lock is lost. After a [`HoldError::Server`], or if
    /// the future is dropped, this handle is a reader's, and others may have to wait until it is released, or until
    /// another call succeeds.
    pub fn downgrade(&self) -> W::Call<impl Future<Output = Result<(), HoldError>>> {
        W::call(self.own.become_reader())
    }
}

/// # An upgradeable reader of a readers-writer lock
impl<W: World> Held<UpgradeableRead, W> {
    /// Makes the reader a writer, without letting go in between: what it has read is still so.
    /// [`RwLock`](crate::locks::RwLock) has an example.
    ///
    /// It gives the handle of the writer, beside that of the reader, with a token of its own: write under that. Once it
    /// is released, in whatever way, the reader is an upgradeable reader again, under the token that it had. As long as
    /// the writer's handle lives, the reader's hold lasts too, also if its own handle is gone; then both leave in one
    /// write. The writer's hold is [lost](crate::View::lost) when either is. It is on the terms of its reader (lease,
    /// limits, fixed time).
    ///
    /// It waits for the readers beside it, and goes before everybody else who waits. Readers that come meanwhile wait.
    /// There is one upgradeable reader, so no two wait for each other. A task that has a plain reader of this lock too
    /// waits for itself.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`], and [`Lost`](crate::errors::AcquireError::Lost) if the reader is lost, or was released.
    /// After any other error, or if the action is dropped, it is the reader that it was.
    /// [`Invalid`](crate::errors::AcquireError::Invalid) if it was [downgraded](Self::downgrade), or for terms of its
    /// own ([`lease`](Acquire::lease), [`reentrant`](Acquire::reentrant) and the like).
    #[doc(alias("UpgradeToWriteLockAsync", "upgrade_to_write_lock"))]
    pub fn upgrade(&self) -> Acquire<Write, Wait, W> {
        Acquire::new(self.writer())
    }

    /// Makes the reader a writer, like [`upgrade`](Self::upgrade), if there is no other reader; `None` otherwise, and
    /// the reader is what it was.
    pub fn try_upgrade(&self) -> Acquire<Write, Try, W> {
        Acquire::new(self.writer())
    }

    /// Makes it a plain reader, without letting go, as [that of a writer](Held::downgrade) does: from now on another
    /// client can be the upgradeable reader. [`HoldError::Invalid`] comes also while the reader is, or waits to become,
    /// a writer.
    pub fn downgrade(&self) -> W::Call<impl Future<Output = Result<(), HoldError>>> {
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
