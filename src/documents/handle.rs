//! Locked documents, and locked elements of them.

use std::{future::Future, marker::PhantomData, sync::Arc};

use mongodb::{bson::Bson, options::UpdateModifications};
use serde::de::DeserializeOwned;

use super::{ItemLocks, check, elements::ElementPlace};
use crate::{
    error::{HoldError, InvalidInput},
    handle::{
        Held,
        owned::OwnedHold,
        target::{AnyLock, IsOne, One, Target},
    },
    store::read_as,
    world::{Sealed, World},
};

/// A [`Document`] or an [`Element`].
pub trait Item:
    IsOne + Target<Count = One, Request = (ItemLocks<Self>, Bson), Data = HeldItem<Self::Value>> + Sized
{
    /// The type as which it is read.
    type Value;
}

/// A [document](crate::documents::DocumentLocks) of a collection of yours, read as a `T`.
///
/// [`View::name`](crate::View::name) is the `_id` as text.
#[derive(Clone, Copy, Debug)]
pub struct Document<T>(PhantomData<fn() -> T>);

/// An [element](crate::documents::ElementLocks) of an array in a document of yours, read as an `E`.
///
/// [`View::name`](crate::View::name) is the `_id` of the document and the key as text. The lock is that of the key: if
/// the element is removed meanwhile, the lock stays held until it is released.
#[derive(Clone, Copy, Debug)]
pub struct Element<E>(PhantomData<fn() -> E>);

macro_rules! items {
    ($($item:ident),*) => {$(
        impl<V> Sealed for $item<V> {}

        impl<V> Target for $item<V> {
            type Held = Self;
            type Count = One;
            type Request = (ItemLocks<Self>, Bson);
            type Data = HeldItem<V>;
        }

        impl<V> Item for $item<V> {
            type Value = V;
        }

        impl<V> IsOne for $item<V> {}
    )*};
}

items!(Document, Element);

/// The data of a locked document or element.
#[expect(
    missing_debug_implementations,
    reason = "it has values of the user's, which may be megabytes"
)]
pub struct HeldItem<V> {
    pub(super) id: Bson,
    pub(super) value: V,
    /// How often the document was claimed, this time included, if that is counted.
    pub(super) attempt: Option<i64>,
    /// `None`: a document.
    pub(super) element: Option<Arc<ElementPlace>>,
}

/// # A locked document
///
/// Both [`update`](Self::update) and [`delete`](Self::delete) write under the lock: the server checks the lock in the
/// same atomic step.
impl<T, W: World> Held<Document<T>, W> {
    /// Returns the document as it was when it was locked, or right after.
    pub fn document(&self) -> &T {
        &self.data.value
    }

    /// Returns how often the document was claimed, this time included: 1 for the first attempt. `None` unless it was
    /// claimed with [`max_attempts`](crate::Acquire::max_attempts).
    pub fn attempt(&self) -> Option<u32> {
        self.data.attempt.map(|attempt| attempt.try_into().unwrap_or(u32::MAX))
    }

    /// Deletes the document if this handle still locks it, and the lock with it: the handle is then released. All else
    /// is as for [`update`](Self::update), which has an example; after a [`HoldError::Server`] it may have been
    /// deleted.
    pub fn delete(&self) -> W::Call<impl Future<Output = Result<(), HoldError>>> {
        W::call(async move {
            before_write(&self.own).await?;
            match self.own.session().delete(self.hold()).await? {
                true => Ok(()),
                false => Err(self.own.session().give_up(self.hold()).await.into()),
            }
        })
    }

    /// Updates the document and releases its lock, in one write: the last step of a job, which a crash can't divide.
    /// [`update`](Self::update) has an example.
    ///
    /// The server makes the [`update`](Self::update) if this handle still locks the document, in the same atomic step.
    /// Where another client waits for the lock, or the client [keeps a history](crate::LockClientBuilder::history), two
    /// commands do the same. [`delete`](Self::delete) ends the lock as well.
    ///
    /// Errors are those of [`update`](Self::update), but the handle is gone in any case. If the answer to the one write
    /// is lost, it is sent again for as long as it would be waited for: that changes the document once at most, and the
    /// result mostly says whether it did. Of two commands, the first is sent as [`update`](Self::update) is: after a
    /// [`HoldError::Server`] the document may have been changed. If the future is dropped after it was polled, it goes
    /// on in the background.
    pub fn update_and_release(
        self,
        update: impl Into<UpdateModifications>,
    ) -> W::Call<impl Future<Output = Result<(), HoldError>>> {
        let (own, update) = (self.own, update.into());
        W::call(async move {
            let session = (**own.session()).clone();
            check_update(&own, None, &update)?;
            before_write(&own).await?;
            session.spawn_for(finish(own, update)).await?
        })
    }
}

/// # A locked element
impl<E, W: World> Held<Element<E>, W> {
    /// Returns the element as it was when it was locked, or right after.
    pub fn element(&self) -> &E {
        &self.data.value
    }
}

