//! Wake-ups and losses: how soon a waiter gets a lock, and how soon a holder learns that it lost one.
//!
//! The measure is the raw hop: the time from the sending of a write until a change stream of the driver shows it.

use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::{
    bson::{Document, doc},
    error::Error,
    options::ReadConcern,
};
use tokio::time::{sleep, timeout};
use watchlock::{Held, LockClient, errors::AcquireError, locks, operate::WakeMode};

use super::{
    pace::Pace,
    report::{Check, millis},
    server::answer,
};
use crate::{
    connection::to_its_end,
    doctor::primary,
    exit::Failure,
    ground::{Ground, asked},
    measure::{Hop, Samples},
    text::span_of,
};

pub(super) const SECTION: &str = "wake-ups and losses";

/// Samples of each latency.
const SAMPLES: usize = 5;

/// Lease of the holds that are lost: they have to be told within it.
const LEASE: Duration = Duration::from_secs(3);

/// Beyond the end of a lease, a waiter is given the lock within this time: the default skew margin and a round trip.
const MARGIN: Duration = Duration::from_secs(3);

/// Time for the news of a grant to be over.
const QUEUED: Duration = Duration::from_millis(100);

/// Maximum time for a waiter to be seen in the queue.
const SEEN: Duration = Duration::from_secs(10);

/// Maximum time for an event of a raw change stream: twice the time after which an idle shard of a cluster writes its
/// no-op, for which the others' events wait.
const RAW: Duration = Duration::from_secs(20);

pub(super) async fn run(ground: &Ground<'_>, pace: &Pace, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let (holder, waiter) = (ground.client().await?, ground.client().await?);
    let hello = answer(ground, doc! { "hello": 1 }).await?;
    // Any other server has change streams.
    let is_sharded = hello.contains_key("msg");
    let is_standalone = !hello.contains_key("setName") && !is_sharded;
    let missing = |name, why: String| match (is_standalone, ground.lacks("changeStream")) {
        (true, _) => Check::skipped(name, format!("a standalone server has no change streams: {why}")),
        (_, Some(lacking)) => Check::skipped(name, lacking),
        _ => Check::broken(name, why),
    };
    checks.push(match hop(ground).await? {
        Ok(hop) => raw_hop(pace, hop, is_sharded).await?,
        Err(error) => missing(
            RAW_HOP,
            format!("no change stream: {}", Failure::driver(&error).message()),
        ),
    });
    // Its stream is opened for the first waiter.
    checks.push(hand_over(pace, &holder, &waiter).await?);
    let mode = waiter.wake_mode();
    checks.push(match mode {
        WakeMode::Polling { .. } => missing("streams", format!("waiters poll: {mode:?}")),
        _ => Check::kept("streams", format!("{mode:?}")),
    });
    for loss in [Loss::Broken, Loss::Deleted, Loss::Overwritten] {
        checks.push(lost(ground, pace, &holder, &waiter, loss).await?);
    }
    checks.push(expiry(ground, pace, &waiter).await?);
    checks.push(killed_cursor(ground, pace, &holder, &waiter).await?);
    Ok(())
}

/// The name of the check of the driver's own streams.
const RAW_HOP: &str = "raw hop";

/// Opens a change stream of the driver, unless the server refuses.
pub(crate) async fn hop(ground: &Ground<'_>) -> Result<Result<Hop, Error>, Failure> {
    let (sender, receiver) = (ground.collection("written"), ground.collection("written"));
    to_its_end(Hop::between(sender, receiver)).await
}

/// Measures one hop; `None` if no event comes in time.
pub(crate) async fn hopped(mut hop: Hop) -> Result<Option<(Hop, Duration)>, Failure> {
    let hopping = asked(async move {
        let latency = hop.once().await?;
        Ok((hop, latency))
    });
    timeout(RAW, hopping).await.ok().transpose()
}

async fn raw_hop(pace: &Pace, mut hop: Hop, is_sharded: bool) -> Result<Check, Failure> {
    let mut samples = Samples::default();
    for _ in 0..SAMPLES {
        let Some((next, latency)) = hopped(hop).await? else {
            let found = format!("no event within {}", span_of(RAW));
            return Ok(match is_sharded {
                true => Check::inconclusive(RAW_HOP, format!("{found}; it may wait for an idle shard")),
                false => pace.late(RAW_HOP, (RAW, 10), found),
            });
        };
        hop = next;
        samples.push(latency);
    }
    Ok(Check::noted(RAW_HOP, latency(&samples)))
}

