//! Locks of the elements of an array, in the documents of the user's own collection.

pub(super) mod handle;
mod update;

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    marker::PhantomData,
    sync::{Arc, MutexGuard, OnceLock, PoisonError},
};

use mongodb::bson::{Bson, Document};

use super::DocumentLocks;
use crate::{
    error::{InvalidInput, OperateError},
    input::{check_code, check_id, check_key, check_path, check_size},
    inspect::LockInfo,
    locks::{
        acquire::Acquire,
        patience::{Try, Wait},
    },
    operate::{events::Events, list::List, watch::LockEvent},
    session::{UserHandle, streams::observers::Scope},
    store::{
        LockLayout,
        element::{ElementKey, escaped},
        lock_layout::{element_name, elements_beside, overlap},
        name,
    },
    token::FencingToken,
    truncated_debug::Brief,
    wake_mode::WakeMode,
    world::{Async, World},
};
use handle::Element;

/// Locks for one element each of an array in the documents of a collection of yours, in place. Made by
/// [`DocumentLocks::element`].
///
/// An element is identified by its key: some of its fields, whose values no other element of the array has. Elements of
/// one document are locked independently of each other, and of the [whole document](DocumentLocks::acquire). `E` is the
/// type of the elements.
///
/// The lock of an element is stored beside the array, as elements move when others are removed: in the field
/// `watchlock_elements`, by the path of the array and the key. With [`DocumentLocks::field`] that field is named after
/// the one that is set, with `_elements` at its end. Locks that nobody has used for the client's
/// [retention](crate::LockClientBuilder::retention) are removed when the next element of the document is locked.
///
/// All locks that a client makes for the elements of one array share one session, no matter which keys they have: one
/// change stream on the collection, and one heartbeat for all holds. The session lasts as long as the [`DocumentLocks`]
/// or a handle does.
///
/// # Guarantees
///
/// - One valid [handle](crate::Held) for an element at a time, with the guarantees of every [`Held`](crate::Held):
///   renewal, [`lost`](crate::View::lost), fencing tokens. The lock of a holder that died is free after its lease.
/// - [`acquire`](Self::acquire) is first come, first served.
/// - `update` of the handle is done while the lock is held or not at all, and changes that element only.
/// - A lock is that of a key: an element that is removed and added again has the same lock, and tokens go on rising.
///
/// Programs that lock the same elements must use the same fields for their keys: `{ sku: "x" }` and `{ line: 7 }` are
/// two locks, even if they are one element. Values are compared as the server compares them: numbers of any type by
/// their values. A collation of the collection makes no difference to that; give texts exactly as they are stored.
///
/// All locks of a document's elements are in the document: about 700 bytes for each that is or was in use, written with
/// every change of any of them. To lock thousands of elements of one document at a time, use a
/// [mutex](crate::LockClient::mutex) for each instead.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use mongodb::bson::{Document, doc};
///
/// #[derive(serde::Deserialize)]
/// struct Line {
///     price: i32,
/// }
///
/// # let memory = watchlock::testing::MemoryCollection::new();
/// # memory.insert_one(doc! { "_id": "order-7", "lines": [{ "sku": "x", "price": 3 }, { "sku": "y", "price": 5 }] }).await?;
/// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
/// let line = orders.element::<Line>("lines", doc! { "sku": "x" }).acquire("order-7").await?;
/// println!("picking something for {}", line.element().price);
/// line.update(doc! { "$set": { "picked": true } }).await?;
/// line.release().await?;
/// # assert_eq!(memory.find(doc! { "lines.picked": true }).await?.len(), 1);
/// # Ok(()) }
/// ```
pub struct ElementLocks<E, W: World = Async> {
    /// The locks of the documents, whose type does not matter: only elements are read.
    locks: DocumentLocks<Document>,
    array: String,
    key: Document,
    /// The session, and the code of the key.
    place: Arc<OnceLock<(UserHandle, ElementKey)>>,
    of: PhantomData<fn() -> (E, W)>,
}

