//! Locks in the documents of your own collections, and in single elements of their arrays.
//!
//! [`LockClient::documents`] makes them; the guide has [a page on them](crate::guide::documents).

mod action;
mod check;
mod elements;
mod handle;
pub(crate) mod memory_collection;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
};

use mongodb::{
    Collection, Namespace,
    bson::{self, Bson},
};

use crate::{
    client::LockClient,
    error::{InvalidInput, OperateError},
    handle::target::Several,
    hidden::hidden,
    input::{check_database, check_id, check_path, check_size},
    inspect::LockInfo,
    locks::acquire::{Acquire, Try, Wait},
    operate::{
        events::Events,
        list::List,
        watch::{LockEvent, events_of_all, events_of_one},
    },
    session::{UserHandle, streams::observers::Scope},
    store::{
        LockLayout, MemoryStore, MongoStore, Store, collection::UserCollection, element::ElementKey,
        lock_layout::Paths, name,
    },
    token::FencingToken,
    truncated_debug::Brief,
    wake_mode::WakeMode,
    world::{Async, World},
};
use elements::ElementPlace;

pub use action::Claim;
pub(crate) use check::{check_encodable, check_update, written};
pub use handle::{Document, Element, Item};

/// Default field of the documents for their locks.
const DEFAULT_FIELD: &str = "watchlock";

/// Locks for items of a collection of yours, in place: its documents ([`DocumentLocks`]), or an element of an array in
/// each ([`ElementLocks`]).
///
/// # Examples
///
/// What an operator does with them, by `_id` and by name:
///
/// ```
/// # use mongodb::bson::{Document, doc};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = watchlock::testing::MemoryCollection::new();
/// # memory.insert_one(doc! { "_id": "order-7", "lines": [{ "sku": "x" }] }).await?;
/// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
/// use watchlock::operate::LockEvent;
///
/// let order = orders.acquire("order-7").await?;
/// let mut events = orders.watch("order-7");
/// assert!(matches!(events.next().await, Some(Ok(LockEvent::Granted { .. }))));
/// let held = orders.list().held(true).await?;
/// assert_eq!(held[0].holders[0].token, order.token());
/// assert_eq!(held[0].name, orders.name_of("order-7"));
/// assert_eq!(orders.id_of(&held[0].name), Some("order-7".into()));
///
/// let lock = orders.inspect("order-7").await?.expect("it is held");
/// orders.break_holder("order-7", lock.holders[0].token).await?;
/// assert_eq!(order.lost().await, watchlock::LostReason::Broken);
///
/// let line = orders.element::<Document>("lines", doc! { "sku": "x" });
/// let held = line.acquire("order-7").await?;
/// let (name, _) = line.watch_all().next().await.expect("the client lives")?;
/// assert_eq!(name, r#""order-7"/sku="x""#);
/// assert_eq!(orders.element_of(&name), Some(("order-7".into(), doc! { "sku": "x" })));
/// line.break_lock("order-7").await?;
/// # Ok(()) }
/// ```
pub struct ItemLocks<K, W: World = Async> {
    locks: LockClient,
    collection: UserCollection,
    /// The field of the documents' own locks.
    path: String,
    /// `None`: documents.
    element: Option<Arc<ElementPlace>>,
    /// Those of the locks of documents and of the elements of each array, from their first use on. All clones share
    /// them, and so do all keys of an array.
    sessions: Arc<Mutex<HashMap<Option<Arc<str>>, UserHandle>>>,
    of: PhantomData<fn() -> (K, W)>,
}

/// Locks for the documents of a collection of yours, in place. Made by [`LockClient::documents`], and for tests without
/// a server by [`LockClient::documents_in_memory`].
///
/// The lock of a document is a sub-document of it, by default its field `watchlock`. Documents without that field are
/// free. `T` is the type of the documents; it need not have the field. [Documents](crate::guide::documents) shows how
/// to use them, and has their [limits](crate::guide::documents#limits).
///
/// All `DocumentLocks` that a client makes for the same collection and field of one driver client share one session,
/// with the settings of the client, one heartbeat, and one change stream, which takes a connection of the driver's pool
/// while somebody waits, claims or holds for long. It lasts as long as one of them or a handle does, so keep one and
/// clone it.
///
/// # Guarantees
///
/// - One valid [handle](crate::Held) for a document at a time, with all guarantees of a [`Held`](crate::Held).
/// - [`acquire`](ItemLocks::acquire) is first come, first served. [`claim`](ItemLocks::claim) takes documents that
///   nobody holds and nobody waits for.
/// - `update` and `delete` of the handle are done while the lock is held or not at all.
/// - No other field than that of the lock is ever touched.
///
/// A transaction that writes to a locked document holds up the renewals of its lock until it ends, up to four of which
/// take a connection of the pool each.
pub type DocumentLocks<T, W = Async> = ItemLocks<Document<T>, W>;

