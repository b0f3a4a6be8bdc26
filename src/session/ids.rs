//! The ids of a session.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Makes the ids of a session: of its entries and of its operations.
#[derive(Debug)]
pub(crate) struct Ids {
    session: String,
    next: AtomicU64,
    /// Entries of claims that are on their way: which document they are in is not known yet.
    claiming: Mutex<HashSet<String>>,
}

impl Ids {
    pub(crate) fn new(session: String) -> Self {
        Self {
            session,
            next: AtomicU64::new(1),
            claiming: Mutex::default(),
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
        self.claiming().insert(entry.clone());
        entry
    }

    /// What became of a claim is known.
    pub(crate) fn settled(&self, claim: &str) {
        self.claiming().remove(claim);
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
        of_session && !self.claiming().contains(entry)
    }

    fn claiming(&self) -> MutexGuard<'_, HashSet<String>> {
        self.claiming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
