//! A client, as `session::line` and `session::hold` are: the same rules, without the timers that say when.
//!
//! Whatever a timer would start (asking again, renewing, sweeping, noticing a deadline) is an action that the checker may
//! take at any time or never, so a client that freezes and thaws late is one for which it takes none for a while.

use super::rules::{CLAIM, EPOCH, KEEP, LEASE, Rules, SKEW};
use crate::protocol::{
    Evict, Expects, Kind, Operation, Owner, Request, Requests, ServerTime, State,
    wake::{self, Signal},
};

/// Longer than anything that is reckoned with; what is older is all the same.
pub(super) const LONG: i64 = LEASE + 1;

/// How often an entry of unknown outcome is taken out once more.
const SWEEPS: u8 = 1;

/// One process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Client {
    /// Its number, and how often it was started again.
    pub(super) number: usize,
    /// How many permits it asks for.
    pub(super) permits: i64,
    pub(super) session: String,
    starts: u32,
    pub(super) ids: u32,
    pub(super) clock: Option<Clock>,
    /// It does nothing, and time goes on.
    pub(super) frozen: bool,
    /// Its change stream is late.
    pub(super) lags: bool,
    /// One before every lock.
    pub(super) lines: Vec<Line>,
}

/// What it knows of the server's clock: `session::clock`, but that the reference never gets old.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clock {
    pub(super) round_trip: i64,
    /// The server's clock less our own, at most.
    pub(super) ahead: i64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    /// How many more acquires it may begin.
    pub(super) acquires: u8,
    pub(super) waiting: Vec<Pending>,
    pub(super) holds: Vec<Hold>,
    pub(super) leaving: Vec<Leave>,
    pub(super) under_way: Option<Vec<Leave>>,
    pub(super) alone_at: Option<i64>,
    /// Nothing is sent before a timer says so.
    pub(super) paused: bool,
    /// The queue had no room. The next knock is a request in full, or one that takes room for granted.
    pub(super) full: Option<Knock>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Knock {
    InFull,
    ForRoom,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pending {
    pub(super) id: String,
    pub(super) permits: i64,
    pub(super) wait: bool,
    pub(super) sent: bool,
    pub(super) queued: bool,
    pub(super) above: i64,
    pub(super) uncertain: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    pub(super) id: String,
    pub(super) permits: i64,
    pub(super) token: i64,
    pub(super) uncertain: bool,
    pub(super) deadline: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leave {
    pub(super) id: String,
    pub(super) held: bool,
    /// What it was used as is known: not so of an entry that only an event told of.
    pub(super) used: bool,
    pub(super) uncertain: bool,
    pub(super) not_before: i64,
    pub(super) sweep: u8,
}

/// What the server answered to an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer<'a> {
    pub(super) state: Option<&'a State>,
    pub(super) sent: i64,
    /// The server's clock as it was answered.
    pub(super) at: ServerTime,
}

/// What a line may know of the world outside it.
pub(super) struct Context<'a> {
    pub(super) now: i64,
    pub(super) rules: &'a Rules,
    pub(super) used: (Kind, i64),
    pub(super) session: &'a str,
    pub(super) ids: &'a mut u32,
    pub(super) clock: Option<Clock>,
}

impl Context<'_> {
    fn id(&mut self) -> String {
        *self.ids += 1;
        format!("{}-{}", self.session, self.ids)
    }

    fn made(&self, id: &str) -> bool {
        made(self.session, id)
    }
}

fn made(session: &str, id: &str) -> bool {
    id.strip_prefix(session).is_some_and(|rest| rest.starts_with('-'))
}

impl Client {
    pub(super) fn new(number: usize, permits: i64, locks: usize, acquires: u8) -> Self {
        Self {
            number,
            permits,
            session: format!("{number}s0"),
            starts: 0,
            ids: 0,
            clock: None,
            frozen: false,
            lags: false,
            lines: vec![
                Line {
                    acquires,
                    ..Line::default()
                };
                locks
            ],
        }
    }

    /// Forgets everything, and is another session from now on.
    pub(super) fn crash(&mut self) {
        self.starts += 1;
        self.session = format!("{}s{}", self.number, self.starts);
        (self.ids, self.clock) = (0, None);
        (self.frozen, self.lags) = (false, false);
        for line in &mut self.lines {
            *line = Line {
                acquires: line.acquires,
                ..Line::default()
            };
        }
    }

