//! Stores: MongoDB collections and memory, where the documents of the locks are kept.
//!
//! A store runs one operation of the protocol at a time, renews many holders at once, reads, and watches. The session,
//! not the store, decides about time-outs and retries.

mod claims;
pub(crate) mod collection;
pub(crate) mod detached;
mod documents;
pub(crate) mod element;
pub(crate) mod lock_layout;
mod memory;
pub(crate) mod mongo;
pub(crate) mod name;
mod number;
mod observed;
pub(crate) mod typed;

use std::{
    collections::{BTreeSet, HashMap},
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

#[cfg(test)]
use crate::tests::simulated;
use crate::{
    error::{ServerError, own::Own},
    protocol::{Exchange, Operation, ServerTime, Showing, State, document::Malformed},
    telemetry,
};
use futures::future::BoxFuture;
use mongodb::bson::{Document, oid::ObjectId};

pub(crate) use crate::error::failure::Failure;
pub(crate) use crate::protocol::LogTime;
pub(crate) use claims::{Claimed, Outlook, Taken, Wanted};
pub(crate) use detached::{Detached, detached, spawned};
pub(crate) use lock_layout::LockLayout;
pub(crate) use memory::{Connection, MemoryDocuments, MemoryStore, MemoryStream};
pub(crate) use mongo::{
    AWAIT_TIME, COUNTED_MOST, LONG_READ_WITHIN, MongoStore, READ_WITHIN, abort, first_in, is_in_transaction,
};
pub use observed::UnreadableInfo;
pub(crate) use observed::{Listed, Selection, UNREADABLE_MOST, UnreadableInfo as Unreadable};
pub(crate) use typed::{Mismatch, read_as, write_as};

/// The place where a session's locks live: in documents of their own or in the user's, in MongoDB or in memory. Both
/// keep the same documents by the same transitions.
#[derive(Clone)]
pub(crate) enum Store {
    Mongo(Arc<MongoStore>),
    Memory(Arc<MemoryStore>),
    #[cfg(test)]
    Simulated(Arc<simulated::Link>),
}

/// An operation on the lock of this name.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) operation: Operation,
}

/// The document after an operation, and the exchange that reported it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// `None` when there is no document.
    pub(crate) state: Option<State>,
    pub(crate) exchange: Exchange,
}

impl Answer {
    /// Returns the answer to an operation that shared a command with others, by its document as it was read afterwards.
    pub(crate) fn read_after(
        operation: &Operation,
        state: Option<State>,
        exchange: Exchange,
    ) -> Result<Self, ServerError> {
        match operation.is_done_in(state.as_ref()) {
            Some(true) => Ok(Self { state, exchange }),
            Some(false) => Err(Own::NotDone.into()),
            None => Err(ServerError::unsaid()),
        }
    }
}

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
    /// An observed lock was written, or its document deleted.
    Written(String),
    /// A document was written that is not the document of a lock, as its `_id` can't be read.
    Unreadable(Unreadable),
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

/// The events that a session's stream reports, beside those that concern the session's own entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Whether it reports every event that may make a document free to be claimed.
    pub(crate) free: bool,
    /// The locks of which it reports every write.
    pub(crate) observed: Observed,
}

impl Watched {
    /// Whether a stream of this reports everything that a stream of `other` would.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let observed = match (&self.observed, &other.observed) {
            (Observed::All, _) => true,
            (Observed::These(names), Observed::These(others)) => names.is_superset(others),
            (Observed::These(_), Observed::All) => false,
        };
        observed && (self.free || !other.free)
    }
}

/// The locks that a client observes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    These(BTreeSet<String>),
    All,
}

impl Default for Observed {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl Observed {
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::These(names) => names.contains(name),
            Self::All => true,
        }
    }
}

/// What a read shows of documents, and how recent that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// As the primary has them now: a fail-over can undo it.
    Newest,
    /// As a majority has them, at this time in the log or later.
    Committed(Option<LogTime>),
}

/// Runs a future that calls into the driver. The driver calls the user's handlers of its events, which may panic: a
/// panic ends the operation with an unknown outcome, and not the task that runs it.
async fn contained<T>(
    mut running: Pin<&mut (dyn Future<Output = Result<T, ServerError>> + Send)>,
) -> Result<T, ServerError> {
    // A stream that panicked is dropped like a stream that failed; keeping everything else intact is the driver's task.
    let poll = |context: &mut Context<'_>| {
        let polled = telemetry::caught(|| running.as_mut().poll(context));
        polled.unwrap_or_else(|| Poll::Ready(Err(Own::Panicked.into())))
    };
    poll_fn(poll).await
}

