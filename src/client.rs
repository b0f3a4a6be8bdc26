//! The client: one per process, from which all locks are made.

use std::{fmt, sync::Arc, time::Duration};

use mongodb::Database;
use tokio::sync::watch;

use crate::{
    error::{BuildError, InvalidInput, OperateError, ServerError},
    inspect::LockInfo,
    mutex::Mutex,
    protocol::Owner,
    session::Session,
    store::{MemoryStore, MongoStore, Store, Topology},
    wake_mode::{PollingReason, WakeMode, WakeSource},
};

/// The longest name of a lock, in bytes. Much longer ones would kill every change stream on the collection.
const NAME_MOST: usize = 1_024;

/// The longest label or reason, in bytes; they are stored with every entry.
const TEXT_MOST: usize = 1_024;

const DEFAULT_COLLECTION: &str = "distributed_locks";

/// The shortest lease: below it, a pause of the scheduler or one lost packet costs the lock.
const LEASE_LEAST: Duration = Duration::from_millis(500);

/// The longest duration of any setting; longer ones are slips, and sums of them would leave what a date can hold.
const DURATION_MOST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The settings of a client, validated.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) lease: Duration,
    pub(crate) renewal_interval: Duration,
    pub(crate) claim_lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) skew_margin: Duration,
    /// The shortest and the longest pause between two tries.
    pub(crate) poll_interval: (Duration, Duration),
    pub(crate) wake_source: WakeSource,
    host: String,
    label: Option<String>,
}

impl Config {
    pub(crate) fn lease_millis(&self) -> i64 {
        millis(self.lease)
    }

    pub(crate) fn claim_millis(&self) -> i64 {
        millis(self.claim_lease)
    }

    pub(crate) fn retention_millis(&self) -> i64 {
        millis(self.retention)
    }

    pub(crate) fn owner(&self, reason: Option<String>) -> Owner {
        let pid = i64::from(std::process::id());
        Owner {
            host: self.host.clone(),
            pid,
            label: self.label.clone(),
            reason,
        }
    }
}

fn millis(duration: Duration) -> i64 {
    // Bounded by DURATION_MOST.
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Makes a [`LockClient`]. Made by [`LockClient::builder`].
///
/// Every setting is checked by [`build`](Self::build), before anything is sent.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct LockClientBuilder {
    database: Database,
    collection: String,
    settings: Settings,
}

/// What the builder has been told; what it has not been told follows from the lease.
#[derive(Clone, Debug, Default)]
struct Settings {
    lease: Option<Duration>,
    renewal_interval: Option<Duration>,
    claim_lease: Option<Duration>,
    retention: Option<Duration>,
    skew_margin: Option<Duration>,
    poll_interval: Option<(Duration, Duration)>,
    wake_source: WakeSource,
    label: Option<String>,
}

impl LockClientBuilder {
    /// The collection of the locks' documents; `distributed_locks` by default. Leave it to watchlock alone.
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.collection = name.into();
        self
    }

    /// How long a lock outlives the last sign of life of its holder; 30 s by default, at least 500 ms.
    ///
    /// It is what the crash of a holder costs, and how long an outage of the server a holder survives.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = Some(lease);
        self
    }

    /// How often held locks are renewed; a third of the lease by default. It must be shorter than the lease less the
    /// skew margin.
    pub fn renewal_interval(mut self, interval: Duration) -> Self {
        self.settings.renewal_interval = Some(interval);
        self
    }

    /// The first lease of a waiter that was handed the lock, until its first renewal shortly after; 5 s by default, or
    /// the lease where that is shorter. It is what a waiter costs that died unnoticed in the queue.
    pub fn claim_lease(mut self, lease: Duration) -> Self {
        self.settings.claim_lease = Some(lease);
        self
    }

    /// How long the document of an idle lock is kept; one day by default. It only bounds the size of the collection:
    /// fencing tokens rise whether the document is kept or not.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = Some(retention);
        self
    }

    /// How far the clocks of the replica set's members may be apart; a tenth of the lease by default, 1 s at most.
    ///
    /// A holder gives up this much before the server would give the lock away, so that a new primary whose clock is
    /// ahead of the old one's does no harm.
    pub fn skew_margin(mut self, margin: Duration) -> Self {
        self.settings.skew_margin = Some(margin);
        self
    }

    /// The shortest and the longest pause between two tries of a waiter while it polls; 10 ms and 500 ms by default.
    pub fn poll_interval(mut self, least: Duration, most: Duration) -> Self {
        self.settings.poll_interval = Some((least, most));
        self
    }

    /// Where waiters learn of a release; the change stream where there is one, by default.
    pub fn wake_source(mut self, source: WakeSource) -> Self {
        self.settings.wake_source = source;
        self
    }

    /// A name for this process that people recognize: it stands in the locks' documents beside host and process id.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = Some(label.into());
        self
    }

    /// Checks the settings and asks the server once what it is.
    ///
    /// Nothing is written. The collection and its index are made when the first lock is acquired.
    ///
    /// # Errors
    ///
    /// [`BuildError::Invalid`] names the setting, its value and its bound; nothing was sent then.
    /// [`BuildError::Server`] when no primary answers within the driver's server selection timeout (30 s unless set
    /// in the connection string). [`BuildError::NoChangeStream`] with [`WakeSource::ChangeStream`] on a standalone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left behind when the future is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use watchlock::LockClient;
    ///
    /// let client = mongodb::Client::with_uri_str("mongodb://localhost:27017/?replicaSet=rs0").await?;
    /// let locks = LockClient::builder(client.database("app"))
    ///     .lease(Duration::from_secs(20))
    ///     .label("billing")
    ///     .build()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub async fn build(self) -> Result<LockClient, BuildError> {
        let config = self.settings.validate()?;
        check_collection(&self.collection)?;
        let (database, collection) = (self.database, self.collection);
        // Run to its end by itself, as a driver future that is dropped half-way stalls the pool.
        let connecting = tokio::spawn(async move { MongoStore::connect(&database, &collection).await });
        let (store, exchange) = match connecting.await {
            Ok(connected) => connected.map_err(ServerError::from)?,
            Err(stopped) => return Err(ServerError::from(crate::store::StoreError::stopped(stopped)).into()),
        };
        let standalone = store.topology() == Topology::Standalone;
        let mode = match config.wake_source {
            WakeSource::Polling => WakeMode::Polling(PollingReason::Configured),
            WakeSource::ChangeStream if standalone => return Err(BuildError::NoChangeStream),
            _ if standalone => WakeMode::Polling(PollingReason::Standalone),
            _ => WakeMode::ChangeStream,
        };
        Ok(LockClient {
            session: Session::new(config, Store::Mongo(store), Some(&exchange), mode),
        })
    }
}

