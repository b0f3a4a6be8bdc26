//! The ids of a session.

use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the ids of a session: of its entries and of its operations.
#[derive(Debug)]
pub(crate) struct Ids {
    session: String,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new(session: String) -> Self {
        Self {
            session,
            next: AtomicU64::new(1),
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

    pub(crate) fn operation(&self) -> String {
        format!("{}.{}", self.session, self.number())
    }

    /// Whether the entry is of this session.
    pub(crate) fn made(&self, entry: &str) -> bool {
        entry
            .strip_prefix(&self.session)
            .is_some_and(|rest| rest.starts_with('-'))
    }
}
