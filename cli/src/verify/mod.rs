//! `watchlock verify`: the proofs, on the user's own server.
//!
//! - [`ground`]: the collections of a run, and their end.
//! - [`server`], [`protocol`], [`exclusion`], [`wakeups`], [`fences`], [`cost`]: the sections, each of
//!   which adds its checks.
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
const BEYOND: Duration = Duration::from_secs(300);

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
    let mut checks = Vec::new();
    let all = &mut checks;
    section(server::SECTION, left(), all, async |all| server::run(ground, all).await).await?;
    all.push(match &ground.alive {
        Ok(held) => Check::kept(
            server::SECTION,
            "a lock",
            format!("granted under the token {}", held.token()),
        ),
        Err(failure) => Check::broken(server::SECTION, "a lock", failure.message()),
    });
    let drawn = (seed, left() / 4);
    section(protocol::SECTION, left(), all, async |all| {
        protocol::run(ground, drawn, all).await
    })
    .await?;
    if ground.alive.is_ok() {
        let drawn = (seed, left() / 2);
        section(exclusion::SECTION, left(), all, async |all| {
            exclusion::run(ground, drawn, all).await
        })
        .await?;
        section(wakeups::SECTION, left(), all, async |all| {
            wakeups::run(ground, all).await
        })
        .await?;
        section(fences::SECTION, left(), all, async |all| fences::run(ground, all).await).await?;
    } else {
        for name in [exclusion::SECTION, wakeups::SECTION, fences::SECTION] {
            all.push(Check::skipped(name, WHOLE, "no lock is granted"));
        }
    }
    // As long as there is time.
    all.push(purged.check(ground, end).await?);
    section(cost::SECTION, left(), all, async |all| cost::run(ground, all).await).await?;
    Ok(checks)
}

/// The name of a section's check that it comes to its end.
const WHOLE: &str = "to its end";

/// Maximum time for a section beyond that of the run: then something that locks need does not end.
const SECTION: Duration = Duration::from_secs(120);

/// Runs a section. One that the server refuses, or that does not end, breaks a promise: this client can do what locks
/// do. Fails only if the server can't be reached.
async fn section(
    name: &'static str,
    time: Duration,
    checks: &mut Vec<Check>,
    run: impl AsyncFnOnce(&mut Vec<Check>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    messages::say(&format!("verifying: {name} ..."));
    let why = match timeout(time + SECTION, run(checks)).await {
        Ok(Err(failure)) if failure.is_unavailable() && !failure.is_refusal() => return Err(failure),
        Ok(Err(failure)) => failure.message().to_owned(),
        Ok(Ok(())) => return Ok(()),
        Err(_) => "it does not end".to_owned(),
    };
    checks.push(Check::broken(name, WHOLE, why));
    Ok(())
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
