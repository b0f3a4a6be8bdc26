//! Commands that are sent directly, without the driver's operations.
//!
//! The driver makes each of its single writes a retryable one. For that the server records every write in the entry of
//! its session, and for a `findAndModify` also the image of the document: two more documents for each write. A command
//! of ours is sent once; who repeats it knows what that does. So this cost is avoided here. In addition, the driver has
//! no time limit for updates, while the server has one for every command.

use std::{collections::HashMap, mem, time::Duration};

use mongodb::{
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind, WriteFailure},
};

use super::MongoStore;
use crate::{
    error::ServerError,
    store::{Elected, Failure, LogTime, Mismatch, Renewed, read_as},
};

impl MongoStore {
    /// Runs updates; a failed one does not stop the others. The server gives up after `within`.
    pub(super) async fn update(&self, updates: Vec<Document>, within: Duration) -> Result<Updated, Error> {
        let command = doc! {
            "update": self.collection.name(),
            "updates": updates,
            "ordered": false,
            "maxTimeMS": limit(within),
            "writeConcern": { "w": "majority" },
        };
        updated(&self.ask_primary(command).await?)
    }

    /// Changes the document that meets the query, or removes it, and returns it as the command shows it. The server gives
    /// up after `within`.
    pub(super) async fn find_and_modify(
        &self,
        query: Document,
        change: Document,
        within: Duration,
    ) -> Result<Option<Document>, Error> {
        let mut command = doc! {
            "findAndModify": self.collection.name(),
            "query": query,
            "maxTimeMS": limit(within),
            "writeConcern": { "w": "majority" },
        };
        command.extend(change);
        Ok(modified(self.ask_primary(command).await?)?.0)
    }

    /// Runs one update and reports whether it changed a document. The server gives up after `within`.
    pub(super) async fn update_one(&self, statement: Document, within: Duration) -> Result<bool, ServerError> {
        let mut updated = self.update(vec![statement], within).await?;
        match updated.refused.pop() {
            Some((_, error)) => Err(error.into()),
            None => Ok(updated.modified > 0),
        }
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

impl Updated {
    /// Returns the outcome of renewals; `names` are those of the locks that each statement was for.
    pub(super) fn renewed(self, names: &[Vec<&String>]) -> Result<Renewed, ServerError> {
        let mut refused = HashMap::new();
        for (position, error) in self.refused {
            let error = ServerError::from(error);
            // The server failed here, not a document.
            if error.kind == Failure::Unavailable {
                return Err(error);
            }
            let names = names.get(position).into_iter().flatten();
            refused.extend(names.map(|name| ((*name).clone(), error.clone())));
        }
        Ok(Renewed {
            renewed: self.modified,
            refused,
            elected: self.elected,
            logged_by: self.logged_by,
        })
    }
}

/// Reads the answer to a write, or to several that don't depend on each other.
///
/// A missing majority takes precedence: whether any of the writes will stay is unknown.
pub(super) fn updated(answer: &Document) -> Result<Updated, Error> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        return Err(failure(read_as(error).map(WriteFailure::WriteConcernError)));
    }
    let errors = answer.get_array("writeErrors").map_or(&[][..], Vec::as_slice);
    let refused = errors.iter().map(|error| {
        let error = error.as_document();
        let position = error.and_then(|error| count(error, "index"));
        let position = position.and_then(|position| usize::try_from(position).ok());
        let (Some(error), Some(position)) = (error, position) else {
            return Err(Error::custom("a write error without the index of its write"));
        };
        Ok((position, failure(read_as(error).map(WriteFailure::WriteError))))
    });
    Ok(Updated {
        modified: count(answer, "nModified").unwrap_or(0),
        refused: refused.collect::<Result<_, _>>()?,
        elected: answer.get_object_id("electionId").ok(),
        logged_by: answer.get_timestamp("operationTime").ok(),
    })
}

/// Reads the answer to a `findAndModify`: returns the document that it shows, and the time in the server's log by which
/// it was done.
pub(super) fn modified(mut answer: Document) -> Result<(Option<Document>, Option<LogTime>), Error> {
    let Updated { logged_by, .. } = updated(&answer)?;
    let document = answer.get_document_mut("value").ok().map(mem::take);
    Ok((document, logged_by))
}

/// Returns the failure as an error of the driver; one that can't be read may belong to a write that was applied.
fn failure(read: Result<WriteFailure, Mismatch>) -> Error {
    read.map_or_else(Error::custom, |failure| ErrorKind::Write(failure).into())
}

/// Returns all errors in the answer to a write.
#[cfg(any(test, fuzzing))]
pub(crate) fn refusals(answer: &Document) -> Vec<Error> {
    let read = updated(answer).map(|updated| updated.refused.into_iter().map(|(_, error)| error).collect());
    read.unwrap_or_else(|error| vec![error])
}

fn count(answer: &Document, field: &str) -> Option<u64> {
    match answer.get(field)? {
        Bson::Int32(count) => u64::try_from(*count).ok(),
        Bson::Int64(count) => u64::try_from(*count).ok(),
        _ => None,
    }
}

/// Returns the limit, at least a millisecond: zero would mean no limit.
pub(super) fn some(within: Duration) -> Duration {
    within.max(Duration::from_millis(1))
}

/// Returns the limit in milliseconds.
pub(super) fn limit(within: Duration) -> i32 {
    i32::try_from(some(within).as_millis()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::*;

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
        assert_eq!((modified, elected), (2, Some(ELECTION)));
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
            doc! { "ok": 1, "nModified": 1, "writeConcernError": {} },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [5] },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [{ "code": 121 }] },
        ] {
            let told = updated(&answer).map_err(|error| ServerError::of_lock(error).kind);
            assert!(matches!(told, Err(Failure::Unavailable)), "{answer}");
        }
    }
}
