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
#[derive(Debug)]
pub(super) struct ElementPlace {
    pub(super) array: Arc<str>,
    pub(super) key: ElementKey,
    /// Whether the key is valid.
    pub(super) checked: Result<(), InvalidInput>,
}

impl ElementPlace {
    pub(super) fn new(array: Arc<str>, key: &Document) -> Self {
        let (checked, key) = (check_key(key), ElementKey::new(key));
        let checked = checked.and_then(|()| check_code(key.code()));
        Self { array, key, checked }
    }

    /// Returns the name of the lock in the document with this name.
    pub(super) fn name_in(&self, document: &str) -> String {
        element_name(document, self.key.code())
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

#[cfg(test)]
mod tests {
    use mongodb::bson::{Document, doc};

    use crate::{client::LockClient, testing::MemoryCollection};

    #[tokio::test]
    async fn the_sessions_of_arrays_are_kept_and_no_names_of_others() {
        let memory = MemoryCollection::new();
        let lines = doc! { "_id": 7, "lines": [{ "n": 1 }, { "n": 2 }] };
        memory.insert_one(&lines).await.unwrap();
        let documents = LockClient::in_memory().documents_in_memory::<Document>(&memory);
        for array in ["lines", "$refused", "a..b", "never used"] {
            for n in [1, 2] {
                let locks = documents.element::<Document>(array, doc! { "n": n });
                if array != "never used" {
                    assert_eq!(locks.acquire(7).await.is_ok(), array == "lines");
                }
            }
        }
        let kept: Vec<_> = documents.sessions.lock().unwrap().keys().cloned().collect();
        assert_eq!(kept, [Some("lines".into())]);
    }
}
