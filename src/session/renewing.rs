//! The renewal of holds in one command, and what follows from the answer.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Session,
    hold::{Hold, REPEATED_AFTER, names_of, next_number},
    renewals::Batch,
    timer_queue::AT_A_TIME,
};
use crate::{
    error::ServerError,
    protocol::{Exchange, Holder, Showing},
    store::{Renewal, View},
    telemetry,
    waitlist::deadline::Deadline,
};

impl Session {
    /// Renews the holds that are due, as far as there is room.
    pub(super) fn renew_due(self: &Arc<Self>, now: Instant) {
        let apart_together = self.table().apart_together(now);
        loop {
            // A binding of its own, so that the mutex is released after each.
            let batch = self.table().next_batch(apart_together, now);
            let Some(batch) = batch else { return };
            self.send_renewal(batch);
        }
    }

    fn send_renewal(self: &Arc<Self>, batch: Batch) {
        let session = self.clone();
        let awaited = batch.awaited(self);
        self.spawn(async move {
            let sent = Instant::now();
            let mut renewing = pin!(session.renew_together(&batch.holds, batch.within));
            // One of a longer lease has a longer pause, for which holds of the client's own lease can't wait.
            let pause = batch.pause.min(session.config.lease / REPEATED_AFTER);
            let answered = timeout(pause, renewing.as_mut()).await;
            // A late answer does not keep the next renewal from being sent: there may be another primary by now.
            drop(awaited);
            let answered = match answered {
                Ok(answered) => answered,
                Err(_) => renewing.await,
            };
            session.table().overdue.failure = answered.as_ref().err().cloned();
            session.failover_detector.note(sent, answered.as_ref());
            if let Err(error) = answered {
                for hold in &batch.holds {
                    hold.upkeep().failed(batch.sent, error.was_answered(), Instant::now());
                }
                session.reschedule(&batch.holds);
            }
        });
    }

    /// Sets the timers after the times of holds changed.
    pub(super) fn reschedule(&self, holds: &[Arc<Hold>]) {
        let now = Instant::now();
        for some in holds.chunks(AT_A_TIME) {
            let mut table = self.table();
            for hold in some {
                table.timers.update(hold, now);
            }
            self.beat_in_time(&mut table);
        }
    }

    /// Renews holds in one command. `Some`: the error with which the server refused single documents; it concerns
    /// their holds alone, which have taken it in already.
    pub(crate) async fn renew_together(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        within: Duration,
    ) -> Result<Option<ServerError>, ServerError> {
        let renewed = self.renew_once(holds, within).await;
        self.reschedule(holds);
        let (renewed, refused) = renewed.inspect_err(|_| telemetry::renewals_failed(holds.len()))?;
        telemetry::renewed(renewed);
        self.report_recovery();
        Ok(refused)
    }

    /// Renews, and returns the number of renewed holds, and why the others were refused, if any. Reads which holds are
    /// gone only if some are.
    pub(super) async fn renew_once(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        within: Duration,
    ) -> Result<(u64, Option<ServerError>), ServerError> {
        let idle: Vec<Arc<Hold>> = holds.iter().filter(|hold| hold.is_idle).cloned().collect();
        let renewal = self.renewal_of(holds, &idle, within);
        // Reckoned from the server's clock as known at sending: by the time of the answer it may be another server's.
        let sent = Instant::now();
        let clock_then = self.table().clock;
        // By the lease as it is at sending, too: one that is made longer meanwhile may not be in the document yet.
        let deadline_of = |hold: &Arc<Hold>| Deadline::of_renewal(sent, hold.length(), &clock_then, &self.config);
        let deadlines: Vec<Deadline> = holds.iter().map(deadline_of).collect();
        let outcome = self.store.renew(&renewal).await?;
        if renewal.shows.is_some_and(|shows| !shows.awaits.is_empty()) {
            self.look_at_long_waits();
        }
        if let Some(elected) = outcome.elected {
            self.failover_detector.note_primary(sent, elected);
        }
        {
            let mut table = self.table();
            let table = &mut *table;
            table
                .fleet
                .note_log(outcome.logged_by, outcome.renewed, Instant::now(), &table.clock);
        }
        self.consider_fleet();
        let mut asked = Vec::new();
        for (hold, deadline) in holds.iter().zip(deadlines) {
            match outcome.refused.get(&hold.name) {
                Some(error) => {
                    hold.upkeep().no_transaction_before(sent);
                    if hold.upkeep().refused(Instant::now()) {
                        telemetry::renewal_refused(&hold.name, error);
                    }
                }
                None => asked.push((hold, deadline)),
            }
        }
        let documents = renewal.entries.len().saturating_sub(outcome.refused.len());
        let why = outcome.refused.into_values().next();
        let refused = holds.len() - asked.len();
        if refused > 0 {
            telemetry::renewals_failed(refused);
        }
        // The server counts documents, not holders: with two of our holds in one document, a missing one would not
        // show.
        if outcome.renewed == documents as u64 && renewal.entries.values().all(|ids| ids.len() == 1) {
            for some in asked.chunks(AT_A_TIME) {
                // Under the mutex of the clock, so that a jump ahead misses none of them.
                let clock = &self.table().clock;
                for (hold, deadline) in some {
                    let deadline = deadline.corrected(clock, &self.config);
                    let mut upkeep = hold.upkeep();
                    upkeep.acknowledged(deadline, sent);
                    upkeep.no_transaction_before(sent);
                }
            }
            // A renewal does not show whether others wait.
            self.verify(idle);
            let intervals = holds.iter().filter_map(|hold| hold.upkeep().lease().interval);
            let interval = intervals.chain([self.config.renewal_interval]).min();
            self.hear_the_clock(&holds[0].name, interval.unwrap_or_default(), sent);
            return Ok((asked.len() as u64, why));
        }
        let asked: Vec<&Arc<Hold>> = asked.into_iter().map(|(hold, _)| hold).collect();
        Ok((self.confirm_by_reading(&asked, sent).await?, why))
    }

