//! Locked documents.

use std::{fmt, future::Future};

use mongodb::{bson::Bson, options::UpdateModifications};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use super::{DocumentLocks, check::check_update};
use crate::{
    error::{DocumentError, ReleaseError},
    handle::{
        Held,
        count::One,
        own::Own as _,
        owned::OwnedHold,
        target::{AnyLock, CanFix, CanLimit, HasHolder, IsKnown, IsOne, Target},
    },
    store::read_as,
    truncated_debug::Brief,
    world::{Sealed, World},
};

/// A [document](crate::documents::DocumentLocks) of a collection of yours, read as a `T`.
///
/// [`View::name`](crate::View::name) is the `_id` as text.
pub struct Document<T> {
    pub(super) locks: DocumentLocks<T>,
    pub(super) id: Bson,
}

impl<T> Document<T> {
    pub(super) fn new(locks: DocumentLocks<T>, id: Bson) -> Self {
        Self { locks, id }
    }
}

impl<T> Sealed for Document<T> {}

impl<T> Target for Document<T> {
    type Held = Self;
    type Count = One;
    type Request = Self;
    type Own = OwnedHold;
    type Data = HeldDocument<T>;

    fn deleted(data: &HeldDocument<T>) -> Option<&Mutex<bool>> {
        Some(&data.deleted)
    }
}

impl<T> IsOne for Document<T> {}
impl<T> IsKnown for Document<T> {}
impl<T> HasHolder for Document<T> {}
impl<T> CanLimit for Document<T> {}
impl<T> CanFix for Document<T> {}

/// The data of a locked document.
#[expect(
    missing_debug_implementations,
    reason = "it has values of the user's, which may be megabytes"
)]
pub struct HeldDocument<T> {
    id: Bson,
    document: T,
    /// How often the document was claimed, this time included, if that is counted.
    attempt: Option<i64>,
    /// Whether this handle has deleted the document; locked while that is being decided.
    deleted: Mutex<bool>,
}

impl<T> HeldDocument<T> {
    pub(super) fn new(id: Bson, document: T, attempt: Option<i64>) -> Self {
        Self {
            id,
            document,
            attempt,
            deleted: Mutex::new(false),
        }
    }
}

/// # A locked document
///
/// Both [`update`](Self::update) and [`delete`](Self::delete) write under the lock: the server checks the lock in the
/// same atomic step.
impl<T, W: World> Held<Document<T>, W> {
    /// Returns the document as it was when it was locked, or right after.
    pub fn document(&self) -> &T {
        &self.data.document
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        &self.data.id
    }

    /// Returns how often the document was claimed, this time included: 1 for the first attempt. `None` unless it was
    /// claimed with [`max_attempts`](crate::Acquire::max_attempts).
    pub fn attempt(&self) -> Option<u32> {
        self.data.attempt.map(|attempt| attempt.try_into().unwrap_or(u32::MAX))
    }

    /// Deletes the document if this handle still locks it, and the lock with it: the handle is then released.
    ///
    /// # Errors
    ///
    /// [`DocumentError::Lost`] if the lock was lost before: nothing was deleted. [`DocumentError::InTransaction`] if a
    /// transaction is open that this lock [guards](crate::View::guard_transaction): nothing was deleted.
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
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "kind": "mail" }).await?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let event = events.claim(doc! { "kind": "mail" }).await?;
    /// event.delete().await?;
    /// # assert!(memory.find(doc! {}).await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn delete(&self) -> W::Call<impl Future<Output = Result<(), DocumentError>>> {
        W::call(async move {
            let mut deleted = self.data.deleted.lock().await;
            before_write(&self.own).await?;
            if self.own.session().delete(self.hold()).await? {
                *deleted = true;
                return Ok(());
            }
            Err(self.lost_it().await)
        })
    }

    /// Updates the document and releases its lock, in one write: the last step of a job, which a crash can't divide.
    ///
    /// `update` is as for [`update`](Self::update). The server makes it if this handle still locks the document, in the
    /// same atomic step. Where another client waits for the lock, or the client
    /// [keeps a history](crate::LockClientBuilder::history), two commands do the same. To delete the document instead,
    /// see [`delete`](Self::delete), which ends the lock as well.
    ///
    /// # Errors
    ///
    /// [`DocumentError::Invalid`] and [`DocumentError::InTransaction`] as for [`update`](Self::update): nothing was
    /// changed, and the lock is released. [`DocumentError::Lost`] if the lock was lost before: nothing was changed.
    /// [`DocumentError::Server`] if the server refused, or could not be reached or did not answer for the time of the
    /// lease, ten minutes at most: the document may have been changed. If an answer is lost before that, the write is
    /// sent again, which changes the document once at most, and the result says whether it did.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was polled, it goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "done": false }).await?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let event = events.claim(doc! { "done": false }).await?;
    /// event.update_and_release(doc! { "$set": { "done": true } }).await?;
    /// assert!(events.try_claim(doc! { "done": true }).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn update_and_release(
        self,
        update: impl Into<UpdateModifications>,
    ) -> W::Call<impl Future<Output = Result<(), DocumentError>>> {
        let (own, update) = (self.own, update.into());
        W::call(async move {
            let session = (**own.session()).clone();
            let place = session.store.in_place();
            place.map_or(Ok(()), |place| check_update(&update, place))?;
            before_write(&own).await?;
            session.spawn_for(finish(own, update)).await?
        })
    }

    /// Splits this into the handle of the lock alone, and the document.
    pub fn into_parts(self) -> (Held<AnyLock, W>, T) {
        let (lock, data) = self.into_lock();
        (lock, data.document)
    }

    /// Finds the reason after the server said that this handle no longer holds the lock.
    async fn lost_it(&self) -> DocumentError {
        self.own.session().give_up(self.hold()).await.into()
    }
}

