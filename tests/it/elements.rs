//! Locking one element of an array, on a replica set, on a standalone, and in memory.

use std::{collections::BTreeMap, future::IntoFuture as _, time::Duration};

use mongodb::bson::{Bson, DateTime, Document, doc, oid::ObjectId};
use serde::Deserialize;
use tokio::time::Instant;
use watchlock::{AcquireError, DocumentError, DocumentLocks, ElementLocks, LostReason, Released, WakeMode};

use crate::{
    documents::{Events, Place, Scene},
    setup::{PATIENCE, SOON, eventually, until_streaming, within},
};

const MAP: &str = "watchlock_elements";

fn order(id: i32) -> Document {
    doc! { "_id": id, "of": "$$NOW", "lines": [{ "sku": "x", "n": 1 }, { "sku": "y", "n": 1 }, 7, { "n": 1 }] }
}

fn line(locks: &DocumentLocks<Document>, sku: &str) -> ElementLocks<Document> {
    locks.element("lines", doc! { "sku": sku })
}

async fn waiting(locks: &ElementLocks<Document>, id: i32) -> usize {
    locks.inspect(id).await.unwrap().map_or(0, |lock| lock.waiters.len())
}

/// The lock of an element as it is in its document.
fn lock_of<'a>(document: &'a Document, code: &str) -> Option<&'a Document> {
    let map = document.get_document(MAP).ok()?.get_document("lines").ok()?;
    map.get_document(code).ok()
}

fn codes(document: &Document) -> Vec<&String> {
    let map = document.get_document(MAP).and_then(|map| map.get_document("lines"));
    map.into_iter().flat_map(Document::keys).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_is_locked_and_handed_over_in_order() {
    for scene in Scene::everywhere("element_order").await {
        let (a, b) = scene.locks();
        scene.events.insert(order(7)).await;
        let (a, b) = (line(&a, "x"), line(&b, "x"));
        let first = a.acquire(7).reason("first").await.unwrap();
        assert_eq!(first.element(), &doc! { "sku": "x", "n": 1 });
        assert_eq!((first.id(), first.name()), (&Bson::Int32(7), r#"7/sku="x""#));
        assert!(b.try_acquire(7_i64).await.unwrap().is_none());
        let held = b.try_acquire(7).or_held().await.unwrap_err();
        assert!(
            matches!(&held, AcquireError::Held { .. }) && held.to_string().contains("first"),
            "{held}"
        );
        let late = b.acquire(7).timeout(Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(late, AcquireError::Timeout { .. }), "{late}");
        eventually(PATIENCE, "nobody waits", async || waiting(&a, 7).await == 0).await;

        let mut waiters = Vec::new();
        for (place, locks) in [(1, &b), (2, &a), (3, &b)] {
            waiters.push(tokio::spawn(locks.acquire(7).into_future()));
            eventually(PATIENCE, "it waits", async || waiting(&a, 7).await == place).await;
        }
        let mut last = first.token();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        for waiter in waiters {
            let next = within(PATIENCE, "the grant", waiter).await.unwrap().unwrap();
            assert!(next.token() > last, "tokens rise");
            last = next.token();
            next.renew().await.unwrap();
            next.release().await.unwrap();
        }
        let mut after = scene.find(7).await;
        let lock = lock_of(&after, r#"sku="x""#).unwrap();
        assert!(lock.get_array("holders").unwrap().is_empty());
        after.remove(MAP);
        assert_eq!(after, order(7), "no field of the user's is touched");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_elements_and_the_document_are_locked_beside_it() {
    for scene in Scene::everywhere("element_beside").await {
        let (a, b) = scene.locks();
        let mut document = order(1);
        document.insert("of", doc! { "parts.lists": 1, "parts": [{ "sku": "x" }] });
        document.insert("parts", vec![doc! { "sku": "x" }]);
        scene.events.insert(document).await;
        let one = line(&a, "x").acquire(1).await.unwrap();
        let two = line(&b, "y").acquire(1).await.unwrap();
        let whole = b.acquire(1).await.unwrap();
        let nested = b
            .element::<Document>("of.parts", doc! { "sku": "x" })
            .acquire(1)
            .await
            .unwrap();
        let part = a
            .element::<Document>("parts", doc! { "sku": "x" })
            .acquire(1)
            .await
            .unwrap();
        assert_eq!(nested.name(), one.name());

        // A change of the whole document's holder leaves the locks of the elements alone, and the other way round.
        whole.update(doc! { "$set": { "n": 1 } }).await.unwrap();
        one.update(doc! { "$set": { "n": 2 } }).await.unwrap();
        nested.update(doc! { "$set": { "n": 3 } }).await.unwrap();
        for view in [one.view(), two.view(), whole.view(), nested.view(), part.view()] {
            assert_eq!(view.lost_reason(), None);
        }
        one.renew().await.unwrap();
        two.renew().await.unwrap();
        whole.renew().await.unwrap();
        nested.renew().await.unwrap();
        part.renew().await.unwrap();
        let refused = whole
            .update(doc! { "$unset": { "watchlock_elements": "" } })
            .await
            .unwrap_err();
        assert!(matches!(refused, DocumentError::Invalid(_)), "{refused}");
        assert_eq!(one.release().await.unwrap(), Released::Released);
        assert_eq!(two.release().await.unwrap(), Released::Released);
        assert_eq!(whole.release().await.unwrap(), Released::Released);
        assert_eq!(nested.release().await.unwrap(), Released::Released);
    }
}
