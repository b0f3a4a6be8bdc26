//! Errors, by operation.
//!
//! Each says its cause in its message, in less than [`MESSAGE_MOST`] bytes, and shows no more in `Debug`: what `unwrap`
//! prints and what a chain of errors adds up to fits into a log, and has no command or document in it. So an error that
//! contains another has its text, and no [`source`](StdError::source).

/// Shows errors in `Debug` by their message.
macro_rules! debug_as_message {
    ($($error:ident),*) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($error)).field(&format_args!("{self}")).finish()
            }
        }
    )*};
}

mod cause;
pub(crate) mod failure;
pub(crate) mod own;
mod server;

use std::{error::Error as StdError, sync::Arc, time::Duration};

use crate::{
    contention::Contention,
    deadlock::Deadlock,
    input::setting,
    protocol::{Kind, State, Use},
    status::Lost,
    token::FencingToken,
    truncated_debug::{MESSAGE_MOST, shown, shown_in_a_line, shown_up_to},
};

pub use crate::input::InvalidInput;
pub use server::{ServerError, ServerErrorKind};

debug_as_message!(
    Lost,
    KindMismatch,
    BuildError,
    AcquireError,
    HoldError,
    CandidacyError,
    OperateError,
    FenceError,
    GuardError
);

/// A kind mismatch: the name belongs to another kind of lock, to one of another capacity, or to a semaphore of fewer
/// permits than were requested.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is {}, and {}", shown_in_a_line(name), described(*found, *found_capacity), self.request())]
#[non_exhaustive]
pub struct KindMismatch {
    /// The name of the lock.
    pub name: String,
    /// The kind that the lock has.
    pub found: Kind,
    /// The capacity that it has: a number of permits, arrivals or parties, and 1 for a mutex, an election or a
    /// document. That of a readers-writer lock means nothing to its users.
    pub found_capacity: u64,
    /// The kind that was requested.
    pub wanted: Kind,
    /// The capacity that was requested.
    pub wanted_capacity: u64,
    /// The number of permits that was requested; 0 for a call that only reads or sets their number.
    pub wanted_permits: u64,
}

impl KindMismatch {
    pub(crate) fn new(name: &str, found: &State, (wanted, capacity): Use, permits: i64) -> Self {
        let unsigned = |number| u64::try_from(number).unwrap_or(0);
        Self {
            name: name.to_owned(),
            found: found.kind,
            found_capacity: unsigned(found.capacity),
            wanted,
            wanted_capacity: unsigned(capacity),
            wanted_permits: unsigned(permits),
        }
    }

    fn request(&self) -> String {
        if self.found == self.wanted && self.wanted_permits > self.found_capacity {
            // Either number may be the reason.
            return match self.wanted_capacity == self.found_capacity {
                true => format!("{} were requested", self.wanted_permits),
                false => format!("{} of {} were requested", self.wanted_permits, self.wanted_capacity),
            };
        }
        format!("was requested as {}", described(self.wanted, self.wanted_capacity))
    }
}

/// Describes a use of a name. The capacity of other kinds is always the same, and of a readers-writer lock it is a
/// number that means nothing to its users.
fn described(kind: Kind, capacity: u64) -> String {
    match kind {
        Kind::Semaphore => format!("a semaphore of {capacity} permits"),
        Kind::Latch => format!("a latch of {capacity} arrivals"),
        Kind::Barrier => format!("a barrier of {capacity} parties"),
        Kind::Election => "an election".to_owned(),
        kind => format!("a {kind}"),
    }
}

/// The reason why a [`LockClient`](crate::LockClient) could not be built.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting is out of bounds, or two do not fit each other.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server could not be reached, or it refused.
    #[error("{0}; `watchlock doctor` finds the cause")]
    Server(ServerError),
    /// The builder requires a change stream, and this server has none to offer.
    #[error("a change stream is required, and the server is a standalone: start it as a replica set of one node")]
    NoChangeStream,
    /// The collection would lose locks that are held, or take one lock for another: it is a view, a time series or
    /// capped, compares texts by a collation, or has a TTL index by which the server deletes locks that are held.
    #[error("locks can't be kept in {}: {}", shown_in_a_line(namespace), shown(problem))]
    #[non_exhaustive]
    Unsuitable {
        /// The database and the collection.
        namespace: String,
        /// The property of the collection, in words.
        problem: String,
    },
}

impl From<ServerError> for BuildError {
    fn from(error: ServerError) -> Self {
        Self::Server(error)
    }
}

