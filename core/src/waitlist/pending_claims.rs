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
pub struct Overtaken {
    /// Writes that put its entry out.
    pub signals: Vec<(Signal, ServerTime)>,
    /// Documents that another program wrote.
    doubted: HashSet<String>,
    /// Whether any document may have been written.
    doubts_all: bool,
}

impl Overtaken {
    /// Whether another program may have written the document meanwhile.
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
        if overtaken.signals.len() < SIGNALS_MOST {
            overtaken.signals.push((signal, at));
        }
        true
    }

    /// Notes that another program may have changed the document of this name, or any if `None`.
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
    fn news_of_an_entry_is_kept_from_its_claim_until_the_outcome() {
        let claims = PendingClaims::default();
        assert!(claims.is_empty() && !claims.has("me-1"));
        assert!(!claims.remember("me-1", ADOPTED, ServerTime(1)));
        claims.begin("me-1".to_owned());
        assert!(!claims.is_empty() && claims.has("me-1") && !claims.has("me-2"));
        assert!(claims.remember("me-1", ADOPTED, ServerTime(2)));
        assert!(!claims.remember("me-2", ADOPTED, ServerTime(3)), "nobody claims it");
        assert_eq!(claims.settled("me-1").signals, [(ADOPTED, ServerTime(2))]);
        assert!(claims.is_empty() && claims.settled("me-1").signals.is_empty());
    }

    #[test]
    fn the_first_signals_of_an_entry_are_kept() {
        let claims = PendingClaims::default();
        claims.begin("me-1".to_owned());
        for at in 0..20 {
            assert!(claims.remember("me-1", ADOPTED, ServerTime(at)));
        }
        let kept = claims.settled("me-1").signals;
        assert_eq!((kept.len(), kept[0]), (SIGNALS_MOST, (ADOPTED, ServerTime(0))));
    }

    #[test]
    fn a_doubt_concerns_the_claims_that_are_on_their_way() {
        let claims = PendingClaims::default();
        claims.doubt(Some("before"));
        claims.begin("me-1".to_owned());
        claims.doubt(Some("x"));
        claims.begin("me-2".to_owned());
        let (first, second) = (claims.settled("me-1"), claims.settled("me-2"));
        assert_eq!(
            ["x", "before", "y"].map(|name| first.doubts(name)),
            [true, false, false]
        );
        assert!(!second.doubts("x"));
        claims.begin("me-3".to_owned());
        claims.doubt(None);
        assert!(claims.settled("me-3").doubts("y"));
    }

    #[test]
    fn after_too_many_doubts_all_names_are_in_doubt() {
        for (names, doubts_all) in [(DOUBTED_MOST, false), (DOUBTED_MOST + 1, true)] {
            let claims = PendingClaims::default();
            claims.begin("me-1".to_owned());
            for name in 0..names {
                claims.doubt(Some(&name.to_string()));
            }
            let overtaken = claims.settled("me-1");
            assert!(overtaken.doubts("0"));
            assert_eq!(overtaken.doubts("y"), doubts_all, "{names}");
        }
    }
}
