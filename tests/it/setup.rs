//! Helpers of these tests: those of `common`, views of what clients send and servers do, and dice.

use std::{error::Error, fmt::Display, sync::Arc};

use futures::{FutureExt, future::select_all};
use mongodb::{ClientSession, Database, bson::RawDocumentBuf, event::EventHandler, options::ClientOptions};
use tokio::{
    runtime::Runtime,
    sync::{Mutex, MutexGuard, OnceCell},
    task::JoinHandle,
};
use watchlock::{
    LockClientBuilder, action,
    errors::Contention,
    locks::{Once, Turn},
    operate::{HolderInfo, WakeMode, WakeSource},
};
use watchlock_testkit::{Cluster, FailPoint, Proxy};

pub(crate) use crate::common::{
    COLLECTION, Ground, PATIENCE, SOON, eventually, info, is_vacant, pause, until_waiting, within,
};

// What most tests name.
pub(crate) use std::time::Duration;

pub(crate) use futures::future::join_all;
pub(crate) use mongodb::{
    Client, Collection,
    bson::{Bson, Document, doc},
    event::command::CommandEvent,
};
pub(crate) use watchlock::{
    Held, LockClient, LockStatus, LostReason, Released,
    documents::DocumentLocks,
    errors::AcquireError,
    testing::{InMemory, MemoryCollection},
};
pub(crate) use watchlock_testkit::shared;

impl Ground {
    /// On the replica set that all tests share, directly, and behind a network of its own.
    pub(crate) async fn proxied(prefix: &str) -> (Self, Proxy, Self) {
        let direct = Self::replica_set(prefix).await;
        let proxy = shared::replica_set().await.proxy(0).unwrap();
        let behind = direct.through(proxy.uri());
        (direct, proxy, behind)
    }

    /// The same server and database, under an application name: the name of the database, which no other test has. Fail
    /// points strike by it, and connections are found by it.
    pub(crate) fn by_name(&self) -> Self {
        self.with(&format!("appName={}", self.database))
    }

    /// A fresh client of the driver. `hear` is told of each command that it sends, and of its end.
    pub(crate) async fn overheard_driver(&self, hear: impl Fn(CommandEvent) + Send + Sync + 'static) -> Client {
        let mut options = ClientOptions::parse(self.uri()).await.unwrap();
        options.command_event_handler = Some(EventHandler::callback(hear));
        Client::with_options(options).unwrap()
    }

    /// A fresh client of the driver that notes what it sends.
    pub(crate) async fn noting_driver(&self) -> (Client, Sent) {
        let sent = Sent::default();
        let notes = sent.clone();
        let hear = move |event| {
            if let CommandEvent::Started(started) = event {
                notes.0.lock().unwrap().push(started.command_name);
            }
        };
        (self.overheard_driver(hear).await, sent)
    }

    /// A collection of the database, by this client of the driver.
    pub(crate) fn of(&self, driver: &Client, name: &str) -> Collection<Document> {
        driver.database(&self.database).collection(name)
    }

    /// A collection of the database, as another program has it.
    pub(crate) async fn collection(&self, name: &str) -> Collection<Document> {
        self.of(&self.driver().await, name)
    }

    /// A lock client over this client of the driver.
    pub(crate) async fn locks_over(&self, driver: &Client) -> LockClient {
        let builder = LockClient::builder(driver.database(&self.database));
        builder.build().await.unwrap()
    }

