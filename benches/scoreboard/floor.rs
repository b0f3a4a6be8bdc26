//! Raw clients that hand a turn round by change streams, with no lock in it: what everybody would build first.
//!
//! It is no lower bound, as each of them has a stream all the time. But what the server takes for so many streams and
//! two writes is in it, and nothing else.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt;
use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use watchlock_testkit::Cluster;

use crate::{Result, counters::processor_time, peer::Peer};

/// Time for which turns go round before they are counted, and while they are.
const SETTLING: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(8);

/// Turns that went round among raw clients.
#[derive(Debug)]
pub(crate) struct Ring {
    clients: usize,
    turns: usize,
    elapsed: Duration,
    server: Duration,
}

impl Ring {
    pub(crate) fn per_second(&self) -> f64 {
        self.turns as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the server's processor time for each turn, in milliseconds.
    pub(crate) fn server_millis(&self) -> f64 {
        self.server.as_secs_f64() * 1e3 / self.turns as f64
    }

    /// Returns the time from turn to turn, in milliseconds.
    pub(crate) fn millis(&self) -> f64 {
        1e3 / self.per_second()
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a ring of {} raw clients: {:.0} turns/s, {:.2} ms of the server's processor each",
            self.clients,
            self.per_second(),
            self.server_millis()
        )
    }
}

/// Hands a turn round among so many clients, each with a stream of its own. One turn takes the two writes of a lock in
/// contention: the release that names the next, and the request that gets in line again.
pub(crate) async fn ring(cluster: &Cluster, clients: usize) -> Result<Ring> {
    let peers: Vec<Peer> = futures::future::try_join_all((0..clients).map(|_| Peer::new(cluster))).await?;
    let first = peers.first().ok_or("a ring of nobody")?.raw();
    let written = doc! { "$set": { "to": "nobody" } };
    first.update_one(doc! { "_id": "ring" }, written).upsert(true).await?;
    let turns = Arc::new(AtomicUsize::new(0));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for (number, peer) in peers.iter().enumerate() {
        let (raw, turns) = (peer.raw(), turns.clone());
        let mine = doc! { "operationType": "update", "updateDescription.updatedFields.to": word(number) };
        let mut stream = raw.watch().pipeline([doc! { "$match": mine }]).await?;
        let next = word((number + 1) % clients);
        tasks.spawn(async move {
            while stream.try_next().await?.is_some() {
                turns.fetch_add(1, Ordering::Relaxed);
                write(&raw, doc! { "to": &next }).await?;
                write(&raw, doc! { "in_line": number as i64 }).await?;
            }
            Err("a raw change stream ended".into())
        });
    }
    first
        .update_one(doc! { "_id": "ring" }, doc! { "$set": { "to": word(0) } })
        .await?;
    counted(cluster, peers, tasks, &turns).await
}

/// Lets the turns go round, and counts them.
async fn counted(
    cluster: &Cluster,
    peers: Vec<Peer>,
    mut tasks: JoinSet<Result<()>>,
    turns: &AtomicUsize,
) -> Result<Ring> {
    let clients = peers.len();
    sleep(SETTLING).await;
    let (before, server, begun) = (turns.load(Ordering::Relaxed), processor_time(cluster)?, Instant::now());
    sleep(COUNTED).await;
    let (turns, elapsed) = (turns.load(Ordering::Relaxed) - before, begun.elapsed());
    let server = processor_time(cluster)? - server;
    if let Some(ended) = tasks.try_join_next() {
        ended??;
    }
    tasks.shutdown().await;
    for peer in peers {
        peer.locks.shutdown().await;
    }
    Ok(Ring {
        clients,
        turns,
        elapsed,
        server,
    })
}

/// Writes as the library does, without the driver's retryable writes.
async fn write(raw: &Collection<Document>, fields: Document) -> Result<()> {
    let database = raw.client().database(&raw.namespace().db);
    let update = doc! { "q": { "_id": "ring" }, "u": { "$set": fields } };
    let command = doc! { "update": raw.name(), "updates": [update], "writeConcern": { "w": "majority" } };
    database.run_command(command).await?;
    Ok(())
}

/// Hands a turn round among raw clients without a stream. Each looks whose turn it is, and again after `pace` for each
/// turn before its own. One turn takes the two writes of a lock in contention, as in [`ring`].
pub(crate) async fn polled_ring(cluster: &Cluster, clients: usize, pace: Duration) -> Result<Ring> {
    let peers: Vec<Peer> = futures::future::try_join_all((0..clients).map(|_| Peer::new(cluster))).await?;
    let first = peers.first().ok_or("a ring of nobody")?.raw();
    let begins = doc! { "$set": { "to": 0_i64 } };
    first.update_one(doc! { "_id": "ring" }, begins).upsert(true).await?;
    let turns = Arc::new(AtomicUsize::new(0));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for (number, peer) in peers.iter().enumerate() {
        let (raw, turns) = (peer.raw(), turns.clone());
        let next = ((number + 1) % clients) as i64;
        tasks.spawn(async move {
            loop {
                let document = raw.find_one(doc! { "_id": "ring" }).await?.unwrap_or_default();
                let present = document.get_i64("to").unwrap_or(0) as usize;
                let before = (number + clients - present) % clients;
                if before == 0 {
                    turns.fetch_add(1, Ordering::Relaxed);
                    write(&raw, doc! { "to": next }).await?;
                    write(&raw, doc! { "in_line": number as i64 }).await?;
                } else {
                    sleep(pace * before as u32).await;
                }
            }
        });
    }
    counted(cluster, peers, tasks, &turns).await
}

fn word(number: usize) -> String {
    format!("client {number}")
}
