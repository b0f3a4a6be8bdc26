//! The check that the server accepts locks in the collection: tried in a transaction that is aborted.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;
use mongodb::{
    Collection,
    bson::{Bson, DateTime, Document, doc, oid::ObjectId},
    error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR},
    options::{ReadConcern, WriteConcern},
};
use tokio::time::sleep;

use super::{Check, Status, UNAUTHORIZED, ask, code, documents, primary, told};
use crate::{connection::Place, exit::Failure, text::plain};

/// Maximum number of characters of the server's reason that are shown: the document is a part of it.
const REASON_MOST: usize = 300;

/// Pauses between two tries of a transaction: a collection is made within the last of them.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Checks whether the collection takes locks: two that are held with a waiter, and two free ones.
pub(super) async fn collection(place: &Place, hello: &Document) -> Result<Check, Failure> {
    if !hello.contains_key("setName") {
        // A standalone has no transactions, and a router would keep a collection that it made for one.
        let place = place.clone();
        return Ok(ask(async move { described(&place).await })
            .await?
            .unwrap_or_else(|error| {
                let found = format!("whether it takes locks can't be seen: {}", told(&error));
                unknown(
                    &found,
                    "grant the user find on the collection and listCollections on the database",
                )
            }));
    }
    let mut pause = SHORTEST_PAUSE;
    let tried = loop {
        let tried = ask(inserted_and_aborted(documents(place))).await?;
        // So the server calls it beside a collection or an index that is being made.
        let is_transient = |error: &Error| error.contains_label(TRANSIENT_TRANSACTION_ERROR);
        if !tried.as_ref().is_err_and(is_transient) || pause > LONGEST_PAUSE {
            break tried;
        }
        sleep(pause).await;
        pause *= 2;
    };
    Ok(match tried {
        Ok(()) => Check::ok("collection", "it takes locks, as a transaction shows that was aborted"),
        Err(error) if code(&error) == Some(UNAUTHORIZED) => {
            unknown("it can't be tried without the privileges above", "grant them first")
        }
        Err(error) => {
            let reason: String = plain(&reason(&error)).chars().take(REASON_MOST).collect();
            match error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
                true => unknown(&format!("it could not be tried: {reason}"), "try again"),
                false => refusing(&reason),
            }
        }
    })
}

/// Compares with locks what the server tells of the collection where it can't be tried: by a validator it refuses all.
async fn described(place: &Place) -> Result<Check, Error> {
    let listed = doc! { "listCollections": 1, "filter": { "name": &place.collection } };
    let found: Vec<Document> = place.database.run_cursor_command(listed).await?.try_collect().await?;
    let options = found.first().and_then(|found| found.get_document("options").ok());
    let validator = options.and_then(|options| options.get_document("validator").ok());
    let told = |name| options.and_then(|options| options.get_str(name).ok());
    let is_off = told("validationLevel") == Some("off") || told("validationAction") == Some("warn");
    if let Some(validator) = validator.filter(|_| !is_off) {
        for lock in locks() {
            // A facet makes one document of any number of them, even of none.
            let pipeline = [
                doc! { "$limit": 1 },
                doc! { "$facet": { "one": [{ "$limit": 1 }] } },
                doc! { "$replaceRoot": { "newRoot": { "$literal": lock } } },
                doc! { "$match": validator.clone() },
            ];
            if !documents(place).aggregate(pipeline).await?.advance().await? {
                return Ok(refusing("its validator does not accept them"));
            }
        }
    }
    let found = "no validator refuses locks; whether an index does is tried on replica sets alone";
    Ok(unknown(found, "take one: watchlock run --try x true"))
}

async fn inserted_and_aborted(collection: Collection<Document>) -> Result<(), Error> {
    let mut session = collection.client().start_session().await?;
    session
        .start_transaction()
        .read_concern(ReadConcern::local())
        .write_concern(WriteConcern::majority())
        .selection_criteria(primary())
        .await?;
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

fn refusing(reason: &str) -> Check {
    refused(
        format!("the server refuses locks in it: {reason}"),
        "drop the validator or the index that refuses them, or name a collection for the locks alone (--collection, \
         LockClientBuilder::collection); otherwise the reason is the server's",
    )
}

fn unknown(found: &str, advice: &str) -> Check {
    Check::new("collection", Status::Unknown, found).advice(advice)
}

fn refused(found: impl Into<String>, advice: &str) -> Check {
    Check::new("collection", Status::Problem, found).advice(advice)
}

/// Returns the server's reason for a refused insertion.
fn reason(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::InsertMany(refused) => match refused.write_errors.iter().flatten().next() {
            Some(first) => first.message.clone(),
            None => "no majority".to_owned(),
        },
        _ => told(error),
    }
}

/// Returns the documents of two held locks with a waiter and of two free ones, which nobody has, with all that a client
/// writes. The values that two locks may share are the same, so that every unique index shows.
fn locks() -> [Document; 4] {
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
