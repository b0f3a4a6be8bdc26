//! Commands that are sent as they are, beside the driver's operations.
//!
//! The driver makes each of its single writes a retryable one. For that the server notes every write in the record of
//! its session, and for a `findAndModify` the image of the document too: two more documents a write. What the protocol
//! writes may come twice anyway, and is repeated by whoever sent it; here it is spared. And the driver has no time limit
//! for updates, where the server has one for every command.

use std::time::Duration;

use mongodb::{
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind, WriteFailure},
    options::{ReadPreference, SelectionCriteria},
};

use super::MongoStore;
use crate::store::read_as;

impl MongoStore {
    /// Changes one document, and returns these fields of what it is then, or all; `None` where there is none. The server
    /// gives up after so long.
    pub(super) async fn find_and_modify(
        &self,
        query: Document,
        update: Vec<Document>,
        upsert: bool,
        fields: Option<Document>,
        within: Duration,
    ) -> Result<Option<Document>, Error> {
        let mut command = doc! {
            "findAndModify": self.collection.name(),
            "query": query,
            "update": update,
            "upsert": upsert,
            "new": true,
            "maxTimeMS": limit(within),
        };
        if let Some(fields) = fields {
            command.insert("fields", fields);
        }
        match self.send(command).await?.remove("value") {
            Some(Bson::Document(document)) => Ok(Some(document)),
            _ => Ok(None),
        }
    }

    /// Runs updates, none of which keeps the others from being done. The server gives up after so long.
    pub(super) async fn update(&self, updates: Vec<Document>, within: Duration) -> Result<Updated, Error> {
        let command = doc! {
            "update": self.collection.name(),
            "updates": updates,
            "ordered": false,
            "maxTimeMS": limit(within),
        };
        updated(&self.ask(command).await?)
    }

    /// Sends a write to the primary, and returns its answer once a majority has what it wrote.
    async fn send(&self, command: Document) -> Result<Document, Error> {
        let answer = self.ask(command).await?;
        refusal(&answer).map_or(Ok(answer), Err)
    }

    /// As [`Self::send`]; what it says of single writes is still to be read.
    async fn ask(&self, mut command: Document) -> Result<Document, Error> {
        command.insert("writeConcern", doc! { "w": "majority" });
        let database = self.collection.client().database(&self.collection.namespace().db);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        database.run_command(command).selection_criteria(primary).await
    }
}

/// What updates did.
#[derive(Debug)]
pub(super) struct Updated {
    /// In how many documents.
    pub(super) modified: u64,
    /// Those that were refused, by their positions.
    pub(super) refused: Vec<(usize, Error)>,
}

/// Reads the answer to updates that don't depend on each other.
///
/// A majority that is missing comes first: whether any of them will stay is not known.
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
            return Err(Error::custom("a write error that does not say of which write"));
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
    })
}

fn count(answer: &Document, field: &str) -> Option<u64> {
    match answer.get(field)? {
        Bson::Int32(count) => u64::try_from(*count).ok(),
        Bson::Int64(count) => u64::try_from(*count).ok(),
        _ => None,
    }
}

/// In milliseconds; zero would be without a limit.
fn limit(within: Duration) -> i32 {
    i32::try_from(within.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// What went wrong with a write that was answered.
///
/// A majority that is still missing comes last: what was refused was not written at all.
pub(crate) fn refusal(answer: &Document) -> Option<Error> {
    let refused = answer.get_array("writeErrors").ok().and_then(|errors| errors.first());
    let failure = if let Some(error) = refused {
        let Some(error) = error.as_document() else {
            return Some(Error::custom("a write error that is no document"));
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
    use super::*;
    use crate::store::{Failure, StoreError};

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
            // What can't be read may have been written.
            (
                doc! { "ok": 1, "writeErrors": [{ "code": "?" }] },
                Some(Failure::Unavailable),
            ),
            (doc! { "ok": 1, "writeErrors": [5] }, Some(Failure::Unavailable)),
            (doc! { "ok": 1, "writeConcernError": {} }, Some(Failure::Unavailable)),
        ];
        for (answer, failure) in failures {
            let told = refusal(&answer).map(|error| StoreError::from(error).kind);
            assert_eq!(told, failure, "{answer}");
        }
    }

    #[test]
    fn updates_are_refused_one_by_one() {
        let refused = |index| doc! { "index": index, "code": 121, "errmsg": "no" };
        let answer = doc! { "ok": 1, "n": 3, "nModified": 2, "writeErrors": [refused(1), refused(4)] };
        let Updated {
            modified,
            refused: errors,
        } = updated(&answer).unwrap();
        assert_eq!(modified, 2);
        let positions: Vec<usize> = errors.iter().map(|(position, _)| *position).collect();
        assert_eq!(positions, [1, 4]);
        let kinds = errors.into_iter().map(|(_, error)| StoreError::from(error).kind);
        assert!(kinds.into_iter().all(|kind| kind == Failure::Refused));
        assert!(updated(&doc! { "ok": 1, "nModified": 7_i64 }).is_ok_and(|updated| updated.modified == 7));
        // That a majority is missing says nothing of single documents; nor does what can't be read.
        let missing = doc! { "code": 91, "codeName": "ShutdownInProgress", "errmsg": "soon" };
        for answer in [
            doc! { "ok": 1, "nModified": 1, "writeConcernError": missing.clone() },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [refused(0)], "writeConcernError": missing },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [5] },
            doc! { "ok": 1, "nModified": 1, "writeErrors": [{ "code": 121 }] },
        ] {
            let told = updated(&answer).map_err(|error| StoreError::from(error).kind);
            assert!(matches!(told, Err(Failure::Unavailable)), "{answer}");
        }
    }
}
