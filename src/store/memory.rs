//! Locks in the memory of this process: the protocol's specification run under a mutex, on tokio's clock.
//!
//! A lock is in a document here too, its own or the user's: so whatever happens to the document has the same effect on
//! the lock as on a server. Only free locks are never purged, as memory that holds tests is not short.

mod claims;
mod clock;
mod connection;
mod documents;
mod matching;
mod stream;
#[cfg(test)]
mod tests;
mod updating;
mod watching;

use crate::error::{InvalidInput, ServerError};
use std::{collections::HashMap, sync::Arc};

use mongodb::bson::Document;

use super::{AWAIT_TIME, Answer, Documents, Event, Failure, Listed, LockLayout, Renewal, Selection, Watched, name};
use crate::protocol::{Exchange, Operation, state};
#[cfg(test)]
use crate::protocol::{ServerTime, State};
use watching::Watcher;

pub(crate) use connection::Connection;
pub(crate) use documents::MemoryDocuments;
pub(crate) use stream::MemoryStream;

// A refusal by memory: of an operation that only a server supports, or that a server would refuse too.
#[doc(hidden)]
impl From<InvalidInput> for ServerError {
    fn from(refused: InvalidInput) -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(refused),
        }
    }
}

/// The locks in a collection in memory, whose documents are locks or contain them.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    documents: Arc<MemoryDocuments>,
    pub(super) layout: Arc<LockLayout>,
    connection: Connection,
}

impl MemoryStore {
    pub(crate) fn new(documents: Arc<MemoryDocuments>, layout: Arc<LockLayout>, connection: Connection) -> Self {
        Self {
            documents,
            layout,
            connection,
        }
    }