/// Locks for one element each of an array in the documents of a collection of yours, in place. Made by
/// [`DocumentLocks::element`].
///
/// An element is identified by its key: some of its fields, whose values no other element of the array has. Elements of
/// one document are locked independently of each other, and of the [whole document](DocumentLocks::acquire). The locks
/// are stored beside the array, in `watchlock_elements`, or the [`field`](DocumentLocks::field) that is set, with
/// `_elements` at its end. [Elements](crate::guide::documents#elements) has what they cost, and their limits. `E` is
/// the type of the elements.
///
/// # Guarantees
///
/// - One valid [handle](crate::Held) for an element at a time, first come, first served, as for
///   [documents](DocumentLocks).
/// - `update` of the handle is done while the lock is held or not at all, and changes that element only.
/// - A lock is that of a key: an element that is removed and added again has the same lock, and tokens go on rising.
///
/// Programs that lock the same elements must use the same fields for their keys: `{ sku: "x" }` and `{ line: 7 }` are
/// two locks, even if they are one element. Numbers of any type are compared by their values; give texts exactly as
/// they are stored, whatever the collation of the collection.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[derive(serde::Deserialize)]
/// # struct Line { price: i32 }
/// use mongodb::bson::{Document, doc};
///
/// # let memory = watchlock::testing::MemoryCollection::new();
/// # let lines = [doc! { "sku": "x", "price": 3 }, doc! { "sku": "y", "price": 5 }];
/// # memory.insert_one(doc! { "_id": "order-7", "lines": lines.to_vec() }).await?;
/// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
/// let line = orders.element::<Line>("lines", doc! { "sku": "x" }).acquire("order-7").await?;
/// println!("picking something for {}", line.element().price);
/// line.update(doc! { "$set": { "picked": true } }).await?;
/// line.release().await?;
/// # assert_eq!(memory.find(doc! { "lines.picked": true }).await?.len(), 1);
/// # Ok(()) }
/// ```
pub type ElementLocks<E, W = Async> = ItemLocks<Element<E>, W>;

impl<W: World> LockClient<W> {
    /// Returns locks for the documents of a collection of yours, in place; see [`DocumentLocks`].
    ///
    /// The locks have the settings of this client, and end with its [`shutdown`](Self::shutdown). Reads and writes use
    /// the library's own concerns, whatever those of the collection. Making them sends nothing.
    pub fn documents<T: Send + Sync>(&self, collection: Collection<T>) -> DocumentLocks<T, W> {
        DocumentLocks::new(
            self.as_async(),
            UserCollection::Mongo(hidden(collection.clone_with_type())),
        )
    }
}

impl<T, W: World> DocumentLocks<T, W> {
    pub(crate) fn new(locks: LockClient, collection: UserCollection) -> Self {
        Self {
            locks,
            collection,
            path: DEFAULT_FIELD.to_owned(),
            element: None,
            sessions: Arc::default(),
            of: PhantomData,
        }
    }

