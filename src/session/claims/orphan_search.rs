//! The search for orphans: entries of claims whose outcome is unknown.
//!
//! Such a claim may have been applied, or may still be. Its document is known to nobody, so the search goes through all
//! documents that are wanted, as the claim did. Where claims fail because the server is slow, searches make it slower.
//! So a session has one task that searches, which looks for all orphans of a filter at once, and rests after each
//! search. A search that fails is made again for as long as the entry can be live: its lease is never renewed, but it
//! can be a long one. A shutdown waits for a search at once, and for one when the server has given up the claim.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    super::{Session, hedged_read::Cost, timer_queue::AT_A_TIME},
    filter::{Filter, REST, SELDOM},
};
use crate::{error::ServerError, waitlist::SWEEPS};

/// The entries that a session searches for.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// No more than one search looks for: beyond it, those whose leases end first are left to their leases.
    all: Vec<Orphan>,
    /// Wakes the task that searches for them, unless that has ended.
    task: Weak<Notify>,
    /// Whether a shutdown waits for the searches.
    is_closing: bool,
}

#[derive(Debug)]
struct Orphan {
    entry: String,
    filter: Arc<Filter>,
    /// When to search for it, the next time first.
    due: Vec<Instant>,
    /// Whether a search has found it in no document, after the server had given the claim up.
    is_absent: bool,
    /// When the server gives the claim up that asks for it.
    given_up_at: Instant,
    /// When its lease is over, if it was applied at once.
    over: Instant,
}

impl Orphan {
    /// Makes its search due now, with one more when the server has given the claim up.
    fn hasten(&mut self, now: Instant) {
        self.due = vec![now, self.given_up_at];
    }

    /// Returns its entry and the end of its lease.
    fn to_seek(&self) -> (String, Instant) {
        (self.entry.clone(), self.over)
    }
}

impl Orphans {
    /// Whether nothing is searched for.
    pub(super) fn is_done(&self) -> bool {
        self.task.strong_count() == 0
    }

    /// Makes all searches due, and those of later orphans too.
    fn hasten(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.all.iter_mut().for_each(|orphan| orphan.hasten(now));
        }
    }

    /// Returns when to search next, and for what; `None` where nothing is left, and the task ends.
    fn next(&mut self, now: Instant) -> Option<(Instant, Arc<Filter>)> {
        self.all.retain(|orphan| now < orphan.over);
        let next = self.all.iter().min_by_key(|orphan| orphan.due.first());
        let next = next.and_then(|orphan| Some((*orphan.due.first()?, orphan.filter.clone())));
        if next.is_none() {
            self.task = Weak::new();
        }
        next
    }

    fn of(&self, filter: &Arc<Filter>) -> impl Iterator<Item = &Orphan> {
        self.all.iter().filter(|orphan| Arc::ptr_eq(&orphan.filter, filter))
    }

    /// Returns the orphans of a filter that are due.
    fn due(&self, filter: &Arc<Filter>, now: Instant) -> Vec<(String, Instant)> {
        let of_it = self.of(filter);
        let due = of_it.filter(|orphan| orphan.due.first().is_some_and(|due| *due <= now));
        due.map(Orphan::to_seek).collect()
    }

    /// Notes a search for these entries, which may be due `again`.
    fn searched(&mut self, entries: &[String], began: Instant, again: Option<Instant>) {
        for orphan in self.all.iter_mut().filter(|orphan| entries.contains(&orphan.entry)) {
            orphan.due.retain(|due| *due > began);
            orphan.due.extend(again);
            orphan.due.sort_unstable();
        }
        self.all.retain(|orphan| !orphan.due.is_empty());
    }
}