    /// Returns the same locks for another client.
    pub(crate) fn of_another_client(&self) -> Self {
        let connection = self.connection.of_another_client();
        Self::new(self.documents.clone(), self.layout.clone(), connection)
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn run(&self, name: &str, operation: &Operation) -> Result<Answer, ServerError> {
        let mut contents = self.documents.contents();
        let (exchange, now) = self.documents.clock.exchange();
        let member = self.layout.member(name);
        let unknown = Answer { state: None, exchange };
        let document = contents.get(&member.id);
        let before = document.map_or(Ok(None), |document| member.location.state(document));
        let before = match before {
            Ok(before) => before,
            // As on a server.
            Err(error) if !error.ends(operation) => return Ok(unknown),
            Err(error) => return Err(error.into()),
        };
        // As on a server: nothing is written for a document of the user's, or an element of it, that is not there.
        let is_there = match (&member.element, document) {
            (Some(element), Some(document)) if operation.requests.is_some() => {
                !element.found_in(document).is_empty()
                    || before.as_ref().is_some_and(|before| before.has_any(&operation.leave))
            }
            (_, document) => document.is_some() || self.layout.is_root(),
        };
        if !is_there {
            return Ok(unknown);
        }
        let after = state::apply(before.as_ref(), operation, now);
        if let Some(after) = &after
            && before.as_ref() != Some(after)
        {
            let fields = after.fields();
            // A queue is long, and the fields of a lock that is all of its document replace the former ones.
            let stays = |field: &str| !self.layout.is_root() || !fields.contains_key(field);
            let former = document.into_iter().flatten().filter(|(field, _)| stays(field));
            let mut document: Document = former.map(|(field, value)| (field.clone(), value.clone())).collect();
            document.entry("_id".to_owned()).or_insert_with(|| member.id.clone());
            member.location.set_lock(&mut document, fields);
            contents.put(document);
        }
        Ok(Answer {
            state: after,
            ..unknown
        })
    }

    pub(crate) fn renew(&self, renewal: &Renewal) -> u64 {
        let mut contents = self.documents.contents();
        let now = self.documents.clock.now();
        // As on a server, all locks in a document are renewed by one write.
        let mut written = HashMap::<String, Document>::new();
        let mut renewed = 0;
        for (name, ids) in &renewal.entries {
            let (id, location) = (self.layout.id_of(name), self.layout.at(name));
            let Some(found) = contents.get(&id) else { continue };
            let document = written.entry(name::of_id(&id)).or_insert_with(|| found.clone());
            let shows = renewal.shows_of(ids);
            if let Ok(Some(mut state)) = location.state(document)
                && state::renew_and_show(&mut state, &renewal.operation, (ids, shows.as_ref()), renewal.keep, now)
            {
                location.set_lock(document, state.fields());
                renewed += 1;
            }
        }
        let mut written: Vec<(String, Document)> = written.into_iter().collect();
        written.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (_, document) in written {
            contents.put(document);
        }
        renewed
    }

    pub(crate) fn read(&self, names: &[String]) -> (Documents, Exchange) {
        let contents = self.documents.contents();
        let (exchange, _) = self.documents.clock.exchange();
        let found = names.iter().filter_map(|name| {
            let document = contents.get(&self.layout.id_of(name))?;
            Some((name.clone(), self.layout.at(name).found(document)?))
        });
        (found.collect(), exchange)
    }

    pub(crate) fn list(&self, selection: &Selection) -> Listed {
        let contents = self.documents.contents();
        let mut listed = Listed {
            now: Some(self.documents.clock.now()),
            ..Listed::default()
        };
        let base = self.layout.base();
        for document in contents.all() {
            let name = document.get("_id").and_then(|id| self.layout.document(id));
            if let Some(name) = name.filter(|name| base.is_root() || selection.selects(name)) {
                for (name, found) in self.layout.found_in(name, document) {
                    listed.add(name, found, selection);
                }
            }
        }
        listed
    }

    pub(crate) fn watch(&self, session: &str, watched: Watched) -> MemoryStream {
        let (events, opened) = MemoryStream::open(self.connection.clone());
        let watcher = Watcher::new(self.layout.clone(), session, watched, events);
        self.documents.contents().watchers.push(watcher);
        opened
    }
}

#[cfg(test)]
impl MemoryStore {
    /// Creates a store whose server clock reads `epoch` now.
    pub(crate) fn begun(epoch: ServerTime) -> Self {
        Self::new(
            Arc::new(MemoryDocuments::begun(epoch)),
            Arc::default(),
            Connection::default(),
        )
    }

    /// Returns the server's clock.
    pub(crate) fn now(&self) -> ServerTime {
        self.documents.clock.now()
    }

    /// Counts the clients that hold locks, by the ids of their entries.
    pub(crate) fn clients_that_hold(&self) -> u64 {
        let contents = self.documents.contents();
        let holders = contents
            .all()
            .filter_map(|lock| lock.get_array("holders").ok())
            .flatten();
        let ids = holders.filter_map(|holder| holder.as_document()?.get_str("id").ok());
        let clients: std::collections::BTreeSet<&str> = ids.filter_map(|id| id.split('-').next()).collect();
        clients.len() as u64
    }

    /// Returns the number of open streams, as of the last write.
    pub(crate) fn streams(&self) -> usize {
        self.documents.contents().watchers.len()
    }

    /// Sets the server's clock ahead of the elapsed time.
    pub(crate) fn run_ahead(&self, millis: i64) {
        self.documents.clock.run_ahead(millis);
    }

    /// Returns a lock and the clock.
    pub(crate) fn look(&self, name: &str, look: impl FnOnce(Option<&State>, ServerTime)) {
        let state = self.read(&[name.to_owned()]).0.remove(name);
        look(state.transpose().unwrap().as_ref(), self.documents.clock.now());
    }

    /// Reports whether nobody holds anything or waits for it.
    pub(crate) fn is_unused(&self) -> bool {
        let listed = self.list(&Selection::default());
        let now = self.documents.clock.now();
        listed.found.iter().all(|(_, state)| state.is_free(now))
    }
}
