//! The end of an operation: its answer, or its failure.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Context, Effect, Grant, Hold, Key, Leaving, Refusal, Setback, Stage, Step, Waiting, Waitlist, deadline, timing,
    unsigned,
};
use crate::{
    backoff::Backoff,
    lost_reason::LostReason,
    protocol::{
        Exchange, Expects, Kept, Operation, Request, Requests, ServerTime, State,
        wake::{self, Left},
    },
    waitlist::How,
};

/// Maximum number of races for a new document lost in a row: after that some other unique index is in the way.
pub const RACES: u32 = 8;

/// Maximum time for which a try waits for the server, where the caller set no timeout: its request may have to be sent
/// several times, and wait for a slot behind others.
pub const TRY_FOR: Duration = Duration::from_secs(10);

impl<H: Hold> Step<'_, H> {
    /// Adds the hold of a claim, which took a document without entries. No task in line is to join it: documents are
    /// never re-entered.
    pub fn claimed(&mut self, entry: String, grant: &Grant, exchange: &Exchange) -> Arc<H> {
        self.alone_at = Some(read_by(exchange, self.context));
        self.hold(entry, grant, false)
    }

    /// Adds the hold that this client has taken up under an entry of its own.
    pub fn attached(&mut self, entry: String, grant: &Grant, version: i64) -> Arc<H> {
        let hold = self.hold(entry.clone(), grant, false);
        if let Some(held) = self.holds.get_mut(&entry) {
            held.taken_up_at = Some(version);
        }
        hold
    }

    /// Notes the answer to the operation that is on its way; `state` is `None` if there is no document.
    pub fn answered(&mut self, operation: &Operation, state: Option<&State>, exchange: &Exchange) {
        self.retry_at = None;
        self.take_in(operation, state, exchange);
        if self.retry_at.is_none() {
            self.backoff = Backoff::default();
        }
        self.let_reenter();
        self.share();
    }

    fn take_in(&mut self, operation: &Operation, state: Option<&State>, exchange: &Exchange) {
        let context = self.context;
        self.races = 0;
        self.overdue = 0;
        self.alone_at = None;
        let left = state.and_then(|state| wake::left(&state.wake, &operation.id));
        // An entry that is there shows the grant, also where others have written since.
        let is_there = state.is_some_and(|state| asked_for(operation, state).next().is_some());
        if operation.expects == Expects::Alone && left.is_none() && !is_there {
            // The document has other entries, or none of ours: nothing was written, and the full operation follows.
            let leaves = self.under_way.take().unwrap_or_default();
            self.leaving.extend(leaves);
            for waiting in self.waiting.iter_mut().filter(|it| operation.asks_for(&it.entry)) {
                waiting.stage = Stage::New;
            }
            return self.see(state);
        }
        let handed_over = self.departed(left.into_iter().flatten(), state, exchange);
        let Some(state) = state else {
            // There is no document, and none may be made.
            self.missing(operation);
            return self.see(None);
        };
        if let Some(requests) = &operation.requests {
            for waiting in self.waiting.iter_mut().filter(|it| operation.asks_for(&it.entry)) {
                if handed_over {
                    waiting.how = How::Local;
                }
            }
            for entry in &requests.entries {
                self.requested(entry, requests, state, exchange);
            }
        }
        self.answer_tries(operation, state, exchange);
        let ours = |id: &String| self.holds.contains_key(id);
        let alone = state.queue.is_empty() && state.holders.iter().all(|holder| ours(&holder.id));
        // A request by another number than the one that was set would expect a lock of one permit in vain.
        let alone = alone && (!state.is_set || state.capacity == 1);
        self.alone_at = alone.then_some(read_by(exchange, context));
        self.compare_holds(state);
        self.compare_expired(state);
        self.take_out_orphans(state);
        self.plan_asking(state, exchange.now);
        if self.overtaken {
            self.doubt_everything();
        }
        self.see(Some(state));
    }

    /// Notes what became of the entries that the operation was to take out; `left` has that for each, in their order.
    /// Returns whether one of them was a holder, so that the lock was let go of.
    fn departed(&mut self, mut left: impl Iterator<Item = Left>, state: Option<&State>, exchange: &Exchange) -> bool {
        let mut handed_over = false;
        for mut leaving in self.under_way.take().into_iter().flatten() {
            let found = match left.next().unwrap_or(Left::Nowhere) {
                Left::Nowhere if leaving.repeated => {
                    let was_taken = leaving.token.zip(state).map(|(token, state)| state.was_taken(token));
                    match was_taken.unwrap_or(Some(false)) {
                        // Our earlier try took it out: its answer was lost on the way.
                        Some(false) => Some(Left::Holder),
                        Some(true) => Some(Left::Nowhere),
                        None => None,
                    }
                }
                found => Some(found),
            };
            let found = match (found, leaving.left_as.kept()) {
                (Some(Left::Holder), Some(kept)) => Some(kept_or_lost(kept, state, exchange.now)),
                (found, _) => found,
            };
            handed_over |= found == Some(Left::Holder);
            let to = leaving.release.take();
            self.effects.extend(to.map(|to| Effect::Released { to, found }));
            self.sweep_after(leaving);
        }
        handed_over
    }

    /// Notes whether other clients wait; that none does, for as long as a task of ours waits.
    fn see(&mut self, state: Option<&State>) {
        let context = self.context;
        // This holds even if the event with the same news is lost.
        let wait = state.map(|state| others_wait(state, context));
        if wait == Some(true) {
            self.hand_on_no_more();
        }
        self.others_wait = wait.filter(|wait| *wait || !self.waiting.is_empty());
    }

    fn doubt_everything(&mut self) {
        self.doubt();
        let list = &mut *self.list;
        let held = list.holds.values().flat_map(|held| &held.tasks);
        list.effects.extend(held.cloned().map(Effect::Doubted));
    }

    /// Answers the tasks that asked where there is no document to lock. Of an upgrade the reader is lost with it: it was
    /// held before the operation was sent.
    fn missing(&mut self, operation: &Operation) {
        for (_, reader) in operation.upgrades() {
            self.lose(reader, LostReason::Deleted);
        }
        let in_full = operation.expects == Expects::Nothing && operation.requests.is_some();
        // Where others may make one, the next operation asks for the tries that were not in this one.
        let is_decided = |waiting: &Waiting<H::Task>| operation.creates() && waiting.is_covered_try();
        let asked = |waiting: &Waiting<H::Task>| operation.asks_for(&waiting.entry) || is_decided(waiting);
        for waiting in self.take_waiting(|waiting| in_full && asked(waiting)) {
            // An earlier request may still find a document.
            self.abandon(&waiting);
            self.refuse(waiting, Refusal::Missing);
        }
    }

    /// Notes the document's view of one requested entry.
    fn requested(&mut self, entry: &Request, requests: &Requests, state: &State, exchange: &Exchange) {
        let context = self.context;
        // It was cancelled meanwhile, and leaves with the next operation; or an event granted it.
        let Some(position) = self.waiting.iter().position(|waiting| waiting.entry == entry.id) else {
            return;
        };
        if let Some(holder) = state.holders.iter().find(|holder| holder.id == entry.id) {
            if holder.is_kept() {
                // Nothing here released it, so another program wrote that.
                return self.ask_anew(position, true);
            }
            let lease = self.waiting[position].lease;
            let deadline = deadline::of_answer(
                exchange,
                holder.until,
                lease.length,
                context.clock,
                context.now,
                context.config,
            );
            let renew_at = deadline.and_then(|deadline| timing::first_renewal(&lease, holder, deadline, context));
            let handing_on = self.handing_on(position, entry, state, exchange.sent);
            self.waiting[position].capacity = state.capacity;
            self.grant(position, holder.token, deadline, renew_at);
            // A grant that is not believed has another entry by now.
            if let Some(held) = self.holds.get_mut(&entry.id) {
                held.handing_on = handing_on;
            }
            return;
        }
        let waiting = &mut self.waiting[position];
        waiting.how = How::Asking;
        let key = waiting.key;
        if state.queue.iter().any(|waiter| waiter.id == entry.id) {
            (waiting.stage, waiting.above) = (Stage::Queued, state.token);
            waiting.capacity = state.capacity;
            self.is_full = false;
        } else if state.refuses((requests.kind, requests.capacity), requests.by, entry.permits) {
            let wanted = waiting.wants.used;
            // An earlier request may still find the lock in another use again.
            let to = self.cancel(key);
            let why = Refusal::Mismatched {
                wanted,
                permits: entry.permits,
            };
            self.effects.extend(to.map(|to| Effect::Refused { to, why }));
        } else if entry.wait {
            waiting.stage = Stage::Asked;
            if state.queue.len() >= context.room {
                self.keep_out();
            } else if self.retry_at.is_none() {
                // Nothing shows why.
                self.retry_at = Some(context.now + self.backoff.failed());
            }
        }
        // A waiter behind others in line was only tried beside them, and tries are answered together.
    }

    /// Answers the tries that came before the operation was sent, whether it asked for them or not: those with a holder
    /// or a waiter in their way, by the document that it left behind, are denied. The others go into the next operation.
    ///
    /// Of several entries that were asked for together, a large one that did not fit kept the smaller ones behind it out,
    /// which is no reason to deny those. The first that was not granted was kept out by the lock, or by an orphan.
    fn answer_tries(&mut self, operation: &Operation, state: &State, exchange: &Exchange) {
        let context = self.context;
        if !self.may_have_tries {
            return;
        }
        // They leave with the next operation.
        let orphans = self.orphans(state);
        let tries = std::mem::take(&mut self.waiting);
        // An operation that found the lock in another use wrote nothing, and left what is over where it was.
        let stays = |id: &String, until| exchange.now.is_none_or(|now| until > now) && !orphans.contains(&id);
        let holders = || state.holders.iter().filter(|holder| stays(&holder.id, holder.until));
        let queue = || state.queue.iter().filter(|waiter| stays(&waiter.id, waiter.until));
        let held = holders().fold(0_i64, |held, holder| held.saturating_add(holder.permits));
        let free = state.capacity.saturating_sub(held);
        let others = queue().filter(|waiter| !context.ids.made(&waiter.id)).count();
        let is_queue = queue().next().is_some();
        let is_free = holders().next().is_none() && !is_queue;
        let is_granted = |entry: &Request| state.holders.iter().any(|holder| holder.id == entry.id);
        let asked = operation.requests.iter().flat_map(|requests| &requests.entries);
        let mut asked = asked.filter(|_| orphans.is_empty());
        let first = asked.find(|entry| !is_granted(entry)).map(|entry| &entry.id);
        let mut before = others;
        for waiting in tries {
            let wanted = waiting.wants.used;
            let fits = is_free || (!is_queue && waiting.wants.permits <= free);
            if !waiting.is_covered_try() {
                before += usize::from(waiting.waits());
                self.waiting.push_back(waiting);
            } else if (state.is_set || !is_free) && state.refuses(wanted, waiting.wants.by, waiting.wants.permits) {
                self.abandon(&waiting);
                let permits = waiting.wants.permits;
                self.refuse(waiting, Refusal::Mismatched { wanted, permits });
            } else if first == Some(&waiting.entry) || !fits {
                // An earlier request may still find the lock free.
                self.abandon(&waiting);
                // The same answer may have granted a hold that it may join.
                match self.reenter(&waiting) {
                    Some(hold) => self.effects.push(Effect::Granted { to: waiting.to, hold }),
                    None => {
                        let before = if waiting.upgrades() { 0 } else { before };
                        self.refuse(waiting, Refusal::Denied { before });
                    }
                }
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }

    pub(super) fn grant(&mut self, position: usize, token: i64, deadline: Option<Instant>, renew_at: Option<Instant>) {
        let context = self.context;
        let Some(deadline) = deadline.filter(|deadline| *deadline > context.now) else {
            // The news came too late to be believed.
            return self.ask_anew(position, true);
        };
        let Some(waiting) = self.waiting.remove(position) else {
            return;
        };
        // The next head asks now, unless the answer that shows the grant says more. Where it is queued already, it got in
        // line together with a release: nobody confirmed its entry while another was the head, and it may fit beside this
        // hold.
        self.ask_at = None;
        let list = &mut *self.list;
        if let Some(prospect) = list.prospect.take_if(|prospect| prospect.entry == waiting.entry) {
            list.note_pace(prospect.pace_until(context.now), context);
        }
        self.is_full = false;
        // The tokens that an older hold has left are smaller.
        self.hand_on_no_more();
        // The queue has changed since it was seen.
        self.others_wait = None;
        let grant = Grant {
            token,
            granted_as: token,
            used: (waiting.wants.used.0, waiting.capacity),
            permits: unsigned(waiting.wants.permits),
            lease: waiting.lease,
            how: waiting.how,
            deadline,
            renew_at,
        };
        let hold = self.hold(waiting.entry, &grant, waiting.uncertain);
        self.effects.push(Effect::Granted { to: waiting.to, hold });
    }

    /// Asks again for a waiter with a new entry, so that no trace of the old one can be mistaken for it. A request for the
    /// old one `may_return` to the server; then it leaves more than once.
    pub(super) fn ask_anew(&mut self, position: usize, may_return: bool) {
        let context = self.context;
        let waiting = &mut self.waiting[position];
        let stale = std::mem::replace(&mut waiting.entry, context.ids.entry());
        let uncertain = may_return || waiting.uncertain;
        // Not as a first request: a first request goes to the end, behind the entries that were only tried beside this
        // one.
        (waiting.stage, waiting.above) = (Stage::Asked, 0);
        (waiting.how, waiting.covered) = (How::Asking, false);
        let leaving = Leaving {
            used: Some(waiting.wants.used),
            sweep: uncertain.then_some(0),
            ..Leaving::new(stale, waiting.lease.length, context)
        };
        self.leaving.push(leaving);
    }

    /// Notes that the operation on its way has failed.
    pub fn failed(&mut self, operation: &Operation, setback: Setback) {
        self.alone_at = None;
        // The plan stays, as nothing new is known.
        let told = self.told_of(operation, setback);
        let leaves = self.under_way.take().unwrap_or_default();
        match setback {
            Setback::Raced if self.races < RACES => {
                self.races += 1;
                self.leaving.extend(leaves);
                return;
            }
            Setback::Raced | Setback::Refused | Setback::Unreadable => {
                let releases = leaves.into_iter().filter_map(|leaving| leaving.release);
                self.effects
                    .extend(releases.map(|to| Effect::Released { to, found: None }));
            }
            // The server answers, so there is nothing to wait for.
            Setback::Unsaid => self.outcome_unknown(operation, leaves),
            Setback::NoServer | Setback::Overdue | Setback::Unanswered | Setback::Interrupted => {
                self.back_off(setback);
                self.outcome_unknown(operation, leaves);
            }
        }
        for mut waiting in self.take_waiting(|waiting| told.contains(&waiting.key)) {
            waiting.uncertain |= setback == Setback::Unreadable && operation.asks_for(&waiting.entry);
            self.abandon(&waiting);
            self.refuse(waiting, Refusal::Failed);
        }
    }

    /// Returns the tasks for which the operation is not repeated.
    ///
    /// A waiter asks until it is granted or gives up; a refusal ends it. A try ends when it has failed once more: a
    /// fail-over or a cut connection fails every command on its way, and the next one comes through. Without an answer
    /// in time, several may have to be sent until one gets an answer: the caller limits that ([`TRY_FOR`]). All tries in
    /// line end in this way, whether it was their turn to be asked for or not: their requests would fare no better.
    fn told_of(&self, operation: &Operation, setback: Setback) -> HashSet<Key> {
        let used = operation
            .requests
            .as_ref()
            .map(|requests| (requests.kind, requests.capacity));
        let in_vain = |waiting: &Waiting<H::Task>| match setback {
            Setback::NoServer => true,
            Setback::Unanswered | Setback::Overdue => false,
            _ => waiting.let_down,
        };
        let told = self.waiting.iter().filter(|it| match setback.is_final() {
            true => operation.asks_for(&it.entry) || (it.is_covered_try() && used == Some(it.wants.used)),
            false => it.is_covered_try() && in_vain(it),
        });
        told.map(|waiting| waiting.key).collect()
    }

    fn back_off(&mut self, setback: Setback) {
        let context = self.context;
        if setback == Setback::Unanswered {
            // The wait for the answer was pause enough.
            self.retry_at = None;
            return;
        }
        self.overdue = match setback {
            Setback::Overdue => self.overdue.saturating_add(1),
            _ => 0,
        };
        self.retry_at = Some(context.now + self.backoff.failed());
    }

    /// Notes that the operation may have been applied, or may still be: entries leave once more, and requests count
    /// as uncertain.
    fn outcome_unknown(&mut self, operation: &Operation, leaves: Vec<Leaving<H::Release>>) {
        let context = self.context;
        for leaving in leaves {
            if leaving.give_up > context.now {
                let repeated = true;
                self.leaving.push(Leaving { repeated, ..leaving });
            } else if let Some(to) = leaving.release {
                self.effects.push(Effect::Released { to, found: None });
            }
        }
        for waiting in &mut self.waiting {
            waiting.uncertain |= operation.asks_for(&waiting.entry);
            waiting.let_down |= waiting.covered;
        }
        // Granted by an event while the request was on its way.
        for (entry, held) in &mut self.holds {
            held.uncertain |= operation.asks_for(entry);
        }
        // Given up while the request was on its way.
        for leaving in self.leaving.iter_mut().filter(|it| operation.asks_for(&it.entry)) {
            leaving.sweep = Some(0);
        }
    }

    /// Notes the late answer to an operation that was given up, which put in an entry of ours. Takes out entries
    /// that no task wants any more.
    pub fn applied_late(&mut self, operation: &Operation, state: &State) {
        let context = self.context;
        let ids = asked_for(operation, state).filter(|id| !self.is_left_to_the_server(id, state));
        let ids: Vec<String> = ids.map(str::to_owned).collect();
        for id in ids {
            let leases = operation.requests.iter().flat_map(|it| &it.entries);
            let lease = leases.map(|entry| unsigned(entry.lease)).max().unwrap_or(0);
            self.take_out_unwanted(Leaving {
                used: Some((state.kind, state.capacity)),
                may_hold: true,
                ..Leaving::new(id, Duration::from_millis(lease), context)
            });
        }
    }
}

impl<H: Hold> Waitlist<H> {
    fn take_waiting(&mut self, goes: impl Fn(&Waiting<H::Task>) -> bool) -> VecDeque<Waiting<H::Task>> {
        let (gone, stay) = std::mem::take(&mut self.waiting).into_iter().partition(goes);
        self.waiting = stay;
        gone
    }
}

/// Returns when the document was as an answer shows it.
fn read_by(exchange: &Exchange, context: &Context<'_>) -> Instant {
    let is_recent = exchange.received.saturating_duration_since(exchange.sent) <= timing::PROMPT;
    if is_recent { context.now } else { exchange.sent }
}

/// Returns the result of a leave of a hold that was to be kept, by the document after it.
///
/// An entry that is gone although its time is not over was not kept: its lease had ended, and somebody else may have
/// the lock since.
fn kept_or_lost(kept: &Kept, state: Option<&State>, now: Option<ServerTime>) -> Left {
    let mut holders = state.into_iter().flat_map(|state| &state.holders);
    if holders.any(|holder| holder.id == kept.id && holder.token == kept.token && holder.is_kept()) {
        Left::Kept
    } else if now.is_some_and(|now| kept.is_over(now)) {
        Left::Holder
    } else {
        Left::Nowhere
    }
}

/// Returns the entries in the document that the operation asked for.
pub fn asked_for<'a>(operation: &'a Operation, state: &'a State) -> impl Iterator<Item = &'a str> {
    let ids = state.entries().map(|entry| entry.id.as_str());
    ids.filter(|id| operation.asks_for(id))
}

/// Returns whether another client's task is in the queue.
pub(super) fn others_wait(state: &State, context: &Context<'_>) -> bool {
    state.queue.iter().any(|waiter| !context.ids.made(&waiter.id))
}
