//! Documents of a later protocol.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use watchlock_core::protocol::Kind;
use watchlock_proofs::differential::{MIXED, Sequence, Setup};
use watchlock_testkit::shared;

use super::{STEPS, TOGETHER, sequences};

/// No form of a pipeline touches a document that a later version wrote, whatever is in it.
#[tokio::test]
async fn no_pipeline_changes_a_document_of_a_later_protocol() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("later"));
    let collection = database.collection::<Document>("locks");
    for (path, uses) in [("", MIXED), ("", &[(Kind::Mutex, 1)]), ("a.b", &[(Kind::Document, 1)])] {
        let (documents, updates) = documents_and_steps(&Setup::at_path(path, uses));
        collection.insert_many(&documents).await.unwrap();
        for together in updates.chunks(TOGETHER) {
            let command = doc! { "update": "locks", "updates": together, "ordered": false };
            let answer = database.run_command(command).await.unwrap();
            assert_eq!(
                (answer.get("writeErrors"), answer.get_i32("nModified").ok()),
                (None, Some(0))
            );
        }
        let found = collection.find(doc! {}).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        assert_eq!(by_id(found), by_id(documents));
        collection.delete_many(doc! {}).await.unwrap();
    }
}

fn by_id(documents: Vec<Document>) -> BTreeMap<String, Document> {
    let id = |document: &Document| document.get_str("_id").unwrap().to_owned();
    documents
        .into_iter()
        .map(|document| (id(&document), document))
        .collect()
}

/// Returns documents of a later protocol, and for each of them the update of a step that this one would take there.
fn documents_and_steps(setup: &Setup) -> (Vec<Document>, Vec<Document>) {
    let (mut documents, mut updates) = (Vec::new(), Vec::new());
    for seed in 0..sequences() / 5 {
        let mut sequence = Sequence::new(seed, setup);
        for number in 0..STEPS {
            let before = sequence.document(setup).filter(|_| sequence.expected.is_some());
            let step = sequence.step(number, setup);
            if let (Some(document), Some((_, update))) = (before, step) {
                // Each step has a document of its own.
                let id = format!("{} {seed} {number} {}", setup.at.path(), documents.len());
                documents.push(of_later_protocol(document, &id, setup));
                updates.push(on(&id, update));
            }
        }
    }
    (documents, updates)
}

fn of_later_protocol(mut document: Document, id: &str, setup: &Setup) -> Document {
    document.insert("_id", id);
    let lock = doc! { "protocol": 3_i64 };
    if setup.at.is_root() {
        document.extend(lock);
    } else {
        assert!(setup.at.set_lock(&mut document, lock));
    }
    document
}

/// The same update of another document, which is there.
fn on(id: &str, mut update: Document) -> Document {
    let mut query = update.get_document("q").unwrap().clone();
    match query.get_array_mut("$and") {
        Ok(all) => drop(all[0].as_document_mut().unwrap().insert("_id", id)),
        Err(_) => drop(query.insert("_id", id)),
    }
    update.extend(doc! { "q": query, "upsert": false });
    update
}