impl Session {
    /// Searches for the entry of a claim with an unknown outcome, which may be applied now or later, and takes it out
    /// again; in the background.
    pub(super) fn search_orphan(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        entry: String,
        lease: Duration,
        given_up_at: Instant,
    ) {
        let now = Instant::now();
        let mut at = now;
        let due = SWEEPS.iter().map(|pause| {
            at += *pause;
            at
        });
        let mut orphan = Orphan {
            entry,
            filter: filter.clone(),
            due: due.collect(),
            is_absent: false,
            given_up_at,
            over: now + lease,
        };
        let mut orphans = self.claims.orphans();
        if orphans.is_closing {
            orphan.hasten(now);
        }
        orphans.all.retain(|orphan| now < orphan.over);
        orphans.all.push(orphan);
        if orphans.all.len() > AT_A_TIME {
            let ends = orphans.all.iter().enumerate().min_by_key(|(_, orphan)| orphan.over);
            if let Some((first, _)) = ends {
                orphans.all.swap_remove(first);
            }
        }
        if let Some(task) = orphans.task.upgrade() {
            task.notify_one();
            return;
        }
        let task = Arc::new(Notify::new());
        orphans.task = Arc::downgrade(&task);
        drop(orphans);
        self.spawn(self.clone().search_orphans(task));
    }

