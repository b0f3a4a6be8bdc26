//! A collection in memory: its documents, as a server would have them, and the writes of other programs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use mongodb::{
    bson::{Bson, Document, oid::ObjectId},
    options::UpdateModifications,
};

use super::{
    clock::Clock,
    matching::{Filter, is_same},
    updating::Update,
    watching::Watcher,
};
use crate::{error::InvalidInput, input::check_document, store::name};

/// A collection in memory.
#[derive(Debug)]
pub(crate) struct MemoryDocuments {
    /// Unique in this process, unlike the address: a later collection can have the same one.
    number: u64,
    pub(super) clock: Clock,
    contents: Mutex<Contents>,
}

impl Default for MemoryDocuments {
    fn default() -> Self {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        Self {
            number: CREATED.fetch_add(1, Ordering::Relaxed),
            clock: Clock::default(),
            contents: Mutex::default(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The documents, in the order of insertion.
    documents: BTreeMap<u64, Document>,
    /// Their numbers, by the texts of their `_id`s.
    numbers: HashMap<String, u64>,
    inserted: u64,
    pub(super) watchers: Vec<Watcher>,
}

impl MemoryDocuments {
    /// Creates a collection whose server's clock reads `epoch` now.
    #[cfg(test)]
    pub(super) fn begun(epoch: crate::protocol::ServerTime) -> Self {
        Self {
            clock: Clock::begin(epoch),
            ..Self::default()
        }
    }

    /// Returns a name for the collection that no other has.
    pub(crate) fn identity(&self) -> String {
        self.number.to_string()
    }

    /// Inserts a document, adding an `_id` if it has none, and returns the `_id`.
    pub(crate) fn insert(&self, mut document: Document) -> Result<Bson, InvalidInput> {
        let id = document.remove("_id").unwrap_or_else(|| ObjectId::new().into());
        let mut contents = self.contents();
        if contents.get(&id).is_some() {
            return Err(InvalidInput::new(format!(
                "there is already a document with the `_id` {id}"
            )));
        }
        contents.put(whole(id.clone(), document)?);
        Ok(id)
    }

    /// Returns the documents that match, as they are now, in the order of insertion.
    pub(crate) fn find(&self, filter: &Document) -> Result<Vec<Document>, InvalidInput> {
        let filter = Filter::read(filter)?;
        Ok(self.contents().matching(&filter).cloned().collect())
    }

    /// Updates the first documents that match, so many at most, and returns how many matched, and how many were
    /// changed. Changes none if one can't be changed.
    pub(crate) fn update(
        &self,
        filter: &Document,
        update: &UpdateModifications,
        most: usize,
    ) -> Result<(u64, u64), InvalidInput> {
        let (filter, update) = (Filter::read(filter)?, Update::read(update)?);
        let mut contents = self.contents();
        let updated = contents.matching(&filter).take(most).map(|document| {
            let updated = update.apply(document)?;
            check_document("the document", &updated)?;
            Ok(updated)
        });
        let writes: Vec<Document> = updated.collect::<Result<_, InvalidInput>>()?;
        let matched = writes.len() as u64;
        let changed = writes.into_iter().filter(|document| contents.put(document.clone()));
        Ok((matched, changed.count() as u64))
    }

    /// Replaces the first document that matches, and returns how many matched, and how many were changed.
    pub(crate) fn replace(&self, filter: &Document, mut replacement: Document) -> Result<(u64, u64), InvalidInput> {
        let filter = Filter::read(filter)?;
        check_replacement(&replacement)?;
        let mut contents = self.contents();
        let Some(id) = contents.matching(&filter).next().map(id_of) else {
            return Ok((0, 0));
        };
        if let Some(other) = replacement.remove("_id")
            && !is_same(&id, &other)
        {
            return Err(InvalidInput::new(format!(
                "the `_id` of a document can't be changed, from {id} to {other}"
            )));
        }
        let changed = contents.put(whole(id, replacement)?);
        Ok((1, u64::from(changed)))
    }

    /// Deletes the first documents that match, so many at most, and returns their number.
    pub(crate) fn delete(&self, filter: &Document, most: usize) -> Result<u64, InvalidInput> {
        let filter = Filter::read(filter)?;
        let mut contents = self.contents();
        let found: Vec<Bson> = contents.matching(&filter).take(most).map(id_of).collect();
        for id in &found {
            contents.delete(id);
        }
        Ok(found.len() as u64)
    }

    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        // No code that runs under the lock leaves the contents half-written.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Returns all documents, in the order of insertion.
    pub(super) fn all(&self) -> impl Iterator<Item = &Document> {
        self.documents.values()
    }

    pub(super) fn matching(&self, filter: &Filter) -> impl Iterator<Item = &Document> {
        self.all().filter(|document| filter.matches(document))
    }

    pub(super) fn get(&self, id: &Bson) -> Option<&Document> {
        self.documents.get(self.numbers.get(&name::of_id(id))?)
    }

    /// Puts a document in the place of that with its `_id`, or adds it; reports whether anything changed.
    pub(super) fn put(&mut self, document: Document) -> bool {
        let id = id_of(&document);
        let number = *self.numbers.entry(name::of_id(&id)).or_insert_with(|| {
            self.inserted += 1;
            self.inserted
        });
        let before = self.documents.insert(number, document);
        let changed = before.as_ref() != self.documents.get(&number);
        if changed {
            self.announce(&id, number, before.as_ref());
        }
        changed
    }

    pub(super) fn delete(&mut self, id: &Bson) {
        if let Some(number) = self.numbers.remove(&name::of_id(id)) {
            let before = self.documents.remove(&number);
            self.announce(id, number, before.as_ref());
        }
    }

    /// Notifies the streams that the document with this number was written.
    fn announce(&mut self, id: &Bson, number: u64, before: Option<&Document>) {
        let after = self.documents.get(&number);
        self.watchers.retain(|watcher| watcher.tell(id, before, after));
    }
}

/// Returns the `_id` of a document in the collection: each has one.
pub(super) fn id_of(document: &Document) -> Bson {
    document.get("_id").cloned().unwrap_or(Bson::Null)
}

/// Refuses a replacement that a server would interpret as an update, or refuse.
pub(super) fn check_replacement(replacement: &Document) -> Result<(), InvalidInput> {
    match replacement.keys().find(|key| key.starts_with('$')) {
        Some(field) => Err(InvalidInput::new(format!(
            "a replacement can't have the field `{}`, as fields with `$` are operators",
            field.escape_debug()
        ))),
        None => Ok(()),
    }
}

/// Returns the document of these fields, as a server would store it.
fn whole(id: Bson, fields: Document) -> Result<Document, InvalidInput> {
    let mut whole = Document::new();
    whole.insert("_id", id);
    whole.extend(fields);
    check_document("the document", &whole)?;
    Ok(whole)
}