impl Store {
    /// Asks the server, or memory. An error is reported under this purpose, with the name of the lock if it is about one.
    ///
    /// The future of the server is boxed: otherwise those of the driver would be part of every future of a session.
    fn ask<'a, T: Send + 'a, F: Future<Output = Result<T, ServerError>> + Send + 'a>(
        &'a self,
        about: (&'static str, Option<&'a str>),
        of_server: impl FnOnce(&'a MongoStore) -> F,
        of_memory: impl FnOnce(&'a MemoryStore) -> Result<T, ServerError> + Send + 'a,
    ) -> impl Future<Output = Result<T, ServerError>> {
        let asking: BoxFuture<'a, Result<T, ServerError>> = match self {
            Self::Mongo(store) => Box::pin(of_server(store)),
            Self::Memory(store) => Box::pin(async move { of_memory(store) }),
            #[cfg(test)]
            Self::Simulated(link) => Box::pin(async move { of_memory(link.memory()) }),
        };
        self.answer(about, asking)
    }

    async fn answer<T>(
        &self,
        (purpose, name): (&'static str, Option<&str>),
        mut asking: BoxFuture<'_, Result<T, ServerError>>,
    ) -> Result<T, ServerError> {
        let answering = async {
            match self {
                Self::Mongo(store) => store.look().await?,
                Self::Memory(store) => store.connection().reach().await?,
                #[cfg(test)]
                Self::Simulated(_) => {}
            }
            contained(asking.as_mut()).await
        };
        let answer = answering.await;
        answer.inspect_err(|error| telemetry::operation_failed(purpose, name, error))
    }

    /// Runs one operation on the document `name`, majority-committed. The server gives up after `within`.
    pub(crate) async fn run(&self, name: &str, operation: &Operation, within: Duration) -> Result<Answer, ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.run(name, operation, within).await;
        }
        self.ask(
            (telemetry::purpose(operation), Some(name)),
            |store| store.run(name, operation, within),
            |store| store.run(name, operation),
        )
        .await
    }

    /// Renews the given entries that still hold their lock. A document that the server refuses to change does not
    /// affect the others.
    pub(crate) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.renew(renewal).await;
        }
        self.ask(
            ("renew", None),
            |store| store.renew(renewal),
            |store| {
                let renewed = store.renew(renewal);
                Ok(Renewed {
                    renewed,
                    ..Renewed::default()
                })
            },
        )
        .await
    }

    /// Runs [shareable](Operation::is_shareable) operations with one id on different locks in one command. Returns the
    /// outcome of each; an error of all of them leaves each unknown.
    pub(crate) async fn run_together(
        &self,
        asked: &[Asked],
        within: Duration,
    ) -> Result<Vec<Result<Answer, ServerError>>, ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.run_together(asked, within).await;
        }
        let one_by_one = |store: &MemoryStore| {
            let outcomes = asked.iter().map(|Asked { name, operation }| store.run(name, operation));
            Ok(outcomes.collect())
        };
        self.ask(("several", None), |store| store.run_together(asked, within), one_by_one)
            .await
    }

    /// Reads the documents of these names in this view; names without a document are left out.
    pub(crate) async fn read(&self, view: View, names: &[String]) -> Result<(Documents, Exchange), ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.read(names).await;
        }
        self.ask(
            ("read", None),
            |store| store.read(names, view),
            |store| Ok(store.read(names)),
        )
        .await
    }

    /// Opens a stream of the events that concern `session`, and of those that are `watched`, from now on or from after
    /// the last event of `resume`. Only a collection of the user's own documents reports documents that become free.
    pub(crate) async fn watch(
        &self,
        session: &str,
        watched: &Watched,
        resume: Option<&ResumeAt>,
    ) -> Result<Stream, ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.watch(session, watched).await.map(Stream::Simulated);
        }
        self.ask(
            ("watch", None),
            |store| async move { Ok(Stream::Mongo(Box::new(store.watch(session, watched, resume).await?))) },
            |store| Ok(Stream::Memory(store.watch(session, watched.clone()))),
        )
        .await
    }

    /// Reads all locks that can match.
    pub(crate) async fn list(&self, selection: &Selection, view: View) -> Result<Listed, ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.list(selection).await;
        }
        self.ask(
            ("list", None),
            |store| store.list(selection, view),
            |store| Ok(store.list(selection)),
        )
        .await
    }

    /// Counts the clients that hold locks, among the locks that were written last: at least this one. In memory nobody
    /// else pays for a client's streams. The server gives up after `within`.
    pub(crate) async fn clients_that_hold(&self, within: Duration) -> Result<u64, ServerError> {
        #[cfg(test)]
        if let Self::Simulated(link) = self {
            return link.clients_that_hold().await;
        }
        self.ask(("count", None), |store| store.clients_that_hold(within), |_| Ok(1))
            .await
    }

    /// Returns which election the primary has won; `None` where there is no replica set, or no primary that says it.
    pub(crate) async fn elected(&self) -> Result<Option<Elected>, ServerError> {
        self.ask(("hello", None), MongoStore::elected, |_| Ok(None)).await
    }

    /// Prepares the collection: creates the index by which the server purges free locks. The server gives up after
    /// `within`.
    pub(crate) async fn prepare(&self, within: Duration) -> Result<(), ServerError> {
        self.ask(("index", None), |store| store.prepare(within), |_| Ok(()))
            .await
    }

    /// Reports whether its streams occupy connections of the driver's pool.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Mongo(_))
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Reports whether its documents are the user's own, with locks in them.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place().is_some()
    }

    /// Reports whether there can be a lock with this name, as a list or an event tells it.
    pub(crate) fn has_place_of(&self, name: &str) -> bool {
        self.in_place().is_none_or(|layout| layout.has_place_of(name))
    }

    /// Returns the place of the locks in the user's own documents; `None` when the documents are the locks.
    pub(crate) fn in_place(&self) -> Option<&Arc<LockLayout>> {
        let layout = match self {
            Self::Mongo(store) => &store.layout,
            Self::Memory(store) => &store.layout,
            #[cfg(test)]
            Self::Simulated(_) => return None,
        };
        Some(layout).filter(|layout| !layout.is_root())
    }
}

