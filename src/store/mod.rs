//! Stores: MongoDB collections and memory, where the documents of the locks are kept.
//!
//! A store runs one operation of the protocol at a time, renews many holders at once, reads, and watches. The session,
//! not the store, decides about time-outs and retries.

mod arrival;
mod claims;
pub(crate) mod collection;
mod documents;
pub(crate) mod element;
pub(crate) mod family;
mod locks;
mod memory;
pub(crate) mod mongo;
pub(crate) mod name;
mod number;
pub(crate) mod place;
mod sightings;
mod to_its_end;
pub(crate) mod typed;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

#[cfg(test)]
use crate::tests::simulated;
use crate::{
    protocol::{Ahead, Exchange, Idle, Operation, ServerTime, State, document::Malformed},
    telemetry,
};
use futures::FutureExt;
use mongodb::bson::Timestamp;

pub(crate) use crate::error::{failure::Failure, store::StoreError};
pub(crate) use arrival::Arrival;
pub(crate) use claims::{Among, Claimed, ElementUpdate, Outlook, Wanted};
pub(crate) use documents::DocumentStore;
pub(crate) use locks::LockStore;
pub(crate) use memory::{MemoryDocuments, MemoryInPlace, MemoryStore, MemoryStream, Refused};
pub(crate) use mongo::{AWAIT_TIME, LONG_READ_WITHIN, MongoStore, Topology, abort, identity, is_in_transaction};
pub(crate) use place::InPlace;
pub(crate) use sightings::{Listed, NamedSighting, Selection, Sighting, Unreadable};
pub(crate) use to_its_end::{ToItsEnd, to_its_end};
pub(crate) use typed::read_as;

/// A store of any kind, as every session uses it. All of them keep the same documents by the same transitions.
///
/// A store of locks ([`LockStore`]) and a store of documents ([`DocumentStore`]) each offer more.
#[derive(Debug)]
pub(crate) enum Store {
    Mongo(Arc<MongoStore>),
    Memory(Arc<MemoryStore>),
    MemoryInPlace(Arc<MemoryInPlace>),
    #[cfg(test)]
    Simulated(Arc<simulated::Link>),
}

/// The document after an operation, and the exchange that reported it.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `None` when there is no document.
    pub(crate) state: Option<State>,
    pub(crate) exchange: Exchange,
    /// No later than this in the server's log; `None` where the server has no log, or does not report it.
    pub(crate) logged_by: Option<LogTime>,
}

/// A position in the log of a replica set's writes.
pub(crate) type LogTime = Timestamp;

/// Documents by name. `Err` marks a document that is not the document of a lock.
pub(crate) type Documents = HashMap<String, Result<State, Malformed>>;

/// An event of the change stream, about one document or about all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A write of the protocol at time `at`, with entries of this session in `wake`.
    Addressed {
        name: String,
        wake: String,
        at: ServerTime,
        logged_at: Option<LogTime>,
    },
    /// The document was deleted, or written by another program.
    Foreign {
        name: String,
        /// The document after that write, if the event shows it.
        after: Option<Box<ForeignWrite>>,
    },
    /// A document of the user's own was deleted, or overwritten as a whole: anything can have happened to all locks in
    /// it. `document` is its name, with which the names of its locks begin.
    Document {
        document: String,
        /// The locks of elements that the document still has as they were, by their codes.
        but: Vec<String>,
    },
    /// A document may have become free to be claimed.
    Freed,
    /// The collection was dropped or renamed, or the stream ended: anything can have happened to any document.
    Everything,
}

/// A document right after another program's write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignWrite {
    /// `None`: it was deleted.
    pub(crate) document: Option<Result<State, Malformed>>,
    pub(crate) logged_at: LogTime,
}

/// The events that a session's stream reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Events that concern the session's own entries.
    Locks,
    /// The same, and every event that may make a document free to be claimed.
    LocksAndFree,
}

/// How recent a read's documents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// As the primary has them now: a fail-over can undo it.
    Newest,
    /// As a majority has them.
    Committed,
}

/// Runs a future that calls into the driver. The driver calls the user's handlers of its events, which may panic: a
/// panic ends the operation with an unknown outcome, and not the task that runs it.
async fn contained<T>(running: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    // A stream that panicked is dropped like a stream that failed; keeping everything else intact is the driver's task.
    let ended = AssertUnwindSafe(running).catch_unwind().await;
    ended.unwrap_or_else(|_| {
        Err(StoreError {
            kind: Failure::Unavailable,
            source: Arc::new(io::Error::other("a panic in the driver, or in a handler of its events")),
        })
    })
}

