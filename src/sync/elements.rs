//! Locks of the elements of an array, in the documents of the user's own collection.

use std::{fmt, ops::Deref, time::Duration};

use mongodb::{bson::Bson, options::UpdateModifications};
use serde::de::DeserializeOwned;

use super::{Action, LockHandle, LockView, block_on};
use crate::{
    documents::{AcquireElement, TryAcquireElement},
    error::{DocumentError, OperateError, ReleaseError, RenewError},
    handle::Released,
    inspect::LockInfo,
    token::FencingToken,
    wake_mode::WakeMode,
};

/// Locks for one element each of an array in the documents of a collection of yours: [`watchlock::ElementLocks`] for
/// threads.
///
/// [`watchlock::ElementLocks`]: crate::ElementLocks
///
/// # Examples
///
/// ```no_run
/// # fn example(orders: watchlock::sync::DocumentLocks<mongodb::bson::Document>) -> Result<(), Box<dyn std::error::Error>> {
/// use mongodb::bson::{Document, doc};
///
/// let line = orders.element::<Document>("lines", doc! { "sku": "x" }).acquire("order-7").run()?;
/// line.update(doc! { "$set": { "picked": true } })?;
/// line.release()?;
/// # Ok(()) }
/// ```
pub struct ElementLocks<E> {
    elements: crate::ElementLocks<E>,
}

impl<E> ElementLocks<E> {
    pub(super) fn new(elements: crate::ElementLocks<E>) -> Self {
        Self { elements }
    }

    /// Acquires the lock of the element in the document with this `_id`, waiting for its turn. [`run`](Action::run) the
    /// returned action.
    pub fn acquire(&self, id: impl Into<Bson>) -> Action<AcquireElement<E>> {
        Action::new(self.elements.acquire(id))
    }

    /// Acquires the lock of the element in the document with this `_id` if it is free and nobody waits for it.
    /// [`run`](Action::run) the returned action.
    pub fn try_acquire(&self, id: impl Into<Bson>) -> Action<TryAcquireElement<E>> {
        Action::new(self.elements.try_acquire(id))
    }

    /// Returns the holders and waiters of the element's lock in the document with this `_id`; see
    /// [`ElementLocks::inspect`](crate::ElementLocks::inspect), which has the same errors.
    ///
    /// # Errors
    ///
    /// See [`OperateError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn inspect(&self, id: impl Into<Bson>) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.elements.inspect(id))
    }

    /// Takes the lock of the element in the document with this `_id` away from its holder; see
    /// [`ElementLocks::break_lock`](crate::ElementLocks::break_lock).
    ///
    /// # Errors
    ///
    /// Same as for [`inspect`](Self::inspect). If the server does not answer, the lock may have been broken.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_lock(&self, id: impl Into<Bson>) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.elements.break_lock(id))
    }

    /// Takes the lock of the element in the document with this `_id` away from the holder whose grant has this token;
    /// see [`ElementLocks::break_holder`](crate::ElementLocks::break_holder).
    ///
    /// # Errors
    ///
    /// Same as for [`break_lock`](Self::break_lock).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_holder(&self, id: impl Into<Bson>, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.elements.break_holder(id, token))
    }

    /// Returns how waiters are woken at present; see [`ElementLocks::wake_mode`](crate::ElementLocks::wake_mode).
    pub fn wake_mode(&self) -> WakeMode {
        self.elements.wake_mode()
    }
}

impl<E> Clone for ElementLocks<E> {
    fn clone(&self) -> Self {
        Self::new(self.elements.clone())
    }
}

impl<E> fmt::Debug for ElementLocks<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt(f)
    }
}

/// A locked element of an array: [`watchlock::ElementHandle`] for threads. Dropping it releases the element in the
/// background.
///
/// [`watchlock::ElementHandle`]: crate::ElementHandle
#[must_use = "the element is released when the handle is dropped"]
pub struct ElementHandle<E> {
    handle: crate::ElementHandle<E>,
    view: LockView,
}

impl<E> ElementHandle<E> {
    pub(super) fn new(handle: crate::ElementHandle<E>) -> Self {
        let view = LockView::new(handle.view());
        Self { handle, view }
    }

    /// Returns the same handle for async code.
    pub fn as_async(&self) -> &crate::ElementHandle<E> {
        &self.handle
    }

    /// Returns the element as it was when it was locked, or right after.
    pub fn element(&self) -> &E {
        self.handle.element()
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        self.handle.id()
    }

    /// Returns a view of the lock for the code that works under it.
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// Renews the lock now, and returns for how long it is safe; see
    /// [`ElementHandle::renew`](crate::ElementHandle::renew).
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: the element is
    /// still locked, and renewals go on in the background.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn renew(&self) -> Result<Duration, RenewError> {
        block_on(self.handle.renew())
    }

    /// Releases the element, and blocks until it is done.
    ///
    /// # Errors
    ///
    /// Same as for [`LockHandle::release`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn release(self) -> Result<Released, ReleaseError> {
        block_on(self.handle.release())
    }

    /// Splits this into the handle of the lock alone, and the element.
    pub fn into_parts(self) -> (LockHandle, E) {
        let (handle, element) = self.handle.into_parts();
        (LockHandle::new(handle), element)
    }
}

impl<E: DeserializeOwned> ElementHandle<E> {
    /// Updates the element if this handle still locks it, and returns it as it is then; see
    /// [`ElementHandle::update`](crate::ElementHandle::update), which has the same errors.
    ///
    /// # Errors
    ///
    /// See [`DocumentError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn update(&self, update: impl Into<UpdateModifications>) -> Result<E, DocumentError> {
        block_on(self.handle.update(update))
    }
}

impl<E> Deref for ElementHandle<E> {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.view
    }
}

impl<E> fmt::Debug for ElementHandle<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}
