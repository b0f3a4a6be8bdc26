//! Documents without a server, for tests.

use std::{any::Any, borrow::Borrow, fmt, marker::PhantomData, sync::Arc};

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use serde::{Serialize, de::DeserializeOwned};

use super::check_encodable;
use crate::{
    client::LockClient,
    documents::DocumentLocks,
    error::InvalidInput,
    input::{check_document, check_id},
    store::{MemoryDocuments, collection::UserCollection, read_as, write_as},
    world::World,
};

/// A collection in the memory of this process, whose documents can be locked: for tests of your own code.
///
/// Code that takes a [`DocumentLocks`](crate::documents::DocumentLocks) runs on the documents of a server, and on
/// these: [`LockClient::documents_in_memory`](crate::LockClient::documents_in_memory) makes one for them. Clones are
/// the same collection. By its own methods, which are named as those of the driver's `Collection`, a test plays the
/// other programs that use it: as on a server their writes ignore the locks, and documents that are read as `Document`
/// show them. Locks behave as on a replica set, by tokio's clock, as with [`InMemory`](crate::testing::InMemory).
///
/// These parts of the filter and update languages are supported, and behave as on the server:
///
/// - Filters: `$eq`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$exists`, `$and`, `$or`, and a field with a value. Paths with
///   dots lead into documents, and into each document of an array; a value in an array is found there. Numbers, texts,
///   dates, ObjectIds, booleans and null can be compared; other values can be equal.
/// - Sorts: by fields of these types, 1 or -1.
/// - Updates: `$set`, `$unset` and `$inc`.
///
/// Everything else (another operator, a regular expression, an array index, a pipeline) is an error that names it, and
/// nothing is done: [`InvalidInput`] here, [`AcquireError::Server`](crate::errors::AcquireError::Server) and
/// [`HoldError::Server`](crate::errors::HoldError::Server) from locks. So are documents that a server would not store
/// (16 MB, 180 levels of documents and arrays, a NUL in the name of a field) or that can't be read as a `T`.
///
/// # Examples
///
/// ```
/// use mongodb::bson::doc;
/// use watchlock::{LockClient, documents::DocumentLocks, testing::MemoryCollection};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Order {
///     #[serde(rename = "_id")]
///     id: i32,
///     state: String,
///     opened: i32,
/// }
///
/// /// The code under test.
/// async fn close_the_oldest(orders: &DocumentLocks<Order>) -> Result<(), Box<dyn std::error::Error>> {
///     let order = orders.claim(doc! { "state": "open" }).sort(doc! { "opened": 1 }).await?;
///     order.update(doc! { "$set": { "state": "closed" } }).await?;
///     order.release().await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let orders = MemoryCollection::<Order>::new();
/// orders.insert_one(Order { id: 1, state: "open".into(), opened: 20 }).await?;
/// orders.insert_one(Order { id: 2, state: "open".into(), opened: 10 }).await?;
///
/// close_the_oldest(&LockClient::in_memory().documents_in_memory(&orders)).await?;
/// let closed = orders.find_one(doc! { "state": "closed" }).await?.expect("one was closed");
/// assert_eq!(closed.id, 2);
/// assert_eq!(orders.count_documents(doc! { "state": "open" }).await?, 1);
///
/// // The other programs that use the collection.
/// orders.replace_one(doc! { "_id": 1 }, Order { id: 1, state: "new".into(), opened: 30 }).await?;
/// let updated = orders.update_one(doc! { "state": "new" }, doc! { "$set": { "state": "open" } }).await?;
/// assert_eq!((updated.matched_count, updated.modified_count), (1, 1));
/// assert_eq!(orders.update_many(doc! {}, doc! { "$inc": { "opened": 1 } }).await?.modified_count, 2);
/// orders.delete_one(doc! { "_id": 2 }).await?;
/// assert_eq!(orders.find(doc! { "opened": { "$gt": 30 } }).await?.len(), 1);
/// assert_eq!(orders.delete_many(doc! {}).await?.deleted_count, 1);
///
/// let error = orders.find(doc! { "lines": { "$size": 2 } }).await.err().expect("it is refused");
/// assert!(error.to_string().starts_with("`$size` is not supported in memory"));
/// # Ok(()) }
/// ```
pub struct MemoryCollection<T = Document> {
    documents: Arc<MemoryDocuments>,
    of: PhantomData<fn() -> T>,
}

impl<T> MemoryCollection<T> {
    /// Returns a collection without documents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same collection, with its documents read and written as another type.
    pub fn clone_with_type<O>(&self) -> MemoryCollection<O> {
        MemoryCollection {
            documents: self.documents.clone(),
            of: PhantomData,
        }
    }

