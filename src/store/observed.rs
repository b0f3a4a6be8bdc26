//! Documents as they are listed, for operators and observers.

use std::fmt;

use super::{LogTime, name};
use crate::{
    input::TEXT_MOST,
    protocol::{Entry, Kind, ServerTime, State, document::Malformed},
    truncated_debug::shown_up_to,
};

/// Conditions on the documents of a list: each one that is set must be met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Prefix of the name; in the user's own documents, prefix of an `_id` that is a text.
    pub(crate) prefix: String,
    pub(crate) kind: Option<Kind>,
    /// Whether the lock has holders.
    pub(crate) held: Option<bool>,
    /// Whether only locks are selected that a holder shows to wait for another; not in the user's own documents.
    pub(crate) awaits: bool,
    /// Maximum number of documents; all where it is not set.
    pub(crate) most: Option<usize>,
}

impl Selection {
    /// Whether a document of the user's own can be one of those that are selected, by its name.
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.prefix.is_empty() || name::text_of(name).is_some_and(|text| text.starts_with(&self.prefix))
    }
}

/// The documents of a list.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) found: Vec<(String, State)>,
    /// The documents that are not locks.
    pub(crate) unreadable: Vec<UnreadableInfo>,
    /// The server's clock.
    pub(crate) now: Option<ServerTime>,
    /// A time in the server's log, no later than which the documents were so; `None` where it tells none.
    pub(crate) as_of: Option<LogTime>,
    /// Whether more documents match than may be listed; those beyond are left out.
    pub(crate) more: bool,
}

impl Listed {
    /// Adds what a document has in the place of a lock.
    pub(super) fn add(&mut self, name: String, found: Option<Result<State, Malformed>>, selection: &Selection) {
        let awaits = |holder: &Entry| holder.shown.as_ref().is_some_and(|shown| shown.awaits.is_some());
        match found {
            // The query of a list of elements can't say that any is held, and nothing is listed that was not asked for.
            Some(Ok(state)) if selection.held == Some(true) && state.holders.is_empty() => {}
            Some(Ok(state)) if selection.awaits && !state.holders.iter().any(awaits) => {}
            Some(Ok(_)) if selection.most.is_some_and(|most| self.found.len() >= most) => self.more = true,
            Some(Ok(state)) => self.found.push((name, state)),
            Some(Err(malformed)) => self.add_unreadable(UnreadableInfo::new(name, &malformed), selection),
            None => {}
        }
    }

    pub(super) fn add_unreadable(&mut self, unreadable: UnreadableInfo, selection: &Selection) {
        if selection.most.is_none() || self.unreadable.len() < UNREADABLE_MOST {
            self.unreadable.push(unreadable);
        }
    }
}

/// Maximum number of the user's own documents that a list reports as not being locks: if the wrong field is named, every
/// document is reported, and these are enough to look for the others.
pub(crate) const UNREADABLE_MOST: usize = 1_000;

/// A document that is not a lock, or can't be read. It is left alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct UnreadableInfo {
    /// Its name. An `_id` that is not UTF-8 is shown with `\u{fffd}` in it.
    pub name: String,
    /// The reason why it is not a lock or can't be read.
    pub problem: String,
}

impl UnreadableInfo {
    pub(crate) fn new(name: String, problem: &impl fmt::Display) -> Self {
        Self {
            name: shown_up_to(TEXT_MOST, name),
            problem: problem.to_string(),
        }
    }

    /// Whether the document can be read by its name: that has all of its `_id`, as it is.
    pub(crate) fn has_name(&self) -> bool {
        self.name.len() < TEXT_MOST && !self.name.contains('\u{fffd}')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fixtures::{MUTEX, lock};

    #[test]
    fn as_many_documents_as_a_list_may_have_are_not_too_many() {
        let selection = Selection {
            most: Some(2),
            ..Selection::default()
        };
        let mut listed = Listed::default();
        let mut add = |name: &str, found| {
            listed.add(name.to_owned(), found, &selection);
            (listed.found.len(), listed.more)
        };
        let found = || Some(Ok(lock(MUTEX, [], [])));
        assert_eq!((add("1", found()), add("2", found())), ((1, false), (2, false)));
        // What is no lock does not count.
        let unreadable = Some(Err(Malformed::occupied("lock".to_owned())));
        assert_eq!((add("3", unreadable), add("4", None)), ((2, false), (2, false)));
        assert_eq!(add("5", found()), (2, true));
    }
}
