//! The events of writes in memory, as a server's change stream would report them.

use std::sync::Arc;

use mongodb::bson::{Bson, Document};
use tokio::sync::mpsc;

use crate::{
    protocol::{ServerTime, wake},
    store::{
        Event, Observed, Watched,
        lock_layout::{LockLayout, element_name},
    },
};

/// The open stream of a session: the events of its locks, and of those that are watched.
#[derive(Debug)]
pub(super) struct Watcher {
    layout: Arc<LockLayout>,
    /// The pattern of the events addressed to the session.
    pattern: String,
    watched: Watched,
    events: mpsc::Sender<Event>,
}

impl Watcher {
    pub(super) fn new(layout: Arc<LockLayout>, session: &str, watched: Watched, events: mpsc::Sender<Event>) -> Self {
        Self {
            layout,
            pattern: wake::pattern(session),
            watched,
            events,
        }
    }

    /// Reports a write of the document with this `_id`, which had no `before` if it was inserted, and has no `after` if
    /// it was deleted. `false`: the stream is over.
    pub(super) fn tell(&self, id: &Bson, before: Option<&Document>, after: Option<&Document>) -> bool {
        let mut events = self.events_of(id, before, after).into_iter();
        events.all(|event| self.events.try_send(event).is_ok()) && !self.events.is_closed()
    }

    /// Returns the events of a write.
    fn events_of<'a>(&self, id: &Bson, before: Option<&'a Document>, after: Option<&'a Document>) -> Vec<Event> {
        let name = || self.layout.document(id).unwrap_or_default();
        if self.layout.is_of_elements() {
            let name = name();
            let mut events = before.map_or_else(Vec::new, |before| self.events_of_elements(&name, before, after));
            if self.watched.observed != Observed::default() {
                events.extend(self.observed_elements(&name, before, after));
            }
            return events;
        }
        let base = self.layout.base();
        let lock = |document: Option<&'a Document>| document.and_then(|document| base.lock(document));
        let (lock_before, lock_after) = (lock(before), lock(after));
        let mut events = Vec::new();
        // Nobody has an entry in a document of the user's that comes.
        if before.is_some() || base.is_root() {
            events.extend(self.event_of(name, lock_before, lock_after, after.is_none()));
        }
        let frees = || after.is_some() && new_wake(lock_before, lock_after).is_none_or(wake::is_freeing);
        if self.watched.free && frees() {
            events.push(Event::Freed);
        }
        // Most streams observe nothing, and are told of every write.
        let observed = (self.watched.observed != Observed::default()).then(|| self.layout.document(id));
        let observed = observed.flatten().filter(|name| self.watched.observed.has(name));
        let found = |document: Option<&Document>| document.and_then(|document| base.found(document));
        if let Some(name) = observed.filter(|_| found(before) != found(after)) {
            events.push(Event::Written(name));
        }
        events
    }

    fn events_of_elements<'a>(&self, name: &str, before: &'a Document, after: Option<&'a Document>) -> Vec<Event> {
        let Some(after) = after else {
            let document = name.to_owned();
            return vec![Event::Document {
                document,
                but: Vec::new(),
            }];
        };
        let base = self.layout.base();
        let (map_before, map_after) = (base.lock(before), base.lock(after));
        let codes = |map: Option<&'a Document>| map.into_iter().flat_map(Document::keys);
        let gone = codes(map_before).filter(|code| map_after.is_none_or(|map| !map.contains_key(*code)));
        let lock = |map: Option<&'a Document>, code: &str| map.and_then(|map| map.get_document(code).ok());
        let (mut wrote, mut events) = (false, Vec::new());
        for code in codes(map_after).chain(gone) {
            let (lock_before, lock_after) = (lock(map_before, code), lock(map_after, code));
            wrote |= new_wake(lock_before, lock_after).is_some() && !goes_back(lock_before, lock_after);
            events.extend(self.event_of(|| element_name(name, code), lock_before, lock_after, false));
        }
        // A write of the protocol may remove free locks of other elements.
        events.retain(|event| !wrote || !matches!(event, Event::Foreign { .. }));
        events
    }

    /// Returns the events of the observed locks that a write has changed.
    fn observed_elements(&self, name: &str, before: Option<&Document>, after: Option<&Document>) -> Vec<Event> {
        let base = self.layout.base();
        let nothing = Document::new();
        let map = |document: Option<_>| document.and_then(|document| base.lock(document)).unwrap_or(&nothing);
        let (before, after) = (map(before), map(after));
        let gone = before.keys().filter(|code| !after.contains_key(code));
        let changed = after.keys().filter(|code| before.get(code) != after.get(code));
        let names = gone.chain(changed).map(|code| element_name(name, code));
        let observed = names.filter(|name| self.watched.observed.has(name));
        observed.map(Event::Written).collect()
    }

    /// Returns the event of a write that changed a lock, if it concerns the session.
    fn event_of(
        &self,
        name: impl FnOnce() -> String,
        before: Option<&Document>,
        after: Option<&Document>,
        is_deleted: bool,
    ) -> Option<Event> {
        match new_wake(before, after) {
            Some(wake) if !wake.contains(self.pattern.as_str()) && !goes_back(before, after) => None,
            Some(wake) => Some(Event::Addressed {
                name: name(),
                wake: wake.to_owned(),
                at: time_of(after).unwrap_or(ServerTime(0)),
                logged_at: None,
            }),
            None if is_deleted || before != after => Some(Event::Foreign {
                name: name(),
                after: None,
            }),
            None => None,
        }
    }
}

/// Returns the `wake` that a write gave to a lock: only a write of the protocol renews it.
fn new_wake<'a>(before: Option<&Document>, after: Option<&'a Document>) -> Option<&'a str> {
    let after = after?.get_str("wake").ok()?;
    let before = before.and_then(|lock| lock.get_str("wake").ok());
    (before != Some(after)).then_some(after)
}

/// Reports whether the write restored an earlier copy of the lock.
fn goes_back(before: Option<&Document>, after: Option<&Document>) -> bool {
    let times = time_of(before).zip(time_of(after));
    times.is_some_and(|(before, after)| after < before)
}

fn time_of(lock: Option<&Document>) -> Option<ServerTime> {
    ServerTime::in_field(lock?, "at")
}
