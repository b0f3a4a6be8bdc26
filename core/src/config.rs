//! The settings of a client, and the bounds of every value that a user can choose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use mongodb::{bson::Timestamp, options::ReadPreference};

use crate::{
    backoff::LONGEST_PAUSE,
    input::{
        InvalidInput, at_least, at_most, below, check_count, check_duration, check_filled, check_name, check_text,
        setting,
    },
    protocol::{HISTORY_MOST, Identity, Owner, ServerTime},
    wake_source::{HoldWatch, WakeSource},
};

/// Shortest lease: with less, a pause of the scheduler or one lost packet costs the lock.
pub(crate) const LEASE_LEAST: Duration = Duration::from_millis(500);

/// Shortest retention of free locks, and longest claim lease: the server must not purge a document in which a waiter
/// has just been let in.
const RETENTION_LEAST: Duration = Duration::from_secs(60);

/// Shortest skew margin: a BSON date has milliseconds, and so has a lease by the server's count.
const SKEW_LEAST: Duration = Duration::from_millis(5);

/// The fraction of a time by which two clocks may have drifted apart at its end: 0.1 %. NTP slews a disciplined clock
/// by at most half of that, and an undisciplined quartz is off by a tenth of it.
const DRIFT: u32 = 1_000;

/// Minimum limit of a hold: with less, its time could be over before its owner learns of the grant.
const LIMIT_LEAST: Duration = Duration::from_millis(10);

/// Maximum number of a client's operations at once: no driver's pool that was seen is larger.
const OPERATIONS_MOST: usize = 1_000;

/// Maximum number of locks of a client with metrics of their own: each is some hundred time series, most of them
/// buckets, and so many locks are what a Prometheus server takes from one process without notice.
const METERED_MOST: usize = 100;

/// A lock's name as a label of its metrics. There are few of these, as users name them one by one.
pub type LockLabel = Arc<str>;

/// The limits of the time for which a lock is held; `None`: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The time after the grant from which the hold is reported as held too long.
    pub report: Option<Duration>,
    /// The time after the grant at which the hold is lost.
    pub lose: Option<Duration>,
}

/// The settings of a client. Those that are `None` follow from the lease.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    pub renewal_interval: Option<Duration>,
    pub claim_lease: Option<Duration>,
    pub retention: Duration,
    pub skew_margin: Option<Duration>,
    /// Shortest and longest pause between two requests or reads of whatever polls.
    pub poll_interval: (Duration, Duration),
    /// Shortest pause of a waiter where the lock changes hands faster than that.
    pub poll_quickest: Duration,
    pub wake_source: WakeSource,
    pub hold_watch: HoldWatch,
    /// Number of operations of each session that may be on their way at once.
    pub max_operations: usize,
    /// Number of hand-overs before the turn of the first waiter without a stream.
    pub near: u64,
    /// The members of the replica set that serve the change streams.
    pub stream_read_preference: ReadPreference,
    /// Whether holds are handed from task to task without the server.
    pub hands_on: bool,
    /// The time for which a lock stays with the client after its last release.
    pub keep_idle: Duration,
    /// The names of the locks that have metrics of their own.
    pub metered: Arc<[LockLabel]>,
    pub limits: Limits,
    /// Number of ends of holds that the documents keep.
    pub history: usize,
    /// The name of this machine, and the number of this process: by both, people know the client.
    pub host: String,
    pub pid: u32,
    pub label: Option<String>,
    pub owner_id: Option<String>,
    /// Set once the client has begun.
    pub identity: Option<Identity>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            renewal_interval: None,
            claim_lease: None,
            retention: Duration::from_secs(24 * 3600),
            skew_margin: None,
            poll_interval: (Duration::from_millis(10), Duration::from_millis(500)),
            // About the time of a command: asking more often would mostly show the same twice.
            poll_quickest: Duration::from_millis(1),
            wake_source: WakeSource::default(),
            hold_watch: HoldWatch::default(),
            // They leave room in the driver's pool, which has ten connections by default. More get hardly more done, as
            // locks share commands.
            max_operations: 6,
            // A small fleet is woken at once, also in a slow queue, and a few of the waiters ahead may leave together.
            near: 4,
            stream_read_preference: ReadPreference::Primary,
            hands_on: true,
            keep_idle: Duration::ZERO,
            metered: Arc::new([]),
            limits: Limits::default(),
            history: 0,
            host: String::new(),
            pid: 0,
            label: None,
            owner_id: None,
            identity: None,
        }
    }
}

