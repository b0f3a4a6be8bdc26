//! Handles of locked documents.

use std::{fmt, ops::Deref, time::Duration};

use mongodb::{bson::Bson, options::UpdateModifications};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::check::check_update;
use crate::{
    error::{DocumentError, ReleaseError, RenewError},
    handle::{LockHandle, LockView, Released},
    session::{UserHandle, documents::DocumentSession},
    status::{Lost, LostReason},
    store::read_as,
    telemetry::Granted,
};

/// A locked document.
///
/// It dereferences to a [`LockView`], which has the fencing token and reports a loss; [`LockView::name`] is the `_id`
/// as text. It is renewed in the background for as long as the handle lives, and dropping it releases the document.
///
/// # Guarantees
///
/// Those of a [`LockHandle`](crate::LockHandle); and [`update`](Self::update) and [`delete`](Self::delete) write under
/// the lock: the server checks the lock in the same atomic step.
#[must_use = "the document is released when the handle is dropped"]
pub struct DocumentHandle<T> {
    session: UserHandle<DocumentSession>,
    handle: LockHandle,
    id: Bson,
    document: T,
    /// How often the document was claimed, this time included, if that is counted.
    attempt: Option<i64>,
    /// Whether this handle has deleted the document; locked while that is being decided.
    deleted: Mutex<bool>,
}

impl<T> DocumentHandle<T> {
    pub(super) fn new(session: UserHandle<DocumentSession>, handle: LockHandle, id: Bson, document: T) -> Self {
        Self {
            session,
            handle,
            id,
            document,
            attempt: None,
            deleted: Mutex::new(false),
        }
    }

    pub(super) fn with_attempt(self, attempt: Option<i64>) -> Self {
        Self { attempt, ..self }
    }

    /// Waits until the lock is lost, other than by a deletion through this handle.
    pub(super) async fn lost_otherwise(&self) -> Lost {
        let lost = self.lost().await;
        if lost == LostReason::Released && *self.deleted.lock().await {
            std::future::pending::<()>().await;
        }
        lost
    }

    /// Returns the loss if the lock is lost, other than by a deletion through this handle.
    #[cfg(feature = "sync")]
    pub(crate) fn check_otherwise(&self) -> Result<(), Lost> {
        let deleted = self.deleted.try_lock().is_ok_and(|deleted| *deleted);
        match self.check() {
            Err(lost) if deleted && lost == LostReason::Released => Ok(()),
            checked => checked,
        }
    }

    pub(super) fn granted(&self) -> Granted<'_> {
        self.handle.hold().granted()
    }

    /// Returns the document as it was when it was locked, or right after.
    pub fn document(&self) -> &T {
        &self.document
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        &self.id
    }

    /// Returns how often the document was claimed, this time included: 1 for the first attempt. `None` unless it was
    /// claimed with [`max_attempts`](crate::Claim::max_attempts).
    pub fn attempt(&self) -> Option<u32> {
        self.attempt.map(|attempt| attempt.try_into().unwrap_or(u32::MAX))
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
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: the document is
    /// still locked, and renewals go on in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the renewal goes on in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(events: watchlock::DocumentLocks<mongodb::bson::Document>) -> Result<(), Box<dyn std::error::Error>> {
    /// let event = events.claim(mongodb::bson::doc! { "done": false }).await?;
    /// println!("ours for {:?} at least", event.renew().await?);
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self) -> Result<Duration, RenewError> {
        self.handle.renew().await
    }

    /// Deletes the document if this handle still locks it, and the lock with it: the handle is then released.
    ///
    /// # Errors
    ///
    /// [`DocumentError::Lost`] if the lock was lost before: nothing was deleted. [`DocumentError::InTransaction`] if a
    /// transaction is open that this lock [guards](LockView::guard_transaction): nothing was deleted.
    /// [`DocumentError::Server`] if the server could not be reached or did not answer for the time of the lease, ten
    /// minutes at most (the document may have been deleted), or refused.
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
    /// # memory.insert_one(doc! { "kind": "mail" })?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let event = events.claim(doc! { "kind": "mail" }).await?;
    /// event.delete().await?;
    /// # assert!(memory.find(doc! {})?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn delete(&self) -> Result<(), DocumentError> {
        let mut deleted = self.deleted.lock().await;
        before_write(&self.session, &self.handle).await?;
        if self.session.delete(self.handle.hold()).await? {
            *deleted = true;
            return Ok(());
        }
        Err(self.lost_it().await)
    }

    /// Releases the document: its lock is handed to the next in the queue, or is free.
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
    /// See [`DocumentLocks`](crate::DocumentLocks).
    pub async fn release(self) -> Result<Released, ReleaseError> {
        self.handle.release().await
    }

    /// Splits this into the handle of the lock alone, and the document.
    pub fn into_parts(self) -> (LockHandle, T) {
        (self.handle, self.document)
    }

    /// Finds the reason after the server said that this handle no longer holds the lock.
    async fn lost_it(&self) -> DocumentError {
        self.session.give_up(self.handle.hold()).await.into()
    }
}

