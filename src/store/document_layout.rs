//! Places of locks in a collection of the user's own.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongodb::Namespace;

/// The places of the locks in the documents of one collection, as far as a client knows: programs may lock parts of one
/// document independently, each under its own path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths(Arc<Mutex<BTreeMap<String, Option<String>>>>);

impl Paths {
    /// The paths; with the array, where the locks of its elements are.
    fn paths(&self) -> MutexGuard<'_, BTreeMap<String, Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks under one path.
pub(crate) struct DocumentLayout {
    /// `None` in memory.
    namespace: Option<Namespace>,
    path: String,
    /// The array, if the locks are those of its elements: then the path is that of the map from their codes to their
    /// locks.
    array: Option<String>,
    /// The path of the lock of the whole document, beside which the locks of elements are.
    whole: Option<String>,
    all: Paths,
}

impl DocumentLayout {
    /// Registers the path with the client. If a lock there would lie within another lock, or contain it, returns the
    /// path of that other lock as the error.
    pub(crate) fn new(namespace: Option<Namespace>, path: &str, all: &Paths) -> Result<Arc<Self>, String> {
        Self::register(namespace, path, None, None, all)
    }

    /// Does the same for the locks of an array's elements, beside the lock of the whole document under its path.
    pub(crate) fn of_elements(
        namespace: Option<Namespace>,
        path: &str,
        (array, whole): (&str, &str),
        all: &Paths,
    ) -> Result<Arc<Self>, String> {
        if let Some(other) = all.paths().keys().find(|other| overlap(other, array)) {
            return Err(other.clone());
        }
        Self::register(namespace, path, Some(array), Some(whole), all)
    }

    fn register(
        namespace: Option<Namespace>,
        path: &str,
        array: Option<&str>,
        whole: Option<&str>,
        all: &Paths,
    ) -> Result<Arc<Self>, String> {
        let mut paths = all.paths();
        let array = array.map(str::to_owned);
        let same = |other: &str, of: &Option<String>| other == path && *of == array;
        if let Some((other, _)) = paths
            .iter()
            .find(|(other, of)| overlap(other, path) && !same(other, of))
        {
            return Err(other.clone());
        }
        paths.insert(path.to_owned(), array.clone());
        drop(paths);
        Ok(Arc::new(Self {
            namespace,
            path: path.to_owned(),
            array,
            whole: whole.map(str::to_owned),
            all: all.clone(),
        }))
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the path of the array whose elements are locked, if elements are.
    pub(crate) fn array(&self) -> Option<&str> {
        self.array.as_deref()
    }

    /// Returns the paths of all locks in the same documents: those that this client has, and those of the whole
    /// document and of all its elements, as other clients may lock these.
    pub(crate) fn paths(&self) -> Vec<String> {
        let whole = self.whole.as_ref().unwrap_or(&self.path);
        let elements = elements_beside(whole);
        let others = self.all.paths();
        let is_other = |path: &String| path != whole && !overlap(path, &elements);
        let others: Vec<String> = others.keys().filter(|path| is_other(path)).cloned().collect();
        [whole.clone(), elements].into_iter().chain(others).collect()
    }

    /// Returns the path under which the locks of arrays' elements are, beside a lock of the whole document.
    pub(crate) fn elements(&self) -> Option<String> {
        self.array.is_none().then(|| elements_beside(&self.path))
    }

    /// Reports whether the documents of this collection are the locked ones.
    pub(crate) fn is_in(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref() == Some(namespace)
    }
}

impl PartialEq for DocumentLayout {
    fn eq(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.path == other.path
    }
}

impl Eq for DocumentLayout {}

impl fmt::Debug for DocumentLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentLayout")
            .field("namespace", &self.namespace.as_ref().map(ToString::to_string))
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
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
        let one = DocumentLayout::new(None, "p.x", &all).unwrap();
        DocumentLayout::new(None, "p.x", &all).unwrap();
        DocumentLayout::new(None, "p.xy", &all).unwrap();
        for within in ["p", "p.x.y"] {
            assert_eq!(DocumentLayout::new(None, within, &all).unwrap_err(), "p.x");
        }
        assert_eq!(one.paths(), ["p.x", "p.x_elements", "p.xy"]);
        let elements = DocumentLayout::of_elements(None, "p.x_elements.lines", ("lines", "p.x"), &all).unwrap();
        assert_eq!(one.paths(), ["p.x", "p.x_elements", "p.xy"]);
        assert_eq!(elements.paths(), ["p.x", "p.x_elements", "p.xy"]);
        // The lock of a document is none of an element, nor of another array.
        DocumentLayout::new(None, "p.x_elements.lines", &all).unwrap_err();
        DocumentLayout::of_elements(None, "p.x_elements.lines", ("others", "p.x"), &all).unwrap_err();
    }

    #[test]
    fn the_locks_of_elements_and_that_of_the_whole_document_know_of_each_other() {
        let elements =
            DocumentLayout::of_elements(None, "w_elements.lines", ("lines", "w"), &Paths::default()).unwrap();
        assert_eq!(elements.paths(), ["w", "w_elements"]);
        let all = Paths::default();
        let whole = DocumentLayout::new(None, "w", &all).unwrap();
        DocumentLayout::new(None, "other", &all).unwrap();
        assert_eq!(whole.paths(), ["w", "w_elements", "other"]);
    }
}
