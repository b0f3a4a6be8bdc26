//! What a fail-over costs: no healthy holder its lock, no waiter more than time, and nobody the exclusion.
//!
//! A primary can go in four ways, each of which has a test and a replica set of three nodes of its own. Throughout, one
//! client keeps a lock that another waits for, and hands another lock to it and back. MongoDB's election timeout of 10 s
//! and watchlock's lease of 30 s are the defaults: that a holder outlives the election is a promise about the two
//! together. Crowds in a fail-over are judged by the chaos.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use futures::future::select_all;
use mongodb::options::WriteConcern;
use tokio::{
    task::JoinHandle,
    time::{sleep, sleep_until, timeout},
};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    SteppedDown,
    ShutDown,
    Frozen,
    Killed,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_steps_down_costs_no_lock_and_no_turn() {
    Scene::new(Fault::SteppedDown).await.play().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_shut_down_costs_no_lock_and_no_turn() {
    Scene::new(Fault::ShutDown).await.play().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_frozen_costs_no_lock_and_no_turn() {
    Scene::new(Fault::Frozen).await.play().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_killed_costs_no_lock_and_no_turn() {
    Scene::new(Fault::Killed).await.play().await;
}

/// The servers, who watches them, and what befalls their primary.
struct Scene {
    fault: Fault,
    cluster: Cluster,
    database: String,
    /// Straight to each node.
    nodes: Vec<Client>,
}

/// A lock client on a driver client of its own, as another process would have it.
struct Process {
    name: String,
    locks: LockClient,
    modes: Arc<Mutex<Vec<(Instant, WakeMode)>>>,
    _observer: Aborted,
}

/// A task that ends with its owner.
struct Aborted(JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Scene {
    async fn new(fault: Fault) -> Self {
        let cluster = Cluster::builder().replica_set(3).in_memory(true).start().await.unwrap();
        let nodes = join_all((0..cluster.len()).map(|i| cluster.node_client(i))).await;
        let nodes = nodes.into_iter().map(Result::unwrap).collect();
        Self {
            fault,
            cluster,
            database: shared::unique_name("failover"),
            nodes,
        }
    }

    async fn process(&self, name: &str) -> Process {
        let client = self.cluster.client().await.unwrap();
        let locks = LockClient::builder(client.database(&self.database))
            .label(name)
            .build()
            .await
            .unwrap();
        let modes = Arc::new(Mutex::new(vec![(Instant::now(), locks.wake_mode())]));
        let (observed, log) = (locks.clone(), modes.clone());
        let observer = spawn(async move {
            let mut mode = observed.wake_mode();
            loop {
                mode = observed.wake_mode_changed(mode).await;
                locked(&log).push((Instant::now(), mode));
            }
        });
        Process {
            name: name.to_owned(),
            locks,
            modes,
            _observer: Aborted(observer),
        }
    }

    /// Has the primary go, and sees everybody through it.
    async fn play(self) {
        let mut keepers = Keepers::start(&self).await;
        if matches!(self.fault, Fault::Frozen | Fault::Killed) {
            keepers.have_the_least_time_left().await;
        }
        let old = self.cluster.primary().await.unwrap();
        let watch = keepers.watch();

        let struck = Instant::now();
        let deadline = keepers.deadline();
        let ((new, moments, relayed), ()) = tokio::join!(
            async {
                let (new, standing) = self.new_primary(old).await;
                // Its waiter gets it as soon as the waiter's stream is back.
                keepers.start_relay();
                let committing = self.majority_write(new).await;
                let moments = Moments {
                    struck,
                    deadline,
                    standing,
                    committing,
                };
                (new, moments, keepers.first_relay().await)
            },
            self.strike(old)
        );
        let answered = match self.fault {
            Fault::Frozen => moments.committing.max(struck + HANGS),
            _ => moments.committing,
        };
        assert!(
            relayed <= answered + BACK,
            "the relay was handed over {}",
            moments.since(relayed)
        );

        // A frozen node keeps others from acknowledging at once: only with their heartbeats, every 2 s.
        self.at_full_speed(new).await;
        let full_speed = Instant::now();
        keepers.relay_to_and_fro().await;
        if self.fault == Fault::Frozen {
            // The time for which it is frozen is the fault itself.
            sleep_until((struck + FREEZE).into()).await;
            self.cluster.thaw(old).unwrap();
            self.cluster.wait_until_ready(PATIENCE).await.unwrap();
            keepers.relay_to_and_fro().await;
        }
        keepers.hand_over(self.fault, &watch, &moments).await;
        for process in &keepers.processes {
            process.stream_is_back(self.fault, &moments, full_speed);
        }
        keepers.finish(&self).await;
    }

    /// Waits until the new primary acknowledges a write that was sent at once.
    async fn majority_write(&self, node: usize) -> Instant {
        let collection = self.nodes[node].database("probe").collection::<Document>("probe");
        let write = collection.insert_one(doc! {}).write_concern(WriteConcern::majority());
        timeout(PATIENCE, write).await.expect("a majority").unwrap();
        Instant::now()
    }

    async fn at_full_speed(&self, node: usize) {
        let start = Instant::now();
        let mut fast = 0;
        while fast < 5 {
            assert!(start.elapsed() < PATIENCE, "majority writes stay slow");
            let sent = Instant::now();
            let took = self.majority_write(node).await - sent;
            fast = if took < Duration::from_millis(200) { fast + 1 } else { 0 };
        }
    }

    async fn strike(&self, node: usize) {
        match self.fault {
            Fault::SteppedDown => self.cluster.step_down(node, 10).await.unwrap(),
            Fault::ShutDown => self.cluster.shut_down(node).await.unwrap(),
            Fault::Frozen => self.cluster.freeze(node).unwrap(),
            Fault::Killed => self.cluster.kill(node),
        }
    }

    /// Waits until one of the other nodes says that it is the primary.
    async fn new_primary(&self, old: usize) -> (usize, Instant) {
        let others = self.nodes.iter().enumerate().filter(|(i, _)| *i != old);
        let standing = others.map(|(i, node)| {
            Box::pin(async move {
                loop {
                    let hello = node.database("admin").run_command(doc! { "hello": 1 }).await;
                    if hello.is_ok_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false)) {
                        return (i, Instant::now());
                    }
                    sleep(POLL).await;
                }
            })
        });
        let (standing, ..) = timeout(PATIENCE, select_all(standing)).await.expect("a new primary");
        standing
    }
}

/// The turning points of a fault.
#[derive(Clone, Copy, Debug)]
struct Moments {
    struck: Instant,
    /// Up to which the keeper has its lock if no renewal gets through any more.
    deadline: Instant,
    /// Another node says that it is the primary.
    standing: Instant,
    /// It acknowledges the first write by majority: no request can be answered before.
    committing: Instant,
}

impl Moments {
    /// Whether the servers gave holders a chance to keep their locks.
    fn are_in_time(&self) -> bool {
        self.standing - self.struck <= ELECTED_IN_TIME && self.committing + Duration::from_secs(1) < self.deadline
    }

    fn since(&self, instant: Instant) -> String {
        if instant >= self.standing {
            format!("{:.2?} after the new primary stood", instant - self.standing)
        } else {
            format!("{:.2?} before the new primary stood", self.standing - instant)
        }
    }
}

/// Two clients: one keeps a lock that the other waits for, and hands another lock to it and back.
struct Keepers {
    processes: [Process; 2],
    kept: Option<Held<locks::Mutex>>,
    waits_to_keep: Option<JoinHandle<(Held<locks::Mutex>, Instant)>>,
    relay: Option<Held<locks::Mutex>>,
    waits_for_relay: Option<JoinHandle<(Held<locks::Mutex>, Instant)>>,
    relaying: Option<JoinHandle<Released>>,
}

const KEPT: &str = "kept";
const RELAY: &str = "relay";
const RELAYS: usize = 20;

/// What the keeper's handle showed all the time.
struct Watch {
    seen: Arc<Mutex<Seen>>,
    _observer: Aborted,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Since when it was at risk.
    at_risk: Option<Instant>,
    /// The last instant at which it said that the lock was not lost.
    held: Instant,
}

impl Keepers {
    /// Both locks are held by the first, and waited for by the second.
    async fn start(scene: &Scene) -> Self {
        let keeper = scene.process("keeper").await;
        let waiter = scene.process("waiter").await;
        let kept = keeper.locks.mutex(KEPT).acquire().await.unwrap();
        let relay = keeper.locks.mutex(RELAY).acquire().await.unwrap();
        Self {
            kept: Some(kept),
            waits_to_keep: Some(waiter.waiting(KEPT).await),
            relay: Some(relay),
            waits_for_relay: Some(waiter.waiting(RELAY).await),
            relaying: None,
            processes: [keeper, waiter],
        }
    }

    /// The worst moment for a fault that takes an election timeout is just before a renewal.
    async fn have_the_least_time_left(&self) {
        let kept = self.kept.as_ref().unwrap();
        let start = Instant::now();
        let nearly_due = LEASE - SKEW_MARGIN - RENEWAL_INTERVAL + Duration::from_millis(300);
        while kept.safe_for() > nearly_due {
            assert!(start.elapsed() < PATIENCE, "renewed too early: {:?}", kept.safe_for());
            sleep(POLL).await;
        }
    }

    /// Up to which the lock is surely kept without another renewal.
    fn deadline(&self) -> Instant {
        let safe_for = self.kept.as_ref().unwrap().safe_for();
        Instant::now() + safe_for
    }

    fn watch(&self) -> Watch {
        let view = self.kept.as_ref().unwrap().view();
        let seen = Arc::new(Mutex::new(Seen {
            at_risk: None,
            held: Instant::now(),
        }));
        let noted = seen.clone();
        let observer = spawn(async move {
            loop {
                {
                    let mut seen = locked(&noted);
                    let before = Instant::now();
                    if view.lost_reason().is_none() {
                        seen.held = before;
                    }
                    if view.status() == LockStatus::AtRisk {
                        seen.at_risk.get_or_insert_with(Instant::now);
                    }
                }
                sleep(POLL).await;
            }
        });
        Watch {
            seen,
            _observer: Aborted(observer),
        }
    }

    /// Releases the relay; its waiter has been waiting all along.
    fn start_relay(&mut self) {
        let held = self.relay.take().unwrap();
        self.relaying = Some(spawn(async move { held.release().await.unwrap() }));
    }

    /// Waits until the one that waited all along has the relay, and returns when it had.
    async fn first_relay(&mut self) -> Instant {
        let waiting = self.waits_for_relay.take().unwrap();
        let (relay, granted) = timeout(PATIENCE, waiting).await.expect("the relay").unwrap();
        self.relay = Some(relay);
        let release = self.relaying.take().unwrap();
        timeout(PATIENCE, release).await.expect("the release").unwrap();
        granted
    }

    /// Hands the relay to and fro, and sees that events do it.
    async fn relay_to_and_fro(&mut self) {
        // As soon as that, and no sooner: a stream is opened again after a pause.
        for process in &self.processes {
            until_mode(&process.locks, BACK + STREAM_DEAD, |mode| {
                mode == WakeMode::ChangeStream
            })
            .await;
        }
        let (mut latencies, mut releases) = (Vec::new(), Vec::new());
        let mut held = self.relay.take().unwrap();
        // While majority writes were slow a claim lease may have run out before it could be renewed.
        if held.lost_reason().is_some() {
            let again = timeout(PATIENCE, self.processes[1].locks.mutex(RELAY).acquire())
                .await
                .expect("the relay")
                .unwrap();
            assert!(
                again.token() > held.token(),
                "{:?} after {:?}",
                again.token(),
                held.token()
            );
            held = again;
        }
        for relay in 0..RELAYS {
            let waiting = self.processes[relay % 2].waiting(RELAY).await;
            let token = held.token();
            let asked = Instant::now();
            let release = spawn(async move { (held.release().await, Instant::now()) });
            let (next, granted) = timeout(PATIENCE, waiting).await.expect("the relay").unwrap();
            latencies.push(granted - asked);
            assert!(next.token() > token, "{:?} after {token:?}", next.token());
            held = next;
            let (released, answered) = release.await.unwrap();
            assert_eq!(released.unwrap(), Released::Released, "relay {relay}");
            releases.push(answered - asked);
        }
        for process in &self.processes {
            let modes = locked(&process.modes);
            let ago: Vec<_> = modes.iter().map(|(at, mode)| (at.elapsed(), *mode)).collect();
            assert_eq!(
                process.locks.wake_mode(),
                WakeMode::ChangeStream,
                "{}, since {ago:.1?}, relays took {latencies:.1?}",
                process.name
            );
        }
        assert!(
            latencies.iter().all(|latency| *latency < BY_EVENT),
            "a relay was not handed over by event: {latencies:.1?}, and the releases took {releases:.1?}"
        );
        self.relay = Some(held);
    }

    /// The keeper still has its lock, and hands it to the one that waited all the while.
    async fn hand_over(&mut self, fault: Fault, watch: &Watch, moments: &Moments) {
        let kept = self.kept.take().unwrap();
        let lost = kept.lost_reason();
        let Seen { at_risk, held } = *locked(&watch.seen);
        let without_primary = moments.standing - moments.struck;
        // A server that is asked to end may answer the renewal that was due, as MongoDB 4.4 does; the next one tells
        // then.
        let told = match fault {
            Fault::ShutDown => RENEWAL_INTERVAL + TOLD_OF_RISK,
            _ => TOLD_OF_RISK,
        };
        if without_primary > told {
            assert!(
                at_risk.is_some_and(|at| at - moments.struck < told),
                "the keeper was not told in time that its lock was at risk"
            );
        }
        assert!(
            lost.is_none() || !moments.are_in_time(),
            "the keeper lost its lock: {lost:?}"
        );
        assert!(
            moments.standing < moments.deadline || held <= moments.deadline,
            "the keeper was told {:?} after its deadline that the lock is lost",
            held - moments.deadline
        );
        let waiting = self.waits_to_keep.take().unwrap();
        let token = kept.token();
        let asked = Instant::now();
        if lost.is_none() {
            assert!(
                !waiting.is_finished(),
                "the waiter has the lock that the keeper still holds"
            );
            assert_eq!(kept.release().await.unwrap(), Released::Released);
        }
        let (next, granted) = timeout(PATIENCE, waiting).await.expect("the kept lock").unwrap();
        let took = granted.saturating_duration_since(asked);
        assert!(held < granted, "two handles were valid at one time");
        assert!(next.token() > token);
        // Granted while majority writes were slow it may be lost again, but not when it was handed over just now.
        let lost_again = next.lost_reason();
        assert!(
            lost.is_some() || lost_again.is_none(),
            "lost as soon as granted: {lost_again:?}"
        );
        assert!(
            lost.is_some() || took < BY_EVENT,
            "the kept lock was not handed over by event: {took:?}"
        );
        self.kept = Some(next);
    }

    async fn finish(self, scene: &Scene) {
        drop((self.kept, self.relay));
        for name in [KEPT, RELAY] {
            idle(scene, name).await;
        }
    }
}

impl Process {
    /// Waits for a lock, and stands in its queue.
    async fn waiting(&self, name: &str) -> JoinHandle<(Held<locks::Mutex>, Instant)> {
        let mutex = self.locks.mutex(name);
        let waiting = spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
        let start = Instant::now();
        loop {
            let lock = self.locks.inspect(name).await.unwrap().unwrap();
            if waiting.is_finished()
                || lock
                    .waiters
                    .iter()
                    .any(|waiter| waiter.owner.label.as_ref() == Some(&self.name))
            {
                return waiting;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{} does not stand in the queue: {lock:?}",
                self.name
            );
        }
    }

    /// The change stream, if it was interrupted at all, was open again in time; and a silent one was taken for dead.
    fn stream_is_back(&self, fault: Fault, moments: &Moments, full_speed: Instant) {
        let modes = locked(&self.modes);
        let since: Vec<_> = modes.iter().filter(|(at, _)| *at > moments.struck).collect();
        let (Some((broken, _)), Some((back, mode))) = (since.first(), since.last()) else {
            assert_ne!(fault, Fault::Frozen, "{}: its stream was silent", self.name);
            return;
        };
        let noticed = *broken - moments.struck;
        assert!(
            noticed < STREAM_DEAD,
            "{}: noticed {noticed:?} after the fault",
            self.name
        );
        assert_eq!(*mode, WakeMode::ChangeStream, "{}", self.name);
        // Where the election had to be repeated, everything waits for the members to find each other.
        let in_time = moments.standing - moments.struck <= ELECTED_IN_TIME;
        // A server that says that it goes has its streams replaced once a command finds another. Of one that does not,
        // a stream may be found silent once more.
        let silence = match fault {
            Fault::SteppedDown | Fault::ShutDown => Duration::ZERO,
            Fault::Killed | Fault::Frozen => STREAM_DEAD,
        };
        let bound = if in_time { moments.standing } else { full_speed } + BACK + silence;
        assert!(
            *back <= bound,
            "{}: its stream was back {}: {:?}",
            self.name,
            moments.since(*back),
            since
                .iter()
                .map(|(at, mode)| (*at - moments.struck, mode))
                .collect::<Vec<_>>()
        );
    }
}

/// Waits until nobody holds the lock or waits for it; that takes no longer than the lease of an entry left behind.
async fn idle(scene: &Scene, name: &str) {
    let start = Instant::now();
    let client = scene.cluster.client().await.unwrap();
    let locks = client
        .database(&scene.database)
        .collection::<Document>("distributed_locks");
    loop {
        let lock = locks.find_one(doc! { "_id": name }).await.unwrap().unwrap();
        if ["holders", "queue"]
            .iter()
            .all(|list| lock.get_array(list).unwrap().is_empty())
        {
            return;
        }
        assert!(start.elapsed() < LEASE, "`{name}` is not idle: {lock}");
        sleep(POLL).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