impl<T: DeserializeOwned> DocumentHandle<T> {
    /// Updates the document if this handle still locks it, and returns it as it is then.
    ///
    /// `update` is a document of update operators or an aggregation pipeline; it must leave the lock's field alone, and
    /// the fields of the other locks that this client has in the same documents
    /// ([`DocumentLocks::field`](crate::DocumentLocks::field)). The positional `$` is refused, as it stands for a place
    /// found by the filter, which is the library's; `$[]` and pipelines work.
    ///
    /// # Errors
    ///
    /// [`DocumentError::Invalid`] if the update would touch the lock, replaces the document, or can't be written as BSON:
    /// nothing was sent.
    /// [`DocumentError::Lost`] if the lock was lost before: nothing was changed. [`DocumentError::InTransaction`] if a
    /// transaction is open that this lock [guards](LockView::guard_transaction): nothing was changed; within the
    /// transaction, write to the document with its session ([`Fence::update_one`](crate::Fence::update_one) with
    /// [`session`](crate::FencedUpdate::session) does so). [`DocumentError::Server`] if the server could not be reached
    /// or did not answer for the time of the lease, ten minutes at most (the document may have been changed, or may
    /// still be: the update is not repeated beyond the driver's own retry) or refused. [`DocumentError::Unreadable`] if
    /// the document was changed but can't be read as a `T`.
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
    /// # memory.insert_one(doc! { "done": false })?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let event = events.claim(doc! { "done": false }).await?;
    /// let updated = event.update(doc! { "$set": { "done": true }, "$inc": { "tries": 1 } }).await?;
    /// assert!(updated.get_bool("done")?);
    /// # Ok(()) }
    /// ```
    pub async fn update(&self, update: impl Into<UpdateModifications>) -> Result<T, DocumentError> {
        let update = update.into();
        check_update(&update, self.session.documents().place())?;
        before_write(&self.session, &self.handle).await?;
        match self.session.change(self.handle.hold(), update).await? {
            Some(document) => read_as(&document).map_err(|cause| DocumentError::Unreadable { cause }),
            None => Err(self.lost_it().await),
        }
    }
}

/// Checks that the lock is held as far as is known, and that no transaction is open that it guards: the server would
/// carry out the write when that transaction has ended, however long after the caller gave up.
pub(super) async fn before_write(session: &DocumentSession, handle: &LockHandle) -> Result<(), DocumentError> {
    handle.check()?;
    match session.is_in_open_transaction(handle.hold()).await? {
        true => Err(DocumentError::InTransaction),
        false => Ok(()),
    }
}

impl<T> Deref for DocumentHandle<T> {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.handle
    }
}

impl<T> fmt::Debug for DocumentHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentHandle")
            .field("id", &self.id)
            .field("token", &self.token().as_i64())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
