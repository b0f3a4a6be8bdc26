//! Bounds on documents in memory, the same as a server's.

use mongodb::bson::{Bson, Document};

use super::Refused;

/// Maximum nesting depth that a server stores: the document itself, and 180 levels inside.
const DEEPEST: usize = 181;

/// Maximum size of a document that a server stores, in bytes.
const LARGEST: usize = 16 * 1024 * 1024;

/// Refuses a document that a server would not store: nested too deep, or too large. Values of the deprecated type
/// `undefined` are refused as well: servers differ in which queries match them.
pub(super) fn check(document: &Document) -> Result<(), Refused> {
    let size = size_of_document(document, 1)?;
    if size > LARGEST {
        return Err(Refused::new(format!(
            "a document of {size} bytes is too large; the maximum is {LARGEST}"
        )));
    }
    Ok(())
}

/// Refuses a replacement that a server would interpret as an update, or refuse.
pub(super) fn check_replacement(replacement: &Document) -> Result<(), Refused> {
    match replacement.keys().find(|key| key.starts_with('$')) {
        Some(field) => Err(Refused::new(format!(
            "a replacement can't have the field `{}`, as fields with `$` are operators",
            field.escape_debug()
        ))),
        None => Ok(()),
    }
}

/// Returns the size as BSON: the length, the elements and the end.
fn size_of_document(document: &Document, depth: usize) -> Result<usize, Refused> {
    check_depth(depth)?;
    let mut size = 5;
    for (key, value) in document {
        size += size_of_element(key.len(), value, depth)?;
    }
    Ok(size)
}

/// Returns the size of an element: the type, the key and its end, and the value.
fn size_of_element(key: usize, value: &Bson, depth: usize) -> Result<usize, Refused> {
    let value = match value {
        Bson::Document(inner) => size_of_document(inner, depth + 1)?,
        Bson::Array(elements) => {
            check_depth(depth + 1)?;
            let mut size = 5;
            for (place, element) in elements.iter().enumerate() {
                // The keys of an array are its indexes.
                let digits = place.checked_ilog10().map_or(1, |log| log as usize + 1);
                size += size_of_element(digits, element, depth + 1)?;
            }
            size
        }
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => 5 + text.len(),
        Bson::Binary(binary) => 5 + binary.bytes.len(),
        Bson::Double(_) | Bson::Int64(_) | Bson::DateTime(_) | Bson::Timestamp(_) => 8,
        Bson::Int32(_) => 4,
        Bson::ObjectId(_) => 12,
        Bson::Decimal128(_) => 16,
        Bson::Boolean(_) => 1,
        Bson::Null | Bson::MinKey | Bson::MaxKey => 0,
        Bson::Undefined => {
            return Err(Refused::new(
                "values of the type `undefined` are not supported in memory",
            ));
        }
        // Regular expressions, code with a scope, and pointers: about the length of their text.
        other => other.to_string().len(),
    };
    Ok(2 + key + value)
}

fn check_depth(depth: usize) -> Result<(), Refused> {
    if depth > DEEPEST {
        return Err(Refused::new(format!(
            "a document is nested too deep; the maximum is {DEEPEST} levels"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mongodb::{Collection, bson::doc};
    use watchlock_testkit::shared;

    use super::*;

    fn nested(levels: usize) -> Document {
        (1..levels).fold(Document::new(), |inner, _| doc! { "a": inner })
    }

    /// Returns a document of exactly this size in bytes.
    fn sized(size: usize) -> Document {
        // Minus the document, the `_id` of four bytes, and the string's overhead.
        doc! { "_id": 1, "a": "x".repeat(size - 5 - 9 - 8) }
    }

    /// A server refuses the same documents.
    #[tokio::test]
    async fn what_a_server_does_not_store_is_refused() {
        let client = mongodb::Client::with_uri_str(shared::replica_set().await.uri())
            .await
            .unwrap();
        let database = client.database(&shared::unique_name("watchlock_bounds"));
        let collection: Collection<Document> = database.collection("documents");
        for levels in [1, 100, DEEPEST, DEEPEST + 1] {
            let document = nested(levels);
            assert_eq!(
                check(&document).is_ok(),
                collection.insert_one(document).await.is_ok(),
                "{levels} levels"
            );
        }
        for size in [LARGEST, LARGEST + 1] {
            let document = sized(size);
            assert_eq!(check(&document).is_ok(), size <= LARGEST, "{size}");
            assert_eq!(
                check(&document).is_ok(),
                collection.insert_one(document).await.is_ok(),
                "{size} bytes"
            );
        }
        for replacement in [doc! { "$a": 1 }, doc! { "a": 1, "$b": 1 }, doc! { "a": { "b": 1 } }] {
            assert_eq!(
                check_replacement(&replacement).is_ok(),
                collection.replace_one(doc! { "_id": 1 }, &replacement).await.is_ok(),
                "{replacement}"
            );
        }
        assert!(collection.update_many(doc! {}, doc! {}).await.is_err());
        assert!(check(&doc! { "a": [{ "b": Bson::Undefined }] }).is_err());
        // A document that is nested far deeper is refused too, without overflowing the stack.
        assert!(check(&nested(2_000)).is_err());
        database.drop().await.unwrap();
    }
}
