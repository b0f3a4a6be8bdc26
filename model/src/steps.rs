//! Every step that can be taken from a state, and where it leads.

use super::{
    rules::SKEW,
    system::{Fault, Setup, System},
};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// A step of a client, and the fate of the command that it sends in turn.
    Client {
        client: usize,
        lock: usize,
        step: Step,
        mode: Mode,
    },
    /// The server gets a command that stayed on its way.
    Apply(usize),
    Answer(usize),
    /// The command is one for several locks. It is over, and a reading of the document takes the place of its answer.
    Read(usize),
    Lose(usize),
    Event(usize),
    /// A client without a stream for losses reads the locks that it holds.
    ReadHolds(usize),
    LateEvent(usize),
    Freeze(usize),
    Thaw(usize),
    Gap(usize),
    Crash(usize),
    Break(usize),
    Set(usize),
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
    /// The upgradeable reader is to become a writer.
    Upgrade {
        wait: bool,
    },
    /// The time of the hold that no task has is over.
    GiveBack,
    Renew(usize),
    /// The holder changes its entry, beside the operations of its line.
    Change(usize),
    /// Of the hold that no task has.
    RenewIdle,
    /// The inputs that came up while an operation was on its way.
    Send,
    Timer,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    /// It is applied and answered at once.
    Prompt,
    /// It is applied at once. Its answer comes at any time, or never.
    Unanswered,
    /// It is applied at any time (even after its client has given it up) or never, and its answer arrives at any time
    /// or never.
    Delayed,
}

impl Setup {
    pub(super) fn allows(&self, state: &System, fault: Fault) -> bool {
        state.faults > 0 && self.sorts.contains(&fault)
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
            let busy = state.clients[client].lines.iter().any(|line| !line.is_unused());
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
            if self.sets > 0 && self.allows(state, Fault::Set) {
                steps.push(Action::Set(lock));
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
        if state.is_timely(&self.rules) {
            steps.push(Action::Tick);
        }
    }

    pub(super) fn clients_steps(&self, state: &System, steps: &mut Vec<Action>) {
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
                own.extend(line.may_be_let_go(state.time, &self.rules).map(Step::LetGo));
                if line.may_be_upgraded(self.used()) {
                    own.push(Step::Upgrade { wait: true });
                    if self.tries {
                        own.push(Step::Upgrade { wait: false });
                    }
                }
                own.extend(line.idle.as_ref().map(|_| Step::GiveBack));
                if line.wants_to_send(state.time) {
                    own.push(Step::Send);
                } else if line.may_ask(state.time) {
                    own.push(Step::Timer);
                }
                let renewable = line.holds.iter().enumerate();
                for (hold, _) in renewable.filter(|(_, hold)| state.may_renew(client, hold, &self.rules)) {
                    own.extend(self.renewals.then_some(Step::Renew(hold)));
                    own.extend(self.changes.then_some(Step::Change(hold)));
                }
                let idle = line
                    .idle
                    .iter()
                    .filter(|hold| self.renewals && state.may_renew(client, hold, &self.rules));
                own.extend(idle.map(|_| Step::RenewIdle));
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
            if it.must_read(state.time, &self.rules) {
                steps.push(Action::ReadHolds(client));
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
                if message.is_shareable() {
                    steps.push(Action::Read(number));
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
            Action::Read(message) => state.read(self, message),
            Action::Lose(message) => state.lose(self, message),
            Action::Event(client) => state.hear(self, client),
            Action::ReadHolds(client) => state.read_holds(self, client),
            Action::LateEvent(client) => {
                state.faults -= 1;
                state.client(client).lags = true;
            }
            Action::Freeze(client) => {
                state.faults -= 1;
                state.client(client).frozen = true;
            }
            Action::Thaw(client) => state.thaw(client),
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
            Action::Set(lock) => {
                state.faults -= 1;
                state.set(self, lock);
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
            // Nothing is undone any more, so the time at which a majority has it makes no difference.
            state.commit(state.log.len() - 1);
        }
        if self.rules.reads_losses_every > 0 {
            state.note_losses(&self.rules);
        }
        Some(state)
    }
}
