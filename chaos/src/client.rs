//! A client process: several tasks that acquire, hold and let go, and record all of it.

use std::{
    path::PathBuf,
    pin::Pin,
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
use tokio::{
    io::AsyncReadExt,
    sync::watch,
    time::{sleep, timeout},
};
use watchlock::{
    Acquire, LockClient, Released, View,
    action::{CanAcquire, Try},
    documents::{self, DocumentLocks},
    election,
    errors::{AcquireError, DocumentError, OperateError, ReleaseError},
    operate::{HoldWatch, WakeMode},
};

use crate::{
    Result,
    clock::now,
    locks::{ALL, FEW_PERMITS, JOBS, Kind, LOCKS, Lock, OWN_DOCUMENT, OWN_MUTEX, PERMITS, Share},
    random::Random,
    record::{End, Log, Record, What},
};

/// Time for which a lock outlives its holder. Short, so that leases do run out in a burst of faults.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The first lease of a waiter that was handed the lock.
pub(crate) const CLAIM_LEASE: Duration = Duration::from_secs(1);

/// How long a lock stays with a client that keeps it for its next task.
const IDLE: Duration = Duration::from_millis(700);

/// Pause between two readings of its holds, of a client that has no stream for them.
pub(crate) const READS: Duration = Duration::from_millis(250);

/// Number of tasks of one client that contend.
const TASKS: usize = 4;

/// Maximum wait for the locks that their client has for itself: longer than any fault lasts, so that the history shows
/// how long one was held up.
const OWN_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two looks at how the client is woken.
const WAKE_LOOK: Duration = Duration::from_millis(100);

/// Pause between two looks. The `safe_for` of a look covers the time until the next.
const LOOK: Duration = Duration::from_millis(25);

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
}

/// A handle, of any kind.
#[derive(Debug)]
pub(crate) enum Held {
    Lock(watchlock::Held),
    Leader(watchlock::Held<election::Election>),
    Document(Box<watchlock::Held<documents::Document<Document>>>),
}

impl Held {
    pub(crate) fn view(&self) -> View {
        match self {
            Self::Lock(handle) => handle.view(),
            Self::Leader(leadership) => leadership.view().into(),
            Self::Document(handle) => handle.view().into(),
        }
    }

    pub(crate) async fn release(self) -> Result<Released, ReleaseError> {
        match self {
            Self::Lock(handle) => handle.release().await,
            Self::Leader(leadership) => leadership.resign().await,
            Self::Document(handle) => handle.release().await,
        }
    }
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) lock: Lock,
    pub(crate) share: Share,
    pub(crate) way: Way,
    /// Time to hold it.
    pub(crate) hold: Duration,
    /// Whether it is released, and not dropped.
    pub(crate) releases: bool,
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
    ignores_loss: bool,
}

