//! The cost of many clients that wait for one lock, for the server and for everybody else.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::TryStreamExt;
use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use watchlock::{Held, LockClient, locks};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    counters::{Commands, Observer, processor_time},
    load::many_clients,
    measure::Samples,
    peer::Peer,
};

/// Number of clients that wait, each with connections of its own.
const CLIENTS: usize = 200;

/// Wait of the clients before anything is counted.
const SETTLING: Duration = Duration::from_secs(30);

/// Time for which commands are counted.
const COUNTED: Duration = Duration::from_secs(30);

/// Number of clients that wait while another client writes.
const TAXING: usize = 64;

/// Number of writes by which the time of the server's processor is measured.
const WRITES: i32 = 3_000;

/// Pause between two of these writes, as one writer after the other would wake waiting cursors together.
const PAUSE: Duration = Duration::from_millis(2);

/// Number of observers, of latches, of barriers and of holds of one client.
const OBSERVERS: usize = 16;

/// Maximum time for streams to end: twice that for which the server keeps an unanswered `getMore`.
const STREAMS_END: Duration = Duration::from_secs(10);

/// Time for the connections of dropped clients to be closed.
const CLOSING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Crowd {
    pub(crate) streams: usize,
    elapsed: Duration,
    commands: Commands,
}

impl Crowd {
    /// Without the drivers' monitoring, and without the holder's renewals.
    pub(crate) fn commands_per_client(&self) -> f64 {
        let counted = self.commands.all() - self.commands.monitoring() - self.commands.of("update");
        counted as f64 / self.elapsed.as_secs_f64() / CLIENTS as f64
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "{CLIENTS} clients wait, in {seconds:.0} s: {}", self.commands)
    }
}

/// Makes this many clients wait for a lock that is held for long.
async fn waiting(cluster: &Cluster, count: usize) -> Result<(Peer, Held<locks::Mutex>, Vec<LockClient>, JoinSet<()>)> {
    let holder = Peer::new(cluster).await?;
    let held = holder.locks.mutex("held").acquire().await?;
    let clients = many_clients(cluster, count).await?;
    let mut waiters = JoinSet::new();
    for locks in &clients {
        let mutex = locks.mutex("held");
        waiters.spawn(async move { drop(mutex.acquire().await) });
    }
    holder.until_queued("held", count).await?;
    sleep(SETTLING).await;
    Ok((holder, held, clients, waiters))
}

pub(crate) async fn crowd(cluster: &Cluster) -> Result<Crowd> {
    let observer = Observer::new(cluster).await?;
    let (holder, _held, _clients, mut waiters) = waiting(cluster, CLIENTS).await?;
    let streams = streams(&holder.driver).await?;
    let before = observer.read().await?;
    let begun = Instant::now();
    sleep(COUNTED).await;
    let elapsed = begun.elapsed();
    let commands = observer.read().await?.since(&before);
    if waiters.try_join_next().is_some() {
        return Err("somebody did not wait".into());
    }
    Ok(Crowd {
        streams,
        elapsed,
        commands,
    })
}

/// Returns the number of open change streams of one client that observes, waits at latches and barriers, and holds.
pub(crate) async fn streams_of_observers(cluster: &Cluster) -> Result<usize> {
    let peer = Peer::new(cluster).await?;
    let (mut holds, mut leaders, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..OBSERVERS {
        holds.push(peer.locks.mutex(format!("held {number}")).acquire().await?);
        leaders.push(peer.locks.election(format!("led {number}")).observe());
        let (latch, barrier) = (
            peer.locks.latch(format!("latch {number}"), 1),
            peer.locks.barrier(format!("barrier {number}"), 2),
        );
        waiting.push(tokio::spawn(async move {
            // They end with the client.
            drop(tokio::join!(latch.wait(), barrier.wait()));
        }));
    }
    for observed in &mut leaders {
        observed.next().await.transpose()?;
    }
    sleep(SETTLING).await;
    let open = streams(&peer.driver).await?;
    peer.locks.shutdown().await;
    Ok(open)
}

/// Returns the number of open change streams.
pub(crate) async fn streams(driver: &Client) -> Result<usize> {
    let stages = [
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": { "cursor.cursorId": { "$exists": true } } },
    ];
    let operations: Vec<Document> = driver.database("admin").aggregate(stages).await?.try_collect().await?;
    let id = |operation: &Document| {
        let cursor = operation.get_document("cursor").ok()?;
        let command = cursor.get_document("originatingCommand").ok()?;
        let first = command.get_array("pipeline").ok()?.first()?.as_document()?;
        first.get_document("$changeStream").ok()?;
        cursor.get_i64("cursorId").ok()
    };
    Ok(operations.iter().filter_map(id).collect::<BTreeSet<_>>().len())
}

/// Measures the server's processor time for a write to another collection, in microseconds, with nobody and with many
/// waiting.
#[derive(Debug)]
pub(crate) struct Tax {
    pub(crate) alone: f64,
    pub(crate) beside: f64,
}

impl Tax {
    pub(crate) fn ratio(&self) -> f64 {
        self.beside / self.alone
    }
}

impl fmt::Display for Tax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { alone, beside } = self;
        write!(
            f,
            "{beside:.0} us / {alone:.0} us of the server's processor a foreign write"
        )
    }
}

