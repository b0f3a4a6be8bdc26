//! The line before one lock: the tasks and holds of this process, around the [`Waitlist`] that decides for them.
//!
//! The waitlist knows tasks, releases and holds by keys and entries. The line has the channels that answer tasks and
//! releases, the holds that the handles look at, and the details that a task gets when it gives up: the last answer of
//! the server, or its last error.

mod calm;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

pub(super) use calm::PerTurn;
use calm::{Calm, Situation};

use super::{
    hold::Hold,
    holds::{HoldChange, Holds},
};
pub(crate) use crate::waitlist::{Context, Need, PositionLook, TimedOut};
use crate::{
    contention::{Contention, LastReport},
    error::{AcquireError, KindMismatch, ServerError},
    hold_options::Terms,
    protocol::{Ahead, Exchange, Kind, Operation, Owner, ServerTime, State, Use, document::Malformed, wake},
    status::LostReason,
    store::{Answer, Failure, LogTime, StoreError},
    waitlist::{
        self, Grant, Held, Key, Patience, Setback, Waiting, Waitlist,
        ids::Ids,
        letting_go::{Heir, LetGo, Release},
    },
};

/// Time without an answer after which a server is more than merely slow.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);

/// Maximum number of holds whose ages are compared after each event.
const COMPARED: usize = 8;

/// The outcome of an acquire.
pub(crate) type AcquireOutcome = Result<Option<Arc<Hold>>, AcquireError>;

/// The outcome of a release.
pub(crate) type ReleaseOutcome = Result<wake::Left, ServerError>;

/// A task that is about to get in line.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Its future finds it again by this.
    pub(crate) key: Key,
    /// Its entry in the document.
    id: String,
    options: AcquireOptions,
    pub(crate) to: oneshot::Sender<AcquireOutcome>,
}

impl Pending {
    pub(crate) fn new(key: Key, id: String, options: AcquireOptions, to: oneshot::Sender<AcquireOutcome>) -> Self {
        Self { key, id, options, to }
    }
}

/// The options of an acquire.
#[derive(Clone, Debug)]
pub(crate) struct AcquireOptions {
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) permits: i64,
    /// Whether it waits for its turn; otherwise it is a try.
    pub(crate) wait: bool,
    /// Whether a failed try returns [`AcquireError::Held`] rather than `None`.
    pub(crate) reports_contention: bool,
    /// Whether a hold of this client with the same use will do.
    pub(crate) reentrant: bool,
    pub(crate) terms: Terms,
    pub(crate) owner: Owner,
}

/// A waiting task: its channel, and the kind of answer it wants.
#[derive(Debug)]
struct Task {
    to: oneshot::Sender<AcquireOutcome>,
    reports_contention: bool,
    /// The use and permits of a hold that it may join.
    reenters: Option<(Use, i64)>,
}

/// The situation of a task in line, by the last news.
#[derive(Debug)]
pub(crate) struct Standing {
    last_answer: Option<LastAnswer>,
    /// Whether the server's queue had no room for this client.
    full: bool,
    /// Number of waiters ahead of it.
    before: usize,
    trouble: Option<StoreError>,
    age: Duration,
}

impl Standing {
    /// Turns it into error details. Outside of the line, as it copies strings.
    pub(crate) fn report(self, ids: &Ids) -> (Option<Contention>, Option<StoreError>) {
        let contention = self.last_answer.map(|seen| {
            let sighting = LastReport {
                state: &seen.state,
                as_of: seen.as_of,
                age: self.age,
            };
            Contention {
                queue_full: self.full,
                ..Contention::new(&sighting, self.before, |id| ids.made(id))
            }
        });
        (contention, self.trouble)
    }
}

/// The last answer of the server.
#[derive(Clone, Debug)]
struct LastAnswer {
    state: Arc<State>,
    as_of: ServerTime,
    at: Instant,
}

/// An action owed to the outside, to be taken when the mutex is released.
#[derive(Debug)]
pub(crate) enum LineEffect {
    Answer(oneshot::Sender<AcquireOutcome>, AcquireOutcome),
    Released(oneshot::Sender<ReleaseOutcome>, ReleaseOutcome),
    Lost(Arc<Hold>, LostReason),
    /// The document has to be read to see whether the hold is still there.
    Doubted(Arc<Hold>),
}

