//! The settings of a client, and how it connects.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use mongodb::{Database, options::ReadPreference};
use tokio::runtime::Handle;

use super::LockClient;
#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    config::Config,
    error::{BuildError, InvalidInput},
    hidden::Hidden,
    input::{check_collection, check_database},
    machine,
    session::{
        Session,
        hedged_read::{Cost, read_beside},
    },
    store::{MemoryStore, MongoStore, Store},
    telemetry,
    wake_mode::{HoldWatch, PollingReason, WakeMode, WakeSource},
    world::{Async, World},
};

const DEFAULT_COLLECTION: &str = "distributed_locks";

/// A builder of a [`LockClient`]. Made by [`LockClient::builder`].
///
/// [`build`](Self::build) checks every setting before anything is sent.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LockClientBuilder<W: World = Async> {
    place: Home,
    collection: String,
    config: Config,
    of: PhantomData<fn() -> W>,
}

/// The place where the locks live.
#[derive(Clone)]
pub(super) enum Home {
    Database(Hidden<Database>),
    Memory(Arc<MemoryStore>),
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // By its name alone: the driver's client shows the user's connection options.
            Self::Database(database) => f.write_str(database.name()),
            Self::Memory(_) => f.write_str("memory"),
        }
    }
}

impl LockClientBuilder {
    pub(super) fn new(place: Home) -> Self {
        Self {
            place,
            collection: DEFAULT_COLLECTION.to_owned(),
            config: machine::config(),
            of: PhantomData,
        }
    }

    /// Returns the same builder for threads: it builds a client of the blocking API.
    #[cfg(feature = "sync")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
    pub fn blocking(self) -> LockClientBuilder<Blocking> {
        LockClientBuilder {
            place: self.place,
            collection: self.collection,
            config: self.config,
            of: PhantomData,
        }
    }
}

