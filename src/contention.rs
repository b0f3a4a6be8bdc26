//! The contention that kept an acquire from the lock.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use crate::{
    inspect::HolderInfo,
    protocol::{ServerTime, State},
    truncated_debug::shown,
};

/// Limits the holders that a message names; a readers-writer lock can have hundreds.
const NAMED: usize = 3;

/// The holders and waiters that kept an acquire from the lock. In
/// [`AcquireError::Held`](crate::errors::AcquireError::Held),
/// [`AcquireError::Timeout`](crate::errors::AcquireError::Timeout) and
/// [`AcquireError::Unanswered`](crate::errors::AcquireError::Unanswered).
///
/// A try has it from the answer that refused it. For a waiter it is the server's last report while it waited, which can
/// be as old as half of the lease, as a waiter seldom sends a request while a change stream wakes it:
/// [`age`](Self::age) has its age.
///
/// Its `Display` is a sentence for people, without the name of the lock: ``held by billing (host-a, process 4711) for
/// 12s, because of "monthly run"; 2 waiters ahead of us``. The time of the hold is counted up to the error, as if it
/// went on since the report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Contention {
    /// The holders of the lock or of its permits, including holders that have released it while it is [kept
    /// taken](crate::Acquire::at_least_for). Empty if there were only waiters ahead of us.
    pub holders: Vec<HolderInfo>,
    /// The number of waiters that would have been served before us: 0 means that we were next. It counts the clients in
    /// the server's queue and, as a client has but one entry there, the tasks of this client that wait.
    pub waiting_before: usize,
    /// Whether the server's queue was full, so that this client was not in it: one that finds it full asks every 2.5
    /// seconds until there is room. [`waiting_before`](Self::waiting_before) counts the waiters that certainly come first.
    pub queue_full: bool,
    /// Whether this client itself was among the holders. A lock is re-entrant only on request: see
    /// [`Acquire::reentrant`](crate::Acquire::reentrant).
    pub held_here: bool,
    /// The time of the report, by the server's clock.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub as_of: SystemTime,
    /// The age of the report at the time of the error.
    #[cfg_attr(feature = "serde", serde(rename = "age_ms", with = "crate::rfc3339::millis"))]
    pub age: Duration,
}

impl Contention {
    /// Returns the contention that the server reported at that time, so long ago; `ours` finds the entries of this
    /// client.
    pub(crate) fn new(
        state: &State,
        as_of: ServerTime,
        age: Duration,
        waiting_before: usize,
        ours: impl Fn(&str) -> bool,
    ) -> Self {
        let holders = &state.holders;
        Self {
            holders: holders.iter().map(|holder| HolderInfo::new(state, holder)).collect(),
            waiting_before,
            queue_full: false,
            held_here: holders.iter().any(|holder| ours(&holder.id) && !holder.is_kept()),
            as_of: as_of.into(),
            age,
        }
    }

    /// Returns the contention with tasks of this client that already wait, if nothing else is known.
    pub(crate) fn behind(waiting_before: usize) -> Self {
        Self {
            holders: Vec::new(),
            waiting_before,
            queue_full: false,
            held_here: false,
            as_of: SystemTime::now(),
            age: Duration::ZERO,
        }
    }

    fn holder(&self, holder: &HolderInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", holder.owner)?;
        // The report may be old, and tells of a holder that was granted the lock by the very write that it is of.
        let now = self.as_of.checked_add(self.age).unwrap_or(self.as_of);
        match holder.released {
            None if holder.idle => {}
            None => write!(f, " for {}", between(holder.since, now))?,
            Some(released) => write!(
                f,
                " for {} more, released {} ago",
                between(now, holder.until),
                between(released, now)
            )?,
        }
        if let Some(reason) = &holder.owner.reason {
            write!(f, ", because of {}", shown(format_args!("{reason:?}")))?;
        }
        Ok(())
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, holder) in self.holders.iter().take(NAMED).enumerate() {
            f.write_str(match (number, holder.released) {
                (0, None) if holder.idle => "idle with ",
                (0, None) => "held by ",
                (0, Some(_)) => "kept taken by ",
                (_, None) => "; and by ",
                (_, Some(_)) => "; kept taken by ",
            })?;
            self.holder(holder, f)?;
        }
        if self.held_here {
            f.write_str(if self.holders.len() == 1 {
                ", which is this client"
            } else {
                "; this client is one of them"
            })?;
        }
        let more = self.holders.len().saturating_sub(NAMED);
        if more > 0 {
            write!(f, "; and by {more} more")?;
        }
        if !self.holders.is_empty() && self.waiting_before > 0 {
            f.write_str("; ")?;
        }
        match self.waiting_before {
            before if self.queue_full => write!(
                f,
                "{before} waiters in the queue, which is full; this client is not in it yet"
            )?,
            0 if self.holders.is_empty() => f.write_str("nobody held it any more, and we were next")?,
            0 => {}
            1 => f.write_str("1 waiter ahead of us")?,
            before => write!(f, "{before} waiters ahead of us")?,
        }
        // Younger news is as good as new.
        if self.age.as_secs() > 0 {
            write!(f, " (by a report of {} ago)", rounded(self.age))?;
        }
        Ok(())
    }
}

