//! Handing a hold on inside the process: the next task in line gets it without the server.
//!
//! The document keeps the entry, with its lease, for as long as the tasks of this process pass the hold along; what
//! changes hands is the right to it. A grant takes a range of tokens out of the document's counter
//! ([`Request::reserve`](crate::protocol::Request)), so each task has a larger token than the task before, and whoever
//! is granted the lock next by the server has a larger one still.
//!
//! The process's head has its own entry in the server's queue meanwhile. That entry is the queue position of the
//! process, so the task that comes to be the next takes it over: other clients are served in the order in which they
//! came. Where there is no such task, the entry leaves.
//!
//! Once another client is known to wait, the lock goes through the server. The holder hears of it by an event
//! ([`Signal::AskedFor`](crate::protocol::wake::Signal)). If that is lost, the lock goes through the server all the
//! same when the range is used up, or when the document was last seen some time ago.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Context, Effect, Grant, Held, How, Stage, Waiting, Waitlist, answers::others_wait, deadline::Deadline, unsigned,
};
use crate::{
    protocol::{Kind, State},
    terms::Terms,
};

/// Number of tokens of one grant: a longer range spares hardly any more commands, and is how often the lock can be
/// handed on past a client whose event was lost.
pub(crate) const RANGE: i64 = 64;

/// Time since the document was seen without other waiters for which a hold is handed on: the longest that another
/// client has to wait beyond the present critical section if its event was lost.
pub(crate) const HANDED_ON_FOR: Duration = Duration::from_millis(500);

/// The same without a stream, as no event shows other waiters then: as long as a few tries of a polling client.
pub(crate) const HANDED_ON_UNSEEN: Duration = Duration::from_millis(50);

/// The lease of a hold, as its holder leaves it to the next task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inheritance {
    pub(crate) deadline: Deadline,
    /// When the hold is due to be renewed.
    pub(crate) renew_at: Instant,
}

/// The right to hand a hold on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HandingOn {
    /// The token of the task that has the hold.
    pub(super) token: i64,
    /// The last token of the range.
    pub(super) last: i64,
    /// When the document was seen without other waiters.
    pub(super) seen_at: Instant,
    terms: Terms,
}

impl HandingOn {
    fn may_go_on(&self, context: &Context<'_>) -> bool {
        let most = if context.streaming {
            HANDED_ON_FOR
        } else {
            HANDED_ON_UNSEEN
        };
        self.token < self.last && context.now.saturating_duration_since(self.seen_at) < most
    }
}

impl Waiting {
    /// Whether its hold may be handed on, or be one that was: it needs all permits of a lock whose holders are all
    /// alike, on terms under which the lease is renewed and a release opens the lock.
    pub(super) fn may_be_handed_on(&self) -> bool {
        let (kind, capacity) = self.used;
        let alike = matches!(kind, Kind::Mutex | Kind::Semaphore | Kind::RwLock) && !self.reenters;
        alike && self.permits == capacity && self.terms.is_plain()
    }

    fn may_take_over(&self, held: &Held, handing: &HandingOn) -> bool {
        self.waits() && self.may_be_handed_on() && (self.used, self.terms) == (held.used, handing.terms)
    }

    /// Whether the server can't have its entry.
    fn was_never_sent(&self) -> bool {
        self.stage == Stage::New && !self.uncertain
    }
}

impl Waitlist {
    /// Returns the number of tokens that a grant to the head is to take beyond its own: a range where several tasks of
    /// this process want the lock. It is so, too, if the head gets the lock `from_here`.
    pub(super) fn reserve(&self, from_here: bool, context: &Context<'_>) -> i64 {
        let wants = |waiting: Option<&Waiting>| waiting.is_some_and(|it| it.waits() && it.may_be_handed_on());
        let several = wants(self.waiting.front()) && (from_here || wants(self.waiting.get(1)));
        if context.config.hands_on && several {
            RANGE - 1
        } else {
            0
        }
    }

    /// Returns the right to hand a hold on that the answer gives to a waiting task, if the document shows its entry with a
    /// range of tokens and nobody else's.
    ///
    /// While the entry holds all permits nobody else is granted a token. So whatever lies between the entry's token and
    /// the counter is its own, even if another operation than the present one put it in.
    pub(super) fn handing_on(
        &self,
        position: usize,
        state: &State,
        sent: Instant,
        context: &Context<'_>,
    ) -> Option<HandingOn> {
        let waiting = &self.waiting[position];
        let [holder] = &state.holders[..] else { return None };
        let unwanted = !others_wait(state, context);
        let hands_on = context.config.hands_on && holder.id == waiting.entry && waiting.may_be_handed_on();
        (hands_on && unwanted && holder.token < state.token).then_some(HandingOn {
            token: holder.token,
            // Another program may have set the counter ahead.
            last: state.token.min(holder.token.saturating_add(RANGE - 1)),
            // The document is no older than the question.
            seen_at: sent,
            terms: waiting.terms,
        })
    }

    /// Hands a hold that its holder lets go of on to the next task, without the server. `false`: the lock has to go
    /// through the server.
    pub(crate) fn hand_on(
        &mut self,
        entry: &str,
        inherited: Inheritance,
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Inheritance { deadline, renew_at } = inherited;
        if deadline.instant() <= context.now || renew_at <= context.now {
            return false;
        }
        let Some(held) = self.holds.get(entry).filter(|held| !held.uncertain) else {
            return false;
        };
        let Some(handing) = held.handing_on.as_ref().filter(|handing| handing.may_go_on(context)) else {
            return false;
        };
        let mut line = self.waiting.iter_mut();
        let (Some(head), after) = (line.next(), line.next()) else {
            return false;
        };
        if !head.may_take_over(held, handing) {
            return false;
        }
        match after {
            _ if head.was_never_sent() => {}
            // The head gets the hold, and the task after it the head's place in the server's queue.
            Some(after) if after.may_take_over(held, handing) && after.was_never_sent() => {
                std::mem::swap(&mut head.entry, &mut after.entry);
                (after.stage, after.above) = (head.stage, head.above);
                (after.uncertain, after.how) = (head.uncertain, head.how);
            }
            // A task that uses the lock otherwise can't have it.
            Some(_) => return false,
            None => {
                let place = head.clone();
                self.abandon(place, context);
            }
        }
        let (Some(next), Some(held)) = (self.waiting.pop_front(), self.holds.get_mut(entry)) else {
            return false;
        };
        let granted_as = held.token;
        let Some(handing) = &mut held.handing_on else {
            return false;
        };
        handing.token += 1;
        let lease = next.terms.lease(context.config);
        effects.push(Effect::Granted {
            key: next.key,
            entry: entry.to_owned(),
            grant: Box::new(Grant {
                token: handing.token,
                granted_as,
                used: next.used,
                permits: unsigned(next.permits),
                lease,
                how: How::Local,
                deadline,
                renew_at: Some(renew_at),
            }),
        });
        true
    }

    /// Takes in that others may wait for a hold: it goes through the server next.
    pub(super) fn asked_for(&mut self, entry: &str) {
        if let Some(held) = self.holds.get_mut(entry) {
            held.handing_on = None;
        }
    }

    /// Takes in that others may wait for any of the holds.
    pub(super) fn hand_on_no_more(&mut self) {
        self.holds.values_mut().for_each(|held| held.handing_on = None);
    }
}
