//! The one timer of a session: renews what is held, asks again for what is waited for, and notices deadlines.
//!
//! All holds that are due at about the same time are renewed together, in commands of up to a thousand documents. A
//! renewal that is not answered is no reason to wait: another goes out beside it, as a connection to a frozen or
//! vanished server can hang for longer than the lease. It goes out in parts, as a single document can be what hangs: one
//! that a transaction has written, of which the server says nothing until the transaction ends. A failed renewal is not
//! a loss; the deadline is.
//!
//! A server that is only slow looks the same at first, and each renewal beside another makes it slower, until it does
//! nothing else. So few are on their way at once, the most urgent first, and another goes out beside one no sooner than
//! twice as long after it as answers have taken of late.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Session,
    clock::offset,
    hold::Hold,
    line::{BACKOFF, Line},
};
use crate::{
    protocol::{State, document::Malformed},
    status::LostReason,
    store::{Renewal, StoreError},
    telemetry,
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

/// Another renewal goes out beside an unanswered one after this part of the renewal interval, and beside both after
/// twice as long.
const BESIDE: u32 = 5;

/// However little time is left, so many renewals do no good.
const SOONEST: Duration = Duration::from_millis(50);

/// The most renewals that are on their way at once, but for those that had another sent beside them.
const RENEWALS_AT_ONCE: usize = 64;

/// The most of them that are no repetitions. The server does them side by side, so with more of them each only takes
/// longer; and they leave room in the connection pool, which is the user's.
const FIRST_AT_ONCE: usize = 4;

/// A lock held for longer than this is worth a change stream that tells of its loss. Most critical sections are
/// shorter, and each open stream costs the server some work for every write.
const WORTH_WATCHING: Duration = Duration::from_millis(200);

/// How often holders look after a thousand locks while no stream tells of them.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// Sleep when nothing is due.
const NOTHING_DUE: Duration = Duration::from_secs(3600);

/// How often a failed look is repeated; by then a renewal has told more.
const LOOKS: u32 = 8;

/// How many of those that have less than half of their lease left go out together, beside all others: mostly those that
/// hold on a claim lease, which is too short to wait for its turn.
const URGENT_TOGETHER: usize = 100;

/// The renewals of a session that are on their way, and how long their answers take.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// Those that had no other sent beside them so far.
    awaited: usize,
    /// Those of them that are no repetitions, and not urgent.
    first: usize,
    /// Those of them that are urgent.
    urgent: usize,
    /// The longest that an answer took of late.
    slowest: Duration,
}

/// Why a renewal goes out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// It is due.
    First,
    /// It is due, and there is little time left.
    Urgent,
    /// As others were sent in vain.
    Again,
}

/// The place of a renewal among those that are on their way, for as long as it is waited for.
struct Awaited {
    session: Arc<Session>,
    lane: Lane,
}

impl Awaited {
    /// `None` where there is no room.
    fn begin(session: &Arc<Session>, lane: Lane) -> Option<Self> {
        let renewals = &mut session.table().renewals;
        if renewals.awaited >= RENEWALS_AT_ONCE {
            return None;
        }
        renewals.awaited += 1;
        renewals.first += usize::from(lane == Lane::First);
        renewals.urgent += usize::from(lane == Lane::Urgent);
        let session = session.clone();
        Some(Self { session, lane })
    }
}

/// Also where observers of the user's panic.
impl Drop for Awaited {
    fn drop(&mut self) {
        {
            let renewals = &mut self.session.table().renewals;
            renewals.awaited -= 1;
            renewals.first -= usize::from(self.lane == Lane::First);
            renewals.urgent -= usize::from(self.lane == Lane::Urgent);
        }
        // There may be others that have waited for that.
        self.session.beat.notify_one();
    }
}

impl Renewals {
    /// How many holds may be renewed now that have no renewal on its way.
    fn room(&self) -> usize {
        FIRST_AT_ONCE.saturating_sub(self.first) * RENEWED_TOGETHER
    }

    /// One for which `pause` was waited was answered. A single one that hung does not tell of the others.
    fn answered(&mut self, took: Duration, pause: Duration) {
        self.slowest = took.min(pause * 2).max(self.slowest * 3 / 4);
    }

