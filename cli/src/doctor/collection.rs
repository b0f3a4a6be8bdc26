//! The check that the server accepts locks in the collection.

mod standalone;

use std::time::SystemTime;

use futures::TryStreamExt as _;
use mongodb::{
    Collection,
    bson::{Bson, DateTime, Document, doc, oid::ObjectId},
    error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR},
};

use super::{Check, Status, UNAUTHORIZED, ask, code, documents, topology, transaction, try_transaction};
use crate::{connection::Place, exit::Failure, text::plain};

/// Maximum number of characters of the server's reason that are shown: the document is a part of it.
const REASON_MOST: usize = 300;

/// The server's codes `DocumentValidationFailure` and `DuplicateKey`.
const VALIDATION: i32 = 121;
const DUPLICATE_KEY: i32 = 11_000;

/// The server's code `DatabaseDifferCase`.
const DATABASE_DIFFERS_IN_CASE: i32 = 13_297;

/// Checks whether the collection takes locks: two that are held with a waiter, and two free ones.
pub(super) async fn collection(place: &Place, hello: &Document) -> Result<Check, Failure> {
    if let Some(key) = shard_key(place, hello).await?
        && !key.keys().eq(["_id"])
    {
        let found = format!("it is sharded by {}", plain(&key.to_string()));
        return Ok(refused(
            found,
            "shard it by _id, or keep the locks in a collection that is not sharded",
        ));
    }
    if topology::is_standalone(hello) {
        return standalone::collection(place, &locks()).await;
    }
    if hello.contains_key("msg") && !exists(place).await? {
        // A router would create the database for the transaction, and keep it.
        return Ok(ok("it is created with the first lock"));
    }
    Ok(
        match try_transaction(|| inserted_and_aborted(documents(place))).await? {
            Ok(()) => ok("it takes locks, as a transaction shows that was aborted"),
            Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                let found = "it can't be tried without the privileges above";
                Check::new("collection", Status::Unknown, found).advice("grant them first")
            }
            Err(error) => {
                let (number, reason) = reason(&error);
                let reason: String = plain(&reason).chars().take(REASON_MOST).collect();
                match number {
                    Some(DATABASE_DIFFERS_IN_CASE) => another_case(&reason),
                    Some(VALIDATION | DUPLICATE_KEY) => refusing(&reason),
                    Some(_) if !error.contains_label(TRANSIENT_TRANSACTION_ERROR) => refused(
                        format!("the server refuses locks in it: {reason}"),
                        "name another collection for the locks (--collection, LockClientBuilder::collection), or have the server \
                     accept writes there: the reason is the server's",
                    ),
                    _ => {
                        let found = format!("it could not be tried: {reason}");
                        Check::new("collection", Status::Unknown, found).advice("try again")
                    }
                }
            }
        },
    )
}

async fn inserted_and_aborted(collection: Collection<Document>) -> Result<(), Error> {
    let mut session = transaction(&collection).await?;
    let inserted = collection.insert_many(locks()).session(&mut session).await;
    // Nothing is written; after an error the server has aborted it already.
    let _ = session.abort_transaction().await;
    inserted.map(drop)
}

/// Reports a collection in which the library keeps no locks.
pub(super) fn unsuitable(problem: &str) -> Check {
    refused(
        plain(problem),
        "name another collection for the locks (--collection, LockClientBuilder::collection): it is created as it must be",
    )
}

fn another_case(reason: &str) -> Check {
    refused(
        format!("the server has no room for the database: {reason}"),
        "names of databases may not differ in case alone: name the one that is there (--database, WATCHLOCK_DATABASE)",
    )
}

fn refusing(reason: &str) -> Check {
    refused(
        format!("the server refuses locks in it: {reason}"),
        "drop the validator or the index that refuses them, or name a collection for the locks alone (--collection, \
         LockClientBuilder::collection)",
    )
}

fn ok(found: &str) -> Check {
    Check::ok("collection", found)
}

fn refused(found: impl Into<String>, advice: &str) -> Check {
    Check::new("collection", Status::Problem, found).advice(advice)
}

/// Returns whether the collection is there; one that may not be seen may be.
async fn exists(place: &Place) -> Result<bool, Failure> {
    let (database, filter) = (place.database.clone(), doc! { "name": &place.collection });
    let listed = ask(async move {
        let listed = database.list_collections().filter(filter).await?;
        listed.try_collect::<Vec<_>>().await
    });
    Ok(listed.await?.map_or(true, |listed| !listed.is_empty()))
}

/// Returns the key by which the collection is sharded, as far as the user may know.
async fn shard_key(place: &Place, hello: &Document) -> Result<Option<Document>, Failure> {
    if hello.get_str("msg") != Ok("isdbgrid") {
        return Ok(None);
    }
    let namespace = format!("{}.{}", place.database.name(), place.collection);
    let sharded = place
        .database
        .client()
        .database("config")
        .collection::<Document>("collections");
    let found = ask(async move { sharded.find_one(doc! { "_id": namespace }).await }).await?;
    let found = found.ok().flatten();
    Ok(found.and_then(|found| found.get_document("key").ok().cloned()))
}

/// Returns the server's code for a refused insertion, and its reason.
fn reason(error: &Error) -> (Option<i32>, String) {
    match &*error.kind {
        ErrorKind::Command(command) => (Some(command.code), command.message.clone()),
        ErrorKind::InsertMany(refused) => match refused.write_errors.iter().flatten().next() {
            Some(first) => (Some(first.code), first.message.clone()),
            None => (None, "no majority".to_owned()),
        },
        other => (None, other.to_string()),
    }
}

/// Returns the documents of two held locks with a waiter and of two free ones, which nobody has, with all that a client
/// writes. The values that two locks may share are the same, so that every unique index shows.
pub(super) fn locks() -> [Document; 4] {
    let run = ObjectId::new().to_hex();
    let now = Bson::DateTime(DateTime::from_system_time(SystemTime::now()));
    ["held 1", "held 2", "free 1", "free 2"].map(|name| {
        let entry = |role: &str| {
            doc! {
                "id": format!("doctor {run} {name} {role}"), "permits": 1_i64, "lease": 30_000_i64, "claim": 5_000_i64,
                "since": &now, "until": &now, "owner": { "host": "doctor", "pid": 1_i64 },
            }
        };
        let mut holder = entry("holder");
        holder.insert("token", 1_i64);
        let (holders, queue) = if name.starts_with("held") {
            (vec![holder], vec![entry("waiter")])
        } else {
            Default::default()
        };
        doc! {
            "_id": format!("watchlock doctor {run} {name}"), "protocol": 1_i64, "kind": "mutex", "capacity": 1_i64,
            "token": 1_i64, "holders": holders, "queue": queue, "wake": "doctor.1:;", "version": 1_i64, "at": &now,
            "purge_at": &now,
        }
    })
}
