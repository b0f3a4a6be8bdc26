//! Locks in a MongoDB collection. The only place that sends commands.

mod command;
mod elements;
mod guard;
mod identity;
mod in_place;
mod lossy;
mod prepared;
mod stream;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mongodb::{
    Collection, Database, IndexModel,
    bson::{Bson, Document, doc},
    error::Error,
    options::{
        CollectionOptions, IndexOptions, ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, WriteConcern,
    },
};
use tokio::time::Instant;

use super::{
    Answer, Documents, Elected, Failure, InPlace, Listed, Renewal, Renewed, Selection, Statements, StoreError,
    Unreadable, View,
    family::{Family, Member},
};
use command::Change;
use prepared::Prepared;

use crate::protocol::{
    Ahead, Evict, Exchange, Expects, Location, Operation, ServerTime, State, ahead, document::Malformed, pipeline, wake,
};

#[cfg(any(test, fuzzing))]
pub(crate) use command::refusal;
pub(crate) use elements::IDENTIFIER;
pub(crate) use guard::{abort, is_in_transaction};
pub(crate) use identity::identity;
pub(in crate::store) use stream::MongoStream;
#[cfg(any(test, fuzzing))]
pub(crate) use stream::{read_elements, read_event, read_sighting};

/// Maximum time for which the server may hold an empty `getMore`. A stream that is silent for longer than this and a
/// margin is considered dead, so this also limits how soon a stream that silently stopped is noticed; each `getMore`
/// costs a command.
pub(crate) const AWAIT_TIME: Duration = Duration::from_millis(4_750);

/// Maximum time for which the server may look for documents by their names, so that it keeps no read running that
/// nobody waits for any more.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// The same limit for reads that may go through many documents.
const LONG_READ_WITHIN: Duration = Duration::from_secs(30);

/// Number of documents that one statement of a renewal selects. The server compares each holder with the ids of the
/// statement one by one, and plans each statement anew: with a hundred, a renewed document takes four fifths of the
/// time that it takes with a thousand.
const RENEWED_BY_ONE_STATEMENT: usize = 100;

const TTL_INDEX: &str = "watchlock_purge_at";

/// Field of an answer that carries the server's clock.
const NOW: &str = "_watchlock_now";

/// The kind of deployment that the server reported when the client connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    ReplicaSet,
    Sharded,
    Standalone,
}

/// A collection whose documents are locks, or contain them.
#[derive(Debug)]
pub(crate) struct MongoStore {
    /// The database of the collection.
    database: Database,
    collection: Collection<Document>,
    family: Family,
    /// Set when the locks are in documents of the user's own.
    place: Option<Arc<InPlace>>,
    prepared: Prepared,
    /// The members of the replica set that serve the streams of a session.
    streams: ReadPreference,
}

impl MongoStore {
    /// Asks the server once for its topology and its clock.
    pub(crate) async fn connect(
        database: &Database,
        collection: &str,
        streams: ReadPreference,
    ) -> Result<(Self, Topology, Exchange), StoreError> {
        let sent = Instant::now();
        // Asked of the primary, which also answers for the collection's writes, so that an unreachable primary is
        // noticed here.
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
        let store = Self::new(database.collection(collection), None, streams);
        let exchange = Exchange::ending_now(sent, now);
        Ok((store, topology, exchange))
    }

    /// Returns the store of the locks in the documents of a user's collection.
    pub(crate) fn in_place<T: Send + Sync>(
        collection: &Collection<T>,
        place: Arc<InPlace>,
        streams: ReadPreference,
    ) -> Self {
        Self::new(collection.clone_with_type(), Some(place), streams)
    }

    fn new(collection: Collection<Document>, place: Option<Arc<InPlace>>, streams: ReadPreference) -> Self {
        // Set here and never inherited: the user's settings for the database are meant for the user's own data. A grant
        // that is not majority-committed can be rolled back, and then be granted again to another.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let namespace = collection.namespace();
        let database = collection.client().database(&namespace.db);
        Self {
            collection: database.collection_with_options(&namespace.coll, options),
            family: place.as_ref().map_or_else(Family::default, |place| Family::of(place)),
            place,
            prepared: Prepared::default(),
            streams,
            database,
        }
    }

