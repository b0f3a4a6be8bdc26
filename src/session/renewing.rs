//! The renewal of holds: which go together, when, and what follows from the answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Session, Table,
    agenda::{AT_A_TIME, Queue},
    hold::{Hold, names_of},
    renewals::{Haste, Lane, RENEWED_TOGETHER, SOONEST},
};
use crate::{
    backoff::{Backoff, LONGEST_PAUSE},
    config::Config,
    error::ServerError,
    protocol::{Exchange, Holder, Idle},
    store::{Renewal, Statements},
    telemetry,
    waitlist::deadline::Deadline,
};

/// Part of the renewal interval within which holds that are due later go along, so that holds acquired at different
/// times come to be renewed together.
pub(super) const TAKEN_ALONG: u32 = 2;

/// Each retry splits an unanswered batch into this many commands. So within five retries a document that hangs is
/// alone, and most of those beside it are renewed with the first.
pub(super) const PARTS: usize = 4;

/// Maximum number of commands for a retry: where nothing is answered at all, no single document is the cause.
pub(super) const COMMANDS: usize = 32;

/// Maximum number of urgent holds (less than half of their lease left) that go out in one command, beside all others.
/// Most of them hold on a claim lease, which is too short to wait for its turn.
pub(super) const URGENT_TOGETHER: usize = 100;

/// Number of holds above which renewals yield to acquires: those of fewer cost a few commands an interval, which nobody
/// notices.
const YIELDING_FROM: usize = 5 * RENEWED_TOGETHER;

/// The slot of a renewal that is on its way, for as long as its answer is awaited.
pub(super) struct Awaited {
    session: Arc<Session>,
    lane: Lane,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.session.table().renewals.end(self.lane);
        // Others may have waited for the slot.
        self.session.beat.notify_one();
    }
}

/// Returns how many of `count` holds go into one command, after `in_vain` renewals without an answer.
pub(super) fn renewed_together(in_vain: u32, count: usize) -> usize {
    if in_vain == 0 {
        return RENEWED_TOGETHER;
    }
    let part = (RENEWED_TOGETHER / PARTS.saturating_pow(in_vain)).min(count.div_ceil(PARTS));
    part.max(count.div_ceil(COMMANDS)).clamp(1, RENEWED_TOGETHER)
}

/// The holds that one command renews.
pub(super) struct Batch {
    holds: Vec<Arc<Hold>>,
    /// The number of this renewal, for each of the holds.
    numbers: Vec<u64>,
    lane: Lane,
    /// Number of renewals before this one without an answer.
    in_vain: u32,
    statements: Statements,
    /// Wait for an answer before another renewal goes out beside it.
    pause: Duration,
    /// Time that the server may take.
    within: Duration,
}

impl Table {
    /// Returns the next renewal for which there is room, and marks its holds as being renewed.
    pub(super) fn next_batch(
        &mut self,
        config: &Config,
        busy: bool,
        sizes: &mut BTreeMap<Queue, usize>,
        now: Instant,
    ) -> Option<Batch> {
        let haste = self.haste(config, busy, now);
        let interval = config.renewal_interval;
        let (agenda, renewals) = (&mut self.agenda, &self.renewals);
        if renewals.has_room(Lane::Urgent, haste, now) {
            let holds = agenda.take_due(Queue::Urgent, now, URGENT_TOGETHER, now);
            if !holds.is_empty() {
                return Some(self.batch(holds, Lane::Urgent, 0, interval, now));
            }
        }
        if renewals.has_room(Lane::First, haste, now)
            && (agenda.is_due(Queue::Urgent, now) || agenda.is_due(Queue::First, now))
        {
            let mut holds = agenda.take_due(Queue::Urgent, now, RENEWED_TOGETHER, now);
            // Holds with a long lease don't go along each time that one with a short lease is due.
            let intervals = holds.iter().filter_map(|hold| hold.lease.interval);
            let with_it = now + intervals.chain([interval]).min().unwrap_or(interval) / TAKEN_ALONG;
            holds.extend(agenda.take_due(Queue::First, with_it, RENEWED_TOGETHER - holds.len(), now));
            if !holds.is_empty() {
                return Some(self.batch(holds, Lane::First, 0, interval, now));
            }
        }
        if !renewals.has_room(Lane::Again, haste, now) {
            return None;
        }
        for queue in agenda.repeated(now) {
            let in_vain = match queue {
                Queue::InVain(in_vain) => in_vain,
                Queue::Refused => 1,
                Queue::Urgent | Queue::First | Queue::Guarded => u32::MAX,
            };
            let size = *sizes.entry(queue).or_insert_with(|| match queue {
                // None of them is known to hang.
                Queue::Refused => RENEWED_TOGETHER,
                _ => renewed_together(in_vain, agenda.count_due(queue, now, COMMANDS * RENEWED_TOGETHER)),
            });
            let holds = agenda.take_due(queue, now, size, now);
            if !holds.is_empty() {
                let mut batch = self.batch(holds, Lane::Again, in_vain, interval, now);
                if queue == Queue::Refused {
                    batch.statements = Statements::OnePerDocument;
                }
                return Some(batch);
            }
        }
        None
    }

