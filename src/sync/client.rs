//! The client for threads.

use std::time::Duration;

use mongodb::{Collection, Database, options::ReadPreference};

use super::{
    Action, AllLockEvents, Barrier, DocumentLocks, Election, Latch, LockEvents, MultiLock, Mutex, Once, RwLock,
    Semaphore, block_on, enter,
};
use crate::{
    documents::memory_collection::MemoryCollection,
    error::{BuildError, OperateError},
    inspect::LockInfo,
    operate::list::List,
    token::FencingToken,
    wake_mode::{WakeMode, WakeSource},
};

/// A builder of a [`LockClient`]. Made by [`LockClient::builder`], or from any [`watchlock::LockClientBuilder`] with
/// its settings, such as that of [`InMemory::builder`](crate::InMemory::builder).
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

    /// See [`LockClientBuilder::stream_read_preference`](crate::LockClientBuilder::stream_read_preference).
    pub fn stream_read_preference(self, preference: ReadPreference) -> Self {
        self.with(|builder| builder.stream_read_preference(preference))
    }

    /// See [`LockClientBuilder::max_streams`](crate::LockClientBuilder::max_streams).
    pub fn max_streams(self, streams: u32) -> Self {
        self.with(|builder| builder.max_streams(streams))
    }

    /// See [`LockClientBuilder::max_operations`](crate::LockClientBuilder::max_operations).
    pub fn max_operations(self, operations: u32) -> Self {
        self.with(|builder| builder.max_operations(operations))
    }

    /// See [`LockClientBuilder::hand_on_locally`](crate::LockClientBuilder::hand_on_locally).
    pub fn hand_on_locally(self, hand_on: bool) -> Self {
        self.with(|builder| builder.hand_on_locally(hand_on))
    }

    /// See [`LockClientBuilder::keep_idle`](crate::LockClientBuilder::keep_idle).
    pub fn keep_idle(self, keep: Duration) -> Self {
        self.with(|builder| builder.keep_idle(keep))
    }

    /// See [`LockClientBuilder::label`](crate::LockClientBuilder::label).
    pub fn label(self, label: impl Into<String>) -> Self {
        self.with(|builder| builder.label(label))
    }

    /// See [`LockClientBuilder::owner_id`](crate::LockClientBuilder::owner_id).
    pub fn owner_id(self, id: impl Into<String>) -> Self {
        self.with(|builder| builder.owner_id(id))
    }

    /// See [`LockClientBuilder::max_hold`](crate::LockClientBuilder::max_hold).
    pub fn max_hold(self, most: Duration) -> Self {
        self.with(|builder| builder.max_hold(most))
    }

    /// See [`LockClientBuilder::lose_after`](crate::LockClientBuilder::lose_after).
    pub fn lose_after(self, limit: Duration) -> Self {
        self.with(|builder| builder.lose_after(limit))
    }

    /// See [`LockClientBuilder::history`](crate::LockClientBuilder::history).
    pub fn history(self, ends: u32) -> Self {
        self.with(|builder| builder.history(ends))
    }

    /// See [`LockClientBuilder::metrics_for`](crate::LockClientBuilder::metrics_for).
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics_for(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.with(|builder| builder.metrics_for(names))
    }

    /// Checks the settings and asks the server once for its type.
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

    /// Builds a client, calls `work` with it, and [shuts the client down](LockClient::shutdown): also after an error or
    /// a panic. See [`LockClientBuilder::scope`](crate::LockClientBuilder::scope).
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build); `work` is not called then.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use watchlock::{InMemory, sync::LockClientBuilder};
    ///
    /// let memory = InMemory::new();
    /// LockClientBuilder::from(memory.builder()).scope(|locks| {
    ///     let handle = locks.mutex("invoice-42").acquire().run()?;
    ///     // ... bill the invoice ...
    ///     handle.release()?;
    ///     Ok(())
    /// })?
    /// # }
    /// ```
    pub fn scope<R>(self, work: impl FnOnce(LockClient) -> R) -> Result<R, BuildError> {
        let scope = ShutDownOnDrop(self.build()?);
        Ok(work(scope.0.clone()))
    }
}

struct ShutDownOnDrop(LockClient);

impl Drop for ShutDownOnDrop {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// A factory for locks that all processes share if they use the same collection: [`watchlock::LockClient`] for threads.
///
/// Use one client per process. Cloning is cheap, and clones share the session. It can also be made [from](From) a
/// [`watchlock::LockClient`], as its clone, for the threads of an async program.
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
    /// Returns a builder of a client whose locks live in a collection of `database`.
    ///
    /// See [`sync`](crate::sync#connecting) for how to get one without async.
    pub fn builder(database: Database) -> LockClientBuilder {
        crate::LockClient::builder(database).into()
    }

    /// Returns a client of locks in the memory of this process, without a server: for tests of your own code.
    ///
    /// See [`InMemory`](crate::InMemory) for several clients of the same memory. Time is that of the system: tokio's
    /// clock can't be paused for threads.
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

    /// Returns the same client for async code.
    pub fn as_async(&self) -> &crate::LockClient {
        &self.client
    }

    /// Returns a mutex: one holder at a time among all processes; see [`LockClient::mutex`](crate::LockClient::mutex).
    pub fn mutex(&self, name: impl Into<String>) -> Mutex {
        Mutex::new(self.client.mutex(name))
    }

