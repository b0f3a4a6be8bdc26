//! The search for entries of claims whose outcome is unknown.
//!
//! Such a claim may have been applied, or may still be. Its document is known to nobody, so the search goes through all
//! documents that are wanted, as the claim did. Where claims fail because the server is slow, searches make it slower.
//! So a session has one task that searches, which looks for all entries of a filter at once, and it keeps few in mind:
//! an entry that nobody finds ends with its lease, as it is never renewed.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::super::documents::DocumentSession;
use super::trying::USED;
use crate::{store::Wanted, waitlist::SWEEPS};

/// Maximum number of entries that are searched for: as many as claims of some workers leave behind in a fail-over.
const SWEPT_MOST: usize = 16;

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
        next.max(next.and(swept.rests_until))
    }

    /// Returns the entries to be searched for now that wanted the same as the one that has been due for longest.
    fn due(&self, now: Instant) -> Option<(Arc<Wanted>, Vec<String>)> {
        let entries = &mut self.swept().entries;
        entries.retain(|entry| now < entry.over);
        let due = entries.iter().filter(|entry| entry.due_at <= now);
        // However long a search takes, all have their turn.
        let first = due.min_by_key(|entry| entry.due_at)?;
        let (wanted, key) = (first.wanted.clone(), first.key.clone());
        let mut ids = Vec::new();
        for mut entry in mem::take(entries) {
            if entry.due_at > now || entry.key != key {
                entries.push(entry);
                continue;
            }
            ids.push(entry.id.clone());
            if let Some((pause, further)) = entry.pauses.split_first() {
                entry.due_at = now + *pause;
                entry.pauses = further;
                entries.push(entry);
            }
        }
        Some((wanted, ids))
    }
}

impl DocumentSession {
    /// Looks for the entry of a claim with an unknown outcome, which may be applied now or later, and takes it out
    /// again; in the background.
    pub(super) fn sweep(&self, wanted: Arc<Wanted>, key: Arc<[u8]>, id: String) {
        let Some((pause, pauses)) = SWEEPS.split_first() else {
            return;
        };
        let now = Instant::now();
        let mut swept = self.claims.sweeping.swept();
        swept.entries.retain(|entry| now < entry.over);
        if swept.entries.len() >= SWEPT_MOST {
            return;
        }
        swept.entries.push(Entry {
            id,
            wanted,
            key,
            due_at: now + *pause,
            pauses,
            over: now + self.config.lease,
        });
        if swept.task.strong_count() == 0 {
            let task = Arc::new(());
            swept.task = Arc::downgrade(&task);
            drop(swept);
            self.spawn(self.clone().sweep_all(task));
        }
    }

    async fn sweep_all(self, _task: Arc<()>) {
        while let Some(due_at) = self.claims.sweeping.next_due_at() {
            sleep_until(due_at).await;
            let Some((wanted, ids)) = self.claims.sweeping.due(Instant::now()) else {
                continue;
            };
            let began = Instant::now();
            let reading = self.read_long(|_| {
                let (documents, wanted, ids) = (self.documents().clone(), wanted.clone(), ids.clone());
                async move { documents.held_by(&wanted, &ids).await }
            });
            for (name, id) in reading.await.unwrap_or_default() {
                self.feed(&name, |lines, context, _| {
                    lines.line(&name).take_out(id, USED, context);
                });
            }
            let now = Instant::now();
            self.claims.sweeping.swept().rests_until = Some(now + (now - began) * SHARE);
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
        session::Session,
        store::{DocumentStore, InPlace, MemoryDocuments, MemoryInPlace, place::Paths},
        wake_mode::WakeMode,
    };

    fn wanted() -> Arc<Wanted> {
        Arc::new(Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        })
    }

    fn session(documents: &Arc<MemoryDocuments>) -> DocumentSession {
        let place = InPlace::new(None, "lock", &Paths::default()).unwrap();
        let store = DocumentStore::Memory(Arc::new(MemoryInPlace::new(documents, place)));
        let config = Settings::default().validate().unwrap();
        let id = "0123456789abcdef".to_owned();
        let session = Session::of(id, config, store.store(), None, WakeMode::ChangeStream);
        DocumentSession::new(session, Arc::new(store))
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_searches_for_few_entries_and_for_none_for_ever() {
        let session = session(&Arc::new(MemoryDocuments::new()));
        let before = Arc::strong_count(session.session());
        let entries = || session.claims.sweeping.swept().entries.len();
        for _ in 0..2 {
            for number in 0..1_000 {
                session.sweep(wanted(), b"all".as_slice().into(), format!("entry {number}"));
            }
            assert_eq!(
                (entries(), Arc::strong_count(session.session())),
                (SWEPT_MOST, before + 1)
            );
            sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
            assert_eq!((entries(), Arc::strong_count(session.session())), (0, before));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn entries_that_wanted_the_same_are_searched_for_together() {
        let session = session(&Arc::new(MemoryDocuments::new()));
        let sweeping = &session.claims.sweeping;
        for (key, id) in [("a", "1"), ("b", "2"), ("a", "3")] {
            session.sweep(wanted(), key.as_bytes().into(), id.to_owned());
        }
        let due = |now| sweeping.due(now).map(|(_, ids)| ids);
        let mut now = Instant::now();
        assert_eq!(due(now), None);
        for pause in SWEEPS {
            now += pause;
            for ids in [vec!["1", "3"], vec!["2"]] {
                assert_eq!(due(now).unwrap(), ids);
            }
            assert_eq!(due(now), None);
        }
        assert!(sweeping.next_due_at().is_none());
        session.sweep(wanted(), b"a".as_slice().into(), "4".to_owned());
        let rested = now + session.config.lease;
        sweeping.swept().rests_until = Some(rested);
        assert_eq!(sweeping.next_due_at(), Some(rested));
        assert_eq!(due(rested), None, "its lease is over");
        assert!(
            sweeping.next_due_at().is_none(),
            "a task with nothing to do needs no rest"
        );
    }
}
