//! A client of the model: a real [`Waitlist`] before each lock and its real knowledge of the server's clock, in ticks.
//!
//! Around them is the part that the session plays for real clients: it keeps the deadlines of holds, and has timers.
//! Timers may fire at any time or never, so a client that freezes and thaws late is one for which none fires for a
//! while.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use tokio::time::Instant;

use super::rules::{EPOCH, LEASE, Rules, SKEW};
use crate::{
    protocol::{Exchange, Holder, Kept, KeptUntil, Kind, Operation, ServerTime, State, wake::Signal},
    waitlist::{
        Context, Effect, Inheritance, Key, Patience, Setback, StreamState, Waiting, Waitlist,
        clock::ServerClock,
        deadline::Deadline,
        ids::Ids,
        letting_go::{Heir, LeftAs, LetGo, Release},
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
    /// One before every lock.
    pub(super) lines: Vec<Line>,
}

/// A waitlist, and the holds that were granted by it and are not over.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    /// How many more acquires it may begin.
    pub(super) acquires: u8,
    pub(super) waitlist: Waitlist,
    /// The oldest first.
    pub(super) holds: Vec<Hold>,
    /// The hold that no task has.
    pub(super) idle: Option<Hold>,
    /// The entries and tokens of the holds whose time was over here, for as long as a document has them.
    pub(super) ended: Vec<(String, i64)>,
    /// The tries in line: whether the lock has been taken or waited for since they came.
    pub(super) tries: BTreeMap<Key, bool>,
    /// A try was refused although it could have had the lock at any time since it came.
    pub(super) refused_in_vain: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    pub(super) id: String,
    pub(super) permits: i64,
    pub(super) token: i64,
    /// The token that the document has for it.
    pub(super) granted_as: i64,
    pub(super) deadline: i64,
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
        (self.ids, self.clock) = (1, ServerClock::default());
        (self.frozen, self.lags) = (false, false);
        for line in &mut self.lines {
            *line = Line {
                acquires: line.acquires,
                ..Line::default()
            };
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
    fn feed<T>(
        &mut self,
        lock: usize,
        world: World<'_>,
        input: impl FnOnce(&mut Waitlist, &Context<'_>, &mut Vec<Effect>) -> T,
    ) -> T {
        let ids = Ids::resumed(self.session.clone(), self.ids);
        let context = context(&self.clock, &ids, world);
        let line = &mut self.lines[lock];
        let mut effects = Vec::new();
        let output = input(&mut line.waitlist, &context, &mut effects);
        line.take_in(effects);
        let waitlist = &line.waitlist;
        line.tries.retain(|key, _| waitlist.position(*key).is_some());
        line.attend_to_idle(world, &context);
        line.waitlist
            .stop_timers(context.now, TICK, *NEVER, world.rules.knocks_in_full);
        self.ids = ids.number();
        output
    }

    /// Lets readers in that may share a hold.
    fn share(&mut self, lock: usize, world: World<'_>) {
        let holds = self.lines[lock].holds.clone();
        self.feed(lock, world, |waitlist, context, effects| {
            let lease = |entry: &str| {
                let mut held = holds.iter().filter(|hold| hold.id == entry);
                let held = held.find(|hold| hold.is_believed(world.now, world.rules))?;
                Some(Inheritance {
                    deadline: Deadline::at(instant(held.deadline)),
                    renew_at: *NEVER,
                })
            };
            waitlist.share(lease, context, effects);
        });
    }

    /// A task comes; `met`: somebody is in its way.
    pub(super) fn join(&mut self, lock: usize, wait: bool, met: bool, world: World<'_>) {
        let line = &mut self.lines[lock];
        line.acquires -= 1;
        if !wait && !world.rules.tries_await_answers && !line.waitlist.is_empty() {
            line.refused_in_vain |= !met;
            return;
        }
        let permits = self.permits;
        let patience = if wait { Patience::Wait } else { Patience::Try };
        let key = self.feed(lock, world, |waitlist, context, _| {
            let (key, entry) = (context.ids.number(), context.ids.entry());
            let waiting = Waiting::new(key, entry, (world.used, permits), patience, context.now);
            waitlist.join(waiting);
            key
        });
        if !wait {
            self.lines[lock].tries.insert(key, met);
        }
        self.share(lock, world);
    }

    /// A task gives up, by its place in the line.
    pub(super) fn cancel(&mut self, lock: usize, place: usize, world: World<'_>) {
        self.feed(lock, world, |waitlist, context, _| {
            let Some(key) = waitlist.keys().nth(place) else { return };
            if world.rules.leaves_when_giving_up {
                waitlist.cancel(key, context);
            } else {
                waitlist.vanish(key);
            }
        });
    }

    /// A holder lets go: by release, by drop, or because its time is over.
    pub(super) fn let_go(&mut self, lock: usize, place: usize, world: World<'_>) {
        let hold = self.lines[lock].holds.remove(place);
        // A lost lock is not kept taken.
        let keeps = world.rules.keeps > 0 && hold.is_believed(world.now, world.rules);
        let kept = keeps.then(|| Kept {
            id: hold.id.clone(),
            token: hold.granted_as,
            until: KeptUntil::AfterRelease(world.rules.keeps),
        });
        // Only a release hands on: what was lost is nobody's to give.
        let heir = if hold.is_believed(world.now, world.rules) && kept.is_none() {
            Heir::TaskOrClient(hold.left(world))
        } else {
            Heir::Nobody
        };
        let is_over = !hold.is_believed(world.now, world.rules);
        let left_as = match kept {
            Some(kept) => LeftAs::Kept(kept),
            None if is_over && world.rules.leaves_ends_to_the_server => LeftAs::Kept(Kept {
                id: hold.id.clone(),
                token: hold.granted_as,
                until: KeptUntil::Expiry,
            }),
            None => LeftAs::Free,
        };
        let let_go = self.feed(lock, world, |waitlist, context, effects| {
            if !world.rules.last_reader_releases {
                waitlist.forget_sharers(&hold.id);
            }
            let release = Release {
                left_as,
                ..hold.release(heir, world)
            };
            waitlist.let_go(release, context, effects)
        });
        match let_go {
            LetGo::StaysIdle { .. } => self.lines[lock].idle = Some(hold),
            LetGo::Leaves { .. } | LetGo::Expires if is_over => {
                self.lines[lock].ended.push((hold.id, hold.granted_as));
            }
            _ => {}
        }
    }

    /// The time of the hold that no task has is over.
    pub(super) fn give_back(&mut self, lock: usize, world: World<'_>) {
        let ids = Ids::resumed(self.session.clone(), self.ids);
        let context = context(&self.clock, &ids, world);
        self.lines[lock].give_back_idle(world, &context);
    }

    /// The next operation. `timer`: a pause is over, and a head that is queued asks again.
    pub(super) fn next(&mut self, lock: usize, timer: bool, world: World<'_>) -> Option<Operation> {
        self.feed(lock, world, |waitlist, context, _| {
            if timer {
                waitlist.fire_timers(context.now, world.rules.knocks_again);
            }
            waitlist.next(context)
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
        let state = state.cloned().map(|mut state| {
            state.token += world.rules.tokens_not_reserved;
            state
        });
        let state = state.as_ref();
        self.feed(lock, world, |waitlist, context, effects| {
            waitlist.answered(operation, state, &exchange, context, effects);
        });
        self.share(lock, world);
    }

    /// The outcome of an operation is unknown.
    pub(super) fn failed(&mut self, lock: usize, operation: &Operation, world: World<'_>) {
        self.feed(lock, world, |waitlist, context, effects| {
            waitlist.failed(operation, Setback::Interrupted, context, effects);
        });
    }

    /// A write of somebody else, at a time of the server, that names one of our entries.
    pub(super) fn signalled(&mut self, lock: usize, id: &str, signal: Signal, at: ServerTime, world: World<'_>) {
        if signal == Signal::AskedFor && !world.rules.heeds_notices {
            return;
        }
        self.feed(lock, world, |waitlist, context, effects| {
            let signal = match (signal, waitlist.token_of_hold(id)) {
                (Signal::Evicted { .. }, Some(token)) if !world.rules.tells_grants_apart => Signal::Evicted { token },
                (signal, _) => signal,
            };
            // A grant of just now, wherever it stands in the stream.
            let late = if world.rules.refuses_late_news { 0 } else { LONG };
            waitlist.signalled(id, signal, at.plus_millis(late), context, effects);
        });
    }

    /// The document was read, after a renewal of this hold that found it gone or renewed already.
    pub(super) fn verified(&mut self, lock: usize, id: &str, document: Option<State>, world: World<'_>) {
        let document = document.map(Ok);
        self.feed(lock, world, |waitlist, context, effects| {
            waitlist.verified(document.as_ref(), Some(context.now), &[id.to_owned()], context, effects);
        });
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
    /// The session's part after each input: the next task gets the hold that no task has, or the hold is given back.
    fn attend_to_idle(&mut self, world: World<'_>, context: &Context<'_>) {
        if self.waitlist.must_let_go_of_idle(context) {
            self.give_back_idle(world, context);
        }
    }

    fn give_back_idle(&mut self, world: World<'_>, context: &Context<'_>) {
        let Some(hold) = self.idle.take() else { return };
        let heir = if hold.is_believed(world.now, world.rules) {
            Heir::NextTask(hold.left(world))
        } else {
            Heir::Nobody
        };
        let mut effects = Vec::new();
        // It does not rest once more.
        let _ = self.waitlist.let_go(hold.release(heir, world), context, &mut effects);
        self.take_in(effects);
    }

    fn take_in(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Granted { entry, grant, .. } => self.holds.push(Hold {
                    id: entry,
                    permits: i64::try_from(grant.permits).unwrap_or(i64::MAX),
                    token: grant.token,
                    granted_as: grant.granted_as,
                    deadline: tick(grant.deadline.instant()),
                }),
                Effect::Denied { key, .. } => self.refused_in_vain |= self.tries.remove(&key) == Some(false),
                Effect::Lost { entry, .. } => {
                    self.holds.retain(|hold| hold.id != entry);
                    self.idle = self.idle.take().filter(|hold| hold.id != entry);
                }
                _ => {}
            }
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.waitlist.is_at_rest()
    }

    /// Whether the time of this grant was over here.
    pub(super) fn has_ended(&self, holder: &Holder) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|(id, token)| (id, *token) == (&holder.id, holder.token))
    }

    pub(super) fn wants_to_send(&self, now: i64) -> bool {
        self.waitlist.wants_to_send(instant(now))
    }

    pub(super) fn may_ask(&self, now: i64) -> bool {
        self.waitlist.may_ask(instant(now))
    }

    /// A renewal of a hold was acknowledged, or a reading shows it renewed.
    pub(super) fn renewed(&mut self, (id, token): (&str, i64), deadline: Deadline, now: i64, rules: &Rules) {
        if let Some(hold) = self.hold_of(id, token).filter(|hold| hold.is_believed(now, rules)) {
            hold.deadline = hold.deadline.max(tick(deadline.instant()));
        }
    }

    /// The first hold of an entry, be it that no task has it.
    pub(super) fn hold_of(&mut self, id: &str, token: i64) -> Option<&mut Hold> {
        let mut holds = self.holds.iter_mut().chain(&mut self.idle);
        holds.find(|hold| hold.id == id && hold.granted_as == token)
    }
}

impl Hold {
    fn release(&self, heir: Heir, world: World<'_>) -> Release<'_> {
        Release {
            entry: &self.id,
            used: world.used,
            heir,
            left_as: LeftAs::Free,
            is_awaited: false,
        }
    }

    /// The lease that the next task has.
    fn left(&self, world: World<'_>) -> Inheritance {
        let until = if world.rules.hands_on_what_is_left {
            self.deadline
        } else {
            world.now + LEASE
        };
        Inheritance {
            deadline: Deadline::at(instant(until)),
            renew_at: *NEVER,
        }
    }

    /// Whether its holder takes it for valid.
    pub(super) fn is_believed(&self, now: i64, rules: &Rules) -> bool {
        now < self.deadline || !rules.looks_at_the_clock
    }
}
