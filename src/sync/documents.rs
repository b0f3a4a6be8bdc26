//! Locks in the documents of the user's own collection.

use std::{fmt, ops::Deref, time::Duration};

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};
use serde::de::DeserializeOwned;

use super::{Action, AllLockEvents, ElementLocks, LockEvents, LockHandle, LockView, block_on, enter};
use crate::{
    documents::{AcquireDocument, Claim, TryAcquireDocument, TryClaim},
    error::{DocumentError, OperateError, ReleaseError, RenewError},
    handle::Released,
    inspect::LockInfo,
    operate::list::List,
    token::FencingToken,
};

/// Locks for the documents of a collection of yours, in place: [`watchlock::DocumentLocks`] for threads.
///
/// [`watchlock::DocumentLocks`]: crate::DocumentLocks
///
/// # Examples
///
/// ```no_run
/// # fn example(client: mongodb::Client, locks: watchlock::sync::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// use mongodb::bson::{Document, doc};
///
/// let events = locks.documents(client.database("app").collection::<Document>("events"));
/// loop {
///     let event = events.claim(doc! { "done": false }).sort(doc! { "created": 1 }).run()?;
///     println!("processing {}", event.document());
///     event.update(doc! { "$set": { "done": true } })?;
///     event.release()?;
/// }
/// # }
/// ```
pub struct DocumentLocks<T> {
    documents: crate::DocumentLocks<T>,
}

impl<T> DocumentLocks<T> {
    pub(super) fn new(documents: crate::DocumentLocks<T>) -> Self {
        Self { documents }
    }

    /// Sets the place of the locks in the documents; see [`DocumentLocks::field`](crate::DocumentLocks::field).
    #[must_use = "the locks under another field are returned"]
    pub fn field(self, path: impl Into<String>) -> Self {
        Self::new(self.documents.field(path))
    }

    /// Acquires the lock of the document with this `_id`, waiting for its turn. [`run`](Action::run) the returned
    /// action.
    pub fn acquire(&self, id: impl Into<Bson>) -> Action<AcquireDocument<T>> {
        Action::new(self.documents.acquire(id))
    }

    /// Acquires the lock of the document with this `_id` if it is free and nobody waits for it.
    /// [`run`](Action::run) the returned action.
    pub fn try_acquire(&self, id: impl Into<Bson>) -> Action<TryAcquireDocument<T>> {
        Action::new(self.documents.try_acquire(id))
    }

    /// Locks any free document that matches the filter, and waits until there is one. [`run`](Action::run) the returned
    /// action.
    pub fn claim(&self, filter: Document) -> Action<Claim<T>> {
        Action::new(self.documents.claim(filter))
    }

    /// Locks any free document that matches the filter. [`run`](Action::run) the returned action.
    pub fn try_claim(&self, filter: Document) -> Action<TryClaim<T>> {
        Action::new(self.documents.try_claim(filter))
    }

    /// Returns locks for one element of an array of each document, by its key; see
    /// [`DocumentLocks::element`](crate::DocumentLocks::element).
    pub fn element<E>(&self, array: impl Into<String>, key: Document) -> ElementLocks<E> {
        ElementLocks::new(self.documents.element(array, key))
    }

