//! All of it together: the server with its log, the network, the clients and the time; and every step that can be taken.

use std::{fmt, sync::Arc};

use super::{
    breach::{Before, Breach, check_write},
    client::{Client, Hold, World, instant},
    rules::{EPOCH, KEEP, LEASE, Rules, SKEW},
};
use crate::{
    protocol::{
        Evict, Expects, Holder, Kind, Operation, ServerTime, State, state,
        wake::{self, Signal},
    },
    store::Exchange,
    waitlist::deadline::Deadline,
};

/// What is explored.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) rules: Rules,
    pub(super) kind: Kind,
    pub(super) capacity: i64,
    /// For each client, how many permits it asks for.
    pub(super) permits: Vec<i64>,
    pub(super) locks: usize,
    /// How often each client may begin to acquire each lock, and how many of its tasks at a time.
    pub(super) acquires: u8,
    pub(super) tasks: usize,
    /// Acquires may also be tries.
    pub(super) tries: bool,
    /// Holders may renew.
    pub(super) renewals: bool,
    /// The document of an idle lock is purged in the end.
    pub(super) purge: bool,
    /// How many faults may come to pass in one run, and of which sorts.
    pub(super) faults: u8,
    pub(super) sorts: &'static [Fault],
    /// Everything that waits must be granted once the faults stop, from each state.
    pub(super) liveness: bool,
    /// How many steps a run may have; 0: any number.
    pub(super) steps: usize,
}

/// What may go wrong, and what users and operators may do at the worst moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A command stays on its way, and is applied at any later time: before its answer is given up, or after.
    Delay,
    /// An answer stays on its way, and is lost or not; the command was applied.
    LateAnswer,
    /// Events stay on their way.
    LateEvent,
    /// A process stands still for any time.
    Freeze,
    /// An event never arrives.
    Gap,
    Crash,
    /// An acquire is given up: a timeout, a dropped future.
    Cancel,
    /// An operator breaks the lock.
    Break,
    /// Another primary: what no majority had is undone, and its clock is another.
    FailOver,
    /// Somebody else reads the document, and saves it any time later as it was.
    Restore,
}

/// All that come up in the course of things; [`Fault::Restore`] is a mistake of somebody else's.
pub(super) const ALL_FAULTS: &[Fault] = &[
    Fault::Delay,
    Fault::LateAnswer,
    Fault::LateEvent,
    Fault::Freeze,
    Fault::Gap,
    Fault::Crash,
    Fault::Cancel,
    Fault::Break,
    Fault::FailOver,
];

/// The document of one lock, and what has been seen of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Slot {
    pub(super) state: Option<Arc<State>>,
    /// The last token that was issued for the name, whatever became of the document.
    pub(super) token: i64,
    /// The tokens of those who held it when somebody else saved an old document, and do not in that.
    pub(super) struck: Vec<i64>,
}

impl Slot {
    /// Whether somebody else has set the counter back.
    fn is_set_back(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.token < self.token)
    }

    /// What is taken for granted of a document that is set back: between the last grant and the next the server's clock
    /// goes on.
    fn may_be_set_back(&self, now: ServerTime) -> bool {
        room_for_tokens(self, now) < 0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Run(Arc<Operation>),
    Renew { id: String, token: i64 },
}

/// A command on its way to the server, or its answer on its way back.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) lock: usize,
    pub(super) command: Command,
    pub(super) sent: i64,
    /// Its client still waits for the answer.
    pub(super) awaited: bool,
    pub(super) applied: Option<Applied>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Applied {
    /// What the answer shows; of a renewal: the document, if it was changed.
    pub(super) shown: Option<Arc<State>>,
    pub(super) at: ServerTime,
    /// The place in the log that a majority must have before it is answered.
    pub(super) place: usize,
}

/// An event on its way to a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notice {
    pub(super) lock: usize,
    pub(super) id: String,
    pub(super) signal: Signal,
    pub(super) at: ServerTime,
    pub(super) place: usize,
}

