//! Letting go of a hold: the next task of this process gets it without the server, it stays with the client, or its
//! entry leaves the document.

use super::{Effect, Hold, Leaving, LeftAs, Step, Waitlist};
use crate::protocol::wake;

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
        self.effects.extend(to.map(|to| Effect::Released { to, found }));
        self.let_reenter();
    }

    /// Lets go of a hold whose entry may have another name in the document by now: nobody here gets the hold from it.
    pub fn renounce(&mut self, hold: &H) {
        if self.has(hold) {
            self.leave(hold, hold.left_as(), None);
        }
    }

    /// Sees to the hold that no task has: the next task in line gets it, or it is given back; if neither, plans when it
    /// is looked at again. Call it after each input.
    pub fn attend_to_idle(&mut self) {
        let Some(entry) = self.idle_entry() else { return };
        if self.must_give_back(&entry) || !self.waiting.is_empty() {
            self.give_back_idle();
        }
    }

    /// Lets go of the hold that no task has.
    pub fn give_back_idle(&mut self) {
        let idle = self
            .idle_entry()
            .and_then(|entry| self.holds[&entry].tasks.first().cloned());
        if let Some(hold) = idle {
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
        let leaving = Leaving::new(hold.entry().to_owned(), self.context)
            .used_as(hold.used())
            .holding();
        let leaving = leaving.of_lease(lease, self.context).left_as(left_as);
        self.leaving.push(leaving.swept_if(uncertain).answering(to));
        self.forget(hold.entry());
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
}

#[cfg(test)]
mod tests {
    use crate::{
        protocol::{Kept, KeptUntil},
        waitlist::{
            LeftAs,
            fixtures::{MUTEX, PlainHold, held, in_context, waitlist},
        },
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
}
