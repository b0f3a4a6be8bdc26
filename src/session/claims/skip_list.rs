//! Documents that a client's claims pass over because they could not be claimed.
//!
//! A document that the server refuses to lock, or that can't be read as the requested type, would be the first to be
//! claimed again, before all others. So claims leave it out for a while, which doubles with each further failure. A
//! document that was mended can be claimed when that is over.

use std::{collections::HashMap, error::Error as StdError, sync::Arc};

use mongodb::bson::Bson;
use tokio::time::Instant;

use super::{
    super::Session,
    filter::{KNOWN_MOST, SELDOM},
};
use crate::{backoff::Backoff, store::name, telemetry, truncated_debug::shown};

/// Maximum number of documents that one claim passes over before it fails: if so many in a row can't be claimed, the
/// trouble is with all of them.
pub(crate) const SKIPPED_AT_ONCE: usize = 16;

/// The reason why a document can't be claimed.
pub(crate) type Why = Arc<dyn StdError + Send + Sync>;

#[derive(Debug, Default)]
pub(super) struct SkipList {
    /// By their whole names: of long ones, many have the same beginning.
    by_name: HashMap<String, Skipped>,
}

#[derive(Debug)]
struct Skipped {
    id: Bson,
    why: Why,
    /// Its tries.
    backoff: Backoff,
    until: Instant,
    /// Whether the server would choose it, so that it is told to leave it out.
    is_chosen: bool,
}

impl SkipList {
    /// Notes that a document could not be claimed. Returns whether that is news: it was not passed over already.
    pub(super) fn note(&mut self, name: String, id: Bson, why: Why, is_chosen: bool, now: Instant) -> bool {
        // Forgotten when it was claimable for as long as it was passed over.
        self.by_name
            .retain(|_, entry| now < entry.until + entry.backoff.pause());
        let before = self.by_name.get(&name);
        if before.is_some_and(|entry| now < entry.until) {
            return false;
        }
        let mut backoff = before.map_or(SELDOM, |entry| entry.backoff);
        let pause = backoff.failed();
        if before.is_none() && self.by_name.len() >= KNOWN_MOST {
            let first = self.by_name.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(name) = first.map(|(name, _)| name.clone()) {
                self.by_name.remove(&name);
            }
        }
        let entry = Skipped {
            id,
            why,
            backoff,
            until: now + pause,
            is_chosen,
        };
        self.by_name.insert(name, entry);
        true
    }

    /// Returns why the document is passed over now, if it is.
    pub(super) fn why(&self, name: &str, now: Instant) -> Option<Why> {
        let entry = self.by_name.get(name).filter(|entry| now < entry.until)?;
        Some(entry.why.clone())
    }

    /// Forgets a document that was claimed.
    pub(super) fn forget(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// Returns the `_id`s of the documents that claims leave out now.
    pub(super) fn ids(&self, now: Instant) -> Vec<Bson> {
        let entries = self.by_name.values();
        let left_out = entries.filter(|entry| now < entry.until && entry.is_chosen);
        left_out.map(|entry| entry.id.clone()).collect()
    }
}

impl Session {
    /// Leaves a document that can't be claimed out of the coming claims for a while; `is_chosen`: the server would choose
    /// it, and is told to leave it out.
    pub(crate) fn pass_over(&self, id: Bson, why: Why, is_chosen: bool) {
        let name = name::of_id(&id);
        let shown = shown(&name);
        if self
            .claims
            .skip_list()
            .note(name, id, why.clone(), is_chosen, Instant::now())
        {
            telemetry::passed_over(&shown, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use super::*;

    fn why() -> Why {
        Arc::new(io::Error::from(io::ErrorKind::InvalidData))
    }

    #[test]
    fn a_document_is_passed_over_for_longer_each_time_and_then_forgotten() {
        let mut skipped = SkipList::default();
        let longest = SELDOM.after(u32::MAX).pause();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(skipped.note("7".into(), Bson::Int32(7), why(), true, now));
            assert!(!skipped.note("7".into(), Bson::Int32(7), why(), true, now), "told once");
            now += Duration::from_secs(seconds);
            assert_eq!(skipped.ids(now - Duration::from_millis(1)), [Bson::Int32(7)]);
            assert_eq!(skipped.ids(now), []);
        }
        assert!(skipped.note("7".into(), Bson::Int32(7), why(), true, now + longest));
        now += longest + SELDOM.after(1).pause();
        assert_eq!(skipped.ids(now), [], "it is as if it were the first time");
    }

    #[test]
    fn few_are_known() {
        let mut skipped = SkipList::default();
        let now = Instant::now();
        for id in 0..200 {
            assert!(skipped.note(
                id.to_string(),
                Bson::Int32(id),
                why(),
                true,
                now + Duration::from_millis(1)
            ));
        }
        assert!(skipped.note("mended".into(), Bson::Null, why(), false, now));
        assert_eq!(skipped.ids(now).len(), KNOWN_MOST - 1);
        skipped.forget("199");
        assert!(skipped.ids(now).len() < KNOWN_MOST);
    }
}
