//! Locks in a MongoDB collection. The only place that sends commands.

mod claims;
mod command;
mod encoded;
mod first_look;
mod guard;
mod in_place;
mod lossy;
mod reading;
mod renewing;
mod stream;
mod suitable;
mod together;

use std::{sync::Arc, time::Duration};

use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
    error::Error,
    options::{CollectionOptions, ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, WriteConcern},
};
use tokio::time::Instant;

use super::{Answer, Elected, Failure, LockLayout, LogTime, Unreadable, lock_layout::LockRef};

use crate::{
    error::{BuildError, ServerError},
    hidden::{Hidden, hidden},
    machine::exchanged,
    protocol::{
        Evict, Exchange, Expects, Location, Operation, ServerTime, State,
        document::{Malformed, whole},
        pipeline, wake,
    },
};

#[cfg(any(test, fuzzing))]
pub(crate) use command::refusals;
use command::{Updated, limit, updated};
use encoded::{Shapes, completed, encode};
use first_look::FirstLook;
pub(crate) use guard::{abort, is_in_transaction};
pub(crate) use reading::COUNTED_MOST;
pub(in crate::store) use stream::MongoStream;
#[cfg(any(test, fuzzing))]
pub(crate) use stream::{read_elements, read_event, read_observed};
use suitable::first_batch;

/// Maximum time for which the server may hold an empty `getMore`. A stream that is silent for longer than this and a
/// margin is considered dead, so this also limits how soon a stream that silently stopped is noticed; each `getMore`
/// costs a command.
pub(crate) const AWAIT_TIME: Duration = Duration::from_millis(4_750);

/// Maximum time for which the server may look for documents by their names, so that it keeps no read running that
/// nobody waits for any more.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(10);

/// The same limit for reads that may go through many documents.
pub(crate) const LONG_READ_WITHIN: Duration = Duration::from_secs(30);

const TTL_INDEX: &str = "watchlock_purge_at";

/// Field of an answer that carries the server's clock.
const NOW: &str = "_watchlock_now";

/// A collection whose documents are locks, or contain them.
pub(crate) struct MongoStore {
    /// The database of the collection.
    database: Hidden<Database>,
    collection: Hidden<Collection<Document>>,
    pub(super) layout: Arc<LockLayout>,
    /// The members of the replica set that serve the streams of a session.
    streams: ReadPreference,
    shapes: Shapes,
    first_look: FirstLook,
}

/// A store of locks, and what the server told when it was connected.
pub(crate) struct Connected {
    pub(crate) store: MongoStore,
    /// Whether the server is neither a member of a replica set nor a router.
    pub(crate) standalone: bool,
    /// With the last write in the log of the primary.
    pub(crate) exchange: Exchange,
    /// Why locks can't be kept in the collection.
    unsuitable: Option<String>,
}

impl Connected {
    /// Returns why no client can be built over the server, which may be required to have change streams.
    pub(crate) fn problem(&mut self, requires_stream: bool) -> Option<BuildError> {
        if let Some(problem) = self.unsuitable.take() {
            let namespace = self.store.collection.namespace().to_string();
            return Some(BuildError::Unsuitable { namespace, problem });
        }
        (requires_stream && self.standalone).then_some(BuildError::NoChangeStream)
    }
}

impl MongoStore {
    /// Asks the server for its kind and its clock, and for what kind of collection it has under the name.
    pub(crate) async fn connect(
        database: &Database,
        collection: &str,
        streams: ReadPreference,
    ) -> Result<Connected, ServerError> {
        let store = Self::new(database.collection(collection), Arc::default(), streams);
        let sent = Instant::now();
        // Asked of the primary, which also answers for the collection's writes, so that an unreachable primary is
        // noticed here.
        let hello = store.ask_primary(doc! { "hello": 1 }).await?;
        let now = ServerTime::in_field(&hello, "localTime");
        let mut exchange = exchanged(sent, now);
        let is_router = hello.get_str("msg").is_ok_and(|message| message == "isdbgrid");
        let standalone = !is_router && !hello.contains_key("setName");
        let last = hello
            .get_document("lastWrite")
            .and_then(|last| last.get_document("opTime"));
        exchange.logged_by = last.and_then(|time| time.get_timestamp("ts")).ok();
        Ok(Connected {
            unsuitable: store.unsuitable(is_router).await?,
            store,
            standalone,
            exchange,
        })
    }

    /// Sends a command to the primary.
    async fn ask_primary(&self, command: Document) -> Result<Document, Error> {
        self.database.run_command(command).selection_criteria(primary()).await
    }

    /// Returns the store of the locks in the documents of a user's collection.
    pub(crate) fn in_place<T: Send + Sync>(
        collection: &Collection<T>,
        layout: Arc<LockLayout>,
        streams: ReadPreference,
    ) -> Self {
        Self::new(collection.clone_with_type(), layout, streams)
    }

