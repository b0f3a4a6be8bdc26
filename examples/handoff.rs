//! Processes that hand one lock to each other, on a real MongoDB: `cargo run --example handoff`.
//!
//! No preparation is needed: the example finds or installs a server, starts it as a throw-away replica set, and removes
//! it afterwards. With `MONGODB_URI` set it uses that server, in its own database that is dropped at the end.
//!
//! 1. Three processes contend for one lock.
//! 2. The holder is killed, and another takes over when its lease has expired.
//! 3. Another program deletes the lock's document, and the holder finds out.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use tokio::time::{sleep, timeout};
use watchlock::{
    FencingToken, LockClient,
    operate::{Events, HolderInfo, LockEvent, OwnerInfo},
};
use watchlock_testkit::stage::{self, Result, Stage};

const LOCK: &str = "invoice-42";

/// A short lease, as the death of a holder costs this long, and somebody is watching. Real programs should use the
/// default, 30 s: a holder also survives an outage of the server this long.
const LEASE: Duration = Duration::from_secs(2);

/// Time for which the lock is held.
const WORK: Duration = Duration::from_millis(200);

/// Maximum time without a grant, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<()> {
    stage::play("handoff", scenes, worker).await
}

/// What each of the processes does.
async fn worker(stage: Stage, label: String) -> Result<()> {
    let locks = LockClient::builder(stage.connect().await?).lease(LEASE).label(&label);
    // Its end gives back all holds and queue positions, so that nobody has to wait for a lease to expire.
    let work = async |locks: LockClient| {
        tokio::select! {
            worked = contend(&locks, &label) => worked,
            () = stage::dismissed() => Ok(()),
        }
    };
    locks.scope(work).await?
}

async fn contend(locks: &LockClient, label: &str) -> Result<()> {
    for page in 1_u32.. {
        let held = locks.mutex(LOCK).acquire().reason(format!("page {page}")).await?;
        tokio::select! {
            () = sleep(WORK) => {
                // Without an answer the client goes on with it by itself.
                if let Err(error) = held.release().await {
                    println!("   -> {label}: {error}");
                }
            }
            lost = held.lost() => println!("   -> {label} has lost the lock: {}", lost.reason),
        }
    }
    Ok(())
}

async fn scenes(stage: Stage) -> Result<()> {
    let database = stage.connect().await?;
    let locks = LockClient::builder(database.clone()).build().await?;
    let (events, last) = (locks.watch(LOCK), None);
    let mut grants = Grants { events, last };

    println!("\n1. Separate processes contend for the lock `{LOCK}`\n");
    let labels = ["worker-1", "worker-2", "worker-3"];
    let mut workers = labels
        .map(|label| stage.start(label))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    for _ in 0..9 {
        grants.next().await?;
    }

    println!("\n2. The holder is killed (SIGKILL); its lease is {LEASE:?}\n");
    let holder = grants.next().await?.owner.label;
    let at = workers.iter().position(|worker| Some(&worker.label) == holder.as_ref());
    let mut killed = workers.remove(at.ok_or("somebody else holds the lock")?);
    let since = Instant::now();
    killed.kill().await?;
    println!("   -> {} is dead", killed.label);
    grants.next().await?;
    println!("   -> taken over after {:.2?}", since.elapsed());

    println!("\n3. Another program deletes the document of the lock\n");
    let documents = database.collection::<Document>("distributed_locks");
    documents.delete_one(doc! { "_id": LOCK }).await?;
    grants.next().await?;
    for worker in workers {
        worker.dismiss().await?;
    }
    locks.shutdown().await;
    Ok(())
}

/// The grants of the lock, as an operator sees them.
struct Grants {
    events: Events<LockEvent>,
    last: Option<FencingToken>,
}

impl Grants {
    /// Waits for the next grant, and shows it.
    async fn next(&mut self) -> Result<HolderInfo> {
        loop {
            let event = timeout(PATIENCE, self.events.next()).await?;
            let LockEvent::Granted { holder, waiting, .. } = event.ok_or("the events have ended")?? else {
                continue;
            };
            let OwnerInfo {
                host,
                pid,
                label,
                reason,
                ..
            } = &holder.owner;
            let (label, reason) = (label.as_deref().unwrap_or("-"), reason.as_deref().unwrap_or("-"));
            println!(
                "   {host}/{pid}/{label}  token {}  {reason}, {waiting} waiting",
                holder.token
            );
            if self.last.replace(holder.token).is_some_and(|last| last >= holder.token) {
                return Err("the token did not rise".into());
            }
            return Ok(*holder);
        }
    }
}
