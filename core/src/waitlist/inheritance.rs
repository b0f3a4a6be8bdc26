//! Leases that pass from one task to the next of the same client.

use tokio::time::Instant;

use super::deadline::Deadline;

/// The lease of a hold, as its holder leaves it to the next task.
#[derive(Clone, Copy, Debug)]
pub struct Inheritance {
    pub deadline: Deadline,
    /// When the hold is due to be renewed.
    pub renew_at: Instant,
}
