//! A client of the model: a real [`Waitlist`] before each lock and its real knowledge of the server's clock, in ticks.
//!
//! Around them is the part that the session plays for real clients: it keeps the deadlines of holds, and has timers.
//! Timers may fire at any time or never, so a client that freezes and thaws late is one for which none fires for a
//! while.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use tokio::time::Instant;

use super::rules::{EPOCH, LEASE, Rules, SKEW};
use crate::{
    hold_options::Terms,
    protocol::{CapacityIs, Entry, Exchange, Kept, KeptUntil, Kind, Operation, Owner, ServerTime, State, wake::Signal},
    waitlist::{
        AcquireOptions, Context, Effect, Key, LeftAs, Patience, Refusal, Setback, Step, StreamState, Waitlist,
        clock::ServerClock, fixtures::PlainHold, ids::Ids,
    },
};

/// A time longer than any that matters; all older times count as the same.
pub(super) const LONG: i64 = LEASE + 1;

const TICK: Duration = Duration::from_millis(1);

/// The reading of the monotonic clocks of all machines at the beginning, long after the clocks' own beginning.
static START: LazyLock<Instant> = LazyLock::new(|| Instant::now() + Duration::from_secs(3_600));

/// A time after the end of any run.
static NEVER: LazyLock<Instant> = LazyLock::new(|| *START + Duration::from_secs(3_600));

/// A time in ticks on the monotonic clocks.
pub(super) fn instant(time: i64) -> Instant {
    *START + TICK * u32::try_from(time).unwrap_or(0)
}

/// The first tick at which an instant has come.
pub(super) fn tick(at: Instant) -> i64 {
    let since = at
        .saturating_duration_since(*START)
        .as_micros()
        .div_ceil(TICK.as_micros());
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// One process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Client {
    /// Its number, and how often it was started again.
    pub(super) number: usize,
    /// How many permits it asks for.
    pub(super) permits: i64,
    pub(super) session: String,
    starts: u32,
    ids: u64,
    pub(super) clock: ServerClock,
    /// It does nothing, and time goes on.
    pub(super) frozen: bool,
    /// Its change stream is late.
    pub(super) lags: bool,
    /// When it last read the locks that it holds, if it has no stream for losses.
    pub(super) read_at: i64,
    /// One before every lock.
    pub(super) lines: Vec<Line>,
}

/// A waitlist, and the holds that were granted by it and are not over, as their tasks have them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// How many more acquires it may begin.
    pub(super) acquires: u8,
    pub(super) waitlist: Waitlist<PlainHold>,
    /// The oldest first.
    pub(super) holds: Vec<PlainHold>,
    /// The hold that no task has.
    pub(super) idle: Option<PlainHold>,
    /// The entries and tokens of the holds whose time was over here, for as long as a document has them.
    pub(super) ended: Vec<(String, i64)>,
    /// The tries in line.
    pub(super) tries: BTreeMap<Key, Attempt>,
    /// A try was refused although it could have had the lock at any time since it came.
    pub(super) refused_in_vain: bool,
    /// Since when a hold that its task believes in is not in the document, where losses are found out by readings.
    pub(super) gone_since: Option<i64>,
}

/// A try in line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attempt {
    /// Whether the lock has been taken or waited for since it came.
    pub(super) met: bool,
    /// The reader that is to become a writer.
    pub(super) upgrades: Option<String>,
}

/// The world outside a client, as its steps need it.
#[derive(Clone, Copy)]
pub(super) struct World<'a> {
    pub(super) now: i64,
    pub(super) rules: &'a Rules,
    pub(super) used: (Kind, i64),
}

impl Client {
    pub(super) fn new(number: usize, permits: i64, locks: usize, acquires: u8) -> Self {
        Self {
            number,
            permits,
            session: format!("{number}s0"),
            starts: 0,
            ids: 1,
            clock: ServerClock::default(),
            frozen: false,
            lags: false,
            read_at: 0,
            lines: vec![Line::new(acquires); locks],
        }
    }

    /// Forgets everything, and is another session from now on.
    pub(super) fn crash(&mut self) {
        self.starts += 1;
        self.session = format!("{}s{}", self.number, self.starts);
        (self.ids, self.clock) = (1, ServerClock::default());
        (self.frozen, self.lags) = (false, false);
        for line in &mut self.lines {
            *line = Line::new(line.acquires);
        }
    }

    /// How many ids it has made, and how often it was started again.
    pub(super) fn made_so_far(&self) -> i64 {
        i64::try_from(self.ids).unwrap_or(0) + i64::from(self.starts)
    }

    /// Whether an entry is of its present session.
    pub(super) fn made(&self, id: &str) -> bool {
        id.strip_prefix(&self.session).is_some_and(|rest| rest.starts_with('-'))
    }

