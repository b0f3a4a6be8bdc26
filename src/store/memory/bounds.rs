//! Bounds on documents in memory, the same as a server's.

use mongodb::bson::{Bson, Document};

use crate::{error::InvalidInput, input::check_document};

/// Refuses a document that a server would not store. Values of the deprecated type `undefined` are refused as well:
/// servers differ in which queries match them.
pub(super) fn check(document: &Document) -> Result<(), InvalidInput> {
    check_document("the document", document)?;
    document.values().try_for_each(check_value)
}

/// Refuses a value with one of the type `undefined` in it. Its depth was checked.
pub(super) fn check_value(value: &Bson) -> Result<(), InvalidInput> {
    match value {
        Bson::Document(inner) => inner.values().try_for_each(check_value),
        Bson::Array(elements) => elements.iter().try_for_each(check_value),
        Bson::Undefined => Err(InvalidInput::new(
            "values of the type `undefined` are not supported in memory",
        )),
        _ => Ok(()),
    }
}

/// Refuses a replacement that a server would interpret as an update, or refuse.
pub(super) fn check_replacement(replacement: &Document) -> Result<(), InvalidInput> {
    match replacement.keys().find(|key| key.starts_with('$')) {
        Some(field) => Err(InvalidInput::new(format!(
            "a replacement can't have the field `{}`, as fields with `$` are operators",
            field.escape_debug()
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::{Collection, bson::doc};
    use watchlock_testkit::shared;

    use super::*;

    /// A server refuses the same replacements.
    #[tokio::test]
    async fn what_is_no_replacement_to_a_server_is_refused() {
        let client = mongodb::Client::with_uri_str(shared::replica_set().await.uri())
            .await
            .unwrap();
        let database = client.database(&shared::unique_name("watchlock_bounds"));
        let collection: Collection<Document> = database.collection("documents");
        collection.insert_one(doc! { "_id": 1 }).await.unwrap();
        for replacement in [doc! { "$a": 1 }, doc! { "a": 1, "$b": 1 }, doc! { "a": { "b": 1 } }] {
            assert_eq!(
                check_replacement(&replacement).is_ok(),
                collection.replace_one(doc! { "_id": 1 }, &replacement).await.is_ok(),
                "{replacement}"
            );
        }
        assert!(collection.update_many(doc! {}, doc! {}).await.is_err());
        assert!(check(&doc! { "a": [{ "b": Bson::Undefined }] }).is_err());
        database.drop().await.unwrap();
    }
}
