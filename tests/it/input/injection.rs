//! Hostile text in every place that takes text from the user: it comes back as it is, or it is refused before anything
//! is sent; and nothing else in the database changes.

use std::{collections::BTreeMap, slice};

use futures::TryStreamExt as _;
use mongodb::Database;
use watchlock::{fence::Fence, operate::LockInfo};

use crate::{common::hostile::hostile, setup::*};

/// What is longer than anything may be, by a byte and by far.
fn too_long() -> [String; 2] {
    ["x".repeat(1025), "é".repeat(1 << 20)]
}

/// All documents of a database, by collection; but for those of the locks that are named.
async fn all(database: &Database, but: &[&str]) -> BTreeMap<String, Vec<Document>> {
    let mut found = BTreeMap::new();
    for name in database.list_collection_names().await.unwrap() {
        let collection = database.collection::<Document>(&name);
        let sorted = collection.find(doc! {}).sort(doc! { "_id": 1 });
        let mut documents: Vec<Document> = sorted.await.unwrap().try_collect().await.unwrap();
        documents.retain(|document| {
            let id = document.get_str("_id");
            !(name == COLLECTION && id.is_ok_and(|id| but.contains(&id)))
        });
        found.insert(name, documents);
    }
    found
}

/// A database in which others have their locks and their data.
async fn inhabited(prefix: &str) -> (Ground, Database, LockClient) {
    let ground = Ground::replica_set(prefix).await;
    let database = ground.driver().await.database(&ground.database);
    let resident = ground.locks().await;
    let held = resident.mutex("resident").acquire().await.unwrap();
    held.release().await.unwrap();
    let data = [
        doc! { "_id": 1, "n": 7, "a": { "b": 1 } },
        doc! { "_id": "$$ROOT", "n": 7 },
    ];
    database.collection("data").insert_many(data).await.unwrap();
    // The index, which is made once.
    let documents = ground.documents().await;
    eventually(PATIENCE, "the index", async || {
        documents.list_index_names().await.unwrap().len() == 2
    })
    .await;
    (ground, database, resident)
}

