//! The client for threads.

use std::time::Duration;

use mongodb::{Collection, Database};

use super::{AllLockEvents, DocumentLocks, Election, LockEvents, MultiLock, Mutex, RwLock, Semaphore, block_on, enter};
use crate::{
    error::{BuildError, OperateError},
    inspect::LockInfo,
    list::List,
    memory_collection::MemoryCollection,
    token::FencingToken,
    wake_mode::{WakeMode, WakeSource},
};

/// Makes a [`LockClient`]. Made by [`LockClient::builder`], or from any [`watchlock::LockClientBuilder`], with its
/// settings: as that of [`InMemory::builder`](crate::InMemory::builder).
///
/// [`watchlock::LockClientBuilder`]: crate::LockClientBuilder
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LockClientBuilder {
    builder: crate::LockClientBuilder,
}

impl From<crate::LockClientBuilder> for LockClientBuilder {
    fn from(builder: crate::LockClientBuilder) -> Self {
        Self { builder }
    }
}

impl LockClientBuilder {
    fn with(self, set: impl FnOnce(crate::LockClientBuilder) -> crate::LockClientBuilder) -> Self {
        Self {
            builder: set(self.builder),
        }
    }

    /// See [`LockClientBuilder::collection`](crate::LockClientBuilder::collection).
    pub fn collection(self, name: impl Into<String>) -> Self {
        self.with(|builder| builder.collection(name))
    }

    /// See [`LockClientBuilder::lease`](crate::LockClientBuilder::lease).
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|builder| builder.lease(lease))
    }

    /// See [`LockClientBuilder::renewal_interval`](crate::LockClientBuilder::renewal_interval).
    pub fn renewal_interval(self, interval: Duration) -> Self {
        self.with(|builder| builder.renewal_interval(interval))
    }

    /// See [`LockClientBuilder::claim_lease`](crate::LockClientBuilder::claim_lease).
    pub fn claim_lease(self, lease: Duration) -> Self {
        self.with(|builder| builder.claim_lease(lease))
    }

    /// See [`LockClientBuilder::retention`](crate::LockClientBuilder::retention).
    pub fn retention(self, retention: Duration) -> Self {
        self.with(|builder| builder.retention(retention))
    }

    /// See [`LockClientBuilder::skew_margin`](crate::LockClientBuilder::skew_margin).
    pub fn skew_margin(self, margin: Duration) -> Self {
        self.with(|builder| builder.skew_margin(margin))
    }

    /// See [`LockClientBuilder::poll_interval`](crate::LockClientBuilder::poll_interval).
    pub fn poll_interval(self, least: Duration, most: Duration) -> Self {
        self.with(|builder| builder.poll_interval(least, most))
    }

    /// See [`LockClientBuilder::wake_source`](crate::LockClientBuilder::wake_source).
    pub fn wake_source(self, source: WakeSource) -> Self {
        self.with(|builder| builder.wake_source(source))
    }

    /// See [`LockClientBuilder::label`](crate::LockClientBuilder::label).
    pub fn label(self, label: impl Into<String>) -> Self {
        self.with(|builder| builder.label(label))
    }

    /// See [`LockClientBuilder::owner_id`](crate::LockClientBuilder::owner_id).
    pub fn owner_id(self, id: impl Into<String>) -> Self {
        self.with(|builder| builder.owner_id(id))
    }

    /// Checks the settings and asks the server once what it is.
    ///
    /// # Errors
    ///
    /// See [`LockClientBuilder::build`](crate::LockClientBuilder::build).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn build(self) -> Result<LockClient, BuildError> {
        block_on(self.builder.build()).map(LockClient::from)
    }
}

/// Makes locks that all processes share which use the same collection: [`watchlock::LockClient`] for threads.
///
/// One per process is enough, and best. Cloning is cheap, and clones are the same session. It can also be made
/// [from](From) a [`watchlock::LockClient`], of which it is a clone then: for the threads of an async program.
///
/// [`watchlock::LockClient`]: crate::LockClient
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use watchlock::{InMemory, sync::LockClient};
///
/// let memory = InMemory::new();
/// let (one, other) = (LockClient::from(memory.client()), LockClient::from(memory.client()));
/// let handle = one.mutex("invoice-42").acquire().run()?;
/// assert!(other.mutex("invoice-42").try_acquire().run()?.is_none());
/// handle.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LockClient {
    client: crate::LockClient,
}

impl From<crate::LockClient> for LockClient {
    fn from(client: crate::LockClient) -> Self {
        Self { client }
    }
}

