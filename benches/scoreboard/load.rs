//! The number of commands that a server executes for many clients, tasks or locks. Each load has a server of its own.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use mongodb::bson::doc;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use watchlock::{Held, LockClient, locks};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    counters::{Commands, Observer},
    peer::Peer,
};

/// Time for waiters to reach their queue positions.
const SETTLING: Duration = Duration::from_secs(5);

/// Time to count: a multiple of every interval at work: of the streams (5 s), the drivers' and the heartbeat (10 s).
const IDLE_FOR: Duration = Duration::from_secs(30);

const LOCKS: usize = 10_000;

const LEASE: Duration = Duration::from_secs(30);

/// The default for that lease.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);

/// Additional milliseconds of each command while the server is slow.
const SLOWER: i32 = 300;

/// Number of renewal rounds that are counted.
pub(crate) const RENEWAL_ROUNDS: u32 = 3;

/// Makes lock clients that each stand for a process.
pub(crate) async fn many_clients(cluster: &Cluster, count: usize) -> Result<Vec<LockClient>> {
    let peers: Vec<Peer> = stream::iter(0..count)
        .then(|_| Peer::new(cluster))
        .try_collect()
        .await?;
    Ok(peers.into_iter().map(|peer| peer.locks).collect())
}

/// Counts the commands of fifty tasks of five clients that wait for a lock that a sixth holds.
pub(crate) async fn idle(cluster: &Cluster) -> Result<(Commands, Duration)> {
    let observer = Observer::new(cluster).await?;
    let holder = Peer::new(cluster).await?;
    let held = holder.locks.mutex("held").acquire().await?;
    let clients = many_clients(cluster, 5).await?;
    let mut waiters = JoinSet::new();
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, 10)) {
        let mutex = client.mutex("held");
        waiters.spawn(async move { mutex.acquire().await.map(drop) });
    }
    holder.until_queued("held", clients.len()).await?;
    sleep(SETTLING).await;

    let counted = observer.count_for(IDLE_FOR).await?;
    if let Some(reason) = held.lost_reason() {
        return Err(format!("the lock that all wait for was lost: {reason}").into());
    }
    if let Some(ended) = waiters.try_join_next() {
        return Err(format!("a waiter did not wait: {ended:?}").into());
    }
    Ok(counted)
}

/// Counts the commands of one client that holds ten thousand locks, in some rounds of renewals. Returns also how long it
/// took to acquire them.
pub(crate) async fn renewals(cluster: &Cluster) -> Result<(Commands, Duration)> {
    let observer = Observer::new(cluster).await?;
    let holder = Peer::with_lease(&cluster.uri(), LEASE).await?;
    let begun = Instant::now();
    let names = stream::iter(0..LOCKS).map(|number| holder.locks.mutex(format!("lock {number}")));
    let acquiring = names
        .map(|mutex| async move { mutex.acquire().await })
        .buffer_unordered(64);
    let held: Vec<Held<locks::Mutex>> = acquiring.try_collect().await?;
    let acquired_in = begun.elapsed();
    // Locks that were acquired one after the other are drawn together by their first renewal.
    sleep(RENEWAL_INTERVAL).await;

    let (commands, _) = observer.count_for(RENEWAL_INTERVAL * RENEWAL_ROUNDS).await?;
    // For the time of a lease every command takes longer.
    let data = doc! { "failCommands": ["update", "find", "getMore"], "blockConnection": true, "blockTimeMS": SLOWER };
    let slow = cluster.fail_commands(0, "alwaysOn", data).await?;
    sleep(LEASE).await;
    slow.off().await?;
    let lost = held.iter().filter(|handle| handle.lost_reason().is_some()).count();
    // Ten thousand releases would be of no use: the server ends here.
    held.into_iter().for_each(std::mem::forget);
    if lost > 0 {
        return Err(format!("{lost} of {LOCKS} locks were lost").into());
    }
    Ok((commands, acquired_in))
}
