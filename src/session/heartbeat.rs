//! The one timer of a session: renews what is held, asks again for what is waited for, and notices deadlines.
//!
//! A beat looks only at work that is due, which [`Timers`](super::timer_queue::Timers) have in order, even if very many
//! locks are held, and releases the session's mutex after each thousand of them.

use std::{
    future::pending,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Session, Table,
    hold::Hold,
    timer_queue::{AT_A_TIME, Due},
};
use crate::{protocol::Kind, status::LostReason, telemetry};

/// Runs until the session ends.
pub(super) async fn run(session: Weak<Session>, wake: Arc<Notify>, ended: CancellationToken) {
    loop {
        let Some(present) = session.upgrade() else { return };
        let next = present.beat();
        drop(present);
        let due = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => return,
            () = wake.notified() => {}
            () = due => {}
        }
    }
}

impl Table {
    /// Returns when the heart has to beat again.
    fn next_beat(&self, wants_to_stream: bool, now: Instant) -> Option<Instant> {
        // One report is for all.
        let overdue = self.overdue_since.is_none().then(|| self.timers.first(Due::Overdue));
        let overdue_at = overdue.flatten().map(|(at, _)| at);
        let watch = self.watch_due_at(wants_to_stream, now);
        let times = self.timers.next().into_iter().chain(self.next_renewal());
        times.chain(watch).chain(overdue_at).min()
    }
}

impl Session {
    /// Does the work that is due, and returns when more will be due.
    fn beat(self: &Arc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let (holds, lines) = {
            let timers = &mut self.table().timers;
            (timers.take(Due::Attention, now), timers.take_lines(now))
        };
        for hold in &holds {
            hold.report_too_long();
            if hold.lost_reason().is_none() {
                self.table().timers.update(hold);
            }
            self.let_go_if_over(hold);
        }
        // Others may be over already, and then are not overdue: the next beat comes at once.
        if holds.len() < AT_A_TIME {
            self.report_overdue(now);
        }
        for name in lines {
            // No input is needed: the line is asked for its next operation.
            self.update(&name, None, |_, _| {});
        }
        self.renew_due(now);
        self.watch_holds(now);

        let mut table = self.table();
        let next = table.next_beat(self.wants_to_stream(), now);
        // Work that is late in spite of all must not make the heart race.
        let next = next.map(|next| next.max(now + Duration::from_millis(1)));
        table.beat_at = next;
        next
    }

    /// Lets go of a hold if it is over.
    pub(crate) fn let_go_if_over(self: &Arc<Self>, hold: &Arc<Hold>) {
        // Its time can be over before anything has looked. Whoever releases it lets go of it, and awaits the answer.
        if matches!(hold.lost_reason(), None | Some(LostReason::Released)) {
            return;
        }
        hold.report_end();
        self.update(&hold.name, None, |lines, context| lines.let_go(hold, None, context));
        self.let_go_of_upgrade(hold);
        self.discard_upgraded(hold);
    }

    /// Lets go of the writer's hold that was over with this one, its reader's.
    fn let_go_of_upgrade(self: &Arc<Self>, reader: &Hold) {
        // A plain reader has one permit.
        if reader.used.0 != Kind::RwLock || reader.permits() == 1 {
            return;
        }
        let holds = self.table().lines.holds_of(&reader.name);
        let upgrades = holds.iter().filter(|hold| hold.is_upgrade_of(reader));
        upgrades.for_each(|hold| self.let_go_if_over(hold));
    }

    /// Reports that renewals are overdue, once for all locks until none is any more, in time to do something about it.
    fn report_overdue(&self, now: Instant) {
        let mut table = self.table();
        if table.overdue_since.is_some() {
            return;
        }
        let overdue = || table.timers.due(Due::Overdue, now);
        let Some(end) = overdue().take(AT_A_TIME).map(|hold| hold.deadline()).min() else {
            return;
        };
        let (count, failure) = (overdue().count(), table.renewal_failure.clone());
        table.overdue_since = Some(now);
        drop(table);
        telemetry::renewals_overdue(count, end.saturating_duration_since(now), failure.as_ref());
    }

    /// Notes that the server has acknowledged a write, and reports if renewals are in time again by that: holds that were
    /// lost meanwhile are not overdue either. Not within an interval of the first report: others may be overdue soon.
    pub(super) fn note_in_time(&self) {
        let mut table = self.table();
        let first = table.timers.first(Due::Overdue).map(|(at, _)| at);
        if let Some(since) = table.overdue_since
            && since.elapsed() >= self.config.renewal_interval()
            && first.is_none_or(|at| at > Instant::now())
        {
            table.overdue_since = None;
            self.beat_in_time(&mut table);
            drop(table);
            telemetry::renewals_recovered(since.elapsed());
        }
    }

