//! Where in a collection of the user's own the locks are.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongodb::{Collection, Namespace, bson::Document};

use super::{MemoryDocuments, identity};

/// Where the documents are.
#[derive(Clone)]
pub(crate) enum Place {
    Mongo(Collection<Document>),
    Memory(Arc<MemoryDocuments>),
}

/// By what the locks of one place are known: those under a path in one collection of one client of the driver, or of
/// memory. Only compared while what it is of is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceId {
    /// Of the driver's client, or of the memory.
    owner: String,
    namespace: String,
    path: String,
}

impl PlaceId {
    pub(crate) fn of(place: &Place, path: &str) -> Option<Self> {
        let (owner, namespace) = match place {
            Place::Mongo(collection) => (identity(collection.client())?, collection.namespace().to_string()),
            Place::Memory(documents) => (format!("{:p}", Arc::as_ptr(documents)), String::new()),
        };
        let path = path.to_owned();
        Some(Self { owner, namespace, path })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mongo(collection) => collection.namespace().fmt(f),
            Self::Memory(_) => f.write_str("a collection in memory"),
        }
    }
}

/// The places of the locks in the documents of one collection, as far as a client knows: programs may lock parts of one
/// document by themselves, each under a path of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths(Arc<Mutex<BTreeSet<String>>>);

impl Paths {
    fn paths(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks under one path.
pub(crate) struct InPlace {
    /// `None` in memory.
    namespace: Option<Namespace>,
    path: String,
    all: Paths,
}

impl InPlace {
    /// From now on the client knows of the path; where a lock would be within another, of that other.
    pub(crate) fn new(namespace: Option<Namespace>, path: &str, all: &Paths) -> Result<Arc<Self>, String> {
        let mut paths = all.paths();
        if let Some(other) = paths.iter().find(|other| *other != path && overlap(other, path)) {
            return Err(other.clone());
        }
        paths.insert(path.to_owned());
        drop(paths);
        Ok(Arc::new(Self {
            namespace,
            path: path.to_owned(),
            all: all.clone(),
        }))
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// This one first, then those of the other locks of the same documents.
    pub(crate) fn paths(&self) -> Vec<String> {
        let others = self.all.paths();
        let others = others.iter().filter(|other| **other != self.path).cloned();
        [self.path.clone()].into_iter().chain(others).collect()
    }

    /// Whether the documents of this collection are the locked ones.
    pub(crate) fn is_in(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref() == Some(namespace)
    }
}

impl PartialEq for InPlace {
    fn eq(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.path == other.path
    }
}

impl Eq for InPlace {}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace")
            .field("namespace", &self.namespace.as_ref().map(ToString::to_string))
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Whether one of two paths is the other, or leads to it.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    one.split('.').zip(other.split('.')).all(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_no_place_within_another() {
        let all = Paths::default();
        let one = InPlace::new(None, "p.x", &all).unwrap();
        InPlace::new(None, "p.x", &all).unwrap();
        InPlace::new(None, "p.xy", &all).unwrap();
        for within in ["p", "p.x.y"] {
            assert_eq!(InPlace::new(None, within, &all).unwrap_err(), "p.x");
        }
        assert_eq!(one.paths(), ["p.x", "p.xy"]);
    }
}
