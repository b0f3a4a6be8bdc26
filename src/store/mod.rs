//! Where the documents of the locks are: a MongoDB collection, or memory.
//!
//! A store runs one operation of the protocol at a time, renews many holders at once, reads, and watches. It decides
//! nothing about time-outs and retries; that is the session's part.

mod documents;
pub(crate) mod error;
mod failure;
mod locks;
mod memory;
pub(crate) mod mongo;
pub(crate) mod name;
mod number;
pub(crate) mod place;
#[cfg(test)]
pub(crate) mod simulated;
mod typed;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::time::Instant;

use crate::{
    protocol::{Ahead, Operation, ServerTime, State, document::Malformed},
    telemetry,
};

pub(crate) use documents::{Among, Claimed, DocumentStore, Outlook, Wanted};
pub(crate) use error::{Failure, StoreError};
pub(crate) use locks::{Listed, LockStore, NamedSighting, Selection, Sighting, Unreadable};
pub(crate) use memory::{MemoryDocuments, MemoryInPlace, MemoryStore, Refused};
pub(crate) use mongo::{AWAIT_TIME, MongoStore, Topology, abort, identity, is_in_transaction};
pub(crate) use name::size_of_id;
pub(crate) use place::InPlace;
pub(crate) use typed::read_as;

/// A store as every session uses it, by what it is. All keep the same documents by the same transitions.
///
/// More can be done with a store of locks ([`LockStore`]), and other things with one of documents ([`DocumentStore`]).
#[derive(Debug)]
pub(crate) enum Store {
    Mongo(Arc<MongoStore>),
    Memory(Arc<MemoryStore>),
    MemoryInPlace(Arc<MemoryInPlace>),
    #[cfg(test)]
    Simulated(Arc<simulated::Link>),
}

/// The document after an operation, and when.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `None`: there is no document.
    pub(crate) state: Option<State>,
    pub(crate) exchange: Exchange,
}

/// One exchange with the server: it read `now` on its clock some time after `sent` and before `received` on ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    /// `None` where the server does not say it: a retried command is answered from the server's record of it.
    pub(crate) now: Option<ServerTime>,
}

/// Documents by name. `Err` stands for a document that is not the document of a lock.
pub(crate) type Documents = HashMap<String, Result<State, Malformed>>;

/// What the change stream says about one document, or about them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A write of the protocol, at a time, that names entries of this session in `wake`.
    Addressed { name: String, wake: String, at: ServerTime },
    /// The document was deleted, or written by something that is not the protocol.
    Foreign { name: String },
    /// A document may have become free to be claimed.
    Freed,
    /// The collection was dropped or renamed, or the stream ended: anything can have happened to any document.
    Everything,
}

/// What a session's stream is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// What concerns the session's own entries.
    Locks,
    /// That, and whatever may make a document free to be claimed.
    LocksAndFree,
}

/// How new the documents are that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// As the primary has them now: a fail-over can undo it.
    Newest,
    /// As a majority has them.
    Committed,
}

/// For how long the server may try to release many locks: by then each has been asked for by itself.
const RELEASES_WITHIN: Duration = Duration::from_secs(10);

/// Runs what calls into the driver. There the user's own handlers of its events are called, which may panic: that ends the
/// operation, with an unknown outcome, and not the task that runs it.
async fn contained<T>(running: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    // A stream that panicked is dropped as one that failed; all else is the driver's to keep whole.
    let ended = AssertUnwindSafe(running).catch_unwind().await;
    ended.unwrap_or_else(|_| {
        Err(StoreError {
            kind: Failure::Unavailable,
            source: Arc::new(io::Error::other("a panic in the driver, or in a handler of its events")),
        })
    })
}

impl Store {
    /// Runs one operation on the document `name`, majority-committed. The server may try for so long.
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

