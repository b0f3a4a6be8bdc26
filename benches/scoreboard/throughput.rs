//! Locks per second: on many names at once beside the raw commands, and on one name of a standalone server.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Collection,
    bson::{Document, doc},
    error::{Error, ErrorKind, WriteFailure},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use watchlock::LockClient;
use watchlock_testkit::Cluster;

use crate::{
    Result,
    cost::processor_time,
    counters::{Commands, Observer},
    peer::Peer,
};

/// Number of tasks that acquire names of their own at once.
const TASKS: usize = 64;

/// Number of names: those are met again and again, and seldom by two tasks at once.
const NAMES: usize = 1_000;

/// Time of one round, and the number of rounds, which alternate with raw ones.
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 4;

/// Time for which clients contend before they are counted, and while they are.
const WARM_UP: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(8);

/// Pause of a contender that polls.
const POLLED: Duration = Duration::from_millis(10);

/// How often a second something is done, and the server's processor time for each, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    pub(crate) per_second: f64,
    pub(crate) server: f64,
}

impl Pace {
    fn add(&mut self, round: Self) {
        self.per_second += round.per_second / ROUNDS as f64;
        self.server += round.server / ROUNDS as f64;
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0}/s, {:.3} ms of the server's processor each",
            self.per_second, self.server
        )
    }
}

/// Measures acquires and releases of many names by many tasks of one client, beside two `findOneAndUpdate` by as many
/// tasks over the same connection pool. Returns the paces of the locks and of the raw pairs.
pub(crate) async fn distinct(cluster: &Cluster) -> Result<(Pace, Pace)> {
    let peer = Peer::new(cluster).await?;
    let (mut locks, mut pairs) = (Pace::default(), Pace::default());
    for round in 0..=ROUNDS {
        let raw = peer.raw();
        let of_pairs = pace(cluster, move |name| raw_pair(raw.clone(), name)).await?;
        let client = peer.locks.clone();
        let of_locks = pace(cluster, move |name| lock(client.clone(), name)).await?;
        // The first makes the documents and the connections.
        if round > 0 {
            pairs.add(of_pairs);
            locks.add(of_locks);
        }
    }
    peer.locks.shutdown().await;
    Ok((locks, pairs))
}

async fn pace<F>(cluster: &Cluster, work: impl Fn(usize) -> F + Clone + Send + 'static) -> Result<Pace>
where
    F: Future<Output = Result<()>> + Send,
{
    let (begun, before) = (Instant::now(), processor_time(cluster)?);
    let per_second = rate(work).await?;
    let (server, done) = (
        processor_time(cluster)? - before,
        per_second * begun.elapsed().as_secs_f64(),
    );
    let server = server.as_secs_f64() * 1e3 / done;
    Ok(Pace { per_second, server })
}

/// A load that runs for one round.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    Nothing,
    Locks,
    Pairs,
}

/// Loads the client of a peer for one round.
pub(crate) async fn load(peer: &Peer, beside: Beside) -> Result<()> {
    let (raw, locks) = (peer.raw(), peer.locks.clone());
    match beside {
        Beside::Nothing => sleep(ROUND).await,
        Beside::Locks => drop(rate(move |name| lock(locks.clone(), name)).await?),
        Beside::Pairs => drop(rate(move |name| raw_pair(raw.clone(), name)).await?),
    }
    Ok(())
}

/// Marks a document as taken and as free, as a lock does that stays for its next holder.
async fn raw_pair(raw: Collection<Document>, name: usize) -> Result<()> {
    let id = format!("name {name}");
    for holder in [1, 0] {
        raw.find_one_and_update(doc! { "_id": &id }, doc! { "$set": { "holder": holder } })
            .upsert(true)
            .await?;
    }
    Ok(())
}

async fn lock(locks: LockClient, name: usize) -> Result<()> {
    locks.mutex(format!("name {name}")).acquire().await?.release().await?;
    Ok(())
}

