//! The client: one per process, from which all locks are made.

pub(crate) mod builder;
pub(crate) mod in_memory;
mod scope;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use mongodb::Database;
use tokio::sync::watch;

#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    config::Config,
    deadlock::Deadlock,
    detached::Detached,
    error::{AcquireError, OperateError},
    handle::{Held, owned::OwnedHold, target::AnyLock},
    hidden::hidden,
    input::check_name,
    inspect::LockInfo,
    locks::{
        self, Barrier, Latch, MultiLock, Once, Part, RwLock, Semaphore, election::Election, request::Share, rw_lock,
    },
    name::LockName,
    operate::{
        events::Events,
        list::List,
        watch::{LockEvent, events_of_all, events_of_one},
    },
    protocol::Kind,
    session::{ClientLife, Session, UserHandle, streams::observers::Scope},
    store::{Connection, MemoryStore, Store, lock_layout::Paths},
    token::FencingToken,
    wake_mode::WakeMode,
    world::{Async, World},
};
use builder::{Home, LockClientBuilder};

/// A factory for locks that all processes share if they use the same collection.
///
/// Use one client per process: it owns one session, with one change stream and one heartbeat. Cloning is cheap, and
/// clones share the session.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use watchlock::LockClient;
///
/// let locks = LockClient::in_memory(); // For services: `LockClient::builder(database).build().await?`
/// let invoice = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).reason("monthly run").await?;
/// let export = locks.semaphore("exports", 4).acquire().await?;
/// if let Some(both) = locks.multi(["account-3", "account-7"]).try_acquire().await? {
///     both.release().await?;
/// }
/// let status = locks.rw_lock("prices").read().run(async |held| held.status()).await?;
/// # assert!(status == watchlock::LockStatus::Held && export.is_held());
/// invoice.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
///
/// # The end of a program
///
/// Dropping the last clone and the last handle releases the held locks in the background. **A program that returns from
/// `main` ends its runtime, and with it these releases: the locks stay taken until their leases expire** (30 s by
/// default). So let a program do its work in a [`scope`](LockClientBuilder::scope), or call
/// [`shutdown`](Self::shutdown) at its end.
///
/// As with the driver's client, the tasks run on the tokio runtime on which it was first used: build one for each
/// runtime.
///
/// An acquire without a [`timeout`](crate::Acquire::timeout) waits through any outage; every other call
/// [fails](crate::guide::operating#how-long-a-call-may-take) if it gets no answer. You can wrap each in
/// `tokio::time::timeout`: commands run in tasks of their own, so none of the driver is abandoned
/// half-way.
#[doc(alias("LockProvider", "RedissonClient", "Session"))]
#[derive(Clone)]
pub struct LockClient<W: World = Async> {
    pub(crate) session: UserHandle,
    /// Sessions over the user's own collections, by place: they end with this client.
    others: Arc<Mutex<Vec<Other>>>,
    /// Places of the locks in the user's own collections, by collection: as many as a program names.
    paths: Arc<Mutex<HashMap<String, Paths>>>,
    of: PhantomData<fn() -> W>,
}

/// A session over documents of the user's own.
struct Other {
    /// Its place, if the place can be recognized.
    place: Option<String>,
    client: Weak<ClientLife>,
    /// Its tasks have it for longer than its users.
    session: Weak<Session>,
}

impl<W: World> fmt::Debug for LockClient<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store is left out: the driver's client shows the user's connection options.
        f.debug_struct("LockClient")
            .field("config", &self.session.config)
            .finish_non_exhaustive()
    }
}

impl LockClient {
    /// Returns a builder of a client whose locks live in a collection of `database`.
    ///
    /// Write concern, read concern and read preference are the library's own (majority, majority, primary), regardless
    /// of those of `database`.
    pub fn builder(database: Database) -> LockClientBuilder {
        LockClientBuilder::new(Home::Database(hidden(database)))
    }