    async fn search_orphans(self: Arc<Self>, more: Arc<Notify>) {
        let orphans = || self.claims.orphans();
        let (mut backoff, mut rests_until) = (SELDOM, Instant::now());
        loop {
            let is_closed = self.is_closed();
            if is_closed {
                orphans().hasten(Instant::now());
            }
            let Some((mut due_at, filter)) = orphans().next(Instant::now()) else {
                break;
            };
            if !is_closed {
                due_at = due_at.max(rests_until);
            }
            tokio::select! {
                biased;
                () = sleep_until(due_at) => {}
                () = self.closing.cancelled(), if !is_closed => continue,
                () = more.notified() => continue,
            }
            let began = Instant::now();
            let due = orphans().due(&filter, began);
            let entries: Vec<String> = due.iter().map(|(entry, _)| entry.clone()).collect();
            let found = self.take_out_orphans(&filter, due).await;
            let now = Instant::now();
            // One that failed may have kept the server as busy.
            rests_until = now + (now - began) * REST;
            // Those that were found are only about to be taken out. A shutdown waits for that by itself.
            let is_due = |entry: &String| found.as_ref().map_or(true, |found| !is_closed && found.contains(entry));
            let (again, absent): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_due);
            orphans().searched(&absent, began, None);
            backoff = if again.is_empty() { SELDOM } else { backoff };
            if !again.is_empty() {
                orphans().searched(&again, began, Some(now + backoff.failed()));
            }
        }
        // A shutdown waits for searches too.
        self.drained.notify_waiters();
    }

    /// Takes out those of these entries, each with the end of its lease, that are in documents of the filter; returns
    /// them.
    async fn take_out_orphans(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        orphans: Vec<(String, Instant)>,
    ) -> Result<Vec<String>, ServerError> {
        let entries: Vec<String> = orphans.iter().map(|(entry, _)| entry.clone()).collect();
        let began = Instant::now();
        let reading = self.read(Cost::Unknown, || {
            let (store, filter, entries) = (self.store.clone(), filter.clone(), entries.clone());
            async move { store.held_by(&filter.wanted, &entries).await }
        });
        let (found, now) = (reading.await?, Instant::now());
        let mut taken_out = Vec::new();
        for (name, found) in found {
            let over = orphans.iter().find(|(entry, _)| *entry == found);
            let left = over.map_or(Duration::ZERO, |(_, over)| over.saturating_duration_since(now));
            self.take_out_claim(name, found.clone(), left);
            taken_out.push(found);
        }
        let mut orphans = self.claims.orphans();
        for orphan in orphans.all.iter_mut().filter(|orphan| entries.contains(&orphan.entry)) {
            orphan.is_absent = began >= orphan.given_up_at && !taken_out.contains(&orphan.entry);
        }
        drop(orphans);
        Ok(taken_out)
    }

    /// Looks at once for the orphans of a filter if one of them may be what holds a document. Returns whether any was
    /// found, which is being taken out. Tasks that are in doubt at the same time share a search, as long as it finds
    /// nothing.
    pub(super) async fn find_orphans(self: &Arc<Self>, filter: &Arc<Filter>) -> Result<bool, ServerError> {
        let _turn = filter.search.lock().await;
        let in_doubt = |orphan: &&Orphan| !orphan.is_absent;
        let given_up_at = self
            .claims
            .orphans()
            .of(filter)
            .filter(in_doubt)
            .map(|orphan| orphan.given_up_at)
            .max();
        let Some(given_up_at) = given_up_at else {
            return Ok(false);
        };
        // Until then one may be applied between a search that misses it and the next attempt.
        sleep_until(given_up_at).await;
        let orphans = self.claims.orphans().of(filter).map(Orphan::to_seek).collect();
        Ok(!self.take_out_orphans(filter, orphans).await?.is_empty())
    }

    /// Whether an orphan may be what holds a document of the filter.
    pub(super) fn may_have_orphans_in(&self, filter: &Arc<Filter>) -> bool {
        self.claims.orphans().of(filter).any(|orphan| !orphan.is_absent)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use mongodb::bson::doc;
    use tokio::time::{sleep, timeout};

    use super::{
        super::{Claiming, Failing},
        *,
    };
    use crate::{
        config::Settings,
        error::AcquireError,
        hold_options::{Lease, Terms},
        session::Session,
        store::{Connection, LockLayout, MemoryDocuments, MemoryStore, Store, Wanted, lock_layout::Paths},
        tests::simulated::Link,
        waitlist::answers::TRY_FOR,
        wake_mode::WakeMode,
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn lease(session: &Arc<Session>) -> Lease {
        Terms::default().lease(&session.config)
    }

    fn everything() -> Arc<Filter> {
        Arc::new(Filter::new(Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        }))
    }

    fn session(documents: &Arc<MemoryDocuments>) -> Arc<Session> {
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let store = Store::Memory(Arc::new(MemoryStore::new(
            documents.clone(),
            place,
            Connection::default(),
        )));
        let config = Settings::default().validate().unwrap();
        let id = "0123456789abcdef".to_owned();
        Session::of(id, config, store, None, WakeMode::ChangeStream)
    }

    /// A claim of all documents, and an orphan that holds the only one: after an earlier claim, whose answer was lost.
    async fn beside_an_orphan() -> (Arc<Session>, Arc<Link>, Claiming) {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let memory = MemoryStore::new(documents, place, Connection::default());
        let link = Link::new(Arc::new(memory), 1);
        link.calm();
        let config = Settings::default().validate().unwrap();
        let store = Store::Simulated(link.clone());
        let session = Session::of("0123456789abcdef".into(), config, store, None, WakeMode::ChangeStream);
        let (entry, owner) = (session.ids.claim(), session.config.owner(None));
        let claiming = session.claiming(everything().wanted.clone(), owner.clone(), Terms::default(), 1);
        let operation = session.operation_of_claim(entry.clone(), owner, claiming.lease);
        let (filter, within) = (&claiming.filter, Duration::from_secs(1));
        let claimed = session.store.claim(&filter.wanted, &[], &[operation], within).await;
        assert_eq!(claimed.unwrap().claimed.len(), 1);
        session.search_orphan(filter, entry, LEASE, Instant::now() + within);
        (session, link, claiming)
    }

    #[tokio::test(start_paused = true)]
    async fn no_claim_is_told_that_nothing_is_free_while_an_orphan_may_be_what_holds_it() {
        let failing = Failing::default();
        let tries = async |(session, _, claiming): &(Arc<Session>, Arc<Link>, Claiming)| {
            let claimed = session.claim(claiming, false, false, &failing).await;
            claimed.unwrap().len()
        };
        assert_eq!(tries(&beside_an_orphan().await).await, 1);

        // The time of a claim is over before the search for it.
        let waits = &beside_an_orphan().await;
        let claim = waits.0.claim(&waits.2, true, false, &failing);
        timeout(SWEEPS[0] / 2, claim).await.unwrap_err();
        assert!(waits.0.may_have_orphans_in(&waits.2.filter));

        // It was found, and is not taken out yet.
        let late = &beside_an_orphan().await;
        late.1.block("1", true);
        sleep(SWEEPS[0] * 3 / 2).await;
        let taken_out = async {
            sleep(SWEEPS[1]).await;
            late.1.block("1", false);
        };
        assert_eq!(tokio::join!(tries(late), taken_out).0, 1);
    }

    /// A search before that says nothing of what the next attempt meets.
    #[tokio::test(start_paused = true)]
    async fn a_try_in_doubt_searches_when_the_server_has_given_the_claim_up() {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let (session, filter) = (session(&documents), everything());
        let (entry, begun) = (session.ids.claim(), Instant::now());
        let operation = session.operation_of_claim(entry.clone(), session.config.owner(None), lease(&session));
        session.ids.pending_claims.settled(&entry);
        let given_up_at = begun + SWEEPS[0] * 2;
        session.search_orphan(&filter, entry, LEASE, given_up_at);
        let (claiming, wanted) = (session.clone(), filter.clone());
        let applied = tokio::spawn(async move {
            sleep_until(given_up_at - Duration::from_millis(1)).await;
            let (store, within) = (&claiming.store, Duration::from_secs(1));
            store.claim(&wanted.wanted, &[], &[operation], within).await.unwrap();
        });
        assert!(session.find_orphans(&filter).await.unwrap());
        assert_eq!(Instant::now(), given_up_at);
        applied.await.unwrap();
    }

    /// Far more of them than commands that may be in flight.
    #[tokio::test(start_paused = true)]
    async fn tries_end_in_time_while_no_claim_is_answered() {
        let (session, link, claiming) = beside_an_orphan().await;
        link.kill_idle(u64::MAX);
        let (begun, failing) = (Instant::now(), Failing::default());
        let tries = (0..50).map(|_| session.claim(&claiming, false, false, &failing));
        let tried = timeout(TRY_FOR * 20, join_all(tries)).await.unwrap();
        assert!(tried.iter().all(Result::is_err), "{tried:?}");
        assert_eq!(begun.elapsed(), TRY_FOR);
    }

    /// Their searches are made one after the other, and none is answered.
    #[tokio::test(start_paused = true)]
    async fn tries_in_doubt_end_in_time_while_searches_are_not_answered() {
        let (session, link, claiming) = beside_an_orphan().await;
        link.block("1", true);
        let (_turn, begun, failing) = (claiming.filter.search.lock().await, Instant::now(), Failing::default());
        let tries = (0..50).map(|_| session.claim(&claiming, false, false, &failing));
        let tried = timeout(TRY_FOR * 2, join_all(tries)).await.unwrap();
        assert!(
            tried.iter().all(|tried| matches!(tried, Err(AcquireError::Server(_)))),
            "{tried:?}"
        );
        assert_eq!(begun.elapsed(), TRY_FOR);
    }

    /// A session with these orphans of a filter each.
    fn searching(orphans: &[(&Arc<Filter>, &str, Duration)]) -> Arc<Session> {
        let session = session(&Arc::new(MemoryDocuments::default()));
        for (filter, entry, lease) in orphans {
            session.search_orphan(filter, (*entry).to_owned(), *lease, Instant::now());
        }
        session
    }

    /// The entries that are due first.
    fn next(session: &Arc<Session>, now: Instant) -> Option<(Instant, Vec<String>)> {
        let (at, filter) = session.claims.orphans().next(now)?;
        let due = session.claims.orphans().due(&filter, at.max(now));
        Some((at, due.into_iter().map(|(entry, _)| entry).collect()))
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_searches_for_few_orphans_and_for_none_for_ever() {
        let (session, filter) = (searching(&[]), everything());
        let before = Arc::strong_count(&session);
        let orphans = || session.claims.orphans().all.len();
        for _ in 0..2 {
            for number in 0..2 * AT_A_TIME {
                session.search_orphan(&filter, format!("entry {number}"), LEASE, Instant::now());
            }
            assert_eq!((orphans(), Arc::strong_count(&session)), (AT_A_TIME, before + 1));
            sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
            assert_eq!((orphans(), Arc::strong_count(&session)), (0, before));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_orphans_of_a_filter_are_searched_for_together() {
        let (a, b) = (everything(), everything());
        let session = searching(&[(&a, "1", LEASE), (&b, "2", LEASE), (&a, "3", LEASE)]);
        let mut at = Instant::now();
        for pause in SWEEPS {
            at += pause;
            for entries in [vec!["1", "3"], vec!["2"]] {
                let (due_at, due) = next(&session, at).unwrap();
                assert_eq!(
                    (due_at, &due),
                    (at, &entries.iter().map(|it| (*it).to_owned()).collect())
                );
                session.claims.orphans().searched(&due, at, None);
            }
        }
        assert!(next(&session, at).is_none());
        let session = searching(&[(&a, "4", LEASE)]);
        assert!(next(&session, Instant::now() + LEASE).is_none(), "its lease is over");
    }

    /// A claim with a long lease may be applied as a server goes away for longer than the client's own.
    #[tokio::test(start_paused = true)]
    async fn an_orphan_is_searched_for_as_long_as_it_can_be_live_and_the_longest_have_the_room() {
        let (filter, day) = (everything(), Duration::from_secs(86_400));
        let session = searching(&[(&filter, "of a day", day)]);
        for number in 0..2 * AT_A_TIME {
            session.search_orphan(&filter, format!("entry {number}"), LEASE, Instant::now());
        }
        let (mut failing, mut searches, begun) = (SELDOM, 0, Instant::now());
        let mut now = begun;
        while let Some((at, entries)) = next(&session, now) {
            assert!(entries.iter().any(|entry| entry == "of a day"), "after {searches}");
            now = at.max(now) + failing.failed();
            session.claims.orphans().searched(&entries, at, Some(now));
            searches += 1;
        }
        assert!(now >= begun + day && (200..2_000).contains(&searches), "{searches}");
    }

    /// Otherwise the entry of a claim without an answer would be searched for after seconds, and stay for a lease if
    /// the runtime ends before.
    #[tokio::test(start_paused = true)]
    async fn a_shutdown_searches_at_once_and_when_the_server_has_given_the_claim_up() {
        let limit = Duration::from_secs(1);
        for (given_up_after, takes) in [(Duration::ZERO, Duration::ZERO), (limit, limit)] {
            let documents = Arc::new(MemoryDocuments::default());
            documents.insert(doc! { "_id": 1 }).unwrap();
            let session = session(&documents);
            let (id, begun) = (session.ids.claim(), Instant::now());
            let operation = session.operation_of_claim(id.clone(), session.config.owner(None), lease(&session));
            let given_up_at = begun + given_up_after;
            session.ids.pending_claims.settled(&id);
            session.search_orphan(&everything(), id, LEASE, given_up_at);
            // It is applied at the last moment.
            let applied = sleep_until(given_up_at - Duration::from_millis(1).min(given_up_after));
            let (claiming, filter) = (session.clone(), everything());
            let applied = tokio::spawn(async move {
                applied.await;
                let within = Duration::from_secs(1);
                let claimed = claiming.store.claim(&filter.wanted, &[], &[operation], within).await;
                claimed.unwrap().claimed.remove(0).name
            });
            if given_up_after.is_zero() {
                tokio::task::yield_now().await;
            }
            session.shut_down().await;
            assert_eq!(begun.elapsed(), takes);
            let name = applied.await.unwrap();
            let lock = session.inspect(&name).await.unwrap().unwrap().0;
            assert!(lock.holders.is_empty(), "{lock:?}");
        }
    }
}
