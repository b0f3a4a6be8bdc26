//! The lease of one hold, from its holder's side: up to when it surely lasts, and when it is renewed next.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    backoff::{FIRST_PAUSE, LONGEST_PAUSE},
    hold_options::Lease,
    waitlist::{Grant, RemainingLease},
};

/// Part of the time left after which a renewal is repeated that was not answered. So there are many more before the
/// deadline, whatever the lease, and a slow server is not made slower by them.
pub(in crate::session) const REPEATED_AFTER: u32 = 6;

/// The deadline of a hold, with what became of its renewals so far.
#[derive(Debug)]
pub(crate) struct Upkeep {
    /// The lease that a renewal gives.
    pub(in crate::session) lease: Lease,
    deadline: Instant,
    /// `None`: nobody renews it.
    renew_at: Option<Instant>,
    /// Whether its lease is longer than that of the grant.
    lengthened: bool,
    /// The number of the last renewal that showed that no task has it, or that its task waits, for itself or for the hold
    /// before it. Until a later one is acknowledged, each shows whether that is so.
    pub(in crate::session) shown_by: Option<i64>,
    /// When its renewal is overdue, unless one is acknowledged before.
    overdue_at: Option<Instant>,
    /// When the last renewal was sent, while it is not answered.
    under_way: Option<Instant>,
    /// Whether the server refused the last renewal.
    refused: bool,
    /// Whether the last renewal failed or has not been answered in time.
    pub(super) failing: bool,
    /// When the hold was made part of a transaction that may not have ended yet: as long as that is open, renewals are not
    /// answered.
    pub(in crate::session) guarded_at: Option<Instant>,
}

impl Upkeep {
    pub(super) fn new(grant: &Grant) -> Self {
        let mut upkeep = Self {
            lease: grant.lease,
            deadline: grant.deadline,
            renew_at: None,
            lengthened: false,
            shown_by: None,
            overdue_at: None,
            under_way: None,
            refused: false,
            failing: false,
            guarded_at: None,
        };
        upkeep.plan(grant.renew_at);
        upkeep
    }

    /// Plans the next renewal. It is overdue when the one after it would be due, and while half of the time is left
    /// that it had.
    fn plan(&mut self, renew_at: Option<Instant>) {
        self.renew_at = renew_at;
        self.overdue_at = renew_at.map(|due_at| {
            let half = self.left(due_at) / 2;
            due_at + self.lease.interval.map_or(half, |interval| interval.min(half))
        });
    }

    /// Notes that renewals give more time from now on. No other task inherits such a lease.
    pub(in crate::session) fn lengthen(&mut self, lease: Lease) {
        if lease.length > self.lease.length {
            (self.lease, self.lengthened) = (lease, true);
        }
    }

    pub(in crate::session) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn renew_at(&self) -> Option<Instant> {
        self.renew_at
    }

    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.overdue_at
    }

    /// Whether a renewal goes apart from those of holds that are well.
    pub(super) fn goes_apart(&self) -> bool {
        self.under_way.is_some() || self.refused || self.guarded_at.is_some()
    }

    /// Returns from when on a renewal does not wait for its turn.
    pub(super) fn urgent_at(&self) -> Instant {
        let deadline = self.deadline();
        deadline.checked_sub(self.lease.urgent_below).unwrap_or(deadline)
    }

    /// Returns the lease that another task takes over, unless it is in doubt: something about it has failed or is on
    /// its way, or a transaction hangs on it.
    pub(super) fn released_lease(&self) -> Option<RemainingLease> {
        let is_certain = !self.failing && !self.refused && self.under_way.is_none() && self.guarded_at.is_none();
        let is_certain = is_certain && !self.lengthened;
        let renew_at = self.renew_at.filter(|_| is_certain)?;
        let deadline = self.deadline;
        Some(RemainingLease { deadline, renew_at })
    }

    fn left(&self, now: Instant) -> Duration {
        self.deadline().saturating_duration_since(now)
    }

    /// Returns the pause before a renewal that is sent now is repeated.
    pub(in crate::session) fn pause(&self, now: Instant) -> Duration {
        (self.left(now) / REPEATED_AFTER).max(FIRST_PAUSE)
    }

    /// Notes that a renewal is sent; without an answer another goes out beside it at `again`.
    pub(in crate::session) fn sent(&mut self, sent: Instant, again: Instant) {
        // This one goes out beside another.
        self.failing |= self.under_way.is_some();
        self.under_way = Some(sent);
        self.renew_at = Some(again);
    }

    /// Notes that a renewal that was sent at `sent` was acknowledged, and that the server's clock was not set ahead since. A
    /// lost hold stays lost.
    ///
    /// It wakes no task: one that waits for the loss looks again at the deadline that it knows of.
    pub(in crate::session) fn acknowledged(&mut self, deadline: Instant, sent: Instant) {
        // Renewals overtake each other.
        if deadline <= self.deadline {
            return;
        }
        self.deadline = deadline;
        (self.under_way, self.refused) = (None, false);
        self.plan(self.lease.next_renewal(sent));
        self.failing = false;
    }

    /// Notes that a renewal that shows what is so was acknowledged. One with a smaller number that is applied later shows
    /// nothing.
    pub(in crate::session) fn showed(&mut self, number: i64) {
        self.shown_by = self.shown_by.filter(|last| *last >= number);
    }

    /// Notes that the renewal that was sent at `sent` failed, unless another has gone out since: not a loss, as long as
    /// the deadline is ahead. It is repeated a second later at the latest.
    pub(in crate::session) fn failed(&mut self, sent: Instant, answered: bool, now: Instant) {
        // A fixed hold whose grant is confirmed needs no more of them.
        let Some(renew_at) = self.renew_at.filter(|_| self.under_way == Some(sent)) else {
            return;
        };
        self.failing = true;
        self.under_way = self.under_way.filter(|_| !answered);
        self.renew_at = Some(renew_at.min(now + self.pause(now).min(LONGEST_PAUSE)));
    }

    /// Notes that the server refused to renew the hold, which is tried again halfway to the deadline. Returns whether that
    /// is new.
    pub(in crate::session) fn refused(&mut self, now: Instant) -> bool {
        // As above.
        if self.renew_at.is_none() {
            return false;
        }
        self.failing = true;
        // A refusal is reported by itself.
        (self.under_way, self.overdue_at) = (None, None);
        self.renew_at = Some(now + (self.left(now) / 2).max(FIRST_PAUSE));
        !std::mem::replace(&mut self.refused, true)
    }

    /// Brings the deadline forward by as much as the server's clock was set ahead, and has the hold renewed at once by that
    /// clock. A clock that goes back gives nothing back: by two clocks that answer in turn holds are lost.
    pub(in crate::session) fn shorten(&mut self, by: Duration, now: Instant) {
        self.deadline = self.deadline.checked_sub(by).unwrap_or(now);
        if self.lease.interval.is_some() {
            self.failing = true;
            self.plan(Some(now));
        }
    }

    /// Notes that a renewal sent at that time was answered, so no transaction from before it is open any more.
    pub(in crate::session) fn no_transaction_before(&mut self, sent: Instant) {
        self.guarded_at = self.guarded_at.filter(|guarded_at| *guarded_at >= sent);
    }
}
