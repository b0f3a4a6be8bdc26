//! A normal hour of several services: locks of every kind and length, clients that come, go and die, and streams that
//! break. Nothing may grow, nobody may lose a lock or wait for ever, and nothing may be left. Whether two ever hold a lock
//! at once is what the runs with faults are judged by.

mod flat;
mod gauge;
mod mixture;
mod service;
mod trouble;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    client::connect,
    locks::{JOBS, LOCKS},
    random::Random,
    streams,
};
use flat::{Bound, Verdict};
use gauge::{Gauge, Sample};
use service::{LEASE, RETENTION, Service};

const DATABASE: &str = "soak";

/// Number of services that are there all the time.
const SERVICES: u64 = 3;

/// Number of samples in all, if that is neither too often nor too seldom.
const SAMPLES: u32 = 240;

/// Number of lines that show them.
const LINES: usize = 20;

/// Maximum number of complaints that are printed; the others are counted.
const TOLD: u64 = 20;

/// Maximum time for tasks of gone clients to go on.
const FAREWELL: Duration = Duration::from_secs(30);

/// Maximum delay of a purge, with the pause between two looks that is set here.
const PURGED: Duration = Duration::from_secs(10);

/// A counter of many tasks.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::Relaxed) + more
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The record of the work.
#[derive(Debug, Default)]
struct Tally {
    operations: Count,
    names: Count,
    /// Updates of documents under their locks that were acknowledged.
    counted: Count,
    kills: Count,
    visits: Count,
    deaths: Count,
    /// The cursors that dead clients have left.
    abandoned: Mutex<Vec<i64>>,
    /// While it is locked no stream is killed.
    calm: tokio::sync::Mutex<()>,
    complaints: Count,
}

impl Tally {
    fn complain(&self, what: String) {
        if self.complaints.add(1) <= TOLD {
            println!("  !! {what}");
        }
    }