/// Runs a client until its standard input is closed.
pub(crate) async fn run(options: Options) -> Result<()> {
    let (stop, stopping) = watch::channel(false);
    let seed = options.seed;
    let actor = Arc::new(Actor::start(options).await?);
    // One more task has locks for itself.
    let tasks: Vec<_> = (0..=TASKS)
        .map(|task| {
            let (actor, mut stopping) = (actor.clone(), stopping.clone());
            let random = Random::new(seed, task as u64);
            tokio::spawn(async move {
                match task {
                    TASKS => actor.keep_to_itself(random, &mut stopping).await,
                    _ => actor.play(task, random, &mut stopping).await,
                }
            })
        })
        .collect();
    let watching = actor.clone();
    let watch = tokio::spawn(async move { watching.watch_wakes().await });

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
            let lock = random.pick(&ALL);
            let share = match lock.kind {
                Kind::Semaphore => Share::permits(random.pick(&[1, 1, 1, 2])),
                Kind::RwLock if random.chance(75) => Share::reader(),
                Kind::RwLock => Share::writer(),
                kind => Share::whole(kind),
            };
            let way = match random.within(0..100) {
                0..65 => Way::Waits(random.millis(500..15_000)),
                65..82 => Way::Dropped(random.millis(0..1_500)),
                _ => Way::Tries,
            };
            let hold = match random.within(0..100) {
                0..50 => random.millis(0..30),
                50..85 => random.millis(30..400),
                _ => random.millis(400..4_000),
            };
            let plan = Plan {
                lock,
                share,
                way,
                hold,
                releases: random.chance(75),
            };
            let pause = random.millis(0..150);
            if lock.kind == Kind::Semaphore && random.chance(10) {
                // Whether or not the server says so: no more are ever to be held than the larger number.
                let permits = random.pick(&[FEW_PERMITS, PERMITS]);
                let _ = self.locks.semaphore(lock.name, PERMITS).set_permits(permits).await;
            }
            self.operate(task, plan, stopping).await;
            sleep(pause).await;
        }
    }

    /// Acquires and releases a mutex and a document that nobody else asks for: no holder keeps it waiting.
    async fn keep_to_itself(&self, mut random: Random, stopping: &mut watch::Receiver<bool>) {
        // One name for the life of the process.
        let name = |kind: &str| -> &'static str { Box::leak(format!("{kind}{}", self.label).into_boxed_str()) };
        let (mutex, document) = (name(OWN_MUTEX), name(OWN_DOCUMENT));
        let of = |name, kind| Lock { name, kind };
        let locks = [of(mutex, Kind::Mutex), of(document, Kind::Document)];
        // It may be started in the middle of a fault.
        while !*stopping.borrow() {
            let there = doc! { "$setOnInsert": { "count": 0_i64 } };
            let made = self.documents.update_one(doc! { "_id": document }, there).upsert(true);
            if made.await.is_ok() {
                break;
            }
        }
        while !*stopping.borrow() {
            let lock = random.pick(&locks);
            let plan = Plan {
                lock,
                share: Share::whole(lock.kind),
                way: Way::Waits(OWN_PATIENCE),
                // Some for longer than a lease, to be renewed.
                hold: if random.chance(60) {
                    random.millis(0..50)
                } else {
                    random.millis(500..3_000)
                },
                releases: true,
            };
            let pause = random.millis(0..200);
            self.operate(TASKS, plan, stopping).await;
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

    /// Acquires, holds and lets go. An acquire that is on its way when everything is to stop is dropped.
    ///
    /// There is no await between the request's line and the first poll of the acquire, and the runtime has one thread:
    /// the order of the lines is the order in which the tasks get in line.
    pub(crate) async fn operate(&self, task: usize, plan: Plan, stopping: &mut watch::Receiver<bool>) {
        let Plan {
            lock,
            share,
            way,
            hold,
            releases,
        } = plan;
        let op = self.ops.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = Open {
            actor: self,
            op,
            ended: false,
        };
        let acquire = self.acquire(lock.name, share, way, format!("{}#{op}", self.label));
        let (name, waits) = (lock.name.to_owned(), !matches!(way, Way::Tries));
        let limit = match way {
            Way::Waits(limit) => u64::try_from(limit.as_millis()).ok(),
            _ => None,
        };
        self.log(
            op,
            now(),
            What::Request {
                name,
                share,
                task,
                waits,
                limit,
            },
        );
        let patience = match way {
            Way::Dropped(after) => after,
            // Tries of documents have no timeout of their own.
            Way::Tries => Duration::from_secs(30),
            // The judge sees it, if it does not end by itself.
            Way::Waits(_) => Duration::MAX,
        };
        let acquired = tokio::select! {
            biased;
            acquired = timeout(patience, acquire) => acquired.ok(),
            _ = stopping.wait_for(|stop| *stop) => None,
        };
        let held = match acquired {
            // `Open` records this when it is dropped.
            None => return,
            Some(Ok(Some(held))) => held,
            Some(Ok(None)) => return open.end(End::NotFree, None),
            Some(Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. })) => {
                return open.end(End::TimedOut, None);
            }
            Some(Err(error)) => return open.end(End::Failed, Some(error.to_string())),
        };

        let view = held.view();
        let token = view.token().as_i64();
        let (at, safe_for) = (now(), view.safe_for());
        if view.lost_reason().is_some() {
            open.ended = true;
            return self.log(op, now(), What::GrantedTooLate { token });
        }
        self.log(
            op,
            at,
            What::Granted {
                token,
                safe_for: nanos(safe_for),
            },
        );

        if !self.hold(op, &view, hold).await {
            open.ended = true;
            return;
        }
        let held = match held {
            Held::Document(handle) if op.is_multiple_of(2) => {
                open.ended = true;
                return self.finish(op, *handle).await;
            }
            held => held,
        };
        if let Held::Document(handle) = &held
            && !self.count_up(op, handle).await
        {
            open.ended = true;
            return;
        }
        open.ended = true;
        self.log(op, now(), What::LettingGo { released: releases });
        if releases {
            let outcome = match held.release().await {
                Ok(outcome) => format!("{outcome:?}"),
                Err(error) => format!("failed: {error}"),
            };
            self.log(op, now(), What::LetGo { outcome });
        }
    }

    /// Looks at the lock again and again, and once more at the end. Every fourth holder goes as soon as it is wanted.
    /// Returns whether it is still held.
    async fn hold(&self, op: u64, view: &View, hold: Duration) -> bool {
        let mut end = tokio::time::Instant::now() + hold;
        let yields = op.is_multiple_of(4);
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            let told = tokio::select! {
                biased;
                reason = view.lost(), if !self.ignores_loss => Some(reason),
                () = view.wanted(), if yields && !left.is_zero() => {
                    end = tokio::time::Instant::now();
                    None
                }
                () = sleep(left.min(LOOK)) => None,
            };
            let left = left.min(end.saturating_duration_since(tokio::time::Instant::now()));
            let (at, safe_for) = (now(), view.safe_for());
            match view.lost_reason() {
                None if told.is_some() => {
                    let text = format!("lost() said {told:?} and lost_reason() says nothing");
                    self.log(op, at, What::Complaint { text });
                }
                Some(reason) if !self.ignores_loss => {
                    self.log(
                        op,
                        at,
                        What::Lost {
                            reason: format!("{reason:?}"),
                        },
                    );
                    return false;
                }
                _ => self.log(
                    op,
                    at,
                    What::Look {
                        safe_for: nanos(safe_for),
                    },
                ),
            }
            if left.is_zero() {
                return true;
            }
        }
    }

    /// Uses the lock of a document: reads a number, adds one and writes it back, under the lock. Returns whether it is
    /// still held.
    async fn count_up(&self, op: u64, handle: &watchlock::Held<documents::Document<Document>>) -> bool {
        let count = handle.document().get_i64("count").unwrap_or(-1) + 1;
        self.log(op, now(), What::Writing { count });
        let written = match handle.update(doc! { "$set": { "count": count } }).await {
            Ok(_) => Some(true),
            Err(DocumentError::Lost(lost)) => {
                self.log(op, now(), What::Wrote { written: Some(false) });
                self.log(
                    op,
                    now(),
                    What::Lost {
                        reason: format!("{:?}", lost.reason),
                    },
                );
                return false;
            }
            Err(_) => None,
        };
        self.log(op, now(), What::Wrote { written });
        true
    }

    /// Does the same, and gives the document back by the same write.
    async fn finish(&self, op: u64, handle: watchlock::Held<documents::Document<Document>>) {
        let count = handle.document().get_i64("count").unwrap_or(-1) + 1;
        self.log(op, now(), What::Writing { count });
        self.log(op, now(), What::LettingGo { released: true });
        let update = doc! { "$set": { "count": count } };
        let (written, outcome) = match handle.update_and_release(update).await {
            Ok(()) => (Some(true), format!("{:?}", Released::Released)),
            Err(DocumentError::Lost(_)) => (Some(false), format!("{:?}", Released::WasLost)),
            Err(error) => (None, format!("failed: {error}")),
        };
        self.log(op, now(), What::Wrote { written });
        self.log(op, now(), What::LetGo { outcome });
    }

    fn acquire(&self, name: &'static str, share: Share, way: Way, reason: String) -> Acquiring<'_> {
        let limit = match way {
            Way::Waits(timeout) => timeout,
            // Much longer than it waits before it is dropped.
            Way::Dropped(_) => Duration::from_secs(60),
            Way::Tries => Duration::from_secs(10),
        };
        let tries = matches!(way, Way::Tries);
        if share.kind == Kind::Document {
            return Box::pin(async move {
                let handle = if tries {
                    self.jobs.try_acquire(name).reason(reason).await?
                } else {
                    Some(self.jobs.acquire(name).timeout(limit).reason(reason).await?)
                };
                Ok(handle.map(|handle| Held::Document(Box::new(handle))))
            });
        }
        if share.kind == Kind::Election {
            // There is no try: asking without waiting comes closest.
            let limit = if tries { Duration::ZERO } else { limit };
            let campaign = self
                .locks
                .election(name)
                .campaign(&self.label)
                .timeout(limit)
                .reason(reason);
            return Box::pin(async move { Ok(Some(Held::Leader(campaign.await?))) });
        }
        let (mutex, lock) = (self.locks.mutex(name), self.locks.rw_lock(name));
        let semaphore = self.locks.semaphore(name, share.capacity);
        if tries {
            return match share.kind {
                Kind::Semaphore => tried(semaphore.try_acquire_many(share.permits), limit, reason),
                Kind::RwLock if share.is_exclusive() => tried(lock.try_write(), limit, reason),
                Kind::RwLock => tried(lock.try_read(), limit, reason),
                _ => tried(mutex.try_acquire(), limit, reason),
            };
        }
        match share.kind {
            Kind::Semaphore => acquired(semaphore.acquire_many(share.permits), limit, reason),
            Kind::RwLock if share.is_exclusive() => acquired(lock.write(), limit, reason),
            Kind::RwLock => acquired(lock.read(), limit, reason),
            _ => acquired(mutex.acquire(), limit, reason),
        }
    }
}

