//! Documents without a server, for tests.

use std::{fmt, sync::Arc};

use mongodb::bson::{Bson, Document};

use crate::{
    client::LockClient,
    documents::{DocumentLocks, check_id},
    error::InvalidInput,
    store::{MemoryDocuments, Refused, place::Place},
};

/// A collection in the memory of this process, whose documents can be locked: for tests of your own code.
///
/// Code that takes a [`DocumentLocks`](crate::DocumentLocks) runs on the documents of a server, and on these:
/// [`LockClient::documents_in_memory`](crate::LockClient::documents_in_memory) makes one for them. Clones are the same
/// collection. Through its own methods a test is the other programs that use the collection; as on a server their writes
/// do not heed the locks, and `find` shows these in the documents.
///
/// # Guarantees
///
/// Locks are as on a replica set that never fails, by tokio's clock, as with [`InMemory`](crate::InMemory).
///
/// Of the languages of filters and updates this is known, and is as on the server:
///
/// - Filters: `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin`, `$exists`, `$not`, `$and`, `$or`, `$nor`, and
///   a field with a value. Paths with dots lead into documents, and into each document of an array; a value in an array
///   is found there. `Decimal128` is compared as the nearest double.
/// - Sorts: by fields, 1 or -1.
/// - Updates: `$set`, `$unset`, `$inc`, `$min`, `$max`, `$push`, `$addToSet` (of one value each), `$pull` (of a value that
///   is no document, array or pattern) and `$currentDate` (as a date).
///
/// Everything else (another operator, a regular expression, a place in an array, a pipeline) is an error that names it:
/// [`AcquireError::Server`](crate::AcquireError::Server) and [`DocumentError::Server`](crate::DocumentError::Server), as
/// of a server that refuses; never is it passed over.
///
/// # Examples
///
/// ```
/// use mongodb::bson::{Document, doc};
/// use watchlock::{DocumentLocks, LockClient, MemoryCollection};
///
/// /// What is to be tested.
/// async fn close_the_oldest(orders: &DocumentLocks<Document>) -> Result<(), Box<dyn std::error::Error>> {
///     let order = orders.claim(doc! { "state": "open" }).sort(doc! { "opened": 1 }).await?;
///     order.update(doc! { "$set": { "state": "closed" } }).await?;
///     order.release().await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let orders = MemoryCollection::new();
/// orders.insert_one(doc! { "_id": 1, "state": "open", "opened": 20 })?;
/// orders.insert_one(doc! { "_id": 2, "state": "open", "opened": 10 })?;
///
/// close_the_oldest(&LockClient::in_memory().documents_in_memory(&orders)).await?;
/// let closed = orders.find_one(doc! { "state": "closed" })?.expect("one was closed");
/// assert_eq!(closed.get_i32("_id")?, 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryCollection {
    documents: Arc<MemoryDocuments>,
}

impl MemoryCollection {
    /// A collection without documents.
    pub fn new() -> Self {
        Self {
            documents: Arc::new(MemoryDocuments::new()),
        }
    }

    /// Inserts a document, with a new `ObjectId` for an `_id` where it has none, and returns the `_id`.
    ///
    /// # Errors
    ///
    /// When there is one with this `_id` already, or it is an array, a regular expression or undefined; when a server would
    /// not store the document, as it is larger than 16 MB or nested deeper than 180 levels of documents and arrays within it; when a value is `undefined`.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::{Bson, doc};
    ///
    /// let orders = watchlock::MemoryCollection::new();
    /// assert_eq!(orders.insert_one(doc! { "_id": 7, "state": "open" })?, Bson::from(7));
    /// assert!(orders.insert_one(doc! { "_id": 7 }).is_err());
    /// # Ok::<(), watchlock::InvalidInput>(())
    /// ```
    pub fn insert_one(&self, document: Document) -> Result<Bson, InvalidInput> {
        document.get("_id").map_or(Ok(()), check_id)?;
        Ok(self.documents.insert(document)?)
    }

