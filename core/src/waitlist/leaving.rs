//! Letting go of a hold, and the entries that are to leave the document. The next task of this process gets the hold
//! without the server, it stays with the client, or its entry leaves.
//!
//! An entry leaves more than once if a request for it may still be applied: it is swept.
//! A request without an answer can lie on a connection through which nothing gets for a while, so the entry leaves again
//! after some seconds, and nobody waits for that. A client that shuts down is waited for. It sweeps at once, and goes by
//! the limit that every request carries: when the server has answered the sweep, which was sent later, it has begun with
//! the request, and it gives the request up when the limit is over. So the last sweep is then: by the longest limit of
//! a request for this lock that ever failed, however long ago. A request that comes even later, through a connection of
//! its own, leaves its entry for a lease, as a killed process does.

use std::time::Duration;

use tokio::time::Instant;

use super::{Context, Effect, Held, Hold, LeftAs, Step, Waitlist};
use crate::protocol::{Use, wake};

/// Pauses before an entry whose request has an unknown outcome is taken out once more, in case the request was applied
/// late.
pub const SWEEPS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// An entry that is to leave the document.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaving<R> {
    pub(super) entry: String,
    /// The token of its grant, if it was a hold of this client.
    pub(super) token: Option<i64>,
    /// The use of the lock by this entry, if that is known.
    pub(super) used: Option<Use>,
    /// The state in which it leaves the lock.
    pub(super) left_as: LeftAs,
    /// The channel of the release that awaits the answer.
    pub(super) release: Option<R>,
    /// Whether it may be a holder, so that its going can let others in.
    pub(super) may_hold: bool,
    /// Whether an earlier try may have been applied, so that not finding the entry is no surprise.
    pub(super) repeated: bool,
    pub(super) not_before: Instant,
    /// When the entry is left to the server's expiry.
    pub(super) give_up: Instant,
    /// The number of sweeps so far, if there are any to be.
    pub(super) sweep: Option<usize>,
}