impl<T, W: World> DocumentLocks<T, W> {
    /// Returns locks for one element of an array of each document, by its key: see [`ElementLocks`].
    ///
    /// `array` is the path of the array, through sub-documents, as for [`field`](Self::field). `key` has 1 to 4 fields
    /// of the element: texts, numbers, booleans, `ObjectId`s, dates or UUIDs, 512 bytes in all. Both are checked when
    /// something is locked. Making them sends nothing.
    ///
    /// # Examples
    ///
    /// See [`ElementLocks`].
    pub fn element<E>(&self, array: impl Into<String>, key: Document) -> ElementLocks<E, W> {
        ElementLocks {
            locks: self.read_as(),
            array: array.into(),
            key,
            place: Arc::default(),
            of: PhantomData,
        }
    }
}

impl<T, W: World> DocumentLocks<T, W> {
    /// Returns the `_id` and the key of a name under which the lock of an element is listed, watched or reported; `None`
    /// if the text is not such a name.
    ///
    /// The server treats the values as the same, though their types may differ: a whole number has 64 bits.
    ///
    /// # Examples
    ///
    /// See [`ElementLocks::watch_all`].
    pub fn element_of(&self, name: &str) -> Option<(Bson, Document)> {
        let (id, code) = name.rsplit_once('/')?;
        Some((name::to_id(id)?, ElementKey::from_code(code)?.into_document()))
    }
}

impl<E, W: World> ElementLocks<E, W> {
    /// Acquires the lock of the element in the document with this `_id`, waiting for its turn. Await the returned
    /// action.
    ///
    /// The element is read once the lock is held, with one more round trip.
    ///
    /// # Errors
    ///
    /// Same as for [`Mutex::acquire`](crate::locks::Mutex::acquire); and
    /// [`AcquireError::NoElement`](crate::errors::AcquireError::NoElement) if there is no such element or document:
    /// then nothing is written. [`AcquireError::AmbiguousElement`](crate::errors::AcquireError::AmbiguousElement) if
    /// several elements have the key: the lock is released. If an element or its document is removed in the meantime,
    /// [`AcquireError::NoElement`](crate::errors::AcquireError::NoElement) or
    /// [`AcquireError::NoDocument`](crate::errors::AcquireError::NoDocument) comes once it is this waiter's turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Mutex::acquire`](crate::locks::Mutex::acquire).
    ///
    /// # Examples
    ///
    /// See [`ElementLocks`].
    pub fn acquire(&self, id: impl Into<Bson>) -> Acquire<Element<E>, Wait, W> {
        Acquire::new(Element::new(self.in_world(), id.into()))
    }

