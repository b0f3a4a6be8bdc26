//! The places of the locks that one session keeps in documents: the documents are the locks; or each document of the
//! user's own has one lock, or one for each element of an array.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongodb::{
    Namespace,
    bson::{Bson, Document},
};

use super::{element::ElementKey, name};
use crate::protocol::{Location, State, document::Malformed};

/// The paths of the locks in the documents of one collection, as far as a client knows: programs may lock parts of one
/// document independently, each under its own path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths(Arc<Mutex<Known>>);

/// Paths; with the array, where the locks of its elements are.
type Known = Vec<(String, Option<String>)>;

impl Paths {
    fn paths(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of a session's locks. By default, the documents are the locks.
#[derive(Debug, Default)]
pub(crate) struct LockLayout {
    /// The collection of the user's own documents; `None` in memory.
    namespace: Option<Namespace>,
    /// The place of the one lock; for elements, of the map from their codes to their locks.
    base: Location,
    /// The path of the array, if the locks are those of its elements.
    array: Option<String>,
    /// The path of the lock of the whole document, beside which the locks of elements are.
    whole: Option<String>,
    all: Paths,
}

/// One lock of a layout.
pub(crate) struct LockRef<'a> {
    /// The `_id` of its document.
    pub(crate) id: Bson,
    pub(crate) location: Cow<'a, Location>,
    /// The element, if the lock is that of one.
    pub(crate) element: Option<Element<'a>>,
}

/// An element of an array.
pub(crate) struct Element<'a> {
    /// The path of the array.
    pub(crate) array: &'a str,
    pub(crate) key: ElementKey,
}

impl LockLayout {
    /// Registers a path in a user's document with the client: that of its lock, or, with the array and the path of the lock
    /// of the whole document, that of the locks of the array's elements. If a lock there would lie within another lock, or
    /// contain it, returns the path of that other lock as the error.
    pub(crate) fn in_documents(
        namespace: Option<Namespace>,
        path: &str,
        elements: Option<(&str, &str)>,
        all: &Paths,
    ) -> Result<Arc<Self>, String> {
        let (array, whole) = elements
            .map(|(array, whole)| (array.to_owned(), whole.to_owned()))
            .unzip();
        let mut paths = all.paths();
        let is_in_the_way = |(other, of): &&(String, Option<String>)| {
            let is_same = *other == path && *of == array;
            let is_of_array = array.as_ref().is_some_and(|array| overlap(other, array));
            is_of_array || (overlap(other, path) && !is_same)
        };
        if let Some((other, _)) = paths.iter().find(is_in_the_way) {
            return Err(other.clone());
        }
        if !paths.iter().any(|(other, _)| other == path) {
            paths.push((path.to_owned(), array.clone()));
        }
        drop(paths);
        Ok(Arc::new(Self {
            namespace,
            base: Location::under(path),
            array,
            whole,
            all: all.clone(),
        }))
    }

    /// Returns the place of the one lock; for elements, of the map from their codes to their locks.
    pub(crate) fn base(&self) -> &Location {
        &self.base
    }

    /// Reports whether the documents are the locks.
    pub(crate) fn is_root(&self) -> bool {
        self.base.is_root()
    }

    /// Reports whether the locks are those of an array's elements.
    pub(crate) fn is_of_elements(&self) -> bool {
        self.array.is_some()
    }

    /// Reports whether the documents of this collection are the locked ones.
    pub(crate) fn is_for(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref() == Some(namespace)
    }

    /// Returns the paths of all locks in the same documents of the user's: those that this client has, and those of the
    /// whole document and of all its elements, as other clients may lock these.
    pub(crate) fn paths(&self) -> Vec<String> {
        let whole = self.whole.as_deref().unwrap_or(self.base.path());
        let mut paths = vec![whole.to_owned(), elements_beside(whole)];
        for (path, _) in &*self.all.paths() {
            if path != whole && !overlap(path, &paths[1]) {
                paths.push(path.clone());
            }
        }
        paths
    }

    /// Removes all locks from a document, so that the rest is the user's.
    pub(crate) fn take_locks(&self, document: &mut Document) {
        self.base.take_lock(document);
        if !self.is_root() && self.array.is_none() {
            Location::under(&elements_beside(self.base.path())).take_lock(document);
        }
    }