    /// How long a renewal is waited for until another goes out beside it, after so many in vain.
    fn pause(&self, interval: Duration, in_vain: u32, left: Duration) -> Duration {
        let least = self.slowest.min(interval / 2) * 2;
        let pause = (interval / BESIDE).max(least);
        let pause = pause.saturating_mul(2_u32.saturating_pow(in_vain));
        // In time for the deadline, be it that of a claim; however slow the server is, once more before it.
        pause.min(left / 3).max(least.min(left / 2)).max(SOONEST)
    }
}

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

/// How many of `count` holds go into one command, after so many renewals that were not answered.
fn renewed_together(in_vain: u32, count: usize) -> usize {
    if in_vain == 0 {
        return RENEWED_TOGETHER;
    }
    let part = (RENEWED_TOGETHER / PARTS.saturating_pow(in_vain)).min(count.div_ceil(PARTS));
    part.max(count.div_ceil(COMMANDS)).clamp(1, RENEWED_TOGETHER)
}

/// When the heartbeat is needed for a line.
pub(super) fn due_at(line: &Line, wants_to_stream: bool) -> Option<Instant> {
    let holds = line.holds().filter_map(|hold| {
        let due = hold.renew_at()?.min(hold.deadline());
        Some(if wants_to_stream {
            due.min(hold.since + WORTH_WATCHING)
        } else {
            due
        })
    });
    line.due_at().into_iter().chain(holds).min()
}

impl Session {
    /// Does what is due, and returns when something will be due next.
    fn beat(self: &Arc<Self>) -> Instant {
        let now = Instant::now();
        let interval = self.config.renewal_interval;
        let (mut asking, mut over, mut renewing) = (Vec::new(), Vec::new(), Vec::new());
        let mut looked_after = Vec::new();
        {
            let mut table = self.table();
            let holds = || table.lines.by_name.values().flat_map(Line::holds);
            // Whoever released one lets go of it, and waits to hear what became of it.
            let is_over = |hold: &&Arc<Hold>| hold.lost_reason().is_some_and(|reason| reason != LostReason::Released);
            over.extend(holds().filter(is_over).cloned());
            if holds().any(|hold| hold.renew_at().is_some_and(|at| at <= now)) {
                let with_it = now + interval / TAKEN_ALONG;
                let is_due = |hold: &&Arc<Hold>| {
                    // What is on its way already is not taken along.
                    let soon = if hold.in_vain() == 0 { with_it } else { now };
                    hold.renew_at().is_some_and(|at| at <= soon)
                };
                renewing.extend(holds().filter(is_due).cloned());
                // Who has the least time left comes first, and else by name: what was renewed together is so again. Each
                // time is looked at once, as answers change it meanwhile.
                renewing.sort_by_cached_key(|hold| hold.deadline());
            }
            if holds().any(|hold| hold.since + WORTH_WATCHING <= now) {
                if self.wants_to_stream() {
                    self.demand_stream();
                } else if !table.streaming && table.verify_at.is_none_or(|at| at <= now) {
                    looked_after.extend(holds().cloned());
                }
            }
            for (name, line) in &table.lines.by_name {
                if line.due_at().is_some_and(|at| at <= now) {
                    asking.push(name.clone());
                }
            }
            if !looked_after.is_empty() {
                let thousands = u32::try_from(looked_after.len() / RENEWED_TOGETHER).unwrap_or(u32::MAX);
                table.verify_at = Some(now + LOOK_AFTER.saturating_mul(thousands.saturating_add(1)));
            }
        }
        for hold in over {
            hold.tell_end();
            self.feed(&hold.name, |lines, context, _| {
                lines.line(&hold.name).let_go(&hold, None, context)
            });
        }
        for name in asking {
            // Feeding nothing is enough: the line is asked for its next operation.
            self.feed(&name, |_, _, _| {});
        }
        self.renew(renewing, now);
        self.verify(looked_after);

        let mut table = self.table();
        let wants_to_stream = self.wants_to_stream();
        let lines = table
            .lines
            .by_name
            .values()
            .filter_map(|line| due_at(line, wants_to_stream))
            .min();
        let oldest = table
            .lines
            .by_name
            .values()
            .flat_map(Line::holds)
            .map(|hold| hold.since)
            .min();
        let oldest = oldest.filter(|_| !table.streaming && !wants_to_stream);
        let look = oldest.map(|since| (since + WORTH_WATCHING).max(table.verify_at.unwrap_or(now)));
        let next = lines.into_iter().chain(look).min().unwrap_or(now + NOTHING_DUE);
        // What is late in spite of all must not make the heart race.
        let next = next.max(now + Duration::from_millis(1));
        table.beat_at = Some(next);
        next
    }

