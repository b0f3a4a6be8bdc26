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
    super::{UNAUTHORIZED, ask, code, told},
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
        Err(error) => {
            let advice = match code(&error) {
                Some(UNAUTHORIZED) => {
                    "grant the user find and listIndexes on the collection and listCollections on the database: without the \
                     last two no client notices a collection that loses locks"
                }
                _ => "try again; the reason is the server's",
            };
            let found = format!("whether it takes locks can't be seen: {}", told(&error));
            Check::new("collection", Status::Unknown, found).advice(advice)
        }
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
        // Two held ones, and two free ones: all others differ in more than names.
        for pair in locks.chunks(2) {
            if options.sparse == Some(true) && !index.keys.keys().any(|key| !values(&pair[0], key).is_empty()) {
                continue;
            }
            if !index.keys.keys().all(|key| share(pair, key)) {
                continue;
            }
            let mut are_in = true;
            if let Some(filter) = &options.partial_filter_expression {
                for lock in pair {
                    are_in &= matches(place, lock, filter).await?;
                }
            }
            if are_in {
                let name = options.name.as_deref().unwrap_or_default();
                let reason = format!("two locks would be the same to its unique index `{}`", plain(name));
                return Ok(Some(refusing(&reason)));
            }
        }
    }
    Ok(None)
}

/// Returns whether an index has the same value for both locks at a key. One that is missing is a value too.
fn share(pair: &[Document], key: &str) -> bool {
    let of_all: Vec<_> = pair.iter().map(|lock| values(lock, key)).collect();
    let first = &of_all[0];
    of_all.iter().all(|of_one| {
        let are_missing = first.is_empty() && of_one.is_empty();
        are_missing || of_one.iter().any(|value| first.contains(value))
    })
}

/// Returns the values that an index has of a document at a key: in arrays, those of each element.
fn values<'a>(document: &'a Document, key: &str) -> Vec<&'a Bson> {
    let (field, rest) = match key.split_once('.') {
        Some((field, rest)) => (field, Some(rest)),
        None => (key, None),
    };
    let elements = match document.get(field) {
        None => return Vec::new(),
        // An empty array is a value at its own key.
        Some(Bson::Array(elements)) if rest.is_some() || !elements.is_empty() => elements.iter().collect(),
        Some(value) => vec![value],
    };
    let Some(rest) = rest else {
        return elements;
    };
    let below = elements.into_iter().filter_map(Bson::as_document);
    below.flat_map(|document| values(document, rest)).collect()
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

#[cfg(test)]
mod tests {
    use super::{super::locks, *};

    #[test]
    fn two_locks_are_the_same_to_an_index_only_at_the_end_of_its_path() {
        let locks = locks();
        let (held, free) = locks.split_at(2);
        for (key, of_held, of_free) in [
            ("_id", false, false),
            ("kind", true, true),
            ("holders", false, true),
            ("holders.id", false, true),
            ("holders.owner.host", true, true),
            ("none", true, true),
        ] {
            assert_eq!((share(held, key), share(free, key)), (of_held, of_free), "{key}");
        }
        assert_eq!(values(&free[0], "holders.id"), Vec::<&Bson>::new());
        assert_eq!(values(&free[0], "holders").len(), 1);
        assert_eq!(values(&held[0], "holders.owner.none"), Vec::<&Bson>::new());
    }
}
