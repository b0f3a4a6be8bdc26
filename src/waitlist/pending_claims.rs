//! The claims of a session that are on their way: their documents are not known yet, so news of their entries is kept
//! until they are settled.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::protocol::{ServerTime, wake::Signal};

/// Maximum number of names to remember for a claim on its way; beyond it, every name counts as remembered.
const DOUBTED_MOST: usize = 1_000;

/// Maximum number of signals to remember for an entry: each ends a hold for good, so one would do.
const SIGNALS_MOST: usize = 8;

/// The news of a claim that came before its own answer.
#[derive(Debug, Default)]
pub(crate) struct Overtaken {
    /// Writes that put its entry out.
    pub(crate) signals: Vec<(Signal, ServerTime)>,
    /// Documents that another program wrote.
    doubted: HashSet<String>,
    /// Whether any document may have been written.
    doubts_all: bool,
}

impl Overtaken {
    /// Whether another program may have written the document meanwhile.
    pub(crate) fn doubts(&self, name: &str) -> bool {
        self.doubts_all || self.doubted.contains(name)
    }
}

/// The claims on their way, by their entries.
#[derive(Debug, Default)]
pub(crate) struct PendingClaims(Mutex<HashMap<String, Overtaken>>);

impl PendingClaims {
    pub(super) fn begin(&self, entry: String) {
        self.by_entry().insert(entry, Overtaken::default());
    }

    /// Notes that the outcome of a claim is known. Returns the news that came before it.
    pub(crate) fn settled(&self, entry: &str) -> Overtaken {
        self.by_entry().remove(entry).unwrap_or_default()
    }

    /// Keeps the news of an entry until its claim is settled; `false` if no such claim is on its way.
    pub(crate) fn remember(&self, entry: &str, signal: Signal, at: ServerTime) -> bool {
        let mut by_entry = self.by_entry();
        let Some(overtaken) = by_entry.get_mut(entry) else {
            return false;
        };
        if overtaken.signals.len() < SIGNALS_MOST {
            overtaken.signals.push((signal, at));
        }
        true
    }

    /// Notes that another program may have changed the document of this name, or any if `None`.
    pub(crate) fn doubt(&self, name: Option<&str>) {
        for overtaken in self.by_entry().values_mut() {
            match name {
                Some(name) if overtaken.doubted.len() < DOUBTED_MOST => {
                    overtaken.doubted.insert(name.to_owned());
                }
                _ => overtaken.doubts_all = true,
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_entry().is_empty()
    }

    pub(super) fn has(&self, entry: &str) -> bool {
        self.by_entry().contains_key(entry)
    }

    fn by_entry(&self) -> MutexGuard<'_, HashMap<String, Overtaken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
