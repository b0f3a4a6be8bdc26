//! The times in which a line expects no event, so that its client need not ask for any.
//!
//! The server wakes a waiting `getMore` for every write of the whole replica set, and checks each write of a lock for
//! whether it concerns this client. When many clients take one lock in turn, that is most of the cost of a hand-over:
//! each write wakes all of them, and concerns one. So a client that has just been served, or that is further back in a
//! moving queue, requests the next events only shortly before its turn. None is lost: the stream resumes after the last
//! one.

use std::time::Duration;

use tokio::time::Instant;

use super::{Context, Line};

/// Time after a grant for which no event is expected: a hold that is this short is followed by another request, whose
/// answer says more. The loss of a hold, or another client's request, is noticed this much later at most.
const GRANTED: Duration = Duration::from_millis(2);

/// Time after an operation was sent for which its answer is expected to bring all news.
const ANSWERED: Duration = Duration::from_millis(20);

/// Number of waiters at the front, which need every event, as some of those ahead may cancel. A waiter further back
/// requests no events until one of these is about to be served.
const NEXT: u64 = 3;

/// Maximum time for which a waiter asks for no events. Those ahead of it can all leave at once: then it is served so
/// much later, which is less than where it only looks at its queue position.
const CALM_MOST: Duration = Duration::from_millis(250);

/// Maximum number of holds whose ages are compared after each event.
const COMPARED: usize = 8;

impl Line {
    /// Returns until when the line expects no event, if its client has requested none since `begun`. The events are
    /// requested in time even if a lock goes often from task to task of this client, or the client often asks for the
    /// lock.
    pub(crate) fn calm_until(&self, begun: Instant, context: &Context<'_>) -> Instant {
        let list = &self.waitlist;
        let held = list.holds().take(COMPARED).map(|hold| hold.since).min();
        if let Some(since) = held {
            return since.min(begun) + GRANTED;
        }
        if let Some(sent_at) = self.sent_at.filter(|_| list.is_under_way()) {
            return sent_at.min(begun) + ANSWERED;
        }
        let most = CALM_MOST.min(context.config.claim_lease / 8);
        let per_step = list.pace().per_step(context.config);
        match list.steps() {
            // If hand-overs take that long, a pause would make no difference.
            Some((seen_at, steps)) if per_step <= most => {
                let steps = u32::try_from(steps.saturating_sub(NEXT - 1)).unwrap_or(u32::MAX);
                // Those ahead may be faster this time.
                let until = seen_at + (per_step / 4 * 3).saturating_mul(steps).min(most);
                until.min(begun + most)
            }
            // The line is about to go.
            None if list.is_at_rest() => begun + CALM_MOST,
            _ => context.now,
        }
    }
}
