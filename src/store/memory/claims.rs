//! Locks in documents of the user's own: claiming any free one, reading them, changing them.

use std::collections::HashSet;

use mongodb::{
    bson::{Bson, Document, doc},
    options::UpdateModifications,
};

use super::{
    MemoryStore,
    documents::{Contents, id_of},
    matching::{Filter, Sort, is_same},
    updating::Update,
};
use crate::{
    error::ServerError,
    input::check_document,
    protocol::{
        Entry, Operation, ServerTime, State,
        document::{ID_MOST, size_of_id, whole},
        state, wake,
    },
    store::{Claimed, Outlook, Taken, Wanted, lock_layout::array_mut, name},
};

impl MemoryStore {
    pub(in crate::store) fn claim(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        operations: &[Operation],
    ) -> Result<Taken, ServerError> {
        let mut taken = Taken::default();
        for operation in operations {
            match self.claim_one(wanted, passed, operation) {
                Ok(Some(claimed)) => taken.claimed.push(claimed),
                // What was claimed before is told; the next claim meets the error first.
                Err(error) if taken.claimed.is_empty() => return Err(error),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(taken)
    }

    fn claim_one(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        operation: &Operation,
    ) -> Result<Option<Claimed>, ServerError> {
        let filter = Filter::read(&wanted.filter)?;
        let sort = wanted.sort.as_ref().map_or(Ok(Sort::default()), Sort::read)?;
        let mut contents = self.documents.contents();
        let (exchange, now) = self.documents.clock.exchange();
        let base = self.layout.base();
        let mut first: Option<(Vec<&Bson>, &Document, Option<State>)> = None;
        for document in contents.matching(&filter) {
            let id = id_of(document);
            // One that can't be locked is passed over, and so is one of a later protocol.
            let Ok(before) = base.state(document) else { continue };
            let is_taken = before.as_ref().is_some_and(|before| !before.is_free(now));
            let is_passed = size_of_id(&id) > ID_MOST || passed.iter().any(|passed| is_same(passed, &id));
            if is_taken || is_passed || !self.is_claimable(wanted, document) {
                continue;
            }
            let key = sort.key(document)?;
            if first
                .as_ref()
                .is_none_or(|(first, ..)| sort.compare(&key, first).is_lt())
            {
                first = Some((key, document, before));
            }
        }
        let Some((_, document, before)) = first else {
            return Ok(None);
        };
        let Some(state) = state::apply(before.as_ref(), operation, now) else {
            return Ok(None);
        };
        let counted = wanted.attempts_most.and_then(|_| self.attempts(document));
        let attempt = counted.map(|attempts| attempts + 1);
        let mut fields = state.fields();
        fields.extend(attempt.map(|attempt| ("attempts".to_owned(), Bson::from(attempt))));
        let mut document = document.clone();
        base.set_lock(&mut document, fields);
        contents.put(document.clone());
        Ok(Some(Claimed {
            entry: operation.requested().to_owned(),
            name: name::of_id(&id_of(&document)),
            document: self.users(document),
            state: Ok(state),
            attempt,
            exchange,
        }))
    }

    pub(in crate::store) fn outlook(&self, wanted: &Wanted, passed: &HashSet<String>) -> Result<Outlook, ServerError> {
        let filter = Filter::read(&wanted.filter)?;
        let contents = self.documents.contents();
        let (exchange, _) = self.documents.clock.exchange();
        let mut outlook = Outlook::new(exchange);
        for document in contents.matching(&filter) {
            if self.is_claimable(wanted, document) {
                outlook.add(self.layout.base(), document, passed);
            }
        }
        Ok(outlook)
    }

    pub(in crate::store) fn held_by(
        &self,
        wanted: &Wanted,
        entries: &[String],
    ) -> Result<Vec<(String, String)>, ServerError> {
        let filter = Filter::read(&wanted.filter)?;
        let contents = self.documents.contents();
        let held = contents.matching(&filter).filter_map(|document| {
            let state = self.layout.base().state(document).ok()??;
            let holder = state.holders.into_iter().find(|holder| entries.contains(&holder.id))?;
            Some((name::of_id(&id_of(document)), holder.id))
        });
        Ok(held.collect())
    }

    pub(in crate::store) fn fetch(&self, name: &str) -> Vec<Document> {
        let contents = self.documents.contents();
        let member = self.layout.member(name);
        match (contents.get(&member.id), member.element) {
            (None, _) => Vec::new(),
            (Some(document), None) => vec![self.users(document.clone())],
            (Some(document), Some(element)) => element.found_in(document),
        }
    }

    pub(in crate::store) fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: &UpdateModifications,
        (operation, releases): (&str, bool),
    ) -> Result<Option<Document>, ServerError> {
        let update = Update::read(update)?;
        let mut contents = self.documents.contents();
        let now = self.documents.clock.now();
        let Some(document) = self.held(&contents, name, holder, now) else {
            return Ok(None);
        };
        if let Some(element) = self.layout.member(name).element {
            let mut document = document.clone();
            let elements = array_mut(&mut document, element.array).into_iter().flatten();
            let mut having: Vec<&mut Bson> = elements.filter(|one| element.key.is_of(one)).collect();
            let [Bson::Document(updated)] = &mut having[..] else {
                return Ok(None);
            };
            *updated = update.apply(updated)?;
            let updated = updated.clone();
            contents.put(self.signed(document, name, operation)?);
            return Ok(Some(updated));
        }
        let at = self.layout.base();
        let state = at.state(document).ok().flatten().filter(|_| releases);
        if state
            .as_ref()
            .is_some_and(|state| !state.queue.is_empty() || state.holders.len() > 1)
        {
            return Ok(None);
        }
        let mut updated = self.signed(update.apply(document)?, name, operation)?;
        if let Some(state) = state {
            let empty = Bson::Array(Vec::new());
            let wake = wake::of_release(operation);
            let fields = doc! { "holders": empty, "wake": wake, "version": state.version + 1, "at": now };
            at.set_lock(&mut updated, fields);
        }
        contents.put(updated.clone());
        Ok(Some(self.users(updated)))
    }

    pub(in crate::store) fn clear_attempts(&self, name: &str) -> bool {
        let mut contents = self.documents.contents();
        let Some(mut cleared) = contents.get(&self.layout.id_of(name)).cloned() else {
            return false;
        };
        let lock = self.layout.base().lock_mut(&mut cleared);
        let counted = lock.is_some_and(|lock| lock.remove("attempts").is_some());
        contents.put(cleared);
        counted
    }

    pub(in crate::store) fn delete(&self, name: &str, holder: (&str, i64)) -> bool {
        let mut contents = self.documents.contents();
        let now = self.documents.clock.now();
        let held = self.held(&contents, name, holder, now).map(id_of);
        if let Some(id) = &held {
            contents.delete(id);
        }
        held.is_some()
    }

    /// Returns the document, if this holder's lease still runs.
    fn held<'a>(
        &self,
        contents: &'a Contents,
        name: &str,
        (id, token): (&str, i64),
        now: ServerTime,
    ) -> Option<&'a Document> {
        let member = self.layout.member(name);
        let document = contents.get(&member.id)?;
        let state = member.location.state(document).ok()??;
        let is_it = |holder: &Entry| holder.id == id && holder.token == token && holder.until > now;
        state.holders.iter().any(is_it).then_some(document)
    }

    /// Returns a document that its holder has changed with a new `wake` in the lock, by which a stream shows that.
    fn signed(&self, mut changed: Document, name: &str, operation: &str) -> Result<Document, ServerError> {
        let wake = doc! { "wake": wake::of_change(operation) };
        self.layout.at(name).set_lock(&mut changed, wake);
        check_document("the document", &changed)?;
        Ok(changed)
    }

    /// Reports whether the document was not claimed too often.
    fn is_claimable(&self, wanted: &Wanted, document: &Document) -> bool {
        let mut most = wanted.attempts_most.into_iter();
        most.all(|most| self.attempts(document).is_some_and(|attempts| attempts < most))
    }

    /// Returns how often the document was claimed, as far as that is counted; `None` if the count can't be counted up.
    fn attempts(&self, document: &Document) -> Option<i64> {
        match self.layout.base().lock(document).and_then(|lock| lock.get("attempts")) {
            None | Some(Bson::Null | Bson::Undefined) => Some(0),
            Some(attempts) => whole(attempts).filter(|attempts| *attempts >= 0),
        }
    }

    fn users(&self, mut document: Document) -> Document {
        self.layout.take_locks(&mut document);
        document
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::store::{Connection, LockLayout, MemoryDocuments, lock_layout::Paths};

    /// The lease ends by the store's own clock, whatever the holder's says, even if there is no other holder.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ran_out_permits_no_change() {
        let collection = Arc::new(MemoryDocuments::default());
        let until = collection.clock.now().plus_millis(1_000);
        let entry = doc! {
            "id": "a-1", "permits": 1, "lease": 1_000, "claim": 500, "token": 7, "since": until, "until": until,
            "owner": {},
        };
        let lock = doc! {
            "kind": "document", "capacity": 1, "token": 7, "holders": [entry], "queue": [], "wake": "", "version": 1,
            "at": until, "purge_at": until,
        };
        collection.insert(doc! { "_id": 1, "lock": lock }).unwrap();
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let store = MemoryStore::new(collection, place, Connection::default());
        let change = |holder| {
            let update = UpdateModifications::Document(doc! { "$inc": { "n": 1 } });
            store.change("1", holder, &update, ("a.1", false)).unwrap()
        };
        assert_eq!(change(("a-1", 7)), Some(doc! { "_id": 1, "n": 1 }));
        assert_eq!(change(("a-1", 6)), None);
        assert_eq!(change(("a-2", 7)), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(change(("a-1", 7)), None);
        assert!(!store.delete("1", ("a-1", 7)));
        assert_eq!(store.fetch("1"), [doc! { "_id": 1, "n": 1 }]);
    }
}
