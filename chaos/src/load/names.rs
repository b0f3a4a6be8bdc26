//! Many names that are used once each. The document of a name is purged after its retention, so only the names of the
//! last minute or so take room, however many there have been.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::try_join_all;
use mongodb::{
    Database,
    bson::{Document, doc},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use watchlock::{FencingToken, LockClient, Released};
use watchlock_testkit::Cluster;

use super::{
    DATABASE,
    flat::{Bound, Verdict},
    gauge::{Gauge, Sample, number},
};
use crate::{Result, client::connect, locks::LOCKS};

const LEASE: Duration = Duration::from_secs(5);

/// The shortest there is.
const RETENTION: Duration = Duration::from_secs(60);

/// Maximum delay of a purge: with the pause that is set here the server looks every second, and then has as much to do
/// as was used in a second.
const LATE: Duration = Duration::from_secs(30);

/// Clients, and their tasks that use one name after the other.
const CLIENTS: usize = 4;
const TASKS: usize = 16;

/// One name of so many is used again just as it is about to be purged.
const RETURNING: u64 = 100;

/// The time around the purge in which that happens.
const AROUND: Duration = Duration::from_secs(4);

/// The pause between two samples, and how many make a line.
const SAMPLED: Duration = Duration::from_secs(2);
const A_LINE: usize = 10;

/// A name that was used, and will be used again.
#[derive(Debug)]
struct Used {
    name: String,
    token: FencingToken,
    at: Instant,
}

/// The state at some moment.
#[derive(Debug)]
struct Reading {
    sample: Sample,
    used: u64,
    documents: u64,
    /// In bytes: the documents, and the files with the indexes.
    size: u64,
    stored: u64,
}

pub(super) async fn run(count: u64) -> Result<bool> {
    let cluster = Cluster::builder()
        .replica_set(1)
        .args(["--setParameter=ttlMonitorSleepSecs=1"])
        .start()
        .await?;
    let gauge = Gauge::here(&cluster).await?;
    let database = connect(&cluster.uri(), DATABASE, "names").await?;
    let clients: Vec<LockClient> = try_join_all((0..CLIENTS).map(async |_| {
        let builder = LockClient::builder(database.clone());
        builder.lease(LEASE).retention(RETENTION).build().await
    }))
    .await?;
    // A document that is used once is kept for an eighth more than was asked.
    let kept = (LEASE + RETENTION) * 9 / 8;
    println!("{count} names, each used once by one of {CLIENTS} clients, and kept for {kept:?} after its last use");
    println!("  before  {}", gauge.read().await?);

    let used = Arc::new(AtomicU64::new(0));
    let (again, returning) = mpsc::unbounded_channel();
    let start = Instant::now();
    let tasks: Vec<_> = (clients.iter().cycle().take(CLIENTS * TASKS))
        .map(|locks| tokio::spawn(use_names(locks.clone(), used.clone(), count, again.clone())))
        .collect();
    drop(again);
    let returning = tokio::spawn(use_again(clients[0].clone(), returning, kept));
    let using = tokio::spawn(async move {
        for task in try_join_all(tasks).await? {
            task?;
        }
        let took = start.elapsed();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((took, returning.await??))
    });

    // Until nothing is left, or should not be any more.
    let mut readings: Vec<Reading> = Vec::new();
    let mut done_at = None;
    loop {
        let reading = read(&gauge, &database, &used, count).await?;
        if using.is_finished() {
            done_at.get_or_insert(reading.sample.at);
        }
        let empty = reading.documents == 0;
        readings.push(reading);
        let over = done_at.is_some_and(|done_at: Instant| empty || done_at.elapsed() > kept + LATE);
        if readings.len() > 1 && ((readings.len() - 1).is_multiple_of(A_LINE) || over) {
            let told = (readings.len() - 1).saturating_sub(A_LINE);
            println!("{}", line(start, &readings[told], &readings[readings.len() - 1]));
        }
        if over {
            break;
        }
        sleep_until(start + SAMPLED * u32::try_from(readings.len()).unwrap_or(u32::MAX)).await;
    }
    let (took, returned) = using.await??;
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let rate = count as f64 / took.as_secs_f64();
    println!("  {count} names in {:.1} s: {rate:.0} a second", took.as_secs_f64());
    println!("  {returned} of them used again as they were about to be purged, under larger tokens");
    for locks in clients {
        locks.shutdown().await;
    }
    database.client().clone().shutdown().await;
    Ok(report(&readings, kept, took))
}

/// Uses names that nobody has used before.
async fn use_names(
    locks: LockClient,
    used: Arc<AtomicU64>,
    count: u64,
    again: mpsc::UnboundedSender<Used>,
) -> Result<()> {
    loop {
        let number = used.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return Ok(());
        }
        let name = format!("name {number}");
        let handle = locks.mutex(&name).acquire().await?;
        let token = handle.token();
        if handle.release().await? != Released::Released {
            return Err(format!("`{name}` was lost").into());
        }
        if number.is_multiple_of(RETURNING) {
            let at = Instant::now();
            again.send(Used { name, token, at })?;
        }
    }
}

