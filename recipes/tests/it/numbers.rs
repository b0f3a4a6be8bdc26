//! The numbers that the library gives to a recorder, as docs/observability.md tells them, and what Prometheus gets of
//! them.
//!
//! Everything runs on the thread of the test, as the recorder is that thread's.

use std::{collections::BTreeMap, time::Duration};

use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::{net::TcpListener, task::JoinHandle};
use watchlock::{
    Held, LockClient,
    errors::AcquireError,
    locks::Mutex as LockMutex,
    operate::HISTOGRAM_BUCKETS,
    testing::{InMemory, MemoryCollection},
};
use watchlock_recipes::prometheus;

use crate::{request, within};

const DOCUMENTED: &str = include_str!("../../../docs/observability.md");

/// What the metrics come to, in the manner of Prometheus.
struct Board {
    snapshotter: Snapshotter,
    values: BTreeMap<String, f64>,
}

impl Board {
    /// Of a recorder that records what comes from this thread, until the guard is dropped.
    fn of(recorder: &DebuggingRecorder) -> (Self, metrics::LocalRecorderGuard<'_>) {
        let board = Self {
            snapshotter: recorder.snapshotter(),
            values: BTreeMap::new(),
        };
        (board, metrics::set_default_local_recorder(recorder))
    }

    /// Takes in what came since the last look; all of it must be documented.
    fn look(&mut self) {
        // A snapshot resets the recorder, so each has what was added.
        for (key, _, description, value) in self.snapshotter.snapshot().into_vec() {
            let (kind, key) = key.into_parts();
            let kind = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let mut labels = Vec::new();
            let row = format!("| `{}` | {kind} |", key.name());
            assert!(DOCUMENTED.contains(&row), "{row}");
            assert!(description.is_some(), "{key} is not described");
            for (label, value) in key.labels().map(|label| (label.key(), label.value())) {
                assert!(DOCUMENTED.contains(&format!("`{label}`")), "{key}");
                let free = label == "lock";
                assert!(
                    free || value.is_empty() || DOCUMENTED.contains(&format!("`{value}`")),
                    "{key}"
                );
                labels.push(format!("{label}={value}"));
            }
            let id = format!("{}{{{}}}", key.name(), labels.join(","));
            match value {
                DebugValue::Counter(more) => self.add(id, more as f64),
                DebugValue::Gauge(more) => self.add(id, more.into_inner()),
                DebugValue::Histogram(times) => {
                    self.add(format!("{id} sum"), times.iter().map(|time| time.into_inner()).sum());
                    self.add(format!("{id} count"), times.len() as f64);
                }
            }
        }
    }

    fn add(&mut self, id: String, more: f64) {
        *self.values.entry(id).or_default() += more;
    }

    /// What it comes to by now; zero where there is nothing.
    fn value(&mut self, id: &str) -> f64 {
        self.look();
        self.values.get(id).copied().unwrap_or_default()
    }

    fn assert(&mut self, expected: &[(&str, f64)]) {
        for (id, value) in expected {
            let found = self.value(id);
            assert!(
                (found - value).abs() < 0.01,
                "{id} is {found} and not {value} in {:#?}",
                self.values
            );
        }
    }
}

