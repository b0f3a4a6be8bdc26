//! The `_id`s of documents that are locked in place: of every type and size, and one by several types.

use mongodb::bson::{Bson, doc};
use watchlock::{Released, documents::DocumentLocks};

use crate::{
    documents::{Scene, waiting},
    setup::{PATIENCE, SOON, eventually, spawn, within},
};

fn decimal(text: &str) -> Bson {
    Bson::Decimal128(text.parse().unwrap())
}

/// Stored as one value, and asked for as another that is the same `_id` to the server.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_the_same_by_whatever_type() {
    let pairs = [
        (Bson::from(1_000), decimal("1E+3")),
        (Bson::from(1e16), Bson::from(10_000_000_000_000_000_i64)),
        (decimal("1E+17"), Bson::from(1e17)),
        (Bson::from(1e25), decimal("10000000000000000905969664")),
        (Bson::from(0.5), decimal("0.50")),
        (Bson::from(-0.0), Bson::from(0)),
        (Bson::from(f64::NAN), decimal("NaN")),
        (Bson::from(f64::INFINITY), decimal("Infinity")),
        (Bson::Symbol("ready".into()), Bson::from("ready")),
        (Bson::from("steady"), Bson::Symbol("steady".into())),
        (
            Bson::from(doc! { "tenant": 1, "at": [decimal("2.0")] }),
            Bson::from(doc! { "tenant": 1.0, "at": [2_i64] }),
        ),
    ];
    for scene in Scene::streaming("doc_same_id").await {
        let (a, b) = scene.locks();
        for (stored, asked) in &pairs {
            scene.events.insert(doc! { "_id": stored.clone() }).await;
            let held = a.acquire(asked.clone()).await.unwrap();
            let waiter = spawn(b.acquire(stored.clone()));
            eventually(PATIENCE, "it waits", async || waiting(&a, stored.clone()).await == 1).await;
            held.renew().await.unwrap();
            // Its holder looks after it as the document is changed and not by the protocol.
            touch_the_lock(&scene).await;
            held.update(doc! { "$set": { "n": 1 } }).await.unwrap();
            held.renew().await.unwrap();
            assert_eq!(held.lost_reason(), None, "{stored} {asked}");
            assert_eq!(held.release().await.unwrap(), Released::Released, "{stored} {asked}");
            let next = within(SOON * 5, "the hand-over", waiter).await.unwrap().unwrap();
            next.delete().await.unwrap();
        }
    }
}

/// Writes the lock's field in a way that has its holder look whether it still holds.
async fn touch_the_lock(scene: &Scene) {
    let touched = doc! { "$set": { "watchlock.touched": true } };
    scene.events.update(doc! {}, touched).await;
}

/// One rule for claims, acquires and those who look on.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_as_long_as_they_may_be() {
    for scene in Scene::streaming("doc_long_id").await {
        let (a, b) = scene.locks();
        // As BSON a text has five bytes more, and a document with a number of one letter twelve.
        for id in [
            Bson::from("x".repeat(8_187)),
            Bson::from("é".repeat(4_000)),
            bytes(8_187),
        ] {
            scene.events.insert(doc! { "_id": id.clone(), "n": 1 }).await;
            let held = a.claim(doc! { "n": 1 }).await.unwrap();
            assert_eq!(held.id(), &id);
            let waiter = spawn(b.acquire(id.clone()));
            eventually(PATIENCE, "it waits", async || waiting(&a, id.clone()).await == 1).await;
            held.renew().await.unwrap();
            held.release().await.unwrap();
            let next = within(SOON * 5, "the hand-over", waiter).await.unwrap().unwrap();
            assert!(a.break_lock(id).await.unwrap().is_some());
            within(SOON * 5, "the loss", next.lost()).await;
            a.claim(doc! { "n": 1 }).await.unwrap().delete().await.unwrap();
        }
        for id in [Bson::from("x".repeat(8_188)), bytes(8_188)] {
            scene.events.insert(doc! { "_id": id.clone(), "n": 2 }).await;
            for error in refusals(&a, &id).await {
                assert!(error.contains("8193") && error.contains("8192"), "{error}");
                assert!(error.len() < 1_000, "{error}");
            }
        }
        scene.events.insert(doc! { "_id": "short", "n": 2 }).await;
        let claimed = a.claim(doc! { "n": 2 }).await.unwrap();
        assert_eq!(claimed.id(), &Bson::from("short"));
        assert!(b.try_claim(doc! { "n": 2 }).await.unwrap().is_none());
    }
}

fn bytes(count: usize) -> Bson {
    Bson::Binary(mongodb::bson::Binary {
        subtype: mongodb::bson::spec::BinarySubtype::Generic,
        bytes: vec![7; count],
    })
}

async fn refusals(locks: &DocumentLocks<mongodb::bson::Document>, id: &Bson) -> [String; 4] {
    [
        locks.acquire(id.clone()).await.unwrap_err().to_string(),
        locks.try_acquire(id.clone()).await.unwrap_err().to_string(),
        locks.inspect(id.clone()).await.unwrap_err().to_string(),
        locks.break_lock(id.clone()).await.unwrap_err().to_string(),
    ]
}