fn latency(samples: &Samples) -> String {
    format!(
        "median {:.1} ms, at most {:.1} ms",
        samples.median(),
        samples.quantile(1.0)
    )
}

async fn hand_over(pace: &Pace, holder: &LockClient, waiter: &LockClient) -> Result<Check, Failure> {
    let name = "hand-over";
    let mut samples = Samples::default();
    for number in 0..=SAMPLES {
        match handed_over(holder, waiter, &format!("{name} {number}")).await? {
            // The first opens the stream.
            Ok(_) if number == 0 => {}
            Ok(latency) => samples.push(latency),
            Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }) => {
                let limit = LEASE + MARGIN;
                let found = format!("a waiter got no lock within {} of its release", span_of(limit));
                return Ok(pace.late(name, (limit, 10), found));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Check::kept(name, latency(&samples)))
}

/// Hands a lock over, and returns the time from the call of `release` until the other client has it.
pub(crate) async fn handed_over(
    holder: &LockClient,
    waiter: &LockClient,
    lock: &str,
) -> Result<Result<Duration, AcquireError>, Failure> {
    let held = holder.mutex(lock).acquire().await?;
    let waiting = waiter.mutex(lock).acquire().timeout(LEASE + MARGIN);
    let waiting = tokio::spawn(async move { (waiting.await, Instant::now()) });
    // A waiter that is never seen there comes to its time-out.
    until_queued(holder, lock).await?;
    let begun = Instant::now();
    drop(held.release().await);
    let (got, at) = ended(waiting).await?;
    Ok(match got {
        Ok(got) => {
            drop(got.release().await);
            Ok(at.saturating_duration_since(begun))
        }
        Err(error) => Err(error),
    })
}

/// Waits until somebody is in the queue of a lock; `false`: nobody was seen there in time.
async fn until_queued(locks: &LockClient, lock: &str) -> Result<bool, Failure> {
    let begun = Instant::now();
    while locks.inspect(lock).await?.is_none_or(|lock| lock.waiters.is_empty()) {
        if begun.elapsed() >= SEEN {
            return Ok(false);
        }
        sleep((begun.elapsed() / 8).max(Duration::from_millis(1))).await;
    }
    Ok(true)
}

/// How a lock is taken away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
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

async fn lost(
    ground: &Ground<'_>,
    pace: &Pace,
    holder: &LockClient,
    other: &LockClient,
    loss: Loss,
) -> Result<Check, Failure> {
    let mut samples = Samples::default();
    for number in 0..SAMPLES {
        let lock = format!("{} {number}", loss.name());
        let Some(latency) = lost_one(ground, holder, other, &lock, loss).await? else {
            let found = format!("the holder did not learn of it within its lease of {}", span_of(LEASE));
            return Ok(pace.late(loss.name(), (LEASE, 10), found));
        };
        samples.push(latency);
    }
    Ok(Check::kept(loss.name(), latency(&samples)))
}

