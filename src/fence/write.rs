//! The writes under a fence.
//!
//! The driver's commands run in their own tasks, as a command dropped half-way stalls the connection pool; those in a
//! session of the user's can't. The future that the user awaits decides what follows from their answers: when it is
//! dropped, nothing more is sent.

use std::{fmt, mem, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use mongodb::{
    ClientSession, Collection,
    bson::{Document, doc},
    error::Error,
    options::{
        CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, UpdateModifications, UpdateOptions,
        WriteConcern,
    },
    results::{DeleteResult, InsertOneResult, UpdateResult},
};
use tokio::runtime::Handle;

use super::{Fence, upsert};
use crate::{
    backoff::Backoff,
    error::{
        FenceError, InvalidInput,
        failure::{Failure, failure, is_duplicate},
    },
    hidden::{Hidden, hidden},
    input::check_document,
    store::{detached, first_in},
    truncated_debug::Brief,
};

/// Maximum tries of one write that finds the document changed by others each time. With the pauses this takes a second
/// or two: a write that loses for that long has not lost a race, but has a filter that the server answers differently
/// each time.
const TRIES: u32 = 16;

/// Pauses between the tries.
const TRY_PAUSES: Backoff = Backoff::between(Duration::from_millis(2), Duration::from_millis(200));

/// Waits before the next try; `false` if there are no more tries.
async fn again(tries: &mut Backoff) -> bool {
    let pause = tries.failed();
    if tries.failures() >= TRIES {
        return false;
    }
    tokio::time::sleep(pause).await;
    true
}

fn server(error: Error) -> FenceError {
    FenceError::Server(error.into())
}

/// A write under a [`Fence`], which gives the driver's result `R`. Await it.
#[must_use = "nothing is written unless it is awaited"]
pub struct FencedWrite<'a, R: Written> {
    fence: Fence,
    collection: Hidden<Collection<Document>>,
    /// The user's own.
    filter: Document,
    change: R::Change,
    session: Option<&'a mut ClientSession>,
}

/// A result of a write under a fence.
pub trait Written: Sized + Send {
    /// The change that has this result.
    type Change: fmt::Debug + Send;

    /// Carries out the change.
    fn send(write: FencedWrite<'_, Self>) -> impl Future<Output = Result<Self, FenceError>> + Send;
}

impl<'a, R: Written> FencedWrite<'a, R> {
    pub(super) fn new<T: Send + Sync>(
        fence: &Fence,
        collection: &Collection<T>,
        filter: Document,
        change: R::Change,
    ) -> Self {
        // The majority's view can lag behind acknowledged writes, so the primary's view explains the result. In a
        // transaction the driver leaves all of this to the transaction.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let namespace = collection.namespace();
        let database = collection.client().database(&namespace.db);
        Self {
            fence: fence.clone(),
            collection: hidden(database.collection_with_options(&namespace.coll, options)),
            filter,
            change,
            session: None,
        }
    }

    /// Writes as part of a session of the driver, and of the transaction in progress in it.
    ///
    /// The transaction's own write concern applies then.
    pub fn session(self, session: &'a mut ClientSession) -> Self {
        Self {
            session: Some(session),
            ..self
        }
    }

    fn fenced(&self) -> Document {
        self.fence.filter(self.filter.clone())
    }

    /// Checks that the fence refuses none of these documents.
    async fn check(&mut self, of: Document) -> Result<(), FenceError> {
        let refused = doc! { "$and": [of, { "$nor": [self.fence.lets_through()] }] };
        let root = self.fence.field.split('.').next().unwrap_or_default().to_owned();
        match self.find(refused, &root).await? {
            Some(document) => Err(self.fence.refusal(&document)),
            None => Ok(()),
        }
    }

