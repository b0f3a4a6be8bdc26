//! What the tests share: where they work, how they wait, and how they roll dice.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use watchlock::{LockClient, LockClientBuilder, LockInfo, WakeMode, WakeSource};
use watchlock_testkit::{Cluster, shared};

/// The collection of the locks, as everybody finds it who does not choose another.
pub(crate) const COLLECTION: &str = "distributed_locks";

/// How long anything may take that should take milliseconds, on a machine that is busy with other tests.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// How long anything may take at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A database of a test's own on some server.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    uri: String,
    pub(crate) database: String,
}

impl Ground {
    /// On the replica set that all tests share.
    pub(crate) async fn replica_set(prefix: &str) -> Self {
        Self::on(shared::replica_set().await, prefix)
    }

    /// On the standalone server that all tests share.
    pub(crate) async fn standalone(prefix: &str) -> Self {
        Self::on(shared::standalone().await, prefix)
    }

    pub(crate) fn on(cluster: &Cluster, prefix: &str) -> Self {
        Self::at(cluster.uri(), prefix)
    }

    pub(crate) fn at(uri: String, prefix: &str) -> Self {
        Self {
            uri,
            database: shared::unique_name(prefix),
        }
    }

    /// The same database, reached in another way.
    pub(crate) fn through(&self, uri: String) -> Self {
        Self {
            uri,
            database: self.database.clone(),
        }
    }

    /// The same server and database, with more options in the connection string.
    pub(crate) fn with(&self, options: &str) -> Self {
        self.through(format!("{}&{options}", self.uri))
    }

    /// The same server and database, under an application name: the name of the database, which no other test has. Fail
    /// points strike by it, and connections are found by it.
    pub(crate) fn by_name(&self) -> Self {
        self.with(&format!("appName={}", self.database))
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// A fresh client of the driver.
    pub(crate) async fn driver(&self) -> Client {
        Client::with_options(ClientOptions::parse(&self.uri).await.unwrap()).unwrap()
    }

    /// A fresh client of the driver that notes what it sends.
    pub(crate) async fn noting_driver(&self) -> (Client, Sent) {
        let sent = Sent::default();
        let mut options = ClientOptions::parse(&self.uri).await.unwrap();
        let notes = sent.clone();
        options.command_event_handler = Some(EventHandler::callback(move |event| {
            if let CommandEvent::Started(started) = event {
                notes.0.lock().unwrap().push(started.command_name);
            }
        }));
        (Client::with_options(options).unwrap(), sent)
    }

    /// To make a lock client with a driver's client of its own.
    pub(crate) async fn builder(&self) -> LockClientBuilder {
        LockClient::builder(self.driver().await.database(&self.database))
    }

    /// A lock client as a process of its own would have, with the default lease of 30 s: in a test that is for ever.
    pub(crate) async fn locks(&self) -> LockClient {
        self.builder().await.build().await.unwrap()
    }

    /// As [`Self::locks`], without a stream: those that are open are others'.
    pub(crate) async fn polling(&self) -> LockClient {
        let builder = self.builder().await.wake_source(WakeSource::Polling);
        builder.build().await.unwrap()
    }

    /// As [`Self::locks`], with another lease.
    pub(crate) async fn locks_for(&self, lease: Duration) -> LockClient {
        self.builder().await.lease(lease).build().await.unwrap()
    }

    /// The documents as another program sees them.
    pub(crate) async fn documents(&self) -> Collection<Document> {
        self.driver().await.database(&self.database).collection(COLLECTION)
    }

    /// The operations of the server that concern the database, or connections by its name, idle ones included.
    pub(crate) async fn operations(&self, on: &Client) -> Vec<Document> {
        let current = doc! { "$currentOp": { "allUsers": true, "idleCursors": true, "idleConnections": true } };
        let mut cursor = on.database("admin").aggregate([current]).await.unwrap();
        let mut found = Vec::new();
        while cursor.advance().await.unwrap() {
            // Those of other tests can have what is no text in them.
            let Ok(operation) = cursor.deserialize_current() else {
                continue;
            };
            let text = |field| operation.get_str(field).unwrap_or_default();
            let ours = text("ns").split('.').next() == Some(&self.database) || text("appName") == self.database;
            if ours {
                found.push(operation);
            }
        }
        found
    }

    /// The ids of the change streams that are open on the locks' collection.
    pub(crate) async fn streams(&self, on: &Client) -> Vec<i64> {
        let operations = self.operations(on).await;
        let mut ids: Vec<i64> = operations.iter().filter_map(stream_id).collect();
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
pub(crate) fn stream_options(operation: &Document) -> Option<&Document> {
    let command = operation
        .get_document("cursor")
        .ok()?
        .get_document("originatingCommand")
        .ok()?;
    let first = command.get_array("pipeline").ok()?.first()?.as_document()?;
    first.get_document("$changeStream").ok()
}

/// A replica set of one node for tests that use fail points: a server has but one of each, so whoever has the guard has
/// the server alone.
pub(crate) async fn faulty() -> (&'static Cluster, MutexGuard<'static, ()>) {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    (
        CLUSTER
            .get_or_init(async || Cluster::replica_set(1).await.unwrap())
            .await,
        turn,
    )
}

/// Waits until `holds`, and fails when it does not come to that within `limit`. Returns how long it took.
pub(crate) async fn eventually(limit: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    loop {
        // Looked at once more after the limit, if the last look began before it: a slow look is no failure.
        let began = start.elapsed();
        if holds().await {
            return began;
        }
        assert!(began < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The result of the future, which must come within `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}

/// Waits for a time that may end between two ticks of tokio's clock, which has milliseconds.
pub(crate) async fn pause(duration: Duration) {
    tokio::task::spawn_blocking(move || std::thread::sleep(duration))
        .await
        .unwrap();
}

/// Waits until `count` clients wait for the lock in the server's queue.
pub(crate) async fn until_waiting(locks: &LockClient, name: &str, count: usize) {
    eventually(PATIENCE, "all wait", async || {
        info(locks, name).await.is_some_and(|lock| lock.waiters.len() == count)
    })
    .await;
}

/// Waits until the client's waiters are woken by a change stream that is open.
pub(crate) async fn until_streaming(ground: &Ground, on: &Client, streams: usize) {
    eventually(PATIENCE, "the streams are open", async || {
        ground.streams(on).await.len() == streams
    })
    .await;
}

/// Waits until the mode is as wanted.
pub(crate) async fn until_mode(locks: &LockClient, limit: Duration, wanted: impl Fn(WakeMode) -> bool) {
    eventually(limit, "the wake mode", async || wanted(locks.wake_mode())).await;
}

pub(crate) async fn info(locks: &LockClient, name: &str) -> Option<LockInfo> {
    locks.inspect(name).await.unwrap()
}

/// Nobody holds the lock and nobody waits for it.
pub(crate) async fn is_vacant(locks: &LockClient, name: &str) -> bool {
    info(locks, name)
        .await
        .is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
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
