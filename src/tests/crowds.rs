//! Crowds of clients that wait for one lock at a server that is slow, on a paused clock.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::simulated::{Busy, Link};
use crate::{
    client::LockClient,
    config::Config,
    protocol::ServerTime,
    session::Session,
    store::{MemoryStore, Store},
    wake_mode::WakeMode,
};

/// The time for which a waiter that is dead keeps the lock, by default.
const CLAIM_LEASE: Duration = Duration::from_secs(5);

/// Pause in which a client notices that a lease has ended, at a server that is slow.
const NOTICED: Duration = Duration::from_secs(1);

/// A client of this memory, with the link to it.
fn client(memory: &Arc<MemoryStore>, number: usize) -> (Arc<Link>, LockClient) {
    let link = Link::new(memory.clone(), number as u64);
    link.calm();
    let (id, config) = (format!("{number:016x}"), Config::default());
    let store = Store::Simulated(link.clone());
    let session = Session::of(id, config, store, None, WakeMode::ChangeStream);
    (link, LockClient::new(session))
}

fn queued(memory: &MemoryStore) -> usize {
    let mut queued = 0;
    memory.look("x", |state, _| queued = state.map_or(0, |state| state.queue.len()));
    queued
}

/// Has the clients wait for a lock, one behind the other, while somebody holds it for longer than they look away; then
/// each takes it for a moment, except for the `dead` one. Returns the order of the grants, and the longest time from
/// one to the next.
async fn drain(count: usize, look: Duration, dead: Option<usize>) -> (Vec<usize>, Duration) {
    let memory = Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)));
    let (link, holder) = client(&memory, count);
    let held = holder.mutex("x").acquire().await.unwrap();
    let (mut links, mut clients, mut waiting) = (vec![link], vec![holder], JoinSet::new());
    for number in 0..count {
        let (link, locks) = client(&memory, number);
        let mutex = locks.mutex("x");
        waiting.spawn(async move {
            let handle = mutex.acquire().await.unwrap();
            let at = Instant::now();
            // A release without an answer in time is repeated.
            let _ = handle.release().await;
            (at, number)
        });
        while queued(&memory) <= number {
            sleep(Duration::from_millis(1)).await;
        }
        links.push(link);
        clients.push(locks);
    }
    let busy = Busy::new(look);
    links.iter().for_each(|link| link.share(busy.clone()));
    sleep(Duration::from_secs(12)).await;
    if let Some(dead) = dead {
        links[dead + 1].cut(true);
    }
    let begun = Instant::now();
    held.release().await.unwrap();
    let mut granted = Vec::new();
    while granted.len() < count - usize::from(dead.is_some()) {
        granted.push(waiting.join_next().await.unwrap().unwrap());
    }
    waiting.abort_all();
    granted.sort();
    let before = granted.iter().map(|(at, _)| *at);
    let before = [begun].into_iter().chain(before);
    let hops = granted.iter().zip(before).map(|((at, _), before)| *at - before);
    let longest = hops.max().unwrap_or_default();
    (granted.into_iter().map(|(_, number)| number).collect(), longest)
}

/// Those far back ask by themselves whether it is their turn. Where one sleeps through its grant for a moment, the
/// others must not take the time of the server from it: it would sleep on, and so would the next.
#[tokio::test(start_paused = true)]
async fn a_crowd_at_a_slow_server_loses_no_turn() {
    const CLIENTS: usize = 200;
    let (order, longest) = drain(CLIENTS, Duration::from_millis(5), None).await;
    assert_eq!(order, (0..CLIENTS).collect::<Vec<_>>());
    assert!(longest < CLAIM_LEASE - NOTICED, "{longest:?}");
}

/// Those behind it are awake when its claim lease ends.
#[tokio::test(start_paused = true)]
async fn a_dead_waiter_costs_a_crowd_one_claim_lease_and_no_more() {
    const CLIENTS: usize = 100;
    let (order, longest) = drain(CLIENTS, Duration::from_millis(8), Some(25)).await;
    assert_eq!(order, (0..CLIENTS).filter(|number| *number != 25).collect::<Vec<_>>());
    assert!(longest < CLAIM_LEASE + NOTICED, "{longest:?}");
}