    /// Inserts a document, with a new `ObjectId` as `_id` if it has none. An `_id` that is there already is refused,
    /// and one that is an array, a regular expression or undefined.
    pub async fn insert_one(&self, document: impl Borrow<T>) -> Result<InsertOneResult, InvalidInput>
    where
        T: Serialize + 'static,
    {
        let document = written(document.borrow())?;
        document.get("_id").map_or(Ok(()), check_id)?;
        let mut inserted = InsertOneResult::default();
        inserted.inserted_id = self.documents.insert(document)?;
        Ok(inserted)
    }

    /// Returns the matching documents, in the order in which they were inserted.
    pub async fn find(&self, filter: Document) -> Result<Vec<T>, InvalidInput>
    where
        T: DeserializeOwned,
    {
        self.matching(&filter)?.iter().map(read).collect()
    }

    /// Returns the first matching document, like [`find`](Self::find).
    pub async fn find_one(&self, filter: Document) -> Result<Option<T>, InvalidInput>
    where
        T: DeserializeOwned,
    {
        self.matching(&filter)?.first().map(read).transpose()
    }

    /// Returns the number of matching documents.
    pub async fn count_documents(&self, filter: Document) -> Result<u64, InvalidInput> {
        Ok(self.matching(&filter)?.len() as u64)
    }

    /// Updates the first matching document. An empty update is refused, and one by which the document can't be updated.
    pub async fn update_one(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<UpdateResult, InvalidInput> {
        self.update(&filter, &update.into(), 1)
    }

    /// Updates all matching documents, like [`update_one`](Self::update_one), or none if one can't be updated.
    pub async fn update_many(
        &self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<UpdateResult, InvalidInput> {
        self.update(&filter, &update.into(), usize::MAX)
    }

    /// Replaces the first matching document. Its lock is gone with it. A replacement with another `_id`, or a field
    /// that starts with `$`, is refused.
    pub async fn replace_one(&self, filter: Document, replacement: impl Borrow<T>) -> Result<UpdateResult, InvalidInput>
    where
        T: Serialize + 'static,
    {
        check_document("the filter", &filter)?;
        let replaced = self.documents.replace(&filter, written(replacement.borrow())?)?;
        Ok(update_result(replaced))
    }

    /// Deletes the first matching document, and its lock with it.
    pub async fn delete_one(&self, filter: Document) -> Result<DeleteResult, InvalidInput> {
        self.delete(&filter, 1)
    }

    /// Deletes all matching documents, and their locks with them.
    pub async fn delete_many(&self, filter: Document) -> Result<DeleteResult, InvalidInput> {
        self.delete(&filter, usize::MAX)
    }

    fn matching(&self, filter: &Document) -> Result<Vec<Document>, InvalidInput> {
        check_document("the filter", filter)?;
        self.documents.find(filter)
    }

    fn update(
        &self,
        filter: &Document,
        update: &UpdateModifications,
        most: usize,
    ) -> Result<UpdateResult, InvalidInput> {
        check_document("the filter", filter)?;
        check_encodable(update)?;
        Ok(update_result(self.documents.update(filter, update, most)?))
    }

    fn delete(&self, filter: &Document, most: usize) -> Result<DeleteResult, InvalidInput> {
        check_document("the filter", filter)?;
        let mut deleted = DeleteResult::default();
        deleted.deleted_count = self.documents.delete(filter, most)?;
        Ok(deleted)
    }
}

/// Returns a document as it is stored.
fn written<T: Serialize + 'static>(document: &T) -> Result<Document, InvalidInput> {
    // Checked before it is written: one that is nested too deeply would overflow the stack.
    if let Some(document) = (document as &dyn Any).downcast_ref::<Document>() {
        return Ok(document.clone());
    }
    write_as(document).map_err(|problem| InvalidInput::new(format!("the document can't be written as BSON: {problem}")))
}

fn read<T: DeserializeOwned>(document: &Document) -> Result<T, InvalidInput> {
    read_as(document).map_err(|problem| {
        let id = document.get("_id").unwrap_or(&Bson::Null);
        InvalidInput::new(format!(
            "the document with the `_id` {id} can't be read as this type: {problem}"
        ))
    })
}

/// Returns the result of an update in the form of the driver's.
fn update_result((matched, modified): (u64, u64)) -> UpdateResult {
    let mut updated = UpdateResult::default();
    updated.matched_count = matched;
    updated.modified_count = modified;
    updated
}

impl<T> Clone for MemoryCollection<T> {
    fn clone(&self) -> Self {
        self.clone_with_type()
    }
}

impl<T> Default for MemoryCollection<T> {
    fn default() -> Self {
        Self {
            documents: Arc::default(),
            of: PhantomData,
        }
    }
}

impl<T> fmt::Debug for MemoryCollection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCollection").finish_non_exhaustive()
    }
}

impl<W: World> LockClient<W> {
    /// Returns locks for the documents of a collection in memory, for tests: see [`MemoryCollection`], which has an
    /// example.
    pub fn documents_in_memory<T>(&self, collection: &MemoryCollection<T>) -> DocumentLocks<T, W> {
        DocumentLocks::new(self.as_async(), UserCollection::Memory(collection.documents.clone()))
    }
}
