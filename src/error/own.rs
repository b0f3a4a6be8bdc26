//! How the library makes and classifies the errors of its operations.

use std::{sync::Arc, time::Duration};

use super::{
    BuildError, ServerError,
    cause::cause,
    failure::{self, Failure, UNAUTHORIZED},
};
use crate::{
    contention::rounded,
    protocol::document::{ID_MOST, Malformed},
};

impl ServerError {
    /// Reports whether asking again would bring the same answer.
    pub(crate) fn is_final(&self) -> bool {
        self.kind == Failure::Refused
    }

    /// Returns the error for an operation that was not answered in time.
    pub(crate) fn overdue() -> Self {
        Self::of_own(Failure::Unavailable, Own::Overdue)
    }

    /// Returns the driver's error of an operation on a lock: a duplicate key is a race for the lock's document.
    pub(crate) fn of_lock(error: mongodb::error::Error) -> Self {
        Self {
            kind: failure::failure(&error),
            source: Arc::new(error),
        }
    }

    fn of_own(kind: Failure, own: Own) -> Self {
        Self {
            kind,
            source: Arc::new(own),
        }
    }

    pub(super) fn own(&self) -> Option<&Own> {
        self.source.downcast_ref()
    }

    /// Returns the error for an operation that has not been answered so far: it may have been applied, or be applied
    /// yet.
    pub(crate) fn unanswered(for_long: Duration) -> Self {
        Self::of_own(Failure::Unavailable, Own::Unanswered(for_long))
    }

    /// Reports whether there was no answer in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.own(), Some(Own::Unanswered(_)))
    }

    /// Returns the error for an operation that shared a command with others, and was not done: nothing was written.
    pub(crate) fn not_done() -> Self {
        Self::of_own(Failure::Raced, Own::NotDone)
    }

    /// Returns the error for an operation that shared a command with others, and may have been done.
    pub(crate) fn unsaid() -> Self {
        Self::of_own(Failure::Raced, Own::Unsaid)
    }

    /// Reports whether the command is over and does not show whether the operation was done.
    pub(crate) fn is_unsaid(&self) -> bool {
        matches!(self.own(), Some(Own::Unsaid))
    }

    /// Reports whether the server said that it ran out of the time it was given.
    pub(crate) fn ran_out_of_time(&self) -> bool {
        self.driver().is_some_and(failure::ran_out_of_time)
    }

    /// Reports whether the document is not the document of a lock.
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self.own(), Some(Own::NotALock(_)))
    }

    /// Reports whether the document with this name is not a lock, or a lock of a later version.
    pub(crate) fn is_no_lock(&self) -> bool {
        matches!(self.own(), Some(Own::NotALock(_) | Own::LaterProtocol(_)))
    }

    /// Reports whether the session's tasks do not run, at least in this process.
    pub(crate) fn has_no_runtime(&self) -> bool {
        matches!(self.own(), Some(Own::RuntimeEnded | Own::Forked | Own::RuntimeStalled))
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
            || self.driver().is_some_and(failure::broke_off)
    }

    /// Reports whether the operation was not even sent: the driver found no server for as long as it is set to look for
    /// one.
    pub(crate) fn found_no_server(&self) -> bool {
        self.driver().is_some_and(failure::found_no_server)
    }

    /// Reports whether the server refused a write for a reason that may lie in the one document to be written, and not
    /// in a missing privilege or in the collection: InvalidOptions (as of a time series), InvalidNamespace,
    /// CommandNotSupportedOnView.
    pub(crate) fn may_concern_document(&self) -> bool {
        let concerns_all = |code| matches!(code, UNAUTHORIZED | 72 | 73 | 166);
        self.kind != Failure::Unavailable && self.code().is_some_and(|code| !concerns_all(code))
    }

    /// Returns the error for an `_id` that has too many bytes to be locked.
    pub(crate) fn too_long(size: usize) -> Self {
        Self::of_own(Failure::Refused, Own::TooLong(size))
    }

    /// Returns the reason why no client can be built over the server, as that of an operation.
    pub(crate) fn not_built(why: BuildError) -> Self {
        Self::of_own(Failure::Refused, Own::NotBuilt(why))
    }

    /// Returns the cause in a line, without the server's own text, which may have a value of the user's.
    pub(crate) fn cause(&self) -> String {
        cause(&*self.source)
    }

    /// Returns the error of commands during an outage of locks in memory.
    pub(crate) fn outage() -> Self {
        Self::of_own(Failure::Unavailable, Own::Outage)
    }

    /// Returns the error of a stream in memory whose reader fell behind, as where a server's log no longer reaches back
    /// to the last event.
    pub(crate) fn fell_behind() -> Self {
        Self::of_own(Failure::Refused, Own::FellBehind)
    }

    /// Returns the error for a session whose runtime, and with it its tasks, has ended.
    pub(crate) fn runtime_ended() -> Self {
        Self::of_own(Failure::Refused, Own::RuntimeEnded)
    }

    /// Returns the error for a process that was forked from the session's.
    pub(crate) fn forked() -> Self {
        Self::of_own(Failure::Refused, Own::Forked)
    }

    /// Returns the error for a session whose runtime is stalled.
    pub(crate) fn stands_still() -> Self {
        Self::of_own(Failure::Refused, Own::RuntimeStalled)
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

impl From<Malformed> for ServerError {
    fn from(malformed: Malformed) -> Self {
        let own = if malformed.is_newer() {
            Own::LaterProtocol(malformed)
        } else {
            Own::NotALock(malformed)
        };
        Self::of_own(Failure::Refused, own)
    }
}

/// The library's own errors, whose texts say it all.
#[derive(Debug, thiserror::Error)]
pub(super) enum Own {
    /// There was no answer for this long.
    #[error("the server did not answer for {}", rounded(*.0))]
    Unanswered(Duration),
    #[error("the server did not answer in time")]
    Overdue,
    #[error("the lock was not as a command for several locks expected it")]
    NotDone,
    #[error("a command for several locks does not show what became of this one")]
    Unsaid,
    /// The session's tasks do not run.
    #[error("the runtime on which this client was built or first used has ended")]
    RuntimeEnded,
    #[error("this process was forked from the one in which this client was made: build a new client in it")]
    Forked,
    #[error("the runtime on which this client was first used is stalled: nothing drives it, or its thread is blocked")]
    RuntimeStalled,
    /// A document under the lock's name that is not the document of a lock; it is left alone.
    #[error("the document with this name is not a lock: {0}")]
    NotALock(Malformed),
    /// A document that was written by a later version of this library; it is left alone.
    #[error("the lock's document can't be used by this version: {0}")]
    LaterProtocol(Malformed),
    /// The server or the collection does not suit a client that was built without looking.
    #[error(transparent)]
    NotBuilt(BuildError),
    #[error("the locks in memory have an outage")]
    Outage,
    #[error("the reader of a stream in memory fell too far behind")]
    FellBehind,
    /// An `_id` of this many bytes.
    #[error("the `_id` has {0} bytes as BSON; it must have at most {ID_MOST} to be locked")]
    TooLong(usize),
}
