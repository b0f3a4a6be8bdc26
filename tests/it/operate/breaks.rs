//! Breaks: an operator takes a lock away.

use crate::setup::*;

/// However many permits the lock has, and also where nobody holds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_is_one_command() {
    let ground = Ground::replica_set("breaks").await;
    let locks = ground.locks().await;
    let (driver, sent) = ground.noting_driver().await;
    let database = driver.database(&ground.database);
    let operator = LockClient::builder(database.clone()).build().await.unwrap();
    let count = || sent.count("findAndModify");

    let held = locks.mutex("x").acquire().await.unwrap();
    let (first, second) = (ground.locks().await, ground.locks().await);
    let waiting = spawn(first.mutex("x").acquire());
    until_waiting(&operator, "x", 1).await;
    let next = spawn(second.mutex("x").acquire());
    until_waiting(&operator, "x", 2).await;
    let lock = operator.break_lock("x").await.unwrap().unwrap();
    assert_eq!((count(), lock.holders.len(), lock.waiters.len()), (1, 1, 1));
    assert_eq!(within(SOON, "the break", held.lost()).await, LostReason::Broken);
    let waited = within(SOON, "the grant", waiting).await.unwrap().unwrap();
    let token = waited.token();
    let lock = operator.break_holder("x", token).await.unwrap().unwrap();
    assert_eq!((count(), lock.holders.len(), lock.waiters.len()), (2, 1, 0));
    assert_eq!(within(SOON, "the break", waited.lost()).await, LostReason::Broken);
    let next = within(SOON, "the grant", next).await.unwrap().unwrap();
    assert!(operator.break_holder("x", token).await.unwrap().is_none());
    assert_eq!((count(), next.lost_reason()), (3, None));
    next.release().await.unwrap();
    assert!(operator.break_lock("x").await.unwrap().unwrap().holders.is_empty());
    assert_eq!(operator.break_lock("unknown").await.unwrap(), None);
    assert_eq!(count(), 5);

    let semaphore = locks.semaphore("y", 2);
    let (one, other) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
    let lock = operator.break_holder("y", one.token()).await.unwrap().unwrap();
    assert_eq!((count(), lock.holders.len()), (6, 1));
    assert_eq!(within(SOON, "the break", one.lost()).await, LostReason::Broken);
    assert_eq!(other.lost_reason(), None);
    let lock = operator.break_lock("y").await.unwrap().unwrap();
    assert_eq!((count(), lock.holders.len()), (7, 0));

    // A connection that has answered just now is not tried by a reading first.
    let reads = sent.count("find");
    for _ in 0..5 {
        assert!(operator.break_holder("y", one.token()).await.unwrap().is_none());
    }
    assert!(sent.count("find") < reads + 5, "each read first");

    let documents = database.collection::<Document>("documents");
    documents.insert_one(doc! { "_id": 1 }).await.unwrap();
    let theirs = ground.collection("documents").await;
    let held = locks.documents(theirs).acquire(1).await.unwrap();
    let lock = operator.documents(documents).break_lock(1).await.unwrap().unwrap();
    assert_eq!((count(), lock.holders.len()), (13, 0));
    assert_eq!(within(SOON, "the break", held.lost()).await, LostReason::Broken);
}
