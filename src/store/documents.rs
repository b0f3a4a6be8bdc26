//! Stores whose documents are the user's own, with locks in them: documents can also be claimed, read, changed and
//! deleted.

use std::{sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use super::{
    Among, Arrival, Claimed, ElementUpdate, Listed, MemoryInPlace, MongoStore, NamedSighting, Outlook, ResumeAt,
    Selection, Store, StoreError, Stream, View, Wanted, contained, place::InPlace,
};
use crate::{protocol::Operation, telemetry};

/// A store of documents, in MongoDB or in memory.
#[derive(Clone, Debug)]
pub(crate) enum DocumentStore {
    Mongo(Arc<MongoStore>, Arc<InPlace>),
    Memory(Arc<MemoryInPlace>),
}

impl DocumentStore {
    /// Returns this store as a store of documents with locks in this place; `None` when it is a store of locks.
    pub(crate) fn over(store: &Store, place: &Arc<InPlace>) -> Option<Self> {
        match store {
            Store::Mongo(store) => Some(Self::Mongo(store.clone(), place.clone())),
            Store::MemoryInPlace(store) => Some(Self::Memory(store.clone())),
            _ => None,
        }
    }

    /// Returns the store as every session uses it.
    pub(crate) fn store(&self) -> Store {
        match self {
            Self::Mongo(store, _) => Store::Mongo(store.clone()),
            Self::Memory(store) => Store::MemoryInPlace(store.clone()),
        }
    }

    /// Returns the place of the locks in the documents.
    pub(crate) fn place(&self) -> &Arc<InPlace> {
        match self {
            Self::Mongo(_, place) => place,
            Self::Memory(store) => store.place(),
        }
    }

    /// Reads the locks in all documents that can match.
    pub(crate) async fn list(
        &self,
        selection: &Selection,
        view: View,
        arrival: &Arrival,
    ) -> Result<Listed, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.list_in_place(selection, view, arrival)).await,
            Self::Memory(store) => Ok(store.list(selection)),
        }
        .inspect_err(|error| telemetry::operation_failed("list", None, error))
    }

    /// Opens a stream of whatever happens to the lock in the document `name`, or in any of them, from now on or from
    /// after the last event of `resume`.
    pub(crate) async fn follow(
        &self,
        name: Option<&str>,
        resume: Option<&ResumeAt>,
    ) -> Result<Stream<NamedSighting>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.follow(name, resume))
                .await
                .map(Box::new)
                .map(Stream::Mongo),
            Self::Memory(store) => Ok(Stream::Memory(store.follow(name))),
        }
        .inspect_err(|error| telemetry::operation_failed("follow", name, error))
    }

    /// Locks any wanted document that is free, and returns it; `None` when there is none. The server gives up after
    /// `within`.
    pub(crate) async fn claim(
        &self,
        wanted: &Wanted,
        among: Among<'_>,
        operation: &Operation,
        within: Duration,
    ) -> Result<Option<Claimed>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.claim(wanted, among, operation, within)).await,
            Self::Memory(store) => store.claim(wanted, among, operation),
        }
        .inspect_err(|error| telemetry::operation_failed("claim", None, error))
    }

    /// Returns the `_id` of a document that a claim would take next, which may be the one at which it failed.
    pub(crate) async fn candidate(&self, wanted: &Wanted, among: Among<'_>) -> Result<Option<Bson>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.candidate(wanted, among)).await,
            // In memory nothing refuses to be claimed.
            Self::Memory(_) => Ok(None),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Looks at the wanted documents, none of which is free; those in `passed` count as unfit.
    pub(crate) async fn outlook(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.outlook(wanted, passed)).await,
            Self::Memory(store) => store.outlook(wanted, passed),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Returns the reason why the document with this `_id` can't be claimed; `None` when it has become fit, or is gone.
    pub(crate) async fn why_unfit(&self, id: &Bson) -> Result<Option<StoreError>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.why_unfit(id)).await,
            Self::Memory(store) => Ok(store.why_unfit(id)),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Returns the names of the wanted documents in which one of these entries is a holder, each with that entry.
    pub(crate) async fn held_by(
        &self,
        wanted: &Wanted,
        entries: &[String],
    ) -> Result<Vec<(String, String)>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.held_by(wanted, entries)).await,
            Self::Memory(store) => store.held_by(wanted, entries),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Returns the user's part of a document as it is now.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.fetch(name)).await,
            Self::Memory(store) => Ok(store.fetch(name)),
        }
        .inspect_err(|error| telemetry::operation_failed("read", Some(name), error))
    }

    /// Changes the user's part of a document and returns it, if this entry holds it under this token; returns `None`
    /// otherwise. The id of the operation goes into `wake`, which shows claims that the document is still held. The
    /// server gives up after `within`.
    pub(crate) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: UpdateModifications,
        operation: &str,
        within: Duration,
    ) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.change(name, holder, update, operation, within)).await,
            Self::Memory(store) => store.change(name, holder, &update, operation),
        }
        .inspect_err(|error| telemetry::operation_failed("update", Some(name), error))
    }

    /// Returns the elements that have the key in this name as they are now; `None` when there is no document.
    pub(crate) async fn elements(&self, name: &str) -> Result<Option<Vec<Document>>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.elements(name)).await,
            Self::Memory(store) => Ok(store.elements(name)),
        }
        .inspect_err(|error| telemetry::operation_failed("read", Some(name), error))
    }

    /// Changes the one element that has the key in this name, and returns it, if this entry holds its lock under this
    /// token; returns `None` otherwise, and if no element or more than one has the key. The id of the operation goes
    /// into `wake`. The server gives up after `within`.
    pub(crate) async fn change_element(
        &self,
        name: &str,
        holder: (&str, i64),
        update: ElementUpdate,
        operation: &str,
        within: Duration,
    ) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Mongo(store, _) => {
                contained(store.change_element(name, holder, update.of_document, operation, within)).await
            }
            Self::Memory(store) => store.change_element(name, holder, &update.of_element, operation),
        }
        .inspect_err(|error| telemetry::operation_failed("update", Some(name), error))
    }

    /// Forgets how often a document was claimed, and reports whether that was counted. The server gives up after
    /// `within`.
    pub(crate) async fn clear_attempts(&self, name: &str, within: Duration) -> Result<bool, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.clear_attempts(name, within)).await,
            Self::Memory(store) => Ok(store.clear_attempts(name)),
        }
        .inspect_err(|error| telemetry::operation_failed("update", Some(name), error))
    }

    /// Deletes a document if this entry holds it under this token, and reports whether it did. The server gives up
    /// after `within`.
    pub(crate) async fn delete(&self, name: &str, holder: (&str, i64), within: Duration) -> Result<bool, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.delete(name, holder, within)).await,
            Self::Memory(store) => Ok(store.delete(name, holder)),
        }
        .inspect_err(|error| telemetry::operation_failed("delete", Some(name), error))
    }
}
