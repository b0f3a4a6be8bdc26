//! Leases that pass from one task to the next of the same client.

use tokio::time::Instant;

use super::deadline::Deadline;

/// The lease of a hold, as its holder leaves it to the next task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inheritance {
    pub(crate) deadline: Deadline,
    /// When the hold is due to be renewed.
    pub(crate) renew_at: Instant,
}
