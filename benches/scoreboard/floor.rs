//! The least that a queue on change streams can cost: raw clients that hand a turn round, with no lock in it.
//!
//! A bound of the scoreboard that these miss too is beyond what the server and the driver give, whatever the library
//! does.

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
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    counters::processor_time,
    peer::Peer,
    samples::{Compared, Samples},
};

/// Time for which turns go round before they are counted, and while they are.
const WARM_UP: Duration = Duration::from_secs(2);
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
                raw.update_one(doc! { "_id": "ring" }, doc! { "$set": { "to": &next } })
                    .await?;
                raw.update_one(doc! { "_id": "ring" }, doc! { "$set": { "in_line": number as i64 } })
                    .await?;
            }
            Err("a raw change stream ended".into())
        });
    }
    first
        .update_one(doc! { "_id": "ring" }, doc! { "$set": { "to": word(0) } })
        .await?;
    sleep(WARM_UP).await;
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

fn word(number: usize) -> String {
    format!("client {number}")
}

/// Measures a hop whose write is as large as a hand-over's, beside the plain one: a pipeline over a document with a holder
/// and a waiter, and a stream that selects and projects.
pub(crate) async fn pipeline_hop(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let (sender, receiver) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut plain = crate::latency::Hop::between(&sender, &receiver).await?;
    let raw = sender.driver.database("scoreboard").collection::<Document>("floor");
    let (large, mut received) = listen(&raw, &receiver).await?;
    let mut compared = Compared {
        raw: Samples::default(),
        lock: Samples::default(),
    };
    for round in 0..WARMED + rounds {
        let hop = plain.once().await?;
        let sent = Instant::now();
        hand_over(&large, round).await?;
        let arrived = received.recv().await.ok_or("the raw change stream ended")?;
        if round >= WARMED {
            compared.raw.push(hop);
            compared.lock.push(arrived - sent);
        }
    }
    for peer in [sender, receiver] {
        peer.locks.shutdown().await;
    }
    Ok(compared)
}

/// Number of rounds that are not counted.
const WARMED: usize = 30;

/// Puts a document with a holder and a waiter there, and listens to what a client's stream selects and shows.
async fn listen(
    raw: &Collection<Document>,
    receiver: &Peer,
) -> Result<(Collection<Document>, mpsc::UnboundedReceiver<Instant>)> {
    let entry = |number: i64| {
        doc! {
            "id": format!("0123456789ab-{number}"), "permits": 1_i64, "lease": 30_000_i64, "claim": 5_000_i64,
            "since": mongodb::bson::DateTime::now(), "until": mongodb::bson::DateTime::now(),
            "owner": { "session": "0123456789ab", "label": "billing", "host": "machine", "process": 1234_i64 },
        }
    };
    let document = doc! {
        "_id": "hand-over", "protocol": 1, "kind": "mutex", "capacity": 1_i64, "version": 0_i64, "token": 0_i64,
        "wake": "", "holders": [entry(1)], "queue": [entry(2)], "at": mongodb::bson::DateTime::now(),
    };
    raw.insert_one(document).await?;
    let watched = receiver.driver.database("scoreboard").collection::<Document>("floor");
    let word = doc! { "$regex": ";0123456789ab-" };
    let mut stream = watched
        .watch()
        .pipeline([
            doc! { "$match": { "$or": [
                { "operationType": "update", "updateDescription.updatedFields.wake": &word },
                { "operationType": { "$in": ["insert", "replace"] }, "fullDocument.wake": &word },
            ] } },
            doc! { "$project": { "documentKey": 1, "operationType": 1, "clusterTime": 1,
            "wake": { "$ifNull": ["$fullDocument.wake", "$updateDescription.updatedFields.wake"] } } },
        ])
        .await?
        .with_type::<Document>();
    let (to, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(_)) = stream.try_next().await {
            if to.send(Instant::now()).is_err() {
                return;
            }
        }
    });
    Ok((raw.clone(), received))
}

/// Writes what a hand-over writes: the head of the queue is the holder, and the holder gets in line.
async fn hand_over(raw: &Collection<Document>, round: usize) -> Result<()> {
    let set = doc! { "$set": {
        "holders": [{ "$mergeObjects": [{ "$arrayElemAt": ["$queue", 0] }, { "since": "$$NOW", "token": "$version" }] }],
        "queue": { "$concatArrays": [{ "$slice": ["$queue", 1, 255] }, "$holders"] },
        "version": { "$add": ["$version", 1] }, "token": { "$add": ["$token", 1] }, "at": "$$NOW",
        "wake": format!("ffff.{round}:h;0123456789ab-{round}+{round};"),
    } };
    let command = doc! {
        "findAndModify": raw.name(), "query": { "_id": "hand-over" }, "update": [set], "new": true,
        "writeConcern": { "w": "majority" },
    };
    raw.client().database("scoreboard").run_command(command).await?;
    Ok(())
}
