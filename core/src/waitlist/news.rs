//! The news that reaches the waitlist between its own operations: events, doubts, and readings of the document.

use std::time::Duration;

use tokio::time::Instant;

use super::{Effect, Held, Hold, Leaving, LeftAs, Step, answers::others_wait, deadline, timing};
use crate::{
    lost_reason::{self, LostReason},
    protocol::{ServerTime, State, document::Malformed, is_issued_after, wake},
    waitlist::How,
};

impl<H: Hold> Step<'_, H> {
    /// Notes another client's write, at a time of the server, that names one of our entries.
    pub fn signalled(&mut self, entry: &str, signal: wake::Signal, at: ServerTime) {
        let context = self.context;
        let position = self.waiting.iter().position(|waiting| waiting.entry == entry);
        match (signal, position) {
            // A late event: that grant is over, and the entry has got in line again.
            (wake::Signal::Granted { token }, Some(position)) if token <= self.waiting[position].above => {}
            (wake::Signal::Granted { token }, Some(position)) => {
                let lease = self.waiting[position].lease;
                let deadline = deadline::of_event(at, lease.claim, context.clock, context.now, context.config);
                // The event is late; or the server's clock is not known well enough, as the last answers were slow. The
                // entry may hold the lock all the same, and the answer to a request shows that clock.
                let Some(deadline) = deadline.filter(|deadline| *deadline > context.now) else {
                    return self.doubt();
                };
                // A claim lease that is no shorter than the lease is the whole of it.
                let renew_at = (lease.interval.is_some() || lease.claim < lease.length)
                    .then(|| timing::check(&lease, deadline, context.now));
                self.waiting[position].how = How::Event;
                self.grant(position, token, Some(deadline), renew_at);
                self.let_reenter();
            }
            (wake::Signal::Granted { token }, None) => {
                let leaves = self.under_way.iter().flatten().any(|leaving| leaving.entry == entry);
                if !leaves && !self.has_expired(entry, token) {
                    self.take_out_unwanted(Leaving {
                        may_hold: true,
                        ..Leaving::new(entry.to_owned(), Duration::ZERO, context)
                    });
                }
            }
            (wake::Signal::Evicted { token }, Some(position)) if token <= self.waiting[position].above => {}
            // An answer that is on its way may still show this entry as a waiter, or even as a holder.
            (wake::Signal::Evicted { .. } | wake::Signal::Adopted, Some(position)) => {
                self.ask_anew(position, false);
            }
            // The entry may have asked again since, and been granted anew: then the event is about the earlier hold.
            (wake::Signal::Evicted { token }, None) => {
                if self.holds.get(entry).is_some_and(|held| held.token == token) {
                    self.lose(entry, LostReason::Broken);
                }
            }
            // The same, where only the time can show it. A hold that it does not place before the event is to be read.
            (wake::Signal::Adopted, None) => {
                let held = self.holds.get(entry);
                if held.is_some_and(|held| !is_issued_after(held.token, at)) {
                    self.lose(entry, LostReason::Adopted);
                }
            }
            (wake::Signal::Ask, Some(_)) => self.doubt(),
            (wake::Signal::Ask, None) => {}
            (wake::Signal::AskedFor, None) => {
                self.asked_for(entry);
                // A client that takes back its own reader's place comes before an upgrade, which may wait for it.
                let head = self.waiting.front();
                if head.is_some_and(|head| head.wants.upgrades.as_deref() == Some(entry)) {
                    self.doubt();
                }
            }
            // The answer that shows the grant is older than this.
            (wake::Signal::AskedFor, Some(_)) => self.doubt(),
        }
    }

    /// Ends the hold of an entry that the document no longer has.
    pub(super) fn lose(&mut self, entry: &str, reason: LostReason) {
        let Some(held) = self.remove_hold(entry) else { return };
        self.leave_again(entry, &held, LeftAs::Free);
        let lost = held.tasks.into_iter();
        self.effects.extend(lost.map(|hold| Effect::Lost { hold, reason }));
    }

    /// Notes that anything known of the document may be wrong: the head asks at once.
    pub fn doubt(&mut self) {
        let context = self.context;
        self.overtaken = self.under_way.is_some();
        // The event that would have shown other waiters may be among the lost ones.
        self.doubt_holds();
        self.is_full = false;
        if self.is_queued() {
            self.ask_at = Some(context.now);
        }
    }

    /// Notes the document as it was after the hold of each of these entries was granted. `sent`: it was asked for
    /// then; `None`: an event shows it.
    pub fn verified(&mut self, document: Option<&Result<State, Malformed>>, sent: Option<Instant>, entries: &[String]) {
        let context = self.context;
        let state = document.and_then(|document| document.as_ref().ok());
        let wait = state.is_some_and(|state| others_wait(state, context));
        if wait {
            self.others_wait = Some(true);
            self.hand_on_no_more();
        } else if state.is_some() {
            self.others_wait.take_if(|known| *known);
        }
        for entry in entries {
            let Some(held) = self.holds.get(entry) else {
                continue;
            };
            if state.is_some_and(|state| has(state, entry, held)) {
                if let Some(sent) = sent.filter(|_| !wait) {
                    self.seen_unasked(entry, sent);
                }
                continue;
            }
            let reason = match (document, state) {
                (None, _) => LostReason::Deleted,
                (Some(_), Some(state)) => lost_reason::of_absence(state, held.token),
                (Some(_), None) => LostReason::Overwritten,
            };
            self.lose(entry, reason);
            if let Some(state) = state {
                self.take_out_orphans(state);
            }
        }
    }

    /// Takes out the orphans in a document.
    pub(super) fn take_out_orphans(&mut self, state: &State) {
        for id in self.orphans(state) {
            self.take_out_unwanted(Leaving {
                used: Some((state.kind, state.capacity)),
                ..Leaving::new(id.clone(), Duration::ZERO, self.context)
            });
        }
    }

    /// Returns the entries of this session in a document that no task wants: of requests that were applied late, or
    /// whose tasks gave up meanwhile.
    pub(super) fn orphans<'s>(&self, state: &'s State) -> Vec<&'s String> {
        let ids = state.entries().map(|entry| &entry.id);
        let ids = ids.filter(|id| self.context.ids.made(id) && !self.wants(id));
        ids.filter(|id| !self.is_left_to_the_server(id, state)).collect()
    }

    /// Takes out an entry that the document has, unless a task wants it or it leaves with the next operation anyway. A
    /// sweep that is planned for later stays, as another request may still come.
    pub(super) fn take_out_unwanted(&mut self, leaving: Leaving<H::Release>) {
        let now = self.context.now;
        let is_same = |planned: &Leaving<_>| planned.entry == leaving.entry && planned.not_before <= now;
        if !self.wants(&leaving.entry) && !self.leaving.iter().any(is_same) {
            self.leaving.push(leaving);
        }
    }

    /// Ends the holds that the document no longer has. A document with a smaller token is older than the hold, as is one
    /// before a hold was taken up under the token that it had.
    pub(super) fn compare_holds(&mut self, state: &State) {
        let is_older = |held: &Held<H>| {
            state.token < held.token || held.taken_up_at.is_some_and(|version| state.version < version)
        };
        let lost = |(entry, held): &(&String, &Held<H>)| !is_older(held) && !has(state, entry, held);
        let lost = self.holds.iter().filter(lost);
        let lost: Vec<_> = lost
            .map(|(entry, held)| (entry.clone(), lost_reason::of_absence(state, held.token)))
            .collect();
        for (entry, reason) in lost {
            self.lose(&entry, reason);
        }
    }
}

/// Whether the document has this hold.
fn has<H>(state: &State, entry: &str, held: &Held<H>) -> bool {
    state.holders.iter().any(|holder| holder.is_grant(entry, held.token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::wake::Signal,
        waitlist::{
            fixtures::{NOW, READER, in_context, queued, waitlist},
            waiting::Waiting,
        },
    };

    /// Another request may have come before its entry, which waits for the very reader that the task upgrades.
    #[tokio::test(start_paused = true)]
    async fn an_upgrade_asks_at_once_when_somebody_lines_up_behind_its_reader() {
        in_context(|context| {
            let later = context.now + Duration::from_secs(15);
            for (reader, asks) in [(Some("me-0"), true), (Some("me-9"), false), (None, false)] {
                let mut head: Waiting<u64> = queued(1, READER);
                head.wants.upgrades = reader.map(str::to_owned);
                let mut list = waitlist([head]);
                list.ask_at = Some(later);
                list.step(context).signalled("me-0", Signal::AskedFor, NOW);
                assert_eq!(list.ask_at == Some(context.now), asks, "{reader:?}");
            }
        });
    }
}
