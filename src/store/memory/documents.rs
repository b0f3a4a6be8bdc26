//! Documents in memory, as a server would have them, and the locks in them.
//!
//! The lock of a document is its sub-document here too, so that whatever is done to the documents beside the locks
//! does to them what it would do on a server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mongodb::{
    bson::{Bson, Document, oid::ObjectId},
    options::UpdateModifications,
};
use tokio::sync::mpsc;

use super::{
    MemoryStream, Refused,
    clock::Clock,
    matching::{Filter, Sort, SortKey},
    order::{compare, rank},
    updating::Update,
};
use crate::{
    protocol::{Location, Operation, ServerTime, State, state, wake},
    store::{Answer, Claimed, Documents, Event, Exchange, Renewal, StoreError, Wanted, name},
};

/// A collection in memory.
#[derive(Debug)]
pub(crate) struct MemoryDocuments {
    clock: Clock,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    /// In the order in which they were inserted.
    documents: Vec<Document>,
    watchers: Vec<Watcher>,
}

/// An open stream, of what happens to the locks at a location.
#[derive(Debug)]
struct Watcher {
    location: Location,
    events: Events,
}

#[derive(Debug)]
enum Events {
    /// Of a session, by the pattern of what is addressed to it.
    Session(String, mpsc::UnboundedSender<Event>),
    /// Of claims.
    Free(mpsc::UnboundedSender<()>),
}

impl MemoryDocuments {
    pub(crate) fn new() -> Self {
        Self {
            clock: Clock::start(),
            contents: Mutex::default(),
        }
    }

    /// Inserts a document, with an `_id` of its own where it has none, and returns the `_id`.
    pub(crate) fn insert(&self, mut document: Document) -> Result<Bson, Refused> {
        let id = document.remove("_id").unwrap_or_else(|| ObjectId::new().into());
        let mut contents = self.contents();
        if contents.position(&id).is_some() {
            return Err(Refused::new(format!("there is already a document with the `_id` {id}")));
        }
        let mut whole = Document::new();
        whole.insert("_id", id.clone());
        whole.extend(document);
        contents.announce(None, Some(&whole));
        contents.documents.push(whole);
        Ok(id)
    }

    /// The documents that match, as they are now, in the order in which they were inserted.
    pub(crate) fn find(&self, filter: &Document) -> Result<Vec<Document>, Refused> {
        let filter = Filter::read(filter)?;
        let contents = self.contents();
        let found = contents.documents.iter().filter(|document| filter.matches(document));
        Ok(found.cloned().collect())
    }