impl<T: DeserializeOwned, W: World> Held<Document<T>, W> {
    /// Updates the document if this handle still locks it, and returns it as it is then.
    ///
    /// `update` is a document of update operators or an aggregation pipeline; it must leave the lock's field alone, and
    /// the fields of the other locks that this client has in the same documents
    /// ([`DocumentLocks::field`](crate::documents::DocumentLocks::field)). The positional `$` is refused, as it stands
    /// for a place found by the filter, which is the library's; `$[]` and pipelines work.
    ///
    /// # Errors
    ///
    /// [`DocumentError::Invalid`] if the update would touch the lock, replaces the document, or can't be written as
    /// BSON: nothing was sent.
    /// [`DocumentError::Lost`] if the lock was lost before: nothing was changed. [`DocumentError::InTransaction`] if a
    /// transaction is open that this lock [guards](crate::View::guard_transaction): nothing was changed; within the
    /// transaction, write to the document with its session ([`Fence::update_one`](crate::fence::Fence::update_one) with
    /// [`session`](crate::fence::FencedWrite::session) does so). [`DocumentError::Server`] if the server could not be
    /// reached or did not answer for the time of the lease, ten minutes at most (the document may have been changed, or
    /// may still be: the update is not repeated beyond the driver's own retry) or refused.
    /// [`DocumentError::Unreadable`] if the document was changed but can't be read as a `T`.
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
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "done": false }).await?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let event = events.claim(doc! { "done": false }).await?;
    /// let updated = event.update(doc! { "$set": { "done": true }, "$inc": { "tries": 1 } }).await?;
    /// assert!(updated.get_bool("done")?);
    /// # Ok(()) }
    /// ```
    pub fn update(
        &self,
        update: impl Into<UpdateModifications>,
    ) -> W::Call<impl Future<Output = Result<T, DocumentError>>> {
        let update = update.into();
        W::call(async move {
            let place = self.own.session().store.in_place();
            place.map_or(Ok(()), |place| check_update(&update, place))?;
            before_write(&self.own).await?;
            match self.own.session().change(self.hold(), update).await? {
                Some(document) => read_as(&document).map_err(|cause| DocumentError::Unreadable { cause }),
                None => Err(self.lost_it().await),
            }
        })
    }
}

/// Updates a document and releases its lock.
async fn finish(own: OwnedHold, update: UpdateModifications) -> Result<(), DocumentError> {
    let (session, hold) = (own.session(), own.hold());
    let keeps_history = session.config.record().most > 0;
    if !keeps_history && session.change_and_release(hold, update.clone()).await? {
        return Ok(());
    }
    session.verified(hold).await?;
    match session.change(hold, update).await? {
        Some(_) => match own.release().await {
            Ok(_) => Ok(()),
            Err(ReleaseError::Server { error, .. }) => Err(error.into()),
        },
        None => Err(session.give_up(hold).await.into()),
    }
}

/// Checks that the lock is held as far as is known, and that no transaction is open that it guards: the server would
/// carry out the write when that transaction has ended, however long after the caller gave up.
pub(super) async fn before_write(own: &OwnedHold) -> Result<(), DocumentError> {
    own.check()?;
    match own.session().is_in_open_transaction(own.hold()).await? {
        true => Err(DocumentError::InTransaction),
        false => Ok(()),
    }
}

impl<T> Clone for Document<T> {
    fn clone(&self) -> Self {
        Self::new(self.locks.clone(), self.id.clone())
    }
}

impl<T> fmt::Debug for Document<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("locks", &self.locks)
            .field("id", &Brief(&self.id))
            .finish_non_exhaustive()
    }
}