impl Limits {
    /// Refuses limits that are out of bounds.
    pub fn check(self) -> Result<(), InvalidInput> {
        for (name, limit) in [("warning limit", self.report), ("limit of the hold", self.lose)] {
            if let Some(limit) = limit {
                at_least(name, limit, LIMIT_LEAST)?;
                check_duration(name, limit)?;
            }
        }
        Ok(())
    }

    /// Returns these limits, with those of the client where one is missing.
    pub fn or(self, client: Self) -> Self {
        Self {
            report: self.report.or(client.report),
            lose: self.lose.or(client.lose),
        }
    }
}

impl Config {
    pub fn renewal_interval(&self) -> Duration {
        self.renewal_interval.unwrap_or(self.lease / 5)
    }

    pub fn claim_lease(&self) -> Duration {
        self.claim_lease.unwrap_or(self.lease.min(Duration::from_secs(5)))
    }

    pub fn skew_margin(&self) -> Duration {
        self.skew_margin
            .unwrap_or((self.lease / 10).min(Duration::from_secs(1)))
    }

    /// Sets the shortest and the longest pause of whatever polls. No pause is shorter then.
    pub fn set_poll_interval(&mut self, least: Duration, most: Duration) {
        (self.poll_interval, self.poll_quickest) = ((least, most), least);
    }

    /// Returns the settings, or an error for the first one out of bounds.
    pub fn validate(self) -> Result<Self, InvalidInput> {
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), InvalidInput> {
        let (lease, retention) = (self.lease, self.retention);
        let (renewal_interval, claim_lease) = (self.renewal_interval(), self.claim_lease());
        let skew_margin = self.skew_margin();
        let (poll_least, poll_most) = self.poll_interval;
        at_least("lease", lease, LEASE_LEAST)?;
        at_least("renewal interval", renewal_interval, Duration::from_millis(10))?;
        at_least("poll interval", poll_least, Duration::from_millis(1))?;
        at_least("retention", retention, RETENTION_LEAST)?;
        at_least("skew margin", skew_margin, SKEW_LEAST)?;
        let all = [
            ("lease", lease),
            ("skew margin", skew_margin),
            ("claim lease", claim_lease),
            ("renewal interval", renewal_interval),
            ("retention", retention),
            ("longest poll interval", poll_most),
        ];
        for (name, value) in all {
            check_duration(name, value)?;
        }
        below(
            "renewal interval",
            renewal_interval,
            "lease less the skew margin and the clock drift",
            self.usable(lease),
        )?;
        below("skew margin", skew_margin, "half of the claim lease", claim_lease / 2)?;
        at_most("claim lease", claim_lease, "lease", lease)?;
        at_most("claim lease", claim_lease, "longest accepted value", RETENTION_LEAST)?;
        at_most("shortest poll interval", poll_least, "longest", poll_most)?;
        check_count(
            "client",
            self.max_operations,
            "operations at once at most",
            1..=OPERATIONS_MOST,
        )?;
        self.hold_watch.check()?;
        self.limits.check()?;
        self.check_keep_idle(self.keep_idle)?;
        check_count("history", self.history, "holds", 0..=HISTORY_MOST)?;
        let metered = &self.metered;
        check_count("list of locks with metrics", metered.len(), "names", 0..=METERED_MOST)?;
        metered.iter().try_for_each(|name| check_name(name))?;
        self.label.as_ref().map_or(Ok(()), |label| check_text("label", label))?;
        let owner_id = self.owner_id.as_ref();
        owner_id.map_or(Ok(()), |id| check_filled("owner id", id))
    }

    /// Checks the time for which a lock stays with the client after its last release. The lock then waits to be handed
    /// on to the next task, so a client that does not hand locks on can't keep one.
    pub(crate) fn check_keep_idle(&self, keep: Duration) -> Result<(), InvalidInput> {
        check_duration("time to keep an idle lock", keep)?;
        if !self.hands_on && !keep.is_zero() {
            return Err(InvalidInput::new(format!(
                "keep_idle of {} requires hand_on_locally, which is off",
                setting(keep)
            )));
        }
        Ok(())
    }