    pub(crate) fn over_memory(memory: &MemoryStore, config: Config) -> Self {
        let mode = WakeMode::of(config.wake_source);
        let store = Store::Memory(Arc::new(memory.of_another_client()));
        Self::new(Session::new(config, store, None, mode))
    }

    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self {
            session: ClientLife::begin(session),
            others: Arc::default(),
            paths: Arc::default(),
            of: PhantomData,
        }
    }

    /// Returns the places of the locks in the documents of a collection, as far as this client knows.
    pub(crate) fn paths_in(&self, collection: String) -> Paths {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.entry(collection).or_default().clone()
    }

    /// Returns the connection to memory, on which a test can set faults; one without faults for a client of a server.
    pub(crate) fn connection(&self) -> Connection {
        match &self.session.store {
            Store::Memory(store) => store.connection().clone(),
            _ => Connection::default(),
        }
    }

    /// Returns this client's session over the locks of a place, or creates one with that store. An unknown place gets
    /// its own session.
    pub(crate) fn session_over(&self, place: Option<String>, store: impl FnOnce() -> Store) -> UserHandle {
        let find = |others: &[Other]| {
            let mut same = others.iter().filter(|other| place.is_some() && other.place == place);
            same.find_map(|other| other.client.upgrade())
        };
        let others = || self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = find(&others()) {
            return session;
        }
        let store = store();
        let by_driver = store.is_remote();
        let mode = match by_driver {
            true => self.wake_mode().at_rest(),
            false => WakeMode::of(self.session.config.wake_source),
        };
        // Operators are notified while none of our internal locks is held.
        let session = Session::new(self.session.config.clone(), store, None, mode);
        if by_driver {
            session.live_with(&self.session);
        }
        let mut others = others();
        // Another thread may have been as fast.
        if let Some(session) = find(&others) {
            return session;
        }
        others.retain(|other| other.session.strong_count() > 0);
        let session = ClientLife::begin(session);
        others.push(Other {
            place: place.clone(),
            client: Arc::downgrade(&session),
            session: Arc::downgrade(&**session),
        });
        // The shutdown looks for other sessions under the same internal lock, so none of them escapes it.
        if self.session.is_closed() {
            session.close();
        }
        session
    }

    /// Returns the same client for threads: see [`sync`](crate::sync).
    #[cfg(feature = "sync")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
    pub fn blocking(&self) -> LockClient<Blocking> {
        self.in_world()
    }
}

impl<W: World> LockClient<W> {
    /// Returns the same client for async code.
    pub fn as_async(&self) -> LockClient {
        self.in_world()
    }

    fn in_world<V: World>(&self) -> LockClient<V> {
        LockClient {
            session: self.session.clone(),
            others: self.others.clone(),
            paths: self.paths.clone(),
            of: PhantomData,
        }
    }

    /// Returns the demand of one permit of a lock of so many.
    fn share(&self, name: impl Into<String>, kind: Kind, capacity: impl Into<i64>) -> Share {
        let name = LockName::new(name.into());
        Share::one_of(capacity.into(), self.session.clone(), name, kind)
    }

    /// Returns a mutex: one holder at a time among all processes.
    ///
    /// Any text of 1 to 1,024 bytes is a name; one name is one kind of lock. Making a lock of any kind sends nothing;
    /// using it refuses other names, and numbers that are out of bounds.
    pub fn mutex(&self, name: impl Into<String>) -> locks::Mutex<W> {
        locks::Mutex::new(self.share(name, Kind::Mutex, 1))
    }

    /// Returns a job that is done at most once in each `period`, among all processes: from a second to 366 days. The
    /// name is that of a [`mutex`](Self::mutex).
    pub fn once(&self, name: impl Into<String>, period: Duration) -> Once<W> {
        Once::new(self.share(name, Kind::Mutex, 1), period)
    }

    /// Returns a semaphore with `permits` permits among all processes, at least one.
    pub fn semaphore(&self, name: impl Into<String>, permits: u32) -> Semaphore<W> {
        Semaphore::new(self.share(name, Kind::Semaphore, permits))
    }

    /// Returns a readers-writer lock: many readers or one writer at a time among all processes.
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock<W> {
        RwLock::new(self.share(name, Kind::RwLock, rw_lock::PERMITS))
    }

    /// Returns an election: one leader at a time among all processes.
    pub fn election(&self, name: impl Into<String>) -> Election<W> {
        Election::new(self.share(name, Kind::Election, 1))
    }

