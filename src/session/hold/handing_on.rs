//! The hold as the waitlist has it: what goes on from one task to the next, and what is left of it.

use tokio::{sync::oneshot, time::Instant};

use super::{AcquireOutcome, Hold, HoldState, ReleaseOutcome, Reported, WORTH_A_COMMAND};
use crate::{
    config::Limits,
    hold_options::Lease,
    protocol::{Kept, KeptUntil, Use},
    status::LostReason,
    waitlist::{self, Context, Grant, How, LeftAs, RemainingLease, idling},
};

impl waitlist::Hold for Hold {
    type Task = oneshot::Sender<AcquireOutcome>;
    type Release = oneshot::Sender<ReleaseOutcome>;

    /// A hold whose document shows it as idle is shown as held again, unless it is over before that.
    fn of_grant(name: &str, entry: &str, grant: &Grant, before: Option<&Self>, context: &Context<'_>) -> Self {
        let mut hold = Self::new(entry.to_owned(), name.to_owned(), grant);
        hold.label = context.config.label(name);
        if let Some(before) = before {
            hold.logged_by = before.logged_by.clone();
            let (before, mut upkeep) = (before.upkeep(), hold.upkeep());
            if before.shown_idle {
                upkeep.show_held(context.now + WORTH_A_COMMAND);
            }
            upkeep.shown_awaiting = before.shown_awaiting;
        }
        hold
    }

    /// The hold is renewed as often as its document is to be read, it has no limits, and observers never hear of it.
    fn idle(&self, inherited: RemainingLease) -> Self {
        let RemainingLease { deadline, renew_at } = inherited;
        let renew_at = renew_at.min(Instant::now() + idling::IDLE_LOOK_EVERY);
        let interval = self
            .lease
            .interval
            .map(|interval| interval.min(idling::IDLE_LOOK_EVERY));
        let limits = Limits::default();
        let grant = Grant {
            token: self.token.as_i64(),
            granted_as: self.granted_as,
            used: self.used,
            permits: self.permits(),
            lease: Lease {
                interval,
                limits,
                ..self.lease
            },
            how: How::Local,
            deadline,
            renew_at: Some(renew_at),
        };
        let hold = Self::new(self.id.clone(), self.name.clone(), &grant);
        hold.state().reported = Reported::Over;
        // The hold that must be shown as held may not have been shown so.
        {
            let (before, mut upkeep) = (self.upkeep(), hold.upkeep());
            upkeep.is_idle = true;
            (upkeep.shown_idle, upkeep.shown_awaiting) = (before.shown_idle, before.shown_awaiting);
        }
        Self {
            is_idle: true,
            since: self.since,
            logged_by: self.logged_by.clone(),
            ..hold
        }
    }

    fn entry(&self) -> &str {
        &self.id
    }

    fn used(&self) -> Use {
        self.used
    }

    fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Decided under the same mutex as its loss and the end of its last handle: a hold that is over is never entered
    /// again.
    fn enter(&self, permits: i64) -> bool {
        if self.look().is_err() {
            return false;
        }
        let mut state = self.state();
        let held = state.lost.is_none() && !state.detaching && u64::try_from(permits) == Ok(state.permits);
        state.handles += usize::from(held);
        held
    }

    fn given_back(&self) {
        self.exit();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.initialized()
    }

    fn is_over(&self) -> bool {
        self.lost_reason().is_some()
    }

    /// Nor was the hold downgraded: others may hold the lock beside it.
    fn released_lease(&self) -> Option<RemainingLease> {
        let state = self.state();
        let whole = u64::try_from(self.used.1).is_ok_and(|capacity| capacity == state.permits);
        let released = state.lost == Some(LostReason::Released);
        self.upkeep()
            .released_lease()
            .filter(|_| whole && released && state.is_plain())
    }

    /// The hold is not held too long either.
    fn shared_lease(&self) -> Option<RemainingLease> {
        self.look().ok().filter(|_| !self.is_held_too_long())?;
        let state = self.state();
        let goes_on = state.lost.is_none() && state.is_plain();
        self.upkeep().released_lease().filter(|_| goes_on)
    }

    fn left_as(&self) -> LeftAs {
        let state = self.state();
        let kept = |until| {
            let (id, token) = (self.id.clone(), self.granted_as);
            LeftAs::Kept(Kept { id, token, until })
        };
        match (state.lost, state.kept) {
            (Some(LostReason::Released | LostReason::HeldTooLong), Some(until)) => kept(until),
            // Nobody has lost anything with it.
            _ if self.is_idle => LeftAs::Free,
            // Its own time is not over.
            (Some(LostReason::Expired | LostReason::Elapsed), _) if state.reader_over_at.is_some() => LeftAs::Free,
            // Its time ends earlier here than at the server, and somebody else may have renewed it.
            (Some(LostReason::Expired | LostReason::Elapsed), _) => kept(KeptUntil::Expiry),
            (Some(LostReason::HeldTooLong), _) => LeftAs::HeldTooLong,
            // Released, or its entry is gone from the document already.
            _ => LeftAs::Free,
        }
    }
}

impl HoldState {
    /// Whether the release frees the lock and leaves the document.
    fn is_plain(&self) -> bool {
        self.kept.is_none() && self.deleting == 0 && !self.detaching
    }
}
