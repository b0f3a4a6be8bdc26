//! The search for entries of claims whose outcome is unknown.
//!
//! Such a claim may have been applied, or may still be. Its document is known to nobody, so the search goes through all
//! documents that are wanted, as the claim did. Where claims fail because the server is slow, searches make it slower.
//! So a session has one task that searches, which looks for all entries of a filter at once, and rests after each
//! search. A search that fails is made again for as long as the entry can be live: its lease is never renewed, but it
//! can be a long one. A shutdown waits for a search at once, and for one when the server has given up the claim.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::super::{Session, hedged_read::Cost};
use super::trying::USED;
use crate::{backoff::Backoff, store::Wanted, waitlist::SWEEPS};

/// Maximum number of entries that are searched for: more than the claims of one process leave behind in a fail-over.
/// Beyond it, those whose leases end first are left to their leases.
const SWEPT_MOST: usize = 1_000;

/// Pauses after searches that fail: for a server that is away for longer, the entry is a lesser worry.
const AFTER_FAILURES: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(60));

/// Pause after a search, as a multiple of its duration.
const SHARE: u32 = 4;

/// The searches of a session.
#[derive(Debug, Default)]
pub(in crate::session) struct Sweeping(Mutex<Swept>);

#[derive(Debug, Default)]
struct Swept {
    entries: Vec<Entry>,
    /// When the next search may begin.
    rests_until: Option<Instant>,
    /// The task that searches for them, unless it has ended.
    task: Weak<()>,
    /// Whether a shutdown waits for the searches.
    hastens: bool,
}

/// An entry that is searched for.
#[derive(Debug)]
struct Entry {
    id: String,
    wanted: Arc<Wanted>,
    /// What is wanted, as a key.
    key: Arc<[u8]>,
    due_at: Instant,
    /// The pauses before its further searches.
    pauses: &'static [Duration],
    /// When the server gives the claim up that asks for it.
    given_up_at: Instant,
    /// When its lease is over, if it was applied at once.
    over: Instant,
}

impl Sweeping {
    fn swept(&self) -> MutexGuard<'_, Swept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when to search next; `None` where nothing is left to be searched for, and the task ends.
    fn next_due_at(&self) -> Option<Instant> {
        let mut swept = self.swept();
        let next = swept.entries.iter().map(|entry| entry.due_at).min();
        if next.is_none() {
            swept.task = Weak::new();
        }
        next.max(next.and(swept.rests_until.filter(|_| !swept.hastens)))
    }

    /// Makes all searches due; they are followed by one more at most.
    fn hasten(&self, now: Instant) {
        let mut swept = self.swept();
        if mem::replace(&mut swept.hastens, true) {
            return;
        }
        for entry in &mut swept.entries {
            entry.due_at = entry.due_at.min(now);
        }
    }

    /// Whether nothing is searched for.
    pub(super) fn is_done(&self) -> bool {
        self.swept().task.strong_count() == 0
    }

    /// Takes out the entries to be searched for now: those that wanted the same as the one that has been due for
    /// longest. The search puts them back.
    fn take_due(&self, now: Instant) -> Vec<Entry> {
        let entries = &mut self.swept().entries;
        entries.retain(|entry| now < entry.over);
        let due = entries.iter().filter(|entry| entry.due_at <= now);
        // However long a search takes, all have their turn.
        let Some(key) = due.min_by_key(|entry| entry.due_at).map(|first| first.key.clone()) else {
            return Vec::new();
        };
        let (due, others) = mem::take(entries)
            .into_iter()
            .partition(|entry| entry.due_at <= now && entry.key == key);
        *entries = others;
        due
    }

    /// Puts back the entries of a search that was answered, up to their next one, if they have another.
    fn searched(&self, searched: Vec<Entry>, began: Instant) {
        let mut swept = self.swept();
        let hastens = swept.hastens;
        let further = searched.into_iter().filter_map(|entry| {
            let (due_at, pauses) = if hastens {
                (entry.given_up_at, entry.pauses)
            } else {
                let (pause, pauses) = entry.pauses.split_first()?;
                (began + *pause, pauses)
            };
            (due_at > began).then_some(Entry {
                due_at,
                pauses,
                ..entry
            })
        });
        swept.entries.extend(further);
    }

