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

/// Plays all cases. After each, `done` gets what there is until then: a run of an hour that something ends early is not
/// lost. A case that `earlier` has is taken from there, if its numbers were measured with the same sources, servers and
/// peers.
pub(crate) async fn run(
    run: &Run,
    earlier: Option<Results>,
    mut done: impl FnMut(&Results) -> Result<()>,
) -> Result<Results> {
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
    let mut spent = 0.0;
    let earlier = earlier.filter(|earlier| {
        let same = earlier.can_be_resumed_by(&results);
        if !same {
            eprintln!("nothing to resume: the earlier run had other sources, servers or peers, or changes");
        }
        same
    });
    if let Some(earlier) = &earlier {
        spent = earlier.minutes;
        results.begun.clone_from(&earlier.begun);
        results.machine.load_before = results.machine.load_before.max(earlier.machine.load_before);
    }
    for step in &run.plan.steps {
        let announced = format!(
            "[{:>5.0} s] {}: {}",
            started.elapsed().as_secs_f64(),
            step.workload(),
            step.case()
        );
        let playing: Vec<&Peer> = peers.iter().filter(|peer| step.is_played_by(peer)).copied().collect();
        match finished(earlier.as_ref(), step, &playing) {
            Some(rows) => {
                eprintln!("{announced} (finished earlier)");
                results.rows.extend(rows);
            }
            None => {
                eprintln!("{announced}");
                results.rows.extend(play(step, &run.plan, &playing, &engines).await);
            }
        }
        results.minutes = spent + started.elapsed().as_secs_f64() / 60.0;
        done(&results)?;
    }
    Ok(results)
}

/// Returns the rows of a case that an earlier run has finished: one for each peer that plays it, in their order.
fn finished(earlier: Option<&Results>, step: &Step, peers: &[&Peer]) -> Option<Vec<Row>> {
    let (earlier, case) = (earlier?, step.case());
    let row = |peer: &&Peer| {
        let mut rows = earlier.of(step.workload(), &case);
        rows.find(|row| row.peer == peer.id).cloned()
    };
    peers.iter().map(row).collect()
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
        let (whole, resume, out) = (false, false, None);
        let task = Run {
            plan,
            peers,
            whole,
            resume,
            out,
        };
        let mut told = Vec::new();
        let results = run(&task, None, |so_far| {
            told.push(so_far.rows.len());
            Ok(())
        })
        .await
        .expect("it plays");
        assert_eq!(told.len(), 3);
        assert_eq!(told.last(), Some(&results.rows.len()));
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

    #[test]
    fn a_finished_case_is_taken_only_if_every_peer_has_its_row() {
        let peers: Vec<&Peer> = ["watchlock", "dotnet"].iter().filter_map(|id| Peer::find(id)).collect();
        let row = |peer: &str| Row::new("uncontended", "a known name", peer, Vec::new(), None);
        let results = |rows: &[&str]| Results {
            rows: rows.iter().map(|peer| row(peer)).collect(),
            ..Results::default()
        };
        let step = Step::Uncontended { fresh: false };
        let order = |rows: Vec<Row>| rows.iter().map(|row| row.peer.clone()).collect::<Vec<_>>();
        let found = finished(Some(&results(&["dotnet", "etcd", "watchlock"])), &step, &peers);
        assert_eq!(
            found.map(order),
            Some(vec![String::from("watchlock"), String::from("dotnet")])
        );
        assert!(finished(Some(&results(&["watchlock"])), &step, &peers).is_none());
        assert!(finished(None, &step, &peers).is_none());
        let other = Step::Uncontended { fresh: true };
        assert!(finished(Some(&results(&["watchlock", "dotnet"])), &other, &peers).is_none());
    }
}
