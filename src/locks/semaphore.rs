//! A lock with a number of permits.

use std::{future::Future, marker::PhantomData};

use super::{
    acquire::{Acquire, Try, Wait},
    multi::Part,
    request::Share,
};
use crate::{
    error::{HoldError, OperateError},
    handle::Held,
    input::{check_name, check_permits},
    inspect::LockInfo,
    protocol::{CapacityIs, Kind},
    world::{Async, World},
};

/// A number of permits that all processes share. Made by [`LockClient::semaphore`](crate::LockClient::semaphore).
///
/// # Guarantees
///
/// - No permit is granted beyond the number in force. Holders keep theirs when the number is
///   [lowered](Self::set_permits).
/// - First come, first served, as with a [`Mutex`](crate::locks::Mutex): small requests do not starve a large one, as
///   they wait behind it even if there would be enough permits for them.
/// - A request for more permits than the number in force fails with
///   [`AcquireError::KindMismatch`](crate::errors::AcquireError::KindMismatch).
///
/// The number of permits [belongs to the lock](crate::guide::locks#the-number-of-permits). The first client that asks
/// brings it; a client with another number goes by the lock's ([`Held::total_permits`]), or is refused
/// ([`exact`](Self::exact)). [`set_permits`](Self::set_permits) changes it.
///
/// Each hold is an entry in the lock's document, which is written with every change: 1,500 of one permit each make a
/// document of 255 kB, and an acquire of 53 ms. A process that needs many permits acquires them at once and
/// [splits](Held::split) them: that is one entry, and a split sends nothing.
///
/// Options, errors and cancel safety of its acquires and tries are those of an [`Acquire`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let exports = locks.semaphore("exports", 4);
/// let held = exports.acquire_many(4).await?;
/// assert!(exports.try_acquire_many(2).await?.is_none());
/// held.release_some(1).await?;
/// assert_eq!(exports.available_permits().await?, 1);
///
/// let part = held.split(1)?;
/// assert_eq!((held.permits(), part.permits()), (2, 1));
/// held.merge(part).expect("it is a part of the same hold");
///
/// let lock = exports.set_permits(6).await?;
/// assert_eq!(lock.capacity, Some(6));
/// let others = exports.acquire_many(3).await?;
/// assert_eq!(others.total_permits(), 6);
/// # Ok(()) }
/// ```
#[doc(alias = "RSemaphore")]
#[derive(Clone, Debug)]
pub struct Semaphore<W: World = Async> {
    /// That of one permit.
    share: Share,
    of: PhantomData<fn() -> W>,
}

