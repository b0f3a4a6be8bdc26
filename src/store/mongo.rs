//! Locks in a MongoDB collection. The only place that sends commands.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use mongodb::{
    Collection, Database, IndexModel,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind, WriteFailure},
    options::{
        CollectionOptions, IndexOptions, ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, WriteConcern,
    },
    raw_batch_cursor::RawBatchCursor,
};
use tokio::time::Instant;

use super::{Answer, Documents, Event, Exchange, Failure, Renewal, ResumeAt, Selection, Sighting, StoreError};
use crate::protocol::{Operation, ServerTime, State, pipeline, wake};

/// How long the server may hold an empty `getMore`. A stream silent for longer than this and a margin is taken for
/// dead, so it is also how soon a stream that silently stopped is noticed; each one costs a command.
pub(crate) const AWAIT_TIME: Duration = Duration::from_millis(4_750);

const TTL_INDEX: &str = "watchlock_purge_at";

/// What the server said it is, when it was asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    ReplicaSet,
    Sharded,
    Standalone,
}

/// One collection of lock documents.
#[derive(Debug)]
pub(crate) struct MongoStore {
    collection: Collection<Document>,
    topology: Topology,
}

impl MongoStore {
    /// Asks the server once what it is and what its clock says.
    pub(crate) async fn connect(database: &Database, collection: &str) -> Result<(Self, Exchange), StoreError> {
        let sent = Instant::now();
        // Asked of whoever may answer for the collection's writes, so that an unreachable primary shows here.
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let hello = database
            .run_command(doc! { "hello": 1 })
            .selection_criteria(primary.clone())
            .await?;
        let now = hello
            .get_datetime("localTime")
            .ok()
            .map(|now| ServerTime(now.timestamp_millis()));
        let topology = if hello.contains_key("setName") {
            Topology::ReplicaSet
        } else if hello.get_str("msg").is_ok_and(|message| message == "isdbgrid") {
            Topology::Sharded
        } else {
            Topology::Standalone
        };
        // Set here and never inherited: what the user chose for the database is for the user's own data. A grant
        // that is not majority-committed can be rolled back, and be granted again to another.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary)
            .build();
        let collection = database.collection_with_options(collection, options);
        Ok((
            Self { collection, topology },
            Exchange {
                sent,
                received: Instant::now(),
                now,
            },
        ))
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    pub(super) async fn run(&self, name: &str, operation: &Operation) -> Result<Answer, StoreError> {
        let sent = Instant::now();
        let answer = self
            .collection
            .find_one_and_update(
                pipeline::selection(name, operation),
                pipeline::operation(operation, &now()),
            )
            .upsert(operation.creates())
            .return_document(ReturnDocument::After)
            .projection(fields())
            .await;
        let document = match answer {
            Ok(document) => document,
            Err(error) => return Err(self.explain(name, error).await),
        };
        let exchange = Exchange {
            sent,
            received: Instant::now(),
            now: document.as_ref().and_then(server_now),
        };
        let state = document.map(|document| State::from_document(&document)).transpose();
        match state {
            Ok(state) => Ok(Answer { state, exchange }),
            // A pipeline that only takes entries out leaves a foreign document as it is: nothing of ours is in it.
            Err(_) if !operation.creates() => Ok(Answer { state: None, exchange }),
            Err(malformed) => Err(malformed.into()),
        }
    }

    pub(super) async fn renew(&self, renewal: &Renewal) -> Result<u64, StoreError> {
        let update = pipeline::renewal(&renewal.operation, &renewal.ids, renewal.keep, &now());
        let filter = doc! { "_id": { "$in": &renewal.names }, "holders.id": { "$in": &renewal.ids } };
        Ok(self.collection.update_many(filter, update).await?.modified_count)
    }

    /// Reads what the primary has now. The majority's view can lag behind a write that was acknowledged already, and a
    /// hold that had just been granted would be taken for lost.
    pub(super) async fn read(&self, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        let sent = Instant::now();
        let find = self.collection.find(doc! { "_id": { "$in": names } });
        let cursor = find.projection(fields()).read_concern(ReadConcern::local()).await?;
        let documents: Vec<Document> = cursor.try_collect().await?;
        let now = documents.first().and_then(server_now);
        let named = documents.into_iter().filter_map(|document| {
            let name = document.get_str("_id").ok()?.to_owned();
            Some((name, State::from_document(&document)))
        });
        Ok((
            named.collect(),
            Exchange {
                sent,
                received: Instant::now(),
                now,
            },
        ))
    }

    pub(super) async fn list(
        &self,
        selection: &Selection,
    ) -> Result<(Vec<(String, State)>, Option<ServerTime>), StoreError> {
        // No text that begins with the prefix comes after this, but for those that go on with this very character.
        let mut query =
            doc! { "_id": { "$gte": &selection.prefix, "$lte": format!("{}\u{10ffff}", selection.prefix) } };
        if let Some(kind) = selection.kind {
            query.insert("kind", kind.as_str());
        }
        if selection.held == Some(true) {
            query.insert("holders.0", doc! { "$exists": true });
        }
        let find = self.collection.find(query).projection(fields());
        let mut cursor = find.read_concern(ReadConcern::local()).await?;
        let (mut found, mut now) = (Vec::new(), None);
        while let Some(document) = cursor.try_next().await? {
            now = server_now(&document).or(now);
            if let (Ok(name), Ok(state)) = (document.get_str("_id"), State::from_document(&document)) {
                found.push((name.to_owned(), state));
            }
        }
        Ok((found, now))
    }

    /// Opens the stream as a plain aggregation and not through the driver's `watch`, whose own resuming can lose
    /// events unseen (a retried resume starts from now) and whose errors come late: here every gap is known, and every
    /// batch, empty ones too, is a sign of life.
    pub(super) async fn watch(
        &self,
        session: &str,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream<Event>, StoreError> {
        self.stream(Document::new(), concerning(session), read_event, resume)
            .await
    }

    /// Opens a stream of whatever happens to the document `name`.
    pub(super) async fn follow(
        &self,
        name: &str,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream<Sighting>, StoreError> {
        let options = doc! { "fullDocument": "updateLookup" };
        self.stream(options, about(name), read_sighting, resume).await
    }

    async fn stream<T>(
        &self,
        mut options: Document,
        selection: [Document; 2],
        read: fn(&Document) -> T,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream<T>, StoreError> {
        if let Some(ResumeAt(token)) = resume {
            options.insert("resumeAfter", token);
        }
        let mut stages = vec![doc! { "$changeStream": options }];
        stages.extend(selection);
        let cursor = self
            .collection
            .aggregate(stages)
            .max_await_time(AWAIT_TIME)
            .batch()
            .await?;
        // The answer to the aggregation itself: the stream is open as of now.
        let mut stream = MongoStream {
            cursor,
            read,
            first: None,
            resume_at: resume.cloned(),
        };
        stream.first = Some(stream.read_batch().await?);
        Ok(stream)
    }

    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let options = IndexOptions::builder()
            .name(TTL_INDEX.to_owned())
            .expire_after(Duration::ZERO)
            .build();
        let index = IndexModel::builder()
            .keys(doc! { "purge_at": 1 })
            .options(options)
            .build();
        self.collection.create_index(index).await?;
        Ok(())
    }

    /// A server's refusal of a pipeline says little where the reason is a document that is not a lock's.
    async fn explain(&self, name: &str, error: Error) -> StoreError {
        let error = StoreError::from(error);
        if error.kind == Failure::Refused
            && let Ok(Some(document)) = self.collection.find_one(doc! { "_id": name }).await
            && let Err(malformed) = State::from_document(&document)
        {
            return malformed.into();
        }
        error
    }
}

fn now() -> Bson {
    Bson::from("$$NOW")
}

/// The lock's own fields, and the server's clock as the answer is made.
fn fields() -> Document {
    doc! {
        "kind": 1, "capacity": 1, "token": 1, "holders": 1, "queue": 1, "wake": 1, "version": 1, "at": 1, "purge_at": 1,
        "broken": 1,
        "_watchlock_now": "$$NOW",
    }
}

fn server_now(document: &Document) -> Option<ServerTime> {
    document
        .get_datetime("_watchlock_now")
        .ok()
        .map(|now| ServerTime(now.timestamp_millis()))
}

/// Selects, on the server, what concerns a session: writes that name one of its entries, and whatever is not a write
/// of the protocol. A pipeline update is reported as an `update` with a delta or as a whole `replace`, as the server
/// likes, so `wake` is looked for in both.
fn concerning(session: &str) -> [Document; 2] {
    let pattern = doc! { "$regex": wake::pattern(session) };
    const DELTA: &str = "updateDescription.updatedFields.wake";
    const WHOLE: &str = "fullDocument.wake";
    [
        doc! { "$match": { "$or": [
            { DELTA: &pattern },
            { WHOLE: &pattern },
            { "operationType": { "$in": ["update", "replace"] },
              DELTA: { "$not": { "$type": "string" } }, WHOLE: { "$not": { "$type": "string" } } },
            { "operationType": { "$nin": ["insert", "update", "replace"] } },
        ] } },
        doc! { "$project": {
            "operationType": 1, "documentKey": 1,
            "wake": { "$ifNull": ["$fullDocument.wake", "$updateDescription.updatedFields.wake"] },
            "at": { "$ifNull": ["$fullDocument.at", "$updateDescription.updatedFields.at"] },
        } },
    ]
}

/// Selects what happens to one document, and to the collection.
fn about(name: &str) -> [Document; 2] {
    [
        doc! { "$match": { "$or": [
            { "documentKey._id": { "$eq": name } },
            { "operationType": { "$nin": ["insert", "update", "replace", "delete"] } },
        ] } },
        doc! { "$project": { "operationType": 1, "fullDocument": 1 } },
    ]
}

/// An open stream; dropping it closes the server's cursor in the background.
pub(crate) struct MongoStream<T> {
    cursor: RawBatchCursor,
    read: fn(&Document) -> T,
    first: Option<Vec<T>>,
    resume_at: Option<ResumeAt>,
}

impl<T> MongoStream<T> {
    pub(super) async fn next(&mut self) -> Result<Vec<T>, StoreError> {
        match self.first.take().filter(|events| !events.is_empty()) {
            Some(events) => Ok(events),
            None => self.read_batch().await,
        }
    }

    pub(super) fn resume_at(&self) -> Option<ResumeAt> {
        self.resume_at.clone()
    }

    async fn read_batch(&mut self) -> Result<Vec<T>, StoreError> {
        let Some(batch) = self.cursor.next().await.transpose()? else {
            // The server closes the cursor after an invalidating event.
            self.resume_at = None;
            return Err(Error::custom("the change stream was closed by the server").into());
        };
        let mut events = Vec::new();
        for event in batch.doc_slices()?.into_iter() {
            let Some(event) = event.map_err(unreadable)?.as_document() else {
                continue;
            };
            events.push((self.read)(&Document::try_from(event).map_err(unreadable)?));
        }
        let cursor = batch.as_raw_document().get_document("cursor").ok();
        if let Some(token) = cursor.and_then(|cursor| cursor.get_document("postBatchResumeToken").ok()) {
            self.resume_at = Document::try_from(token).ok().map(ResumeAt);
        }
        Ok(events)
    }
}

fn read_sighting(event: &Document) -> Sighting {
    match (
        event.get_str("operationType"),
        event.get_document("fullDocument").map(State::from_document),
    ) {
        (Ok("delete"), _) => Sighting::Gone,
        (Ok("insert" | "update" | "replace"), Ok(Ok(state))) => Sighting::State(Box::new(state)),
        // Deleted or overwritten since, or the collection is: the document must be read.
        _ => Sighting::Unclear,
    }
}

fn read_event(event: &Document) -> Event {
    let name = event.get_document("documentKey").ok().map(|key| key.get_str("_id"));
    match (event.get_str("operationType"), name) {
        (Ok("insert" | "update" | "replace" | "delete"), Some(Ok(name))) => {
            match (event.get_str("wake"), event.get_datetime("at")) {
                (Ok(wake), Ok(at)) => Event::Addressed {
                    name: name.to_owned(),
                    wake: wake.to_owned(),
                    at: ServerTime(at.timestamp_millis()),
                },
                _ => Event::Foreign { name: name.to_owned() },
            }
        }
        // Some other program's document: no lock's name is anything but a string.
        (Ok("insert" | "update" | "replace" | "delete"), Some(Err(_))) => Event::Foreign { name: String::new() },
        _ => Event::Everything,
    }
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError {
        kind: Failure::Unavailable,
        source: Arc::new(error),
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        Self {
            kind: failure(&error),
            source: Arc::new(error),
        }
    }
}

/// Sorts the driver's errors. Only what the server certainly refused, and would refuse again, is final: whatever can
/// come with a fail-over, a cut connection or an overloaded server is not.
fn failure(error: &Error) -> Failure {
    if error.contains_label("RetryableWriteError") || error.contains_label("TransientTransactionError") {
        return Failure::Unavailable;
    }
    if let Some(code) = code(error) {
        return failure_by_code(code);
    }
    match &*error.kind {
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::Authentication { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::Shutdown => Failure::Refused,
        _ => Failure::Unavailable,
    }
}

pub(super) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        _ => None,
    }
}

/// Codes of the server: a duplicate key; then those of the driver specifications that come and go with the state of
/// the replica set or the load of the server.
fn failure_by_code(code: i32) -> Failure {
    match code {
        11000 => Failure::Raced,
        // HostUnreachable, HostNotFound, LockTimeout, CursorNotFound, LockBusy, MaxTimeMSExpired, WriteConcernFailed,
        // NetworkTimeout, ShutdownInProgress, NotYetInitialized, WriteConflict, ReadConcernMajorityNotAvailableYet,
        // QueryPlanKilled, PrimarySteppedDown, NetworkInterfaceExceededTimeLimit, CursorKilled, ExceededTimeLimit,
        // ConnectionPoolExpired, TemporarilyUnavailable, SocketException, NotWritablePrimary, InterruptedAtShutdown,
        // Interrupted, InterruptedDueToReplStateChange, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        6 | 7 | 24 | 43 | 46 | 50 | 64 | 89 | 91 | 94 | 112 | 134 | 175 | 189 | 202 | 237 | 262 | 317 | 365 | 9001
        | 10107 | 11600 | 11601 | 11602 | 13435 | 13436 => Failure::Unavailable,
        _ => Failure::Refused,
    }
}