impl Store {
    /// Runs one operation on the document `name`, majority-committed. The server gives up after `within`.
    pub(crate) async fn run(&self, name: &str, operation: &Operation, within: Duration) -> Result<Answer, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.run(name, operation, within)).await,
            Self::Memory(store) => Ok(store.run(name, operation)),
            Self::MemoryInPlace(store) => store.run(name, operation),
            #[cfg(test)]
            Self::Simulated(link) => link.run(name, operation, within).await,
        }
        .inspect_err(|error| telemetry::operation_failed(telemetry::purpose(operation), Some(name), error))
    }

    /// Renews the given entries that still hold their lock. A document that the server refuses to change does not
    /// affect the others.
    pub(crate) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.renew(renewal)).await,
            Self::Memory(store) => Ok(Renewed::all(store.renew(renewal))),
            Self::MemoryInPlace(store) => Ok(Renewed::all(store.renew(renewal))),
            #[cfg(test)]
            Self::Simulated(link) => link.renew(renewal).await,
        }
        .inspect_err(|error| telemetry::operation_failed("renew", None, error))
    }

    /// Runs operations that only remove entries, each on its own document, and returns the refused ones by name. The
    /// documents that the others found are not returned.
    pub(crate) async fn release_together(
        &self,
        releases: &[(String, Operation)],
        within: Duration,
    ) -> Result<BTreeMap<String, StoreError>, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.release_together(releases, within)).await,
            _ => {
                let mut refused = BTreeMap::new();
                for (name, operation) in releases {
                    if let Err(error) = self.run(name, operation, within).await {
                        refused.insert(name.clone(), error);
                    }
                }
                return Ok(refused);
            }
        }
        .inspect_err(|error| telemetry::operation_failed("release", None, error))
    }

    /// Reads the documents of these names as they are now; names without a document are left out.
    pub(crate) async fn read(&self, names: &[String], arrival: &Arrival) -> Result<(Documents, Exchange), StoreError> {
        match self {
            Self::Mongo(store) => contained(store.read(names, View::Newest, arrival)).await,
            Self::Memory(store) => Ok(store.read(names)),
            Self::MemoryInPlace(store) => Ok(store.read(names)),
            #[cfg(test)]
            Self::Simulated(link) => link.read(names).await,
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Returns the entries ahead of a queue entry as they are now; `None` when it is not in the queue. The server gives
    /// up after `within`.
    pub(crate) async fn ahead(
        &self,
        name: &str,
        entry: &str,
        within: Duration,
    ) -> Result<(Option<Ahead>, Exchange), StoreError> {
        if let Self::Mongo(store) = self {
            let ahead = contained(store.ahead(name, entry, within)).await;
            return ahead.inspect_err(|error| telemetry::operation_failed("read", Some(name), error));
        }
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            link.served(1, within).await?;
        }
        let (documents, exchange) = self.read(&[name.to_owned()], &Arrival::default()).await?;
        let state = documents
            .get(name)
            .map(Result::as_ref)
            .transpose()
            .map_err(Clone::clone)?;
        let ahead = state.zip(exchange.now);
        Ok((ahead.and_then(|(state, now)| Ahead::of(state, entry, now)), exchange))
    }

    /// Reads the documents as a majority has them, for observers: what they saw once is not undone.
    pub(crate) async fn observe(
        &self,
        names: &[String],
        arrival: &Arrival,
    ) -> Result<(Documents, Exchange), StoreError> {
        match self {
            Self::Mongo(store) => contained(store.read(names, View::Committed, arrival)).await,
            _ => return self.read(names, arrival).await,
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Opens a stream of the events that concern `session`, from now on or from after the last event of `resume`. Only
    /// a collection of the user's own documents reports documents that become free.
    pub(crate) async fn watch(
        &self,
        session: &str,
        watched: Watched,
        resume: Option<&ResumeAt>,
    ) -> Result<Stream<Event>, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.watch(session, watched, resume))
                .await
                .map(Box::new)
                .map(Stream::Mongo),
            Self::Memory(store) => Ok(Stream::Memory(store.watch(session))),
            Self::MemoryInPlace(store) => Ok(Stream::Memory(store.watch(session, watched))),
            #[cfg(test)]
            Self::Simulated(link) => link.watch(session).await.map(Stream::Simulated),
        }
        .inspect_err(|error| telemetry::operation_failed("watch", None, error))
    }

    /// Counts the clients that hold locks, among the locks that were written last; `None` where nobody else pays for
    /// this client's streams, or the locks are in documents of the user's own. The server gives up after `within`.
    pub(crate) async fn clients_that_hold(&self, within: Duration) -> Result<Option<u64>, StoreError> {
        match self {
            Self::Mongo(store) if store.place().is_none() => contained(store.clients_that_hold(within)).await.map(Some),
            _ => Ok(None),
        }
        .inspect_err(|error| telemetry::operation_failed("count", None, error))
    }

    /// Returns which election the primary has won; `None` where there is no replica set, or no primary that says it.
    pub(crate) async fn elected(&self) -> Result<Option<Elected>, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.elected()).await,
            _ => Ok(None),
        }
        .inspect_err(|error| telemetry::operation_failed("hello", None, error))
    }

    /// Reports whether its streams occupy connections of the driver's pool.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Mongo(_))
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::MemoryInPlace(_))
    }

    /// Reports whether its documents are the user's own, with locks in them.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place().is_some()
    }

    /// Returns the place of the locks in the user's own documents; `None` when the documents are the locks.
    pub(crate) fn in_place(&self) -> Option<&Arc<InPlace>> {
        match self {
            Self::Mongo(store) => store.place(),
            Self::MemoryInPlace(store) => Some(store.place()),
            _ => None,
        }
    }

    /// Prepares the collection: creates the index by which the server purges free locks. The server gives up after
    /// `within`.
    pub(crate) async fn prepare(&self, within: Duration) -> Result<(), StoreError> {
        match self {
            Self::Mongo(store) => contained(store.prepare(within)).await,
            _ => Ok(()),
        }
        .inspect_err(|error| telemetry::operation_failed("index", None, error))
    }
}