#[derive(Clone, PartialEq)]
pub(super) struct System {
    /// What the monotonic clocks of all machines show.
    pub(super) time: i64,
    /// How far the server's clock is ahead of that, and the range in which that has been.
    pub(super) ahead: i64,
    pub(super) clocks: (i64, i64),
    /// The documents: as a majority has them, then after each write that only the primary is known to have.
    pub(super) log: Vec<Vec<Slot>>,
    pub(super) clients: Vec<Client>,
    pub(super) network: Vec<Message>,
    /// Each client's change stream.
    pub(super) streams: Vec<Vec<Notice>>,
    /// What somebody else has read of a lock, and may save.
    pub(super) copy: Option<(usize, Arc<State>)>,
    pub(super) faults: u8,
    operations: u32,
    /// Whether the time of a purge is of any matter.
    pub(super) purge: bool,
    /// Entries may have been left to their lease: their client crashed, or the command came after the last sweep.
    pub(super) abandoned: bool,
    pub(super) breach: Option<Breach>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// What a client does, and how the command gets on that it sends in turn.
    Client {
        client: usize,
        lock: usize,
        step: Step,
        mode: Mode,
    },
    /// The server gets a command that stayed on its way.
    Apply(usize),
    Answer(usize),
    Lose(usize),
    Event(usize),
    LateEvent(usize),
    Freeze(usize),
    Thaw(usize),
    Gap(usize),
    Crash(usize),
    Break(usize),
    FailOver {
        keep: usize,
        ahead: i64,
    },
    Purge(usize),
    Copy(usize),
    Restore,
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Acquire {
        wait: bool,
    },
    Cancel(usize),
    LetGo(usize),
    Renew(usize),
    /// What came up while an operation was on its way.
    Send,
    Timer,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    /// It is applied and answered at once.
    Prompt,
    /// It is applied at once. Its answer comes at any time, or never.
    Unanswered,
    /// It is applied at any time, be it that its client has given it up, or never; and so is its answer.
    Delayed,
}

impl Setup {
    fn allows(&self, state: &System, fault: Fault) -> bool {
        state.faults > 0 && self.sorts.contains(&fault)
    }

    pub(super) fn used(&self) -> (Kind, i64) {
        (self.kind, self.capacity)
    }

    pub(super) fn start(&self) -> System {
        let clients = self.permits.len();
        System {
            time: 0,
            ahead: 0,
            clocks: (0, 0),
            log: vec![vec![Slot::default(); self.locks]],
            clients: (0..clients)
                .map(|number| Client::new(number, self.permits[number], self.locks, self.acquires))
                .collect(),
            purge: self.purge,
            network: Vec::new(),
            streams: vec![Vec::new(); clients],
            copy: None,
            faults: self.faults,
            operations: 0,
            abandoned: false,
            breach: None,
        }
    }

    /// Every step that can be taken.
    pub(super) fn steps(&self, state: &System, steps: &mut Vec<Action>) {
        if state.breach.is_some() {
            return;
        }
        self.clients_steps(state, steps);
        for (number, message) in state.network.iter().enumerate() {
            if message.applied.is_none() {
                steps.push(Action::Apply(number));
            }
        }
        for client in 0..state.clients.len() {
            if !state.streams[client].is_empty() {
                if self.allows(state, Fault::Gap) {
                    steps.push(Action::Gap(client));
                }
                if !state.clients[client].lags && self.allows(state, Fault::LateEvent) {
                    steps.push(Action::LateEvent(client));
                }
            }
            let busy = state.clients[client].lines.iter().any(|line| !line.is_idle());
            if state.clients[client].frozen {
                steps.push(Action::Thaw(client));
            } else if busy && self.allows(state, Fault::Freeze) {
                steps.push(Action::Freeze(client));
            }
            if busy && self.allows(state, Fault::Crash) {
                steps.push(Action::Crash(client));
            }
        }
        for (lock, slot) in state.documents().iter().enumerate() {
            let held = slot.state.as_ref().is_some_and(|state| !state.holders.is_empty());
            if held && self.allows(state, Fault::Break) {
                steps.push(Action::Break(lock));
            }
            if slot.state.is_some() && state.copy.is_none() && self.allows(state, Fault::Restore) {
                steps.push(Action::Copy(lock));
            }
            let over = slot
                .state
                .as_ref()
                .is_some_and(|document| document.purge_at <= state.now());
            if self.purge && over {
                steps.push(Action::Purge(lock));
            }
        }
        if self.allows(state, Fault::FailOver) {
            for keep in 1..=state.log.len() {
                let clocks = (-SKEW..=SKEW).filter(|ahead| state.clock_may_be(*ahead));
                steps.extend(clocks.map(|ahead| Action::FailOver { keep, ahead }));
            }
        }
        if state.may_be_set_back() {
            steps.push(Action::Restore);
        }
        if state.is_timely() {
            steps.push(Action::Tick);
        }
    }

