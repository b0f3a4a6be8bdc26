//! Actions that run on the calling thread instead of being awaited.
//!
//! They are types of their own: an action of the async API has no call that would block, and one of this API can't be
//! awaited.

use std::time::Duration;

use mongodb::bson::Document;
use serde::de::DeserializeOwned;

use super::{
    Action, DocumentHandle, ElementHandle, LockHandle, LockView, MultiHandle, MultiView, block_on, election::Leadership,
};
use crate::{
    documents::{AcquireDocument, AcquireElement, Claim, TryAcquireDocument, TryAcquireElement, TryClaim},
    error::{AcquireError, OperateError, RunError},
    inspect::LockInfo,
    locks::{
        acquire::{Acquire, TryAcquire},
        election::Campaign,
        multi::{MultiAcquire, TryMultiAcquire},
    },
    operate::list::{List, Listing},
    protocol::Kind,
};

/// Forwards options to the action of the same name.
macro_rules! options {
    ($([$($generic:ident)?] $action:ty { $($(#[$doc:meta])* $option:ident($($value:ident: $type:ty)?);)* })*) => {$(
        impl$(<$generic>)? Action<$action> {$(
            $(#[$doc])*
            pub fn $option(self $(, $value: $type)?) -> Self {
                self.with(|action| action.$option($($value)?))
            }
        )*}
    )*};
}

options! {
    [] Acquire {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Shares the hold of this client, if it has one already; see
        /// [`Acquire::reentrant`](crate::Acquire::reentrant).
        reentrant();
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
        /// Keeps the lock taken for that long at least; see [`Acquire::at_least_for`](crate::Acquire::at_least_for).
        at_least_for(least: Duration);
        /// Keeps the lock with this client for that long after its release; see
        /// [`Acquire::keep_idle`](crate::Acquire::keep_idle).
        keep_idle(keep: Duration);
    }
    [] TryAcquire {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Shares the hold of this client, if it has one already; see
        /// [`Acquire::reentrant`](crate::Acquire::reentrant).
        reentrant();
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
        /// Keeps the lock taken for that long at least; see [`Acquire::at_least_for`](crate::Acquire::at_least_for).
        at_least_for(least: Duration);
        /// Keeps the lock with this client for that long after its release; see
        /// [`Acquire::keep_idle`](crate::Acquire::keep_idle).
        keep_idle(keep: Duration);
    }
    [] MultiAcquire {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [] TryMultiAcquire {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [] Campaign {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
    }
    [T] AcquireDocument<T> {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [T] TryAcquireDocument<T> {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [E] AcquireElement<E> {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [E] TryAcquireElement<E> {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [T] Claim<T> {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
        /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
        sort(sort: Document);
        /// Claims only documents that were claimed fewer than `most` times, and counts this claim; see
        /// [`Claim::max_attempts`](crate::Claim::max_attempts).
        max_attempts(most: u32);
    }
    [T] TryClaim<T> {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for that long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
        /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
        sort(sort: Document);
        /// Claims only documents that were claimed fewer than `most` times, and counts this claim; see
        /// [`Claim::max_attempts`](crate::Claim::max_attempts).
        max_attempts(most: u32);
    }
    [] List {
        /// Lists only locks whose name begins with this prefix; see [`List::prefix`](crate::List::prefix).
        prefix(prefix: impl Into<String>);
        /// Lists only locks of this kind.
        kind(kind: Kind);
        /// Lists only locks that somebody holds, or that nobody does.
        held(held: bool);
        /// Lists only locks with a holder whose label, owner id or host is this.
        owner(owner: impl Into<String>);
        /// Lists only locks that some holder has held for longer than this, by the server's clock.
        older_than(age: Duration);
    }
}

impl Action<Acquire> {
    /// Acquires on this thread, and blocks it until the lock is held.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<LockHandle, AcquireError> {
        block_on(self.action.into_future()).map(LockHandle::new)
    }

    /// Acquires the lock, does the work, and releases the lock.
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
    /// let exports = locks.semaphore("exports", 4);
    /// let permits = exports.acquire_many(2).reason("report 7").run_with(|held| held.permits())?;
    /// assert_eq!((permits, exports.available_permits()?), (2, 4));
    /// # Ok(()) }
    /// ```
    pub fn run_with<O>(self, work: impl FnOnce(LockView) -> O) -> Result<O, RunError> {
        under(self.run()?, work)
    }
}

impl Action<TryAcquire> {
    /// Tries on this thread, and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<LockHandle>, AcquireError> {
        Ok(block_on(self.action.into_future())?.map(LockHandle::new))
    }

    /// Tries on this thread, and fails with [`AcquireError::Held`], which names the holder, if the lock is not free.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<LockHandle, AcquireError> {
        block_on(self.action.or_held()).map(LockHandle::new)
    }

    /// Tries to acquire the lock, does the work, and releases the lock. Returns `None` without doing the work if the
    /// lock is taken.
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
    pub fn run_with<O>(self, work: impl FnOnce(LockView) -> O) -> Result<Option<O>, RunError> {
        match self.run()? {
            Some(handle) => under(handle, work).map(Some),
            None => Ok(None),
        }
    }
}

impl Action<MultiAcquire> {
    /// Acquires on this thread, and blocks it until all locks are held.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<MultiHandle, AcquireError> {
        block_on(self.action.into_future()).map(MultiHandle::new)
    }

    /// Acquires all locks, does the work, and releases the locks.
    ///
    /// A thread can't be stopped from outside. If any of the locks is lost the work goes on, unless it checks the
    /// [`check`](MultiView::check) and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if any of the locks was not acquired; [`RunError::Lost`] if any was lost before
    /// the work finished, in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the locks are released.
    pub fn run_with<O>(self, work: impl FnOnce(MultiView) -> O) -> Result<O, RunError> {
        under_all(self.run()?, work)
    }
}

impl Action<TryMultiAcquire> {
    /// Tries on this thread, and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<MultiHandle>, AcquireError> {
        Ok(block_on(self.action.into_future())?.map(MultiHandle::new))
    }

    /// Tries on this thread, and fails with [`AcquireError::Held`], which names the holder, if any of the locks is not
    /// free.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<MultiHandle, AcquireError> {
        block_on(self.action.or_held()).map(MultiHandle::new)
    }

    /// Tries to acquire all locks, does the work, and releases the locks. Returns `None` without doing the work if any
    /// of them is taken.
    ///
    /// A thread can't be stopped from outside. If any of the locks is lost the work goes on, unless it checks the
    /// [`check`](MultiView::check) and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if any of the locks was not acquired; [`RunError::Lost`] if any was lost before
    /// the work finished, in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the locks are released.
    pub fn run_with<O>(self, work: impl FnOnce(MultiView) -> O) -> Result<Option<O>, RunError> {
        match self.run()? {
            Some(handle) => under_all(handle, work).map(Some),
            None => Ok(None),
        }
    }
}

impl Action<Campaign> {
    /// Campaigns on this thread, and blocks it until elected.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Leadership, AcquireError> {
        block_on(self.action.into_future()).map(Leadership::new)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Action<AcquireDocument<T>> {
    /// Acquires on this thread, and blocks it until the document is locked.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<DocumentHandle<T>, AcquireError> {
        block_on(self.action.into_future()).map(DocumentHandle::new)
    }

    /// Locks the document, does the work, and releases the document.
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired; [`RunError::Lost`] if it was lost before the work
    /// finished, in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    pub fn run_with<O>(self, work: impl FnOnce(&DocumentHandle<T>) -> O) -> Result<O, RunError> {
        under_document(self.run()?, work)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Action<Claim<T>> {
    /// Claims on this thread, and blocks it until there is a free document.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<DocumentHandle<T>, AcquireError> {
        block_on(self.action.into_future()).map(DocumentHandle::new)
    }

    /// Locks the document, does the work, and releases the document.
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired; [`RunError::Lost`] if it was lost before the work
    /// finished, in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    pub fn run_with<O>(self, work: impl FnOnce(&DocumentHandle<T>) -> O) -> Result<O, RunError> {
        under_document(self.run()?, work)
    }
}

impl<E: DeserializeOwned + Send + Sync + 'static> Action<AcquireElement<E>> {
    /// Acquires the lock on this thread, and blocks it until then.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<ElementHandle<E>, AcquireError> {
        block_on(self.action.into_future()).map(ElementHandle::new)
    }
}

impl<E: DeserializeOwned + Send + Sync + 'static> Action<TryAcquireElement<E>> {
    /// Tries on this thread, and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<ElementHandle<E>>, AcquireError> {
        Ok(block_on(self.action.into_future())?.map(ElementHandle::new))
    }

    /// Tries on this thread, and fails with [`AcquireError::Held`], which names the holder, if the element is not free.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<ElementHandle<E>, AcquireError> {
        block_on(self.action.or_held()).map(ElementHandle::new)
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Action<TryAcquireDocument<T>> {
    /// Tries on this thread, and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<DocumentHandle<T>>, AcquireError> {
        Ok(block_on(self.action.into_future())?.map(DocumentHandle::new))
    }

    /// Tries on this thread, and fails with [`AcquireError::Held`], which names the holder, if the document is not
    /// free.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_or_held(self) -> Result<DocumentHandle<T>, AcquireError> {
        block_on(self.action.or_held()).map(DocumentHandle::new)
    }

    /// Tries to lock the document, does the work, and releases the document. Returns `None` without doing the work if
    /// the document is taken.
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired; [`RunError::Lost`] if it was lost before the work
    /// finished, in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    pub fn run_with<O>(self, work: impl FnOnce(&DocumentHandle<T>) -> O) -> Result<Option<O>, RunError> {
        match self.run()? {
            Some(handle) => under_document(handle, work).map(Some),
            None => Ok(None),
        }
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Action<TryClaim<T>> {
    /// Tries on this thread, and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run(self) -> Result<Option<DocumentHandle<T>>, AcquireError> {
        Ok(block_on(self.action.into_future())?.map(DocumentHandle::new))
    }

    /// Tries to claim a document, does the work, and releases the document. Returns `None` without doing the work if
    /// no document can be claimed.
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired; [`RunError::Lost`] if it was lost before the work
    /// finished, in which case the work's result is dropped. An unconfirmed release is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    pub fn run_with<O>(self, work: impl FnOnce(&DocumentHandle<T>) -> O) -> Result<Option<O>, RunError> {
        match self.run()? {
            Some(handle) => under_document(handle, work).map(Some),
            None => Ok(None),
        }
    }
}

