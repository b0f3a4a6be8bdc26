//! The least that a lock with leases, a queue and fencing tokens can send, written by hand, beside the commands that
//! the scoreboard compares the library with.
//!
//! Those set a field or delete a document, which no such lock can do: a lease begins on the server's clock, which only
//! a pipeline reads; who is next is in the document; dead waiters are passed over; and the token has to outlive the
//! hold. Nor are two tasks enough: the release goes on if its caller is dropped, so it has a task of its own, and the
//! task that waits is not the one that reads the stream for all of them. So this is how much of a ratio belongs to
//! locks of this kind, and the rest is the library's.

use futures::TryStreamExt;
use mongodb::bson::{DateTime, doc};
use tokio::{sync::mpsc, time::Instant};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    commands::{LEASE, acquires, hands_over, modify, releases},
    latency::{Hop, WARM_UP, upserted_and_deleted},
    peer::Peer,
    samples::Compared,
};

const COLLECTION: &str = "least";

/// Measures a hand-over from one raw client to another, beside a raw hop.
pub(crate) async fn hand_over(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let (sender, receiver) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut hop = Hop::between(&sender, &receiver).await?;
    let documents = sender.collection(COLLECTION);
    let next = doc! { "$regex": "^next$" };
    let granted = doc! { "$match": { "$or": [
        { "operationType": "update", "updateDescription.updatedFields.wake": &next },
        { "operationType": "replace", "fullDocument.wake": &next },
    ] } };
    let mut stream = receiver.collection(COLLECTION).watch().pipeline([granted]).await?;
    let (to, granted) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(_)) = stream.try_next().await {
            if to.send(()).is_err() {
                return;
            }
        }
    });
    let mut granted = Some(granted);
    let mut compared = Compared::default();
    for round in 0..WARM_UP + rounds {
        let until = DateTime::from_millis(DateTime::now().timestamp_millis() + LEASE);
        let held = doc! {
            "_id": "handed over", "token": 1_i64, "wake": "",
            "holders": [{ "id": "present", "since": DateTime::now(), "until": until }],
            "queue": [{ "id": "next", "since": DateTime::now(), "until": until }],
        };
        documents
            .replace_one(doc! { "_id": "handed over" }, held)
            .upsert(true)
            .await?;
        let raw = hop.once().await?;
        let mut waiter = granted.take().ok_or("the waiter did not come back")?;
        let waiting = tokio::spawn(async move { (waiter.recv().await, Instant::now(), waiter) });
        // As the library's waiter is seen in the queue just before.
        documents.find_one(doc! { "_id": "handed over" }).await?;
        let called = Instant::now();
        let database = sender.driver.database(&documents.namespace().db);
        tokio::spawn(modify(database, COLLECTION, "handed over", hands_over())).await??;
        let (event, at, waiter) = waiting.await?;
        event.ok_or("the raw change stream ended")?;
        granted = Some(waiter);
        if round >= WARM_UP {
            compared.raw.push(raw);
            compared.lock.push(at - called);
        }
    }
    shut_down([sender, receiver]).await;
    Ok(compared)
}

/// Measures the acquire and the release of a free lock, beside an upsert and a deletion.
pub(crate) async fn uncontended(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let peer = Peer::new(cluster).await?;
    let raw = peer.raw();
    let database = peer.driver.database(&raw.namespace().db);
    let mut compared = Compared::default();
    for round in 0..WARM_UP + rounds {
        let deleted = upserted_and_deleted(&raw, "free").await?;

        let sent = Instant::now();
        for written in [acquires(), releases()] {
            tokio::spawn(modify(database.clone(), COLLECTION, "free", written)).await??;
        }
        let lock = sent.elapsed();
        if round >= WARM_UP {
            compared.raw.push(deleted);
            compared.lock.push(lock);
        }
    }
    shut_down([peer]).await;
    Ok(compared)
}

async fn shut_down<const N: usize>(peers: [Peer; N]) {
    for peer in peers {
        peer.locks.shutdown().await;
    }
}
