//! Commands that are sent directly, without the driver's operations.
//!
//! The driver makes each of its single writes a retryable one. For that the server records every write in the entry of
//! its session, and for a `findAndModify` also the image of the document: two more documents for each write. The
//! protocol's writes may arrive twice anyway, and their senders repeat them; so this cost is avoided here. In addition,
//! the driver has no time limit for updates, while the server has one for every command.

use std::time::Duration;

use mongodb::{
    bson::{Bson, Document, RawDocumentBuf, doc},
    error::{Error, ErrorKind, WriteFailure},
    options::{ReadPreference, SelectionCriteria},
};

use super::{MongoStore, prepared::Encoded};
use crate::{
    protocol::Operation,
    store::{Elected, LogTime, read_as},
};

impl MongoStore {
    /// Changes one document and returns the given fields, or all, of the changed document; `None` when there is none.
    /// And the time in the server's log by which that was done. The server gives up after `within`.
    pub(super) async fn find_and_modify(
        &self,
        query: Document,
        change: Change,
        within: Duration,
    ) -> Result<(Option<Document>, Option<LogTime>), Error> {
        let mut command = doc! { "findAndModify": self.collection.name(), "query": query, "maxTimeMS": limit(within) };
        command.extend(Document::from(change));
        let command = RawDocumentBuf::try_from(&command).map_err(Error::custom)?;
        self.modify(command).await
    }

    /// Does the same for the document with this `_id`, by a [`Change`] that is encoded already.
    pub(super) async fn find_and_modify_by(
        &self,
        id: &str,
        operation: &Operation,
        encoded: &Encoded,
        within: Duration,
    ) -> Result<(Option<Document>, Option<LogTime>), Error> {
        let mut command = Fields::new(encoded.bytes().len() + id.len() + self.collection.name().len() + 128);
        command.text("findAndModify", self.collection.name());
        command.document("query", |query| query.text("_id", id));
        command.number("maxTimeMS", limit(within));
        command.fields_of(encoded, operation);
        let command = command.end().map_err(Error::custom)?;
        self.modify(RawDocumentBuf::from_bytes(command).map_err(Error::custom)?)
            .await
    }

    async fn modify(&self, command: RawDocumentBuf) -> Result<(Option<Document>, Option<LogTime>), Error> {
        let mut answer = self.send(command).await?;
        let logged_by = answer.get_timestamp("operationTime").ok();
        match answer.remove("value") {
            Some(Bson::Document(document)) => Ok((Some(document), logged_by)),
            _ => Ok((None, logged_by)),
        }
    }

    /// Runs updates; a failed one does not stop the others. The server gives up after `within`.
    pub(super) async fn update(&self, updates: Vec<Document>, within: Duration) -> Result<Updated, Error> {
        let command = doc! {
            "update": self.collection.name(),
            "updates": updates,
            "ordered": false,
            "maxTimeMS": limit(within),
            "writeConcern": { "w": "majority" },
        };
        let command = RawDocumentBuf::try_from(&command).map_err(Error::custom)?;
        updated(&self.ask(command).await?)
    }

    /// Sends a write to the primary, and returns its answer once a majority has the write.
    async fn send(&self, command: RawDocumentBuf) -> Result<Document, Error> {
        let answer = self.ask(command).await?;
        refusal(&answer).map_or(Ok(answer), Err)
    }

    /// Sends a write like [`Self::send`], but leaves the errors of single writes in the answer for the caller to read.
    async fn ask(&self, command: RawDocumentBuf) -> Result<Document, Error> {
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        self.database.run_raw_command(command).selection_criteria(primary).await
    }
}

/// The part of a `findAndModify` that depends on the operation, but not on its document.
pub(super) struct Change {
    pub(super) update: Vec<Document>,
    pub(super) upsert: bool,
    pub(super) fields: Option<Document>,
}

impl From<Change> for Document {
    fn from(change: Change) -> Self {
        let mut document = doc! {
            "update": change.update, "upsert": change.upsert, "new": true, "writeConcern": { "w": "majority" },
        };
        if let Some(fields) = change.fields {
            document.insert("fields", fields);
        }
        document
    }
}

/// A document that is encoded field by field.
struct Fields(Vec<u8>);