    pub(super) fn batch(
        &mut self,
        holds: Vec<Arc<Hold>>,
        lane: Lane,
        in_vain: u32,
        interval: Duration,
        now: Instant,
    ) -> Batch {
        let left = holds.iter().map(|hold| hold.deadline().saturating_duration_since(now));
        // By the first of the deadlines: one time for all of them keeps them together.
        let least_left = left.clone().min().unwrap_or_default();
        let pause = self.renewals.pause(interval, in_vain, least_left);
        // A command that hangs occupies a connection of the pool. So the first may hang for as long as it is of use,
        // and each repetition for half of that, which keeps few beside it.
        let within = left.max().unwrap_or_default();
        let within = if in_vain == 0 { within } else { within / 2 };
        let numbers = holds.iter().map(|hold| hold.renewing(now + pause)).collect();
        for hold in &holds {
            self.agenda.update(hold, now);
        }
        self.renewals.begin(lane);
        Batch {
            holds,
            numbers,
            lane,
            in_vain,
            statements: Statements::Shared,
            pause,
            within,
        }
    }

    /// Returns the time that renewals have; `busy`: whether as many operations are on their way as there may be.
    pub(super) fn haste(&self, config: &Config, busy: bool, now: Instant) -> Haste {
        let interval = config.renewal_interval;
        let late_by = |queue, late| now.checked_sub(late).is_some_and(|by| self.agenda.is_due(queue, by));
        // A renewal is urgent with half of the lease left before the deadline.
        let urgent_after = config.usable(config.lease).saturating_sub(config.lease / 2);
        let until_urgent = urgent_after.saturating_sub(interval);
        let many = self.agenda.len() > YIELDING_FROM;
        // So many can't all be renewed when they are due. Once urgent they would go out in small commands.
        let yields_for = until_urgent.saturating_sub(interval / 4);
        let late = if many {
            interval.max(yields_for + interval / 8)
        } else {
            interval
        };
        if late_by(Queue::First, late) || late_by(Queue::Urgent, interval / 2) {
            Haste::Late
        } else if busy && many && !late_by(Queue::First, yields_for) && !self.agenda.is_due(Queue::Urgent, now) {
            Haste::Yielding
        } else if many && !busy && late_by(Queue::First, interval / 3 * 2) {
            Haste::Behind
        } else {
            Haste::InTime
        }
    }
}

impl Session {
    /// Renews the holds that are due, as far as there is room.
    pub(super) fn renew_due(self: &Arc<Self>, now: Instant) {
        let mut sizes = BTreeMap::new();
        loop {
            // A binding of its own, so that the mutex is released after each.
            let busy = self.in_flight.is_busy(now);
            let batch = self.table().next_batch(&self.config, busy, &mut sizes, now);
            let Some(batch) = batch else { return };
            self.send_renewal(batch);
        }
    }

