//! A simulated store: memory at the far end of a network that does, by a seed, everything that a network and a server
//! can do to a client.
//!
//! For tests only. Each client has its own link to the one memory.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use mongodb::{bson::doc, error::ErrorKind};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use watchlock_proofs::Random;

use crate::{
    error::ServerError,
    machine::exchanged,
    protocol::{Evict, Exchange, Operation, ServerTime},
    store::{
        AWAIT_TIME, Answer, Asked, Documents, Event, Failure, LONG_READ_WITHIN, Listed, LogTime, MemoryStore,
        MemoryStream, READ_WITHIN, Renewal, Renewed, Selection, Watched, read_as,
    },
};

/// Time for which the driver lets an operation hang on a server that does not answer.
const HANGS: Duration = Duration::from_secs(20);

/// Time for which an operation hangs on a connection that nobody knows to be dead.
const DEAD_FOR: Duration = Duration::from_secs(900);

/// Time that a write, a request that writes nothing, and the opening of a stream take a busy server, in reads.
const WRITE: u32 = 3;
const NO_OP: u32 = 2;
const OPENING: u32 = 10;

/// Maximum delay, in milliseconds, after which a command is still applied although its sender was told that it failed.
const LATEST: u64 = 8_000;

/// Returns the error of a server that ran out of the time for a command: `MaxTimeMSExpired`.
pub(crate) fn out_of_time() -> ServerError {
    let error = read_as(&doc! { "code": 50, "errmsg": "operation exceeded time limit" });
    ServerError::of_lock(ErrorKind::Command(error.expect("an error")).into())
}

/// One client's link to the memory.
#[derive(Debug)]
pub(crate) struct Link {
    memory: Arc<MemoryStore>,
    random: Mutex<Random>,
    /// Whether nothing goes wrong any more.
    calm: AtomicBool,
    /// Whether nothing gets through.
    cut: AtomicBool,
    /// Names for which the server does not answer, as another program's transaction has written their documents.
    blocked: watch::Sender<HashSet<String>>,
    /// The number of idle connections that are dead without anybody knowing.
    dead: AtomicU64,
    /// Set while renewals are slow.
    burden: Mutex<Option<Arc<Burden>>>,
    /// Set while the server has too much to do.
    busy: Mutex<Option<Arc<Busy>>>,
    /// Documents that the server refuses to renew.
    refusing: Mutex<BTreeSet<String>>,
    /// The number of refused renewals.
    refused: AtomicU64,
    /// The number of readings that were sent.
    reads: AtomicU64,
    /// The number of operations that were sent to clear a barrier.
    clears: AtomicU64,
    /// The number of commands for several locks that were sent.
    commands_together: AtomicU64,
    /// Set where the log of the server is told.
    log: Mutex<Option<Arc<Log>>>,
}

/// The log of a replica set, to which other programs write too.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Number of writes of others in a second.
    others: AtomicU32,
    /// The second of the last write, and the number of writes of the clients in it.
    ours: Mutex<(u32, u32)>,
    /// The last count of the clients that hold, in its second; and the number of counts that were asked for.
    counted: Mutex<(u32, u64)>,
    counts: AtomicU64,
}

impl Log {
    /// Sets the number of writes of others in a second. No second has as many as the one before: a fifth more or less.
    pub(crate) fn set_others(&self, in_a_second: u32) {
        self.others.store(in_a_second, Ordering::Relaxed);
    }

    /// Returns the number of counts of the clients that hold.
    pub(crate) fn counts(&self) -> u64 {
        self.counts.load(Ordering::Relaxed)
    }

    /// Notes a write of so many documents, and returns its time in the log.
    fn written(&self, now: ServerTime, documents: u64) -> LogTime {
        let (time, into) = second(now);
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        if ours.0 != time {
            *ours = (time, 0);
        }
        ours.1 += u32::try_from(documents).unwrap_or(u32::MAX);
        let uneven = 80 + time.wrapping_mul(2_654_435_761) % 41;
        let others = self.others.load(Ordering::Relaxed) * uneven / 100 * into / 1_000;
        let increment = 1 + ours.1 + others;
        LogTime { time, increment }
    }