    /// Returns the renewal of these holds, some of which are idle.
    fn renewal_of(&self, holds: &[Arc<Hold>], idle: &[Arc<Hold>], within: Duration) -> Renewal {
        let mut entries = BTreeMap::<String, Vec<String>>::new();
        for hold in holds {
            entries.entry(hold.name.clone()).or_default().push(hold.id.clone());
        }
        for ids in entries.values_mut() {
            // Readers may share an entry.
            ids.sort_unstable();
            ids.dedup();
        }
        let longest = holds.iter().map(|hold| hold.length()).max();
        idle.iter().for_each(|hold| hold.upkeep().note_shown_idle());
        // Under the mutex under which tasks come and wait, so that the larger number knows of more.
        let mut table = self.table();
        let awaits = table.long_waits.awaited(holds);
        // Readers may share an entry.
        let waiting = holds.iter().filter(|hold| awaits.contains_key(&hold.id));
        waiting.for_each(|hold| hold.upkeep().note_shown_awaiting());
        let is_shown = |hold: &Arc<Hold>| {
            let upkeep = hold.upkeep();
            upkeep.is_shown_idle() || upkeep.is_shown_awaiting()
        };
        let shows = !(idle.is_empty() && awaits.is_empty()) || holds.iter().any(is_shown);
        let shows = shows.then(|| Showing {
            // A task may have come for one by now.
            idle: idle
                .iter()
                .filter(|hold| table.timers.has(hold))
                .map(|hold| hold.id.clone())
                .collect(),
            awaits,
            as_of: i64::try_from(next_number()).unwrap_or(i64::MAX),
        });
        Renewal {
            operation: self.ids.operation(),
            entries,
            shows,
            keep: self.config.keep_millis_for(longest.unwrap_or_default()),
            within,
        }
    }

    /// Reads which of these holds are still there after a renewal that was sent at that time, and returns their number.
    async fn confirm_by_reading(self: &Arc<Self>, asked: &[&Arc<Hold>], sent: Instant) -> Result<u64, ServerError> {
        let names = names_of(asked.iter().copied());
        let (documents, exchange, _) = self.read_names(View::Newest, &names).await?;
        self.note(&exchange);
        let mut renewed = 0;
        for hold in asked {
            let state = documents.get(&hold.name).and_then(|document| document.as_ref().ok());
            let holder = state.and_then(|state| state.holders.iter().find(|holder| hold.is(holder)));
            renewed += u64::from(holder.is_some_and(|holder| self.seen_renewed(hold, holder, &exchange, sent)));
            self.compare(hold, documents.get(&hold.name), exchange.sent);
        }
        Ok(renewed)
    }

    /// Notes that a hold was read after a renewal that was sent at that time and acknowledged. `false`: the reading does
    /// not show until when.
    fn seen_renewed(&self, hold: &Hold, holder: &Holder, exchange: &Exchange, sent: Instant) -> bool {
        let lease = hold.length();
        let Some(deadline) = Deadline::of_reading(exchange, holder.until, sent, lease, &self.config) else {
            return false;
        };
        // Under the mutex of the clock, so that a jump ahead does not miss it.
        let clock = &self.table().clock;
        let mut upkeep = hold.upkeep();
        upkeep.acknowledged(deadline.corrected(clock, &self.config), sent);
        upkeep.no_transaction_before(sent);
        true
    }
}
