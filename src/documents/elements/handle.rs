//! Handles of locked elements.

use std::{fmt, ops::Deref, time::Duration};

use mongodb::{bson::Bson, options::UpdateModifications};
use serde::de::DeserializeOwned;

use super::update::rewritten;
use crate::{
    documents::handle::before_write,
    error::{DocumentError, ReleaseError, RenewError},
    handle::{LockHandle, LockView, Released},
    session::{UserHandle, documents::DocumentSession},
    store::{element::ElementKey, read_as},
};

/// Maximum tries of an update that was not done, though right after each the lock is held and the element is there: it
/// was removed and added again in between, or the lease is over by the server's clock.
const UPDATE_TRIES: u32 = 2;

/// A locked element of an array.
///
/// It dereferences to a [`LockView`], which has the fencing token and reports a loss; [`LockView::name`] is the `_id`
/// of the document and the key as text. It is renewed in the background for as long as the handle lives, and dropping
/// it releases the element.
///
/// # Guarantees
///
/// Those of a [`LockHandle`](crate::LockHandle); and [`update`](Self::update) writes under the lock: the server checks
/// the lock in the same atomic step.
///
/// The lock is that of the key. If the element is removed meanwhile, the lock stays held until it is released.
#[must_use = "the element is released when the handle is dropped"]
pub struct ElementHandle<E> {
    session: UserHandle<DocumentSession>,
    handle: LockHandle,
    key: ElementKey,
    /// The path of the array.
    array: String,
    id: Bson,
    element: E,
}

impl<E> ElementHandle<E> {
    pub(super) fn new(
        session: UserHandle<DocumentSession>,
        handle: LockHandle,
        key: ElementKey,
        array: String,
        id: Bson,
        element: E,
    ) -> Self {
        Self {
            session,
            handle,
            key,
            array,
            id,
            element,
        }
    }

    /// Returns the element as it was when it was locked, or right after.
    pub fn element(&self) -> &E {
        &self.element
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        &self.id
    }

    /// Returns a view of the lock for the code that works under it; see [`LockHandle::view`](crate::LockHandle::view).
    pub fn view(&self) -> LockView {
        self.handle.view()
    }

    /// Renews the lock now, in addition to the renewals in the background, and returns for how long it is safe; see
    /// [`LockHandle::renew`](crate::LockHandle::renew).
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: the element is
    /// still locked, and renewals go on in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the renewal goes on in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(lines: watchlock::ElementLocks<mongodb::bson::Document>) -> Result<(), Box<dyn std::error::Error>> {
    /// let line = lines.acquire("order-7").await?;
    /// println!("ours for {:?} at least", line.renew().await?);
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self) -> Result<Duration, RenewError> {
        self.handle.renew().await
    }

    /// Releases the element: its lock is handed to the next in the queue, or is free.
    ///
    /// # Errors
    ///
    /// Same as for [`LockHandle::release`](crate::LockHandle::release).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Examples
    ///
    /// See [`ElementLocks`](crate::ElementLocks).
    pub async fn release(self) -> Result<Released, ReleaseError> {
        self.handle.release().await
    }

    /// Splits this into the handle of the lock alone, and the element.
    pub fn into_parts(self) -> (LockHandle, E) {
        (self.handle, self.element)
    }
}

impl<E: DeserializeOwned> ElementHandle<E> {
    /// Updates the element if this handle still locks it, and returns it as it is then.
    ///
    /// `update` is a document of update operators, whose paths lead from the element: `{ "$set": { "picked": true } }`.
    /// It must leave the fields of the key alone. Pipelines and `$rename` are refused, and so are paths with `$`.
    ///
    /// # Errors
    ///
    /// [`DocumentError::Invalid`] if the update would change the key, or has no update operators: nothing was sent.
    /// [`DocumentError::Lost`] if the lock was lost before: nothing was changed. [`DocumentError::NoElement`] if the
    /// element was removed, and [`DocumentError::AmbiguousElement`] if others have its key by now: nothing was changed,
    /// and the lock is held. [`DocumentError::InTransaction`] if a transaction is open that this lock
    /// [guards](LockView::guard_transaction): nothing was changed. [`DocumentError::Server`] if the server could not be
    /// reached or did not answer for the time of the lease, ten minutes at most (the element may have been changed, or
    /// may still be: the update is not repeated beyond the driver's own retry) or refused.
    /// [`DocumentError::Unreadable`] if the element was changed but can't be read as an `E`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x", "n": 1 }, { "sku": "y", "n": 1 }] })?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "y" }).acquire(7).await?;
    /// let updated = line.update(doc! { "$inc": { "n": 1 } }).await?;
    /// assert_eq!(updated, doc! { "sku": "y", "n": 2 });
    /// # Ok(()) }
    /// ```
    pub async fn update(&self, update: impl Into<UpdateModifications>) -> Result<E, DocumentError> {
        let update = rewritten(&update.into(), &self.array, &self.key)?;
        before_write(&self.session, &self.handle).await?;
        let hold = self.handle.hold();
        for _ in 0..UPDATE_TRIES {
            if let Some(element) = self.session.change_element(hold, update.clone()).await? {
                return read_as(&element).map_err(|cause| DocumentError::Unreadable { cause });
            }
            self.check_after_refusal().await?;
        }
        // By the server's clock, the lease is over.
        Err(self.session.give_up(hold).await.into())
    }

    /// Finds the reason after the server said that this handle no longer holds the lock, or that there is not exactly
    /// one such element; there may be none any more.
    async fn check_after_refusal(&self) -> Result<(), DocumentError> {
        self.session.verified(self.handle.hold()).await?;
        let found = self.session.elements(self.handle.name()).await?;
        match found.map_or(0, |found| found.len()) {
            0 => Err(DocumentError::NoElement),
            1 => Ok(()),
            matched => Err(DocumentError::AmbiguousElement { matched }),
        }
    }
}

impl<E> Deref for ElementHandle<E> {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.handle
    }
}

impl<E> fmt::Debug for ElementHandle<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElementHandle")
            .field("id", &self.id)
            .field("key", &self.key.code())
            .field("token", &self.token().as_i64())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
