//! The whole client in a simulated world: sessions, heartbeats, watchers and handles over an in-memory store. Every
//! exchange with it can be slow, fail, be applied late, or be applied or not and never answered. Its streams break,
//! lose events and go silent; its documents are blocked or refuse renewals; its clock jumps; and its links are cut.
//! All of this runs on tokio's paused clock, so that an hour takes a moment.
//!
//! A seed makes a world. In each of them clients contend for a few locks while everything goes wrong, then the weather
//! calms down, and in the end everything must have come to rest. A failing seed is printed; run it again alone with
//! `WATCHLOCK_SEED=<seed> cargo test --lib simulation -- --nocapture`.
//!
//! # What is checked
//!
//! - At every grant: the permits of all handles that believe themselves valid, those aside that an operator has put
//!   out, fit the capacity.
//! - Every few moments: whatever believes itself valid is a live holder in the memory too, so a loss is known before
//!   the server would give the lock away.
//! - Tokens of a name are never issued twice; those of a mutex rise with each grant, and with each task that a hold is
//!   handed on to inside a process; and a writer's is larger than those of all readers before it, of those too that
//!   share a hold. In one world of four, so many tasks want one lock that it is handed on or shared; in one of eight, so
//!   many tasks want different locks that they share commands.
//! - Every acquire ends, be it after the weather has calmed down; and then nothing is left: no holder, no waiter, no
//!   line.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use watchlock_proofs::{Random, share_of};

use super::simulated::Link;
use crate::{
    client::LockClient,
    config::Config,
    error::AcquireError,
    handle::{
        Held, Released, View,
        target::{IsOne, One},
    },
    locks::acquire::{Acquire, CanAcquire, Try},
    protocol::{ServerTime, State},
    session::Session,
    store::{MemoryStore, Selection, Store},
    wake_mode::WakeMode,
};

/// Number of worlds, of which an everyday run has half. `WATCHLOCK_SEED=0..20000` asks for more.
const SEEDS: u64 = 32;

const CLIENTS: u64 = 3;

/// Number of tasks of each client, and of steps of each task, one after the other.
const TASKS: u64 = 3;
const STEPS: u64 = 8;

/// Duration of the bad weather.
const STORM: Duration = Duration::from_secs(60);

/// Number of tasks of the first client in a world in which all want one lock, for a moment each.
const CROWD: u64 = 8;

/// Number of tasks of each client in a world of many locks, which has one slot for commands: so they go together.
const BUSY: u64 = 12;

/// Whether it is such a world.
fn has_many(seed: u64) -> bool {
    seed % 8 == 5
}

/// Returns the lock that all want, if it is such a world.
fn wanted_by_all(seed: u64) -> Option<&'static [&'static str]> {
    match seed % 8 {
        3 => Some(&NAMES[..1]),
        7 => Some(&NAMES[2..3]),
        _ => None,
    }
}

/// Pause between two comparisons of the handles with the store.
const LOOK: Duration = Duration::from_millis(23);

/// Maximum time for the rest: a driver that hangs, a lease, the sweeps, and the remaining steps.
const CALM: Duration = Duration::from_secs(300);

const LEASE: Duration = Duration::from_secs(3);

/// How long a lock stays with a client that keeps it for its next task.
const IDLE: Duration = Duration::from_secs(2);

const SKEW: Duration = Duration::from_millis(300);

/// The locks of the world; a name is one kind.
const NAMES: [&str; 4] = ["mutex", "semaphore", "rwlock", "election"];

/// Those of a world of many locks.
const MANY: [&str; 16] = [
    "mutex a", "mutex b", "mutex c", "mutex d", "mutex e", "mutex f", "mutex g", "mutex h", "mutex i", "mutex j",
    "mutex k", "mutex l", "mutex m", "mutex n", "mutex o", "mutex p",
];

fn names_of(seed: u64) -> &'static [&'static str] {
    if has_many(seed) { &MANY } else { &NAMES }
}

/// The record of a world: its events, and the handles that believe themselves valid.
#[derive(Debug, Default)]
struct World {
    live: BTreeMap<String, Vec<View>>,
    tokens: BTreeMap<String, Vec<i64>>,
    /// One line for each event; the same for the same seed.
    log: String,
    grants: u64,
    /// Number of grants without the server: to the next task of the process, and to readers beside another.
    handed_on: u64,
    shared: u64,
    /// By reason.
    losses: BTreeMap<String, u64>,
    /// Number of renewals of one document that the server refused among others.
    refused: u64,
    /// Number of commands for several locks.
    together: u64,
}

