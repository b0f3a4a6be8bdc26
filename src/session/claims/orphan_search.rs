//! The search for orphans: entries of claims whose outcome is unknown.
//!
//! Such a claim may have been applied, or may still be. Its document is known to nobody, so the search goes through all
//! documents that are wanted, as the claim did. Where claims fail because the server is slow, searches make it slower:
//! so a session makes one at a time, and rests after each. A search that fails is made again for as long as the entry
//! can be live: its lease is never renewed, but it can be a long one. A shutdown waits for a search at once, and for one
//! when the server has given up the claim.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    super::{Session, hedged_read::Cost},
    filter::{Filter, REST, SELDOM},
};
use crate::waitlist::SWEEPS;

/// Maximum number of claims whose entries are searched for: more than the claims of one process leave behind in a
/// fail-over. The entries of further ones are left to their leases.
pub(super) const SEARCHES_MOST: usize = 1_000;

impl Session {
    /// Searches for the entries of a claim with an unknown outcome, which may be applied now or later, and takes them
    /// out again; in the background.
    pub(super) fn search_orphans(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        entries: Vec<String>,
        lease: Duration,
        given_up_at: Instant,
    ) {
        let Ok(permit) = self.claims.searches.clone().try_acquire_owned() else {
            return;
        };
        let (session, filter, now) = (self.clone(), filter.clone(), Instant::now());
        self.spawn(async move {
            session.search(&filter, &entries, now + lease, given_up_at).await;
            drop(permit);
            // A shutdown waits for searches too.
            session.drained.notify_waiters();
        });
    }

    /// Searches for entries until their leases are `over`; after that, nothing of them is live if they were applied at
    /// once.
    async fn search(self: &Arc<Self>, filter: &Arc<Filter>, entries: &[String], over: Instant, given_up_at: Instant) {
        let mut at = Instant::now();
        let sweeps = SWEEPS.iter().map(|pause| {
            at += *pause;
            at
        });
        let (mut due, mut backoff, mut is_closing) = (sweeps.collect::<VecDeque<_>>(), SELDOM, false);
        while let Some(at) = due.pop_front().filter(|at| *at < over) {
            tokio::select! {
                biased;
                () = self.closing.cancelled(), if !is_closing => {
                    is_closing = true;
                    due = VecDeque::from([Instant::now(), given_up_at]);
                    continue;
                }
                () = sleep_until(at) => {}
            }
            let _turn = self.claims.search_turn.lock().await;
            let began = Instant::now();
            due.retain(|due| *due > began);
            let reading = self.read(Cost::Unknown, || {
                let (store, filter, entries) = (self.store.clone(), filter.clone(), entries.to_vec());
                async move { store.held_by(&filter.wanted, &entries).await }
            });
            match reading.await {
                Ok(found) => {
                    backoff = SELDOM;
                    for (name, entry) in found {
                        self.take_out_claim(name, entry, over.saturating_duration_since(Instant::now()));
                    }
                }
                Err(_) => due.push_front(Instant::now() + backoff.failed()),
            }
            // One that failed may have kept the server as busy.
            tokio::select! {
                () = sleep(began.elapsed() * REST) => {}
                () = self.closing.cancelled() => {}
            }
        }
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

    fn session(documents: &Arc<MemoryDocuments>, connection: &Connection) -> Arc<Session> {
        let place = LockLayout::in_documents(None, "lock", &Paths::default()).unwrap();
        let store = Store::Memory(Arc::new(MemoryStore::new(documents.clone(), place, connection.clone())));
        let config = Settings::default().validate().unwrap();
        let id = "0123456789abcdef".to_owned();
        Session::of(id, config, store, None, WakeMode::ChangeStream)
    }

    #[tokio::test(start_paused = true)]
    async fn few_claims_are_searched_for_and_none_for_ever() {
        let (session, filter) = (session(&Arc::default(), &Connection::default()), everything());
        let before = Arc::strong_count(&session);
        for _ in 0..2 {
            for number in 0..2 * SEARCHES_MOST {
                session.search_orphans(&filter, vec![format!("entry {number}")], LEASE, Instant::now());
            }
            assert_eq!(Arc::strong_count(&session), before + SEARCHES_MOST);
            assert!(!session.claims.have_no_orphans());
            sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
            assert_eq!(Arc::strong_count(&session), before);
            assert!(session.claims.have_no_orphans());
        }
    }

    /// A claim of one document with a lease of this length, whose outcome the session does not know.
    async fn unknown(session: &Arc<Session>, documents: &MemoryDocuments, lease: Duration) -> String {
        documents.insert(doc! { "_id": 1 }).unwrap();
        let (entry, terms) = (session.ids.claim(), Terms::default());
        let lease = Lease {
            length: lease,
            ..terms.lease(&session.config)
        };
        let operation = session.operation_of_claim(entry.clone(), session.config.owner(None), lease);
        session.ids.pending_claims.settled(&entry);
        let claimed = session
            .store
            .claim(&everything().wanted, &[], &[operation], LEASE)
            .await;
        assert_eq!(claimed.unwrap().claimed.len(), 1);
        entry
    }

    fn is_held(documents: &MemoryDocuments) -> bool {
        !documents
            .find(&doc! { "lock.holders.id": { "$exists": true } })
            .unwrap()
            .is_empty()
    }

    /// A claim with a long lease may be applied as a server goes away for longer than the client's own.
    #[tokio::test(start_paused = true)]
    async fn an_orphan_is_searched_for_as_long_as_it_can_be_live() {
        let (documents, connection) = (Arc::new(MemoryDocuments::default()), Connection::default());
        let (session, day) = (session(&documents, &connection), Duration::from_secs(86_400));
        let entry = unknown(&session, &documents, day).await;
        connection.set_outage(true);
        session.search_orphans(&everything(), vec![entry], day, Instant::now());
        sleep(day / 2).await;
        assert!(is_held(&documents));
        connection.set_outage(false);
        sleep(SELDOM.after(u32::MAX).pause()).await;
        assert!(!is_held(&documents));
    }

    #[tokio::test(start_paused = true)]
    async fn one_claim_is_searched_for_at_a_time() {
        let documents = Arc::new(MemoryDocuments::default());
        let session = session(&documents, &Connection::default());
        let entry = unknown(&session, &documents, LEASE).await;
        let turn = session.claims.search_turn.lock().await;
        session.search_orphans(&everything(), vec![entry], LEASE, Instant::now());
        sleep(LEASE / 2).await;
        assert!(is_held(&documents));
        drop(turn);
        sleep(Duration::from_millis(10)).await;
        assert!(!is_held(&documents));
    }

    /// Otherwise the entry of a claim without an answer would be searched for after seconds, and stay for a lease if
    /// the runtime ends before.
    #[tokio::test(start_paused = true)]
    async fn a_shutdown_searches_at_once_and_when_the_server_has_given_the_claim_up() {
        let limit = Duration::from_secs(1);
        for (given_up_after, takes) in [(Duration::ZERO, Duration::ZERO), (limit, limit)] {
            let documents = Arc::new(MemoryDocuments::default());
            documents.insert(doc! { "_id": 1 }).unwrap();
            let session = session(&documents, &Connection::default());
            let (id, begun) = (session.ids.claim(), Instant::now());
            let operation = session.operation_of_claim(id.clone(), session.config.owner(None), lease(&session));
            let given_up_at = begun + given_up_after;
            session.ids.pending_claims.settled(&id);
            session.search_orphans(&everything(), vec![id], LEASE, given_up_at);
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