/// An acquire of any kind, on its way.
type Acquiring<'a> = Pin<Box<dyn Future<Output = Result<Option<Held>, AcquireError>> + Send + 'a>>;

fn acquired<T: CanAcquire>(acquire: Acquire<T>, limit: Duration, reason: String) -> Acquiring<'static>
where
    watchlock::Held<T::Held>: Into<watchlock::Held>,
{
    let acquire = acquire.timeout(limit).reason(reason);
    Box::pin(async move { Ok(Some(Held::Lock(acquire.await?.into()))) })
}

fn tried<T: CanAcquire>(attempt: Acquire<T, Try>, limit: Duration, reason: String) -> Acquiring<'static>
where
    watchlock::Held<T::Held>: Into<watchlock::Held>,
{
    let attempt = attempt.timeout(limit).reason(reason);
    Box::pin(async move { Ok(attempt.await?.map(|handle| Held::Lock(handle.into()))) })
}

/// An operation that has not ended; dropped before its end, it was cancelled.
#[derive(Debug)]
struct Open<'a> {
    actor: &'a Actor,
    op: u64,
    ended: bool,
}

impl Open<'_> {
    fn end(mut self, how: End, error: Option<String>) {
        self.ended = true;
        self.actor.log(self.op, now(), What::Ended { how, error });
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.actor.log(
                self.op,
                now(),
                What::Ended {
                    how: End::Cancelled,
                    error: None,
                },
            );
        }
    }
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
