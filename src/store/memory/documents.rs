//! Documents in memory, as a server would have them, and the locks in them.
//!
//! Here too, the lock of a document is its sub-document, so other changes to the documents have the same effect on the
//! locks as on a server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mongodb::{
    bson::{Bson, Document, doc, oid::ObjectId},
    options::UpdateModifications,
};

use super::{
    MemoryStream, Refused, bounds,
    clock::Clock,
    matching::{Filter, Sort, SortKey},
    order::is_same,
    stream::{StreamSender, stream},
    updating::Update,
};
use crate::{
    protocol::{
        Exchange, Location, Operation, ServerTime, State,
        document::{ID_MOST, size_of_id, whole},
        state, wake,
    },
    store::{
        Among, Answer, Claimed, Documents, Event, InPlace, Listed, NamedSighting, Outlook, Renewal, Selection,
        Sighting, StoreError, Wanted, Watched,
        family::{Family, array_mut, element_name},
        name,
    },
};

/// A collection in memory.
#[derive(Debug)]
pub(crate) struct MemoryDocuments {
    clock: Clock,
    contents: Mutex<DocumentContents>,
}

#[derive(Debug, Default)]
struct DocumentContents {
    /// The documents, in the order of insertion.
    documents: Vec<Document>,
    watchers: Vec<Watcher>,
    followers: Vec<MemoryFollower>,
}

/// The open stream of an observer, of what happens to the locks at a location.
#[derive(Debug)]
struct MemoryFollower {
    location: Location,
    /// `None` follows all.
    name: Option<String>,
    sightings: StreamSender<NamedSighting>,
}

/// The open stream of a session: the events of its locks.
#[derive(Debug)]
struct Watcher {
    family: Family,
    /// The pattern of the events addressed to the session.
    pattern: String,
    watched: Watched,
    events: StreamSender<Event>,
}

impl MemoryDocuments {
    pub(crate) fn new() -> Self {
        Self {
            clock: Clock::start(),
            contents: Mutex::default(),
        }
    }

    /// Inserts a document, adding an `_id` if it has none, and returns the `_id`.
    pub(crate) fn insert(&self, mut document: Document) -> Result<Bson, Refused> {
        let id = document.remove("_id").unwrap_or_else(|| ObjectId::new().into());
        let mut contents = self.contents();
        if contents.position(&id).is_some() {
            return Err(Refused::new(format!("there is already a document with the `_id` {id}")));
        }
        let mut whole = Document::new();
        whole.insert("_id", id.clone());
        whole.extend(document);
        bounds::check(&whole)?;
        contents.announce(None, Some(&whole));
        contents.documents.push(whole);
        Ok(id)
    }

    /// Returns the documents that match, as they are now, in the order of insertion.
    pub(crate) fn find(&self, filter: &Document) -> Result<Vec<Document>, Refused> {
        let filter = Filter::read(filter)?;
        let contents = self.contents();
        let found = contents.documents.iter().filter(|document| filter.matches(document));
        Ok(found.cloned().collect())
    }