#[derive(Clone, Debug)]
struct Observer {
    world: Arc<Mutex<World>>,
    memory: Arc<MemoryStore>,
    begun: Instant,
    seed: u64,
}

/// Whether a handle must be right: it believes itself valid, and no operator has evicted it, of which it learns as
/// soon as it can, and no sooner.
fn is_to_be_right(view: &View, state: Option<&State>) -> bool {
    let broken = state.and_then(|state| state.broken).unwrap_or(0);
    view.lost_reason().is_none() && granted_as(view) > broken
}

/// Returns the token that the document has for a hold: its own, or that of the task which handed it on first.
fn granted_as(view: &View) -> i64 {
    view.seen.granted_as
}

/// Whether an operator has put the handle out, of which it may not know yet.
fn is_broken(memory: &MemoryStore, view: &View) -> bool {
    let mut broken = false;
    memory.look(view.name(), |state, _| {
        broken = state
            .and_then(|state| state.broken)
            .is_some_and(|broken| granted_as(view) <= broken);
    });
    broken
}

impl Observer {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &str) {
        let at = self.begun.elapsed().as_millis();
        let _ = writeln!(self.world().log, "{at} {what}");
    }

    fn fail(&self, why: &str) -> ! {
        let log = self.world().log.clone();
        panic!("{log}\nseed {}: {why}", self.seed);
    }

    /// Notes a grant: no other valid handle may exceed the capacity together with it.
    fn granted(&self, client: u64, handle: &Held, capacity: u64) {
        let (name, token) = (handle.name().to_owned(), handle.token().as_i64());
        self.note(&format!("client {client} has {name} under {token}"));
        let mut world = self.world();
        world.grants += 1;
        let as_broken = is_broken(&self.memory, &handle.view());
        let (locally, alone) = (granted_as(&handle.view()) != token, handle.permits() == capacity);
        world.handed_on += u64::from(locally && alone);
        world.shared += u64::from(locally && !alone);
        let tokens = world.tokens.entry(name.clone()).or_default();
        let (last, known) = (tokens.iter().max().copied(), tokens.contains(&token));
        tokens.push(token);
        let live = world.live.entry(name.clone()).or_default();
        live.push(handle.view());
        self.memory
            .look(&name, |state, _| live.retain(|view| is_to_be_right(view, state)));
        let held: u64 = live.iter().map(|view| view.permits()).sum();
        let tokens_of: Vec<_> = live.iter().map(|view| view.token().as_i64()).collect();
        drop(world);
        if held > capacity {
            self.fail(&format!("{name} is held {held} times at once, under {tokens_of:?}"));
        }
        // Of a lock that was broken a moment ago a fence refuses it.
        if known || (alone && !as_broken && last.is_some_and(|last| token < last)) {
            self.fail(&format!("{name} was granted under {token} after {last:?}"));
        }
    }

    /// Checks that every handle that believes itself valid is right.
    fn compare(&self) {
        let mut gone = None;
        for (name, live) in &mut self.world().live {
            self.memory.look(name, |state, now| {
                live.retain(|view| is_to_be_right(view, state));
                for token in live.iter().map(granted_as) {
                    let holds = |state: &State| {
                        let mut holders = state.holders.iter();
                        holders.any(|holder| holder.token == token && holder.until > now)
                    };
                    if !state.is_some_and(holds) {
                        gone = Some(format!("{name} under {token} is believed in, and gone: {state:?}"));
                    }
                }
            });
        }
        if let Some(gone) = gone {
            self.fail(&gone);
        }
    }
}

/// Acquires a lock in one of the ways; `None` if it was given up.
async fn got<T: CanAcquire<Count = One, Held: IsOne + CanAcquire>>(
    acquire: Acquire<T>,
    try_acquire: Acquire<T, Try>,
    (way, patience): (u64, Duration),
) -> Result<Option<Held>, AcquireError> {
    let outcome = match way {
        0..4 => acquire.await.map(Some),
        4..6 => match acquire.timeout(patience).await {
            Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }) => Ok(None),
            other => other.map(Some),
        },
        // Given up by dropping the future.
        6..8 => timeout(patience, acquire).await.map_or(Ok(None), |got| got.map(Some)),
        _ => match try_acquire.await {
            // A try fails when the server can't be reached.
            Err(AcquireError::Server(_)) => Ok(None),
            other => other,
        },
    };
    outcome.map(|held| held.map(Held::from))
}

