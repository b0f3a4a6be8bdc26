//! The change stream: what it brings, how it breaks, and what happens until it is back.

mod polling;
mod silence;
mod subscription;

use std::time::{Instant, SystemTime};

use mongodb::bson::DateTime;
use tokio::runtime::Runtime;
use watchlock::operate::{PollingReason, WakeMode, WakeSource};

use crate::setup::*;

/// How soon a stream that broke is open again.
const BACK: Duration = Duration::from_secs(5);

const MIB: usize = 1024 * 1024;

/// A waiter whose stream is open, and the holder before it.
struct Scene {
    ground: Ground,
    admin: Client,
    documents: Collection<Document>,
    holder: LockClient,
    waiter: LockClient,
}

impl Scene {
    async fn on(ground: Ground) -> Self {
        // The holder doesn't watch, so the one stream is the waiter's.
        let holder = ground.polling().await;
        let waiter = ground.by_name().locks().await;
        Self {
            admin: ground.driver().await,
            documents: ground.documents().await,
            holder,
            waiter,
            ground,
        }
    }

    /// Holds the lock, lets the waiter wait for it, has `act` done to its stream, releases, and returns how long the
    /// hand-over took.
    async fn hand_over(&self, name: &str, act: impl AsyncFnOnce()) -> Duration {
        let held = self.holder.mutex(name).acquire().await.unwrap();
        let waiting = in_line(&self.holder, name, 1, self.waiter.mutex(name).acquire()).await;
        until_streaming(&self.ground, &self.admin, 1).await;
        act().await;
        let start = Instant::now();
        let token = held.token();
        held.release().await.unwrap();
        let handle = within(SOON, name, waiting).await.unwrap().unwrap();
        assert!(handle.token() > token);
        let took = start.elapsed();
        handle.release().await.unwrap();
        took
    }

    async fn stream(&self) -> i64 {
        match self.ground.streams(&self.admin).await[..] {
            [stream] => stream,
            ref streams => panic!("{streams:?} instead of one stream"),
        }
    }

    async fn until_gone(&self, stream: i64) {
        eventually(PATIENCE, "the stream is gone", async || {
            !self.ground.streams(&self.admin).await.contains(&stream)
        })
        .await;
    }

