//! The renewal of holds: which go together and when, their command, and what follows from the answer.
//!
//! Holds that are due at about the same time go together, in commands of up to a thousand, one command after the other:
//! a client with very many locks keeps one connection busy, and leaves the server to others. A hold with less than half
//! of its lease left does not wait for its turn, but goes beside, in one of a few commands: all of them at once would make
//! an overloaded server slower still.
//!
//! A renewal without an answer does not hold up the next, as a connection to a frozen or vanished server can hang for
//! longer than the lease. It is repeated beside itself when a sixth of the time is over that its holds have left. Then
//! its holds go out in as many commands as there may be at once, as a single document can be the one that hangs: one
//! that a transaction has written, about which the server says nothing until the transaction ends. So it costs the
//! others one round, and after two or three it is alone. The elements of a document stay together. The same is done with
//! holds whose documents the server refuses to write. A failed renewal is not a loss; the deadline is.

use std::{collections::HashMap, pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Session, Table,
    hold::{Hold, REPEATED_AFTER, names_of, next_number},
    timer_queue::{AT_A_TIME, Due},
};
use crate::{
    error::ServerError,
    machine::exchanged,
    protocol::{Entry, Exchange, Showing},
    store::{LockLayout, Renewal, View},
    telemetry,
    waitlist::deadline,
};

/// Maximum number of renewals of holds that go [apart](Due::Apart) that are awaited at once, and number of commands for
/// the holds of one that was not answered.
const AT_ONCE: usize = 32;

/// Maximum number of [urgent](Due::Urgent) renewals at once: one alone could hang, and those of more than four thousand
/// holds are sooner done one after the other.
const URGENT_AT_ONCE: usize = 4;

/// The holds that one command renews.
struct Batch {
    holds: Vec<Arc<Hold>>,
    sent: Instant,
    /// Wait for an answer before another renewal goes out beside it.
    pause: Duration,
    /// Time that the server may take.
    within: Duration,
    /// Its room among those of its turn.
    room: Arc<()>,
}

impl Table {
    /// Returns when the next renewal is due for which there is room.
    pub(super) fn next_renewal(&self) -> Option<Instant> {
        let turns = Due::RENEWALS.into_iter().filter(|turn| self.has_room(*turn));
        turns.filter_map(|turn| Some(self.timers.first(turn)?.0)).min()
    }

    fn has_room(&self, turn: Due) -> bool {
        Arc::strong_count(&self.awaited[turn as usize]) <= [1, URGENT_AT_ONCE, AT_ONCE][turn as usize]
    }

    /// Returns the next renewal for which there is room, and marks its holds as being renewed.
    fn next_batch(&mut self, apart_together: usize, elements: Option<&LockLayout>, now: Instant) -> Option<Batch> {
        for turn in Due::RENEWALS {
            if !self.has_room(turn) {
                continue;
            }
            let holds = match turn {
                Due::Usual => self.take_usual(now),
                Due::Apart => self.take_apart(apart_together, elements, now),
                _ => self.timers.take(turn, now),
            };
            if !holds.is_empty() {
                return Some(self.batch(holds, turn, now));
            }
        }
        None
    }

    /// Takes the holds that are due, if any are, and those that are due soon: so holds acquired at different times come to
    /// be renewed together.
    fn take_usual(&mut self, now: Instant) -> Vec<Arc<Hold>> {
        let Some((_, hold)) = self.timers.first(Due::Usual).filter(|(at, _)| *at <= now) else {
            return Vec::new();
        };
        let soon = now + hold.upkeep().lease.interval.unwrap_or_default() / 2;
        self.timers.take(Due::Usual, soon)
    }

    /// Takes up to so many of the holds that are due apart, and at least those in one document, which go together:
    /// commands that write one document keep each other from it. `elements`: the locks are those of elements, of which
    /// a document has many.
    fn take_apart(&mut self, together: usize, elements: Option<&LockLayout>, now: Instant) -> Vec<Arc<Hold>> {
        let due = self.timers.due(Due::Apart, now).take(AT_A_TIME);
        // The ones that are due first come first, as others may hang again and again.
        let mut documents: Vec<Vec<Arc<Hold>>> = Vec::new();
        let mut places = HashMap::new();
        for hold in due {
            let document = elements.map_or(&*hold.name, |elements| elements.document_of(&hold.name));
            let place = *places.entry(document).or_insert(documents.len());
            if place == documents.len() {
                documents.push(Vec::new());
            }
            documents[place].push(hold.clone());
        }
        let mut taken = Vec::new();
        for mut holds in documents {
            // A transaction that is known of would hold up the others.
            let goes_alone = holds.iter().any(|hold| hold.upkeep().guarded_at.is_some());
            if !taken.is_empty() && (goes_alone || taken.len() + holds.len() > together) {
                continue;
            }
            taken.append(&mut holds);
            if goes_alone || taken.len() >= together {
                break;
            }
        }
        self.timers.take_these(Due::Apart, &taken);
        taken
    }

