//! Work under the lock of a document: locked, done, and released, in one call.

use std::{future::Future, sync::Arc};

use serde::de::DeserializeOwned;

use super::{
    DocumentHandle,
    action::{AcquireDocument, Claim, TryAcquireDocument, TryClaim},
};
use crate::{error::RunError, locks::run::unless_lost};

async fn under<T, F, Fut>(handle: DocumentHandle<T>, work: F) -> Result<Fut::Output, RunError>
where
    F: FnOnce(Arc<DocumentHandle<T>>) -> Fut,
    Fut: Future,
{
    let handle = Arc::new(handle);
    let output = unless_lost(handle.lost_otherwise(), async { work(handle.clone()).await }).await?;
    if let Some(handle) = Arc::into_inner(handle) {
        // An event reports an unconfirmed release.
        let _ = handle.release().await;
    }
    Ok(output)
}

impl<T: DeserializeOwned + Send + Sync + 'static> AcquireDocument<T> {
    /// Locks the document, runs the future that `work` makes, and releases the document; see
    /// [`Acquire::run`](crate::Acquire::run). Set other options first.
    ///
    /// The work may delete the document, and its lock with it. Otherwise the document is released when the future has
    /// ended. If the work has kept a clone of its handle elsewhere, it is
    /// released when that is dropped.
    ///
    /// # Errors
    ///
    /// Same as for [`Acquire::run`](crate::Acquire::run).
    ///
    /// # Cancel safety
    ///
    /// Same as for [`Acquire::run`](crate::Acquire::run).
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": "order-7" })?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let ship = doc! { "$set": { "state": "shipped" } };
    /// orders.acquire("order-7").reason("shipping").run(|order| async move { order.update(ship).await }).await??;
    /// assert_eq!(memory.find(doc! { "state": "shipped" })?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output, RunError>
    where
        F: FnOnce(Arc<DocumentHandle<T>>) -> Fut,
        Fut: Future,
    {
        under(self.await?, work).await
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> TryAcquireDocument<T> {
    /// Runs the future that `work` makes under the lock of the document, if that is free and nobody waits for it;
    /// `None` otherwise, and then `work` is not called. See [`AcquireDocument::run`], which has the same errors.
    ///
    /// # Errors
    ///
    /// Same as for [`AcquireDocument::run`].
    ///
    /// # Cancel safety
    ///
    /// Same as for [`AcquireDocument::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::MemoryCollection::new();
    /// # memory.insert_one(doc! { "_id": 7 })?;
    /// # let orders = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// let other = orders.acquire(7).await?;
    /// assert_eq!(orders.try_acquire(7).run(|_| async { "done" }).await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Option<Fut::Output>, RunError>
    where
        F: FnOnce(Arc<DocumentHandle<T>>) -> Fut,
        Fut: Future,
    {
        match self.await? {
            Some(handle) => under(handle, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Claim<T> {
    /// Claims a document, runs the future that `work` makes, and releases the document. See [`AcquireDocument::run`],
    /// which has the same errors. Set other options first.
    ///
    /// # Errors
    ///
    /// Same as for [`AcquireDocument::run`].
    ///
    /// # Cancel safety
    ///
    /// Same as for [`AcquireDocument::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::MemoryCollection::new();
    /// # memory.insert_one(doc! { "done": false })?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// events.claim(doc! { "done": false }).run(|event| async move { event.delete().await }).await??;
    /// assert!(memory.find(doc! {})?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output, RunError>
    where
        F: FnOnce(Arc<DocumentHandle<T>>) -> Fut,
        Fut: Future,
    {
        under(self.await?, work).await
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> TryClaim<T> {
    /// Runs the future that `work` makes under the lock of a free document; `None` if there is none, and then `work` is
    /// not called. See [`AcquireDocument::run`], which has the same errors. Set other options first.
    ///
    /// # Errors
    ///
    /// Same as for [`AcquireDocument::run`].
    ///
    /// # Cancel safety
    ///
    /// Same as for [`AcquireDocument::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::MemoryCollection::new();
    /// # memory.insert_one(doc! { "n": 1 })?;
    /// # let events = watchlock::LockClient::in_memory().documents_in_memory::<Document>(&memory);
    /// while let Some(deleted) = events.try_claim(doc! {}).run(|event| async move { event.delete().await }).await? {
    ///     deleted?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(self, work: F) -> Result<Option<Fut::Output>, RunError>
    where
        F: FnOnce(Arc<DocumentHandle<T>>) -> Fut,
        Fut: Future,
    {
        match self.await? {
            Some(handle) => under(handle, work).await.map(Some),
            None => Ok(None),
        }
    }
}