    /// As [`Self::locks`], with settings.
    pub(crate) async fn locks_with(&self, set: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> LockClient {
        set(self.builder().await).build().await.unwrap()
    }

    /// Has the cluster's first server fail commands of the clients that [`Self::by_name`] makes.
    pub(crate) async fn fail(
        &self,
        cluster: &Cluster,
        mode: impl Into<Bson>,
        commands: &[&str],
        fault: Document,
    ) -> FailPoint {
        let mut data = doc! { "failCommands": commands, "appName": &self.database };
        data.extend(fault);
        cluster.fail_commands(0, mode, data).await.unwrap()
    }

    /// As [`Self::locks`], without a stream: those that are open are others'.
    pub(crate) async fn polling(&self) -> LockClient {
        self.locks_with(|builder| builder.wake_source(WakeSource::Polling))
            .await
    }

    /// Kills the change streams of this collection that are open just now.
    pub(crate) async fn kill_streams(&self, admin: &Client, collection: &str) {
        let streams = self.streams(admin).await;
        if !streams.is_empty() {
            let kill = doc! { "killCursors": collection, "cursors": streams };
            admin.database(&self.database).run_command(kill).await.unwrap();
        }
    }

    /// How often the document of a lock was written.
    pub(crate) async fn version(&self, name: &str) -> i64 {
        let lock = self.documents().await.find_one(doc! { "_id": name }).await.unwrap();
        lock.map_or(0, |lock| lock.get_i64("version").unwrap())
    }

    /// The operations of the server that concern the database, or connections by its name, idle ones included.
    pub(crate) async fn operations(&self, on: &Client) -> Vec<Document> {
        let current = doc! { "$currentOp": { "allUsers": true, "idleCursors": true, "idleConnections": true } };
        // Those of other tests are many, and the server is quicker to pass over them.
        let namespace = doc! { "ns": { "$regex": format!("^{}(\\.|$)", self.database) } };
        let matching = doc! { "$match": { "$or": [namespace, { "appName": &self.database }] } };
        let mut cursor = on.database("admin").aggregate([current, matching]).await.unwrap();
        let mut found = Vec::new();
        while cursor.advance().await.unwrap() {
            found.push(cursor.deserialize_current().unwrap());
        }
        found
    }

    /// The ids of the change streams that are open in the database.
    ///
    /// The server lists what runs and then what is idle. A stream whose next `getMore` arrives in between is on neither
    /// list, so one look does not show that a stream is gone: one that any of three shows is open.
    pub(crate) async fn streams(&self, on: &Client) -> Vec<i64> {
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.extend(self.operations(on).await.iter().filter_map(stream_id));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The names of the commands that a client of the driver's has sent, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent(Arc<std::sync::Mutex<Vec<String>>>);

impl Sent {
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.names().iter().filter(|sent| *sent == name).count()
    }
}

/// The id of the cursor where the operation is a change stream, waiting or idle.
pub(crate) fn stream_id(operation: &Document) -> Option<i64> {
    stream_options(operation)?;
    operation.get_document("cursor").ok()?.get_i64("cursorId").ok()
}

/// With what the change stream was opened, where the operation is one.
fn stream_options(operation: &Document) -> Option<&Document> {
    let command = operation
        .get_document("cursor")
        .ok()?
        .get_document("originatingCommand")
        .ok()?;
    let first = command.get_array("pipeline").ok()?.first()?.as_document()?;
    first.get_document("$changeStream").ok()
}

/// A replica set of one node for tests that use fail points: a server has but one of each, so whoever has the guard has
/// the server alone. There are a few, as tests that wait for a turn keep others from running.
pub(crate) async fn faulty() -> (&'static Cluster, MutexGuard<'static, ()>) {
    static CLUSTERS: [OnceCell<Cluster>; 5] = [const { OnceCell::const_new() }; 5];
    static TURNS: [Mutex<()>; 5] = [const { Mutex::const_new(()) }; 5];
    let turns = TURNS.iter().map(|turn| Box::pin(turn.lock()));
    let (turn, place, _) = select_all(turns).await;
    let cluster = Cluster::builder().replica_set(1).in_memory(true);
    let start = async || cluster.start().await.unwrap();
    (CLUSTERS[place].get_or_init(start).await, turn)
}

/// As [`faulty`], with a place for clients that have a name by which fail points strike.
pub(crate) async fn faulty_ground(prefix: &str) -> (&'static Cluster, MutexGuard<'static, ()>, Ground) {
    let (cluster, turn) = faulty().await;
    (cluster, turn, Ground::on(cluster, prefix).by_name())
}

/// A fault that strikes so often.
pub(crate) fn times(times: i32) -> Document {
    doc! { "times": times }
}

/// A fault that holds a command up for so long.
pub(crate) fn blocks(millis: i32) -> Document {
    doc! { "blockConnection": true, "blockTimeMS": millis }
}

/// A transaction that has begun.
pub(crate) async fn transaction(driver: &Client) -> ClientSession {
    let mut session = driver.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    session
}

/// A transaction that has written this document so far.
pub(crate) async fn writing(driver: &Client, data: &Collection<Document>, id: impl Into<Bson>) -> ClientSession {
    let mut session = transaction(driver).await;
    let write = data.update_one(doc! { "_id": id.into() }, doc! { "$set": { "by_transaction": true } });
    assert_eq!(write.session(&mut session).await.unwrap().matched_count, 1);
    session
}

/// Waits until so many change streams are open in the database.
pub(crate) async fn until_streaming(ground: &Ground, on: &Client, streams: usize) {
    let are_open = async || ground.streams(on).await.len() == streams;
    eventually(PATIENCE, "the streams are open", are_open).await;
}

/// Waits until nobody holds the lock and nobody waits for it.
pub(crate) async fn until_vacant(locks: &LockClient, name: &str) {
    eventually(PATIENCE, "nobody is left", async || is_vacant(locks, name).await).await;
}

/// The one holder of a lock.
pub(crate) async fn holder(locks: &LockClient, name: &str) -> HolderInfo {
    let lock = info(locks, name).await.unwrap();
    assert_eq!(lock.holders.len(), 1, "{lock:?}");
    lock.holders[0].clone()
}

/// Runs a command in which `?` stands for a byte that no text has.
pub(crate) async fn run_with_bad_text(database: &Database, command: Document) {
    let mut bytes = Vec::new();
    command.to_writer(&mut bytes).unwrap();
    for byte in &mut bytes {
        if *byte == b'?' {
            *byte = 0xff;
        }
    }
    let reply = database
        .run_raw_command(RawDocumentBuf::from_bytes(bytes).unwrap())
        .await
        .unwrap();
    assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
}

/// Waits until the mode is as wanted.
pub(crate) async fn until_mode(locks: &LockClient, limit: Duration, wanted: impl Fn(WakeMode) -> bool) {
    eventually(limit, "the wake mode", async || wanted(locks.wake_mode())).await;
}

/// Dice that fall the same way in every run.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below the bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap();
        Duration::from_nanos(self.next() % (nanos + 1))
    }
}