    pub(super) async fn run(&self, name: &str, operation: &Operation, within: Duration) -> Result<Answer, StoreError> {
        let sent = Instant::now();
        let member = self.family.member(name);
        let at = &*member.location;
        // An operation that did what was expected has its time in the document; one that did not is sent again in full,
        // or is over. So the server need not build a second document for the answer.
        let bare = matches!(operation.expects, Expects::Alone | Expects::Holding) && at.is_root();
        let fields = (!bare).then(|| fields(at));
        let answer = if operation.evict != Evict::Nobody || operation.proclaim.is_some() {
            // These operations must not arrive late, after another: the driver sends them as retryable writes, whose
            // repeats the server recognises.
            self.collection
                .find_one_and_update(selection(&member, operation), self.pipeline(at, operation))
                .return_document(ReturnDocument::After)
                .projection(all_fields(at))
                .max_time(within)
                .await
                .map(|document| (document, None))
        } else {
            // A document of the user's own is never created here.
            let upsert = operation.creates() && at.is_root();
            let change = |operation: &Operation| Change {
                update: self.pipeline(at, operation),
                upsert,
                fields: fields.clone(),
            };
            let id = member
                .id
                .as_str()
                .filter(|_| at.is_root() && pipeline::is_by_id(operation));
            let prepared =
                id.and_then(|id| Some((id, self.prepared.encoded(operation, |other| change(other).into())?)));
            match prepared {
                Some((id, encoded)) => self.find_and_modify_by(id, operation, &encoded, within).await,
                None => {
                    let query = selection(&member, operation);
                    self.find_and_modify(query, change(operation), within).await
                }
            }
        };
        let (document, logged_by) = match answer {
            Ok(answer) => answer,
            Err(error) => return Err(self.explain(name, error).await),
        };
        let received = Instant::now();
        let obstacle = document.as_ref().and_then(|document| at.obstacle(document));
        if let Some(path) = obstacle.filter(|_| operation.creates()) {
            // An array would give the lock many values instead of one, so it is treated as another protocol.
            return Err(Malformed::occupied(path).into());
        }
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
            Ok(state) => Ok(Answer {
                state,
                exchange,
                logged_by,
            }),
            // A pipeline that only removes entries leaves a foreign document unchanged: it contains nothing of ours.
            Err(malformed) if !operation.creates() && !malformed.is_newer() => Ok(Answer {
                state: None,
                exchange,
                logged_by,
            }),
            Err(malformed) => Err(malformed.into()),
        }
    }

    /// Renews by one statement for each hundred documents; if a document is refused, by one statement for each. A
    /// refusal ends the shared statement after some documents were written and before others, so its count is useless.
    pub(super) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, StoreError> {
        if renewal.statements == Statements::OnePerDocument {
            return self.renew_each(renewal).await;
        }
        if self.family.is_of_elements() {
            return self.renew_elements(renewal).await;
        }
        let entries: Vec<(&String, &Vec<String>)> = renewal.entries.iter().collect();
        let at = self.family.base();
        let statements = entries.chunks(RENEWED_BY_ONE_STATEMENT).map(|some| {
            let ids: Vec<String> = some.iter().flat_map(|(_, ids)| *ids).cloned().collect();
            let documents = some.iter().map(|(name, _)| self.family.id_of(name));
            let documents = doc! { "$in": documents.collect::<Vec<Bson>>() };
            statement(renewal, at, documents.into(), &ids)
        });
        let mut updated = self.update(statements.collect(), renewal.within).await?;
        let Some((_, error)) = updated.refused.pop() else {
            return Ok(Renewed::all(updated.modified).by(updated.elected));
        };
        let error = StoreError::from(error);
        match renewal.entries.first_key_value() {
            _ if error.kind == Failure::Unavailable => Err(error),
            Some((name, _)) if renewal.entries.len() == 1 => Ok(Renewed {
                renewed: 0,
                refused: [(name.clone(), error)].into(),
                elected: updated.elected,
            }),
            _ => self.renew_each(renewal).await,
        }
    }

    async fn renew_each(&self, renewal: &Renewal) -> Result<Renewed, StoreError> {
        let entries = renewal.entries.iter();
        let statements = entries.map(|(name, ids)| {
            let member = self.family.member(name);
            statement(renewal, &member.location, member.id, ids)
        });
        let updated = self.update(statements.collect(), renewal.within).await?;
        let names: Vec<&String> = renewal.entries.keys().collect();
        let mut refused = BTreeMap::new();
        for (position, error) in updated.refused {
            let error = StoreError::from(error);
            // The server failed here, not a document.
            if error.kind == Failure::Unavailable {
                return Err(error);
            }
            if let Some(name) = names.get(position) {
                refused.insert((*name).clone(), error);
            }
        }
        Ok(Renewed {
            renewed: updated.modified,
            refused,
            elected: updated.elected,
        })
    }

    pub(super) async fn release_together(
        &self,
        releases: &[(String, Operation)],
        within: Duration,
    ) -> Result<BTreeMap<String, StoreError>, StoreError> {
        let statements = releases.iter().map(|(name, operation)| {
            let member = self.family.member(name);
            doc! { "q": selection(&member, operation), "u": self.pipeline(&member.location, operation) }
        });
        let updated = self.update(statements.collect(), within).await?;
        let refused = updated.refused.into_iter().filter_map(|(position, error)| {
            let (name, _) = releases.get(position)?;
            Some((name.clone(), StoreError::from(error)))
        });
        Ok(refused.collect())
    }

    /// Returns the pipeline of an operation on the lock at this place. Where it lets in entries, it also removes the
    /// free locks of other elements, so that they don't pile up in the document.
    fn pipeline(&self, at: &Location, operation: &Operation) -> Vec<Document> {
        let mut stages = pipeline::operation(at, operation, &now());
        if self.family.is_of_elements() && operation.requests.is_some() {
            stages.push(pipeline::sweep(self.family.base(), at, &operation.id, &now()));
        }
        stages
    }

    /// Reads documents, each independently: an unreadable one hides no others.
    ///
    /// Holders need the newest view: the majority's can lag behind a write that was already acknowledged, and a hold
    /// that had just been granted would be considered lost.
    pub(super) async fn read(&self, names: &[String], view: View) -> Result<(Documents, Exchange), StoreError> {
        let sent = Instant::now();
        let of_elements = self.family.is_of_elements();
        let mut shown = match of_elements {
            true => Document::new(),
            false => all_fields(self.family.base()),
        };
        let (mut ids, mut wanted) = (Vec::new(), BTreeMap::<String, Vec<&String>>::new());
        for name in names {
            if of_elements {
                // Not the whole map: others may have hundreds of locks in the document.
                shown.extend(all_fields(&self.family.at(name)));
            }
            let id = self.family.id_of(name);
            let in_it = wanted.entry(self.family.document(&id).unwrap_or_default()).or_default();
            if in_it.is_empty() {
                ids.push(id);
            }
            in_it.push(name);
        }
        let find = self.collection.find(doc! { "_id": { "$in": ids } });
        let find = find.projection(shown).read_concern(view.concern());
        let mut cursor = find.max_time(READ_WITHIN).await?;
        let (mut found, mut now) = (Documents::new(), None);
        while cursor.advance().await? {
            let raw = cursor.current();
            let Some(document) = lossy::read(raw) else { continue };
            now = server_now(&document).or(now);
            let id = lossy::read_exactly(raw, "_id");
            let named = id.and_then(|id| self.family.document(&id));
            for name in named.and_then(|named| wanted.get(&named)).into_iter().flatten() {
                if let Some(state) = self.family.at(name).found(&document) {
                    found.insert((*name).clone(), state);
                }
            }
        }
        let exchange = Exchange::ending_now(sent, now);
        Ok((found, exchange))
    }

    pub(super) async fn ahead(
        &self,
        name: &str,
        entry: &str,
        within: Duration,
    ) -> Result<(Option<Ahead>, Exchange), StoreError> {
        let sent = Instant::now();
        let member = self.family.member(name);
        let mut projection = ahead::projection(&member.location, entry);
        projection.insert(NOW, "$$NOW");
        let id = member.id;
        let find = self.collection.find_one(doc! { "_id": id }).projection(projection);
        let found = find.read_concern(ReadConcern::local()).max_time(within).await?;
        let now = found.as_ref().and_then(server_now);
        let exchange = Exchange::ending_now(sent, now);
        let ahead = found.zip(now).map(|(found, now)| ahead::read(&found, now));
        Ok((ahead.transpose()?.flatten(), exchange))
    }

    pub(super) async fn list(&self, selection: &Selection, view: View) -> Result<Listed, StoreError> {
        let mut query = doc! { "_id": ids_with_prefix(&selection.prefix) };
        if let Some(kind) = selection.kind {
            query.insert("kind", kind.as_str());
        }
        if selection.held == Some(true) {
            query.insert("holders.0", doc! { "$exists": true });
        }
        let find = self.collection.find(query).projection(all_fields(self.family.base()));
        let mut cursor = find.read_concern(view.concern()).max_time(LONG_READ_WITHIN).await?;
        let mut listed = Listed::default();
        while cursor.advance().await? {
            let raw = cursor.current();
            let Some(document) = lossy::read(raw) else { continue };
            listed.now = server_now(&document).or(listed.now);
            match (raw.get_str("_id"), State::from_document(&document)) {
                (Ok(name), Ok(state)) => listed.found.push((name.to_owned(), state)),
                (Ok(name), Err(malformed)) => listed.unreadable.push(Unreadable::new(name.to_owned(), &malformed)),
                (Err(_), _) => listed.unreadable.push(not_utf8(&document)),
            }
        }
        Ok(listed)
    }

    /// Asks the primary which election it has won.
    pub(super) async fn elected(&self) -> Result<Option<Elected>, StoreError> {
        let hello = self
            .database
            .run_command(doc! { "hello": 1 })
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await?;
        // A `mongos` may be another one each time.
        let elected = hello.get_object_id("electionId").ok();
        Ok(elected.filter(|_| hello.contains_key("setName")).map(Elected))
    }

    pub(super) async fn prepare(&self, within: Duration) -> Result<(), StoreError> {
        if !self.family.is_root() {
            // Only the user deletes the user's documents.
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
        self.collection.create_index(index).max_time(within).await?;
        Ok(())
    }

    /// Replaces the server's refusal of a pipeline by the reason, if the reason is a document that is not a lock's: the
    /// refusal itself says little then.
    async fn explain(&self, name: &str, error: Error) -> StoreError {
        let error = StoreError::from(error);
        if error.kind == Failure::Refused
            && let Ok(Some(document)) = self
                .collection
                .find_one(doc! { "_id": self.family.id_of(name) })
                .max_time(READ_WITHIN)
                .await
        {
            let at = self.family.at(name);
            if let Some(path) = at.obstacle(&document) {
                return Malformed::occupied(path).into();
            }
            if let Some(Err(malformed)) = at.lock(&document).map(State::from_document) {
                return malformed.into();
            }
        }
        error
    }
}

