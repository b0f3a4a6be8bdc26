//! Stores whose documents are locks: they can also be listed and followed.

use std::sync::Arc;

use super::{
    Arrival, Listed, MemoryStore, MongoStore, NamedSighting, ResumeAt, Selection, Store, StoreError, Stream, View,
    contained,
};
use crate::telemetry;
#[cfg(test)]
use crate::tests::simulated;

/// A store of locks, in MongoDB or in memory.
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
    pub(crate) async fn list(
        &self,
        selection: &Selection,
        view: View,
        arrival: &Arrival,
    ) -> Result<Listed, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.list(selection, view, arrival)).await,
            Self::Memory(store) => Ok(store.list()),
            #[cfg(test)]
            Self::Simulated(link) => Ok(link.memory().list()),
        }
        .inspect_err(|error| telemetry::operation_failed("list", None, error))
    }

    /// Opens a stream of the changes to the document `name`, or to all documents, from now on or from after the last
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