    fn clients_steps(&self, state: &System, steps: &mut Vec<Action>) {
        let modes: Vec<Mode> = [(Mode::Prompt, true)]
            .into_iter()
            .chain([(Mode::Delayed, self.allows(state, Fault::Delay))])
            .chain([(Mode::Unanswered, self.allows(state, Fault::LateAnswer))])
            .filter_map(|(mode, allowed)| allowed.then_some(mode))
            .collect();
        for (client, it) in state.clients.iter().enumerate().filter(|(_, client)| !client.frozen) {
            for (lock, line) in it.lines.iter().enumerate() {
                let mut own = Vec::new();
                if line.acquires > 0 && line.waitlist.waiting().len() + line.holds.len() < self.tasks {
                    own.push(Step::Acquire { wait: true });
                    if self.tries {
                        own.push(Step::Acquire { wait: false });
                    }
                }
                if self.allows(state, Fault::Cancel) {
                    own.extend((0..line.waitlist.waiting().len()).map(Step::Cancel));
                }
                own.extend((0..line.holds.len()).map(Step::LetGo));
                if line.wants_to_send(state.time) {
                    own.push(Step::Send);
                } else if line.may_ask(state.time) {
                    own.push(Step::Timer);
                }
                let renewable = line.holds.iter().enumerate();
                let renewable =
                    renewable.filter(|(_, hold)| self.renewals && state.may_renew(client, hold, &self.rules));
                own.extend(renewable.map(|(hold, _)| Step::Renew(hold)));
                for step in own {
                    steps.extend(modes.iter().map(|&mode| Action::Client {
                        client,
                        lock,
                        step,
                        mode,
                    }));
                }
            }
            if !state.streams[client].is_empty() {
                steps.push(Action::Event(client));
            }
        }
        for (number, message) in state.network.iter().enumerate() {
            if message.awaited && !state.clients[message.client].frozen {
                if self.rules.gives_up_commands {
                    steps.push(Action::Lose(number));
                }
                if message.applied.is_some() {
                    steps.push(Action::Answer(number));
                }
            }
        }
    }

    /// The state after a step; `None` where the step makes no difference.
    pub(super) fn after(&self, before: &System, action: &Action) -> Option<System> {
        let mut state = before.clone();
        match *action {
            Action::Client {
                client,
                lock,
                step,
                mode,
            } => {
                let faults = u8::from(matches!(step, Step::Cancel(_))) + u8::from(mode != Mode::Prompt);
                state.faults = state.faults.checked_sub(faults)?;
                let sent = state.step(self, client, lock, step, mode);
                if mode != Mode::Prompt && !sent {
                    return None;
                }
            }
            Action::Apply(message) => state.apply(self, message),
            Action::Answer(message) => state.deliver(self, message),
            Action::Lose(message) => state.lose(self, message),
            Action::Event(client) => state.hear(self, client),
            Action::LateEvent(client) => {
                state.faults -= 1;
                state.clients[client].lags = true;
            }
            Action::Freeze(client) => {
                state.faults -= 1;
                state.clients[client].frozen = true;
            }
            Action::Thaw(client) => state.clients[client].frozen = false,
            Action::Gap(client) => {
                state.faults -= 1;
                state.streams[client].remove(0);
            }
            Action::Crash(client) => {
                state.faults -= 1;
                state.crash(client);
            }
            Action::Break(lock) => {
                state.faults -= 1;
                state.put_out(self, lock);
            }
            Action::FailOver { keep, ahead } => {
                if keep == before.log.len() && ahead == before.ahead {
                    return None;
                }
                state.faults -= 1;
                state.fail_over(keep, ahead);
                if state
                    .documents()
                    .iter()
                    .any(|slot| slot.is_set_back() && !slot.may_be_set_back(state.now()))
                {
                    return None;
                }
            }
            Action::Purge(lock) => state.write(lock, None),
            Action::Copy(lock) => {
                state.faults -= 1;
                let document = state.documents()[lock].state.clone()?;
                state.copy = Some((lock, document));
            }
            Action::Restore => state.restore()?,
            Action::Tick => state.time += 1,
        }
        if !self.sorts.contains(&Fault::FailOver) || state.faults == 0 {
            // Nothing is undone any more, so it makes no difference when a majority has it.
            state.commit(state.log.len() - 1);
        }
        Some(state)
    }
}

