//! A lock that goes from task to task inside one client: how fast, and how long another client waits beside. And one
//! that tasks of one client read at once.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongodb::bson::doc;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use watchlock::LockClient;
use watchlock_testkit::Cluster;

use crate::{
    Result,
    counters::{Commands, Observer},
    measure::{Compared, Hop, Samples},
    peer::Peer,
};

const TASKS: usize = 50;

/// Time for which the tasks contend before anything is counted, and while hand-overs are.
const WARM_UP: Duration = Duration::from_secs(1);
const COUNTED: Duration = Duration::from_secs(2);

/// Number of times that the other client comes, and the pause after each.
const VISITS: usize = 300;
const PAUSE: Duration = Duration::from_millis(5);

/// Tasks of one client that acquire and release one mutex without a pause.
struct Crowd {
    tasks: JoinSet<Result<()>>,
    stop: Arc<AtomicBool>,
    times: Arc<Mutex<Times>>,
}

#[derive(Default)]
struct Times {
    released_at: Option<Instant>,
    handovers: Vec<Duration>,
}

impl Crowd {
    fn of(locks: &LockClient) -> Self {
        let mut crowd = Self {
            tasks: JoinSet::new(),
            stop: Arc::default(),
            times: Arc::default(),
        };
        for _ in 0..TASKS {
            let (mutex, stop, times) = (locks.mutex("inside"), crowd.stop.clone(), crowd.times.clone());
            crowd.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let handle = mutex.acquire().await?;
                    {
                        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                        let now = Instant::now();
                        if let Some(released_at) = times.released_at.replace(now) {
                            times.handovers.push(now - released_at);
                        }
                    }
                    handle.release().await?;
                }
                Ok(())
            });
        }
        crowd
    }

    /// Returns the times from each release to the next grant since the last call, and forgets them.
    fn take(&self) -> Vec<Duration> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut times.handovers)
    }

    async fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Measures the time from the release of one task to the grant of the next, while no other client wants the lock.
pub(crate) async fn handoff(cluster: &Cluster) -> Result<Samples> {
    let peer = Peer::new(cluster).await?;
    let crowd = Crowd::of(&peer.locks);
    sleep(WARM_UP).await;
    crowd.take();
    sleep(COUNTED).await;
    let mut samples = Samples::default();
    crowd.take().into_iter().for_each(|handover| samples.push(handover));
    crowd.end().await?;
    peer.locks.shutdown().await;
    Ok(samples)
}

/// Number of reads of each task, and how long each lasts, so that they overlap.
const READS: usize = 20;
const READ_FOR: Duration = Duration::from_millis(5);

/// Counts the commands for reads of one readers-writer lock by many tasks of one client at once. Returns the number of
/// reads as well.
pub(crate) async fn reads(cluster: &Cluster) -> Result<(Commands, usize)> {
    let (peer, observer) = (Peer::new(cluster).await?, Observer::new(cluster).await?);
    read(&peer.locks, 1).await?;
    let before = observer.read().await?;
    read(&peer.locks, READS).await?;
    let commands = observer.read().await?.since(&before);
    peer.locks.shutdown().await;
    Ok((commands, TASKS * READS))
}

async fn read(locks: &LockClient, times: usize) -> Result<()> {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..TASKS {
        let lock = locks.rw_lock("shared");
        tasks.spawn(async move {
            for _ in 0..times {
                let handle = lock.read().await?;
                sleep(READ_FOR).await;
                handle.release().await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Measures how long another client waits for the lock that the tasks pass along, beside three raw hops of the same time.
pub(crate) async fn visits(cluster: &Cluster) -> Result<Compared> {
    let (host, guest) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut hop = Hop::between(host.raw(), guest.raw()).await?;
    let crowd = Crowd::of(&host.locks);
    let mutex = guest.locks.mutex("inside");
    sleep(WARM_UP).await;
    // The first visits open streams and connections.
    for _ in 0..10 {
        mutex.acquire().await?.release().await?;
        hop.once().await?;
    }
    let mut visits = Compared::default();
    for _ in 0..VISITS {
        sleep(PAUSE).await;
        let raw = hop.once().await? + hop.once().await? + hop.once().await?;
        sleep(PAUSE).await;
        let asked = Instant::now();
        let handle = mutex.acquire().await?;
        visits.push(true, Some(raw), asked.elapsed());
        handle.release().await?;
    }
    crowd.end().await?;
    host.locks.shutdown().await;
    guest.locks.shutdown().await;
    Ok(visits)
}

/// Time for which a lock stays with its client, number of times that it is taken again, raw writes among these, and the
/// pause before each: the renewals and readings of an idle lock are among what is counted.
const KEEP: Duration = Duration::from_secs(60);
const TAKES: u32 = 2_000;
const RAW_WRITES: u32 = 50;
const BEFORE_TAKE: Duration = Duration::from_millis(5);

/// Measures how long it takes to acquire and release a lock that has stayed with its client, beside one raw write, and
/// counts the commands for it.
pub(crate) async fn takes_of_idle(cluster: &Cluster) -> Result<(Compared, f64)> {
    let (peer, observer) = (Peer::keeping_idle(cluster, KEEP).await?, Observer::new(cluster).await?);
    let mutex = peer.locks.mutex("idle");
    mutex.acquire().await?.release().await?;
    // Until its stream is open.
    sleep(WARM_UP).await;
    let raw = peer.raw();
    let (mut compared, mut commands) = (Compared::default(), 0.0);
    for _ in 0..RAW_WRITES {
        let before = observer.read().await?;
        for _ in 0..TAKES / RAW_WRITES {
            sleep(BEFORE_TAKE).await;
            let asked = Instant::now();
            mutex.acquire().await?.release().await?;
            compared.lock.push(asked.elapsed());
        }
        commands += observer.read().await?.since(&before).of_use();
        let asked = Instant::now();
        raw.update_one(doc! { "_id": "beside" }, doc! { "$inc": { "times": 1 } })
            .upsert(true)
            .await?;
        compared.raw.push(asked.elapsed());
    }
    peer.locks.shutdown().await;
    Ok((compared, commands / f64::from(TAKES)))
}

/// Measures how long another client waits for a lock that is idle, beside three raw hops.
pub(crate) async fn waits_for_idle(cluster: &Cluster) -> Result<Compared> {
    let (host, guest) = (Peer::keeping_idle(cluster, KEEP).await?, Peer::new(cluster).await?);
    let mut hop = Hop::between(host.raw(), guest.raw()).await?;
    let (ours, theirs) = (host.locks.mutex("lent"), guest.locks.mutex("lent"));
    let mut visits = Compared::default();
    for number in 0..VISITS + 10 {
        // By an answer and not by an event: only then it stays.
        ours.acquire().await?.release().await?;
        let raw = hop.once().await? + hop.once().await? + hop.once().await?;
        let asked = Instant::now();
        let handle = theirs.acquire().await?;
        // The first open streams and connections.
        visits.push(number >= 10, Some(raw), asked.elapsed());
        handle.release().await?;
    }
    host.locks.shutdown().await;
    guest.locks.shutdown().await;
    Ok(visits)
}
