//! The search for orphans: entries of claims whose outcome is unknown.
//!
//! Such a claim may have been applied, or may still be. Its document is known to nobody, so the search goes through all
//! documents that are wanted, as the claim did. Where claims fail because the server is slow, searches make it slower.
//! So a session has one task that searches, which looks for all orphans of a filter at once, and rests after each
//! search, but not while the session shuts down. An entry is searched for once the server has given the claim up. A search
//! that fails is made again for as long as the entry can be live: its lease is never renewed, but it can be a long one. A
//! claim that is applied even later, and whose answer is lost for good, leaves its entry for a lease, as a killed process
//! does. Until an entry was searched for, a try by that filter, as that type, that finds nothing free is repeated.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    super::{Session, hedged_read::Cost, timer_queue::AT_A_TIME},
    filter::{Filter, REST},
};
use crate::{error::ServerError, store::Store, waitlist::SWEEPS};

/// An entry that a session searches for.
#[derive(Debug)]
pub(super) struct Orphan {
    entry: String,
    filter: Arc<Filter>,
    /// When to search for it.
    due_at: Instant,
    /// When its search is over at the latest: with its lease, if it was applied at once.
    over: Instant,
}

impl Orphan {
    /// Whether it is one of this filter to search for by then.
    fn is_due(&self, filter: &Arc<Filter>, by: Instant) -> bool {
        Arc::ptr_eq(&self.filter, filter) && self.due_at <= by
    }
}

impl Session {
    /// Searches for the entry of a claim with an unknown outcome, which may be applied until the server gives it up, and
    /// takes it out again; in the background.
    pub(super) fn search_orphan(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        entry: String,
        lease: Duration,
        given_up_at: Instant,
    ) {
        let now = Instant::now();
        let mut orphans = self.claims.orphans();
        // No more than one search looks for: others are left to their leases.
        if orphans.len() >= AT_A_TIME {
            return;
        }
        // Where there are any, a task searches for them.
        let is_first = orphans.is_empty();
        orphans.push(Orphan {
            entry,
            filter: filter.clone(),
            due_at: given_up_at.max(now + SWEEPS[0]),
            over: now + lease,
        });
        drop(orphans);
        if is_first {
            self.spawn(self.clone().search_orphans());
        }
    }

    /// Searches until no orphan is left.
    async fn search_orphans(self: Arc<Self>) {
        let mut rests_until = Instant::now();
        while let Some((due_at, filter)) = self.next_search() {
            let began = Instant::now();
            // A shutdown waits for no longer than a lease, and what it leaves stays for the rest of its own.
            let due_at = if self.is_closed() {
                due_at
            } else {
                due_at.max(rests_until)
            };
            if due_at > began {
                // Another one is due no sooner than that.
                sleep_until(due_at.min(began + SWEEPS[0])).await;
                continue;
            }
            // What goes by until a server is found keeps none busy.
            let connected = self.find_connection().await;
            let sent = Instant::now();
            let found = match connected {
                Ok(()) => self.take_out_orphans(&filter, began).await,
                Err(error) => Err(error),
            };
            let now = Instant::now();
            let found_none = matches!(&found, Err(error) if error.found_no_server());
            if !found_none {
                // One that failed may have kept the server as busy.
                rests_until = now + (now - sent) * REST;
            }
            for orphan in self.claims.orphans().iter_mut().filter(|it| it.is_due(&filter, began)) {
                // Those that were found are only about to be taken out. A shutdown waits for that by itself.
                let is_sought = |found: &Vec<String>| found.contains(&orphan.entry) && !self.is_closed();
                match found.as_ref().map_or(true, is_sought) {
                    true => orphan.due_at = now + SWEEPS[1],
                    false => orphan.over = now,
                }
            }
        }
        // A shutdown waits for searches too.
        self.drained.notify_waiters();
    }

