//! Collections in which locks can't be kept.
//!
//! Most of what somebody can make of a collection is harmless, or the server refuses the first write of a lock. These
//! collections take locks and lose them, or take one lock for another.

use crate::error::ServerError;
use std::{future::ready, time::Duration};

use futures::future::BoxFuture;
use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};

use super::{MongoStore, command::limit, primary};

/// Maximum time for the look at a collection. The build of an index has the collection for itself for a moment, and a
/// transaction can make that long: no client waits for that, and goes on without a look.
const LOOKED_WITHIN: Duration = Duration::from_secs(2);

/// Fields of a lock's document that hold times, apart from the one by which free locks are purged.
const TIMES: [&str; 4] = ["at", "holders", "queue", "ends"];

impl MongoStore {
    /// Returns why locks can't be kept in the collection, as far as the user of the connection may know. One that is not
    /// there yet becomes a plain one.
    pub(super) async fn unsuitable(&self, is_router: bool) -> Result<Option<String>, ServerError> {
        let name = self.collection.name();
        let within = limit(LOOKED_WITHIN);
        let described = doc! { "listCollections": 1, "filter": { "name": name }, "maxTimeMS": within };
        let indexes = doc! { "listIndexes": name, "maxTimeMS": within };
        let itself = doc! { "_id": self.collection.namespace().to_string(), "dropped": { "$ne": true } };
        let sharded = doc! { "find": "collections", "filter": itself, "singleBatch": true, "maxTimeMS": within };
        let config = self.collection.client().database("config");
        let sharded = match is_router {
            true => listed(&config, sharded),
            false => Box::pin(ready(Ok(Vec::new()))),
        };
        // No command of the driver is abandoned half-way.
        let (described, indexes, sharded) = futures::join!(
            listed(&self.database, described),
            listed(&self.database, indexes),
            sharded
        );
        let (described, indexes, sharded) = (described?, indexes?, sharded?);
        let problem = described.iter().find_map(problem_of_collection);
        let problem = problem.or_else(|| indexes.iter().find_map(problem_of_index));
        Ok(problem.or_else(|| sharded.iter().find_map(problem_of_shards)))
    }
}

/// Returns what a command lists; nothing, if the server refuses or takes too long.
fn listed(database: &Database, command: Document) -> BoxFuture<'_, Result<Vec<Document>, ServerError>> {
    Box::pin(async move {
        let answer = database.run_command(command).selection_criteria(primary()).await;
        match answer.map_err(ServerError::from) {
            Err(error) if error.is_final() || error.ran_out_of_time() => Ok(Vec::new()),
            answer => Ok(first_batch(&answer?)),
        }
    })
}

/// Returns the documents in the answer to a command that lists: all, if they are few.
pub(super) fn first_batch(answer: &Document) -> Vec<Document> {
    let batch = answer
        .get_document("cursor")
        .and_then(|cursor| cursor.get_array("firstBatch"));
    let listed = batch.into_iter().flatten().filter_map(Bson::as_document);
    listed.cloned().collect()
}

/// Names the shard key by which two shards could each have a document of the same `_id`.
fn problem_of_shards(sharded: &Document) -> Option<String> {
    let key = sharded.get_document("key").ok()?;
    (!key.keys().eq(["_id"])).then(|| {
        let fields: Vec<String> = key.keys().map(|field| field.escape_debug().to_string()).collect();
        format!(
            "it is sharded by `{}`, so each shard could have a lock of the same name; shard it by `_id`, or not at all",
            fields.join("`, `")
        )
    })
}

fn problem_of_collection(described: &Document) -> Option<String> {
    let options = described.get_document("options").ok();
    let option = |name: &str| options.and_then(|options| options.get(name));
    match described.get_str("type") {
        Ok("view") => return Some("it is a view".to_owned()),
        Ok("timeseries") => return Some("it is a time series".to_owned()),
        _ => {}
    }
    if option("capped").is_some_and(|capped| *capped == Bson::Boolean(true)) {
        return Some(
            "it is capped, and the server deletes its oldest documents, locks that are held among them".to_owned(),
        );
    }
    let collation = option("collation").and_then(Bson::as_document)?;
    let locale = collation.get_str("locale").unwrap_or_default();
    (locale != "simple").then(|| {
        format!(
            "it has the collation `{}`, to which different names can be the same",
            locale.escape_debug()
        )
    })
}

/// Names the index by which the server would delete locks that are held.
fn problem_of_index(index: &Document) -> Option<String> {
    let field = index.get_document("key").ok()?.keys().next()?;
    let root = field.split('.').next().unwrap_or_default();
    (index.contains_key("expireAfterSeconds") && TIMES.contains(&root)).then(|| {
        format!(
            "its TTL index on `{}` deletes locks that are held",
            field.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loses_locks_or_takes_one_for_another_is_a_problem_and_all_else_is_none() {
        let of = |kind: &str, options: Document| problem_of_collection(&doc! { "type": kind, "options": options });
        for (kind, options, problem) in [
            ("view", doc! { "viewOn": "a" }, "a view"),
            (
                "timeseries",
                doc! { "timeseries": { "timeField": "at" } },
                "a time series",
            ),
            ("collection", doc! { "capped": true, "size": 4096 }, "capped"),
            (
                "collection",
                doc! { "collation": { "locale": "en", "strength": 2 } },
                "the collation `en`",
            ),
        ] {
            let found = of(kind, options).unwrap();
            assert!(found.contains(problem), "{found}");
        }
        for options in [
            doc! {},
            doc! { "clusteredIndex": true, "expireAfterSeconds": 1 },
            doc! { "collation": { "locale": "simple" } },
            doc! { "changeStreamPreAndPostImages": { "enabled": true } },
            doc! { "encryptedFields": { "fields": [] } },
            doc! { "validator": { "x": 1 } },
        ] {
            assert_eq!(of("collection", options), None);
        }
        assert_eq!(problem_of_collection(&doc! {}), None);
        let of = |field: &str, after: Option<i32>| {
            let mut index = doc! { "key": { field: 1 } };
            index.extend(after.map(|after| ("expireAfterSeconds".to_owned(), Bson::from(after))));
            problem_of_index(&index)
        };
        for field in ["at", "holders.since", "queue.until", "ends.ended"] {
            assert!(of(field, Some(60)).is_some_and(|problem| problem.contains(field)));
            assert_eq!(of(field, None), None);
        }
        assert_eq!((of("purge_at", Some(0)), of("other.at", Some(0))), (None, None));
        let of = |key: Document| problem_of_shards(&doc! { "key": key });
        assert_eq!((of(doc! { "_id": 1 }), of(doc! { "_id": "hashed" })), (None, None));
        for key in [doc! { "tenant": 1 }, doc! { "_id": 1, "tenant": 1 }] {
            assert!(of(key).is_some_and(|problem| problem.contains("`tenant`")));
        }
    }
}