    /// Returns the lock with this name.
    pub(crate) fn member(&self, name: &str) -> LockRef<'_> {
        let key = || ElementKey::from_code(split(name).1);
        let element = self
            .array
            .as_deref()
            .and_then(|array| Some(Element { array, key: key()? }));
        LockRef {
            id: self.id_of(name),
            location: self.at(name),
            element,
        }
    }

    /// Reports whether there can be a lock with this name: another program may have put anything in the place of an
    /// element's.
    pub(crate) fn has_place_of(&self, name: &str) -> bool {
        self.array.is_none() || ElementKey::from_code(split(name).1).is_some()
    }

    /// Returns the place of the lock with this name.
    pub(crate) fn at(&self, name: &str) -> Cow<'_, Location> {
        match self.array {
            None => Cow::Borrowed(&self.base),
            Some(_) => Cow::Owned(self.base.inside(split(name).1)),
        }
    }

    /// Returns what a document of this name has in the place of each of its locks, by their names.
    pub(crate) fn found_in(
        &self,
        name: String,
        document: &Document,
    ) -> impl Iterator<Item = (String, Option<Result<State, Malformed>>)> {
        let elements = self.array.as_ref().and_then(|_| self.base.lock(document));
        let whole = elements.is_none().then(|| (name.clone(), self.base.found(document)));
        let codes = elements.into_iter().flat_map(Document::keys);
        let of_elements = codes.map(move |code| (element_name(&name, code), self.base.inside(code).found(document)));
        whole.into_iter().chain(of_elements)
    }

    /// Returns the locks in a document of this name, by their names, without reading them.
    pub(super) fn locks_in<'a>(&self, name: &str, document: Option<&'a Document>) -> HashMap<String, &'a Document> {
        let base = document.and_then(|document| self.base.lock(document));
        if self.array.is_none() {
            return base.map(|lock| (name.to_owned(), lock)).into_iter().collect();
        }
        let locks = base.into_iter().flatten();
        let named = locks.filter_map(|(code, lock)| Some((element_name(name, code), lock.as_document()?)));
        named.collect()
    }

    /// Returns the `_id` of the document that contains the lock with this name.
    pub(crate) fn id_of(&self, name: &str) -> Bson {
        let name = self.document_of(name);
        let id = if self.is_root() { None } else { name::to_id(name) };
        id.unwrap_or_else(|| Bson::from(name))
    }

    /// Returns the name of the document that contains the lock with this name.
    pub(crate) fn document_of<'a>(&self, name: &'a str) -> &'a str {
        match self.array {
            None => name,
            Some(_) => split(name).0,
        }
    }

    /// Reports whether the lock with this name is one of this document, by its exact `_id`: to a collation of the
    /// collection, other texts can be the same.
    pub(crate) fn is_in(&self, name: &str, document: &Document) -> bool {
        let id = document.get("_id").and_then(|id| self.document(id));
        id.as_deref() == Some(self.document_of(name))
    }

    /// Returns the name of the document with this `_id`, as the names of its locks begin; `None` when no lock can have
    /// that `_id`.
    pub(crate) fn document(&self, id: &Bson) -> Option<String> {
        match self.is_root() {
            true => id.as_str().map(str::to_owned),
            false => Some(name::of_id(id)),
        }
    }
}

impl PartialEq for LockLayout {
    fn eq(&self, other: &Self) -> bool {
        (&self.namespace, &self.base) == (&other.namespace, &other.base)
    }
}

impl Eq for LockLayout {}

impl Element<'_> {
    /// Returns the elements of a document that have the key.
    pub(crate) fn found_in(&self, document: &Document) -> Vec<Document> {
        let elements = array(document, self.array).into_iter().flatten();
        let found = elements.filter(|element| self.key.is_of(element));
        found.filter_map(Bson::as_document).cloned().collect()
    }
}

/// Returns the name of an element's lock. A code has no `/`, so the last one is the end of the document's name.
pub(crate) fn element_name(document: &str, code: &str) -> String {
    format!("{document}/{code}")
}

/// Returns the beginning of the names of all locks in a document.
pub(crate) fn names_in(document: &str) -> String {
    element_name(document, "")
}

fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or((name, ""))
}

/// Returns the array at a path that leads through documents.
fn array<'a>(document: &'a Document, path: &str) -> Option<&'a Vec<Bson>> {
    let (above, last) = above(path);
    above.lock(document)?.get_array(last).ok()
}

/// Returns the array at a path that leads through documents, to be changed.
pub(crate) fn array_mut<'a>(document: &'a mut Document, path: &str) -> Option<&'a mut Vec<Bson>> {
    let (above, last) = above(path);
    above.lock_mut(document)?.get_array_mut(last).ok()
}

/// Returns the place of the document that has the last field of a path, and that field.
fn above(path: &str) -> (Location, &str) {
    let parts = path.rsplit_once('.');
    parts.map_or((Location::default(), path), |(above, last)| {
        (Location::under(above), last)
    })
}

/// Returns the path under which the locks of arrays' elements are, beside the lock of the whole document at `path`.
pub(crate) fn elements_beside(path: &str) -> String {
    format!("{path}_elements")
}

/// Reports whether two paths are equal, or one leads to the other.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    one.split('.').zip(other.split('.')).all(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_no_place_within_another() {
        let all = Paths::default();
        let one = LockLayout::in_documents(None, "p.x", None, &all).unwrap();
        LockLayout::in_documents(None, "p.x", None, &all).unwrap();
        LockLayout::in_documents(None, "p.xy", None, &all).unwrap();
        for within in ["p", "p.x.y"] {
            assert_eq!(LockLayout::in_documents(None, within, None, &all).unwrap_err(), "p.x");
        }
        assert_eq!(one.paths(), ["p.x", "p.x_elements", "p.xy"]);
        let elements = LockLayout::in_documents(None, "p.x_elements.lines", Some(("lines", "p.x")), &all).unwrap();
        assert_eq!(one.paths(), ["p.x", "p.x_elements", "p.xy"]);
        assert_eq!(elements.paths(), ["p.x", "p.x_elements", "p.xy"]);
        // The lock of a document is none of an element, nor of another array.
        LockLayout::in_documents(None, "p.x_elements.lines", None, &all).unwrap_err();
        LockLayout::in_documents(None, "p.x_elements.lines", Some(("others", "p.x")), &all).unwrap_err();
    }

    #[test]
    fn the_locks_of_elements_and_that_of_the_whole_document_know_of_each_other() {
        let elements =
            LockLayout::in_documents(None, "w_elements.lines", Some(("lines", "w")), &Paths::default()).unwrap();
        assert_eq!(elements.paths(), ["w", "w_elements"]);
        let all = Paths::default();
        let whole = LockLayout::in_documents(None, "w", None, &all).unwrap();
        LockLayout::in_documents(None, "other", None, &all).unwrap();
        assert_eq!(whole.paths(), ["w", "w_elements", "other"]);
    }
}
