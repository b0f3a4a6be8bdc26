//! Documents without a server, for tests.

use std::{fmt, sync::Arc};

use mongodb::bson::{Bson, Document};

use crate::{
    client::LockClient,
    documents::DocumentLocks,
    error::InvalidInput,
    input::{check_document, check_id},
    store::{MemoryDocuments, Refused, collection::UserCollection},
    world::World,
};

/// A collection in the memory of this process, whose documents can be locked: for tests of your own code.
///
/// Code that takes a [`DocumentLocks`](crate::documents::DocumentLocks) runs on the documents of a server, and on
/// these: [`LockClient::documents_in_memory`](crate::LockClient::documents_in_memory) makes one for them. Clones are
/// the same collection. Its own methods let a test play the other programs that use the collection; as on a server
/// their writes ignore the locks, and `find` shows the locks in the documents.
///
/// # Guarantees
///
/// Locks behave as on a replica set that never fails, by tokio's clock, as with [`InMemory`](crate::testing::InMemory).
///
/// These parts of the filter and update languages are supported, and behave as on the server:
///
/// - Filters: `$eq`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$exists`, `$and`, `$or`, and a field with a value. Paths with
///   dots lead into documents, and into each document of an array; a value in an array is found there. Numbers, texts,
///   dates, ObjectIds, booleans and null can be compared; other values can be equal.
/// - Sorts: by fields of these types, 1 or -1.
/// - Updates: `$set`, `$unset` and `$inc`.
///
/// Everything else (another operator, a regular expression, an array index, a pipeline) is an error that names it:
/// [`AcquireError::Server`](crate::errors::AcquireError::Server) and
/// [`DocumentError::Server`](crate::errors::DocumentError::Server), as from a server that refuses; it is never ignored.
///
/// # Examples
///
/// ```
/// use mongodb::bson::{Document, doc};
/// use watchlock::{LockClient, documents::DocumentLocks, testing::MemoryCollection};
///
/// /// The code under test.
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
    /// Returns a collection without documents.
    pub fn new() -> Self {
        Self {
            documents: Arc::default(),
        }
    }

    /// Inserts a document, with a new `ObjectId` as `_id` if it has none, and returns the `_id`.
    ///
    /// # Errors
    ///
    /// If there is one with this `_id` already, or the `_id` is an array, a regular expression or undefined; if a
    /// server would not store the document, as it is larger than 16 MB or nested deeper than 180 levels of documents
    /// and arrays, or has a NUL in the name of a field; if a value is `undefined`.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::{Bson, doc};
    ///
    /// let orders = watchlock::testing::MemoryCollection::new();
    /// assert_eq!(orders.insert_one(doc! { "_id": 7, "state": "open" })?, Bson::from(7));
    /// assert!(orders.insert_one(doc! { "_id": 7 }).is_err());
    /// # Ok::<(), watchlock::errors::InvalidInput>(())
    /// ```
    pub fn insert_one(&self, document: Document) -> Result<Bson, InvalidInput> {
        document.get("_id").map_or(Ok(()), check_id)?;
        Ok(self.documents.insert(document)?)
    }

    /// Returns the matching documents, with the locks in them, in the order in which they were inserted.
    ///
    /// # Errors
    ///
    /// If the filter uses something that is not supported in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::testing::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7, "lines": [{ "price": 3 }, { "price": 5 }] })?;
    /// assert_eq!(orders.find(doc! { "lines.price": { "$gt": 4 } })?.len(), 1);
    ///
    /// let error = orders.find(doc! { "lines": { "$size": 2 } }).unwrap_err();
    /// assert!(error.to_string().starts_with("`$size` is not supported in memory"));
    /// # Ok::<(), watchlock::errors::InvalidInput>(())
    /// ```
    pub fn find(&self, filter: Document) -> Result<Vec<Document>, InvalidInput> {
        check_document("the filter", &filter)?;
        Ok(self.documents.find(&filter)?)
    }

    /// Returns the first matching document, like [`find`](Self::find).
    ///
    /// # Errors
    ///
    /// Same as for [`find`](Self::find).
    pub fn find_one(&self, filter: Document) -> Result<Option<Document>, InvalidInput> {
        Ok(self.find(filter)?.into_iter().next())
    }

    /// Updates all matching documents, and returns their number. Either all of them are updated or none.
    ///
    /// # Errors
    ///
    /// If the filter or the update uses something that is not supported in memory, the update is empty, or a document
    /// can't be updated that way.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::testing::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7, "state": "new" })?;
    /// assert_eq!(orders.update_many(doc! { "state": "new" }, doc! { "$set": { "state": "open" } })?, 1);
    /// # Ok::<(), watchlock::errors::InvalidInput>(())
    /// ```
    pub fn update_many(&self, filter: Document, update: Document) -> Result<u64, InvalidInput> {
        check_document("the filter", &filter)?;
        check_document("the update", &update)?;
        Ok(self.documents.update(&filter, &update)?)
    }

    /// Replaces the document with this `_id`, and returns whether there was one. Its lock is gone with it.
    ///
    /// # Errors
    ///
    /// If the replacement has another `_id` or a field that starts with `$`, or a server would not store it.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::testing::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7, "state": "new" })?;
    /// assert!(orders.replace_one(7, doc! { "state": "open" })?);
    /// assert_eq!(orders.find(doc! {})?, [doc! { "_id": 7, "state": "open" }]);
    /// # Ok::<(), watchlock::errors::InvalidInput>(())
    /// ```
    pub fn replace_one(&self, id: impl Into<Bson>, replacement: Document) -> Result<bool, InvalidInput> {
        Ok(self.documents.replace(&id.into(), replacement)?)
    }

    /// Deletes all matching documents, and their locks with them; returns their number.
    ///
    /// # Errors
    ///
    /// If the filter uses something that is not supported in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use mongodb::bson::doc;
    ///
    /// let orders = watchlock::testing::MemoryCollection::new();
    /// orders.insert_one(doc! { "_id": 7 })?;
    /// assert_eq!(orders.delete_many(doc! {})?, 1);
    /// # Ok::<(), watchlock::errors::InvalidInput>(())
    /// ```
    pub fn delete_many(&self, filter: Document) -> Result<u64, InvalidInput> {
        check_document("the filter", &filter)?;
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

impl<W: World> LockClient<W> {
    /// Returns locks for the documents of a collection in memory, for tests: see [`MemoryCollection`].
    ///
    /// Each client plays the part of another process, wherever its other locks are.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use mongodb::bson::{Document, doc};
    /// use watchlock::{LockClient, testing::MemoryCollection};
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
    pub fn documents_in_memory<T>(&self, collection: &MemoryCollection) -> DocumentLocks<T, W> {
        DocumentLocks::new(self.as_async(), UserCollection::Memory(collection.documents().clone()))
    }
}