    pub(super) fn send_renewal(self: &Arc<Self>, batch: Batch) {
        let session = self.clone();
        let awaited = Awaited {
            session: self.clone(),
            lane: batch.lane,
        };
        self.spawn(async move {
            let Batch {
                holds,
                in_vain,
                pause,
                lane,
                ..
            } = &batch;
            let sent_at = Instant::now();
            let mut renewing = std::pin::pin!(session.renew_together(holds, batch.statements, batch.within));
            let answered = tokio::select! {
                biased;
                answered = &mut renewing => Some(answered),
                () = sleep(*pause) => None,
            };
            // A late answer does not keep the next renewal from being sent: there may be another primary by now.
            drop(awaited);
            let answered = match answered {
                Some(answered) => answered,
                None => renewing.await,
            };
            if answered.is_ok() && *in_vain == 0 {
                session.table().renewals.answered(sent_at.elapsed(), *pause, *lane);
            }
            session.table().renewals.failure = answered.as_ref().err().cloned();
            session.suspicion.note(sent_at, answered.as_ref());
            if let Err(error) = answered {
                let again = Instant::now() + (session.config.renewal_interval / 10).min(LONGEST_PAUSE);
                for (hold, number) in holds.iter().zip(&batch.numbers) {
                    hold.failed(*number, again, error.was_answered());
                }
                session.reschedule(holds);
            }
        });
    }

    /// Updates the agenda after the times of holds changed.
    pub(super) fn reschedule(&self, holds: &[Arc<Hold>]) {
        let now = Instant::now();
        for some in holds.chunks(AT_A_TIME) {
            let mut table = self.table();
            for hold in some {
                table.agenda.update(hold, now);
            }
            self.beat_in_time(&mut table);
        }
    }

    /// Renews holds in one command. `Some`: the error with which the server refused single documents; it concerns
    /// their holds alone, which have taken it in already.
    pub(crate) async fn renew_together(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        statements: Statements,
        within: Duration,
    ) -> Result<Option<ServerError>, ServerError> {
        let renewed = self.renew_once(holds, statements, within).await;
        self.reschedule(holds);
        let (renewed, refused) = renewed.inspect_err(|_| telemetry::renewals_failed(holds.len()))?;
        telemetry::renewed(renewed);
        self.report_recovery();
        Ok(refused)
    }

    /// Reports that renewals are overdue: once, until they are not any more.
    pub(super) fn report_overdue(&self, now: Instant) {
        let (overdue, failure) = {
            let mut table = self.table();
            let overdue = table.agenda.overdue();
            if overdue.count == 0 {
                return;
            }
            table.renewals.in_time_since = None;
            if table.renewals.overdue_since.is_some() {
                return;
            }
            table.renewals.overdue_since = Some(now);
            (overdue, table.renewals.failure.clone())
        };
        let left = overdue
            .first_end
            .map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
        telemetry::renewals_overdue(overdue.count, left, failure.as_ref());
    }

    /// Reports that renewals are not overdue any more, if that was reported. Call it as the server has acknowledged a
    /// write: holds that were lost meanwhile are not overdue either.
    ///
    /// None may be for a whole interval: of the holds whose renewals are on their way or wait for their turn, others
    /// may be about to be.
    pub(super) fn report_recovery(&self) {
        let (since, until) = {
            let mut table = self.table();
            let Some(since) = table.renewals.overdue_since else {
                return;
            };
            if table.agenda.overdue().count > 0 {
                table.renewals.in_time_since = None;
                return;
            }
            let now = Instant::now();
            let until = *table.renewals.in_time_since.get_or_insert(now);
            if table.agenda.oldest().is_some() && now < until + self.config.renewal_interval {
                return;
            }
            (table.renewals.overdue_since, table.renewals.in_time_since) = (None, None);
            (since, until)
        };
        telemetry::renewals_recovered(until.saturating_duration_since(since));
    }

    /// Renews, and returns the number of renewed holds, and why the others were refused, if any. Reads which holds are
    /// gone only if some are.
    pub(super) async fn renew_once(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        statements: Statements,
        within: Duration,
    ) -> Result<(u64, Option<ServerError>), ServerError> {
        let idle: Vec<Arc<Hold>> = holds.iter().filter(|hold| hold.is_idle).cloned().collect();
        let renewal = self.renewal_of(holds, &idle, statements, within);
        // Reckoned from the server's clock as known at sending: by the time of the answer it may be another server's.
        let sent = Instant::now();
        let clock_then = self.table().clock;
        let deadline_of = |hold: &Hold| Deadline::of_renewal(sent, hold.lease.length, &clock_then, &self.config);
        let outcome = self.store.renew(&renewal).await?;
        if let Some(elected) = outcome.elected {
            self.suspicion.note_primary(sent, elected);
        }
        {
            let mut table = self.table();
            let table = &mut *table;
            table
                .fleet
                .note_write(outcome.logged_by, outcome.renewed, Instant::now(), &table.clock);
        }
        self.consider_fleet();
        let mut asked = Vec::new();
        for hold in holds {
            match outcome.refused.get(&hold.name) {
                Some(error) => self.refused(hold, sent, error),
                None => asked.push(hold),
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
                for hold in some {
                    hold.renewed(deadline_of(hold).corrected(clock, &self.config), sent);
                    hold.note_no_transaction_before(sent);
                }
            }
            // A renewal does not show whether others wait.
            self.verify(idle);
            let intervals = holds.iter().filter_map(|hold| hold.lease.interval);
            let interval = intervals.chain([self.config.renewal_interval]).min();
            self.hear_the_clock(&holds[0].name, interval.unwrap_or_default(), sent);
            return Ok((asked.len() as u64, why));
        }
        Ok((self.confirm_by_reading(&asked, sent).await?, why))
    }