/// A renewal of many holders in one command.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    /// Unique to each renewal; the first word of `wake`.
    pub(crate) operation: String,
    /// The holders' entries, by the names of their locks, in the order of these.
    pub(crate) entries: Vec<(String, Vec<String>)>,
    /// What it shows of them; `None` leaves what the documents show as it is.
    pub(crate) shows: Option<Showing>,
    /// The lease, in milliseconds.
    pub(crate) keep: i64,
    /// Maximum time that the server may take.
    pub(crate) within: Duration,
}

impl Renewal {
    /// Returns what it shows of these entries.
    fn shows_of(&self, ids: &[String]) -> Option<Showing> {
        let Showing { idle, awaits, as_of } = self.shows.as_ref()?;
        let awaits = ids.iter().filter_map(|id| awaits.get_key_value(id));
        Some(Showing {
            idle: ids.iter().filter(|id| idle.contains(*id)).cloned().collect(),
            awaits: awaits.map(|(id, awaited)| (id.clone(), awaited.clone())).collect(),
            as_of: *as_of,
        })
    }
}

/// The outcome of a renewal.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    /// The number of documents that were changed.
    pub(crate) renewed: u64,
    /// Documents that the server refused to change, by the names of their locks: nothing was written to them.
    pub(crate) refused: HashMap<String, ServerError>,
    /// The election of the primary that did this, if it is told.
    pub(crate) elected: Option<Elected>,
    /// The time in the server's log by which it was done, if it is told.
    pub(crate) logged_by: Option<LogTime>,
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
pub(crate) type Elected = ObjectId;

/// The position at which a stream can be resumed.
pub(crate) type ResumeAt = Document;

/// An open change stream.
pub(crate) enum Stream {
    Mongo(Box<mongo::MongoStream>),
    Memory(MemoryStream),
    #[cfg(test)]
    Simulated(simulated::SimulatedStream),
}

impl Stream {
    /// Returns the next events; an empty batch is a sign of life. An error ends the stream.
    ///
    /// Cancel safe: no event is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Vec<Event>, ServerError> {
        match self {
            Self::Mongo(stream) => contained(pin!(stream.next())).await,
            Self::Memory(stream) => stream.next().await,
            #[cfg(test)]
            Self::Simulated(stream) => stream.next().await,
        }
    }

    /// Returns the time in the log of the last batch: whoever reads as of then sees all writes that were reported.
    pub(crate) fn as_of(&self) -> Option<LogTime> {
        match self {
            Self::Mongo(stream) => stream.as_of(),
            _ => None,
        }
    }

    /// Whether events came with the opening, and have not been told yet.
    pub(crate) fn has_untold(&self) -> bool {
        matches!(self, Self::Mongo(stream) if stream.has_untold())
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
