//! Wake-ups and losses: how soon a waiter gets a lock, and how soon a holder learns that it lost one.
//!
//! The measure is the raw hop: the time from the begin of a write until a change stream of the driver shows it.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use tokio::time::{sleep, timeout};
use watchlock::{Held, LockClient, locks, operate::WakeMode};

use super::{
    ground::{Ground, told},
    report::{Check, millis},
    server::median,
};
use crate::{connection::to_its_end, exit::Failure, text::span_of};

pub(super) const SECTION: &str = "wake-ups and losses";

/// Samples of each latency.
const SAMPLES: usize = 5;

/// Lease of the holds that are lost: they have to be told within it.
const LEASE: Duration = Duration::from_secs(3);

/// Beyond the end of a lease, a waiter is given the lock within this time: the default skew margin and a round trip.
const MARGIN: Duration = Duration::from_secs(3);

/// Time for a waiter to be in the queue.
const QUEUED: Duration = Duration::from_millis(100);

/// Maximum time for an event of a raw change stream.
const RAW: Duration = Duration::from_secs(10);

pub(super) async fn run(ground: &Ground<'_>, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let (holder, waiter) = (ground.client().await?, ground.client().await?);
    let database = ground.database().clone();
    let hello = told(to_its_end(async move { database.run_command(doc! { "hello": 1 }).await }).await?)?;
    // Any other server has change streams.
    let is_standalone = !hello.contains_key("setName") && !hello.contains_key("msg");
    let missing = |name, why: String| match is_standalone {
        true => Check::skipped(
            SECTION,
            name,
            format!("a standalone server has no change streams: {why}"),
        ),
        false => Check::broken(SECTION, name, why),
    };
    checks.push(raw_hop(ground).await?.unwrap_or_else(|why| missing("raw hop", why)));
    // Its stream is opened for the first waiter.
    checks.push(hand_over(&holder, &waiter).await?);
    let mode = waiter.wake_mode();
    checks.push(match mode {
        WakeMode::Polling { .. } => missing("streams", format!("waiters poll: {mode:?}")),
        _ => Check::kept(SECTION, "streams", format!("{mode:?}")),
    });
    for loss in [Loss::Broken, Loss::Deleted, Loss::Overwritten] {
        checks.push(lost(ground, &holder, &waiter, loss).await?);
    }
    checks.push(expiry(ground, &waiter).await?);
    checks.push(killed_cursor(ground, &holder, &waiter).await?);
    Ok(())
}

/// Measures the raw hop, or returns why it can't be.
async fn raw_hop(ground: &Ground<'_>) -> Result<Result<Check, String>, Failure> {
    let name = "raw hop";
    let collection = ground.collection("written");
    let watched = collection.clone();
    let mut stream = match to_its_end(async move { watched.watch().await }).await? {
        Ok(stream) => stream,
        Err(error) => {
            return Ok(Err(format!("no change stream: {}", Failure::driver(&error).message())));
        }
    };
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let (begun, written) = (Instant::now(), collection.clone());
        told(to_its_end(async move { written.insert_one(doc! {}).await }).await?)?;
        use futures::StreamExt as _;
        match timeout(RAW, stream.next()).await {
            Ok(Some(event)) => drop(told(event)?),
            _ => return Ok(Err(format!("no event within {}", span_of(RAW)))),
        }
        samples.push(begun.elapsed());
    }
    Ok(Ok(Check::noted(SECTION, name, latency(&mut samples))))
}

fn latency(samples: &mut [Duration]) -> String {
    let (middle, most) = (median(samples), samples.iter().max().copied().unwrap_or_default());
    format!("median {}, at most {}", millis(middle), millis(most))
}

async fn hand_over(holder: &LockClient, waiter: &LockClient) -> Result<Check, Failure> {
    let name = "hand-over";
    let mut samples = Vec::new();
    for number in 0..SAMPLES {
        let lock = format!("hand-over {number}");
        let held = holder.mutex(&lock).acquire().await?;
        let waiting = waiter.mutex(&lock).acquire().timeout(LEASE + MARGIN);
        let waiting = tokio::spawn(async move { (waiting.await, Instant::now()) });
        sleep(QUEUED).await;
        let begun = Instant::now();
        drop(held.release().await);
        let (got, at) = ended(waiting).await?;
        drop(got?.release().await);
        samples.push(at.saturating_duration_since(begun));
    }
    Ok(Check::kept(SECTION, name, latency(&mut samples)))
}

/// How a lock is taken away.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Broken,
    Deleted,
    Overwritten,
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Self::Broken => "loss by a break",
            Self::Deleted => "loss by a deletion",
            Self::Overwritten => "loss by overwriting",
        }
    }
}

