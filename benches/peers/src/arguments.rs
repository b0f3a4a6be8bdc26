//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, builder::PossibleValuesParser};

use crate::{
    client::Result,
    engines::Kind,
    peers::{PEERS, Peer},
    plan::Plan,
    report::table::WORKLOADS,
};

/// watchlock beside its peers
///
/// Without options the full form, into benches/RESULTS.md and results.json; --quick takes a few minutes. A part of the
/// whole is written to the folder of builds, unless --out names another.
#[derive(Debug, Parser)]
#[command(name = "watchlock-peers", args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
    /// One round of a second for each peer, and fewer cases
    #[arg(long)]
    quick: bool,
    /// The hand-over among 1,000 waiters, and to one, and the cost of waiting, into benches/thousand
    #[arg(long, conflicts_with = "nodes")]
    thousand: bool,
    /// MongoDB with so many nodes; with more than one its peers alone, in a few cases
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    nodes: u8,
    /// Rounds of each peer
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: Option<u32>,
    /// Only these peers
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = peer_of)]
    peers: Vec<&'static Peer>,
    /// Only these workloads
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = workloads())]
    workloads: Vec<String>,
    /// Where to write
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// What to do in place of a run.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Write the report of a run, beside the file of its results
    Render { results: PathBuf },
    /// The holder that is to be killed.
    #[command(hide = true)]
    Hold {
        #[arg(value_parser = peer_of)]
        peer: &'static Peer,
        address: String,
        /// The beginning of the names of its locks.
        prefix: String,
    },
}

/// A run, or a part of one.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) peers: Vec<&'static Peer>,
    /// Everything of the full form, which alone is published.
    pub(crate) whole: bool,
    pub(crate) out: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<Run> {
        let Self {
            mut peers, workloads, ..
        } = self;
        let whole = !self.quick && peers.is_empty() && workloads.is_empty() && self.rounds.is_none();
        let mut plan = if self.quick { Plan::quick() } else { Plan::full() };
        if self.thousand {
            plan = plan.of_a_thousand();
        }
        plan = plan.with_nodes(usize::from(self.nodes));
        if let Some(rounds) = self.rounds {
            plan.rounds = rounds;
        }
        if !workloads.is_empty() {
            plan.steps
                .retain(|step| workloads.iter().any(|name| name == step.workload()));
            if plan.steps.is_empty() {
                return Err(format!("this form has no case of {}", workloads.join(", ")).into());
            }
        }
        if peers.is_empty() {
            peers = PEERS.iter().collect();
        }
        if self.nodes > 1 {
            peers.retain(|peer| peer.engine == Kind::MongoDb);
        }
        Ok(Run {
            plan,
            peers,
            whole,
            out: self.out,
        })
    }
}

fn workloads() -> PossibleValuesParser {
    PossibleValuesParser::new(WORKLOADS.map(|(name, _)| name))
}

fn peer_of(id: &str) -> std::result::Result<&'static Peer, String> {
    let ids = || PEERS.iter().map(|peer| peer.id).collect::<Vec<_>>().join(", ");
    Peer::find(id).ok_or_else(|| format!("there are {}", ids()))
}