/// The reason why a lock was not acquired, or its work not done.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The name or an option is out of bounds; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The lock was taken by the server's last answer, and nothing that was asked since was unanswered for too long. No
    /// queue position is left behind.
    ///
    /// A web service answers its caller that somebody else is at work: `409 Conflict`.
    #[error("{}", overdue(name, *waited, contention.as_deref()))]
    #[non_exhaustive]
    Timeout {
        /// The name of the lock.
        name: String,
        /// The timeout that was set; all of it passed.
        waited: Duration,
        /// The holders and the waiters ahead of us, by the server's last report. `None` for a claim, as no single lock
        /// was in the way.
        contention: Option<Box<Contention>>,
    },
    /// The server did not answer in time, or the timeout was over before it could be asked. Nothing is known about the
    /// lock's present state, and it may be free. No queue position is left behind.
    ///
    /// A web service answers its caller that it can't serve at the moment: `503 Service Unavailable`.
    #[error("{}", silent(name, *waited, contention.as_deref(), error.as_ref()))]
    #[non_exhaustive]
    Unanswered {
        /// The name of the lock.
        name: String,
        /// The timeout that was set; all of it passed.
        waited: Duration,
        /// The holders and the waiters ahead of us when the server last answered; `None` if it never did, or nobody was
        /// in the way then.
        contention: Option<Box<Contention>>,
        /// The last error of the server or the connection; `None` if there was no time for one.
        error: Option<ServerError>,
    },
    /// The lock was not free at once, and the try asked for the holder: [`or_held`](crate::Acquire::or_held). Or a client
    /// has the hold that was to be [attached](crate::LockClient::attach).
    #[error("{}", shown_up_to(MESSAGE_MOST, format_args!("`{}` is not free: {contention}", shown_in_a_line(name))))]
    #[non_exhaustive]
    Held {
        /// The name of the lock.
        name: String,
        /// The holders, and the waiters ahead of us.
        contention: Box<Contention>,
    },
    /// The name belongs to another kind of lock, or the semaphore has fewer permits. Nothing was changed.
    #[error(transparent)]
    KindMismatch(#[from] KindMismatch),
    /// The server refused, or it could not be reached or did not answer a try:
    /// [`ServerError::kind`](crate::errors::ServerError::kind) says which.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// There is no document with this `_id` to lock. Only from [`DocumentLocks`](crate::documents::DocumentLocks).
    #[error("there is no document {} to lock", shown_in_a_line(name))]
    #[non_exhaustive]
    NoDocument {
        /// The requested `_id`, as text.
        name: String,
    },
    /// There is no element with this key in the array to lock, or no such document. Only from
    /// [`ElementLocks`](crate::documents::ElementLocks).
    #[error("there is no element in `{array}` to lock as {}", shown_in_a_line(name))]
    #[non_exhaustive]
    NoElement {
        /// The requested `_id` and key, as text.
        name: String,
        /// The path of the array.
        array: String,
    },
    /// Several elements of the array have this key, so it does not say which to lock; none is. Only from
    /// [`ElementLocks`](crate::documents::ElementLocks).
    #[error(
        "{matched} elements in `{array}` match {}; the key of an element must match one",
        shown_in_a_line(name)
    )]
    #[non_exhaustive]
    AmbiguousElement {
        /// The requested `_id` and key, as text.
        name: String,
        /// The path of the array.
        array: String,
        /// The number of elements that have the key.
        matched: usize,
    },
    /// A document was locked but could not be read as the requested type; its lock is released. Only from
    /// [`DocumentLocks`](crate::documents::DocumentLocks).
    #[error("the document {} could not be read: {cause}", shown_in_a_line(name))]
    #[non_exhaustive]
    Unreadable {
        /// The `_id` of the document, as text.
        name: String,
        /// The reason why it can't be read.
        cause: Arc<dyn StdError + Send + Sync>,
    },
    /// None of the matching documents can be claimed: the field of their lock holds something else, the server refuses
    /// to write them, their `_id` is too long, or a moment ago they could not be read as the requested type. Only from
    /// [`DocumentLocks`](crate::documents::DocumentLocks).
    ///
    /// An event `watchlock.passed_over` reports each of them.
    #[error(
        "the document {} can't be claimed, and no other matches: {cause}",
        shown_in_a_line(name)
    )]
    #[non_exhaustive]
    Unclaimable {
        /// The `_id` of one of them, as text; the beginning of a long one.
        name: String,
        /// The reason why it can't be claimed.
        cause: Arc<dyn StdError + Send + Sync>,
    },
    /// The client was shut down.
    #[error("the lock client was shut down")]
    Closed,
    /// A hold is over: that of the work of a [`run`](crate::Acquire::run), which may have been begun; of the reader that
    /// was to [become a writer](crate::Held::upgrade); or of a party's place at a
    /// [barrier](crate::locks::Barrier::wait).
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The acquire was [cancelled](crate::Acquire::cancelled_by). No queue position is left behind.
    #[error("the acquire was cancelled")]
    Cancelled,
    /// The acquire was part of a deadlock, and was to [fail](crate::Acquire::fail_on_deadlock) then. No queue position is
    /// left behind. Give up the locks that you hold, or the others go on waiting for them.
    #[error("{0}")]
    Deadlock(Deadlock),
}