async fn lost(ground: &Ground<'_>, holder: &LockClient, other: &LockClient, loss: Loss) -> Result<Check, Failure> {
    let mut samples = Vec::new();
    for number in 0..SAMPLES {
        let lock = format!("{} {number}", loss.name());
        let held = holder.mutex(&lock).acquire().lease(LEASE).await?;
        let told_at = telling(&held);
        // The news of one's own grant is over.
        sleep(QUEUED).await;
        let begun = Instant::now();
        match loss {
            Loss::Broken => drop(other.break_lock(&lock).await?),
            Loss::Deleted => {
                let documents = ground.locks();
                told(to_its_end(async move { documents.delete_one(doc! { "_id": lock }).await }).await?)?;
            }
            Loss::Overwritten => {
                let documents = ground.locks();
                let change = doc! { "$set": { "holders": [] } };
                told(to_its_end(async move { documents.update_one(doc! { "_id": lock }, change).await }).await?)?;
            }
        }
        let Ok(at) = timeout(LEASE + MARGIN, told_at).await else {
            let found = format!("the holder did not learn of it within its lease of {}", span_of(LEASE));
            return Ok(Check::broken(SECTION, loss.name(), found));
        };
        samples.push(ended(async { at }).await?.saturating_duration_since(begun));
    }
    Ok(Check::kept(SECTION, loss.name(), latency(&mut samples)))
}

/// Returns the time at which a holder learns of its loss.
fn telling(held: &Held<locks::Mutex>) -> tokio::task::JoinHandle<Instant> {
    let view = held.view();
    tokio::spawn(async move {
        view.lost().await;
        Instant::now()
    })
}

/// Checks that a hold which is not renewed ends, and not before its holder knows.
async fn expiry(ground: &Ground<'_>, waiter: &LockClient) -> Result<Check, Failure> {
    let name = "expiry";
    let begun = Instant::now();
    // Nobody renews it, as if its process had died.
    let held = ground.client().await?.mutex(name).acquire().fixed(LEASE).await?;
    let waiting = waiter.mutex(name).acquire().timeout(2 * LEASE + MARGIN);
    let got = waiting.await;
    let (took, is_held) = (begun.elapsed(), held.is_held());
    let Ok(got) = got else {
        let found = format!("nobody else got the lock within {}", span_of(2 * LEASE + MARGIN));
        return Ok(Check::broken(SECTION, name, found));
    };
    drop(got.release().await);
    if is_held {
        let found = "somebody else has the lock, and its earlier holder believes in it";
        return Ok(Check::broken(SECTION, name, found));
    }
    if took < LEASE {
        let found = "somebody else got the lock before the end of the lease";
        return Ok(Check::broken(SECTION, name, found));
    }
    let found = format!(
        "handed over {} after the end of a lease",
        millis(took.saturating_sub(LEASE))
    );
    Ok(Check::kept(SECTION, name, found))
}

/// Checks that locks go on being handed over after the server killed the streams' cursors.
async fn killed_cursor(ground: &Ground<'_>, holder: &LockClient, waiter: &LockClient) -> Result<Check, Failure> {
    let name = "killed streams";
    let admin = ground.database().client().database("admin");
    let namespace = ground.locks().namespace().to_string();
    let held = holder.mutex(name).acquire().await?;
    let waiting = waiter.mutex(name).acquire().timeout(LEASE + MARGIN);
    let waiting = tokio::spawn(async move { waiting.await.map(|got| (got, Instant::now())) });
    sleep(QUEUED).await;
    let listing = async move {
        let pipeline = vec![
            doc! { "$currentOp": { "idleCursors": true, "localOps": false } },
            doc! { "$match": { "ns": namespace, "cursor.cursorId": { "$exists": true } } },
        ];
        use futures::TryStreamExt as _;
        let found: Vec<Document> = admin.aggregate(pipeline).await?.try_collect().await?;
        Ok(found)
    };
    let found = match to_its_end(listing).await? {
        Ok(found) => found,
        Err(error) => {
            drop(held.release().await);
            let why = format!("the cursors are not visible: {}", Failure::driver(&error).message());
            return Ok(Check::skipped(SECTION, name, why));
        }
    };
    let cursors: Vec<i64> = found
        .iter()
        .filter_map(|operation| operation.get_document("cursor").ok()?.get_i64("cursorId").ok())
        .collect();
    if cursors.is_empty() {
        drop(held.release().await);
        return Ok(Check::skipped(SECTION, name, "no cursors are to be seen"));
    }
    let count = cursors.len();
    let command = doc! { "killCursors": ground.locks().name(), "cursors": cursors };
    let database = ground.database().clone();
    if let Err(error) = to_its_end(async move { database.run_command(command).await }).await? {
        drop(held.release().await);
        let why = format!("they can't be killed: {}", Failure::driver(&error).message());
        return Ok(Check::skipped(SECTION, name, why));
    }
    let begun = Instant::now();
    drop(held.release().await);
    let Ok((got, at)) = ended(waiting).await? else {
        let found = format!("a waiter got no lock within {} of it", span_of(LEASE + MARGIN));
        return Ok(Check::broken(SECTION, name, found));
    };
    drop(got.release().await);
    let found = format!(
        "{count} killed, and a hand-over right after it in {}",
        millis(at - begun)
    );
    Ok(Check::kept(SECTION, name, found))
}

/// Returns the value of a task.
async fn ended<T>(task: impl Future<Output = Result<T, tokio::task::JoinError>>) -> Result<T, Failure> {
    task.await
        .map_err(|stopped| Failure::internal(format!("a task was stopped: {stopped}")))
}
