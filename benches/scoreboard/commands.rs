//! The commands of the least lock that has leases on the server's clock, a queue, fencing tokens, and documents that the
//! server removes once nobody has used them for long. `benches/peers` uses this file too.

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
    error::Error,
};

/// Length of a lease, in milliseconds.
pub(crate) const LEASE: i64 = 30_000;

/// Runs a pipeline at a document as the library does, without the driver's retryable writes. Returns the document as it
/// is then.
pub(crate) async fn modify(
    database: Database,
    collection: &str,
    id: &str,
    written: Document,
) -> Result<Document, Error> {
    let command = doc! {
        "findAndModify": collection, "query": { "_id": id }, "update": [{ "$replaceWith": written }], "upsert": true,
        "new": true, "writeConcern": { "w": "majority" },
    };
    let mut answer = database.run_command(command).await?;
    match answer.remove("value") {
        Some(Bson::Document(document)) => Ok(document),
        other => Err(Error::custom(format!("no document after the write, but {other:?}"))),
    }
}

fn live(list: &str) -> Document {
    let entries = doc! { "$ifNull": [list, []] };
    doc! { "$filter": { "input": entries, "cond": { "$gt": ["$$this.until", "$$NOW"] } } }
}

fn next_token() -> Document {
    doc! { "$add": [{ "$ifNull": ["$token", 0_i64] }, 1_i64] }
}

fn ends() -> Document {
    doc! { "$add": ["$$NOW", LEASE] }
}

/// Writes the fields if the condition holds, and nothing otherwise.
fn only_if(condition: Document, mut fields: Document) -> Document {
    fields.insert("expires", ends());
    doc! { "$cond": [condition, { "$mergeObjects": ["$$ROOT", fields] }, "$$ROOT"] }
}

/// Releases the lock, and hands it to the first in the queue that is alive.
pub(crate) fn hands_over() -> Document {
    let granted = doc! { "$mergeObjects": [
        { "$arrayElemAt": ["$$live", 0] },
        { "token": next_token(), "since": "$$NOW", "until": ends() },
    ] };
    let fields = doc! {
        "token": next_token(), "holders": [granted], "queue": { "$slice": ["$$live", 1, 1_000] },
        "wake": { "$arrayElemAt": ["$$live.id", 0] },
    };
    let held = doc! { "$eq": ["$holders.id", ["present"]] };
    doc! { "$let": { "vars": { "live": live("$queue") }, "in": only_if(held, fields) } }
}

/// Acquires the lock if nobody holds it or waits for it.
pub(crate) fn acquires() -> Document {
    let holder = doc! { "id": "present", "since": "$$NOW", "until": ends(), "token": next_token() };
    let free = doc! { "$eq": [[live("$holders"), live("$queue")], [[], []]] };
    only_if(
        free,
        doc! { "token": next_token(), "holders": [holder], "queue": [], "wake": "" },
    )
}

/// Releases the lock if nobody waits for it.
pub(crate) fn releases() -> Document {
    let alone = doc! { "$eq": [["$holders.id", "$queue"], [["present"], []]] };
    only_if(alone, doc! { "holders": Bson::Array(Vec::new()), "wake": "" })
}
