//! The bounds of documents in commands, compared with those of a real server.

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use watchlock_core::input::{DEEPEST, LARGEST, check_document};
use watchlock_testkit::shared;

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
            check_document("it", &document).is_ok(),
            collection.insert_one(document).await.is_ok(),
            "{levels} levels"
        );
    }
    for size in [LARGEST, LARGEST + 1] {
        let document = sized(size);
        assert_eq!(check_document("it", &document).is_ok(), size <= LARGEST, "{size}");
        assert_eq!(
            check_document("it", &document).is_ok(),
            collection.insert_one(document).await.is_ok(),
            "{size} bytes"
        );
    }
    database.drop().await.unwrap();
}
