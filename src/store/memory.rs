//! Locks in the memory of this process: the protocol's specification run under a mutex, on tokio's clock.

mod bounds;
mod clock;
mod documents;
mod matching;
mod order;
mod stream;
#[cfg(test)]
mod tests;
mod updating;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{AWAIT_TIME, Answer, Documents, Event, Failure, Listed, NamedSighting, Renewal, Sighting, StoreError};
use crate::protocol::{Exchange, Operation, ServerTime, State, state, wake};
use clock::Clock;
use stream::{StreamSender, stream};

pub(crate) use documents::{MemoryDocuments, MemoryInPlace};
pub(crate) use stream::MemoryStream;

/// A refusal by memory: of an operation that only a server supports, or that a server would refuse too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(String);

impl Refused {
    fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

impl From<Refused> for StoreError {
    fn from(refused: Refused) -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(refused),
        }
    }
}

/// The store behind `LockClient::in_memory`.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    clock: Clock,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    states: HashMap<String, State>,
    /// Sessions, by the pattern of the events addressed to them.
    sessions: Vec<(String, StreamSender<Event>)>,
    /// Followers, by the name of the document; `None` follows all.
    followers: Vec<(Option<String>, StreamSender<NamedSighting>)>,
}

impl MemoryStore {
    pub(crate) fn new() -> Self {
        Self::at(Clock::start())
    }

    fn at(clock: Clock) -> Self {
        Self {
            clock,
            contents: Mutex::default(),
        }
    }

    pub(crate) fn run(&self, name: &str, operation: &Operation) -> Answer {
        let mut contents = self.contents();
        let exchange = self.clock.exchange();
        let before = contents.state(name, exchange.1);
        // As on a server: a document that the operation's filter does not select is not returned.
        let concerned = before.is_none_or(|before| operation.selects(before));
        let after = state::apply(before, operation, exchange.1);
        if let Some(after) = &after
            && before != Some(after)
        {
            contents.write(name, after.clone());
        }
        let after = after.filter(|_| concerned);
        Answer {
            state: after,
            exchange: exchange.0,
            logged_by: None,
        }
    }

    pub(crate) fn renew(&self, renewal: &Renewal) -> u64 {
        let mut contents = self.contents();
        let now = self.clock.now();
        let mut renewed = 0;
        for (name, ids) in &renewal.entries {
            let idle = renewal.idle_among(ids);
            if let Some(mut state) = contents.states.get(name).cloned()
                && state::renew_and_show(&mut state, &renewal.operation, (ids, idle.as_ref()), renewal.keep, now)
            {
                contents.write(name, state);
                renewed += 1;
            }
        }
        renewed
    }

    pub(crate) fn read(&self, names: &[String]) -> (Documents, Exchange) {
        let contents = self.contents();
        let (exchange, now) = self.clock.exchange();
        let found = names
            .iter()
            .filter_map(|name| Some((name.clone(), Ok(contents.state(name, now)?.clone()))));
        (found.collect(), exchange)
    }

    pub(crate) fn list(&self) -> Listed {
        let contents = self.contents();
        let now = self.clock.now();
        let states = contents.states.iter().filter(|(_, state)| state.purge_at > now);
        Listed {
            found: states.map(|(name, state)| (name.clone(), state.clone())).collect(),
            now: Some(now),
            ..Listed::default()
        }
    }

    pub(crate) fn watch(&self, session: &str) -> MemoryStream<Event> {
        let (events, opened) = stream();
        self.contents().sessions.push((wake::pattern(session), events));
        opened
    }

    pub(super) fn follow(&self, name: Option<&str>) -> MemoryStream<NamedSighting> {
        let (sightings, opened) = stream();
        self.contents().followers.push((name.map(str::to_owned), sightings));
        opened
    }

    /// Opens a stream of all changes.
    #[cfg(test)]
    pub(crate) fn open(&self) -> super::Stream<NamedSighting> {
        super::Stream::Memory(self.follow(None))
    }

    /// Creates a store whose server clock reads `epoch` now.
    #[cfg(test)]
    pub(crate) fn begun(epoch: ServerTime) -> Self {
        Self::at(Clock::begin(epoch))
    }

    /// Sets the server's clock ahead of the elapsed time.
    #[cfg(test)]
    pub(crate) fn run_ahead(&self, millis: i64) {
        self.clock.run_ahead(millis);
    }

    /// Returns a document and the clock.
    #[cfg(test)]
    pub(crate) fn look(&self, name: &str, look: impl FnOnce(Option<&State>, ServerTime)) {
        let now = self.clock.now();
        look(self.contents().state(name, now), now);
    }

    /// Reports whether nobody holds anything or waits for it.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        let now = self.clock.now();
        self.contents().states.values().all(|state| state.is_free(now))
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // No code that runs under the lock leaves the contents half-written.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    /// Returns the document of a name, unless a TTL index would have purged it by now.
    fn state(&self, name: &str, now: ServerTime) -> Option<&State> {
        self.states.get(name).filter(|state| state.purge_at > now)
    }

    fn write(&mut self, name: &str, state: State) {
        let event = Event::Addressed {
            name: name.to_owned(),
            wake: state.wake.clone(),
            at: state.at,
            logged_at: None,
        };
        self.sessions.retain(|(pattern, events)| {
            if state.wake.contains(pattern) {
                events.send(event.clone())
            } else {
                !events.is_closed()
            }
        });
        let sighting = Sighting::State(Box::new(state.clone()));
        self.followers.retain(|(followed, sightings)| {
            if followed.as_deref().is_none_or(|followed| followed == name) {
                sightings.send(NamedSighting::Of(name.to_owned(), sighting.clone()))
            } else {
                !sightings.is_closed()
            }
        });
        self.states.insert(name.to_owned(), state);
    }
}
