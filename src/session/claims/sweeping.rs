//! The search for entries of claims whose outcome is unknown.
//!
//! Such a claim may have been applied, or may still be. Its document is known to nobody, so the search goes through all
//! documents that are wanted, as the claim did. Where claims fail because the server is slow, searches make it slower.
//! So a session makes one at a time, and keeps few in mind: an entry that nobody finds ends with its lease, as it is
//! never renewed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};

use super::super::documents::DocumentSession;
use super::trying::USED;
use crate::{store::Wanted, waitlist::SWEEPS};

/// Maximum number of entries that are searched for: as many as claims of some workers leave behind in a fail-over.
const SWEPT_MOST: usize = 16;

/// Pause after a search, as a multiple of its duration.
const SHARE: u32 = 4;

/// The searches of a session.
#[derive(Debug, Default)]
pub(in crate::session) struct Sweeping {
    entries: AtomicUsize,
    /// When the next search may begin. Whoever has it searches.
    turn: Mutex<Option<Instant>>,
}

/// An entry that is searched for.
struct Swept(DocumentSession);

impl Drop for Swept {
    fn drop(&mut self) {
        self.0.claims.sweeping.entries.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DocumentSession {
    /// Looks for the entry of a claim with an unknown outcome, which may be applied now or later, and takes it out
    /// again; in the background.
    pub(super) fn sweep(&self, wanted: Arc<Wanted>, id: String) {
        let swept = Swept(self.clone());
        if self.claims.sweeping.entries.fetch_add(1, Ordering::Relaxed) < SWEPT_MOST {
            self.spawn(self.clone().take_out(wanted, id, swept));
        }
    }

    async fn take_out(self, wanted: Arc<Wanted>, id: String, _swept: Swept) {
        let over = Instant::now() + self.config.lease;
        for pause in SWEEPS {
            sleep(pause).await;
            let mut turn = self.claims.sweeping.turn.lock().await;
            if let Some(at) = *turn {
                sleep_until(at).await;
            }
            let began = Instant::now();
            if began > over {
                // So is the lease of what it looks for.
                return;
            }
            let reading = self.read_long(|_| {
                let (documents, wanted, id) = (self.documents().clone(), wanted.clone(), id.clone());
                async move { documents.held_by(&wanted, &id).await }
            });
            let found = reading.await.unwrap_or_default();
            let took: Duration = began.elapsed();
            *turn = Some(Instant::now() + took * SHARE);
            drop(turn);
            for name in found {
                self.feed(&name, |lines, context, _| {
                    lines.line(&name).take_out(id.clone(), USED, context);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;
    use crate::{
        config::Settings,
        session::Session,
        store::{DocumentStore, InPlace, MemoryDocuments, MemoryInPlace, place::Paths},
        wake_mode::WakeMode,
    };

    #[tokio::test(start_paused = true)]
    async fn few_entries_are_searched_for_at_once_and_none_for_ever() {
        let documents = Arc::new(MemoryDocuments::new());
        let place = InPlace::new(None, "lock", &Paths::default()).unwrap();
        let store = DocumentStore::Memory(Arc::new(MemoryInPlace::new(&documents, place)));
        let config = Settings::default().validate().unwrap();
        let id = "0123456789abcdef".to_owned();
        let session = Session::of(id, config, store.store(), None, WakeMode::ChangeStream);
        let session = DocumentSession::new(session, Arc::new(store));
        let wanted = Arc::new(Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        });
        let entries = || session.claims.sweeping.entries.load(Ordering::Relaxed);
        for number in 0..1_000 {
            session.sweep(wanted.clone(), format!("entry {number}"));
        }
        assert_eq!(entries(), SWEPT_MOST);
        sleep(SWEEPS.iter().sum::<Duration>() * 2).await;
        assert_eq!(entries(), 0);
    }
}
