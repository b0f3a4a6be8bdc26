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
    peers::{Peer, Role},
    plan::{Plan, Step},
    report::{Facts, Results, Row},
    workloads::{Round, allocations, crash, distinct, ghosts, held, idle, lost, raw, uncontended},
};

/// Pause before allocations are counted: the servers' other clients have settled by then.
const SETTLING: Duration = Duration::from_millis(500);

/// Plays all cases.
pub(crate) async fn run(run: &Run) -> Result<Results> {
    let (started, begun) = (Instant::now(), SystemTime::now());
    let machine = Machine::this().await;
    if machine.was_busy() {
        eprintln!(
            "others take {:.1} processors: these numbers are not to be quoted",
            machine.load_before
        );
    }
    let kinds: BTreeSet<_> = run.peers.iter().map(|peer| peer.engine).collect();
    let engines = Engines::start(kinds, run.plan.nodes).await;
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
        ours: peer.role == Role::Ours,
        floor: peer.role == Role::Floor,
    });
    let mut results = Results {
        form: run.plan.form.to_owned(),
        rounds: run.plan.rounds,
        nodes: run.plan.nodes,
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
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("[{seconds:>5.0} s] {}: {}", step.workload(), step.case());
        let playing: Vec<&Peer> = peers.iter().filter(|peer| step.is_played_by(peer)).copied().collect();
        results.rows.extend(play(step, &run.plan, &playing, &engines).await);
    }
    results.minutes = started.elapsed().as_secs_f64() / 60.0;
    Ok(results)
}

/// Plays all rounds of one case.
async fn play(step: &Step, plan: &Plan, peers: &[&Peer], engines: &Engines) -> Vec<Row> {
    let mut rounds: BTreeMap<&str, Vec<Round>> = BTreeMap::new();
    let mut remarks: BTreeMap<&str, String> = BTreeMap::new();
    for _ in 0..step.rounds(plan.rounds) {
        let present = peers.iter().filter_map(|peer| Some((*peer, engines.get(peer.engine)?)));
        // A peer that failed once would do so again, and cost everybody its patience.
        let present: Vec<_> = present.filter(|(peer, _)| !remarks.contains_key(peer.id)).collect();
        // Nearly all of these is waiting, which all can do at once but those whose waiting keeps the machine busy.
        let waits = matches!(step, Step::Crash | Step::Lost);
        let (at_once, in_turn): (Vec<_>, Vec<_>) = present
            .into_iter()
            .partition(|(peer, _)| waits && !(peer.is_restless && matches!(step, Step::Crash)));
        let at_once = at_once.into_iter();
        let mut played: Vec<(&Peer, Result<Round>)> =
            join_all(at_once.map(async |(peer, engine)| (peer, one(step, plan, peer, engine).await))).await;
        for (peer, engine) in in_turn {
            played.push((peer, one(step, plan, peer, engine).await));
        }
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
        match peer.role {
            Role::Floor => return raw::round(step, engine, plan.time).await,
            Role::Ours | Role::Peer => {}
        }
        match *step {
            Step::Allocations => {
                tokio::time::sleep(SETTLING).await;
                allocations::round(peer, engine).await
            }
            Step::Uncontended { fresh } => uncontended::round(peer, engine, fresh, plan.time).await,
            Step::HandOver(crowd) => crowd.hand_over(peer, engine, plan.time).await,
            Step::Contention(crowd) => crowd.contend(peer, engine, plan.time).await,
            Step::Distinct { clients } => distinct::round(peer, engine, clients, plan.time).await,
            Step::Idle { waiters } => idle::round(peer, engine, waiters, plan.idle_time).await,
            Step::Held { count, lease } => held::round(peer, engine, count, lease).await,
            Step::Crash => crash::round(peer, engine).await,
            Step::Lost => lost::round(peer, engine).await,
            Step::Ghosts { count } => ghosts::round(peer, engine, count).await,
        }
    };
    let patience = step.patience();
    timeout(patience, round)
        .await
        .map_err(|_| format!("no end after {} s", patience.as_secs()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        peers::{FLOOR, PEERS},
        report,
        workloads::crowd::Crowd,
    };

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
            nodes: 1,
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
        let results = run(&task).await.expect("it plays");
        assert!(results.facts("watchlock").is_some() && results.facts("mongo-lock").is_some());
        let playing = results.peers.iter().filter(|facts| facts.id != FLOOR).count();
        assert_eq!(
            results.of("hand-over", "2 waiters, 2 clients, hold 1 ms").count(),
            playing
        );
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
    }
}
