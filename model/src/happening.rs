//! The happenings of a state: commands are sent, applied, answered and lost; events arrive; faults strike.

use std::sync::Arc;

use super::{
    breach::{Before, check_write},
    client::{Client, instant},
    rules::KEEP,
    steps::{Mode, Step},
    system::{Applied, Command, Message, Notice, Setup, Slot, System},
};
use crate::{
    protocol::{
        CapacityIs, Change, Entry, Evict, Exchange, Operation, Requests, State,
        wake::{self, Signal},
    },
    waitlist::{Key, Setback, deadline},
};

impl System {
    /// A client's step; says whether it sent something.
    pub(super) fn step(&mut self, setup: &Setup, client: usize, lock: usize, step: Step, mode: Mode) -> bool {
        let line = &self.clients[client].lines[lock];
        let renewed = match step {
            Step::Renew(hold) | Step::Change(hold) => line.holds.get(hold),
            Step::RenewIdle => line.idle.as_ref(),
            _ => None,
        };
        if let Some(hold) = renewed {
            let (id, token) = (hold.entry.clone(), hold.granted_as);
            let command = match step {
                Step::Change(_) => Command::Run(Arc::new(Operation {
                    change: Some(Change::of(id, token)),
                    ..self.blank(setup)
                })),
                _ => Command::Renew { id, token },
            };
            self.send(setup, client, lock, command, mode);
            return true;
        }
        let met = match step {
            Step::Upgrade { .. } => self.is_beside_an_upgrade(lock, setup.capacity - self.clients[client].permits),
            _ => self.is_in_the_way(lock, self.clients[client].permits),
        };
        let world = self.world(setup);
        let it = self.client(client);
        match step {
            Step::Acquire { wait } => it.join(lock, wait, met, world),
            Step::Cancel(place) => it.cancel(lock, place, world),
            Step::LetGo(place) => it.let_go(lock, place, world),
            Step::Upgrade { wait } => it.upgrade(lock, wait, met, world),
            Step::GiveBack => it.give_back(lock, world),
            Step::Renew(_) | Step::Change(_) | Step::RenewIdle | Step::Send | Step::Timer => {}
        }
        let Some(operation) = it.next(lock, step == Step::Timer, world) else {
            return false;
        };
        self.send(setup, client, lock, Command::Run(Arc::new(operation)), mode);
        true
    }

