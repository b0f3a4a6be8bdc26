//! The ids of a session: of its entries, operations and claims; and the claims that are on their way, whose documents are
//! not known yet, so that news which may be of them is kept until they are settled.

use std::{
    collections::{HashMap, HashSet},
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

/// Maximum number of documents to remember for a claim on its way; beyond it, news may have come of any.
const DOUBTED_MOST: usize = 1_000;

/// The names of the documents of which news came; `None`: of any.
type Doubted = Option<HashSet<String>>;

/// The claims on their way, by their entries, and the documents of which news came meanwhile.
#[derive(Debug, Default)]
pub struct PendingClaims(Mutex<HashMap<String, Doubted>>);

impl PendingClaims {
    pub(super) fn begin(&self, entry: String) {
        self.by_entry().insert(entry, Some(HashSet::new()));
    }

    /// Notes that the outcome of a claim is known.
    pub fn settled(&self, entry: &str) {
        self.by_entry().remove(entry);
    }

    /// Does the same for a claim of this document. Returns whether its hold is in doubt, as news came before that.
    pub fn settled_with(&self, entry: &str, name: &str) -> bool {
        let claim = self.by_entry().remove(entry);
        claim.is_some_and(|doubted| doubted.is_none_or(|names| names.contains(name)))
    }

    /// Notes news of an entry, in this document; `false` if no such claim is on its way.
    pub fn doubt(&self, entry: &str, name: &str) -> bool {
        let mut by_entry = self.by_entry();
        by_entry
            .get_mut(entry)
            .map(|doubted| add(doubted, Some(name)))
            .is_some()
    }

    /// Notes that another program may have changed the document of this name; `None`: any document.
    pub fn note_foreign(&self, name: Option<&str>) {
        self.by_entry().values_mut().for_each(|doubted| add(doubted, name));
    }

    pub fn is_empty(&self) -> bool {
        self.by_entry().is_empty()
    }

    pub(super) fn has(&self, entry: &str) -> bool {
        self.by_entry().contains_key(entry)
    }

    fn by_entry(&self) -> MutexGuard<'_, HashMap<String, Doubted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(doubted: &mut Doubted, name: Option<&str>) {
    match (doubted.as_mut().filter(|names| names.len() < DOUBTED_MOST), name) {
        (Some(names), Some(name)) => _ = names.insert(name.to_owned()),
        _ => *doubted = None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(claims.is_empty() && !claims.has("me-1") && !claims.doubt("me-1", "x"));
        for entry in ["me-1", "me-2"] {
            claims.begin(entry.to_owned());
        }
        assert!(claims.doubt("me-1", "x") && claims.has("me-1"));
        assert_eq!(
            ["me-1", "me-2"].map(|entry| claims.settled_with(entry, "x")),
            [true, false]
        );
        assert!(claims.is_empty() && !claims.settled_with("me-1", "x"));
    }

    #[test]
    fn news_of_another_document_puts_no_claim_in_doubt() {
        let claims = PendingClaims::default();
        for entry in ["me-1", "me-2", "me-3"] {
            claims.begin(entry.to_owned());
        }
        claims.note_foreign(Some("x"));
        assert_eq!(
            [("me-1", "x"), ("me-2", "y")].map(|(entry, name)| claims.settled_with(entry, name)),
            [true, false]
        );
        claims.note_foreign(None);
        claims.begin("me-4".to_owned());
        assert_eq!(
            ["me-3", "me-4"].map(|entry| claims.settled_with(entry, "y")),
            [true, false]
        );
        claims.begin("me-5".to_owned());
        for number in 0..=DOUBTED_MOST {
            claims.note_foreign(Some(&number.to_string()));
        }
        assert!(claims.settled_with("me-5", "y"), "too many to remember");
    }
}
