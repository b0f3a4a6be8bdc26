//! The writes under a fence.
//!
//! The driver's commands run in their own tasks, as a command dropped half-way stalls the connection pool; those in a
//! session of the user's can't. The future that the user awaits decides what follows from their answers: when it is dropped, nothing more is sent.

use std::{fmt, time::Duration};

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
    input::check_document,
    store::detached,
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

fn used_up() -> FenceError {
    server(Error::custom(format!(
        "the document was changed by somebody else between each of {TRIES} tries and the check after it"
    )))
}

fn server(error: Error) -> FenceError {
    FenceError::Server(error.into())
}

/// Fields common to all writes.
#[derive(Clone)]
pub struct Write {
    fence: Fence,
    collection: Collection<Document>,
    filter: Document,
}

impl Write {
    pub(super) fn new<T: Send + Sync>(fence: &Fence, collection: &Collection<T>, filter: Document) -> Self {
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
            collection: database.collection_with_options(&namespace.coll, options),
            filter,
        }
    }

    /// Checks the user's own filter.
    fn check_filter(&self) -> Result<(), InvalidInput> {
        check_document("the filter", &self.filter)
    }

    fn fenced(&self) -> Document {
        self.fence.filter(self.filter.clone())
    }

    /// Checks that the fence refuses none of these documents.
    async fn check(&self, of: &Document, session: &mut Option<&mut ClientSession>) -> Result<(), FenceError> {
        let refused = doc! { "$and": [of, { "$nor": [self.fence.lets_through()] }] };
        let root = self.fence.field.split('.').next().unwrap_or_default();
        match self.find(refused, root, session).await? {
            Some(document) => Err(self.fence.refusal(&document)),
            None => Ok(()),
        }
    }

    /// Returns whether there is any document for the user's own filter.
    async fn has_any(&self, session: &mut Option<&mut ClientSession>) -> Result<bool, FenceError> {
        Ok(self.find(self.filter.clone(), "_id", session).await?.is_some())
    }

    async fn find(
        &self,
        filter: Document,
        field: &str,
        session: &mut Option<&mut ClientSession>,
    ) -> Result<Option<Document>, FenceError> {
        let projection = doc! { field: 1 };
        let found = self.sent(session, |collection, session| {
            let finding = async move {
                collection
                    .find_one(filter)
                    .projection(projection)
                    .session(session)
                    .await
            };
            finding.boxed()
        });
        found.await.map_err(server)
    }

    async fn change(
        &self,
        change: &FencedChange,
        upsert: bool,
        array_filters: Option<&Vec<Document>>,
        session: &mut Option<&mut ClientSession>,
    ) -> Result<UpdateResult, Error> {
        let (filter, change) = (self.fenced(), change.clone());
        let mut options = UpdateOptions::default();
        options.array_filters = array_filters.cloned();
        let changing = self.sent(session, move |collection, session| {
            let changing = async move {
                match change {
                    FencedChange::Update(update) => {
                        let update = collection.update_one(filter, update).with_options(options);
                        update.upsert(upsert).session(session).await
                    }
                    FencedChange::Replace(replacement) => {
                        let replace = collection.replace_one(filter, replacement);
                        replace.upsert(upsert).session(session).await
                    }
                }
            };
            changing.boxed()
        });
        changing.await
    }

    /// Runs one command of the driver in the user's session; without one, in a session and a task of its own, to its
    /// end even if nobody waits for it any more.
    async fn sent<R: Send + 'static>(
        &self,
        session: &mut Option<&mut ClientSession>,
        command: impl FnOnce(Collection<Document>, &mut ClientSession) -> BoxFuture<'_, Result<R, Error>> + Send + 'static,
    ) -> Result<R, Error> {
        let collection = self.collection.clone();
        if let Some(session) = session {
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

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The collection is left out: the driver's client shows the user's connection options.
        f.debug_struct("Write")
            .field("fence", &self.fence)
            .field("collection", &self.collection.namespace().to_string())
            .field("filter", &Brief(&self.filter))
            .finish()
    }
}

/// The change to a document that may already exist.
#[derive(Clone, Debug)]
pub(super) enum FencedChange {
    Update(UpdateModifications),
    Replace(Document),
}

/// A write under a [`Fence`], which gives the driver's result `R`. Await it.
#[must_use = "nothing is written unless it is awaited"]
pub struct FencedWrite<'a, R: Written> {
    write: Write,
    change: R::Change,
    session: Option<&'a mut ClientSession>,
}

/// A result of a write under a fence.
pub trait Written: Sized + Send {
    /// The change that has this result.
    type Change: fmt::Debug + Send;

    /// Carries out the change.
    fn send(
        write: Write,
        change: Self::Change,
        session: Option<&mut ClientSession>,
    ) -> impl Future<Output = Result<Self, FenceError>> + Send;
}

