//! The one timer of a session: renews what is held, asks again for what is waited for, and notices deadlines.
//!
//! All holds that are due at about the same time are renewed together, in commands of up to a thousand documents. A
//! renewal that is not answered is no reason to wait: another goes out beside it, as a connection to a frozen or
//! vanished server can hang for longer than the lease. It goes out in parts, as a single document can be what hangs: one
//! that a transaction has written, of which the server says nothing until the transaction ends. A failed renewal is not
//! a loss; the deadline is.
//!
//! Where the server answers that it refuses to renew one of the documents (a validator that was added, a document that is
//! full, one that others have spoiled), they are renewed one by one in one command, and those that are refused are told
//! and asked for by themselves from then on.
//!
//! However many locks are held, a beat looks only at what is due, which the [`agenda`](super::agenda) has in order, and
//! lets the session's mutex go after each thousand of them at the latest.
//!
//! A server that is only slow looks the same at first, and each renewal beside another makes it slower, until it does
//! nothing else. So few are on their way at once, the most urgent first, and another goes out beside one no sooner than
//! twice as long after it as answers have taken of late.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Session, Table,
    agenda::Queue,
    hold::Hold,
    renewals::{Lane, SOONEST},
};
use crate::{
    protocol::{State, document::Malformed},
    store::{Exchange, Renewal, StoreError},
    telemetry,
    waitlist::{clock::Jump, deadline::Deadline, timing::BACKOFF},
};

/// Documents in one command: a few hundred kilobytes, and some milliseconds of the server's time.
const RENEWED_TOGETHER: usize = 1_000;

/// A round takes along what is due within this part of the renewal interval, so that holds acquired at different
/// times come to be renewed together.
const TAKEN_ALONG: u32 = 2;

/// Into so many parts goes what was not answered, whenever it is sent again; so within five times a document that hangs
/// is by itself, and most of those beside it are renewed with the first.
const PARTS: usize = 4;

/// But into no more commands than this: where nothing is answered at all, it is not for one of the documents.
const COMMANDS: usize = 32;

/// A lock held for longer than this is worth a change stream that tells of its loss. Most critical sections are
/// shorter, and each open stream costs the server some work for every write.
const WORTH_WATCHING: Duration = Duration::from_millis(200);

/// The most names or holds that are seen to while the session's mutex is held: some tenths of a millisecond.
pub(super) const AT_A_TIME: usize = 500;

/// How often holders look after a thousand locks while no stream tells of them.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// Sleep when nothing is due.
const NOTHING_DUE: Duration = Duration::from_secs(3600);

/// How often a failed look is repeated; by then a renewal has told more.
const LOOKS: u32 = 8;

/// How many of those that have less than half of their lease left go out together, beside all others: mostly those that
/// hold on a claim lease, which is too short to wait for its turn.
const URGENT_TOGETHER: usize = 100;

/// Runs until the session ends.
pub(super) async fn run(session: Weak<Session>, beat: Arc<Notify>, ended: CancellationToken) {
    loop {
        let Some(present) = session.upgrade() else { return };
        let next = present.beat();
        drop(present);
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = beat.notified() => {}
            () = sleep_until(next) => {}
        }
    }
}

/// The place of a renewal among those that are on their way, for as long as it is waited for.
struct Awaited {
    session: Arc<Session>,
    lane: Lane,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.session.table().renewals.end(self.lane);
        // There may be others that have waited for that.
        self.session.beat.notify_one();
    }
}

/// How many of `count` holds go into one command, after so many renewals that were not answered.
fn renewed_together(in_vain: u32, count: usize) -> usize {
    if in_vain == 0 {
        return RENEWED_TOGETHER;
    }
    let part = (RENEWED_TOGETHER / PARTS.saturating_pow(in_vain)).min(count.div_ceil(PARTS));
    part.max(count.div_ceil(COMMANDS)).clamp(1, RENEWED_TOGETHER)
}

/// Holds that are renewed by one command.
struct Batch {
    holds: Vec<Arc<Hold>>,
    /// Which renewal it is of each of them.
    numbers: Vec<u64>,
    lane: Lane,
    /// How many were not answered before.
    in_vain: u32,
    /// Each by a statement of its own.
    apart: bool,
    /// How long it is waited for until another goes out beside it.
    pause: Duration,
    /// For how long the server may try.
    within: Duration,
}

