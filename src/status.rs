//! How a hold stands.

use std::fmt;

/// How safe a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockStatus {
    /// Held, and renewals get through.
    Held,
    /// Held, but the last renewal failed or is overdue. Unless one gets through before
    /// [`safe_for`](crate::LockView::safe_for) is over, the lock will be lost.
    AtRisk,
    /// Lost, or released.
    Lost,
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "held",
            Self::AtRisk => "at risk",
            Self::Lost => "lost",
        })
    }
}

/// Why a lock is no longer held.
///
/// # Guarantees
///
/// A lost lock stays lost: it is never acquired again behind the holder's back. Acquire it anew to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal got through in time: the server was out of reach, or this process was frozen or starved.
    #[error("the lease ran out before it could be renewed")]
    Expired,
    /// Somebody broke the lock with `break_lock`.
    #[error("the lock was broken by an operator")]
    Broken,
    /// A later incarnation of this owner took the lock over: another client under the same
    /// [`owner_id`](crate::LockClientBuilder::owner_id).
    #[error("the lock was taken over by a later client of the same owner id")]
    Adopted,
    /// Another program changed the lock's document, and we are no longer among the holders.
    #[error("the lock's document was overwritten")]
    Overwritten,
    /// The lock's document, or its whole collection, was deleted; or the lock in a document of the user's own was.
    #[error("the lock's document was deleted")]
    Deleted,
    /// This process was forked from the one that holds the lock, which goes on holding it: here nothing renews or watches
    /// it.
    #[error("this process was forked from the one that holds the lock")]
    Forked,
    /// The lock was released, its handle dropped or its client shut down: what a view or a token of it tells those who
    /// still have one.
    #[error("the lock was released")]
    Released,
}

/// Which part of a [`MultiLock`](crate::MultiLock) is no longer held, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("`{name}` is lost: {reason}")]
#[non_exhaustive]
pub struct LostPart {
    /// The name of the lock.
    pub name: String,
    /// Why it was lost.
    pub reason: LostReason,
}
