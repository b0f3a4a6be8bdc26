//! A client process: several tasks that acquire, hold and let go, and record all of it.

mod asking;
mod holding;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::Args;
use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
    options::ClientOptions,
};
use tokio::{io::AsyncReadExt, sync::watch, time::sleep};
use watchlock::{
    LockClient,
    documents::DocumentLocks,
    errors::OperateError,
    locks::UpgradeableRead,
    operate::{HoldWatch, WakeMode},
};

use crate::{
    Result,
    clock::now,
    gauge,
    locks::{ALL, CROSSED, FEW_PERMITS, JOBS, Kind, LOCKS, Lock, OWN_DOCUMENT, OWN_MUTEX, PERMITS, Share, is_crossed},
    random::Random,
    record::{Log, Record, Upon, What},
};
use asking::Asked;
pub(crate) use holding::Held;
use holding::Left;

/// Time for which a lock outlives its holder. Short, so that leases do run out in a burst of faults.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The first lease of a waiter that was handed the lock.
pub(crate) const CLAIM_LEASE: Duration = Duration::from_secs(1);

/// How long a lock stays with a client that keeps it for its next task.
const IDLE: Duration = Duration::from_millis(700);

/// How long the document of a free lock stays in a soak: the shortest there is.
pub(crate) const RETENTION: Duration = Duration::from_secs(60);

/// Pause between two readings of its holds, of a client that has no stream for them.
pub(crate) const READS: Duration = Duration::from_millis(250);

/// Number of tasks of one client that contend.
const TASKS: usize = 4;

/// The task that has locks for itself, and the one that takes the locks which are crossed.
const ALONE: usize = TASKS;
const CROSSING: usize = TASKS + 1;

/// Maximum wait for the second of two crossed locks: longer than the judge gives a deadlock to be told.
const CROSSING_PATIENCE: Duration = Duration::from_secs(15);

/// Maximum wait of those that hold something meanwhile, which keeps others waiting.
const BRIEFLY: Duration = Duration::from_secs(3);

/// Maximum wait for the locks that their client has for itself: longer than any fault lasts, so that the history shows
/// how long one was held up.
const OWN_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two looks at how the client is woken.
const WAKE_LOOK: Duration = Duration::from_millis(100);

/// The settings of a client.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    pub(crate) uri: String,
    #[arg(long)]
    pub(crate) database: String,
    #[arg(long)]
    pub(crate) label: String,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) history: PathBuf,
    /// Whether it goes on after the loss of a lock as if nothing had happened. The judge has to find it.
    #[arg(long)]
    pub(crate) ignores_loss: bool,
    /// Whether it is normal use, in which nothing may grow: documents of free locks are removed soon.
    #[arg(long)]
    pub(crate) soaks: bool,
}

/// The way to make an acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// It gives up by itself.
    Waits(Duration),
    /// It is dropped, if it is still on its way.
    Dropped(Duration),
    Tries,
}

/// A planned operation.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The lock and the share of it. Of several, sorted by name, a multi-lock is made.
    pub(crate) parts: Vec<(&'static str, Share)>,
    pub(crate) way: Way,
    /// Time to hold it.
    pub(crate) hold: Duration,
    pub(crate) ending: Ending,
}

/// The way to end a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Released,
    Dropped,
    /// Left taken, for any client that takes it up; released if its kind can't be.
    Detached,
}

/// The shared state of one process's tasks.
#[derive(Debug)]
pub(crate) struct Actor {
    client: Client,
    locks: LockClient,
    jobs: DocumentLocks<Document>,
    /// The documents that are locked in place.
    documents: Collection<Document>,
    label: String,
    log: Log,
    ops: AtomicU64,
    /// The folder of the holds that clients have left behind.
    left: PathBuf,
    ignores_loss: bool,
}

/// Runs a client until its standard input is closed.
pub(crate) async fn run(options: Options) -> Result<()> {
    let (stop, stopping) = watch::channel(false);
    let seed = options.seed;
    let actor = Arc::new(Actor::start(options).await?);
    let tasks: Vec<_> = (0..=CROSSING)
        .map(|task| {
            let (actor, mut stopping) = (actor.clone(), stopping.clone());
            let random = Random::new(seed, task as u64);
            tokio::spawn(async move {
                match task {
                    ALONE => actor.keep_to_itself(random, &mut stopping).await,
                    CROSSING => actor.cross(random, &mut stopping).await,
                    _ => actor.play(task, random, &mut stopping).await,
                }
            })
        })
        .collect();
    let watching = actor.clone();
    let watch = tokio::spawn(async move { tokio::join!(watching.watch_wakes(), watching.note_readings()) });

    // Only the end of the input matters, and not its content.
    let mut rest = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    stop.send_replace(true);
    for task in tasks {
        task.await?;
    }
    watch.abort();
    actor.end().await;
    Ok(())
}