/// # A locked document or element
impl<K: Item, W: World> Held<K, W> {
    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        &self.data.id
    }

    /// Splits this into the handle of the lock alone, and the document or element.
    pub fn into_parts(self) -> (Held<AnyLock, W>, K::Value) {
        let (lock, data) = self.into_lock();
        (lock, data.value)
    }

    /// Updates the document or element if this handle still locks it, and returns it as it is then.
    ///
    /// - For a document, `update` is a document of update operators or an aggregation pipeline; it must leave the
    ///   fields of all locks that this client has in the same documents alone. The positional `$` is refused, as it
    ///   stands for a place found by the filter, which is the library's; `$[]` and pipelines work.
    /// - For an element, it is a document of update operators whose paths lead from the element: `{ "$set": { "picked":
    ///   true } }`. It must leave the fields of the key alone. Pipelines and `$rename` are refused, and so are paths
    ///   with `$`.
    ///
    /// # Errors
    ///
    /// - [`HoldError::Invalid`] for an update that is refused or can't be written as BSON: nothing was sent.
    /// - [`HoldError::Lost`] if the lock was lost before: nothing was changed.
    /// - [`HoldError::NoElement`] if the element was removed, and [`HoldError::AmbiguousElement`] if others have its
    ///   key by now: nothing was changed, and the lock is held.
    /// - [`HoldError::InTransaction`] if a transaction that this lock [guards](crate::View::guard_transaction) may
    ///   still be open: nothing was changed; within the transaction, write with its
    ///   [session](crate::fence::FencedWrite::session) through the handle's [fence](crate::View::fence).
    /// - [`HoldError::Server`] if the server refused, could not be reached, or did not answer for the time of the
    ///   lease, ten minutes at most: it may have been changed, or may still be, as the update is not repeated beyond
    ///   the driver's own retry.
    /// - [`HoldError::Unreadable`] if it was changed but can't be read as its type.
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
    /// event.update_and_release(doc! { "$set": { "done": 2 } }).await?;
    /// events.claim(doc! { "done": 2 }).await?.delete().await?;
    ///
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x", "n": 1 }, { "sku": "y", "n": 1 }] }).await?;
    /// let line = events.element::<Document>("lines", doc! { "sku": "y" }).acquire(7).await?;
    /// let updated = line.update(doc! { "$inc": { "n": 1 } }).await?;
    /// assert_eq!(updated, doc! { "sku": "y", "n": 2 });
    /// # Ok(()) }
    /// ```
    pub fn update(
        &self,
        update: impl Into<UpdateModifications>,
    ) -> W::Call<impl Future<Output = Result<K::Value, HoldError>>>
    where
        K::Value: DeserializeOwned,
    {
        let mut update = update.into();
        W::call(async move {
            let element = self.data.element.as_ref();
            check_update(&self.own, element, &update)?;
            before_write(&self.own).await?;
            let (session, hold) = (self.own.session(), self.hold());
            let mut again = element.map(|_| update.clone());
            loop {
                if let Some(changed) = session.change(hold, update).await? {
                    return read_as(&changed).map_err(|cause| HoldError::Unreadable { cause });
                }
                if element.is_some() {
                    self.check_after_refusal().await?;
                }
                // The element is there and held: it was removed and added again in between, or the lease is over by the
                // server's clock.
                match again.take() {
                    Some(once_more) => update = once_more,
                    None => return Err(session.give_up(hold).await.into()),
                }
            }
        })
    }

    /// Finds the reason after the server said that this handle no longer holds the lock, or that there is not exactly
    /// one such element; there may be none any more.
    async fn check_after_refusal(&self) -> Result<(), HoldError> {
        self.own.session().verified(self.hold()).await?;
        match self.own.session().fetch(self.name()).await?.len() {
            0 => Err(HoldError::NoElement),
            1 => Ok(()),
            matched => Err(HoldError::AmbiguousElement { matched }),
        }
    }
}

fn check_update(
    own: &OwnedHold,
    element: Option<&Arc<ElementPlace>>,
    update: &UpdateModifications,
) -> Result<(), InvalidInput> {
    match (element, own.session().store.in_place()) {
        (Some(element), _) => check::check_update_of_element(update, &element.array, &element.key),
        (None, Some(place)) => check::check_update(update, place),
        (None, None) => Ok(()),
    }
}

/// Updates a document and releases its lock.
async fn finish(own: OwnedHold, update: UpdateModifications) -> Result<(), HoldError> {
    let (session, hold) = (own.session(), own.hold());
    let keeps_history = session.config.history > 0;
    if !keeps_history && session.change_and_release(hold, update.clone()).await? {
        return Ok(());
    }
    session.verified(hold).await?;
    match session.change(hold, update).await? {
        Some(_) => Ok(own.leave().await.map(drop)?),
        None => Err(session.give_up(hold).await.into()),
    }
}

/// Checks that the lock is held as far as is known, and that no transaction is open that it guards: the server would
/// carry out the write when that transaction has ended, however long after the caller gave up.
async fn before_write(own: &OwnedHold) -> Result<(), HoldError> {
    own.check()?;
    let asked = own.session().is_in_open_transaction(own.hold()).await;
    // It may take as long as the hold was safe.
    own.check()?;
    match asked? {
        true => Err(HoldError::InTransaction),
        false => Ok(()),
    }
}
