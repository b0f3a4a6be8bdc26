//! Fences where a write meets something else than a smaller or a larger token: another index, a filter that would put
//! something else into a new document, the lock that the document itself has; and everything at once, at random.

use mongodb::{IndexModel, options::IndexOptions};
use watchlock::{
    errors::{FenceError, HoldError},
    fence::Fence,
};

use crate::setup::*;

/// A client of the driver's that notes what it sends; and its collection.
async fn noting(ground: &Ground) -> (Client, Collection<Document>, Sent) {
    let (client, sent) = ground.noting_driver().await;
    let data = ground.of(&client, "data");
    (client, data, sent)
}

fn set(value: impl Into<Bson>) -> Document {
    doc! { "$set": { "email": value.into() } }
}

/// In a log, an action tells where it writes and what, and nothing of how the client logs in.
#[tokio::test]
async fn actions_show_what_they_write_and_no_password() {
    let client = Client::with_uri_str("mongodb://someone:secret@127.0.0.1:1/")
        .await
        .unwrap();
    let data = client.database("app").collection::<Document>("invoices");
    let (fence, one) = (Fence::new(7), || doc! { "_id": 1 });
    for (shown, says) in [
        (format!("{:?}", fence.update_one(&data, one(), set("new"))), "new"),
        (
            format!("{:?}", fence.insert_one(&data, doc! { "_id": 1, "email": "new" })),
            "new",
        ),
        (format!("{:?}", fence.delete_one(&data, one())), "FencedWrite"),
    ] {
        assert!(shown.contains("app.invoices") && shown.contains(says), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }
}

/// What comes between a write that matches nothing and the check after it is no refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_lost_a_race_is_done_again() {
    let (cluster, _turn) = faulty().await;
    let direct = Ground::on(cluster, "fence_race");
    let ground = direct.by_name();
    let (_client, data, _) = noting(&ground).await;
    let others = direct.collection("data").await;
    others
        .insert_one(doc! { "_id": "upserted", "fence": 9_i64 })
        .await
        .unwrap();
    for id in ["updated", "upserted", "deleted"] {
        let held_up = ground.fail(cluster, times(1), &["find"], blocks(300)).await;
        let data = data.clone();
        let write = spawn(async move {
            let (fence, one) = (Fence::new(7), doc! { "_id": id });
            match id {
                "deleted" => fence.delete_one(&data, one).await.map(|done| done.deleted_count),
                _ => {
                    let update = fence.update_one(&data, one, set("new")).upsert(id == "upserted");
                    update.await.map(|done| done.matched_count)
                }
            }
        });
        held_up.wait_entered(1, PATIENCE).await.unwrap();
        let put = others.replace_one(doc! { "_id": id }, doc! { "fence": 5_i64 });
        put.upsert(true).await.unwrap();
        let done = within(PATIENCE, id, write).await.unwrap();
        assert!(matches!(done, Ok(1)), "{id}: {done:?}");
        held_up.off().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_checked_only_if_it_did_nothing_and_tried_again_only_if_it_can_be_done() {
    let ground = Ground::replica_set("fence_once").await;
    let (_client, data, sent) = noting(&ground).await;
    let (fence, one) = (Fence::new(7), || doc! { "_id": 1 });
    fence.insert_one(&data, one()).await.unwrap();
    fence.update_one(&data, one(), set("a")).await.unwrap();
    let unmatched = fence
        .update_one(&data, doc! { "_id": 1, "email": "b" }, set("c"))
        .upsert(true);
    match within(SOON, "the error", unmatched.into_future()).await {
        Err(FenceError::Server(error)) => assert_eq!(error.code(), Some(11_000), "{error:?}"),
        other => panic!("{other:?}"),
    }
    let before = sent.names().len();
    fence.delete_one(&data, one()).await.unwrap();
    assert_eq!(sent.names()[before..], ["delete"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_in_another_index_is_told_at_once() {
    let ground = Ground::replica_set("duplicate").await;
    let (_client, data, sent) = noting(&ground).await;
    let unique = IndexOptions::builder().unique(true).build();
    let index = IndexModel::builder().keys(doc! { "email": 1 }).options(unique).build();
    data.create_index(index).await.unwrap();
    data.insert_many([doc! { "_id": 1, "email": "a" }, doc! { "_id": 2, "email": "taken" }])
        .await
        .unwrap();
    let fence = Fence::new(7);
    for id in [1, 3] {
        let one = || doc! { "_id": id };
        let before = sent.names().len();
        let writes = [
            fence.update_one(&data, one(), set("taken")).upsert(true),
            fence.update_one(&data, one(), vec![set("taken")]).upsert(true),
            fence.replace_one(&data, one(), doc! { "email": "taken" }).upsert(true),
        ];
        for write in writes {
            match within(SOON, "the error", write.into_future()).await {
                Err(FenceError::Server(error)) => assert_eq!(error.code(), Some(11_000), "{error:?}"),
                other => panic!("{other:?}"),
            }
        }
        // A write and a look at the fence for each.
        assert_eq!(sent.names().len() - before, 6, "{:?}", sent.names());
    }
    // The fence's refusal tells more than the other index.
    Fence::new(9)
        .update_one(&data, doc! { "_id": 1 }, doc! {})
        .await
        .unwrap();
    let late = fence
        .update_one(&data, doc! { "_id": 1 }, set("taken"))
        .upsert(true)
        .await;
    assert!(matches!(late, Err(FenceError::Fenced { .. })), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_dropped_sends_nothing_more() {
    let (cluster, _turn, ground) = faulty_ground("nomore").await;
    let (client, data, sent) = noting(&ground).await;
    data.insert_one(doc! { "_id": 1, "fence": 9_i64 }).await.unwrap();
    let failing = ground.fail(cluster, "alwaysOn", &["update"], blocks(500)).await;
    let fence = Fence::new(7);
    let write = spawn(fence.update_one(&data, doc! { "_id": 1 }, doc! {}).into_future());
    eventually(PATIENCE, "it is sent", async || sent.count("update") == 1).await;
    write.abort();
    failing.off().await.unwrap();
    // It is answered now: that nothing was selected would be looked into by whoever still cared.
    let there = async || {
        let operations = ground.operations(&client).await;
        let updates = |operation: &&Document| operation.get_str("op").is_ok_and(|op| op == "update");
        operations.iter().filter(updates).count()
    };
    eventually(PATIENCE, "it is over", async || there().await == 0).await;
    for _ in 0..50 {
        client.database("admin").run_command(doc! { "ping": 1 }).await.unwrap();
    }
    assert_eq!((sent.count("update"), sent.count("find")), (1, 0), "{:?}", sent.names());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_an_upsert_makes_has_the_token() {
    let ground = Ground::replica_set("equality").await;
    let data: Collection<Document> = ground.collection("data").await;
    let fence = Fence::new(7);
    let one = |id: i32| doc! { "_id": id, "other": { "$gt": 1 } };
    let writes = [
        fence.update_one(&data, one(0), set("x")),
        fence.update_one(&data, one(1), vec![set("x")]),
        fence.replace_one(&data, one(2), doc! {}),
    ];
    for write in writes {
        let written = write.upsert(true).await.unwrap();
        assert!(written.upserted_id.is_some(), "{written:?}");
    }
    let others = doc! { "fence": { "$ne": 7_i64 } };
    assert_eq!(data.find_one(others).await.unwrap(), None);
    for value in [
        Bson::from("abc"),
        Bson::from(i64::MAX),
        Bson::from(doc! { "$eq": i64::MAX }),
        Bson::from(doc! { "$not": { "$ne": i64::MAX } }),
        Bson::from(doc! { "$gt": 7 }),
    ] {
        let refused = fence
            .update_one(&data, doc! { "_id": -1, "fence": &value }, set("x"))
            .upsert(true)
            .await;
        assert!(matches!(refused, Err(FenceError::Invalid(_))), "{value} {refused:?}");
        // Without an upsert it is a condition as any other.
        let none = fence
            .update_one(&data, doc! { "_id": -1, "fence": value }, set("x"))
            .await;
        assert_eq!(none.unwrap().matched_count, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_of_a_document_leaves_its_lock_alone() {
    let ground = Ground::replica_set("own").await;
    let client = ground.driver().await;
    let locks = ground.locks_over(&client).await;
    let data: Collection<Document> = ground.of(&client, "data");
    let server = client
        .database("admin")
        .run_command(doc! { "buildInfo": 1 })
        .await
        .unwrap();
    // MongoDB 4.4 stores no field with such a name.
    let odd = if server.get_str("version").unwrap().starts_with("4.") {
        "odd"
    } else {
        "$odd"
    };
    for (id, path) in (1..).zip(["watchlock", "p.x"]) {
        data.insert_one(doc! { "_id": id, "old": 1, "p": { "mine": 1 } })
            .await
            .unwrap();
        let place = locks.documents(data.clone()).field(path);
        // Another part of the document, locked by another client that knows of both.
        let sibling = locks.documents(data.clone()).field("p.y").acquire(id).await.unwrap();
        let held = place.acquire(id).await.unwrap();
        let fence = held.fence();
        let one = || doc! { "_id": id };
        let stored = async || data.find_one(one()).await.unwrap().unwrap();
        let lock = |document: &Document| {
            let mut found = Bson::from(document.clone());
            for name in path.split('.') {
                found = found.as_document().unwrap().get(name).unwrap().clone();
            }
            found.as_document().unwrap().get_array("holders").unwrap().clone()
        };
        let before = lock(&stored().await);
        // As it was read, with a lock of the past in it.
        let mut past = doc! { "_id": id, "new": { odd: 1 }, "fence": 1, "p": { "x": 1, "y": "gone", "kept": 2 } };
        if path == "watchlock" {
            past.insert(path, doc! { "holders": [], "token": 1 });
            past.get_document_mut("p").unwrap().remove("x");
        }
        let replaced = fence.replace_one(&data, one(), past).await.unwrap();
        assert_eq!((replaced.matched_count, replaced.modified_count), (1, 1));
        let now = stored().await;
        assert_eq!(lock(&now), before);
        assert!(!now.contains_key("old"));
        assert_eq!(now.get_document("new").unwrap(), &doc! { odd: 1 });
        assert_eq!(now.get_i64("fence").unwrap(), held.token().as_i64());
        let p = now.get_document("p").unwrap();
        assert_eq!(p.get_i32("kept").unwrap(), 2);
        assert!(p.get_document("y").unwrap().contains_key("holders") && !p.contains_key("mine"));
        // And where there is nothing of the way to it.
        fence.replace_one(&data, one(), doc! { "new": 2 }).await.unwrap();
        assert_eq!(lock(&stored().await), before);
        held.renew().await.unwrap();
        sibling.renew().await.unwrap();
        assert_eq!((held.status(), sibling.status()), (LockStatus::Held, LockStatus::Held));

        // A document that is made has no lock yet.
        let made = fence
            .replace_one(&data, doc! { "_id": id + 10 }, doc! { "new": 3 })
            .upsert(true)
            .await;
        assert_eq!(made.unwrap().upserted_id, Some(Bson::from(id + 10)));
        let made = data.find_one(doc! { "_id": id + 10 }).await.unwrap().unwrap();
        assert_eq!(made, doc! { "_id": id + 10, "new": 3, "fence": held.token().as_i64() });

        let unset = doc! { "$unset": { path: 1 } };
        let whole = doc! { "$replaceWith": { "new": 1 } };
        for refused in [
            fence.update_one(&data, one(), unset.clone()).await,
            fence.update_one(&data, one(), doc! { "$set": { "p": 1 } }).await,
            fence
                .update_one(&data, one(), doc! { "$set": { "p.y.token": 1 } })
                .await,
            fence.update_one(&data, one(), vec![whole]).await,
            fence.replace_one(&data, one(), doc! { "p": 1 }).await,
            fence
                .clone()
                .field("p")
                .unwrap()
                .update_one(&data, one(), doc! {})
                .await,
        ] {
            assert!(matches!(refused, Err(FenceError::Invalid(_))), "{refused:?}");
        }
        // Elsewhere these are fields as any others.
        let elsewhere: Collection<Document> = ground.of(&client, "elsewhere");
        elsewhere
            .insert_one(doc! { "_id": id, path.split('.').next().unwrap(): 1 })
            .await
            .unwrap();
        fence.replace_one(&elsewhere, one(), doc! { "p": 1 }).await.unwrap();
        let there = elsewhere.find_one(one()).await.unwrap().unwrap();
        assert_eq!(there, doc! { "_id": id, "p": 1, "fence": held.token().as_i64() });
        fence.update_one(&data, one(), doc! {}).await.unwrap();
        held.release().await.unwrap();
    }
}

async fn other_locks_are_left_alone(of: impl AsyncFn(&str) -> watchlock::documents::DocumentLocks<Document>) {
    let (x, y) = (of("p.x").await, of("p.y").await);
    let (one, other) = (x.acquire(1).await.unwrap(), y.acquire(1).await.unwrap());
    for update in [
        doc! { "$set": { "p.y": 1 } },
        doc! { "$inc": { "p.y.token": 1 } },
        doc! { "$unset": { "p": 1 } },
        doc! { "$rename": { "a": "p.y" } },
    ] {
        let refused = one.update(update.clone()).await;
        assert_is!(refused, Err(HoldError::Invalid(_)), "{update}");
    }
    let refused = one
        .update(doc! { "$set": { "items.$.n": 99 } })
        .await
        .unwrap_err()
        .to_string();
    assert_says(&refused, &["items.$.n", "$[identifier]"]);
    let updated = one.update(doc! { "$set": { "p.z": 1 } }).await.unwrap();
    assert_eq!(updated.get_document("p").unwrap().get_i32("z").unwrap(), 1);
    assert_eq!(updated.get_array("items").unwrap()[0], Bson::from(doc! { "n": 1 }));
    other.update(doc! { "$set": { "q": 1 } }).await.unwrap();
    let within = of("p").await.acquire(1).await.unwrap_err().to_string();
    assert_says(&within, &["`p`", "`p.x`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_of_a_part_leaves_the_locks_of_other_parts_alone() {
    let ground = Ground::replica_set("parts").await;
    let client = ground.driver().await;
    let data: Collection<Document> = ground.of(&client, "data");
    let document = doc! { "_id": 1, "a": 1, "items": [{ "n": 1 }, { "n": 2 }] };
    data.insert_one(&document).await.unwrap();
    let locks = ground.locks().await;
    other_locks_are_left_alone(async |path| locks.documents(data.clone()).field(path)).await;
    let held = locks.documents(data.clone()).field("p.x").acquire(1).await.unwrap();
    let all = held.update(doc! { "$set": { "items.$[].n": 9 } }).await.unwrap();
    assert_eq!(all.get_array("items").unwrap()[1], Bson::from(doc! { "n": 9 }));

    let memory = MemoryCollection::new();
    memory.insert_one(document).await.unwrap();
    let locks = LockClient::in_memory();
    other_locks_are_left_alone(async |path| locks.documents_in_memory(&memory).field(path)).await;
}

/// Writers with tokens of all ages do everything that a fence can do at once. Each writes its token into a field of the
/// user's as well: whoever reads a document finds the two equal, and the token no smaller than any that was
/// acknowledged before.
#[tokio::test(flavor = "multi_thread")]
async fn no_write_at_random_is_late() {
    const WRITERS: u64 = 6;
    const WRITES: u64 = 60;
    const DOCUMENTS: u64 = 3;
    let ground = Ground::replica_set("random").await;
    let client = ground.driver().await;
    let data: Collection<Document> = ground.of(&client, "data");
    let write = async |writer: u64| {
        let mut dice = Dice::new(writer);
        let (mut written, mut refused) = (0_u32, 0_u32);
        for n in 0..WRITES {
            let id = i64::try_from(dice.below(DOCUMENTS)).unwrap();
            // They rise in the large, and are out of order in the small.
            let token = i64::try_from(n * 2 + dice.below(40)).unwrap();
            let (fence, one) = (Fence::new(token).field("meta.fence").unwrap(), || doc! { "_id": id });
            let fields =
                || doc! { "by": token, "n": i64::try_from(n).unwrap(), "writer": i64::try_from(writer).unwrap() };
            let upsert = dice.below(2) == 0;
            let before = data.find_one(one()).await.unwrap();
            let result = match dice.below(4) {
                0 => {
                    fence
                        .update_one(&data, one(), doc! { "$set": fields() })
                        .upsert(upsert)
                        .await
                }
                1 => {
                    fence
                        .update_one(&data, one(), vec![doc! { "$set": fields() }])
                        .upsert(upsert)
                        .await
                }
                2 => fence.replace_one(&data, one(), fields()).upsert(upsert).await,
                _ => {
                    let set = doc! { "$set": fields(), "$push": { "list": { "$each": [token], "$slice": -5 } } };
                    fence.update_one(&data, one(), set).upsert(upsert).await
                }
            };
            let stored = |document: &Document| document.get_document("meta").unwrap().get_i64("fence").unwrap();
            let least = match result {
                Ok(result) => {
                    let did = result.matched_count > 0 || result.upserted_id.is_some();
                    written += u32::from(did);
                    did.then_some(token)
                }
                Err(FenceError::Fenced {
                    stored: later, ours, ..
                }) => {
                    refused += 1;
                    assert!(later.as_i64() > token, "{later} and {ours}");
                    Some(later.as_i64())
                }
                Err(other) => panic!("{other:?}"),
            };
            let after = data.find_one(one()).await.unwrap();
            if let Some(after) = &after {
                assert_eq!(after.get_i64("by").unwrap(), stored(after), "a late write: {after}");
            }
            for known in [before.as_ref().map(stored), least].into_iter().flatten() {
                let after = after.as_ref().expect("nobody deletes");
                assert!(stored(after) >= known, "it fell from {known}: {after}");
            }
        }
        (written, refused)
    };
    let done = within(
        Duration::from_secs(120),
        "the writers",
        join_all((0..WRITERS).map(write)),
    )
    .await;
    let sum = done
        .iter()
        .fold((0, 0), |sum, (written, refused)| (sum.0 + written, sum.1 + refused));
    assert!(sum.0 > 50 && sum.1 > 50, "both came often: {sum:?}");
}