impl Actor {
    pub(crate) async fn start(options: Options) -> Result<Self> {
        let log = Log::open(&options.history)?;
        let left = options.history.with_file_name("left");
        fs::create_dir_all(&left)?;
        let database = connect(&options.uri, &options.database, &options.label).await?;
        let locks = loop {
            let mut builder = LockClient::builder(database.clone())
                .collection(LOCKS)
                .label(&options.label)
                .lease(LEASE)
                .claim_lease(CLAIM_LEASE);
            // By its place. With every other one, what nobody waits for stays; some read what they hold in place of a stream;
            // and the tasks of some share commands, as one alone may be on its way.
            let place = options.seed >> 32;
            let (stays, reads, shares) = (place & 1 == 0, place & 2 != 0, place & 4 != 0);
            if shares {
                builder = builder.max_operations(1);
            } else if stays {
                builder = builder.keep_idle(IDLE);
            }
            if options.soaks {
                builder = builder.retention(RETENTION);
            }
            if reads {
                builder = builder.hold_watch(HoldWatch::Reads(READS));
            }
            match builder.build().await {
                Ok(locks) => break locks,
                // It may be started in the middle of a fault.
                Err(error) => eprintln!("{}: {error}", options.label),
            }
        };
        let wake_mode = format!("{:?}", locks.wake_mode());
        log.write(&Record {
            at: now(),
            op: 0,
            what: What::Ready { wake_mode },
        });
        Ok(Self {
            client: database.client().clone(),
            jobs: locks.documents(database.collection(JOBS)),
            documents: database.collection(JOBS),
            locks,
            label: options.label,
            log,
            ops: AtomicU64::new(0),
            left,
            ignores_loss: options.ignores_loss,
        })
    }

    /// Evicts the holder of a lock.
    pub(crate) async fn break_lock(&self, name: &str) -> std::result::Result<(), OperateError> {
        if name.starts_with("document") {
            self.jobs.break_lock(name).await?;
        } else {
            self.locks.break_lock(name).await?;
        }
        Ok(())
    }

    /// Returns the deadlocks in which there are other locks than those that are crossed.
    pub(crate) async fn deadlocks(&self) -> std::result::Result<Vec<String>, OperateError> {
        let mut deadlocks = self.locks.deadlocks().await?;
        deadlocks.retain(|deadlock| deadlock.locks.iter().any(|lock| !is_crossed(&lock.name)));
        Ok(deadlocks.iter().map(ToString::to_string).collect())
    }

    /// Gives back all locks.
    pub(crate) async fn end(&self) {
        self.locks.shutdown().await;
        // This closes the change streams at the server.
        self.client.clone().shutdown().await;
        self.log(0, now(), What::Farewell);
    }

    fn log(&self, op: u64, at: u64, what: What) {
        self.log.write(&Record { at, op, what });
    }

    /// Runs one operation after the other.
    async fn play(&self, task: usize, mut random: Random, stopping: &mut watch::Receiver<bool>) {
        while !*stopping.borrow() {
            let pause = random.millis(0..150);
            if random.chance(40)
                && let Some(left) = Left::any(&self.left, &mut random)
            {
                self.take_up(task, left, &mut random, stopping).await;
            } else {
                let plan = self.plan(&mut random).await;
                self.operate(task, plan, stopping).await;
            }
            sleep(pause).await;
        }
    }

    async fn plan(&self, random: &mut Random) -> Plan {
        let (parts, most) = if random.chance(12) {
            (several(random), u64::try_from(BRIEFLY.as_millis()).unwrap_or(0))
        } else {
            let lock = random.pick(&ALL);
            if lock.kind == Kind::Semaphore && random.chance(10) {
                // Whether or not the server says so: no more are ever to be held than the larger number.
                let permits = random.pick(&[FEW_PERMITS, PERMITS]);
                let _ = self.locks.semaphore(lock.name, PERMITS).set_permits(permits).await;
            }
            (vec![(lock.name, share_of(lock.kind, random))], 15_000)
        };
        Plan {
            parts,
            way: match random.within(0..100) {
                0..65 => Way::Waits(random.millis(500..most)),
                65..82 => Way::Dropped(random.millis(0..1_500)),
                _ => Way::Tries,
            },
            hold: match random.within(0..100) {
                0..50 => random.millis(0..30),
                50..85 => random.millis(30..400),
                _ => random.millis(400..4_000),
            },
            ending: match random.within(0..100) {
                0..62 => Ending::Released,
                62..84 => Ending::Dropped,
                _ => Ending::Detached,
            },
        }
    }