pub(crate) async fn tax(cluster: &Cluster) -> Result<Tax> {
    let writer = cluster.client().await?;
    // This makes the connections and the collection.
    cost_of_writes(cluster, &writer).await?;
    let before = cost_of_writes(cluster, &writer).await?;
    let (holder, held, clients, waiters) = waiting(cluster, TAXING).await?;
    let beside = cost_of_writes(cluster, &writer).await?;
    drop((held, waiters));
    for locks in clients.iter().chain([&holder.locks]) {
        locks.shutdown().await;
    }
    // A dropped waiter's stream ends with its `getMore`.
    let ended = async {
        while streams(&holder.driver).await? > 0 {
            sleep(Duration::from_millis(100)).await;
        }
        Result::Ok(())
    };
    timeout(STREAMS_END, ended).await??;
    drop(clients);
    sleep(CLOSING).await;
    // Before and after, as the machine may get slower or faster meanwhile.
    let after = cost_of_writes(cluster, &writer).await?;
    Ok(Tax {
        alone: f64::midpoint(before, after),
        beside,
    })
}

/// Returns microseconds a write, without the server's idle work.
pub(crate) async fn cost_of_writes(cluster: &Cluster, writer: &Client) -> Result<f64> {
    let foreign = writer.database("foreign").collection::<Document>("events");
    let pause = PAUSE * u32::try_from(WRITES)?;
    let (idle_before, begun) = (processor_time(cluster)?, Instant::now());
    sleep(pause).await;
    let idle = (processor_time(cluster)? - idle_before).as_secs_f64() / begun.elapsed().as_secs_f64();
    let (before, begun) = (processor_time(cluster)?, Instant::now());
    for number in 0..WRITES {
        foreign.insert_one(doc! { "n": number }).await?;
        sleep(PAUSE).await;
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let taken = (processor_time(cluster)? - before).as_secs_f64() - idle * elapsed;
    Ok(taken * 1e6 / f64::from(WRITES))
}

/// Number of tasks that wait for one lock.
const TASKS: usize = 2_000;

/// Number of clients that these tasks are spread over: for a long queue, and for the comparison.
const MANY: usize = 200;
const FEW: usize = 10;

/// Measures the median time from grant to grant while a long queue is served: of many clients beside few.
pub(crate) async fn served(cluster: &Cluster) -> Result<(Samples, Samples)> {
    let (mut many, mut few) = (Samples::default(), Samples::default());
    for round in 0..2 {
        drain(cluster, &format!("few {round}"), FEW, &mut few).await?;
        drain(cluster, &format!("many {round}"), MANY, &mut many).await?;
    }
    Ok((many, few))
}

/// Lets tasks of so many clients wait for a lock, frees it, and takes the times between their grants.
async fn drain(cluster: &Cluster, name: &str, clients: usize, to: &mut Samples) -> Result<()> {
    let holder = Peer::new(cluster).await?;
    let held = holder.locks.mutex(name).acquire().await?;
    let clients = many_clients(cluster, clients).await?;
    let granted = Arc::new(Mutex::new(Vec::with_capacity(TASKS)));
    let mut waiters: JoinSet<Result<()>> = JoinSet::new();
    for task in 0..TASKS {
        let (mutex, granted) = (clients[task % clients.len()].mutex(name), granted.clone());
        waiters.spawn(async move {
            let handle = mutex.acquire().await?;
            granted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Instant::now());
            handle.release().await?;
            Ok(())
        });
    }
    holder.until_queued(name, clients.len()).await?;
    held.release().await?;
    while let Some(ended) = waiters.join_next().await {
        ended??;
    }
    let granted = std::mem::take(&mut *granted.lock().unwrap_or_else(PoisonError::into_inner));
    for pair in granted.windows(2) {
        to.push(pair[1].saturating_duration_since(pair[0]));
    }
    for locks in clients {
        locks.shutdown().await;
    }
    holder.locks.shutdown().await;
    Ok(())
}