impl<W: World> Semaphore<W> {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            share: Share {
                by: CapacityIs::Offered,
                ..share
            },
            of: PhantomData,
        }
    }

    /// Has acquires fail with [`AcquireError::KindMismatch`](crate::errors::AcquireError::KindMismatch) if the lock has
    /// another number of permits, instead of going by the lock's.
    pub fn exact(mut self) -> Self {
        self.share.by = CapacityIs::Demanded;
        self
    }

    /// Returns the name of the semaphore.
    pub fn name(&self) -> &str {
        &self.share.name
    }

    /// Returns the number of permits that it was made with. The lock can have [another](Held::total_permits).
    pub fn permits(&self) -> u32 {
        self.share.count()
    }

    /// Acquires one permit, waiting for its turn.
    pub fn acquire(&self) -> Acquire<Semaphore, Wait, W> {
        self.acquire_many(1)
    }

    /// Acquires `permits` permits at once, waiting for its turn. More than the semaphore has, and none, are invalid.
    pub fn acquire_many(&self, permits: u32) -> Acquire<Semaphore, Wait, W> {
        Acquire::new(self.share.of(i64::from(permits)))
    }

    /// Acquires one permit if one is free and nobody waits; `None` otherwise.
    pub fn try_acquire(&self) -> Acquire<Semaphore, Try, W> {
        self.try_acquire_many(1)
    }

    /// Acquires `permits` permits if that many are free and nobody waits; `None` otherwise.
    pub fn try_acquire_many(&self, permits: u32) -> Acquire<Semaphore, Try, W> {
        Acquire::new(self.share.of(i64::from(permits)))
    }

    /// Returns so many permits as a part of a [multi-lock](crate::LockClient::multi).
    pub fn part(&self, permits: u32) -> Part {
        Part::of(self.share.of(i64::from(permits)))
    }

    /// Returns how many permits are free at this moment. The number may have changed by the time you look at it. Cancel
    /// safe: it only reads. An [`OperateError`] says why it failed. [`Semaphore`] has an example.
    pub fn available_permits(&self) -> W::Call<impl Future<Output = Result<u32, OperateError>>> {
        W::call(async move {
            check_name(&self.share.name)?;
            let Some(state) = self.share.newest::<OperateError>().await? else {
                return Ok(self.permits());
            };
            let is_ours = !state.is_set && state.holders.is_empty();
            let capacity = if is_ours { self.share.capacity } else { state.capacity };
            let held: i64 = state.holders.iter().map(|holder| holder.permits).sum();
            // More can be held than there are, after the number was lowered.
            Ok(u32::try_from(capacity - held).unwrap_or(0))
        })
    }

    /// Sets the number of permits of the lock, whether or not it is in use, and returns the lock afterwards.
    /// [`Semaphore`] has an example.
    ///
    /// It is in force at once, for all clients. If it is larger, waiters get permits in the same write. If it is
    /// smaller, holders keep theirs, and nobody gets one until fewer are held, but from another task of the same client:
    /// that [hands on](crate::guarantees#inside-a-process) what it holds by the old number until the news
    /// arrives. Waiters for more permits than that fail with
    /// [`AcquireError::KindMismatch`](crate::errors::AcquireError::KindMismatch). While nobody holds the semaphore the
    /// number stays for a year from now, and the name can't be used as another kind of lock.
    ///
    /// All clients of the lock must be of a version that has this function: holders and waiters of an earlier one lose
    /// the lock, and their permits stay taken until their leases end.
    ///
    /// An [`OperateError`] says why it failed. If the future is dropped, or the server did not answer, the number may
    /// or may not be set. It is safe to try again.
    #[doc(alias("setPermits", "addPermits", "SharedCount", "increasePermits", "reducePermits"))]
    pub fn set_permits(&self, permits: u32) -> W::Call<impl Future<Output = Result<LockInfo, OperateError>>> {
        W::call(async move {
            let Share { session, name, .. } = &self.share;
            check_name(name)?;
            check_permits(Kind::Semaphore, i64::from(permits), 1)?;
            session.set_permits(name, i64::from(permits)).await
        })
    }
}

/// # Permits of a semaphore
impl<W: World> Held<Semaphore, W> {
    /// Gives `permits` of the held permits back, and keeps the others: those that wait for them get in with the same
    /// write. The token, the lease and the handle stay the same. [`Semaphore`](crate::locks::Semaphore) has an example.
    ///
    /// [`HoldError::Invalid`] for no permits, and for all or more than are held; nothing was sent. [`HoldError::Lost`]
    /// if the lock is lost. After a [`HoldError::Server`], or if the future is dropped, the permits are given up here,
    /// and others may have to wait for them until the handle is released, or until another call succeeds.
    #[doc(alias("reducePermits"))]
    pub fn release_some(&self, permits: u32) -> W::Call<impl Future<Output = Result<(), HoldError>>> {
        W::call(self.own.release_some(permits.into()))
    }

    /// Splits `permits` of the held permits off, into a handle of their own: for a part of the work that ends earlier,
    /// or in another task. Nothing is sent. [`Semaphore`](crate::locks::Semaphore) has an example.
    ///
    /// Both are parts of one hold, with one token, and are lost together; a [view](Held::view) of a part reports
    /// [`Released`](crate::LostReason::Released) when the last one goes. A part that is released or dropped gives its
    /// permits back. [`HoldError::Invalid`] for no permits, and for all or more than are held; [`HoldError::Lost`] if
    /// the lock is lost.
    pub fn split(&self, permits: u32) -> Result<Self, HoldError> {
        Ok(Self::new((self.own.split(permits.into())?, ())))
    }

    /// Takes the permits of `other`, another [part](Self::split) of the same hold, into this handle. Nothing is sent.
    /// If it is of another hold, it is given back as the error.
    pub fn merge(&self, other: Self) -> Result<(), Self> {
        self.own.merge(other.own).map_err(|own| Self::new((own, ())))
    }

    /// Returns the number of permits of the semaphore, as it was when this handle's were requested or granted: the
    /// lock's own, which can differ from the number that the client came with.
    pub fn total_permits(&self) -> u64 {
        u64::try_from(self.hold().used.1).unwrap_or(0)
    }
}