/// Runs a task of a client: it acquires, holds and lets go, in all possible ways.
async fn task(client: u64, locks: LockClient, observer: Observer, mut random: Random) {
    // The tasks of one client pass the lock along, and the others come by.
    let (steps, names, pause, hold) = match (wanted_by_all(observer.seed), client) {
        (Some(names), 0) => (10 * STEPS, names, 50, 30),
        (Some(names), _) => (STEPS, names, 3_000, 300),
        (None, _) if has_many(observer.seed) => (2 * STEPS, names_of(observer.seed), 300, 30),
        (None, _) => (STEPS, &NAMES[..], 3_000, 8_000),
    };
    for _ in 0..steps {
        sleep(Duration::from_millis(random.below(pause))).await;
        let name = *random.pick(names);
        let patience = Duration::from_millis(random.below(10_000));
        let way = random.below(10);
        let ways = (way, patience);
        let (outcome, capacity) = match name {
            name if name.starts_with("mutex") => {
                let mutex = locks.mutex(name);
                (got(mutex.acquire(), mutex.try_acquire(), ways).await, 1)
            }
            "semaphore" => {
                let (semaphore, permits) = (
                    locks.semaphore(name, 3),
                    1 + u32::try_from(random.below(3)).unwrap_or(0),
                );
                let (acquire, attempt) = (semaphore.acquire_many(permits), semaphore.try_acquire_many(permits));
                (got(acquire, attempt, ways).await, 3)
            }
            "rwlock" if random.below(3) == 0 => {
                let lock = locks.rw_lock(name);
                (got(lock.write(), lock.try_write(), ways).await, 1 << 30)
            }
            "rwlock" => {
                let lock = locks.rw_lock(name);
                (got(lock.read(), lock.try_read(), ways).await, 1 << 30)
            }
            _ => {
                let election = locks.election(name).campaign("me").timeout(patience).await;
                match election {
                    Ok(leadership) => {
                        observer.note(&format!("client {client} leads under {}", leadership.token()));
                        sleep(Duration::from_millis(random.below(4_000))).await;
                        let _ = leadership.release().await;
                    }
                    Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }) => {}
                    // An acquire without time is a try, and a try fails when the server can't be reached.
                    Err(AcquireError::Server(_)) if patience.is_zero() => {}
                    Err(error) => observer.fail(&format!("client {client} is refused {name}: {error}")),
                }
                continue;
            }
        };
        let handle = match outcome {
            Ok(Some(handle)) => handle,
            Ok(None) => continue,
            Err(error) => observer.fail(&format!("client {client} is refused {name}: {error}")),
        };
        observer.granted(client, &handle, capacity);
        let token = handle.token();
        // In a crowd, hardly anybody holds a lock for long.
        let hold = if has_many(observer.seed) && random.below(16) == 0 {
            8_000
        } else {
            hold
        };
        tokio::select! {
            biased;
            reason = handle.lost() => {
                observer.note(&format!("client {client} lost {name} under {token}: {reason}"));
                *observer.world().losses.entry(format!("{:?}", reason.reason)).or_default() += 1;
            }
            () = sleep(Duration::from_millis(random.below(hold))) => {}
        }
        if random.below(4) == 0 {
            let _ = handle.renew().await;
        }
        if random.below(3) == 0 {
            drop(handle);
        } else {
            let released = handle.release().await.map_err(|error| error.to_string());
            observer.note(&format!("client {client} released {name} under {token}: {released:?}"));
        }
    }
}

/// Causes the misfortunes beside the weather, by the seed: links are cut, idle connections die, transactions of others
/// block documents, a validator refuses those of one lock, an operator breaks locks, the clock jumps.
async fn misfortune(
    links: Vec<Arc<Link>>,
    memory: Arc<MemoryStore>,
    operator: LockClient,
    observer: Observer,
    mut random: Random,
) {
    let until = observer.begun + STORM;
    // Some worlds are spared the one or the other.
    let (cuts, breaks, jumps) = (random.below(2) == 0, random.below(2) == 0, random.below(2) == 0);
    let (deaths, blocks, refusals) = (random.below(2) == 0, random.below(2) == 0, random.below(2) == 0);
    while Instant::now() < until {
        sleep(Duration::from_millis(random.below(4_000))).await;
        match random.below(6) {
            0 if cuts => {
                let link = random.pick(&links).clone();
                observer.note("a link is cut");
                link.cut(true);
                sleep(Duration::from_millis(random.below(8_000))).await;
                link.cut(false);
                observer.note("it is mended");
            }
            1 if breaks => {
                let name = *random.pick(names_of(observer.seed));
                observer.note(&format!("{name} is broken"));
                let _ = operator.break_lock(name).await;
            }
            2 if jumps => {
                // A new primary, whose clock is up to the skew margin ahead of the slowest.
                let ahead = i64::try_from(random.below(SKEW.as_millis() as u64)).unwrap_or(0);
                observer.note(&format!("the server's clock is ahead by {ahead} ms"));
                memory.run_ahead(ahead);
            }
            3 if deaths => {
                let connections = 1 + random.below(6);
                observer.note(&format!("{connections} idle connections die"));
                random.pick(&links).kill_idle(connections);
            }
            4 if blocks => {
                let name = *random.pick(names_of(observer.seed));
                observer.note(&format!("{name} is blocked"));
                links.iter().for_each(|link| link.block(name, true));
                sleep(Duration::from_millis(random.below(8_000))).await;
                links.iter().for_each(|link| link.block(name, false));
                observer.note("it is free again");
            }
            5 if refusals => {
                let name = *random.pick(names_of(observer.seed));
                observer.note(&format!("{name} is not to be renewed"));
                links.iter().for_each(|link| link.refuse([name.to_owned()]));
                sleep(Duration::from_millis(random.below(8_000))).await;
                links.iter().for_each(|link| link.refuse([]));
                observer.note("it is again");
            }
            _ => {}
        }
    }
}

