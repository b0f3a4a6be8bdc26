//! The change streams of a collection.

mod elements;

use std::sync::Arc;

use futures::{StreamExt, stream::BoxStream};
use mongodb::{
    bson::{Bson, Document, RawDocument, doc},
    error::Error,
    options::SelectionCriteria,
    raw_batch_cursor::RawBatch,
};

use super::{AWAIT_TIME, MongoStore, lossy, not_utf8};
use crate::{
    error::ServerError,
    protocol::{Location, ServerTime, State, wake},
    store::{Event, ForeignWrite, LockLayout, LogTime, Observed, ResumeAt, Watched},
};

impl MongoStore {
    /// Opens a stream of the events that concern `session`, and of those that are watched.
    ///
    /// It is a plain aggregation and not the driver's `watch`, whose own resuming can lose events unnoticed (a retried
    /// resume starts from now) and whose errors come late: here every gap is known, and every batch, empty ones too, is
    /// a sign of life.
    pub(in crate::store) async fn watch(
        &self,
        session: &str,
        watched: &Watched,
        resume: Option<&ResumeAt>,
    ) -> Result<MongoStream, ServerError> {
        let location = self.layout.base();
        let ids = match &watched.observed {
            Observed::All => None,
            Observed::These(names) => Some(names.iter().map(|name| self.layout.id_of(name)).collect()),
        };
        let mut options = Document::new();
        if let Some(token) = resume {
            options.insert("resumeAfter", token);
        }
        let mut stages = vec![doc! { "$changeStream": options }];
        stages.extend(if self.layout.is_of_elements() {
            elements::concerning(session, location, ids)
        } else if location.is_root() {
            concerning(session, ids)
        } else {
            concerning_in_place(session, location, watched.free, ids)
        });
        let cursor = self
            .collection
            .aggregate(stages)
            .selection_criteria(SelectionCriteria::ReadPreference(self.streams.clone()))
            .max_await_time(AWAIT_TIME)
            .batch()
            .await?;
        // The answer to the aggregation itself: the stream is open as of now.
        let mut stream = MongoStream {
            cursor: cursor.boxed(),
            layout: self.layout.clone(),
            ours: wake::pattern(session),
            watched: watched.clone(),
            first: None,
            resume_at: None,
            as_of: None,
        };
        stream.first = Some(stream.read_batch().await?).filter(|first| !first.is_empty());
        Ok(stream)
    }
}

pub(crate) use elements::{read_elements, read_observed};

/// Maximum age of a write's `at`, in milliseconds: a write of the protocol carries the time at which its command began,
/// so an earlier one has restored an earlier copy of the lock. A command that was held up for longer only causes a
/// read.
const OLD: i64 = 100;

/// The `_id`s of the documents whose locks are observed; `None`: those of all.
type ObservedIds = Option<Vec<Bson>>;

/// Selects, on the server, the events that concern a session: writes that name one of its entries, everything that is
/// not a write of the protocol, and writes of observed locks. The server reports a pipeline update as an `update` with
/// a delta or as a whole `replace`, so `wake` is looked for in both.
///
/// Each condition begins with the kind of write it is for. The server applies as much of it as it can to its log: a
/// condition on `fullDocument` alone lets every update pass there, and the server builds an event of each before it
/// drops it.
fn concerning(session: &str, observed: ObservedIds) -> Vec<Document> {
    let pattern = doc! { "$regex": wake::pattern(session) };
    const DELTA: &str = "updateDescription.updatedFields.wake";
    const WHOLE: &str = "fullDocument.wake";
    let shown = doc! { "$project": {
        "operationType": 1, "documentKey": 1,
        "wake": { "$ifNull": ["$fullDocument.wake", "$updateDescription.updatedFields.wake"] },
        "at": { "$ifNull": ["$fullDocument.at", "$updateDescription.updatedFields.at"] },
        "clusterTime": 1, "after": after("$fullDocument", WHOLE),
    } };
    let Some(ids) = observed else { return vec![shown] };
    let mut told = vec![
        doc! { "operationType": "update", DELTA: &pattern },
        doc! { "operationType": "update", DELTA: { "$not": { "$type": "string" } } },
        doc! { "operationType": { "$in": ["insert", "replace"] }, WHOLE: &pattern },
        doc! { "operationType": "replace", WHOLE: { "$not": { "$type": "string" } } },
        doc! { "operationType": { "$nin": ["insert", "update", "replace"] } },
    ];
    if !ids.is_empty() {
        told.push(doc! { "documentKey._id": { "$in": ids } });
    }
    vec![doc! { "$match": { "$or": told } }, shown]
}

