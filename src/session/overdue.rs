//! Renewals that are overdue, as operators are told of them: once for all locks, in time to do something about it, and
//! once when they are in time again.

use tokio::time::Instant;

use super::Session;
use crate::{error::ServerError, telemetry};

/// The state of these reports.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// When it was reported that renewals are overdue, until they are not any more.
    pub(super) reported_at: Option<Instant>,
    /// Since when none has been, as far as the server has acknowledged a write since.
    in_time_since: Option<Instant>,
    /// The reason for which the last renewal failed.
    pub(super) failure: Option<ServerError>,
}

impl Session {
    /// Reports that renewals are overdue: once, until they are not any more.
    pub(super) fn report_overdue(&self, now: Instant) {
        let (count, left, failure) = {
            let mut table = self.table();
            let count = table.timers.overdue();
            if count == 0 {
                return;
            }
            table.overdue.in_time_since = None;
            if table.overdue.reported_at.is_some() {
                return;
            }
            table.overdue.reported_at = Some(now);
            let left = table.timers.left_to_overdue(now);
            (count, left, table.overdue.failure.clone())
        };
        telemetry::renewals_overdue(count, left, failure.as_ref());
    }

    /// Reports that renewals are not overdue any more, if that was reported. Call it as the server has acknowledged a
    /// write: holds that were lost meanwhile are not overdue either.
    ///
    /// None may be for a whole interval: of the holds whose renewals are on their way or wait for their turn, others
    /// may be about to be.
    pub(super) fn report_recovery(&self) {
        let overdue_for = {
            let mut table = self.table();
            let Some(since) = table.overdue.reported_at else {
                return;
            };
            if table.timers.overdue() > 0 {
                table.overdue.in_time_since = None;
                return;
            }
            let now = Instant::now();
            let until = *table.overdue.in_time_since.get_or_insert(now);
            if table.timers.oldest().is_some() && now < until + self.config.renewal_interval {
                return;
            }
            (table.overdue.reported_at, table.overdue.in_time_since) = (None, None);
            until.saturating_duration_since(since)
        };
        telemetry::renewals_recovered(overdue_for);
    }
}
