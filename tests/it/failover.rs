//! What a fail-over costs: no healthy holder its lock, no waiter more than time, and nobody the exclusion.
//!
//! A primary can go in four ways. Throughout, one client keeps a lock that another waits for, and hands another lock to
//! it and back. MongoDB's election timeout of 10 s and watchlock's lease of 30 s are the defaults: that a holder
//! outlives the election is a promise about the two together. Crowds in a fail-over are judged by the chaos.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use futures::future::select_all;
use mongodb::options::WriteConcern;
use tokio::{
    task::JoinHandle,
    time::{sleep, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;
use watchlock::{locks, operate::WakeMode};
use watchlock_testkit::Cluster;

use crate::setup::*;

/// How long the machine may take to elect a new primary for the promises about that to apply.
const ELECTED_IN_TIME: Duration = Duration::from_secs(15);

/// How soon after the new primary stands the change streams are open again; and how soon after it commits its first
/// write, before which it can't answer, waiters are served.
const BACK: Duration = Duration::from_secs(5);

/// How soon a stream that is silent is taken for dead: after 4.5 s. The driver takes 10 to 20 s to notice.
const STREAM_DEAD: Duration = Duration::from_secs(7);

/// How long the driver hangs on a request to a frozen server, at the most, before it asks the new primary.
const HANGS: Duration = Duration::from_secs(20);

/// A hand-over that took longer was not brought about by an event: without one a waiter asks when the claim lease (5 s)
/// or the next routine question (15 s) is due. On a busy machine an event can take its time.
const BY_EVENT: Duration = Duration::from_secs(1);

/// The defaults.
const LEASE: Duration = Duration::from_secs(30);
const SKEW_MARGIN: Duration = Duration::from_secs(1);
const RENEWAL_INTERVAL: Duration = Duration::from_secs(6);

/// Longer than any lease: by the clock of the thawed server nobody holds the locks any more, and requests that reached
/// it before may be applied.
const FREEZE: Duration = Duration::from_secs(31);

/// How soon after a fault before an imminent renewal a holder knows that its lock is at risk: the renewal and a sixth of
/// the time left later, when another goes out beside it.
const TOLD_OF_RISK: Duration = Duration::from_secs(5);

/// Anything that must come to pass some time, and is no promise by itself.
const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// How often a lock goes to and fro.
const RELAYS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    SteppedDown,
    ShutDown,
    Frozen,
    Killed,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_steps_down_or_is_shut_down_costs_no_lock_and_no_turn() {
    let cluster = start().await;
    play(&cluster, Fault::SteppedDown).await;
    play(&cluster, Fault::ShutDown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_frozen_costs_no_lock_and_no_turn() {
    play(&start().await, Fault::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_killed_costs_no_lock_and_no_turn() {
    play(&start().await, Fault::Killed).await;
}

async fn start() -> Cluster {
    Cluster::builder().replica_set(3).in_memory(true).start().await.unwrap()
}

/// Has the primary go, and sees everybody through it.
async fn play(cluster: &Cluster, fault: Fault) {
    let ground = Ground::on(cluster, "failover");
    let nodes = join_all((0..cluster.len()).map(async |node| cluster.node_client(node).await.unwrap())).await;
    let processes = [Process::new(&ground).await, Process::new(&ground).await];
    let [keeper, waiter] = &processes;
    let kept = keeper.locks.mutex("kept").acquire().await.unwrap();
    let relay = keeper.locks.mutex("relay").acquire().await.unwrap();
    let (waits_to_keep, waits_for_relay) = (waiter.waiting("kept").await, waiter.waiting("relay").await);
    if matches!(fault, Fault::Frozen | Fault::Killed) {
        // The worst moment for a fault that takes an election timeout is just before a renewal.
        let nearly_due = LEASE - SKEW_MARGIN - RENEWAL_INTERVAL + Duration::from_millis(300);
        eventually(PATIENCE, "a renewal is due", async || kept.safe_for() <= nearly_due).await;
    }
    let old = cluster.primary().await.unwrap();
    let (seen, _watching) = watch(&kept);

    let struck = Instant::now();
    // Up to which the keeper has its lock if no renewal gets through any more.
    let deadline = Instant::now() + kept.safe_for();
    let new_primary = async {
        let (new, standing) = new_primary(&nodes, old).await;
        // Its waiter gets it as soon as the waiter's stream is back.
        let releasing = spawn(relay.release());
        // No request can be answered before.
        let committing = majority_write(new).await;
        let relayed = within(PATIENCE, "the relay", waits_for_relay).await.unwrap();
        within(PATIENCE, "the release", releasing).await.unwrap().unwrap();
        (new, standing, committing, relayed)
    };
    let strike = async {
        match fault {
            Fault::SteppedDown => cluster.step_down(old, 10).await.unwrap(),
            Fault::ShutDown => cluster.shut_down(old).await.unwrap(),
            Fault::Frozen => cluster.freeze(old).unwrap(),
            Fault::Killed => cluster.kill(old),
        }
    };
    let ((new, standing, committing, (relay, relayed)), ()) = tokio::join!(new_primary, strike);
    let in_time = standing - struck <= ELECTED_IN_TIME;
    let answered = match fault {
        Fault::Frozen => committing.max(struck + HANGS),
        _ => committing,
    };
    assert!(
        relayed <= answered + BACK,
        "relayed {:?} after the fault",
        relayed - struck
    );

    // A frozen node keeps others from acknowledging at once: only with their heartbeats, every 2 s.
    at_full_speed(new).await;
    let full_speed = Instant::now();
    let mut relay = to_and_fro(&processes, relay).await;
    if fault == Fault::Frozen {
        // The time for which it is frozen is the fault itself.
        sleep_until((struck + FREEZE).into()).await;
        cluster.thaw(old).unwrap();
        cluster.wait_until_ready(PATIENCE).await.unwrap();
        relay = to_and_fro(&processes, relay).await;
    }

    // The keeper still has its lock, and hands it to the one that waited all the while.
    let lost = kept.lost_reason();
    let Seen { at_risk, held } = *seen.lock().unwrap();
    // A server that is asked to end may answer the renewal that was due, as MongoDB 4.4 does; the next one tells then.
    let told = match fault {
        Fault::ShutDown => RENEWAL_INTERVAL + TOLD_OF_RISK,
        _ => TOLD_OF_RISK,
    };
    if standing - struck > told {
        let at_risk = at_risk.map(|at| at - struck);
        assert!(at_risk.is_some_and(|after| after < told), "at risk after {at_risk:?}");
    }
    // Whether the servers gave it a chance.
    let may_be_lost = !in_time || committing + Duration::from_secs(1) >= deadline;
    assert!(lost.is_none() || may_be_lost, "the keeper lost its lock: {lost:?}");
    assert!(
        standing < deadline || held <= deadline,
        "the keeper was told {:?} after its deadline that the lock is lost",
        held - deadline
    );
    let (token, asked) = (kept.token(), Instant::now());
    if lost.is_none() {
        assert!(!waits_to_keep.is_finished(), "the waiter has what the keeper holds");
        assert_eq!(kept.release().await.unwrap(), Released::Released);
    }
    let (next, granted) = within(PATIENCE, "the kept lock", waits_to_keep).await.unwrap();
    assert!(held < granted, "two handles were valid at one time");
    assert!(next.token() > token);
    // Granted while majority writes were slow it may be lost again, but not when it was handed over just now.
    if lost.is_none() {
        let took = granted.saturating_duration_since(asked);
        assert!(took < BY_EVENT, "not handed over by event: {took:?}");
        assert_eq!(next.lost_reason(), None, "lost as soon as granted");
    }

    // A server that says that it goes has its streams replaced once a command finds another. Of one that does not, a
    // stream may be found silent once more. Where the election had to be repeated, everything waits for the members to
    // find each other.
    let silence = match fault {
        Fault::SteppedDown | Fault::ShutDown => Duration::ZERO,
        Fault::Killed | Fault::Frozen => STREAM_DEAD,
    };
    let back = if in_time { standing } else { full_speed } + BACK + silence;
    for process in &processes {
        process.stream_is_back(fault, struck, back);
    }
    drop((next, relay));
    for name in ["kept", "relay"] {
        // No longer than the lease of an entry left behind.
        eventually(LEASE, name, async || is_vacant(&keeper.locks, name).await).await;
    }
}

/// Waits until one of the other nodes says that it is the primary.
async fn new_primary(nodes: &[Client], old: usize) -> (&Client, Instant) {
    let others = nodes.iter().enumerate().filter(|(node, _)| *node != old);
    let standing = others.map(|(_, node)| {
        Box::pin(async move {
            loop {
                let hello = node.database("admin").run_command(doc! { "hello": 1 }).await;
                if hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false)) {
                    return (node, Instant::now());
                }
                sleep(POLL).await;
            }
        })
    });
    within(PATIENCE, "a new primary", select_all(standing)).await.0
}

/// Waits until the new primary acknowledges a write that was sent at once.
async fn majority_write(node: &Client) -> Instant {
    let collection = node.database("probe").collection::<Document>("probe");
    let write = collection.insert_one(doc! {}).write_concern(WriteConcern::majority());
    within(PATIENCE, "a majority", write.into_future()).await.unwrap();
    Instant::now()
}

async fn at_full_speed(node: &Client) {
    let mut fast = 0;
    eventually(PATIENCE, "majority writes are fast", async || {
        let sent = Instant::now();
        let took = majority_write(node).await - sent;
        fast = if took < Duration::from_millis(200) { fast + 1 } else { 0 };
        fast == 5
    })
    .await;
}

/// What the keeper's handle showed all the time.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Since when it was at risk.
    at_risk: Option<Instant>,
    /// The last instant at which it said that the lock was not lost.
    held: Instant,
}

fn watch(kept: &Held<locks::Mutex>) -> (Arc<Mutex<Seen>>, AbortOnDropHandle<()>) {
    let (view, held) = (kept.view(), Instant::now());
    let seen = Arc::new(Mutex::new(Seen { at_risk: None, held }));
    let noted = seen.clone();
    let observer = spawn(async move {
        loop {
            let before = Instant::now();
            let (is_lost, at_risk) = (view.lost_reason().is_some(), view.status() == LockStatus::AtRisk);
            {
                let mut seen = noted.lock().unwrap();
                if !is_lost {
                    seen.held = before;
                }
                if at_risk {
                    seen.at_risk.get_or_insert_with(Instant::now);
                }
            }
            sleep(POLL).await;
        }
    });
    (seen, AbortOnDropHandle::new(observer))
}

/// Hands the relay to and fro, and sees that events do it.
async fn to_and_fro(processes: &[Process; 2], mut held: Held<locks::Mutex>) -> Held<locks::Mutex> {
    // As soon as that, and no sooner: a stream is opened again after a pause.
    for process in processes {
        until_mode(&process.locks, BACK + STREAM_DEAD, |mode| {
            mode == WakeMode::ChangeStream
        })
        .await;
    }
    // While majority writes were slow a claim lease may have run out before it could be renewed.
    if held.lost_reason().is_some() {
        let acquire = processes[1].locks.mutex("relay").acquire();
        let again = within(PATIENCE, "the relay", acquire).await.unwrap();
        assert!(again.token() > held.token());
        held = again;
    }
    let mut times = Vec::new();
    for relay in 0..RELAYS {
        let waiting = processes[relay % 2].waiting("relay").await;
        let (token, asked) = (held.token(), Instant::now());
        let releasing = spawn(async move { (held.release().await, asked.elapsed()) });
        let (next, granted) = within(PATIENCE, "the relay", waiting).await.unwrap();
        assert!(next.token() > token);
        held = next;
        let (released, answered) = releasing.await.unwrap();
        assert_eq!(released.unwrap(), Released::Released, "relay {relay}");
        times.push((granted - asked, answered));
    }
    for process in processes {
        let modes = process.modes.lock().unwrap();
        let is_streaming = process.locks.wake_mode() == WakeMode::ChangeStream;
        assert!(is_streaming, "{modes:?}, grants and releases took {times:.1?}");
    }
    let by_event = times.iter().all(|(granted, _)| *granted < BY_EVENT);
    assert!(by_event, "grants and releases took {times:.1?}");
    held
}

/// A lock client on a driver client of its own, as another process would have it.
struct Process {
    locks: LockClient,
    /// Its wake modes, and since when.
    modes: Arc<Mutex<Vec<(Instant, WakeMode)>>>,
    _observer: AbortOnDropHandle<()>,
}

impl Process {
    async fn new(ground: &Ground) -> Self {
        let (locks, modes) = (ground.locks().await, Arc::<Mutex<Vec<_>>>::default());
        let (observed, log) = (locks.clone(), modes.clone());
        let observer = spawn(async move {
            let mut mode = observed.wake_mode();
            loop {
                mode = observed.wake_mode_changed(mode).await;
                log.lock().unwrap().push((Instant::now(), mode));
            }
        });
        Self {
            locks,
            modes,
            _observer: AbortOnDropHandle::new(observer),
        }
    }

    /// Waits for a lock, and stands in its queue.
    async fn waiting(&self, name: &str) -> JoinHandle<(Held<locks::Mutex>, Instant)> {
        let acquire = self.locks.mutex(name).acquire();
        let waiting = spawn(async move { (acquire.await.unwrap(), Instant::now()) });
        eventually(PATIENCE, "it stands in the queue", async || {
            waiting.is_finished() || !info(&self.locks, name).await.unwrap().waiters.is_empty()
        })
        .await;
        waiting
    }

    /// The change stream, if it was interrupted at all, was open again in time; and a silent one was taken for dead.
    fn stream_is_back(&self, fault: Fault, struck: Instant, by: Instant) {
        let modes = self.modes.lock().unwrap();
        let since: Vec<_> = modes.iter().filter(|(at, _)| *at > struck).collect();
        let (Some((broken, _)), Some((back, mode))) = (since.first(), since.last()) else {
            assert_ne!(fault, Fault::Frozen, "its stream was silent");
            return;
        };
        let shown: Vec<_> = since.iter().map(|(at, mode)| (*at - struck, mode)).collect();
        assert!(*broken - struck < STREAM_DEAD, "after the fault: {shown:?}");
        assert_eq!(*mode, WakeMode::ChangeStream);
        assert!(*back <= by, "not {:?} after the fault: {shown:?}", by - struck);
    }
}
