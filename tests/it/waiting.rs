//! More clients than the queue has room for.

use std::{collections::HashMap, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use mongodb::bson::doc;
use watchlock::{AcquireError, InMemory, LockClient, WakeSource};

use crate::setup::{Ground, PATIENCE, eventually, info, within};

/// The clients that the queue of one lock has room for.
const ROOM: usize = 256;

#[tokio::test(flavor = "multi_thread")]
async fn who_came_when_the_queue_was_full_is_served_when_there_is_room() {
    const CLIENTS: usize = 300;
    let ground = Ground::replica_set("crowd").await;
    let database = ground.driver().await.database(&ground.database);
    let documents = ground.documents().await;
    let holder = ground.locks().await;
    let held = holder.mutex("x").acquire().await.unwrap();
    let mut waiting = HashMap::new();
    for number in 0..CLIENTS {
        let label = format!("client {number}");
        // A stream each would be another matter.
        let builder = LockClient::builder(database.clone())
            .wake_source(WakeSource::Polling)
            .poll_interval(Duration::from_millis(20), Duration::from_secs(1))
            .label(&label);
        let locks = builder.build().await.unwrap();
        let serving = tokio::spawn(async move {
            let handle = locks.mutex("x").acquire().await.unwrap();
            handle.release().await.unwrap();
        });
        waiting.insert(label, serving);
    }
    eventually(3 * PATIENCE, "the queue is full", async || {
        info(&holder, "x").await.is_some_and(|lock| lock.waiters.len() == ROOM)
    })
    .await;
    let another = ground.locks().await;
    let limit = Duration::from_secs(2);
    match another.mutex("x").acquire().timeout(limit).await {
        Err(AcquireError::Timeout {
            contention: Some(contention),
            ..
        }) => assert!(
            contention.queue_full && contention.waiting_before >= ROOM,
            "{contention}"
        ),
        other => panic!("{other:?}"),
    }
    assert!(another.mutex("x").try_acquire().await.unwrap().is_none());
    let size = documents
        .aggregate([doc! { "$project": { "size": { "$bsonSize": "$$ROOT" } } }])
        .await
        .unwrap();
    let size = size
        .with_type::<mongodb::bson::Document>()
        .next()
        .await
        .unwrap()
        .unwrap();
    assert!(size.get_i32("size").unwrap() < 150_000, "{size}");
    println!("the document with a full queue: {size}");
    // Those in the queue give up, and then there is room for those who knock.
    for waiter in info(&holder, "x").await.unwrap().waiters {
        let label = waiter.label.unwrap();
        waiting.remove(&label).unwrap().abort();
    }
    held.release().await.unwrap();
    assert_eq!(waiting.len(), CLIENTS - ROOM);
    for (label, served) in waiting {
        within(3 * PATIENCE, &label, served).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_in_memory_are_all_served() {
    const CLIENTS: usize = 1_000;
    let memory = InMemory::new();
    let clients: Vec<LockClient> = (0..CLIENTS).map(|_| memory.client()).collect();
    let holder = memory.client();
    let held = holder.mutex("x").acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let waiting: FuturesUnordered<_> = clients
            .iter()
            .map(async |locks| locks.mutex("x").acquire().await.unwrap().release().await.unwrap())
            .collect();
        waiting.count().await
    });
    eventually(PATIENCE, "the queue is full", async || {
        info(&holder, "x").await.is_some_and(|lock| lock.waiters.len() == ROOM)
    })
    .await;
    held.release().await.unwrap();
    assert_eq!(
        within(6 * PATIENCE, "everybody is served", waiting).await.unwrap(),
        CLIENTS
    );
}