impl LockClient {
    /// Begins to make a client whose locks live in a collection of `database`.
    ///
    /// See [`sync`](crate::sync#connecting) for how to come by one without async.
    pub fn builder(database: Database) -> LockClientBuilder {
        crate::LockClient::builder(database).into()
    }

    /// A client of locks in the memory of this process, without a server: for tests of your own code.
    ///
    /// See [`InMemory`](crate::InMemory) for several clients of the same memory. Time is that of the system: tokio's clock
    /// can't be paused for threads.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = watchlock::sync::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().run()?;
    /// handle.release()?;
    /// # Ok(()) }
    /// ```
    pub fn in_memory() -> Self {
        crate::LockClient::in_memory().into()
    }

    /// The same client for async code.
    pub fn as_async(&self) -> &crate::LockClient {
        &self.client
    }

    /// A mutex: one holder at a time among all processes; as [`LockClient::mutex`](crate::LockClient::mutex).
    pub fn mutex(&self, name: impl Into<String>) -> Mutex {
        Mutex::new(self.client.mutex(name))
    }

    /// A semaphore of `permits` permits; as [`LockClient::semaphore`](crate::LockClient::semaphore).
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(self.client.semaphore(name, permits))
    }

    /// A readers-writer lock; as [`LockClient::rw_lock`](crate::LockClient::rw_lock).
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(self.client.rw_lock(name))
    }

    /// An election; as [`LockClient::election`](crate::LockClient::election).
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(self.client.election(name))
    }

    /// Several mutexes, held together or not at all; as [`LockClient::multi`](crate::LockClient::multi).
    pub fn multi(&self, names: impl IntoIterator<Item = impl Into<String>>) -> MultiLock {
        MultiLock::new(self.client.multi(names))
    }

    /// Locks for the documents of a collection of yours, in place; as
    /// [`LockClient::documents`](crate::LockClient::documents).
    pub fn documents<T: Send + Sync>(&self, collection: Collection<T>) -> DocumentLocks<T> {
        DocumentLocks::new(self.client.documents(collection))
    }

    /// The same for the documents of a collection in memory; as
    /// [`LockClient::documents_in_memory`](crate::LockClient::documents_in_memory).
    pub fn documents_in_memory<T>(&self, collection: &MemoryCollection) -> DocumentLocks<T> {
        DocumentLocks::new(self.client.documents_in_memory(collection))
    }

    /// How waiters are woken at present; as [`LockClient::wake_mode`](crate::LockClient::wake_mode).
    pub fn wake_mode(&self) -> WakeMode {
        self.client.wake_mode()
    }

    /// Blocks until the wake mode is another than `present`, and returns it.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn wake_mode_changed(&self, present: WakeMode) -> WakeMode {
        block_on(self.client.wake_mode_changed(present))
    }

    /// Who holds the lock `name` and who waits for it, as of now; as [`LockClient::inspect`](crate::LockClient::inspect).
    ///
    /// # Errors
    ///
    /// When the name is out of its bounds, the server can't be reached, or the document is not a lock's.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn inspect(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.inspect(name))
    }

    /// Lists locks, sorted by name. Set conditions on the returned action, and [`run`](List::run) it.
    pub fn list(&self) -> List {
        self.client.list()
    }

    /// What happens to the lock `name`, as it happens: an iterator that blocks until there is something to tell. As
    /// [`LockClient::watch`](crate::LockClient::watch), with the same errors.
    pub fn watch(&self, name: &str) -> LockEvents {
        let _entered = enter();
        LockEvents::new(self.client.watch(name))
    }

    /// What happens to every lock of the collection: as [`watch`](Self::watch), each event with the name of its lock. As
    /// [`LockClient::watch_all`](crate::LockClient::watch_all), with the same errors.
    pub fn watch_all(&self) -> AllLockEvents {
        let _entered = enter();
        AllLockEvents::new(self.client.watch_all())
    }

    /// Takes the lock `name` away from whoever holds it; as [`LockClient::break_lock`](crate::LockClient::break_lock).
    ///
    /// # Errors
    ///
    /// When the name is out of its bounds, or the server refuses or can't be reached. Whether the lock is broken is open
    /// then.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_lock(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.break_lock(name))
    }

    /// Takes the lock `name` away from the one holder whose grant has this token; as
    /// [`LockClient::break_holder`](crate::LockClient::break_holder).
    ///
    /// # Errors
    ///
    /// As those of [`break_lock`](Self::break_lock).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_holder(&self, name: &str, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.break_holder(name, token))
    }

    /// Ends the client: acquires fail, what is held is released; returns when the server knows, or after the time of a
    /// lease. Call it before the process ends; as [`LockClient::shutdown`](crate::LockClient::shutdown).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn shutdown(&self) {
        block_on(self.client.shutdown());
    }
}
