//! Many clients, each a session of its own as in a process of its own, that wait for one lock: more than its queue has
//! room for.

use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};
use watchlock::{LockClient, WakeSource};
use watchlock_testkit::Cluster;

use super::{DATABASE, gauge::Gauge};
use crate::{Result, client::connect, locks::LOCKS};

/// Number of waiters that the queue of one lock has room for.
const ROOM: usize = 256;

/// Maximum size of a lock's document, however many clients wait.
const BYTES_MOST: i32 = 150_000;

/// Number of clients that share the connections of one driver's client.
const SHARING: usize = 50;

pub(super) async fn run(count: usize, lasts: Duration) -> Result<bool> {
    let cluster = Cluster::replica_set(1).await?;
    let gauge = Gauge::here(&cluster).await?;
    let holder = LockClient::builder(connect(&cluster.uri(), DATABASE, "holder").await?)
        .build()
        .await?;
    println!("one lock, {count} clients wait for it");
    let held = holder.mutex("one").acquire().await?;
    let before = gauge.read().await?;
    let (mut clients, mut database) = (Vec::new(), None);
    for number in 0..count {
        if number % SHARING == 0 {
            database = Some(connect(&cluster.uri(), DATABASE, "waiter").await?);
        }
        let database = database.clone().ok_or("there is a database")?;
        // The cost of a stream for each is another matter.
        let client = LockClient::builder(database).wake_source(WakeSource::Polling);
        clients.push(client.build().await?);
    }
    let waiting: FuturesUnordered<_> = clients
        .iter()
        .map(|locks| {
            let acquire = locks.mutex("one").acquire();
            tokio::spawn(async move {
                let handle = acquire.await?;
                let token = handle.token();
                handle.release().await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(token)
            })
        })
        .collect();
    let full = ROOM.min(count);
    while holder
        .inspect("one")
        .await?
        .is_none_or(|lock| lock.waiters.len() < full)
    {
        sleep(Duration::from_millis(100)).await;
    }
    let queued = gauge.read().await?;
    println!("  all ask    {}", queued.since(&before));
    sleep(lasts).await;
    let waited = gauge.read().await?;
    println!("  all wait   {}", waited.since(&queued));
    let documents = connect(&cluster.uri(), DATABASE, "gauge")
        .await?
        .collection::<Document>(LOCKS);
    let size = doc! { "$project": { "size": { "$bsonSize": "$$ROOT" } } };
    let mut sizes = documents.aggregate([doc! { "$match": { "_id": "one" } }, size]).await?;
    let bytes = sizes.next().await.ok_or("the lock has no document")??.get_i32("size")?;
    println!("  the lock's document: {bytes} bytes (below {BYTES_MOST})");
    let began = Instant::now();
    held.release().await?;
    let served: Vec<_> = waiting.collect().await;
    let mut tokens = Vec::new();
    for token in served {
        tokens.push(token??);
    }
    let took = began.elapsed();
    let served = gauge.read().await?;
    println!("  all served {}", served.since(&waited));
    tokens.sort_unstable();
    tokens.dedup();
    println!("  {} served, each with a token of its own, in {took:.1?}", tokens.len());
    for locks in &clients {
        locks.shutdown().await;
    }
    holder.shutdown().await;
    Ok(tokens.len() == count && bytes < BYTES_MOST)
}