    /// Counts the clients that hold, once in a second for all that ask.
    fn clients_that_hold(&self, memory: &MemoryStore) -> u64 {
        self.counts.fetch_add(1, Ordering::Relaxed);
        let (time, _) = second(memory.now());
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.0 != time {
            *counted = (time, memory.clients_that_hold());
        }
        counted.1
    }
}

/// Returns the second of a time, and the milliseconds of it that have passed.
fn second(now: ServerTime) -> (u32, u32) {
    let part = |millis: i64| u32::try_from(millis).unwrap_or(0);
    (part(now.0 / 1_000), part(now.0 % 1_000))
}

/// The name that is blocked where lists are.
pub(crate) const LISTS: &str = "";

/// The load of a slow server: it does one thing after the other, and each takes its time.
#[derive(Debug)]
pub(crate) struct Burden {
    /// Time that each command takes, in parallel with all others.
    pub(crate) latency: Duration,
    /// Time that the renewal of one lock takes, while nothing else is done.
    pub(crate) each: Duration,
    server: tokio::sync::Mutex<()>,
    renewals: AtomicU64,
}

impl Burden {
    /// Returns the number of renewals of many locks so far.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }
}

/// A server that does one command after the other, of all clients.
#[derive(Debug)]
pub(crate) struct Busy {
    /// Time that a read takes.
    look: Duration,
    turn: tokio::sync::Mutex<()>,
}

impl Busy {
    pub(crate) fn new(look: Duration) -> Arc<Self> {
        let turn = tokio::sync::Mutex::default();
        Arc::new(Self { look, turn })
    }
}

/// The fate of a command.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Applied after the first time and answered after the second.
    Answered(Duration, Duration),
    /// Applied after the first time, and fails for its sender after the second.
    AnswerLost(Duration, Duration),
    /// Fails for its sender after this time, and is never applied.
    RequestLost(Duration),
    /// Fails for its sender after the first time, and is applied after the second.
    AppliedLate(Duration, Duration),
    /// Applied after this time, or never, and never answered.
    NeverAnswered(Option<Duration>),
}