    fn new(collection: Collection<Document>, layout: Arc<LockLayout>, streams: ReadPreference) -> Self {
        // Set here and never inherited: the user's settings for the database are meant for the user's own data. A grant
        // that is not majority-committed can be rolled back, and then be granted again to another.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary())
            .build();
        let namespace = collection.namespace();
        let database = collection.client().database(&namespace.db);
        Self {
            collection: hidden(database.collection_with_options(&namespace.coll, options)),
            layout,
            streams,
            shapes: Shapes::default(),
            database: hidden(database),
            first_look: FirstLook::taken(),
        }
    }

    pub(super) async fn run(&self, name: &str, operation: &Operation, within: Duration) -> Result<Answer, ServerError> {
        let sent = Instant::now();
        let (document, logged_by) = match self.write(self.layout.member(name), operation, within).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.explain(name, error).await),
        };
        let received = Instant::now();
        let (state, now) = read_answer(&self.layout.at(name), operation, document.as_ref())?;
        let exchange = Exchange {
            sent,
            received,
            now,
            logged_by,
        };
        Ok(Answer { state, exchange })
    }

    /// Sends an operation as the command that suits it. Returns the document after it, and the time in the server's log
    /// by which it was done, where the command tells.
    async fn write(
        &self,
        member: LockRef<'_>,
        operation: &Operation,
        within: Duration,
    ) -> Result<(Option<Document>, Option<LogTime>), Error> {
        let at = &*member.location;
        if operation.evict != Evict::Nobody || operation.proclaims() || operation.sets() {
            // These operations must not arrive late, after another: the driver sends them as retryable writes, whose
            // repeats the server recognises. It refuses an answer with text that is not UTF-8, so there is nothing in
            // it but the lock's own fields. None of these operations needs a reading of the server's clock, and without
            // an expression the server makes the answer sooner.
            let (mut shown, pipeline) = (fields(at), self.pipeline(at, operation));
            shown.remove(NOW);
            return self
                .collection
                .find_one_and_update(selection(member, operation), pipeline)
                .upsert(operation.sets())
                .return_document(ReturnDocument::After)
                .projection(shown)
                .max_time(within)
                .await
                .map(|document| (document, None));
        }
        // An operation that did what was expected has its time in the document; one that did not is sent again in full,
        // or is over. So the server need not build a second document for the answer.
        let bare = operation.expects != Expects::Nothing && at.is_root();
        let command = |operation: &Operation| {
            let mut command = doc! {
                "findAndModify": self.collection.name(),
                "update": self.pipeline(at, operation),
                // A document of the user's own is never created here.
                "upsert": operation.creates() && at.is_root(),
                "new": true,
                "writeConcern": { "w": "majority" },
            };
            if !bare {
                command.insert("fields", fields(at));
            }
            command
        };
        // The place of an element's lock has the element's key in it.
        let command = match self.layout.is_of_elements() {
            true => encode(&command(operation)),
            false => self.shapes.encode(operation, command),
        };
        let command = completed(command?, &selection(member, operation), limit(within))?;
        let mut answer = self
            .database
            .run_raw_command(command)
            .selection_criteria(primary())
            .await?;
        let Updated { logged_by, .. } = updated(&answer)?;
        match answer.remove("value") {
            Some(Bson::Document(document)) => Ok((Some(document), logged_by)),
            _ => Ok((None, logged_by)),
        }
    }

    /// Returns the pipeline of an operation on the lock at this place. Where it lets in entries, it also removes the
    /// free locks of other elements, so that they don't pile up in the document.
    fn pipeline(&self, at: &Location, operation: &Operation) -> Vec<Document> {
        let mut stages = pipeline::operation(at, operation, &now());
        if self.layout.is_of_elements() && operation.requests.is_some() {
            stages.push(pipeline::sweep(self.layout.base(), at, &operation.id, &now()));
        }
        stages
    }

    /// Asks the primary which election it has won.
    pub(super) async fn elected(&self) -> Result<Option<Elected>, ServerError> {
        let hello = self.ask_primary(doc! { "hello": 1 }).await?;
        // A `mongos` may be another one each time.
        let elected = hello.get_object_id("electionId").ok();
        Ok(elected.filter(|_| hello.contains_key("setName")))
    }

    pub(super) async fn prepare(&self, within: Duration) -> Result<(), ServerError> {
        if !self.layout.is_root() {
            // Only the user deletes the user's documents.
            return Ok(());
        }
        let index = doc! { "name": TTL_INDEX, "key": { "purge_at": 1 }, "expireAfterSeconds": 0 };
        let making = doc! {
            "createIndexes": self.collection.name(),
            "indexes": [index],
            "maxTimeMS": limit(within),
            "writeConcern": { "w": "majority" },
        };
        let made = self.ask_primary(making).await.and_then(|answer| updated(&answer));
        match made.map(drop).map_err(ServerError::from) {
            // IndexOptionsConflict: an operator may have made it under another name.
            Err(error) if error.code() == Some(85) && self.has_ttl_index(within).await => Ok(()),
            made => made,
        }
    }

    /// Reports whether there is an index by which the server purges free locks, under whatever name.
    async fn has_ttl_index(&self, within: Duration) -> bool {
        let purges = |index: &Document| {
            let after = index.get("expireAfterSeconds").and_then(whole);
            index
                .get_document("key")
                .is_ok_and(|key| *key == doc! { "purge_at": 1 })
                && after == Some(0)
        };
        let listing = doc! { "listIndexes": self.collection.name(), "maxTimeMS": limit(within) };
        let listed = self.ask_primary(listing).await;
        listed.is_ok_and(|listed| first_batch(&listed).iter().any(purges))
    }

    /// Replaces the server's refusal of a pipeline by the reason, if the reason is a document that is not a lock's: the
    /// refusal itself says little then.
    async fn explain(&self, name: &str, error: Error) -> ServerError {
        let error = ServerError::of_lock(error);
        if error.kind == Failure::Refused
            && let Ok(Some(document)) = self
                .collection
                .find_one(doc! { "_id": self.layout.id_of(name) })
                .max_time(READ_WITHIN)
                .await
        {
            let at = self.layout.at(name);
            if let Some(path) = at.obstacle(&document) {
                return Malformed::occupied(path).into();
            }
            if let Some(Err(malformed)) = at.found(&document) {
                return malformed.into();
            }
        }
        error
    }
}

fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// Returns the filter for the document of an operation. A requested element must be there, so that nothing is written
/// for a missing one. The exception is an operation with an entry that leaves, as the entry may have outlived its
/// element.
fn selection(member: LockRef<'_>, operation: &Operation) -> Document {
    let at = &*member.location;
    let mut selection = pipeline::selection(at, member.id, operation);
    if let (Some(element), Some(_)) = (&member.element, &operation.requests) {
        let is_there = doc! { "$expr": { "$ne": [element.key.elements(element.array), []] } };
        let leaves = |list: &str| doc! { at.key(list): { "$in": &operation.leave } };
        let condition = match operation.leave[..] {
            [] => vec![is_there],
            _ => vec![is_there, leaves("holders.id"), leaves("queue.id")],
        };
        selection.insert("$or", condition);
    }
    selection
}

/// Reads the document after an operation: returns the lock in it, and the server's time, where it shows them.
fn read_answer(
    at: &Location,
    operation: &Operation,
    document: Option<&Document>,
) -> Result<(Option<State>, Option<ServerTime>), Malformed> {
    let state = match document {
        Some(document) if at.is_root() => State::from_document(document).map(Some),
        Some(document) => at.state(document),
        None => Ok(None),
    };
    let written = state.as_ref().ok().and_then(Option::as_ref);
    let written = written.filter(|state| wake::left(&state.wake, &operation.id).is_some());
    let now = document.and_then(server_now);
    let now = now.or(written.map(|state| state.at));
    match state {
        Ok(state) => Ok((state, now)),
        // Its pipeline leaves a foreign document unchanged: it contains nothing of ours.
        Err(malformed) if !malformed.ends(operation) => Ok((None, now)),
        Err(malformed) => Err(malformed),
    }
}

/// Returns the projection of all fields of a lock, and of the server's clock when the answer is made.
fn fields(at: &Location) -> Document {
    if !at.is_root() {
        return doc! { at.path(): 1, NOW: "$$NOW" };
    }
    doc! {
        "protocol": 1, "kind": 1, "capacity": 1, "token": 1, "holders": 1, "queue": 1, "wake": 1, "version": 1, "at": 1,
        "purge_at": 1, "broken": 1, "adopted": 1, "evicted": 1, "ends": 1,
        NOW: "$$NOW",
    }
}

/// Returns a document whose `_id` is not UTF-8 as unreadable: no lock has such an `_id`.
fn not_utf8(document: &Document) -> Unreadable {
    let shown = match document.get("_id") {
        Some(Bson::String(text)) => text.clone(),
        other => other.map(Bson::to_string).unwrap_or_default(),
    };
    Unreadable::new(shown, &"field `_id` is not valid UTF-8")
}

fn now() -> Bson {
    Bson::from("$$NOW")
}

/// Returns the condition on an `_id` that selects the texts with this prefix.
fn ids_with_prefix(prefix: &str) -> Document {
    // No text with this prefix sorts after this bound, except text that continues with this very character.
    doc! { "$gte": prefix, "$lte": format!("{prefix}\u{10ffff}") }
}

fn server_now(document: &Document) -> Option<ServerTime> {
    ServerTime::in_field(document, NOW)
}
