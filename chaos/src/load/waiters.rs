//! Many tasks of one client that wait for one lock; then each gets it, in turn.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use tokio::time::sleep;
use watchlock::LockClient;
use watchlock_testkit::Cluster;

use super::{DATABASE, SAMPLES, gauge::Gauge};
use crate::{Result, client::connect};

pub(super) async fn run(count: usize, lasts: Duration) -> Result<bool> {
    let cluster = Cluster::replica_set(1).await?;
    let gauge = Gauge::here(&cluster).await?;
    let client = async |label| -> Result<(mongodb::Client, LockClient)> {
        let database = connect(&cluster.uri(), DATABASE, label).await?;
        Ok((database.client().clone(), LockClient::builder(database).build().await?))
    };
    let (holding, holder) = client("holder").await?;
    let (waiting, locks) = client("waiters").await?;

    println!("one lock, {count} tasks of one client wait for it");
    let held = holder.mutex("one").acquire().await?;
    let before = gauge.read().await?;
    println!("  before     {before}");
    let mut tasks = Vec::new();
    for _ in 0..count {
        // It gets in line with the first poll, so this is the order in which they ask.
        let mut acquire = locks.mutex("one").acquire();
        let asked = poll_fn(|context| Poll::Ready(Pin::new(&mut acquire).poll(context))).await;
        if asked.is_ready() {
            return Err("a lock that is held was to be had".into());
        }
        tasks.push(tokio::spawn(async move {
            let handle = acquire.await?;
            let token = handle.token();
            handle.release().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(token)
        }));
    }
    while holder.inspect("one").await?.is_none_or(|lock| lock.waiters.is_empty()) {
        sleep(Duration::from_millis(20)).await;
    }
    let mut earlier = gauge.read().await?;
    for _ in 0..SAMPLES {
        sleep(lasts / SAMPLES).await;
        let later = gauge.read().await?;
        println!("  all wait   {}", later.since(&earlier));
        earlier = later;
    }
    let queue = holder.inspect("one").await?.map_or(0, |lock| lock.waiters.len());
    println!("  in the server's queue: {queue}");

    held.release().await?;
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await??);
    }
    let later = gauge.read().await?;
    let spent = later.since(&earlier);
    println!("  all served {spent}");
    println!("  commands for each: {:.2}", spent.commands_per(count));
    let fair = tokens.is_sorted_by(|earlier, later| earlier < later);
    println!(
        "  in the order in which they asked, with rising tokens: {}",
        if fair { "yes" } else { "NO" }
    );
    let idle = holder.mutex("one").try_acquire().await?.is_some();
    println!("  free at the end: {}", if idle { "yes" } else { "NO" });
    locks.shutdown().await;
    holder.shutdown().await;
    drop((locks, holder));
    waiting.shutdown().await;
    holding.shutdown().await;
    let after = gauge.read().await?;
    println!("  after      {after}");
    Ok(fair && idle && queue == 1)
}