impl Action<List> {
    /// Lists on this thread, and blocks it until the server has answered.
    ///
    /// # Errors
    ///
    /// If a condition is out of bounds, the server can't be reached, or it refuses.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().run()?;
    /// assert_eq!(locks.list().prefix("invoice-").held(true).run()?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn run(self) -> Result<Vec<LockInfo>, OperateError> {
        block_on(self.action.into_future())
    }

    /// Lists the locks, and with them the documents that can't be read as locks; see
    /// [`List::with_unreadable`](crate::List::with_unreadable).
    ///
    /// # Errors
    ///
    /// Same as for [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run_with_unreadable(self) -> Result<Listing, OperateError> {
        block_on(self.action.with_unreadable())
    }
}

fn under<O>(handle: LockHandle, work: impl FnOnce(LockView) -> O) -> Result<O, RunError> {
    let output = work(handle.view());
    handle.check()?;
    // An event reports an unconfirmed release.
    let _ = handle.release();
    Ok(output)
}

fn under_all<O>(handle: MultiHandle, work: impl FnOnce(MultiView) -> O) -> Result<O, RunError> {
    let output = work(handle.view());
    handle.check()?;
    // An event reports an unconfirmed release.
    let _ = handle.release();
    Ok(output)
}

fn under_document<T, O>(handle: DocumentHandle<T>, work: impl FnOnce(&DocumentHandle<T>) -> O) -> Result<O, RunError> {
    let output = work(&handle);
    handle.as_async().check_otherwise()?;
    // An event reports an unconfirmed release.
    let _ = handle.release();
    Ok(output)
}
