//! A store whose documents are locks: it can also be listed and followed.

use std::{fmt, sync::Arc};

#[cfg(test)]
use super::simulated;
use super::{MemoryStore, MongoStore, ResumeAt, Store, StoreError, Stream, View, contained};
use crate::{
    protocol::{Kind, ServerTime, State},
    telemetry,
};

/// A store of locks, by what it is.
#[derive(Clone, Debug)]
pub(crate) enum LockStore {
    Mongo(Arc<MongoStore>),
    Memory(Arc<MemoryStore>),
    #[cfg(test)]
    Simulated(Arc<simulated::Link>),
}

impl LockStore {
    /// Returns the store as every session uses it.
    pub(crate) fn store(&self) -> Store {
        match self {
            Self::Mongo(store) => Store::Mongo(store.clone()),
            Self::Memory(store) => Store::Memory(store.clone()),
            #[cfg(test)]
            Self::Simulated(link) => Store::Simulated(link.clone()),
        }
    }

    /// Reads all documents that can match.
    pub(crate) async fn list(&self, selection: &Selection, view: View) -> Result<Listed, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.list(selection, view)).await,
            Self::Memory(store) => Ok(store.list()),
            #[cfg(test)]
            Self::Simulated(link) => Ok(link.memory().list()),
        }
        .inspect_err(|error| telemetry::operation_failed("list", None, error))
    }

    /// Opens a stream of whatever happens to the document `name`, or to any of them, from now on or from after the last
    /// event of `resume`.
    pub(crate) async fn follow(
        &self,
        name: Option<&str>,
        resume: Option<&ResumeAt>,
    ) -> Result<Stream<NamedSighting>, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.follow(name, resume))
                .await
                .map(Box::new)
                .map(Stream::Mongo),
            Self::Memory(store) => Ok(Stream::Memory(store.follow(name))),
            #[cfg(test)]
            Self::Simulated(link) => Ok(Stream::Memory(link.memory().follow(name))),
        }
        .inspect_err(|error| telemetry::operation_failed("follow", name, error))
    }
}

/// The conditions on the documents that are listed: every one that is set must be met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// How the name begins.
    pub(crate) prefix: String,
    pub(crate) kind: Option<Kind>,
    /// Whether it has holders.
    pub(crate) held: Option<bool>,
}

/// The documents of a list.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) found: Vec<(String, State)>,
    /// Those that are no locks.
    pub(crate) unreadable: Vec<Unreadable>,
    /// The server's clock.
    pub(crate) now: Option<ServerTime>,
}

/// A document in a collection of locks that is not that of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unreadable {
    /// Its `_id`, as far as it can be shown.
    pub(crate) name: String,
    pub(crate) problem: String,
}

/// Maximum number of characters of an unreadable `_id` that are shown: the name of a lock is no longer.
const SHOWN: usize = 1_024;

impl Unreadable {
    pub(crate) fn new(name: String, problem: &impl fmt::Display) -> Self {
        Self {
            name: name.chars().take(SHOWN).collect(),
            problem: problem.to_string(),
        }
    }
}

/// A sighting of an observer's stream.
#[derive(Clone, Debug)]
pub(crate) enum NamedSighting {
    Of(String, Sighting),
    /// Something was written that is not the document of a lock.
    Unreadable(Unreadable),
    /// Anything can have happened to any document.
    Everything,
}

/// A sighting of one document.
#[derive(Clone, Debug)]
pub(crate) enum Sighting {
    State(Box<State>),
    /// The document was deleted.
    Gone,
    /// The document must be read to know.
    Unclear,
}
