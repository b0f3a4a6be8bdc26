//! The stand-in for one process: a driver's client and a lock client of its own.

use std::time::{Duration, SystemTime};

use mongodb::{
    Client, Collection,
    bson::Document,
    options::{CollectionOptions, WriteConcern},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use watchlock::{
    Acquire, Held, LockClient, LockClientBuilder,
    action::{CanAcquire, One},
    operate::LockInfo,
};
use watchlock_testkit::Cluster;

use crate::Result;

const DATABASE: &str = "scoreboard";

/// Maximum time for a waiter to stand in the queue: beyond it something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) driver: Client,
    pub(crate) locks: LockClient,
}

impl Peer {
    pub(crate) async fn new(cluster: &Cluster) -> Result<Self> {
        Self::of(cluster.client().await?, |builder| builder).await
    }

    pub(crate) async fn with_lease(uri: &str, lease: Duration) -> Result<Self> {
        Self::of(Client::with_uri_str(uri).await?, |builder| builder.lease(lease)).await
    }

    /// Makes one with which released locks stay.
    pub(crate) async fn keeping_idle(cluster: &Cluster, keep: Duration) -> Result<Self> {
        Self::of(cluster.client().await?, |builder| builder.keep_idle(keep)).await
    }

    async fn of(driver: Client, set: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> Result<Self> {
        let builder = set(LockClient::builder(driver.database(DATABASE)));
        Ok(Self {
            locks: builder.build().await?,
            driver,
        })
    }

    /// Returns the collection of the raw commands, beside the one of the locks and with the same write concern.
    pub(crate) fn raw(&self) -> Collection<Document> {
        self.collection("raw")
    }

    /// Returns the collection of the locks, as another program would open it.
    pub(crate) fn locks_documents(&self) -> Collection<Document> {
        self.collection("distributed_locks")
    }

    pub(crate) fn collection(&self, name: &str) -> Collection<Document> {
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .build();
        self.driver.database(DATABASE).collection_with_options(name, options)
    }

    /// Returns the collection of documents to be locked in place.
    pub(crate) fn documents(&self) -> Collection<Document> {
        self.driver.database(DATABASE).collection("documents")
    }

    /// Waits until `waiters` stand in the server's queue, and returns the state of the lock then.
    pub(crate) async fn until_queued(&self, name: &str, waiters: usize) -> Result<LockInfo> {
        let queued = async {
            loop {
                match self.locks.inspect(name).await? {
                    Some(lock) if lock.waiters.len() >= waiters => return Ok(lock),
                    _ => sleep(Duration::from_millis(1)).await,
                }
            }
        };
        timeout(PATIENCE, queued).await?
    }
}

/// Starts to wait in a task of its own.
pub(crate) fn wait<T: CanAcquire<Count = One>>(acquire: Acquire<T>) -> JoinHandle<Result<Acquired>>
where
    Held<T::Held>: Into<Held>,
{
    tokio::spawn(async move {
        let handle = acquire.await?.into();
        Ok(Acquired {
            at: Instant::now(),
            at_clock: SystemTime::now(),
            handle,
        })
    })
}

/// The result of a wait.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) at: Instant,
    /// The same instant on the clock that this machine's servers read too.
    pub(crate) at_clock: SystemTime,
    pub(crate) handle: Held,
}

/// What waits for the next entry of the log of a node alone, as the secondaries of a replica set always do: a stream of a
/// database that nobody writes to.
///
/// A write by majority is answered when its entry can be read. Where somebody waits for entries, that is at once;
/// otherwise the node looks once a millisecond (`WiredTigerOplogManager` in the server's source), so that answers come in
/// two groups a millisecond apart, and a median tells which group is the larger one.
#[derive(Debug)]
pub(crate) struct LogReader(JoinHandle<mongodb::error::Result<()>>);

impl LogReader {
    pub(crate) async fn start(cluster: &Cluster) -> Result<Self> {
        let mut stream = cluster.client().await?.database("untouched").watch().await?;
        Ok(Self(tokio::spawn(async move {
            loop {
                stream.next_if_any().await?;
            }
        })))
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        self.0.abort();
    }
}