    /// Puts back the entries of a search that failed.
    fn not_searched(&self, entries: Vec<Entry>, due_at: Instant) {
        let again = entries.into_iter().map(|entry| Entry { due_at, ..entry });
        self.swept().entries.extend(again);
    }
}

impl Swept {
    /// Adds an entry, in the place of the one whose lease ends first if there is no room for it.
    fn add(&mut self, entry: Entry, now: Instant) {
        self.entries.retain(|entry| now < entry.over);
        self.entries.push(entry);
        if self.entries.len() > SWEPT_MOST {
            let ends = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.over);
            if let Some((first, _)) = ends {
                self.entries.swap_remove(first);
            }
        }
    }
}

impl Session {
    /// Looks for the entry of a claim with an unknown outcome, which may be applied now or later, and takes it out
    /// again; in the background.
    pub(super) fn sweep(
        self: &Arc<Self>,
        wanted: Arc<Wanted>,
        key: Arc<[u8]>,
        id: String,
        lease: Duration,
        given_up_at: Instant,
    ) {
        let Some((pause, pauses)) = SWEEPS.split_first() else {
            return;
        };
        let now = Instant::now();
        let mut swept = self.claims.sweeping.swept();
        let entry = Entry {
            id,
            wanted,
            key,
            due_at: if swept.hastens { now } else { now + *pause },
            pauses,
            given_up_at,
            over: now + lease,
        };
        swept.add(entry, now);
        if swept.task.strong_count() == 0 {
            let task = Arc::new(());
            swept.task = Arc::downgrade(&task);
            drop(swept);
            self.spawn(self.clone().sweep_all(task));
        }
    }

    async fn sweep_all(self: Arc<Self>, _task: Arc<()>) {
        let sweeping = &self.claims.sweeping;
        let mut backoff = AFTER_FAILURES;
        loop {
            let is_closed = self.is_closed();
            if is_closed {
                sweeping.hasten(Instant::now());
            }
            let Some(due_at) = sweeping.next_due_at() else { break };
            tokio::select! {
                biased;
                () = sleep_until(due_at) => {}
                () = self.closing.cancelled(), if !is_closed => continue,
            }
            let began = Instant::now();
            let due = sweeping.take_due(began);
            let Some(wanted) = due.first().map(|entry| entry.wanted.clone()) else {
                continue;
            };
            let ids: Vec<String> = due.iter().map(|entry| entry.id.clone()).collect();
            let reading = self.read(Cost::Unknown, || {
                let (store, wanted, ids) = (self.store.clone(), wanted.clone(), ids.clone());
                async move { store.held_by(&wanted, &ids).await }
            });
            let found = reading.await;
            let now = Instant::now();
            // One that failed may have kept the server as busy.
            sweeping.swept().rests_until = Some(now + (now - began) * SHARE);
            let Ok(found) = found else {
                sweeping.not_searched(due, now + backoff.failed());
                continue;
            };
            backoff = AFTER_FAILURES;
            for (name, id) in found {
                let over = due.iter().find(|entry| entry.id == id).map_or(now, |entry| entry.over);
                self.feed(&name, |lines, context| {
                    let left = over.saturating_duration_since(now);
                    lines.line(&name).waitlist.step(context).take_out(id, USED, left);
                });
            }
            sweeping.searched(due, began);
        }
        // A shutdown waits for searches too.
        self.drained.notify_waiters();
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
        store::{Among, Connection, InPlace, MemoryDocuments, MemoryStore, Store, place::Paths},
        wake_mode::WakeMode,
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn lease(session: &Arc<Session>) -> Lease {
        Terms::default().lease(&session.config)
    }

    fn wanted() -> Arc<Wanted> {
        Arc::new(Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        })
    }

