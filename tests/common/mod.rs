//! Shared by the tests of the library (`tests/it`) and of the command line (`cli/tests/it`), which both include it by
//! its path: databases to work in, ways to wait, users with few privileges, hostile text.
//!
//! Both use all of it. Helpers of the library's tests alone belong in `tests/it/setup.rs`.

pub(crate) mod hostile;
pub(crate) mod users;

use std::time::{Duration, Instant};

use mongodb::{Client, Collection, bson::Document, options::ClientOptions};
use watchlock::{LockClient, LockClientBuilder, operate::LockInfo};
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

    /// On each of the two.
    pub(crate) async fn both(prefix: &str) -> [Self; 2] {
        [Self::replica_set(prefix).await, Self::standalone(prefix).await]
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

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// A fresh client of the driver.
    pub(crate) async fn driver(&self) -> Client {
        Client::with_options(ClientOptions::parse(&self.uri).await.unwrap()).unwrap()
    }

    /// To make a lock client with a driver's client of its own.
    pub(crate) async fn builder(&self) -> LockClientBuilder {
        LockClient::builder(self.driver().await.database(&self.database))
    }

    /// A lock client as a process of its own would have, with the default lease of 30 s: in a test that is for ever.
    pub(crate) async fn locks(&self) -> LockClient {
        self.builder().await.build().await.unwrap()
    }

    /// As [`Self::locks`], with another lease.
    pub(crate) async fn locks_for(&self, lease: Duration) -> LockClient {
        self.builder().await.lease(lease).build().await.unwrap()
    }

    /// The documents as another program sees them.
    pub(crate) async fn documents(&self) -> Collection<Document> {
        self.driver().await.database(&self.database).collection(COLLECTION)
    }
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
        // Pauses grow with the wait, so that it is told to a sixteenth and a long one does not keep the server busy.
        let pause = (began / 16).clamp(Duration::from_millis(2), Duration::from_millis(50));
        tokio::time::sleep(pause).await;
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

pub(crate) async fn info(locks: &LockClient, name: &str) -> Option<LockInfo> {
    locks.inspect(name).await.unwrap()
}

/// Nobody holds the lock and nobody waits for it.
pub(crate) async fn is_vacant(locks: &LockClient, name: &str) -> bool {
    info(locks, name)
        .await
        .is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
}