    /// Updates all documents that match, and returns their number. Changes none if one can't be changed.
    pub(crate) fn update(&self, filter: &Document, update: &Document) -> Result<u64, Refused> {
        let (filter, update) = (Filter::read(filter)?, Update::read_operators(update)?);
        let mut contents = self.contents();
        let now = self.clock.now();
        let updated = contents.matching(&filter).map(|at| {
            let updated = update.apply(&contents.documents[at], now)?;
            bounds::check(&updated)?;
            Ok((at, updated))
        });
        let writes: Vec<_> = updated.collect::<Result<_, Refused>>()?;
        let count = writes.len();
        for (at, document) in writes {
            contents.write(at, document);
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    /// Replaces the document with this `_id`, and reports whether there was one.
    pub(crate) fn replace(&self, id: &Bson, mut replacement: Document) -> Result<bool, Refused> {
        bounds::check_replacement(&replacement)?;
        if let Some(other) = replacement.remove("_id")
            && !is_same(id, &other)
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
        bounds::check(&whole)?;
        contents.write(at, whole);
        Ok(true)
    }

    /// Deletes all documents that match, and returns their number.
    pub(crate) fn delete(&self, filter: &Document) -> Result<u64, Refused> {
        let filter = Filter::read(filter)?;
        let mut contents = self.contents();
        let found: Vec<usize> = contents.matching(&filter).collect();
        for at in found.iter().rev() {
            contents.delete(*at);
        }
        Ok(u64::try_from(found.len()).unwrap_or(u64::MAX))
    }

    fn contents(&self) -> MutexGuard<'_, DocumentContents> {
        // No code that runs under the lock leaves the contents half-written.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DocumentContents {
    fn position(&self, id: &Bson) -> Option<usize> {
        self.documents
            .iter()
            .position(|document| document.get("_id").is_some_and(|other| is_same(id, other)))
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

    /// Notifies the watchers of a write as a change stream would.
    fn announce(&mut self, before: Option<&Document>, after: Option<&Document>) {
        let id = before.or(after).and_then(|document| document.get("_id"));
        let name = name::of_id(id.unwrap_or(&Bson::Null));
        self.followers.retain(|follower| {
            let found = |document: Option<&Document>| document.and_then(|document| follower.location.found(document));
            let (lock_before, lock_after) = (found(before), found(after));
            if follower.name.as_ref().is_none_or(|followed| *followed == name) && lock_before != lock_after {
                let sighting = match lock_after {
                    Some(Ok(state)) => Sighting::State(Box::new(state)),
                    Some(Err(_)) => Sighting::Unclear,
                    None => Sighting::Gone,
                };
                return follower.sightings.send(NamedSighting::Of(name.clone(), sighting));
            }
            !follower.sightings.is_closed()
        });
        self.watchers.retain(|watcher| {
            let mut events = watcher.events_of(&name, before, after).into_iter();
            events.all(|event| watcher.events.send(event)) && !watcher.events.is_closed()
        });
    }
}

impl Watcher {
    /// Returns the events of a write to the document of this name.
    fn events_of<'a>(&self, name: &str, before: Option<&'a Document>, after: Option<&'a Document>) -> Vec<Event> {
        let Some(before) = before else {
            return match self.watched {
                Watched::LocksAndFree if self.frees(None, after) => vec![Event::Freed],
                _ => Vec::new(),
            };
        };
        let base = self.family.base();
        if !self.family.is_of_elements() {
            let (lock_before, lock_after) = (base.lock(before), after.and_then(|after| base.lock(after)));
            let event = self.event_of(name, lock_before, lock_after, after.is_none());
            let frees = self.watched == Watched::LocksAndFree && self.frees(lock_before, after);
            return event.into_iter().chain(frees.then_some(Event::Freed)).collect();
        }
        let Some(after) = after else {
            let document = name.to_owned();
            return vec![Event::Document {
                document,
                but: Vec::new(),
            }];
        };
        let (map_before, map_after) = (base.lock(before), base.lock(after));
        let codes = |map: Option<&'a Document>| map.into_iter().flat_map(Document::keys);
        let gone = codes(map_before).filter(|code| map_after.is_none_or(|map| !map.contains_key(*code)));
        let lock = |map: Option<&'a Document>, code: &str| map.and_then(|map| map.get_document(code).ok());
        let (mut wrote, mut events) = (false, Vec::new());
        for code in codes(map_after).chain(gone) {
            let (lock_before, lock_after) = (lock(map_before, code), lock(map_after, code));
            wrote |= new_wake(lock_before, lock_after).is_some() && !goes_back(lock_before, lock_after);
            events.extend(self.event_of(&element_name(name, code), lock_before, lock_after, false));
        }
        // A write of the protocol may remove free locks of other elements.
        events.retain(|event| !wrote || !matches!(event, Event::Foreign { .. }));
        events
    }

    /// Returns the event of a write that changed a lock, if it concerns the session.
    fn event_of(
        &self,
        name: &str,
        before: Option<&Document>,
        after: Option<&Document>,
        is_deleted: bool,
    ) -> Option<Event> {
        let name = name.to_owned();
        match new_wake(before, after) {
            Some(wake) if !wake.contains(self.pattern.as_str()) && !goes_back(before, after) => None,
            Some(wake) => {
                let at = after.and_then(|lock| ServerTime::in_field(lock, "at"));
                let at = at.unwrap_or(ServerTime(0));
                Some(Event::Addressed {
                    name,
                    wake,
                    at,
                    logged_at: None,
                })
            }
            None if is_deleted || before != after => Some(Event::Foreign { name, after: None }),
            None => None,
        }
    }

    /// Reports whether a write that left `after` can have made it free to be claimed.
    fn frees(&self, lock_before: Option<&Document>, after: Option<&Document>) -> bool {
        let lock_after = after.and_then(|after| self.family.base().lock(after));
        let wake = new_wake(lock_before, lock_after);
        after.is_some() && wake.is_none_or(|wake| wake::is_freeing(&wake))
    }
}

/// Returns the `wake` that a write gave to a lock: only a write of the protocol renews it.
fn new_wake(before: Option<&Document>, after: Option<&Document>) -> Option<String> {
    let wake_of = |lock: Option<&Document>| lock.and_then(|lock| lock.get_str("wake").ok().map(str::to_owned));
    wake_of(after).filter(|wake| Some(wake) != wake_of(before).as_ref())
}

/// Reports whether the write restored an earlier copy of the lock.
fn goes_back(before: Option<&Document>, after: Option<&Document>) -> bool {
    let at = |lock: Option<&Document>| lock.and_then(|lock| ServerTime::in_field(lock, "at"));
    at(before).zip(at(after)).is_some_and(|(before, after)| after < before)
}

/// The locks in a collection in memory.
#[derive(Debug)]
pub(crate) struct MemoryInPlace {
    collection: Arc<MemoryDocuments>,
    family: Family,
    place: Arc<InPlace>,
}

/// A document, its index, and the lock in it.
struct Found {
    at: usize,
    state: Option<State>,
}

impl MemoryInPlace {
    pub(crate) fn new(collection: &Arc<MemoryDocuments>, place: Arc<InPlace>) -> Self {
        Self {
            collection: collection.clone(),
            family: Family::of(&place),
            place,
        }
    }

    pub(in crate::store) fn place(&self) -> &Arc<InPlace> {
        &self.place
    }

    pub(in crate::store) fn run(&self, name: &str, operation: &Operation) -> Result<Answer, StoreError> {
        let mut contents = self.collection.contents();
        let (exchange, now) = self.collection.clock.exchange();
        let unknown = Answer {
            state: None,
            exchange,
            logged_by: None,
        };
        let Found { at, state: before } = match self.found(&contents, name) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(unknown),
            // As on a server.
            Err(error) if !operation.needs_a_lock() && error.is_malformed() => return Ok(unknown),
            Err(error) => return Err(error),
        };
        // As on a server: nothing is written for an element that is not there.
        if operation.requests.is_some()
            && let Some(element) = self.family.member(name).element
            && element.found_in(&contents.documents[at]).is_empty()
            && !before.as_ref().is_some_and(|before| before.has_any(&operation.leave))
        {
            return Ok(unknown);
        }
        let concerned = before.as_ref().is_none_or(|before| operation.selects(before));
        let after = state::apply(before.as_ref(), operation, now);
        if let Some(after) = &after
            && before.as_ref() != Some(after)
        {
            let swept = operation.requests.is_some().then_some(now);
            self.write_fields(&mut contents, at, &self.family.at(name), after.fields(), swept)?;
        }
        Ok(Answer {
            state: after.filter(|_| concerned),
            exchange,
            logged_by: None,
        })
    }

    pub(in crate::store) fn renew(&self, renewal: &Renewal) -> u64 {
        let mut contents = self.collection.contents();
        let now = self.collection.clock.now();
        // As on a server, all locks in a document are renewed by one write.
        let mut documents = BTreeMap::<usize, Vec<(&String, &Vec<String>)>>::new();
        for (name, ids) in &renewal.entries {
            if let Some(at) = contents.position(&self.family.id_of(name)) {
                documents.entry(at).or_default().push((name, ids));
            }
        }
        let mut renewed = 0;
        for (at, locks) in documents {
            let mut document = contents.documents[at].clone();
            for (name, ids) in locks {
                let location = self.family.at(name);
                if let Ok(Some(mut state)) = location.state(&document)
                    && state::renew(&mut state, &renewal.operation, ids, renewal.keep, now)
                {
                    location.set_lock(&mut document, state.fields());
                    renewed += 1;
                }
            }
            contents.write(at, document);
        }
        renewed
    }

    pub(in crate::store) fn read(&self, names: &[String]) -> (Documents, Exchange) {
        let contents = self.collection.contents();
        let (exchange, _) = self.collection.clock.exchange();
        let found = names.iter().filter_map(|name| {
            let at = contents.position(&self.family.id_of(name))?;
            Some((name.clone(), self.family.at(name).found(&contents.documents[at])?))
        });
        (found.collect(), exchange)
    }

    pub(in crate::store) fn list(&self, selection: &Selection) -> Listed {
        let contents = self.collection.contents();
        let mut listed = Listed {
            now: Some(self.collection.clock.now()),
            ..Listed::default()
        };
        for document in &contents.documents {
            let name = document.get("_id").map(name::of_id).unwrap_or_default();
            if selection.selects(&name) {
                listed.add(name, self.family.base().found(document), selection);
            }
        }
        listed
    }

    pub(in crate::store) fn follow(&self, name: Option<&str>) -> MemoryStream<NamedSighting> {
        let (sightings, opened) = stream();
        self.collection.contents().followers.push(MemoryFollower {
            location: self.family.base().clone(),
            name: name.map(str::to_owned),
            sightings,
        });
        opened
    }

    pub(in crate::store) fn watch(&self, session: &str, watched: Watched) -> MemoryStream<Event> {
        let (events, opened) = stream();
        self.collection.contents().watchers.push(Watcher {
            family: self.family.clone(),
            pattern: wake::pattern(session),
            watched,
            events,
        });
        opened
    }

    pub(in crate::store) fn claim(
        &self,
        wanted: &Wanted,
        among: Among<'_>,
        operation: &Operation,
    ) -> Result<Option<Claimed>, StoreError> {
        let filter = Filter::read(&wanted.filter)?;
        let sort = wanted.sort.as_ref().map_or(Ok(Sort::default()), Sort::read)?;
        let mut contents = self.collection.contents();
        let (exchange, now) = self.collection.clock.exchange();
        let mut first: Option<(SortKey, usize)> = None;
        for at in contents.matching(&filter) {
            let document = &contents.documents[at];
            let lock = self.family.base().lock(document).map(State::from_document);
            // A document of a later protocol is passed over too.
            let passed = lock.is_some_and(|lock| lock.map_or_else(|lock| lock.is_newer(), |lock| !lock.is_free(now)));
            let id = document.get("_id").unwrap_or(&Bson::Null);
            let is_among = match among {
                Among::AllBut(passed) => !passed.iter().any(|passed| is_same(passed, id)),
                Among::Only(only) => is_same(only, id),
            };
            if passed || !is_among || !self.is_fit(document) || !self.is_claimable(wanted, document) {
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
        let base = self.family.base();
        let before = base.state(&contents.documents[at])?;
        let Some(state) = state::apply(before.as_ref(), operation, now) else {
            return Ok(None);
        };
        let attempt = match wanted.attempts_most {
            None => None,
            Some(_) => self.attempts(&contents.documents[at]).map(|attempts| attempts + 1),
        };
        let mut fields = state.fields();
        fields.extend(attempt.map(|attempt| ("attempts".to_owned(), Bson::from(attempt))));
        self.write_fields(&mut contents, at, base, fields, None)?;
        let document = self.users(contents.documents[at].clone());
        Ok(Some(Claimed {
            name: name::of_id(document.get("_id").unwrap_or(&Bson::Null)),
            document,
            state: Ok(state),
            attempt,
            exchange,
        }))
    }

    pub(in crate::store) fn outlook(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, StoreError> {
        let filter = Filter::read(&wanted.filter)?;
        let contents = self.collection.contents();
        let (exchange, _) = self.collection.clock.exchange();
        let mut outlook = Outlook {
            free_at: None,
            others: false,
            unfit: None,
            exchange,
        };
        for at in contents.matching(&filter) {
            let document = &contents.documents[at];
            if !self.is_claimable(wanted, document) {
                continue;
            }
            let id = document.get("_id").unwrap_or(&Bson::Null);
            if !self.is_fit(document) || passed.iter().any(|passed| is_same(passed, id)) {
                outlook.unfit.get_or_insert_with(|| id.clone());
                continue;
            }
            outlook.others = true;
            if let Some(state) = self.family.base().state(document)? {
                let holders = state.holders.iter().map(|holder| holder.until);
                let last = holders.chain(state.queue.iter().map(|waiter| waiter.until)).max();
                outlook.free_at = outlook.free_at.into_iter().chain(last).min();
            }
        }
        Ok(outlook)
    }

    pub(in crate::store) fn why_unfit(&self, id: &Bson) -> Option<StoreError> {
        let size = size_of_id(id);
        if size > ID_MOST {
            return Some(StoreError::too_long(size));
        }
        let contents = self.collection.contents();
        let found = contents.position(id).map(|at| &contents.documents[at]);
        let flaw = found.and_then(|document| self.family.base().flaw(document));
        flaw.map(StoreError::from)
    }

    pub(in crate::store) fn held_by(
        &self,
        wanted: &Wanted,
        entries: &[String],
    ) -> Result<Vec<(String, String)>, StoreError> {
        let filter = Filter::read(&wanted.filter)?;
        let contents = self.collection.contents();
        let held = contents.matching(&filter).filter_map(|at| {
            let document = &contents.documents[at];
            let state = self.family.base().state(document).ok()??;
            let holder = state.holders.into_iter().find(|holder| entries.contains(&holder.id))?;
            Some((document.get("_id").map(name::of_id)?, holder.id))
        });
        Ok(held.collect())
    }

    pub(in crate::store) fn fetch(&self, name: &str) -> Option<Document> {
        let contents = self.collection.contents();
        let at = contents.position(&self.family.id_of(name))?;
        Some(self.users(contents.documents[at].clone()))
    }

    /// Returns the elements that have the key in this name; `None` when there is no document.
    pub(in crate::store) fn elements(&self, name: &str) -> Option<Vec<Document>> {
        let contents = self.collection.contents();
        let at = contents.position(&self.family.id_of(name))?;
        Some(self.family.member(name).element?.found_in(&contents.documents[at]))
    }

    /// Changes the one element that has the key in this name, and returns it, if this entry holds its lock under this
    /// token; returns `None` otherwise, and if no element or more than one has the key.
    pub(in crate::store) fn change_element(
        &self,
        name: &str,
        holder: (&str, i64),
        update: &Document,
        operation: &str,
    ) -> Result<Option<Document>, StoreError> {
        let update = Update::read_operators(update)?;
        let mut contents = self.collection.contents();
        let now = self.collection.clock.now();
        let member = self.family.member(name);
        let (Some(at), Some(element)) = (self.held(&contents, name, holder, now), member.element) else {
            return Ok(None);
        };
        let mut document = contents.documents[at].clone();
        let elements = array_mut(&mut document, element.array).into_iter().flatten();
        let mut having: Vec<&mut Bson> = elements.filter(|one| element.key.is_of(one)).collect();
        let Some(updated) = only(&mut having) else {
            return Ok(None);
        };
        *updated = update.apply(updated, now)?;
        let updated = updated.clone();
        let signed = doc! { "wake": wake::of_change(operation) };
        member.location.set_lock(&mut document, signed);
        bounds::check(&document)?;
        contents.write(at, document);
        Ok(Some(updated))
    }

    pub(in crate::store) fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: &UpdateModifications,
        operation: &str,
    ) -> Result<Option<Document>, StoreError> {
        let update = Update::read(update)?;
        let mut contents = self.collection.contents();
        let now = self.collection.clock.now();
        let Some(at) = self.held(&contents, name, holder, now) else {
            return Ok(None);
        };
        let mut updated = update.apply(&contents.documents[at], now)?;
        let signed = doc! { "wake": wake::of_change(operation) };
        self.family.at(name).set_lock(&mut updated, signed);
        bounds::check(&updated)?;
        contents.write(at, updated.clone());
        Ok(Some(self.users(updated)))
    }

    pub(in crate::store) fn clear_attempts(&self, name: &str) -> bool {
        let mut contents = self.collection.contents();
        let Some(at) = contents.position(&self.family.id_of(name)) else {
            return false;
        };
        let mut cleared = contents.documents[at].clone();
        let lock = self.family.base().lock_mut(&mut cleared);
        let counted = lock.is_some_and(|lock| lock.remove("attempts").is_some());
        contents.write(at, cleared);
        counted
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

    /// Returns the index of the document, if this holder's lease still runs.
    fn held(
        &self,
        contents: &DocumentContents,
        name: &str,
        (id, token): (&str, i64),
        now: ServerTime,
    ) -> Option<usize> {
        let Found { at, state } = self.found(contents, name).ok()??;
        let is_it = |holder: &crate::protocol::Holder| holder.id == id && holder.token == token && holder.until > now;
        state?.holders.iter().any(is_it).then_some(at)
    }

    fn found(&self, contents: &DocumentContents, name: &str) -> Result<Option<Found>, StoreError> {
        let member = self.family.member(name);
        let Some(at) = contents.position(&member.id) else {
            return Ok(None);
        };
        let state = member.location.state(&contents.documents[at])?;
        Ok(Some(Found { at, state }))
    }

    /// Reports whether the document was not claimed too often.
    fn is_claimable(&self, wanted: &Wanted, document: &Document) -> bool {
        let mut most = wanted.attempts_most.into_iter();
        most.all(|most| self.attempts(document).is_some_and(|attempts| attempts < most))
    }

    /// Returns how often the document was claimed, as far as that is counted; `None` if the count can't be counted up.
    fn attempts(&self, document: &Document) -> Option<i64> {
        match self.family.base().lock(document).and_then(|lock| lock.get("attempts")) {
            None | Some(Bson::Null | Bson::Undefined) => Some(0),
            Some(attempts) => whole(attempts).filter(|attempts| *attempts >= 0),
        }
    }

    /// Reports whether the document can be claimed once it is free.
    fn is_fit(&self, document: &Document) -> bool {
        let id = document.get("_id").unwrap_or(&Bson::Null);
        size_of_id(id) <= ID_MOST && self.family.base().flaw(document).is_none()
    }

    /// Sets fields of a lock in its document. `swept`: at this time, the free locks of other elements are removed.
    fn write_fields(
        &self,
        contents: &mut DocumentContents,
        at: usize,
        location: &Location,
        fields: Document,
        swept: Option<ServerTime>,
    ) -> Result<(), StoreError> {
        let mut document = contents.documents[at].clone();
        if !location.set_lock(&mut document, fields) {
            return Err(Refused::new(format!(
                "the lock can't be written, as the value at `{}` or on the way there is not a document",
                location.path().escape_debug()
            ))
            .into());
        }
        if let Some(now) = swept.filter(|_| self.family.is_of_elements())
            && let Some(locks) = self.family.base().lock_mut(&mut document)
        {
            let kept = std::mem::take(locks)
                .into_iter()
                .filter(|(_, lock)| !is_purged(lock, now));
            *locks = kept.collect();
        }
        contents.write(at, document);
        Ok(())
    }

    fn users(&self, mut document: Document) -> Document {
        self.family.take_locks(&mut document);
        document
    }
}

/// Reports whether a lock can be read, and [is purged](State::is_purged) by now.
fn is_purged(lock: &Bson, now: ServerTime) -> bool {
    let lock = lock.as_document();
    let is_due = |lock: &&Document| ServerTime::in_field(lock, "purge_at").is_some_and(|at| at <= now);
    let state = lock.filter(is_due).and_then(|lock| State::from_document(lock).ok());
    state.is_some_and(|state| state.is_purged(now))
}

/// Returns the document in a list of one value.
fn only<'a>(values: &'a mut [&mut Bson]) -> Option<&'a mut Document> {
    match values {
        [Bson::Document(only)] => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::place::Paths;

    /// The lease ends by the store's own clock, whatever the holder's says, even if there is no other holder.
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
        let store = MemoryInPlace::new(&collection, InPlace::new(None, "lock", &Paths::default()).unwrap());
        let change = |holder| {
            let update = UpdateModifications::Document(doc! { "$inc": { "n": 1 } });
            store.change("1", holder, &update, "a.1").unwrap()
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