    /// Acquires and releases a mutex and a document that nobody else asks for: no holder keeps it waiting.
    async fn keep_to_itself(&self, mut random: Random, stopping: &mut watch::Receiver<bool>) {
        // Names for the life of the process, which takes some thousands at the most.
        let name = |kind: &str, end: &str| -> &'static str {
            Box::leak(format!("{kind}{}{end}", self.label).into_boxed_str())
        };
        let (mutex, document) = (name(OWN_MUTEX, ""), name(OWN_DOCUMENT, ""));
        let of = |name, kind| Lock { name, kind };
        // It may be started in the middle of a fault.
        while !*stopping.borrow() {
            let there = doc! { "$setOnInsert": { "count": 0_i64 } };
            let made = self.documents.update_one(doc! { "_id": document }, there).upsert(true);
            if made.await.is_ok() {
                break;
            }
        }
        while !*stopping.borrow() {
            let lock = match random.within(0..5) {
                0..2 => of(mutex, Kind::Mutex),
                2..4 => of(document, Kind::Document),
                // One that nobody has used before, nor will again.
                _ => of(
                    name(OWN_MUTEX, &format!("-{}", self.ops.load(Ordering::Relaxed))),
                    Kind::Mutex,
                ),
            };
            let plan = Plan {
                parts: vec![(lock.name, Share::whole(lock.kind))],
                way: Way::Waits(OWN_PATIENCE),
                // Some for longer than a lease, to be renewed.
                hold: if random.chance(60) {
                    random.millis(0..50)
                } else {
                    random.millis(500..3_000)
                },
                ending: Ending::Released,
            };
            let pause = random.millis(0..200);
            self.operate(ALONE, plan, stopping).await;
            sleep(pause).await;
        }
    }

    /// Records how the client is woken, whenever that changes.
    async fn watch_wakes(&self) {
        let mut known = None;
        loop {
            // Waiters have a stream in both.
            let mode = self.locks.wake_mode();
            let by_stream = matches!(mode, WakeMode::ChangeStream | WakeMode::StreamForWaiters);
            if known.replace(by_stream) != Some(by_stream) {
                self.log(0, now(), What::Wakes { by_stream });
            }
            sleep(WAKE_LOOK).await;
        }
    }

    /// Records what the process uses, again and again.
    async fn note_readings(&self) {
        loop {
            let figures = gauge::of_this_process();
            self.log(0, now(), What::Reading { figures });
            sleep(gauge::PAUSE).await;
        }
    }

    /// Acquires, holds and lets go.
    pub(crate) async fn operate(&self, task: usize, plan: Plan, stopping: &mut watch::Receiver<bool>) {
        let op = self.next_operation(plan.parts.len());
        let asked = Asked {
            op,
            task,
            upon: (plan.parts.len() > 1).then(|| Upon::Multi(self.reason(op))),
            way: plan.way,
            parts: &plan.parts,
        };
        let acquiring = self.acquire(&plan.parts, plan.way, self.reason(op));
        let Some(held) = self.ask(asked, acquiring, stopping).await else {
            return;
        };
        if !self.hold(op, &held, plan.hold).await {
            return;
        }
        match held {
            Held::Document(handle) if op.is_multiple_of(2) => return self.finish(op, *handle).await,
            Held::Document(ref handle) if !self.count_up(op, handle).await => return,
            Held::Upgradeable(ref reader) => {
                let (name, _) = plan.parts[0];
                self.upgrade(op, task, name, reader, stopping).await;
                if !self.hold(op, &held, Duration::ZERO).await {
                    return;
                }
            }
            _ => {}
        }
        match (plan.ending, &plan.parts[..]) {
            (Ending::Detached, [(name, share)]) => self.leave(op, self.reason(op), name, *share, held).await,
            (ending, _) => self.let_go(op, held, ending != Ending::Dropped).await,
        }
    }

    /// Takes up a hold that a client has left behind, and lets go of it, or leaves it behind again.
    async fn take_up(&self, task: usize, left: Left, random: &mut Random, stopping: &mut watch::Receiver<bool>) {
        let op = self.next_operation(1);
        let asked = Asked {
            op,
            task,
            upon: Some(Upon::Detached(left.reason.clone())),
            way: if random.chance(75) {
                Way::Tries
            } else {
                Way::Dropped(random.millis(0..20))
            },
            parts: &[(&left.name, left.share)],
        };
        let Some(held) = self.ask(asked, self.attach(&left), stopping).await else {
            return;
        };
        if !self.hold(op, &held, random.millis(0..3_000)).await {
            return;
        }
        if random.chance(30) {
            self.leave(op, left.reason, &left.name, left.share, held).await;
        } else {
            self.let_go(op, held, random.chance(75)).await;
        }
    }

    /// Makes an upgradeable reader a writer for a while: waiting, trying, or dropping that.
    async fn upgrade(
        &self,
        reader: u64,
        task: usize,
        name: &str,
        held: &watchlock::Held<UpgradeableRead>,
        stopping: &mut watch::Receiver<bool>,
    ) {
        let way = match reader % 4 {
            0 => Way::Tries,
            1 => Way::Dropped(BRIEFLY / 10),
            _ => Way::Waits(BRIEFLY),
        };
        let op = self.next_operation(1);
        let asked = Asked {
            op,
            task,
            upon: Some(Upon::Reader(self.reason(reader))),
            way,
            parts: &[(name, Share::upgrade())],
        };
        let acquiring = asking::asked(held.upgrade(), held.try_upgrade(), way, self.reason(op));
        if let Some(held) = self.ask(asked, acquiring, stopping).await
            && self
                .hold(op, &held, BRIEFLY / 100 * u32::try_from(op % 8).unwrap_or(0))
                .await
        {
            self.let_go(op, held, op.is_multiple_of(2)).await;
        }
    }

    /// Takes two locks one after the other, in either order, and does nothing else while it waits for the second. The tasks
    /// of other clients do so too, and where two of them wait for each other, one is told.
    async fn cross(&self, mut random: Random, stopping: &mut watch::Receiver<bool>) {
        while !*stopping.borrow() {
            let [mut first, mut second] = CROSSED.map(|lock| lock.name);
            if random.chance(50) {
                std::mem::swap(&mut first, &mut second);
            }
            let (hold, pause) = (random.millis(0..300), random.millis(0..300));
            let held = self.ask_for_crossed(first, None, stopping).await;
            if let Some((op, held)) = held
                && self.hold(op, &held, hold).await
            {
                if let Some((op, held)) = self.ask_for_crossed(second, Some(op), stopping).await
                    && self.hold(op, &held, hold).await
                {
                    self.let_go(op, held, true).await;
                }
                if self.hold(op, &held, Duration::ZERO).await {
                    self.let_go(op, held, true).await;
                }
            }
            sleep(pause).await;
        }
    }

    async fn ask_for_crossed(
        &self,
        name: &str,
        holding: Option<u64>,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<(u64, Held)> {
        let op = self.next_operation(1);
        let asked = Asked {
            op,
            task: CROSSING,
            upon: holding.map(|held| Upon::Holding(self.reason(held))),
            way: Way::Waits(CROSSING_PATIENCE),
            parts: &[(name, Share::whole(Kind::Mutex))],
        };
        let mutex = self.locks.mutex(name);
        let acquire = mutex.acquire().fail_on_deadlock();
        let acquiring = asking::asked(acquire, mutex.try_acquire(), asked.way, self.reason(op));
        Some((op, self.ask(asked, acquiring, stopping).await?))
    }

    /// Returns the number of an operation, which is followed by those of the other parts of its multi-lock.
    fn next_operation(&self, parts: usize) -> u64 {
        let parts = u64::try_from(parts).unwrap_or(1);
        self.ops.fetch_add(parts, Ordering::Relaxed) + 1
    }

    fn reason(&self, op: u64) -> String {
        format!("{}#{op}", self.label)
    }
}

