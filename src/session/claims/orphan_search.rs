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

use tokio::time::{Instant, sleep_until};

use super::{
    super::{Session, hedged_read::Cost, timer_queue::AT_A_TIME},
    filter::{Filter, SELDOM},
};
use crate::{backoff::REST, error::ServerError, waitlist::SWEEPS};

/// The entries that a session searches for.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// No more than one search looks for: beyond it, those whose leases end first are left to their leases.
    all: Vec<Orphan>,
    /// The task that searches for them, unless it has ended.
    task: Weak<()>,
    /// Whether a shutdown waits for the searches.
    is_closing: bool,
}

#[derive(Debug)]
struct Orphan {
    entry: String,
    filter: Arc<Filter>,
    /// When to search for it, the next time first.
    due: Vec<Instant>,
    /// When the last search began that was answered and did not find it.
    sought_at: Option<Instant>,
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

    /// Returns when the server has given up all orphans of a filter.
    fn given_up_at(&self, filter: &Arc<Filter>) -> Option<Instant> {
        let of_it = self.all.iter().filter(|orphan| Arc::ptr_eq(&orphan.filter, filter));
        of_it.map(|orphan| orphan.given_up_at).max()
    }

    /// Returns the orphans of a filter that no search has missed since then, and since the server gave them up.
    fn unsought(&self, filter: &Arc<Filter>, since: Instant) -> Vec<(String, Instant)> {
        let of_it = self.all.iter().filter(|orphan| Arc::ptr_eq(&orphan.filter, filter));
        let is_sought = |orphan: &&Orphan| orphan.sought_at.is_some_and(|at| at >= since.max(orphan.given_up_at));
        let unsought = of_it.filter(|orphan| !is_sought(orphan));
        unsought.map(|orphan| (orphan.entry.clone(), orphan.over)).collect()
    }

    /// Returns the orphans of a filter that are due.
    fn due(&self, filter: &Arc<Filter>, now: Instant) -> Vec<(String, Instant)> {
        let due = self
            .all
            .iter()
            .filter(|orphan| Arc::ptr_eq(&orphan.filter, filter) && orphan.due.first().is_some_and(|due| *due <= now));
        due.map(|orphan| (orphan.entry.clone(), orphan.over)).collect()
    }

    /// Notes that a search for these entries has found some of them, which are being taken out, or failed and is due
    /// `again`.
    fn searched(&mut self, entries: &[String], began: Instant, ended: Result<&[String], Instant>) {
        for orphan in self.all.iter_mut().filter(|orphan| entries.contains(&orphan.entry)) {
            orphan.due.retain(|due| *due > began);
            orphan.due.splice(..0, ended.err());
            if ended.is_ok_and(|found| !found.contains(&orphan.entry)) {
                orphan.sought_at = Some(began);
            }
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
            sought_at: None,
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
        if orphans.task.strong_count() == 0 {
            let task = Arc::new(());
            orphans.task = Arc::downgrade(&task);
            drop(orphans);
            self.spawn(self.clone().search_orphans(task));
        }
    }

    async fn search_orphans(self: Arc<Self>, _task: Arc<()>) {
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
            }
            let began = Instant::now();
            let due = orphans().due(&filter, began);
            let entries: Vec<String> = due.iter().map(|(entry, _)| entry.clone()).collect();
            let found = self.take_out_orphans(&filter, due).await;
            let now = Instant::now();
            // One that failed may have kept the server as busy.
            rests_until = now + (now - began) * REST;
            if found.is_ok() {
                backoff = SELDOM;
            }
            let ended = found.as_deref().map_err(|_| now + backoff.failed());
            orphans().searched(&entries, began, ended);
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
        Ok(taken_out)
    }

    /// Looks at once for the orphans of a filter that nobody has looked for since then, as one of them may be what holds a
    /// document. Returns whether any was found, which is being taken out. Tasks that are in doubt at the same time share a
    /// search, as long as it finds nothing.
    pub(super) async fn find_orphans(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        since: Instant,
    ) -> Result<bool, ServerError> {
        let _turn = filter.search.lock().await;
        // Until then one may be applied between a search that misses it and the next attempt.
        let given_up_at = self.claims.orphans().given_up_at(filter);
        sleep_until(given_up_at.unwrap_or_else(Instant::now)).await;
        let began = Instant::now();
        let orphans = self.claims.orphans().unsought(filter, since);
        if orphans.is_empty() {
            return Ok(false);
        }
        let entries: Vec<String> = orphans.iter().map(|(entry, _)| entry.clone()).collect();
        let found = self.take_out_orphans(filter, orphans).await?;
        self.claims.orphans().searched(&entries, began, Ok(&found));
        Ok(!found.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use tokio::time::sleep;

    use super::*;
    use crate::{
        config::Settings,
        hold_options::{Lease, Terms},
        session::Session,
        store::{Connection, LockLayout, MemoryDocuments, MemoryStore, Store, Wanted, lock_layout::Paths},
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
        let place = LockLayout::in_documents(None, "lock", &Paths::default()).unwrap();
        let store = Store::Memory(Arc::new(MemoryStore::new(
            documents.clone(),
            place,
            Connection::default(),
        )));
        let config = Settings::default().validate().unwrap();
        let id = "0123456789abcdef".to_owned();
        Session::of(id, config, store, None, WakeMode::ChangeStream)
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
                session.claims.orphans().searched(&due, at, Ok(&[]));
            }
        }
        assert!(next(&session, at).is_none());
        let session = searching(&[(&a, "4", LEASE)]);
        assert!(next(&session, Instant::now() + LEASE).is_none(), "its lease is over");
    }

    #[tokio::test(start_paused = true)]
    async fn an_orphan_that_was_found_is_in_doubt_until_a_search_misses_it() {
        let filter = everything();
        let session = searching(&[(&filter, "1", LEASE), (&filter, "2", LEASE)]);
        let (both, since) = (["1", "2"].map(str::to_owned), Instant::now());
        for (found, in_doubt) in [(&both[..1], vec!["1"]), (&[], vec![])] {
            let mut orphans = session.claims.orphans();
            orphans.searched(&both, Instant::now(), Ok(found));
            let unsought = orphans.unsought(&filter, since);
            let unsought: Vec<&str> = unsought.iter().map(|(entry, _)| entry.as_str()).collect();
            assert_eq!(unsought, in_doubt);
        }
    }

    /// A search before that says nothing of what the next attempt meets.
    #[tokio::test(start_paused = true)]
    async fn a_try_in_doubt_searches_when_the_server_has_given_the_claim_up() {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let (session, filter) = (session(&documents), everything());
        let (entry, since) = (session.ids.claim(), Instant::now());
        let operation = session.operation_of_claim(entry.clone(), session.config.owner(None), lease(&session));
        session.ids.pending_claims.settled(&entry);
        let given_up_at = since + SWEEPS[0] * 2;
        session.search_orphan(&filter, entry, LEASE, given_up_at);
        let (claiming, wanted) = (session.clone(), filter.clone());
        let applied = tokio::spawn(async move {
            sleep_until(given_up_at - Duration::from_millis(1)).await;
            let within = Duration::from_secs(1);
            claiming
                .store
                .claim(&wanted.wanted, &[], &[operation], within)
                .await
                .unwrap();
        });
        assert!(session.find_orphans(&filter, since).await.unwrap());
        assert_eq!(Instant::now(), given_up_at);
        applied.await.unwrap();
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
            session.claims.orphans().searched(&entries, at, Err(now));
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
