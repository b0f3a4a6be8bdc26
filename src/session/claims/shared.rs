//! The state that all claims of one session share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    super::streams::watcher::NextFreed,
    filter::{Filter, KNOWN_MOST},
    orphan_search::OrphanSearch,
    skip_list::SkipList,
};
use crate::store::Wanted;

/// The shared state of a session's claims.
#[derive(Debug, Default)]
pub(in crate::session) struct Claims {
    filters: Mutex<HashMap<Vec<u8>, Arc<Filter>>>,
    skip_list: Mutex<SkipList>,
    pub(super) freed: watch::Sender<Freed>,
    pub(super) orphans: OrphanSearch,
}

/// The news of documents that become free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
    /// Counts the events that may have made a document free.
    pub(super) times: u64,
    pub(super) next: NextFreed,
}

/// Returns what is wanted as a key.
fn key(wanted: &Wanted) -> Vec<u8> {
    let mut key = Vec::new();
    key.extend(wanted.attempts_most.unwrap_or_default().to_le_bytes());
    for part in [Some(&wanted.filter), wanted.sort.as_ref()].into_iter().flatten() {
        // The driver refuses what can't be written, in any state.
        let _ = part.to_writer(&mut key);
    }
    key
}

impl Claims {
    /// Returns the state of the claims that want this.
    pub(super) fn filter(&self, wanted: Wanted) -> Arc<Filter> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(&wanted);
        if filters.len() >= KNOWN_MOST && !filters.contains_key(&key) {
            // That costs each of them a scan when it is used again.
            filters.retain(|_, filter| Arc::strong_count(filter) > 1);
        }
        filters
            .entry(key)
            .or_insert_with(|| Arc::new(Filter::new(wanted)))
            .clone()
    }

    pub(super) fn skip_list(&self) -> MutexGuard<'_, SkipList> {
        self.skip_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no entry of a claim is searched for.
    pub(in crate::session) fn have_no_orphans(&self) -> bool {
        self.orphans.is_done()
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn wanting(n: i32) -> Wanted {
        Wanted {
            filter: doc! { "n": n },
            sort: None,
            attempts_most: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_filters_are_known_unless_more_are_in_use() {
        let claims = Claims::default();
        let used = claims.filter(wanting(-1));
        for n in 0..1_000 {
            drop(claims.filter(wanting(n)));
        }
        let known = claims.filters.lock().unwrap().len();
        assert!((2..=KNOWN_MOST).contains(&known), "{known}");
        assert!(Arc::ptr_eq(&used, &claims.filter(wanting(-1))));
    }
}