    /// Starts the client at this time of the server's clock: from now on it is an incarnation of its owner. All
    /// sessions of a client are the same incarnation.
    ///
    /// `logged`: the time of the last write in the server's log, which no fail-over sets back. Where the clock is
    /// behind that, it is behind the clock of an earlier primary, and says nothing of which incarnation is the later
    /// one; but an earlier one that has entries in any lock has written since it began.
    pub fn begin(&mut self, now: ServerTime, logged: Option<Timestamp>) {
        if self.identity.is_some() {
            return;
        }
        let now = now.0;
        self.identity = self.owner_id.clone().map(|id| Identity {
            id,
            born: match logged.filter(|logged| now < i64::from(logged.time) * 1_000) {
                // After all that began in the second of that write by the clock of then.
                Some(logged) => {
                    let seconds = i64::from(logged.time) + 1;
                    seconds * 1_000_000 + i64::from(logged.increment.min(999_999))
                }
                // Their order distinguishes clients that one process makes within a millisecond.
                None => now
                    .saturating_mul(1_000)
                    .saturating_add(BORN_HERE.fetch_add(1, Ordering::Relaxed) % 1_000),
            },
        });
    }

    /// Whether it is one of several incarnations of an owner.
    pub fn has_owner_id(&self) -> bool {
        self.owner_id.is_some()
    }

    /// Returns how much earlier a holder gives up a duration counted on its own clock: for the skew of the servers'
    /// clocks, and for the drift between theirs and ours.
    pub fn margin(&self, counted: Duration) -> Duration {
        self.skew_margin() + counted / DRIFT
    }

    /// Returns the part of a lease for which its holder may believe it, counted from the write that began it: the
    /// deadline ([`waitlist::deadline`](crate::waitlist::deadline)) of a lease of this length.
    pub fn usable(&self, lease: Duration) -> Duration {
        lease.saturating_sub(self.margin(lease))
    }

    /// Returns the age up to which what was seen of the server is taken for the present.
    pub(crate) fn recent(&self) -> Duration {
        (self.lease / 3).min(10 * LONGEST_PAUSE)
    }

    /// Returns how long a document is kept after a write: while an entry can be live in it, and then for the retention
    /// of a free lock.
    ///
    /// A write can also let in another client's waiter, for a claim lease; none is longer than the shortest retention.
    pub fn keep_millis(&self) -> i64 {
        self.keep_millis_for(Duration::ZERO)
    }

    /// Returns the same after a write of an entry that lives for that long.
    pub fn keep_millis_for(&self, longest: Duration) -> i64 {
        millis(self.lease.max(longest)) + millis(self.retention)
    }

    /// Returns the label of a lock's metrics, if it has metrics of its own.
    pub fn label(&self, name: &str) -> Option<LockLabel> {
        self.metered.iter().find(|label| ***label == *name).cloned()
    }

    /// Whether change streams may be opened.
    pub fn may_stream(&self) -> bool {
        self.wake_source != WakeSource::Polling
    }

    pub fn owner(&self, reason: Option<String>) -> Owner {
        Owner {
            host: self.host.clone(),
            pid: i64::from(self.pid),
            label: self.label.clone(),
            reason,
            value: None,
            proclaimed: 0,
            identity: self.identity.clone(),
        }
    }
}

/// Number of clients with an owner id that this process has made.
static BORN_HERE: AtomicI64 = AtomicI64::new(0);