    /// Runs `step` on the line before a lock.
    pub(super) fn with<T>(
        &mut self,
        lock: usize,
        (now, rules, used): (i64, &Rules, (Kind, i64)),
        step: impl FnOnce(&mut Line, &mut Context<'_>) -> T,
    ) -> T {
        let mut context = Context {
            now,
            rules,
            used,
            session: &self.session,
            ids: &mut self.ids,
            clock: self.clock,
        };
        step(&mut self.lines[lock], &mut context)
    }

    /// Whether an entry is of its present session.
    pub(super) fn made(&self, id: &str) -> bool {
        made(&self.session, id)
    }

    pub(super) fn note(&mut self, sent: i64, received: i64, at: ServerTime) {
        let round_trip = (received - sent).min(LONG);
        if self.clock.is_none_or(|clock| round_trip <= clock.round_trip) {
            // With more than this no grant is believed.
            let ahead = (at.0 - sent).min(EPOCH + SKEW + LONG);
            self.clock = Some(Clock { round_trip, ahead });
        }
    }
}

impl Hold {
    /// Whether its holder takes it for valid.
    pub(super) fn is_believed(&self, now: i64, rules: &Rules) -> bool {
        now < self.deadline || !rules.looks_at_the_clock
    }

    pub(super) fn renewed(&mut self, deadline: i64, now: i64, rules: &Rules) {
        if self.is_believed(now, rules) {
            self.deadline = self.deadline.max(deadline);
        }
    }
}

impl Line {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.holds.is_empty() && self.leaving.is_empty() && self.under_way.is_none()
    }

    pub(super) fn join(&mut self, permits: i64, wait: bool, context: &mut Context<'_>) {
        if !wait && !self.waiting.is_empty() {
            return;
        }
        self.waiting.push(Pending {
            id: context.id(),
            permits,
            wait,
            sent: false,
            queued: false,
            above: 0,
            uncertain: false,
        });
    }

    /// A task gives up, by its place in the line.
    pub(super) fn cancel(&mut self, place: usize, context: &Context<'_>) {
        let pending = self.waiting.remove(place);
        if context.rules.leaves_when_giving_up {
            self.abandon(pending, context);
        }
    }

    fn abandon(&mut self, pending: Pending, context: &Context<'_>) {
        if pending.queued || pending.uncertain || (pending.sent && self.under_way.is_some()) {
            self.leave(pending.id, true, false, pending.uncertain, context);
        }
    }

    /// A holder lets go: by release, by drop, or because its time is over.
    pub(super) fn let_go(&mut self, place: usize, context: &Context<'_>) {
        let hold = self.holds.remove(place);
        self.leave(hold.id, true, true, hold.uncertain, context);
    }

    fn leave(&mut self, id: String, used: bool, held: bool, unsettled: bool, context: &Context<'_>) {
        self.leaving.push(Leave {
            id,
            held,
            used,
            uncertain: false,
            not_before: context.now,
            sweep: if unsettled { 0 } else { SWEEPS },
        });
    }

    /// Whether something goes out without a timer.
    pub(super) fn wants_to_send(&self, now: i64) -> bool {
        let due = || self.leaving.iter().any(|leave| leave.not_before <= now);
        self.under_way.is_none() && !self.paused && (self.waiting.first().is_some_and(|head| !head.queued) || due())
    }

    /// Whether a timer has cause to go off.
    pub(super) fn may_ask(&self, now: i64) -> bool {
        self.under_way.is_none()
            && (!self.waiting.is_empty() || self.leaving.iter().any(|leave| leave.not_before <= now))
    }

    /// The next operation. `timer`: a pause is over, and who is queued asks again.
    pub(super) fn next(&mut self, timer: bool, number: u32, context: &mut Context<'_>) -> Option<Operation> {
        self.paused &= !timer;
        if self.under_way.is_some() || self.paused {
            return None;
        }
        let (leaves, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|leave| leave.not_before <= context.now);
        self.leaving = later;
        let knocks = self.full.is_none() || context.rules.knocks_again;
        let asks = self
            .waiting
            .first()
            .is_some_and(|head| if head.queued { timer } else { knocks });
        if leaves.is_empty() && !asks {
            return None;
        }
        let used = !leaves.is_empty() && leaves.iter().all(|leave| leave.used);
        let together = leaves.is_empty() || (used && !self.waiting.is_empty());
        let letting_go = leaves.iter().any(|leave| leave.held);
        let expects = self.expects(&leaves, context);
        let operation = Operation {
            id: format!("{}.{number}", context.session),
            leave: leaves.iter().map(|leave| leave.id.clone()).collect(),
            leave_capacity: used.then_some(context.used.1),
            evict: Evict::Nobody,
            proclaim: None,
            requests: together.then(|| self.requests(letting_go, context)).flatten(),
            expects,
            room: context.rules.room,
            keep: KEEP,
        };
        self.under_way = Some(leaves);
        Some(operation)
    }

