//! Holds whose time is over here, and not yet at the server.
//!
//! A holder stops before the server gives its lock away, so its entry outlives the hold by the margins, and by as much as
//! somebody else has renewed it. Nothing here takes it out: the lock opens when the server's clock says so. The session
//! may meet the entry again until then, when a task asks for the lock, and must not take it for a request that was
//! applied late.

use tokio::time::Instant;

use super::{Context, Waitlist};
use crate::protocol::{Holder, State};

/// A hold whose time was over here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Expired {
    pub(super) entry: String,
    pub(super) token: i64,
    /// When the server has ended it, as far as this client has renewed it.
    pub(super) forget_at: Instant,
}

impl Waitlist {
    /// Ends a hold, and leaves its entry to the server.
    pub(super) fn expire(&mut self, entry: &str, context: &Context<'_>) {
        let Some(held) = self.holds.remove(entry) else { return };
        self.expired.push(Expired {
            entry: entry.to_owned(),
            token: held.token,
            // All renewals of this client came before now.
            forget_at: context.now + held.lease + context.config.margin(held.lease),
        });
    }

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

    /// Whether the time of this grant was over here.
    pub(super) fn has_expired(&self, entry: &str, token: i64) -> bool {
        let mut expired = self.expired.iter();
        expired.any(|expired| (expired.entry.as_str(), expired.token) == (entry, token))
    }

    /// Whether the server ends the entry of a holder that nothing here holds: its hold was released and is kept taken, or
    /// it was over here, which is remembered or shown by a renewal. A request that was applied late is never renewed.
    pub(super) fn is_left_to_the_server(&self, holder: &Holder) -> bool {
        let granted_for = holder.lease.max(holder.claim);
        let is_renewed = holder.until > holder.since.plus_millis(granted_for);
        holder.is_kept() || is_renewed || self.has_expired(&holder.id, holder.token)
    }
}
