//! Looks at the queue position: small reads, of heads that do without the stream and of those that have none.
//!
//! A look grants nothing, so each hand-over costs a request on top of it. A look is answered by one member alone, which
//! may be the primary no more, and what it shows can still be undone. The answer to a request, also to one that writes
//! nothing, is what a majority has; and it brings the token and the end of the lease, which a look does not show.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Context, Hold, Step, StreamState, Waitlist,
    prospect::{self, Prospect},
    timing::{Expiry, poll_pause},
};
use crate::{backoff::Backoff, protocol::Ahead};

/// A look at the queue position of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionLook {
    pub entry: String,
    plan: u64,
}

impl<H: Hold> Step<'_, H> {
    /// Returns the due look at the head's queue position, once. It is sent if it is [admitted](Self::admit) then, and
    /// [`looked`](Self::looked) or [`look_failed`](Self::look_failed) notes the result.
    pub fn next_look(&mut self) -> Option<PositionLook> {
        let context = self.context;
        let entry = self.waiting.front().filter(|head| head.is_queued())?.entry.clone();
        if self.under_way.is_some() || self.look_at.is_none_or(|at| at > context.now) {
            return None;
        }
        self.look_at = None;
        let plan = self.plan;
        Some(PositionLook { entry, plan })
    }

    /// Notes the head's sight of its queue position. A head that is no longer in the queue asks, and so does one that
    /// has come near the front and is about to have the stream.
    pub fn looked(&mut self, look: &PositionLook, ahead: Option<Ahead>) {
        if !self.admit(look) {
            return;
        }
        let (list, context) = (&mut *self.list, self.context);
        let head = &list.waiting[0];
        // Every write of the protocol grants to all that fit. If the first in line fits now, another program's write
        // has made room, and no client has written since.
        let Some(ahead) = ahead.filter(|ahead| ahead.position > 0 || head.wants.permits > ahead.free) else {
            (list.ask_at, list.was_seen_gone) = (Some(context.now), true);
            return;
        };
        (list.blind_until, list.looks_failed) = (None, Backoff::default());
        let was_far = list.is_far();
        list.see_ahead(ahead, context);
        list.look_at = list.next_look_at(context);
        if context.stream.opens_on_demand() && was_far && !list.is_far() {
            list.ask_at = Some(context.now);
            return;
        }
        let expiry = ahead
            .first_end
            .and_then(|end| Expiry::of(end, ahead.position, context))
            .map(|expiry| expiry.after(list.expiry));
        list.expiry = expiry.or(list.expiry.filter(|_| ahead.first_end.is_some()));
    }

    /// Notes that the head has not seen its queue position: it asks, and only asks for a while.
    pub fn look_failed(&mut self, look: &PositionLook) {
        let context = self.context;
        self.rest_from_looks(context.now);
        if self.admit(look) {
            self.ask_at = Some(context.now);
        }
    }

    /// Admits a look, before it is sent and with what it has shown, if it is of the present plan. It is not while an
    /// operation is on its way, whose answer knows better. Another look is due then, in case there is no answer.
    pub fn admit(&mut self, look: &PositionLook) -> bool {
        let context = self.context;
        let is_head = self
            .waiting
            .front()
            .is_some_and(|head| head.is_queued() && head.entry == look.entry);
        if look.plan != self.plan || !is_head {
            return false;
        }
        if self.under_way.is_some() {
            self.look_at = Some(context.now);
            return false;
        }
        true
    }
}

impl<H: Hold> Waitlist<H> {
    /// Notes the head's present sight of the queue.
    pub(super) fn see_ahead(&mut self, ahead: Ahead, context: &Context<'_>) {
        let Some(head) = self.waiting.front() else { return };
        let prospect = Prospect::new(head, ahead, self.prospect.as_ref(), context);
        let took = self.prospect.as_ref().and_then(|before| prospect.pace_since(before));
        took.into_iter().for_each(|took| self.note_pace(took, context));
        self.prospect = Some(prospect);
    }

    /// Notes that hand-overs took this long each.
    pub(super) fn note_pace(&mut self, took: Duration, context: &Context<'_>) {
        self.pace = prospect::paced(self.pace, took, context.config);
    }

    /// Returns when the head looks at its queue position next, if at all.
    pub(super) fn next_look_at(&self, context: &Context<'_>) -> Option<Instant> {
        let (head, prospect) = (self.waiting.front()?, self.prospect.as_ref()?);
        let may_do_without = match context.stream {
            // Its events come by the stream. One that closes has every head ask, and look from then on.
            StreamState::Open if !prospect.is_near || prospect.ahead.turns < context.config.near => return None,
            // It has the stream because of its queue position, and may find that it does not need it.
            StreamState::Open => true,
            StreamState::OnDemand => !prospect.is_near,
            StreamState::Opening | StreamState::Unavailable => false,
        };
        let pause = if may_do_without {
            prospect::look_every(head.wants.terms.lease(context.config).claim)
        } else if self.blind_until.is_some_and(|until| until > context.now) {
            return None;
        } else {
            let pace = prospect.pause(self.pace, context.config);
            poll_pause(head, prospect.ahead.position, pace, context)
        };
        Some(context.now + pause)
    }

