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
use watchlock::{Held, LockClient, View, target};
use watchlock_testkit::Cluster;

use super::{DATABASE, gauge::Gauge};
use crate::{Result, client::connect, locks::LOCKS};

const LEASE: Duration = Duration::from_secs(30);

/// Number of acquires over which the rate is measured.
const MEASURED: usize = 1_000;

/// Number of such measurements, of which the median counts: some fall into a checkpoint of the server's.
const BURSTS: usize = 5;

/// Rest before each of them. A client that acquires at full pace for minutes keeps the server's processors busy, and
/// what renewals take of them is not to be had; after a rest they yield.
const REST: Duration = Duration::from_secs(10);

/// Number of locks that are held at the first measurement.
const FEW: usize = 1_000;

/// Minimum rate when all are held, as a part of the rate when few are.
const RATE_LEAST: f64 = 0.8;

/// Maximum time to release everything.
const SHUTDOWN_MOST: Duration = Duration::from_secs(60);

const AT_ONCE: usize = 64;

/// Number of progress lines.
const LINES: u32 = 10;

pub(super) async fn run(count: usize, lasts: Duration) -> Result<bool> {
    if count < 2 * FEW {
        return Err(format!("--held {count}: at least {} to compare rates", 2 * FEW).into());
    }
    let cluster = Cluster::replica_set(1).await?;
    let gauge = Gauge::here(&cluster).await?;
    let database = connect(&cluster.uri(), DATABASE, "holder").await?;
    let locks = LockClient::builder(database.clone()).lease(LEASE).build().await?;
    println!("{count} locks held by one client, with a lease of {LEASE:?}");
    let mut handles = Vec::with_capacity(count);
    let before = gauge.read().await?;
    println!("  before    {before}");
    acquire(&locks, &mut handles, FEW).await?;
    let few = bursts(&locks, FEW).await?;
    acquire(&locks, &mut handles, count - FEW - MEASURED).await?;
    let mut earlier = gauge.read().await?;
    println!("  acquired  {}", earlier.since(&before));
    let many = acquire(&locks, &mut handles, MEASURED).await?;
    println!("  {many:.0} acquires a second at {count} held, without a rest");

    let views: Vec<View<target::Mutex>> = handles.iter().map(Held::<target::Mutex>::view).collect();
    let probe = Probe::start(locks.clone());
    let (mut least_left, mut next) = (Duration::MAX, Instant::now());
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        sleep(Duration::from_millis(500)).await;
        let left = views
            .iter()
            .map(View::<target::Mutex>::safe_for)
            .min()
            .unwrap_or_default();
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
    let rested = bursts(&locks, count).await?;
    println!("  waits for a look at the client from another thread: {waits}");
    let mut lost = BTreeMap::<String, usize>::new();
    for reason in views.iter().filter_map(View::<target::Mutex>::lost_reason) {
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
    let (rate, released) = (rested / few, took <= SHUTDOWN_MOST && held == 0);
    println!(
        "  rate at {count} over the rate at {FEW}: {rate:.2} after a rest (at least {RATE_LEAST}), {:.2} without",
        many / few
    );
    Ok(lost.is_empty() && released && rate >= RATE_LEAST)
}

/// Acquires so many more, and returns their number per second.
async fn acquire(locks: &LockClient, handles: &mut Vec<Held<target::Mutex>>, count: usize) -> Result<f64> {
    let (first, began) = (handles.len(), Instant::now());
    let acquiring = (first..first + count).map(|number| locks.mutex(format!("lock {number}")).acquire());
    let acquired: Vec<Held<target::Mutex>> = stream::iter(acquiring).buffer_unordered(AT_ONCE).try_collect().await?;
    handles.extend(acquired);
    Ok(per_second(count, began))
}

fn per_second(count: usize, began: Instant) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let count = count as f64;
    count / began.elapsed().as_secs_f64()
}

/// Acquires many fresh names at once, several times after a rest, and releases them. Returns the median of their number
/// per second; `beside`: the number of locks that are held beside them.
async fn bursts(locks: &LockClient, beside: usize) -> Result<f64> {
    let mut rates = Vec::new();
    for burst in 0..BURSTS {
        sleep(REST).await;
        let acquiring = (0..MEASURED).map(|number| locks.mutex(format!("beside {beside} {burst} {number}")).acquire());
        let began = Instant::now();
        let acquired: Vec<Held<target::Mutex>> =
            stream::iter(acquiring).buffer_unordered(AT_ONCE).try_collect().await?;
        rates.push(per_second(MEASURED, began));
        let releasing = acquired.into_iter().map(Held::<target::Mutex>::release);
        stream::iter(releasing)
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await?;
    }
    println!("  {rates:.0?} acquires a second at {beside} held, each after a rest");
    rates.sort_by(f64::total_cmp);
    Ok(rates[BURSTS / 2])
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