    fn abandoned(&self) -> MutexGuard<'_, Vec<i64>> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sample, and the other figures that must stay flat.
#[derive(Debug)]
struct Reading {
    sample: Sample,
    documents: u64,
    operations: u64,
}

pub(crate) async fn run(lasts: Duration, seed: u64) -> Result<bool> {
    // A dead client's stream stays open at the server until its session is over: half an hour, unless told otherwise.
    // No less than this, or the driver would use no session twice.
    let cluster = Cluster::builder()
        .replica_set(1)
        .args([
            "--setParameter=localLogicalSessionTimeoutMinutes=3",
            "--setParameter=logicalSessionRefreshMillis=10000",
            "--setParameter=ttlMonitorSleepSecs=5",
        ])
        .start()
        .await?;
    let uri = cluster.uri();
    let operator = connect(&uri, DATABASE, "operator").await?;
    let jobs = operator.collection::<Document>(JOBS);
    jobs.insert_many(mixture::documents()).await?;
    let gauge = Gauge::new(&cluster).await?;
    let before = gauge.read().await?;
    println!("soak: {SERVICES} services for {lasts:?}, seed {seed}");
    println!("  before: {} tasks", before.tasks);

    let tally = Arc::new(Tally::default());
    let (stop, stopping) = watch::channel(false);
    let mut services = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..SERVICES {
        let service = Arc::new(Service::start(&uri, format!("service-{number}"), &tally).await?);
        for (stream, work) in (1_000 * number..).zip(mixture::MIXTURE) {
            let random = Random::new(seed, stream);
            tasks.push(tokio::spawn(work.go_on(
                service.clone(),
                tally.clone(),
                random,
                stopping.clone(),
            )));
        }
        services.push(service);
    }
    tasks.push(tokio::spawn(mixture::observe(services[0].clone(), stopping.clone())));
    let troubles: Vec<_> = (10_000..)
        .zip(trouble::ALL)
        .map(|(stream, trouble)| {
            let random = Random::new(seed, stream);
            tokio::spawn(trouble.go_on(uri.clone(), tally.clone(), random, stopping.clone()))
        })
        .collect();

    let readings = sample(&gauge, &operator, &tally, lasts).await?;

    stop.send_replace(true);
    for task in tasks {
        task.await?;
    }
    for trouble in troubles {
        trouble.await??;
    }
    for service in services {
        match Arc::into_inner(service) {
            Some(service) => service.end().await,
            None => tally.complain("a task outlived its end".to_owned()),
        }
    }
    leftovers(&gauge, &operator, &before, &tally).await?;
    let counts: Vec<Document> = jobs.find(doc! {}).await?.try_collect().await?;
    let counted: i64 = counts.iter().filter_map(|job| job.get_i64("count").ok()).sum();
    if u64::try_from(counted).ok() != Some(tally.counted.get()) {
        let acknowledged = tally.counted.get();
        tally.complain(format!("documents count {counted}, acknowledged were {acknowledged}"));
    }
    Ok(report(lasts, &readings, &tally))
}

/// Takes samples again and again.
async fn sample(gauge: &Gauge, operator: &mongodb::Database, tally: &Tally, lasts: Duration) -> Result<Vec<Reading>> {
    let locks = operator.collection::<Document>(LOCKS);
    let interval = (lasts / SAMPLES).clamp(Duration::from_millis(250), Duration::from_secs(15));
    let start = Instant::now();
    let mut readings: Vec<Reading> = Vec::new();
    let mut told = 0;
    loop {
        let reading = Reading {
            sample: gauge.read().await?,
            documents: locks.estimated_document_count().await?,
            operations: tally.operations.get(),
        };
        readings.push(reading);
        let every = (lasts.as_millis() / interval.as_millis()) as usize / LINES;
        if readings.len() > told + every.max(1) {
            println!("{}", line(&readings[told], &readings[readings.len() - 1]));
            told = readings.len() - 1;
        }
        if start.elapsed() >= lasts {
            return Ok(readings);
        }
        sleep_until(start + interval * u32::try_from(readings.len()).unwrap_or(u32::MAX)).await;
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn line(earlier: &Reading, later: &Reading) -> String {
    let seconds = (later.sample.at - earlier.sample.at).as_secs_f64();
    let Sample {
        client_memory,
        server_heap,
        cursors,
        connections,
        sessions,
        tasks,
        ..
    } = &later.sample;
    let locks = (later.operations - earlier.operations) as f64 / seconds;
    format!(
        "  {seconds:>6.1} s  {locks:>5.1} locks/s  client {} MB  server {} MB heap  {} documents  {cursors} cursors  \
         {connections} connections  {sessions} sessions  {tasks} tasks",
        client_memory / 1024,
        server_heap / 1024,
        later.documents,
    )
}

/// Checks that after everything is given back, nothing is left but the holds of dead clients, and those not for long.
async fn leftovers(gauge: &Gauge, operator: &mongodb::Database, before: &Sample, tally: &Tally) -> Result<()> {
    let deadline = Instant::now() + FAREWELL + LEASE;
    let locks = operator.collection::<Document>(LOCKS);
    // An expired holder stays in the document until somebody comes: nobody may, after a death in the last seconds.
    let live = |list: &str| doc! { "$gt": [{ "$max": format!("${list}.until") }, "$$NOW"] };
    let taken = doc! { "$expr": { "$or": [live("holders"), live("queue")] } };
    loop {
        let mut left = Vec::new();
        let tasks = gauge.read().await?.tasks;
        if tasks > before.tasks {
            left.push(format!("{tasks} tasks after {} before", before.tasks));
        }
        let streams = streams::find(operator.client(), 0, DATABASE).await?;
        let open = streams.iter().filter(|stream| !tally.abandoned().contains(&stream.id));
        left.extend(open.map(|stream| format!("a change stream of `{}`", stream.of)));
        let held: Vec<Document> = locks.find(taken.clone()).await?.try_collect().await?;
        left.extend(held.iter().map(|lock| format!("a lock that is not idle: {lock}")));
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            left.into_iter()
                .for_each(|what| tally.complain(format!("left: {what}")));
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Reports growth, and the results.
fn report(lasts: Duration, readings: &[Reading], tally: &Tally) -> bool {
    let series = |of: fn(&Reading) -> u64| -> Vec<u64> { readings.iter().map(of).collect() };
    let bound = |percent, and| Bound { percent, and };
    let verdicts = [
        (
            "client memory",
            "KB",
            series(|reading| reading.sample.client_memory),
            bound(10, 8_192),
        ),
        (
            "server heap",
            "KB",
            series(|reading| reading.sample.server_heap),
            bound(10, 8_192),
        ),
        (
            "server cursors",
            "",
            series(|reading| reading.sample.cursors.unsigned_abs()),
            bound(10, 5),
        ),
        (
            "server connections",
            "",
            series(|reading| reading.sample.connections.unsigned_abs()),
            bound(10, 10),
        ),
        (
            "server sessions",
            "",
            series(|reading| reading.sample.sessions.unsigned_abs()),
            bound(10, 30),
        ),
        (
            "client tasks",
            "",
            series(|reading| reading.sample.tasks as u64),
            bound(10, 15),
        ),
        ("documents", "", series(|reading| reading.documents), bound(20, 100)),
    ];
    // With the eighth that is kept in reserve.
    let until_purged = (RETENTION + LEASE) * 9 / 8 + PURGED;
    let mut flat = true;
    for (what, unit, readings, bound) in &verdicts {
        if *what == "documents" && lasts / 4 < until_purged {
            println!("  {what}: none is purged before {until_purged:?}, so a quarter must be as long to tell");
            continue;
        }
        let verdict = match *what {
            "client tasks" => Verdict::on_the_least(what, unit, readings, *bound),
            _ => Verdict::on(what, unit, readings, *bound),
        };
        match verdict {
            Some(verdict) => {
                println!("  {verdict}");
                flat &= verdict.is_flat();
            }
            None => println!("  {what}: too few samples"),
        }
    }
    let (kills, visits, deaths) = (tally.kills.get(), tally.visits.get(), tally.deaths.get());
    println!(
        "  {} locks had, {} names used once; {kills} streams killed, {visits} clients came and went, {deaths} died",
        tally.operations.get(),
        tally.names.get(),
    );
    println!("  broken promises: {}", tally.complaints.get());
    flat && tally.complaints.get() == 0
}
