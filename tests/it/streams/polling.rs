//! The same promises without a change stream.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use watchlock::{
    LockClient, LockStatus, LostReason, Released,
    errors::{AcquireError, BuildError},
    operate::{PollingReason, WakeMode, WakeSource},
};

use crate::setup::{Ground, PATIENCE, SOON, eventually, info, is_vacant, places, spawn, until_waiting, within};

/// Holders look after their locks twice a second.
const NOTICED: Duration = Duration::from_millis(1500);

/// Everything that a mutex promises, to be kept by clients of whatever kind.
async fn promises_are_kept(ground: &Ground, clients: [LockClient; 4], mode: WakeMode) {
    let [a, b, c, d] = clients;
    let held = a.mutex("x").acquire().await.unwrap();
    assert_eq!(held.status(), LockStatus::Held);

    // A try and a timeout, which leave nothing behind.
    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
    let start = Instant::now();
    let error = b
        .mutex("x")
        .acquire()
        .timeout(Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(
        matches!(error, AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }),
        "{error}"
    );
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    eventually(SOON, "no place is left", async || {
        info(&b, "x").await.unwrap().waiters.is_empty()
    })
    .await;

    // First come, first served.
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (number, locks) in [b.clone(), c.clone(), d.clone(), b.clone()].into_iter().enumerate() {
        let served = served.clone();
        spawn(async move {
            let handle = locks.mutex("x").acquire().await.unwrap();
            served.send((number, handle.token())).unwrap();
            handle.release().await.unwrap();
        });
        // The last one is the second of its process, so it waits there, and joins the queue with the first's release.
        until_waiting(&a, "x", (number + 1).min(3)).await;
    }
    let mut last = held.token();
    let start = Instant::now();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    for number in 0..4 {
        let (served, token) = within(2 * SOON, "the next", order.recv()).await.unwrap();
        assert_eq!(served, number, "after {:?}", start.elapsed());
        assert!(token > last);
        last = token;
    }
    eventually(SOON, "free", async || is_vacant(&a, "x").await).await;

    // A dropped waiter and a dropped handle.
    let held = a.mutex("x").acquire().await.unwrap();
    let mutex = b.mutex("x");
    let waiting = spawn(async move { drop(mutex.acquire().await) });
    until_waiting(&a, "x", 1).await;
    waiting.abort();
    eventually(SOON, "no place is left", async || {
        info(&c, "x").await.unwrap().waiters.is_empty()
    })
    .await;
    drop(held);
    eventually(SOON, "free", async || is_vacant(&c, "x").await).await;

    // What happens to the document is noticed, and nothing is taken back.
    let documents = ground.documents().await;
    let held = a.mutex("x").acquire().await.unwrap();
    b.break_lock("x").await.unwrap();
    assert_eq!(within(NOTICED, "it is broken", held.lost()).await, LostReason::Broken);
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    let held = a.mutex("x").acquire().await.unwrap();
    documents.delete_one(doc! { "_id": "x" }).await.unwrap();
    assert_eq!(within(NOTICED, "it is deleted", held.lost()).await, LostReason::Deleted);
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert!(info(&a, "x").await.is_none());

    for locks in [a, b, c, d] {
        assert_eq!(locks.wake_mode(), mode);
        within(PATIENCE, "the client ends", locks.shutdown()).await;
        let error = locks.mutex("x").acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Closed), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_standalone_all_promises_are_kept() {
    let ground = Ground::standalone("standalone").await;
    let clients = [
        ground.locks().await,
        ground.locks().await,
        ground.locks().await,
        ground.locks().await,
    ];
    promises_are_kept(&ground, clients, WakeMode::Polling(PollingReason::Standalone)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn polling_as_configured_keeps_all_promises() {
    let ground = Ground::replica_set("configured").await;
    let polling = async || ground.polling().await;
    let clients = [polling().await, polling().await, polling().await, polling().await];
    promises_are_kept(&ground, clients, WakeMode::Polling(PollingReason::Configured)).await;
    assert_eq!(ground.streams(&ground.driver().await).await, [0_i64; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_poll_and_those_who_watch_share_one_queue() {
    let ground = Ground::replica_set("mixed").await;
    let polling = async || ground.polling().await;
    let (first, second, third) = (ground.locks().await, polling().await, ground.locks().await);
    let held = first.mutex("x").acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (number, locks) in [second.clone(), third.clone()].into_iter().enumerate() {
        let served = served.clone();
        spawn(async move {
            let handle = locks.mutex("x").acquire().await.unwrap();
            served.send(number).unwrap();
            handle.release().await.unwrap();
        });
        until_waiting(&first, "x", number + 1).await;
    }
    held.release().await.unwrap();
    for number in 0..2 {
        assert_eq!(within(SOON, "the next", order.recv()).await, Some(number));
    }
    assert_eq!(third.wake_mode(), WakeMode::ChangeStream);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_stream_can_be_insisted_on() {
    let standalone = Ground::standalone("insisting").await;
    let error = standalone
        .builder()
        .await
        .wake_source(WakeSource::ChangeStream)
        .build()
        .await
        .unwrap_err();
    assert!(matches!(error, BuildError::NoChangeStream), "{error}");
    assert!(error.to_string().contains("replica set"), "{error}");

    let ground = Ground::replica_set("insisting").await;
    let locks = ground
        .builder()
        .await
        .wake_source(WakeSource::ChangeStream)
        .build()
        .await
        .unwrap();
    assert_eq!(locks.wake_mode(), WakeMode::ChangeStream);
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wake_mode_tells_how_waiters_are_woken() {
    let modes: Vec<String> = places("mode")
        .await
        .iter()
        .map(|(a, _)| a.wake_mode().to_string())
        .collect();
    assert_eq!(
        modes,
        [
            "change stream",
            "change stream",
            "polling, as the server is a standalone"
        ]
    );
}