    /// Renews holds that are sorted by their deadlines.
    fn renew(self: &Arc<Self>, holds: Vec<Arc<Hold>>, now: Instant) {
        let mut groups: Vec<(u32, Vec<Arc<Hold>>)> = Vec::new();
        for hold in holds {
            // What is part of a transaction is known to stand in the others' way.
            let in_vain = if hold.is_guarded() { u32::MAX } else { hold.in_vain() };
            // The groups come to be sorted by the first deadline in each.
            match groups.iter_mut().find(|(of, _)| *of == in_vain) {
                Some((_, group)) => group.push(hold),
                None => groups.push((in_vain, vec![hold])),
            }
        }
        for (in_vain, holds) in groups {
            if in_vain == 0 {
                self.renew_first(holds, now);
                continue;
            }
            for together in holds.chunks(renewed_together(in_vain, holds.len())) {
                self.send_renewal(together, in_vain, Lane::Again, now);
            }
        }
    }

    /// Renews holds that have no renewal on its way.
    fn renew_first(self: &Arc<Self>, mut holds: Vec<Arc<Hold>>, now: Instant) {
        let (room, urgent) = {
            let renewals = &self.table().renewals;
            (renewals.room(), renewals.urgent)
        };
        let is_urgent = |hold: &&Arc<Hold>| hold.deadline().saturating_duration_since(now) < hold.lease / 2;
        let hurrying = holds.iter().take(URGENT_TOGETHER).take_while(is_urgent).count();
        if hurrying > 0 && urgent < FIRST_AT_ONCE {
            let rest = holds.split_off(hurrying);
            self.send_renewal(&holds, 0, Lane::Urgent, now);
            holds = rest;
        }
        let waiting = holds.split_off(room.min(holds.len()));
        for together in holds.chunks(RENEWED_TOGETHER) {
            self.send_renewal(together, 0, Lane::First, now);
        }
        // They have their turn when one of these has been answered or is overdue.
        for hold in waiting {
            hold.put_off_renewal(now + SOONEST);
        }
    }

    fn send_renewal(self: &Arc<Self>, holds: &[Arc<Hold>], in_vain: u32, lane: Lane, now: Instant) {
        let Some(awaited) = Awaited::begin(self, lane) else {
            for hold in holds {
                hold.put_off_renewal(now + SOONEST);
            }
            return;
        };
        let left = holds.iter().map(|hold| hold.deadline().saturating_duration_since(now));
        // For the first of the deadlines: one time for them all keeps them together.
        let least_left = left.clone().min().unwrap_or_default();
        let interval = self.config.renewal_interval;
        let pause = self.table().renewals.pause(interval, in_vain, least_left);
        // What hangs takes a connection of the pool, so the first may hang for as long as it is of use, and few beside it.
        let within = left.max().unwrap_or_default();
        let within = if in_vain == 0 { within } else { within / 2 };
        let sent: Vec<u64> = holds.iter().map(|hold| hold.renewing(now + pause)).collect();
        let (session, holds) = (self.clone(), holds.to_vec());
        self.spawn(async move {
            let sent_at = Instant::now();
            let mut renewing = std::pin::pin!(session.renew_together(&holds, within));
            let answered = tokio::select! {
                biased;
                answered = &mut renewing => Some(answered),
                () = sleep(pause) => None,
            };
            // Who is late does not keep the next from being sent: there may be another primary by now.
            drop(awaited);
            let answered = match answered {
                Some(answered) => answered,
                None => renewing.await,
            };
            if answered.is_ok() && in_vain == 0 {
                session.table().renewals.answered(sent_at.elapsed(), pause);
            }
            if let Err(error) = answered {
                let again = Instant::now() + (interval / 10).min(BACKOFF.1);
                for (hold, sent) in holds.iter().zip(sent) {
                    hold.failed(sent, again, error.was_answered());
                    // Feeding nothing is enough: the heart learns when to beat next.
                    session.feed(&hold.name, |_, _, _| {});
                }
            }
        });
    }

