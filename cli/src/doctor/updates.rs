//! The check that the server's updates do for locks what they have to: tried in a transaction that is aborted.

use std::time::{Duration, SystemTime};

use mongodb::{
    ClientSession, Collection,
    bson::{Document, doc},
    error::{Error, TRANSIENT_TRANSACTION_ERROR},
    options::{ReadConcern, ReturnDocument},
};

use super::{
    Check, SKEW, Status, UNAUTHORIZED, code, collection, documents, told, topology, transaction, try_transaction,
};
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

/// A text that looks like a field, and one that an update would set whose condition does not hold.
const TEXT: &str = "$version";
const OVERWRITTEN: &str = "overwritten";

/// Writes a free lock by a pipeline, as clients do. A standalone has no transaction in which it could be tried, and a
/// router would keep the collection.
pub(super) async fn updates(place: &Place, hello: &Document, offset: Offset) -> Result<Option<Check>, Failure> {
    if topology::is_standalone(hello) || hello.contains_key("msg") {
        return Ok(None);
    }
    let [.., lock] = collection::locks();
    let before = offset.now();
    let tried = try_transaction(|| written_and_aborted(documents(place), lock.clone())).await?;
    let tried = match tried {
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
    Ok(Some(
        match tried.problem(lock, (before, offset.now()), SKEW + offset.within) {
            Some(problem) => bad(problem),
            None => Check::ok(NAME, "they do what locks need, by the server's clock"),
        },
    ))
}

/// What a transaction has shown that was aborted.
struct Tried {
    /// The document after it was written.
    written: Option<Document>,
    /// The same as it was read after an update that sets its `wake` to a [`TEXT`], and one whose condition does not hold.
    read: Option<Document>,
    /// It is there after the transaction.
    is_left: bool,
}

impl Tried {
    /// Returns what a server must not do with a lock that was written between two readings of its clock, each of which
    /// may be wrong by `most`.
    fn problem(self, mut lock: Document, (before, after): (SystemTime, SystemTime), most: Duration) -> Option<String> {
        if self.is_left {
            return Some("what a transaction wrote that was aborted is there".to_owned());
        }
        let Some(mut written) = self.written else {
            return Some("the server does not answer with the document after an update".to_owned());
        };
        let Ok(at) = written.get_datetime("at").map(|at| at.to_system_time()) else {
            return Some("the server writes no time for `$$NOW`".to_owned());
        };
        if at + most < before || at > after + most {
            return Some(format!(
                "`$$NOW` differs from the server's time by more than {}",
                span_of(most)
            ));
        }
        let differs = |found: &Document| {
            format!(
                "the server has another document than it was sent: {}",
                plain(&found.to_string())
            )
        };
        lock.insert("at", written.get("at"));
        if lock.iter().any(|(field, value)| written.get(field) != Some(value)) {
            return Some(differs(&written));
        }
        let Some(read) = self.read else {
            return Some("the server does not find a document that it has written".to_owned());
        };
        match read.get_str("wake") {
            Ok(TEXT) => {}
            Ok(OVERWRITTEN) => return Some("an update was done whose condition does not hold".to_owned()),
            _ => return Some("an update that sets a text by `$literal` does not set it".to_owned()),
        }
        written.insert("wake", TEXT);
        (read != written).then(|| differs(&read))
    }
}

fn bad(found: impl Into<String>) -> Check {
    Check::new(NAME, Status::Problem, found).advice(ADVICE)
}

async fn written_and_aborted(collection: Collection<Document>, lock: Document) -> Result<Tried, Error> {
    let itself = doc! { "_id": lock.get("_id") };
    let mut session = transaction(&collection).await?;
    let tried = written_and_read(&collection, lock, &mut session).await;
    // After an error the server has aborted it already.
    let _ = session.abort_transaction().await;
    let (written, read) = tried?;
    let found = collection.find_one(itself.clone());
    let is_left = found.read_concern(ReadConcern::local()).await?.is_some();
    if is_left {
        // A user of the least role may not: then it stays until somebody deletes it.
        let _ = collection.delete_one(itself).await;
    }
    Ok(Tried { written, read, is_left })
}

async fn written_and_read(
    collection: &Collection<Document>,
    lock: Document,
    session: &mut ClientSession,
) -> Result<(Option<Document>, Option<Document>), Error> {
    let of_version = |version: i64| doc! { "_id": lock.get("_id"), "version": version };
    let itself = doc! { "_id": lock.get("_id") };
    let merged = doc! { "$mergeObjects": [{ "$literal": &lock }, { "at": "$$NOW" }] };
    let written = collection
        .find_one_and_update(itself.clone(), vec![doc! { "$replaceWith": merged }])
        .upsert(true)
        .return_document(ReturnDocument::After)
        .session(&mut *session)
        .await?;
    for (version, text) in [(1, TEXT), (2, OVERWRITTEN)] {
        let update = vec![doc! { "$set": { "wake": { "$literal": text } } }];
        collection
            .update_one(of_version(version), update)
            .session(&mut *session)
            .await?;
    }
    let read = collection.find_one(itself).session(&mut *session).await?;
    Ok((written, read))
}
