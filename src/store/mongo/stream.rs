//! The change streams of a collection.

use std::sync::Arc;

use futures::StreamExt;
use mongodb::{
    bson::{Bson, Document, doc},
    error::Error,
    raw_batch_cursor::RawBatchCursor,
};

use super::{AWAIT_TIME, MongoStore};
use crate::{
    protocol::{Location, ServerTime, State, wake},
    store::{Event, Failure, NamedSighting, ResumeAt, Sighting, StoreError, name},
};

impl MongoStore {
    /// Opens a stream of what concerns `session`.
    pub(in crate::store) async fn watch(
        &self,
        session: &str,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream<Event>, StoreError> {
        let read = {
            let location = self.location.clone();
            move |event: &Document| read_event(&location, event)
        };
        let selection = if self.location.is_root() {
            concerning(session)
        } else {
            concerning_in_place(session, &self.location)
        };
        self.stream(Document::new(), selection, read, resume).await
    }

    /// Opens a stream of whatever happens to the document `name`, or to any.
    pub(in crate::store) async fn follow(
        &self,
        name: Option<&str>,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream<NamedSighting>, StoreError> {
        let read = {
            let location = self.location.clone();
            move |event: &Document| read_sighting(&location, event)
        };
        let options = doc! { "fullDocument": "updateLookup" };
        let id = name.map(|name| name::id_of(&self.location, name));
        let selection = about(id.as_ref(), &self.location);
        self.stream(options, selection, read, resume).await
    }

    /// Opens a stream that tells whenever a document may have become free to be claimed.
    pub(in crate::store) async fn watch_free(&self, resume: Option<&ResumeAt>) -> Result<MongoStream<()>, StoreError> {
        self.stream(Document::new(), freeing(&self.location), |_| (), resume)
            .await
    }

    /// Opens the stream as a plain aggregation and not through the driver's `watch`, whose own resuming can lose
    /// events unseen (a retried resume starts from now) and whose errors come late: here every gap is known, and every
    /// batch, empty ones too, is a sign of life.
    async fn stream<T>(
        &self,
        mut options: Document,
        selection: Vec<Document>,
        read: impl Fn(&Document) -> T + Send + Sync + 'static,
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
            read: Box::new(read),
            first: None,
            resume_at: resume.cloned(),
        };
        stream.first = Some(stream.read_batch().await?);
        Ok(stream)
    }
}

/// Selects, on the server, what concerns a session: writes that name one of its entries, and whatever is not a write
/// of the protocol. A pipeline update is reported as an `update` with a delta or as a whole `replace`, as the server
/// likes, so `wake` is looked for in both.
fn concerning(session: &str) -> Vec<Document> {
    let pattern = doc! { "$regex": wake::pattern(session) };
    const DELTA: &str = "updateDescription.updatedFields.wake";
    const WHOLE: &str = "fullDocument.wake";
    vec![
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

/// The same for locks in documents of the user's own. What is inserted there, and what changes nothing of the lock, is
/// nothing to us; a change of the lock without a new `wake`, and a replaced or deleted document, are.
fn concerning_in_place(session: &str, location: &Location) -> Vec<Document> {
    vec![
        doc! { "$match": { "operationType": { "$ne": "insert" } } },
        doc! { "$project": {
            "operationType": 1, "documentKey": 1,
            "wake": written(location, "wake"), "at": written(location, "at"), "touched": touched(location),
        } },
        doc! { "$match": { "$or": [
            { "wake": { "$regex": wake::pattern(session) } },
            { "touched": true, "wake": { "$not": { "$type": "string" } } },
            { "operationType": { "$nin": ["update", "replace"] } },
        ] } },
        doc! { "$project": { "touched": 0 } },
    ]
}

/// Selects what can make a document free, or match what is asked for: every insertion and every change by the user,
/// and of our own writes those by which somebody went and nobody came. Expiry raises no event.
fn freeing(location: &Location) -> Vec<Document> {
    vec![
        doc! { "$match": { "operationType": { "$ne": "delete" } } },
        doc! { "$project": { "wake": written(location, "wake") } },
        doc! { "$match": { "$or": [{ "wake": { "$not": { "$type": "string" } } }, { "wake": { "$regex": wake::FREEING } }] } },
        doc! { "$project": { "_id": 1 } },
    ]
}

/// The value that an event's write gave to a field of the lock; missing where it gave none.
///
/// A delta has it under a key with literal dots, or inside the value of a key that is a part of the path; and `$match`
/// by path can see neither.
fn written(location: &Location, field: &str) -> Document {
    let whole = format!("$fullDocument.{}", location.key(field));
    let key = location.key(field);
    let mut branches = vec![doc! { "case": { "$eq": ["$$this.k", &key] }, "then": "$$this.v" }];
    for (dot, _) in key.match_indices('.') {
        let inside = format!("$$this.v.{}", &key[dot + 1..]);
        branches.push(doc! { "case": { "$eq": ["$$this.k", &key[..dot]] }, "then": inside });
    }
    let delta = doc! { "$reduce": {
        "input": { "$objectToArray": { "$ifNull": ["$updateDescription.updatedFields", {}] } },
        "initialValue": Bson::Null,
        "in": { "$switch": { "branches": branches, "default": "$$value" } },
    } };
    doc! { "$ifNull": [whole, delta] }
}

/// Whether an event's write may have changed anything of the lock.
fn touched(location: &Location) -> Document {
    let path: Vec<&str> = location.segments().collect();
    let above: Vec<String> = (1..=path.len()).map(|depth| path[..depth].join(".")).collect();
    let keys = doc! { "$concatArrays": [
        { "$map": {
            "input": { "$objectToArray": { "$ifNull": ["$updateDescription.updatedFields", {}] } },
            "in": "$$this.k",
        } },
        { "$ifNull": ["$updateDescription.removedFields", []] },
        { "$map": { "input": { "$ifNull": ["$updateDescription.truncatedArrays", []] }, "in": "$$this.field" } },
    ] };
    let concerned = doc! { "$or": [
        { "$in": ["$$this", above] },
        { "$eq": [{ "$indexOfBytes": ["$$this", location.key("")] }, 0] },
    ] };
    doc! { "$or": [
        { "$ne": ["$operationType", "update"] },
        { "$anyElementTrue": { "$map": { "input": keys, "in": concerned } } },
    ] }
}

/// Selects what happens to one document, or to any, and to the collection.
fn about(id: Option<&Bson>, location: &Location) -> Vec<Document> {
    let mut stages = Vec::new();
    stages.extend(id.map(|id| {
        doc! { "$match": { "$or": [
            { "documentKey._id": { "$eq": id } },
            { "operationType": { "$nin": ["insert", "update", "replace", "delete"] } },
        ] } }
    }));
    // Of a document of the user's own only the lock is sent.
    let shown = if location.is_root() {
        "fullDocument".to_owned()
    } else {
        format!("fullDocument.{}", location.path())
    };
    stages.push(doc! { "$project": { "operationType": 1, "documentKey": 1, shown: 1 } });
    stages
}

/// An open stream; dropping it closes the server's cursor in the background.
pub(crate) struct MongoStream<T> {
    cursor: RawBatchCursor,
    read: Box<dyn Fn(&Document) -> T + Send + Sync>,
    first: Option<Vec<T>>,
    resume_at: Option<ResumeAt>,
}

impl<T> MongoStream<T> {
    pub(in crate::store) async fn next(&mut self) -> Result<Vec<T>, StoreError> {
        match self.first.take().filter(|events| !events.is_empty()) {
            Some(events) => Ok(events),
            None => self.read_batch().await,
        }
    }

    pub(in crate::store) fn resume_at(&self) -> Option<ResumeAt> {
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

pub(in crate::store) fn read_sighting(location: &Location, event: &Document) -> NamedSighting {
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    let name = id.and_then(|id| name::of_document(location, id));
    let state = event
        .get_document("fullDocument")
        .ok()
        .and_then(|document| location.lock(document))
        .map(State::from_document);
    let sighting = match (event.get_str("operationType"), state) {
        (Ok("delete"), _) => Sighting::Gone,
        (Ok("insert" | "update" | "replace"), Some(Ok(state))) => Sighting::State(Box::new(state)),
        // Deleted or overwritten since, or the collection is: the document must be read.
        _ => Sighting::Unclear,
    };
    (name, sighting)
}

pub(in crate::store) fn read_event(location: &Location, event: &Document) -> Event {
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    match (
        event.get_str("operationType"),
        id.map(|id| name::of_document(location, id)),
    ) {
        (Ok("insert" | "update" | "replace" | "delete"), Some(Some(name))) => {
            match (event.get_str("wake"), event.get_datetime("at")) {
                (Ok(wake), Ok(at)) => Event::Addressed {
                    name,
                    wake: wake.to_owned(),
                    at: ServerTime(at.timestamp_millis()),
                },
                _ => Event::Foreign { name },
            }
        }
        // Some other program's document: no lock's name is anything but a string.
        (Ok("insert" | "update" | "replace" | "delete"), Some(None)) => Event::Foreign { name: String::new() },
        _ => Event::Everything,
    }
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError {
        kind: Failure::Unavailable,
        source: Arc::new(error),
    }
}
