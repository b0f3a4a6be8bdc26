//! The tasks that wait: what each demands, and how far its request has come.

use tokio::time::Instant;

use super::{How, Key};
use crate::{
    config::Config,
    hold_options::{Lease, Terms},
    protocol::{CapacityIs, Owner, Use},
};

/// The demand of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireOptions {
    pub used: Use,
    pub by: CapacityIs,
    pub permits: i64,
    pub patience: Patience,
    /// Whether a hold of this client with the same use will do.
    pub reentrant: bool,
    /// The entry of the hold that is to become a writer's: the task comes before all others in line.
    pub upgrades: Option<String>,
    pub terms: Terms,
    pub owner: Owner,
}

/// A task that wants the lock.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting<T> {
    pub key: Key,
    /// The channel that answers it.
    pub(super) to: T,
    /// Its entry in the document.
    pub entry: String,
    pub wants: AcquireOptions,
    /// The lease of its entry, and of the hold that it is granted.
    pub(super) lease: Lease,
    pub since: Instant,
    pub(super) stage: Stage,
    /// The last token that had been issued when the entry was seen in the queue: its own will be larger.
    pub(super) above: i64,
    /// The capacity of the lock when it was last seen by a request: that of a semaphore is its own.
    pub(super) capacity: i64,
    /// Whether a request for it may have been applied, or may still be.
    pub(super) uncertain: bool,
    /// Whether the operation that is on its way was sent after the task came: to a try its answer is an answer.
    pub(super) covered: bool,
    /// Whether such an operation has failed.
    pub(super) let_down: bool,
    /// The way in which a grant would come that arrives now.
    pub(super) how: How,
}

/// The time that a task stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Until its turn comes.
    Wait,
    /// Not at all: it takes the lock at once or not.
    Try,
}

/// The progress of a task's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Nothing was sent.
    New,
    /// A request was sent.
    Asked,
    /// The server's queue has the entry, as far as we know.
    Queued,
}

impl<T> Waiting<T> {
    pub(super) fn new(key: Key, to: T, entry: String, wants: AcquireOptions, since: Instant, config: &Config) -> Self {
        Self {
            key,
            to,
            entry,
            capacity: wants.used.1,
            lease: wants.terms.lease(config),
            wants,
            since,
            stage: Stage::New,
            above: 0,
            uncertain: false,
            covered: false,
            let_down: false,
            how: How::AtOnce,
        }
    }

    pub fn waits(&self) -> bool {
        self.wants.patience == Patience::Wait
    }

    pub(super) fn upgrades(&self) -> bool {
        self.wants.upgrades.is_some()
    }

    pub(super) fn is_queued(&self) -> bool {
        self.stage == Stage::Queued
    }

    /// Whether it is a try that the answer on its way decides.
    pub(super) fn is_covered_try(&self) -> bool {
        !self.waits() && self.covered
    }
}