    /// Sets the place of the locks in the documents; `watchlock` by default. All programs that lock the collection must
    /// use the same place.
    ///
    /// With dots it is a path: `shipping.lock` is the field `lock` of the sub-document `shipping`, so that parts of one
    /// document can be locked separately. Missing sub-documents are created. One lock can't be inside another. The path
    /// is checked when something is locked. A handle's own writes leave the locks alone under all fields that this
    /// client has locked in the collection.
    #[must_use = "the locks under another field are returned"]
    pub fn field(self, path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            sessions: Arc::default(),
            ..self
        }
    }

    /// Locks any free document that matches the filter, and reads it, in one atomic step; waits until there is one.
    /// The [guide](crate::guide::documents) has an example.
    ///
    /// A waiting claim is woken when a document is released, inserted or changed, or when a lease expires. Claims of
    /// one client for the same type, filter and sort take turns; among clients the order is left to chance. An index
    /// that serves the filter (and the sort) serves the claim. If the action is dropped, a document that was claimed at that
    /// moment is released in the background. [Claims](crate::guide::documents#claims) lists the documents that can't be
    /// claimed and are passed over, which the event `watchlock.passed_over` reports.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`], and [`Unclaimable`](crate::errors::AcquireError::Unclaimable), or
    /// [`Unreadable`](crate::errors::AcquireError::Unreadable), if none of the matching documents can be claimed; while
    /// this is known, another claim waits. A filter or a sort that can't be written as BSON is
    /// [`Invalid`](crate::errors::AcquireError::Invalid), one that the server refuses
    /// [`Server`](crate::errors::AcquireError::Server).
    pub fn claim(&self, filter: bson::Document) -> Acquire<Claim<T>, Wait, W> {
        Acquire::new(Claim::new(self.of_kind(), filter, 1))
    }

    /// Locks any free document that matches the filter, and reads it, in one atomic step; `None` if there is none.
    /// Errors are those of [`claim`](Self::claim): if none of the matching documents can be claimed, every try fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # for n in 0..40 { memory.insert_one(doc! { "n": n }).await?; }
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// while let Some(event) = events.try_claim(doc! { "n": { "$lt": 5 } }).await? {
    ///     event.delete().await?;
    /// }
    /// for event in events.claim_many(doc! {}, 16).sort(doc! { "n": 1 }).await? {
    ///     event.update(doc! { "$set": { "done": true } }).await?;
    ///     event.release().await?;
    /// }
    /// while let Some(batch) = events.try_claim_many(doc! {}, 16).await? {
    ///     for event in batch {
    ///         event.delete().await?;
    ///     }
    /// }
    /// # assert!(memory.find(doc! {}).await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn try_claim(&self, filter: bson::Document) -> Acquire<Claim<T>, Try, W> {
        Acquire::new(Claim::new(self.of_kind(), filter, 1))
    }

    /// Locks up to `most` free documents that match the filter, 64 at most, and reads them, in a few commands; waits
    /// until there is one, and not for the list to be full. Gives a list of handles, each by itself from then on:
    /// renewed, lost and released. Another program may change a document between its lock and its reading. Errors are
    /// those of [`claim`](Self::claim), and a number beyond its bounds is invalid; [`try_claim`](Self::try_claim) has
    /// an example.
    pub fn claim_many(&self, filter: bson::Document, most: usize) -> Acquire<Claim<T, Several>, Wait, W> {
        Acquire::new(Claim::new(self.of_kind(), filter, most))
    }

    /// Locks up to `most` free documents that match the filter, as [`claim_many`](Self::claim_many) does; `None` if
    /// there is none. [`try_claim`](Self::try_claim) has an example, and the errors.
    pub fn try_claim_many(&self, filter: bson::Document, most: usize) -> Acquire<Claim<T, Several>, Try, W> {
        Acquire::new(Claim::new(self.of_kind(), filter, most))
    }

    /// Returns the `_id` of a name under which a document is listed, watched or reported: `"order-7"` (with the quotes)
    /// is a text, `ObjectId(507f191e810c19729de860ea)` an object id, `7` a number, and `bson:` with hexadecimal digits
    /// anything else. `None` if the text is not such a name.
    ///
    /// The server treats the value as the same `_id` as that of the document, though its type may differ: a whole
    /// number has 64 bits.
    pub fn id_of(&self, name: &str) -> Option<Bson> {
        name::to_id(name)
    }

    /// Clears the count of claims of the document with this `_id`, so that claims with
    /// [`max_attempts`](crate::Acquire::max_attempts), which has an example, take it again; one that waits for it is
    /// woken. Returns `false` if there is no count, or no such document. The lock stays as it is, even if somebody
    /// holds it.
    ///
    /// An [`OperateError`] says why it failed. If the future is dropped, or after an error, the count may or may not be
    /// cleared. It is safe to try again.
    pub fn clear_attempts(&self, id: impl Into<Bson>) -> W::Call<impl Future<Output = Result<bool, OperateError>>> {
        W::call(async move {
            let (session, name) = self.place(&id.into())?;
            Ok(session.clear_attempts(&name).await?)
        })
    }

    /// Returns locks for one element of an array of each document, by its key: see [`ElementLocks`].
    ///
    /// `array` is the path of the array, through sub-documents, as for [`field`](Self::field). `key` has 1 to 4 fields
    /// of the element: texts, numbers, booleans, `ObjectId`s, dates or UUIDs, 512 bytes in all. Both are checked when
    /// something is locked. Making them sends nothing.
    pub fn element<E>(&self, array: impl Into<String>, key: bson::Document) -> ElementLocks<E, W> {
        ItemLocks {
            element: Some(Arc::new(ElementPlace::new(array.into().into(), &key))),
            ..self.of_kind()
        }
    }

    /// Returns the `_id` and the key of a name under which the lock of an element is listed, watched or reported;
    /// `None` if the text is not such a name. Values are as for [`id_of`](Self::id_of).
    pub fn element_of(&self, name: &str) -> Option<(Bson, bson::Document)> {
        let (id, code) = name.rsplit_once('/')?;
        Some((name::to_id(id)?, ElementKey::from_code(code)?.into_document()))
    }
}

