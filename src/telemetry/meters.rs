//! The metrics, each with its name, type and labels; without the feature `metrics` they go nowhere.
//!
//! Labels are names that occur in the code, so there are few values of each. The label `lock` is the exception: it has
//! the names that the user has chosen, of which there are few as well.

pub(super) use sink::{change, count, describe, time};

/// A metric.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    expect(dead_code, reason = "recorders read all of it, tests some")
)]
pub(super) struct Meter {
    pub(super) name: &'static str,
    pub(super) kind: MeterKind,
    /// The names of the labels; their values come in this order.
    pub(super) labels: &'static [&'static str],
    /// Whether it is about single locks, so that it has the label `lock` for those that have metrics of their own.
    pub(super) per_lock: bool,
    pub(super) help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeterKind {
    Counter,
    Gauge,
    /// Of seconds.
    Histogram,
}

/// The label with the name of a lock.
#[cfg(any(test, feature = "metrics"))]
pub(super) const LOCK_LABEL: &str = "lock";

/// Defines the metrics and the list of them all.
macro_rules! meters {
    ($($meter:ident: $kind:ident $name:literal, $labels:tt, per_lock: $per_lock:literal, $help:literal;)*) => {
        $(pub(super) const $meter: Meter = Meter {
            name: $name,
            kind: MeterKind::$kind,
            labels: &$labels,
            per_lock: $per_lock,
            help: $help,
        };)*

        /// All metrics.
        #[cfg(any(test, feature = "metrics"))]
        pub(super) const ALL: &[&Meter] = &[$(&$meter),*];
    };
}

meters! {
    ACQUIRES: Counter "watchlock_acquires_total", ["kind", "outcome"], per_lock: true,
        "Acquires and tries that ended, by outcome";
    WAIT: Histogram "watchlock_wait_seconds", ["kind", "outcome"], per_lock: true,
        "Duration of acquires and tries, by outcome";
    WAITING: Gauge "watchlock_waiting", ["kind"], per_lock: true,
        "Acquires and tries that have not ended";
    GRANTS: Counter "watchlock_grants_total", ["kind", "how"], per_lock: true,
        "Grants, by how the client learned of them";
    HELD: Gauge "watchlock_held", ["kind"], per_lock: true,
        "Locks that are held";
    HOLD: Histogram "watchlock_hold_seconds", ["kind", "end"], per_lock: true,
        "Duration of holds, by how they ended";
    LOSSES: Counter "watchlock_losses_total", ["kind", "reason"], per_lock: true,
        "Locks that were lost, by reason";
    OVERLONG: Counter "watchlock_held_too_long_total", ["kind"], per_lock: true,
        "Locks that were held for longer than the limit that was set for them";
    RENEWALS: Counter "watchlock_renewals_total", ["outcome"], per_lock: false,
        "Locks that were renewed, or failed to renew";
    BREAKS: Counter "watchlock_breaks_total", [], per_lock: true,
        "Locks that were broken through this process";
    PASSED_OVER: Counter "watchlock_documents_passed_over_total", [], per_lock: false,
        "Documents that could not be claimed";
    SESSIONS: Gauge "watchlock_sessions", ["mode", "reason"], per_lock: false,
        "Sessions, by how their waiters are woken";
    INTERRUPTIONS: Counter "watchlock_stream_interruptions_total", ["error"], per_lock: false,
        "Change streams that broke or fell silent";
    JUMPS: Counter "watchlock_clock_jumps_total", ["direction"], per_lock: false,
        "Jumps of servers' clocks by more than the margin of the deadlines";
    ERRORS: Counter "watchlock_operation_errors_total", ["operation", "error"], per_lock: false,
        "Operations that the server did not answer, or refused";
}

