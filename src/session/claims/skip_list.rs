//! Documents that a client's claims pass over because they could not be claimed.
//!
//! A document that the server refuses to lock, or that can't be read as the requested type, would be the first to be
//! claimed again, before all others. So claims leave it out for a while, which doubles with each further failure. A
//! document that was mended can be claimed when that is over.

use std::{any::TypeId, collections::HashMap, error::Error as StdError, sync::Arc};

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
    /// By the types as which they are claimed, as one may read what another can't; and by their whole names: of long
    /// ones, many have the same beginning.
    entries: HashMap<(TypeId, String), Skipped>,
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
    pub(super) fn note(&mut self, of: TypeId, id: Bson, why: Why, is_chosen: bool, now: Instant) -> bool {
        let key = (of, name::of_id(&id));
        // Forgotten when it was claimable for as long as it was passed over.
        self.entries
            .retain(|_, entry| now < entry.until + entry.backoff.pause());
        let before = self.entries.get(&key);
        if before.is_some_and(|entry| now < entry.until) {
            return false;
        }
        let mut backoff = before.map_or(SELDOM, |entry| entry.backoff);
        let pause = backoff.failed();
        if before.is_none() && self.entries.len() >= KNOWN_MOST {
            let first = self.entries.iter().min_by_key(|(_, entry)| entry.until);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.entries.remove(&first);
            }
        }
        let entry = Skipped {
            id,
            why,
            backoff,
            until: now + pause,
            is_chosen,
        };
        self.entries.insert(key, entry);
        true
    }

    /// Returns why claims as this type pass over the document now, if they do.
    pub(super) fn why(&self, of: TypeId, name: String, now: Instant) -> Option<Why> {
        let entry = self.entries.get(&(of, name)).filter(|entry| now < entry.until)?;
        Some(entry.why.clone())
    }

    /// Forgets a document that was claimed and read.
    pub(super) fn forget(&mut self, of: TypeId, name: String) {
        self.entries.remove(&(of, name));
    }

    /// Returns the `_id`s of the documents that claims as this type leave out now.
    pub(super) fn ids(&self, of: TypeId, now: Instant) -> Vec<Bson> {
        let entries = self.entries.iter().filter(|(key, _)| key.0 == of);
        let left_out = entries.filter(|(_, entry)| now < entry.until && entry.is_chosen);
        left_out.map(|(_, entry)| entry.id.clone()).collect()
    }
}

impl Session {
    /// Leaves a document that can't be claimed out of the coming claims as this type for a while; `is_chosen`: the server
    /// would choose it, and is told to leave it out.
    pub(super) fn pass_over(&self, of: TypeId, id: Bson, why: Why, is_chosen: bool) {
        let (shown, now) = (shown(name::of_id(&id)), Instant::now());
        if self.claims.skip_list().note(of, id, why.clone(), is_chosen, now) {
            telemetry::passed_over(&shown, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use super::*;

    /// The type of all documents here.
    fn any() -> TypeId {
        TypeId::of::<Bson>()
    }

    fn why() -> Why {
        Arc::new(io::Error::from(io::ErrorKind::InvalidData))
    }

    #[test]
    fn a_document_is_passed_over_for_longer_each_time_and_then_forgotten() {
        let mut skipped = SkipList::default();
        let longest = SELDOM.after(u32::MAX).pause();
        let mut now = Instant::now();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert!(skipped.note(any(), Bson::Int32(7), why(), true, now));
            assert!(!skipped.note(any(), Bson::Int32(7), why(), true, now), "told once");
            now += Duration::from_secs(seconds);
            assert_eq!(skipped.ids(any(), now - Duration::from_millis(1)), [Bson::Int32(7)]);
            assert_eq!(skipped.ids(any(), now), []);
        }
        assert!(skipped.note(any(), Bson::Int32(7), why(), true, now + longest));
        now += longest + SELDOM.after(1).pause();
        assert_eq!(skipped.ids(any(), now), [], "it is as if it were the first time");
    }

    #[test]
    fn few_are_known() {
        let mut skipped = SkipList::default();
        let now = Instant::now();
        for id in 0..200 {
            assert!(skipped.note(any(), Bson::Int32(id), why(), true, now + Duration::from_millis(1)));
        }
        assert!(skipped.note(any(), Bson::Null, why(), false, now));
        assert_eq!(skipped.ids(any(), now).len(), KNOWN_MOST - 1);
        skipped.forget(any(), "199".to_owned());
        assert!(skipped.ids(any(), now).len() < KNOWN_MOST);
    }
}