/// Maximum size in bytes of a document that another program's event shows: a lock's is rarely larger, and every client
/// with a stream gets it.
const EVENT_SHOWN_MOST: i32 = 65_536;

/// Returns the lock's document where another program replaced it, so that nobody needs to read it.
fn after(lock: impl Into<String>, wake: impl Into<String>) -> Document {
    let (lock, wake) = (lock.into(), wake.into());
    let shown = doc! { "$and": [
        { "$eq": ["$operationType", "replace"] },
        { "$ne": [{ "$type": format!("${wake}") }, "string"] },
        { "$lte": [{ "$bsonSize": "$fullDocument" }, EVENT_SHOWN_MOST] },
    ] };
    doc! { "$cond": [shown, lock, "$$REMOVE"] }
}

/// Does the same for locks in documents of the user's own. Insertions, and changes that do not touch the lock, are
/// ignored; changes of the lock without a new `wake`, and replaced or deleted documents, are not. Nor is an earlier
/// copy of the lock, which an object mapper saves with the whole document: it names nobody that it concerns, as its
/// `wake` is that of an earlier write, but its time is in the past.
///
/// While somebody claims, the stream also reports everything that can free a document, or make it match: every
/// insertion, every change by the user, and those of our own writes that remove an entry and add none. Expiry raises no
/// event.
fn concerning_in_place(session: &str, location: &Location, free: bool, observed: ObservedIds) -> Vec<Document> {
    let mut stages = Vec::new();
    let mut told = vec![
        doc! { "wake": { "$regex": wake::pattern(session) } },
        doc! { "touched": true, "wake": { "$not": { "$type": "string" } } },
        doc! { "old": true, "wake": { "$type": "string" } },
        doc! { "operationType": { "$nin": ["insert", "update", "replace"] } },
    ];
    if free {
        told.extend([
            doc! { "wake": { "$not": { "$type": "string" } } },
            doc! { "wake": { "$regex": wake::FREEING } },
        ]);
    }
    let mut comes = vec![doc! { "operationType": { "$ne": "insert" } }];
    let observed = match observed {
        None => Some(doc! { "touched": true }),
        Some(ids) if ids.is_empty() => None,
        Some(ids) => Some(doc! { "touched": true, "documentKey._id": { "$in": ids } }),
    };
    if let Some(observed) = observed {
        comes.push(doc! { format!("fullDocument.{}", location.path()): { "$exists": true } });
        told.push(observed);
    }
    if !free {
        stages.push(doc! { "$match": { "$or": comes } });
    }
    stages.extend([
        doc! { "$project": {
            "operationType": 1, "documentKey": 1,
            "wake": written(location, "wake"), "at": written(location, "at"), "touched": touched(location),
            "old": is_old(location), "clusterTime": 1,
            "after": after(format!("$fullDocument.{}", location.path()), format!("fullDocument.{}", location.key("wake"))),
        } },
        doc! { "$match": { "$or": told } },
    ]);
    stages
}

/// Returns the value that an event's write gave to a field of the lock; missing if it gave none.
fn written(location: &Location, field: &str) -> Document {
    let key = location.key(field);
    doc! { "$ifNull": [format!("$fullDocument.{key}"), given(&key)] }
}

/// Returns the value that an update gave to the field at this path; null if it gave none.
///
/// A delta has it under a key with literal dots, or inside the value of a key that is a part of the path; `$match` by
/// path can see neither.
fn given(path: &str) -> Document {
    let mut branches = vec![doc! { "case": { "$eq": ["$$this.k", path] }, "then": "$$this.v" }];
    for (dot, _) in path.match_indices('.') {
        let inside = format!("$$this.v.{}", &path[dot + 1..]);
        branches.push(doc! { "case": { "$eq": ["$$this.k", &path[..dot]] }, "then": inside });
    }
    doc! { "$reduce": {
        "input": updated(),
        "initialValue": Bson::Null,
        "in": { "$switch": { "branches": branches, "default": "$$value" } },
    } }
}

