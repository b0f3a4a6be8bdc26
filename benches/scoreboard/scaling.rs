//! The constants of `docs/scaling.md`: what a stream costs for each write, and what locks leave of a client's
//! connections to its user.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mongodb::bson::doc;
use tokio::time::{Instant, sleep};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    cost::{PAUSE, cost, cost_of},
    load::many_clients,
    measure::Samples,
    peer::Peer,
    throughput::{self, Beside},
};

/// Numbers of clients that hold a lock each, and so have a stream each.
const HOLDERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Number of writes by which the time of the server's processor is measured.
const WRITES: u32 = 1_500;

/// Time after which all holders have their stream.
const SETTLING: Duration = Duration::from_secs(3);

/// The server's processor time for one write, in microseconds, beside so many holders.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) streams: usize,
    /// To another collection of the same replica set.
    pub(crate) foreign: f64,
    /// An acquire and release of another lock: two writes.
    pub(crate) lock: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { streams, foreign, lock } = self;
        write!(
            f,
            "{streams:>2} streams: {foreign:.0} us for a foreign write, {lock:.0} us for an acquire and release"
        )
    }
}

/// Measures both with more and more holders.
pub(crate) async fn streams(cluster: &Cluster) -> Result<Vec<Cost>> {
    let (peer, mut found, mut kept) = (Peer::new(cluster).await?, Vec::new(), Vec::new());
    // This makes the connections and the collections.
    costs(cluster, &peer, 0).await?;
    found.push(costs(cluster, &peer, 0).await?);
    for holders in HOLDERS {
        for locks in many_clients(cluster, holders - kept.len()).await? {
            let handle = locks.mutex(format!("held {}", kept.len())).acquire().await?;
            kept.push((locks, handle));
        }
        sleep(SETTLING).await;
        found.push(costs(cluster, &peer, holders).await?);
    }
    for (locks, handle) in kept {
        drop(handle);
        locks.shutdown().await;
    }
    peer.locks.shutdown().await;
    Ok(found)
}

/// Returns the microseconds of a foreign write, and of an acquire and release, without the server's idle work.
async fn costs(cluster: &Cluster, peer: &Peer, streams: usize) -> Result<Cost> {
    let mutex = peer.locks.mutex("beside");
    let take = async |_| Ok(mutex.acquire().await?.release().await.map(drop)?);
    Ok(Cost {
        streams,
        foreign: cost_of(cluster, &peer.driver, WRITES).await?,
        lock: cost(cluster, WRITES, take).await?,
    })
}

/// Fits a line through the costs: what the write costs without a stream, and what each stream adds.
pub(crate) fn line(costs: impl Iterator<Item = (usize, f64)>) -> (f64, f64) {
    let points: Vec<(f64, f64)> = costs.map(|(streams, cost)| (streams as f64, cost)).collect();
    let count = points.len() as f64;
    let (x, y) = points
        .iter()
        .fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (x, y) = (x / count, y / count);
    let (above, below) = points.iter().fold((0.0, 0.0), |(above, below), point| {
        (above + (point.0 - x) * (point.1 - y), below + (point.0 - x).powi(2))
    });
    let slope = above / below;
    (y - slope * x, slope)
}

/// A user's own commands over the client that the locks use, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Own {
    alone: Samples,
    beside_locks: Samples,
    beside_raw: Samples,
}

impl Own {
    /// Returns how long the slowest hundredth takes beside locks, divided by how long beside as many tasks of raw
    /// commands. Those all wait for the pool's connections; locks use `max_operations` of them at a time.
    pub(crate) fn ratio(&self) -> f64 {
        self.beside_locks.quantile(0.99) / self.beside_raw.quantile(0.99)
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            alone,
            beside_locks,
            beside_raw,
        } = self;
        write!(
            f,
            "a find beside 64 tasks of locks {beside_locks} / beside as many of raw pairs {beside_raw}; alone {alone}"
        )
    }
}

/// Measures a read of the user's over the same client: alone, beside 64 tasks that lock, and beside 64 that send the
/// raw pairs of commands.
pub(crate) async fn own_commands(cluster: &Cluster) -> Result<Own> {
    let peer = Peer::new(cluster).await?;
    let mut own = Own::default();
    for round in 0..4 {
        for beside in [Beside::Nothing, Beside::Locks, Beside::Pairs] {
            let reading = Reading::start(&peer);
            throughput::load(&peer, beside).await?;
            let samples = reading.stop().await?;
            // The first makes the documents and the connections.
            if round > 0 {
                let kept = match beside {
                    Beside::Nothing => &mut own.alone,
                    Beside::Locks => &mut own.beside_locks,
                    Beside::Pairs => &mut own.beside_raw,
                };
                samples.into_iter().for_each(|sample| kept.push(sample));
            }
        }
    }
    peer.locks.shutdown().await;
    Ok(own)
}

/// A task that reads one document after the other.
struct Reading {
    samples: Arc<Mutex<Vec<Duration>>>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Reading {
    fn start(peer: &Peer) -> Self {
        let samples: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let (raw, to) = (peer.raw(), samples.clone());
        let task = tokio::spawn(async move {
            loop {
                let sent = Instant::now();
                raw.find_one(doc! { "_id": "of the user" }).await?;
                to.lock().unwrap_or_else(PoisonError::into_inner).push(sent.elapsed());
                sleep(PAUSE).await;
            }
        });
        Self { samples, task }
    }

    async fn stop(self) -> Result<Vec<Duration>> {
        if self.task.is_finished() {
            self.task.await??;
            return Err("the reads ended".into());
        }
        self.task.abort();
        Ok(std::mem::take(
            &mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}