impl Settings {
    fn validate(self) -> Result<Config, InvalidInput> {
        let lease = self.lease.unwrap_or(Duration::from_secs(30));
        let skew_margin = self.skew_margin.unwrap_or((lease / 10).min(Duration::from_secs(1)));
        let claim_lease = self.claim_lease.unwrap_or(lease.min(Duration::from_secs(5)));
        let renewal_interval = self.renewal_interval.unwrap_or(lease / 3);
        let retention = self.retention.unwrap_or(Duration::from_secs(24 * 3600));
        let (poll_least, poll_most) = self
            .poll_interval
            .unwrap_or((Duration::from_millis(10), Duration::from_millis(500)));

        at_least("lease", lease, LEASE_LEAST)?;
        at_least("renewal interval", renewal_interval, Duration::from_millis(10))?;
        at_least("poll interval", poll_least, Duration::from_millis(1))?;
        let all = [
            ("lease", lease),
            ("skew margin", skew_margin),
            ("claim lease", claim_lease),
            ("renewal interval", renewal_interval),
            ("retention", retention),
            ("longest poll interval", poll_most),
        ];
        for (name, value) in all {
            if value > DURATION_MOST {
                return Err(InvalidInput::new(format!(
                    "the {name} of {value:?} is longer than {DURATION_MOST:?}"
                )));
            }
        }
        below(
            "renewal interval",
            renewal_interval,
            "lease less the skew margin",
            lease.saturating_sub(skew_margin),
        )?;
        below("skew margin", skew_margin, "half of the claim lease", claim_lease / 2)?;
        if claim_lease > lease {
            return Err(InvalidInput::new(format!(
                "the claim lease of {claim_lease:?} is longer than the lease of {lease:?}"
            )));
        }
        if poll_least > poll_most {
            return Err(InvalidInput::new(format!(
                "the shortest poll interval of {poll_least:?} is longer than the longest of {poll_most:?}"
            )));
        }
        if let Some(label) = &self.label {
            check_text("label", label)?;
        }
        Ok(Config {
            lease,
            renewal_interval,
            claim_lease,
            retention,
            skew_margin,
            poll_interval: (poll_least, poll_most),
            wake_source: self.wake_source,
            host: host(),
            label: self.label,
        })
    }
}

fn at_least(name: &str, value: Duration, least: Duration) -> Result<(), InvalidInput> {
    if value < least {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is shorter than {least:?}"
        )));
    }
    Ok(())
}

fn below(name: &str, value: Duration, bound_name: &str, bound: Duration) -> Result<(), InvalidInput> {
    if value >= bound {
        return Err(InvalidInput::new(format!(
            "the {name} of {value:?} is not shorter than the {bound_name}, {bound:?}"
        )));
    }
    Ok(())
}