impl System {
    /// What the server's clock shows.
    pub(super) fn now(&self) -> ServerTime {
        ServerTime(EPOCH + self.time + self.ahead)
    }

    /// The documents as the primary has them.
    pub(super) fn documents(&self) -> &[Slot] {
        self.log.last().map_or(&[], Vec::as_slice)
    }

    /// The clocks of any two primaries differ by the margin at most.
    fn clock_may_be(&self, ahead: i64) -> bool {
        self.clocks.1.max(ahead) - self.clocks.0.min(ahead) <= SKEW
    }

    fn world<'a>(&self, setup: &'a Setup) -> World<'a> {
        World {
            now: self.time,
            rules: &setup.rules,
            used: setup.used(),
        }
    }

    /// Nothing has to happen before time goes on.
    fn is_timely(&self) -> bool {
        let heard = |client: &Client| client.lags || self.streams[client.number].is_empty();
        let sent = |client: &Client| !client.lines.iter().any(|line| line.wants_to_send(self.time));
        let mut clients = self.clients.iter();
        clients.all(|client| client.frozen || (heard(client) && sent(client)))
    }

    fn may_renew(&self, client: usize, hold: &Hold, rules: &Rules) -> bool {
        let on_its_way = self.network.iter().any(|message| {
            message.client == client
                && message.awaited
                && matches!(&message.command, Command::Renew { id, .. } if *id == hold.id)
        });
        let gains = hold.deadline < self.time + LEASE - rules.skew();
        self.time < hold.deadline && gains && !on_its_way
    }

    /// A client's step; says whether it sent something.
    fn step(&mut self, setup: &Setup, client: usize, lock: usize, step: Step, mode: Mode) -> bool {
        if let Step::Renew(hold) = step {
            let hold = &self.clients[client].lines[lock].holds[hold];
            let command = Command::Renew {
                id: hold.id.clone(),
                token: hold.token,
            };
            self.send(setup, client, lock, command, mode);
            return true;
        }
        let world = self.world(setup);
        let it = &mut self.clients[client];
        match step {
            Step::Acquire { wait } => it.join(lock, wait, world),
            Step::Cancel(place) => it.cancel(lock, place, world),
            Step::LetGo(place) => it.let_go(lock, place, world),
            Step::Renew(_) | Step::Send | Step::Timer => {}
        }
        let Some(operation) = it.next(lock, step == Step::Timer, world) else {
            return false;
        };
        self.send(setup, client, lock, Command::Run(Arc::new(operation)), mode);
        true
    }

    fn send(&mut self, setup: &Setup, client: usize, lock: usize, command: Command, mode: Mode) {
        self.network.push(Message {
            client,
            lock,
            command,
            sent: self.time,
            awaited: true,
            applied: None,
        });
        let message = self.network.len() - 1;
        if mode != Mode::Delayed {
            self.apply(setup, message);
        }
        if mode == Mode::Prompt {
            self.deliver(setup, message);
        }
    }

    fn apply(&mut self, setup: &Setup, number: usize) {
        let Message { lock, ref command, .. } = self.network[number];
        let now = self.now();
        let before = self.documents()[lock].state.clone();
        let (after, shown) = match command.clone() {
            Command::Run(operation) => {
                let after = (setup.rules.apply)(before.as_deref(), &operation, now);
                self.check(setup, lock, Some(&operation), after.as_ref());
                let after = after.map(Arc::new);
                let selected = before.as_deref().is_none_or(|before| operation.selects(before));
                let shown = after.clone().filter(|_| selected);
                (after, shown)
            }
            Command::Renew { id, .. } => {
                self.operations += 1;
                let operation = format!("r.{}", self.operations);
                let mut after = before.as_deref().cloned();
                let renewed = after
                    .as_mut()
                    .is_some_and(|state| (setup.rules.renew)(state, &operation, &[id], KEEP, now));
                self.check(setup, lock, None, after.as_ref());
                let after = after.map(Arc::new);
                (after.clone(), after.filter(|_| renewed))
            }
        };
        if before != after {
            self.write(lock, after);
        }
        if self.network[number].awaited {
            self.network[number].applied = Some(Applied {
                shown,
                at: now,
                place: self.log.len() - 1,
            });
        } else {
            let message = self.network.remove(number);
            if let Command::Run(operation) = message.command {
                let line = &self.clients[message.client].lines[lock];
                let requests = operation.requests.iter().flat_map(|requests| &requests.entries);
                // It comes after the last sweep, or after its client's death.
                self.abandoned |= requests.into_iter().any(|entry| !line.waitlist.knows(&entry.id));
            }
        }
    }

    fn check(&mut self, setup: &Setup, lock: usize, operation: Option<&Operation>, after: Option<&State>) {
        if self.breach.is_none() {
            let slot = &self.documents()[lock];
            let before = Before {
                state: slot.state.as_deref(),
                token: slot.token,
                capacity: setup.capacity,
                room: setup.rules.room,
            };
            self.breach = check_write(&before, operation, after, self.now());
        }
    }

    /// A write of the primary, and the events of it.
    fn write(&mut self, lock: usize, after: Option<Arc<State>>) {
        let mut documents = self.documents().to_vec();
        let token = after.as_ref().map_or(0, |state| state.token);
        documents[lock] = Slot {
            token: documents[lock].token.max(token),
            struck: documents[lock].struck.clone(),
            state: after.clone(),
        };
        self.log.push(documents);
        let place = self.log.len() - 1;
        let Some(state) = after else { return };
        for (client, stream) in self.streams.iter_mut().enumerate() {
            for (id, signal) in wake::signals(&state.wake, &self.clients[client].session) {
                stream.push(Notice {
                    lock,
                    id: id.to_owned(),
                    signal,
                    at: state.at,
                    place,
                });
            }
        }
    }

    fn may_be_set_back(&self) -> bool {
        let copy = self.copy.as_ref();
        copy.is_some_and(|(lock, _)| self.documents()[*lock].may_be_set_back(self.now()))
    }

    /// Somebody else saves what it has read; `None` where it is still so.
    fn restore(&mut self) -> Option<()> {
        let (lock, copy) = self.copy.take()?;
        let before = self.documents()[lock].state.clone();
        if before.as_ref() == Some(&copy) {
            return None;
        }
        let mut struck = self.documents()[lock].struck.clone();
        for holder in before.iter().flat_map(|state| &state.holders) {
            let stays =
                |other: &Holder| (&other.id, other.token) == (&holder.id, holder.token) && other.until >= holder.until;
            if !copy.holders.iter().any(stays) {
                struck.push(holder.token);
            }
        }
        self.write(lock, Some(copy));
        if let Some(slot) = self.log.last_mut().and_then(|documents| documents.get_mut(lock)) {
            slot.struck = struck;
        }
        // It brings back entries that have left.
        self.abandoned = true;
        Some(())
    }

    /// A majority has the log up to a place.
    fn commit(&mut self, place: usize) {
        if place == 0 {
            return;
        }
        self.log.drain(..place);
        let places = self.network.iter_mut().filter_map(|message| message.applied.as_mut());
        places.for_each(|applied| applied.place = applied.place.saturating_sub(place));
        let notices = self.streams.iter_mut().flatten();
        notices.for_each(|notice| notice.place = notice.place.saturating_sub(place));
    }

    /// An answer arrives.
    fn deliver(&mut self, setup: &Setup, number: usize) {
        let message = self.network.remove(number);
        let Some(applied) = message.applied else { return };
        if setup.rules.waits_for_majority {
            self.commit(applied.place);
        }
        let (client, lock) = (message.client, message.lock);
        let world = self.world(setup);
        let sent = instant(message.sent);
        match message.command {
            Command::Run(operation) => {
                let exchange = Exchange {
                    sent,
                    received: instant(self.time),
                    now: applied.shown.is_some().then_some(applied.at),
                };
                let client = &mut self.clients[client];
                client.note(&exchange, &setup.rules);
                client.answered(lock, &operation, applied.shown.as_deref(), &exchange, world);
            }
            Command::Renew { id, token } => {
                let now = instant(self.time);
                let read = Exchange {
                    sent: now,
                    received: now,
                    now: Some(self.now()),
                };
                let document = self.documents()[lock].state.clone();
                let client = &mut self.clients[client];
                let mut holds = client.lines[lock].holds.iter();
                let Some(place) = holds.position(|hold| hold.id == id && hold.token == token) else {
                    return;
                };
                let sent = if setup.rules.counts_from_sending { sent } else { now };
                let config = setup.rules.config();
                // Where some are gone, or were renewed by another meanwhile, the document is read.
                let mut holders = document.iter().flat_map(|state| &state.holders);
                let deadline = if applied.shown.is_some() {
                    Some(Deadline::of_renewal(sent, config.lease, &client.clock, config))
                } else {
                    let holder = holders.find(|holder| holder.id == id && holder.token == token);
                    holder.and_then(|holder| Deadline::of_reading(&read, holder.until, sent, config.lease, config))
                };
                match deadline {
                    Some(deadline) => client.lines[lock].renewed(place, deadline, self.time, &setup.rules),
                    None => client.verified(lock, &id, document.as_deref().cloned(), world),
                }
            }
        }
    }

    /// A client gives an answer up. Where the command is not applied yet, it may still be.
    fn lose(&mut self, setup: &Setup, number: usize) {
        let Message { client, lock, .. } = self.network[number];
        let command = self.network[number].command.clone();
        if let Command::Run(operation) = &command {
            let world = self.world(setup);
            self.clients[client].failed(lock, operation, world);
        }
        self.network[number].awaited = false;
        if self.network[number].applied.is_some() {
            self.network.remove(number);
        }
    }

    /// The next event of a client's stream arrives.
    fn hear(&mut self, setup: &Setup, client: usize) {
        let notice = self.streams[client].remove(0);
        self.clients[client].lags &= !self.streams[client].is_empty();
        if setup.rules.waits_for_majority {
            self.commit(notice.place);
        }
        let world = self.world(setup);
        self.clients[client].signalled(notice.lock, &notice.id, notice.signal, notice.at, world);
    }

    fn crash(&mut self, client: usize) {
        self.clients[client].crash();
        self.streams[client].clear();
        self.abandoned = true;
        self.network.retain_mut(|message| {
            message.awaited &= message.client != client;
            message.awaited || message.applied.is_none()
        });
    }

    fn put_out(&mut self, setup: &Setup, lock: usize) {
        self.operations += 1;
        let operation = Operation {
            id: format!("o.{}", self.operations),
            leave: Vec::new(),
            leave_capacity: None,
            evict: Evict::Everybody,
            proclaim: None,
            requests: None,
            expects: Expects::Nothing,
            room: setup.rules.room,
            keep: KEEP,
        };
        let now = self.now();
        let before = self.documents()[lock].state.clone();
        let after = (setup.rules.apply)(before.as_deref(), &operation, now);
        self.check(setup, lock, Some(&operation), after.as_ref());
        if before.as_deref() != after.as_ref() {
            self.write(lock, after.map(Arc::new));
        }
    }

    /// Another primary, which has `keep` states of the log.
    fn fail_over(&mut self, keep: usize, ahead: i64) {
        self.log.truncate(keep);
        for message in &mut self.network {
            // Its write is undone: the driver sends it again, or it never was.
            if message.applied.as_ref().is_some_and(|applied| applied.place >= keep) {
                message.applied = None;
            }
        }
        for stream in &mut self.streams {
            stream.retain(|notice| notice.place < keep);
        }
        self.ahead = ahead;
        self.clocks = (self.clocks.0.min(ahead), self.clocks.1.max(ahead));
    }

    /// What everybody who holds a lock takes for valid, but for those that an operator put out, or a save of an old document.
    pub(super) fn believed(&self, setup: &Setup, lock: usize) -> Vec<&Hold> {
        let (mut believed, struck) = (self.valid(setup, lock), &self.documents()[lock].struck);
        believed.retain(|hold| !struck.contains(&hold.token));
        believed
    }

    /// Those whom the save of an old document has put out.
    pub(super) fn struck(&self, setup: &Setup, lock: usize) -> Vec<&Hold> {
        let (mut believed, struck) = (self.valid(setup, lock), &self.documents()[lock].struck);
        believed.retain(|hold| struck.contains(&hold.token));
        believed
    }

    fn valid(&self, setup: &Setup, lock: usize) -> Vec<&Hold> {
        let broken = self.documents()[lock].state.as_ref().and_then(|state| state.broken);
        let holds = self.clients.iter().flat_map(|client| &client.lines[lock].holds);
        holds
            .filter(|hold| hold.is_believed(self.time, &setup.rules))
            .filter(|hold| broken.is_none_or(|broken| hold.token > broken))
            .collect()
    }

    /// Whether anything is on its way between a client and a lock.
    pub(super) fn has_on_its_way(&self, client: usize, lock: usize) -> bool {
        let sent = |message: &Message| (message.client, message.lock) == (client, lock);
        self.network.iter().any(sent) || self.streams[client].iter().any(|notice| notice.lock == lock)
    }

    /// A number by which some states are chosen: of the ids that were made, which differ from state to state.
    pub(super) fn lot(&self) -> i64 {
        let clients = self.clients.iter().map(Client::made_so_far);
        clients.fold(self.time, |lot, made| lot * 31 + made).wrapping_abs()
    }

    /// Whether an answer is awaited.
    pub(super) fn awaits_answers(&self) -> bool {
        self.network.iter().any(|message| message.awaited)
    }

    /// Nobody wants anything, and nothing is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.network.is_empty()
            && self.streams.iter().all(Vec::is_empty)
            && self
                .clients
                .iter()
                .flat_map(|client| &client.lines)
                .all(|line| line.is_idle())
    }

    /// From here on nothing goes wrong, whoever holds lets go, and nobody else comes. What is still on its way comes
    /// first. Without `events`, the clients poll. Without `answers`, none comes of those that are still awaited, nor of the
    /// first command that each client sends from here on: it is given up and asked for again beside, and done before
    /// that, or after.
    pub(super) fn play_out(&self, setup: &Setup, events: bool, answers: bool) -> Self {
        let mut state = self.clone();
        state.clients.iter_mut().for_each(|client| client.frozen = false);
        state.copy = None;
        let mut silent = vec![vec![!answers; setup.locks]; state.clients.len()];
        while let Some(message) = state.network.iter().position(|message| message.awaited) {
            if answers {
                if state.network[message].applied.is_none() {
                    state.apply(setup, message);
                }
                state.deliver(setup, message);
            } else if setup.rules.gives_up_commands {
                state.lose(setup, message);
            } else {
                break;
            }
        }
        for _ in 0..PATIENCE {
            if state.is_quiet() || state.breach.is_some() {
                break;
            }
            state.round(setup, events, &mut silent);
            state.time += 1;
            // What nobody waits for any more comes after its client has asked again.
            let late = |state: &Self| {
                let late = |message: &Message| message.applied.is_none() && message.sent + 1 < state.time;
                state.network.iter().position(late)
            };
            while let Some(message) = late(&state) {
                state.apply(setup, message);
            }
        }
        state
    }

    fn round(&mut self, setup: &Setup, events: bool, silent: &mut [Vec<bool>]) {
        for client in 0..self.clients.len() {
            if !events {
                self.streams[client].clear();
            }
            while !self.streams[client].is_empty() {
                self.hear(setup, client);
            }
            for lock in 0..setup.locks {
                let silent = &mut silent[client][lock];
                while !self.clients[client].lines[lock].holds.is_empty() {
                    self.ask(setup, client, lock, Step::LetGo(0), silent);
                }
                // With a stream, asking is only the back-stop.
                let line = &self.clients[client].lines[lock];
                let queued = line.waitlist.is_queued();
                if line.may_ask(self.time) && !(events && queued && self.time % (LEASE / 2) != 0) {
                    self.ask(setup, client, lock, Step::Timer, silent);
                }
                // Not for ever: what has come to no end by then comes to none.
                for _ in 0..PATIENCE {
                    if !self.clients[client].lines[lock].wants_to_send(self.time) {
                        break;
                    }
                    self.ask(setup, client, lock, Step::Send, silent);
                }
            }
        }
    }

    /// A client's step whose command is answered at once; or is not answered at all where it is to be `silent`, which is
    /// over then.
    fn ask(&mut self, setup: &Setup, client: usize, lock: usize, step: Step, silent: &mut bool) {
        let mode = match (*silent, client % 2) {
            (false, _) => Mode::Prompt,
            (true, 0) => Mode::Unanswered,
            (true, _) => Mode::Delayed,
        };
        if self.step(setup, client, lock, step, mode) && std::mem::take(silent) && setup.rules.gives_up_commands {
            self.lose(setup, self.network.len() - 1);
        }
    }
}