impl<R: Written> FencedWrite<'_, R> {
    pub(super) fn new(write: Write, change: R::Change) -> Self {
        Self {
            write,
            change,
            session: None,
        }
    }

    /// Writes as part of a session of the driver, and of the transaction in progress in it.
    ///
    /// The transaction's own write concern applies then.
    pub fn session(self, session: &mut ClientSession) -> FencedWrite<'_, R> {
        FencedWrite {
            session: Some(session),
            write: self.write,
            change: self.change,
        }
    }
}

/// # Updates and replacements
impl FencedWrite<'_, UpdateResult> {
    /// Inserts the document if there is none. The filter must name its `_id` then: a filter that matches several
    /// documents would create a second one when the fence refuses the first. And it must have no condition on the
    /// fence's field: the server would put a value that it asks for into the new document, in place of the token.
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.change.upsert = upsert;
        self
    }

    /// Sets which array elements the update's `$[name]` stand for, as with the driver's method. A pipeline or a
    /// replacement has none.
    pub fn array_filters(mut self, filters: impl IntoIterator<Item = Document>) -> Self {
        self.change.array_filters = Some(filters.into_iter().collect());
        self
    }
}

impl<R: Written> fmt::Debug for FencedWrite<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedWrite")
            .field("write", &self.write)
            .field("change", &Brief(&self.change))
            .finish_non_exhaustive()
    }
}

impl<'a, R: Written + 'a> IntoFuture for FencedWrite<'a, R> {
    type Output = Result<R, FenceError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(R::send(self.write, self.change, self.session))
    }
}

/// An update or a replacement, with its options.
#[derive(Debug)]
pub struct Update {
    change: Result<FencedChange, InvalidInput>,
    /// Whether it replaces the document: with a lock in it, that is [`FencedChange::Update`] as well.
    replaces: bool,
    upsert: bool,
    array_filters: Option<Vec<Document>>,
}

impl Update {
    pub(super) fn new(change: Result<FencedChange, InvalidInput>, replaces: bool) -> Self {
        Self {
            change,
            replaces,
            upsert: false,
            array_filters: None,
        }
    }
}

impl Written for UpdateResult {
    type Change = Update;

    async fn send(write: Write, update: Update, mut session: Option<&mut ClientSession>) -> Result<Self, FenceError> {
        let change = update.change?;
        write.check_filter()?;
        let filters = update.array_filters.as_ref();
        for filter in filters.into_iter().flatten() {
            check_document("an array filter", filter)?;
        }
        if update.replaces && filters.is_some() {
            return Err(InvalidInput::new("a replacement can't have array filters").into());
        }
        let id = update
            .upsert
            .then(|| upsert::named_id(&write.filter, &write.fence.field));
        let id = id.transpose()?;
        if let (Some(id), Some(_)) = (&id, &session) {
            // A refusal would be a duplicate key, which ends a transaction, so nothing can be checked afterwards. But a
            // transaction keeps seeing the same data to its end.
            write.check(id, &mut session).await?;
        }
        let mut tries = TRY_PAUSES;
        loop {
            let done = write.change(&change, id.is_some(), filters, &mut session).await;
            match (done, &id) {
                (Ok(result), _) if result.matched_count == 0 && result.upserted_id.is_none() => {
                    write.check(&write.filter, &mut session).await?;
                    if !write.has_any(&mut session).await? {
                        return Ok(result);
                    }
                    if !again(&mut tries).await {
                        return Err(used_up());
                    }
                }
                (Err(error), Some(id)) => {
                    if !is_duplicate(&error) {
                        return Err(server(error));
                    }
                    // In a transaction nothing can be checked after an error; then this error says more.
                    match write.check(id, &mut session).await {
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
                    let fits = write.find(fits, "_id", &mut session).await?.is_some();
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

    async fn send(
        write: Write,
        document: Result<Document, InvalidInput>,
        mut session: Option<&mut ClientSession>,
    ) -> Result<Self, FenceError> {
        let document = document?;
        if session.is_some() {
            // As with an upsert, a refusal would end the transaction.
            write.check(&write.filter, &mut session).await?;
        }
        let inserted = write.sent(&mut session, |collection, session| {
            async move { collection.insert_one(document).session(session).await }.boxed()
        });
        match inserted.await {
            Err(error) if is_duplicate(&error) => match write.check(&write.filter, &mut session).await {
                Ok(()) | Err(FenceError::Server(_)) => Err(server(error)),
                Err(refused) => Err(refused),
            },
            inserted => inserted.map_err(server),
        }
    }
}

impl Written for DeleteResult {
    type Change = ();

    async fn send(write: Write, (): (), mut session: Option<&mut ClientSession>) -> Result<Self, FenceError> {
        write.check_filter()?;
        let mut tries = TRY_PAUSES;
        loop {
            let filter = write.fenced();
            let deleted = write.sent(&mut session, |collection, session| {
                async move { collection.delete_one(filter).session(session).await }.boxed()
            });
            let deleted = deleted.await.map_err(server)?;
            if deleted.deleted_count > 0 {
                return Ok(deleted);
            }
            write.check(&write.filter, &mut session).await?;
            if !write.has_any(&mut session).await? {
                return Ok(deleted);
            }
            if !again(&mut tries).await {
                return Err(used_up());
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