    /// Acquires the lock of the element in the document with this `_id` if it is free and nobody waits for it; `None`
    /// otherwise. Await the returned action.
    ///
    /// # Errors
    ///
    /// Same as for [`acquire`](Self::acquire), except its timeout.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }, { "sku": "y" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// let held = line.try_acquire(7).await?.expect("nobody has it");
    /// assert!(line.try_acquire(7).await?.is_none());
    ///
    /// let other = orders.element::<Document>("lines", doc! { "sku": "y" });
    /// assert!(other.try_acquire(7).await?.is_some());
    /// # held.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self, id: impl Into<Bson>) -> Acquire<Element<E>, Try, W> {
        Acquire::new(Element::new(self.in_world(), id.into()))
    }

    /// Returns the holders and waiters of the element's lock in the document with this `_id`; `None` if it was not
    /// locked lately, or there is no such document.
    ///
    /// # Errors
    ///
    /// If the `_id`, the array or the key is out of bounds, the server can't be reached, or something else is in the
    /// place of the lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// assert!(line.inspect(7).await?.is_none());
    /// let held = line.acquire(7).await?;
    /// let lock = line.inspect(7).await?.expect("it is locked");
    /// assert_eq!(lock.name, r#"7/sku="x""#);
    /// assert_eq!(lock.holders[0].token, held.token());
    /// # Ok(()) }
    /// ```
    pub fn inspect(
        &self,
        id: impl Into<Bson>,
    ) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            let (session, name) = self.place(&id.into())?;
            let read = session.inspect(&name).await?;
            Ok(read.map(|read| LockInfo::of_reading(&name, &read)))
        })
    }

    /// Lists the locks of all elements of the array, whatever their keys, sorted by name: that of the document, as
    /// [`DocumentLocks::name_of`] returns it, a `/`, and the key. Set conditions on the returned action, and await it.
    ///
    /// An element is listed from its first lock until the lock is removed because nobody used it. A
    /// [prefix](List::prefix) is that of the `_id`s. Unless one is given, the server reads the whole collection.
    ///
    /// # Errors
    ///
    /// Same as for [`DocumentLocks::list`]; [`OperateError::TooMany`] if more than 100,000 locks match.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }, { "sku": "y" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// let held = line.acquire(7).await?;
    /// let listed = line.list().held(true).await?;
    /// assert_eq!((&listed[0].name[..], listed[0].token), (r#"7/sku="x""#, held.token()));
    /// # Ok(()) }
    /// ```
    pub fn list(&self) -> List<W> {
        List::new(self.session().map(|(session, _)| session.clone()))
    }

    /// Returns the events of the element's lock in the document with this `_id`, as they happen; see
    /// [`DocumentLocks::watch`], which has the same guarantees and errors.
    ///
    /// # Panics
    ///
    /// If the client was not used yet and this is called outside a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// use watchlock::operate::LockEvent;
    ///
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// let held = line.acquire(7).await?;
    /// let mut events = line.watch(7);
    /// assert!(matches!(events.next().await, Some(Ok(LockEvent::Granted { .. }))));
    /// held.release().await?;
    /// assert!(matches!(events.next().await, Some(Ok(LockEvent::Released { .. }))));
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, id: impl Into<Bson>) -> Events<LockEvent, W> {
        let place = self.place(&id.into());
        Events::new(place.map(|(session, name)| (session.clone(), Scope::One(name))))
    }

    /// Returns the events of the locks of all elements of the array, whatever their keys, each with the name under which
    /// the lock is [listed](Self::list). See [`DocumentLocks::watch_all`], which has the same guarantees, costs and errors.
    ///
    /// # Panics
    ///
    /// If the client was not used yet and this is called outside a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }, { "sku": "y" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// let held = line.acquire(7).await?;
    /// let (name, _) = line.watch_all().next().await.expect("the client lives")?;
    /// assert_eq!(orders.element_of(&name), Some((7_i64.into(), doc! { "sku": "x" })));
    /// # Ok(()) }
    /// ```
    pub fn watch_all(&self) -> Events<(String, LockEvent), W> {
        let session = self.session().map(|(session, _)| session.clone());
        Events::new(session.map(|session| (session, Scope::All)))
    }

    /// Returns the name under which the element's lock in the document with this `_id` is listed, watched and reported;
    /// [`DocumentLocks::element_of`] is the reverse.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// assert_eq!(line.name_of("order-7"), r#""order-7"/sku="x""#);
    /// ```
    pub fn name_of(&self, id: impl Into<Bson>) -> String {
        element_name(&name::of_id(&id.into()), ElementKey::new(&self.key).code())
    }

    /// Takes the lock of the element in the document with this `_id` away from its holder, and hands it to the next in
    /// the queue. Returns the state of the lock afterwards; `None` if it was not locked lately, or there is no such
    /// document.
    ///
    /// The holder sees [`LostReason::Broken`](crate::LostReason::Broken) at once.
    ///
    /// # Errors
    ///
    /// Same as for [`inspect`](Self::inspect). If the server does not answer, the lock may have been broken.
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
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// let held = line.acquire(7).await?;
    /// line.break_lock(7).await?;
    /// assert_eq!(held.lost().await, watchlock::LostReason::Broken);
    /// # Ok(()) }
    /// ```
    pub fn break_lock(
        &self,
        id: impl Into<Bson>,
    ) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            let (session, name) = self.place(&id.into())?;
            Ok(session.break_lock(&name).await?)
        })
    }

    /// Takes the lock of the element in the document with this `_id` away from the holder whose grant has this token,
    /// and from nobody else. Returns the state of the lock afterwards; `None` if nobody holds it under this token, and
    /// then nothing was changed.
    ///
    /// # Errors
    ///
    /// Same as for [`break_lock`](Self::break_lock). It is safe to try again: no other grant of the element ever has
    /// the same token.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the holder may or may not be evicted: a command that was sent runs to its end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }] }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// let held = line.acquire(7).await?;
    /// let lock = line.break_holder(7, held.token()).await?.expect("it is held");
    /// assert!(lock.holders.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn break_holder(
        &self,
        id: impl Into<Bson>,
        token: FencingToken,
    ) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            let (session, name) = self.place(&id.into())?;
            Ok(session.break_holder(&name, token.as_i64()).await?)
        })
    }

    /// Returns how waiters are woken at present; see [`LockClient::wake_mode`](crate::LockClient::wake_mode). If the
    /// client has as many change streams open as it may have, those of this array poll.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    /// assert_eq!(line.wake_mode(), watchlock::operate::WakeMode::ChangeStream);
    /// ```
    pub fn wake_mode(&self) -> WakeMode {
        // Nobody is ever woken for a key that is refused.
        self.session().map_or_else(
            |_| self.locks.locks.wake_mode(),
            |(session, _)| *session.mode().borrow(),
        )
    }

    /// Returns the session, and its name for the lock of the element in this document.
    fn place(&self, id: &Bson) -> Result<(&UserHandle, String), InvalidInput> {
        check_id(id)?;
        check_size(id)?;
        let (session, key) = self.session()?;
        Ok((session, element_name(&name::of_id(id), key.code())))
    }

    fn session(&self) -> Result<&(UserHandle, ElementKey), InvalidInput> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        self.locks.check_database()?;
        check_key(&self.key)?;
        let key = ElementKey::new(&self.key);
        check_code(key.code())?;
        check_path(&self.locks.path, "for the locks")?;
        check_path(&self.array, "of the elements")?;
        let root = elements_beside(&self.locks.path);
        let path = format!("{root}.{}", escaped(&self.array));
        let overlaps = |other: &str| {
            InvalidInput::new(format!(
                "the array `{}` in {} overlaps with `{other}`, where this client has locks",
                self.array, self.locks.collection
            ))
        };
        for own in [&self.locks.path, &root] {
            if overlap(&self.array, own) {
                return Err(overlaps(own));
            }
        }
        let place = LockLayout::in_documents(
            self.locks.namespace(),
            &path,
            Some((&self.array, &self.locks.path)),
            &self.locks.paths(),
        );
        let place = place.map_err(|other| match overlap(&self.array, &other) {
            true => overlaps(&other),
            false => InvalidInput::new(format!(
                "the field `{path}` for the locks of elements in {} overlaps with `{other}`, where this client already \
                 has locks",
                self.locks.collection
            )),
        })?;
        let session = self.sessions().get(&self.array).cloned();
        let session = session.unwrap_or_else(|| {
            let session = self.locks.session_in(&place);
            // If another thread was as fast, it has the same session.
            self.sessions().insert(self.array.clone(), session.clone());
            session
        });
        Ok(self.place.get_or_init(|| (session, key)))
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, UserHandle>> {
        self.locks.elements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E, W: World> ElementLocks<E, W> {
    /// Returns the same locks in another world.
    fn in_world<V: World>(&self) -> ElementLocks<E, V> {
        ElementLocks {
            locks: self.locks.clone(),
            array: self.array.clone(),
            key: self.key.clone(),
            place: self.place.clone(),
            of: PhantomData,
        }
    }
}

impl<E, W: World> Clone for ElementLocks<E, W> {
    fn clone(&self) -> Self {
        self.in_world()
    }
}

impl<E, W: World> fmt::Debug for ElementLocks<E, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The collection is left out: the driver's client shows the user's connection options.
        f.debug_struct("ElementLocks")
            .field("namespace", &self.locks.collection.to_string())
            .field("field", &self.locks.path)
            .field("array", &self.array)
            .field("key", &Brief(&self.key))
            .finish_non_exhaustive()
    }
}
