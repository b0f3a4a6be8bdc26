//! Locked elements.

use std::{fmt, future::Future};

use mongodb::{bson::Bson, options::UpdateModifications};
use serde::de::DeserializeOwned;

use super::{ElementLocks, update::check_update};
use crate::{
    documents::{action::acquire_and_read, handle::before_write},
    error::{AcquireError, DocumentError},
    handle::{
        Held,
        count::One,
        owned::OwnedHold,
        target::{AnyLock, CanFix, CanLimit, HasHolder, IsKnown, IsOne, Target},
    },
    locks::{
        acquire::{Ask, Got},
        options::Options,
    },
    store::{element::ElementKey, read_as},
    truncated_debug::Brief,
    waitlist::Patience,
    world::{Sealed, World},
};

/// Maximum tries of an update that was not done, though right after each the lock is held and the element is there: it
/// was removed and added again in between, or the lease is over by the server's clock.
const UPDATE_TRIES: u32 = 2;

/// An [element](crate::documents::ElementLocks) of an array in a document of yours, read as an `E`.
///
/// [`View::name`](crate::View::name) is the `_id` of the document and the key as text. The lock is that of the key: if
/// the element is removed meanwhile, the lock stays held until it is released.
pub struct Element<E> {
    locks: ElementLocks<E>,
    id: Bson,
}

impl<E> Element<E> {
    pub(super) fn new(locks: ElementLocks<E>, id: Bson) -> Self {
        Self { locks, id }
    }
}

impl<E> Sealed for Element<E> {}

impl<E> Target for Element<E> {
    type Held = Self;
    type Count = One;
    type Request = Self;
    type Own = OwnedHold;
    type Data = HeldElement<E>;
}

impl<E> IsOne for Element<E> {}
impl<E> IsKnown for Element<E> {}
impl<E> HasHolder for Element<E> {}
impl<E> CanLimit for Element<E> {}
impl<E> CanFix for Element<E> {}

/// The data of a locked element.
#[expect(
    missing_debug_implementations,
    reason = "it has values of the user's, which may be megabytes"
)]
pub struct HeldElement<E> {
    key: ElementKey,
    array: String,
    id: Bson,
    element: E,
}

impl<E: DeserializeOwned + Send + Sync + 'static> Ask for Element<E> {
    async fn ask(request: Self, options: Options, patience: Patience) -> Result<Got<Self>, AcquireError> {
        let Self { locks, id } = request;
        let (session, name) = locks.place(&id)?;
        let array = locks.array.clone();
        let acquired = acquire_and_read(session, name.clone(), options, patience).await;
        let (own, found) = acquired.map_err(|error| locks.missing(error))?;
        let element = match &found[..] {
            [] => return Err(AcquireError::NoElement { name, array }),
            [element] => read_as(element).map_err(|cause| AcquireError::Unreadable { name, cause })?,
            found => {
                return Err(AcquireError::AmbiguousElement {
                    name,
                    array,
                    matched: found.len(),
                });
            }
        };
        let data = HeldElement {
            key: locks.session()?.1.clone(),
            array,
            id,
            element,
        };
        Ok((own, data))
    }
}

impl<E> ElementLocks<E> {
    /// Returns the error for an element where one for a document was found: the server was asked for both at once.
    fn missing(&self, error: AcquireError) -> AcquireError {
        match error {
            AcquireError::NoDocument { name } => AcquireError::NoElement {
                name,
                array: self.array.clone(),
            },
            error => error,
        }
    }
}

/// # A locked element
///
/// [`update`](Self::update) writes under the lock: the server checks the lock in the same atomic step.
impl<E, W: World> Held<Element<E>, W> {
    /// Returns the element as it was when it was locked, or right after.
    pub fn element(&self) -> &E {
        &self.data.element
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> &Bson {
        &self.data.id
    }

    /// Splits this into the handle of the lock alone, and the element.
    pub fn into_parts(self) -> (Held<AnyLock, W>, E) {
        let (lock, data) = self.into_lock();
        (lock, data.element)
    }
}

impl<E: DeserializeOwned, W: World> Held<Element<E>, W> {
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
    /// [guards](crate::View::guard_transaction): nothing was changed. [`DocumentError::Server`] if the server could not
    /// be reached or did not answer for the time of the lease, ten minutes at most (the element may have been changed,
    /// or may still be: the update is not repeated beyond the driver's own retry) or refused.
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
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x", "n": 1 }, { "sku": "y", "n": 1 }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "y" }).acquire(7).await?;
    /// let updated = line.update(doc! { "$inc": { "n": 1 } }).await?;
    /// assert_eq!(updated, doc! { "sku": "y", "n": 2 });
    /// # Ok(()) }
    /// ```
    pub fn update(
        &self,
        update: impl Into<UpdateModifications>,
    ) -> W::Call<impl Future<Output = Result<E, DocumentError>>> {
        let update = update.into();
        W::call(async move {
            check_update(&update, &self.data.array, &self.data.key)?;
            before_write(&self.own).await?;
            let (session, hold) = (self.own.session(), self.hold());
            for _ in 0..UPDATE_TRIES {
                if let Some(element) = session.change(hold, update.clone()).await? {
                    return read_as(&element).map_err(|cause| DocumentError::Unreadable { cause });
                }
                self.check_after_refusal().await?;
            }
            // By the server's clock, the lease is over.
            Err(session.give_up(hold).await.into())
        })
    }

    /// Finds the reason after the server said that this handle no longer holds the lock, or that there is not exactly
    /// one such element; there may be none any more.
    async fn check_after_refusal(&self) -> Result<(), DocumentError> {
        self.own.session().verified(self.hold()).await?;
        match self.own.session().fetch(self.name()).await?.len() {
            0 => Err(DocumentError::NoElement),
            1 => Ok(()),
            matched => Err(DocumentError::AmbiguousElement { matched }),
        }
    }
}

impl<E> Clone for Element<E> {
    fn clone(&self) -> Self {
        Self::new(self.locks.clone(), self.id.clone())
    }
}

impl<E> fmt::Debug for Element<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Element")
            .field("locks", &self.locks)
            .field("id", &Brief(&self.id))
            .finish_non_exhaustive()
    }
}
