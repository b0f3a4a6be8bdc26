//! What can go wrong, by operation.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use crate::{
    contention::Contention,
    protocol::{Kind, State},
    status::{LostPart, LostReason},
    store::StoreError,
};

/// A value that watchlock does not accept, refused before anything is sent.
///
/// The message names the value and the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidInput {
    message: String,
}

impl InvalidInput {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

/// The server could not be reached, or it refused; [`source`](StdError::source) is the driver's error.
#[derive(Clone, Debug)]
pub struct ServerError(StoreError);

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for ServerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

/// The name is in use as something else: another kind of lock, or one of another capacity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is in use as a {found} of capacity {found_capacity}, and was asked for as a {wanted} of {wanted_capacity}"
)]
#[non_exhaustive]
pub struct UsedOtherwise {
    /// The name of the lock.
    pub name: String,
    /// What it is used as by those who hold it or wait for it now.
    pub found: Kind,
    /// The capacity that it has for them.
    pub found_capacity: u64,
    /// What was asked for.
    pub wanted: Kind,
    /// The capacity that was asked for.
    pub wanted_capacity: u64,
}

impl UsedOtherwise {
    pub(crate) fn new(name: &str, found: &State, wanted: Kind, capacity: i64) -> Self {
        let unsigned = |capacity| u64::try_from(capacity).unwrap_or(0);
        Self {
            name: name.to_owned(),
            found: found.kind,
            found_capacity: unsigned(found.capacity),
            wanted,
            wanted_capacity: unsigned(capacity),
        }
    }
}

/// Why a [`LockClient`](crate::LockClient) could not be built.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting is out of its bounds, or two do not fit each other.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server could not be reached, or it refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The change stream is required by the builder, and this server has none to offer.
    #[error("a change stream is required, and the server is a standalone: start it as a replica set of one node")]
    NoChangeStream,
}

/// Why a lock was not acquired.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The name or an option is out of its bounds; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The lock was not free in time. No place in the queue is left behind.
    ///
    /// With a [`source`](StdError::source) it was the server that did not answer, so that nothing is known of the lock as
    /// it is now; without one it was answered to the last, and the lock was taken.
    #[error("{}", Overdue { name, waited: *waited, contention: contention.as_deref(), answered: source.is_none() })]
    #[non_exhaustive]
    Timeout {
        /// The name of the lock.
        name: String,
        /// How long was waited: the timeout that was set.
        waited: Duration,
        /// Who held it and who waited before us, as far as the server has said; `None` when it never answered.
        contention: Option<Box<Contention>>,
        /// Why the server did not answer in the end, where that is so.
        source: Option<ServerError>,
    },
    /// The lock was not free at once, and whoever tried it wanted to know who has it:
    /// [`TryAcquire::or_held`](crate::TryAcquire::or_held).
    #[error("`{}` is not free: {contention}", name.escape_debug())]
    #[non_exhaustive]
    Held {
        /// The name of the lock.
        name: String,
        /// Who holds it and who waits for it.
        contention: Box<Contention>,
    },
    /// The name is in use as another kind of lock. Nothing was changed.
    #[error(transparent)]
    UsedOtherwise(#[from] UsedOtherwise),
    /// The server refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// There is no document with this `_id` to be locked. Only of [`DocumentLocks`](crate::DocumentLocks).
    #[error("there is no document {name} to be locked")]
    #[non_exhaustive]
    NoDocument {
        /// The `_id` that was asked for, as text.
        name: String,
    },
    /// A document was locked, and could not be read as what it was asked for; it is given back.
    /// Only of [`DocumentLocks`](crate::DocumentLocks).
    #[error("the document {name} could not be read")]
    #[non_exhaustive]
    Unreadable {
        /// The `_id` of the document, as text.
        name: String,
        /// What is wrong with it.
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// The client was shut down.
    #[error("the lock client was shut down")]
    Closed,
}

/// The message of a timeout, by what was heard of the server.
struct Overdue<'a> {
    name: &'a str,
    waited: Duration,
    contention: Option<&'a Contention>,
    answered: bool,
}

impl fmt::Display for Overdue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, waited) = (self.name.escape_debug(), self.waited);
        match (self.contention, self.answered) {
            (None, true) => write!(f, "`{name}` was not free within {waited:?}"),
            (Some(contention), true) => write!(f, "`{name}` was not free within {waited:?}: {contention}"),
            (None, false) => {
                write!(
                    f,
                    "`{name}` was not acquired within {waited:?}: the server did not answer"
                )
            }
            (Some(contention), false) => write!(
                f,
                "`{name}` was not acquired within {waited:?}: the server did not answer any more; \
                 when it last did, the lock was {contention}"
            ),
        }
    }
}

/// Why a release could not be confirmed. Its lease bounds how long the lock stays taken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The server refused, or could not be reached for the time of a lease.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Why a renewal or a proclamation did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// A value is out of its bounds; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The lock is lost.
    #[error(transparent)]
    Lost(#[from] LostReason),
    /// The server could not be reached, or it refused. The lock is still held, up to its present deadline.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Why a locked document was not changed or deleted.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The update would touch the lock; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The lock is lost; nothing was written.
    #[error(transparent)]
    Lost(#[from] LostReason),
    /// The server could not be reached, and it may have been written; or it refused.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The document was updated, and can't be read any more as what was asked for.
    #[error("the updated document could not be read")]
    #[non_exhaustive]
    Unreadable {
        /// What is wrong with it.
        source: Arc<dyn StdError + Send + Sync>,
    },
}

/// Why [`run`](crate::Mutex::run) did not run its future to the end.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired: the future was never started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost: the future was dropped at its next await point.
    #[error(transparent)]
    Lost(#[from] LostReason),
}

/// Why [`MultiLock::run`](crate::MultiLock::run) did not run its future to the end.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MultiRunError {
    /// The locks were not acquired: the future was never started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// One of the locks was lost: the future was dropped at its next await point.
    #[error(transparent)]
    Lost(#[from] LostPart),
}

/// Why a lock could not be inspected or broken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// The name is in use as another kind of lock.
    #[error(transparent)]
    UsedOtherwise(#[from] UsedOtherwise),
    /// The name is out of its bounds; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server could not be reached, or it refused.
    #[error(transparent)]
    Server(#[from] ServerError),
}
