//! The check of the collection on a standalone server, which has no transaction to try it in.
//!
//! So the server compares the documents of locks with everything by which it would refuse them: the collection's
//! validator, its unique indexes, and the names of its databases.

use futures::TryStreamExt as _;
use mongodb::{
    bson::{Bson, Document, doc},
    error::Error,
};

use super::{
    super::{ask, told},
    Check, Status, another_case, documents, ok, plain, refusing,
};
use crate::{connection::Place, exit::Failure};

pub(super) async fn collection(place: &Place, locks: &[Document]) -> Result<Check, Failure> {
    let (place, locks) = (place.clone(), locks.to_vec());
    Ok(match ask(async move { compare(&place, &locks).await }).await? {
        Ok(Some(problem)) => problem,
        Ok(None) => {
            ok("its validator and its unique indexes accept locks (a standalone has no transactions to try it)")
        }
        Err(error) => Check::new(
            "collection",
            Status::Unknown,
            format!("whether it takes locks can't be seen: {}", told(&error)),
        )
        .advice(
            "grant the user listCollections on the database and listIndexes on the collection, which nothing else in \
             watchlock uses",
        ),
    })
}

async fn compare(place: &Place, locks: &[Document]) -> Result<Option<Check>, Error> {
    let database = place.database.name();
    let names = place.database.client().list_database_names().await?;
    let alike = names
        .iter()
        .find(|name| name.to_lowercase() == database.to_lowercase() && *name != database);
    if let Some(alike) = alike.filter(|_| !names.iter().any(|name| name == database)) {
        return Ok(Some(another_case(&format!("it has `{}` already", plain(alike)))));
    }
    let listed = doc! { "listCollections": 1, "filter": { "name": &place.collection } };
    let listed = place.database.run_cursor_command(listed).await?;
    let Some(found) = listed.try_collect::<Vec<_>>().await?.pop() else {
        return Ok(None);
    };
    if let Some(validator) = enforced(&found) {
        for lock in locks {
            if !matches(place, lock, validator).await? {
                return Ok(Some(refusing("its validator does not accept them")));
            }
        }
    }
    let indexes: Vec<_> = documents(place).list_indexes().await?.try_collect().await?;
    for index in indexes {
        let Some(options) = index.options.filter(|options| options.unique == Some(true)) else {
            continue;
        };
        // The locks have different ids, and are the same otherwise.
        let covers = !index.keys.contains_key("_id");
        let has = |key: &String| {
            locks
                .iter()
                .all(|lock| lock.contains_key(key.split('.').next().unwrap_or_default()))
        };
        let is_skipped = options.sparse == Some(true) && !index.keys.keys().any(has);
        if !covers || is_skipped {
            continue;
        }
        let applies = match &options.partial_filter_expression {
            Some(filter) => matches(place, &locks[0], filter).await? && matches(place, &locks[1], filter).await?,
            None => true,
        };
        if applies {
            let name = options.name.unwrap_or_default();
            let reason = format!("two locks would be the same to its unique index `{}`", plain(&name));
            return Ok(Some(refusing(&reason)));
        }
    }
    Ok(None)
}

/// Returns the validator by which the server refuses documents. The options are read as the server sends them: a later one
/// may know more of them than the driver.
fn enforced(described: &Document) -> Option<&Document> {
    let options = described.get_document("options").ok()?;
    let is_off = options.get_str("validationLevel") == Ok("off") || options.get_str("validationAction") == Ok("warn");
    let validator = options.get_document("validator").ok()?;
    (!is_off && !validator.is_empty()).then_some(validator)
}

/// Has the server compare a document with a query, without writing it.
async fn matches(place: &Place, document: &Document, query: &Document) -> Result<bool, Error> {
    // A facet makes one document of any number of them, even of none.
    let pipeline = [
        doc! { "$limit": 1 },
        doc! { "$facet": { "one": [{ "$limit": 1 }] } },
        doc! { "$replaceRoot": { "newRoot": { "$literal": Bson::from(document.clone()) } } },
        doc! { "$match": query.clone() },
    ];
    let found = documents(place).aggregate(pipeline).await?;
    Ok(!found.try_collect::<Vec<_>>().await?.is_empty())
}
