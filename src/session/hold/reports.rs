//! The events of a hold, as observers are told of them: each once.

use std::time::Duration;

use tokio::time::Instant;

use super::{Hold, Reported};
use crate::{
    status::LostReason,
    telemetry::{self, Granted},
    waitlist::How,
};

impl Hold {
    /// Returns the grant to report to observers, now that a task has it. Of the tasks that share a hold, the first
    /// reports how it was granted.
    pub(crate) fn granted(&self) -> Granted<'_> {
        let mut state = self.state();
        let how = match state.reported {
            Reported::Nothing(how) => {
                state.reported = Reported::Granted;
                how
            }
            Reported::Granted | Reported::Over => How::Reentered,
        };
        Granted {
            lock: &self.name,
            kind: self.used.0,
            token: self.token,
            how,
            label: self.label.as_ref(),
        }
    }

    /// Reports that it is over, if it is, and only if its grant was reported.
    ///
    /// Call it whenever the hold may be over and no mutex is held, as the code that notices the end may hold one.
    pub(crate) fn report_end(&self) {
        let Err(reason) = self.look() else { return };
        if reason == LostReason::Forked {
            return;
        }
        // Perhaps nothing looked since that time.
        self.report_too_long();
        let over_at = {
            let mut state = self.state();
            if !matches!(state.reported, Reported::Granted) {
                return;
            }
            state.reported = Reported::Over;
            state.over_at
        };
        let held = over_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.since));
        telemetry::ended(&self.name, self.label.as_ref(), self.used.0, self.token, reason, held);
    }

    /// Reports that it is held too long, if it is or was. Call it while no mutex is held.
    pub(in crate::session) fn report_too_long(&self) {
        let (Some(most), Some(from)) = (self.lease.limits.report, self.reported_from()) else {
            return;
        };
        let held_until = {
            let mut state = self.state();
            let held_until = state.over_at.unwrap_or_else(Instant::now);
            if state.reported_too_long || held_until < from {
                return;
            }
            state.reported_too_long = true;
            held_until
        };
        let held = held_until.saturating_duration_since(self.since);
        telemetry::held_too_long(&self.name, self.label.as_ref(), self.used.0, self.token, held, most);
    }

    pub(super) fn is_held_too_long(&self) -> bool {
        self.reported_from().is_some_and(|from| from <= Instant::now())
    }

    /// Returns from when on it is held too long.
    pub(super) fn reported_from(&self) -> Option<Instant> {
        self.lease.limits.report.map(|most| self.since + most)
    }
}
