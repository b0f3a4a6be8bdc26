//! The command line.

use std::path::PathBuf;

use crate::{client::Result, engines::Kind, peers::Peer, plan::Plan, report::table::WORKLOADS};

pub(crate) const USAGE: &str = "\
watchlock-peers: watchlock beside its peers

  cargo run --release                         the full form, into benches/RESULTS.md and results.json
  cargo run --release -- --thousand           1,000 waiters, into benches/thousand
  cargo run --release -- --quick              a few minutes of it, into the folder of builds
  cargo run --release -- --peers watchlock,etcd --workloads hand-over,crash
  cargo run --release -- render RESULTS.json          the report of a run, beside that file

  --quick            one round of a second for each peer, and fewer cases
  --thousand         the hand-over among 1,000 waiters, and to one, and the cost of waiting
  --nodes N          MongoDB with 1 to 5 nodes; with more than one its peers alone, in a few cases
  --rounds N         rounds of each peer, 1 to 20
  --peers A,B        only these; --workloads A,B: only these; both name what there is if they do not know one
  --out FOLDER       where to write; a part of the whole is otherwise written to the folder of builds
";

/// What to do.
#[derive(Debug)]
pub(crate) enum Task {
    Run(Run),
    Render {
        results: PathBuf,
    },
    /// The holder that is to be killed.
    Hold {
        peer: &'static Peer,
        address: String,
        /// The beginning of the names of its locks.
        prefix: String,
    },
    Help,
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

/// Reads the arguments, without the name of the program.
pub(crate) fn read(arguments: impl IntoIterator<Item = String>) -> Result<Task> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut quick, mut thousand, mut rounds, mut out) = (false, false, None, None);
    let mut nodes = 1;
    let (mut peers, mut workloads) = (Vec::new(), Vec::new());
    let mut words: Vec<String> = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("quick") => quick = true,
            Long("thousand") => thousand = true,
            Long("nodes") => nodes = parser.value()?.parse::<usize>()?,
            Long("rounds") => rounds = Some(parser.value()?.parse::<u32>()?),
            Long("out") => out = Some(PathBuf::from(parser.value()?)),
            Long("peers") => peers.extend(list(&parser.value()?.string()?)),
            Long("workloads") => workloads.extend(list(&parser.value()?.string()?)),
            Long("help") | Short('h') => return Ok(Task::Help),
            Value(word) => words.push(word.string()?),
            unknown => return Err(unknown.unexpected().into()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => {}
        ["render", results] => {
            return Ok(Task::Render {
                results: PathBuf::from(results),
            });
        }
        [crate::workloads::crash::HOLD, peer, address, prefix] => {
            let (address, prefix) = ((*address).to_owned(), (*prefix).to_owned());
            return Ok(Task::Hold {
                peer: peer_of(peer)?,
                address,
                prefix,
            });
        }
        other => return Err(format!("`{}` is no command; see --help", other.join(" ")).into()),
    }
    if !(1..=5).contains(&nodes) {
        return Err(format!("{nodes} nodes are not between 1 and 5").into());
    }
    let mut plan = if quick { Plan::quick() } else { Plan::full() };
    let whole = !quick && peers.is_empty() && workloads.is_empty() && rounds.is_none();
    if thousand && nodes > 1 {
        return Err("a thousand waiters are measured with one node: --thousand goes without --nodes".into());
    }
    if thousand {
        plan = plan.of_a_thousand();
    }
    plan = plan.with_nodes(nodes);
    if let Some(rounds) = rounds {
        if !(1..=20).contains(&rounds) {
            return Err(format!("{rounds} rounds are not between 1 and 20").into());
        }
        plan.rounds = rounds;
    }
    for workload in &workloads {
        if !WORKLOADS.iter().any(|(name, _)| name == workload) {
            let names: Vec<&str> = WORKLOADS.iter().map(|(name, _)| *name).collect();
            return Err(format!("`{workload}` is no workload; there are {}", names.join(", ")).into());
        }
    }
    if !workloads.is_empty() {
        plan.steps
            .retain(|step| workloads.iter().any(|name| name == step.workload()));
        if plan.steps.is_empty() {
            return Err(format!("this form has no case of {}", workloads.join(", ")).into());
        }
    }
    let mut peers: Vec<&Peer> = match peers.as_slice() {
        [] => crate::peers::PEERS.iter().collect(),
        names => names.iter().map(|name| peer_of(name)).collect::<Result<_>>()?,
    };
    if nodes > 1 {
        peers.retain(|peer| peer.engine == Kind::MongoDb);
    }
    Ok(Task::Run(Run {
        plan,
        peers,
        whole,
        out,
    }))
}

fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

fn peer_of(id: &str) -> Result<&'static Peer> {
    Peer::find(id).ok_or_else(|| {
        let ids: Vec<&str> = crate::peers::PEERS.iter().map(|peer| peer.id).collect();
        format!("`{id}` is no peer; there are {}", ids.join(", ")).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_words(words: &[&str]) -> Result<Task> {
        read(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn only_the_whole_of_the_full_form_is_published() {
        let whole = |words: &[&str]| match read_words(words) {
            Ok(Task::Run(run)) => run.whole,
            other => panic!("{other:?}"),
        };
        assert!(whole(&[]));
        assert!(whole(&["--thousand"]));
        assert!(whole(&["--nodes", "3"]));
        for part in [
            ["--quick", "--thousand"],
            ["--peers", "watchlock"],
            ["--workloads", "crash"],
            ["--rounds", "1"],
        ] {
            assert!(!whole(&part), "{part:?}");
        }
    }

    #[test]
    fn what_would_play_no_case_is_refused() {
        for words in [
            ["--thousand", "--nodes", "3"].as_slice(),
            &["--thousand", "--workloads", "crash"],
            &["--nodes", "3", "--workloads", "idle"],
        ] {
            read_words(words).unwrap_err();
        }
    }

    #[test]
    fn several_nodes_are_for_the_peers_of_mongodb() {
        let Ok(Task::Run(run)) = read_words(&["--nodes", "3"]) else {
            panic!("it is a run");
        };
        assert!(run.peers.iter().all(|peer| peer.engine == Kind::MongoDb));
        assert!(run.peers.len() > 5);
        assert_eq!(run.plan.nodes, 3);
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_there_is() {
        for (words, part) in [
            (["--peers", "nobody"], "`nobody` is no peer; there are watchlock, "),
            (
                ["--workloads", "nothing"],
                "`nothing` is no workload; there are allocations, uncontended, ",
            ),
            (["--rounds", "0"], "0 rounds are not between 1 and 20"),
            (["--nodes", "6"], "6 nodes are not between 1 and 5"),
            (["draw", "one.json"], "`draw one.json` is no command"),
        ] {
            let error = read_words(&words).expect_err("it is unknown").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