impl<K: Item, W: World> ItemLocks<K, W> {
    /// Acquires the lock of the document with this `_id`, or of the element in it, waiting for its turn. The item is
    /// read once the lock is held, with one more round trip.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`], and [`NoDocument`](crate::errors::AcquireError::NoDocument) if there is no such
    /// document, or it was deleted in the meantime. For an element,
    /// [`NoElement`](crate::errors::AcquireError::NoElement) if there is no such element or document: then nothing is
    /// written; and [`AmbiguousElement`](crate::errors::AcquireError::AmbiguousElement) if several elements have the
    /// key: the lock is released.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": "order-7" }).await?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let order = orders.acquire("order-7").timeout(std::time::Duration::from_secs(5)).await?;
    /// println!("{}", order.document());
    /// assert!(orders.try_acquire("order-7").await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self, id: impl Into<Bson>) -> Acquire<K, Wait, W> {
        Acquire::new((self.of_kind(), id.into()))
    }

    /// Acquires the lock of the document with this `_id`, or of the element in it, if it is free and nobody waits for
    /// it; `None` otherwise. Errors are those of [`acquire`](Self::acquire).
    pub fn try_acquire(&self, id: impl Into<Bson>) -> Acquire<K, Try, W> {
        Acquire::new((self.of_kind(), id.into()))
    }
}

impl<K, W: World> ItemLocks<K, W> {
    /// Returns the holders and waiters of the lock of the document with this `_id`, or of the element in it; `None` if
    /// it was never locked, or there is no such document. The lock of an element that nobody used for long is gone too.
    ///
    /// All else is as for [`LockClient::inspect`]. [`ItemLocks`] has an example.
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

    /// Lists the locks in the documents, or those of all elements of the array, whatever their keys, as
    /// [`LockClient::list`] does. [`ItemLocks`] has an example.
    ///
    /// A free lock stays in its document, that of an element until nobody has used it for long; so restrict the list to
    /// [held](List::held) locks, or to a [prefix](List::prefix) of the `_id`s. Unless a prefix is given, the server
    /// reads the whole collection, which fails after 30 s. [`OperateError::TooMany`] if more than 100,000 locks match.
    pub fn list(&self) -> List<W> {
        List::new(self.session())
    }

    /// Returns the events of the lock of the document with this `_id`, or of the element in it, as
    /// [`LockClient::watch`] does. [`ItemLocks`] has an example. [`LockEvent::Deleted`] reports a document that was
    /// deleted, or replaced without its lock. The change stream brings no field but that of the lock.
    pub fn watch(&self, id: impl Into<Bson>) -> Events<LockEvent, W> {
        let place = self.place(&id.into());
        Events::new(
            place.map(|(session, name)| (session, Scope::One(name))),
            events_of_one(),
        )
    }

    /// Returns the events of every lock that is [listed](Self::list), each with its name, as [`LockClient::watch_all`]
    /// does. [`ItemLocks`] has an example. For the grants with which it begins, the server reads the whole collection;
    /// without a change stream, again and again, with pauses ten times as long as the last read.
    pub fn watch_all(&self) -> Events<(String, LockEvent), W> {
        Events::new(self.session().map(|session| (session, Scope::All)), events_of_all())
    }

    /// Returns the name under which the document with this `_id`, or the element in it, is listed, watched and
    /// reported; the reverse of [`id_of`](DocumentLocks::id_of) and [`element_of`](DocumentLocks::element_of). Values
    /// that the server treats as the same have the same name: `7` and `7.0`, for one.
    pub fn name_of(&self, id: impl Into<Bson>) -> String {
        self.name(&id.into())
    }

