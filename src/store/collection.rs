//! Collections of the user's own, and the identity of the locks in one.

use std::{fmt, sync::Arc};

use mongodb::{Collection, bson::Document};

use super::{MemoryDocuments, identity};

/// A collection of the user's own documents.
#[derive(Clone)]
pub(crate) enum UserCollection {
    Mongo(Collection<Document>),
    Memory(Arc<MemoryDocuments>),
}

/// Identity of the locks under one path in one collection, in one client of the driver or in memory. It is compared
/// only while its client or memory is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceId {
    /// Identity of the driver's client, or of the memory.
    owner: String,
    namespace: String,
    path: String,
}

impl PlaceId {
    pub(crate) fn of(collection: &UserCollection, path: &str) -> Option<Self> {
        let (owner, namespace) = match collection {
            UserCollection::Mongo(collection) => (identity(collection.client())?, collection.namespace().to_string()),
            UserCollection::Memory(documents) => (documents.identity(), String::new()),
        };
        let path = path.to_owned();
        Some(Self { owner, namespace, path })
    }
}

impl fmt::Display for UserCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mongo(collection) => collection.namespace().fmt(f),
            Self::Memory(_) => f.write_str("a collection in memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// It may be where one was that is gone.
    #[test]
    fn a_collection_in_memory_is_not_mistaken_for_an_earlier_one() {
        let place = || PlaceId::of(&UserCollection::Memory(Arc::default()), "a").unwrap().owner;
        let owners: HashSet<String> = (0..100).map(|_| place()).collect();
        assert_eq!(owners.len(), 100);
    }
}