impl Fields {
    fn new(room: usize) -> Self {
        let mut bytes = Vec::with_capacity(room);
        bytes.extend([0; 4]);
        Self(bytes)
    }

    fn key(&mut self, kind: u8, key: &str) {
        self.0.push(kind);
        self.0.extend(key.bytes());
        self.0.push(0);
    }

    fn text(&mut self, key: &str, text: &str) {
        self.key(0x02, key);
        // If a text is too long for this, so is the whole document, which `end` reports.
        let length = i32::try_from(text.len() + 1).unwrap_or(i32::MAX);
        self.0.extend(length.to_le_bytes());
        self.0.extend(text.bytes());
        self.0.push(0);
    }

    fn number(&mut self, key: &str, number: i32) {
        self.key(0x10, key);
        self.0.extend(number.to_le_bytes());
    }

    fn document(&mut self, key: &str, fields: impl FnOnce(&mut Self)) {
        self.key(0x03, key);
        let start = self.0.len();
        self.0.extend([0; 4]);
        fields(self);
        self.0.push(0);
        let length = i32::try_from(self.0.len() - start).unwrap_or(i32::MAX);
        self.0[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Adds the fields of an encoded document, all but its length and the zero at its end, with an operation in them.
    fn fields_of(&mut self, encoded: &Encoded, operation: &Operation) {
        let before = self.0.len();
        self.0.extend(encoded.bytes());
        encoded.fill_in(&mut self.0[before..], operation);
        self.0.drain(before..before + 4);
        self.0.pop();
    }

    fn end(mut self) -> Result<Vec<u8>, std::num::TryFromIntError> {
        self.0.push(0);
        let length = i32::try_from(self.0.len())?;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        Ok(self.0)
    }
}

/// The outcome of several updates.
#[derive(Debug)]
pub(super) struct Updated {
    /// The number of changed documents.
    pub(super) modified: u64,
    /// The refused updates, by their positions.
    pub(super) refused: Vec<(usize, Error)>,
    /// The election by which the server that did this is the primary.
    pub(super) elected: Option<Elected>,
    /// The time in the server's log by which it was done.
    pub(super) logged_by: Option<LogTime>,
}

/// Reads the answer to updates that don't depend on each other.
///
/// A missing majority takes precedence: whether any of the updates will stay is unknown.
fn updated(answer: &Document) -> Result<Updated, Error> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        let failure = read_as(error).map(WriteFailure::WriteConcernError);
        return Err(failure.map_or_else(Error::custom, |failure| ErrorKind::Write(failure).into()));
    }
    let errors = answer.get_array("writeErrors").map_or(&[][..], Vec::as_slice);
    let refused = errors.iter().map(|error| {
        let error = error.as_document();
        let position = error.and_then(|error| count(error, "index"));
        let position = position.and_then(|position| usize::try_from(position).ok());
        let (Some(error), Some(position)) = (error, position) else {
            return Err(Error::custom("a write error without the index of its write"));
        };
        let error = read_as(error).map(WriteFailure::WriteError);
        Ok((
            position,
            error.map_or_else(Error::custom, |error| ErrorKind::Write(error).into()),
        ))
    });
    Ok(Updated {
        modified: count(answer, "nModified").unwrap_or(0),
        refused: refused.collect::<Result<_, _>>()?,
        elected: answer.get_object_id("electionId").ok().map(Elected),
        logged_by: answer.get_timestamp("operationTime").ok(),
    })
}

fn count(answer: &Document, field: &str) -> Option<u64> {
    match answer.get(field)? {
        Bson::Int32(count) => u64::try_from(*count).ok(),
        Bson::Int64(count) => u64::try_from(*count).ok(),
        _ => None,
    }
}