    /// Returns the holders and waiters of the lock of the document with this `_id`; see
    /// [`DocumentLocks::inspect`](crate::DocumentLocks::inspect).
    ///
    /// # Errors
    ///
    /// If the `_id` or the field is out of bounds, the server can't be reached, or the field is not a lock.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn inspect(&self, id: impl Into<Bson>) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.documents.inspect(id))
    }

    /// Lists the locks in the documents, sorted by name; see [`DocumentLocks::list`](crate::DocumentLocks::list). Set
    /// conditions on the returned action, and [`run`](Action::run) it.
    pub fn list(&self) -> Action<List> {
        Action::new(self.documents.list())
    }

    /// Returns the events of the lock of the document with this `_id`, as they happen: an iterator that blocks until
    /// there is an event. See [`DocumentLocks::watch`](crate::DocumentLocks::watch), which has the same errors.
    pub fn watch(&self, id: impl Into<Bson>) -> LockEvents {
        let _entered = enter();
        LockEvents::new(self.documents.watch(id))
    }

    /// Returns the events of every lock in the documents, each with the name of its document. See
    /// [`DocumentLocks::watch_all`](crate::DocumentLocks::watch_all), which has the same errors.
    pub fn watch_all(&self) -> AllLockEvents {
        let _entered = enter();
        AllLockEvents::new(self.documents.watch_all())
    }

    /// Returns the name under which the document with this `_id` is listed and watched; see
    /// [`DocumentLocks::name_of`](crate::DocumentLocks::name_of).
    pub fn name_of(&self, id: impl Into<Bson>) -> String {
        self.documents.name_of(id)
    }

    /// Returns the `_id` of a name under which a document is listed or watched; see
    /// [`DocumentLocks::id_of`](crate::DocumentLocks::id_of).
    pub fn id_of(&self, name: &str) -> Option<Bson> {
        self.documents.id_of(name)
    }

    /// Takes the lock of the document with this `_id` away from the holder whose grant has this token; see
    /// [`DocumentLocks::break_holder`](crate::DocumentLocks::break_holder).
    ///
    /// # Errors
    ///
    /// Same as for [`break_lock`](Self::break_lock).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_holder(&self, id: impl Into<Bson>, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.documents.break_holder(id, token))
    }

    /// Forgets how often the document with this `_id` was claimed; see
    /// [`DocumentLocks::clear_attempts`](crate::DocumentLocks::clear_attempts).
    ///
    /// # Errors
    ///
    /// Same as for [`inspect`](Self::inspect). It is safe to try again.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn clear_attempts(&self, id: impl Into<Bson>) -> Result<bool, OperateError> {
        block_on(self.documents.clear_attempts(id))
    }

    /// Takes the lock of the document with this `_id` away from its holder; see
    /// [`DocumentLocks::break_lock`](crate::DocumentLocks::break_lock).
    ///
    /// # Errors
    ///
    /// Same as for [`inspect`](Self::inspect). If the server does not answer, the lock may have been broken.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_lock(&self, id: impl Into<Bson>) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.documents.break_lock(id))
    }
}

impl<T> Clone for DocumentLocks<T> {
    fn clone(&self) -> Self {
        Self::new(self.documents.clone())
    }
}

impl<T> fmt::Debug for DocumentLocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.documents.fmt(f)
    }
}

/// A locked document: [`watchlock::DocumentHandle`] for threads. Dropping it releases the document in the background.
///
/// [`watchlock::DocumentHandle`]: crate::DocumentHandle
#[must_use = "the document is released when the handle is dropped"]
pub struct DocumentHandle<T> {
    handle: crate::DocumentHandle<T>,
    view: LockView,
}

impl<T> DocumentHandle<T> {
    pub(super) fn new(handle: crate::DocumentHandle<T>) -> Self {
        let view = LockView::new(handle.view());
        Self { handle, view }
    }

    /// Returns the same handle for async code.
    pub fn as_async(&self) -> &crate::DocumentHandle<T> {
        &self.handle
    }

    /// Returns the document as it was when it was locked, or right after.
    pub fn document(&self) -> &T {
        self.handle.document()
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        self.handle.id()
    }

    /// Returns how often the document was claimed, this time included; see
    /// [`DocumentHandle::attempt`](crate::DocumentHandle::attempt).
    pub fn attempt(&self) -> Option<u32> {
        self.handle.attempt()
    }

    /// Returns a view of the lock for the code that works under it.
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// Renews the lock now, and returns for how long it is safe; see
    /// [`DocumentHandle::renew`](crate::DocumentHandle::renew).
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: the document is
    /// still locked, and renewals go on in the background.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn renew(&self) -> Result<Duration, RenewError> {
        block_on(self.handle.renew())
    }

    /// Deletes the document if this handle still locks it; see
    /// [`DocumentHandle::delete`](crate::DocumentHandle::delete).
    ///
    /// # Errors
    ///
    /// [`DocumentError::Lost`] if the lock was lost before: nothing was deleted. [`DocumentError::Server`] if the
    /// server could not be reached (the document may have been deleted) or refused.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn delete(&self) -> Result<(), DocumentError> {
        block_on(self.handle.delete())
    }

    /// Releases the document, and blocks until it is done.
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

    /// Splits this into the handle of the lock alone, and the document.
    pub fn into_parts(self) -> (LockHandle, T) {
        let (handle, document) = self.handle.into_parts();
        (LockHandle::new(handle), document)
    }
}

impl<T: DeserializeOwned> DocumentHandle<T> {
    /// Updates the document if this handle still locks it, and returns it as it is then; see
    /// [`DocumentHandle::update`](crate::DocumentHandle::update), which has the same errors.
    ///
    /// # Errors
    ///
    /// See [`DocumentError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn update(&self, update: impl Into<UpdateModifications>) -> Result<T, DocumentError> {
        block_on(self.handle.update(update))
    }
}

impl<T> Deref for DocumentHandle<T> {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.view
    }
}

impl<T> fmt::Debug for DocumentHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}
