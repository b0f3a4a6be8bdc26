//! Giving up: dropped futures, timeouts, dropped handles and clients.

mod dropped;
mod token;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client,
    bson::{Document, doc},
    event::{
        EventHandler,
        cmap::{CmapEvent, ConnectionClosedReason},
    },
    options::ClientOptions,
};
use watchlock::LockStatus;

use crate::setup::{
    Dice, Ground, PATIENCE, SOON, eventually, info, is_vacant, pause, spawn, until_streaming, until_waiting, within,
};

/// Acquires are dropped up to this long after they began.
const AROUND: Duration = Duration::from_millis(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_dropped_while_others_wait_behind_it_is_passed_over() {
    let ground = Ground::replica_set("passed").await;
    let (holder, first, second) = (ground.locks().await, ground.locks().await, ground.locks().await);
    let held = holder.mutex("x").acquire().await.unwrap();
    let mutex = first.mutex("x");
    // Two tasks of the first client, of which only one stands in the server's queue, then the second client.
    let gone = spawn(async move { drop(mutex.acquire().await) });
    until_waiting(&holder, "x", 1).await;
    let mutex = first.mutex("x");
    let local = spawn(async move { mutex.acquire().await.unwrap() });
    let mutex = second.mutex("x");
    let remote = spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(&holder, "x", 2).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    held.release().await.unwrap();
    // In whichever order: both get it, one after the other, and nobody waits for the one that is gone.
    let one = async {
        let handle = local.await.unwrap();
        handle.release().await.unwrap();
    };
    let two = async {
        let handle = remote.await.unwrap();
        handle.release().await.unwrap();
    };
    within(SOON, "both get it", async { tokio::join!(one, two) }).await;
    eventually(SOON, "nobody is left", async || is_vacant(&holder, "x").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_handle_releases_the_lock() {
    let ground = Ground::replica_set("handle").await;
    let (holder, other) = (ground.locks().await, ground.locks().await);
    let held = holder.mutex("x").acquire().await.unwrap();
    let (view, token) = (held.view(), held.token());
    assert!(other.mutex("x").try_acquire().await.unwrap().is_none());
    let mutex = other.mutex("x");
    let next = spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(&other, "x", 1).await;
    drop(held);
    // Whoever still has a view knows at once, the next in line a hop later.
    assert_eq!(view.status(), LockStatus::Lost);
    let next = within(SOON, "the next gets it", next).await.unwrap();
    assert!(next.token() > token);
    drop(next);
    eventually(SOON, "free", async || is_vacant(&other, "x").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_client_leaves_no_stream_no_connection_and_no_entry() {
    // Each driver measures the round trip over a connection that it closes when its ten seconds are over.
    const OF_MONITORS: usize = 2;
    let ground = Ground::replica_set("client").await;
    let (watching, outside) = (ground.driver().await, ground.locks().await);
    let connections = async || {
        let operations = ground.operations(&watching).await;
        let of_clients = operations
            .iter()
            .filter(|operation| operation.get_str("appName").is_ok_and(|name| name == ground.database));
        of_clients.filter(|operation| !is_monitor(operation)).count()
    };
    {
        let (holder, waiter) = (ground.by_name().locks().await, ground.by_name().locks().await);
        let held = holder.mutex("x").acquire().await.unwrap();
        let mutex = waiter.mutex("x");
        let waiting = spawn(async move { drop(mutex.acquire().await) });
        until_waiting(&outside, "x", 1).await;
        // The holder's opens too, as it holds for long.
        until_streaming(&ground, &watching, 2).await;
        assert!(connections().await > OF_MONITORS);
        waiting.abort();
        let _ = waiting.await;
        drop(held);
    }
    eventually(SOON, "nobody is left", async || is_vacant(&outside, "x").await).await;
    until_streaming(&ground, &watching, 0).await;
    eventually(SOON, "the pools are closed", async || {
        connections().await <= OF_MONITORS
    })
    .await;
}

/// The connection on which a driver waits for news of the server: it is closed when its ten seconds are over.
fn is_monitor(operation: &Document) -> bool {
    let command = operation.get_document("command");
    command.is_ok_and(|command| {
        ["hello", "isMaster", "ismaster"]
            .iter()
            .any(|hello| command.contains_key(hello))
    })
}

/// An operation of the driver that is dropped half-way costs its connection, and whoever waits for the pool a new one.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_acquires_do_not_stall_a_small_pool() {
    let ground = Ground::replica_set("pool").await;
    let holder = ground.locks().await;
    let mut held = Vec::new();
    for number in 0..10 {
        held.push(holder.mutex(format!("lock {number}")).acquire().await.unwrap());
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut options = ClientOptions::parse(ground.uri()).await.unwrap();
    options.max_pool_size = Some(2);
    let count = dropped.clone();
    options.cmap_event_handler = Some(EventHandler::callback(move |event| {
        if let CmapEvent::ConnectionClosed(closed) = event
            && closed.reason == ConnectionClosedReason::Dropped
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let driver = Client::with_options(options).unwrap();
    let own = driver.database(&ground.database).collection::<Document>("own");
    own.insert_one(doc! { "_id": 1 }).await.unwrap();
    let locks = ground.locks_over(&driver).await;

    let (done, ended) = tokio::sync::watch::channel(false);
    let user = spawn(async move {
        while !*ended.borrow() {
            assert!(own.find_one(doc! { "_id": 1 }).await.unwrap().is_some());
        }
    });
    let mut dice = Dice::new(6);
    // Ten at a time, so that they queue for the pool.
    for burst in 0..10 {
        let acquires = (0..10).map(|number| {
            let (mutex, drop_at) = (locks.mutex(format!("lock {number}")), dice.up_to(AROUND));
            spawn(async move {
                tokio::select! {
                    biased;
                    () = pause(drop_at) => {}
                    handle = mutex.acquire() => panic!("granted in burst {burst}: {handle:?}"),
                }
            })
        });
        for acquire in acquires.collect::<Vec<_>>() {
            acquire.await.unwrap();
        }
    }
    for number in 0..10 {
        let name = format!("lock {number}");
        eventually(PATIENCE, "no place is left", async || {
            info(&holder, &name).await.unwrap().waiters.is_empty()
        })
        .await;
    }
    done.send_replace(true);
    user.await.unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
}
