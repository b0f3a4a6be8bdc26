//! The places of the locks that one session keeps in documents: one lock in each document, or one for each element of
//! an array.

use std::borrow::Cow;

use mongodb::bson::{Bson, Document};

use super::{document_layout::DocumentLayout, element::ElementKey, name};
use crate::protocol::Location;

/// The places of a session's locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockLayout {
    /// The place of the one lock; for elements, of the map from their codes to their locks.
    base: Location,
    /// The path of the array, if the locks are those of its elements.
    array: Option<String>,
    /// The place of the locks of elements, beside the one lock of a document.
    elements: Option<Location>,
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
    /// Returns the places of the locks in documents.
    pub(crate) fn of(place: &DocumentLayout) -> Self {
        Self {
            base: Location::under(place.path()),
            array: place.array().map(str::to_owned),
            elements: place.elements().map(|path| Location::under(&path)),
        }
    }

    /// Returns the place of the one lock; for elements, of the map from their codes to their locks.
    pub(crate) fn base(&self) -> &Location {
        &self.base
    }

    pub(crate) fn is_root(&self) -> bool {
        self.base.is_root()
    }

    /// Removes all locks from a document, so that the rest is the user's.
    pub(crate) fn take_locks(&self, document: &mut Document) {
        self.base.take_lock(document);
        if let Some(elements) = &self.elements {
            elements.take_lock(document);
        }
    }

    /// Reports whether the locks are those of an array's elements.
    pub(crate) fn is_of_elements(&self) -> bool {
        self.array.is_some()
    }

    /// Returns the lock with this name.
    pub(crate) fn member(&self, name: &str) -> LockRef<'_> {
        let location = self.at(name);
        let Some(array) = &self.array else {
            return LockRef {
                id: name::id_of(&self.base, name),
                location,
                element: None,
            };
        };
        let (document, code) = split(name);
        let key = ElementKey::from_code(code);
        LockRef {
            id: name::id_of(&self.base, document),
            location,
            element: key.map(|key| Element { array, key }),
        }
    }

    /// Returns the place of the lock with this name.
    pub(crate) fn at(&self, name: &str) -> Cow<'_, Location> {
        match self.array {
            None => Cow::Borrowed(&self.base),
            Some(_) => Cow::Owned(self.base.inside(split(name).1)),
        }
    }

    /// Returns the `_id` of the document that contains the lock with this name.
    pub(crate) fn id_of(&self, name: &str) -> Bson {
        match self.array {
            None => name::id_of(&self.base, name),
            Some(_) => name::id_of(&self.base, split(name).0),
        }
    }

    /// Reports whether the lock with this name is one of this document, by its exact `_id`: to a collation of the
    /// collection, other texts can be the same.
    pub(crate) fn is_in(&self, name: &str, document: &Document) -> bool {
        let id = document.get("_id").and_then(|id| self.document(id));
        let of = match self.array {
            None => name,
            Some(_) => split(name).0,
        };
        id.as_deref() == Some(of)
    }

    /// Returns the name of the document with this `_id`, as the names of its locks begin; `None` when no lock can have
    /// that `_id`.
    pub(crate) fn document(&self, id: &Bson) -> Option<String> {
        name::of_document(&self.base, id)
    }
}

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
    let (above, last) = path
        .rsplit_once('.')
        .map_or((None, path), |(above, last)| (Some(above), last));
    let mut above = above.into_iter().flat_map(|above| above.split('.'));
    let parent = above.try_fold(document, |document, segment| document.get_document(segment).ok());
    parent?.get_array(last).ok()
}

/// Returns the array at a path that leads through documents, to be changed.
pub(crate) fn array_mut<'a>(document: &'a mut Document, path: &str) -> Option<&'a mut Vec<Bson>> {
    let (above, last) = path
        .rsplit_once('.')
        .map_or((None, path), |(above, last)| (Some(above), last));
    let mut above = above.into_iter().flat_map(|above| above.split('.'));
    let parent = above.try_fold(document, |document, segment| document.get_document_mut(segment).ok());
    parent?.get_array_mut(last).ok()
}
