//! A store whose documents are the user's own, with locks in them: they can also be claimed, read, changed and deleted.

use std::{sync::Arc, time::Duration};

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use super::{Exchange, MemoryInPlace, MongoStore, Store, StoreError, contained, place::InPlace};
use crate::{
    protocol::{Operation, ServerTime, State, document::Malformed},
    telemetry,
};

/// A store of documents, by what it is.
#[derive(Clone, Debug)]
pub(crate) enum DocumentStore {
    Mongo(Arc<MongoStore>, Arc<InPlace>),
    Memory(Arc<MemoryInPlace>),
}

impl DocumentStore {
    /// Returns the store of documents that this store is, with the locks in this place; `None` where it is one of locks.
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

    /// Returns where in the documents the locks are.
    pub(crate) fn place(&self) -> &Arc<InPlace> {
        match self {
            Self::Mongo(_, place) => place,
            Self::Memory(store) => store.place(),
        }
    }

    /// Locks any document that is wanted and free, and returns it; `None` when there is none. The server may try for so
    /// long.
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

    /// The `_id` of a document that a claim would take next, which may be the one that it failed at.
    pub(crate) async fn candidate(&self, wanted: &Wanted, among: Among<'_>) -> Result<Option<Bson>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.candidate(wanted, among)).await,
            // Nothing refuses to be claimed there.
            Self::Memory(_) => Ok(None),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Looks at the documents that are wanted, none of which is free; those that are `passed` over count as unfit.
    pub(crate) async fn outlook(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.outlook(wanted, passed)).await,
            Self::Memory(store) => store.outlook(wanted, passed),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Why the document with this `_id` is not fit to be claimed; `None` when it is so by now, or is gone.
    pub(crate) async fn why_unfit(&self, id: &Bson) -> Result<Option<StoreError>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.why_unfit(id)).await,
            Self::Memory(store) => Ok(store.why_unfit(id)),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// The names of the wanted documents in which this entry is a holder.
    pub(crate) async fn held_by(&self, wanted: &Wanted, entry: &str) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.held_by(wanted, entry)).await,
            Self::Memory(store) => store.held_by(wanted, entry),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// The user's part of a document as it is now.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.fetch(name)).await,
            Self::Memory(store) => Ok(store.fetch(name)),
        }
        .inspect_err(|error| telemetry::operation_failed("read", Some(name), error))
    }

    /// Changes the user's part of a document, and returns it, if this entry holds it under this token; `None` otherwise.
    /// The id of the operation goes into `wake`, by which claims see that the document is still held.
    /// The server may try for so long.
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

    /// Deletes a document if this entry holds it under this token, and says whether it did. The server may try for so
    /// long.
    pub(crate) async fn delete(&self, name: &str, holder: (&str, i64), within: Duration) -> Result<bool, StoreError> {
        match self {
            Self::Mongo(store, _) => contained(store.delete(name, holder, within)).await,
            Self::Memory(store) => Ok(store.delete(name, holder)),
        }
        .inspect_err(|error| telemetry::operation_failed("delete", Some(name), error))
    }
}

/// Which documents of the user's own are wanted, and which of them first.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) filter: Document,
    pub(crate) sort: Option<Document>,
}

/// Which of the wanted documents a claim may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Among<'a> {
    /// All but those with one of these `_id`s.
    AllBut(&'a [Bson]),
    /// The one with this `_id`.
    Only(&'a Bson),
}

/// A document of the user's own that was claimed.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) name: String,
    /// The user's part of it.
    pub(crate) document: Document,
    /// The lock as it was written.
    pub(crate) state: Result<State, Malformed>,
    pub(crate) exchange: Exchange,
}

/// What is to be expected of the wanted documents when none is free.
#[derive(Debug)]
pub(crate) struct Outlook {
    /// When the first of them is free again, should nobody renew.
    pub(crate) free_at: Option<ServerTime>,
    /// Some are claimed by others, and are free in time.
    pub(crate) others: bool,
    /// One that claims pass over as it is not fit, if there is one.
    pub(crate) unfit: Option<Bson>,
    pub(crate) exchange: Exchange,
}
