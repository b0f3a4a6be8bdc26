//! Locking one element of an array, on a replica set, on a standalone, and in memory.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::bson::{DateTime, oid::ObjectId};
use serde::Deserialize;
use tokio::time::Instant;
use watchlock::{
    documents::{self, ElementLocks},
    errors::HoldError,
    operate::WakeMode,
};

use crate::{
    documents::{Events, Scene},
    setup::*,
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
        scene.insert(order(7)).await;
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
        assert_is!(late, AcquireError::Timeout { .. } | AcquireError::Unanswered { .. });
        eventually(PATIENCE, "nobody waits", async || waiting(&a, 7).await == 0).await;

        let mut waiters = Vec::new();
        for (place, locks) in [(1, &b), (2, &a)] {
            waiters.push(spawn(locks.acquire(7)));
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
        scene.insert(document).await;
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
        for reason in [
            one.lost_reason(),
            two.lost_reason(),
            whole.lost_reason(),
            nested.lost_reason(),
            part.lost_reason(),
        ] {
            assert_eq!(reason, None);
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
        assert!(matches!(refused, HoldError::Invalid(_)), "{refused}");
        assert_eq!(one.release().await.unwrap(), Released::Released);
        assert_eq!(two.release().await.unwrap(), Released::Released);
        assert_eq!(whole.release().await.unwrap(), Released::Released);
        assert_eq!(nested.release().await.unwrap(), Released::Released);

        // A client that locks no elements knows that others may.
        let another = scene.locks_of::<Document>(&scene.client_for(Duration::from_secs(30)).await);
        let whole = another.acquire(1).await.unwrap();
        assert!(!whole.document().contains_key(MAP), "{}", whole.document());
        let copy = doc! { "$set": { MAP: { "parts": {} } } };
        let refused = whole.update(copy).await.unwrap_err();
        assert!(matches!(refused, HoldError::Invalid(_)), "{refused}");
        if let Events::Server(events) = &scene.events {
            let replacement = doc! { "parts": [{ "sku": "x" }], "replaced": true };
            let fence = whole.fence();
            fence.replace_one(events, doc! { "_id": 1 }, replacement).await.unwrap();
            assert!(scene.find(1).await.get_bool("replaced").unwrap());
        }
        part.renew().await.unwrap();
        assert_eq!(part.release().await.unwrap(), Released::Released);
        whole.release().await.unwrap();
    }
}

/// A copy of the document that is hardly older than the replacement lacks a lock, and has another that was just
/// written.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_without_a_lock_ends_it_whatever_else_it_has() {
    let scene = Scene::on(Ground::replica_set("element_replaced").await).await;
    let (a, b) = scene.locks();
    let Events::Server(events) = &scene.events else {
        unreachable!("it is on a server");
    };
    for id in 1..=3 {
        scene.insert(order(id)).await;
        let held = line(&a, "x").acquire(id).await.unwrap();
        let beside = line(&b, "y").acquire(id).await.unwrap();
        // Long enough to be worth a stream.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        beside.renew().await.unwrap();
        let mut copy = scene.find(id).await;
        let locks = copy.get_document_mut(MAP).unwrap().get_document_mut("lines").unwrap();
        locks.remove(r#"sku="x""#).expect("the lock");
        events.replace_one(doc! { "_id": id }, copy).await.unwrap();
        // Its next renewal is due after some seconds.
        let reason = within(SOON * 2, "the loss", held.lost()).await;
        assert_eq!(reason, LostReason::Deleted);
        assert_eq!(beside.lost_reason(), None);
        beside.renew().await.unwrap();
    }
}

/// The server tells of a write to a large document by its changes, and of one to a small document by the whole of it:
/// either way the news comes at once, and not with the next routine look, after 15 s.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_and_holders_are_told_by_the_stream() {
    let soon = SOON * 5;
    let ground = Ground::replica_set("element_stream").await;
    let scene = Scene::on(ground.clone()).await;
    for (id, padding) in [(1, 0), (2, 50_000)] {
        let mut document = order(id);
        document.insert("padding", "x".repeat(padding));
        scene.insert(document).await;
        let (a, b) = scene.locks();
        let (other, a, b) = (line(&a, "y"), line(&a, "x"), line(&b, "x"));
        let mut held = a.acquire(id).await.unwrap();
        let beside = other.acquire(id).await.unwrap();
        for round in 0..4 {
            let (next, before) = if round % 2 == 0 { (&b, &a) } else { (&a, &b) };
            let waiter = spawn(next.acquire(id));
            eventually(PATIENCE, "it waits", async || waiting(before, id).await == 1).await;
            assert_eq!(next.wake_mode(), WakeMode::ChangeStream);
            eventually(PATIENCE, "a stream is open", async || {
                ground.streams(&ground.driver().await).await.len() >= 2
            })
            .await;
            let released = Instant::now();
            held.release().await.unwrap();
            held = within(soon, "the hand-over", waiter).await.unwrap().unwrap();
            println!("padding {padding}: handed over in {:?}", released.elapsed());
        }
        b.break_lock(id).await.unwrap();
        assert_eq!(within(soon, "the break", held.lost()).await, LostReason::Broken);
        assert_eq!(beside.lost_reason(), None);
        let broken = other.break_holder(id, beside.token()).await.unwrap().unwrap();
        assert!(broken.holders.is_empty());
        assert_eq!(within(soon, "the break", beside.lost()).await, LostReason::Broken);
        assert!(other.break_holder(id, beside.token()).await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_changes_that_element_only_and_only_under_the_lock() {
    for scene in Scene::everywhere("element_update").await {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Line {
            sku: String,
            n: i32,
        }
        let (a, b) = scene.locks();
        scene.insert(order(1)).await;
        let typed = a.element::<Line>("lines", doc! { "sku": "y" });
        let held = typed.acquire(1).await.unwrap();
        assert_eq!(held.element().n, 1);
        let updated = held
            .update(doc! { "$inc": { "n": 4 }, "$set": { "by.whom": "$$NOW" } })
            .await
            .unwrap();
        assert_eq!(
            updated,
            Line {
                sku: "y".to_owned(),
                n: 5
            }
        );
        let after = doc! { "sku": "y", "n": 5, "by": { "whom": "$$NOW" } };
        let others = |document: &Document| {
            let mut lines = document.get_array("lines").unwrap().clone();
            let changed = lines.remove(1);
            (changed, lines)
        };
        let (changed, rest) = others(&scene.find(1).await);
        assert_eq!((changed, rest), (Bson::from(after), others(&order(1)).1));
        held.renew().await.unwrap();

        // Elements move, and the lock stays with its own.
        let mut moved = scene.find(1).await.get_array("lines").unwrap().clone();
        moved.retain(|line| *line != Bson::from(7));
        scene.update(1, doc! { "$set": { "lines": moved } }).await;
        held.update(doc! { "$set": { "n": 6 } }).await.unwrap();
        let error = held.update(doc! { "$set": { "n": "six" } }).await.unwrap_err();
        assert!(matches!(error, HoldError::Unreadable { .. }), "{error}");
        for (update, problem) in [
            (doc! { "$set": { "sku": "z" } }, "would change the key"),
            (doc! { "$unset": { "tags.$[]": "" } }, "`$` in its path"),
            (doc! { "n": 1 }, "not an update operator"),
            (doc! {}, "changes no field"),
        ] {
            let error = held.update(update).await.unwrap_err();
            let told = error.to_string();
            assert!(
                matches!(error, HoldError::Invalid(_)) && told.contains(problem),
                "{told}"
            );
        }
        let error = held.update(vec![doc! { "$set": { "n": 1 } }]).await.unwrap_err();
        assert!(matches!(&error, HoldError::Invalid(_)), "{error}");

        // An element that was removed is not written, nor one of two; the lock is held all the same.
        let lines = |lines: Vec<Document>| doc! { "$set": { "lines": lines } };
        scene.update(1, lines(vec![doc! { "sku": "x" }])).await;
        let before = scene.find(1).await;
        let error = held.update(doc! { "$set": { "n": 7 } }).await.unwrap_err();
        assert!(matches!(error, HoldError::NoElement), "{error}");
        assert_eq!(scene.find(1).await.get("lines"), before.get("lines"));
        let twice = lines(vec![doc! { "sku": "y", "n": 1 }, doc! { "sku": "y", "n": 2 }]);
        scene.update(1, twice).await;
        let error = held.update(doc! { "$set": { "n": 7 } }).await.unwrap_err();
        assert_is!(error, HoldError::AmbiguousElement { matched: 2, .. });
        assert_eq!((held.lost_reason(), held.renew().await.is_ok()), (None, true));

        // Nor is anything written after a loss.
        scene.update(1, lines(vec![doc! { "sku": "y", "n": 1 }])).await;
        held.update(doc! { "$set": { "n": 8 } }).await.unwrap();
        line(&b, "y").break_lock(1).await.unwrap();
        let error = held.update(doc! { "$set": { "n": 9 } }).await.unwrap_err();
        assert_lost!(HoldError, Broken, error);
        let expected = Bson::from(vec![doc! { "sku": "y", "n": 8 }]);
        assert_eq!(scene.find(1).await.get("lines"), Some(&expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_that_overwrites_the_lock_ends_it_at_once() {
    let scenes = Scene::everywhere("element_foreign").await;
    join_all(scenes.iter().map(overwrite)).await;
}

async fn overwrite(scene: &Scene) {
    let (a, b) = scene.locks();
    // Without an event, a holder would find out with its next renewal, after 10 s.
    let soon = SOON * 5;
    for id in 1..=6 {
        scene.insert(order(id)).await;
        let before = line(&b, "x").acquire(id).await.unwrap();
        let copy = scene.find(id).await;
        before.release().await.unwrap();
        let held = line(&a, "x").acquire(id).await.unwrap();
        let beside = line(&a, "y").acquire(id).await.unwrap();
        // Long enough to be worth a stream, and for a copy to be an old one.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let code = format!(r#"{MAP}.lines.sku="x""#);
        let stays = match id {
            1 => {
                let old = lock_of(&copy, r#"sku="x""#).unwrap().clone();
                scene.update(id, doc! { "$set": { code: old } }).await;
                true
            }
            2 => {
                scene.update(id, doc! { "$unset": { code: "" } }).await;
                true
            }
            3 => {
                let cleared = doc! { "$set": { format!("{code}.holders"): Vec::<Bson>::new() } };
                scene.update(id, cleared).await;
                true
            }
            4 => {
                scene.update(id, doc! { "$unset": { MAP: "" } }).await;
                false
            }
            5 => {
                // As an object mapper saves it.
                scene.events.replace(id, copy).await;
                false
            }
            _ => {
                scene.events.delete(doc! { "_id": id }).await;
                false
            }
        };
        within(soon, &format!("the loss {id}"), held.lost()).await;
        if stays {
            assert_eq!(
                (beside.lost_reason(), beside.renew().await.is_ok()),
                (None, true),
                "{id}"
            );
        } else {
            within(soon, &format!("the other loss {id}"), beside.lost()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_for_an_element_that_is_not_there() {
    for scene in Scene::everywhere("element_none").await {
        let (a, _) = scene.locks();
        let mut document = order(1);
        document.insert("one", doc! { "sku": "x" });
        document.insert("deep", vec![doc! { "lines": [{ "sku": "x" }] }]);
        document.insert("listed", vec![doc! { "sku": ["x"] }]);
        scene.insert(document.clone()).await;
        for _ in 0..2 {
            for (array, sku) in [
                ("lines", "z"),
                ("one", "x"),
                ("none.at.all", "x"),
                ("deep.lines", "x"),
                ("listed", "x"),
            ] {
                let locks = a.element::<Document>(array, doc! { "sku": sku });
                let error = locks.acquire(1).await.unwrap_err();
                assert_is!(error, AcquireError::NoElement { array: told, .. } if told == array, "{array}");
                assert_is!(locks.try_acquire(1).await, Err(AcquireError::NoElement { .. }));
                let held = locks.try_acquire(1).or_held().await;
                assert!(matches!(held, Err(AcquireError::NoElement { .. })));
                assert_eq!(locks.inspect(1).await.unwrap(), None);
                assert_eq!(locks.break_lock(1).await.unwrap(), None);
            }
        }
        assert_is!(line(&a, "x").acquire(2).await, Err(AcquireError::NoElement { .. }));
        // Entries that were to leave may be on their way for a while.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let after = scene.find(1).await;
        assert_eq!(after.to_string(), document.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_two_elements_have_locks_none() {
    for scene in Scene::everywhere("element_two").await {
        let (a, b) = scene.locks();
        let lines = vec![
            doc! { "sku": "x", "n": 1 },
            doc! { "sku": "x", "n": 2.0 },
            doc! { "sku": "y" },
        ];
        scene.insert(doc! { "_id": 1, "lines": lines }).await;
        for locks in [&a, &b] {
            let error = line(locks, "x").acquire(1).await.unwrap_err();
            assert_is!(error, AcquireError::AmbiguousElement { matched: 2, .. });
        }
        eventually(PATIENCE, "nothing is held", async || {
            let lock = line(&a, "x").inspect(1).await.unwrap();
            lock.is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
        })
        .await;
        // A key of two fields is one element's.
        let both = |n: Bson| doc! { "sku": "x", "n": n };
        let held = a.element::<Document>("lines", both(2.into())).acquire(1).await.unwrap();
        let same = b.element::<Document>("lines", doc! { "n": 2_i64, "sku": "x" });
        assert!(same.try_acquire(1).await.unwrap().is_none());
        let _other = b
            .element::<Document>("lines", both(1.0.into()))
            .acquire(1)
            .await
            .unwrap();
        held.release().await.unwrap();
        assert!(same.try_acquire(1).await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_of_many_types() {
    for scene in Scene::everywhere("element_keys").await {
        let (a, b) = scene.locks();
        let id = ObjectId::new();
        let keys = [
            doc! { "k": "a.b/$c%=,\"\u{0}é" },
            doc! { "k": "$$NOW" },
            doc! { "k": "" },
            doc! { "k": 7 },
            doc! { "k": 7.5 },
            doc! { "k": "7" },
            doc! { "k": true },
            doc! { "k": false },
            doc! { "k": DateTime::from_millis(7) },
            doc! { "_id": id },
            doc! { "k e=y, \"%": 1, "b": 2, "c": 3, "d": 4 },
            doc! { "k": "x".repeat(500) },
        ];
        scene
            .insert(doc! { "_id": "a/b", "of": { "lines": keys.to_vec() } })
            .await;
        let mut held = Vec::new();
        for key in &keys {
            let handle = a
                .element::<Document>("of.lines", key.clone())
                .acquire("a/b")
                .await
                .unwrap();
            assert_eq!(handle.element(), key);
            let updated = handle.update(doc! { "$set": { "done": true } }).await.unwrap();
            assert!(updated.get_bool("done").unwrap());
            held.push(handle);
        }
        let tokens: BTreeMap<_, _> = held
            .iter()
            .map(|handle| (handle.name().to_owned(), handle.token()))
            .collect();
        assert_eq!(tokens.len(), keys.len());
        for (key, handle) in keys.iter().zip(held) {
            let locks = b.element::<Document>("of.lines", key.clone());
            let waiter = spawn(locks.acquire("a/b"));
            eventually(PATIENCE, "it waits", async || {
                locks
                    .inspect("a/b")
                    .await
                    .unwrap()
                    .is_some_and(|lock| lock.waiters.len() == 1)
            })
            .await;
            handle.release().await.unwrap();
            let _next = within(PATIENCE, "the grant", waiter).await.unwrap().unwrap();
        }
        let found = scene.events.find(doc! { "_id": "a/b" }).await;
        let lines = found[0].get_document("of").unwrap().get_array("lines").unwrap();
        assert!(
            lines
                .iter()
                .all(|line| line.as_document().unwrap().get_bool("done").unwrap())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_though_idle_locks_are_removed() {
    for scene in Scene::everywhere("element_clean").await {
        let (a, b) = scene.locks();
        scene.insert(order(1)).await;
        let first = line(&a, "x").acquire(1).await.unwrap();
        let token = first.token();
        first.release().await.unwrap();
        // An element that is removed and added again has its lock still.
        let without = doc! { "$set": { "lines": [{ "sku": "y" }, { "sku": "z" }] } };
        scene.update(1, without).await;
        assert_is!(line(&a, "x").acquire(1).await, Err(AcquireError::NoElement { .. }));
        let with = doc! { "$set": { "lines": [{ "sku": "y" }, { "sku": "z" }, { "sku": "x" }] } };
        scene.update(1, with).await;
        let again = line(&b, "x").acquire(1).await.unwrap();
        assert!(again.token() > token);
        let token = again.token();
        again.release().await.unwrap();

        // A day later: nobody has used it since, while another is held.
        let held = line(&a, "z").acquire(1).await.unwrap();
        let waiter = spawn(line(&b, "z").acquire(1));
        eventually(PATIENCE, "it waits", async || waiting(&line(&a, "z"), 1).await == 1).await;
        let past = DateTime::from_millis(DateTime::now().timestamp_millis() - 60_000);
        let aged = |sku: &str| (format!(r#"{MAP}.lines.sku="{sku}".purge_at"#), Bson::from(past));
        let other = doc! { "purge_at": past, "protocol": 99 };
        let mut set: Document = [aged("x"), aged("z")].into_iter().collect();
        if matches!(scene.events, Events::Server(_)) {
            set.insert(format!("{MAP}.lines.theirs"), other);
        }
        scene.update(1, doc! { "$set": set }).await;
        assert_eq!(codes(&scene.find(1).await)[..2], [r#"sku="x""#, r#"sku="z""#]);
        let last = line(&b, "y").acquire(1).await.unwrap();
        // In memory they stay.
        if matches!(scene.events, Events::Server(_)) {
            let left = scene.find(1).await;
            assert!(lock_of(&left, r#"sku="x""#).is_none(), "{left}");
            assert_eq!(codes(&left)[0], r#"sku="z""#, "what is held stays");
            assert!(lock_of(&left, "theirs").is_some());
        }
        // None of those that are held or waited for has lost anything by it.
        last.renew().await.unwrap();
        held.renew().await.unwrap();
        held.release().await.unwrap();
        let _next = within(PATIENCE, "the grant", waiter).await.unwrap().unwrap();
        let after = line(&a, "x").acquire(1).await.unwrap();
        assert!(after.token() > token, "{:?} after {token:?}", after.token());
        assert_eq!(last.lost_reason(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eighty_elements_are_held_at_once() {
    let scenes = Scene::everywhere("element_many").await;
    // What is released at the end keeps the machine busy: that is to wait for the others.
    let held = join_all(scenes.iter().map(hold_many)).await;
    drop(held);
}

async fn hold_many(scene: &Scene) -> Vec<Held<documents::Element<Document>>> {
    /// Elements of each of two documents.
    const EACH: i32 = 40;
    let lease = Duration::from_secs(8);
    let short = scene.locks_of::<Document>(&scene.client_for(lease).await);
    let lines = |from: i32| (from..from + EACH).map(|n| doc! { "n": n }).collect::<Vec<_>>();
    for id in [1, 2] {
        scene.insert(doc! { "_id": id, "lines": lines(id * 1_000) }).await;
    }
    let mut held = Vec::new();
    for id in [1, 2] {
        let acquires = (0..EACH).map(|n| {
            let locks = short.element::<Document>("lines", doc! { "n": id * 1_000 + n });
            locks.acquire(id)
        });
        // More at once would mostly wait for each other: they write to one document.
        let acquires = stream::iter(acquires).buffer_unordered(8);
        held.extend(acquires.try_collect::<Vec<_>>().await.unwrap());
    }
    let place = match &scene.events {
        Events::Server(events) => events.namespace().to_string(),
        Events::Memory(_) => "memory".to_owned(),
    };
    let check = |expected: &[(&str, LostReason)]| {
        let lost = held
            .iter()
            .filter_map(|handle| Some((handle.name(), handle.lost_reason()?)));
        let lost: Vec<_> = lost.collect();
        let first = &lost[..lost.len().min(3)];
        assert!(lost == expected, "{} are lost in {place}: {first:?}", lost.len());
    };
    tokio::time::sleep(lease + SOON).await;
    check(&[]);
    let taken = scene.locks().1.element::<Document>("lines", doc! { "n": 1_007 });
    assert!(taken.try_acquire(1).await.unwrap().is_none());
    // One that is lost does not keep the others from being renewed.
    taken.break_lock(1).await.unwrap();
    tokio::time::sleep(lease + SOON).await;
    check(&[("1/n=1007", LostReason::Broken)]);
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_arrays_out_of_bounds_are_refused() {
    for scene in Scene::streaming("element_input").await {
        let (a, _) = scene.locks();
        scene.insert(order(1)).await;
        let refused = async |array: &str, key: Document| {
            let locks = a.element::<Document>(array, key);
            let error = locks.acquire(1).await.unwrap_err();
            assert!(matches!(error, AcquireError::Invalid(_)), "{error}");
            assert!(locks.inspect(1).await.is_err() && locks.try_acquire(1).await.is_err());
            error.to_string()
        };
        for (array, problem) in [
            ("_id", "`_id`"),
            ("watchlock", "overlaps with `watchlock`"),
            ("watchlock.holders", "overlaps with `watchlock`"),
            ("watchlock_elements", "overlaps with `watchlock_elements`"),
            ("watchlock_elements.lines", "overlaps with `watchlock_elements`"),
        ] {
            let error = refused(array, doc! { "sku": "x" }).await;
            assert!(error.contains(problem), "{array}: {error}");
        }
        let error = refused("lines", doc! {}).await;
        assert_says(&error, &["0 fields; it must have 1 to 4"]);
        let error = line(&a, "x").acquire(Bson::Array(Vec::new())).await.unwrap_err();
        assert!(matches!(error, AcquireError::Invalid(_)), "{error}");
        // The place of the locks is taken by something else.
        let other = doc! { "_id": 2, "lines": [{ "sku": "x" }], MAP: { "lines": 7 } };
        scene.insert(other).await;
        let error = line(&a, "x").acquire(2).await.unwrap_err();
        assert!(matches!(error, AcquireError::Server(_)), "{error}");
        let whole = scene.locks_of::<Document>(&scene.b).field(MAP);
        whole.acquire(1).await.unwrap().release().await.unwrap();
        let error = line(&scene.locks_of(&scene.b), "x").acquire(1).await.unwrap_err();
        assert_says(&error, &["overlaps with `watchlock_elements`"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_an_element_that_is_removed_are_told_at_their_turn() {
    for scene in Scene::everywhere("element_gone").await {
        let (a, b) = scene.locks();
        for others in [false, true] {
            let id = 1 + i32::from(others);
            scene.insert(order(id)).await;
            let (a, b) = (line(&a, "x"), line(&b, "x"));
            let held = a.acquire(id).await.unwrap();
            let mut waiters = Vec::new();
            if others {
                waiters.push(spawn(b.acquire(id)));
                eventually(PATIENCE, "it waits", async || waiting(&a, id).await == 1).await;
            }
            // With others before them, the first of these has a place in the queue; else they are next inside the
            // client.
            for _ in 0..2 {
                waiters.push(spawn(a.acquire(id)));
            }
            if others {
                eventually(PATIENCE, "it waits", async || waiting(&a, id).await == 2).await;
            }
            let without = doc! { "$set": { "lines": [{ "sku": "y" }] } };
            scene.update(id, without).await;
            held.release().await.unwrap();
            for waiter in waiters {
                let error = within(PATIENCE, "the news", waiter).await.unwrap().unwrap_err();
                assert!(matches!(error, AcquireError::NoElement { .. }), "{error}");
            }
            eventually(PATIENCE, "nothing is held", async || {
                let lock = a.inspect(id).await.unwrap().unwrap();
                lock.holders.is_empty() && lock.waiters.is_empty()
            })
            .await;
            // It is there again.
            scene.update(id, doc! { "$set": { "lines": [{ "sku": "x" }] } }).await;
            b.acquire(id).await.unwrap().release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collation_makes_no_two_elements_one() {
    let ground = Ground::replica_set("element_collation").await;
    let scene = Scene::on(ground.clone()).await;
    let create = doc! { "create": "events", "collation": { "locale": "en", "strength": 1 } };
    let database = ground.driver().await.database(&ground.database);
    database.run_command(create).await.unwrap();
    let lines = vec![doc! { "sku": "x" }, doc! { "sku": "X" }, doc! { "sku": "é" }];
    scene.insert(doc! { "_id": "order", "lines": lines }).await;
    let (a, b) = scene.locks();
    let small = line(&a, "x").acquire("order").await.unwrap();
    let large = line(&b, "X").acquire("order").await.unwrap();
    let updated = small.update(doc! { "$set": { "n": 1 } }).await.unwrap();
    assert_eq!(updated, doc! { "sku": "x", "n": 1 });
    large.update(doc! { "$set": { "n": 2 } }).await.unwrap();
    let error = line(&a, "e").acquire("order").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoElement { .. }), "{error}");
    let document = scene.find("order").await;
    let expected = vec![
        doc! { "sku": "x", "n": 1 },
        doc! { "sku": "X", "n": 2 },
        doc! { "sku": "é" },
    ];
    assert_eq!(document.get("lines"), Some(&Bson::from(expected)));
    assert_eq!((small.lost_reason(), large.lost_reason()), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_and_a_guard_work_under_the_lock_of_an_element() {
    let ground = Ground::replica_set("element_fence").await;
    let scene = Scene::on(ground.clone()).await;
    let driver = ground.driver().await;
    let database = driver.database(&ground.database);
    let events = database.collection::<Document>("events");
    let locks = LockClient::builder(database).build().await.unwrap();
    let locks = locks.documents(events.clone());
    scene.insert(order(1)).await;
    let one = line(&locks, "x").acquire(1).await.unwrap();
    let two = line(&locks, "y").acquire(1).await.unwrap();
    let fence = one.fence().field("fence_x").unwrap();
    let mut replacement = order(1);
    replacement.insert("of", "replaced");
    fence
        .replace_one(&events, doc! { "_id": 1 }, replacement)
        .await
        .unwrap();
    let refused = fence
        .update_one(&events, doc! { "_id": 1 }, doc! { "$unset": { MAP: "" } })
        .await;
    assert!(refused.is_err());
    let written = scene.find(1).await;
    assert_eq!(written.get_str("of").unwrap(), "replaced");
    assert_eq!(codes(&written).len(), 2);

    let mut session = transaction(&driver).await;
    one.guard_transaction(&mut session).await.unwrap();
    let open = one.update(doc! { "$set": { "n": 2 } }).await.unwrap_err();
    assert!(matches!(open, HoldError::InTransaction), "{open}");
    session.commit_transaction().await.unwrap();
    one.update(doc! { "$set": { "n": 2 } }).await.unwrap();
    line(&locks, "x").break_lock(1).await.unwrap();
    session.start_transaction().await.unwrap();
    assert!(one.guard_transaction(&mut session).await.is_err());
    two.renew().await.unwrap();
    assert_eq!(two.lost_reason(), None);
}