    /// Returns when to search next, and for what; `None` where nothing is left, and the task ends. Only here does the
    /// list become empty, so that whoever finds it empty knows that no task searches.
    fn next_search(&self) -> Option<(Instant, Arc<Filter>)> {
        let mut orphans = self.claims.orphans();
        orphans.retain(|orphan| Instant::now() < orphan.over);
        let next = orphans.iter().min_by_key(|orphan| orphan.due_at);
        next.map(|orphan| (orphan.due_at, orphan.filter.clone()))
    }

    /// Takes out those orphans of the filter that are in documents, of the ones that are due by then; returns them.
    async fn take_out_orphans(self: &Arc<Self>, filter: &Arc<Filter>, by: Instant) -> Result<Vec<String>, ServerError> {
        let over: HashMap<String, Instant> = {
            let orphans = self.claims.orphans();
            let due = orphans.iter().filter(|orphan| orphan.is_due(filter, by));
            due.map(|orphan| (orphan.entry.clone(), orphan.over)).collect()
        };
        let entries: Vec<String> = over.keys().cloned().collect();
        let read = |store: Store, (filter, entries): (Arc<Filter>, Vec<String>)| async move {
            store.held_by(&filter.wanted, &entries).await
        };
        let found = self.read(Cost::Unknown, (filter.clone(), entries), read).await?;
        let now = Instant::now();
        let taken_out = found.into_iter().map(|(name, entry)| {
            let left = over
                .get(&entry)
                .map_or(Duration::ZERO, |over| over.saturating_duration_since(now));
            self.take_out_claim(name, entry.clone(), left);
            entry
        });
        Ok(taken_out.collect())
    }