/// Returns a measured duration for people, in its two largest units: `350ms`, `12s`, `3m 5s`, `2h 10m`, `4d 3h`.
///
/// A duration that somebody has set is shown as it was set.
pub(crate) fn rounded(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    let (first, (second, unit)) = match seconds {
        0 if millis > 0 => return format!("{millis}ms"),
        0..60 => return format!("{seconds}s"),
        60..3_600 => (format!("{}m", seconds / 60), (seconds % 60, "s")),
        3_600..86_400 => (format!("{}h", seconds / 3_600), (seconds / 60 % 60, "m")),
        86_400.. => (format!("{}d", seconds / 86_400), (seconds / 3_600 % 24, "h")),
    };
    match second {
        0 => first,
        _ => format!("{first} {second}{unit}"),
    }
}

/// Returns the time from one moment to another, for people.
pub(crate) fn between(from: SystemTime, to: SystemTime) -> String {
    rounded(to.duration_since(from).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Entry, Owner, fixtures};

    fn holder(id: &str, label: Option<&str>, reason: Option<&str>) -> Entry {
        Entry {
            since: ServerTime(1_000),
            until: ServerTime(31_000),
            owner: Owner {
                host: "host-a".to_owned(),
                pid: 4711,
                label: label.map(str::to_owned),
                reason: reason.map(str::to_owned),
                ..Owner::default()
            },
            ..fixtures::holder(id, 7)
        }
    }

    fn told(holders: Vec<Entry>, before: usize, age: Duration) -> String {
        let state = fixtures::lock(fixtures::MUTEX, holders, []);
        Contention::new(&state, ServerTime(13_400), age, before, |id| id.starts_with("us-")).to_string()
    }

    #[test]
    fn tells_who_holds_and_how_many_come_before_us() {
        let billing = holder("a-1", Some("billing"), Some("monthly run"));
        assert_eq!(
            told(vec![billing.clone()], 2, Duration::ZERO),
            "held by billing (host-a, process 4711) for 12s, because of \"monthly run\"; 2 waiters ahead of us"
        );
        assert_eq!(
            told(vec![holder("us-1", None, None)], 0, Duration::from_millis(3_200)),
            "held by process 4711 on host-a for 15s, which is this client (by a report of 3s ago)"
        );
        let billing_again = billing.clone();
        let many = vec![
            billing,
            holder("a-2", None, None),
            holder("a-3", None, None),
            holder("us-4", None, None),
        ];
        assert!(told(many, 1, Duration::ZERO).ends_with(
            "; and by process 4711 on host-a for 12s; this client is one of them; and by 1 more; 1 waiter ahead of us"
        ));
        assert_eq!(told(Vec::new(), 1, Duration::ZERO), "1 waiter ahead of us");
        // The report is of the write that granted the lock.
        let fresh = Entry {
            since: ServerTime(13_400),
            ..billing_again
        };
        assert_eq!(
            told(vec![fresh.clone()], 0, Duration::from_millis(5_250)),
            "held by billing (host-a, process 4711) for 5s, because of \"monthly run\" (by a report of 5s ago)"
        );
        assert!(told(vec![fresh], 0, Duration::from_micros(300)).contains(" for 0s,"));
        let full = Contention {
            queue_full: true,
            ..Contention::behind(256)
        };
        assert_eq!(
            full.to_string(),
            "256 waiters in the queue, which is full; this client is not in it yet"
        );
    }

    #[test]
    fn a_measured_duration_has_two_units() {
        for (millis, shown) in [
            (0, "0s"),
            (350, "350ms"),
            (1_999, "1s"),
            (59_999, "59s"),
            (60_000, "1m"),
            (185_000, "3m 5s"),
            (7_800_000, "2h 10m"),
            (345_900_000, "4d"),
            (356_400_000, "4d 3h"),
        ] {
            assert_eq!(rounded(Duration::from_millis(millis)), shown);
        }
    }
}