    /// Has the head only ask for a while, as a look failed.
    pub(super) fn rest_from_looks(&mut self, now: Instant) {
        self.blind_until = Some(now + self.looks_failed.failed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waitlist::{
        fixtures::{MUTEX, NOW, PERMIT, PlainHold, ahead, in_context, queued, state, waiter, waitlist},
        waiting::Stage,
    };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A look of the head under the present plan.
    fn look_of(waitlist: &Waitlist<PlainHold>) -> PositionLook {
        PositionLook {
            entry: waitlist.waiting[0].entry.clone(),
            plan: waitlist.plan,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_is_of_use_to_the_head_that_it_was_for_until_an_answer_comes() {
        in_context(|context| {
            let mut waitlist = waitlist([queued(1, MUTEX), queued(2, MUTEX)]);
            waitlist.look_at = Some(context.now + millis(1));
            assert_eq!(waitlist.step(context).next_look(), None);
            waitlist.look_at = Some(context.now);
            let look = waitlist.step(context).next_look().expect("it is due");
            assert!(waitlist.step(context).admit(&look));
            let mut answered = waitlist.clone();
            answered
                .step(context)
                .plan_asking(&state(vec![waiter("me-1", 30_000)]), Some(NOW));
            assert!(!answered.step(context).admit(&look));
            let mut unqueued = waitlist.clone();
            unqueued.waiting[0].stage = Stage::Asked;
            assert!(!unqueued.step(context).admit(&look));
            waitlist.waiting.pop_front();
            assert!(!waitlist.step(context).admit(&look), "another is the head");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_shows_the_head_as_the_first_in_line_and_as_fitting_has_it_ask() {
        in_context(|context| {
            let stream = StreamState::Unavailable;
            let context = Context { stream, ..*context };
            for (position, free, asks) in [(0, 1, true), (0, 0, false), (1, 3, false)] {
                let mut waitlist = waitlist([queued(1, PERMIT)]);
                waitlist.ask_at = Some(context.now + millis(9));
                let seen = Ahead {
                    position,
                    free,
                    ..ahead(0, 1_000)
                };
                let look = look_of(&waitlist);
                waitlist.step(&context).looked(&look, Some(seen));
                assert_eq!(waitlist.ask_at == Some(context.now), asks, "{seen:?}");
                assert_eq!(waitlist.was_seen_gone, asks, "{seen:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_has_the_head_ask_if_it_comes_near_the_front_and_is_about_to_have_the_stream() {
        in_context(|context| {
            let (far, near) = (ahead(7, 1_000), ahead(3, 1_000));
            for (stream, before, seen, asks) in [
                (StreamState::OnDemand, far, near, true),
                (StreamState::OnDemand, near, near, false),
                (StreamState::OnDemand, far, far, false),
                (StreamState::Open, far, near, false),
                (StreamState::Unavailable, far, near, false),
            ] {
                let context = Context { stream, ..*context };
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                let head = &waitlist.waiting[0];
                waitlist.prospect = Some(Prospect::new(head, before, None, &context));
                waitlist.ask_at = Some(context.now + millis(9));
                let look = look_of(&waitlist);
                waitlist.step(&context).looked(&look, Some(seen));
                let has_asked = waitlist.ask_at == Some(context.now);
                assert_eq!(has_asked, asks, "{stream:?}, {before:?}, {seen:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_looks_again_by_its_distance_from_the_front_and_by_the_stream_that_it_has() {
        in_context(|context| {
            let looks = |stream, seen: Ahead, is_blind: bool| {
                let context = Context { stream, ..*context };
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                if is_blind {
                    waitlist.rest_from_looks(context.now);
                }
                waitlist.see_ahead(seen, &context);
                let look_at = waitlist.next_look_at(&context);
                look_at.map(|at| (at - context.now).as_millis())
            };
            // Its turn is four holds of a second away.
            let far = ahead(7, 1_000);
            assert_eq!(looks(StreamState::OnDemand, far, false), Some(1_666));
            assert_eq!(looks(StreamState::OnDemand, far, true), Some(1_666));
            // The stream is open for others: beyond a number of heads that look, one stream costs less.
            assert_eq!(looks(StreamState::Open, far, false), None);
            // Who polls does so after 10 ms for itself and for each waiter ahead, unless it only asks for a while.
            assert_eq!(looks(StreamState::Unavailable, far, false), Some(80));
            assert_eq!(looks(StreamState::OnDemand, ahead(3, 1_000), false), Some(40));
            assert_eq!(looks(StreamState::Unavailable, far, true), None);
            assert_eq!(looks(StreamState::Unavailable, ahead(4, 10), true), None);
            // Near the front only as the lock changes hands fast; and one of the next.
            assert_eq!(looks(StreamState::Open, ahead(4, 10), false), Some(1_666));
            assert_eq!(looks(StreamState::Open, ahead(3, 10), false), None);
        });
    }
}