impl<H: Hold> Step<'_, H> {
    /// Lets go of a hold: by release, by drop, or because it was lost. The next task in line gets it where it can be
    /// handed on without the server. Where no task waits, it may stay with the client. A hold that readers share stays
    /// until the last of them lets go. The entry of a hold whose time is over stays in any case. `to` is answered when
    /// the hold is over.
    pub fn let_go(&mut self, hold: &H, to: Option<H::Release>) {
        let left_as = hold.left_as();
        let found = if self.is_anothers(hold) || self.part(hold) {
            wake::Left::Holder
        } else if left_as.expires() {
            self.expire(hold, left_as);
            wake::Left::Nowhere
        } else if self.hand_on(hold) || self.keep_idle(hold) {
            wake::Left::Holder
        } else {
            return self.leave(hold, left_as, to);
        };
        // It was held up to this moment, and is no longer: all that a release promises.
        self.effects
            .extend(to.map(|to| Effect::Released { to, found: Some(found) }));
        self.let_reenter();
    }

    /// Lets go of a hold whose entry may have another name in the document by now: nobody here gets the hold from it.
    pub fn renounce(&mut self, hold: &H) {
        if self.has(hold) {
            self.leave(hold, hold.left_as(), None);
        }
    }

    /// Sees to the hold that no task has: the next task in line gets it, or it is given back; if neither, plans when it
    /// is looked at again.
    pub(super) fn attend_to_idle(&mut self) {
        if self.idle.is_some() && (self.must_give_back() || !self.waiting.is_empty()) {
            self.give_back_idle();
        }
    }

    /// Lets go of the hold that no task has.
    pub fn give_back_idle(&mut self) {
        let held = self.idle.as_ref().and_then(|idle| self.holds.get(&idle.entry));
        if let Some(hold) = held.and_then(|held| held.tasks.first().cloned()) {
            hold.given_back();
            self.let_go(&hold, None);
        }
    }

    /// Has the entry of a hold leave with the next operation.
    fn leave(&mut self, hold: &H, left_as: LeftAs, to: Option<H::Release>) {
        let held = self.holds.get(hold.entry());
        // An unknown entry may be anywhere.
        let uncertain = held.is_none_or(|held| held.uncertain);
        let lease = held.map_or(self.context.config.lease, |held| held.lease);
        let leaving = Leaving {
            token: held.map(|held| held.token),
            used: Some(hold.used()),
            may_hold: true,
            left_as,
            release: to,
            sweep: uncertain.then_some(0),
            ..Leaving::new(hold.entry().to_owned(), lease, self.context)
        };
        self.leaving.push(leaving);
        self.forget(hold.entry());
    }

    /// Takes out the entry of a hold that ends here, if a request that is on its way, or whose outcome is unknown, can put
    /// it in once more.
    pub(super) fn leave_again(&mut self, entry: &str, held: &Held<H>, left_as: LeftAs) {
        if self.under_way.is_some() || held.uncertain {
            let leaving = Leaving {
                used: Some(held.used),
                may_hold: left_as != LeftAs::Free,
                left_as,
                sweep: held.uncertain.then_some(0),
                ..Leaving::new(entry.to_owned(), held.lease, self.context)
            };
            self.leaving.push(leaving);
        }
    }

    /// Plans the next sweep of an entry that has left, if one is to follow. In haste it is the last.
    pub(super) fn sweep_after(&mut self, leaving: Leaving<H::Release>) {
        let context = self.context;
        let Some(sweep) = leaving.sweep else { return };
        let hasty = self.hastens.then_some((SWEEPS.len() - 1, self.applied_within));
        let (least, pause) = hasty.unwrap_or((0, SWEEPS.get(sweep).copied().unwrap_or_default()));
        let sweep = sweep.max(least);
        if sweep < SWEEPS.len() && !pause.is_zero() {
            self.leaving.push(Leaving {
                release: None,
                not_before: context.now + pause,
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
            leaving.sweep = leaving.sweep.map(|sweep| sweep.min(SWEEPS.len() - 1));
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Whether the hold was handed on: its entry is another task's.
    fn is_anothers(&self, hold: &H) -> bool {
        self.holds.contains_key(hold.entry()) && !self.has(hold)
    }

    /// Whether an entry leaves that may be a holder, and that no answer has shown to have left.
    pub fn lets_go(&self) -> bool {
        let mut leaving = self.leaving.iter().chain(self.under_way.iter().flatten());
        leaving.any(|leaving| leaving.may_hold && !leaving.is_sweep() && leaving.left_as != LeftAs::HeldTooLong)
    }

    /// Notes that a request has failed which the server may still apply, for this long once it has it.
    pub fn may_be_applied(&mut self, within: Duration) {
        self.applied_within = self.applied_within.max(within);
    }
}

impl<R> Leaving<R> {
    /// Creates a leave of an entry of this lease, by which it lasts for as long as the entry can be live. It waits, and
    /// its request came to its end.
    pub(super) fn new(entry: String, lease: Duration, context: &Context<'_>) -> Self {
        Self {
            entry,
            token: None,
            used: None,
            left_as: LeftAs::Free,
            release: None,
            may_hold: false,
            repeated: false,
            not_before: context.now,
            give_up: context.now + lease.max(context.config.lease),
            sweep: None,
        }
    }

    /// Whether it is a holder whose request came to its end, and which leaves for the first time and for good.
    pub(super) fn is_plain_release(&self) -> bool {
        self.may_hold && !self.repeated && self.sweep.is_none() && self.left_as.kept().is_none()
    }

    /// Whether the entry has left before, and may have come again.
    pub(super) fn is_sweep(&self) -> bool {
        self.sweep.is_some_and(|sweep| sweep > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::{Kept, KeptUntil},
        waitlist::fixtures::{MUTEX, PlainHold, held, in_context, waitlist},
    };

    #[tokio::test(start_paused = true)]
    async fn a_hold_that_is_renounced_keeps_the_lock_for_as_long_as_it_promised() {
        in_context(|context| {
            let mut list = waitlist([]);
            list.holds
                .insert("me-0".to_owned(), held(MUTEX, (context.now, context.now)));
            let kept = Kept {
                id: "me-0".to_owned(),
                token: 1,
                until: KeptUntil::AfterGrant(60_000),
            };
            let hold = PlainHold {
                left_as: LeftAs::Kept(kept.clone()),
                ..PlainHold::clone(&list.holds["me-0"].tasks[0])
            };
            list.step(context).renounce(&hold);
            let operation = list.step(context).next_operation().expect("its entry leaves");
            assert_eq!(
                (&operation.leave[..], operation.kept),
                (&["me-0".to_owned()][..], vec![kept])
            );
        });
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_leaves_for_as_long_as_its_lease_or_the_clients_can_run() {
        in_context(|context| {
            let given_up_after = |seconds| {
                let leaving = Leaving::<u64>::new("me-1".to_owned(), Duration::from_secs(seconds), context);
                (leaving.give_up - context.now).as_secs()
            };
            assert_eq!([1, 30, 90].map(given_up_after), [30, 30, 90]);
        });
    }

    fn released(context: &Context<'_>) -> Leaving<u64> {
        Leaving {
            sweep: Some(0),
            ..Leaving::new("me-1".to_owned(), Duration::ZERO, context)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_haste_the_last_sweep_comes_when_the_server_has_given_up_the_request() {
        let limit = Duration::from_millis(200);
        in_context(|context| {
            for sweeps in 0..=SWEEPS.len() {
                let mut swept = waitlist([]);
                swept.may_be_applied(limit / 2);
                swept.may_be_applied(limit);
                swept.may_be_applied(limit / 2);
                swept.leaving.push(Leaving {
                    sweep: Some(sweeps),
                    not_before: context.now + limit,
                    ..released(context)
                });
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
                swept.step(context).sweep_after(first);
                let last = due(&mut swept);
                assert_eq!(last.not_before, context.now + limit);
                swept.step(context).sweep_after(last);
                assert!(swept.leaving.is_empty());
            }
        });
    }
}
