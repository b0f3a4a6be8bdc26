//! Where the documents of the locks are: a MongoDB collection, or memory.
//!
//! A store runs one operation of the protocol at a time, renews many holders at once, reads, and watches. It decides
//! nothing about time-outs and retries; that is the session's part.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod memory;
mod mongo;
pub(crate) mod name;
#[cfg(test)]
pub(crate) mod simulated;
mod typed;

use std::{collections::HashMap, error::Error as StdError, fmt, io, sync::Arc, time::Duration};

use mongodb::{bson::Document, options::UpdateModifications};
use tokio::time::Instant;

use crate::{
    protocol::{Kind, Operation, ServerTime, State, document::Malformed},
    telemetry,
};

pub(crate) use memory::{MemoryDocuments, MemoryInPlace, MemoryStore, Refused};
pub(crate) use mongo::{AWAIT_TIME, MongoStore, Topology, abort, is_in_transaction};
pub(crate) use typed::read_as;

/// A store, by what it is. All keep the same documents by the same transitions.
#[derive(Debug)]
pub(crate) enum Store {
    Mongo(MongoStore),
    Memory(Arc<MemoryStore>),
    MemoryInPlace(MemoryInPlace),
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
    /// The collection was dropped or renamed, or the stream ended: anything can have happened to any document.
    Everything,
}

/// Why an operation failed.
#[derive(Clone, Debug)]
pub(crate) struct StoreError {
    pub(crate) kind: Failure,
    pub(crate) source: Arc<dyn StdError + Send + Sync>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Two commands created the document at once, and this one lost: nothing was written; ask again.
    Raced,
    /// The server can't be reached or is changing its primary. It may have been written; asking again is safe.
    Unavailable,
    /// The server refuses: asking again would bring the same answer. Nothing was written.
    Refused,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Failure::Raced => "the lock's document was created by two commands at once",
            Failure::Unavailable => "the server can't be reached",
            Failure::Refused => "the server refused the operation",
        })
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

impl StoreError {
    /// Asking again would bring the same answer.
    pub(crate) fn is_final(&self) -> bool {
        self.kind == Failure::Refused
    }

    /// There was no answer in time.
    pub(crate) fn overdue() -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, "no answer within the time of a lease");
        Self {
            kind: Failure::Unavailable,
            source: Arc::new(source),
        }
    }

    /// The document is not that of a lock.
    pub(crate) fn is_malformed(&self) -> bool {
        self.source.is::<NotALock>()
    }

    /// The server said so, and at once: not that it took too long (`MaxTimeMSExpired`).
    pub(crate) fn was_answered(&self) -> bool {
        self.code().is_some_and(|code| code != 50)
    }

    /// It was not even sent: the driver found no server to send it to, for as long as it is told to look for one.
    pub(crate) fn found_no_server(&self) -> bool {
        self.source.downcast_ref().is_some_and(mongo::found_no_server)
    }

    /// The server's code for the error, where it is one of the server's.
    pub(crate) fn code(&self) -> Option<i32> {
        mongo::code(self.source.downcast_ref()?)
    }

    /// The server's name for that code, where it has said it.
    pub(crate) fn code_name(&self) -> Option<&str> {
        mongo::code_name(self.source.downcast_ref()?)
    }

    /// What went wrong, without the server's answer, which the driver's text has to the last byte.
    pub(crate) fn cause(&self) -> &dyn fmt::Display {
        match self.source.downcast_ref::<mongodb::error::Error>() {
            Some(error) => &error.kind,
            None => &self.source,
        }
    }

    /// The store can't do that: it is of locks by themselves or of locks in documents, and the other is asked for.
    fn unsupported() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }

    /// The driver's error, or the error as one of the driver's.
    pub(crate) fn into_driver_error(self) -> mongodb::error::Error {
        let source = self.source.downcast_ref::<mongodb::error::Error>();
        source
            .cloned()
            .unwrap_or_else(|| mongodb::error::Error::custom(self.to_string()))
    }

    /// The task that ran the operation was stopped, as its runtime is shutting down.
    pub(crate) fn stopped(error: tokio::task::JoinError) -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(error),
        }
    }
}

