//! The events of writes in memory, as a server's change stream would report them.

use std::sync::Arc;

use mongodb::bson::{Bson, Document};
use tokio::sync::mpsc;

use crate::{
    protocol::{ServerTime, wake},
    store::{Event, LockLayout, Watched},
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
    fn events_of(&self, id: &Bson, before: Option<&Document>, after: Option<&Document>) -> Vec<Event> {
        let document = self.layout.document(id).unwrap_or_default();
        let (was, is) = (
            self.layout.locks_in(&document, before),
            self.layout.locks_in(&document, after),
        );
        // Nobody has an entry in a document of the user's that comes.
        let concerns_entries = before.is_some() || self.layout.is_root();
        let (mut wrote, mut events, mut observed) = (false, Vec::new(), Vec::new());
        let mut frees = after.is_some();
        let mut names: Vec<&String> = was.keys().chain(is.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let (before, after) = (was.get(name).copied(), is.get(name).copied());
            let wake = new_wake(before, after);
            let is_old = goes_back(before, after);
            frees &= wake.is_none_or(wake::is_freeing);
            wrote |= wake.is_some() && !is_old;
            if self.watched.observed.has(name) && before != after {
                observed.push(Event::Written(name.clone()));
            }
            match wake {
                _ if !concerns_entries => {}
                Some(wake) if is_old || wake.contains(&self.pattern) => events.push(Event::Addressed {
                    name: name.clone(),
                    wake: wake.to_owned(),
                    at: time_of(after).unwrap_or(ServerTime(0)),
                    logged_at: None,
                }),
                None if before != after => events.push(Event::Foreign {
                    name: name.clone(),
                    after: None,
                }),
                _ => {}
            }
        }
        // A write of the protocol may remove free locks of other elements.
        events.retain(|event| !wrote || !matches!(event, Event::Foreign { .. }));
        if self.watched.free && frees {
            events.push(Event::Freed);
        }
        events.extend(observed);
        events
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