fn check_collection(name: &str) -> Result<(), InvalidInput> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > 200 {
        "is longer than 200 bytes"
    } else if name.contains(['$', '\0']) {
        "contains `$` or NUL"
    } else if name.starts_with("system.") || name.starts_with('.') || name.ends_with('.') {
        "starts with `system.`, or starts or ends with a dot"
    } else {
        return Ok(());
    };
    Err(InvalidInput::new(format!(
        "the collection name `{}` {problem}",
        name.escape_debug()
    )))
}

/// Names are 1 to 1,024 bytes of any text.
pub(crate) fn check_name(name: &str) -> Result<(), InvalidInput> {
    if name.is_empty() {
        return Err(InvalidInput::new(
            "the name of a lock is empty; it must have 1 to 1024 bytes",
        ));
    }
    if name.len() > NAME_MOST {
        let length = name.len();
        return Err(InvalidInput::new(format!(
            "the name of a lock has {length} bytes; it must have 1 to {NAME_MOST}"
        )));
    }
    Ok(())
}

pub(crate) fn check_text(what: &str, text: &str) -> Result<(), InvalidInput> {
    if text.len() > TEXT_MOST {
        let length = text.len();
        return Err(InvalidInput::new(format!(
            "the {what} has {length} bytes; it must have at most {TEXT_MOST}"
        )));
    }
    Ok(())
}

/// A timeout may be anything from nothing to longer than anybody lives; the clock must be able to add it.
pub(crate) fn check_timeout(timeout: Duration) -> Result<(), InvalidInput> {
    if timeout > DURATION_MOST {
        return Err(InvalidInput::new(format!(
            "the timeout of {timeout:?} is longer than {DURATION_MOST:?}"
        )));
    }
    Ok(())
}

/// What this machine calls itself: only shown to people.
fn host() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok());
    name.unwrap_or_default().trim().chars().take(256).collect()
}

/// Makes locks that all processes share which use the same collection.
///
/// One per process is enough, and best: it owns one session, with one change stream and one heartbeat. Cloning is
/// cheap, and clones are the same session.
///
/// # Guarantees
///
/// Dropping the last clone and the last handle ends the session's tasks. Handles keep the session alive.
#[derive(Clone)]
pub struct LockClient {
    session: Arc<Session>,
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the store: the driver's client shows the user's connection options.
        f.debug_struct("LockClient")
            .field("config", &self.session.config)
            .finish_non_exhaustive()
    }
}

impl LockClient {
    /// Begins to make a client whose locks live in a collection of `database`.
    ///
    /// Write concern, read concern and read preference are the library's own (majority, majority, primary), whatever
    /// those of `database` are.
    pub fn builder(database: Database) -> LockClientBuilder {
        LockClientBuilder {
            database,
            collection: DEFAULT_COLLECTION.to_owned(),
            settings: Settings::default(),
        }
    }

    /// A client whose locks live in the memory of this process: the same semantics, by the same transitions, without
    /// a server. For tests of your own code; it runs on tokio's clock, which tests can pause.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// assert!(locks.mutex("invoice-42").try_acquire().await?.is_none());
    /// # handle.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn in_memory() -> Self {
        // The defaults are valid.
        let Ok(config) = Settings::default().validate() else {
            unreachable_defaults()
        };
        let store = Store::Memory(MemoryStore::new());
        Self {
            session: Session::new(config, store, None, WakeMode::ChangeStream),
        }
    }

    #[cfg(test)]
    pub(crate) fn config(&self) -> &Config {
        &self.session.config
    }

    /// A mutex: one holder at a time among all processes.
    ///
    /// Any text of 1 to 1,024 bytes is a name; others are refused when it is acquired. Making a mutex sends nothing.
    pub fn mutex(&self, name: impl Into<String>) -> Mutex {
        Mutex::new(self.session.clone(), name.into())
    }

    /// How waiters are woken at present.
    ///
    /// Until somebody waits or holds for long no stream is open, and this is what to expect.
    pub fn wake_mode(&self) -> WakeMode {
        *self.session.mode().borrow()
    }

    /// Waits until the wake mode is another than `present`, and returns it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no change is lost, as the mode is compared and not counted.
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
    pub async fn wake_mode_changed(&self, present: WakeMode) -> WakeMode {
        let mut mode: watch::Receiver<WakeMode> = self.session.mode();
        match mode.wait_for(|mode| *mode != present).await {
            Ok(mode) => *mode,
            // The sender lives in the session, which `self` keeps alive.
            Err(_) => std::future::pending().await,
        }
    }

    /// Who holds the lock `name` and who waits for it, as of now; `None` when there is no trace of it.
    ///
    /// # Errors
    ///
    /// When the name is out of its bounds, the server can't be reached, or the document is not a lock's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("nightly-job").acquire().reason("night of the 3rd").await?;
    /// let lock = locks.inspect("nightly-job").await?.expect("it is held");
    /// assert_eq!(lock.holders[0].reason.as_deref(), Some("night of the 3rd"));
    /// assert_eq!(lock.holders[0].token, handle.token());
    /// # handle.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        check_name(name)?;
        Ok(self
            .session
            .inspect(name)
            .await?
            .map(|state| LockInfo::new(name, &state)))
    }

    /// Takes the lock `name` away from whoever holds it, and hands it to the next in the queue.
    ///
    /// Its holders see [`LostReason::Broken`](crate::LostReason::Broken) at once. Returns how the lock stands
    /// afterwards; `None` when there is no trace of it.
    ///
    /// # Errors
    ///
    /// When the name is out of its bounds, or the server refuses or can't be reached for the time of a lease.
    ///
    /// # Cancel safety
    ///
    /// Whether the lock is broken is open when the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("stuck").acquire().await?;
    /// locks.break_lock("stuck").await?;
    /// assert_eq!(handle.lost().await, watchlock::LostReason::Broken);
    /// # Ok(()) }
    /// ```
    pub async fn break_lock(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        check_name(name)?;
        Ok(self.session.evict(name).await?.map(|state| LockInfo::new(name, &state)))
    }

    /// Ends the client: acquires fail with [`AcquireError::Closed`](crate::AcquireError::Closed), what is held is
    /// released, what waits gives up its place; returns when the server knows, or after the time of a lease.
    ///
    /// Call it before the runtime ends, as what is dropped with the runtime can't be released any more: others would
    /// wait for its lease to run out.
    ///
    /// # Cancel safety
    ///
    /// The releases go on in the background when the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// locks.shutdown().await;
    /// assert_eq!(handle.lost_reason(), Some(watchlock::LostReason::Released));
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self) {
        self.session.shut_down().await;
    }
}