    /// Returns a job that is done at most once in each `period`; see [`LockClient::once`](crate::LockClient::once).
    pub fn once(&self, name: impl Into<String>, period: Duration) -> Once {
        Once::new(self.client.once(name, period))
    }

    /// Returns a semaphore with `permits` permits; see [`LockClient::semaphore`](crate::LockClient::semaphore).
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore {
        Semaphore::new(self.client.semaphore(name, permits))
    }

    /// Returns a readers-writer lock; see [`LockClient::rw_lock`](crate::LockClient::rw_lock).
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        RwLock::new(self.client.rw_lock(name))
    }

    /// Returns an election; see [`LockClient::election`](crate::LockClient::election).
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(self.client.election(name))
    }

    /// Returns a count-down latch of `count` arrivals; see [`LockClient::latch`](crate::LockClient::latch).
    pub fn latch(&self, name: impl Into<String>, count: u32) -> Latch {
        Latch::new(self.client.latch(name, count))
    }

    /// Returns a barrier of `parties` parties; see [`LockClient::barrier`](crate::LockClient::barrier).
    pub fn barrier(&self, name: impl Into<String>, parties: u32) -> Barrier {
        Barrier::new(self.client.barrier(name, parties))
    }

    /// Returns a multi-lock: several mutexes, held together or not at all; see
    /// [`LockClient::multi`](crate::LockClient::multi).
    pub fn multi(&self, names: impl IntoIterator<Item = impl Into<String>>) -> MultiLock {
        MultiLock::new(self.client.multi(names))
    }

    /// Returns locks for the documents of a collection of yours, in place; see
    /// [`LockClient::documents`](crate::LockClient::documents).
    pub fn documents<T: Send + Sync>(&self, collection: Collection<T>) -> DocumentLocks<T> {
        DocumentLocks::new(self.client.documents(collection))
    }

    /// Returns locks for the documents of a collection in memory; see
    /// [`LockClient::documents_in_memory`](crate::LockClient::documents_in_memory).
    pub fn documents_in_memory<T>(&self, collection: &MemoryCollection) -> DocumentLocks<T> {
        DocumentLocks::new(self.client.documents_in_memory(collection))
    }

    /// Returns the name of this machine, as others see it; see [`LockClient::host`](crate::LockClient::host).
    pub fn host(&self) -> &str {
        self.client.host()
    }

    /// Returns how waiters are woken at present; see [`LockClient::wake_mode`](crate::LockClient::wake_mode).
    pub fn wake_mode(&self) -> WakeMode {
        self.client.wake_mode()
    }

    /// Blocks until the wake mode differs from `present`, and returns it.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn wake_mode_changed(&self, present: WakeMode) -> WakeMode {
        block_on(self.client.wake_mode_changed(present))
    }

    /// Returns the present holders and waiters of the lock `name`; see
    /// [`LockClient::inspect`](crate::LockClient::inspect).
    ///
    /// # Errors
    ///
    /// If the name is out of bounds, the server can't be reached, or the document is not a lock.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn inspect(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.inspect(name))
    }

    /// Lists locks, sorted by name. Set conditions on the returned action, and [`run`](Action::run) it.
    pub fn list(&self) -> Action<List> {
        Action::new(self.client.list())
    }

    /// Returns the events of the lock `name`, as they happen: an iterator that blocks until there is an event. See
    /// [`LockClient::watch`](crate::LockClient::watch), which has the same errors.
    pub fn watch(&self, name: &str) -> LockEvents {
        let _entered = enter();
        LockEvents::new(self.client.watch(name))
    }

    /// Returns the events of every lock in the collection: those of [`watch`](Self::watch), each with the name of its
    /// lock. See [`LockClient::watch_all`](crate::LockClient::watch_all), which has the same errors.
    pub fn watch_all(&self) -> AllLockEvents {
        let _entered = enter();
        AllLockEvents::new(self.client.watch_all())
    }

    /// Takes the lock `name` away from all its holders; see [`LockClient::break_lock`](crate::LockClient::break_lock).
    ///
    /// # Errors
    ///
    /// If the name is out of bounds, or the server refuses or can't be reached. The lock may or may not be broken then.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_lock(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.break_lock(name))
    }

    /// Takes the lock `name` away from the one holder whose grant has this token; see
    /// [`LockClient::break_holder`](crate::LockClient::break_holder).
    ///
    /// # Errors
    ///
    /// Same as for [`break_lock`](Self::break_lock).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn break_holder(&self, name: &str, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.break_holder(name, token))
    }

    /// Renews the hold with this token for its whole lease; see
    /// [`LockClient::renew_holder`](crate::LockClient::renew_holder).
    ///
    /// # Errors
    ///
    /// If the name is out of bounds, or the server refuses or can't be reached.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn renew_holder(&self, name: &str, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        block_on(self.client.renew_holder(name, token))
    }

    /// Ends the client: acquires fail, held locks are released. Returns when the server has confirmed, or after the
    /// time of a lease. Call it before the process ends; see [`LockClient::shutdown`](crate::LockClient::shutdown).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn shutdown(&self) {
        block_on(self.client.shutdown());
    }
}
