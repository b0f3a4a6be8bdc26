//! Keeping a hold idle: after its last release the lock stays with the client, as an option, so that the next task here
//! takes it without the server.
//!
//! The entry stays in the document and is renewed, and no task has it. The next task of this process gets it as a hold
//! that is [handed on](super::handing_on): with a token of the range that the grant has reserved. It is given back when
//! no task has come for the time of the option, when the range is used up, when a task comes that uses the lock in
//! another way, and at once when another client is known to wait.
//!
//! An event notifies this client of another that waits. A lost event must not keep others waiting, so the document of
//! an idle hold is read from time to time, with its renewal; after some time without a read the hold is given back too.
//! Without a change stream no lock stays idle.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Context, Effect, Held, Hold, Step, StreamState, Waitlist};
use crate::{backoff::LONGEST_PAUSE, hold_options::Terms};

/// Pause between two readings of an idle hold's document: with so few, thousands of idle locks cost a few commands a
/// second, as they are read together.
pub const IDLE_LOOK_EVERY: Duration = Duration::from_secs(5);

/// Maximum time without a reading for which a hold stays idle: two of them may fail.
const UNSEEN_MOST: Duration = IDLE_LOOK_EVERY.saturating_mul(3);

/// Returns the time without a reading after which an idle hold on these terms is given back: the longest that another
/// client waits whose event was lost. `None`: it does not stay with the client.
pub(super) fn unseen(terms: &Terms, context: &Context<'_>) -> Option<Duration> {
    match !terms.keep_idle(context.config).is_zero() {
        true if context.stream.is_open() => Some(UNSEEN_MOST),
        // The document is read once the stream is open.
        true if context.stream != StreamState::Unavailable => Some(LONGEST_PAUSE),
        _ => None,
    }
}

/// The state of a hold that no task has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Idle {
    pub(super) entry: String,
    /// When it is given back if nobody comes for it.
    pub(super) until: Instant,
    /// When it is given back at the latest, by what is known now.
    pub(super) attend_at: Instant,
}