/// Returns the expression for whether an event's write may have changed anything in the lock, or has put it there.
fn touched(location: &Location) -> Document {
    let concerned = doc! { "$or": [
        { "$in": ["$$this", down_to(location)] },
        starts_with("$$this", &location.key("")),
    ] };
    let shown = format!("$fullDocument.{}", location.path());
    doc! { "$switch": {
        "branches": [
            { "case": { "$eq": ["$operationType", "update"] }, "then": {
                "$anyElementTrue": { "$map": { "input": keys(), "in": concerned } },
            } },
            { "case": { "$eq": ["$operationType", "insert"] }, "then": { "$ne": [{ "$type": shown }, "missing"] } },
        ],
        "default": true,
    } }
}

/// Returns the paths that lead to a location, down to its own: who writes one of them writes all of it.
fn down_to(location: &Location) -> Vec<String> {
    let path: Vec<&str> = location.segments().collect();
    (1..=path.len()).map(|depth| path[..depth].join(".")).collect()
}

/// Returns the expression for the fields that an update wrote, as keys and values.
fn updated() -> Document {
    doc! { "$objectToArray": { "$ifNull": ["$updateDescription.updatedFields", {}] } }
}

/// Returns the expression for the keys of all changes that an event reports of an update.
fn keys() -> Document {
    doc! { "$concatArrays": [
        { "$map": { "input": updated(), "in": "$$this.k" } },
        cut(),
    ] }
}

/// Returns the expression for the keys of what an update removed: fields, and the ends of arrays.
fn cut() -> Document {
    doc! { "$concatArrays": [
        { "$ifNull": ["$updateDescription.removedFields", []] },
        { "$map": { "input": { "$ifNull": ["$updateDescription.truncatedArrays", []] }, "in": "$$this.field" } },
    ] }
}

fn starts_with(key: &str, prefix: &str) -> Document {
    doc! { "$eq": [{ "$indexOfBytes": [key, prefix] }, 0] }
}

/// Returns the expression for whether the lock that an event's write has left carries an earlier time than the write.
/// A holder's own change of its document carries none.
fn is_old(location: &Location) -> Document {
    let at = written(location, "at");
    doc! { "$and": [
        { "$eq": [{ "$type": &at }, "date"] },
        { "$lt": [at, { "$subtract": [when(), OLD] }] },
    ] }
}

/// Returns the expression for the time of an event's write.
fn when() -> Document {
    // MongoDB reports the time of a write in milliseconds since 6.0. Before that, it is the second that had begun;
    // these servers read a timestamp as a date only where they print it.
    let second = doc! { "$dateFromString": { "dateString": { "$dateToString": { "date": "$clusterTime" } } } };
    doc! { "$ifNull": ["$wallTime", second] }
}

/// An open stream; dropping it closes the server's cursor in the background.
pub(crate) struct MongoStream {
    /// Its type is hidden as in [`Hidden`](crate::hidden::Hidden).
    cursor: BoxStream<'static, Result<RawBatch, Error>>,
    layout: Arc<LockLayout>,
    /// The pattern of the session's entries.
    ours: String,
    watched: Watched,
    /// Events that came with the answer to the opening.
    first: Option<Vec<Event>>,
    resume_at: Option<ResumeAt>,
    as_of: Option<LogTime>,
}

impl MongoStream {
    pub(in crate::store) async fn next(&mut self) -> Result<Vec<Event>, ServerError> {
        match self.first.take() {
            Some(events) => Ok(events),
            None => self.read_batch().await,
        }
    }

    pub(in crate::store) fn resume_at(&self) -> Option<ResumeAt> {
        self.resume_at.clone()
    }

    pub(in crate::store) fn as_of(&self) -> Option<LogTime> {
        self.as_of
    }

    pub(in crate::store) fn has_untold(&self) -> bool {
        self.first.is_some()
    }

