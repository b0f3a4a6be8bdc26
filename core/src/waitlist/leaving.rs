//! The entries that are to leave the document.

use std::time::Duration;

use tokio::time::Instant;

use super::{Context, LeftAs};
use crate::protocol::Use;

/// An entry that is to leave the document.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaving<R> {
    pub(super) entry: String,
    /// The use of the lock by this entry, if that is known.
    pub(super) used: Option<Use>,
    /// The state in which it leaves the lock.
    pub(super) left_as: LeftAs,
    /// The channel of the release that awaits the answer.
    pub(super) release: Option<R>,
    /// Whether it may be a holder, so that its going can let others in.
    pub(super) may_hold: bool,
    /// Whether an earlier try may have been applied, so that not finding the entry is no surprise.
    pub(super) repeated: bool,
    pub(super) not_before: Instant,
    /// When the entry is left to the server's expiry.
    pub(super) give_up: Instant,
    /// The number of sweeps so far, if there are any to be.
    pub(super) sweep: Option<usize>,
}

impl<R> Leaving<R> {
    /// Creates a leave of a waiting entry whose request came to its end.
    pub(super) fn new(entry: String, context: &Context<'_>) -> Self {
        Self {
            entry,
            used: None,
            left_as: LeftAs::Free,
            release: None,
            may_hold: false,
            repeated: false,
            not_before: context.now,
            give_up: context.now + context.config.lease,
            sweep: None,
        }
    }

    pub(super) fn used_as(self, used: Use) -> Self {
        let used = Some(used);
        Self { used, ..self }
    }

    pub(super) fn holding(self) -> Self {
        let may_hold = true;
        Self { may_hold, ..self }
    }

    pub(super) fn left_as(self, left_as: LeftAs) -> Self {
        Self { left_as, ..self }
    }

    /// Goes on for as long as the entry can be live.
    pub(super) fn of_lease(self, lease: Duration, context: &Context<'_>) -> Self {
        let give_up = self.give_up.max(context.now + lease);
        Self { give_up, ..self }
    }

    pub(super) fn answering(self, release: Option<R>) -> Self {
        Self { release, ..self }
    }

    /// Whether it is a holder whose request came to its end, and which leaves for the first time and for good.
    pub(super) fn is_plain_release(&self) -> bool {
        self.may_hold && !self.repeated && self.sweep.is_none() && self.left_as.kept().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::waitlist::fixtures::in_context;

    #[tokio::test(start_paused = true)]
    async fn an_entry_leaves_for_as_long_as_its_lease_or_the_clients_can_run() {
        in_context(|context| {
            let given_up_after = |seconds| {
                let leaving =
                    Leaving::<u64>::new("me-1".to_owned(), context).of_lease(Duration::from_secs(seconds), context);
                (leaving.give_up - context.now).as_secs()
            };
            assert_eq!([1, 30, 90].map(given_up_after), [30, 30, 90]);
        });
    }
}