    /// Returns a count-down latch: it opens when `count` arrivals have been counted, from any processes; 1 to 256.
    pub fn latch(&self, name: impl Into<String>, count: u32) -> Latch<W> {
        Latch::new(self.share(name, Kind::Latch, count))
    }

    /// Returns a barrier: `parties` calls of [`wait`](Barrier::wait), from any processes, wait for each other, again
    /// and again; 1 to 64.
    pub fn barrier(&self, name: impl Into<String>, parties: u32) -> Barrier<W> {
        Barrier::new(self.share(name, Kind::Barrier, parties))
    }

    /// Returns a multi-lock: several locks, held together or not at all, given in any order; 1 to 128, each once. A
    /// name is that of a mutex, and [`Part`] has the ways to other locks.
    pub fn multi(&self, parts: impl IntoIterator<Item = impl Into<Part>>) -> MultiLock<W> {
        MultiLock::new(&self.session, parts)
    }

    /// Returns the name of this machine, as [`OwnerInfo::host`](crate::operate::OwnerInfo::host) shows it for this
    /// client.
    pub fn host(&self) -> &str {
        &self.session.config.host
    }

    /// Returns how waiters are woken at present.
    ///
    /// While nobody waits or holds for long no stream is open, and this is the expected mode. A client that polls for
    /// another reason than that the server has no change streams, or permits none, notifies a waiter or holder late.
    pub fn wake_mode(&self) -> WakeMode {
        *self.session.mode().borrow()
    }

    /// Waits until the wake mode differs from `present`, and returns it. Cancel safe: no change is lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: watchlock::LockClient) {
    /// let mut mode = locks.wake_mode();
    /// loop {
    ///     println!("waiters are woken by {mode}");
    ///     mode = locks.wake_mode_changed(mode).await;
    /// }
    /// # }
    /// ```
    pub fn wake_mode_changed(&self, present: WakeMode) -> W::Call<impl Future<Output = WakeMode>> {
        W::call(async move {
            let mut mode: watch::Receiver<WakeMode> = self.session.mode();
            if self.session.is_forked() {
                // The mode does not change here any more, and a caller that asks in a loop must not wait forever.
                return present;
            }
            // Copied out at once: a borrow from the channel must not live across an await.
            let changed = mode.wait_for(|mode| *mode != present).await.map(|mode| *mode);
            match changed {
                Ok(mode) => mode,
                // The sender lives in the session, which `self` keeps alive.
                Err(_) => std::future::pending().await,
            }
        })
    }