    pub(super) fn note(&mut self, exchange: &Exchange, rules: &Rules) {
        // The primaries' clocks differ by no more than the margin.
        let _ = self.clock.note(exchange, rules.config());
    }

    /// Feeds the waitlist before a lock, and notes what it owes.
    fn feed<T>(&mut self, lock: usize, world: World<'_>, input: impl FnOnce(&mut Step<'_, PlainHold>) -> T) -> T {
        let ids = Ids::resumed(self.session.clone(), self.ids);
        let context = context(&self.clock, &ids, world);
        let line = &mut self.lines[lock];
        let mut step = line.waitlist.step(&context);
        let output = input(&mut step);
        step.settle();
        step.stop_timers(context.now, TICK, *NEVER);
        line.take_in();
        let waitlist = &line.waitlist;
        line.tries.retain(|key, _| waitlist.position(*key).is_some());
        self.ids = ids.number();
        if is_upgradeable(self.permits, world.used) {
            self.end_writer(lock, world);
        }
        output
    }

    /// A task comes; `met`: somebody is in its way.
    pub(super) fn join(&mut self, lock: usize, wait: bool, met: bool, world: World<'_>) {
        let line = &mut self.lines[lock];
        line.acquires -= 1;
        if !wait && !world.rules.tries_await_answers && !line.waitlist.waiting().is_empty() {
            line.refused_in_vain |= !met;
            return;
        }
        self.wants(lock, (self.permits, None), wait, met, world);
    }

    /// An upgradeable reader wants the permits that it lacks; `met`: somebody is beside it.
    pub(super) fn upgrade(&mut self, lock: usize, wait: bool, met: bool, world: World<'_>) {
        let line = &mut self.lines[lock];
        line.acquires -= 1;
        let reader = line.holds[0].entry.clone();
        self.wants(lock, (world.used.1 - self.permits, Some(reader)), wait, met, world);
    }

    /// A task wants so many permits.
    fn wants(
        &mut self,
        lock: usize,
        (permits, upgrades): (i64, Option<String>),
        wait: bool,
        met: bool,
        world: World<'_>,
    ) {
        let options = AcquireOptions {
            used: world.used,
            by: match world.used.0 {
                Kind::Semaphore => CapacityIs::Offered,
                // Only tasks that want the lock alike are asked for together.
                _ if upgrades.is_some() && !world.rules.asks_beside_upgrades => CapacityIs::Offered,
                _ => CapacityIs::Demanded,
            },
            permits,
            patience: if wait { Patience::Wait } else { Patience::Try },
            reentrant: false,
            upgrades: upgrades.clone(),
            terms: Terms::default(),
            owner: Owner::default(),
        };
        // It has no other number in this session.
        let key = self.ids;
        self.ids += 1;
        self.feed(lock, world, |step| step.join(key, key, options));
        if !wait && self.lines[lock].waitlist.position(key).is_some() {
            self.lines[lock].tries.insert(key, Attempt { met, upgrades });
        }
    }

    /// The session of a reader that is over gives up the hold by which it has become a writer.
    fn end_writer(&mut self, lock: usize, world: World<'_>) {
        if matches!(&self.lines[lock].holds[..], [writer] if writer.permits != self.permits) {
            self.let_go(lock, 0, world);
        }
    }

    /// A task gives up, by its place in the line.
    pub(super) fn cancel(&mut self, lock: usize, place: usize, world: World<'_>) {
        let Some(key) = self.lines[lock]
            .waitlist
            .waiting()
            .get(place)
            .map(|waiting| waiting.key)
        else {
            return;
        };
        self.feed(lock, world, |step| {
            if world.rules.leaves_when_giving_up {
                step.cancel(key);
            } else {
                step.vanish(key);
            }
        });
    }

    /// A holder lets go: by release, by drop, or because its time is over.
    pub(super) fn let_go(&mut self, lock: usize, place: usize, world: World<'_>) {
        let mut hold = self.lines[lock].holds.remove(place);
        let is_over = !is_believed(&hold, world.now, world.rules);
        // Only a release hands on: what was lost is nobody's to give. Nor is it kept taken.
        hold.released = !is_over;
        let keeps = world.rules.keeps > 0 && !is_over;
        let until = keeps.then_some(KeptUntil::AfterRelease(world.rules.keeps));
        let until = until.or((is_over && world.rules.leaves_ends_to_the_server).then_some(KeptUntil::Expiry));
        if let Some(until) = until {
            let (id, token) = (hold.entry.clone(), hold.granted_as);
            hold.left_as = LeftAs::Kept(Kept { id, token, until });
        }
        if !world.rules.hands_on_what_is_left {
            believe_until(&mut hold, instant(world.now + LEASE));
        }
        self.feed(lock, world, |step| {
            if !world.rules.last_reader_releases {
                step.forget_sharers(&hold);
            }
            step.let_go(&hold, None);
        });
        if is_over && self.lines[lock].waitlist.token_of_hold(&hold.entry).is_none() {
            self.lines[lock].ended.push((hold.entry, hold.granted_as));
        }
    }

    /// The time of the hold that no task has is over.
    pub(super) fn give_back(&mut self, lock: usize, world: World<'_>) {
        self.feed(lock, world, |step| step.give_back_idle());
    }

    /// The next operation. `timer`: a pause is over, and a head that is queued, or found the queue full, asks again.
    pub(super) fn next(&mut self, lock: usize, timer: bool, world: World<'_>) -> Option<Operation> {
        self.feed(lock, world, |step| {
            if timer && (world.rules.asks_for_room || !step.is_kept_out()) {
                step.fire_timers(instant(world.now));
            }
            step.next_operation()
        })
    }

    pub(super) fn answered(
        &mut self,
        lock: usize,
        operation: &Operation,
        state: Option<&State>,
        exchange: &Exchange,
        world: World<'_>,
    ) {
        let sent = if world.rules.counts_from_sending {
            exchange.sent
        } else {
            instant(world.now)
        };
        let exchange = Exchange { sent, ..*exchange };
        // A client that takes a range for granted which no write took out of the counter.
        let taken = state.filter(|_| world.rules.tokens_not_reserved > 0).cloned();
        let taken = taken.map(|mut state| {
            state.token += world.rules.tokens_not_reserved;
            state
        });
        let state = taken.as_ref().or(state);
        self.feed(lock, world, |step| step.answered(operation, state, &exchange));
    }

    /// An operation has failed, or its outcome is unknown.
    pub(super) fn failed(&mut self, lock: usize, operation: &Operation, setback: Setback, world: World<'_>) {
        self.feed(lock, world, |step| step.failed(operation, setback));
    }

    /// A write of somebody else, at a time of the server, that names one of our entries.
    pub(super) fn signalled(&mut self, lock: usize, id: &str, signal: Signal, at: ServerTime, world: World<'_>) {
        if signal == Signal::AskedFor && !world.rules.heeds_notices {
            return;
        }
        self.feed(lock, world, |step| {
            let signal = match (signal, step.token_of_hold(id)) {
                (Signal::Evicted { .. }, Some(token)) if !world.rules.tells_grants_apart => Signal::Evicted { token },
                (signal, _) => signal,
            };
            // A grant of just now, wherever it stands in the stream.
            let late = if world.rules.refuses_late_news { 0 } else { LONG };
            step.signalled(id, signal, at.plus_millis(late));
        });
    }

    /// The document was read, after a renewal of this hold that found it gone or renewed already.
    pub(super) fn verified(&mut self, lock: usize, id: &str, document: Option<State>, world: World<'_>) {
        let document = document.map(Ok);
        self.feed(lock, world, |step| {
            step.verified(document.as_ref(), Some(instant(world.now)), &[id.to_owned()]);
        });
    }

    /// The document was read in place of the events that a stream would have told.
    pub(super) fn reads(&mut self, lock: usize, document: Option<State>, world: World<'_>) {
        let holds = self.lines[lock].holds.iter().chain(&self.lines[lock].idle);
        let mut entries: Vec<String> = holds.map(|hold| hold.entry.clone()).collect();
        if !world.rules.compares_all {
            entries.pop();
        }
        let document = document.map(Ok);
        self.feed(lock, world, |step| {
            step.verified(document.as_ref(), Some(instant(world.now)), &entries);
        });
    }

    /// Whether it has a hold, and has not read its locks for the pause between two readings.
    pub(super) fn must_read(&self, now: i64, rules: &Rules) -> bool {
        let holds = self
            .lines
            .iter()
            .any(|line| !line.holds.is_empty() || line.idle.is_some());
        rules.reads_losses_every > 0 && holds && !self.frozen && now - self.read_at >= rules.reads_losses_every
    }

    /// The client's knowledge of the server's clock: the duration of the tightest exchange, and the maximum by which
    /// that clock is ahead of our own.
    pub(super) fn reference(&self) -> Option<(i64, i64)> {
        let (sent, received, now) = self.clock.reference()?;
        let (sent, received) = (tick(sent), tick(received));
        // With more than this no grant is believed.
        Some(((received - sent).min(LONG), (now.0 - sent).min(EPOCH + SKEW + LONG)))
    }
}

