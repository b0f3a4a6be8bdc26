//! One client that holds very many locks for several lease periods, and goes on acquiring others beside them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};
use watchlock::{LockClient, LockHandle, LockView};
use watchlock_testkit::Cluster;

use super::{DATABASE, gauge::Gauge};
use crate::{Result, client::connect, locks::LOCKS};

const LEASE: Duration = Duration::from_secs(30);

/// Number of acquires over which the rate is measured, when as many are held and when all are.
const MEASURED: usize = 1_000;

/// Minimum rate at the end, as a part of the rate at the beginning.
const RATE_LEAST: f64 = 0.8;

/// Maximum time to release everything.
const SHUTDOWN_MOST: Duration = Duration::from_secs(60);

const AT_ONCE: usize = 64;

/// Number of progress lines.
const LINES: u32 = 10;

pub(super) async fn run(count: usize, lasts: Duration) -> Result<bool> {
    if count < 2 * MEASURED {
        return Err(format!("--held {count}: at least {} to measure a rate", 2 * MEASURED).into());
    }
    let cluster = Cluster::replica_set(1).await?;
    let gauge = Gauge::here(&cluster).await?;
    let database = connect(&cluster.uri(), DATABASE, "holder").await?;
    let locks = LockClient::builder(database.clone()).lease(LEASE).build().await?;
    println!("{count} locks held by one client, with a lease of {LEASE:?}");
    let mut handles = Vec::with_capacity(count + MEASURED);
    let before = gauge.read().await?;
    println!("  before    {before}");
    acquire(&locks, &mut handles, MEASURED).await?;
    let few = acquire(&locks, &mut handles, MEASURED).await?;
    println!("  {few:.0} acquires a second at {MEASURED} held");
    acquire(&locks, &mut handles, count - 2 * MEASURED).await?;
    let mut earlier = gauge.read().await?;
    println!("  acquired  {}", earlier.since(&before));
    let many = acquire(&locks, &mut handles, MEASURED).await?;
    println!("  {many:.0} acquires a second at {count} held");

    let views: Vec<LockView> = handles.iter().map(LockHandle::view).collect();
    let probe = Probe::start(locks.clone());
    let (mut least_left, mut next) = (Duration::MAX, Instant::now());
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        sleep(Duration::from_millis(500)).await;
        let left = views.iter().map(LockView::safe_for).min().unwrap_or_default();
        least_left = least_left.min(left);
        if Instant::now() >= next {
            let later = gauge.read().await?;
            println!(
                "  held      {}, at least {:.2} s left",
                later.since(&earlier),
                least_left.as_secs_f64()
            );
            earlier = later;
            next = Instant::now() + lasts / LINES;
        }
    }
    let waits = probe.end();
    println!("  waits for a look at the client from another thread: {waits}");
    let mut lost = BTreeMap::<String, usize>::new();
    for reason in views.iter().filter_map(LockView::lost_reason) {
        *lost.entry(reason.to_string()).or_default() += 1;
    }
    println!("  lost: {} {lost:?}", lost.values().sum::<usize>());

    let began = Instant::now();
    locks.shutdown().await;
    let took = began.elapsed();
    let held = database
        .collection::<Document>(LOCKS)
        .count_documents(doc! { "holders.0": { "$exists": true } })
        .await?;
    println!("  shut down in {took:.1?}; still held then: {held}");
    drop((handles, views, locks));
    database.client().clone().shutdown().await;
    let (rate, released) = (many / few, took <= SHUTDOWN_MOST && held == 0);
    println!("  rate at {count} over the rate at {MEASURED}: {rate:.2} (at least {RATE_LEAST})");
    Ok(lost.is_empty() && released && rate >= RATE_LEAST)
}

/// Acquires so many more, and returns their number per second.
async fn acquire(locks: &LockClient, handles: &mut Vec<LockHandle>, count: usize) -> Result<f64> {
    let (first, began) = (handles.len(), Instant::now());
    let acquiring = (first..first + count).map(|number| locks.mutex(format!("lock {number}")).acquire().into_future());
    let acquired: Vec<LockHandle> = stream::iter(acquiring).buffer_unordered(AT_ONCE).try_collect().await?;
    handles.extend(acquired);
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// A thread that looks at the client again and again: each look waits until nothing else holds the client's state.
struct Probe {
    done: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<Duration>>,
}

impl Probe {
    fn start(locks: LockClient) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let thread = thread::spawn(move || {
            let mut waits = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let began = std::time::Instant::now();
                let _ = locks.wake_mode();
                waits.push(began.elapsed());
                thread::sleep(Duration::from_millis(1));
            }
            waits
        });
        Self { done, thread }
    }

    /// Returns the looks' result, as words.
    fn end(self) -> String {
        self.done.store(true, Ordering::Relaxed);
        let mut waits = self.thread.join().unwrap_or_default();
        waits.sort_unstable();
        let at = |part: usize| waits.get(waits.len() * part / 10_000).copied().unwrap_or_default();
        let most = waits.last().copied().unwrap_or_default();
        format!(
            "median {:?}, 99 % {:?}, 99.9 % {:?}, longest {most:?}, of {}",
            at(5_000),
            at(9_900),
            at(9_990),
            waits.len()
        )
    }
}
