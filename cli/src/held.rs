//! The hold that a command runs under: a lock, several locks, the lead in an election, or a job.

use std::collections::BTreeMap;

use watchlock::{
    FencingToken, LostReason, Released,
    errors::HoldError,
    locks::{MultiLock, Once},
};

#[derive(Debug)]
pub(crate) enum Held {
    /// A lock, or the lead in an election.
    Lock(watchlock::Held),
    Locks(watchlock::Held<MultiLock>),
    /// A command that runs once in a period.
    Job(watchlock::Held<Once>),
}

impl Held {
    /// Returns the name for messages; for several locks, the lost one or all of them.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Lock(handle) => handle.name().to_owned(),
            Self::Job(job) => job.name().to_owned(),
            Self::Locks(handle) => match handle.check() {
                Err(lost) => lost.name,
                Ok(()) => {
                    let names: Vec<&str> = handle.tokens().map(|(name, _)| name).collect();
                    names.join("`, `")
                }
            },
        }
    }

    /// Returns the fencing token of the lock with this name; each has one of its own.
    pub(crate) fn token(&self, name: &str) -> Option<FencingToken> {
        match self {
            Self::Lock(handle) => Some(handle.token()),
            Self::Job(job) => Some(job.token()),
            Self::Locks(handle) => handle.token_of(name),
        }
    }

    /// Returns the names and tokens of several locks; `None` for one.
    pub(crate) fn tokens(&self) -> Option<BTreeMap<&str, i64>> {
        match self {
            Self::Locks(handle) => Some(handle.tokens().map(|(name, token)| (name, token.as_i64())).collect()),
            Self::Lock(_) | Self::Job(_) => None,
        }
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match self {
            Self::Lock(handle) => handle.lost_reason(),
            Self::Job(job) => job.lost_reason(),
            Self::Locks(handle) => handle.lost_reason(),
        }
    }

    pub(crate) async fn lost(&self) -> LostReason {
        let lost = match self {
            Self::Lock(handle) => handle.lost().await,
            Self::Job(job) => job.lost().await,
            Self::Locks(handle) => handle.lost().await,
        };
        lost.reason
    }

    /// Waits until somebody waits for it.
    pub(crate) async fn wanted(&self) {
        match self {
            Self::Lock(handle) => handle.wanted().await,
            Self::Job(job) => job.wanted().await,
            Self::Locks(handle) => handle.wanted().await,
        }
    }

    /// Asks the server whether it is still held. If it is not, it is lost afterwards; without an answer, the lease
    /// decides.
    pub(crate) async fn look(&self) {
        // The error is in the reason of the loss.
        drop(match self {
            Self::Lock(handle) => handle.renew().await,
            Self::Job(job) => job.renew().await,
            Self::Locks(handle) => handle.renew().await,
        });
    }

    /// Gives it back. A job that is done leaves its lock taken until the period is over.
    pub(crate) async fn release(self, done: bool) -> Result<Released, HoldError> {
        match self {
            Self::Lock(handle) => handle.release().await,
            Self::Locks(handle) => handle.release().await,
            Self::Job(job) if done => job.done().await,
            Self::Job(job) => job.release().await,
        }
    }
}
