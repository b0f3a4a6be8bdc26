//! A hold as the tasks of a process have it.

use std::fmt;

use tokio::time::Instant;

use super::{Context, How};
use crate::{
    hold_options::Lease,
    protocol::{Kept, KeptUntil, Use},
};

/// A hold as one task has it, and the channels by which tasks and releases are answered: handles and senders in the
/// library, numbers in the model. The deadline is its holder's business.
pub trait Hold: Sized {
    /// The channel that answers a task.
    type Task: fmt::Debug;
    /// The channel that answers a release.
    type Release: fmt::Debug;

    /// Creates the hold of a grant of the lock `name` to an entry. `before`: a hold that the entry has, and that goes on
    /// or is shared.
    fn of_grant(name: &str, entry: &str, grant: &Grant, before: Option<&Self>, context: &Context<'_>) -> Self;

    /// Creates the hold that stays with the client when this one was released, with what is left of its lease.
    fn idle(&self, left: RemainingLease) -> Self;

    fn entry(&self) -> &str;

    fn used(&self) -> Use;

    /// Whether it is the same hold, and not only one of the same entry.
    fn is_same(&self, other: &Self) -> bool;

    /// Adds a handle, unless the hold is over or has another number of permits.
    fn enter(&self, permits: i64) -> bool;

    /// Notes that it goes back, as no task has come for it.
    fn given_back(&self);

    fn is_over(&self) -> bool;

    /// Whether its task knows that somebody waits for the lock.
    fn is_wanted(&self) -> bool;

    /// Returns the lease that the next task inherits, if the hold was released and its lease is in no doubt.
    fn released_lease(&self) -> Option<RemainingLease>;

    /// Returns the lease that another task shares, if the hold may be shared and its lease is in no doubt.
    fn shared_lease(&self) -> Option<RemainingLease>;

    /// Returns the state in which it leaves the lock.
    fn left_as(&self) -> LeftAs;
}

/// The lease of a hold, as another task of the client has it: the next one, or one beside it.
#[derive(Clone, Copy, Debug)]
pub struct RemainingLease {
    pub deadline: Instant,
    /// When the hold is due to be renewed.
    pub renew_at: Instant,
}

impl RemainingLease {
    /// Whether it lasts, and needs no renewal now.
    pub(super) fn is_sound(self, now: Instant) -> bool {
        self.deadline > now && self.renew_at > now
    }
}

/// The initial values of a new hold.
#[derive(Clone, Debug)]
pub struct Grant {
    pub token: i64,
    /// The token of its entry in the document: a smaller one, if the hold was handed on.
    pub granted_as: i64,
    pub used: Use,
    pub permits: u64,
    pub lease: Lease,
    pub how: How,
    pub deadline: Instant,
    /// `None`: not at all.
    pub renew_at: Option<Instant>,
}

/// The state in which an entry leaves the lock when it leaves the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum LeftAs {
    /// Free for whoever is next.
    #[default]
    Free,
    /// Taken for a while.
    Kept(Kept),
    /// Free, as its holder has held it for as long as it may.
    HeldTooLong,
}

impl LeftAs {
    pub(super) fn kept(&self) -> Option<&Kept> {
        match self {
            Self::Kept(kept) => Some(kept),
            Self::Free | Self::HeldTooLong => None,
        }
    }

    /// Whether the server ends it: the time of the hold is over here, and nobody has released it.
    pub(super) fn expires(&self) -> bool {
        self.kept().is_some_and(|kept| kept.until == KeptUntil::Expiry)
    }
}