/// Returns the limit in milliseconds, at least one: zero would mean no limit.
pub(super) fn limit(within: Duration) -> i32 {
    i32::try_from(within.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Returns the error of a write that was answered.
///
/// A missing majority comes last: a refused write was not applied at all.
pub(crate) fn refusal(answer: &Document) -> Option<Error> {
    let refused = answer.get_array("writeErrors").ok().and_then(|errors| errors.first());
    let failure = if let Some(error) = refused {
        let Some(error) = error.as_document() else {
            return Some(Error::custom("a write error that is not a document"));
        };
        read_as(error).map(WriteFailure::WriteError)
    } else {
        let error = answer.get_document("writeConcernError").ok()?;
        read_as(error).map(WriteFailure::WriteConcernError)
    };
    Some(failure.map_or_else(Error::custom, |failure| ErrorKind::Write(failure).into()))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::*;
    use crate::{error::ServerError, store::Failure};

    #[test]
    fn an_answer_tells_what_went_wrong() {
        let refused = doc! { "index": 0, "code": 121, "codeName": "DocumentValidationFailure", "errmsg": "no" };
        let missing = doc! { "code": 91, "codeName": "ShutdownInProgress", "errmsg": "soon" };
        let failures = [
            (doc! { "ok": 1 }, None),
            (doc! { "ok": 1, "writeErrors": [] }, None),
            (
                doc! { "ok": 1, "writeErrors": [refused.clone()] },
                Some(Failure::Refused),
            ),
            (
                doc! { "ok": 1, "writeConcernError": missing.clone() },
                Some(Failure::Unavailable),
            ),
            (
                doc! { "ok": 1, "writeErrors": [refused], "writeConcernError": missing },
                Some(Failure::Refused),
            ),
            // An unreadable error may belong to a write that was applied.
            (
                doc! { "ok": 1, "writeErrors": [{ "code": "?" }] },
                Some(Failure::Unavailable),
            ),
            (doc! { "ok": 1, "writeErrors": [5] }, Some(Failure::Unavailable)),
            (doc! { "ok": 1, "writeConcernError": {} }, Some(Failure::Unavailable)),
        ];
        for (answer, failure) in failures {
            let told = refusal(&answer).map(|error| ServerError::of_lock(error).kind);
            assert_eq!(told, failure, "{answer}");
        }
    }

    #[test]
    fn fields_are_encoded_as_the_driver_encodes_them() {
        let mut fields = Fields::new(0);
        fields.text("name", "a\0\u{e9}");
        fields.number("number", -7);
        fields.document("empty", |_| ());
        fields.document("inner", |inner| {
            inner.document("deeper", |deeper| deeper.number("a", 1));
            inner.text("b", "");
        });
        let encoded = RawDocumentBuf::from_bytes(fields.end().unwrap()).unwrap();
        let expected = doc! {
            "name": "a\0\u{e9}", "number": -7, "empty": {}, "inner": { "deeper": { "a": 1 }, "b": "" },
        };
        assert_eq!(encoded, RawDocumentBuf::try_from(&expected).unwrap());
    }

    #[test]
    fn updates_are_refused_one_by_one() {
        const ELECTION: ObjectId = ObjectId::from_bytes([7; 12]);
        let refused = |index| doc! { "index": index, "code": 121, "errmsg": "no" };
        let answer =
            doc! { "ok": 1, "n": 3, "nModified": 2, "writeErrors": [refused(1), refused(4)], "electionId": ELECTION };
        let Updated {
            modified,
            refused: errors,
            elected,
            ..
        } = updated(&answer).unwrap();
        assert_eq!((modified, elected), (2, Some(Elected(ELECTION))));
        let positions: Vec<usize> = errors.iter().map(|(position, _)| *position).collect();
        assert_eq!(positions, [1, 4]);
        let kinds = errors.into_iter().map(|(_, error)| ServerError::of_lock(error).kind);
        assert!(kinds.into_iter().all(|kind| kind == Failure::Refused));
        assert!(
            updated(&doc! { "ok": 1, "nModified": 7_i64 })
                .is_ok_and(|updated| updated.modified == 7 && updated.elected.is_none())
        );
        // A missing majority says nothing about single documents; nor does an unreadable error.
        let missing = doc! { "code": 91, "codeName": "ShutdownInProgress", "errmsg": "soon" };
        for answer in [
            doc! { "ok": 1, "nModified": 1, "writeConcernError": missing.clone() },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [refused(0)], "writeConcernError": missing },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [5] },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [{ "code": 121 }] },
        ] {
            let told = updated(&answer).map_err(|error| ServerError::of_lock(error).kind);
            assert!(matches!(told, Err(Failure::Unavailable)), "{answer}");
        }
    }
}