    pub(super) fn send(&mut self, setup: &Setup, client: usize, lock: usize, command: Command, mode: Mode) {
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

    pub(super) fn apply(&mut self, setup: &Setup, number: usize) {
        let Message { lock, ref command, .. } = self.network[number];
        let now = self.now();
        let before = self.documents()[lock].state.clone();
        let (after, shown) = match command.clone() {
            Command::Run(operation) => {
                let after = (setup.rules.apply)(before.as_deref(), &operation, now);
                self.check(setup, lock, Some(&operation), after.as_ref());
                let after = after.map(Arc::new);
                (after.clone(), after)
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

    pub(super) fn check(&mut self, setup: &Setup, lock: usize, operation: Option<&Operation>, after: Option<&State>) {
        if self.breach.is_none() {
            let slot = &self.documents()[lock];
            let before = Before {
                state: slot.state.as_deref(),
                token: slot.token,
                room: setup.rules.room,
                lines: self.clients.iter().map(|client| &client.lines[lock]).collect(),
            };
            self.breach = check_write(&before, operation, after, self.now());
        }
    }

    /// A write of the primary, and the events of it.
    pub(super) fn write(&mut self, lock: usize, after: Option<Arc<State>>) {
        let mut documents = self.documents().to_vec();
        let token = after.as_ref().map_or(0, |state| state.token);
        documents[lock] = Slot {
            token: documents[lock].token.max(token),
            struck: documents[lock].struck.clone(),
            state: after.clone(),
        };
        self.log.push(documents);
        self.tries_meet(lock);
        let place = self.log.len() - 1;
        let log = &self.log;
        let ending = |client: &&mut Arc<Client>| !client.lines[lock].ended.is_empty();
        for client in self.clients.iter_mut().filter(ending) {
            Arc::make_mut(client).lines[lock].ended.retain(|(_, token)| {
                let states = log.iter().filter_map(|documents| documents[lock].state.as_deref());
                states
                    .flat_map(|state| &state.holders)
                    .any(|holder| holder.token == *token)
            });
        }
        let Some(state) = after else { return };
        let reads_losses = self.reads_losses;
        for (client, stream) in self.streams.iter_mut().enumerate() {
            for (id, signal) in wake::signals(&state.wake, &self.clients[client].session) {
                if reads_losses && matches!(signal, Signal::Evicted { .. }) {
                    continue;
                }
                // A second such event among the last ones is left out, which is as if it were lost: a waiter that asks
                // again and again would fill the stream of a client that is late without end.
                let asks = |notice: &&Notice| notice.lock == lock && notice.signal == Signal::AskedFor;
                let mut asking = stream.iter().rev().take_while(asks);
                if signal == Signal::AskedFor && asking.any(|notice| notice.id == id) {
                    continue;
                }
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

    /// Whether a holder or a waiter keeps so many permits from whoever asks now.
    fn is_in_the_way(&self, lock: usize, permits: i64) -> bool {
        let now = self.now();
        let state = self.documents()[lock].state.iter();
        let mut waiters = state.flat_map(|state| &state.queue);
        self.is_beside_an_upgrade(lock, permits) || waiters.any(|waiter| waiter.until > now)
    }

    /// Whether a holder keeps so many permits from an upgrade, which goes before all that wait.
    fn is_beside_an_upgrade(&self, lock: usize, permits: i64) -> bool {
        let now = self.now();
        self.documents()[lock].state.as_ref().is_some_and(|state| {
            let live = state.holders.iter().filter(|holder| holder.until > now);
            let held: i64 = live.map(|holder| holder.permits).sum();
            held + permits > state.capacity
        })
    }

    /// Notes for the tries in line what the document shows.
    fn tries_meet(&mut self, lock: usize) {
        for client in 0..self.clients.len() {
            let line = &self.clients[client].lines[lock];
            let tries = line
                .waitlist
                .waiting()
                .iter()
                .filter(|task| line.tries.contains_key(&task.key));
            let met = tries.filter(|task| match &task.wants.upgrades {
                Some(_) => self.is_beside_an_upgrade(lock, task.wants.permits),
                None => self.is_in_the_way(lock, task.wants.permits),
            });
            let met: Vec<Key> = met.map(|task| task.key).collect();
            for key in met {
                if let Some(attempt) = self.client(client).lines[lock].tries.get_mut(&key) {
                    attempt.met = true;
                }
            }
        }
    }

    pub(super) fn may_be_set_back(&self) -> bool {
        let copy = self.copy.as_ref();
        copy.is_some_and(|(lock, _)| self.documents()[*lock].may_be_set_back(self.now()))
    }

    /// Another program saves the document that it has read; `None` if the document has not changed since.
    pub(super) fn restore(&mut self) -> Option<()> {
        let (lock, copy) = self.copy.take()?;
        let before = self.documents()[lock].state.clone();
        if before.as_ref() == Some(&copy) {
            return None;
        }
        let mut struck = self.documents()[lock].struck.clone();
        for holder in before.iter().flat_map(|state| &state.holders) {
            let stays =
                |other: &Entry| (&other.id, other.token) == (&holder.id, holder.token) && other.until >= holder.until;
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
    pub(super) fn commit(&mut self, place: usize) {
        if place == 0 {
            return;
        }
        self.log.drain(..place);
        let places = self.network.iter_mut().filter_map(|message| message.applied.as_mut());
        places.for_each(|applied| applied.place = applied.place.saturating_sub(place));
        let notices = self.streams.iter_mut().flatten();
        notices.for_each(|notice| notice.place = notice.place.saturating_sub(place));
    }

    /// A client reads the locks that it holds.
    pub(super) fn read_holds(&mut self, setup: &Setup, client: usize) {
        let world = self.world(setup);
        for lock in 0..setup.locks {
            let document = self.documents()[lock].state.as_deref().cloned();
            self.client(client).reads(lock, document, world);
        }
        self.client(client).read_at = self.time;
    }

    /// A process goes on. It has not read for as long as it stood still, and does it now.
    pub(super) fn thaw(&mut self, client: usize) {
        let client = self.client(client);
        client.frozen = false;
        client.lines.iter_mut().for_each(|line| line.gone_since = None);
    }

    /// A command for several locks is over, whether it has done this operation or not, and the document is read.
    pub(super) fn read(&mut self, setup: &Setup, number: usize) {
        let message = self.network.remove(number);
        let Command::Run(operation) = message.command else {
            return;
        };
        if setup.rules.waits_for_majority {
            self.commit(self.log.len() - 1);
        }
        let (client, lock) = (message.client, message.lock);
        let (state, world) = (self.documents()[lock].state.clone(), self.world(setup));
        let client = self.client(client);
        match operation.is_done_in(state.as_deref()) {
            Some(true) => {
                let written = state
                    .iter()
                    .filter(|state| wake::left(&state.wake, &operation.id).is_some());
                let exchange = Exchange::new(
                    instant(message.sent),
                    instant(world.now),
                    written.map(|state| state.at).next(),
                );
                client.note(&exchange, &setup.rules);
                client.answered(lock, &operation, state.as_deref(), &exchange, world);
            }
            Some(false) => client.failed(lock, &operation, Setback::Raced, world),
            None => client.failed(lock, &operation, Setback::Unsaid, world),
        }
    }

    /// An answer arrives.
    pub(super) fn deliver(&mut self, setup: &Setup, number: usize) {
        let message = self.network.remove(number);
        let Some(applied) = message.applied else { return };
        if setup.rules.waits_for_majority {
            self.commit(applied.place);
        }
        let (client, lock) = (message.client, message.lock);
        let world = self.world(setup);
        let sent = instant(message.sent);
        if let Some((id, token)) = message.command.renews() {
            let now = instant(world.now);
            let read = Exchange::new(now, now, Some(self.now()));
            let document = self.documents()[lock].state.clone();
            let client = self.client(client);
            if client.lines[lock].hold_of(id, token).is_none() {
                return;
            }
            let sent = if setup.rules.counts_from_sending { sent } else { now };
            let config = setup.rules.config();
            let holder = |state: &Option<Arc<State>>| {
                let mut holders = state.iter().flat_map(|state| &state.holders);
                holders.find(|holder| holder.is_grant(id, token)).cloned()
            };
            // Where some are gone, or were renewed by another meanwhile, the document is read.
            let deadline = match holder(&applied.shown) {
                Some(_) => Some(deadline::of_renewal(sent, config.lease, config)),
                None => holder(&document)
                    .and_then(|holder| deadline::of_reading(&read, holder.until, sent, config.lease, config)),
            };
            match deadline {
                Some(deadline) => client.lines[lock].renewed((id, token), deadline, world.now, &setup.rules),
                None => client.verified(lock, id, document.as_deref().cloned(), world),
            }
        } else if let Command::Run(operation) = message.command {
            let exchange = Exchange::new(sent, instant(world.now), applied.shown.is_some().then_some(applied.at));
            let client = self.client(client);
            client.note(&exchange, &setup.rules);
            client.answered(lock, &operation, applied.shown.as_deref(), &exchange, world);
        }
    }

    /// A client gives an answer up. Where the command is not applied yet, it may still be.
    pub(super) fn lose(&mut self, setup: &Setup, number: usize) {
        let Message { client, lock, .. } = self.network[number];
        let command = self.network[number].command.clone();
        if let Command::Run(operation) = &command
            && operation.change.is_none()
        {
            let world = self.world(setup);
            self.client(client).failed(lock, operation, Setback::Interrupted, world);
        }
        self.network[number].awaited = false;
        if self.network[number].applied.is_some() {
            self.network.remove(number);
        }
    }

    /// The next event of a client's stream arrives.
    pub(super) fn hear(&mut self, setup: &Setup, client: usize) {
        let notice = self.streams[client].remove(0);
        let lags = self.clients[client].lags && !self.streams[client].is_empty();
        self.client(client).lags = lags;
        if setup.rules.waits_for_majority {
            self.commit(notice.place);
        }
        let world = self.world(setup);
        self.client(client)
            .signalled(notice.lock, &notice.id, notice.signal, notice.at, world);
    }

    pub(super) fn crash(&mut self, client: usize) {
        self.client(client).crash();
        self.streams[client].clear();
        self.abandoned = true;
        self.network.retain_mut(|message| {
            message.awaited &= message.client != client;
            message.awaited || message.applied.is_none()
        });
    }

    pub(super) fn put_out(&mut self, setup: &Setup, lock: usize) {
        let operation = Operation {
            evict: Evict::Everybody,
            ..self.blank(setup)
        };
        self.operate(setup, lock, &operation);
    }

    /// An operator sets the capacity to the other of the two.
    pub(super) fn set(&mut self, setup: &Setup, lock: usize) {
        let state = self.documents()[lock].state.as_ref();
        let is_set = state.is_some_and(|state| state.capacity == setup.sets);
        let operation = Operation {
            requests: Some(Requests {
                kind: setup.kind,
                capacity: if is_set { setup.capacity } else { setup.sets },
                by: CapacityIs::Set,
                entries: Vec::new(),
                adopts: None,
            }),
            ..self.blank(setup)
        };
        self.operate(setup, lock, &operation);
    }

    /// An operation beside those of the lines.
    fn blank(&mut self, setup: &Setup) -> Operation {
        self.operations += 1;
        Operation {
            room: setup.rules.room,
            ..Operation::blank(format!("o.{}", self.operations), KEEP)
        }
    }

    fn operate(&mut self, setup: &Setup, lock: usize, operation: &Operation) {
        let now = self.now();
        let before = self.documents()[lock].state.clone();
        let after = (setup.rules.apply)(before.as_deref(), operation, now);
        self.check(setup, lock, Some(operation), after.as_ref());
        if before.as_deref() != after.as_ref() {
            self.write(lock, after.map(Arc::new));
        }
    }

    /// Another primary takes over, which has `keep` states of the log.
    pub(super) fn fail_over(&mut self, keep: usize, ahead: i64) {
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
        (0..self.documents().len()).for_each(|lock| self.tries_meet(lock));
        self.clocks = (self.clocks.0.min(ahead), self.clocks.1.max(ahead));
    }
}