impl<W: World> LockClientBuilder<W> {
    /// Sets the collection of the locks' documents; `distributed_locks` by default. Leave it to watchlock alone.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.collection = name.into();
        self
    }

    /// Sets how long a lock outlives its holder's last sign of life; 30 s by default, at least 500 ms.
    ///
    /// The lock of a crashed holder stays taken for this long at most. A holder keeps its lock through an outage of the
    /// server of up to this length, less the time since its last renewal and the clock margin: of 30 s, 22.9 s at the
    /// worst moment.
    #[doc(alias("ttl", "leaseTime", "lockWatchdogTimeout"))]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets how often held locks are renewed; a fifth of the lease by default. It must be shorter than the lease less
    /// the skew margin and the clock drift, a thousandth of the lease. If the primary fails at the worst moment, the
    /// lease less this interval is left: that must outlast the election (10 to 12 s by MongoDB's defaults) and the
    /// first commit after it.
    #[doc(alias("keepalive", "heartbeat"))]
    pub fn renewal_interval(mut self, interval: Duration) -> Self {
        self.config.renewal_interval = Some(interval);
        self
    }

    /// Sets the first lease of a waiter that was handed the lock, until its first renewal shortly after; 5 s by
    /// default, or the lease if that is shorter. If a waiter has died unnoticed in the queue, those behind it wait this
    /// much longer. More than twice the skew margin; at most the lease, and at most 60 s.
    pub fn claim_lease(mut self, lease: Duration) -> Self {
        self.config.claim_lease = Some(lease);
        self
    }

    /// Sets how long the document of a free lock is kept; one day by default, from 60 s to 366 days, and up to an
    /// eighth longer. It only limits the size of the collection: fencing tokens rise whether or not the document is
    /// kept.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.config.retention = retention;
        self
    }

    /// Sets how far the clocks of the replica set's members may differ: from 5 ms to less than half of the claim lease.
    /// The default is a tenth of the lease, but never more than 1 s.
    ///
    /// A holder gives up this much, and a thousandth of the lease, before the server would give the lock away: so a new
    /// primary whose clock is ahead does no harm, nor do clocks that don't run equally fast.
    pub fn skew_margin(mut self, margin: Duration) -> Self {
        self.config.skew_margin = Some(margin);
        self
    }

    /// Sets the shortest and the longest pause between two questions of a waiter, a claim or an observer that polls; 10 ms
    /// and 500 ms by default.
    ///
    /// By default, the next in line for a lock that changes hands faster asks after a third of the time for which the
    /// present holder has had it, at most once a millisecond: if you set the shortest pause, no pause is shorter. The
    /// pause of a waiter is never longer than a quarter of its claim lease.
    pub fn poll_interval(mut self, least: Duration, most: Duration) -> Self {
        self.config.set_poll_interval(least, most);
        self
    }

    /// Sets how waiters learn of a release; by default through the change stream if there is one.
    pub fn wake_source(mut self, source: WakeSource) -> Self {
        self.config.wake_source = source;
        self
    }

    /// Sets how the client learns that a lock it holds was taken away: [`HoldWatch`] has the choices and the default,
    /// and [`wake_mode`](LockClient::wake_mode) tells which is in use. By reads, `lost()` is late by the pause between
    /// two of them for each thousand locks that the client holds. Locks in documents count as one client.
    pub fn hold_watch(mut self, watch: HoldWatch) -> Self {
        self.config.hold_watch = watch;
        self
    }

    /// Sets how many commands for operations (acquires, releases and their like) the client may have on their way at a
    /// time; 6 by default, 1 to 1,000. The locks of each collection, [field](crate::documents::DocumentLocks::field) or
    /// [array](crate::documents::DocumentLocks::element) of documents have the same number for themselves.
    ///
    /// Acquires and releases of different mutexes that wait for their turn share a command, up to 64 of them. A larger
    /// number can be worth it for locks that share none (semaphores, readers-writer locks, documents), with a [larger
    /// connection pool](crate::guide::operating#connections). Operations that hang have six slots of their own beside
    /// these, and claims have half as many.
    pub fn max_operations(mut self, operations: u32) -> Self {
        self.config.max_operations = usize::try_from(operations).unwrap_or(usize::MAX);
        self
    }

    /// Sets which members of the replica set serve the client's change streams; the primary by default.
    ///
    /// An open stream costs its server some time for every write of the whole set, to any collection.
    /// [`SecondaryPreferred`](ReadPreference::SecondaryPreferred) spares the primary that time, and waiters are woken
    /// later by the secondary's lag; with [`Secondary`](ReadPreference::Secondary) they poll if the set has none. All
    /// writes and other reads stay with the primary, and a grant is checked against its clock.
    pub fn stream_read_preference(mut self, preference: ReadPreference) -> Self {
        self.config.stream_read_preference = preference;
        self
    }

    /// Sets whether the tasks of this client pass a released lock along, and its readers share one hold, without the
    /// server while no other client is known to wait; on by default.
    ///
    /// It is some thirty times faster, and costs about one command for 64 tasks. It applies to mutexes, to readers and
    /// writers of readers-writer locks, and to acquires of all permits of a semaphore.
    /// [Guarantees](crate::guarantees#inside-a-process) lists the differences.
    pub fn hand_on_locally(mut self, hand_on: bool) -> Self {
        self.config.hands_on = hand_on;
        self
    }

    /// Keeps each released lock idle with this client for that long, so that its next task takes it without the server.
    /// Zero, the default, gives it back at once; at most 366 days. An acquire can set [its own
    /// time](crate::Acquire::keep_idle).
    ///
    /// Use it for a lock that one process takes again and again, and others seldom. It goes back as soon as another
    /// client **waits** for it, after this time, when a task of this client uses it otherwise (as a reader, with
    /// another lease), after 64 tasks, and with a [shutdown](LockClient::shutdown): a program that ends without one
    /// leaves its idle locks taken for the rest of their lease. A [try](crate::locks::Mutex::try_acquire) of another
    /// client finds an idle lock taken, so don't use it for locks that several clients try.
    /// [Guarantees](crate::guarantees#an-idle-lock) has the rest.
    ///
    /// It takes a change stream and applies to locks that are [handed on locally](Self::hand_on_locally), but not to
    /// those of readers and [jobs](crate::locks::Once), nor after this client had to wait for another.
    pub fn keep_idle(mut self, keep: Duration) -> Self {
        self.config.keep_idle = keep;
        self
    }

    /// Sets a name for this process that people recognize: the locks' documents have it next to the host and the
    /// process id.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = Some(label.into());
        self
    }

    /// Sets a name that this process keeps across restarts, of 1 to 1,024 bytes: with it, the process takes its own
    /// locks back at once.
    ///
    /// Its acquire (or try) of a lock evicts every hold and every wait of earlier clients with the id, and gets the
    /// lock, in one write and under a new token, before the waiters behind. On a semaphore all permits of the earlier
    /// clients become free. A [claim](crate::documents::DocumentLocks::claim) takes only free documents.
    ///
    /// **Two clients that run at the same time must not have the same owner id: the one built later takes the locks of
    /// the earlier one away whenever it acquires them**, which that finds out by
    /// [`LostReason::Adopted`](crate::LostReason::Adopted), later than the other has the lock. So derive the id from
    /// something unique to the instance: see [Adoption](crate::guide::locks#adoption).
    ///
    /// The server's clock at the time each client was built decides which one is later; the server's log does, if the
    /// clock is behind it after a fail-over. A standalone and a sharded cluster show no log: if their clock was set
    /// back by more than the time in between, the client waits for the lock like any other.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use watchlock::{LostReason, operate::HoldEnd, testing::InMemory};
    ///
    /// let memory = InMemory::new();
    /// let before = memory.builder().owner_id("billing-3").build().await?;
    /// let held = before.mutex("invoice-42").acquire().await?;
    ///
    /// // After a restart it does not wait for its own old lease.
    /// let after = memory.builder().owner_id("billing-3").history(5).build().await?;
    /// let again = after.mutex("invoice-42").acquire().await?;
    /// assert!(again.token() > held.token());
    /// assert_eq!(held.lost().await, LostReason::Adopted);
    /// again.release().await?;
    /// let lock = after.inspect("invoice-42").await?.expect("there is a trace of it");
    /// assert_eq!(lock.past[0].how, HoldEnd::Released);
    /// # Ok(()) }
    /// ```
    pub fn owner_id(mut self, id: impl Into<String>) -> Self {
        self.config.owner_id = Some(id.into());
        self
    }

    /// Reports every lock that is held for longer than `limit`, as [`Acquire::warn_after`](crate::Acquire::warn_after)
    /// does for one, unless the acquire set another; from 10 ms to 366 days, none by default, and never for
    /// leaderships.
    pub fn warn_after(mut self, limit: Duration) -> Self {
        self.config.limits.report = Some(limit);
        self
    }

    /// Loses every lock that is held for that long, as [`Acquire::lose_after`](crate::Acquire::lose_after) does for
    /// one, with the bounds and exceptions of [`warn_after`](Self::warn_after).
    #[doc(alias = "lockAtMostFor")]
    pub fn lose_after(mut self, limit: Duration) -> Self {
        self.config.limits.lose = Some(limit);
        self
    }

    /// Keeps the last `ends` holds of each lock in its document, for people to read: their holders, for how long, and
    /// how they ended. 0 by default, at most 20.
    ///
    /// [`LockInfo::past`](crate::operate::LockInfo::past) shows them. The client that removes the hold from the
    /// document makes the record, in the same write: the holder, or another client that finds the lease over or breaks
    /// the lock. So give all clients of a lock the same history; a client without one leaves the records alone, and
    /// makes none. They are purged with the document.
    pub fn history(mut self, ends: u32) -> Self {
        self.config.history = usize::try_from(ends).unwrap_or(usize::MAX);
        self
    }

    /// Gives the locks with these names metrics of their own: their numbers have the label `lock` with the name; 100
    /// names at most, none by default. Names given by an earlier call are replaced.
    ///
    /// Each lock costs the recorder some hundred time series, so choose those that deserve a row on a dashboard, by
    /// names that don't change. All others are counted together, without the label. A
    /// [document](crate::documents::DocumentLocks) has the name that [`View::name`](crate::View::name) returns.
    /// [Observability](crate::observability#metrics) lists the metrics.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics_for(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().map(|name| name.into().into()).collect();
        names.sort_unstable();
        names.dedup();
        self.config.metered = names.into();
        self
    }

    /// Checks the settings, and asks the server once for its type and for the kind of the collection (as far as the
    /// privileges `listCollections` and `listIndexes` show that). It writes nothing, and is cancel safe: the collection
    /// and its index are made before the first lock is acquired.
    ///
    /// # Errors
    ///
    /// [`BuildError::Invalid`] names the setting, its value and its bound; nothing was sent then.
    /// [`BuildError::Server`] if no primary answers within the driver's server selection timeout (30 s unless set in
    /// the connection string). [`BuildError::Unsuitable`] if the collection can't keep locks.
    /// [`BuildError::NoChangeStream`] with [`WakeSource::ChangeStream`] on a standalone.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use watchlock::LockClient;
    ///
    /// let client = mongodb::Client::with_uri_str("mongodb://localhost:27017/?replicaSet=rs0").await?;
    /// let builder = LockClient::builder(client.database("app")).lease(Duration::from_secs(20)).label("billing");
    /// let locks = builder.clone().build().await?;
    /// // Or before the database is there: the first acquire waits for it.
    /// let locks = builder.build_lazily()?;
    /// # Ok(()) }
    /// ```
    pub fn build(self) -> W::Call<impl Future<Output = Result<LockClient<W>, BuildError>>> {
        W::call(self.built())
    }

    /// Builds the client without asking the server, for a service that starts before its database.
    ///
    /// The settings are checked now; an [`owner_id`](Self::owner_id) is invalid here, as it takes the server's clock.
    /// The server is asked what [`build`](Self::build) asks before the first command of the client; until that
    /// succeeds, each call that needs the server has its error, and it is asked again after a growing pause of a second
    /// at most. Locks in documents ask for nothing beforehand. An acquire without a timeout waits for the server, as in
    /// any outage; it fails with [`AcquireError::Server`](crate::errors::AcquireError::Server) if the collection can't
    /// keep locks.
    pub fn build_lazily(self) -> Result<LockClient<W>, BuildError> {
        let (config, store) = self.checked()?;
        if store.is_remote() && config.has_owner_id() {
            let why = "an owner id needs the server when the client is built; build it with `build()`";
            return Err(InvalidInput::new(why).into());
        }
        let mode = WakeMode::of(config.wake_source);
        Ok(LockClient::new(Session::new(config, store, None, mode)).in_world())
    }

    /// Checks all settings, before anything is sent.
    fn checked(self) -> Result<(Config, Store), BuildError> {
        let config = self.config.validate()?;
        check_collection(&self.collection)?;
        let store = match &self.place {
            Home::Database(database) => {
                check_database(database.name())?;
                Store::Mongo(MongoStore::unseen(database, &self.collection, &config))
            }
            Home::Memory(memory) => Store::Memory(Arc::new(memory.of_another_client())),
        };
        Ok((config, store))
    }

    pub(super) async fn built(self) -> Result<LockClient<W>, BuildError> {
        let (config, store) = self.checked()?;
        let (mut first, mut mode) = (None, WakeMode::of(config.wake_source));
        if let Store::Mongo(store) = &store {
            let see = || {
                let store = store.clone();
                async move { store.see().await }
            };
            let seen = read_beside(&Handle::current(), (Cost::Connecting, Duration::ZERO), see).await;
            let seen = seen.inspect_err(|error| telemetry::operation_failed("connect", None, error))?;
            if let Some(problem) = seen.problem {
                return Err(problem);
            }
            if seen.standalone && config.wake_source == WakeSource::Auto {
                mode = WakeMode::Polling(PollingReason::Standalone);
            }
            first = Some(seen.exchange);
        }
        let session = Session::new(config, store, first.as_ref(), mode);
        if first.is_some() {
            // The driver's own tasks usually run there.
            session.live_on(Handle::current());
        }
        Ok(LockClient::new(session).in_world())
    }
}
