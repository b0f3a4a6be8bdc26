//! Why an operation failed.

use std::{error::Error as StdError, fmt, io, sync::Arc, time::Duration};

use super::failure;
pub(crate) use super::failure::Failure;
use crate::protocol::document::{ID_MOST, Malformed};

/// Why an operation failed.
#[derive(Clone, Debug)]
pub(crate) struct StoreError {
    pub(crate) kind: Failure,
    pub(crate) source: Arc<dyn StdError + Send + Sync>,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gone) = self.source.downcast_ref::<NoRuntime>() {
            return gone.fmt(f);
        }
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

    /// Why a write of the user's was not done.
    pub(crate) fn of_user_s_write(error: mongodb::error::Error) -> Self {
        let error = Self::from(error);
        match error.kind {
            Failure::Raced => Self {
                kind: Failure::Refused,
                ..error
            },
            _ => error,
        }
    }

    /// There was no answer in time.
    pub(crate) fn overdue() -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, "no answer within the time of a lease");
        Self {
            kind: Failure::Unavailable,
            source: Arc::new(source),
        }
    }

    /// The server has not answered so far; what was asked may be done, or be done yet.
    pub(crate) fn unanswered(for_long: Duration) -> Self {
        Self {
            kind: Failure::Unavailable,
            source: Arc::new(Unanswered(for_long)),
        }
    }

    /// There was no answer in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.source.is::<Unanswered>()
    }

    /// The server said that it did not get it done in the time that it was given.
    pub(crate) fn ran_out_of_time(&self) -> bool {
        #[cfg(test)]
        if self.source.is::<OutOfTime>() {
            return true;
        }
        self.source.downcast_ref().is_some_and(failure::ran_out_of_time)
    }

    /// The document is not that of a lock.
    pub(crate) fn is_malformed(&self) -> bool {
        self.source.is::<NotALock>()
    }

    /// What stands under the name is no lock of ours, or that of a later version.
    pub(crate) fn is_no_lock(&self) -> bool {
        self.is_malformed() || self.source.is::<LaterProtocol>()
    }

    /// The session's tasks do not run, in this process at least.
    pub(crate) fn has_no_runtime(&self) -> bool {
        self.source.is::<NoRuntime>()
    }

    /// The server said so, and at once: not that it took too long (`MaxTimeMSExpired`).
    pub(crate) fn was_answered(&self) -> bool {
        self.code().is_some_and(|code| code != 50)
    }

    /// The server is no primary any more, or is about to stop.
    pub(crate) fn lost_primary(&self) -> bool {
        // ShutdownInProgress, PrimarySteppedDown, NotWritablePrimary, InterruptedAtShutdown,
        // InterruptedDueToReplStateChange, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        matches!(self.code(), Some(91 | 189 | 10107 | 11600 | 11602 | 13435 | 13436))
    }

    /// It was not even sent: the driver found no server to send it to, for as long as it is told to look for one.
    pub(crate) fn found_no_server(&self) -> bool {
        self.source.downcast_ref().is_some_and(failure::found_no_server)
    }

    /// The server refused a write for a reason that may lie in the one document that it was to write: not for a missing
    /// privilege.
    pub(crate) fn may_concern_document(&self) -> bool {
        const UNAUTHORIZED: i32 = 13;
        self.kind != Failure::Unavailable && self.code().is_some_and(|code| code != UNAUTHORIZED)
    }

    /// The `_id` of a document has so many bytes that it can't be locked.
    pub(super) fn too_long(size: usize) -> Self {
        let message = format!("the `_id` has {size} bytes as BSON; it must have at most {ID_MOST} to be locked");
        Self {
            kind: Failure::Refused,
            source: Arc::new(io::Error::new(io::ErrorKind::InvalidInput, message)),
        }
    }

    /// The server's code for the error, where it is one of the server's.
    pub(crate) fn code(&self) -> Option<i32> {
        failure::code(self.source.downcast_ref()?)
    }

    /// The server's name for that code, where it has said it.
    pub(crate) fn code_name(&self) -> Option<&str> {
        failure::code_name(self.source.downcast_ref()?)
    }

    /// What went wrong, without the server's answer, which the driver's text has to the last byte.
    pub(crate) fn cause(&self) -> &dyn fmt::Display {
        match self.source.downcast_ref::<mongodb::error::Error>() {
            Some(error) => &error.kind,
            None => &self.source,
        }
    }

    /// The driver's error, or the error as one of the driver's.
    pub(crate) fn into_driver_error(self) -> mongodb::error::Error {
        let source = self.source.downcast_ref::<mongodb::error::Error>();
        source
            .cloned()
            .unwrap_or_else(|| mongodb::error::Error::custom(self.to_string()))
    }

    /// The runtime of the session has ended, and its tasks with it.
    pub(crate) fn runtime_ended() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NoRuntime::Ended),
        }
    }

    /// This process was forked from that of the session.
    pub(crate) fn forked() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NoRuntime::Forked),
        }
    }

    /// Nothing runs on the runtime of the session.
    pub(crate) fn stands_still() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NoRuntime::StandsStill),
        }
    }

    /// The task that ran the operation was stopped, as its runtime is shutting down; or it panicked, and then
    /// what became of the operation is not known.
    pub(crate) fn stopped(error: tokio::task::JoinError) -> Self {
        if error.is_cancelled() {
            return Self::runtime_ended();
        }
        Self {
            kind: if error.is_panic() {
                Failure::Unavailable
            } else {
                Failure::Refused
            },
            source: Arc::new(error),
        }
    }
}

impl From<mongodb::error::Error> for StoreError {
    fn from(error: mongodb::error::Error) -> Self {
        Self {
            kind: failure::failure(&error),
            source: Arc::new(error),
        }
    }
}

impl From<Malformed> for StoreError {
    fn from(malformed: Malformed) -> Self {
        Self {
            kind: Failure::Refused,
            source: if malformed.is_newer() {
                Arc::new(LaterProtocol(malformed))
            } else {
                Arc::new(NotALock(malformed))
            },
        }
    }
}

/// There was no answer for so long.
#[derive(Debug, thiserror::Error)]
#[error("no answer for {0:?}")]
struct Unanswered(Duration);

/// The session's tasks do not run.
#[derive(Debug, thiserror::Error)]
enum NoRuntime {
    #[error("the runtime on which this client was built or first used has ended")]
    Ended,
    #[error("this process was forked from the one in which this client was made: make another client in it")]
    Forked,
    #[error(
        "the runtime on which this client was first used stands still: nothing drives it, or its thread is blocked"
    )]
    StandsStill,
}

/// A document stands under the lock's name that is not the document of a lock; it is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the document of that name is not the document of a lock: {0}")]
struct NotALock(Malformed);

/// The document was written by a later version of this library; it is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the lock's document can't be used by this version: {0}")]
struct LaterProtocol(Malformed);

/// A simulated server did not get it done in the time that it was given.
#[cfg(test)]
#[derive(Debug, thiserror::Error)]
#[error("the server ran out of time")]
pub(super) struct OutOfTime;