    /// The documents that match, with the locks in them, in the order in which they were inserted.
    ///
    /// # Errors
    ///
    /// When the filter has what is not known in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7, "lines": [{ "price": 3 }, { "price": 5 }] })?;
    /// assert_eq!(orders.find(doc! { "lines.price": { "$gt": 4 } })?.len(), 1);
    ///
    /// let error = orders.find(doc! { "lines": { "$size": 2 } }).unwrap_err();
    /// assert!(error.to_string().starts_with("`$size` is not known in memory"));
    /// # Ok::<(), watchlock::InvalidInput>(())
    /// ```
    pub fn find(&self, filter: Document) -> Result<Vec<Document>, InvalidInput> {
        Ok(self.documents.find(&filter)?)
    }

    /// The first document that matches, as [`find`](Self::find).
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find).
    pub fn find_one(&self, filter: Document) -> Result<Option<Document>, InvalidInput> {
        Ok(self.find(filter)?.into_iter().next())
    }

    /// Updates all documents that match, and returns how many do. They are updated together, or none is.
    ///
    /// # Errors
    ///
    /// When the filter or the update has what is not known in memory, the update is empty, or a document can't be updated so.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7, "state": "new" })?;
    /// assert_eq!(orders.update_many(doc! { "state": "new" }, doc! { "$set": { "state": "open" } })?, 1);
    /// # Ok::<(), watchlock::InvalidInput>(())
    /// ```
    pub fn update_many(&self, filter: Document, update: Document) -> Result<u64, InvalidInput> {
        Ok(self.documents.update(&filter, &update)?)
    }

    /// Replaces the document with this `_id`, and says whether there was one. With it goes its lock.
    ///
    /// # Errors
    ///
    /// When the replacement has another `_id` or a field that starts with `$`, or a server would not store it.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7, "state": "new" })?;
    /// assert!(orders.replace_one(7, doc! { "state": "open" })?);
    /// assert_eq!(orders.find(doc! {})?, [doc! { "_id": 7, "state": "open" }]);
    /// # Ok::<(), watchlock::InvalidInput>(())
    /// ```
    pub fn replace_one(&self, id: impl Into<Bson>, replacement: Document) -> Result<bool, InvalidInput> {
        Ok(self.documents.replace(&id.into(), replacement)?)
    }

    /// Deletes all documents that match, and with them their locks; returns how many there were.
    ///
    /// # Errors
    ///
    /// When the filter has what is not known in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7 })?;
    /// assert_eq!(orders.delete_many(doc! {})?, 1);
    /// # Ok::<(), watchlock::InvalidInput>(())
    /// ```
    pub fn delete_many(&self, filter: Document) -> Result<u64, InvalidInput> {
        Ok(self.documents.delete(&filter)?)
    }

    pub(crate) fn documents(&self) -> &Arc<MemoryDocuments> {
        &self.documents
    }
}

impl Default for MemoryCollection {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCollection").finish_non_exhaustive()
    }
}

impl From<Refused> for InvalidInput {
    fn from(refused: Refused) -> Self {
        Self::new(refused.to_string())
    }
}

impl LockClient {
    /// The same for the documents of a collection in memory, for tests: see [`MemoryCollection`].
    ///
    /// Each client is what another process would be, wherever its other locks are.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use mongodb::bson::{Document, doc};
    /// use watchlock::{LockClient, MemoryCollection};
    ///
    /// let orders = MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": "order-7" })?;
    /// let one = LockClient::in_memory().documents_in_memory::<Document>(&orders);
    /// let other = LockClient::in_memory().documents_in_memory::<Document>(&orders);
    /// let order = one.acquire("order-7").await?;
    /// assert!(other.try_acquire("order-7").await?.is_none());
    /// # order.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn documents_in_memory<T>(&self, collection: &MemoryCollection) -> DocumentLocks<T> {
        DocumentLocks::new(self.clone(), Place::Memory(collection.documents().clone()))
    }
}
