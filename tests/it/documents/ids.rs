//! The `_id`s of documents that are locked in place: of every type and size, and one by several types.

use mongodb::bson::{DateTime, oid::ObjectId};

use crate::{
    documents::{Scene, waits},
    setup::*,
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
        (Bson::from(7.0), Bson::from(7)),
        (Bson::from(0.5), decimal("0.50")),
        (doc! { "tenant": 1_i32 }.into(), doc! { "tenant": 1_i64 }.into()),
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
    // And by its own, whatever that is.
    let same = [
        Bson::from("7"),
        Bson::from(""),
        Bson::from("\"\n\u{0}\u{202e}'$"),
        Bson::from(ObjectId::new()),
        Bson::from(DateTime::from_millis(7)),
        Bson::from(doc! { "tenant": "a.b", "number": 7 }),
        Bson::Null,
        Bson::from("x".repeat(1_000)),
    ];
    let pairs: Vec<_> = pairs.into_iter().chain(same.map(|id| (id.clone(), id))).collect();
    for scene in Scene::streaming("doc_same_id").await {
        let (a, b) = scene.locks();
        for (stored, asked) in &pairs {
            scene.insert(doc! { "_id": stored.clone() }).await;
            let held = a.acquire(asked.clone()).await.unwrap();
            assert!(
                b.try_acquire(stored.clone()).await.unwrap().is_none(),
                "{stored} {asked}"
            );
            let waiter = waits(&a, stored.clone(), b.acquire(stored.clone())).await;
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
            scene.insert(doc! { "_id": id.clone(), "n": 1 }).await;
            let held = a.claim(doc! { "n": 1 }).await.unwrap();
            assert_eq!(held.id(), &id);
            let waiter = waits(&a, id.clone(), b.acquire(id.clone())).await;
            held.renew().await.unwrap();
            held.release().await.unwrap();
            let next = within(SOON * 5, "the hand-over", waiter).await.unwrap().unwrap();
            assert!(a.break_lock(id).await.unwrap().is_some());
            within(SOON * 5, "the loss", next.lost()).await;
            a.claim(doc! { "n": 1 }).await.unwrap().delete().await.unwrap();
        }
        for id in [Bson::from("x".repeat(8_188)), bytes(8_188)] {
            scene.insert(doc! { "_id": id.clone(), "n": 2 }).await;
            for error in refusals(&a, &id).await {
                assert_says(&error, &["8193", "8192"]);
                assert!(error.len() < 1_000, "{error}");
            }
        }
        scene.insert(doc! { "_id": "short", "n": 2 }).await;
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