#[cold]
fn unreachable_defaults() -> ! {
    unreachable!("the default settings fit each other")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::default()
    }

    #[test]
    fn the_defaults_follow_from_the_lease() {
        let config = settings().validate().unwrap();
        assert_eq!(config.renewal_interval, Duration::from_secs(10));
        assert_eq!(config.skew_margin, Duration::from_secs(1));
        let short = Settings {
            lease: Some(LEASE_LEAST),
            ..settings()
        }
        .validate()
        .unwrap();
        assert_eq!(short.skew_margin, Duration::from_millis(50));
        assert_eq!(short.claim_lease, LEASE_LEAST);
    }

    #[test]
    fn bad_settings_are_refused_with_value_and_bound() {
        let second = Duration::from_secs(1);
        let cases = [
            (
                Settings {
                    lease: Some(Duration::ZERO),
                    ..settings()
                },
                ["0ns", "500ms"],
            ),
            (
                Settings {
                    lease: Some(Duration::MAX),
                    ..settings()
                },
                ["lease of 184", "31622400s"],
            ),
            (
                Settings {
                    lease: Some(3 * second),
                    renewal_interval: Some(3 * second),
                    ..settings()
                },
                ["renewal interval of 3s", "2.7s"],
            ),
            (
                Settings {
                    renewal_interval: Some(Duration::ZERO),
                    ..settings()
                },
                ["0ns", "10ms"],
            ),
            (
                Settings {
                    claim_lease: Some(31 * second),
                    ..settings()
                },
                ["31s", "30s"],
            ),
            (
                Settings {
                    claim_lease: Some(2 * second),
                    ..settings()
                },
                ["skew margin of 1s", "claim lease, 1s"],
            ),
            (
                Settings {
                    skew_margin: Some(40 * second),
                    ..settings()
                },
                ["10s", "0ns"],
            ),
            (
                Settings {
                    retention: Some(Duration::MAX),
                    ..settings()
                },
                ["retention", "31622400s"],
            ),
            (
                Settings {
                    poll_interval: Some((second, Duration::ZERO)),
                    ..settings()
                },
                ["1s", "0ns"],
            ),
            (
                Settings {
                    poll_interval: Some((Duration::ZERO, second)),
                    ..settings()
                },
                ["0ns", "1ms"],
            ),
            (
                Settings {
                    label: Some("x".repeat(1025)),
                    ..settings()
                },
                ["1025", "1024"],
            ),
        ];
        for (settings, words) in cases {
            let message = settings.validate().unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }

    #[test]
    fn names_are_bounded_in_bytes() {
        check_name("x").unwrap();
        check_name(&"é".repeat(512)).unwrap();
        assert!(check_name("").unwrap_err().to_string().contains("1 to 1024"));
        assert!(check_name(&"é".repeat(513)).unwrap_err().to_string().contains("1026"));
        for name in ["", "a$b", "a\0", "system.x", ".a", "a."] {
            check_collection(name).unwrap_err();
        }
        check_collection("a.b").unwrap();
    }
}
