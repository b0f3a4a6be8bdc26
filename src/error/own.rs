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
        Own::Overdue.into()
    }

    /// Returns the driver's error of an operation on a lock: a duplicate key is a race for the lock's document.
    pub(crate) fn of_lock(error: mongodb::error::Error) -> Self {
        Self {
            kind: failure::failure(&error),
            source: Arc::new(error),
        }
    }

    pub(super) fn own(&self) -> Option<&Own> {
        self.source.downcast_ref()
    }

    /// Returns the error for an operation that has not been answered so far: it may have been applied, or be applied
    /// yet.
    pub(crate) fn unanswered(for_long: Duration) -> Self {
        Own::Unanswered(for_long).into()
    }

    /// Reports whether there was no answer in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.own(), Some(Own::Unanswered(_)))
    }

    /// Returns the error for an operation that shared a command with others, and may have been done.
    pub(crate) fn unsaid() -> Self {
        Own::Unsaid.into()
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
        matches!(self.own(), Some(Own::NoLock(malformed)) if !malformed.is_newer())
    }

    /// Reports whether the document with this name is not a lock, or a lock of a later version.
    pub(crate) fn is_no_lock(&self) -> bool {
        matches!(self.own(), Some(Own::NoLock(_)))
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

    /// Returns the cause in a line, without the server's own text, which may have a value of the user's.
    pub(crate) fn cause(&self) -> String {
        cause(&*self.source)
    }

    /// Returns the error for a session whose runtime, and with it its tasks, has ended.
    pub(crate) fn runtime_ended() -> Self {
        Own::RuntimeEnded.into()
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
        Own::NoLock(malformed).into()
    }
}

impl From<Own> for ServerError {
    fn from(own: Own) -> Self {
        let kind = match own {
            Own::NotDone | Own::Unsaid => Failure::Raced,
            Own::Unanswered(_) | Own::Overdue | Own::Unshown | Own::Panicked | Own::Outage => Failure::Unavailable,
            _ => Failure::Refused,
        };
        let source = Arc::new(own);
        Self { kind, source }
    }
}

const LATER: &str = "the lock's document can't be used by this version";
const NO_LOCK: &str = "the document with this name is not a lock";

/// The library's own errors, whose texts say it all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Own {
    /// There was no answer for this long.
    #[error("the server did not answer for {}", rounded(*.0))]
    Unanswered(Duration),
    #[error("the server did not answer in time")]
    Overdue,
    /// An earlier try may have been applied.
    #[error("the answer to an earlier try was lost, and the lock does not show what became of it")]
    Unshown,
    #[error("a panic in the driver, or in a handler of its events")]
    Panicked,
    /// An operation that shared a command with others was not done: nothing was written.
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
    /// A document under the lock's name that is not a lock, or is one of a later version of this library. It is left
    /// alone.
    #[error("{of_it}: {0}", of_it = if .0.is_newer() { LATER } else { NO_LOCK })]
    NoLock(Malformed),
    /// The server or the collection does not suit a client that was built without looking.
    #[error(transparent)]
    NotBuilt(BuildError),
    #[error("the locks in memory have an outage")]
    Outage,
    /// As where a server's log no longer reaches back to the last event.
    #[error("the reader of a stream in memory fell too far behind")]
    FellBehind,
    /// An `_id` of this many bytes.
    #[error("the `_id` has {0} bytes as BSON; it must have at most {ID_MOST} to be locked")]
    TooLong(usize),
}