    /// Explains a write that found no document. `true`: there is none; `false`, after a pause: somebody wrote in between,
    /// and the write is to be repeated.
    async fn has_none(&mut self, tries: &mut Backoff) -> Result<bool, FenceError> {
        self.check(self.filter.clone()).await?;
        if self.find(self.filter.clone(), "_id").await?.is_none() {
            return Ok(true);
        }
        match again(tries).await {
            true => Ok(false),
            false => Err(server(Error::custom(format!(
                "the document was changed by somebody else between each of {TRIES} tries and the check after it"
            )))),
        }
    }

    async fn find(&mut self, filter: Document, field: &str) -> Result<Option<Document>, FenceError> {
        let projection = doc! { field: 1 };
        let found = self.sent(|collection, session| {
            async move { first_in(collection.find(filter).projection(projection), session).await }.boxed()
        });
        found.await.map_err(server)
    }

    /// Runs one command of the driver in the user's session; without one, in a session and a task of its own, to its
    /// end even if nobody waits for it any more.
    async fn sent<O: Send + 'static>(
        &mut self,
        command: impl FnOnce(Hidden<Collection<Document>>, &mut ClientSession) -> BoxFuture<'_, Result<O, Error>>
        + Send
        + 'static,
    ) -> Result<O, Error> {
        let collection = self.collection.clone();
        if let Some(session) = &mut self.session {
            return command(collection, session).await;
        }
        let sent = async move {
            let mut session = collection.client().start_session().await?;
            command(collection, &mut session).await
        };
        let answered = detached(&Handle::current(), sent).await;
        answered.unwrap_or_else(|stopped| Err(Error::custom(stopped)))
    }
}

/// # Updates and replacements
impl FencedWrite<'_, UpdateResult> {
    /// Inserts the document if there is none. The filter must name its `_id` then: a filter that matches several
    /// documents would create a second one when the fence refuses the first. And it must have no condition on the
    /// fence's field: the server would put a value that it asks for into the new document, in place of the token.
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.change.options.upsert = Some(upsert);
        self
    }

    /// Sets which array elements the update's `$[name]` stand for, as with the driver's method. A pipeline or a
    /// replacement has none.
    pub fn array_filters(mut self, filters: impl IntoIterator<Item = Document>) -> Self {
        self.change.options.array_filters = Some(filters.into_iter().collect());
        self
    }

    async fn write(&mut self, change: UpdateModifications) -> Result<UpdateResult, Error> {
        let (filter, replaces, options) = (self.fenced(), self.change.replaces, self.change.options.clone());
        let changing = self.sent(move |collection, session| {
            let changing = async move {
                match change {
                    UpdateModifications::Document(replacement) if replaces => {
                        let replace = collection.replace_one(filter, replacement);
                        replace.upsert(options.upsert == Some(true)).session(session).await
                    }
                    change => {
                        let update = collection.update_one(filter, change).with_options(options);
                        update.session(session).await
                    }
                }
            };
            changing.boxed()
        });
        changing.await
    }
}

impl<R: Written> fmt::Debug for FencedWrite<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The collection is left out: the driver's client shows the user's connection options.
        f.debug_struct("FencedWrite")
            .field("fence", &self.fence)
            .field("collection", &self.collection.namespace().to_string())
            .field("filter", &Brief(&self.filter))
            .field("change", &Brief(&self.change))
            .finish_non_exhaustive()
    }
}

impl<'a, R: Written + 'a> IntoFuture for FencedWrite<'a, R> {
    type Output = Result<R, FenceError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(R::send(self))
    }
}

/// The change to a document that may already exist.
#[derive(Debug)]
pub struct Update {
    change: Result<UpdateModifications, InvalidInput>,
    /// Whether it replaces the document: by the change, or by a pipeline that keeps its locks.
    replaces: bool,
    /// Whether it may insert, and its array filters.
    options: UpdateOptions,
}

impl Update {
    pub(super) fn new(change: Result<UpdateModifications, InvalidInput>, replaces: bool) -> Self {
        Self {
            change,
            replaces,
            options: UpdateOptions::default(),
        }
    }
}

impl Written for UpdateResult {
    type Change = Update;