    /// Wakes the heart if it would sleep for too long.
    pub(super) fn beat_in_time(&self, table: &mut Table) {
        let next = table.next_beat(self.wants_to_stream(), Instant::now());
        if let Some(next) = next
            && table.beat_at.is_none_or(|beat_at| next < beat_at)
        {
            table.beat_at = Some(next);
            self.wake_heartbeat.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::{FutureExt, future::join_all};
    use tokio::time::sleep;

    use super::{
        super::{
            fixtures::{self, ONE, OTHER, memory},
            hold::LOOKS,
        },
        *,
    };
    use crate::{
        client::LockClient,
        config::Config,
        status::{LockStatus, LostReason},
        store::MemoryStore,
        tests::simulated::Link,
    };

    const LEASE: Duration = Duration::from_secs(10);

    fn settings(lease: Duration) -> Config {
        Config {
            lease,
            ..Config::default()
        }
    }

    fn client(memory: &Arc<MemoryStore>, id: &str, lease: Duration) -> (Arc<Link>, LockClient) {
        let (link, session) = fixtures::client(memory, id, settings(lease));
        (link, LockClient::new(session))
    }

    /// Where no task waits to be told, most holds end before one is worth a stream.
    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_to_be_told_of_a_loss_soon_has_a_stream() {
        let memory = memory();
        let (_, other) = client(&memory, OTHER, LEASE);
        for (id, waits) in [(ONE, false), ("0123456789abcde0", true)] {
            let locks = client(&memory, id, LEASE).1;
            let mutex = locks.mutex("x");
            let held = mutex.acquire().await.unwrap();
            if waits {
                assert!(held.lost().now_or_never().is_none());
            }
            sleep(Duration::from_millis(50)).await;
            other.break_lock("x").await.unwrap();
            sleep(Duration::from_millis(20)).await;
            assert_eq!(held.lost_reason(), waits.then_some(LostReason::Broken));
            assert_eq!(held.lost().await, LostReason::Broken);
        }
    }

    /// All of them: the time of its reader ends it, what it has left is not what another gets.
    #[tokio::test(start_paused = true)]
    async fn a_writer_is_on_the_terms_of_its_reader() {
        let locks = client(&memory(), ONE, LEASE).1;
        let (lock, second) = (locks.rw_lock("x"), Duration::from_secs(1));
        let read = lock
            .upgradeable_read()
            .warn_after(second)
            .lose_after(3 * second)
            .await
            .unwrap();
        for refused in [
            read.upgrade().fixed(LEASE),
            read.upgrade().lease(LEASE),
            read.upgrade().at_least_for(second),
            read.upgrade().warn_after(second),
            read.upgrade().lose_after(second),
            read.upgrade().keep_idle(second),
            read.upgrade().reentrant(),
        ] {
            let error = refused.await.unwrap_err();
            assert!(error.to_string().contains("an upgrade of `x` has terms"), "{error}");
        }
        sleep(second).await;
        let write = read.upgrade().await.unwrap();
        assert_eq!(write.status(), LockStatus::HeldTooLong);
        assert_eq!(write.lost().await, LostReason::HeldTooLong);
        drop(lock.write().timeout(second).await.unwrap());
    }

    /// Renewals of these locks keep this server busy for a quarter of the time, if none is sent twice, and no answer comes
    /// as fast as it used to.
    #[tokio::test(start_paused = true)]
    async fn a_slow_server_is_not_made_slower() {
        const COUNT: usize = 200;
        let (link, locks) = client(&memory(), ONE, LEASE);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(2 * LEASE).await;

        let burden = link.burden(Duration::from_millis(300), Duration::from_micros(2_500));
        sleep(5 * LEASE).await;
        let lost = acquired.iter().filter(|handle| handle.lost_reason().is_some()).count();
        assert_eq!(lost, 0);
        let least = acquired.iter().map(|handle| handle.safe_for()).min();
        assert!(least.is_some_and(|least| least > LEASE / 2), "{least:?}");
        // One command a round and five rounds a lease, or fewer, as there is a rest after each.
        assert!((15..38).contains(&burden.renewals()), "{}", burden.renewals());
    }

    /// A round of renewals takes this server five seconds of six, and a claim lease is over in five.
    #[tokio::test(start_paused = true)]
    async fn what_is_held_on_a_claim_lease_does_not_wait_for_others() {
        const COUNT: usize = 1_500;
        let (memory, lease) = (memory(), 3 * LEASE);
        let (link, locks) = client(&memory, ONE, lease);
        let (_, other) = client(&memory, OTHER, lease);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let _acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(lease).await;
        let _burden = link.burden(Duration::from_secs(1), Duration::from_millis(2));
        sleep(lease / 2).await;
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

    /// The renewal of an hour's lease may be unanswered for many of the client's own leases.
    #[tokio::test(start_paused = true)]
    async fn a_long_lease_that_hangs_costs_no_shorter_ones_their_renewals() {
        let hour = Duration::from_secs(3_600);
        let (link, locks) = client(&memory(), ONE, 3 * LEASE);
        let acquire = async |name: &str| locks.mutex(name).acquire().lease(hour).await.unwrap();
        let _first = acquire("first").await;
        // So late that it is renewed in a command of its own, while the first one hangs.
        sleep(hour / 9).await;
        let _second = acquire("second").await;
        link.block("first", true);
        // It is due just after the second one.
        sleep(hour / 5 - Duration::from_secs(4)).await;
        let short = locks.mutex("short").acquire().await.unwrap();
        for _ in 0..120 {
            sleep(Duration::from_secs(1)).await;
            assert!(short.safe_for() > LEASE, "{short:?}");
        }
    }

    /// Where little of the lease is left when a renewal is due, it yields to nobody.
    #[tokio::test(start_paused = true)]
    async fn renewals_that_are_due_late_in_the_lease_do_not_yield() {
        const COUNT: usize = 520;
        let settings = Config {
            lease: LEASE,
            renewal_interval: Some(LEASE * 3 / 5),
            ..Config::default()
        };
        let (link, session) = fixtures::client(&memory(), ONE, settings);
        let locks = LockClient::new(session);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        let _burden = link.burden(Duration::from_millis(5), Duration::from_micros(100));
        sleep(LEASE / 2).await;
        let acquiring: Vec<_> = (0..12).map(|task| acquire_on_and_on(&locks, task)).collect();
        // One renewal of each falls into it.
        sleep(LEASE / 5).await;
        acquiring.iter().for_each(|task| task.abort());
        sleep(LEASE * 2 / 5).await;
        let lost = acquired.iter().filter(|handle| handle.lost_reason().is_some()).count();
        assert_eq!(lost, 0);
    }

    fn acquire_on_and_on(locks: &LockClient, task: usize) -> tokio::task::JoinHandle<()> {
        let mutex = locks.mutex(format!("beside {task}"));
        tokio::spawn(async move {
            loop {
                mutex.acquire().await.unwrap().release().await.unwrap();
            }
        })
    }

    /// Between renewals no code looks at the held locks, even while others come and go.
    #[tokio::test(start_paused = true)]
    async fn an_acquire_costs_no_look_at_what_is_held_beside_it() {
        const COUNT: usize = 1_000;
        const BESIDE: u64 = 100;
        let (_, locks) = client(&memory(), ONE, 6 * LEASE);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(2 * LEASE).await;
        let before = LOOKS.with(Cell::get);
        for number in 0..BESIDE {
            let handle = locks.mutex(format!("beside {number}")).acquire().await.unwrap();
            handle.release().await.unwrap();
        }
        let looks = LOOKS.with(Cell::get) - before;
        // Each of those held may have been renewed once meanwhile, with some looks; a single walk for each of those
        // beside them would be a hundred thousand.
        assert!(looks < 20 * COUNT as u64, "{looks}");
        assert!(acquired.iter().all(|handle| handle.lost_reason().is_none()));
        locks.shutdown().await;
    }

    /// A document that hangs holds up the command that it is in, until it is alone.
    #[tokio::test(start_paused = true)]
    async fn a_document_that_hangs_costs_the_others_no_more_than_a_round() {
        const COUNT: usize = 250;
        let (link, locks) = client(&memory(), ONE, 3 * LEASE);
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        sleep(LEASE).await;
        let hanging = [50, 150, 151];
        hanging
            .iter()
            .for_each(|number| link.block(&format!("lock {number}"), true));
        let burden = link.burden(Duration::ZERO, Duration::ZERO);
        for _ in 0..60 {
            sleep(LEASE / 10).await;
            for (number, handle) in acquired.iter().enumerate() {
                assert!(
                    hanging.contains(&number) || handle.safe_for() > LEASE,
                    "{number}: {handle:?}"
                );
            }
        }
        let lost = acquired.iter().filter(|handle| handle.lost_reason().is_some()).count();
        assert_eq!(lost, hanging.len());
        // One command an interval, and what it takes to find out which documents hang, and that they still do.
        assert!(burden.renewals() < 300, "{}", burden.renewals());
    }

    /// In time to do something about it; reported once for all of them, and again only after a recovery.
    #[tokio::test(start_paused = true)]
    async fn renewals_without_an_answer_are_overdue_while_half_of_the_lease_is_left() {
        const COUNT: usize = 200;
        let (link, session) = fixtures::client(&memory(), ONE, settings(LEASE));
        let locks = LockClient::new(session.clone());
        let overdue = || {
            let table = session.table();
            let count = table.timers.due(Due::Overdue, Instant::now()).count();
            (table.overdue_since, count)
        };
        let mutexes = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")));
        let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
        let all_held = || acquired.iter().all(|handle| handle.lost_reason().is_none());
        for _ in 0..2 {
            sleep(LEASE).await;
            assert_eq!(overdue(), (None, 0));
            let _burden = link.burden(LEASE * 10, Duration::ZERO);
            while overdue().0.is_none() {
                sleep(Duration::from_millis(1)).await;
            }
            let least = acquired.iter().map(|handle| handle.safe_for()).min();
            assert!(least.is_some_and(|least| least > LEASE * 4 / 10), "{least:?}");
            let since = overdue().0.unwrap();
            // All renewals are due within an interval.
            sleep(LEASE / 4).await;
            assert_eq!(overdue(), (Some(since), COUNT));
            link.unburden();
            while overdue().0.is_some() {
                sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(overdue().1, 0);
            assert!(all_held());
        }
    }

    /// Batches that are renewed a little too late, one after the other.
    #[tokio::test(start_paused = true)]
    async fn renewals_are_not_reported_in_time_within_an_interval_of_the_report_that_they_are_overdue() {
        let (_, session) = fixtures::client(&memory(), ONE, Config::default());
        let is_reported = || session.table().overdue_since.is_some();
        session.table().overdue_since = Some(Instant::now());
        for _ in 0..9 {
            session.note_in_time();
            assert!(is_reported());
            sleep(session.config.renewal_interval() / 10).await;
        }
        sleep(session.config.renewal_interval() / 10).await;
        session.note_in_time();
        assert!(!is_reported());
    }

    /// All holds after that may be too short to be renewed.
    #[tokio::test(start_paused = true)]
    async fn renewals_that_were_overdue_up_to_the_loss_are_so_until_the_next_answer() {
        let (link, session) = fixtures::client(&memory(), ONE, settings(LEASE));
        let locks = LockClient::new(session.clone());
        let is_reported = || session.table().overdue_since.is_some();
        let held = locks.mutex("x").acquire().await.unwrap();
        link.cut(true);
        assert_eq!(held.lost().await, LostReason::Expired);
        drop(held);
        // All that was sent has failed.
        sleep(LEASE * 10).await;
        assert!(is_reported());
        link.cut(false);
        locks.mutex("y").acquire().await.unwrap().release().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert!(!is_reported());
    }

    /// The primary's clock is set ahead, or another becomes primary whose clock is, by more than the margin.
    #[tokio::test(start_paused = true)]
    async fn a_server_whose_clock_was_set_ahead_is_found_out() {
        let millis = Duration::from_millis;
        let memory = memory();
        let (link, locks) = client(&memory, ONE, LEASE);
        let (_, other) = client(&memory, OTHER, LEASE);
        let held = locks.mutex("x").acquire().await.unwrap();
        // Between two renewals: none is under way.
        sleep(LEASE + LEASE / 10).await;
        assert_eq!(held.status(), LockStatus::Held);
        // By any news of the clock; while renewals hang, so that the effect can be seen.
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

        // By the heart, if nothing else asks; and a hold that is over by that clock is lost.
        memory.run_ahead(2 * LEASE.as_millis() as i64);
        sleep(LEASE / 4).await;
        assert_eq!(
            (held.lost_reason(), beside.lost_reason()),
            (Some(LostReason::Expired), Some(LostReason::Expired))
        );
        assert!(other.mutex("x").try_acquire().await.unwrap().is_some());
    }

    /// Its document has the longer lease, and nobody renews it once more.
    #[tokio::test(start_paused = true)]
    async fn a_fixed_hold_that_is_lengthened_while_the_clock_is_set_ahead_has_that_time() {
        let memory = memory();
        let (link, locks) = client(&memory, ONE, LEASE);
        let held = locks.mutex("x").acquire().fixed(LEASE).await.unwrap();
        link.block("x", true);
        let lengthening = tokio::spawn(async move {
            held.renew_for(3 * LEASE).await.unwrap();
            held
        });
        sleep(Duration::from_millis(100)).await;
        memory.run_ahead(4_000);
        let _noticed = locks.mutex("y").acquire().await.unwrap();
        link.block("x", false);
        let held = lengthening.await.unwrap();
        assert!(held.safe_for() > 2 * LEASE, "{held:?}");
    }
}
