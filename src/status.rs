//! The state of a hold.

use std::{error::Error, fmt};

use crate::{brief::shown, token::FencingToken};

/// The safety of a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockStatus {
    /// Held, and renewals get through.
    Held,
    /// Held, but the last renewal failed or was not answered in time. Unless one gets through before
    /// [`safe_for`](crate::LockView::safe_for) is over, the lock will be lost.
    AtRisk,
    /// Held and renewed, but for longer than the [maximum](crate::LockClientBuilder::max_hold) that was set for it.
    HeldTooLong,
    /// Lost, or released.
    Lost,
}

impl LockStatus {
    /// Returns the status of two locks that are held together: that of the less safe one.
    pub(crate) fn worse(self, other: Self) -> Self {
        let rank = |status| match status {
            Self::Held => 0,
            Self::HeldTooLong => 1,
            Self::AtRisk => 2,
            Self::Lost => 3,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "held",
            Self::AtRisk => "at risk",
            Self::HeldTooLong => "held too long",
            Self::Lost => "lost",
        })
    }
}

/// The reason why a lock is no longer held.
///
/// # Guarantees
///
/// A lost lock stays lost: it is never acquired again behind the holder's back. Acquire it again to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal got through in time: the server was out of reach, or this process was frozen or starved. So it is
    /// where a process thaws after its lease, whatever has happened to the lock since.
    Expired,
    /// The time of a hold of [fixed](crate::Acquire::fixed) length is over.
    Elapsed,
    /// Somebody broke the lock with `break_lock`.
    Broken,
    /// A later incarnation of this owner took the lock over: another client with the same
    /// [`owner_id`](crate::LockClientBuilder::owner_id).
    Adopted,
    /// Another program changed the lock's document, and we are no longer among the holders.
    Overwritten,
    /// The lock's document or its whole collection was deleted, or the lock was deleted from a document of the user's
    /// own.
    Deleted,
    /// The lock was held for its [maximum time](crate::LockClientBuilder::lose_after).
    HeldTooLong,
    /// This process was forked from the one that holds the lock and goes on holding it: nothing renews or watches the
    /// lock here.
    Forked,
    /// The lock was released, its handle dropped or its client shut down: the reason reported by views and tokens that
    /// outlive it.
    Released,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out before it could be renewed",
            Self::Elapsed => "the fixed time of the hold is over",
            Self::Broken => "the lock was broken by an operator",
            Self::Adopted => "the lock was taken over by a later client with the same owner id",
            Self::Overwritten => "the lock's document was overwritten",
            Self::Deleted => "the lock's document was deleted",
            Self::HeldTooLong => "the lock was held for too long",
            Self::Forked => "this process was forked from the one that holds the lock",
            Self::Released => "the lock was released",
        })
    }
}

/// The lock that is no longer held, and why. Of a [`MultiLock`](crate::MultiLock), the part.
///
/// It is an error, and equal to its [`reason`](Self::reason), so that `lost == LostReason::Broken` can be asked.
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Lost {
    /// The name of the lock.
    pub name: String,
    /// The fencing token of the hold.
    pub token: FencingToken,
    /// The reason of the loss.
    pub reason: LostReason,
}

impl PartialEq<LostReason> for Lost {
    fn eq(&self, reason: &LostReason) -> bool {
        self.reason == *reason
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, reason) = (shown(self.name.escape_debug()), self.reason);
        match reason {
            LostReason::Released => write!(f, "`{name}` is no longer held: {reason}"),
            _ => write!(f, "`{name}` is lost: {reason}"),
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lost").field(&format_args!("{self}")).finish()
    }
}

impl Error for Lost {}
