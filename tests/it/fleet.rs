//! Many clients that hold locks on a set that others write to all the while.

use tokio::time::{Instant, sleep};
use watchlock::operate::{HoldWatch, WakeMode};
use watchlock_testkit::Cluster;

use crate::setup::*;

/// Clients that hold a lock each.
const CLIENTS: usize = 8;

/// So much that one holder may have a stream at 400 writes a second, and eight at 50.
const BUDGET: HoldWatch = HoldWatch::Budget { millicores: 10 };

/// Renewals show how busy the set is, and come often with a short lease.
const LEASE: Duration = Duration::from_secs(6);

/// A client of its own alone would have a stream: what counts is that all of them see how many they are.
#[tokio::test(flavor = "multi_thread")]
async fn holders_read_their_locks_while_the_set_is_too_busy_for_their_streams() {
    // A set of its own, as other tests write too.
    let cluster = Cluster::builder().replica_set(1).in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "fleet");
    let driver = ground.driver().await;
    let foreign = driver.database("foreign").collection::<Document>("others");
    let writing = {
        let foreign = foreign.clone();
        spawn(async move {
            // As many a second on a busy machine, where each write takes longer.
            let (begun, mut written) = (Instant::now(), 0);
            loop {
                sleep(Duration::from_millis(3)).await;
                let due = begun.elapsed().as_millis() / 3;
                let documents = (written..due).map(|_| doc! {});
                foreign.insert_many(documents).await.unwrap();
                written = due;
            }
        })
    };
    eventually(PATIENCE, "the set is busy", async || {
        foreign.estimated_document_count().await.unwrap() > 200
    })
    .await;

    let clients = join_all((0..CLIENTS).map(async |_| {
        let builder = ground.builder().await.lease(LEASE).hold_watch(BUDGET);
        builder.build().await.unwrap()
    }))
    .await;
    let hold = async |(number, locks): (usize, &LockClient)| {
        let name = format!("lock {number}");
        locks.mutex(&name).acquire().await.unwrap()
    };
    let held = join_all(clients.iter().enumerate().map(hold)).await;
    for locks in &clients {
        until_mode(locks, PATIENCE, |mode| mode == WakeMode::StreamForWaiters).await;
    }
    until_streaming(&ground, &driver, 0).await;

    // They learn of a loss all the same.
    let documents = ground.documents().await;
    documents.delete_one(doc! { "_id": "lock 0" }).await.unwrap();
    assert_eq!(within(SOON, "it is deleted", held[0].lost()).await, LostReason::Deleted);
    clients[0].break_lock("lock 1").await.unwrap();
    assert_eq!(within(SOON, "it is broken", held[1].lost()).await, LostReason::Broken);

    // A waiter has a stream, whatever it costs, and is woken by it.
    let mutex = clients[0].mutex("lock 2");
    let waiting = spawn(async move { mutex.acquire().await.unwrap() });
    until_streaming(&ground, &driver, 1).await;
    let mut held = held;
    held.swap_remove(2).release().await.unwrap();
    let handle = within(SOON, "its turn", waiting).await.unwrap();
    handle.release().await.unwrap();

    // On a quiet set all of them have their streams again.
    writing.abort();
    for locks in &clients[3..] {
        until_mode(locks, 2 * PATIENCE, |mode| mode == WakeMode::ChangeStream).await;
    }
    assert!(held[3..].iter().all(|held| held.lost_reason().is_none()));
}

/// A task had the stream for its turn. The lease is long: no renewal shows the loss.
#[tokio::test(flavor = "multi_thread")]
async fn holders_read_as_soon_as_a_stream_is_closed() {
    let ground = Ground::replica_set("closed").await;
    let (driver, other) = (ground.driver().await, ground.polling().await);
    let locks = ground
        .locks_with(|builder| {
            builder
                .lease(Duration::from_secs(120))
                .hold_watch(HoldWatch::Reads(Duration::from_millis(50)))
        })
        .await;
    let before = other.mutex("x").acquire().await.unwrap();
    let waiting = spawn(locks.mutex("x").acquire());
    until_streaming(&ground, &driver, 1).await;
    before.release().await.unwrap();
    let held = within(SOON, "its turn", waiting).await.unwrap().unwrap();
    until_streaming(&ground, &driver, 0).await;
    ground.documents().await.delete_one(doc! { "_id": "x" }).await.unwrap();
    assert_eq!(within(SOON, "it is deleted", held.lost()).await, LostReason::Deleted);
}

/// Whoever wants it otherwise gets it, on a quiet set.
#[tokio::test(flavor = "multi_thread")]
async fn holders_read_as_often_as_they_are_told_to() {
    let ground = Ground::replica_set("reads").await;
    let (driver, sent) = ground.noting_driver().await;
    let builder = LockClient::builder(driver.database(&ground.database));
    let locks = builder
        .hold_watch(HoldWatch::Reads(Duration::from_millis(20)))
        .build()
        .await
        .unwrap();
    let held = locks.mutex("x").acquire().await.unwrap();
    eventually(PATIENCE, "it reads", async || sent.count("find") >= 10).await;
    assert_eq!(locks.wake_mode(), WakeMode::StreamForWaiters);
    assert_eq!(sent.count("aggregate"), 0, "neither a stream nor a count");
    ground.documents().await.delete_one(doc! { "_id": "x" }).await.unwrap();
    assert_eq!(within(SOON, "it is deleted", held.lost()).await, LostReason::Deleted);
}
