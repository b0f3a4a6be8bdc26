//! The state that the claims of one session share: whose turn it is, what was looked at, and what becomes free.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::watch;

use super::super::streams::watcher::NextFreed;
use super::{looks::Looks, passed::Passed, sweeping::Sweeping};
use crate::store::Wanted;

/// Time within which the server answers a claim for which an index suits.
const QUICK: Duration = Duration::from_millis(50);

/// Maximum number of filters that are known to take long; they are forgotten together, and are found out again by
/// claims that fail.
const KNOWN_DURATIONS_MOST: usize = 64;

/// The shared state of a session's claims.
#[derive(Debug, Default)]
pub(in crate::session) struct Claims {
    /// By filter and order: the turn of the task that found nothing free.
    turns: Mutex<HashMap<Vec<u8>, Weak<tokio::sync::Mutex<()>>>>,
    pub(super) looks: Looks,
    /// By filter and order: how long the server takes for a claim, where that is long.
    durations: Mutex<HashMap<Vec<u8>, Duration>>,
    passed: Mutex<Passed>,
    pub(super) freed: watch::Sender<Freed>,
    pub(super) sweeping: Sweeping,
}

/// The news of documents that become free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
    /// Counts the events that may have made a document free.
    pub(super) times: u64,
    pub(super) next: NextFreed,
}

/// Returns the filter, the order and the number of attempts as a key.
pub(super) fn key(wanted: &Wanted) -> Vec<u8> {
    let mut key = Vec::new();
    key.extend(wanted.attempts_most.unwrap_or_default().to_le_bytes());
    for part in [Some(&wanted.filter), wanted.sort.as_ref()].into_iter().flatten() {
        // The driver refuses what can't be written, at any turn.
        let _ = part.to_writer(&mut key);
    }
    key
}

impl Claims {
    pub(super) fn turn(&self, key: &[u8]) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(key.to_vec(), Arc::downgrade(&turn));
        turn
    }

    /// Returns how long the server recently took for such a claim; zero, where it was quick.
    pub(super) fn duration(&self, key: &[u8]) -> Duration {
        let durations = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        durations.get(key).copied().unwrap_or_default()
    }

    /// Notes how long the server took for such a claim. One quick claim after slow ones may have found what it wanted
    /// early, so it halves the time only.
    pub(super) fn note_duration(&self, key: &[u8], took: Duration) {
        let mut durations = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        let known = durations.get(key).copied().unwrap_or_default();
        let noted = took.max(known / 2);
        if noted < QUICK {
            durations.remove(key);
            return;
        }
        if durations.len() >= KNOWN_DURATIONS_MOST && !durations.contains_key(key) {
            durations.clear();
        }
        durations.insert(key.to_vec(), noted);
    }

    /// Whether no entry of a claim is searched for.
    pub(in crate::session) fn are_swept(&self) -> bool {
        self.sweeping.is_done()
    }

    pub(super) fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_filters_are_known_until_they_are_quick_again() {
        let (claims, millis) = (Claims::default(), Duration::from_millis);
        let durations = [3_000, 10, 10, 1_000, 1].map(|took| {
            claims.note_duration(b"slow", millis(took));
            claims.duration(b"slow").as_millis()
        });
        assert_eq!(durations, [3_000, 1_500, 750, 1_000, 500]);
        for _ in 0..4 {
            claims.note_duration(b"slow", Duration::ZERO);
        }
        assert_eq!(claims.duration(b"slow"), Duration::ZERO);
        for filter in 0..1_000_u32 {
            claims.note_duration(&filter.to_le_bytes(), millis(100));
        }
        let known = claims.durations.lock().unwrap().len();
        assert!((1..=KNOWN_DURATIONS_MOST).contains(&known), "{known}");
    }
}
