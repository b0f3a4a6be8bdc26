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
    /// Changes one document, and returns these fields of what it is then, or all; `None` where there is none.
    pub(super) async fn find_and_modify(
        &self,
        query: Document,
        update: Vec<Document>,
        upsert: bool,
        fields: Option<Document>,
    ) -> Result<Option<Document>, Error> {
        let mut command = doc! {
            "findAndModify": self.collection.name(),
            "query": query,
            "update": update,
            "upsert": upsert,
            "new": true,
        };
        if let Some(fields) = fields {
            command.insert("fields", fields);
        }
        match self.send(command).await?.remove("value") {
            Some(Bson::Document(document)) => Ok(Some(document)),
            _ => Ok(None),
        }
    }

    /// Changes many documents, each by itself, and returns how many. The server gives up after so long.
    pub(super) async fn update_many(
        &self,
        filter: Document,
        update: Vec<Document>,
        within: Duration,
    ) -> Result<u64, Error> {
        let command = doc! {
            "update": self.collection.name(),
            "updates": [{ "q": filter, "u": update, "multi": true }],
            // Zero would be without a limit.
            "maxTimeMS": i32::try_from(within.as_millis()).unwrap_or(i32::MAX).max(1),
        };
        let answer = self.send(command).await?;
        let count = answer.get("nModified").and_then(|count| match count {
            Bson::Int32(count) => u64::try_from(*count).ok(),
            Bson::Int64(count) => u64::try_from(*count).ok(),
            _ => None,
        });
        Ok(count.unwrap_or(0))
    }

    /// Sends a write to the primary, and returns its answer once a majority has what it wrote.
    async fn send(&self, mut command: Document) -> Result<Document, Error> {
        command.insert("writeConcern", doc! { "w": "majority" });
        let database = self.collection.client().database(&self.collection.namespace().db);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let answer = database.run_command(command).selection_criteria(primary).await?;
        refusal(&answer).map_or(Ok(answer), Err)
    }
}

/// What went wrong with a write that was answered.
///
/// A majority that is still missing comes last: what was refused was not written at all.
pub(in crate::store) fn refusal(answer: &Document) -> Option<Error> {
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
}