impl From<Malformed> for StoreError {
    fn from(malformed: Malformed) -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NotALock(malformed)),
        }
    }
}

/// A document stands under the lock's name that is not the document of a lock; it is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the document of that name is not the document of a lock: {0}")]
struct NotALock(Malformed);

impl Store {
    /// Runs one operation on the document `name`, majority-committed.
    pub(crate) async fn run(&self, name: &str, operation: &Operation) -> Result<Answer, StoreError> {
        match self {
            Self::Mongo(store) => store.run(name, operation).await,
            Self::Memory(store) => Ok(store.run(name, operation)),
            Self::MemoryInPlace(store) => store.run(name, operation),
            #[cfg(test)]
            Self::Simulated(link) => link.run(name, operation).await,
        }
        .inspect_err(|error| telemetry::operation_failed(telemetry::purpose(operation), Some(name), error))
    }

    /// Renews those of `ids` that still hold a lock of `names`; returns in how many documents.
    pub(crate) async fn renew(&self, renewal: &Renewal) -> Result<u64, StoreError> {
        match self {
            Self::Mongo(store) => store.renew(renewal).await,
            Self::Memory(store) => Ok(store.renew(renewal)),
            Self::MemoryInPlace(store) => store.renew(renewal),
            #[cfg(test)]
            Self::Simulated(link) => link.renew(renewal).await,
        }
        .inspect_err(|error| telemetry::operation_failed("renew", None, error))
    }

    /// Reads the documents of these names as they are now; names without one are left out.
    pub(crate) async fn read(&self, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        match self {
            Self::Mongo(store) => store.read(names).await,
            Self::Memory(store) => Ok(store.read(names)),
            Self::MemoryInPlace(store) => Ok(store.read(names)),
            #[cfg(test)]
            Self::Simulated(link) => link.read(names).await,
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// Reads all documents that can match; with them, the server's clock. What is no lock is passed over.
    pub(crate) async fn list(
        &self,
        selection: &Selection,
    ) -> Result<(Vec<(String, State)>, Option<ServerTime>), StoreError> {
        match self {
            Self::Mongo(store) => store.list(selection).await,
            Self::Memory(store) => Ok(store.list()),
            // Nobody lists the locks in documents.
            Self::MemoryInPlace(_) => Err(StoreError::unsupported()),
            #[cfg(test)]
            Self::Simulated(link) => Ok(link.memory().list()),
        }
        .inspect_err(|error| telemetry::operation_failed("list", None, error))
    }

    /// Opens a stream of the events that concern `session`, from now on or from after the last event of `resume`.
    pub(crate) async fn watch(&self, session: &str, resume: Option<&ResumeAt>) -> Result<Stream<Event>, StoreError> {
        match self {
            Self::Mongo(store) => store.watch(session, resume).await.map(Box::new).map(Stream::Mongo),
            Self::Memory(store) => Ok(Stream::Memory(store.watch(session))),
            Self::MemoryInPlace(store) => Ok(Stream::Memory(store.watch(session))),
            #[cfg(test)]
            Self::Simulated(link) => link.watch(session).await.map(Stream::Simulated),
        }
        .inspect_err(|error| telemetry::operation_failed("watch", None, error))
    }

    /// Opens a stream of whatever happens to the document `name`, or to any of them, likewise.
    pub(crate) async fn follow(
        &self,
        name: Option<&str>,
        resume: Option<&ResumeAt>,
    ) -> Result<Stream<NamedSighting>, StoreError> {
        match self {
            Self::Mongo(store) => store.follow(name, resume).await.map(Box::new).map(Stream::Mongo),
            Self::Memory(store) => Ok(Stream::Memory(store.follow(name))),
            // Nobody follows the locks in documents.
            Self::MemoryInPlace(_) => Err(StoreError::unsupported()),
            #[cfg(test)]
            Self::Simulated(link) => Ok(Stream::Memory(link.memory().follow(name))),
        }
        .inspect_err(|error| telemetry::operation_failed("follow", name, error))
    }

    /// Opens a stream that tells whenever a document may have become free to be claimed.
    pub(crate) async fn watch_free(&self, resume: Option<&ResumeAt>) -> Result<Stream<()>, StoreError> {
        match self {
            Self::Mongo(store) => store.watch_free(resume).await.map(Box::new).map(Stream::Mongo),
            Self::MemoryInPlace(store) => Ok(Stream::Memory(store.watch_free())),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("watch", None, error))
    }

    /// Locks any document that is wanted and free, and returns it; `None` when there is none.
    pub(crate) async fn claim(&self, wanted: &Wanted, operation: &Operation) -> Result<Option<Claimed>, StoreError> {
        match self {
            Self::Mongo(store) => store.claim(wanted, operation).await,
            Self::MemoryInPlace(store) => store.claim(wanted, operation),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("claim", None, error))
    }

    /// When the first of the wanted documents is free again, should nobody renew; `None` when there is none.
    pub(crate) async fn free_at(&self, wanted: &Wanted) -> Result<Option<(ServerTime, Exchange)>, StoreError> {
        match self {
            Self::Mongo(store) => store.free_at(wanted).await,
            Self::MemoryInPlace(store) => store.free_at(wanted),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// The names of the wanted documents in which this entry is a holder.
    pub(crate) async fn held_by(&self, wanted: &Wanted, entry: &str) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Mongo(store) => store.held_by(wanted, entry).await,
            Self::MemoryInPlace(store) => store.held_by(wanted, entry),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("read", None, error))
    }

    /// The path of the locks in the documents of the user's own; empty where the documents are the locks.
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::Mongo(store) => store.path(),
            Self::MemoryInPlace(store) => store.path(),
            _ => "",
        }
    }

