//! Locks of the elements of an array, in the documents of the user's own collection.

use std::sync::{Arc, PoisonError};

use mongodb::bson::{Bson, Document};

use super::{DocumentLocks, ItemLocks, handle::Element};
use crate::{
    error::InvalidInput,
    input::{check_code, check_key, check_path},
    store::{
        LockLayout,
        element::{ElementKey, escaped},
        lock_layout::{element_name, elements_beside, overlap},
        name,
    },
    world::{Async, World},
};

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
/// - [`acquire`](ItemLocks::acquire) is first come, first served.
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
pub type ElementLocks<E, W = Async> = ItemLocks<Element<E>, W>;

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
        let place = ElementPlace {
            array: array.into(),
            key,
        };
        let mut sessions = self.elements.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.entry(place.array.clone()).or_default().clone();
        ItemLocks {
            element: Some(place),
            session,
            ..self.of_kind()
        }
    }

    /// Returns the `_id` and the key of a name under which the lock of an element is listed, watched or reported;
    /// `None` if the text is not such a name.
    ///
    /// The server treats the values as the same, though their types may differ: a whole number has 64 bits.
    ///
    /// # Examples
    ///
    /// See [`watch_all`](Self::watch_all).
    pub fn element_of(&self, name: &str) -> Option<(Bson, Document)> {
        let (id, code) = name.rsplit_once('/')?;
        Some((name::to_id(id)?, ElementKey::from_code(code)?.into_document()))
    }
}

/// An array in documents, and the key of one of its elements.
#[derive(Clone, Debug)]
pub(super) struct ElementPlace {
    pub(super) array: String,
    key: Document,
}

impl ElementPlace {
    pub(super) fn key(&self) -> ElementKey {
        ElementKey::new(&self.key)
    }

    pub(super) fn check_key(&self) -> Result<(), InvalidInput> {
        check_key(&self.key)?;
        check_code(self.key().code())
    }

    /// Returns the name of the lock in the document with this name.
    pub(super) fn name_in(&self, document: &str) -> String {
        element_name(document, self.key().code())
    }

    /// Registers the place of the locks of all elements of the array.
    pub(super) fn layout<K, W: World>(&self, locks: &ItemLocks<K, W>) -> Result<Arc<LockLayout>, InvalidInput> {
        check_path(&self.array, "of the elements")?;
        let root = elements_beside(&locks.path);
        let path = format!("{root}.{}", escaped(&self.array));
        let overlaps = |other: &str| {
            InvalidInput::new(format!(
                "the array `{}` in {} overlaps with `{other}`, where this client has locks",
                self.array, locks.collection
            ))
        };
        for own in [&locks.path, &root] {
            if overlap(&self.array, own) {
                return Err(overlaps(own));
            }
        }
        let array = (&self.array[..], &locks.path[..]);
        let layout = LockLayout::in_documents(locks.namespace(), &path, Some(array), &locks.paths());
        layout.map_err(|other| match overlap(&self.array, &other) {
            true => overlaps(&other),
            false => InvalidInput::new(format!(
                "the field `{path}` for the locks of elements in {} overlaps with `{other}`, where this client already \
                 has locks",
                locks.collection
            )),
        })
    }
}
