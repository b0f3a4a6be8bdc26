//! Holds whose time is over here, and not yet at the server.
//!
//! A holder stops before the server gives its lock away, so its entry outlives the hold by the margins, and by as much as
//! somebody else has renewed it. Nothing here takes it out: the lock opens when the server's clock says so. The session
//! may meet the entry again until then, when a task asks for the lock, and must not take it for a request that was
//! applied late.

use tokio::time::Instant;

use super::{Effect, Hold, LeftAs, Step, Waitlist};
use crate::protocol::State;

/// A hold whose time was over here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Expired {
    pub(super) entry: String,
    pub(super) token: i64,
    /// When the server has ended it, unless it was renewed, and no answer or event is late any more.
    pub(super) forget_at: Instant,
}

impl<H: Hold> Step<'_, H> {
    /// Ends a hold, and leaves its entry to the server.
    pub(super) fn expire(&mut self, hold: &H, left_as: LeftAs) {
        let context = self.context;
        let entry = hold.entry().to_owned();
        let Some(held) = self.remove_hold(&entry) else {
            return;
        };
        // It may come once more, with another grant.
        self.leave_again(&entry, &held, left_as);
        self.effects.extend(held.tasks.into_iter().map(Effect::Gone));
        if self.closed {
            // Nothing of its own comes to this lock any more.
            return;
        }
        // The server ends it later by the margins and by the time that the grant was on its way: less than a lease.
        let late = held.lease.min(context.config.lease) + context.config.margin(held.lease);
        self.expired.push(Expired {
            entry,
            token: held.token,
            forget_at: context.now + late,
        });
    }
}

impl<H: Hold> Waitlist<H> {
    /// Forgets the holds that are over at the server by now.
    pub(super) fn forget_expired(&mut self, now: Instant) {
        self.expired.retain(|expired| expired.forget_at > now);
    }

    /// Forgets those that the document no longer has. One with a smaller token is older than the hold.
    pub(super) fn compare_expired(&mut self, state: &State) {
        self.expired.retain(|Expired { entry, token, .. }| {
            *token > state.token || state.holders.iter().any(|holder| holder.is_grant(entry, *token))
        });
    }

    /// Returns when the last of them is forgotten, so that nothing else keeps the waitlist in use.
    pub(super) fn forgets_at(&self) -> Option<Instant> {
        self.expired.iter().map(|expired| expired.forget_at).max()
    }

    /// Whether the time of this grant, or of a later one of the entry, was over here.
    pub(super) fn has_expired(&self, entry: &str, token: i64) -> bool {
        let mut expired = self.expired.iter();
        expired.any(|expired| expired.entry == entry && token <= expired.token)
    }

    /// Whether an entry that nothing here knows stays in a document that shows it, and the server ends it. Otherwise it
    /// is of a request that was applied late.
    pub(super) fn is_left_to_the_server(&self, entry: &str, state: &State) -> bool {
        let mut expired = self.expired.iter().filter(|expired| expired.entry == entry);
        // A document that is older than the grant shows how the entry was before it.
        if expired.any(|expired| expired.token > state.token) {
            return true;
        }
        let mut holders = state.holders.iter().filter(|holder| holder.id == entry);
        holders.any(|holder| {
            // An entry that was renewed has been a hold, even if it is not remembered any more.
            let granted_for = holder.lease.max(holder.claim);
            let is_renewed = holder.until > holder.since.plus_millis(granted_for);
            // The holder of a lock that is kept taken has released it.
            holder.is_kept() || is_renewed || self.has_expired(entry, holder.token)
        })
    }
}