    fn batch(&mut self, holds: Vec<Arc<Hold>>, turn: Due, now: Instant) -> Batch {
        // One time for all of them keeps them together.
        let pauses = holds.iter().map(|hold| hold.upkeep().pause(now));
        let pause = pauses.min().unwrap_or_default();
        // A command that hangs occupies a connection of the pool. So the first may hang for as long as it is of use,
        // and each repetition until the next but one is sent, which keeps few beside it.
        let within = if turn == Due::Apart {
            pause * 2
        } else {
            let last = holds.iter().map(|hold| hold.deadline()).max().unwrap_or(now);
            last.saturating_duration_since(now)
        };
        for hold in &holds {
            hold.upkeep().sent(now, now + pause);
            self.timers.update(hold);
        }
        Batch {
            holds,
            sent: now,
            pause,
            within,
            room: self.awaited[turn as usize].clone(),
        }
    }
}

impl Session {
    /// Renews the holds that are due, as far as there is room.
    pub(super) fn renew_due(self: &Arc<Self>, now: Instant) {
        let elements = self.store.in_place().filter(|layout| layout.is_of_elements());
        let apart = self
            .table()
            .timers
            .due(Due::Apart, now)
            .take(AT_ONCE * AT_A_TIME)
            .count();
        loop {
            // A binding of its own, so that the mutex is released after each.
            let batch = self
                .table()
                .next_batch(apart.div_ceil(AT_ONCE), elements.map(|layout| &**layout), now);
            let Some(batch) = batch else { return };
            self.send_renewal(batch);
        }
    }

    fn send_renewal(self: &Arc<Self>, batch: Batch) {
        let session = self.clone();
        self.spawn(async move {
            let mut renewing = pin!(session.renew_together(&batch.holds, batch.within));
            // One of a longer lease has a longer pause, for which holds of the client's own lease can't wait.
            let pause = batch.pause.min(session.config.lease / REPEATED_AFTER);
            let answered = timeout(pause, renewing.as_mut()).await;
            // A late answer does not keep the next renewal from being sent: there may be another primary by now.
            drop(batch.room);
            session.wake_heartbeat.notify_one();
            let answered = match answered {
                Ok(answered) => answered,
                Err(_) => renewing.await,
            };
            session.table().renewal_failure = answered.as_ref().err().cloned();
            if answered.is_ok() {
                session.note_in_time();
            }
            if let Err(error) = answered {
                session.note_failure(&error);
                for hold in &batch.holds {
                    hold.upkeep().failed(batch.sent, error.was_answered(), Instant::now());
                }
                session.reschedule(&batch.holds);
            }
        });
    }

