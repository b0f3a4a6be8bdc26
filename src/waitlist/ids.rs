//! The ids of a session: of its entries, operations and claims.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
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

/// The source of a session's ids: of its entries and of its operations.
#[derive(Debug)]
pub(crate) struct Ids {
    session: String,
    next: AtomicU64,
    /// Entries of claims that are on their way: their documents are not known yet.
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

    /// Creates ids that go on with this number.
    #[cfg(modelled)]
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

    /// Returns the entry of a new claim; until that is settled, nothing takes it for a stranger.
    pub(crate) fn claim(&self) -> String {
        let entry = self.entry();
        self.claiming().insert(entry.clone(), Overtaken::default());
        entry
    }

    /// Notes that the outcome of a claim is known. Returns the news that came before it.
    pub(crate) fn settled(&self, claim: &str) -> Overtaken {
        self.claiming().remove(claim).unwrap_or_default()
    }

    /// Keeps the news of an entry until its claim is settled; `false` if no such claim is on its way.
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

    /// Notes that another program may have changed the document of this name, or any if `None`.
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