impl AcquireError {
    /// Returns the error of an acquire whose timeout is over, and of whose lock nothing is known.
    pub(crate) fn unanswered(name: &str, waited: Duration) -> Self {
        Self::Unanswered {
            name: name.to_owned(),
            waited,
            contention: None,
            error: None,
        }
    }
}

/// Returns the message of an acquire that found the lock taken.
fn overdue(name: &str, waited: Duration, contention: Option<&Contention>) -> String {
    let (name, within) = (shown_in_a_line(name), within(waited));
    let message = match contention {
        Some(contention) => format!("`{name}` was not free{within}: {contention}"),
        // Of a claim.
        None => format!("{name} was not acquired{within}: none that matches was free"),
    };
    shown_up_to(MESSAGE_MOST, message)
}

/// Returns the message of an acquire that the server did not answer.
fn silent(name: &str, waited: Duration, contention: Option<&Contention>, error: Option<&ServerError>) -> String {
    let (name, within) = (shown_in_a_line(name), within(waited));
    let cause = error.map_or(
        "there was no time for an answer of the server".to_owned(),
        ToString::to_string,
    );
    let message = match contention {
        Some(contention) => {
            format!("`{name}` was not acquired{within}: {cause}; when it last answered, the lock was {contention}")
        }
        None => format!("`{name}` was not acquired{within}: {cause}"),
    };
    shown_up_to(MESSAGE_MOST, message)
}

/// Returns a timeout as a part of a message. Zero is the wish not to wait.
fn within(timeout: Duration) -> String {
    match timeout {
        Duration::ZERO => String::new(),
        timeout => format!(" within {}", setting(timeout)),
    }
}

/// The reason why a [`Candidacy`](crate::election::Candidacy) ended by itself.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CandidacyError {
    /// A campaign failed.
    #[error(transparent)]
    Campaign(#[from] AcquireError),
    /// A callback of the candidate panicked.
    #[error("a callback of the candidate panicked: {}", shown_in_a_line(message))]
    #[non_exhaustive]
    Panicked {
        /// The panic's message; the beginning of a long one.
        message: String,
    },
    /// The runtime that ran the candidacy ended.
    #[error("the runtime that ran the candidacy ended")]
    Stopped,
}

/// The reason why a call on what is held did not succeed: a renewal, a proclamation, a release, or a write of a locked
/// document.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// A value is out of bounds, or an update would touch the lock or can't be written as BSON; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The lock is lost. A document was not written; what else was to change may have.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The server could not be reached, or it refused; a document may have been written. Unless the call gives up the
    /// handle, the lock is still held, up to its present deadline.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A release could not be confirmed: the server refused, or could not be reached for the time of a lease; or its
    /// answer was lost, and a later holder was put out by an operator or a restarted owner, after which the lock does not
    /// show how this hold ended. The lock is given up all the same, and its lease limits how long it stays taken.
    #[error("the release of `{}` was not confirmed: {error}", shown_in_a_line(name))]
    #[non_exhaustive]
    Unconfirmed {
        /// The name of the lock.
        name: String,
        /// The error of the server or the connection.
        error: ServerError,
    },
    /// The lock guards a transaction that may still be open: for two seconds, or most of the time for which the lock
    /// was safe, the server let nobody else write the document. Nothing was written. Within the transaction, write with
    /// its session. Only from a [document or element](crate::documents).
    #[error(
        "the document was not written, as its lock guards a transaction that may still be open: within the \
         transaction, write with its session"
    )]
    InTransaction,
    /// No element of the array has the key any more: it was removed, or its key was changed. Nothing was written, and
    /// the lock is still held. Only from an [element](crate::documents::Element).
    #[error("no element has the key of the locked one any more; nothing was written")]
    NoElement,
    /// Several elements of the array have the key of the locked one by now. Nothing was written, and the lock is still
    /// held. Only from an [element](crate::documents::Element).
    #[error("{matched} elements have the key of the locked one by now; nothing was written")]
    #[non_exhaustive]
    AmbiguousElement {
        /// The number of elements that have the key.
        matched: usize,
    },
    /// The document was updated, but can't be read as the requested type any more. Only from a [document or
    /// element](crate::documents).
    #[error("the updated document could not be read: {cause}")]
    #[non_exhaustive]
    Unreadable {
        /// The reason why it can't be read.
        cause: Arc<dyn StdError + Send + Sync>,
    },
}