/// The event behind an effect of the waitlist: the source of what tasks are answered.
#[derive(Clone, Copy, Debug)]
enum Cause<'a> {
    Answer(&'a Answer),
    Failure(&'a StoreError),
    Event(Option<LogTime>),
    /// A task of this process let go of a hold that was logged by then.
    HandedOn(Option<LogTime>),
    /// A task of this process has a hold that others may share.
    Shared,
    Else,
}

#[derive(Debug)]
pub(crate) struct Line {
    name: String,
    waitlist: Waitlist,
    tasks: BTreeMap<Key, Task>,
    releases: BTreeMap<Key, oneshot::Sender<ReleaseOutcome>>,
    holds: Holds,
    /// When the last operation was sent.
    sent_at: Option<Instant>,
    /// The server's last answer to the tasks that wait now. Only kept while one waits.
    last_answer: Option<LastAnswer>,
    /// The error of the last operation, if it failed.
    trouble: Option<StoreError>,
    /// When the first operation was sent that the server has not answered, nor any since.
    silent_since: Option<Instant>,
    /// Whether a transaction was guarded by a hold: such holds are not handed on, nor shared with more readers.
    guards: bool,
    /// Whether the client shuts down: nothing stays with it.
    closed: bool,
    /// Whether nothing is known of the lock so far.
    pub(super) is_unknown: bool,
    /// When it expects the next event.
    calm: Calm,
    /// The need of the line, as counted by the session.
    pub(super) counted: Need,
}

impl Line {
    /// Creates a line; `alone_at`: when the lock was last seen free, or is expected to be.
    pub(crate) fn new(name: String, alone_at: Option<Instant>, pace: Option<PerTurn>) -> Self {
        Self {
            name,
            waitlist: Waitlist::new(alone_at),
            tasks: BTreeMap::new(),
            releases: BTreeMap::new(),
            holds: Holds::default(),
            sent_at: None,
            last_answer: None,
            trouble: None,
            silent_since: None,
            guards: false,
            closed: false,
            is_unknown: false,
            calm: Calm::new(pace),
            counted: Need::Nothing,
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.waitlist.is_unused()
    }

    pub(crate) fn alone_at(&self) -> Option<Instant> {
        self.waitlist.alone_at()
    }

    /// Returns whether the lock was free, if this answer to a request is the first to show it.
    pub(super) fn first_seen(&mut self, operation: &Operation) -> Option<bool> {
        let is_first = std::mem::take(&mut self.is_unknown);
        (is_first && operation.requests.is_some()).then(|| self.alone_at().is_some())
    }

    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.waitlist.due_at()
    }

    pub(crate) fn need(&self) -> Need {
        self.waitlist.need()
    }

    pub(crate) fn waits_for_event(&self) -> bool {
        self.waitlist.waits_for_event()
    }

    pub(crate) fn pace(&self) -> Option<PerTurn> {
        self.calm.pace()
    }

    /// Returns until when the line expects no event of the change stream.
    /// Its client has asked for none since `begun`.
    pub(crate) fn calm_until(&self, begun: Instant, context: &Context<'_>) -> Instant {
        let held = self.holds.values().take(COMPARED).map(|hold| hold.since).min();
        let situation = match (held, self.sent_at.filter(|_| self.waitlist.is_under_way())) {
            (Some(since), _) => Situation::Holding(since),
            (None, Some(sent_at)) => Situation::Asking(sent_at),
            (None, None) => match self.waitlist.turns() {
                Some((_, turns)) => Situation::Queued(turns),
                None if self.waitlist.is_at_rest() => Situation::Unused,
                None => Situation::Other,
            },
        };
        self.calm
            .until(situation, begun, context.config.claim_lease, context.now)
    }

    /// Whether there is a hold that no task has.
    pub(crate) fn has_idle_hold(&self) -> bool {
        self.waitlist.attend_at().is_some()
    }

    pub(crate) fn timed_out(&self) -> TimedOut {
        self.waitlist.timed_out()
    }

    /// Whether a release awaits the answer to the operation on its way.
    pub(super) fn is_awaited_by_release(&self) -> bool {
        self.waitlist.is_awaited_by_release()
    }

    /// Whether the lock would stay taken if nothing were sent any more. A hold that nobody renews is made to outlive
    /// its process.
    pub(super) fn would_stay_taken(&self) -> bool {
        let mut held = self.holds().filter(|hold| hold.lease.interval.is_some());
        held.any(|hold| hold.lost_reason().is_none()) || self.waitlist.lets_go()
    }

    /// Returns the holds that came and went since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<HoldChange> {
        self.holds.take_changes()
    }

    /// Whether the hold is not over here. Its entry alone does not show it: the hold may have been handed on.
    pub(crate) fn has(&self, hold: &Hold) -> bool {
        self.holds.has(hold)
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.holds.values()
    }

    pub(crate) fn next_look(&mut self, context: &Context<'_>) -> Option<PositionLook> {
        self.waitlist.next_look(context)
    }

    pub(crate) fn admit(&mut self, look: &PositionLook, context: &Context<'_>) -> bool {
        self.waitlist.admit(look, context)
    }

    pub(crate) fn looked(&mut self, look: &PositionLook, ahead: Option<Ahead>, context: &Context<'_>) {
        self.waitlist.looked(look, ahead, context);
    }

    pub(crate) fn look_failed(&mut self, look: &PositionLook, error: &StoreError, context: &Context<'_>) {
        self.waitlist.look_failed(look, setback(error), context);
    }

    /// Sees to the hold that no task has: the next task in line gets it, or it is given back.
    pub(crate) fn attend_to_idle(&mut self, context: &Context<'_>, effects: &mut Vec<LineEffect>) {
        if self.waitlist.must_let_go_of_idle(context) {
            self.give_back_idle(context, effects);
        }
    }

    /// Lets go of the holds that no task has.
    pub(crate) fn give_back_idle(&mut self, context: &Context<'_>, effects: &mut Vec<LineEffect>) {
        let idle: Vec<Arc<Hold>> = self.holds().filter(|hold| hold.is_idle).cloned().collect();
        for hold in idle {
            hold.exit();
            self.let_go(&hold, None, context, effects);
        }
    }

    pub(crate) fn next(&mut self, context: &Context<'_>) -> Option<Operation> {
        let operation = self.waitlist.next(context)?;
        self.sent_at = Some(context.now);
        Some(operation)
    }

    /// Adds a task.
    pub(crate) fn join(&mut self, pending: Pending, context: &Context<'_>, effects: &mut Vec<LineEffect>) {
        let Pending { key, id, options, to } = pending;
        let used = (options.kind, options.capacity);
        let task = Task {
            to,
            reports_contention: options.reports_contention,
            reenters: options.reentrant.then_some((used, options.permits)),
        };
        if let Some(hold) = self.reenter(&task) {
            effects.push(LineEffect::Answer(task.to, Ok(Some(hold))));
            return;
        }
        self.tasks.insert(key, task);
        let patience = if options.wait { Patience::Wait } else { Patience::Try };
        let waiting = Waiting::new(key, id, (used, options.permits), patience, context.now);
        let waiting = waiting.on(options.terms).owned_by(options.owner);
        let waiting = waiting.reentering(options.reentrant);
        self.waitlist.join(waiting);
        self.share(context, effects);
    }

    /// Lets readers in that may share a hold.
    fn share(&mut self, context: &Context<'_>, effects: &mut Vec<LineEffect>) {
        if self.guards {
            return;
        }
        let holds = &self.holds;
        // The oldest of those that share it: it is the first to be held too long.
        let lease = |entry: &str| {
            let mut held = holds.of(entry).iter().filter(|hold| hold.lost_reason().is_none());
            held.next()?.shared_lease()
        };
        let mut owed = Vec::new();
        self.waitlist.share(lease, context, &mut owed);
        self.pay(owed, Cause::Shared, context, effects);
    }

    /// Returns a hold of this client that the task may join, with one more handle.
    ///
    /// A client re-enters only the very same share: as many permits of the same kind. So a reader gets in although a
    /// writer waits: behind the writer, which waits for the reader's own hold, it would be stuck. And a reader never
    /// becomes a writer.
    fn reenter(&self, task: &Task) -> Option<Arc<Hold>> {
        let (used, permits) = task.reenters?;
        let permits = u64::try_from(permits).ok()?;
        let same = self.holds.values().filter(|hold| hold.used == used && !hold.is_idle);
        let mut holds: Vec<&Arc<Hold>> = same.collect();
        // The oldest that is not over.
        holds.sort_unstable_by_key(|hold| hold.token);
        holds.into_iter().find(|hold| hold.enter_as(permits)).cloned()
    }

    /// Answers the tasks that may join a hold granted since they came.
    fn let_reenter(&mut self, context: &Context<'_>, effects: &mut Vec<LineEffect>) {
        // Of thousands that wait, hardly ever one may: this is part of each hand-over.
        if self.tasks.values().all(|task| task.reenters.is_none()) {
            return;
        }
        let keys: Vec<Key> = self.waitlist.keys().collect();
        for key in keys {
            let Some(hold) = self.tasks.get(&key).and_then(|task| self.reenter(task)) else {
                continue;
            };
            self.waitlist.cancel(key, context);
            if let Some(task) = self.tasks.remove(&key) {
                effects.push(LineEffect::Answer(task.to, Ok(Some(hold))));
            }
        }
    }

    /// Takes out a task that gives up, unless it was answered before. Returns its situation.
    pub(crate) fn cancel(&mut self, key: Key, context: &Context<'_>) -> Option<Standing> {
        let before = self.waitlist.waiters_before(key)?;
        let mut standing = self.standing(before, context);
        if let Some(since) = self.waitlist.tries_since(key) {
            // Whatever others were told before, this one has had no answer.
            let unanswered = || StoreError::unanswered(context.now.saturating_duration_since(since));
            standing.trouble.get_or_insert_with(unanswered);
        }
        self.waitlist.cancel(key, context);
        self.tasks.remove(&key);
        Some(standing)
    }

    /// Returns what is known of the lock to a task with `before` other waiters of this process ahead of it.
    fn standing(&self, before: usize, context: &Context<'_>) -> Standing {
        let since = |at: Instant| context.now.saturating_duration_since(at);
        let ahead = self.last_answer.as_ref().map_or(0, |seen| {
            let head = self.waitlist.head().map(|head| head.entry.as_str());
            let queue = seen.state.queue.iter().map(|waiter| waiter.id.as_str());
            let answered = queue
                .take_while(|id| Some(*id) != head)
                .filter(|id| !context.ids.made(id))
                .count();
            // A look may have shown since that some of them have gone.
            let seen = self
                .waitlist
                .waiters_ahead()
                .and_then(|ahead| usize::try_from(ahead).ok());
            seen.map_or(answered, |seen| seen.min(answered))
        });
        // An operation can hang for longer than a task wants to wait, so there may be no error yet.
        let unanswered = || {
            let sent_at = self.sent_at.filter(|_| self.waitlist.is_under_way())?;
            let for_long = since(self.silent_since.unwrap_or(sent_at));
            (self.last_answer.is_none() || for_long >= UNANSWERED).then(|| StoreError::unanswered(for_long))
        };
        let trouble = match &self.trouble {
            Some(error) if error.is_unanswered() => unanswered().or_else(|| self.trouble.clone()),
            trouble => trouble.clone().or_else(unanswered),
        };
        Standing {
            before: before + ahead,
            trouble,
            age: self.last_answer.as_ref().map_or(Duration::ZERO, |seen| since(seen.at)),
            last_answer: self.last_answer.clone(),
            full: self.waitlist.is_kept_out(),
        }
    }

    /// Keeps an answer for the waiting tasks, in case they give up.
    pub(crate) fn remember(&mut self, answer: Answer, context: &Context<'_>) {
        self.trouble = None;
        if self.waitlist.is_empty() {
            self.last_answer = None;
        } else if let Some(state) = answer.state {
            self.last_answer = Some(LastAnswer {
                as_of: answer.exchange.now.unwrap_or(state.at),
                state: Arc::new(state),
                at: context.now,
            });
        }
    }

    /// Returns the outcome of a try that found the lock taken: it may still join a hold that the same answer granted.
    fn denied(&self, task: &Task, before: usize, cause: Cause<'_>, context: &Context<'_>) -> AcquireOutcome {
        if let Some(hold) = self.reenter(task) {
            return Ok(Some(hold));
        }
        let state = cause.shows().filter(|_| task.reports_contention);
        let Some((state, exchange)) = state else {
            return Ok(None);
        };
        let sighting = LastReport {
            state,
            as_of: exchange.now.unwrap_or(state.at),
            age: Duration::ZERO,
        };
        Err(AcquireError::Held {
            name: self.name.clone(),
            contention: Box::new(Contention::new(&sighting, before, |id| context.ids.made(id))),
        })
    }

    /// Ends the line: nothing more is sent, and everything that waits for an answer gets the error.
    pub(crate) fn stop(self, error: &StoreError, effects: &mut Vec<LineEffect>) {
        let error = || ServerError::from(error.clone());
        let tasks = self.tasks.into_values();
        effects.extend(tasks.map(|task| LineEffect::Answer(task.to, Err(error().into()))));
        let releases = self.releases.into_values();
        effects.extend(releases.map(|to| LineEffect::Released(to, Err(error()))));
    }

    /// Takes all tasks out, as the client shuts down. What stays with the client is a hold like any other from now on,
    /// for the caller to let go.
    pub(crate) fn close(&mut self, context: &Context<'_>, effects: &mut Vec<LineEffect>) {
        self.closed = true;
        let mut owed = Vec::new();
        self.waitlist.close(context, &mut owed);
        self.pay(owed, Cause::Else, context, effects);
    }

    /// Lets go of a hold: by release, by drop, or because it was lost. The next task in line gets it where it can be
    /// handed on without the server. A hold that readers share stays until the last of them lets go.
    pub(crate) fn let_go(
        &mut self,
        hold: &Hold,
        to: Option<oneshot::Sender<ReleaseOutcome>>,
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        let release = Release {
            entry: &hold.id,
            used: hold.used,
            heir: self.heir(hold),
            left_as: hold.left_as(),
            is_awaited: to.is_some(),
        };
        // It was handed on: the entry is another task's.
        let is_anothers = !self.holds.has(hold) && !self.holds.of(&hold.id).is_empty();
        let mut owed = Vec::new();
        let let_go = if is_anothers {
            LetGo::HandedOn
        } else {
            self.waitlist.let_go(release, context, &mut owed)
        };
        match let_go {
            LetGo::Shared => self.holds.part(hold),
            LetGo::HandedOn => self.pay(owed, Cause::HandedOn(hold.logged_by), context, effects),
            LetGo::StaysIdle { doubted, inherited } => {
                let idle = Arc::new(hold.idle(inherited));
                self.holds.insert(idle.clone());
                effects.extend(doubted.then_some(LineEffect::Doubted(idle)));
            }
            LetGo::Leaves { release } => {
                self.holds.remove(&hold.id);
                self.releases.extend(release.zip(to));
                return;
            }
            LetGo::Expires => {
                self.holds.remove(&hold.id);
                if self.closed {
                    self.close(context, effects);
                }
                effects.extend(to.map(|to| LineEffect::Released(to, Ok(wake::Left::Nowhere))));
                return;
            }
        }
        // It was held up to this moment, and is no longer: all that a release promises.
        effects.extend(to.map(|to| LineEffect::Released(to, Ok(wake::Left::Holder))));
    }

    /// Returns the heir of a hold in this process.
    fn heir(&self, hold: &Hold) -> Heir {
        match hold.inheritance() {
            Some(inherited) if !self.guards && (hold.is_idle || self.closed) => Heir::NextTask(inherited),
            Some(inherited) if !self.guards => Heir::TaskOrClient(inherited),
            _ => Heir::Nobody,
        }
    }

    /// Notes that a transaction is guarded by a hold.
    pub(crate) fn note_guarded(&mut self) {
        self.guards = true;
    }

    /// Adds the hold of a claim. No task in line is to join it: documents are never re-entered.
    pub(crate) fn hold(&mut self, hold: Arc<Hold>, claimed: &Exchange, context: &Context<'_>) {
        let permits = i64::try_from(hold.permits()).unwrap_or(i64::MAX);
        let held = Held::new((hold.used, permits), hold.granted_as, hold.lease.length);
        self.waitlist.hold(hold.id.clone(), held);
        self.waitlist.claimed(claimed, context);
        self.holds.insert(hold);
    }

    /// Forgets a hold that is known to be gone from the document.
    pub(crate) fn forget(&mut self, id: &str) {
        self.waitlist.forget(id);
        self.holds.remove(id);
    }

    /// Takes out an entry with this lease that no task here holds or waits for.
    pub(crate) fn take_out(&mut self, id: String, used: Use, lease: Duration, context: &Context<'_>) {
        self.waitlist.take_out(id, used, lease, context);
    }

    /// Notes the answer to the operation on its way.
    pub(crate) fn answered(
        &mut self,
        operation: &Operation,
        answer: &Answer,
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        self.silent_since = None;
        let mut owed = Vec::new();
        let state = answer.state.as_ref();
        self.waitlist
            .answered(operation, state, &answer.exchange, context, &mut owed);
        if let Some((entry, turns)) = self.waitlist.turns() {
            self.calm.saw(entry, turns, context.now);
        }
        self.pay(owed, Cause::Answer(answer), context, effects);
        self.share(context, effects);
    }

    /// Notes that the operation on its way has failed.
    pub(crate) fn failed(
        &mut self,
        operation: &Operation,
        error: &StoreError,
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        self.trouble = (error.kind == Failure::Unavailable).then(|| error.clone());
        if error.is_unanswered() {
            let since = *self.silent_since.get_or_insert(self.sent_at.unwrap_or(context.now));
            self.trouble = Some(StoreError::unanswered(context.now.saturating_duration_since(since)));
        } else {
            self.silent_since = None;
        }
        let mut owed = Vec::new();
        self.waitlist.failed(operation, setback(error), context, &mut owed);
        self.pay(owed, Cause::Failure(error), context, effects);
    }

    /// Notes for how long the server may work on an operation that has failed, once it has it.
    pub(super) fn note_limit(&mut self, operation: &Operation, error: &StoreError, within: Duration) {
        let may_come = matches!(setback(error), Setback::Unanswered | Setback::Interrupted) && !error.was_answered();
        if may_come && operation.requests.is_some() {
            self.waitlist.may_be_applied(within);
        }
    }

    /// Makes all sweeps due, as the client waits for them.
    pub(super) fn hasten_sweeps(&mut self, context: &Context<'_>) {
        self.waitlist.hasten_sweeps(context);
    }

    /// Notes the late answer to an operation that was given up, which put in an entry of ours.
    pub(crate) fn applied_late(&mut self, operation: &Operation, state: &State, context: &Context<'_>) {
        self.waitlist.applied_late(operation, state, context);
    }

    /// Notes that an operation that was given up has failed, which says more than its silence.
    pub(crate) fn failed_late(&mut self, error: &StoreError) {
        if self.trouble.as_ref().is_some_and(StoreError::is_unanswered) && error.kind == Failure::Unavailable {
            self.trouble = Some(error.clone());
        }
    }

    /// Notes another client's write, at a time of the server, that names one of our entries.
    pub(crate) fn signalled(
        &mut self,
        id: &str,
        signal: wake::Signal,
        at: ServerTime,
        logged_at: Option<LogTime>,
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        let mut owed = Vec::new();
        self.waitlist.signalled(id, signal, at, context, &mut owed);
        self.pay(owed, Cause::Event(logged_at), context, effects);
    }

    /// Notes that anything known of the document may be wrong.
    pub(crate) fn doubt(&mut self, context: &Context<'_>) {
        self.waitlist.doubt(context);
    }

    /// Notes the document as it was after each of these holds was granted. `sent`: it was asked for then; `None`: an
    /// event shows it.
    pub(crate) fn verified(
        &mut self,
        document: Option<&Result<State, Malformed>>,
        sent: Option<Instant>,
        held: &[String],
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        let mut owed = Vec::new();
        self.waitlist.verified(document, sent, held, context, &mut owed);
        self.pay(owed, Cause::Else, context, effects);
    }

    /// Turns effects on keys and entries into answers to tasks, releases and holds.
    fn pay(
        &mut self,
        owed: Vec<waitlist::Effect>,
        cause: Cause<'_>,
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        let mut granted = false;
        for effect in owed {
            match effect {
                waitlist::Effect::Granted { key, entry, grant } => {
                    granted = true;
                    self.calm.served(&entry, context.now);
                    // The grant changed the document that was seen before, unless a task has it from another.
                    if !matches!(cause, Cause::HandedOn(_) | Cause::Shared) {
                        self.last_answer = None;
                    }
                    self.granted(key, entry, &grant, cause, context, effects);
                }
                waitlist::Effect::Denied { key, before } => {
                    self.answer(key, effects, |line, task| line.denied(task, before, cause, context));
                }
                waitlist::Effect::Mismatched { key, wanted } => {
                    self.answer(key, effects, |line, _| Err(line.mismatch(wanted, cause)));
                }
                waitlist::Effect::Missing { key } => self.answer(key, effects, |line, _| {
                    let name = line.name.clone();
                    Err(AcquireError::NoDocument { name })
                }),
                waitlist::Effect::Failed { key } => self.answer(key, effects, |_, _| Err(cause.error().into())),
                waitlist::Effect::Closed { key } => self.answer(key, effects, |_, _| Err(AcquireError::Closed)),
                waitlist::Effect::Released { release, found } => {
                    let to = self.releases.remove(&release);
                    effects.extend(to.map(|to| LineEffect::Released(to, Ok(found))));
                }
                waitlist::Effect::NotReleased { release } => {
                    let to = self.releases.remove(&release);
                    effects.extend(to.map(|to| LineEffect::Released(to, Err(cause.error()))));
                }
                waitlist::Effect::Lost { entry, reason } => {
                    let lost = self.holds.remove(&entry).into_iter();
                    effects.extend(lost.map(|hold| LineEffect::Lost(hold, reason)));
                }
                waitlist::Effect::Doubted => effects.extend(self.holds().cloned().map(LineEffect::Doubted)),
            }
        }
        if granted {
            self.let_reenter(context, effects);
        }
    }

    fn granted(
        &mut self,
        key: Key,
        entry: String,
        grant: &Grant,
        cause: Cause<'_>,
        context: &Context<'_>,
        effects: &mut Vec<LineEffect>,
    ) {
        let mut hold = Hold::new(entry, self.name.clone(), grant);
        if self.holds.of(&hold.id).iter().any(|before| before.is_shown_idle()) {
            hold.show_held(context.now);
        }
        let shared = self
            .holds
            .of(&hold.id)
            .first()
            .filter(|_| matches!(cause, Cause::Shared));
        hold.logged_by = shared.map_or(cause.logged_by(), |shared| shared.logged_by);
        hold.label = context.config.metered.label(&self.name);
        let hold = Arc::new(hold);
        if shared.is_some() {
            self.holds.share(hold.clone());
        } else {
            self.holds.insert(hold.clone());
        }
        self.answer(key, effects, |_, _| Ok(Some(hold)));
    }

    fn answer(
        &mut self,
        key: Key,
        effects: &mut Vec<LineEffect>,
        outcome: impl FnOnce(&Self, &Task) -> AcquireOutcome,
    ) {
        if let Some(task) = self.tasks.remove(&key) {
            let outcome = outcome(self, &task);
            effects.push(LineEffect::Answer(task.to, outcome));
        }
    }

    fn mismatch(&self, (kind, capacity): Use, cause: Cause<'_>) -> AcquireError {
        match cause.shows() {
            Some((state, _)) => KindMismatch::new(&self.name, state, kind, capacity).into(),
            None => AcquireError::NoDocument {
                name: self.name.clone(),
            },
        }
    }
}