    /// Takes the lock of the document with this `_id`, or of the element in it, away from its holder, as
    /// [`LockClient::break_lock`] does. [`ItemLocks`] has an example.
    pub fn break_lock(
        &self,
        id: impl Into<Bson>,
    ) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            let (session, name) = self.place(&id.into())?;
            Ok(session.break_lock(&name).await?)
        })
    }

    /// Takes the lock away only from the holder whose grant has this token, as [`LockClient::break_holder`] does.
    /// [`ItemLocks`] has an example.
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

    /// Returns how waiters and claims are woken at present; see [`LockClient::wake_mode`]. If the client has as many
    /// change streams open as it may have, those of this collection poll.
    pub fn wake_mode(&self) -> WakeMode {
        // Nobody is ever woken under a field that is refused.
        self.session()
            .map_or_else(|_| self.locks.wake_mode(), |session| *session.mode().borrow())
    }

    /// Returns the session, and its name for the item.
    fn place(&self, id: &Bson) -> Result<(UserHandle, String), InvalidInput> {
        check_id(id)?;
        check_size(id)?;
        Ok((self.session()?, self.name(id)))
    }

    fn name(&self, id: &Bson) -> String {
        let document = name::of_id(id);
        match &self.element {
            None => document,
            Some(element) => element.name_in(&document),
        }
    }

    fn session(&self) -> Result<UserHandle, InvalidInput> {
        let element = self.element.as_ref();
        element.map_or(Ok(()), |element| element.checked.clone())?;
        let sessions = || self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let array = element.map(|element| element.array.clone());
        if let Some(session) = sessions().get(&array) {
            return Ok(session.clone());
        }
        let namespace = self.namespace();
        namespace.map_or(Ok(()), |namespace| check_database(&namespace.db))?;
        check_path(&self.path, "for the locks")?;
        let layout = match element {
            None => LockLayout::in_documents(self.namespace(), &self.path, None, &self.paths()).map_err(|other| {
                InvalidInput::new(format!(
                    "the field `{}` for the locks of {} overlaps with `{other}`, where this client already has locks",
                    self.path, self.collection
                ))
            })?,
            Some(element) => element.layout(self)?,
        };
        let session = self.session_in(&layout);
        Ok(sessions().entry(array).or_insert(session).clone())
    }

    fn session_in(&self, place: &Arc<LockLayout>) -> UserHandle {
        let id = self.collection.place(place.base().path());
        self.locks.session_over(id, || match &self.collection {
            UserCollection::Mongo(collection) => {
                let streams = self.locks.session.config.stream_read_preference.clone();
                let store = MongoStore::new(collection, place.clone(), streams);
                Store::Mongo(Arc::new(store))
            }
            UserCollection::Memory(documents) => {
                let (documents, connection) = (documents.clone(), self.locks.connection());
                Store::Memory(Arc::new(MemoryStore::new(documents, place.clone(), connection)))
            }
        })
    }

    /// Returns the same locks of another kind, or in another world.
    fn of_kind<L, V: World>(&self) -> ItemLocks<L, V> {
        ItemLocks {
            locks: self.locks.clone(),
            collection: self.collection.clone(),
            path: self.path.clone(),
            element: self.element.clone(),
            sessions: self.sessions.clone(),
            of: PhantomData,
        }
    }

    fn namespace(&self) -> Option<Namespace> {
        match &self.collection {
            UserCollection::Mongo(collection) => Some(collection.namespace()),
            UserCollection::Memory(_) => None,
        }
    }

    /// Returns the places of all locks that the client has in these documents.
    fn paths(&self) -> Paths {
        self.locks.paths_in(match &self.collection {
            UserCollection::Mongo(collection) => collection.namespace().to_string(),
            UserCollection::Memory(documents) => documents.identity(),
        })
    }
}

impl<K, W: World> Clone for ItemLocks<K, W> {
    fn clone(&self) -> Self {
        self.of_kind()
    }
}

impl<K, W: World> fmt::Debug for ItemLocks<K, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The collection is left out: the driver's client shows the user's connection options.
        f.debug_struct("ItemLocks")
            .field("namespace", &self.collection.to_string())
            .field("field", &self.path)
            .field("element", &Brief(&self.element))
            .finish_non_exhaustive()
    }
}