/// Returns the share that a task asks for.
fn share_of(kind: Kind, random: &mut Random) -> Share {
    match kind {
        Kind::Semaphore => Share::permits(random.pick(&[1, 1, 1, 2])),
        Kind::RwLock => match random.within(0..100) {
            0..60 => Share::reader(),
            60..80 => Share::upgradeable_reader(),
            _ => Share::writer(),
        },
        kind => Share::whole(kind),
    }
}

/// Returns the parts of a multi-lock, of any kinds that it can have, sorted by name.
fn several(random: &mut Random) -> Vec<(&'static str, Share)> {
    let mut parts = Vec::new();
    while parts.len() < 2 {
        parts.clear();
        for lock in ALL {
            let share = match lock.kind {
                _ if random.chance(65) => continue,
                Kind::Mutex => Share::whole(Kind::Mutex),
                Kind::Semaphore => Share::permits(1),
                Kind::RwLock => random.pick(&[Share::reader(), Share::reader(), Share::writer()]),
                Kind::Election | Kind::Document => continue,
            };
            parts.push((lock.name, share));
        }
    }
    parts.sort_unstable_by_key(|(name, _)| *name);
    parts
}

/// Connects to the database, through connections that the server knows by the label.
pub(crate) async fn connect(uri: &str, database: &str, label: &str) -> Result<Database> {
    let mut options = ClientOptions::parse(uri).await?;
    options.app_name = Some(label.to_owned());
    Ok(Client::with_options(options)?.database(database))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
