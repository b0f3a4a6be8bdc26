//! Locks in a MongoDB collection. The only place that sends commands.

mod command;
mod failure;
mod guard;
mod in_place;
mod stream;

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::{
    Collection, Database, IndexModel,
    bson::{Bson, Document, doc},
    error::Error,
    options::{
        CollectionOptions, IndexOptions, ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, WriteConcern,
    },
};
use tokio::time::Instant;

use super::{Answer, Documents, Exchange, Failure, Renewal, Selection, StoreError, name};
use crate::protocol::{Expects, Location, Operation, ServerTime, State, document::Malformed, pipeline, wake};

#[cfg(any(test, fuzzing))]
pub(in crate::store) use command::refusal;
pub(in crate::store) use failure::{code, code_name, found_no_server};
pub(crate) use guard::{abort, is_in_transaction};
pub(in crate::store) use stream::MongoStream;
#[cfg(any(test, fuzzing))]
pub(in crate::store) use stream::{read_event, read_sighting};

/// How long the server may hold an empty `getMore`. A stream silent for longer than this and a margin is taken for
/// dead, so it is also how soon a stream that silently stopped is noticed; each one costs a command.
pub(crate) const AWAIT_TIME: Duration = Duration::from_millis(4_750);

const TTL_INDEX: &str = "watchlock_purge_at";

/// The field of an answer in which the server tells its clock.
const NOW: &str = "_watchlock_now";

/// What the server said it is, when it was asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    ReplicaSet,
    Sharded,
    Standalone,
}

/// One collection whose documents are locks, or have one in them.
#[derive(Debug)]
pub(crate) struct MongoStore {
    collection: Collection<Document>,
    location: Location,
}

impl MongoStore {
    /// Asks the server once what it is and what its clock says.
    pub(crate) async fn connect(
        database: &Database,
        collection: &str,
    ) -> Result<(Self, Topology, Exchange), StoreError> {
        let sent = Instant::now();
        // Asked of whoever may answer for the collection's writes, so that an unreachable primary shows here.
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let hello = database
            .run_command(doc! { "hello": 1 })
            .selection_criteria(primary)
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
        let store = Self::new(database.collection(collection), Location::default());
        let exchange = Exchange {
            sent,
            received: Instant::now(),
            now,
        };
        Ok((store, topology, exchange))
    }

    /// The locks in the documents of a collection of the user's.
    pub(crate) fn in_place<T: Send + Sync>(collection: &Collection<T>, path: &str) -> Self {
        Self::new(collection.clone_with_type(), Location::under(path))
    }

    fn new(collection: Collection<Document>, location: Location) -> Self {
        // Set here and never inherited: what the user chose for the database is for the user's own data. A grant
        // that is not majority-committed can be rolled back, and be granted again to another.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let namespace = collection.namespace();
        let database = collection.client().database(&namespace.db);
        Self {
            collection: database.collection_with_options(&namespace.coll, options),
            location,
        }
    }

    pub(super) async fn run(&self, name: &str, operation: &Operation) -> Result<Answer, StoreError> {
        let sent = Instant::now();
        let at = &self.location;
        let query = pipeline::selection(at, &name::id_of(at, name), operation);
        let update = pipeline::operation(at, operation, &now());
        // What was done as expected has its time in the document, and what was not is asked for in full or is over; so the
        // server is spared the making of another document for the answer.
        let bare = operation.expects != Expects::Nothing && at.is_root();
        let fields = (!bare).then(|| self.fields());
        let answer = if operation.evict || operation.proclaim.is_some() {
            // What must not come late, after another: the driver repeats it in a way by which the server knows it again.
            self.collection
                .find_one_and_update(query, update)
                .return_document(ReturnDocument::After)
                .projection(self.fields())
                .await
        } else {
            // A document of the user's own is there or it is not.
            let upsert = operation.creates() && at.is_root();
            self.find_and_modify(query, update, upsert, fields).await
        };
        let document = match answer {
            Ok(document) => document,
            Err(error) => return Err(self.explain(name, error).await),
        };
        let received = Instant::now();
        let state = document.as_ref().and_then(|document| at.lock(document));
        let state = state.map(State::from_document).transpose();
        let written = state.as_ref().ok().and_then(Option::as_ref);
        let written = written.filter(|state| wake::left(&state.wake, &operation.id).is_some());
        let now = document.as_ref().and_then(server_now);
        let exchange = Exchange {
            sent,
            received,
            now: now.or(written.map(|state| state.at)),
        };
        match state {
            Ok(state) => Ok(Answer { state, exchange }),
            // A pipeline that only takes entries out leaves a foreign document as it is: nothing of ours is in it.
            Err(_) if !operation.creates() => Ok(Answer { state: None, exchange }),
            Err(malformed) => Err(malformed.into()),
        }
    }

    pub(super) async fn renew(&self, renewal: &Renewal) -> Result<u64, StoreError> {
        let update = pipeline::renewal(&self.location, &renewal.operation, &renewal.ids, renewal.keep, &now());
        let holds = self.location.key("holders.id");
        let filter = doc! { "_id": { "$in": self.ids(&renewal.names) }, holds: { "$in": &renewal.ids } };
        Ok(self.update_many(filter, update, renewal.within).await?)
    }

    /// Reads what the primary has now. The majority's view can lag behind a write that was acknowledged already, and a
    /// hold that had just been granted would be taken for lost.
    pub(super) async fn read(&self, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        let sent = Instant::now();
        let find = self.collection.find(doc! { "_id": { "$in": self.ids(names) } });
        let cursor = find
            .projection(self.fields())
            .read_concern(ReadConcern::local())
            .await?;
        let documents: Vec<Document> = cursor.try_collect().await?;
        let now = documents.first().and_then(server_now);
        let named = documents.into_iter().filter_map(|document| {
            let name = name::of_document(&self.location, document.get("_id")?)?;
            Some((name, State::from_document(self.location.lock(&document)?)))
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
        let find = self.collection.find(query).projection(self.fields());
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

    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        if !self.location.is_root() {
            // Nobody but the user deletes the user's documents.
            return Ok(());
        }
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
            && let Ok(Some(document)) = self
                .collection
                .find_one(doc! { "_id": name::id_of(&self.location, name) })
                .await
        {
            if let Some(path) = self.location.obstacle(&document) {
                return Malformed::occupied(path).into();
            }
            if let Some(Err(malformed)) = self.location.lock(&document).map(State::from_document) {
                return malformed.into();
            }
        }
        error
    }

    fn ids(&self, names: &[String]) -> Vec<Bson> {
        names.iter().map(|name| name::id_of(&self.location, name)).collect()
    }

    /// The lock's own fields, and the server's clock as the answer is made.
    fn fields(&self) -> Document {
        if !self.location.is_root() {
            return doc! { self.location.path(): 1, NOW: "$$NOW" };
        }
        doc! {
            "kind": 1, "capacity": 1, "token": 1, "holders": 1, "queue": 1, "wake": 1, "version": 1, "at": 1,
            "purge_at": 1, "broken": 1, "adopted": 1,
            NOW: "$$NOW",
        }
    }
}

fn now() -> Bson {
    Bson::from("$$NOW")
}

fn server_now(document: &Document) -> Option<ServerTime> {
    document
        .get_datetime(NOW)
        .ok()
        .map(|now| ServerTime(now.timestamp_millis()))
}