    /// Another stream than `old` is open while somebody waits, and grants arrive through it.
    async fn assert_back(&self, old: i64) {
        self.hand_over("another lock", async || {
            until_mode(&self.waiter, BACK, |mode| mode == WakeMode::ChangeStream).await;
            assert_ne!(self.stream().await, old);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_cursor_or_operation_is_killed_comes_back() {
    let scene = Scene::on(Ground::replica_set("killed").await).await;
    let mut old = 0;
    scene
        .hand_over("its cursor", async || {
            old = scene.stream().await;
            let database = scene.admin.database(&scene.ground.database);
            let kill = doc! { "killCursors": COLLECTION, "cursors": [old] };
            let reply = database.run_command(kill).await.unwrap();
            assert_eq!(reply.get_array("cursorsKilled").unwrap().len(), 1, "{reply}");
        })
        .await;
    scene.assert_back(old).await;
    scene
        .hand_over("its operation", async || {
            old = scene.stream().await;
            // Between two of its operations there is none to be killed.
            let mut running = None;
            eventually(PATIENCE, "the stream waits", async || {
                let operations = scene.ground.operations(&scene.admin).await;
                let waiting = operations.iter().find(|operation| {
                    stream_id(operation) == Some(old) && operation.get_str("type").is_ok_and(|kind| kind == "op")
                });
                running = waiting.and_then(|operation| operation.get("opid")).cloned();
                running.is_some()
            })
            .await;
            let kill = doc! { "killOp": 1, "op": running.unwrap() };
            scene.admin.database("admin").run_command(kill).await.unwrap();
            scene.until_gone(old).await;
        })
        .await;
    scene.assert_back(old).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_too_large_for_any_stream_does_not_stop_the_waiters() {
    let scene = Scene::on(Ground::replica_set("large").await).await;
    scene
        .hand_over("lock", async || {
            // The server may or may not see in time that this one is of no interest to the stream.
            scene
                .documents
                .insert_one(doc! { "_id": "x".repeat(4 * MIB) })
                .await
                .unwrap();
        })
        .await;
    let mut old = 0;
    scene
        .hand_over("lock", async || {
            // This one's end is, and it breaks the stream indeed: the event would have more than 16 MB.
            let large = doc! { "_id": "x".repeat(6 * MIB) };
            scene.documents.insert_one(large.clone()).await.unwrap();
            until_streaming(&scene.ground, &scene.admin, 1).await;
            old = scene.stream().await;
            scene.documents.delete_one(large).await.unwrap();
            scene.until_gone(old).await;
        })
        .await;
    scene.assert_back(old).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_stream_is_down_waiters_poll() {
    let (cluster, _turn) = faulty().await;
    let scene = Scene::on(Ground::on(cluster, "down")).await;
    let mut old = 0;
    let mut down = None;
    scene
        .hand_over("lock", async || {
            old = scene.stream().await;
            let fault = doc! { "errorCode": 6 };
            down = Some(scene.ground.fail(cluster, "alwaysOn", &["aggregate"], fault).await);
            scene.ground.kill_streams(&scene.admin, COLLECTION).await;
            until_mode(&scene.waiter, PATIENCE, |mode| {
                mode == WakeMode::Polling(PollingReason::Interrupted)
            })
            .await;
        })
        .await;
    let held = scene.holder.mutex("lock").acquire().await.unwrap();
    let waiting = in_line(&scene.holder, "lock", 1, scene.waiter.mutex("lock").acquire()).await;
    // Still down, which is told again as somebody needs it again: this one, too, is granted without.
    until_mode(&scene.waiter, PATIENCE, |mode| {
        mode == WakeMode::Polling(PollingReason::Interrupted)
    })
    .await;
    held.release().await.unwrap();
    let handle = within(SOON, "granted by polling", waiting).await.unwrap().unwrap();
    // What it holds is looked after as well.
    scene.documents.delete_one(doc! { "_id": "lock" }).await.unwrap();
    within(2 * SOON, "the loss is noticed", handle.lost()).await;
    down.unwrap().off().await.unwrap();
    scene.assert_back(old).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_before_the_first_event_is_not_missed() {
    let ground = Ground::replica_set("race").await;
    let holder = ground.locks().await;
    let mut dice = Dice::new(11);
    for round in 0..30 {
        // Fresh each time: its stream opens while the lock is released, a little earlier or a little later.
        let waiter = ground.locks().await;
        let held = holder.mutex("x").acquire().await.unwrap();
        let acquire = spawn(waiter.mutex("x").acquire());
        if round % 2 == 0 {
            until_waiting(&holder, "x", 1).await;
        }
        pause(dice.up_to(Duration::from_millis(12))).await;
        held.release().await.unwrap();
        // The back-stop would ask again after 10 s.
        let handle = within(2 * SOON, &format!("round {round}"), acquire)
            .await
            .unwrap()
            .unwrap();
        handle.release().await.unwrap();
    }
}

#[test]
fn an_expiry_that_nobody_reports_wakes_the_waiter() {
    let lease = Duration::from_millis(1200);
    let dying = Runtime::new().unwrap();
    let living = Runtime::new().unwrap();
    let ground = living.block_on(Ground::replica_set("expiry"));
    // It dies without a word: nothing of it runs any more when its runtime has ended.
    let handle = dying.block_on(async {
        // It doesn't watch, so the one stream is the waiter's.
        let locks = ground
            .locks_with(|builder| builder.lease(lease).wake_source(WakeSource::Polling))
            .await;
        locks.mutex("x").acquire().await.unwrap()
    });
    let token = handle.token();
    living.block_on(async {
        let (waiter, admin) = (ground.locks().await, ground.driver().await);
        let mutex = waiter.mutex("x");
        let waiting = spawn(async move { (mutex.acquire().await.unwrap(), SystemTime::now()) });
        until_waiting(&waiter, "x", 1).await;
        until_streaming(&ground, &admin, 1).await;
        tokio::task::spawn_blocking(move || dying.shutdown_timeout(PATIENCE))
            .await
            .unwrap();
        let until = info(&waiter, "x").await.unwrap().holders[0].until;
        let (next, at) = within(lease + SOON, "the waiter gets it", waiting).await.unwrap();
        let late = at.duration_since(until).expect("not before the lease has run out");
        assert!(late < SOON, "{late:?} after the end of the lease");
        assert!(next.token() > token);
    });
    drop(handle);
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_wake_as_deltas_and_as_whole_documents() {
    for whole in [false, true] {
        let scene = Scene::on(Ground::replica_set("event").await).await;
        let held = scene.holder.mutex("x").acquire().await.unwrap();
        let waiting = in_line(&scene.holder, "x", 1, scene.waiter.mutex("x").acquire()).await;
        until_streaming(&scene.ground, &scene.admin, 1).await;
        // What a release would write, written by hand so as to be reported one way or the other.
        let filter = doc! { "_id": "x" };
        let before = scene.documents.find_one(filter.clone()).await.unwrap().unwrap();
        let granted = granted(&before, held.token().as_i64() + 1);
        if whole {
            let mut document = before;
            document.extend(granted);
            scene.documents.replace_one(filter, document).await.unwrap();
        } else {
            scene
                .documents
                .update_one(filter, doc! { "$set": granted })
                .await
                .unwrap();
        }
        let handle = within(SOON, "the grant", waiting).await.unwrap().unwrap();
        assert_eq!(handle.token().as_i64(), held.token().as_i64() + 1);
        handle.renew().await.unwrap();
        assert_eq!(handle.status(), LockStatus::Held);
    }
}

/// The fields of the lock after the head of its queue has been granted it.
fn granted(before: &Document, token: i64) -> Document {
    let waiter = before.get_array("queue").unwrap()[0].as_document().unwrap().clone();
    let now = DateTime::now();
    let until = DateTime::from_millis(now.timestamp_millis() + 5_000);
    let wake = format!("somebody.1:h;{}+{token};", waiter.get_str("id").unwrap());
    let mut holder = waiter;
    holder.extend(doc! { "since": now, "until": until, "token": token });
    doc! { "token": token, "holders": [holder], "queue": Bson::Array(Vec::new()), "wake": wake, "at": now }
}

/// A client of the driver waits at its shutdown for whoever has a cursor open.
#[tokio::test(flavor = "multi_thread")]
async fn the_driver_can_be_shut_down_after_the_locks() {
    let ground = Ground::replica_set("shutdown").await;
    let holder = ground.locks().await;
    let held = holder.mutex("x").acquire().await.unwrap();
    let driver = ground.driver().await;
    let locks = ground.locks_over(&driver).await;
    let waiting = spawn(locks.mutex("x").acquire());
    until_waiting(&holder, "x", 1).await;
    until_mode(&locks, PATIENCE, |mode| mode == WakeMode::ChangeStream).await;

    locks.shutdown().await;
    within(PATIENCE, "the driver's shutdown", driver.shutdown().into_future()).await;
    let waited = within(PATIENCE, "the end of the wait", waiting).await.unwrap();
    assert!(matches!(waited, Err(AcquireError::Closed)), "{waited:?}");
    held.release().await.unwrap();
}