/// Returns how often a second all tasks together do it.
async fn rate<F>(work: impl Fn(usize) -> F + Clone + Send + 'static) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send,
{
    let (begun, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for task in 0..TASKS {
        let (work, done) = (work.clone(), done.clone());
        tasks.spawn(async move {
            let mut name = task;
            while begun.elapsed() < ROUND {
                work(name).await?;
                done.fetch_add(1, Ordering::Relaxed);
                name = (name + TASKS + 1) % NAMES;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

/// How fast a lock goes round among clients, and how evenly.
#[derive(Debug)]
pub(crate) struct Round {
    counts: Vec<usize>,
    elapsed: Duration,
    commands: Commands,
    server: Duration,
}

impl Round {
    pub(crate) fn per_second(&self) -> f64 {
        self.locks() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the server's processor time for each, in milliseconds.
    pub(crate) fn server_millis(&self) -> f64 {
        self.server.as_secs_f64() * 1e3 / self.locks() as f64
    }

    /// Returns the number of commands for each, but for `getMore` and the drivers' monitoring.
    pub(crate) fn commands_each(&self) -> f64 {
        self.commands.of_use() / self.locks() as f64
    }

    pub(crate) fn getmores_each(&self) -> f64 {
        self.commands.of("getMore") as f64 / self.locks() as f64
    }

    fn locks(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Returns Jain's index: 1 if all clients had the lock equally often.
    fn evenness(&self) -> f64 {
        let counts = self.counts.iter().map(|count| *count as f64);
        let (sum, squares) = counts.fold((0.0, 0.0), |(sum, squares), count| {
            (sum + count, squares + count * count)
        });
        sum * sum / (self.counts.len() as f64 * squares)
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} clients, Jain index {:.3}, {} locks, {:.2} ms of the server's processor each: {}",
            self.counts.len(),
            self.evenness(),
            self.locks(),
            self.server_millis(),
            self.commands
        )
    }
}

/// One that wants a lock again and again.
enum Contender {
    Waits(watchlock::locks::Mutex),
    /// Polls at a fixed interval, and whoever asks first is let in: as simple locks do.
    Polls(Collection<Document>),
}

impl Contender {
    async fn once(&self) -> Result<()> {
        match self {
            Self::Waits(mutex) => drop(mutex.acquire().await?.release().await?),
            Self::Polls(raw) => {
                while let Err(error) = raw.insert_one(doc! { "_id": "contended" }).await {
                    if !is_duplicate(&error) {
                        return Err(error.into());
                    }
                    sleep(POLLED).await;
                }
                raw.delete_one(doc! { "_id": "contended" }).await?;
            }
        }
        Ok(())
    }
}

fn is_duplicate(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == 11_000)
}

/// Makes all clients acquire and release one mutex without a pause, and counts after a while.
pub(crate) async fn contended(cluster: &Cluster, clients: Vec<LockClient>) -> Result<Round> {
    let contenders = clients.iter().map(|locks| Contender::Waits(locks.mutex("contended")));
    let round = contend(cluster, contenders.collect()).await?;
    for locks in clients {
        locks.shutdown().await;
    }
    Ok(round)
}

/// Makes so many clients poll for a document of the same server.
pub(crate) async fn polled(cluster: &Cluster, clients: usize) -> Result<Round> {
    let mut contenders = Vec::new();
    for _ in 0..clients {
        contenders.push(Contender::Polls(Peer::new(cluster).await?.raw()));
    }
    contend(cluster, contenders).await
}

async fn contend(cluster: &Cluster, contenders: Vec<Contender>) -> Result<Round> {
    let observer = Observer::new(cluster).await?;
    let counts: Vec<Arc<AtomicUsize>> = contenders.iter().map(|_| Arc::default()).collect();
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    let end = Instant::now() + WARM_UP + COUNTED;
    for (contender, count) in contenders.into_iter().zip(counts.clone()) {
        tasks.spawn(async move {
            while Instant::now() < end {
                contender.once().await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    let read = || -> Vec<usize> { counts.iter().map(|count| count.load(Ordering::Relaxed)).collect() };
    sleep(WARM_UP).await;
    let (before, server) = (read(), processor_time(cluster)?);
    let (commands, elapsed) = observer.count_for(COUNTED).await?;
    let (after, server) = (read(), processor_time(cluster)? - server);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let counts = after.iter().zip(before).map(|(after, before)| after - before).collect();
    Ok(Round {
        counts,
        elapsed,
        commands,
        server,
    })
}
