//! The cost of claiming a document and giving it back, and of claiming many.

use futures::future::try_join_all;
use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::time::Instant;
use watchlock::{
    Held,
    documents::{self, DocumentLocks},
};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    latency::{compare, expect_released},
    measure::{Compared, claimed_and_freed},
    peer::Peer,
};

/// Number of documents to choose from.
const DOCUMENTS: i32 = 100;

/// Number of documents that a worker claims at a time.
const AT_A_TIME: usize = 16;

/// Number of documents that a worker does in a round, and the number of rounds, which alternate.
const TO_DO: i32 = 480;
const TURNS: u32 = 5;

/// Measures a claim and its release, beside the least that marks a free document as taken and then as free again.
pub(crate) async fn claim(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let peer = Peer::new(cluster).await?;
    let (raw, documents) = (peer.raw(), peer.documents());
    for collection in [&raw, &documents] {
        have_pending(collection).await?;
    }
    let documents = peer.locks.documents(documents);
    let compared = compare(
        rounds,
        async |_| Ok(claimed_and_freed(raw.clone()).await?),
        async |_| {
            let sent = Instant::now();
            let handle = documents.claim(doc! { "state": "pending" }).await?;
            expect_released(handle.release().await?)?;
            Ok(sent.elapsed())
        },
    );
    let compared = compared.await?;
    peer.locks.shutdown().await;
    Ok(compared)
}

/// Leaves nothing in the collection but documents to choose from: the measurements share it.
async fn have_pending(collection: &Collection<Document>) -> Result<()> {
    collection.delete_many(doc! {}).await?;
    let pending = (0..DOCUMENTS).map(|id| doc! { "_id": id, "state": "pending", "payload": "x".repeat(100) });
    collection.insert_many(pending).await?;
    Ok(())
}

/// Measures a claim and its end with an update, beside the two commands that take a free document, and then mark it as
/// done and free.
pub(crate) async fn claim_done(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let peer = Peer::new(cluster).await?;
    let (raw, documents) = (peer.raw(), peer.documents());
    for collection in [&raw, &documents] {
        have_pending(collection).await?;
    }
    let documents = peer.locks.documents(documents);
    let mark_raw = async |round: usize| {
        let sent = Instant::now();
        let free = doc! { "state": "pending", "holder": null };
        let taken = raw.find_one_and_update(free, doc! { "$set": { "holder": 1 } }).await?;
        let id = taken.ok_or("no document is free")?.get_i32("_id")?;
        let update = doc! { "$set": { "holder": null, "done": round as i64 } };
        raw.update_one(doc! { "_id": id, "holder": 1 }, update).await?;
        Ok(sent.elapsed())
    };
    let mark = async |round: usize| {
        let sent = Instant::now();
        let handle = documents.claim(doc! { "state": "pending" }).await?;
        let done = doc! { "$set": { "done": round as i64 } };
        handle.update_and_release(done).await?;
        Ok(sent.elapsed())
    };
    let compared = compare(rounds, mark_raw, mark).await?;
    peer.locks.shutdown().await;
    Ok(compared)
}

/// Measures how many documents a worker claims, marks as done and releases a second: many at a time, and one at a time.
pub(crate) async fn claim_many(cluster: &Cluster) -> Result<(f64, f64)> {
    let peer = Peer::new(cluster).await?;
    let to_do = peer.collection("to_do");
    let locks = peer.locks.documents(to_do.clone());
    let mut rates = [0.0; 2];
    for turn in 0..=TURNS {
        for (rate, most) in rates.iter_mut().zip([AT_A_TIME, 1]) {
            to_do.delete_many(doc! {}).await?;
            let documents = (0..TO_DO).map(|id| doc! { "_id": id, "done": false, "payload": "x".repeat(100) });
            to_do.insert_many(documents).await?;
            let begun = Instant::now();
            work(&locks, most).await?;
            // The first makes the connections.
            if turn > 0 {
                *rate += f64::from(TO_DO) / begun.elapsed().as_secs_f64() / f64::from(TURNS);
            }
        }
    }
    peer.locks.shutdown().await;
    Ok(rates.into())
}

/// Does all that is to be done, so many at a time.
async fn work(locks: &DocumentLocks<Document>, most: usize) -> Result<()> {
    let to_do = doc! { "done": false };
    if most == 1 {
        while let Some(claimed) = locks.try_claim(to_do.clone()).await? {
            finish(claimed).await?;
        }
        return Ok(());
    }
    while let Some(claimed) = locks.try_claim_many(to_do.clone(), most).await? {
        try_join_all(claimed.into_iter().map(finish)).await?;
    }
    Ok(())
}

async fn finish(claimed: Held<documents::Document<Document>>) -> Result<()> {
    claimed.update_and_release(doc! { "$set": { "done": true } }).await?;
    Ok(())
}