    /// Returns the renewal of these holds, some of which are idle.
    fn renewal_of(&self, holds: &[Arc<Hold>], idle: &[Arc<Hold>], statements: Statements, within: Duration) -> Renewal {
        let mut entries = BTreeMap::<String, Vec<String>>::new();
        for hold in holds {
            entries.entry(hold.name.clone()).or_default().push(hold.id.clone());
        }
        for ids in entries.values_mut() {
            // Readers may share an entry.
            ids.sort_unstable();
            ids.dedup();
        }
        let longest = holds.iter().map(|hold| hold.lease.length).max();
        idle.iter().for_each(|hold| hold.note_shown_idle());
        let shows = !idle.is_empty() || holds.iter().any(|hold| hold.is_shown_idle());
        // A hold that a task has of this renewal's idle ones is younger than all holds here.
        let youngest = holds.iter().map(|hold| hold.number).max().unwrap_or_default();
        let idle = shows.then(|| Idle {
            entries: idle.iter().map(|hold| hold.id.clone()).collect(),
            as_of: i64::try_from(youngest).unwrap_or(i64::MAX),
        });
        Renewal {
            operation: self.ids.operation(),
            entries,
            idle,
            keep: self.config.keep_millis_for(longest.unwrap_or_default()),
            within,
            statements,
        }
    }

    /// Reads which of these holds are still there after a renewal that was sent at that time, and returns their number.
    async fn confirm_by_reading(self: &Arc<Self>, asked: &[&Arc<Hold>], sent: Instant) -> Result<u64, ServerError> {
        let (documents, exchange) = self.read_names(&names_of(asked.iter().copied())).await?;
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
        let lease = hold.lease.length;
        let Some(deadline) = Deadline::of_reading(exchange, holder.until, sent, lease, &self.config) else {
            return false;
        };
        hold.renewed(deadline.corrected(&self.table().clock, &self.config), sent);
        hold.note_no_transaction_before(sent);
        true
    }

    /// Notes the same of a renewal that no holder sent: the handles here to that hold have its new end.
    pub(super) fn renewed_by_another(&self, name: &str, holder: &Holder, exchange: &Exchange, sent: Instant) {
        let holds: Vec<Arc<Hold>> = {
            let table = self.table();
            let holds = table
                .lines
                .by_name
                .get(name)
                .into_iter()
                .flat_map(|line| line.waitlist.holds());
            holds.filter(|hold| hold.is(holder)).cloned().collect()
        };
        for hold in &holds {
            let is_shown_idle = hold.is_shown_idle();
            self.seen_renewed(hold, holder, exchange, sent);
            // That renewal changed nothing about the mark.
            if is_shown_idle {
                hold.note_shown_idle();
            }
        }
        self.reschedule(&holds);
    }

    /// Notes that the server refused to renew this hold among those of one command.
    pub(super) fn refused(&self, hold: &Hold, sent: Instant, error: &ServerError) {
        let interval = self.config.renewal_interval;
        let times = hold.refused(|times, left| {
            let backoff = Backoff::between((interval / 10).min(LONGEST_PAUSE), interval);
            backoff
                .after(times.saturating_add(1))
                .pause()
                .min(left / 3)
                .max(SOONEST)
        });
        hold.note_no_transaction_before(sent);
        if times == 1 {
            telemetry::renewal_refused(&hold.name, error);
        }
    }
}
