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

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
    error::Error,
    options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use tokio::{sync::OnceCell, time::Instant};

use super::{Answer, Elected, Failure, LockLayout, LogTime, Unreadable, lock_layout::LockRef};

use crate::{
    backoff::Backoff,
    error::ServerError,
    hidden::{Hidden, hidden},
    protocol::{
        Exchange, Expects, Location, Operation, ServerTime, State,
        document::{Malformed, whole},
        pipeline, wake,
    },
};

#[cfg(any(test, fuzzing))]
pub(crate) use command::refusals;
use command::{limit, modified, updated};
use encoded::{Shapes, completed, encode};
pub(crate) use guard::{abort, is_in_transaction};
pub(crate) use reading::{COUNTED_MOST, first_in};
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

/// The fields of a lock, but for its queue.
const FIELDS: [&str; 13] = [
    "protocol", "kind", "capacity", "token", "holders", "wake", "version", "at", "purge_at", "broken", "adopted",
    "evicted", "ends",
];

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
    /// Whether the server was looked at, and found to keep locks.
    looked: OnceCell<()>,
    /// Whether the server has to have change streams.
    requires_stream: bool,
    /// The error of the last look, and until when it stands for the next: longer after each that fails.
    look_failed: Mutex<(Option<(ServerError, Instant)>, Backoff)>,
}

impl MongoStore {
    /// Sends a command to the primary.
    async fn ask_primary(&self, command: Document) -> Result<Document, Error> {
        self.database.run_command(command).selection_criteria(primary()).await
    }

    /// Returns the store of the locks in the documents of a collection, whose server need not be looked at.
    pub(crate) fn new(collection: &Collection<Document>, layout: Arc<LockLayout>, streams: ReadPreference) -> Self {
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
            looked: OnceCell::new_with(Some(())),
            requires_stream: false,
            look_failed: Mutex::default(),
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
                command.insert("fields", answered(at, operation));
            }
            command
        };
        // The place of an element's lock has the element's key in it.
        let command = match self.layout.is_of_elements() {
            true => encode(&command(operation)),
            false => self.shapes.encode(operation, command),
        };
        let command = completed(command?, &selection(member, operation), limit(within))?;
        let sending = self.database.run_raw_command(command);
        modified(sending.selection_criteria(primary()).await?)
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
                .newest(self.collection.find(doc! { "_id": self.layout.id_of(name) }))
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
    let shown = FIELDS.map(|field| (field.to_owned(), Bson::from(1)));
    let mut shown = Document::from_iter(shown);
    shown.extend(doc! { "queue": 1, NOW: "$$NOW" });
    shown
}

/// Returns the projection of the answer to an operation. Most of a long queue are the owners of its entries, which only
/// operators are shown. A waiter asks for its queue position again and again, and looks for entries by their ids.
fn answered(at: &Location, operation: &Operation) -> Document {
    if operation.requests.is_none() || operation.sets() {
        return fields(at);
    }
    let of_queue = ["id", "permits", "lease", "claim", "since", "until"].map(|field| format!("queue.{field}"));
    let shown = FIELDS.into_iter().chain(of_queue.iter().map(String::as_str));
    let mut shown = Document::from_iter(shown.map(|field| (at.key(field), Bson::from(1))));
    shown.insert(NOW, "$$NOW");
    shown
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

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;
    use watchlock_testkit::shared;

    use super::*;
    use crate::{
        protocol::{
            Entry, Owner,
            fixtures::{MUTEX, asking, holder, leaving, lock, request, waiter},
        },
        store::lock_layout::Paths,
    };

    /// All of a crowd ask every two seconds, and reasons can have 1,024 bytes.
    #[tokio::test]
    async fn who_requests_is_shown_the_queue_without_owners_and_the_holders_with_theirs() {
        let client = shared::standalone().await.client().await.unwrap();
        let database = client.database(&shared::unique_name("answers"));
        let in_documents = |path, elements| LockLayout::in_documents(None, path, elements, &Paths::default()).unwrap();
        for (collection, layout, name) in [
            ("root", LockLayout::default().into(), "x"),
            ("under", in_documents("a.lock", None), "x"),
            ("elements", in_documents("a.locks", Some(("lines", "a.lock"))), "x/n=7"),
        ] {
            let collection: Collection<Document> = database.collection(collection);
            let store = MongoStore::new(&collection, layout.clone(), ReadPreference::Primary);
            let until = ServerTime(DateTime::now().timestamp_millis()).plus_millis(60_000);
            let owner = Owner {
                reason: Some("r".repeat(200)),
                ..Owner::default()
            };
            let live = |entry: Entry| Entry {
                until,
                owner: owner.clone(),
                ..entry
            };
            let queue = ["b-1", "b-2"].map(|id| live(waiter(id)));
            let before = lock(MUTEX, [live(holder("h-1", 7))], queue.clone());
            let mut document = doc! { "_id": layout.id_of(name), "lines": [{ "n": 7 }] };
            layout.at(name).set_lock(&mut document, before.fields());
            collection.insert_one(document).await.unwrap();
            let state = async |operation| {
                let answer = store.run(name, &operation, Duration::from_secs(10)).await.unwrap();
                assert!(answer.exchange.now.is_some());
                answer.state.unwrap()
            };
            let asked = state(asking("a.1", request("a-1"))).await;
            assert_eq!(asked.holders, before.holders);
            let shown = queue.clone().map(|entry| Entry {
                owner: Owner::default(),
                ..entry
            });
            assert_eq!(asked.queue[..2], shown);
            assert_eq!((&*asked.queue[2].id, &asked.queue[2].owner), ("a-1", &Owner::default()));
            // As operators see it.
            assert_eq!(state(leaving("a.2", "a-1")).await.queue, queue);
        }
    }
}
