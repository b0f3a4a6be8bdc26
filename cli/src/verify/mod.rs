//! `watchlock verify`: the proofs, on the user's own server.
//!
//! - [`ground`]: the collections of a run, and their end.
//! - [`server`], [`protocol`], [`exclusion`], [`wakeups`], [`fences`], [`cost`]: the sections, each a function to
//!   checks.
//! - [`report`]: what was found, for people and programs.

mod cost;
mod exclusion;
mod fences;
mod ground;
mod protocol;
mod report;
mod server;
mod wakeups;

use std::{
    fs,
    io::{self, Write as _},
    process::ExitCode,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use crate::{
    arguments::Verify,
    connection::Connection,
    exit::{self, Failure, Outcome, UNAVAILABLE},
    json, messages,
    signals::{ENDING, Signals},
};

use ground::Ground;
use report::{Check, Report};

/// Maximum time for a run beyond the one that it is given: then something is never answered.
const BEYOND: Duration = Duration::from_secs(180);

pub(crate) async fn verify(connection: &Connection, arguments: Verify) -> Outcome {
    let mut signals =
        Signals::listen(&ENDING).map_err(|error| Failure::internal(format!("signals can't be received: {error}")))?;
    let begun = Instant::now();
    let seed = arguments.seed.unwrap_or_else(drawn);
    let time = Duration::from_secs(arguments.seconds);
    let ground = tokio::select! {
        prepared = Ground::prepare(connection) => prepared?,
        // What it has begun by then, the next run drops.
        signal = signals.ending() => return Ok(exit::ended_by(signal)),
    };
    let looked = tokio::select! {
        looked = timeout(time + BEYOND, look(&ground, seed, begun + time)) => looked,
        signal = signals.ending() => {
            ground.clear().await?;
            return Ok(exit::ended_by(signal));
        }
    };
    let cleared = ground.clear().await;
    let silent = || Failure::new(UNAVAILABLE, format!("the server did not answer (seed {seed})"));
    let checks = looked.map_err(|_| silent())??;
    cleared?;
    let report = Report::new(seed, begun.elapsed().as_secs_f64(), checks);
    if let Some(path) = &arguments.report {
        let written = fs::write(path, report.page());
        written
            .map_err(|error| Failure::usage(format!("the report can't be written to {}: {error}", path.display())))?;
    }
    let written = match arguments.output.json {
        true => json::print(&report),
        false => io::stdout().lock().write_all(report.text().as_bytes()),
    };
    exit::after(
        written,
        if report.kept {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        },
    )
}

/// Runs the sections, the longest for as long as there is time.
async fn look(ground: &Ground<'_>, seed: u64, end: Instant) -> Result<Vec<Check>, Failure> {
    let left = || end.saturating_duration_since(Instant::now());
    let purged = fences::purge(ground).await?;
    messages::say("verifying the server ...");
    let mut checks = server::checks(ground).await?;
    messages::say("verifying the protocol ...");
    checks.extend(protocol::checks(ground, seed, left() / 4).await?);
    messages::say("verifying exclusion ...");
    checks.extend(exclusion::checks(ground, seed, left() / 2).await?);
    messages::say("verifying wake-ups and losses ...");
    checks.extend(wakeups::checks(ground).await?);
    messages::say("verifying fences and transactions ...");
    checks.extend(fences::checks(ground).await?);
    checks.extend(cost::checks(ground).await?);
    // As long as there is time.
    let at = checks
        .iter()
        .position(|check| check.section == "cost")
        .unwrap_or(checks.len());
    checks.insert(at, purged.check(ground, end).await?);
    Ok(checks)
}

/// Draws a seed.
fn drawn() -> u64 {
    let bytes = mongodb::bson::oid::ObjectId::new().bytes();
    bytes
        .iter()
        .skip(8)
        .fold(0, |seed, byte| (seed << 8) | u64::from(*byte))
        % 1_000_000
}