/// Returns the filter for the document of an operation. A requested element must be there, so that nothing is written
/// for a missing one. The exception is an operation with an entry that leaves, as the entry may have outlived its
/// element.
fn selection(member: &Member<'_>, operation: &Operation) -> Document {
    let at = &*member.location;
    let mut selection = pipeline::selection(at, &member.id, operation);
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

/// Returns the statement that renews these entries in the documents that `documents` selects.
fn statement(renewal: &Renewal, at: &Location, documents: Bson, ids: &[String]) -> Document {
    let idle = renewal.idle_among(ids);
    doc! {
        "q": { "_id": documents, at.key("holders.id"): { "$in": ids } },
        "u": pipeline::renewal(at, &renewal.operation, (ids, idle.as_deref()), renewal.keep, &now()),
        "multi": true,
    }
}

/// Returns the projection of all fields of a lock, and of the server's clock when the answer is made.
fn all_fields(at: &Location) -> Document {
    let mut fields = fields(at);
    if at.is_root() {
        fields.insert("ends", 1);
    }
    fields
}

/// Returns the same without the history, which no operation needs.
fn fields(at: &Location) -> Document {
    if !at.is_root() {
        return doc! { at.path(): 1, NOW: "$$NOW" };
    }
    doc! {
        "protocol": 1, "kind": 1, "capacity": 1, "token": 1, "holders": 1, "queue": 1, "wake": 1, "version": 1, "at": 1,
        "purge_at": 1, "broken": 1, "adopted": 1, "evicted": 1,
        NOW: "$$NOW",
    }
}

impl View {
    fn concern(self) -> ReadConcern {
        match self {
            Self::Newest => ReadConcern::local(),
            Self::Committed => ReadConcern::majority(),
        }
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
    document
        .get_datetime(NOW)
        .ok()
        .map(|now| ServerTime(now.timestamp_millis()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;

    /// A refused document has each of those that are renewed with it renewed by a statement of its own, in one command.
    #[test]
    fn a_statement_is_no_longer_for_what_is_idle_beside_it() {
        let ids: Vec<String> = (0..1_000).map(|number| format!("0123456789abcdef-{number}")).collect();
        let entries = ids.iter().map(|id| (format!("lock {id}"), vec![id.clone()]));
        let renewal = Renewal {
            operation: "a.1".to_owned(),
            entries: entries.collect::<BTreeMap<_, _>>(),
            idle: Some(ids.iter().cloned().collect()),
            keep: 1,
            within: Duration::from_secs(1),
            statements: Statements::OnePerDocument,
        };
        let size = |idle: Option<&str>| {
            let renewal = Renewal {
                idle: idle.map(|_| renewal.idle.clone().unwrap_or_default()),
                ..renewal.clone()
            };
            let statement = statement(&renewal, &Location::default(), "lock".into(), &ids[..1]);
            let mut bytes = Vec::new();
            statement.to_writer(&mut bytes).unwrap();
            bytes.len()
        };
        let (without, with) = (size(None), size(Some("all")));
        assert!(without < 4_000 && with < 2 * without, "{without}, {with}");
    }
}
