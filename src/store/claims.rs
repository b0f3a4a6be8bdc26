//! Documents of the user's own as they are claimed and changed.

use mongodb::bson::{Bson, Document};

use crate::{
    error::ServerError,
    protocol::{Exchange, ServerTime, State, document::Malformed},
};

/// An update of an element by operators.
#[derive(Clone, Debug)]
pub(crate) struct ElementUpdate {
    /// Its paths lead from the element.
    pub(crate) of_element: Document,
    /// The same for the document: its paths lead through the array and the [identifier](super::mongo::IDENTIFIER) of
    /// the element.
    pub(crate) of_document: Document,
}

/// The user's own documents that are wanted, and the order in which they are.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) filter: Document,
    pub(crate) sort: Option<Document>,
    /// How often a document may be claimed, if its claims are counted.
    pub(crate) attempts_most: Option<i64>,
}

/// The wanted documents that a claim may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Among<'a> {
    /// All but those with one of these `_id`s.
    AllBut(&'a [Bson]),
    /// The one with this `_id`.
    Only(&'a Bson),
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
    /// An unfit document that claims pass over, if there is one.
    pub(crate) unfit: Option<Bson>,
    pub(crate) exchange: Exchange,
}
