//! Sweeps: an entry leaves more than once if a request for it may still be applied.
//!
//! A request without an answer can lie on a connection through which nothing gets for a while, so the entry leaves again
//! after some seconds, and nobody waits for that. A client that shuts down is waited for. It sweeps at once, and goes by
//! the limit that every request carries: when the server has answered a command that was sent later, it has begun with
//! the request, and it gives the request up when the limit is over. So the last sweep is then. A request that comes even
//! later, through a connection of its own, leaves its entry for a lease, as a killed process does.

use std::time::Duration;

use tokio::time::Instant;

use super::{Hold, Leaving, Step, Waitlist};

/// Pauses before an entry whose request has an unknown outcome is taken out once more, in case the request was applied
/// late.
pub const SWEEPS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// The requests for one lock that may still be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unsettled {
    /// The longest of their limits.
    within: Duration,
    /// When the server has given up the last of those that have reached it; `None`: it has not answered since.
    over_at: Option<Instant>,
}

impl<H: Hold> Step<'_, H> {
    /// Plans the next sweep of an entry that has left with an operation that was sent then, if one is to follow.
    pub(super) fn sweep_after(&mut self, leaving: Leaving<H::Release>, sent: Instant) {
        let context = self.context;
        let Some(sweep) = leaving.sweep else { return };
        let next = if self.hastens {
            let over_at = self.unsettled.and_then(|requests| requests.over_at);
            over_at.filter(|over_at| sent < *over_at)
        } else {
            SWEEPS.get(sweep).map(|pause| context.now + *pause)
        };
        if let Some(not_before) = next {
            self.leaving.push(Leaving {
                release: None,
                not_before,
                sweep: Some(sweep + 1),
                ..leaving
            });
        }
    }

    /// Makes all sweeps due, as the client waits for them; they are followed by one more at most.
    pub fn hasten_sweeps(&mut self) {
        let context = self.context;
        self.hastens = true;
        for leaving in &mut self.leaving {
            leaving.not_before = leaving.not_before.min(context.now);
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Notes that a request has failed which the server may still apply, for this long once it has it.
    pub fn may_be_applied(&mut self, within: Duration) {
        let before = self.unsettled.map_or(Duration::ZERO, |before| before.within);
        self.unsettled = Some(Unsettled {
            within: within.max(before),
            over_at: None,
        });
    }

    /// Notes that the server has answered an operation that was sent after all requests that have failed.
    pub(super) fn is_answering(&mut self, now: Instant) {
        if let Some(Unsettled { within, over_at }) = &mut self.unsettled {
            over_at.get_or_insert(now + *within);
        }
    }
}

impl<R> Leaving<R> {
    /// Adds sweeps if a request for the entry may still be on its way.
    pub(super) fn swept_if(self, uncertain: bool) -> Self {
        let sweep = if uncertain { Some(0) } else { self.sweep };
        Self { sweep, ..self }
    }

    /// Whether the entry has left before, and may have come again.
    pub(super) fn is_sweep(&self) -> bool {
        self.sweep.is_some_and(|sweep| sweep > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waitlist::{
        Context, Waitlist,
        fixtures::{PlainHold, in_context, waitlist},
    };

    fn released(context: &Context<'_>) -> Leaving<u64> {
        Leaving::new("me-1".to_owned(), context).swept_if(true)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_answers_no_release_again() {
        in_context(|context| {
            let mut swept = waitlist([]);
            swept
                .step(context)
                .sweep_after(released(context).answering(Some(7)), context.now);
            let [sweep] = &swept.leaving[..] else {
                panic!("{:?}", swept.leaving)
            };
            assert_eq!((sweep.release, sweep.is_sweep()), (None, true));
            assert_eq!(sweep.not_before, context.now + SWEEPS[0]);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn in_haste_the_last_sweep_comes_when_the_server_has_given_up_the_request() {
        let (limit, second) = (Duration::from_millis(200), Duration::from_secs(1));
        in_context(|context| {
            let mut swept = waitlist([]);
            swept.may_be_applied(limit);
            swept.is_answering(context.now);
            swept.step(context).sweep_after(released(context), context.now);
            swept.step(context).hasten_sweeps();
            let due = |swept: &mut Waitlist<PlainHold>| {
                let [sweep] = &std::mem::take(&mut swept.leaving)[..] else {
                    panic!("{swept:?}")
                };
                sweep.clone()
            };
            // What was planned for later is due, and once more when the limit is over.
            let first = due(&mut swept);
            assert_eq!(first.not_before, context.now);
            swept.step(context).sweep_after(first, context.now);
            let last = due(&mut swept);
            assert_eq!(last.not_before, context.now + limit);
            swept.step(context).sweep_after(last, context.now + limit);
            assert!(swept.leaving.is_empty());
            // What leaves later leaves once.
            swept.step(context).sweep_after(released(context), context.now + second);
            assert!(swept.leaving.is_empty());
        });
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_of_a_request_counts_from_the_next_answer() {
        let second = Duration::from_secs(1);
        in_context(|context| {
            let mut swept = waitlist([]);
            swept.step(context).hasten_sweeps();
            swept.may_be_applied(2 * second);
            swept.may_be_applied(second);
            // The server answers after a long time, and then it has all that was sent to it.
            let now = context.now + 60 * second;
            let context = Context { now, ..*context };
            swept.is_answering(now);
            swept.step(&context).sweep_after(released(&context), now - 59 * second);
            assert_eq!(swept.leaving[0].not_before, now + 2 * second);
        });
    }
}