impl Cause<'_> {
    /// Returns the document that an answer shows, and the exchange that brought it.
    fn shows(&self) -> Option<(&State, &Exchange)> {
        match self {
            Self::Answer(answer) => Some((answer.state.as_ref()?, &answer.exchange)),
            Self::Failure(_) | Self::Event(_) | Self::HandedOn(_) | Self::Shared | Self::Else => None,
        }
    }

    /// Returns the position in the server's log by which it happened, if it is known.
    fn logged_by(self) -> Option<LogTime> {
        match self {
            Self::Answer(answer) => answer.logged_by,
            Self::Event(logged_at) | Self::HandedOn(logged_at) => logged_at,
            Self::Failure(_) | Self::Shared | Self::Else => None,
        }
    }

    /// Returns the error of the operation that failed.
    fn error(self) -> ServerError {
        match self {
            Self::Failure(error) => error.clone().into(),
            Self::Answer(..) | Self::Event(_) | Self::HandedOn(_) | Self::Shared | Self::Else => {
                StoreError::overdue().into()
            }
        }
    }
}

/// Returns what a failure means to the waitlist.
fn setback(error: &StoreError) -> Setback {
    match error.kind {
        Failure::Raced => Setback::Raced,
        Failure::Refused if error.is_malformed() => Setback::Unreadable,
        Failure::Refused => Setback::Refused,
        Failure::Unavailable if error.is_unanswered() => Setback::Unanswered,
        Failure::Unavailable if error.ran_out_of_time() => Setback::Overdue,
        Failure::Unavailable if error.found_no_server() => Setback::NoServer,
        Failure::Unavailable => Setback::Interrupted,
    }
}

#[cfg(test)]
mod tests;
