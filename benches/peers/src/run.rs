//! One run: all cases, each played by all peers in turn, round by round, so that a drift of the machine meets them all.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime},
};

use futures::future::join_all;
use tokio::time::timeout;

use crate::{
    arguments::Run,
    client::Result,
    engines::{Engine, Engines},
    machine::{self, Machine, Sources},
    peers::Peer,
    plan::{Plan, Step},
    report::{Facts, Results, Row},
    workloads::{Round, crash, distinct, ghosts, idle, uncontended},
};

/// Maximum time of one round of one peer: beyond it something hangs, and the run goes on without it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Plays all cases. After each, `done` gets what there is until then: a run of an hour that something ends early is not lost.
pub(crate) async fn run(run: &Run, mut done: impl FnMut(&Results) -> Result<()>) -> Result<Results> {
    let (started, begun) = (Instant::now(), SystemTime::now());
    let machine = Machine::this();
    if machine.was_busy() {
        eprintln!(
            "the machine is busy (load {:.1}): these numbers are not to be quoted",
            machine.load_before
        );
    }
    let kinds: BTreeSet<_> = run.peers.iter().map(|peer| peer.engine).collect();
    let engines = Engines::start(kinds).await;
    let (packages, present) = (machine::packages(), |peer: &&&Peer| engines.get(peer.engine).is_some());
    let peers: Vec<&Peer> = run.peers.iter().filter(present).copied().collect();
    let facts = peers.iter().map(|peer| Facts {
        id: peer.id.to_owned(),
        package: format!(
            "{} {}",
            peer.package,
            packages.get(peer.package).map_or("?", String::as_str)
        ),
        engine: peer.engine.to_string(),
        waits: peer.waits.to_owned(),
        durability: peer.durability.to_owned(),
        ours: peer.ours,
    });
    let mut results = Results {
        form: run.plan.form.to_owned(),
        rounds: run.plan.rounds,
        begun: humantime::format_rfc3339_seconds(begun).to_string(),
        machine,
        sources: Sources::these(),
        engines: engines
            .all()
            .map(|engine| (engine.kind.to_string(), engine.version.clone()))
            .collect(),
        peers: facts.collect(),
        missing: engines.missing.clone(),
        ..Results::default()
    };
    for step in &run.plan.steps {
        eprintln!(
            "[{:>5.0} s] {}: {}",
            started.elapsed().as_secs_f64(),
            step.workload(),
            step.case()
        );
        results.rows.extend(play(step, &run.plan, &peers, &engines).await);
        results.minutes = started.elapsed().as_secs_f64() / 60.0;
        done(&results)?;
    }
    Ok(results)
}

/// Plays all rounds of one case.
async fn play(step: &Step, plan: &Plan, peers: &[&Peer], engines: &Engines) -> Vec<Row> {
    let mut rounds: BTreeMap<&str, Vec<Round>> = BTreeMap::new();
    let mut remarks: BTreeMap<&str, String> = BTreeMap::new();
    for _ in 0..plan.rounds {
        let present = peers.iter().filter_map(|peer| Some((*peer, engines.get(peer.engine)?)));
        // A peer that failed once would do so again, and cost everybody its patience.
        let present: Vec<_> = present.filter(|(peer, _)| !remarks.contains_key(peer.id)).collect();
        let played: Vec<(&Peer, Result<Round>)> = if let Step::Crash = step {
            // Nearly all of it is waiting for a lease, which all can do at once.
            join_all(
                present
                    .into_iter()
                    .map(async |(peer, engine)| (peer, one(step, plan, peer, engine).await)),
            )
            .await
        } else {
            let mut played = Vec::new();
            for (peer, engine) in present {
                played.push((peer, one(step, plan, peer, engine).await));
            }
            played
        };
        for (peer, round) in played {
            match round {
                Ok(round) => rounds.entry(peer.id).or_default().push(round),
                Err(reason) => drop(remarks.insert(peer.id, reason.to_string())),
            }
        }
    }
    let row = |peer: &&Peer| {
        let rounds = rounds.remove(peer.id).unwrap_or_default();
        Row::new(step.workload(), &step.case(), peer.id, rounds, remarks.remove(peer.id))
    };
    peers.iter().map(row).collect()
}

async fn one(step: &Step, plan: &Plan, peer: &Peer, engine: &Engine) -> Result<Round> {
    let round = async {
        match *step {
            Step::Uncontended { fresh } => uncontended::round(peer, engine, fresh, plan.time).await,
            Step::HandOver(crowd) => crowd.hand_over(peer, engine, plan.time).await,
            Step::Contention(crowd) => crowd.contend(peer, engine, plan.time).await,
            Step::Distinct { clients } => distinct::round(peer, engine, clients, plan.time).await,
            Step::Idle { waiters } => idle::round(peer, engine, waiters, plan.idle_time).await,
            Step::Crash => crash::round(peer, engine).await,
            Step::Ghosts { count } => ghosts::round(peer, engine, count).await,
        }
    };
    timeout(PATIENCE, round)
        .await
        .map_err(|_| format!("no end after {} s", PATIENCE.as_secs()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{peers::PEERS, report, workloads::crowd::Crowd};

    /// Every peer whose server is on this machine, in three cases that take no time; the reports are written from it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_peer_that_is_here_plays() {
        let crowd = Crowd {
            waiters: 2,
            clients: 2,
            hold: Duration::from_millis(1),
        };
        let plan = Plan {
            form: "smoke",
            rounds: 1,
            time: Duration::from_millis(700),
            idle_time: Duration::from_millis(300),
            steps: vec![
                Step::Uncontended { fresh: true },
                Step::HandOver(crowd),
                Step::Contention(crowd),
            ],
        };
        let peers = PEERS.iter().collect();
        let (whole, out) = (false, None);
        let task = Run {
            plan,
            peers,
            whole,
            out,
        };
        let mut told = Vec::new();
        let results = run(&task, |so_far| {
            told.push(so_far.rows.len());
            Ok(())
        })
        .await
        .expect("it plays");
        assert_eq!(told, [1, 2, 3].map(|cases| cases * results.peers.len()));
        assert!(results.facts("watchlock").is_some() && results.facts("mongo-lock").is_some());
        assert_eq!(results.rows.len(), 3 * results.peers.len());
        for row in &results.rows {
            let Row {
                workload, peer, remark, ..
            } = row;
            assert_eq!(*remark, None, "{workload}, {peer}");
            // Whether a peer gets anything done in so short a time depends on its pauses and on the machine.
            if peer == "watchlock-memory" {
                assert!(row.samples > 0, "{workload}, {peer}");
            }
        }
        let text = report::table::markdown(&results);
        assert!(
            PEERS
                .iter()
                .all(|peer| results.facts(peer.id).is_none() || text.contains(peer.id))
        );
        let folder = std::env::temp_dir().join(format!("watchlock-peers-smoke-{}", std::process::id()));
        report::charts::draw(&results, &folder).expect("it draws");
        let drawn = std::fs::read_to_string(folder.join("hand-over-distribution.svg")).expect("it was drawn");
        std::fs::remove_dir_all(&folder).expect("it was made");
        assert!(drawn.contains("watchlock-memory"));
    }
}