    fn session(documents: &Arc<MemoryDocuments>) -> Arc<Session> {
        let place = InPlace::new(None, "lock", &Paths::default()).unwrap();
        let store = Store::Memory(Arc::new(MemoryStore::new(
            documents.clone(),
            Some(place),
            Connection::default(),
        )));
        let config = Settings::default().validate().unwrap();
        let id = "0123456789abcdef".to_owned();
        Session::of(id, config, store, None, WakeMode::ChangeStream)
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_searches_for_few_entries_and_for_none_for_ever() {
        let session = session(&Arc::new(MemoryDocuments::default()));
        let before = Arc::strong_count(&session);
        let entries = || session.claims.sweeping.swept().entries.len();
        for _ in 0..2 {
            for number in 0..2 * SWEPT_MOST {
                session.sweep(
                    wanted(),
                    b"all".as_slice().into(),
                    format!("entry {number}"),
                    LEASE,
                    Instant::now(),
                );
            }
            assert_eq!((entries(), Arc::strong_count(&session)), (SWEPT_MOST, before + 1));
            sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
            assert_eq!((entries(), Arc::strong_count(&session)), (0, before));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn entries_that_wanted_the_same_are_searched_for_together() {
        let session = session(&Arc::new(MemoryDocuments::default()));
        let sweeping = &session.claims.sweeping;
        for (key, id) in [("a", "1"), ("b", "2"), ("a", "3")] {
            session.sweep(wanted(), key.as_bytes().into(), id.to_owned(), LEASE, Instant::now());
        }
        let due = |now| {
            let due = sweeping.take_due(now);
            let ids: Vec<String> = due.iter().map(|entry| entry.id.clone()).collect();
            sweeping.searched(due, now);
            ids
        };
        let mut now = Instant::now();
        assert!(due(now).is_empty());
        for pause in SWEEPS {
            now += pause;
            for ids in [vec!["1", "3"], vec!["2"]] {
                assert_eq!(due(now), ids);
            }
            assert!(due(now).is_empty());
        }
        assert!(sweeping.next_due_at().is_none());
        session.sweep(wanted(), b"a".as_slice().into(), "4".to_owned(), LEASE, Instant::now());
        let rested = now + LEASE;
        sweeping.swept().rests_until = Some(rested);
        assert_eq!(sweeping.next_due_at(), Some(rested));
        assert!(due(rested).is_empty(), "its lease is over");
        assert!(
            sweeping.next_due_at().is_none(),
            "a task with nothing to do needs no rest"
        );
    }

    /// A claim with a long lease may be applied as a server goes away for longer than the client's own.
    #[tokio::test(start_paused = true)]
    async fn an_entry_is_searched_for_as_long_as_it_can_be_live_and_the_longest_have_the_room() {
        let session = session(&Arc::new(MemoryDocuments::default()));
        let sweeping = &session.claims.sweeping;
        let day = Duration::from_secs(86_400);
        session.sweep(
            wanted(),
            b"all".as_slice().into(),
            "of a day".to_owned(),
            day,
            Instant::now(),
        );
        for number in 0..2 * SWEPT_MOST {
            session.sweep(
                wanted(),
                b"all".as_slice().into(),
                format!("entry {number}"),
                LEASE,
                Instant::now(),
            );
        }
        let mut failing = AFTER_FAILURES;
        let mut searches = 0;
        let mut now = Instant::now() + SWEEPS[0];
        let end = now + day;
        while now < end {
            let due = sweeping.take_due(now);
            assert!(due.iter().any(|entry| entry.id == "of a day"), "after {searches}");
            let due_at = now + failing.failed();
            sweeping.not_searched(due, due_at);
            (now, searches) = (due_at, searches + 1);
        }
        assert!((1_000..2_000).contains(&searches), "{searches}");
        assert!(sweeping.take_due(end).is_empty());
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
            session.sweep(wanted(), b"all".as_slice().into(), id, LEASE, given_up_at);
            // It is applied at the last moment.
            let applied = sleep_until(given_up_at - Duration::from_millis(1).min(given_up_after));
            let (claiming, wanted) = (session.clone(), wanted());
            let applied = tokio::spawn(async move {
                applied.await;
                let within = Duration::from_secs(1);
                let claimed = claiming
                    .store
                    .claim(&wanted, Among::AllBut(&[]), &operation, within)
                    .await;
                claimed.unwrap().unwrap().name
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
