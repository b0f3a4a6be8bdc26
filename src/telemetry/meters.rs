//! The metrics, by their names; without the feature `metrics` they go nowhere.
//!
//! Labels are names that occur in the code, so there are few values of each.

pub(super) use sink::{change, count, describe, time};

pub(super) const ACQUIRES: &str = "watchlock_acquires_total";
pub(super) const WAIT: &str = "watchlock_wait_seconds";
pub(super) const WAITING: &str = "watchlock_waiting";
pub(super) const GRANTS: &str = "watchlock_grants_total";
pub(super) const HELD: &str = "watchlock_held";
pub(super) const HOLD: &str = "watchlock_hold_seconds";
pub(super) const LOSSES: &str = "watchlock_losses_total";
pub(super) const RENEWALS: &str = "watchlock_renewals_total";
pub(super) const BREAKS: &str = "watchlock_breaks_total";
pub(super) const PASSED_OVER: &str = "watchlock_documents_passed_over_total";
pub(super) const SESSIONS: &str = "watchlock_sessions";
pub(super) const INTERRUPTIONS: &str = "watchlock_stream_interruptions_total";
pub(super) const JUMPS: &str = "watchlock_clock_jumps_total";
pub(super) const ERRORS: &str = "watchlock_operation_errors_total";

/// Label and value.
type Label = (&'static str, &'static str);

#[cfg(feature = "metrics")]
mod sink {
    use std::time::Duration;

    use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    use super::{super::shield::shielded, *};

    /// Increments a counter.
    pub(in super::super) fn count(name: &'static str, more: u64, labels: &[Label]) {
        shielded(|| counter!(name, labels).increment(more));
    }

    /// Raises or lowers a gauge.
    pub(in super::super) fn change(name: &'static str, by: f64, labels: &[Label]) {
        shielded(|| gauge!(name, labels).increment(by));
    }

    /// Records how long something took.
    pub(in super::super) fn time(name: &'static str, took: Duration, labels: &[Label]) {
        shielded(|| histogram!(name, labels).record(took));
    }

    /// Describes the metrics. Every client does, as nothing announces when a recorder is installed.
    pub(in super::super) fn describe() {
        shielded(describe_all);
    }

    fn describe_all() {
        describe_counter!(ACQUIRES, Unit::Count, "Acquires and tries that ended, by outcome");
        describe_histogram!(WAIT, Unit::Seconds, "Duration of acquires and tries, by outcome");
        describe_gauge!(WAITING, Unit::Count, "Acquires and tries that have not ended");
        describe_counter!(GRANTS, Unit::Count, "Grants, by how the client learned of them");
        describe_gauge!(HELD, Unit::Count, "Locks that are held");
        describe_histogram!(HOLD, Unit::Seconds, "Duration of holds, by how they ended");
        describe_counter!(LOSSES, Unit::Count, "Locks that were lost, by reason");
        describe_counter!(RENEWALS, Unit::Count, "Locks that were renewed, or failed to renew");
        describe_counter!(BREAKS, Unit::Count, "Locks that were broken through this process");
        describe_counter!(PASSED_OVER, Unit::Count, "Documents that could not be claimed");
        describe_gauge!(SESSIONS, Unit::Count, "Sessions, by how their waiters are woken");
        describe_counter!(INTERRUPTIONS, Unit::Count, "Change streams that broke or fell silent");
        describe_counter!(
            JUMPS,
            Unit::Count,
            "Jumps of servers' clocks by more than the margin of the deadlines"
        );
        describe_counter!(
            ERRORS,
            Unit::Count,
            "Operations that the server did not answer, or refused"
        );
    }
}

#[cfg(not(feature = "metrics"))]
mod sink {
    use std::time::Duration;

    use super::Label;

    pub(in super::super) fn count(_: &'static str, _: u64, _: &[Label]) {}

    pub(in super::super) fn change(_: &'static str, _: f64, _: &[Label]) {}

    pub(in super::super) fn time(_: &'static str, _: Duration, _: &[Label]) {}

    pub(in super::super) fn describe() {}
}
