//! The rest of a run in which nothing goes wrong any more: everybody is to have its turn.

use std::sync::Arc;

use super::{
    rules::LEASE,
    steps::{Mode, Step},
    system::{Message, Setup, System},
};

impl System {
    /// From here on nothing goes wrong, each holder lets go, and no client comes. Messages that are still on their way
    /// arrive first. Without `events`, the clients poll. Without `answers`, none of the answers that are still awaited
    /// arrives, nor the answer to the first command that each client sends from here on: that command is given up and
    /// repeated in parallel, and applied before the repetition, or after.
    pub(super) fn play_out(&self, setup: &Setup, events: bool, answers: bool) -> Self {
        let mut state = self.clone();
        let frozen = state.clients.iter_mut().filter(|client| client.frozen);
        frozen.for_each(|client| Arc::make_mut(client).frozen = false);
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
            // A command for which nobody waits any more arrives after its client has asked again.
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

    pub(super) fn round(&mut self, setup: &Setup, events: bool, silent: &mut [Vec<bool>]) {
        for client in 0..self.clients.len() {
            if !events {
                self.streams[client].clear();
            }
            while !self.streams[client].is_empty() {
                self.hear(setup, client);
            }
            for lock in 0..setup.locks {
                let silent = &mut silent[client][lock];
                let may_be_let_go = |state: &Self| {
                    let line = &state.clients[client].lines[lock];
                    line.may_be_let_go(state.time, &setup.rules).next()
                };
                while let Some(place) = may_be_let_go(self) {
                    self.ask(setup, client, lock, Step::LetGo(place), silent);
                }
                // It waits for the others to become a writer.
                let reader = self.clients[client].lines[lock].holds.first();
                if reader.is_some_and(|hold| self.may_renew(client, hold, &setup.rules)) {
                    self.step(setup, client, lock, Step::Renew(0), Mode::Prompt);
                }
                let idle = &self.clients[client].lines[lock].idle;
                if idle.is_some() && self.is_over(setup, client, lock, events) {
                    self.ask(setup, client, lock, Step::GiveBack, silent);
                } else if idle
                    .as_ref()
                    .is_some_and(|hold| self.may_renew(client, hold, &setup.rules))
                {
                    self.step(setup, client, lock, Step::RenewIdle, Mode::Prompt);
                }
                // With a stream, asking is only the back-stop.
                let line = &self.clients[client].lines[lock];
                let queued = line.waitlist.is_queued();
                if line.may_ask(self.time) && !(events && queued && self.time % (LEASE / 2) != 0) {
                    self.ask(setup, client, lock, Step::Timer, silent);
                }
                // Not forever: a run that has not ended by then does not end.
                for _ in 0..PATIENCE {
                    if !self.clients[client].lines[lock].wants_to_send(self.time) {
                        break;
                    }
                    self.ask(setup, client, lock, Step::Send, silent);
                }
            }
        }
    }

    /// Whether the time of the hold that no task has is over. An event that arrives ends it sooner, so where none was
    /// lost it lasts for as long as others wait.
    fn is_over(&self, setup: &Setup, client: usize, lock: usize, events: bool) -> bool {
        let line = &self.clients[client].lines[lock];
        let others = self.clients.iter().filter(|other| other.number != client);
        let awaited = others
            .flat_map(|other| &other.lines[lock..=lock])
            .any(|line| !line.waitlist.waiting().is_empty());
        !awaited || !events || self.faults < setup.faults || line.waitlist.idle_in_doubt()
    }

    /// A client's step whose command is answered at once; or is not answered at all where it is to be `silent`, which
    /// is over then.
    pub(super) fn ask(&mut self, setup: &Setup, client: usize, lock: usize, step: Step, silent: &mut bool) {
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

/// Rounds after which everybody has had a turn: a lease for a holder that died, a claim lease for each client that died
/// in the queue, and the sweeps.
const PATIENCE: usize = 40;