    async fn send(mut write: FencedWrite<'_, Self>) -> Result<Self, FenceError> {
        // Not copied: it may have many megabytes.
        let nothing = UpdateModifications::Document(Document::new());
        let change = mem::replace(&mut write.change.change, Ok(nothing))?;
        let update = &write.change;
        check_document("the filter", &write.filter)?;
        for filter in update.options.array_filters.iter().flatten() {
            check_document("an array filter", filter)?;
        }
        if update.replaces && update.options.array_filters.is_some() {
            return Err(InvalidInput::new("a replacement can't have array filters").into());
        }
        let is_upsert = update.options.upsert == Some(true);
        let id = is_upsert.then(|| upsert::named_id(&write.filter, &write.fence.field));
        let id = id.transpose()?;
        if let (Some(id), Some(_)) = (&id, &write.session) {
            // A refusal would be a duplicate key, which ends a transaction, so nothing can be checked afterwards. But a
            // transaction keeps seeing the same data to its end.
            write.check(id.clone()).await?;
        }
        let mut tries = TRY_PAUSES;
        loop {
            match (write.write(change.clone()).await, &id) {
                (Ok(result), _) if result.matched_count == 0 && result.upserted_id.is_none() => {
                    if write.has_none(&mut tries).await? {
                        return Ok(result);
                    }
                }
                (Err(error), Some(id)) => {
                    if !is_duplicate(&error) {
                        return Err(server(error));
                    }
                    // In a transaction nothing can be checked after an error; then this error says more.
                    match write.check(id.clone()).await {
                        Ok(()) => {}
                        Err(FenceError::Server(_)) => return Err(server(error)),
                        Err(refused) => return Err(refused),
                    }
                    // A duplicate in another unique index would be the same at each try.
                    if failure(&error) != Failure::Raced {
                        return Err(server(error));
                    }
                    // The document may not match the rest of the filter.
                    let fits = doc! { "$and": [&write.filter, write.fence.lets_through()] };
                    let fits = write.find(fits, "_id").await?.is_some();
                    // Two clients inserted it at once: now that it exists, it is updated.
                    if !fits || !again(&mut tries).await {
                        return Err(server(error));
                    }
                }
                (done, _) => return done.map_err(server),
            }
        }
    }
}

impl Written for InsertOneResult {
    type Change = Result<Document, InvalidInput>;

    async fn send(mut write: FencedWrite<'_, Self>) -> Result<Self, FenceError> {
        let document = mem::replace(&mut write.change, Ok(Document::new()))?;
        if write.session.is_some() {
            // As with an upsert, a refusal would end the transaction.
            write.check(write.filter.clone()).await?;
        }
        let inserted = write
            .sent(|collection, session| async move { collection.insert_one(document).session(session).await }.boxed());
        match inserted.await {
            Err(error) if is_duplicate(&error) => match write.check(write.filter.clone()).await {
                Ok(()) | Err(FenceError::Server(_)) => Err(server(error)),
                Err(refused) => Err(refused),
            },
            inserted => inserted.map_err(server),
        }
    }
}

impl Written for DeleteResult {
    type Change = ();

    async fn send(mut write: FencedWrite<'_, Self>) -> Result<Self, FenceError> {
        check_document("the filter", &write.filter)?;
        let mut tries = TRY_PAUSES;
        loop {
            let filter = write.fenced();
            let deleted = write.sent(|collection, session| {
                async move { collection.delete_one(filter).session(session).await }.boxed()
            });
            let deleted = deleted.await.map_err(server)?;
            if deleted.deleted_count > 0 || write.has_none(&mut tries).await? {
                return Ok(deleted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_are_paced_and_bounded() {
        let (mut tries, start) = (TRY_PAUSES, Instant::now());
        let (mut count, mut last) = (1, start);
        while again(&mut tries).await {
            assert!(last.elapsed() >= Duration::from_millis(2));
            (count, last) = (count + 1, Instant::now());
        }
        assert_eq!(count, TRIES);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}
