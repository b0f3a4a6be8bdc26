//! The ids of a session: of its entries, operations and claims; and the claims that are on their way, whose documents are
//! not known yet, so that news of their entries is kept until they are settled.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::protocol::{ServerTime, wake::Signal};

/// Maximum number of names to remember for a claim on its way; beyond it, every document may have been written.
const DOUBTED_MOST: usize = 1_000;

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

/// The news of a claim that came before its own answer.
#[derive(Debug, Default)]
pub struct Overtaken {
    /// The write that put its entry out.
    pub put_out: Option<(Signal, ServerTime)>,
    /// The documents that another program wrote meanwhile.
    doubted: HashSet<String>,
    doubts_all: bool,
}

impl Overtaken {
    /// Whether another program may have written the document of this name meanwhile.
    pub fn doubts(&self, name: &str) -> bool {
        self.doubts_all || self.doubted.contains(name)
    }
}

/// The claims on their way, by their entries.
#[derive(Debug, Default)]
pub struct PendingClaims(Mutex<HashMap<String, Overtaken>>);

impl PendingClaims {
    pub(super) fn begin(&self, entry: String) {
        self.by_entry().insert(entry, Overtaken::default());
    }

    /// Notes that the outcome of a claim is known. Returns the news that came before it.
    pub fn settled(&self, entry: &str) -> Overtaken {
        self.by_entry().remove(entry).unwrap_or_default()
    }

    /// Keeps the news of an entry until its claim is settled; `false` if no such claim is on its way.
    pub fn remember(&self, entry: &str, signal: Signal, at: ServerTime) -> bool {
        let mut by_entry = self.by_entry();
        let Some(overtaken) = by_entry.get_mut(entry) else {
            return false;
        };
        if matches!(signal, Signal::Evicted { .. } | Signal::Adopted) {
            overtaken.put_out.get_or_insert((signal, at));
        }
        true
    }

    /// Notes that another program may have changed the document of this name; `None`: any document.
    pub fn doubt(&self, name: Option<&str>) {
        for overtaken in self.by_entry().values_mut() {
            match name {
                Some(name) if overtaken.doubted.len() < DOUBTED_MOST => {
                    overtaken.doubted.insert(name.to_owned());
                }
                _ => overtaken.doubts_all = true,
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_entry().is_empty()
    }

    pub(super) fn has(&self, entry: &str) -> bool {
        self.by_entry().contains_key(entry)
    }

    fn by_entry(&self) -> MutexGuard<'_, HashMap<String, Overtaken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADOPTED: Signal = Signal::Adopted;

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
    fn news_of_an_entry_is_kept_from_its_claim_until_the_outcome() {
        let claims = PendingClaims::default();
        assert!(claims.is_empty() && !claims.has("me-1"));
        assert!(!claims.remember("me-1", ADOPTED, ServerTime(1)));
        claims.begin("me-1".to_owned());
        assert!(!claims.is_empty() && claims.has("me-1") && !claims.has("me-2"));
        assert!(claims.remember("me-1", ADOPTED, ServerTime(2)));
        assert!(!claims.remember("me-2", ADOPTED, ServerTime(3)), "nobody claims it");
        assert_eq!(claims.settled("me-1").put_out, Some((ADOPTED, ServerTime(2))));
        assert!(claims.is_empty() && claims.settled("me-1").put_out.is_none());
    }

    #[test]
    fn the_first_write_that_puts_an_entry_out_is_kept() {
        let claims = PendingClaims::default();
        claims.begin("me-1".to_owned());
        for (at, signal) in [(1, Signal::AskedFor), (2, ADOPTED), (3, Signal::Evicted { token: 7 })] {
            assert!(claims.remember("me-1", signal, ServerTime(at)));
        }
        assert_eq!(claims.settled("me-1").put_out, Some((ADOPTED, ServerTime(2))));
    }

    #[test]
    fn a_doubt_concerns_the_claims_that_are_on_their_way() {
        let claims = PendingClaims::default();
        let doubts = |entry: &str| ["x", "y"].map(|name| claims.by_entry()[entry].doubts(name));
        claims.doubt(None);
        claims.begin("me-1".to_owned());
        assert_eq!(doubts("me-1"), [false, false]);
        // The document alone that was written: a claim of another has nothing to read.
        claims.doubt(Some("x"));
        claims.begin("me-2".to_owned());
        assert_eq!((doubts("me-1"), doubts("me-2")), ([true, false], [false, false]));
        claims.doubt(None);
        assert_eq!(doubts("me-2"), [true, true]);
        claims.begin("me-3".to_owned());
        for number in 0..DOUBTED_MOST {
            claims.doubt(Some(&number.to_string()));
        }
        assert_eq!(doubts("me-3"), [false, false]);
        claims.doubt(Some("z"));
        assert_eq!(doubts("me-3"), [true, true], "too many to remember");
    }
}