/// Takes a lock away, and returns the time until its holder knows; `None` if that takes longer than its lease.
pub(crate) async fn lost_one(
    ground: &Ground<'_>,
    holder: &LockClient,
    other: &LockClient,
    lock: &str,
    loss: Loss,
) -> Result<Option<Duration>, Failure> {
    let held = holder.mutex(lock).acquire().lease(LEASE).await?;
    let told_at = telling(&held);
    // The news of one's own grant is over.
    sleep(QUEUED).await;
    let begun = Instant::now();
    let (documents, lock) = (ground.locks(), lock.to_owned());
    match loss {
        Loss::Broken => drop(other.break_lock(&lock).await?),
        Loss::Deleted => {
            asked(async move { documents.delete_one(doc! { "_id": lock }).await }).await?;
        }
        Loss::Overwritten => {
            let change = doc! { "$set": { "holders": [] } };
            asked(async move { documents.update_one(doc! { "_id": lock }, change).await }).await?;
        }
    }
    // Its last renewal was before this.
    let Ok(at) = timeout(LEASE, told_at).await else {
        return Ok(None);
    };
    let at = ended(async { at }).await?;
    Ok(Some(at.saturating_duration_since(begun)))
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
async fn expiry(ground: &Ground<'_>, pace: &Pace, waiter: &LockClient) -> Result<Check, Failure> {
    let name = "expiry";
    let begun = Instant::now();
    // Nobody renews it, as if its process had died.
    let held = ground.client().await?.mutex(name).acquire().fixed(LEASE).await?;
    let waiting = waiter.mutex(name).acquire().timeout(2 * LEASE + MARGIN);
    let got = waiting.await;
    let (took, is_held) = (begun.elapsed(), held.is_held());
    let Ok(got) = got else {
        let limit = 2 * LEASE + MARGIN;
        let found = format!("nobody else got the lock within {}", span_of(limit));
        return Ok(pace.late(name, (limit, 10), found));
    };
    drop(got.release().await);
    if is_held {
        let found = "somebody else has the lock, and its earlier holder believes in it";
        return Ok(Check::broken(name, found));
    }
    if took < LEASE {
        let found = "somebody else got the lock before the end of the lease";
        return Ok(Check::broken(name, found));
    }
    let found = format!(
        "handed over {} after the end of a lease",
        millis(took.saturating_sub(LEASE))
    );
    Ok(Check::kept(name, found))
}

/// Checks that locks go on being handed over after the server killed the streams' cursors.
async fn killed_cursor(
    ground: &Ground<'_>,
    pace: &Pace,
    holder: &LockClient,
    waiter: &LockClient,
) -> Result<Check, Failure> {
    let (name, limit) = ("killed streams", LEASE + MARGIN);
    let held = holder.mutex(name).acquire().await?;
    let waiting = waiter.mutex(name).acquire().timeout(limit);
    let waiting = tokio::spawn(async move { waiting.await.map(|got| (got, Instant::now())) });
    let killed = match until_queued(holder, name).await? {
        true => Some(kill_cursors(ground).await?),
        false => None,
    };
    let begun = Instant::now();
    drop(held.release().await);
    let count = match killed {
        Some(Ok(count)) => count,
        Some(Err(why)) => return Ok(Check::skipped(name, why)),
        None => return Ok(pace.late(name, (limit, 10), "a waiter is not seen in the queue".to_owned())),
    };
    let Ok((got, at)) = ended(waiting).await? else {
        let found = format!("a waiter got no lock within {} of it", span_of(limit));
        return Ok(pace.late(name, (limit, 10), found));
    };
    drop(got.release().await);
    let took = millis(at - begun);
    Ok(Check::kept(
        name,
        format!("{count} killed, and a hand-over right after it in {took}"),
    ))
}

/// Has the server kill the cursors of all streams of the locks, and returns how many these were; the inner error says
/// why there is none.
async fn kill_cursors(ground: &Ground<'_>) -> Result<Result<usize, String>, Failure> {
    let admin = ground.database().client().database("admin");
    let pipeline = vec![
        doc! { "$currentOp": { "idleCursors": true, "localOps": false } },
        doc! { "$match": { "ns": ground.locks().namespace().to_string(), "cursor.cursorId": { "$exists": true } } },
    ];
    let listing = async move {
        let found = admin.aggregate(pipeline).selection_criteria(primary());
        found
            .read_concern(ReadConcern::local())
            .await?
            .try_collect::<Vec<Document>>()
            .await
    };
    let cursor = |operation: &Document| operation.get_document("cursor").ok()?.get_i64("cursorId").ok();
    let cursors: Vec<i64> = match to_its_end(listing).await? {
        Ok(found) => found.iter().filter_map(cursor).collect(),
        Err(error) => {
            let why = format!("the cursors are not visible: {}", Failure::driver(&error).message());
            return Ok(Err(why));
        }
    };
    if cursors.is_empty() {
        return Ok(Err("no cursors are to be seen".to_owned()));
    }
    let command = doc! { "killCursors": ground.locks().name(), "cursors": cursors };
    let database = ground.database().clone();
    let killed = to_its_end(async move { database.run_command(command).await }).await?;
    let why = match killed.map(|answer| answer.get_array("cursorsKilled").map_or(0, Vec::len)) {
        Ok(0) => "the server killed none of them".to_owned(),
        Ok(count) => return Ok(Ok(count)),
        Err(error) => Failure::driver(&error).message().to_owned(),
    };
    Ok(Err(format!("they can't be killed: {why}")))
}

/// Returns the value of a task.
async fn ended<T>(task: impl Future<Output = Result<T, tokio::task::JoinError>>) -> Result<T, Failure> {
    task.await
        .map_err(|stopped| Failure::internal(format!("a task was stopped: {stopped}")))
}