/// A renewal of many holders in one command.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    /// Unique to each renewal; the first word of `wake`.
    pub(crate) operation: String,
    /// The holders' entries, by the names of their locks.
    pub(crate) entries: BTreeMap<String, Vec<String>>,
    /// The idle ones among them; `None` leaves what the documents show of that as it is.
    pub(crate) idle: Option<Idle>,
    /// The lease, in milliseconds.
    pub(crate) keep: i64,
    /// Maximum time that the server may take.
    pub(crate) within: Duration,
    pub(crate) statements: Statements,
}

/// The division of a renewal's command into statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statements {
    /// Documents share statements.
    Shared,
    /// Each document gets its own, so that a refused document costs the others no second command.
    OnePerDocument,
}

impl Renewal {
    /// Returns the idle ones among these entries; `None` if what the documents show is left as it is.
    fn idle_among(&self, ids: &[String]) -> Option<Idle> {
        let Idle { entries, as_of } = self.idle.as_ref()?;
        let entries = ids.iter().filter(|id| entries.contains(*id)).cloned().collect();
        Some(Idle { entries, as_of: *as_of })
    }
}

/// The outcome of a renewal.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    /// The number of documents that were changed.
    pub(crate) renewed: u64,
    /// Documents that the server refused to change, by the names of their locks: nothing was written to them.
    pub(crate) refused: BTreeMap<String, StoreError>,
    /// The election of the primary that did this, if it is told.
    pub(crate) elected: Option<Elected>,
    /// The time in the server's log by which it was done, if it is told.
    pub(crate) logged_by: Option<LogTime>,
}

impl Renewed {
    /// Returns the outcome of a renewal that was refused for no document.
    pub(crate) fn all(renewed: u64) -> Self {
        Self {
            renewed,
            ..Self::default()
        }
    }
}

/// A holder that becomes part of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Guarding<'a> {
    /// Unique to each guard; the first word of `wake`.
    pub(crate) operation: String,
    pub(crate) name: &'a str,
    /// The entry's id and token.
    pub(crate) holder: (&'a str, i64),
    /// The lease, in milliseconds.
    pub(crate) keep: i64,
}

/// An election of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elected(pub(crate) mongodb::bson::oid::ObjectId);

/// The position at which a stream can be resumed.
#[derive(Clone, Debug)]
pub(crate) struct ResumeAt(mongodb::bson::Document);

/// An open change stream.
pub(crate) enum Stream<T> {
    Mongo(Box<mongo::MongoStream<T>>),
    Memory(MemoryStream<T>),
    #[cfg(test)]
    Simulated(simulated::SimulatedStream<T>),
}

impl<T> Stream<T> {
    /// Returns the next events; an empty batch is a sign of life. An error ends the stream.
    ///
    /// Cancel safe: no event is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Mongo(stream) => contained(stream.next()).await,
            Self::Memory(stream) => stream.next().await,
            #[cfg(test)]
            Self::Simulated(stream) => stream.next().await,
        }
    }

    /// Returns the position after the last batch, from which the stream can be resumed.
    pub(crate) fn resume_at(&self) -> Option<ResumeAt> {
        match self {
            Self::Mongo(stream) => stream.resume_at(),
            Self::Memory(_) => None,
            #[cfg(test)]
            Self::Simulated(_) => None,
        }
    }
}