#[tokio::test(flavor = "multi_thread")]
async fn names_labels_reasons_and_owners_are_text_and_nothing_else() {
    let (ground, database, resident) = inhabited("injected").await;
    let driver = ground.driver().await;
    let builder = LockClient::builder(driver.database(&ground.database));
    for text in hostile() {
        let before = all(&database, &[&text]).await;
        let locks = builder.clone().label(&text).owner_id(&text).build().await.unwrap();
        let held = locks.mutex(&text).acquire().reason(&text).await.unwrap();
        let lock = info(&resident, &text).await.unwrap();
        let holder = &lock.holders[0];
        let said = [&holder.owner.label, &holder.owner.reason, &holder.owner.owner_id].map(Option::as_ref);
        assert_eq!((&lock.name, said), (&text, [Some(&text); 3]));
        let listed = resident.list().prefix(&text).await.unwrap();
        assert!(listed.iter().all(|lock| lock.name.starts_with(&text)), "{listed:?}");
        let as_then = |listed: Vec<LockInfo>| -> Vec<LockInfo> {
            let mine = listed.into_iter().filter(|lock| lock.name == text);
            mine.map(|mut mine| {
                mine.as_of = lock.as_of;
                mine
            })
            .collect()
        };
        assert_eq!(as_then(listed), slice::from_ref(&lock));
        let owned = resident.list().owner(&text).held(true).await.unwrap();
        assert_eq!((owned.len(), as_then(owned)), (1, vec![lock.clone()]), "{text:?}");
        let waiting = in_line(&resident, &text, 1, resident.mutex(&text).acquire().reason(&text)).await;
        let lock = info(&resident, &text).await.unwrap();
        assert_eq!(lock.waiters[0].owner.reason.as_ref(), Some(&text));
        // The former self is recognized by the very same text.
        let again = builder.clone().owner_id(&text).build().await.unwrap();
        let adopted = again.mutex(&text).try_acquire().reason(&text).await.unwrap();
        assert_eq!(
            within(SOON * 5, &text, held.lost()).await,
            LostReason::Adopted,
            "{text:?}"
        );
        resident.break_lock(&text).await.unwrap();
        assert_eq!(
            within(SOON * 5, &text, adopted.unwrap().lost()).await,
            LostReason::Broken,
            "{text:?}"
        );
        let next = within(SOON * 5, &text, waiting).await.unwrap().unwrap();
        assert!(next.name() == text && next.token() > held.token(), "{text:?}");
        next.release().await.unwrap();
        assert_eq!(all(&database, &[&text]).await, before, "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_leader_proclaims_is_text_and_nothing_else() {
    let (ground, database, resident) = inhabited("injected_value").await;
    let locks = ground.locks().await;
    for text in hostile() {
        let before = all(&database, &["the vote"]).await;
        let election = locks.election("the vote");
        let leads = election.campaign(&text).reason(&text).await.unwrap();
        let seen = resident.election("the vote").leader().await.unwrap().unwrap();
        assert_eq!(seen.value, text);
        let other = format!("{text}.");
        match leads.proclaim(&other).await {
            Ok(()) => {
                let seen = resident.election("the vote").leader().await.unwrap().unwrap();
                assert_eq!(seen.value, other);
            }
            Err(error) => assert!(other.len() > 1024 && error.to_string().contains("1024"), "{error}"),
        }
        leads.release().await.unwrap();
        assert_eq!(all(&database, &["the vote"]).await, before, "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_paths_of_documents_are_text_and_nothing_else() {
    let (ground, database, _) = inhabited("injected_ids").await;
    let locks = ground.locks().await;
    let orders = database.collection::<Document>("orders");
    let (mut refused, mut taken) = (0, 0);
    for text in hostile() {
        let order = doc! { "_id": &text, "n": 7, "a": { "c": "mine" } };
        orders.insert_one(&order).await.unwrap();
        let before = all(&database, &[]).await;
        let unchanged = async |but: &str| {
            let mut after = all(&database, &[]).await;
            for document in after.get_mut("orders").unwrap() {
                // The lock is the rest of the path in the first field.
                if let Some((first, rest)) = but.split_once('.') {
                    document.get_document_mut(first).map(|inner| inner.remove(rest)).ok();
                    if document.get_document(first).is_ok_and(Document::is_empty) {
                        document.remove(first);
                    }
                } else {
                    document.remove(but);
                }
            }
            assert_eq!(after, before, "{text:?}");
        };
        // As the id.
        let held = locks
            .documents(orders.clone())
            .acquire(text.as_str())
            .reason(&text)
            .await
            .unwrap();
        assert_eq!((held.id(), held.document()), (&Bson::from(&text), &order));
        held.release().await.unwrap();
        orders
            .update_many(doc! {}, doc! { "$unset": { "watchlock": "" } })
            .await
            .unwrap();
        unchanged("watchlock").await;
        // As the path of the lock.
        match locks.documents(orders.clone()).field(&text).try_acquire("$$ROOT").await {
            Ok(held) => {
                held.unwrap().release().await.unwrap();
                unchanged(&text).await;
                taken += 1;
            }
            Err(AcquireError::Invalid(invalid)) => {
                let told = invalid.to_string();
                assert!(told.contains("for the locks") && told.len() < 2_500, "{told}");
                unchanged("watchlock").await;
                refused += 1;
            }
            Err(error) => panic!("{text:?}: {error:?}"),
        }
        orders.delete_many(doc! { "_id": { "$ne": "$$ROOT" } }).await.unwrap();
        orders
            .replace_one(doc! {}, doc! { "_id": "$$ROOT", "n": 7, "a": { "c": "mine" } })
            .await
            .unwrap();
    }
    assert!(refused > 10 && taken > 10, "{refused} refused, {taken} taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_field_of_a_fence_is_a_path_and_nothing_else() {
    let (_, database, _) = inhabited("injected_fence").await;
    let data = database.collection::<Document>("data");
    for text in hostile() {
        let before = all(&database, &[]).await;
        let fence = match Fence::new(9).field(&text) {
            Ok(fence) => fence,
            Err(refused) => {
                let told = refused.to_string();
                assert!(told.contains("of a fence") && told.len() < 2_500, "{told}");
                assert!(!told.chars().any(char::is_control), "{told:?}");
                continue;
            }
        };
        // Whatever becomes of it, the other document is as it was, and this one has changed where it was to.
        let update = doc! { "$set": { "n": 8 } };
        let written = fence.update_one(&data, doc! { "_id": "$$ROOT" }, update).await;
        let mut after = all(&database, &[]).await;
        let documents = after.get_mut("data").unwrap();
        let document = documents
            .iter_mut()
            .find(|document| document.get_str("_id").is_ok())
            .unwrap();
        match written {
            Ok(_) => {
                let (first, rest) = text.split_once('.').unwrap_or((&text, ""));
                let mut found = document.remove(first).unwrap_or_else(|| panic!("{text:?}: {document}"));
                for part in rest.split('.').filter(|part| !part.is_empty()) {
                    found = found.as_document().unwrap().get(part).unwrap().clone();
                }
                assert_eq!(found, Bson::Int64(9), "{text:?}");
                assert_eq!(document.insert("n", 7), Some(Bson::Int32(8)));
            }
            Err(error) => panic!("{text:?}: {error}"),
        }
        assert_eq!(after, before, "{text:?}");
        let clean = doc! { "_id": "$$ROOT", "n": 7 };
        data.replace_one(doc! { "_id": "$$ROOT" }, clean).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_of_the_collection_is_one_and_nothing_else() {
    let (ground, database, _) = inhabited("injected_collection").await;
    let driver = ground.driver().await;
    let builder = LockClient::builder(driver.database(&ground.database));
    for text in hostile().into_iter().chain(too_long()).chain([String::new()]) {
        let mut before = all(&database, &[]).await;
        match builder.clone().collection(&text).build().await {
            Ok(locks) => {
                locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
                locks.shutdown().await;
                let mut after = all(&database, &[]).await;
                let made = after.remove(&text).unwrap_or_else(|| panic!("{text:?}: {after:?}"));
                assert_eq!(made.len(), 1);
                before.remove(&text);
                assert_eq!(after, before, "{text:?}");
            }
            Err(error) => {
                let told = error.to_string();
                assert!(told.contains("collection name") && told.len() < 2_500, "{told}");
                assert!(!told.chars().any(char::is_control), "{told:?}");
                assert_eq!(all(&database, &[]).await, before, "{text:?}");
            }
        }
    }
}