fn client(memory: &Arc<MemoryStore>, seed: u64, number: u64) -> (Arc<Link>, Arc<Session>) {
    let link = Link::new(memory.clone(), seed * 16 + number);
    let mut settings = Config {
        lease: LEASE,
        claim_lease: Some(Duration::from_secs(1)),
        skew_margin: Some(SKEW),
        // Some do without a stream wherever they stand, others only at the end.
        near: (seed + number) % 4,
        // With some, what nobody waits for stays.
        keep_idle: match (seed + number).is_multiple_of(3) && !has_many(seed) {
            true => IDLE,
            false => Duration::ZERO,
        },
        ..Config::default()
    };
    if has_many(seed) {
        settings.max_operations = 1;
    }
    let config = settings.validate().unwrap();
    let store = Store::Simulated(link.clone());
    let session = Session::of(format!("{number:016x}"), config, store, None, WakeMode::ChangeStream);
    (link, session)
}

/// Runs the world of a seed to its end; returns its record.
async fn live(seed: u64) -> World {
    let mut random = Random::new(seed ^ 0x5EED);
    let memory = Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)));
    let observer = Observer {
        world: Arc::default(),
        memory: memory.clone(),
        begun: Instant::now(),
        seed,
    };
    let (links, sessions): (Vec<_>, Vec<_>) = (0..CLIENTS).map(|number| client(&memory, seed, number)).unzip();
    // A break whose sender got an error could still be done at any time.
    let (its_link, operator) = client(&memory, seed, CLIENTS);
    its_link.calm();
    let mut tasks = JoinSet::new();
    for (number, session) in (0..).zip(&sessions) {
        let locks = LockClient::new(session.clone());
        let tasks_of_it = match (wanted_by_all(seed).is_some(), number) {
            (true, 0) => CROWD,
            (true, _) => 1,
            (false, _) if has_many(seed) => BUSY,
            (false, _) => TASKS,
        };
        for _ in 0..tasks_of_it {
            let fate = Random::new(random.below(u64::MAX));
            tasks.spawn(task(number, locks.clone(), observer.clone(), fate));
        }
    }
    let fate = Random::new(random.below(u64::MAX));
    let operator = LockClient::new(operator);
    let storm = tokio::spawn(misfortune(
        links.clone(),
        memory.clone(),
        operator,
        observer.clone(),
        fate,
    ));
    let watching = {
        let observer = observer.clone();
        tokio::spawn(async move {
            loop {
                observer.compare();
                sleep(LOOK).await;
            }
        })
    };
    sleep_until(observer.begun + STORM).await;
    links.iter().for_each(|link| link.calm());
    storm.await.unwrap();
    observer.note("the weather calms down");
    let rest = async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    if timeout(CALM, rest).await.is_err() {
        observer.fail("somebody still waits");
    }
    // Entries that were given up, lost or sent late are removed after a while.
    let unused = async || {
        while !(sessions.iter().all(|session| session.is_unused()) && memory.is_unused()) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    if timeout(CALM, unused()).await.is_err() {
        observer.fail(&format!(
            "something is left: {:?}",
            memory.list(&Selection::default()).found
        ));
    }
    watching.abort();
    if let Err(ended) = watching.await
        && ended.is_panic()
    {
        std::panic::resume_unwind(ended.into_panic());
    }
    let mut world = std::mem::take(&mut *observer.world());
    world.refused = links.iter().map(|link| link.refused()).sum();
    world.together = links.iter().map(|link| link.commands_together()).sum();
    world
}