    /// Reads everything that the server has sent: unreadable parts are skipped, as the server would send them again and
    /// again to every client that resumes the stream before them.
    async fn read_batch(&mut self) -> Result<Vec<Event>, ServerError> {
        let Some(batch) = self.cursor.next().await.transpose()? else {
            // The server closes the cursor after an invalidating event.
            return Err(Error::custom("the change stream was closed by the server").into());
        };
        self.as_of = batch.as_raw_document().get_timestamp("operationTime").ok();
        let cursor = batch.as_raw_document().get_document("cursor").ok();
        let token = cursor.and_then(|cursor| cursor.get_document("postBatchResumeToken").ok());
        self.resume_at = token.and_then(lossy::read);
        let mut events = Vec::new();
        let Ok(received) = batch.doc_slices() else {
            return Ok(vec![Event::Everything]);
        };
        for event in received.into_iter() {
            let event = event.as_ref().ok().and_then(|event| event.as_document());
            let read = event.and_then(|event| Some((event, lossy::read(event)?)));
            match read {
                Some((raw, fields)) => self.read_fields(raw, &fields, &mut events),
                // Bytes that are not BSON.
                None => events.push(Event::Everything),
            }
        }
        Ok(events)
    }

    /// Adds the content of an event with these fields, in which anything that is not UTF-8 is replaced. It evaluates the
    /// conditions of the server's selection again: the event does not include which of them it met.
    fn read_fields(&self, raw: &RawDocument, fields: &Document, to: &mut Vec<Event>) {
        let Self { layout, watched, .. } = self;
        // No lock has an `_id` that is not UTF-8, as no program could ask for it.
        let has_name = !fields.contains_key("documentKey") || lossy::read_exactly(raw, "documentKey").is_some();
        if layout.is_of_elements() {
            if has_name {
                to.extend(read_elements(layout, &self.ours, fields));
                to.extend(read_observed(layout, &watched.observed, fields));
            }
            return;
        }
        let wake = fields.get_str("wake").ok();
        let kind = fields.get_str("operationType").unwrap_or_default();
        let touched = fields.get_bool("touched").unwrap_or(true);
        if watched.free && kind != "delete" && wake.is_none_or(wake::is_freeing) {
            to.push(Event::Freed);
        }
        let key = fields.get_document("documentKey").ok();
        if !has_name {
            let shown = key.filter(|_| watched.observed == Observed::All && touched && kind != "delete");
            to.extend(shown.map(|key| Event::Unreadable(not_utf8(key))));
            return;
        }
        let is_ours = |wake: &str| wake.contains(&self.ours);
        let concerns_session = match kind {
            "insert" => layout.is_root() && wake.is_some_and(is_ours),
            "update" | "replace" => {
                wake.map_or(touched, |wake| fields.get_bool("old").unwrap_or(false) || is_ours(wake))
            }
            _ => true,
        };
        if concerns_session {
            to.push(read_event(layout, fields));
        }
        let name = key.and_then(|key| layout.document(key.get("_id")?));
        let observed = name.filter(|name| touched && watched.observed.has(name));
        to.extend(observed.map(Event::Written));
    }
}

pub(crate) fn read_event(layout: &LockLayout, event: &Document) -> Event {
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    match (event.get_str("operationType"), id.map(|id| layout.document(id))) {
        (Ok("insert" | "update" | "replace" | "delete"), Some(Some(name))) => {
            match (event.get_str("wake"), ServerTime::in_field(event, "at")) {
                (Ok(wake), Some(at)) => Event::Addressed {
                    name,
                    wake: wake.to_owned(),
                    at,
                    logged_at: event.get_timestamp("clusterTime").ok(),
                },
                _ => Event::Foreign {
                    name,
                    after: read_after(event),
                },
            }
        }
        // Another program's document: names of locks are always strings.
        (Ok("insert" | "update" | "replace" | "delete"), Some(None)) => Event::Foreign {
            name: String::new(),
            after: None,
        },
        _ => Event::Everything,
    }
}

/// Returns the lock's document after another program's write; `None` where the event does not show it.
fn read_after(event: &Document) -> Option<Box<ForeignWrite>> {
    let document = match (event.get_str("operationType").ok()?, event.get("after")) {
        ("delete", _) => None,
        (_, Some(Bson::Document(document))) => Some(State::from_document(document)),
        _ => return None,
    };
    let logged_at = event.get_timestamp("clusterTime").ok()?;
    Some(Box::new(ForeignWrite { document, logged_at }))
}