impl Link {
    pub(crate) fn new(memory: Arc<MemoryStore>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            memory,
            random: Mutex::new(Random::new(seed)),
            calm: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            blocked: watch::Sender::default(),
            dead: AtomicU64::new(0),
            burden: Mutex::default(),
            busy: Mutex::default(),
            refusing: Mutex::default(),
            refused: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            clears: AtomicU64::new(0),
            commands_together: AtomicU64::new(0),
            log: Mutex::default(),
        })
    }

    /// Has the server tell the times in its log.
    pub(crate) fn tell_of(&self, log: Arc<Log>) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
    }

    fn log(&self) -> Option<Arc<Log>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Cuts the link or mends it.
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    /// Kills this many idle connections: a command sent through one is never answered. Returns the number still dead
    /// from the last call.
    pub(crate) fn kill_idle(&self, connections: u64) -> u64 {
        self.dead.swap(connections, Ordering::Relaxed)
    }

    /// Sets whether the server gives no answer for a name for as long as it may try.
    pub(crate) fn block(&self, name: &str, blocked: bool) {
        self.blocked.send_modify(|names| {
            if blocked {
                names.insert(name.to_owned());
            } else {
                names.remove(name);
            }
        });
    }

    /// Resolves when the server can access the document, or has run out of time.
    async fn unblocked(&self, name: &str, within: Duration) -> Result<(), ServerError> {
        let mut blocked = self.blocked.subscribe();
        let free = blocked.wait_for(|names| !names.contains(name));
        // The link itself owns the sender.
        match timeout(within, free).await {
            Ok(_) => Ok(()),
            Err(_) => Err(out_of_time()),
        }
    }

    /// Makes renewals slow from now on.
    pub(crate) fn burden(&self, latency: Duration, each: Duration) -> Arc<Burden> {
        let burden = Arc::new(Burden {
            latency,
            each,
            server: tokio::sync::Mutex::default(),
            renewals: AtomicU64::new(0),
        });
        *self.burden.lock().unwrap_or_else(PoisonError::into_inner) = Some(burden.clone());
        burden
    }

    /// Makes renewals as fast as everything else again.
    pub(crate) fn unburden(&self) {
        *self.burden.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sends all from now on to this server, whose time all clients share.
    pub(crate) fn share(&self, busy: Arc<Busy>) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = Some(busy);
    }

    /// Waits for a command that takes the server as long as so many reads. One whose turn does not come in time is not
    /// run.
    async fn served(&self, looks: u32, within: Duration) -> Result<(), ServerError> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(busy) = busy else { return Ok(()) };
        let Ok(_turn) = timeout(within, busy.turn.lock()).await else {
            return Err(out_of_time());
        };
        sleep(busy.look * looks).await;
        Ok(())
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fate(&self) -> Fate {
        let mut random = self.random();
        let mut millis = |most: u64| Duration::from_millis(random.below(most));
        let (there, back) = (millis(4), millis(4));
        let (long, longer) = (millis(2_000), millis(LATEST));
        if self.is_cut() {
            return Fate::RequestLost(HANGS);
        }
        let take = |dead: u64| dead.checked_sub(1);
        if self
            .dead
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            return Fate::NeverAnswered(None);
        }
        if self.calm.load(Ordering::Relaxed) {
            return Fate::Answered(there, back);
        }
        match random.below(100) {
            0..80 => Fate::Answered(there, back),
            80..85 => Fate::Answered(long, back),
            85..88 => Fate::Answered(there, long),
            88..92 => Fate::AnswerLost(there, long),
            92..96 => Fate::RequestLost(long),
            96..98 => Fate::AppliedLate(there + back, longer),
            98 => Fate::NeverAnswered((random.below(2) == 0).then_some(long)),
            _ => Fate::AnswerLost(there, HANGS),
        }
    }

    /// Sends a command; `apply` is its effect at the other end.
    async fn send<T>(&self, apply: impl Fn(&MemoryStore) -> T + Send + 'static) -> Result<T, ServerError> {
        match self.fate() {
            Fate::Answered(there, back) => {
                sleep(there).await;
                // Cut on the way.
                if self.is_cut() {
                    sleep(HANGS).await;
                    return Err(lost());
                }
                let answer = apply(&self.memory);
                sleep(back).await;
                Ok(answer)
            }
            Fate::AnswerLost(there, after) => {
                sleep(there).await;
                apply(&self.memory);
                sleep(after).await;
                Err(lost())
            }
            Fate::RequestLost(after) => {
                sleep(after).await;
                Err(lost())
            }
            Fate::AppliedLate(after, late) => {
                let memory = self.memory.clone();
                tokio::spawn(async move {
                    sleep(late).await;
                    apply(&memory);
                });
                sleep(after.min(late)).await;
                Err(lost())
            }
            Fate::NeverAnswered(applied) => {
                if let Some(there) = applied {
                    sleep(there).await;
                    apply(&self.memory);
                }
                sleep(DEAD_FOR).await;
                Err(lost())
            }
        }
    }

    pub(crate) async fn run(&self, name: &str, operation: &Operation, within: Duration) -> Result<Answer, ServerError> {
        let sent = Instant::now();
        if matches!(operation.evict, Evict::Kept(_)) {
            self.clears.fetch_add(1, Ordering::Relaxed);
        }
        self.unblocked(name, within).await?;
        let mut entries = operation.requests.iter().flat_map(|requests| &requests.entries);
        // Mostly it shows no more than that the client is still where it was.
        let is_repeated = operation.leave.is_empty() && entries.all(|entry| !entry.fresh);
        self.served(if is_repeated { NO_OP } else { WRITE }, within).await?;
        let (name, operation, log) = (name.to_owned(), operation.clone(), self.log());
        let run = move |memory: &MemoryStore| {
            let logged_by = log.as_ref().map(|log| log.written(memory.now(), 1));
            (memory.run(&name, &operation), logged_by)
        };
        let (answer, logged_by) = self.send(run).await?;
        let Answer { state, exchange } = answer?;
        let exchange = Exchange {
            logged_by,
            ..since(sent, &exchange)
        };
        Ok(Answer { state, exchange })
    }

    /// Runs operations that share a command, one after the other, and reads their documents later. Some commands end
    /// before their last operation, with any answer or none.
    pub(crate) async fn run_together(
        &self,
        asked: &[Asked],
        within: Duration,
    ) -> Result<Vec<Result<Answer, ServerError>>, ServerError> {
        let sent = Instant::now();
        self.commands_together.fetch_add(1, Ordering::Relaxed);
        self.served(WRITE, within).await?;
        let mut writable = asked;
        let mut out_of_time = Ok(());
        for (position, Asked { name, .. }) in asked.iter().enumerate() {
            out_of_time = self.unblocked(name, within.saturating_sub(sent.elapsed())).await;
            if out_of_time.is_err() {
                // Those before it are done.
                writable = &asked[..position];
                break;
            }
        }
        if !self.calm.load(Ordering::Relaxed) && self.random().below(4) == 0 {
            let most = u64::try_from(writable.len()).unwrap_or(0);
            writable = &writable[..usize::try_from(self.random().below(most + 1)).unwrap_or(0)];
        }
        let writable = writable.to_vec();
        self.send(move |memory| {
            for Asked { name, operation } in &writable {
                let _ = memory.run(name, operation);
            }
        })
        .await?;
        out_of_time?;
        let names: Vec<String> = asked.iter().map(|asked| asked.name.clone()).collect();
        let (mut documents, exchange) = self.send(move |memory| memory.read(&names)).await?;
        let outcomes = asked.iter().map(|Asked { name, operation }| {
            let state = documents.remove(name).and_then(Result::ok);
            Answer::read_after(operation, state, since(sent, &exchange))
        });
        Ok(outcomes.collect())
    }

    /// Returns the number of commands for several locks that were sent.
    pub(crate) fn commands_together(&self) -> u64 {
        self.commands_together.load(Ordering::Relaxed)
    }

    /// Returns the number of operations that were sent to clear a barrier.
    pub(crate) fn clears(&self) -> u64 {
        self.clears.load(Ordering::Relaxed)
    }

    /// Refuses to renew documents of these names from now on.
    pub(crate) fn refuse(&self, names: impl IntoIterator<Item = String>) {
        *self.refusing() = names.into_iter().collect();
    }

    /// Returns the number of refused renewals.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn refusing(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.refusing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let burden = self.burden.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(burden) = burden {
            burden.renewals.fetch_add(1, Ordering::Relaxed);
            sleep(burden.latency).await;
            let _turn = burden.server.lock().await;
            sleep(
                burden
                    .each
                    .saturating_mul(u32::try_from(renewal.entries.len()).unwrap_or(u32::MAX)),
            )
            .await;
        }
        let blocked = self.blocked.borrow().clone();
        if let Some(name) = renewal
            .entries
            .iter()
            .map(|(name, _)| name)
            .find(|name| blocked.contains(*name))
        {
            self.unblocked(name, renewal.within).await?;
        }
        self.served(WRITE, renewal.within).await?;
        let mut renewal = renewal.clone();
        let refusing = self.refusing().clone();
        let (refused, entries) = std::mem::take(&mut renewal.entries)
            .into_iter()
            .partition(|(name, _)| refusing.contains(name));
        renewal.entries = entries;
        let refused: Vec<(String, Vec<String>)> = refused;
        self.refused.fetch_add(refused.len() as u64, Ordering::Relaxed);
        let log = self.log();
        let renew = move |memory: &MemoryStore| {
            let renewed = memory.renew(&renewal);
            (renewed, log.as_ref().map(|log| log.written(memory.now(), renewed)))
        };
        let (renewed, logged_by) = self.send(renew).await?;
        Ok(Renewed {
            renewed,
            refused: refused
                .into_iter()
                .map(|(name, _)| (name, refused_by_server()))
                .collect(),
            elected: None,
            logged_by,
        })
    }

    /// Lists all locks, unless lists are blocked.
    pub(crate) async fn list(&self, selection: &Selection) -> Result<Listed, ServerError> {
        self.unblocked(LISTS, LONG_READ_WITHIN).await?;
        let selection = selection.clone();
        self.send(move |memory| memory.list(&selection)).await
    }

    /// Counts the clients that hold; only this one where the log is not told.
    pub(crate) async fn clients_that_hold(&self) -> Result<u64, ServerError> {
        let log = self.log();
        self.send(move |memory| log.as_ref().map_or(1, |log| log.clients_that_hold(memory)))
            .await
    }

    /// Returns the number of readings that were sent.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) async fn read(&self, names: &[String]) -> Result<(Documents, Exchange), ServerError> {
        self.served(1, READ_WITHIN).await?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let sent = Instant::now();
        let (names, log) = (names.to_vec(), self.log());
        let read = move |memory: &MemoryStore| {
            let logged_by = log.as_ref().map(|log| log.written(memory.now(), 0));
            (memory.read(&names), logged_by)
        };
        let ((documents, exchange), logged_by) = self.send(read).await?;
        let exchange = Exchange {
            logged_by,
            ..since(sent, &exchange)
        };
        Ok((documents, exchange))
    }

    pub(crate) async fn watch(
        self: &Arc<Self>,
        session: &str,
        watched: &Watched,
    ) -> Result<SimulatedStream, ServerError> {
        let (session, watched) = (session.to_owned(), watched.clone());
        self.served(OPENING, HANGS).await?;
        let inner = self.send(move |memory| memory.watch(&session, watched.clone())).await?;
        Ok(SimulatedStream {
            inner,
            link: self.clone(),
            on_the_way: VecDeque::new(),
            breaks_at: None,
            empty_at: None,
        })
    }

    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.memory
    }
}

