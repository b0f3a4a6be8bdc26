//! The ids of a session: of its entries, operations and claims; and the claims that are on their way, whose documents are
//! not known yet, so that news which may be of them is kept until they are settled.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

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
        self.id('-')
    }

    /// Returns the entry of a new claim; until that is settled, nothing takes it for an orphan.
    pub fn claim(&self) -> String {
        let entry = self.entry();
        self.pending_claims.begin(entry.clone());
        entry
    }

    pub fn operation(&self) -> String {
        self.id('.')
    }

    fn id(&self, separator: char) -> String {
        // The number has 20 digits at most.
        let mut id = String::with_capacity(self.session.len() + 21);
        // Writing to a String can't fail.
        let _ = write!(id, "{}{separator}{}", self.session, self.number());
        id
    }

    /// Whether the entry is of this session, and its document is known.
    pub fn made(&self, entry: &str) -> bool {
        let of_session = entry
            .strip_prefix(&self.session)
            .is_some_and(|rest| rest.starts_with('-'));
        of_session && !self.pending_claims.has(entry)
    }
}

/// The claims on their way, by their entries, and whether news came that may be of their holds.
#[derive(Debug, Default)]
pub struct PendingClaims(Mutex<HashMap<String, bool>>);

impl PendingClaims {
    pub(super) fn begin(&self, entry: String) {
        self.by_entry().insert(entry, false);
    }

    /// Notes that the outcome of a claim is known. Returns whether its hold is in doubt, as news came before that.
    pub fn settled(&self, entry: &str) -> bool {
        self.by_entry().remove(entry).unwrap_or_default()
    }

    /// Notes news of an entry; `false` if no such claim is on its way.
    pub fn doubt(&self, entry: &str) -> bool {
        let mut by_entry = self.by_entry();
        by_entry.get_mut(entry).map(|doubted| *doubted = true).is_some()
    }

    /// Notes that another program may have changed any document.
    pub fn doubt_all(&self) {
        self.by_entry().values_mut().for_each(|doubted| *doubted = true);
    }

    pub fn is_empty(&self) -> bool {
        self.by_entry().is_empty()
    }

    pub(super) fn has(&self, entry: &str) -> bool {
        self.by_entry().contains_key(entry)
    }

    fn by_entry(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn news_that_comes_before_the_outcome_of_a_claim_puts_its_hold_in_doubt() {
        let claims = PendingClaims::default();
        assert!(claims.is_empty() && !claims.has("me-1") && !claims.doubt("me-1"));
        for entry in ["me-1", "me-2", "me-3"] {
            claims.begin(entry.to_owned());
        }
        assert!(claims.doubt("me-1") && claims.has("me-1"));
        assert_eq!(["me-1", "me-2"].map(|entry| claims.settled(entry)), [true, false]);
        claims.doubt_all();
        claims.begin("me-4".to_owned());
        assert_eq!(["me-3", "me-4"].map(|entry| claims.settled(entry)), [true, false]);
        assert!(claims.is_empty() && !claims.settled("me-1"));
    }
}