impl Table {
    /// The next renewal for which there is room, its holds marked as being renewed.
    fn next_batch(&mut self, interval: Duration, sizes: &mut BTreeMap<Queue, usize>, now: Instant) -> Option<Batch> {
        let late = self.is_late(interval, now);
        let (agenda, renewals) = (&mut self.agenda, &self.renewals);
        if renewals.has_room(Lane::Urgent, late, now) {
            let holds = agenda.take_due(Queue::Urgent, now, URGENT_TOGETHER, now);
            if !holds.is_empty() {
                return Some(self.batch(holds, Lane::Urgent, 0, interval, now));
            }
        }
        if renewals.has_room(Lane::First, late, now)
            && (agenda.is_due(Queue::Urgent, now) || agenda.is_due(Queue::First, now))
        {
            let mut holds = agenda.take_due(Queue::Urgent, now, RENEWED_TOGETHER, now);
            let with_it = now + interval / TAKEN_ALONG;
            holds.extend(agenda.take_due(Queue::First, with_it, RENEWED_TOGETHER - holds.len(), now));
            if !holds.is_empty() {
                return Some(self.batch(holds, Lane::First, 0, interval, now));
            }
        }
        if !renewals.has_room(Lane::Again, late, now) {
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
                batch.apart = queue == Queue::Refused;
                return Some(batch);
            }
        }
        None
    }

    fn batch(&mut self, holds: Vec<Arc<Hold>>, lane: Lane, in_vain: u32, interval: Duration, now: Instant) -> Batch {
        let left = holds.iter().map(|hold| hold.deadline().saturating_duration_since(now));
        // For the first of the deadlines: one time for them all keeps them together.
        let least_left = left.clone().min().unwrap_or_default();
        let pause = self.renewals.pause(interval, in_vain, least_left);
        // What hangs takes a connection of the pool, so the first may hang for as long as it is of use, and few beside it.
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
            apart: false,
            pause,
            within,
        }
    }

    /// Whether a renewal is late by more than an interval.
    fn is_late(&self, interval: Duration, now: Instant) -> bool {
        let by = now.checked_sub(interval);
        by.is_some_and(|by| self.agenda.is_due(Queue::First, by))
    }

    /// When the heart has to beat again.
    pub(super) fn next_beat(&self, interval: Duration, wants_to_stream: bool, now: Instant) -> Option<Instant> {
        let late = self.is_late(interval, now);
        let next = self.agenda.next(|queue| self.renewals.room_for(queue, late, now));
        next.into_iter().chain(self.looks_at(wants_to_stream, now)).min()
    }

    /// When a stream is asked for that tells of losses, or holds are looked after as there is none.
    fn looks_at(&self, wants_to_stream: bool, now: Instant) -> Option<Instant> {
        let worth_it = self.agenda.oldest()?.since + WORTH_WATCHING;
        if wants_to_stream {
            return Some(worth_it);
        }
        (!self.streaming).then(|| worth_it.max(self.verify_at.unwrap_or(now)))
    }

    /// The next thousand of those that no stream tells of, in turn.
    fn look_after(&mut self, now: Instant) -> Vec<Arc<Hold>> {
        let holds = self.agenda.after(self.looked_after, RENEWED_TOGETHER);
        // From the beginning again, after the last.
        let all = holds.len() < RENEWED_TOGETHER;
        self.looked_after = holds.last().filter(|_| !all).map_or(0, |hold| hold.number);
        self.verify_at = Some(now + LOOK_AFTER);
        holds
    }
}

impl Session {
    /// Does what is due, and returns when something will be due next.
    fn beat(self: &Arc<Self>) -> Instant {
        let now = Instant::now();
        let wants_to_stream = self.wants_to_stream();
        let (over, asking, looked_after) = {
            let mut table = self.table();
            let over = table.agenda.take_over(now, AT_A_TIME);
            let asking = table.agenda.take_asking(now, AT_A_TIME);
            let mut looked_after = Vec::new();
            if table.looks_at(wants_to_stream, now).is_some_and(|at| at <= now) {
                if wants_to_stream {
                    self.demand_stream();
                } else {
                    looked_after = table.look_after(now);
                }
            }
            (over, asking, looked_after)
        };
        for hold in over {
            self.bury(&hold);
        }
        for name in asking {
            // Feeding nothing is enough: the line is asked for its next operation.
            self.feed(&name, |_, _, _| {});
        }
        self.renew_due(now);
        self.verify(looked_after);

        let mut table = self.table();
        let next = table
            .next_beat(self.config.renewal_interval, self.wants_to_stream(), now)
            .unwrap_or(now + NOTHING_DUE);
        // What is late in spite of all must not make the heart race.
        let next = next.max(now + Duration::from_millis(1));
        table.beat_at = Some(next);
        next
    }

