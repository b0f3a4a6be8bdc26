//! Leases that pass from one task to the next of the same client.

use tokio::time::Instant;

use super::deadline::Deadline;

/// The lease of a hold, as another task of the client has it: the next one, or one beside it.
#[derive(Clone, Copy, Debug)]
pub struct Inheritance {
    pub deadline: Deadline,
    /// When the hold is due to be renewed.
    pub renew_at: Instant,
}

impl Inheritance {
    /// Whether it lasts, and needs no renewal now.
    pub(super) fn is_sound(self, now: Instant) -> bool {
        self.deadline.instant() > now && self.renew_at > now
    }
}