pub fn millis(duration: Duration) -> i64 {
    // Bounded by the longest duration that input may have.
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::DURATION_MOST;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_defaults_follow_from_the_lease() {
        let config = Config::default();
        assert_eq!(config.renewal_interval(), Duration::from_secs(6));
        assert_eq!(config.skew_margin(), Duration::from_secs(1));
        let short = Config {
            lease: LEASE_LEAST,
            ..Config::default()
        }
        .validate()
        .unwrap();
        assert_eq!(short.skew_margin(), Duration::from_millis(50));
        assert_eq!(short.claim_lease(), LEASE_LEAST);
    }

    /// A restarted process finds a primary whose clock is behind that of the one before.
    #[test]
    fn a_later_incarnation_is_told_by_the_log_where_the_clock_is_behind() {
        let begun = |now: i64, logged: Option<(u32, u32)>| {
            let owned = Config {
                owner_id: Some("worker".to_owned()),
                ..Config::default()
            };
            let mut config = owned.validate().unwrap();
            let logged = logged.map(|(time, increment)| Timestamp { time, increment });
            config.begin(ServerTime(now), logged);
            config.identity.unwrap().born
        };
        // The first acquires a lock in the second in which it begins, and the others too.
        let incarnations = [
            begun(100_900, Some((100, 7))),
            begun(40_000, Some((100, 8))),
            begun(40_200, Some((100, 9))),
            begun(39_000, Some((101, 1))),
            begun(110_000, Some((110, 500))),
            begun(111_000, None),
        ];
        assert!(incarnations.is_sorted_by(|one, other| one < other), "{incarnations:?}");
    }

    #[test]
    fn the_margin_grows_with_what_is_counted() {
        let config = Config::default();
        assert_eq!(config.margin(30 * SECOND), SECOND + Duration::from_millis(30));
        assert_eq!(config.margin(DURATION_MOST), SECOND + DURATION_MOST / 1_000);
        assert_eq!(config.usable(30 * SECOND), 29 * SECOND - Duration::from_millis(30));
    }

    #[test]
    fn settings_out_of_bounds_are_refused_with_value_and_bound() {
        type Case = (fn(&mut Config), [&'static str; 2]);
        const MILLI: Duration = Duration::from_millis(1);
        fn named(names: impl IntoIterator<Item = String>) -> Arc<[LockLabel]> {
            names.into_iter().map(LockLabel::from).collect()
        }
        let cases: &[Case] = &[
            (|it| it.lease = Duration::ZERO, ["0ns", "500ms"]),
            (|it| it.lease = Duration::MAX, ["lease of 184", "31622400s"]),
            (
                |it| (it.lease, it.renewal_interval) = (3 * SECOND, Some(3 * SECOND)),
                ["renewal interval of 3s", "2.697s"],
            ),
            // A renewal at the last moment would come too late for a clock that drifts.
            (
                |it| (it.lease, it.renewal_interval) = (10_000 * SECOND, Some(9_995 * SECOND)),
                ["9995s", "9989s"],
            ),
            (|it| it.renewal_interval = Some(Duration::ZERO), ["0ns", "10ms"]),
            (|it| it.claim_lease = Some(31 * SECOND), ["31s", "30s"]),
            (
                |it| it.claim_lease = Some(2 * SECOND),
                ["skew margin of 1s", "claim lease, 1s"],
            ),
            (|it| it.claim_lease = Some(Duration::ZERO), ["claim lease", "0ns"]),
            (
                |it| (it.lease, it.claim_lease) = (90 * SECOND, Some(61 * SECOND)),
                ["61s", "60s"],
            ),
            (|it| it.skew_margin = Some(40 * SECOND), ["6s", "0ns"]),
            (|it| it.skew_margin = Some(Duration::ZERO), ["0ns", "5ms"]),
            (|it| it.retention = 59 * SECOND, ["59s", "60s"]),
            (|it| it.retention = Duration::MAX, ["retention", "31622400s"]),
            (|it| it.poll_interval = (SECOND, Duration::ZERO), ["1s", "0ns"]),
            (|it| it.poll_interval = (Duration::ZERO, SECOND), ["0ns", "1ms"]),
            (
                |it| it.hold_watch = HoldWatch::Budget { millicores: 0 },
                ["0 thousandths", "1 to 64000"],
            ),
            (
                |it| it.hold_watch = HoldWatch::Budget { millicores: 64_001 },
                ["64001 thousandths", "1 to 64000"],
            ),
            (|it| it.hold_watch = HoldWatch::Reads(9 * MILLI), ["9ms", "10ms"]),
            (|it| it.hold_watch = HoldWatch::Reads(61 * SECOND), ["61s", "60s"]),
            (|it| it.max_operations = 0, ["has 0 operations at once", "1 to 1000"]),
            (
                |it| it.max_operations = 1_001,
                ["has 1001 operations at once", "1 to 1000"],
            ),
            (|it| it.history = 21, ["history has 21", "at most 20"]),
            (
                |it| it.limits.report = Some(9 * MILLI),
                ["warning limit of 9ms", "10ms"],
            ),
            (
                |it| it.keep_idle = Duration::MAX,
                ["keep an idle lock of 184", "31622400s"],
            ),
            (
                |it| (it.keep_idle, it.hands_on) = (SECOND, false),
                ["keep_idle of 1s", "hand_on_locally, which is off"],
            ),
            (|it| it.label = Some("x".repeat(1025)), ["1025", "1024"]),
            (
                |it| it.owner_id = Some(String::new()),
                ["owner id is empty", "1 to 1024"],
            ),
            (|it| it.owner_id = Some("x".repeat(1025)), ["owner id has 1025", "1024"]),
            (
                |it| it.metered = named((0..101).map(|number| format!("lock-{number}"))),
                ["locks with metrics has 101 names", "at most 100"],
            ),
            (
                |it| it.metered = named(["nightly".to_owned(), "n".repeat(1025)]),
                ["name of a lock has 1025 bytes", "1 to 1024"],
            ),
        ];
        for (change, words) in cases {
            let mut settings = Config::default();
            change(&mut settings);
            let message = settings.validate().unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
