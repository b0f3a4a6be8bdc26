//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    client, clock,
    schedule::{Mix, Play},
};

/// Faults of every kind against watchlock on a replica set of three, and a judge of what came of it.
///
/// It ends with 0 if every promise was kept, with 1 if one was broken, and with 2 if it could not run.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    play: Given,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the faults of a seed, without running them
    Schedule {
        #[command(flatten)]
        faults: Faults,
        #[arg(long, default_value_t = 10)]
        bursts: u64,
    },
    /// Judge a recorded run again
    Judge {
        #[arg(long)]
        folder: PathBuf,
    },
    /// Normal use, for long: nothing is lost, nothing grows, and nothing is left
    Soak {
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        #[arg(long, default_value_t = by_the_clock())]
        seed: u64,
    },
    /// One of the clients of a run
    #[command(hide = true)]
    Client(client::Options),
}

/// Which faults.
#[derive(Args, Debug)]
pub(crate) struct Faults {
    /// Which ones; by the clock if not given
    #[arg(long, default_value_t = by_the_clock())]
    pub(crate) seed: u64,
    /// Only these kinds, with commas between them and - for a space, as the outcome names them
    /// (connections-dead,lock-broken)
    #[arg(long, default_value_t, value_parser = Mix::parse, hide_default_value = true)]
    pub(crate) fault: Mix,
}

#[derive(Args, Debug)]
struct Given {
    #[command(flatten)]
    faults: Faults,
    /// How long faults go on; the last burst is finished
    #[arg(long, default_value_t = 1, conflicts_with = "seconds")]
    minutes: u64,
    /// The same in seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Where the histories go; target/chaos/SEED if not given
    #[arg(long)]
    folder: Option<PathBuf>,
    /// What the judge has to find
    #[arg(long)]
    sabotage: Option<Sabotage>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sabotage {
    /// Clients go on when their lock is lost
    IgnoreLoss,
}

impl Arguments {
    /// Returns the settings of a run.
    pub(crate) fn play(self) -> Play {
        let Given {
            faults: Faults { seed, fault },
            minutes,
            seconds,
            folder,
            sabotage,
        } = self.play;
        Play {
            seed,
            mix: fault,
            lasts: Duration::from_secs(seconds.unwrap_or(minutes.saturating_mul(60))),
            folder: folder.unwrap_or_else(|| PathBuf::from(format!("target/chaos/{seed}"))),
            ignores_loss: sabotage.is_some(),
            soaks: false,
        }
    }
}

fn by_the_clock() -> u64 {
    clock::now() / 1_000 % 1_000_000
}

impl Play {
    /// Returns the command line that runs the same faults again.
    pub(crate) fn again(&self) -> String {
        let (seconds, seed) = (self.lasts.as_secs(), self.seed);
        let faults = if self.mix == Mix::default() {
            String::new()
        } else {
            format!(" --fault {}", self.mix)
        };
        format!("cargo run --release -p watchlock-chaos -- --seconds {seconds} --seed {seed}{faults}")
    }
}