    /// Lets go of a hold that is over.
    pub(super) fn bury(self: &Arc<Self>, hold: &Arc<Hold>) {
        // Its time can be over without anybody having looked.
        if hold.lost_reason().is_none() {
            return;
        }
        hold.tell_end();
        self.feed(&hold.name, |lines, context, _| {
            if let Some(line) = lines.by_name.get_mut(&hold.name)
                && line.has(&hold.id)
            {
                line.let_go(hold, None, context);
            }
        });
    }

    /// Renews what is due, as far as there is room.
    fn renew_due(self: &Arc<Self>, now: Instant) {
        let mut sizes = BTreeMap::new();
        loop {
            // Bound by itself, so that the mutex is let go after each.
            let batch = self.table().next_batch(self.config.renewal_interval, &mut sizes, now);
            let Some(batch) = batch else { return };
            self.send_renewal(batch);
        }
    }

    fn send_renewal(self: &Arc<Self>, batch: Batch) {
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
            let mut renewing = std::pin::pin!(session.renew_together(holds, batch.apart, batch.within));
            let answered = tokio::select! {
                biased;
                answered = &mut renewing => Some(answered),
                () = sleep(*pause) => None,
            };
            // Who is late does not keep the next from being sent: there may be another primary by now.
            drop(awaited);
            let answered = match answered {
                Some(answered) => answered,
                None => renewing.await,
            };
            if answered.is_ok() && *in_vain == 0 {
                session.table().renewals.answered(sent_at.elapsed(), *pause, *lane);
            }
            if let Err(error) = answered {
                let again = Instant::now() + (session.config.renewal_interval / 10).min(BACKOFF.1);
                for (hold, number) in holds.iter().zip(&batch.numbers) {
                    hold.failed(*number, again, error.was_answered());
                }
                session.reschedule(holds);
            }
        });
    }

    /// Enters in the agenda that the times of holds have changed.
    fn reschedule(&self, holds: &[Arc<Hold>]) {
        let now = Instant::now();
        for some in holds.chunks(AT_A_TIME) {
            let mut table = self.table();
            for hold in some {
                table.agenda.update(hold, now);
            }
            self.beat_in_time(&mut table);
        }
    }

    /// Wakes the heart if it would sleep for too long.
    pub(super) fn beat_in_time(&self, table: &mut Table) {
        let next = table.next_beat(self.config.renewal_interval, self.wants_to_stream(), Instant::now());
        if let Some(next) = next
            && table.beat_at.is_none_or(|beat_at| next < beat_at)
        {
            table.beat_at = Some(next);
            self.beat.notify_one();
        }
    }

    /// Renews holds in one command. `Some`: why the server refused single documents; that is for their holds to bear, and
    /// they have been told.
    pub(crate) async fn renew_together(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        apart: bool,
        within: Duration,
    ) -> Result<Option<StoreError>, StoreError> {
        let renewed = self.renew_once(holds, apart, within).await;
        self.reschedule(holds);
        let (renewed, refused) = renewed.inspect_err(|error| telemetry::renewal_failed(holds.len(), error))?;
        telemetry::renewed(renewed);
        Ok(refused)
    }

    /// Renews, and returns how many were, and why the others were refused, if any. Which of them are gone is only read when
    /// some are.
    async fn renew_once(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        apart: bool,
        within: Duration,
    ) -> Result<(u64, Option<StoreError>), StoreError> {
        let mut entries = BTreeMap::<String, Vec<String>>::new();
        for hold in holds {
            entries.entry(hold.name.clone()).or_default().push(hold.id.clone());
        }
        let renewal = Renewal {
            operation: self.ids.operation(),
            entries,
            keep: self.config.keep_millis(),
            within,
            apart,
        };
        // Reckoned by what is known of the server's clock as it is sent: by the answer it may be another's.
        let sent = Instant::now();
        let deadline = Deadline::of_renewal(sent, self.config.lease, &self.table().clock, &self.config);
        let outcome = self.store.renew(&renewal).await?;
        let renew_at = sent + self.config.renewal_interval;
        let mut asked = Vec::new();
        for hold in holds {
            match outcome.refused.get(&hold.name) {
                Some(error) => self.refused(hold, sent, error),
                None => asked.push(hold),
            }
        }
        let why = outcome.refused.into_values().next();
        let refused = holds.len() - asked.len();
        if refused > 0 {
            telemetry::renewals_refused(refused);
        }
        // Documents are counted, not holders: with two of ours in one document a missing one would not show.
        if outcome.renewed == asked.len() as u64 && renewal.entries.values().all(|ids| ids.len() == 1) {
            for some in asked.chunks(AT_A_TIME) {
                // Under the mutex of the clock, so that none escapes it when that is set ahead.
                let clock = &self.table().clock;
                for hold in some {
                    hold.renewed(deadline.corrected(clock, &self.config), renew_at);
                    hold.answered(sent);
                }
            }
            self.hear_the_clock(&holds[0].name, sent);
            return Ok((outcome.renewed, why));
        }
        let names: BTreeSet<&String> = asked.iter().map(|hold| &hold.name).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        let (documents, exchange) = self.read_names(&names).await?;
        self.note(&exchange);
        let mut renewed = 0;
        for hold in asked {
            let state = documents.get(&hold.name).and_then(|document| document.as_ref().ok());
            let holder = state.and_then(|state| state.holders.iter().find(|holder| hold.is(holder)));
            let deadline =
                holder.and_then(|holder| Deadline::of_reading(&exchange, holder.until, sent, hold.lease, &self.config));
            if let Some(deadline) = deadline {
                hold.renewed(deadline.corrected(&self.table().clock, &self.config), renew_at);
                hold.answered(sent);
                renewed += 1;
            }
            self.compare(hold, documents.get(&hold.name));
        }
        Ok((renewed, why))
    }

    /// The server refused to renew a hold, alone among those that were renewed with it.
    fn refused(&self, hold: &Hold, sent: Instant, error: &StoreError) {
        let interval = self.config.renewal_interval;
        let times = hold.refused(|times, left| {
            let pause = (interval / 10)
                .min(BACKOFF.1)
                .saturating_mul(2_u32.saturating_pow(times));
            pause.min(interval).min(left / 3).max(SOONEST)
        });
        hold.answered(sent);
        if times == 1 {
            telemetry::renewal_refused(&hold.name, error);
        }
    }

    /// Renewals tell nothing of the server's clock. Where nothing else has since the one before, a document is read.
    fn hear_the_clock(self: &Arc<Self>, name: &str, now: Instant) {
        let Some(since) = now.checked_sub(self.config.renewal_interval) else {
            return;
        };
        if self.table().clock.is_stale(since, now) {
            let (session, names) = (self.clone(), [name.to_owned()]);
            self.spawn(async move {
                // Should it fail, the next renewal asks again.
                if let Ok((_, exchange)) = session.read_names(&names).await {
                    session.note(&exchange);
                }
            });
        }
    }

    /// Takes in what an exchange tells of the server's clock.
    pub(super) fn note(self: &Arc<Self>, exchange: &Exchange) {
        let jump = self.table().clock.note(exchange, &self.config);
        self.on_jump(jump);
    }

    /// The server's clock contradicts what was known of it. To be called when no mutex is held.
    pub(super) fn on_jump(self: &Arc<Self>, jump: Option<Jump>) {
        let Some(jump) = jump else { return };
        if jump.ahead {
            // At once, without a pause: whoever looks at a hold after this is to see the deadline that is right.
            let mut last = 0;
            loop {
                let holds = {
                    let mut table = self.table();
                    let holds = table.agenda.after(last, AT_A_TIME);
                    for hold in &holds {
                        hold.shorten(&table.clock, &self.config);
                        table.agenda.update(hold, Instant::now());
                    }
                    holds
                };
                holds.iter().for_each(|hold| hold.look_again());
                match holds.last() {
                    Some(hold) => last = hold.number,
                    None => break,
                }
            }
            self.beat.notify_one();
        }
        telemetry::clock_jumped(jump.by, jump.ahead);
    }

    pub(super) fn compare(self: &Arc<Self>, hold: &Hold, document: Option<&Result<State, Malformed>>) {
        self.feed(&hold.name, |lines, context, effects| {
            if let Some(line) = lines.by_name.get_mut(&hold.name) {
                line.verified(document, std::slice::from_ref(&hold.id), context, effects);
            }
        });
    }

    /// Reads the documents of holds whose state is in doubt. What comes up meanwhile goes into the next reading.
    pub(super) fn verify(self: &Arc<Self>, holds: Vec<Arc<Hold>>) {
        if holds.is_empty() {
            return;
        }
        {
            let mut table = self.table();
            table.doubted.extend(holds.into_iter().map(|hold| (hold.number, hold)));
            if std::mem::replace(&mut table.verifying, true) {
                return;
            }
        }
        let session = self.clone();
        self.spawn(async move {
            loop {
                let doubted = {
                    let mut table = session.table();
                    let doubted = std::mem::take(&mut table.doubted);
                    table.verifying = !doubted.is_empty();
                    doubted
                };
                if doubted.is_empty() {
                    return;
                }
                let doubted: Vec<Arc<Hold>> = doubted.into_values().collect();
                for together in doubted.chunks(RENEWED_TOGETHER) {
                    session.verify_together(together).await;
                }
            }
        });
    }

    pub(super) async fn verify_together(self: &Arc<Self>, holds: &[Arc<Hold>]) {
        let names: BTreeSet<&String> = holds.iter().map(|hold| &hold.name).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        for look in 0..LOOKS {
            match self.read_names(&names).await {
                Ok((documents, exchange)) => {
                    self.note(&exchange);
                    for hold in holds {
                        self.compare(hold, documents.get(&hold.name));
                    }
                    return;
                }
                Err(_) => sleep(BACKOFF.0.saturating_mul(1 << look)).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::future::join_all;

    use super::{super::hold::LOOKS, *};
    use crate::{
        client::LockClient,
        config::Settings,
        protocol::ServerTime,
        status::{LockStatus, LostReason},
        store::{MemoryStore, Store, simulated::Link},
        wake_mode::WakeMode,
    };

    const LEASE: Duration = Duration::from_secs(10);

    fn memory() -> Arc<MemoryStore> {
        Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)))
    }

    fn client(memory: &Arc<MemoryStore>, id: &str, lease: Duration) -> (Arc<Link>, LockClient) {
        let link = Link::new(memory.clone(), 1);
        link.calm();
        let settings = Settings {
            lease: Some(lease),
            ..Settings::default()
        };
        let (config, store) = (settings.validate().unwrap(), Store::Simulated(link.clone()));
        let session = Session::of(id.to_owned(), config, store, None, WakeMode::ChangeStream);
        (link, LockClient::new(session))
    }

    /// Renewals of two thousand locks keep this server busy for half of the time, if none is sent twice, and no answer
    /// comes as fast as it used to.
    #[tokio::test(start_paused = true)]
    async fn a_slow_server_is_not_made_slower() {
        const COUNT: usize = 2_000;
        let (link, locks) = client(&memory(), "0123456789abcdef", LEASE);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(2 * LEASE).await;

        let burden = link.burden(Duration::from_millis(300), Duration::from_micros(500));
        sleep(10 * LEASE).await;
        let lost = acquired.iter().filter(|handle| handle.lost_reason().is_some()).count();
        assert_eq!(lost, 0);
        let least = acquired.iter().map(|handle| handle.safe_for()).min();
        assert!(least.is_some_and(|least| least > LEASE / 2), "{least:?}");
        // Two commands a round and five rounds a lease, or fewer, as there is a rest after each.
        assert!((60..150).contains(&burden.renewals()), "{}", burden.renewals());
    }

    /// A round of renewals keeps this server busy for five seconds of six, and a claim lease is over in five.
    #[tokio::test(start_paused = true)]
    async fn what_is_held_on_a_claim_lease_does_not_wait_for_others() {
        const COUNT: usize = 5_000;
        let (memory, lease) = (memory(), 3 * LEASE);
        let (link, locks) = client(&memory, "0123456789abcdef", lease);
        let (_, other) = client(&memory, "fedcba9876543210", lease);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let _acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(lease).await;
        let _burden = link.burden(Duration::from_millis(300), Duration::from_millis(1));
        sleep(lease).await;
        // Whenever in the round it comes.
        for late in [0, 3] {
            let held = other.mutex("x").acquire().await.unwrap();
            let waiting = locks.mutex("x");
            let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
            sleep(Duration::from_secs(10 + late)).await;
            held.release().await.unwrap();
            let claimed = waiting.await.unwrap();
            sleep(LEASE).await;
            assert_eq!(claimed.lost_reason(), None, "{late}");
            claimed.release().await.unwrap();
        }
    }

    /// Between renewals nobody looks at what is held, whatever comes and goes beside it.
    #[tokio::test(start_paused = true)]
    async fn an_acquire_costs_no_look_at_what_is_held_beside_it() {
        const COUNT: usize = 10_000;
        const BESIDE: u64 = 100;
        let (_, locks) = client(&memory(), "0123456789abcdef", 6 * LEASE);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(6 * LEASE).await;
        let before = LOOKS.with(Cell::get);
        for number in 0..BESIDE {
            let handle = locks.mutex(format!("beside {number}")).acquire().await.unwrap();
            handle.release().await.unwrap();
        }
        let looks = LOOKS.with(Cell::get) - before;
        // Each of those held may have been renewed once meanwhile, with some looks; a single walk for each of those beside
        // them would be a million.
        assert!(looks < 20 * COUNT as u64, "{looks}");
        assert!(acquired.iter().all(|handle| handle.lost_reason().is_none()));
        locks.shutdown().await;
    }

    /// A thousand locks that are renewed together, of whose documents the server refuses one.
    #[tokio::test(start_paused = true)]
    async fn a_document_that_is_refused_costs_no_others_their_renewal() {
        const COUNT: usize = 1_000;
        let (link, locks) = client(&memory(), "0123456789abcdef", LEASE);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        let lost = || acquired.iter().filter(|handle| handle.lost_reason().is_some()).count();
        let at_risk = || {
            acquired
                .iter()
                .filter(|handle| handle.status() == LockStatus::AtRisk)
                .count()
        };
        sleep(LEASE).await;
        // For a while, and it is made up for.
        link.refuse(["lock 500".to_owned()]);
        sleep(LEASE / 2).await;
        assert_eq!((at_risk(), lost()), (1, 0));
        link.refuse([]);
        sleep(LEASE / 4).await;
        assert_eq!((at_risk(), lost()), (0, 0));
        // For ever.
        link.refuse(["lock 500".to_owned(), "lock 501".to_owned()]);
        let burden = link.burden(Duration::ZERO, Duration::ZERO);
        sleep(LEASE).await;
        assert_eq!((at_risk(), lost()), (0, 2));
        // Those of the others, and a few for the two that grow fewer.
        assert!((5..40).contains(&burden.renewals()), "{}", burden.renewals());
        sleep(2 * LEASE).await;
        assert_eq!((at_risk(), lost()), (0, 2));
        // And all, as where a validator was added that suits none.
        link.refuse((0..COUNT).map(|number| format!("lock {number}")));
        sleep(LEASE / 2).await;
        assert_eq!(lost(), 2);
        sleep(LEASE).await;
        assert_eq!(lost(), COUNT);
        drop(acquired);
        locks.shutdown().await;
    }

    /// The primary's clock is set ahead, or another becomes primary whose clock is, by more than the margin.
    #[tokio::test(start_paused = true)]
    async fn a_server_whose_clock_was_set_ahead_is_found_out() {
        let millis = Duration::from_millis;
        let memory = memory();
        let (link, locks) = client(&memory, "0123456789abcdef", LEASE);
        let (_, other) = client(&memory, "fedcba9876543210", LEASE);
        let held = locks.mutex("x").acquire().await.unwrap();
        sleep(LEASE).await;
        assert_eq!(held.status(), LockStatus::Held);
        // By whatever is heard of the clock; while renewals hang, so that what it comes to is to be seen.
        let burden = link.burden(LEASE * 10, Duration::ZERO);
        let before = held.safe_for();
        memory.run_ahead(4_000);
        let beside = locks.mutex("y").acquire().await.unwrap();
        let after = held.safe_for();
        assert!(
            (millis(3_900)..millis(4_100)).contains(&(before - after)),
            "{before:?}, {after:?}"
        );
        assert_eq!((held.status(), beside.status()), (LockStatus::AtRisk, LockStatus::Held));
        drop(burden);
        link.unburden();
        sleep(LEASE / 2).await;
        assert_eq!((held.status(), beside.status()), (LockStatus::Held, LockStatus::Held));
        assert!(held.safe_for() > LEASE / 2);

        // By the heart, where nothing else asks; and what is over by that clock is lost.
        memory.run_ahead(2 * LEASE.as_millis() as i64);
        sleep(LEASE / 4).await;
        assert_eq!(
            (held.lost_reason(), beside.lost_reason()),
            (Some(LostReason::Expired), Some(LostReason::Expired))
        );
        assert!(other.mutex("x").try_acquire().await.unwrap().is_some());
    }
}