    /// Whether an orphan may be what holds a document of the filter.
    pub(super) fn may_have_orphans_in(&self, filter: &Arc<Filter>) -> bool {
        let orphans = self.claims.orphans();
        orphans.iter().any(|orphan| Arc::ptr_eq(&orphan.filter, filter))
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use futures::{FutureExt, future::join_all};
    use mongodb::bson::doc;
    use tokio::time::{sleep, timeout};

    use super::{super::Claiming, *};
    use crate::{
        config::Config,
        hold_options::{Lease, Terms},
        protocol::{Evict, Operation},
        session::Session,
        store::{Connection, LockLayout, MemoryDocuments, MemoryStore, Store, Wanted, lock_layout::Paths},
        tests::simulated::{Busy, Link},
        waitlist::answers::TRY_FOR,
        wake_mode::WakeMode,
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn lease(session: &Arc<Session>) -> Lease {
        Terms::default().lease(&session.config)
    }

    fn everything() -> Arc<Filter> {
        let wanted = Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        };
        Arc::new(Filter::new(wanted, TypeId::of::<()>()))
    }

    fn session(documents: &Arc<MemoryDocuments>) -> Arc<Session> {
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let store = Store::Memory(Arc::new(MemoryStore::new(
            documents.clone(),
            place,
            Connection::default(),
        )));
        let config = Config::default();
        let id = "0123456789abcdef".to_owned();
        Session::of(id, config, store, None, WakeMode::ChangeStream)
    }

    /// A claim of all documents, and an orphan that holds the only one: after an earlier claim, whose answer was lost.
    async fn beside_an_orphan() -> (Arc<Session>, Arc<Link>, Arc<Claiming>) {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let memory = MemoryStore::new(documents, place, Connection::default());
        let link = Link::new(Arc::new(memory), 1);
        link.calm();
        let config = Config::default();
        let store = Store::Simulated(link.clone());
        let session = Session::of("0123456789abcdef".into(), config, store, None, WakeMode::ChangeStream);
        let (entry, owner) = (session.ids.claim(), session.config.owner(None));
        let (wanted, of) = (everything().wanted.clone(), TypeId::of::<()>());
        let claiming = session.claiming(wanted, of, owner.clone(), Terms::default(), 1);
        let operation = session.operation_of_claim(entry.clone(), owner, claiming.lease);
        let (filter, within) = (&claiming.filter, Duration::from_secs(1));
        let claimed = session.store.claim(&filter.wanted, &[], &[operation], within).await;
        assert_eq!(claimed.unwrap().claimed.len(), 1);
        session.search_orphan(filter, entry, LEASE, Instant::now() + within);
        (session, link, claiming)
    }

    #[tokio::test(start_paused = true)]
    async fn no_claim_is_told_that_nothing_is_free_while_an_orphan_may_be_what_holds_it() {
        let tries = async |claiming: &Arc<Claiming>| claiming.claim(false).await.unwrap().len();
        assert_eq!(tries(&beside_an_orphan().await.2).await, 1);

        // The time of a claim is over before the search for it.
        let waits = &beside_an_orphan().await;
        let claim = waits.2.claim(true);
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
        assert_eq!(tokio::join!(tries(&late.2), taken_out).0, 1);
    }

    /// A search before that says nothing of what the next attempt meets.
    #[tokio::test(start_paused = true)]
    async fn an_orphan_is_in_doubt_until_it_is_not_found_after_the_server_has_given_its_claim_up() {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let (session, filter) = (session(&documents), everything());
        let (entry, begun) = (session.ids.claim(), Instant::now());
        let operation = session.operation_of_claim(entry.clone(), session.config.owner(None), lease(&session));
        session.ids.pending_claims.settled(&entry);
        let given_up_at = begun + SWEEPS[0] * 2;
        session.search_orphan(&filter, entry, LEASE, given_up_at);
        sleep_until(given_up_at - Duration::from_millis(1)).await;
        let (operations, within) = ([operation], Duration::from_secs(1));
        let claiming = session.store.claim(&filter.wanted, &[], &operations, within);
        let name = claiming.await.unwrap().claimed.remove(0).name;
        sleep(Duration::from_millis(2)).await;
        let lock = session.inspect(&name).await.unwrap().unwrap().0;
        assert!(lock.holders.is_empty(), "{lock:?}");
        assert!(session.may_have_orphans_in(&filter), "it was only found");
        sleep(SWEEPS[1]).await;
        assert!(!session.may_have_orphans_in(&filter));
    }

    /// Far more of them than commands that may be in flight.
    #[tokio::test(start_paused = true)]
    async fn tries_end_in_time_while_no_claim_is_answered() {
        let (_session, link, claiming) = beside_an_orphan().await;
        link.kill_idle(u64::MAX);
        let begun = Instant::now();
        let tries = (0..50).map(|_| claiming.claim(false));
        let tried = timeout(TRY_FOR * 20, join_all(tries)).await.unwrap();
        assert!(tried.iter().all(Result::is_err), "{tried:?}");
        assert_eq!(begun.elapsed(), TRY_FOR);
    }

    /// A search that waits for a server keeps none busy.
    #[tokio::test(start_paused = true)]
    async fn a_try_gets_what_an_orphan_holds_soon_after_an_outage() {
        let (_session, link, claiming) = beside_an_orphan().await;
        link.kill_idle(u64::MAX);
        sleep(LEASE / 2).await;
        link.kill_idle(0);
        assert_eq!(claiming.claim(false).await.unwrap().len(), 1);
    }

    /// The others learn by its end when the first lease ends.
    #[tokio::test(start_paused = true)]
    async fn a_scan_goes_on_without_its_claim() {
        let (session, link, claiming) = beside_an_orphan().await;
        let filter = claiming.filter.clone();
        link.kill_idle(1);
        let turn = filter.begin_scan(false).unwrap();
        assert!(session.scan(&filter, turn).now_or_never().is_none());
        assert!(filter.begin_scan(false).is_none());
        sleep(SWEEPS[0]).await;
        let now = Instant::now();
        assert!(filter.again_at(false, now) > now);
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_that_nobody_waits_for_keeps_no_session() {
        let (session, link, claiming) = beside_an_orphan().await;
        let filter = claiming.filter.clone();
        sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
        link.kill_idle(u64::MAX);
        let turn = filter.begin_scan(false).unwrap();
        assert!(session.scan(&filter, turn).now_or_never().is_none());
        sleep(Duration::from_millis(1)).await;
        let alive = Arc::downgrade(&session);
        session.end_tasks();
        drop((session, claiming));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(alive.strong_count(), 0);
    }

    /// It would be given back at once, and count as an attempt.
    #[tokio::test(start_paused = true)]
    async fn a_try_claims_nothing_when_its_time_is_over() {
        let (session, link, claiming) = beside_an_orphan().await;
        link.block("1", true);
        let token = || {
            let mut token = 0;
            link.memory().look("1", |state, _| token = state.unwrap().token);
            token
        };
        let before = token();
        let freed = async {
            sleep(TRY_FOR - Duration::from_millis(1)).await;
            let evicting = Operation {
                evict: Evict::Everybody,
                ..session.operation()
            };
            link.memory().run("1", &evicting).unwrap();
        };
        let (tried, ()) = tokio::join!(claiming.claim(false), freed);
        tried.unwrap_err();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(token(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_searches_for_few_orphans_and_for_none_for_ever() {
        let (session, filter) = (session(&Arc::default()), everything());
        let before = Arc::strong_count(&session);
        let orphans = || session.claims.orphans().len();
        for _ in 0..2 {
            for number in 0..2 * AT_A_TIME {
                session.search_orphan(&filter, format!("entry {number}"), LEASE, Instant::now());
            }
            assert_eq!((orphans(), Arc::strong_count(&session)), (AT_A_TIME, before + 1));
            sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
            assert_eq!((orphans(), Arc::strong_count(&session)), (0, before));
        }
    }

    /// A claim with a long lease may be applied as a server goes away for longer than the client's own.
    #[tokio::test(start_paused = true)]
    async fn an_orphan_is_searched_for_as_long_as_it_can_be_live() {
        let (session, link, claiming) = beside_an_orphan().await;
        link.kill_idle(u64::MAX);
        let (filter, day) = (&claiming.filter, Duration::from_secs(86_400));
        session.search_orphan(filter, "of a day".to_owned(), day, Instant::now());
        let entries = || -> Vec<String> {
            let orphans = session.claims.orphans();
            orphans.iter().map(|orphan| orphan.entry.clone()).collect()
        };
        assert_eq!(entries().len(), 2);
        sleep(day - Duration::from_secs(1)).await;
        assert_eq!(entries(), ["of a day"]);
        // A search for it may be under way.
        sleep(Duration::from_secs(600)).await;
        assert!(session.claims.have_no_orphans());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_no_rest_after_a_search_that_took_long() {
        let (session, link, _claiming) = beside_an_orphan().await;
        link.share(Busy::new(Duration::from_secs(2)));
        let due_at = || session.claims.orphans()[0].due_at;
        let before = due_at();
        while due_at() == before {
            sleep(Duration::from_millis(1)).await;
        }
        link.share(Busy::new(Duration::ZERO));
        let begun = Instant::now();
        session.shut_down().await;
        let took = begun.elapsed();
        assert!(took <= SWEEPS[1] + SWEEPS[0], "{took:?}");
        assert!(session.claims.have_no_orphans());
    }

    /// Otherwise the entry of a claim without an answer would be searched for after seconds, and stay for a lease if
    /// the runtime ends before.
    #[tokio::test(start_paused = true)]
    async fn a_shutdown_searches_when_the_server_has_given_the_claim_up() {
        let limit = Duration::from_secs(1);
        for (given_up_after, takes) in [(Duration::ZERO, SWEEPS[0]), (limit, limit)] {
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
            session.shut_down().await;
            assert_eq!(begun.elapsed(), takes);
            let name = applied.await.unwrap();
            let lock = session.inspect(&name).await.unwrap().unwrap().0;
            assert!(lock.holders.is_empty(), "{lock:?}");
        }
    }
}
