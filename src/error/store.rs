//! The errors of stores, in the library's own words.

use std::{error::Error as StdError, fmt, io, sync::Arc, time::Duration};

use super::failure::{self, Failure, UNAUTHORIZED};
use crate::contention::rounded;
use crate::protocol::document::{ID_MOST, Malformed};

/// The reason why an operation failed.
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
        if let Some(silence) = self.source.downcast_ref::<Unanswered>() {
            return write!(f, "the server did not answer for {:?}", rounded(silence.0));
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
    /// Reports whether asking again would bring the same answer.
    pub(crate) fn is_final(&self) -> bool {
        self.kind == Failure::Refused
    }

    /// Returns the reason why a write of the user's own fields failed.
    pub(crate) fn of_users_write(error: mongodb::error::Error) -> Self {
        let error = Self::from(error);
        match error.kind {
            Failure::Raced => Self {
                kind: Failure::Refused,
                ..error
            },
            _ => error,
        }
    }

    /// Returns the error for an operation that was not answered in time.
    pub(crate) fn overdue() -> Self {
        let source = io::Error::new(io::ErrorKind::TimedOut, "no answer within the time of a lease");
        Self {
            kind: Failure::Unavailable,
            source: Arc::new(source),
        }
    }

    /// Returns the error for an operation that has not been answered so far: it may have been applied, or be applied
    /// yet.
    pub(crate) fn unanswered(for_long: Duration) -> Self {
        Self {
            kind: Failure::Unavailable,
            source: Arc::new(Unanswered(for_long)),
        }
    }

    /// Reports whether there was no answer in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.source.is::<Unanswered>()
    }

    /// Reports whether the server said that it ran out of the time it was given.
    pub(crate) fn ran_out_of_time(&self) -> bool {
        #[cfg(test)]
        if self.source.is::<OutOfTime>() {
            return true;
        }
        self.source.downcast_ref().is_some_and(failure::ran_out_of_time)
    }

    /// Reports whether the document is not the document of a lock.
    pub(crate) fn is_malformed(&self) -> bool {
        self.source.is::<NotALock>()
    }

    /// Reports whether the document with this name is not a lock, or a lock of a later version.
    pub(crate) fn is_no_lock(&self) -> bool {
        self.is_malformed() || self.source.is::<LaterProtocol>()
    }

    /// Reports whether the session's tasks do not run, at least in this process.
    pub(crate) fn has_no_runtime(&self) -> bool {
        self.source.is::<NoRuntime>()
    }

    /// Reports whether the server itself refused, and at once: not because it took too long (`MaxTimeMSExpired`).
    pub(crate) fn was_answered(&self) -> bool {
        self.code().is_some_and(|code| code != 50)
    }

    /// Reports whether the server is not the primary any more, is about to stop, or broke the connection: then it may
    /// be gone, and its streams with it.
    pub(crate) fn lost_primary(&self) -> bool {
        // ShutdownInProgress, PrimarySteppedDown, NotWritablePrimary, InterruptedAtShutdown,
        // InterruptedDueToReplStateChange, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        matches!(self.code(), Some(91 | 189 | 10107 | 11600 | 11602 | 13435 | 13436))
            || self.source.downcast_ref().is_some_and(failure::broke_off)
    }

    /// Reports whether the operation was not even sent: the driver found no server for as long as it is set to look for
    /// one.
    pub(crate) fn found_no_server(&self) -> bool {
        self.source.downcast_ref().is_some_and(failure::found_no_server)
    }

    /// Reports whether the server refused a write for a reason that may lie in the one document to be written, and not
    /// for a missing privilege.
    pub(crate) fn may_concern_document(&self) -> bool {
        self.kind != Failure::Unavailable && self.code().is_some_and(|code| code != UNAUTHORIZED)
    }

    /// Returns the error for an `_id` that has too many bytes to be locked.
    pub(crate) fn too_long(size: usize) -> Self {
        let message = format!("the `_id` has {size} bytes as BSON; it must have at most {ID_MOST} to be locked");
        Self {
            kind: Failure::Refused,
            source: Arc::new(io::Error::new(io::ErrorKind::InvalidInput, message)),
        }
    }

    /// Returns the server's code for the error, if it came from the server.
    pub(crate) fn code(&self) -> Option<i32> {
        failure::code(self.source.downcast_ref()?)
    }

    /// Returns the server's name for that code, if the server sent it.
    pub(crate) fn code_name(&self) -> Option<&str> {
        failure::code_name(self.source.downcast_ref()?)
    }

    /// Returns the cause without the server's answer, which the driver's text includes to the last byte.
    pub(crate) fn cause(&self) -> &dyn fmt::Display {
        match self.source.downcast_ref::<mongodb::error::Error>() {
            Some(error) => &error.kind,
            None => &self.source,
        }
    }

    /// Returns the driver's error, or this error wrapped as one of the driver's.
    pub(crate) fn into_driver_error(self) -> mongodb::error::Error {
        let source = self.source.downcast_ref::<mongodb::error::Error>();
        source
            .cloned()
            .unwrap_or_else(|| mongodb::error::Error::custom(self.to_string()))
    }

    /// Returns the error for a session whose runtime, and with it its tasks, has ended.
    pub(crate) fn runtime_ended() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NoRuntime::Ended),
        }
    }

    /// Returns the error for a process that was forked from the session's.
    pub(crate) fn forked() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NoRuntime::Forked),
        }
    }

    /// Returns the error for a session whose runtime is stalled.
    pub(crate) fn stands_still() -> Self {
        Self {
            kind: Failure::Refused,
            source: Arc::new(NoRuntime::StandsStill),
        }
    }

    /// Returns the error for an operation whose task was stopped because its runtime is shutting down, or panicked;
    /// after a panic the outcome of the operation is unknown.
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

/// A missing answer, and the time for which it has been missing.
#[derive(Debug, thiserror::Error)]
#[error("no answer for {0:?}")]
struct Unanswered(Duration);

/// The reason why the session's tasks do not run.
#[derive(Debug, thiserror::Error)]
enum NoRuntime {
    #[error("the runtime on which this client was built or first used has ended")]
    Ended,
    #[error("this process was forked from the one in which this client was made: build a new client in it")]
    Forked,
    #[error("the runtime on which this client was first used is stalled: nothing drives it, or its thread is blocked")]
    StandsStill,
}

/// A document under the lock's name that is not the document of a lock; it is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the document with this name is not a lock: {0}")]
struct NotALock(Malformed);

/// A document that was written by a later version of this library; it is left alone.
#[derive(Debug, thiserror::Error)]
#[error("the lock's document can't be used by this version: {0}")]
struct LaterProtocol(Malformed);

/// A simulated server's timeout.
#[cfg(test)]
#[derive(Debug, thiserror::Error)]
#[error("the server ran out of time")]
pub(crate) struct OutOfTime;
