//! Wake-ups and losses: how soon a waiter gets a lock, and how soon a holder learns that it lost one.
//!
//! The measure is the raw hop: the time from the sending of a write until a change stream of the driver shows it.

use std::time::{Duration, Instant};

use mongodb::{bson::doc, error::Error};
use tokio::time::{sleep, timeout};
use watchlock::{Held, LockClient, errors::AcquireError, locks, operate::WakeMode};

use super::{
    report::{Check, millis},
    server::answer,
};
use crate::{
    connection::to_its_end,
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

pub(super) async fn run(ground: &Ground<'_>, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let (holder, waiter) = (ground.client().await?, ground.client().await?);
    let hello = answer(ground, doc! { "hello": 1 }).await?;
    // Any other server has change streams.
    let is_standalone = !hello.contains_key("setName") && !hello.contains_key("msg");
    let missing = |name, why: String| match (is_standalone, ground.lacks("changeStream")) {
        (true, _) => Check::skipped(
            SECTION,
            name,
            format!("a standalone server has no change streams: {why}"),
        ),
        (_, Some(lacking)) => Check::skipped(SECTION, name, lacking),
        _ => Check::broken(SECTION, name, why),
    };
    checks.push(match hop(ground).await? {
        Ok(hop) => raw_hop(hop).await?,
        Err(error) => missing(
            RAW_HOP,
            format!("no change stream: {}", Failure::driver(&error).message()),
        ),
    });
    // Its stream is opened for the first waiter.
    checks.push(hand_over(&holder, &waiter).await?);
    let mode = waiter.wake_mode();
    checks.push(match mode {
        WakeMode::Polling { .. } => missing("streams", format!("waiters poll: {mode:?}")),
        _ => Check::kept(SECTION, "streams", format!("{mode:?}")),
    });
    checks.push(lost(&holder, &waiter).await?);
    checks.push(expiry(ground, &waiter).await?);
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

async fn raw_hop(mut hop: Hop) -> Result<Check, Failure> {
    let mut samples = Samples::default();
    for _ in 0..SAMPLES {
        let Some((next, latency)) = hopped(hop).await? else {
            let found = format!(
                "no event within {}; an idle shard of a cluster may hold it up",
                span_of(RAW)
            );
            return Ok(Check::inconclusive(SECTION, RAW_HOP, found));
        };
        hop = next;
        samples.push(latency);
    }
    Ok(Check::noted(SECTION, RAW_HOP, latency(&samples)))
}

fn latency(samples: &Samples) -> String {
    format!(
        "median {:.1} ms, at most {:.1} ms",
        samples.median(),
        samples.quantile(1.0)
    )
}

async fn hand_over(holder: &LockClient, waiter: &LockClient) -> Result<Check, Failure> {
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
                return Ok(Check::inconclusive(SECTION, name, found));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Check::kept(SECTION, name, latency(&samples)))
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

async fn lost(holder: &LockClient, other: &LockClient) -> Result<Check, Failure> {
    let name = "loss by a break";
    let mut samples = Samples::default();
    for number in 0..SAMPLES {
        let Some(latency) = lost_one(holder, other, &format!("{name} {number}")).await? else {
            let found = format!("the holder did not learn of it within its lease of {}", span_of(LEASE));
            return Ok(Check::broken(SECTION, name, found));
        };
        samples.push(latency);
    }
    Ok(Check::kept(SECTION, name, latency(&samples)))
}

/// Breaks a lock, and returns the time until its holder knows; `None` if that takes longer than its lease.
pub(crate) async fn lost_one(holder: &LockClient, other: &LockClient, lock: &str) -> Result<Option<Duration>, Failure> {
    let held = holder.mutex(lock).acquire().lease(LEASE).await?;
    let told_at = telling(&held);
    // The news of one's own grant is over.
    sleep(QUEUED).await;
    let begun = Instant::now();
    other.break_lock(lock).await?;
    // Its last renewal was before this.
    let Ok(at) = timeout(LEASE, told_at).await else {
        return Ok(None);
    };
    Ok(Some(ended(async { at }).await?.saturating_duration_since(begun)))
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
        let limit = 2 * LEASE + MARGIN;
        let found = format!("nobody else got the lock within {}", span_of(limit));
        return Ok(Check::inconclusive(SECTION, name, found));
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

/// Returns the value of a task.
async fn ended<T>(task: impl Future<Output = Result<T, tokio::task::JoinError>>) -> Result<T, Failure> {
    task.await
        .map_err(|stopped| Failure::internal(format!("a task was stopped: {stopped}")))
}