    fn expects(&self, leaves: &[Leave], context: &Context<'_>) -> Expects {
        let one = context.used.1 == 1;
        match (leaves, self.waiting.len()) {
            ([], 1..) if self.full == Some(Knock::ForRoom) && self.waiting[0].wait && !self.waiting[0].queued => {
                Expects::Room
            }
            ([], 1) if one && !self.waiting[0].sent && self.alone_at.is_some() => Expects::Alone,
            ([leave], 0) if one && leave.used && leave.held && !leave.uncertain && leave.sweep == SWEEPS => {
                if self.alone_at == Some(context.now) {
                    Expects::Alone
                } else {
                    Expects::Holding
                }
            }
            _ => Expects::Nothing,
        }
    }

    fn requests(&mut self, letting_go: bool, context: &Context<'_>) -> Option<Requests> {
        let head_queued = self.waiting.first()?.queued;
        let mut entries = Vec::new();
        let mut permits = 0;
        for (position, pending) in self.waiting.iter_mut().enumerate() {
            permits += pending.permits;
            if position > 0 && pending.queued {
                continue;
            }
            let follows = position == 1 && letting_go && head_queued && pending.wait;
            if position > 0 && !follows && permits > context.used.1 {
                break;
            }
            entries.push(Request {
                id: pending.id.clone(),
                permits: pending.permits,
                lease: LEASE,
                claim: CLAIM,
                wait: pending.wait && (position == 0 || follows),
                fresh: !pending.sent,
                owner: Owner::default(),
            });
            pending.sent = true;
        }
        Some(Requests {
            kind: context.used.0,
            capacity: context.used.1,
            entries,
            adopts: None,
        })
    }

    pub(super) fn answered(&mut self, operation: &Operation, answer: &Answer<'_>, context: &mut Context<'_>) {
        self.paused = false;
        self.alone_at = None;
        let left = answer.state.and_then(|state| wake::left(&state.wake, &operation.id));
        if operation.expects == Expects::Alone && left.is_none() {
            self.leaving.extend(self.under_way.take().unwrap_or_default());
            for pending in &mut self.waiting {
                pending.sent &= !operation.asks_for(&pending.id);
            }
            return;
        }
        if operation.expects == Expects::Room && answer.state.is_none() {
            self.under_way = None;
            return self.knock_later(context);
        }
        for leave in self.under_way.take().unwrap_or_default() {
            if leave.sweep < SWEEPS {
                self.leaving.push(Leave {
                    not_before: context.now + 1,
                    sweep: leave.sweep + 1,
                    ..leave
                });
            }
        }
        let Some(state) = answer.state else { return };
        for entry in operation.requests.iter().flat_map(|requests| &requests.entries) {
            self.requested(entry, state, answer, context);
        }
        let ours = |id: &String| self.holds.iter().any(|hold| hold.id == *id);
        let alone = state.queue.is_empty() && state.holders.iter().all(|holder| ours(&holder.id));
        self.alone_at = alone.then_some(context.now);
        self.compare_holds(state);
        self.take_out_strangers(state, context);
    }

    fn requested(&mut self, entry: &Request, state: &State, answer: &Answer<'_>, context: &mut Context<'_>) {
        let Some(position) = self.waiting.iter().position(|pending| pending.id == entry.id) else {
            return;
        };
        if let Some(holder) = state.holders.iter().find(|holder| holder.id == entry.id) {
            let counted_from = if context.rules.counts_from_sending {
                answer.sent
            } else {
                context.now
            };
            let safe_until = (counted_from + holder.until.0 - answer.at.0).min(context.now + LEASE);
            return self.grant(position, holder.token, Some(safe_until), context);
        }
        if state.queue.iter().any(|waiter| waiter.id == entry.id) {
            let pending = &mut self.waiting[position];
            (pending.queued, pending.above) = (true, state.token);
            self.full = None;
        } else if !entry.wait {
            if !self.waiting[position].wait {
                // An earlier request may still find the lock free.
                let pending = self.waiting.remove(position);
                self.abandon(pending, context);
            }
        } else {
            self.waiting[position].queued = false;
            if state.queue.len() >= context.rules.room {
                self.knock_later(context);
            } else {
                self.paused = true;
            }
        }
    }

    fn knock_later(&mut self, context: &Context<'_>) {
        self.paused = true;
        let next = match self.full {
            Some(Knock::ForRoom) if context.rules.knocks_in_full => Knock::InFull,
            _ => Knock::ForRoom,
        };
        self.full = Some(next);
    }