    /// Renews those entries that still hold their lock. A document that the server refuses to change costs no others.
    pub(crate) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.renew(renewal)).await,
            Self::Memory(store) => Ok(Renewed::all(store.renew(renewal))),
            Self::MemoryInPlace(store) => store.renew(renewal).map(Renewed::all),
            #[cfg(test)]
            Self::Simulated(link) => link.renew(renewal).await,
        }
        .inspect_err(|error| telemetry::operation_failed("renew", None, error))
    }

    /// Runs operations that only take entries out, each on a document of its own; returns which were refused, by name. What
    /// the others found is not told.
    pub(crate) async fn release_together(
        &self,
        releases: &[(String, Operation)],
    ) -> Result<BTreeMap<String, StoreError>, StoreError> {
        match self {
            Self::Mongo(store) => contained(store.release_together(releases, RELEASES_WITHIN)).await,
            _ => {
                let mut refused = BTreeMap::new();
                for (name, operation) in releases {
                    if let Err(error) = self.run(name, operation, RELEASES_WITHIN).await {
                        refused.insert(name.clone(), error);
                    }
                }
                return Ok(refused);
            }
        }
        .inspect_err(|error| telemetry::operation_failed("release", None, error))
    }

    /// Reads the documents of these names as they are now; names without one are left out.
    pub(crate) async fn read(&self, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        match self {
            Self::Mongo(store) => contained(store.read(names, View::Newest)).await,
            Self::Memory(store) => Ok(store.read(names)),
            Self::MemoryInPlace(store) => Ok(store.read(names)),
            #[cfg(test)]
            Self::Simulated(link) => link.read(names).await,
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// What an entry of the queue has before it now; `None` where it is not in the queue.
    pub(crate) async fn ahead(&self, name: &str, entry: &str) -> Result<(Option<Ahead>, Exchange), StoreError> {
        if let Self::Mongo(store) = self {
            let ahead = contained(store.ahead(name, entry)).await;
            return ahead.inspect_err(|error| telemetry::operation_failed("read", Some(name), error));
        }
        let (documents, exchange) = self.read(&[name.to_owned()]).await?;
        let state = documents.get(name).and_then(|document| document.as_ref().ok());
        let ahead = state.zip(exchange.now);
        Ok((ahead.and_then(|(state, now)| Ahead::of(state, entry, now)), exchange))
    }

    /// The same as a majority has them, for observers: what was seen once is not undone.
    pub(crate) async fn observe(&self, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        match self {
            Self::Mongo(store) => contained(store.read(names, View::Committed)).await,
            _ => return self.read(names).await,
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Opens a stream of the events that concern `session`, from now on or from after the last event of `resume`. What
    /// becomes free is told of the documents of the user's own alone.
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

    /// Whether its streams take connections of the driver's pool.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Mongo(_))
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::MemoryInPlace(_))
    }

    /// Whether it is of documents of the user's own, with locks in them.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place().is_some()
    }

    /// Where the locks are in the documents of the user's own; `None` where the documents are the locks.
    pub(crate) fn in_place(&self) -> Option<&Arc<InPlace>> {
        match self {
            Self::Mongo(store) => store.place(),
            Self::MemoryInPlace(store) => Some(store.place()),
            _ => None,
        }
    }

    /// Prepares the collection: makes the index by which the server purges idle locks, for which it may try for so long.
    pub(crate) async fn prepare(&self, within: Duration) -> Result<(), StoreError> {
        match self {
            Self::Mongo(store) => contained(store.prepare(within)).await,
            _ => Ok(()),
        }
        .inspect_err(|error| telemetry::operation_failed("index", None, error))
    }
}

/// Holders to be renewed in one command.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    /// New for every renewal; the first word of `wake`.
    pub(crate) operation: String,
    /// The holders' entries, by the names of their locks.
    pub(crate) entries: BTreeMap<String, Vec<String>>,
    /// In milliseconds.
    pub(crate) keep: i64,
    /// For how long the server may try.
    pub(crate) within: Duration,
    /// Each document by a statement of its own, so that one that is refused costs no others a second command.
    pub(crate) apart: bool,
}

/// What a renewal did.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    /// In how many documents it did something.
    pub(crate) renewed: u64,
    /// Documents that the server refused to change, by the names of their locks: nothing was written to them.
    pub(crate) refused: BTreeMap<String, StoreError>,
}

impl Renewed {
    /// Nothing was refused.
    pub(crate) fn all(renewed: u64) -> Self {
        Self {
            renewed,
            ..Self::default()
        }
    }
}

/// A holder to be made part of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Guarding<'a> {
    /// New for every guard; the first word of `wake`.
    pub(crate) operation: String,
    pub(crate) name: &'a str,
    /// The entry's id and token.
    pub(crate) holder: (&'a str, i64),
    /// In milliseconds.
    pub(crate) keep: i64,
}

/// Where a stream can be taken up again.
#[derive(Clone, Debug)]
pub(crate) struct ResumeAt(mongodb::bson::Document);

/// An open change stream.
pub(crate) enum Stream<T> {
    Mongo(Box<mongo::MongoStream<T>>),
    Memory(memory::MemoryStream<T>),
    #[cfg(test)]
    Simulated(simulated::SimulatedStream<T>),
}

impl<T> Stream<T> {
    /// The next events; an empty batch is a sign of life. An error ends the stream.
    ///
    /// Cancel safe: no event is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Mongo(stream) => contained(stream.next()).await,
            Self::Memory(stream) => Ok(stream.next().await),
            #[cfg(test)]
            Self::Simulated(stream) => stream.next().await,
        }
    }

    /// Where to take up the stream again after the last batch.
    pub(crate) fn resume_at(&self) -> Option<ResumeAt> {
        match self {
            Self::Mongo(stream) => stream.resume_at(),
            Self::Memory(_) => None,
            #[cfg(test)]
            Self::Simulated(_) => None,
        }
    }
}
