//! The change streams of a collection.

use futures::StreamExt;
use mongodb::{
    bson::{Bson, Document, RawDocument, doc},
    error::Error,
    raw_batch_cursor::RawBatchCursor,
};

use super::{AWAIT_TIME, MongoStore, lossy, not_utf8};
use crate::{
    protocol::{Location, ServerTime, State, wake},
    store::{Event, NamedSighting, ResumeAt, Sighting, StoreError, Watched, name},
};

impl MongoStore {
    /// Opens a stream of what concerns `session`.
    pub(in crate::store) async fn watch(
        &self,
        session: &str,
        watched: Watched,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream<Event>, StoreError> {
        let location = self.location.clone();
        if location.is_root() {
            let read = move |event: &Received, to: &mut Vec<Event>| to.push(read_any(&location, event));
            return self.stream(Document::new(), concerning(session), read, resume).await;
        }
        let selection = concerning_in_place(session, &location, watched);
        let ours = wake::pattern(session);
        let read = move |event: &Received, to: &mut Vec<Event>| {
            let Received::Event { fields, .. } = event else {
                to.push(Event::Everything);
                return;
            };
            let concern = concern(fields, &ours);
            if concern.session {
                to.push(read_any(&location, event));
            }
            if watched == Watched::LocksAndFree && concern.frees {
                to.push(Event::Freed);
            }
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
            move |event: &Received, to: &mut Vec<NamedSighting>| to.extend(sight_any(&location, event))
        };
        let options = doc! { "fullDocument": "updateLookup" };
        let id = name.map(|name| name::id_of(&self.location, name));
        let selection = about(id.as_ref(), &self.location);
        self.stream(options, selection, read, resume).await
    }

    /// Opens the stream as a plain aggregation and not through the driver's `watch`, whose own resuming can lose
    /// events unseen (a retried resume starts from now) and whose errors come late: here every gap is known, and every
    /// batch, empty ones too, is a sign of life.
    async fn stream<T>(
        &self,
        mut options: Document,
        selection: Vec<Document>,
        read: impl Fn(&Received, &mut Vec<T>) + Send + Sync + 'static,
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

/// A write of the protocol bears the time at which its command began. One that bears an earlier time by more than this has
/// brought an earlier copy of the lock back. In milliseconds; a command that was held up for longer is only looked at.
const OLD: i64 = 100;

/// Selects, on the server, what concerns a session: writes that name one of its entries, and whatever is not a write
/// of the protocol. A pipeline update is reported as an `update` with a delta or as a whole `replace`, as the server
/// likes, so `wake` is looked for in both.
///
/// Each condition says first which kind of write it is for. The server looks for as much of it as it can in its log: a
/// condition on `fullDocument` alone lets every update pass there, of which an event is made before it is dropped.
fn concerning(session: &str) -> Vec<Document> {
    let pattern = doc! { "$regex": wake::pattern(session) };
    const DELTA: &str = "updateDescription.updatedFields.wake";
    const WHOLE: &str = "fullDocument.wake";
    vec![
        doc! { "$match": { "$or": [
            { "operationType": "update", DELTA: &pattern },
            { "operationType": "update", DELTA: { "$not": { "$type": "string" } } },
            { "operationType": { "$in": ["insert", "replace"] }, WHOLE: &pattern },
            { "operationType": "replace", WHOLE: { "$not": { "$type": "string" } } },
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
/// nothing to us; a change of the lock without a new `wake`, and a replaced or deleted document, are. So is an earlier copy
/// of the lock, which an object mapper saves with the whole document: it names nobody that it concerns, as its `wake` is
/// that of an earlier write, but its time is over.
///
/// While somebody claims, there is told as well what can make a document free, or match what is asked for: every
/// insertion and every change by the user, and of our own writes those by which somebody went and nobody came. Expiry
/// raises no event.
fn concerning_in_place(session: &str, location: &Location, watched: Watched) -> Vec<Document> {
    let mut stages = Vec::new();
    let mut told = vec![
        doc! { "wake": { "$regex": wake::pattern(session) } },
        doc! { "touched": true, "wake": { "$not": { "$type": "string" } } },
        doc! { "old": true, "wake": { "$type": "string" } },
        doc! { "operationType": { "$nin": ["insert", "update", "replace"] } },
    ];
    match watched {
        Watched::Locks => stages.push(doc! { "$match": { "operationType": { "$ne": "insert" } } }),
        Watched::LocksAndFree => told.extend([
            doc! { "wake": { "$not": { "$type": "string" } } },
            doc! { "wake": { "$regex": wake::FREEING } },
        ]),
    }
    stages.extend([
        doc! { "$project": {
            "operationType": 1, "documentKey": 1,
            "wake": written(location, "wake"), "at": written(location, "at"), "touched": touched(location),
            "old": is_old(location),
        } },
        doc! { "$match": { "$or": told } },
    ]);
    stages
}

/// Whom an event of documents of the user's own concerns.
struct Concern {
    /// The entries of the session.
    session: bool,
    /// Those who claim.
    frees: bool,
}

/// The same conditions as those of the server's selection: which of them an event has met is not in it.
fn concern(event: &Document, ours: &str) -> Concern {
    let wake = event.get_str("wake").ok();
    let kind = event.get_str("operationType").unwrap_or_default();
    let touched = event.get_bool("touched").unwrap_or(true);
    let old = event.get_bool("old").unwrap_or(false);
    let session = match kind {
        "insert" => false,
        "update" | "replace" => wake.map_or(touched, |wake| old || wake.contains(ours)),
        _ => true,
    };
    let frees = kind != "delete" && wake.is_none_or(wake::is_freeing);
    Concern { session, frees }
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

/// Whether the lock that an event's write has given bears an earlier time than the write.
fn is_old(location: &Location) -> Document {
    // MongoDB tells the time of a write to the millisecond since 6.0. Before, it is the second that had begun.
    let when = doc! { "$ifNull": ["$wallTime", { "$toDate": "$clusterTime" }] };
    doc! { "$lt": [written(location, "at"), { "$subtract": [when, OLD] }] }
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

/// An event, as far as it can be read.
enum Received {
    Event {
        /// What is no UTF-8 in it is replaced.
        fields: Document,
        /// Whether the `_id` of its document is as it is there. Where it is not, no lock has it, as no program could ask
        /// for it.
        has_name: bool,
    },
    /// It is no BSON.
    Nothing,
}

impl Received {
    fn read(raw: &RawDocument) -> Self {
        let Some(fields) = lossy::read(raw) else {
            return Self::Nothing;
        };
        let has_name = !fields.contains_key("documentKey") || lossy::read_exactly(raw, "documentKey").is_some();
        Self::Event { fields, has_name }
    }
}

/// Adds what an event says.
type Reader<T> = dyn Fn(&Received, &mut Vec<T>) + Send + Sync;

/// An open stream; dropping it closes the server's cursor in the background.
pub(crate) struct MongoStream<T> {
    cursor: RawBatchCursor,
    read: Box<Reader<T>>,
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

    /// Reads what the server has sent, whatever it is: what can't be read is passed over, as it would be sent again and
    /// again to whoever takes up the stream before it.
    async fn read_batch(&mut self) -> Result<Vec<T>, StoreError> {
        let Some(batch) = self.cursor.next().await.transpose()? else {
            // The server closes the cursor after an invalidating event.
            self.resume_at = None;
            return Err(Error::custom("the change stream was closed by the server").into());
        };
        let cursor = batch.as_raw_document().get_document("cursor").ok();
        let token = cursor.and_then(|cursor| cursor.get_document("postBatchResumeToken").ok());
        self.resume_at = token.and_then(lossy::read).map(ResumeAt);
        let mut events = Vec::new();
        let Ok(received) = batch.doc_slices() else {
            (self.read)(&Received::Nothing, &mut events);
            return Ok(events);
        };
        for event in received.into_iter() {
            let event = event.as_ref().ok().and_then(|event| event.as_document());
            let event = event.map_or(Received::Nothing, Received::read);
            (self.read)(&event, &mut events);
        }
        Ok(events)
    }
}

fn sight_any(location: &Location, event: &Received) -> Option<NamedSighting> {
    match event {
        Received::Nothing => Some(NamedSighting::Everything),
        Received::Event { fields, has_name: true } => read_sighting(location, fields),
        Received::Event { fields, .. } => {
            let deleted = fields
                .get_str("operationType")
                .is_ok_and(|operation| operation == "delete");
            let key = fields.get_document("documentKey").ok();
            key.filter(|_| !deleted)
                .map(|key| NamedSighting::Unreadable(not_utf8(key)))
        }
    }
}

fn read_any(location: &Location, event: &Received) -> Event {
    match event {
        Received::Nothing => Event::Everything,
        Received::Event { fields, has_name: true } => read_event(location, fields),
        // Nobody holds it or waits for it.
        Received::Event { .. } => Event::Foreign { name: String::new() },
    }
}

/// `None`: it is of a document that no lock can have.
pub(crate) fn read_sighting(location: &Location, event: &Document) -> Option<NamedSighting> {
    let Some(id) = event.get_document("documentKey").ok().and_then(|key| key.get("_id")) else {
        return Some(NamedSighting::Everything);
    };
    let name = name::of_document(location, id)?;
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
    Some(NamedSighting::Of(name, sighting))
}

pub(crate) fn read_event(location: &Location, event: &Document) -> Event {
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