/// A task that waits for the lock `x`, in the server's queue.
async fn in_line(locks: &LockClient, mutex: LockMutex) -> JoinHandle<Result<Held<LockMutex>, AcquireError>> {
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    within("a waiter in the queue", async {
        while locks
            .inspect("x")
            .await
            .unwrap()
            .is_none_or(|lock| lock.waiters.is_empty())
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    waiting
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_lock_is_counted() {
    let recorder = DebuggingRecorder::new();
    let (mut board, _recording) = Board::of(&recorder);
    let memory = InMemory::new();
    let client = || memory.builder().build();
    let (a, b) = (client().await.unwrap(), client().await.unwrap());

    let held = a.mutex("x").acquire().await.unwrap();
    let waiting = in_line(&a, b.mutex("x")).await;
    board.assert(&[
        ("watchlock_waiting{kind=mutex}", 1.0),
        ("watchlock_held{kind=mutex}", 1.0),
        ("watchlock_grants_total{kind=mutex,how=at_once}", 1.0),
        ("watchlock_sessions{mode=change_stream,reason=}", 2.0),
    ]);

    tokio::time::sleep(Duration::from_secs(30)).await;
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let again = b.mutex("x").acquire().reentrant().await.unwrap();
    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
    let waiting = a.mutex("x").acquire().timeout(Duration::from_secs(2));
    waiting.await.unwrap_err();
    in_line(&a, a.mutex("x")).await.abort();
    board.assert(&[("watchlock_held{kind=mutex}", 1.0)]);
    a.break_lock("x").await.unwrap();
    next.lost().await;
    drop((next, again));
    board.assert(&[
        ("watchlock_acquires_total{kind=mutex,outcome=granted}", 3.0),
        ("watchlock_acquires_total{kind=mutex,outcome=busy}", 1.0),
        ("watchlock_acquires_total{kind=mutex,outcome=timeout}", 1.0),
        ("watchlock_acquires_total{kind=mutex,outcome=cancelled}", 1.0),
        ("watchlock_wait_seconds{kind=mutex,outcome=timeout} count", 1.0),
        ("watchlock_wait_seconds{kind=mutex,outcome=timeout} sum", 2.0),
        ("watchlock_waiting{kind=mutex}", 0.0),
        ("watchlock_held{kind=mutex}", 0.0),
        ("watchlock_grants_total{kind=mutex,how=event}", 1.0),
        ("watchlock_grants_total{kind=mutex,how=reentered}", 1.0),
        ("watchlock_hold_seconds{kind=mutex,end=released} count", 1.0),
        ("watchlock_hold_seconds{kind=mutex,end=broken} count", 1.0),
        ("watchlock_losses_total{kind=mutex,reason=broken}", 1.0),
        ("watchlock_breaks_total{}", 1.0),
    ]);
    assert!(board.value("watchlock_renewals_total{outcome=renewed}") >= 4.0);
    assert!(board.value("watchlock_hold_seconds{kind=mutex,end=released} sum") >= 30.0);
    assert!(
        !board.values.keys().any(|id| id.contains("=x")),
        "no label is the name of a lock"
    );

    drop((a, b));
    within("the sessions are gone", async {
        while board.value("watchlock_sessions{mode=change_stream,reason=}") != 0.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Two clients of one memory, in which the lock `x` and no other has metrics of its own.
async fn metered_pair() -> (LockClient, LockClient) {
    let memory = InMemory::new();
    let client = || memory.builder().metrics_for(["x", "7", "never used"]).build();
    (client().await.unwrap(), client().await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn locks_that_were_named_have_numbers_of_their_own() {
    let recorder = DebuggingRecorder::new();
    let (mut board, _recording) = Board::of(&recorder);
    let (a, b) = metered_pair().await;
    let (named, other) = (
        a.mutex("x").acquire().await.unwrap(),
        a.mutex("y").acquire().await.unwrap(),
    );
    let waiting = in_line(&a, b.mutex("x")).await;
    board.assert(&[
        ("watchlock_waiting{kind=mutex,lock=x}", 1.0),
        ("watchlock_waiting{kind=mutex}", 0.0),
        ("watchlock_held{kind=mutex,lock=x}", 1.0),
        ("watchlock_held{kind=mutex}", 1.0),
        ("watchlock_grants_total{kind=mutex,how=at_once,lock=x}", 1.0),
        ("watchlock_grants_total{kind=mutex,how=at_once}", 1.0),
    ]);

    tokio::time::sleep(Duration::from_secs(30)).await;
    named.release().await.unwrap();
    other.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(a.mutex("x").try_acquire().await.unwrap().is_none());
    a.break_lock("x").await.unwrap();
    next.lost().await;
    drop(next);
    board.assert(&[
        ("watchlock_acquires_total{kind=mutex,outcome=granted,lock=x}", 2.0),
        ("watchlock_acquires_total{kind=mutex,outcome=busy,lock=x}", 1.0),
        ("watchlock_acquires_total{kind=mutex,outcome=granted}", 1.0),
        ("watchlock_wait_seconds{kind=mutex,outcome=granted,lock=x} count", 2.0),
        ("watchlock_wait_seconds{kind=mutex,outcome=granted,lock=x} sum", 30.0),
        ("watchlock_wait_seconds{kind=mutex,outcome=granted} count", 1.0),
        ("watchlock_waiting{kind=mutex,lock=x}", 0.0),
        ("watchlock_waiting{kind=mutex}", 0.0),
        ("watchlock_held{kind=mutex,lock=x}", 0.0),
        ("watchlock_held{kind=mutex}", 0.0),
        ("watchlock_grants_total{kind=mutex,how=event,lock=x}", 1.0),
        ("watchlock_hold_seconds{kind=mutex,end=released,lock=x} sum", 30.0),
        ("watchlock_hold_seconds{kind=mutex,end=released} sum", 30.0),
        ("watchlock_hold_seconds{kind=mutex,end=broken,lock=x} count", 1.0),
        ("watchlock_losses_total{kind=mutex,reason=broken,lock=x}", 1.0),
        ("watchlock_breaks_total{lock=x}", 1.0),
        ("watchlock_breaks_total{}", 0.0),
    ]);
    assert!(
        !board
            .values
            .keys()
            .any(|id| id.contains("lock=y") || id.contains("never used"))
    );
}

/// A claim learns of its document with the grant; what it raised before must be lowered in the same series.
#[tokio::test(start_paused = true)]
async fn a_claimed_document_that_was_named_has_numbers_of_its_own() {
    let recorder = DebuggingRecorder::new();
    let (mut board, _recording) = Board::of(&recorder);
    let (a, _) = metered_pair().await;
    let collection = MemoryCollection::new();
    collection.insert_one(doc! { "_id": 7 }).await.unwrap();
    let jobs = a.documents_in_memory::<Document>(&collection);
    let claimed = jobs.claim(doc! {}).await.unwrap();
    board.assert(&[
        ("watchlock_held{kind=document,lock=7}", 1.0),
        ("watchlock_waiting{kind=document}", 0.0),
        ("watchlock_waiting{kind=document,lock=7}", 0.0),
    ]);
    claimed.release().await.unwrap();
    board.assert(&[
        ("watchlock_held{kind=document,lock=7}", 0.0),
        ("watchlock_acquires_total{kind=document,outcome=granted,lock=7}", 1.0),
        ("watchlock_hold_seconds{kind=document,end=released,lock=7} count", 1.0),
    ]);
    assert!(!board.values.contains_key("watchlock_held{kind=document}"));
}

#[test]
fn buckets_are_recommended_for_every_histogram() {
    let rows = DOCUMENTED.lines().filter(|line| line.contains("| histogram |"));
    let mut histograms: Vec<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    let mut recommended: Vec<_> = HISTOGRAM_BUCKETS.iter().map(|(name, _)| *name).collect();
    histograms.sort_unstable();
    recommended.sort_unstable();
    assert_eq!(recommended, histograms);
    for (name, bounds) in HISTOGRAM_BUCKETS {
        assert!(bounds.len() > 10 && bounds.is_sorted_by(|a, b| a < b), "{name}");
    }
}

/// With the exporter's own rules for names, and without.
#[tokio::test(start_paused = true)]
async fn prometheus_has_the_names_that_the_dashboard_asks_for() {
    for recommended in [false, true] {
        let prometheus = prometheus::recorder().unwrap().with_recommended_naming(recommended);
        let recorder = prometheus.build_recorder();
        let exported = {
            let _recording = metrics::set_default_local_recorder(&recorder);
            let (a, b) = metered_pair().await;
            let held = a.mutex("x").acquire().await.unwrap();
            tokio::time::sleep(Duration::from_secs(20)).await;
            held.release().await.unwrap();
            let exported = recorder.handle().render();
            // A client ends in the background, which the next recorder would count.
            drop((a, b));
            tokio::time::sleep(Duration::from_secs(1)).await;
            exported
        };
        for line in [
            r#"watchlock_acquires_total{kind="mutex",outcome="granted",lock="x"} 1"#,
            r#"watchlock_wait_seconds_bucket{kind="mutex",outcome="granted",lock="x",le="0.001"} 1"#,
            r#"watchlock_wait_seconds_count{kind="mutex",outcome="granted",lock="x"} 1"#,
            r#"watchlock_hold_seconds_bucket{kind="mutex",end="released",lock="x",le="10"} 0"#,
            r#"watchlock_hold_seconds_bucket{kind="mutex",end="released",lock="x",le="30"} 1"#,
            r#"watchlock_held{kind="mutex",lock="x"} 0"#,
            r#"watchlock_renewals_total{outcome="renewed"} 3"#,
            r#"watchlock_sessions{mode="change_stream",reason=""} 2"#,
        ] {
            assert!(
                exported.lines().any(|exported| exported == line),
                "{line} in {exported}"
            );
        }
    }
}

#[tokio::test]
async fn errors_are_counted_by_operation() {
    let recorder = DebuggingRecorder::new();
    let (mut board, _recording) = Board::of(&recorder);
    // It describes what is counted.
    let _locks = LockClient::in_memory();
    let uri = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100";
    let client = Client::with_uri_str(uri).await.unwrap();
    LockClient::builder(client.database("app")).build().await.unwrap_err();
    board.assert(&[(
        "watchlock_operation_errors_total{operation=connect,error=unavailable}",
        1.0,
    )]);
}

/// From the service's own router, after a lock was taken. Each rendering sums up too, so the upkeep only runs beside
/// it.
#[tokio::test]
async fn the_numbers_are_served_to_prometheus() {
    let recorder = prometheus::recorder().unwrap().build_recorder();
    let handle = recorder.handle();
    {
        let _recording = metrics::set_default_local_recorder(&recorder);
        let locks = LockClient::in_memory();
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    }
    let upkeep = tokio::spawn(prometheus::upkeep(handle.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, prometheus::metrics(handle)).await });
    let (status, page) = request(address, "GET", "/metrics").await;
    assert_eq!(status, 200);
    let line = r#"watchlock_wait_seconds_bucket{kind="mutex",outcome="granted",le="1800"} 1"#;
    assert!(page.lines().any(|served| served == line), "{line} in {page}");
    serving.abort();
    upkeep.abort();
}
