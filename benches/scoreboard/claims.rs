//! The cost of claiming a document and giving it back.

use mongodb::bson::doc;
use tokio::time::Instant;
use watchlock::Released;
use watchlock_testkit::Cluster;

use crate::{Result, peer::Peer, samples::Compared};

/// Number of rounds that are thrown away.
const WARM_UP: usize = 30;

/// Number of documents to choose from.
const DOCUMENTS: i32 = 100;

/// Measures a claim and its release, beside the least that marks a free document as taken and then as free again.
pub(crate) async fn claim(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let peer = Peer::new(cluster).await?;
    let (raw, documents) = (peer.raw(), peer.documents());
    for collection in [&raw, &documents] {
        let pending = (0..DOCUMENTS).map(|id| doc! { "_id": id, "state": "pending", "payload": "x".repeat(100) });
        collection.insert_many(pending).await?;
    }
    let documents = peer.locks.documents(documents);
    let mut compared = Compared::default();
    for round in 0..WARM_UP + rounds {
        let sent = Instant::now();
        let free = doc! { "state": "pending", "holder": null };
        let taken = raw.find_one_and_update(free, doc! { "$set": { "holder": 1 } }).await?;
        let id = taken.ok_or("no document is free")?.get_i32("_id")?;
        raw.update_one(doc! { "_id": id }, doc! { "$set": { "holder": null } })
            .await?;
        let bare = sent.elapsed();

        let sent = Instant::now();
        let handle = documents.claim(doc! { "state": "pending" }).await?;
        if handle.release().await? != Released::Released {
            return Err("a document was lost while it was measured".into());
        }
        let lock = sent.elapsed();

        if round >= WARM_UP {
            compared.raw.push(bare);
            compared.lock.push(lock);
        }
    }
    peer.locks.shutdown().await;
    Ok(compared)
}
