//! Locks of the elements of an array, in the documents of the user's own collection.

use std::sync::Arc;

use mongodb::bson::Document;

use super::ItemLocks;
use crate::{
    error::InvalidInput,
    input::{check_code, check_key, check_path},
    store::{
        LockLayout,
        element::{ElementKey, escaped},
        lock_layout::{element_name, elements_beside, overlap},
    },
    world::World,
};

/// An array in documents, and the key of one of its elements.
#[derive(Clone, Debug)]
pub(super) struct ElementPlace {
    pub(super) array: String,
    pub(super) key: Document,
}

impl ElementPlace {
    pub(super) fn key(&self) -> ElementKey {
        ElementKey::new(&self.key)
    }

    pub(super) fn check_key(&self) -> Result<(), InvalidInput> {
        check_key(&self.key)?;
        check_code(self.key().code())
    }

    /// Returns the name of the lock in the document with this name.
    pub(super) fn name_in(&self, document: &str) -> String {
        element_name(document, self.key().code())
    }

    /// Registers the place of the locks of all elements of the array.
    pub(super) fn layout<K, W: World>(&self, locks: &ItemLocks<K, W>) -> Result<Arc<LockLayout>, InvalidInput> {
        check_path(&self.array, "of the elements")?;
        let root = elements_beside(&locks.path);
        let path = format!("{root}.{}", escaped(&self.array));
        let overlaps = |other: &str| {
            InvalidInput::new(format!(
                "the array `{}` in {} overlaps with `{other}`, where this client has locks",
                self.array, locks.collection
            ))
        };
        for own in [&locks.path, &root] {
            if overlap(&self.array, own) {
                return Err(overlaps(own));
            }
        }
        let array = (&self.array[..], &locks.path[..]);
        let layout = LockLayout::in_documents(locks.namespace(), &path, Some(array), &locks.paths());
        layout.map_err(|other| match overlap(&self.array, &other) {
            true => overlaps(&other),
            false => InvalidInput::new(format!(
                "the field `{path}` for the locks of elements in {} overlaps with `{other}`, where this client already \
                 has locks",
                locks.collection
            )),
        })
    }
}
