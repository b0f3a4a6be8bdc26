//! Documents of the user's own as they are claimed and changed.

use std::collections::HashSet;

use mongodb::bson::{Bson, Document};

use super::name;
use crate::{
    error::{ServerError, own::Own},
    protocol::{
        Exchange, Location, ServerTime, State,
        document::{ID_MOST, Malformed, size_of_id},
    },
};

/// The user's own documents that are wanted, and the order in which they are.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) filter: Document,
    pub(crate) sort: Option<Document>,
    /// How often a document may be claimed, if its claims are counted.
    pub(crate) attempts_most: Option<i64>,
}

/// The outcome of a claim that was answered.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) claimed: Vec<Claimed>,
    /// Documents that the server refuses to write, by their `_id`s.
    pub(crate) refused: Vec<(Bson, ServerError)>,
    /// Why it is not known whether the other entries are in a document.
    pub(crate) failed: Option<ServerError>,
    /// Why nothing was written: the other entries are in no document.
    pub(crate) unsent: Option<ServerError>,
}

impl Taken {
    /// Returns the outcome of a claim that failed before it wrote anything.
    pub(crate) fn unsent(error: ServerError) -> Self {
        Self {
            unsent: Some(error),
            ..Self::default()
        }
    }
}

/// A document of the user's own that was claimed.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// The entry that was to hold it.
    pub(crate) entry: String,
    pub(crate) name: String,
    /// The user's part of the document.
    pub(crate) document: Document,
    /// The lock as it was written.
    pub(crate) state: Result<State, Malformed>,
    /// How often the document was claimed, this time included, if its claims are counted.
    pub(crate) attempt: Option<i64>,
    pub(crate) exchange: Exchange,
}

impl Claimed {
    /// Reports whether the lock shows the entry, or can't be read.
    pub(crate) fn may_be_ours(&self) -> bool {
        let state = self.state.as_ref();
        state.map_or(true, |state| state.holders.iter().any(|holder| holder.id == self.entry))
    }
}

/// The prospects of a claim while no wanted document is free.
#[derive(Debug)]
pub(crate) struct Outlook {
    /// When the first of them becomes free, if nobody renews.
    pub(crate) free_at: Option<ServerTime>,
    /// Whether some are claimed by others, and become free in time.
    pub(crate) others: bool,
    /// An unfit document that claims pass over, if there is one; and why, unless it only was passed over before.
    pub(crate) unfit: Option<(Bson, Option<ServerError>)>,
    pub(crate) exchange: Exchange,
}

impl Outlook {
    pub(super) fn new(exchange: Exchange) -> Self {
        Self {
            free_at: None,
            others: false,
            unfit: None,
            exchange,
        }
    }

    /// Adds a wanted document with its lock in this place; those in `passed`, by their names, count as unfit.
    pub(super) fn add(&mut self, at: &Location, document: &Document, passed: &HashSet<String>) {
        let id = document.get("_id").cloned().unwrap_or(Bson::Null);
        let size = size_of_id(&id);
        let state = match at.state(document) {
            _ if size > ID_MOST => Err(Own::TooLong(size).into()),
            state => state.map_err(ServerError::from),
        };
        match state {
            Err(why) => drop(self.unfit.get_or_insert((id, Some(why)))),
            Ok(_) if passed.contains(&name::of_id(&id)) => drop(self.unfit.get_or_insert((id, None))),
            Ok(state) => {
                self.others = true;
                let ends = state.iter().flat_map(State::entries).map(|entry| entry.until);
                self.free_at = self.free_at.into_iter().chain(ends.max()).min();
            }
        }
    }
}
