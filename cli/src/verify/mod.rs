//! `watchlock verify`: the proofs, on the user's own server.
//!
//! - [`server`], [`protocol`], [`exclusion`], [`wakeups`], [`fences`], [`fail_over`]: the sections, each of which adds its
//!   checks.
//! - [`pace`]: whether a time-out says anything.
//! - [`report`]: what was found, for people and programs.

mod exclusion;
mod fail_over;
mod fences;
mod pace;
mod protocol;
mod report;
mod server;
pub(crate) mod wakeups;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use mongodb::bson::oid::ObjectId;
use tokio::time::timeout;

use crate::{
    arguments::Verify,
    connection::Connection,
    exit::{self, Failure, Outcome},
    ground::{Ground, on_ground},
    messages, terminal,
};

use pace::Pace;
use report::{Check, Placed, Report, Verdict};

pub(crate) async fn verify(connection: &Connection, arguments: Verify) -> Outcome {
    let begun = Instant::now();
    let sections = arguments.sections.iter().map(|it| section(it));
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    if sections.contains(&fail_over::SECTION) && !arguments.step_down {
        return Err(Failure::usage("the section fail-over needs --step-down"));
    }
    let fails_over = arguments.step_down && (sections.is_empty() || sections.contains(&fail_over::SECTION));
    let run = Run {
        seed: arguments.seed.unwrap_or_else(drawn),
        end: begun + Duration::from_secs(arguments.seconds),
        patience: Duration::from_secs(arguments.patience),
        steps_down: fails_over && (arguments.yes || may_step_down()?),
        sections,
    };
    let file = match &arguments.report {
        Some(path) => Some((path, File::create(path).map_err(|error| unwritable(path, &error))?)),
        None => None,
    };
    let mut checks = Vec::new();
    match on_ground(connection, async |ground| run.look(ground, &mut checks).await).await {
        Ok(Ok(())) => {}
        Ok(Err(signal)) => return Ok(exit::ended_by(signal)),
        // What was found before stays true.
        Err(failure) if checks.iter().any(|placed| placed.check.verdict == Verdict::Broken) => {
            checks.push(Check::inconclusive(WHOLE, failure.message()).of("run"));
        }
        Err(failure) => return Err(failure),
    }
    if fails_over && !run.steps_down {
        checks.push(Check::skipped(WHOLE, "nobody said yes").of(fail_over::SECTION));
    }
    let report = Report::new(run.seed, begun.elapsed().as_secs_f64(), checks);
    let written = file.map_or(Ok(()), |(path, mut file)| {
        let written = file.write_all(report.page(SystemTime::now()).as_bytes());
        written.map_err(|error| unwritable(path, &error))
    });
    // What was found is printed even if the page can't be written.
    let code = arguments.output.answer(&report, || report.text(), report.code())?;
    written.map(|()| code)
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("the report can't be written to {}: {error}", path.display()))
}

/// Asks whether the primary may step down.
fn may_step_down() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is not a terminal: pass --yes to make the primary step down",
        ));
    }
    terminal::confirms("The primary steps down, and every client of the replica set sees it. Go on? [y/N] ")
}

/// Returns the one section whose name begins so.
fn section(begin: &str) -> Result<&'static str, Failure> {
    let found: Vec<_> = SECTIONS.into_iter().filter(|name| name.starts_with(begin)).collect();
    match found[..] {
        [found] => Ok(found),
        _ => {
            let (count, all) = (found.len(), SECTIONS.join(", "));
            Err(Failure::usage(format!(
                "{count} sections begin with {begin:?}, of {all}"
            )))
        }
    }
}

/// What a run goes by.
#[derive(Debug)]
struct Run {
    seed: u64,
    end: Instant,
    /// How much longer than its time a section may take.
    patience: Duration,
    steps_down: bool,
    /// The sections that were asked for; none: all.
    sections: Vec<&'static str>,
}

impl Run {
    fn asks_for(&self, section: &str) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Runs the sections, the longest for as long as there is time.
    async fn look(&self, ground: &Ground<'_>, all: &mut Vec<Placed>) -> Result<(), Failure> {
        let alive = ground.begin().await?;
        let pace = Pace::watch(ground.collection("pace"), self.patience);
        let purged = fences::purge(ground).await?;
        self.section(server::SECTION, &pace, all, async |all| server::run(ground, all).await)
            .await?;
        let granted = match &alive {
            Ok(held) => Check::kept("a lock", format!("granted under the token {}", held.token())),
            Err(failure) => Check::broken("a lock", failure.message()),
        };
        all.push(granted.of(server::SECTION));
        let drawn = (self.seed, self.left() / 4);
        self.section(protocol::SECTION, &pace, all, async |all| {
            protocol::run(ground, drawn, all).await
        })
        .await?;
        if alive.is_ok() {
            let drawn = (self.seed, self.left() / 2);
            self.section(exclusion::SECTION, &pace, all, async |all| {
                exclusion::run(ground, &pace, drawn, all).await
            })
            .await?;
            self.section(wakeups::SECTION, &pace, all, async |all| {
                wakeups::run(ground, &pace, all).await
            })
            .await?;
            if self.steps_down {
                self.section(fail_over::SECTION, &pace, all, async |all| {
                    fail_over::run(ground, &pace, self.seed, all).await
                })
                .await?;
            }
            self.section(fences::SECTION, &pace, all, async |all| fences::run(ground, all).await)
                .await?;
        } else {
            for name in [exclusion::SECTION, wakeups::SECTION, fences::SECTION] {
                all.push(Check::skipped(WHOLE, "no lock is granted").of(name));
            }
        }
        if self.asks_for(fences::SECTION) {
            // As long as there is time.
            all.push(purged.check(ground, self.end).await?.of(fences::SECTION));
        }
        Ok(())
    }

    /// Runs a section. One that the server refuses, or that does not end while the server is quick, breaks a promise:
    /// this client can do what locks do. Fails only if the server can't be reached, or not by this user.
    async fn section(
        &self,
        name: &'static str,
        pace: &Pace,
        all: &mut Vec<Placed>,
        run: impl AsyncFnOnce(&mut Vec<Check>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.asks_for(name) {
            all.push(Check::skipped(WHOLE, "not asked for").of(name));
            return Ok(());
        }
        messages::say(&format!("verifying: {name} ..."));
        pace.begin();
        let mut checks = Vec::new();
        let ended = timeout(self.left() + self.patience, run(&mut checks)).await;
        all.extend(checks.into_iter().map(|check| check.of(name)));
        let problem = match ended {
            Ok(Err(failure)) if failure.ends_a_run() => return Err(failure),
            Ok(Err(failure)) => Check::broken(WHOLE, failure.message()),
            Ok(Ok(())) => return Ok(()),
            // The longest has five contests.
            Err(_) => pace.late(WHOLE, (self.patience, 2_000), "it does not end".to_owned()),
        };
        all.push(problem.of(name));
        Ok(())
    }
}

/// All sections, in the order of a run.
const SECTIONS: [&str; 6] = [
    server::SECTION,
    protocol::SECTION,
    exclusion::SECTION,
    wakeups::SECTION,
    fail_over::SECTION,
    fences::SECTION,
];

/// The name of a section's check that it comes to its end.
const WHOLE: &str = "to its end";

/// Draws a seed.
fn drawn() -> u64 {
    let bytes = ObjectId::new().bytes();
    bytes
        .iter()
        .skip(8)
        .fold(0, |seed, byte| (seed << 8) | u64::from(*byte))
        % 1_000_000
}
