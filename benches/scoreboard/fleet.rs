//! The cost of many clients that each hold a lock, for everybody else, and what they learn of a loss meanwhile.

use std::time::Duration;

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
    cost::{Beside, cost_of_writes, others_write},
    latency::{LISTENING, deleted},
    measure::{Compared, Hop},
    peer::Peer,
};

/// Number of clients that hold a lock each, while another program writes 500 times a second.
pub(crate) const HOLDERS: usize = 64;

/// Number of them that can afford streams even then: their streams cost half of the budget.
pub(crate) const FEW: usize = 4;

/// Number of them while another program writes as fast as it can.
pub(crate) const MANY: usize = 128;

/// Number of losses that are measured.
const LOSSES: usize = 128;

/// Time for holders to see how busy the set is, and for their streams to linger.
const SETTLING: Duration = Duration::from_secs(45);

/// Time for which the fast writer is measured.
const MEASURED: Duration = Duration::from_secs(10);

/// Maximum time for a loss to be told: more than the lease.
const PATIENCE: Duration = Duration::from_secs(40);

/// Clients that hold a lock each, and perhaps a program that writes to another collection all the while.
struct Fleet {
    holders: Vec<(Peer, Held<Mutex>)>,
    writing: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Makes them hold, on a set to which others write, or do not.
    async fn hold(cluster: &Cluster, count: usize, is_busy: bool) -> Result<Self> {
        let writer = cluster.client().await?;
        let writing = is_busy.then(|| others_write(&writer));
        let mut holders = Vec::with_capacity(count);
        for number in 0..count {
            let peer = Peer::new(cluster).await?;
            let held = peer.locks.mutex(format!("held {number}")).acquire().await?;
            holders.push((peer, held));
        }
        sleep(SETTLING).await;
        Ok(Self { holders, writing })
    }

    /// Makes them hold on a set that others have just stopped to write to.
    async fn accustomed(cluster: &Cluster, count: usize) -> Result<Self> {
        let fleet = Self::hold(cluster, count, true).await?;
        fleet.writing.as_ref().inspect(|writing| writing.abort());
        Ok(fleet)
    }

    async fn leave(self) -> Result<()> {
        self.writing.inspect(JoinHandle::abort);
        for (peer, held) in self.holders {
            drop(held);
            peer.locks.shutdown().await;
        }
        Ok(())
    }

    /// Leaves, and waits until the set is as it was.
    async fn leave_nothing(self) -> Result<()> {
        self.leave().await?;
        sleep(Duration::from_secs(10)).await;
        Ok(())
    }
}

/// Measures the server's processor time for a foreign write at 500 a second, with nobody and with many holding.
pub(crate) async fn tax(cluster: &Cluster) -> Result<Beside> {
    let writer = cluster.client().await?;
    let measure = async || cost_of_writes(cluster, &writer).await;
    Beside::measure(measure, Fleet::accustomed(cluster, HOLDERS), Fleet::leave_nothing).await
}

/// Measures the writes a second of a program that writes as fast as it can, with nobody and with many holding.
pub(crate) async fn rate(cluster: &Cluster) -> Result<Beside> {
    let writer = cluster.client().await?;
    let measure = async || writes_a_second(&writer).await;
    Beside::measure(measure, Fleet::accustomed(cluster, MANY), Fleet::leave_nothing).await
}

/// Measures the time from the deletion of a lock until its holder knows, beside all the other holders; and in turns, the
/// time from a raw deletion to its event.
pub(crate) async fn lost(cluster: &Cluster, holders: usize, is_busy: bool) -> Result<Compared> {
    let mut fleet = Fleet::hold(cluster, holders, is_busy).await?;
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

async fn writes_a_second(writer: &Client) -> Result<f64> {
    let foreign = writer.database("foreign").collection::<Document>("fast");
    let (begun, mut written) = (Instant::now(), 0);
    while begun.elapsed() < MEASURED {
        foreign.insert_one(doc! { "n": written }).await?;
        written += 1;
    }
    Ok(f64::from(written) / begun.elapsed().as_secs_f64())
}
