//! The cost of many clients that wait for one lock, for the server and for everybody else.

use std::{
    collections::BTreeSet,
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
    board::{self, Board},
    cost::{Beside, cost_of_writes},
    counters::Observer,
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

/// Number of observers, of latches, of barriers and of holds of one client.
const OBSERVERS: usize = 16;

/// Maximum time for streams to end: twice that for which the server keeps an unanswered `getMore`.
const STREAMS_END: Duration = Duration::from_secs(10);

/// Time for the connections of dropped clients to be closed.
const CLOSING: Duration = Duration::from_secs(2);

/// A client that holds a lock, its hold, and those that wait for it.
type Waiting = (Peer, Held<locks::Mutex>, Vec<LockClient>, JoinSet<()>);

/// Makes this many clients wait for a lock that is held for long.
async fn waiting(cluster: &Cluster, count: usize) -> Result<Waiting> {
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

/// Counts the streams and commands of the clients that wait.
pub(crate) async fn crowd(cluster: &Cluster, board: &mut Board) -> Result<()> {
    let observer = Observer::new(cluster).await?;
    let (holder, _held, _clients, mut waiters) = waiting(cluster, CLIENTS).await?;
    let streams = streams(&holder.driver).await?;
    let (commands, elapsed) = observer.count_for(COUNTED).await?;
    if waiters.try_join_next().is_some() {
        return Err("somebody did not wait".into());
    }
    let seconds = elapsed.as_secs_f64();
    let from = format!("{CLIENTS} clients wait, in {seconds:.0} s: {commands}");
    board.enter(board::STREAMS_200, streams as f64, from);
    // Without the drivers' monitoring, and without the holder's renewals.
    let counted = commands.all() - commands.monitoring() - commands.of("update");
    let each = counted as f64 / seconds / CLIENTS as f64;
    board.enter(board::IDLE_CLIENT, each, String::from("(the same run)"));
    Ok(())
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
async fn streams(driver: &Client) -> Result<usize> {
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

/// Measures the server's processor time for a write to another collection, with nobody and with many waiting.
pub(crate) async fn tax(cluster: &Cluster) -> Result<Beside> {
    let writer = cluster.client().await?;
    let leave = async |(holder, held, clients, waiters): Waiting| {
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
        Ok(())
    };
    Beside::measure(
        async || cost_of_writes(cluster, &writer).await,
        waiting(cluster, TAXING),
        leave,
    )
    .await
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