    /// Returns the present holders and waiters of the lock `name`; `None` if there is no trace of it.
    ///
    /// A holder whose lease is over is shown until somebody asks for the lock again, while a [`list`](Self::list)
    /// leaves it out: [`LockInfo::is_held`] counts only the others. Cancel safe: it only reads. An [`OperateError`]
    /// says why it failed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::{LostReason, operate::LockEvent};
    ///
    /// let mut events = locks.watch_all();
    /// let exports = locks.semaphore("exports", 2);
    /// let (stuck, other) = (exports.acquire().reason("night of the 3rd").await?, exports.acquire().await?);
    /// let lock = locks.inspect("exports").await?.expect("it is held");
    /// assert_eq!(lock.holders[0].owner.reason.as_deref(), Some("night of the 3rd"));
    /// assert_eq!(locks.list().prefix("exp").held(true).await?[0].name, "exports");
    /// assert!(locks.list().with_unreadable().await?.unreadable.is_empty());
    ///
    /// let lock = locks.break_holder("exports", stuck.token()).await?.expect("it is held");
    /// assert_eq!(stuck.lost().await, LostReason::Broken);
    /// assert_eq!(lock.holders[0].token, other.token());
    /// locks.break_lock("exports").await?;
    /// assert_eq!(other.lost().await, LostReason::Broken);
    ///
    /// let (name, event) = events.next().await.expect("the client lives")?;
    /// assert_eq!(name, "exports");
    /// assert!(matches!(event, LockEvent::Granted { .. }));
    /// for deadlock in locks.deadlocks().await? {
    ///     println!("{deadlock}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn inspect(&self, name: &str) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            check_name(name)?;
            let read = self.session.inspect(name).await?;
            Ok(read.map(|read| LockInfo::of_reading(name, &read)))
        })
    }

    /// Lists locks, sorted by name. Set conditions on the returned action, and await it: cancel safe, as it only reads.
    /// An [`OperateError`] says why it failed. [`inspect`](Self::inspect) has an example.
    pub fn list(&self) -> List<W> {
        List::new(Ok(self.session.clone()))
    }

    /// Lists the deadlocks among the locks of all clients, as far as those show what their tasks wait for:
    /// [Deadlocks](crate::guide::locks#deadlocks). Where there is a sign of one, it looks again and again until that is
    /// certain, or for the longest lease of its holders, a minute at most. It reads up to 1,000 locks whose holders
    /// wait.
    ///
    /// Cancel safe: it only reads. An [`OperateError`] says why it failed. [`inspect`](Self::inspect) has an example.
    pub fn deadlocks(&self) -> W::Call<impl Future<Output = Result<Vec<Deadlock>, OperateError>>> {
        let session = self.session.clone();
        W::call(async move { session.deadlocks().await })
    }

    /// Returns the events of the lock `name`, as they happen: a stream of grants, releases, expiries and breaks. It
    /// begins with a grant for each present holder.
    ///
    /// The final state always arrives, even if the stream breaks; states in between may be skipped then. It waits while
    /// the server can't be reached. A state that lasted for less than a hop (a millisecond or two; while polling, the
    /// longest poll interval) may be skipped. So may those that a caller leaves waiting, beyond 64. The stream ends
    /// after an error that the server would repeat, and with the client's shutdown.
    ///
    /// # Panics
    ///
    /// If the client was not used yet and this is called outside a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::operate::LockEvent;
    ///
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// let mut events = locks.watch("invoice-42");
    /// assert!(matches!(events.next().await, Some(Ok(LockEvent::Granted { .. }))));
    /// handle.release().await?;
    /// assert!(matches!(events.next().await, Some(Ok(LockEvent::Released { .. }))));
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, name: &str) -> Events<LockEvent, W> {
        let scope = Scope::One(name.to_owned());
        Events::new(
            check_name(name).map(|()| (self.session.clone(), scope)),
            events_of_one(),
        )
    }

    /// Returns the events of every lock in the collection, as they happen: the events of [`watch`](Self::watch), each
    /// with the name of its lock. Soon it has a grant for each present holder of each lock, beside what happens
    /// meanwhile. [`inspect`](Self::inspect) has an example.
    ///
    /// All else is as for [`watch`](Self::watch). As long as it lives, the client's change stream also receives each
    /// renewal of each lock, so it is for operators and not for every process of an application.
    pub fn watch_all(&self) -> Events<(String, LockEvent), W> {
        Events::new(Ok((self.session.clone(), Scope::All)), events_of_all())
    }

    /// Takes the lock `name` away from all its holders, and hands it to the next in the queue. Returns the state of the
    /// lock afterwards; `None` if there is no trace of it. [`inspect`](Self::inspect) has an example.
    ///
    /// Its holders see [`LostReason::Broken`](crate::LostReason::Broken) at once.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or after an error of the server or some seconds without its answer, the lock may or
    /// may not be broken: a command that was sent runs to its end. Inspect the lock before you try again, as another
    /// holder may have it by now.
    #[doc(alias("forceUnlock", "force_unlock"))]
    pub fn break_lock(&self, name: &str) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            check_name(name)?;
            Ok(self.session.break_lock(name).await?)
        })
    }

    /// Takes the lock `name` away from the one holder whose grant has this token, and from nobody else: one holder of a
    /// semaphore, or one reader. Its permits go to the next in the queue. A writer that was an upgradeable reader holds
    /// by two grants: break the reader's, and it loses both. [`inspect`](Self::inspect) has an example.
    ///
    /// [`HolderInfo::token`](crate::operate::HolderInfo::token) has the token. Returns the state of the lock
    /// afterwards, or `None` without a change if nobody holds it under this token. All else is as for
    /// [`break_lock`](Self::break_lock), but it is safe to try again: no other grant ever has the same token.
    pub fn break_holder(
        &self,
        name: &str,
        token: FencingToken,
    ) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            check_name(name)?;
            Ok(self.session.break_holder(name, token.as_i64()).await?)
        })
    }

    /// Takes up a hold that a handle was [detached](crate::Held::detach) from, in this or another process, under the
    /// same token. Returns `None` if nobody holds the lock under it any more.
    ///
    /// Of several that attach the same hold, one has it, and the others are refused until it is detached again. The
    /// hold keeps its lease, also one that was [fixed](crate::Acquire::fixed), and is renewed from now on; its limits
    /// are those of this client. Cancel safe: if the future is dropped, a hold that was attached is detached again in
    /// the background.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Held`](crate::errors::AcquireError::Held) if a client has the hold, which it names;
    /// [`Invalid`](crate::errors::AcquireError::Invalid) if the name is out of bounds, or the lease of the hold does
    /// not go with this client's margins; [`Server`](crate::errors::AcquireError::Server) if the server refuses or
    /// can't be reached: nothing is attached then, or the lock stays taken until its lease is over.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::InMemory::new();
    /// # let (locks, other) = (memory.client(), memory.client());
    /// use std::time::Duration;
    /// use watchlock::errors::AcquireError;
    ///
    /// let handle = locks.mutex("cart-7").acquire().lease(Duration::from_secs(900)).await?;
    /// let token = handle.token();
    /// let detached = handle.detach().await?; // Put it into the user's session.
    /// assert!(other.mutex("cart-7").try_acquire().await?.is_none());
    /// assert!(other.renew_detached(&detached).await?.expect("it is held").is_held());
    ///
    /// // The next request, served by another process.
    /// let handle = other.attach(&detached).await?.expect("it is still held");
    /// assert_eq!(handle.token(), token);
    /// assert!(matches!(locks.attach(&detached).await, Err(AcquireError::Held { .. })));
    /// handle.release().await?;
    /// assert!(locks.attach(&detached).await?.is_none());
    /// # Ok(()) }
    /// ```
    #[doc(alias("resume"))]
    pub fn attach(
        &self,
        detached: &Detached,
    ) -> W::Call<impl Future<Output = Result<Option<Held<AnyLock, W>>, AcquireError>>> {
        W::call(async move {
            check_name(detached.name())?;
            let hold = self.session.attach(detached).await?;
            Ok(hold.map(|hold| Held::new((OwnedHold::new(self.session.clone(), hold), ()))))
        })
    }

    /// Renews a [detached](crate::Held::detach) hold for its whole lease from now on, without taking it up. Returns the
    /// state of the lock afterwards; `None` without a change if nobody holds it under this token any more, or a client
    /// has attached it, which renews it itself. [`attach`](Self::attach) has an example.
    ///
    /// An [`OperateError`] says why it failed. If the future is dropped, or after an error, the hold may or may not be
    /// renewed; it is safe to try again.
    pub fn renew_detached(
        &self,
        detached: &Detached,
    ) -> W::Call<impl Future<Output = Result<Option<LockInfo>, OperateError>>> {
        W::call(async move {
            check_name(detached.name())?;
            let read = self.session.renew_detached(detached).await?;
            Ok(read.map(|read| LockInfo::of_reading(detached.name(), &read)))
        })
    }

    /// Ends the client: acquires fail with [`AcquireError::Closed`](crate::errors::AcquireError::Closed), held locks
    /// are released, waiters give up their queue positions. Returns when the server has confirmed, or after the time of
    /// a lease. With a request whose answer was lost, it also waits until the server has given that up, for a fraction
    /// of a second as a rule: nothing of this client is in the way of others afterwards. [`LockClient`] has an example.
    ///
    /// It waits for no work, and takes its locks: work that goes on sees
    /// [`LostReason::Released`](crate::LostReason::Released) from the moment of the call. So await it first, or have it
    /// look at [`is_held`](crate::View::is_held) before each step. If the future is dropped, the releases go on in the
    /// background.
    pub fn shutdown(&self) -> W::Call<impl Future<Output = ()>> {
        W::call(async move {
            let sessions = self.close();
            futures::future::join_all(sessions.iter().map(Session::shut_down)).await;
        })
    }

    /// Refuses new acquires, and returns the sessions that are to be shut down.
    fn close(&self) -> Vec<Arc<Session>> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let others = others.iter().filter_map(|other| other.session.upgrade());
        let sessions: Vec<_> = others.chain([(**self.session).clone()]).collect();
        sessions.iter().for_each(|session| session.close());
        sessions
    }
}