/// Uses names again when they are about to be purged: before, after, or at the very moment.
async fn use_again(locks: LockClient, mut returning: mpsc::UnboundedReceiver<Used>, kept: Duration) -> Result<u64> {
    let mut uses: JoinSet<Result<()>> = JoinSet::new();
    let mut returned = 0;
    while let Some(Used { name, token, at }) = returning.recv().await {
        let due = at + kept - AROUND / 4 + AROUND * u32::try_from(returned % 16)? / 16;
        returned += 1;
        let mutex = locks.mutex(&name);
        uses.spawn(async move {
            sleep_until(due).await;
            let handle = mutex.acquire().await?;
            if handle.token() <= token {
                return Err(format!("`{name}` went under {} after {token}", handle.token()).into());
            }
            // Held, it is not purged.
            sleep(AROUND / 2).await;
            match handle.release().await? {
                Released::Released => Ok(()),
                _ => Err(format!("`{name}` was lost").into()),
            }
        });
        while let Some(done) = uses.try_join_next() {
            done??;
        }
    }
    while let Some(done) = uses.join_next().await {
        done??;
    }
    Ok(returned)
}

async fn read(gauge: &Gauge, database: &Database, used: &AtomicU64, count: u64) -> Result<Reading> {
    let sample = gauge.read().await?;
    let used = used.load(Ordering::Relaxed).min(count);
    // There is no collection at first.
    let stats = database.run_command(doc! { "collStats": LOCKS });
    let stats: Document = stats.await.unwrap_or_default();
    let figure = |name| number(&stats, &[name]).unsigned_abs();
    Ok(Reading {
        sample,
        used,
        documents: figure("count"),
        size: figure("size"),
        stored: figure("storageSize") + figure("totalIndexSize"),
    })
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn line(start: Instant, earlier: &Reading, later: &Reading) -> String {
    let seconds = (later.sample.at - earlier.sample.at).as_secs_f64().max(f64::EPSILON);
    const MB: f64 = 1_048_576.0;
    format!(
        "  {:>6.0} s  {:>8} names ({:>6.1}/s)  {:>7} documents, {:>5.1} MB, {:>5.1} MB with indexes on disk  \
         server {:>3.0} % of a core, {:>4} MB ({} MB heap)  client {:>3.0} %, {:>3} MB, {} tasks",
        (later.sample.at - start).as_secs_f64(),
        later.used,
        (later.used - earlier.used) as f64 / seconds,
        later.documents,
        later.size as f64 / MB,
        later.stored as f64 / MB,
        later.sample.since(&earlier.sample).server_load(),
        later.sample.server_memory / 1024,
        later.sample.server_heap / 1024,
        later.sample.since(&earlier.sample).client_load(),
        later.sample.client_memory / 1024,
        later.sample.tasks,
    )
}

/// Whether the stored data is bounded by recent use, nothing is left, and the client keeps nothing of it.
fn report(readings: &[Reading], kept: Duration, took: Duration) -> bool {
    // A returning name is kept again: for these twice the time.
    let long_ago = |at: Instant, ago: Duration| {
        let before = readings.iter().take_while(|reading| reading.sample.at + ago <= at);
        before.last().map_or(0, |reading| reading.used)
    };
    let excess = readings.iter().map(|reading| {
        let at = reading.sample.at;
        let of_late = reading.used - long_ago(at, kept + LATE);
        let returned = (reading.used - long_ago(at, 2 * kept + 2 * AROUND + LATE)) / RETURNING + 1;
        reading.documents.saturating_sub(of_late + returned)
    });
    let excess = excess.max().unwrap_or(0);
    let most = readings.iter().map(|reading| reading.documents).max().unwrap_or(0);
    println!(
        "  at most {most} documents; beyond those of the last {:?}: {excess}",
        kept + LATE
    );
    let left = readings.last().map_or(0, |reading| reading.documents);
    println!("  left at the end: {left}");
    let begin = readings.first().map(|reading| reading.sample.at);
    let steady: Vec<&Reading> = readings
        .iter()
        .filter(|reading| begin.is_some_and(|begin| (kept + LATE..took).contains(&(reading.sample.at - begin))))
        .collect();
    let series = |of: fn(&Reading) -> u64| -> Vec<u64> { steady.iter().map(|reading| of(reading)).collect() };
    let memory = Bound {
        percent: 10,
        and: 8_192,
    };
    let slack = |and| Bound { percent: 25, and };
    let verdicts = [
        (
            "client memory",
            "KB",
            series(|reading| reading.sample.client_memory),
            memory,
        ),
        (
            "client tasks",
            "",
            series(|reading| reading.sample.tasks as u64),
            slack(15),
        ),
        ("on disk", "KB", series(|reading| reading.stored / 1024), slack(4_096)),
    ];
    let mut flat = true;
    for (what, unit, readings, bound) in &verdicts {
        match Verdict::on(what, unit, readings, *bound) {
            Some(verdict) => {
                println!("  {verdict}");
                flat &= verdict.is_flat();
            }
            None => println!("  {what}: it did not take long enough to tell"),
        }
    }
    flat && excess == 0 && left == 0
}