fn context<'a>(clock: &'a ServerClock, ids: &'a Ids, world: World<'a>) -> Context<'a> {
    Context {
        now: instant(world.now),
        config: world.rules.config(),
        clock,
        stream: StreamState::Open,
        ids,
        room: world.rules.room,
    }
}

impl Line {
    fn new(acquires: u8) -> Self {
        Self {
            acquires,
            waitlist: Waitlist::new(String::new(), None, Duration::ZERO),
            holds: Vec::new(),
            idle: None,
            ended: Vec::new(),
            tries: BTreeMap::new(),
            refused_in_vain: false,
            gone_since: None,
        }
    }

    fn take_in(&mut self) {
        let mut effects = self.waitlist.take_effects();
        // As a session does it.
        effects.sort_by_key(|effect| !matches!(effect, Effect::Lost { .. }));
        for effect in effects {
            match effect {
                Effect::Granted { hold, .. } => self.holds.push((*hold).clone()),
                Effect::Refused {
                    to,
                    why: Refusal::Denied { .. },
                } => self.refused_in_vain |= self.tries.remove(&to).is_some_and(|attempt| !attempt.met),
                Effect::Lost { hold: lost, .. } => {
                    // The task is told of the loss.
                    self.tries
                        .retain(|_, attempt| attempt.upgrades.as_ref() != Some(&lost.entry));
                    self.holds.retain(|hold| hold.entry != lost.entry);
                    self.idle = self.idle.take().filter(|hold| hold.entry != lost.entry);
                }
                Effect::Came(hold) if hold.is_idle => self.idle = Some((*hold).clone()),
                Effect::Gone(hold) if hold.is_idle => self.idle = None,
                _ => {}
            }
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.waitlist.is_at_rest()
    }

    /// Whether the time of this grant was over here.
    pub(super) fn has_ended(&self, holder: &Entry) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|(id, token)| (id, *token) == (&holder.id, holder.token))
    }

    /// The places of the holds that may be let go of: a reader that is, or waits to become, a writer goes with that, or
    /// when its time is over.
    pub(super) fn may_be_let_go(&self, now: i64, rules: &Rules) -> impl Iterator<Item = usize> {
        let stays = self.is_upgrading() && self.holds.first().is_some_and(|reader| is_believed(reader, now, rules));
        usize::from(stays)..self.holds.len()
    }

    /// Whether its only hold is of a reader that may become a writer.
    pub(super) fn may_be_upgraded(&self, used: (Kind, i64)) -> bool {
        let reads = matches!(&self.holds[..], [reader] if is_upgradeable(reader.permits, used));
        reads && self.acquires > 0 && !self.is_upgrading()
    }

    /// Whether its first hold is of a reader that is, or waits to become, a writer.
    fn is_upgrading(&self) -> bool {
        let mut waiting = self.waitlist.waiting().iter();
        let is_writer = self.holds.iter().any(|hold| hold.permits != self.holds[0].permits);
        is_writer || waiting.any(|task| task.wants.upgrades.is_some())
    }

    pub(super) fn wants_to_send(&self, now: i64) -> bool {
        self.waitlist.due_at().is_some_and(|at| at <= instant(now))
    }

    pub(super) fn may_ask(&self, now: i64) -> bool {
        self.waitlist.may_ask(instant(now))
    }

    /// A renewal of a hold was acknowledged, or a reading shows it renewed.
    pub(super) fn renewed(&mut self, (id, token): (&str, i64), deadline: Instant, now: i64, rules: &Rules) {
        let Some(hold) = self.hold_of(id, token).filter(|hold| is_believed(hold, now, rules)) else {
            return;
        };
        let until = hold.deadline.max(instant(tick(deadline)));
        believe_until(hold, until);
        let hold = hold.clone();
        self.waitlist.change_hold(&hold, |hold| believe_until(hold, until));
    }

    /// The first hold of an entry, be it that no task has it.
    pub(super) fn hold_of(&mut self, id: &str, token: i64) -> Option<&mut PlainHold> {
        let mut holds = self.holds.iter_mut().chain(&mut self.idle);
        holds.find(|hold| hold.entry == id && hold.granted_as == token)
    }
}

/// Whether an entry of so many permits is of an upgradeable reader.
fn is_upgradeable(permits: i64, (kind, capacity): (Kind, i64)) -> bool {
    kind == Kind::RwLock && capacity / 2 < permits && permits < capacity
}

fn believe_until(hold: &mut PlainHold, deadline: Instant) {
    (hold.deadline, hold.renew_at) = (deadline, deadline);
}

/// Whether its holder takes it for valid.
pub(super) fn is_believed(hold: &PlainHold, now: i64, rules: &Rules) -> bool {
    instant(now) < hold.deadline || !rules.looks_at_the_clock
}
