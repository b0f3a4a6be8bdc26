//! The check that the server's updates do for locks what they have to: tried in a transaction that is aborted.

use std::time::{Duration, SystemTime};

use mongodb::{
    Collection,
    bson::{Document, doc},
    error::{Error, TRANSIENT_TRANSACTION_ERROR},
    options::{ReadConcern, ReturnDocument, WriteConcern},
};

use super::{Check, SKEW, Status, UNAUTHORIZED, code, collection, documents, primary, told, topology, try_transaction};
use crate::{
    clock::Offset,
    connection::Place,
    exit::Failure,
    text::{plain, span_of},
};

const NAME: &str = "updates";

/// What a server has that only says that it is MongoDB.
const ADVICE: &str = "keep the locks on a MongoDB server, without a program in between that changes commands or answers: \
                      `watchlock verify` says which promises fall here";

/// Writes a free lock by a pipeline, as clients do. A standalone has no transaction in which it could be tried, and a
/// router would keep the collection.
pub(super) async fn updates(place: &Place, hello: &Document, offset: Offset) -> Result<Option<Check>, Failure> {
    if topology::is_standalone(hello) || hello.contains_key("msg") {
        return Ok(None);
    }
    let [.., lock] = collection::locks();
    let before = offset.now();
    let tried = try_transaction(|| written_and_aborted(documents(place), lock.clone())).await?;
    let (updated, left) = match tried {
        Ok(tried) => tried,
        // The privileges say it.
        Err(error) if code(&error) == Some(UNAUTHORIZED) => return Ok(None),
        Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
            let found = format!("they could not be tried: {}", told(&error));
            return Ok(Some(Check::new(NAME, Status::Unknown, found).advice("try again")));
        }
        Err(error) => {
            return Ok(Some(bad(format!(
                "the server refuses one by a pipeline: {}",
                told(&error)
            ))));
        }
    };
    if left {
        return Ok(Some(bad("what a transaction wrote that was aborted is there")));
    }
    let Some(mut updated) = updated else {
        return Ok(Some(bad(
            "the server does not answer with the document after an update",
        )));
    };
    let Ok(at) = updated.get_datetime("at").map(|at| at.to_system_time()) else {
        return Ok(Some(bad("the server writes no time for `$$NOW`")));
    };
    let most = SKEW + offset.within;
    if apart(at, before).min(apart(at, offset.now())) > most {
        let found = format!("`$$NOW` differs from the server's time by more than {}", span_of(most));
        return Ok(Some(bad(found)));
    }
    updated.insert("at", lock.get("at"));
    let is_kept = lock.iter().all(|(field, value)| updated.get(field) == Some(value));
    if !is_kept {
        let found = format!(
            "the server wrote another document than it was sent: {}",
            plain(&updated.to_string())
        );
        return Ok(Some(bad(found)));
    }
    Ok(Some(Check::ok(NAME, "they do what locks need, by the server's clock")))
}

fn bad(found: impl Into<String>) -> Check {
    Check::new(NAME, Status::Problem, found).advice(ADVICE)
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// Returns the document after the update, and whether it was there after the transaction.
async fn written_and_aborted(
    collection: Collection<Document>,
    lock: Document,
) -> Result<(Option<Document>, bool), Error> {
    let itself = doc! { "_id": lock.get("_id") };
    let mut session = collection.client().start_session().await?;
    session
        .start_transaction()
        .read_concern(ReadConcern::local())
        .write_concern(WriteConcern::majority())
        .selection_criteria(primary())
        .await?;
    let merged = doc! { "$mergeObjects": [{ "$literal": lock }, { "at": "$$NOW" }] };
    let update = vec![doc! { "$replaceWith": merged }];
    let updated = collection
        .find_one_and_update(itself.clone(), update)
        .upsert(true)
        .return_document(ReturnDocument::After)
        .session(&mut session)
        .await;
    // After an error the server has aborted it already.
    let _ = session.abort_transaction().await;
    let updated = updated?;
    let left = collection
        .find_one(itself.clone())
        .read_concern(ReadConcern::local())
        .await?;
    if left.is_some() {
        // A user of the least role may not: then it stays until somebody deletes it.
        let _ = collection.delete_one(itself).await;
    }
    Ok((updated, left.is_some()))
}
