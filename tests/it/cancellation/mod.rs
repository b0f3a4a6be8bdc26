//! Giving up: dropped futures, timeouts, dropped handles and clients.

mod dropped;
mod token;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mongodb::{
    event::{
        EventHandler,
        cmap::{CmapEvent, ConnectionClosedReason},
    },
    options::ClientOptions,
};

use crate::setup::*;

/// Acquires are dropped up to this long after they began.
const AROUND: Duration = Duration::from_millis(3);

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
    let own = ground.of(&driver, "own");
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
        until_waiting(&holder, &name, 0).await;
    }
    done.send_replace(true);
    user.await.unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
}
