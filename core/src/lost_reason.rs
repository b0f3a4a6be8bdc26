//! The reasons for which a hold is lost.

// `watchlock` has it in its public face.
#![warn(missing_docs)]

use std::fmt;

use crate::protocol::State;

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
    /// The time of a hold of fixed length is over.
    Elapsed,
    /// Somebody broke the lock with `break_lock`. The lock does not show who: the log of that client does, by the event
    /// `watchlock.broke`.
    Broken,
    /// A later incarnation of this owner took the lock over: another client with the same
    /// `owner_id`.
    Adopted,
    /// We are no longer among the holders in the lock's document, as another program changed it, or as far as a release
    /// finds out.
    Overwritten,
    /// The lock's document or its whole collection was deleted, or the lock was deleted from a document of the user's
    /// own.
    Deleted,
    /// The lock was held for its maximum time (`lose_after`).
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

/// Returns why the holder that had this token is missing in a lock.
pub fn of_absence(state: &State, token: i64) -> LostReason {
    if state.adopted.contains(&token) {
        LostReason::Adopted
    } else if state.was_broken(token) {
        LostReason::Broken
    } else {
        LostReason::Overwritten
    }
}

/// Returns the name by which telemetry knows it.
pub fn name(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::Elapsed => "elapsed",
        LostReason::Broken => "broken",
        LostReason::Adopted => "adopted",
        LostReason::Overwritten => "overwritten",
        LostReason::Deleted => "deleted",
        LostReason::HeldTooLong => "held_too_long",
        LostReason::Forked => "forked",
        LostReason::Released => "released",
    }
}