    fn grant(&mut self, position: usize, token: i64, safe_until: Option<i64>, context: &mut Context<'_>) {
        let deadline = safe_until
            .map(|until| until - context.rules.margin)
            .filter(|deadline| *deadline > context.now || !context.rules.refuses_late_news);
        let Some(mut deadline) = deadline else {
            return self.ask_anew(position, true, context);
        };
        if !context.rules.refuses_late_news {
            deadline = deadline.max(context.now + CLAIM - context.rules.margin);
        }
        self.full = None;
        let pending = self.waiting.remove(position);
        self.holds.push(Hold {
            id: pending.id,
            permits: pending.permits,
            token,
            uncertain: pending.uncertain,
            deadline,
        });
    }

    fn ask_anew(&mut self, position: usize, unsettled: bool, context: &mut Context<'_>) {
        let id = context.id();
        let pending = &mut self.waiting[position];
        let stale = std::mem::replace(&mut pending.id, id);
        let unsettled = unsettled || pending.uncertain;
        (pending.sent, pending.queued, pending.above) = (true, false, 0);
        self.leave(stale, true, false, unsettled, context);
    }

    /// Holds that the document no longer has are lost.
    pub(super) fn compare_holds(&mut self, state: &State) {
        self.holds.retain(|hold| {
            let there = |hold: &Hold| {
                let mut holders = state.holders.iter();
                holders.any(|holder| holder.id == hold.id && holder.token == hold.token)
            };
            hold.token > state.token || there(hold)
        });
    }

    fn take_out_strangers(&mut self, state: &State, context: &Context<'_>) {
        let holders = state.holders.iter().map(|holder| &holder.id);
        let ids = holders.chain(state.queue.iter().map(|waiter| &waiter.id));
        let strangers: Vec<String> = ids.filter(|id| context.made(id) && !self.knows(id)).cloned().collect();
        for id in strangers {
            self.leave(id, true, false, false, context);
        }
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.holds.iter().any(|hold| hold.id == id)
            || self.waiting.iter().any(|pending| pending.id == id)
            || self.leaving.iter().any(|leave| leave.id == id)
    }

    /// The outcome of an operation is unknown.
    pub(super) fn failed(&mut self, operation: &Operation, context: &Context<'_>) {
        self.alone_at = None;
        self.paused = true;
        // A try is told when it has failed once more.
        let (told, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|pending| operation.asks_for(&pending.id) && !pending.wait && pending.uncertain);
        self.waiting = rest;
        let leaves = self.under_way.take().unwrap_or_default();
        self.leaving.extend(leaves.into_iter().map(|leave| Leave {
            uncertain: true,
            ..leave
        }));
        for pending in self
            .waiting
            .iter_mut()
            .filter(|pending| operation.asks_for(&pending.id))
        {
            pending.uncertain = true;
        }
        for hold in self.holds.iter_mut().filter(|hold| operation.asks_for(&hold.id)) {
            hold.uncertain = true;
        }
        for leave in self.leaving.iter_mut().filter(|leave| operation.asks_for(&leave.id)) {
            leave.sweep = 0;
        }
        for pending in told {
            self.abandon(pending, context);
        }
    }

    /// A write of somebody else, at a time of the server, that names one of our entries.
    pub(super) fn signalled(&mut self, id: &str, signal: Signal, at: ServerTime, context: &mut Context<'_>) {
        let waiting = self.waiting.iter().position(|pending| pending.id == id);
        match (signal, waiting) {
            (Signal::Granted { token }, Some(position)) if token <= self.waiting[position].above => {}
            (Signal::Granted { token }, Some(position)) => {
                let until = context.clock.map(|clock| at.0 + CLAIM - clock.ahead);
                let safe_until = until.map(|until| until.min(context.now + CLAIM));
                self.grant(position, token, safe_until, context);
            }
            (Signal::Granted { .. }, None) => {
                let leaves = self.under_way.iter().flatten().any(|leave| leave.id == id);
                if !leaves && !self.knows(id) {
                    self.leave(id.to_owned(), false, true, false, context);
                }
            }
            // Nobody has an owner id here.
            (Signal::Adopted, _) => {}
            (Signal::Evicted { token }, Some(position)) if token <= self.waiting[position].above => {}
            (Signal::Evicted { .. }, Some(position)) => self.ask_anew(position, false, context),
            (Signal::Evicted { token }, None) => {
                let mut holds = self.holds.iter();
                let broken = |hold: &Hold| hold.token == token || !context.rules.tells_grants_apart;
                if let Some(position) = holds.position(|hold| hold.id == id && broken(hold)) {
                    let hold = self.holds.remove(position);
                    if self.under_way.is_some() || hold.uncertain {
                        self.leave(hold.id, true, false, hold.uncertain, context);
                    }
                }
            }
        }
    }
}