/// The reason why a lock could not be inspected or broken.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// The name belongs to another kind of lock.
    #[error(transparent)]
    KindMismatch(#[from] KindMismatch),
    /// The name is out of bounds; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// More documents have a lock than a list may have; see
    /// [`DocumentLocks::list`](crate::documents::DocumentLocks::list).
    #[error("more than {most} locks match; narrow the list, for example to those that are held")]
    #[non_exhaustive]
    TooMany {
        /// The largest number of locks in a list.
        most: usize,
    },
    /// The server could not be reached, or it refused.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// The reason why a write under a [`Fence`](crate::fence::Fence) was not done.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The update, the document or the filter is unsuitable for a fence; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The document has been written under a larger token, so somebody else has had the lock since. Nothing was
    /// written.
    #[error("the document was written under fencing token {stored}, and ours is {ours}")]
    #[non_exhaustive]
    Fenced {
        /// The token in the document.
        stored: FencingToken,
        /// The token of the write that was refused.
        ours: FencingToken,
    },
    /// The place of the token in the document holds something else. Nothing was written.
    #[error(
        "the field `{}` of the document can't hold a fencing token, as it holds something else: {found}",
        shown_in_a_line(field)
    )]
    #[non_exhaustive]
    Occupied {
        /// The path of the token's field.
        field: String,
        /// The value found there, or in place of the sub-document that should contain it.
        found: String,
    },
    /// The server could not be reached, or it refused; the driver's error says whether the document was written.
    /// Writing it again under the same token does the fence no harm.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Converts into the driver's own error, so that `?` works within its `and_run`: the driver's error itself if it is
/// one, with its labels; otherwise a custom error that [`get_custom`](mongodb::error::Error::get_custom) returns.
impl From<FenceError> for mongodb::error::Error {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Server(error) => error.into(),
            error => Self::custom(error),
        }
    }
}

/// The reason why a lock could not guard a transaction.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The lock is lost. The transaction can't be committed any more.
    #[error("the transaction was aborted: {0}")]
    Lost(Lost),
    /// The transaction reads data from a time before the lock was acquired. It can't be committed any more; run it
    /// again. The error has the label `TransientTransactionError`.
    #[error("the transaction was aborted, as it began before the lock was acquired")]
    Outdated(ServerError),
    /// The transaction has itself deleted the locked document, or replaced it without its lock, so there is nothing
    /// left to guard. It can't be committed, and running it again would end the same way: guard first.
    #[error(
        "the transaction was aborted, as it had removed the lock from its document before the guard: a transaction that \
         deletes or replaces a locked document must be guarded first"
    )]
    Removed,
    /// No transaction is in progress in the session.
    #[error("no transaction was started in the session")]
    NotInTransaction,
    /// A standalone server has no transactions.
    #[error("the server is a standalone, which has no transactions: start it as a replica set of one node")]
    Standalone,
    /// Locks in memory take no part in transactions.
    #[error("locks in memory have no transactions")]
    InMemory,
    /// The server could not be reached, or it refused. With the label `TransientTransactionError` the transaction may
    /// be run again: somebody has written the lock since the transaction began, possibly a renewal.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl From<Lost> for GuardError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Converts into the driver's own error, so that `?` works within its `and_run`: the driver's error itself if it is
/// one, with its labels, so that a transaction that may be run again is; otherwise a custom error that
/// [`get_custom`](mongodb::error::Error::get_custom) returns.
impl From<GuardError> for mongodb::error::Error {
    fn from(error: GuardError) -> Self {
        match error {
            GuardError::Server(error) | GuardError::Outdated(error) => error.into(),
            error => Self::custom(error),
        }
    }
}