    /// Updates all that match, and returns how many do. None is changed where one can't be.
    pub(crate) fn update(&self, filter: &Document, update: &Document) -> Result<u64, Refused> {
        let (filter, update) = (Filter::read(filter)?, Update::read_operators(update)?);
        let mut contents = self.contents();
        let now = self.clock.now();
        let updated = contents.matching(&filter).map(|at| {
            let updated = update.apply(&contents.documents[at], now)?;
            Ok((at, updated))
        });
        let writes: Vec<_> = updated.collect::<Result<_, Refused>>()?;
        let count = writes.len();
        for (at, document) in writes {
            contents.write(at, document);
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    /// Replaces the document with this `_id`, and says whether there was one.
    pub(crate) fn replace(&self, id: &Bson, mut replacement: Document) -> Result<bool, Refused> {
        if let Some(other) = replacement.remove("_id")
            && !(rank(id) == rank(&other) && compare(id, &other).is_eq())
        {
            return Err(Refused::new(format!(
                "the `_id` of a document can't be changed, from {id} to {other}"
            )));
        }
        let mut contents = self.contents();
        let Some(at) = contents.position(id) else {
            return Ok(false);
        };
        let mut whole = Document::new();
        whole.insert("_id", contents.documents[at].get("_id").unwrap_or(id).clone());
        whole.extend(replacement);
        contents.write(at, whole);
        Ok(true)
    }

    /// Deletes all that match, and returns how many did.
    pub(crate) fn delete(&self, filter: &Document) -> Result<u64, Refused> {
        let filter = Filter::read(filter)?;
        let mut contents = self.contents();
        let found: Vec<usize> = contents.matching(&filter).collect();
        for at in found.iter().rev() {
            contents.delete(*at);
        }
        Ok(u64::try_from(found.len()).unwrap_or(u64::MAX))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // Nothing that runs under the lock leaves the contents half-written.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    fn position(&self, id: &Bson) -> Option<usize> {
        let is_it = |other: &Bson| rank(id) == rank(other) && compare(id, other).is_eq();
        self.documents
            .iter()
            .position(|document| document.get("_id").is_some_and(is_it))
    }

    fn matching(&self, filter: &Filter) -> impl Iterator<Item = usize> {
        let documents = self.documents.iter().enumerate();
        documents
            .filter(|(_, document)| filter.matches(document))
            .map(|(at, _)| at)
    }

    fn write(&mut self, at: usize, after: Document) {
        let before = std::mem::replace(&mut self.documents[at], after);
        if before != self.documents[at] {
            let after = self.documents[at].clone();
            self.announce(Some(&before), Some(&after));
        }
    }

    fn delete(&mut self, at: usize) {
        let before = self.documents.remove(at);
        self.announce(Some(&before), None);
    }

    /// Tells the watchers of a write what a change stream would tell them.
    fn announce(&mut self, before: Option<&Document>, after: Option<&Document>) {
        let id = before.or(after).and_then(|document| document.get("_id"));
        let name = name::of_id(id.unwrap_or(&Bson::Null));
        self.watchers.retain(|Watcher { location, events }| {
            let lock_before = before.and_then(|document| location.lock(document));
            let lock_after = after.and_then(|document| location.lock(document));
            let wake_of =
                |lock: Option<&'_ Document>| lock.and_then(|lock| lock.get_str("wake").ok().map(str::to_owned));
            // A write of the protocol renews it, and nobody else does.
            let wake = wake_of(lock_after).filter(|wake| Some(wake) != wake_of(lock_before).as_ref());
            match events {
                Events::Session(pattern, events) => {
                    let name = name.clone();
                    let event = match (wake, after) {
                        _ if before.is_none() => None,
                        (Some(wake), _) if !wake.contains(pattern.as_str()) => None,
                        (Some(wake), _) => {
                            let at = lock_after.and_then(|lock| lock.get_datetime("at").ok());
                            let at = ServerTime(at.map_or(0, |at| at.timestamp_millis()));
                            Some(Event::Addressed { name, wake, at })
                        }
                        (None, None) => Some(Event::Foreign { name }),
                        (None, Some(_)) if lock_before != lock_after => Some(Event::Foreign { name }),
                        (None, Some(_)) => None,
                    };
                    event.map_or(!events.is_closed(), |event| events.send(event).is_ok())
                }
                Events::Free(events) => {
                    let frees = after.is_some() && wake.is_none_or(|wake| wake::is_freeing(&wake));
                    if frees {
                        events.send(()).is_ok()
                    } else {
                        !events.is_closed()
                    }
                }
            }
        });
    }
}

/// The locks in a collection in memory.
#[derive(Debug)]
pub(crate) struct MemoryInPlace {
    collection: Arc<MemoryDocuments>,
    location: Location,
}

/// A document, where it is, and the lock in it.
struct Found {
    at: usize,
    state: Option<State>,
}

impl MemoryInPlace {
    pub(crate) fn new(collection: &Arc<MemoryDocuments>, path: &str) -> Self {
        Self {
            collection: collection.clone(),
            location: Location::under(path),
        }
    }

    pub(in crate::store) fn path(&self) -> &str {
        self.location.path()
    }

    pub(in crate::store) fn run(&self, name: &str, operation: &Operation) -> Result<Answer, StoreError> {
        let mut contents = self.collection.contents();
        let (exchange, now) = self.collection.clock.exchange();
        let unknown = Answer { state: None, exchange };
        let Found { at, state: before } = match self.found(&contents, name) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(unknown),
            // As on a server: who only takes entries out has none in what is no lock.
            Err(_) if !operation.creates() => return Ok(unknown),
            Err(error) => return Err(error),
        };
        let concerned = before.as_ref().is_none_or(|before| operation.selects(before));
        let after = state::apply(before.as_ref(), operation, now);
        if let Some(after) = &after
            && before.as_ref() != Some(after)
        {
            self.write(&mut contents, at, after)?;
        }
        Ok(Answer {
            state: after.filter(|_| concerned),
            exchange,
        })
    }

    pub(in crate::store) fn renew(&self, renewal: &Renewal) -> Result<u64, StoreError> {
        let mut contents = self.collection.contents();
        let now = self.collection.clock.now();
        let mut renewed = 0;
        for name in &renewal.names {
            let Ok(Some(Found {
                at,
                state: Some(mut state),
            })) = self.found(&contents, name)
            else {
                continue;
            };
            if state::renew(&mut state, &renewal.operation, &renewal.ids, renewal.keep, now) {
                self.write(&mut contents, at, &state)?;
                renewed += 1;
            }
        }
        Ok(renewed)
    }

    pub(in crate::store) fn read(&self, names: &[String]) -> (Documents, Exchange) {
        let contents = self.collection.contents();
        let (exchange, _) = self.collection.clock.exchange();
        let found = names.iter().filter_map(|name| {
            let at = contents.position(&name::id_of(&self.location, name))?;
            let lock = self.location.lock(&contents.documents[at])?;
            Some((name.clone(), State::from_document(lock)))
        });
        (found.collect(), exchange)
    }

    pub(in crate::store) fn watch(&self, session: &str) -> MemoryStream<Event> {
        let (events, receiver) = mpsc::unbounded_channel();
        self.add_watcher(Events::Session(wake::pattern(session), events));
        MemoryStream(receiver)
    }

    pub(in crate::store) fn watch_free(&self) -> MemoryStream<()> {
        let (events, receiver) = mpsc::unbounded_channel();
        self.add_watcher(Events::Free(events));
        MemoryStream(receiver)
    }

    fn add_watcher(&self, events: Events) {
        let location = self.location.clone();
        self.collection.contents().watchers.push(Watcher { location, events });
    }

    pub(in crate::store) fn claim(
        &self,
        wanted: &Wanted,
        operation: &Operation,
    ) -> Result<Option<Claimed>, StoreError> {
        let filter = Filter::read(&wanted.filter)?;
        let sort = wanted.sort.as_ref().map_or(Ok(Sort::default()), Sort::read)?;
        let mut contents = self.collection.contents();
        let (exchange, now) = self.collection.clock.exchange();
        let mut first: Option<(SortKey, usize)> = None;
        for at in contents.matching(&filter) {
            let document = &contents.documents[at];
            let lock = self.location.lock(document).map(State::from_document);
            if lock.is_some_and(|lock| lock.is_ok_and(|lock| !lock.is_free(now))) {
                continue;
            }
            let key = sort.key(document)?;
            if first.as_ref().is_none_or(|(first, _)| key.compare(first).is_lt()) {
                first = Some((key, at));
            }
        }
        let Some((_, at)) = first else {
            return Ok(None);
        };
        let before = self.lock(&contents.documents[at])?;
        let Some(state) = state::apply(before.as_ref(), operation, now) else {
            return Ok(None);
        };
        self.write(&mut contents, at, &state)?;
        let document = self.users(contents.documents[at].clone());
        Ok(Some(Claimed {
            name: name::of_id(document.get("_id").unwrap_or(&Bson::Null)),
            document,
            state,
            exchange,
        }))
    }

    pub(in crate::store) fn free_at(&self, wanted: &Wanted) -> Result<Option<(ServerTime, Exchange)>, StoreError> {
        let filter = Filter::read(&wanted.filter)?;
        let contents = self.collection.contents();
        let (exchange, _) = self.collection.clock.exchange();
        let ends = contents.matching(&filter).filter_map(|at| {
            let state = self.lock(&contents.documents[at]).ok()??;
            let holders = state.holders.iter().map(|holder| holder.until);
            holders.chain(state.queue.iter().map(|waiter| waiter.until)).max()
        });
        Ok(ends.min().map(|end| (end, exchange)))
    }

    pub(in crate::store) fn held_by(&self, wanted: &Wanted, entry: &str) -> Result<Vec<String>, StoreError> {
        let filter = Filter::read(&wanted.filter)?;
        let contents = self.collection.contents();
        let held = contents.matching(&filter).filter_map(|at| {
            let document = &contents.documents[at];
            let state = self.lock(document).ok()??;
            let holds = state.holders.iter().any(|holder| holder.id == entry);
            holds.then(|| document.get("_id").map(name::of_id))?
        });
        Ok(held.collect())
    }

    pub(in crate::store) fn fetch(&self, name: &str) -> Option<Document> {
        let contents = self.collection.contents();
        let at = contents.position(&name::id_of(&self.location, name))?;
        Some(self.users(contents.documents[at].clone()))
    }

    pub(in crate::store) fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: &UpdateModifications,
    ) -> Result<Option<Document>, StoreError> {
        let update = Update::read(update)?;
        let mut contents = self.collection.contents();
        let now = self.collection.clock.now();
        let Some(at) = self.held(&contents, name, holder, now) else {
            return Ok(None);
        };
        let updated = update.apply(&contents.documents[at], now)?;
        contents.write(at, updated.clone());
        Ok(Some(self.users(updated)))
    }

