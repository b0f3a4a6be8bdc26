//! Processes that drain a collection of events, locked in place, on a real MongoDB: `cargo run --example work_queue`.
//!
//! No preparation is needed: the example finds or installs a server, starts it as a throw-away replica set, and removes
//! it afterwards. With `MONGODB_URI` set it uses that server, in its own database that is dropped at the end.
//!
//! 1. Four processes share the events.
//! 2. Some are killed, and others are started in their place. Another takes over a dead one's event when its lease has
//!    expired.
//! 3. One freezes at its work for longer than its lease. Another does the work, and the thawed process is refused.
//!
//! The example fails if an event was not finished, or finished twice.

use std::time::{Duration, Instant};

use mongodb::{
    Collection, Database,
    bson::{Document, doc},
};
use serde::Deserialize;
use tokio::time::sleep;
use watchlock::{LockClient, documents::DocumentLocks, errors::HoldError};
use watchlock_testkit::stage::{self, Result, Stage};

const EVENTS: i64 = 150;

/// A short lease, as the death of a worker costs its event this long, and somebody is watching. Real programs should
/// use the default, 30 s: a holder also survives an outage of the server this long.
const LEASE: Duration = Duration::from_secs(1);

/// Time to process an event.
const WORK: Duration = Duration::from_millis(80);

/// Maximum time for all events, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An event as the workers read it. They need not know of the lock, which is in the document too.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "_id")]
    id: i64,
}

#[tokio::main]
async fn main() -> Result<()> {
    stage::play("work_queue", scenes, worker).await
}

fn events<T: Send + Sync>(database: &Database) -> Collection<T> {
    database.collection("events")
}

/// What each of the processes does, until it is dismissed.
async fn worker(stage: Stage, label: String) -> Result<()> {
    let database = stage.connect().await?;
    let locks = LockClient::builder(database.clone()).lease(LEASE).label(&label);
    // Its end gives back all holds, so that nobody has to wait for a lease to expire.
    let work = async |locks: LockClient| {
        let events = locks.documents(events(&database));
        tokio::select! {
            worked = drain(&events, &label) => worked,
            () = stage::dismissed() => Ok(()),
        }
    };
    locks.scope(work).await?
}

async fn drain(events: &DocumentLocks<Event>, label: &str) -> Result<()> {
    loop {
        // The first event that is open and that nobody holds. Waits until there is one.
        let event = events.claim(doc! { "done": false }).sort(doc! { "_id": 1 }).await?;
        let id = event.document().id;
        println!("   event {id:>3}  is locked by {label}, token {}", event.token());
        sleep(WORK).await;
        // Made only if the lock is still held at that moment, by the server's clock.
        let done = doc! { "$set": { "done": true, "by": label }, "$inc": { "times": 1 } };
        match event.update(done).await {
            Ok(_) => {}
            // Too late: another worker has it by now.
            Err(HoldError::Lost(_)) => println!("   -> {label} is refused: it has lost event {id}"),
            // Whoever claims the event next sees whether it was made.
            Err(error) => println!("   -> {label}: {error}"),
        }
        // Without an answer the client goes on with it by itself.
        if let Err(error) = event.release().await {
            println!("   -> {label}: {error}");
        }
    }
}

async fn scenes(stage: Stage) -> Result<()> {
    let events: Collection<Document> = events(&stage.connect().await?);
    events
        .insert_many((1..=EVENTS).map(|id| doc! { "_id": id, "done": false }))
        .await?;

    println!("\n1. Four processes share {EVENTS} events\n");
    let mut workers = Vec::new();
    for number in 1..=4 {
        workers.push(stage.start(format!("worker-{number}"))?);
    }
    sleep(WORK * 10).await;

    println!("\n2. Workers are killed (SIGKILL), others replace them; the lease is {LEASE:?}\n");
    for number in 5..=7 {
        let mut killed = workers.remove(0);
        killed.kill().await?;
        println!("   -> {} is dead", killed.label);
        workers.push(stage.start(format!("worker-{number}"))?);
        sleep(WORK * 5).await;
    }

    println!("\n3. A worker freezes (SIGSTOP) for longer than its lease\n");
    workers[0].freeze()?;
    println!("   -> {} is frozen", workers[0].label);
    sleep(LEASE * 2).await;
    workers[0].thaw()?;
    println!("   -> {} has thawed", workers[0].label);

    let since = Instant::now();
    while events.find_one(doc! { "done": false }).await?.is_some() {
        if since.elapsed() > PATIENCE {
            return Err("some events were not processed".into());
        }
        sleep(WORK).await;
    }
    for worker in workers {
        worker.dismiss().await?;
    }
    if let Some(event) = events.find_one(doc! { "times": { "$ne": 1 } }).await? {
        return Err(format!("an event was not finished once: {event}").into());
    }
    println!("\nAll {EVENTS} events were processed, each once.");
    Ok(())
}