/// Rounds after which everybody has had his turn: a lease for whoever died as a holder, a claim for each that died in the
/// queue, and the sweeps.
const PATIENCE: usize = 40;

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "time {}, server {:?}, faults left {}",
            self.time,
            self.now(),
            self.faults
        )?;
        for (place, documents) in self.log.iter().enumerate() {
            for (lock, slot) in documents.iter().enumerate() {
                let Some(state) = &slot.state else {
                    writeln!(f, "  [{place}] lock {lock}: none")?;
                    continue;
                };
                let holders: Vec<String> = state
                    .holders
                    .iter()
                    .map(|holder| format!("{}+{} until {}", holder.id, holder.token, holder.until.0))
                    .collect();
                let queue: Vec<String> = state
                    .queue
                    .iter()
                    .map(|waiter| format!("{} until {}", waiter.id, waiter.until.0))
                    .collect();
                writeln!(
                    f,
                    "  [{place}] lock {lock}: {holders:?}, queue {queue:?}, token {}",
                    state.token
                )?;
            }
        }
        for client in &self.clients {
            for (lock, line) in client.lines.iter().enumerate().filter(|(_, line)| !line.is_idle()) {
                writeln!(f, "  client {} before lock {lock}: {line:?}", client.number)?;
            }
        }
        for message in &self.network {
            let what = match &message.command {
                Command::Run(operation) => {
                    let asked: Vec<&String> = operation
                        .requests
                        .iter()
                        .flat_map(|requests| requests.entries.iter().map(|entry| &entry.id))
                        .collect();
                    format!("leave {:?}, request {asked:?}", operation.leave)
                }
                Command::Renew { id, .. } => format!("renew {id}"),
            };
            let (sent, awaited, applied) = (message.sent, message.awaited, message.applied.is_some());
            writeln!(
                f,
                "  message: {what}, sent {sent}, awaited {awaited}, applied {applied}"
            )?;
        }
        for (client, stream) in self.streams.iter().enumerate().filter(|(_, stream)| !stream.is_empty()) {
            let words: Vec<String> = stream
                .iter()
                .map(|notice| format!("{} {:?}", notice.id, notice.signal))
                .collect();
            writeln!(f, "  stream of client {client}: {words:?}")?;
        }
        write!(f, "  breach {:?}", self.breach)
    }
}

/// The gap between the last token of a name and the least that the server's clock lets be issued.
pub(super) fn room_for_tokens(slot: &Slot, now: ServerTime) -> i64 {
    (slot.token - state::clock_token(now)).max(-2_000)
}