    /// The user's part of a document as it is now.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Mongo(store) => store.fetch(name).await,
            Self::MemoryInPlace(store) => Ok(store.fetch(name)),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("read", Some(name), error))
    }

    /// Changes the user's part of a document, and returns it, if this entry holds it under this token; `None` otherwise.
    pub(crate) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: UpdateModifications,
    ) -> Result<Option<Document>, StoreError> {
        match self {
            Self::Mongo(store) => store.change(name, holder, update).await,
            Self::MemoryInPlace(store) => store.change(name, holder, &update),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("update", Some(name), error))
    }

    /// Deletes a document if this entry holds it under this token, and says whether it did.
    pub(crate) async fn delete(&self, name: &str, holder: (&str, i64)) -> Result<bool, StoreError> {
        match self {
            Self::Mongo(store) => store.delete(name, holder).await,
            Self::MemoryInPlace(store) => Ok(store.delete(name, holder)),
            _ => Err(StoreError::unsupported()),
        }
        .inspect_err(|error| telemetry::operation_failed("delete", Some(name), error))
    }

    /// Prepares the collection: makes the index by which the server purges idle locks.
    pub(crate) async fn prepare(&self) -> Result<(), StoreError> {
        match self {
            Self::Mongo(store) => store.prepare().await,
            _ => Ok(()),
        }
        .inspect_err(|error| telemetry::operation_failed("index", None, error))
    }
}

/// Which documents of the user's own are wanted, and which of them first.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) filter: Document,
    pub(crate) sort: Option<Document>,
}

/// A document of the user's own that was claimed.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) name: String,
    /// The user's part of it.
    pub(crate) document: Document,
    pub(crate) state: State,
    pub(crate) exchange: Exchange,
}

/// Which documents are listed: every condition that is set must be met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// How the name begins.
    pub(crate) prefix: String,
    pub(crate) kind: Option<Kind>,
    /// Whether it has holders.
    pub(crate) held: Option<bool>,
}

/// Holders to be renewed in one command.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    /// New for every renewal; the first word of `wake`.
    pub(crate) operation: String,
    pub(crate) names: Vec<String>,
    pub(crate) ids: Vec<String>,
    /// In milliseconds.
    pub(crate) keep: i64,
    /// For how long the server may try.
    pub(crate) within: Duration,
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

/// What a stream says, and about which document; `None`: about them all.
pub(crate) type NamedSighting = (Option<String>, Sighting);

/// What a stream says about one document.
#[derive(Clone, Debug)]
pub(crate) enum Sighting {
    State(Box<State>),
    /// The document was deleted.
    Gone,
    /// The document must be read to know.
    Unclear,
}

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
            Self::Mongo(stream) => stream.next().await,
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
