//! Operations on several locks in one command.
//!
//! Those that are alike are one statement for all their documents, so each costs the server a fraction of a command.
//! One reading of the documents follows, and it alone decides: a lock is granted if it shows our own entry, whatever
//! the command replied. Names that have no document yet get one by a statement each.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use mongodb::{
    bson::{Bson, Document, doc},
    error::Error,
};
use tokio::time::Instant;

use super::{MongoStore, command::Updated, lossy, now};
use crate::{
    error::ServerError,
    protocol::{Exchange, Operation, State, pipeline, wake},
    store::{Answer, Asked, Failure, LogTime, View},
};

/// The documents by their names. `None`: it is not the document of a lock.
type Found = HashMap<String, Option<State>>;

impl MongoStore {
    /// Runs shareable operations with one id on different locks, and returns the outcome of each. An operation that was
    /// not done in this way, or of which that is not known, is to be asked for by itself. The server gives up after
    /// `within`.
    pub(in crate::store) async fn run_together(
        &self,
        asked: &[Asked],
        within: Duration,
    ) -> Result<Vec<Result<Answer, ServerError>>, ServerError> {
        let sent = Instant::now();
        let mut read = self
            .write_and_read(asked.iter().collect(), statements(asked), within)
            .await?;
        let mut unsaid = HashSet::new();
        let is_absent = |asked: &&Asked| asked.operation.creates() && !read.found.contains_key(&asked.name);
        let absent: Vec<&Asked> = asked.iter().filter(is_absent).collect();
        // Nobody waits for what is written after that time, and this takes about as long as what is done.
        let left = within.saturating_sub(sent.elapsed());
        if !absent.is_empty() && left >= sent.elapsed() {
            let created = absent.iter().map(|Asked { name, operation }| {
                let update = pipeline::operation(self.layout.base(), operation, &now());
                doc! { "q": { "_id": name }, "u": update, "upsert": true }
            });
            let created = created.collect();
            let names: Vec<&str> = absent.iter().map(|asked| asked.name.as_str()).collect();
            match self.write_and_read(absent, created, left).await {
                Ok(created) => read.extend(created),
                // What was read of the others holds all the same.
                Err(_) => unsaid.extend(names),
            }
        }
        let Read {
            logged_by,
            mut found,
            is_certain,
        } = read;
        let received = Instant::now();
        // Each writes the server's time. The earliest of them is that of the first command.
        let written = asked.iter().filter_map(|Asked { name, operation }| {
            let state = found.get(name)?.as_ref()?;
            wake::left(&state.wake, &operation.id).map(|_| state.at)
        });
        let now = written.min();
        let exchange = Exchange {
            sent,
            received,
            now,
            logged_by,
        };
        let outcomes = asked.iter().map(|Asked { name, operation }| {
            let state = found.remove(name).flatten();
            match Answer::read_after(operation, state, exchange) {
                Err(_) if !is_certain || unsaid.contains(name.as_str()) => Err(ServerError::unsaid()),
                outcome => outcome,
            }
        });
        Ok(outcomes.collect())
    }

    /// Runs statements, and reads the documents of the operations as they are then.
    async fn write_and_read(
        &self,
        asked: Vec<&Asked>,
        statements: Vec<Document>,
        within: Duration,
    ) -> Result<Read, Error> {
        let sent = Instant::now();
        let Updated { logged_by, refused, .. } = self.update(statements, within).await?;
        // A refused statement ends there: the reading shows how far it came. One that only a part of a cluster did not
        // answer may still be done.
        let is_refused = |(_, error)| ServerError::of_lock(error).kind == Failure::Refused;
        let is_certain = refused.into_iter().all(is_refused);
        let names = asked.iter().map(|asked| Bson::from(asked.name.as_str())).collect();
        let left = within.saturating_sub(sent.elapsed());
        let (read, _) = self
            .find(names, doc! { "ends": 0 }, View::Committed(logged_by), left)
            .await?;
        let mut found = Found::new();
        for raw in &read {
            if let Ok(name) = raw.get_str("_id") {
                let state = lossy::read(raw).and_then(|document| State::from_document(&document).ok());
                found.insert(name.to_owned(), state);
            }
        }
        Ok(Read {
            logged_by,
            found,
            is_certain,
        })
    }
}

/// The documents as they were read after a write.
struct Read {
    /// No later than this in the server's log.
    logged_by: Option<LogTime>,
    found: Found,
    /// Whether nothing is done later of what they don't show.
    is_certain: bool,
}

impl Read {
    fn extend(&mut self, other: Self) {
        self.logged_by = other.logged_by;
        self.found.extend(other.found);
        self.is_certain &= other.is_certain;
    }
}

/// Returns a statement for all operations that are alike. Releases come first, as others may wait for them.
fn statements(asked: &[Asked]) -> Vec<Document> {
    let mut alike: Vec<Vec<(&str, &Operation)>> = Vec::new();
    for Asked { name, operation } in asked {
        match alike.iter_mut().find(|some| some[0].1.is_like(operation)) {
            Some(some) => some.push((name, operation)),
            None => alike.push(vec![(name, operation)]),
        }
    }
    let (releases, requests): (Vec<_>, Vec<_>) = alike.into_iter().partition(|some| some[0].1.requests.is_none());
    let statements = releases.iter().chain(&requests).map(|some| {
        let names: Vec<&str> = some.iter().map(|(name, _)| *name).collect();
        doc! { "q": { "_id": { "$in": names } }, "u": pipeline::together(some, &now()), "multi": true }
    });
    statements.collect()
}
