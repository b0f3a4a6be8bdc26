//! Documents that a client's claims pass over because they could not be claimed.
//!
//! A document that the server refuses to lock, or that can't be read as the requested type, would be the first to be
//! claimed again, before all others. So claims leave it out for a while, which doubles with each further failure. A
//! document that was mended can be claimed when that is over.

use std::{collections::HashMap, error::Error as StdError, sync::Arc, time::Duration};

use mongodb::bson::Bson;
use tokio::time::Instant;

use super::super::Session;
use crate::{backoff::Backoff, store::name, telemetry};

/// Time for which a document is passed over.
const PASSED_FOR: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(300));

/// Maximum number of known documents: their `_id`s, of up to 8 KiB each, are sent with every claim. Further bad
/// documents are claimed in vain more often.
const PASSED_MOST: usize = 64;

/// Maximum number of documents that one claim passes over before it fails: if so many in a row can't be claimed, the
/// trouble is with all of them.
pub(crate) const PASSED_AT_ONCE: usize = 16;

/// Maximum number of characters shown of an unclaimable `_id`, as it may be too long.
const ID_SHOWN_MOST: usize = 200;

/// The reason why a document can't be claimed.
pub(crate) type Why = Arc<dyn StdError + Send + Sync>;

#[derive(Debug, Default)]
pub(in crate::session) struct Passed {
    /// By their whole names: of long ones, many have the same beginning.
    by_name: HashMap<String, PassedOver>,
}

#[derive(Debug)]
struct PassedOver {
    id: Bson,
    why: Why,
    /// Its tries.
    backoff: Backoff,
    until: Instant,
    selection: Selection,
}

/// Whether the server would choose an unclaimable document for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Selection {
    /// It would, and is told to leave it out.
    Selected,
    /// It would not, so that the document can be claimed as soon as it is mended.
    Unselected,
}

/// Returns the name of an unclaimable document, shortened if it is too long.
pub(super) fn shown(id: &Bson) -> String {
    let name = name::of_id(id);
    match name.char_indices().nth(ID_SHOWN_MOST) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name,
    }
}

impl Passed {
    /// Notes that a document could not be claimed. Returns whether that is news: it was not passed over already.
    pub(in crate::session) fn note(
        &mut self,
        name: String,
        id: Bson,
        why: Why,
        selection: Selection,
        now: Instant,
    ) -> bool {
        // Forgotten when it was claimable for as long as it was passed over.
        self.by_name
            .retain(|_, entry| now < entry.until + entry.backoff.pause());
        let before = self.by_name.get(&name);
        if before.is_some_and(|entry| now < entry.until) {
            return false;
        }
        let mut backoff = before.map_or(PASSED_FOR, |entry| entry.backoff);
        let pause = backoff.failed();
        if before.is_none() && self.by_name.len() >= PASSED_MOST {
            let first = self.by_name.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(name) = first.map(|(name, _)| name.clone()) {
                self.by_name.remove(&name);
            }
        }
        let entry = PassedOver {
            id,
            why,
            backoff,
            until: now + pause,
            selection,
        };
        self.by_name.insert(name, entry);
        true
    }

    /// Returns why the document is passed over now, if it is.
    pub(in crate::session) fn why(&self, name: &str, now: Instant) -> Option<Why> {
        let entry = self.by_name.get(name).filter(|entry| now < entry.until)?;
        Some(entry.why.clone())
    }

    /// Forgets a document that was claimed.
    pub(in crate::session) fn forget(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// Returns the `_id`s of the documents that claims leave out now.
    pub(in crate::session) fn ids(&self, now: Instant) -> Vec<Bson> {
        let entries = self.by_name.values();
        let left_out = entries.filter(|entry| now < entry.until && entry.selection == Selection::Selected);
        left_out.map(|entry| entry.id.clone()).collect()
    }
}

impl Session {
    /// Leaves a document out of the coming claims for a while, as it can't be read as the requested type.
    pub(crate) fn pass_over(&self, id: Bson, why: Why) {
        self.note_passed(id, why, Selection::Selected);
    }

    pub(super) fn note_passed(&self, id: Bson, why: Why, selection: Selection) {
        let shown = shown(&id);
        let noted = self
            .claims
            .passed()
            .note(name::of_id(&id), id, why.clone(), selection, Instant::now());
        if noted {
            telemetry::passed_over(&shown, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn why() -> Why {
        Arc::new(io::Error::from(io::ErrorKind::InvalidData))
    }

    #[test]
    fn a_document_is_passed_over_for_longer_each_time_and_then_forgotten() {
        let mut passed = Passed::default();
        let longest = PASSED_FOR.after(u32::MAX).pause();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(passed.note("7".into(), Bson::Int32(7), why(), Selection::Selected, now));
            assert!(
                !passed.note("7".into(), Bson::Int32(7), why(), Selection::Selected, now),
                "told once"
            );
            now += Duration::from_secs(seconds);
            assert_eq!(passed.ids(now - Duration::from_millis(1)), [Bson::Int32(7)]);
            assert_eq!(passed.ids(now), []);
        }
        assert!(passed.note("7".into(), Bson::Int32(7), why(), Selection::Selected, now + longest));
        now += longest + PASSED_FOR.after(1).pause();
        assert_eq!(passed.ids(now), [], "it is as if it were the first time");
    }

    #[test]
    fn few_are_known() {
        let mut passed = Passed::default();
        let now = Instant::now();
        for id in 0..200 {
            assert!(passed.note(
                id.to_string(),
                Bson::Int32(id),
                why(),
                Selection::Selected,
                now + Duration::from_millis(1)
            ));
        }
        assert!(passed.note("mended".into(), Bson::Null, why(), Selection::Unselected, now));
        assert_eq!(passed.ids(now).len(), PASSED_MOST - 1);
        passed.forget("199");
        assert!(passed.ids(now).len() < PASSED_MOST);
    }
}