    pub(in crate::store) fn delete(&self, name: &str, holder: (&str, i64)) -> bool {
        let mut contents = self.collection.contents();
        let now = self.collection.clock.now();
        let held = self.held(&contents, name, holder, now);
        if let Some(at) = held {
            contents.delete(at);
        }
        held.is_some()
    }

    /// Where the document is, while this holder's lease runs.
    fn held(&self, contents: &Contents, name: &str, (id, token): (&str, i64), now: ServerTime) -> Option<usize> {
        let Found { at, state } = self.found(contents, name).ok()??;
        let is_it = |holder: &crate::protocol::Holder| holder.id == id && holder.token == token && holder.until > now;
        state?.holders.iter().any(is_it).then_some(at)
    }

    fn found(&self, contents: &Contents, name: &str) -> Result<Option<Found>, StoreError> {
        let Some(at) = contents.position(&name::id_of(&self.location, name)) else {
            return Ok(None);
        };
        let state = self.lock(&contents.documents[at])?;
        Ok(Some(Found { at, state }))
    }

    fn lock(&self, document: &Document) -> Result<Option<State>, StoreError> {
        Ok(self.location.lock(document).map(State::from_document).transpose()?)
    }

    /// Writes a lock into its document.
    fn write(&self, contents: &mut Contents, at: usize, state: &State) -> Result<(), StoreError> {
        let mut document = contents.documents[at].clone();
        if !self.location.set_lock(&mut document, state.fields()) {
            return Err(Refused::new(format!(
                "the lock can't be written, as what stands at `{}` or on the way there is no document",
                self.location.path().escape_debug()
            ))
            .into());
        }
        contents.write(at, document);
        Ok(())
    }

    fn users(&self, mut document: Document) -> Document {
        self.location.take_lock(&mut document);
        document
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mongodb::bson::doc;

    use super::*;

    /// On its own clock, whatever the holder's says; and be there no other holder.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ran_out_permits_no_change() {
        let collection = Arc::new(MemoryDocuments::new());
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
        let store = MemoryInPlace::new(&collection, "lock");
        let change = |holder| {
            let update = UpdateModifications::Document(doc! { "$inc": { "n": 1 } });
            store.change("1", holder, &update).unwrap()
        };
        assert_eq!(change(("a-1", 7)), Some(doc! { "_id": 1, "n": 1 }));
        assert_eq!(change(("a-1", 6)), None);
        assert_eq!(change(("a-2", 7)), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(change(("a-1", 7)), None);
        assert!(!store.delete("1", ("a-1", 7)));
        assert_eq!(store.fetch("1"), Some(doc! { "_id": 1, "n": 1 }));
    }
}