    /// Sets the timers after the times of holds changed.
    pub(super) fn reschedule(&self, holds: &[Arc<Hold>]) {
        for some in holds.chunks(AT_A_TIME) {
            let mut table = self.table();
            for hold in some {
                table.timers.update(hold);
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
        Ok(refused)
    }

    /// Renews, and returns the number of renewed holds, and why the others were refused, if any. Reads which holds are
    /// gone only if some are.
    pub(super) async fn renew_once(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        within: Duration,
    ) -> Result<(u64, Option<ServerError>), ServerError> {
        let renewal = self.renewal_of(holds, within);
        let sent = Instant::now();
        // By the lease as it is at sending: one that is made longer meanwhile may not be in the document yet.
        let deadline_of = |hold: &Arc<Hold>| deadline::of_renewal(sent, hold.length(), &self.config);
        let deadlines: Vec<Instant> = holds.iter().map(deadline_of).collect();
        let outcome = self.store.renew(&renewal).await?;
        if renewal.shows.as_ref().is_some_and(|shows| !shows.awaits.is_empty()) {
            self.look_at_long_waits();
        }
        if let Some(elected) = outcome.elected {
            self.note_primary(sent, elected);
        }
        let exchange = Exchange {
            logged_by: outcome.logged_by,
            ..exchanged(sent, None)
        };
        self.note_log(&exchange, outcome.renewed);
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
        if outcome.renewed == documents as u64 && renewal.entries.iter().all(|(_, ids)| ids.len() == 1) {
            for (hold, deadline) in &asked {
                self.acknowledged(hold, *deadline, sent);
                if let Some(shows) = &renewal.shows {
                    hold.upkeep().showed(shows.as_of);
                }
            }
            // A renewal does not show whether others wait.
            self.verify(holds.iter().filter(|hold| hold.is_idle).cloned().collect());
            let intervals = holds.iter().filter_map(|hold| hold.upkeep().lease.interval);
            let interval = intervals.chain([self.config.renewal_interval()]).min();
            self.hear_the_clock(&holds[0].name, interval.unwrap_or_default(), sent);
            return Ok((asked.len() as u64, why));
        }
        let asked: Vec<&Arc<Hold>> = asked.into_iter().map(|(hold, _)| hold).collect();
        Ok((self.confirm_by_reading(&asked, sent).await?, why))
    }

    /// Returns the renewal of these holds.
    fn renewal_of(&self, holds: &[Arc<Hold>], within: Duration) -> Renewal {
        let mut entries: Vec<(&str, &str)> = holds.iter().map(|hold| (&*hold.name, &*hold.id)).collect();
        entries.sort_unstable();
        // Readers may share an entry.
        entries.dedup();
        let of_one = |entries: &[(&str, &str)]| {
            let ids = entries.iter().map(|(_, id)| (*id).to_owned());
            (entries[0].0.to_owned(), ids.collect())
        };
        let entries = entries.chunk_by(|one, next| one.0 == next.0).map(of_one).collect();
        let longest = holds.iter().map(|hold| hold.length()).max();
        // Under the mutex under which tasks come and wait, so that the larger number knows of more.
        let mut table = self.table();
        let awaits = table.long_waits.awaited(holds);
        let as_of = i64::try_from(next_number()).unwrap_or(i64::MAX);
        let mut shows = false;
        for hold in holds {
            let mut upkeep = hold.upkeep();
            // Readers may share an entry.
            if hold.is_idle || awaits.contains_key(&hold.id) {
                upkeep.shown_by = Some(as_of);
            }
            shows |= upkeep.shown_by.is_some();
        }
        // A task may have come for an idle one by now.
        let idle = holds.iter().filter(|hold| hold.is_idle && table.timers.has(hold));
        let shows = shows.then(|| Showing {
            idle: idle.map(|hold| hold.id.clone()).collect(),
            awaits,
            as_of,
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
        let (documents, exchange) = self.read_names(View::Newest, &names).await?;
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
    fn seen_renewed(&self, hold: &Hold, holder: &Entry, exchange: &Exchange, sent: Instant) -> bool {
        let lease = hold.length();
        let Some(deadline) = deadline::of_reading(exchange, holder.until, sent, lease, &self.config) else {
            return false;
        };
        self.acknowledged(hold, deadline, sent);
        true
    }

    /// Notes that a write that renews a hold was sent at that time and answered: the hold lasts up to this deadline.
    pub(super) fn acknowledged(&self, hold: &Hold, deadline: Instant, sent: Instant) {
        // Under the mutex of the clock, so that a jump ahead does not miss it.
        let clock = &self.table().clock;
        let mut upkeep = hold.upkeep();
        // One that goes out by that clock is planned.
        if !clock.ran_ahead_since(sent) {
            upkeep.acknowledged(deadline, sent);
        }
        upkeep.no_transaction_before(sent);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        super::fixtures::{ONE, client, memory},
        *,
    };
    use crate::{
        client::LockClient,
        config::Config,
        hold_options::Terms,
        protocol::Kind,
        store::lock_layout::Paths,
        waitlist::{Grant, How},
    };

    fn session() -> Arc<Session> {
        client(&memory(), ONE, Config::default()).1
    }

    fn grant(end: Instant, renew_at: Instant) -> Grant {
        Grant {
            token: 1,
            granted_as: 1,
            used: (Kind::Mutex, 1),
            permits: 1,
            lease: Terms::default().lease(&Config::default()),
            deadline: end,
            renew_at: Some(renew_at),
            how: How::AtOnce,
        }
    }

    /// Several commands for one document would be in each other's way, and none would be answered in time. One that hangs
    /// holds up no other, however many elements it has.
    #[tokio::test(start_paused = true)]
    async fn a_document_is_renewed_by_one_command_at_a_time_whatever_its_elements() {
        let elements =
            LockLayout::in_documents(None, "w_elements.lines", Some(("lines", "w")), &Paths::default()).unwrap();
        let session = session();
        let begun = Instant::now();
        // One element of each of three documents, and all of the others of a fourth one.
        for number in 0..300 {
            let grant = grant(begun + Duration::from_secs(20), begun);
            let name = format!("{}/n={number}", number.min(3));
            let hold = Arc::new(Hold::new(format!("a-{number}"), name, &grant));
            session.table().timers.came(&hold);
        }
        let next = |together| session.table().next_batch(together, Some(&elements), Instant::now());
        let first = next(0).expect("they are due");
        assert_eq!(first.holds.len(), 300);
        tokio::time::advance(first.pause).await;
        let documents = |batch: Batch| -> Vec<String> {
            let names = batch
                .holds
                .iter()
                .map(|hold| elements.document_of(&hold.name).to_owned());
            names.collect::<BTreeSet<_>>().into_iter().collect()
        };
        let apart: Vec<_> = std::iter::from_fn(|| next(2)).map(documents).collect();
        assert_eq!(apart, [vec!["0", "1"], vec!["2"], vec!["3"]]);
    }

    /// More than have room, whose transactions never end.
    #[tokio::test(start_paused = true)]
    async fn renewals_that_hang_again_and_again_hold_up_no_other() {
        let session = session();
        let begun = Instant::now();
        for number in 10..AT_ONCE + 20 {
            let grant = grant(begun + Duration::from_secs(20), begun);
            let hold = Arc::new(Hold::new(format!("a-{number}"), format!("lock {number}"), &grant));
            hold.upkeep().guarded_at = Some(begun);
            session.table().timers.came(&hold);
        }
        let mut sent = BTreeSet::new();
        for _ in 0..2 {
            let next = || session.table().next_batch(0, None, Instant::now());
            let batches: Vec<Batch> = std::iter::from_fn(next).collect();
            assert_eq!(batches.len(), AT_ONCE);
            tokio::time::advance(batches[0].pause).await;
            sent.extend(batches.iter().map(|batch| batch.holds[0].name.clone()));
        }
        assert_eq!(sent.len(), AT_ONCE + 10);
    }

    /// Otherwise one that was idle once would make those that are renewed with it longer for good.
    #[tokio::test(start_paused = true)]
    async fn renewals_show_what_a_hold_no_longer_does_until_one_is_acknowledged() {
        let (link, session) = client(&memory(), ONE, Config::default());
        let held = LockClient::new(session.clone()).mutex("x").acquire().await.unwrap();
        let holds = [held.hold().clone()];
        let second = Duration::from_secs(1);
        let shows = || session.renewal_of(&holds, second).shows.is_some();
        assert!(!shows());
        holds[0].upkeep().shown_by = Some(0);
        link.cut(true);
        session.renew_once(&holds, second).await.unwrap_err();
        assert!(shows());
        link.cut(false);
        session.renew_once(&holds, second).await.unwrap();
        assert!(!shows());
        // The answer to an earlier one says nothing of a later one.
        holds[0].upkeep().shown_by = Some(i64::MAX);
        session.renew_once(&holds, second).await.unwrap();
        assert!(shows());
    }

    /// Whether they came to be late while they waited, or have been so before.
    #[tokio::test(start_paused = true)]
    async fn renewals_that_are_late_do_not_go_out_all_at_once() {
        let second = Duration::from_secs(1);
        let session = session();
        let begun = Instant::now();
        for (left, count) in [(10, 5 * AT_A_TIME), (20, 3 * AT_A_TIME)] {
            for number in 0..count {
                let grant = grant(begun + left * second, begun);
                let hold = Arc::new(Hold::new(format!("a-{number}"), format!("lock {number}"), &grant));
                session.table().timers.came(&hold);
            }
        }
        // Nothing else runs meanwhile.
        tokio::time::advance(6 * second).await;
        let next = || session.table().next_batch(0, None, Instant::now());
        let mut batches: Vec<Batch> = std::iter::from_fn(next).collect();
        assert_eq!(batches.len(), URGENT_AT_ONCE + 1);
        for _ in 0..3 {
            drop(batches.remove(0));
            batches.extend(next());
        }
        assert_eq!(batches.len(), URGENT_AT_ONCE + 1);
        drop(batches);
        assert!(next().is_none(), "all have gone out");
    }
}
