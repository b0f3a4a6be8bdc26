//! The ids of a session.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::protocol::{ServerTime, wake::Signal};

/// Maximum number of names that are remembered for a claim on its way; beyond, every name counts as remembered.
const DOUBTED_MOST: usize = 1_000;

/// Maximum number of signals that are remembered for an entry: each ends a hold for good, so one would do.
const SIGNALS_MOST: usize = 8;

/// The news of a claim that came before its own answer.
#[derive(Debug, Default)]
pub(crate) struct Overtaken {
    /// Writes that put its entry out.
    pub(crate) signals: Vec<(Signal, ServerTime)>,
    /// Documents that somebody else wrote.
    doubted: HashSet<String>,
    /// Any document may have been written.
    doubts_all: bool,
}

impl Overtaken {
    /// Whether somebody else may have written the document meanwhile.
    pub(crate) fn doubts(&self, name: &str) -> bool {
        self.doubts_all || self.doubted.contains(name)
    }
}

/// Makes the ids of a session: of its entries and of its operations.
#[derive(Debug)]
pub(crate) struct Ids {
    session: String,
    next: AtomicU64,
    /// Entries of claims that are on their way: which document they are in is not known yet.
    claiming: Mutex<HashMap<String, Overtaken>>,
}

impl Ids {
    pub(crate) fn new(session: String) -> Self {
        Self {
            session,
            next: AtomicU64::new(1),
            claiming: Mutex::default(),
        }
    }

    /// Ids that go on with this number.
    #[cfg(test)]
    pub(crate) fn resumed(session: String, next: u64) -> Self {
        Self {
            next: AtomicU64::new(next),
            ..Self::new(session)
        }
    }

    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn entry(&self) -> String {
        format!("{}-{}", self.session, self.number())
    }

    /// The entry of a claim; until it is settled nobody takes it for a stranger.
    pub(crate) fn claim(&self) -> String {
        let entry = self.entry();
        self.claiming().insert(entry.clone(), Overtaken::default());
        entry
    }

    /// What became of a claim is known. Returns the news that came before that.
    pub(crate) fn settled(&self, claim: &str) -> Overtaken {
        self.claiming().remove(claim).unwrap_or_default()
    }

    /// Keeps the news of an entry until its claim is settled; `false` when no such claim is on its way.
    pub(crate) fn remember(&self, entry: &str, signal: Signal, at: ServerTime) -> bool {
        let mut claiming = self.claiming();
        let Some(overtaken) = claiming.get_mut(entry) else {
            return false;
        };
        if overtaken.signals.len() < SIGNALS_MOST {
            overtaken.signals.push((signal, at));
        }
        true
    }

    /// The document of this name, or any, may have been changed by somebody else.
    pub(crate) fn doubt(&self, name: Option<&str>) {
        for overtaken in self.claiming().values_mut() {
            match name {
                Some(name) if overtaken.doubted.len() < DOUBTED_MOST => {
                    overtaken.doubted.insert(name.to_owned());
                }
                _ => overtaken.doubts_all = true,
            }
        }
    }

    /// Whether claims are on their way.
    pub(crate) fn is_claiming(&self) -> bool {
        !self.claiming().is_empty()
    }

    pub(crate) fn operation(&self) -> String {
        format!("{}.{}", self.session, self.number())
    }

    /// Whether the entry is of this session, and its document is known.
    pub(crate) fn made(&self, entry: &str) -> bool {
        let of_session = entry
            .strip_prefix(&self.session)
            .is_some_and(|rest| rest.starts_with('-'));
        of_session && !self.claiming().contains_key(entry)
    }

    fn claiming(&self) -> MutexGuard<'_, HashMap<String, Overtaken>> {
        self.claiming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