fn run(seed: u64) -> World {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(live(seed))
}

#[test]
fn every_world_keeps_the_promises() {
    let seeds: Vec<u64> = match env::var("WATCHLOCK_SEED") {
        Ok(range) => match range.split_once("..") {
            Some((from, to)) => (from.parse().expect("a number")..to.parse().expect("a number")).collect(),
            None => vec![range.parse().expect("a number")],
        },
        Err(_) => (0..share_of(SEEDS)).collect(),
    };
    let single = seeds.len() == 1;
    let (mut grants, mut handed_on, mut shared, mut refused, mut together) = (0, 0, 0, 0, 0);
    let mut losses = BTreeMap::<_, u64>::new();
    let share = seeds.len().div_ceil(2);
    let worlds: Vec<World> = std::thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .chunks(share)
            .map(|seeds| scope.spawn(|| seeds.iter().map(|seed| run(*seed)).collect::<Vec<_>>()))
            .collect();
        // A panic has been printed with its seed by the thread itself.
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a world broke a promise"))
            .collect()
    });
    for world in &worlds {
        grants += world.grants;
        handed_on += world.handed_on;
        shared += world.shared;
        refused += world.refused;
        together += world.together;
        for (reason, count) in &world.losses {
            *losses.entry(reason.clone()).or_default() += count;
        }
        if single {
            println!("{}", world.log);
        }
    }
    println!(
        "{} worlds, {grants} grants, {handed_on} handed on, {shared} shared, {refused} refused renewals, {together} commands for several locks, \
         losses {losses:?}",
        worlds.len()
    );
    // Worlds in which nothing happens would keep every promise.
    assert!(grants > 20 * worlds.len() as u64 && (single || 2 * losses.values().sum::<u64>() > worlds.len() as u64));
    assert!(single || (handed_on > worlds.len() as u64 && shared > worlds.len() as u64));
    assert!(single || (refused > worlds.len() as u64 && together > worlds.len() as u64));
    assert!(single || losses.contains_key("Broken"));
}

#[test]
fn a_seed_is_replayed_to_the_letter() {
    for seed in [1, 3] {
        assert_eq!(run(seed).log, run(seed).log);
    }
}

/// Names that a transaction of others blocks leave the few slots for operations to all others, and dead connections
/// are bypassed.
#[tokio::test(start_paused = true)]
async fn what_hangs_holds_up_nothing_else() {
    let memory = Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)));
    let (link, session) = client(&memory, 1, 1);
    link.calm();
    let locks = LockClient::new(session.clone());
    let held = locks.mutex("held").acquire().await.unwrap();
    let blocked: Vec<String> = (0..20).map(|number| format!("blocked {number}")).collect();
    blocked.iter().for_each(|name| link.block(name, true));
    let waiting: Vec<_> = blocked
        .iter()
        .map(|name| tokio::spawn(locks.mutex(name).acquire()))
        .collect();
    // Those that were sent first are known to be slow by then.
    sleep(Duration::from_millis(1_500)).await;
    for number in 0..100 {
        let begin = Instant::now();
        let handle = locks.mutex(format!("free {}", number % 7)).acquire().await.unwrap();
        handle.release().await.unwrap();
        assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
        sleep(Duration::from_millis(37)).await;
    }
    link.kill_idle(6);
    let begin = Instant::now();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    blocked.iter().for_each(|name| link.block(name, false));
    for waiter in waiting {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    timeout(CALM, async {
        while !(session.is_unused() && memory.is_unused()) {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
}

/// While nothing is answered at all, only so many commands are sent in vain; and everything goes on as soon as there
/// are answers.
#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_not_asked_without_end() {
    let memory = Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)));
    let (link, session) = client(&memory, 1, 1);
    link.calm();
    let locks = LockClient::new(session.clone());
    locks.mutex("first").acquire().await.unwrap().release().await.unwrap();
    link.kill_idle(u64::MAX);
    let waiting: Vec<_> = (0..100)
        .map(|number| tokio::spawn(locks.mutex(format!("{number}")).acquire()))
        .collect();
    sleep(Duration::from_secs(20)).await;
    let sent = u64::MAX - link.kill_idle(0);
    // Eight at full pace, others ever more seldom, and those that have a place; the rest are attempts to open the
    // stream, and renewals.
    assert!((20..80).contains(&sent), "{sent}");
    for waiter in waiting {
        let handle = timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap().unwrap();
        handle.release().await.unwrap();
    }
}