impl<H: Hold> Step<'_, H> {
    /// Has a hold that a task lets go of stay with the client, if it may, and nobody waits for it.
    pub(super) fn keep_idle(&mut self, hold: &H) -> bool {
        let (list, context) = (&mut *self.list, self.context);
        let goes = list.closed || list.guards || list.idle.is_some() || !list.waiting.is_empty();
        let left = hold.released_lease().filter(|left| !goes && left.is_sound(context.now));
        let held = list.holds.get_mut(hold.entry());
        let held = held.filter(|held| !held.uncertain);
        let (Some(left), Some(held)) = (left, held) else {
            return false;
        };
        let Some(handing) = held.handing_on.as_mut() else {
            return false;
        };
        if unseen(&handing.terms, context).is_none() {
            return false;
        }
        if !handing.was_seen_within(IDLE_LOOK_EVERY, context) {
            // It was held for long. An event would have told of others; and the time without a reading counts from now.
            (handing.seen_at, handing.doubted_at) = (context.now, Some(context.now));
        }
        let (keep, doubted) = (handing.terms.keep_idle(context.config), handing.doubted_at.is_some());
        let until = context.now + keep;
        let Some(attend_at) = held.back_at(until, context) else {
            return false;
        };
        list.idle = Some(Idle {
            entry: hold.entry().to_owned(),
            until,
            attend_at,
        });
        let idle = Arc::new(hold.idle(left));
        list.effects.extend(held.tasks.drain(..).map(Effect::Gone));
        held.tasks.push(idle.clone());
        list.effects.push(Effect::Came(idle.clone()));
        if doubted {
            // Its document is read before a task gets it.
            list.effects.push(Effect::Doubted(idle));
        }
        true
    }

    /// Whether the idle hold has to be given back; if not, plans when it is looked at again.
    pub(super) fn must_give_back(&mut self) -> bool {
        let (list, context) = (&mut *self.list, self.context);
        let Some(idle) = &mut list.idle else { return false };
        let held = list.holds.get(&idle.entry);
        let back_at = held.and_then(|held| held.back_at(idle.until, context));
        idle.attend_at = back_at.unwrap_or(context.now);
        back_at.is_none()
    }

    /// Notes that a reading that was sent at that time shows a hold, and no other waiters.
    pub(super) fn seen_unasked(&mut self, entry: &str, sent: Instant) {
        let context = self.context;
        let handing = self.holds.get_mut(entry).and_then(|held| held.handing_on.as_mut());
        if let Some(handing) = handing.filter(|handing| unseen(&handing.terms, context).is_some()) {
            handing.seen_at = handing.seen_at.max(sent);
            handing.doubted_at = handing.doubted_at.filter(|doubted_at| *doubted_at > sent);
        }
    }

    /// Notes that events may be missing which would have shown other waiters. A hold that is to stay with the client
    /// is not handed on until its document is read while the stream is open; any other goes through the server next.
    pub(super) fn doubt_holds(&mut self) {
        let (list, context) = (&mut *self.list, self.context);
        let idle = list.idle.as_ref().map(|idle| &idle.entry);
        for (entry, held) in &mut list.holds {
            match &mut held.handing_on {
                Some(handing) if Some(entry) == idle || unseen(&handing.terms, context).is_some() => {
                    handing.doubted_at = Some(context.now);
                }
                handing => *handing = None,
            }
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Whether no task has the hold of this entry.
    pub(super) fn is_idle(&self, entry: &str) -> bool {
        self.idle.as_ref().is_some_and(|idle| idle.entry == entry)
    }

    /// Returns when the idle hold is attended to.
    pub fn attend_at(&self) -> Option<Instant> {
        self.idle.as_ref().map(|idle| idle.attend_at)
    }
}

impl<H> Held<H> {
    /// Returns when it is given back at the latest if it is idle; `None`: now.
    fn back_at(&self, until: Instant, context: &Context<'_>) -> Option<Instant> {
        let handing = self.handing_on.as_ref().filter(|handing| handing.has_tokens())?;
        let bound = match handing.doubted_at {
            // Its document is about to be read.
            Some(doubted_at) => (doubted_at + LONGEST_PAUSE).min(handing.seen_at + UNSEEN_MOST),
            None => handing.seen_at + unseen(&handing.terms, context)?,
        };
        Some(until.min(bound)).filter(|at| *at > context.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waitlist::{
        fixtures::{MUTEX, PlainHold, held, in_context, waitlist},
        handing_on::{HandingOn, RANGE},
    };

    /// One hold with this deadline, due to be renewed then, that may stay with the client for a minute.
    fn keeping(times: (Instant, Instant), context: &Context<'_>) -> Waitlist<PlainHold> {
        let terms = Terms {
            keep_idle: Some(Duration::from_secs(60)),
            ..Terms::default()
        };
        let handing_on = HandingOn {
            token: 1,
            last: RANGE,
            seen_at: context.now,
            doubted_at: None,
            terms,
        };
        let held = Held {
            handing_on: Some(handing_on),
            ..held(MUTEX, times)
        };
        let mut waitlist = waitlist([]);
        waitlist.holds.insert("me-0".to_owned(), held);
        waitlist
    }

    /// Has its task release the hold; returns whether it stays.
    fn stays(waitlist: &mut Waitlist<PlainHold>, context: &Context<'_>) -> bool {
        let hold = PlainHold::clone(&waitlist.holds["me-0"].tasks[0]);
        let released = PlainHold { released: true, ..hold };
        waitlist.step(context).keep_idle(&released)
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_stays_only_while_its_lease_lasts_and_wants_no_renewal() {
        in_context(|context| {
            let later = context.now + Duration::from_secs(1);
            for (deadline, renew_at, may_stay) in [
                (later, later, true),
                (context.now, later, false),
                (later, context.now, false),
            ] {
                let mut waitlist = keeping((deadline, renew_at), context);
                assert_eq!(stays(&mut waitlist, context), may_stay);
                let doubted = |effect: &Effect<PlainHold>| matches!(effect, Effect::Doubted(_));
                assert!(!waitlist.effects.iter().any(doubted), "it needs no reading");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_that_is_to_stay_no_longer_is_not_attended_to() {
        in_context(|context| {
            let later = context.now + Duration::from_secs(20);
            let mut waitlist = keeping((later, later), context);
            assert_eq!(waitlist.attend_at(), None);
            assert!(stays(&mut waitlist, context));
            assert_eq!(waitlist.attend_at(), Some(context.now + IDLE_LOOK_EVERY * 3));
            waitlist.step(context).close();
            assert_eq!(waitlist.attend_at(), None);
        });
    }

    /// A reading ends a doubt, and without a stream it does not show what comes later.
    #[tokio::test(start_paused = true)]
    async fn in_doubt_a_hold_goes_through_the_server_next_where_nothing_stays() {
        in_context(|context| {
            for (stream, may_stay) in [(StreamState::Open, true), (StreamState::Unavailable, false)] {
                let context = Context { stream, ..*context };
                let mut waitlist = keeping((context.now, context.now), &context);
                waitlist.step(&context).doubt_holds();
                let handing = waitlist.holds["me-0"].handing_on.as_ref();
                assert_eq!(
                    handing.map(|handing| handing.doubted_at.is_some()),
                    may_stay.then_some(true),
                    "{stream:?}"
                );
            }
        });
    }
}
