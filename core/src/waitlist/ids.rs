//! The ids of a session: of its entries, operations and claims.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pending_claims::PendingClaims;

/// The source of a session's ids.
#[derive(Debug)]
pub struct Ids {
    session: String,
    next: AtomicU64,
    /// The claims on their way.
    pub pending_claims: PendingClaims,
}

impl Ids {
    pub fn new(session: String) -> Self {
        Self {
            session,
            next: AtomicU64::new(1),
            pending_claims: PendingClaims::default(),
        }
    }

    /// Creates ids that go on with this number.
    #[cfg(any(test, feature = "testing"))]
    pub fn resumed(session: String, next: u64) -> Self {
        Self {
            next: AtomicU64::new(next),
            ..Self::new(session)
        }
    }

    pub fn session(&self) -> &str {
        &self.session
    }

    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn entry(&self) -> String {
        format!("{}-{}", self.session, self.number())
    }

    /// Returns the entry of a new claim; until that is settled, nothing takes it for an orphan.
    pub fn claim(&self) -> String {
        let entry = self.entry();
        self.pending_claims.begin(entry.clone());
        entry
    }

    pub fn operation(&self) -> String {
        format!("{}.{}", self.session, self.number())
    }

    /// Whether the entry is of this session, and its document is known.
    pub fn made(&self, entry: &str) -> bool {
        let of_session = entry
            .strip_prefix(&self.session)
            .is_some_and(|rest| rest.starts_with('-'));
        of_session && !self.pending_claims.has(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_is_new_and_names_its_session() {
        let ids = Ids::new("me".to_owned());
        assert_eq!(ids.session(), "me");
        assert_eq!([ids.entry(), ids.operation(), ids.claim()], ["me-1", "me.2", "me-3"]);
        assert_eq!((ids.number(), ids.number()), (4, 5));
    }

    #[test]
    fn an_entry_is_of_a_session_by_its_whole_name_and_of_a_claim_until_that_is_settled() {
        let ids = Ids::new("me".to_owned());
        let made = ["me-1", "me", "me.1", "mean-1", "you-1"].map(|entry| ids.made(entry));
        assert_eq!(made, [true, false, false, false, false]);
        let claimed = ids.claim();
        assert!(!ids.made(&claimed));
        ids.pending_claims.settled(&claimed);
        assert!(ids.made(&claimed));
    }
}