    /// Renews holds in one command.
    pub(crate) async fn renew_together(
        self: &Arc<Self>,
        holds: &[Arc<Hold>],
        within: Duration,
    ) -> Result<(), StoreError> {
        self.renew_once(holds, within)
            .await
            .map(telemetry::renewed)
            .inspect_err(|error| telemetry::renewal_failed(holds.len(), error))
    }

    /// Renews, and returns how many were. Which of them are gone is only read when some are.
    async fn renew_once(self: &Arc<Self>, holds: &[Arc<Hold>], within: Duration) -> Result<u64, StoreError> {
        let names: BTreeSet<&String> = holds.iter().map(|hold| &hold.name).collect();
        let renewal = Renewal {
            operation: self.ids.operation(),
            names: names.iter().map(|name| (*name).clone()).collect(),
            ids: holds.iter().map(|hold| hold.id.clone()).collect(),
            keep: self.config.keep_millis(),
            within,
        };
        let sent = Instant::now();
        let renewed = self.store.renew(&renewal).await?;
        let renew_at = sent + self.config.renewal_interval;
        // Documents are counted, not holders: with two of ours in one document a missing one would not show.
        if renewed == names.len() as u64 && names.len() == holds.len() {
            for hold in holds {
                hold.renewed(sent + hold.lease - self.config.skew_margin, renew_at);
                hold.answered(sent);
            }
            return Ok(renewed);
        }
        let (documents, exchange) = self.store.read(&renewal.names).await?;
        let mut renewed = 0;
        for hold in holds {
            let state = documents.get(&hold.name).and_then(|document| document.as_ref().ok());
            let holder = state.and_then(|state| state.holders.iter().find(|holder| hold.is(holder)));
            if let (Some(holder), Some(now)) = (holder, exchange.now) {
                // What was read may be a later renewal that is not committed yet: this one is, and no more.
                let until = offset(exchange.sent, now, holder.until).min(sent + hold.lease);
                if let Some(deadline) = until.checked_sub(self.config.skew_margin) {
                    hold.renewed(deadline, renew_at);
                    hold.answered(sent);
                    renewed += 1;
                }
            }
            self.compare(hold, documents.get(&hold.name));
        }
        Ok(renewed)
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
            table.doubted.extend(holds);
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
            match self.store.read(&names).await {
                Ok((documents, _)) => {
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
    use futures::future::join_all;

    use super::*;
    use crate::{
        client::LockClient,
        config::Settings,
        protocol::ServerTime,
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
        // Two commands a round, five rounds a lease.
        assert!((80..150).contains(&burden.renewals()), "{}", burden.renewals());
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

    #[test]
    fn another_renewal_comes_the_later_the_slower_answers_are() {
        let millis = Duration::from_millis;
        let mut renewals = Renewals::default();
        let pause = |renewals: &Renewals, in_vain, left| renewals.pause(millis(2_000), in_vain, millis(left));
        assert_eq!(pause(&renewals, 0, 7_000), millis(400));
        assert_eq!(pause(&renewals, 2, 7_000), millis(1_600));
        assert_eq!(pause(&renewals, 9, 6_000), millis(2_000));
        assert_eq!(pause(&renewals, 9, 60), SOONEST);
        renewals.answered(millis(600), millis(400));
        assert_eq!(pause(&renewals, 0, 7_000), millis(1_200));
        // One fast answer does not make a fast server.
        renewals.answered(millis(1), millis(1_200));
        assert_eq!(pause(&renewals, 0, 7_000), millis(900));
        // However slow it is, there is another before the deadline.
        assert_eq!(pause(&renewals, 9, 1_000), millis(500));
        assert_eq!(pause(&renewals, 9, 60), SOONEST);
        // And however long one hung, a connection that hangs is found out about.
        renewals.answered(millis(20_000), millis(900));
        assert_eq!(pause(&renewals, 0, 7_000), millis(2_000));
    }
}
