//! Running of the actions, on the calling thread.

use serde::de::DeserializeOwned;

use super::{
    Action, DocumentHandle, ElementHandle, LockHandle, LockView, MultiHandle, MultiView, block_on, election::Leadership,
};
use crate::{
    documents::{AcquireDocument, AcquireElement, Claim, TryAcquireDocument, TryAcquireElement, TryClaim},
    error::{AcquireError, MultiRunError, OperateError, RunError},
    inspect::LockInfo,
    locks::{
        acquire::{Acquire, TryAcquire},
        election::Campaign,
        multi::{MultiAcquire, TryMultiAcquire},
    },
    operate::list::{List, Listing},
};

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
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the lock was not acquired, [`RunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
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

    /// Tries to acquire the lock, does the work, and releases the lock; `None` if that is not free, and then the work is not done.
    ///
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the lock was not acquired, [`RunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
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

    /// Acquires all locks, does the work, and releases each of them.
    ///
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_part`](MultiView::lost_part) itself and returns.
    ///
    /// # Errors
    ///
    /// [`MultiRunError::Acquire`] if each of them was not acquired, [`MultiRunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    pub fn run_with<O>(self, work: impl FnOnce(MultiView) -> O) -> Result<O, MultiRunError> {
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

    /// Tries on this thread, and fails with [`AcquireError::Held`], which names the holder, if any of the locks is not free.
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

    /// Tries to acquire all locks, does the work, and releases each of them; `None` if that is not free, and then the work is not done.
    ///
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_part`](MultiView::lost_part) itself and returns.
    ///
    /// # Errors
    ///
    /// [`MultiRunError::Acquire`] if each of them was not acquired, [`MultiRunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the lock is released.
    pub fn run_with<O>(self, work: impl FnOnce(MultiView) -> O) -> Result<Option<O>, MultiRunError> {
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
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired, [`RunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
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
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired, [`RunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
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

    /// Tries on this thread, and fails with [`AcquireError::Held`], which names the holder, if the document is not free.
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

    /// Tries to lock the document, does the work, and releases the document; `None` if that is not free, and then the work is not done.
    ///
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired, [`RunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
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

    /// Tries to lock the document, does the work, and releases the document; `None` if that is not free, and then the work is not done.
    ///
    /// Nothing stops a thread from outside: if the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the document was not acquired, [`RunError::Lost`] if it was lost before the work finished; the work's
    /// result is dropped then. A release that can't be confirmed is not an error.
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
    if let Some(reason) = handle.lost_reason() {
        return Err(reason.into());
    }
    // An event reports an unconfirmed release.
    let _ = handle.release();
    Ok(output)
}

fn under_all<O>(handle: MultiHandle, work: impl FnOnce(MultiView) -> O) -> Result<O, MultiRunError> {
    let output = work(handle.view());
    if let Some(part) = handle.lost_part() {
        return Err(part.into());
    }
    // An event reports an unconfirmed release.
    let _ = handle.release();
    Ok(output)
}

fn under_document<T, O>(handle: DocumentHandle<T>, work: impl FnOnce(&DocumentHandle<T>) -> O) -> Result<O, RunError> {
    let output = work(&handle);
    if let Some(reason) = handle.as_async().lost_reason_otherwise() {
        return Err(reason.into());
    }
    // An event reports an unconfirmed release.
    let _ = handle.release();
    Ok(output)
}