/// As `tokio::spawn`, which is compiled anew for each future, and this for each type of result: a fifth less for LLVM.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(future.boxed())
}

/// A runtime with a thread of its own.
pub(crate) fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Asserts that an error, or what else is told, has all of these words.
#[track_caller]
pub(crate) fn assert_says(told: &impl Display, words: &[&str]) {
    let told = told.to_string();
    assert!(
        words.iter().all(|word| told.contains(word)),
        "{told}: not all of {words:?}"
    );
}

/// What an acquire that did not get the lock is told of those in its way.
#[track_caller]
pub(crate) fn contention(error: AcquireError) -> Contention {
    match error {
        AcquireError::Held { contention, .. } => *contention,
        AcquireError::Timeout {
            contention: Some(contention),
            ..
        } => *contention,
        error => panic!("{error:?}"),
    }
}

/// A job that is begun now, as nobody else is at it and its period is open.
pub(crate) async fn begun(job: Once) -> Held<Once> {
    match job.begin().await.unwrap() {
        Turn::Ours(job) => job,
        turn => panic!("{turn:?}"),
    }
}

/// All that an error tells, with its causes, as programs print it.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_causes(source)),
        None => error.to_string(),
    }
}

/// Two clients, as two processes would have them, in memory, on a replica set and on a standalone.
pub(crate) async fn places(name: &str) -> Vec<(LockClient, LockClient)> {
    places_with(name, |builder, _| builder).await
}

/// As [`places`], with settings for the first (0) and the second (1).
pub(crate) async fn places_with(
    name: &str,
    set: impl Fn(LockClientBuilder, usize) -> LockClientBuilder,
) -> Vec<(LockClient, LockClient)> {
    let memory = InMemory::new();
    let mut builders = vec![(memory.builder(), memory.builder())];
    for ground in Ground::both(name).await {
        builders.push((ground.builder().await, ground.builder().await));
    }
    let mut places = Vec::new();
    for (a, b) in builders {
        places.push((set(a, 0).build().await.unwrap(), set(b, 1).build().await.unwrap()));
    }
    places
}

/// Spawns an acquire, and waits until it is in the server's queue as the `place`th.
pub(crate) async fn in_line<T: Send + 'static>(
    locks: &LockClient,
    name: &str,
    place: usize,
    acquire: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let waiting = spawn(acquire);
    until_waiting(locks, name, place).await;
    waiting
}

/// The lock that a spawned acquire gets.
pub(crate) async fn granted<T: action::Target>(waiting: JoinHandle<Result<Held<T>, AcquireError>>) -> Held<T> {
    within(PATIENCE, "the grant", waiting).await.unwrap().unwrap()
}

/// Asserts that a value has this form, and shows the value, after the case, if it has another.
macro_rules! assert_is {
    ($found:expr, $form:pat $(if $also:expr)? $(, $($case:tt)+)?) => {{
        let found = &$found;
        let is_so = matches!(found, $form $(if $also)?);
        assert!(is_so, "{}{found:?}", String::new() $(+ &format!($($case)+) + ": ")?);
    }};
}
pub(crate) use assert_is;

/// Asserts that an error of this type says that the lock is lost, and why.
macro_rules! assert_lost {
    ($error:ident, $reason:ident, $found:expr) => {{
        let found = $found;
        let is_lost = matches!(&found, $error::Lost(lost) if lost.reason == watchlock::LostReason::$reason);
        assert!(is_lost, "{found:?}");
    }};
}
pub(crate) use assert_lost;
