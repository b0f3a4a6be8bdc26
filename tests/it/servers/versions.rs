//! Documents that a later version of the protocol has written: this version does nothing to them, and says why.

use mongodb::bson::DateTime;
use watchlock::errors::{OperateError, ServerError};

use crate::setup::*;

/// A lock as a later version may write it.
fn later() -> Document {
    let now = DateTime::now();
    doc! {
        "protocol": 3_i64, "kind": "mutex", "capacity": 1_i64, "token": 1_764_000_000_000_000_i64,
        "holders": { "elsewhere": "entirely" }, "queue": 5, "wake": "a.1:;", "version": 1_i64, "at": now,
        "purge_at": DateTime::from_millis(now.timestamp_millis() + 3_600_000),
    }
}

fn names_both(error: &ServerError) {
    let told = error.to_string();
    assert_says(&told, &["protocol 3", "up to protocol 2"]);
}

fn refused<T: std::fmt::Debug>(acquired: Result<T, AcquireError>) {
    match acquired {
        Err(AcquireError::Server(error)) => names_both(&error),
        other => panic!("{other:?}"),
    }
}

fn no_use<T: std::fmt::Debug>(operated: Result<T, OperateError>) {
    match operated {
        Err(OperateError::Server(error)) => names_both(&error),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_a_later_protocol_is_refused_by_both_numbers_and_left_alone() {
    let ground = Ground::replica_set("later").await;
    let (locks, documents) = (ground.locks().await, ground.documents().await);
    let mut document = doc! { "_id": "x" };
    document.extend(later());
    documents.insert_one(&document).await.unwrap();
    refused(locks.mutex("x").try_acquire().await);
    refused(locks.mutex("x").acquire().await);
    refused(locks.semaphore("x", 3).acquire().await);
    refused(locks.rw_lock("x").write().await);
    refused(within(PATIENCE, "the latch", locks.latch("x", 1).wait()).await);
    no_use(locks.inspect("x").await);
    no_use(locks.break_lock("x").await);
    assert_eq!(documents.find_one(doc! { "_id": "x" }).await.unwrap(), Some(document));
}

/// It should not come to that, as nobody upgrades a lock that is held. If it does, the holder has lost it.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_lock_that_was_upgraded_has_lost_it_and_leaves_it_alone() {
    let ground = Ground::replica_set("upgraded").await;
    let (locks, documents) = (ground.locks_for(Duration::from_secs(3)).await, ground.documents().await);
    let held = locks.mutex("x").acquire().await.unwrap();
    let shared = locks.semaphore("y", 3).acquire().await.unwrap();
    // As a later version writes it, under `wake` as the protocol has it.
    let upgrade = doc! { "$set": { "protocol": 3_i64, "wake": "later.1:;", "new": "field" } };
    documents.update_many(doc! {}, upgrade).await.unwrap();
    let find = async |name: &str| documents.find_one(doc! { "_id": name }).await.unwrap().unwrap();
    let before = (find("x").await, find("y").await);
    assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Overwritten);
    assert_eq!(
        within(PATIENCE, "the loss", shared.lost()).await,
        LostReason::Overwritten
    );
    held.renew().await.unwrap_err();
    drop((held.release().await, shared.release().await));
    locks.shutdown().await;
    assert_eq!((find("x").await, find("y").await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_a_later_protocol_in_a_document_is_refused_and_passed_over() {
    // Whatever else is in it.
    for (name, lock) in [
        ("later_in_place", later()),
        ("later_otherwise", doc! { "protocol": 3_i64, "owners": ["x"] }),
    ] {
        refuse_and_pass_over(name, &lock).await;
    }
}

async fn refuse_and_pass_over(name: &str, lock: &Document) {
    let ground = Ground::replica_set(name).await;
    let driver = ground.driver().await;
    let orders = ground.of(&driver, "orders");
    orders
        .insert_one(doc! { "_id": 1, "watchlock": lock.clone() })
        .await
        .unwrap();
    let memory = MemoryCollection::new();
    memory
        .insert_one(doc! { "_id": 1, "watchlock": lock.clone() })
        .await
        .unwrap();
    let (client, in_memory) = (ground.locks().await, LockClient::in_memory());
    for locks in [client.documents(orders.clone()), in_memory.documents_in_memory(&memory)] {
        refused(locks.try_acquire(1).await);
        refused(locks.acquire(1).await);
        no_use(locks.inspect(1).await);
        no_use(locks.break_lock(1).await);
        // It is passed over, and as nothing else is there, that is an error.
        let claimed = locks.try_claim(doc! {}).await;
        assert!(matches!(claimed, Err(AcquireError::Unclaimable { .. })), "{claimed:?}");
    }
    // A claim takes what it can.
    orders.insert_one(doc! { "_id": 2 }).await.unwrap();
    memory.insert_one(doc! { "_id": 2 }).await.unwrap();
    for locks in [client.documents(orders.clone()), in_memory.documents_in_memory(&memory)] {
        let claimed = locks.try_claim(doc! {}).await.unwrap().unwrap();
        assert_eq!(claimed.document().get("_id"), Some(&Bson::from(2)));
        claimed.release().await.unwrap();
    }
    let found = orders.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    assert_eq!(found.get_document("watchlock").ok(), Some(lock));
    let found = memory.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    assert_eq!(found.get_document("watchlock").ok(), Some(lock));
}

/// The first builds wrote no number.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_without_a_number_is_of_the_first_protocol() {
    let ground = Ground::replica_set("first").await;
    let (locks, documents) = (ground.locks().await, ground.documents().await);
    let mutex = locks.mutex("x");
    let held = mutex.acquire().await.unwrap();
    let bare = doc! { "$unset": { "protocol": "" }, "$set": { "wake": "earlier.1:;" } };
    documents.update_one(doc! { "_id": "x" }, bare.clone()).await.unwrap();
    held.renew().await.unwrap();
    assert_eq!(held.status(), LockStatus::Held);
    held.release().await.unwrap();
    documents.update_one(doc! { "_id": "x" }, bare).await.unwrap();
    let next = ground.locks().await.mutex("x").acquire().await.unwrap();
    eventually(PATIENCE, "the number is there", async || {
        let found = documents.find_one(doc! { "_id": "x" }).await.unwrap().unwrap();
        found.get_i64("protocol").is_ok_and(|protocol| protocol == 1)
    })
    .await;
    next.release().await.unwrap();
}
