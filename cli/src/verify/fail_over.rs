//! A fail-over under load, by choice: every client of the replica set sees it.

use std::time::{Duration, Instant};

use mongodb::{
    bson::{Document, doc},
    error::ErrorKind,
};
use tokio::time::sleep;

use super::{
    WHOLE,
    exclusion::{self, Contest},
    pace::Pace,
    report::{Check, Verdict, millis},
    server::answer,
};
use crate::{connection::to_its_end, exit::Failure, ground::Ground, text::span_of};

pub(super) const SECTION: &str = "fail-over";

/// Clients that contend.
const CLIENTS: usize = 4;

/// Time for which they do before the step-down, and once a write is confirmed after it.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);

/// Seconds for which the old primary does not stand for election again.
const AWAY: u32 = 30;

/// Maximum time for a new primary: two elections by MongoDB's defaults.
const ELECTED: Duration = Duration::from_secs(30);

/// Of a default lease, an outage may take this long at any moment without a loss.
const OUTLASTED: Duration = Duration::from_secs(20);

pub(super) async fn run(ground: &Ground<'_>, pace: &Pace, seed: u64, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let hello = answer(ground, doc! { "hello": 1 }).await?;
    let members = hello.get_array("hosts").map_or(0, Vec::len);
    if !hello.contains_key("setName") || members < 2 {
        let why = "the server is no replica set with another member to take over";
        checks.push(Check::skipped(WHOLE, why));
        return Ok(());
    }
    let held = ground.client().await?.mutex("held through it").acquire().await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(ground.client().await?);
    }
    let stepping = async {
        sleep(BEFORE).await;
        let stepped = step_down(ground).await;
        sleep(AFTER).await;
        stepped
    };
    let (contended, stepped) = exclusion::contend(ground, pace, &clients, Contest::FailOver, seed, stepping).await?;
    let is_broken = contended.verdict == Verdict::Broken;
    if is_broken {
        checks.push(contended.clone());
    }
    let outage = match stepped? {
        Ok(outage) => outage,
        Err(why) => {
            checks.push(Check::skipped(WHOLE, why));
            return Ok(());
        }
    };
    let name = "step-down";
    let Some(outage) = outage else {
        let found = format!("no write was confirmed for {} after it", span_of(ELECTED));
        checks.push(Check::broken(name, found));
        return Ok(());
    };
    let now = answer(ground, doc! { "hello": 1 }).await?;
    let of = |hello: &Document| hello.get_str("primary").unwrap_or("nobody").to_owned();
    if of(&hello) == of(&now) {
        let found = format!("{} is the primary as before: no fail-over was seen", of(&now));
        checks.push(Check::inconclusive(name, found));
        return Ok(());
    }
    let found = format!(
        "{}, and then {}; a write was confirmed {} later",
        of(&hello),
        of(&now),
        millis(outage)
    );
    checks.push(Check::noted(name, found));
    if !is_broken {
        checks.push(contended);
    }
    let name = "a lock held through it";
    checks.push(match (held.is_held(), outage < OUTLASTED) {
        (true, _) => Check::kept(name, "it is still held, under the same token"),
        (false, true) => Check::broken(name, "it was lost, although the outage was shorter than its lease"),
        (false, false) => Check::inconclusive(name, "it was lost, and the outage was as long as a lease"),
    });
    Ok(())
}

/// Makes the primary step down, and returns the time until a write is confirmed again; the inner `None` if none is in
/// time. The error says why it did not step down.
async fn step_down(ground: &Ground<'_>) -> Result<Result<Option<Duration>, String>, Failure> {
    let admin = ground.database().client().database("admin");
    // Without force: another member that has all writes takes over at once, and where there is none, nothing happens.
    let command = doc! { "replSetStepDown": AWAY, "secondaryCatchUpPeriodSecs": AWAY / 3 };
    let begun = Instant::now();
    match to_its_end(async move { admin.run_command(command).await }).await? {
        Err(error) if matches!(&*error.kind, ErrorKind::Command(_)) => {
            return Ok(Err(format!(
                "the primary does not step down: {}",
                Failure::driver(&error).message()
            )));
        }
        // Whether it did shows in the name of the primary.
        _ => {}
    }
    while begun.elapsed() < ELECTED {
        let written = ground.collection("written");
        let write = to_its_end(async move { written.insert_one(Document::new()).await }).await?;
        if write.is_ok() {
            return Ok(Ok(Some(begun.elapsed())));
        }
        sleep((begun.elapsed() / 8).max(Duration::from_millis(5))).await;
    }
    Ok(Ok(None))
}