#[cfg(feature = "metrics")]
/// The recommended buckets of each histogram: its name, and the upper bounds of its buckets in seconds.
///
/// Recorders for Prometheus need bounds that are chosen beforehand; without any, `metrics-exporter-prometheus` exports
/// summaries, whose quantiles can't be added up over processes, and the dashboard of the
/// [guide](crate::observability#dashboard-and-alerts) shows nothing.
///
/// - `watchlock_wait_seconds`: from 1 ms, about a write with a majority, to half an hour. A hand-over and an acquire of
///   a free lock end up in the first buckets, the wait for a slow holder in the last ones.
/// - `watchlock_hold_seconds`: from 10 ms to a day, for a critical section as well as a leader.
///
/// # Examples
///
/// The [recipe](crate::guide::recipes::prometheus) gives them to Prometheus. Other recorders have a call of their own:
///
/// ```
/// for (histogram, bounds) in watchlock::operate::HISTOGRAM_BUCKETS {
///     println!("{histogram}: up to {} s and more", bounds.last().expect("there are some"));
/// }
/// ```
pub const HISTOGRAM_BUCKETS: &[(&str, &[f64])] = &[
    (
        "watchlock_wait_seconds",
        &[
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0,
        ],
    ),
    (
        "watchlock_hold_seconds",
        &[
            0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0,
        ],
    ),
];

#[cfg(feature = "metrics")]
mod sink {
    use std::time::Duration;

    use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    use super::{super::shield::shielded, ALL, LOCK_LABEL, Meter, MeterKind};
    use crate::config::LockLabel;

    /// Increments a counter, with the values of its labels.
    pub(in super::super) fn count(meter: &Meter, more: u64, values: &[&'static str], lock: Option<&LockLabel>) {
        shielded(|| counter!(meter.name, labels(meter, values, lock)).increment(more));
    }

    /// Raises or lowers a gauge.
    pub(in super::super) fn change(meter: &Meter, by: f64, values: &[&'static str], lock: Option<&LockLabel>) {
        shielded(|| gauge!(meter.name, labels(meter, values, lock)).increment(by));
    }

    /// Records how long something took.
    pub(in super::super) fn time(meter: &Meter, took: Duration, values: &[&'static str], lock: Option<&LockLabel>) {
        shielded(|| histogram!(meter.name, labels(meter, values, lock)).record(took));
    }

    /// Returns the labels of one number. Only locks with metrics of their own have the label `lock`: to Prometheus an
    /// absent label and an empty one are the same, and other recorders are spared a label that says nothing.
    fn labels(meter: &Meter, values: &[&'static str], lock: Option<&LockLabel>) -> Vec<Label> {
        debug_assert_eq!(meter.labels.len(), values.len(), "{}", meter.name);
        debug_assert!(meter.per_lock || lock.is_none(), "{}", meter.name);
        let known = meter.labels.iter().zip(values);
        let known = known.map(|(name, value)| Label::from_static_parts(name, value));
        known
            .chain(lock.map(|lock| Label::new(LOCK_LABEL, lock.clone())))
            .collect()
    }

    /// Describes the metrics. Every client does, as nothing announces when a recorder is installed.
    pub(in super::super) fn describe() {
        shielded(|| ALL.iter().for_each(|meter| describe_one(meter)));
    }

    fn describe_one(meter: &Meter) {
        match meter.kind {
            MeterKind::Counter => describe_counter!(meter.name, Unit::Count, meter.help),
            MeterKind::Gauge => describe_gauge!(meter.name, Unit::Count, meter.help),
            MeterKind::Histogram => describe_histogram!(meter.name, Unit::Seconds, meter.help),
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod sink {
    use std::time::Duration;

    use super::Meter;
    use crate::config::LockLabel;

    pub(in super::super) fn count(_: &Meter, _: u64, _: &[&'static str], _: Option<&LockLabel>) {}

    pub(in super::super) fn change(_: &Meter, _: f64, _: &[&'static str], _: Option<&LockLabel>) {}

    pub(in super::super) fn time(_: &Meter, _: Duration, _: &[&'static str], _: Option<&LockLabel>) {}

    pub(in super::super) fn describe() {}
}
