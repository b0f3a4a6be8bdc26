//! One client that holds many locks for several lease periods, while the server is slow.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};
use watchlock::{Held, LockClient, Released, View, locks};
use watchlock_testkit::Cluster;

use super::{
    DATABASE,
    flat::{Bound, Verdict},
    gauge::{Gauge, Sample, Spent},
};
use crate::{Result, client::connect, locks::LOCKS};

/// Shorter than the default, so that several periods do not take long. Everything that follows from it stays as it is:
/// a renewal every fifth of it, and a tenth of it by which clocks may differ.
const LEASE: Duration = Duration::from_secs(10);

/// Additional time for each command of the client that concerns locks.
const SLOW_MILLIS: i64 = 300;

/// Number of periods in which the server is as fast as it can be, for comparison.
const FAST_PERIODS: u32 = 2;

/// Pause between two looks at the remaining time of all holds.
const LOOK: Duration = Duration::from_millis(50);

/// Number of acquires and releases under way at once.
const AT_ONCE: usize = 64;

/// The application name of the client whose commands are slowed.
const LABEL: &str = "holder";

pub(super) async fn run(count: usize, lasts: Duration) -> Result<bool> {
    let cluster = Cluster::replica_set(1).await?;
    let gauge = Gauge::new(&cluster).await?;
    let database = connect(&cluster.uri(), DATABASE, LABEL).await?;
    let locks = LockClient::builder(database.clone()).lease(LEASE).build().await?;

    println!("{count} locks of one client, with a lease of {LEASE:?}");
    let before = gauge.read().await?;
    println!("  before    {before}");
    let acquiring = (0..count).map(|number| locks.mutex(format!("lock {number}")).acquire());
    let handles: Vec<Held<locks::Mutex>> = stream::iter(acquiring).buffer_unordered(AT_ONCE).try_collect().await?;
    let views: Vec<View<locks::Mutex>> = handles.iter().map(Held::<locks::Mutex>::view).collect();
    let mut earlier = gauge.read().await?;
    println!("  acquired  {}", earlier.since(&before));

    for _ in 0..FAST_PERIODS {
        period("held", &gauge, &views, &mut earlier).await?;
    }
    let data = doc! {
        "failCommands": ["update", "findAndModify", "find", "getMore"],
        "blockConnection": true, "blockTimeMS": SLOW_MILLIS, "appName": LABEL,
    };
    let slow = cluster.fail_commands(0, "alwaysOn", data).await?;
    println!("  every command takes {SLOW_MILLIS} ms longer");
    let mut periods = Vec::new();
    let end = Instant::now() + lasts;
    while periods.is_empty() || Instant::now() < end {
        periods.push(period("slow", &gauge, &views, &mut earlier).await?);
    }
    slow.off().await?;

    let lost: Vec<&View<locks::Mutex>> = views.iter().filter(|view| view.lost_reason().is_some()).collect();
    println!("  lost: {}", lost.len());
    for view in lost.iter().take(5) {
        println!("    {}: {:?}", view.name(), view.lost_reason());
    }
    let none_lost = lost.is_empty();

    let released: Vec<Released> = stream::iter(handles.into_iter().map(Held::<locks::Mutex>::release))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let all_released = released.iter().all(|released| *released == Released::Released);
    let later = gauge.read().await?;
    println!("  released  {}", later.since(&earlier));
    let collection = database.collection::<Document>(LOCKS);
    let held = collection
        .count_documents(doc! { "holders.0": { "$exists": true } })
        .await?;
    println!("  still held at the end: {held}");
    let flat = report(&periods);
    locks.shutdown().await;
    drop(locks);
    database.client().clone().shutdown().await;
    Ok(none_lost && all_released && held == 0 && flat)
}

/// The resources that one lease period used.
#[derive(Debug)]
struct Period {
    commands: u64,
    least_left: Duration,
    samples: Vec<Sample>,
}

/// Watches for the time of a lease.
async fn period(label: &str, gauge: &Gauge, views: &[View<locks::Mutex>], earlier: &mut Sample) -> Result<Period> {
    let (start, mut second) = (earlier.at, 0);
    let (mut least_left, mut samples) = (Duration::MAX, Vec::new());
    while start.elapsed() < LEASE {
        let left = views
            .iter()
            .map(View::<locks::Mutex>::safe_for)
            .min()
            .unwrap_or_default();
        least_left = least_left.min(left);
        if start.elapsed().as_secs() > second {
            second = start.elapsed().as_secs();
            samples.push(gauge.read().await?);
        }
        sleep(LOOK).await;
    }
    let later = gauge.read().await?;
    let spent: Spent<'_> = later.since(earlier);
    let commands = spent.commands();
    println!(
        "  {label:<8}  {spent}  {commands} commands in the period, at least {:.2} s left",
        least_left.as_secs_f64()
    );
    *earlier = later;
    Ok(Period {
        commands: commands.unsigned_abs(),
        least_left,
        samples,
    })
}

/// Whether everything stays as it is while the server is slow.
fn report(periods: &[Period]) -> bool {
    let each = |of: fn(&Sample) -> u64| -> Vec<u64> {
        let samples = periods.iter().flat_map(|period| &period.samples);
        samples.map(of).collect()
    };
    let commands: Vec<u64> = periods.iter().map(|period| period.commands).collect();
    // The remaining time must stay as large: the used-up time must not grow.
    let gone = periods.iter().map(|period| LEASE.saturating_sub(period.least_left));
    let gone: Vec<u64> = gone
        .map(|gone| u64::try_from(gone.as_millis()).unwrap_or(u64::MAX))
        .collect();
    let memory = Bound {
        percent: 10,
        and: 16_384,
    };
    let slack = |and| Bound { percent: 20, and };
    let verdicts = [
        Verdict::on("client memory", "KB", &each(|sample| sample.client_memory), memory),
        Verdict::on("server heap", "KB", &each(|sample| sample.server_heap), memory),
        Verdict::on("client tasks", "", &each(|sample| sample.tasks as u64), slack(15)),
        Verdict::on("commands in a period", "", &commands, slack(10)),
        Verdict::on("the most of a lease gone", "ms", &gone, slack(200)),
    ];
    verdicts.into_iter().flatten().fold(true, |flat, verdict| {
        println!("  {verdict}");
        flat && verdict.is_flat()
    })
}