/// Returns the exchange as its sender sees it.
fn since(sent: Instant, exchange: &Exchange) -> Exchange {
    exchanged(sent, exchange.now)
}

/// Returns a refusal like that of a validator that was added later.
fn refused_by_server() -> ServerError {
    ServerError {
        kind: Failure::Refused,
        source: Arc::new(io::Error::other("the document failed validation")),
    }
}

fn lost() -> ServerError {
    ServerError {
        kind: Failure::Unavailable,
        source: Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)),
    }
}

/// A change stream whose events come late, that breaks and loses events, or goes silent for ever.
#[derive(Debug)]
pub(crate) struct SimulatedStream {
    inner: MemoryStream,
    link: Arc<Link>,
    on_the_way: VecDeque<(Instant, Event)>,
    breaks_at: Option<Instant>,
    /// When the batch that is asked for comes although it is empty, whoever asks for it again meanwhile.
    empty_at: Option<Instant>,
}

impl SimulatedStream {
    pub(crate) async fn next(&mut self) -> Result<Vec<Event>, ServerError> {
        let empty_at = *self.empty_at.get_or_insert_with(|| Instant::now() + AWAIT_TIME);
        loop {
            if self.breaks_at.is_none() && !self.link.calm.load(Ordering::Relaxed) {
                let after = Duration::from_millis(self.link.random().below(20_000));
                self.breaks_at = Some(Instant::now() + after);
            }
            let breaks_at = self.breaks_at.unwrap_or(empty_at + AWAIT_TIME);
            let arrives_at = self.on_the_way.front().map_or(empty_at, |(at, _)| *at);
            tokio::select! {
                biased;
                () = sleep_until(breaks_at) => {
                    self.breaks_at = None;
                    if self.link.calm.load(Ordering::Relaxed) {
                        continue;
                    }
                    self.on_the_way.clear();
                    if self.link.random().below(4) == 0 {
                        // Nobody reports that it is dead.
                        std::future::pending::<()>().await;
                    }
                    return Err(lost());
                }
                () = sleep_until(arrives_at.min(empty_at)) => {
                    if self.link.is_cut() {
                        std::future::pending::<()>().await;
                    }
                    let now = Instant::now();
                    self.empty_at = None;
                    let arrived = self.on_the_way.iter().take_while(|(at, _)| *at <= now).count();
                    return Ok(self.on_the_way.drain(..arrived).map(|(_, event)| event).collect());
                }
                events = self.inner.next() => {
                    let last = self.on_the_way.back().map(|(at, _)| *at);
                    for event in events? {
                        let late = Duration::from_millis(self.link.random().below(6));
                        let at = Instant::now() + late;
                        self.on_the_way.push_back((last.map_or(at, |last| at.max(last)), event));
                    }
                }
            }
        }
    }
}
