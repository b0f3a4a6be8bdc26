//! The claims of a session that are on their way: their documents are not known yet, so news of their entries is kept
//! until they are settled.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::protocol::{ServerTime, wake::Signal};

/// The news of a claim that came before its own answer.
#[derive(Debug, Default)]
pub struct Overtaken {
    /// The write that put its entry out.
    pub put_out: Option<(Signal, ServerTime)>,
    /// Whether another program may have written a document meanwhile.
    pub doubted: bool,
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

    /// Notes that another program may have changed a document.
    pub fn doubt(&self) {
        for overtaken in self.by_entry().values_mut() {
            overtaken.doubted = true;
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
        claims.doubt();
        claims.begin("me-1".to_owned());
        assert!(!claims.settled("me-1").doubted);
        claims.begin("me-2".to_owned());
        claims.doubt();
        claims.begin("me-3".to_owned());
        assert!(claims.settled("me-2").doubted && !claims.settled("me-3").doubted);
    }
}
