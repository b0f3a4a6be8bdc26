//! The times in which a line expects no event, so that its client need not ask for any.
//!
//! The server wakes a waiting `getMore` for every write of the whole replica set, and checks each write of a lock for
//! whether it concerns this client. When many clients take one lock in turn, that is most of the cost of a hand-over:
//! each write wakes all of them, and concerns one. So a client that has just been served, or that is further back in a
//! moving queue, requests the next events only shortly before its turn. None is lost: the stream resumes after the last
//! one.

use tokio::time::Instant;

use super::{Context, Line};
use crate::{
    backoff::LONGEST_PAUSE,
    waitlist::timing::{PROMPT, SHORT_HOLD},
};

impl Line {
    /// Returns until when the line expects no event, if its client has requested none since `begun`. The events are
    /// requested in time even if a lock goes often from task to task of this client, or the client often asks for the
    /// lock.
    pub(crate) fn calm_until(&self, begun: Instant, context: &Context<'_>) -> Instant {
        let list = &self.waitlist;
        if let Some(hold) = list.holds().next() {
            // A hold that is this short is followed by another request, whose answer says more.
            return hold.since.min(begun) + SHORT_HOLD;
        }
        if let Some(sent_at) = self.silent_since.filter(|_| list.is_under_way()) {
            return sent_at.min(begun) + PROMPT;
        }
        // Those ahead can all leave at once: then the waiter is served so much later, which is less than where it only
        // looks at its queue position.
        let most = (context.config.claim_lease / 20).min(LONGEST_PAUSE / 4);
        match list.hand_overs(context.config) {
            Some((seen_at, hand_overs)) => seen_at + hand_overs.min(most),
            // The line is about to go.
            None if list.is_at_rest() => begun + most,
            None => context.now,
        }
        .min(begun + most)
    }
}
