//! The cost of many clients that each hold a lock, for everybody else, and what they learn of a loss meanwhile.

use std::{fmt, time::Duration};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use watchlock::{Held, locks::Mutex};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    counters::float,
    crowd::{Tax, cost_of_writes},
    latency::{LISTENING, deleted},
    measure::{Compared, Hop},
    peer::Peer,
};

/// Number of clients that hold a lock each, while another program writes 500 times a second.
pub(crate) const HOLDERS: usize = 64;

/// Number of them that can afford streams even then: their streams cost half of the budget.
pub(crate) const FEW: usize = 4;

/// Number of them while another program writes as fast as it can.
const MANY: usize = 128;

/// Pause between two writes at 500 a second.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// Number of losses that are measured.
const LOSSES: usize = 128;

/// Time for holders to see how busy the set is, and for their streams to linger.
const SETTLING: Duration = Duration::from_secs(45);

/// Time for which the fast writer is measured.
const MEASURED: Duration = Duration::from_secs(10);

/// Maximum time for a loss to be told: more than the lease.
const PATIENCE: Duration = Duration::from_secs(40);

/// Clients that hold a lock each, and a program that writes to another collection all the while.
struct Fleet {
    holders: Vec<(Peer, Held<Mutex>)>,
    writing: JoinHandle<()>,
}

impl Fleet {
    /// Makes them hold, while another program writes with these pauses.
    async fn hold(cluster: &Cluster, count: usize, pause: Option<Duration>) -> Result<Self> {
        let writer = cluster.client().await?;
        let foreign = writer.database("foreign").collection::<Document>("others");
        let writing = tokio::spawn(async move {
            while let Some(pause) = pause {
                // What this writer is told does not matter.
                drop(foreign.insert_one(doc! {}).await);
                sleep(pause).await;
            }
        });
        let mut holders = Vec::with_capacity(count);
        for number in 0..count {
            let peer = Peer::new(cluster).await?;
            let held = peer.locks.mutex(format!("held {number}")).acquire().await?;
            holders.push((peer, held));
        }
        sleep(SETTLING).await;
        Ok(Self { holders, writing })
    }

    async fn leave(self) -> Result<()> {
        self.writing.abort();
        for (peer, held) in self.holders {
            drop(held);
            peer.locks.shutdown().await;
        }
        Ok(())
    }
}

/// Measures the server's processor time for a foreign write at 500 a second, with nobody and with many holding.
pub(crate) async fn tax(cluster: &Cluster) -> Result<Tax> {
    let writer = cluster.client().await?;
    // This makes the connections and the collection.
    cost_of_writes(cluster, &writer).await?;
    let before = cost_of_writes(cluster, &writer).await?;
    let fleet = Fleet::hold(cluster, HOLDERS, Some(PAUSE)).await?;
    fleet.writing.abort();
    let beside = cost_of_writes(cluster, &writer).await?;
    fleet.leave().await?;
    sleep(Duration::from_secs(10)).await;
    // Before and after, as the machine may get slower or faster meanwhile.
    let after = cost_of_writes(cluster, &writer).await?;
    Ok(Tax {
        alone: f64::midpoint(before, after),
        beside,
    })
}

/// Measures the time from the deletion of a lock until its holder knows, beside all the other holders; and in turns, the
/// time from a raw deletion to its event.
pub(crate) async fn lost(cluster: &Cluster, holders: usize, pause: Option<Duration>) -> Result<Compared> {
    let mut fleet = Fleet::hold(cluster, holders, pause).await?;
    let (other, listener) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut hop = Hop::between(other.raw(), listener.raw()).await?;
    let (raw_documents, documents) = (other.raw(), other.locks_documents());
    let mut compared = Compared::default();
    for number in 0..LOSSES {
        let raw = deleted(&mut hop, &raw_documents).await?;
        let (peer, held) = fleet.holders.remove(0);
        let name = held.name().to_owned();
        let losing = tokio::spawn(async move {
            let lost = timeout(PATIENCE, held.lost()).await;
            lost.map(|_| Instant::now())
        });
        sleep(LISTENING).await;
        let called = Instant::now();
        documents.delete_one(doc! { "_id": &name }).await?;
        let lost = losing.await??;
        // The first makes connections.
        compared.push(number > 0, Some(raw), lost - called);
        let held = peer.locks.mutex(name).acquire().await?;
        fleet.holders.push((peer, held));
        // Not in step with the reads, and so seldom that the set stays quiet: each round writes five times.
        sleep(Duration::from_millis(287)).await;
    }
    fleet.leave().await?;
    for peer in [other, listener] {
        peer.locks.shutdown().await;
    }
    Ok(compared)
}

/// The number of writes a second of a program that writes as fast as it can.
#[derive(Debug)]
pub(crate) struct Rate {
    alone: f64,
    beside: f64,
}

impl Rate {
    pub(crate) fn ratio(&self) -> f64 {
        self.beside / self.alone
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { alone, beside } = self;
        write!(
            f,
            "{beside:.0} foreign writes/s beside {MANY} holders / {alone:.0} alone"
        )
    }
}

/// Measures that number with nobody and with many holding.
pub(crate) async fn rate(cluster: &Cluster) -> Result<Rate> {
    let writer = cluster.client().await?;
    writes_a_second(&writer).await?;
    let before = writes_a_second(&writer).await?;
    let fleet = Fleet::hold(cluster, MANY, Some(PAUSE)).await?;
    fleet.writing.abort();
    let beside = writes_a_second(&writer).await?;
    fleet.leave().await?;
    sleep(Duration::from_secs(10)).await;
    let after = writes_a_second(&writer).await?;
    Ok(Rate {
        alone: f64::midpoint(before, after),
        beside,
    })
}

async fn writes_a_second(writer: &Client) -> Result<f64> {
    let foreign = writer.database("foreign").collection::<Document>("fast");
    let (begun, mut written) = (Instant::now(), 0);
    while begun.elapsed() < MEASURED {
        foreign.insert_one(doc! { "n": written }).await?;
        written += 1;
    }
    Ok(float(written) / begun.elapsed().as_secs_f64())
}
