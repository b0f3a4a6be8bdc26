//! The state of a hold.

use std::fmt;

pub use watchlock_core::lost_reason::LostReason;

use crate::{token::FencingToken, truncated_debug::shown_in_a_line};

/// The safety of a held lock, from the most to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LockStatus {
    /// Held, and renewals get through.
    Held,
    /// Held and renewed, but for longer than the [limit](crate::LockClientBuilder::warn_after) that was set for it.
    HeldTooLong,
    /// Held, but the last renewal failed or was not answered in time. Unless one gets through before
    /// [`safe_for`](crate::View::safe_for) is over, the lock will be lost.
    AtRisk,
    /// Lost, or released.
    Lost,
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

/// The lock that is no longer held, and why. Of a [`MultiLock`](crate::locks::MultiLock), the part.
///
/// It is an error, and equal to its [`reason`](Self::reason), so that `lost == LostReason::Broken` can be asked.
#[derive(Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error(
    "`{}` is {}: {reason}",
    shown_in_a_line(name),
    if *reason == LostReason::Released { "no longer held" } else { "lost" }
)]
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
