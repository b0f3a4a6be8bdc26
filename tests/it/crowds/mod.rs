//! Many waiters for one lock: more than the queue has room for, and more than streams are for.

mod share;
mod tries;

use std::{collections::HashMap, time::Instant};

use futures::{StreamExt as _, stream::FuturesUnordered};
use mongodb::bson::DateTime;
use tokio::task::JoinHandle;
use watchlock::{
    locks,
    operate::{WakeMode, WakeSource},
};

use crate::setup::*;

/// The clients that the queue of one lock has room for.
const ROOM: usize = 256;

/// Most places in the queue are written into it as another program would; of the clients that come then, some take the
/// last places, and the others knock.
#[tokio::test(flavor = "multi_thread")]
async fn who_came_when_the_queue_was_full_is_served_when_there_is_room() {
    const PLACES: usize = 16;
    const CLIENTS: usize = PLACES + 24;
    let ground = Ground::replica_set("crowd").await;
    let database = ground.driver().await.database(&ground.database);
    let documents = ground.documents().await;
    let holder = ground.locks().await;
    let held = holder.mutex("x").acquire().await.unwrap();
    let written = documents.find_one(doc! { "_id": "x" }).await.unwrap().unwrap();
    let like = written.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    let until = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    let elsewhere = (0..ROOM - PLACES).map(|number| {
        let mut waiter = like.clone();
        waiter.remove("token");
        waiter.insert("id", format!("0123456789abcdef-{number}"));
        waiter.insert("until", until);
        waiter
    });
    let elsewhere: Vec<_> = elsewhere.collect();
    documents
        .update_one(doc! { "_id": "x" }, doc! { "$set": { "queue": elsewhere } })
        .await
        .unwrap();
    let mut waiting = HashMap::new();
    for number in 0..CLIENTS {
        let label = format!("client {number}");
        // A stream each would be another matter.
        let builder = LockClient::builder(database.clone())
            .wake_source(WakeSource::Polling)
            .poll_interval(Duration::from_millis(500), Duration::from_secs(4))
            .label(&label);
        let locks = builder.build().await.unwrap();
        let serving = spawn(async move {
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
    let full = contention(another.mutex("x").acquire().timeout(limit).await.unwrap_err());
    assert!(full.queue_full && full.waiting_before >= ROOM, "{full}");
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
        let gives_up = waiter.owner.label.and_then(|label| waiting.remove(&label));
        if let Some(waiting) = gives_up {
            waiting.abort();
        }
    }
    documents
        .update_one(
            doc! { "_id": "x" },
            doc! { "$pull": { "queue": { "id": { "$regex": "^0123456789abcdef-" } } } },
        )
        .await
        .unwrap();
    held.release().await.unwrap();
    assert_eq!(waiting.len(), CLIENTS - PLACES);
    for (label, served) in waiting {
        within(3 * PATIENCE, &label, served).await.unwrap();
    }
}

/// So many clients that wait for the lock, in this order.
async fn queue(ground: &Ground, holder: &LockClient, clients: usize) -> Vec<(LockClient, Waiting)> {
    let mut queue = Vec::new();
    for place in 1..=clients {
        let locks = ground.locks().await;
        let waiting = in_line(holder, "x", place, locks.mutex("x").acquire()).await;
        queue.push((locks, waiting));
    }
    queue
}

type Waiting = JoinHandle<Result<Held<locks::Mutex>, AcquireError>>;

/// The holder's, and those of the next.
async fn until_some_have_a_stream(ground: &Ground, admin: &Client) {
    let some = async || (2..=7).contains(&ground.streams(admin).await.len());
    eventually(PATIENCE, "only some have a stream", some).await;
}

/// A stream costs the server for every write of the replica set, so only who may be served soon has one. All are served
/// in their order all the same, and those who find out late that they are near open their streams then.
#[tokio::test(flavor = "multi_thread")]
async fn only_those_near_the_front_have_a_stream() {
    const CLIENTS: usize = 24;
    let ground = Ground::replica_set("far").await;
    let (admin, holder) = (ground.driver().await, ground.locks().await);
    let held = holder.mutex("x").acquire().await.unwrap();
    // A lock that was handed over just now may be handed over again and again.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let queue = queue(&ground, &holder, CLIENTS).await;
    until_some_have_a_stream(&ground, &admin).await;
    let (begun, mut last) = (Instant::now(), held.token());
    held.release().await.unwrap();
    let mut clients = Vec::new();
    for (locks, served) in queue {
        let handle = granted(served).await;
        assert!(handle.token() > last);
        last = handle.token();
        handle.release().await.unwrap();
        clients.push(locks);
    }
    println!(
        "{CLIENTS} clients, most of them far back, were served in {:?}",
        begun.elapsed()
    );
    assert!(clients.iter().all(|locks| locks.wake_mode() == WakeMode::ChangeStream));
}

/// Its clock stands still while anything can be done, so that it is the same on a busy machine.
#[tokio::test(start_paused = true)]
async fn a_crowd_in_memory_that_the_queue_has_no_room_for_is_served() {
    const CLIENTS: usize = ROOM + 64;
    let memory = InMemory::new();
    let clients: Vec<LockClient> = (0..CLIENTS).map(|_| memory.client()).collect();
    let holder = memory.client();
    let held = holder.mutex("x").acquire().await.unwrap();
    let waiting = spawn(async move {
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
