//! The equality of states: two states are the same if nothing that can still happen distinguishes them.
//!
//! Times count from now and tokens by their order; ids are numbered as they come up, and the clients are put in an
//! order of their own, as they are alike. So there are finitely many states, although time and tokens go on forever.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

use super::{
    client::{Client, LONG, Line, instant, tick},
    rules::{CLAIM, EPOCH, SKEW},
    system::{Applied, Command, Message, Notice, Slot, System, room_for_tokens},
};
use crate::{
    protocol::{
        KeptUntil, Operation, ServerTime, State,
        wake::{self, Signal},
    },
    waitlist::Word,
};

/// A view of a state, from which the hash is made.
struct View<'a> {
    system: &'a System,
    /// Ids in the order in which they came up.
    ids: Vec<&'a str>,
    /// Tokens in their own order.
    tokens: &'a [i64],
    words: Vec<i64>,
}

impl Hash for System {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Clients that look alike are distinguished by their effects on the documents, which the walk below sees.
        let tokens = self.tokens();
        let clients = self.clients.iter();
        let mut order: Vec<_> = clients
            .map(|client| (self.alone(client, &tokens), client.number))
            .collect();
        order.sort_unstable();
        let mut view = self.view(&tokens);
        view.walk(&order.iter().map(|(_, number)| *number).collect::<Vec<_>>());
        view.words.hash(hasher);
    }
}

impl System {
    fn tokens(&self) -> Vec<i64> {
        let mut tokens = Vec::new();
        for slot in self.log.iter().flatten() {
            tokens.push(slot.token);
            tokens.extend(&slot.struck);
            tokens.extend(slot.state.iter().flat_map(|state| tokens_of(state)));
        }
        tokens.extend(self.copy.iter().flat_map(|(_, state)| tokens_of(state)));
        for client in &self.clients {
            for line in &client.lines {
                let holds = line.holds.iter().chain(&line.idle);
                tokens.extend(holds.flat_map(|hold| [hold.token, hold.granted_as]));
                tokens.extend(line.waitlist.tokens());
                tokens.extend(line.ended.iter().map(|(_, token)| token));
            }
        }
        for message in &self.network {
            let applied = message.applied.as_ref().and_then(|applied| applied.shown.as_ref());
            tokens.extend(applied.into_iter().flat_map(|state| tokens_of(state)));
            tokens.extend(message.command.renews().map(|(_, token)| token));
            if let Command::Run(operation) = &message.command {
                tokens.extend(operation.kept.iter().map(|kept| kept.token));
            }
        }
        for notice in self.streams.iter().flatten() {
            if let Signal::Granted { token } | Signal::Evicted { token } = notice.signal {
                tokens.push(token);
            }
        }
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    fn view<'a>(&'a self, tokens: &'a [i64]) -> View<'a> {
        View {
            system: self,
            ids: Vec::new(),
            tokens,
            words: Vec::with_capacity(256),
        }
    }

    /// The properties that distinguish a client from others, without the documents.
    fn alone(&self, client: &Client, tokens: &[i64]) -> u64 {
        let mut view = self.view(tokens);
        view.client(client);
        for message in self.network.iter().filter(|message| message.client == client.number) {
            view.message(message);
        }
        for notice in &self.streams[client.number] {
            view.notice(notice);
        }
        // Where it stands in the documents.
        for slot in self.documents() {
            let Some(state) = &slot.state else { continue };
            let ours = |id: &String| client.made(id);
            let holders = state.holders.iter().position(|holder| ours(&holder.id));
            let queue = state.queue.iter().position(|waiter| ours(&waiter.id));
            view.words.push(holders.map_or(-1, number));
            view.words.push(queue.map_or(-1, number));
        }
        let mut hasher = DefaultHasher::new();
        view.words.hash(&mut hasher);
        hasher.finish()
    }
}

fn tokens_of(state: &State) -> impl Iterator<Item = i64> {
    let holders = state.holders.iter().map(|holder| holder.token);
    holders.chain([state.token]).chain(state.broken)
}

fn number(position: usize) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

impl<'a> View<'a> {
    fn walk(&mut self, order: &[usize]) {
        let system = self.system;
        for &client in order {
            self.client(&system.clients[client]);
            let messages = system.network.iter().filter(|message| message.client == client);
            for message in messages {
                self.message(message);
            }
            self.words.push(-3);
            for notice in &system.streams[client] {
                self.notice(notice);
            }
            self.words.push(-3);
        }
        for documents in &system.log {
            for slot in documents {
                self.slot(slot);
            }
            self.words.push(-4);
        }
        self.words.extend([system.ahead, system.clocks.0, system.clocks.1]);
        if let Some((lock, state)) = &system.copy {
            self.words.push(number(*lock));
            self.state(state, system.now().0);
            // Its words are said again when it is saved.
            for client in &system.clients {
                for (id, signal) in wake::signals(&state.wake, &client.session) {
                    self.signal(id, signal, state.at);
                }
            }
        }
        self.words.push(i64::from(system.faults));
        self.words.push(i64::from(system.abandoned));
        self.words.push(system.breach.map_or(-1, |breach| breach as i64));
    }

    fn id(&mut self, id: &'a str) {
        let known = self.ids.iter().position(|known| *known == id);
        let position = known.unwrap_or_else(|| {
            self.ids.push(id);
            self.ids.len() - 1
        });
        self.words.push(number(position));
        // Whether it is of a session that is still there.
        let lives = self.system.clients.iter().any(|client| client.made(id));
        self.words.push(i64::from(lives));
    }

    fn token(&mut self, token: i64) {
        let rank = self.tokens.binary_search(&token).unwrap_or_else(|position| position);
        self.words.push(number(rank));
    }

    fn flag(&mut self, flag: bool) {
        self.words.push(i64::from(flag));
    }

    /// A time of our own clocks; all times before `old` count as the same.
    fn time(&mut self, time: i64, old: i64) {
        self.words.push((time - self.system.time).max(-old));
    }

    fn client(&mut self, client: &'a Client) {
        self.words.push(client.permits);
        self.flag(client.frozen);
        self.flag(client.lags);
        if self.system.reads_losses {
            self.time(client.read_at, LONG);
        }
        match client.reference() {
            Some((round_trip, ahead)) => self.words.extend([round_trip, ahead]),
            None => self.words.push(-1),
        }
        for line in &client.lines {
            self.line(line);
        }
    }

    fn line(&mut self, line: &'a Line) {
        self.words.push(i64::from(line.acquires));
        line.waitlist.words(instant(self.system.time), &mut |word| match word {
            Word::Entry(entry) => self.id(entry),
            Word::Token(token) => self.token(token),
            Word::Time(at) => self.time(tick(at), 0),
            Word::Number(number) => self.words.push(number),
        });
        self.flag(line.idle.is_some());
        line.tries.values().for_each(|attempt| self.flag(attempt.met));
        self.flag(line.refused_in_vain);
        if let Some(since) = line.gone_since {
            self.time(since, LONG);
        }
        for hold in line.holds.iter().chain(&line.idle) {
            self.id(&hold.entry);
            self.words.push(hold.permits);
            self.token(hold.token);
            self.token(hold.granted_as);
            self.time(tick(hold.deadline), 0);
        }
        self.words.push(-1);
        for (id, token) in &line.ended {
            self.id(id);
            self.token(*token);
        }
        self.words.push(-1);
    }

    fn message(&mut self, message: &'a Message) {
        self.words.push(number(message.lock));
        self.flag(message.awaited);
        self.time(message.sent, LONG);
        match &message.command {
            Command::Run(operation) => self.operation(operation),
            Command::Renew { id, token } => {
                self.words.push(-2);
                self.id(id);
                self.token(*token);
            }
        }
        match &message.applied {
            Some(applied) => self.applied(message, applied),
            None => self.words.push(-1),
        }
    }

    fn operation(&mut self, operation: &'a Operation) {
        self.words.push(operation.expects as i64);
        if let Some(change) = &operation.change {
            self.id(&change.id);
            self.token(change.token);
        }
        for id in &operation.leave {
            self.id(id);
            let kept = operation.kept.iter().find(|kept| kept.id == *id);
            self.flag(kept.is_some());
            if let Some(kept) = kept {
                self.token(kept.token);
                self.flag(kept.until == KeptUntil::Expiry);
            }
        }
        self.words.push(-1);
        for entry in operation.requests.iter().flat_map(|requests| &requests.entries) {
            self.id(&entry.id);
            self.words.push(entry.permits);
            self.flag(entry.wait);
            self.flag(entry.fresh);
            self.flag(entry.reserve > 0);
        }
        self.words.push(-1);
    }

    fn applied(&mut self, message: &'a Message, applied: &'a Applied) {
        self.words.push(number(applied.place));
        // Its clock is reckoned with the time of sending.
        self.words.push((applied.at.0 - EPOCH - message.sent).min(SKEW + LONG));
        match (&message.command, &applied.shown) {
            (Command::Run(operation), Some(state)) => {
                self.state(state, applied.at.0);
                self.flag(wake::left(&state.wake, &operation.id).is_some());
            }
            (_, shown) => self.flag(shown.is_some()),
        }
    }

    fn notice(&mut self, notice: &'a Notice) {
        self.words.extend([number(notice.lock), number(notice.place)]);
        self.signal(&notice.id, notice.signal, notice.at);
    }

    fn signal(&mut self, id: &'a str, signal: Signal, at: ServerTime) {
        self.id(id);
        match signal {
            Signal::Granted { token } => {
                self.token(token);
                // The claim is over on any clock of the server that was noted.
                self.time(at.0 - EPOCH, CLAIM + SKEW);
            }
            Signal::Adopted => self.words.push(-3),
            Signal::Ask => self.words.push(-4),
            Signal::AskedFor => self.words.push(-5),
            Signal::Evicted { token } => {
                self.words.push(-2);
                self.token(token);
            }
        }
    }

    fn slot(&mut self, slot: &'a Slot) {
        self.token(slot.token);
        for token in &slot.struck {
            self.token(*token);
        }
        self.words.push(room_for_tokens(slot, self.system.now()));
        match &slot.state {
            Some(state) => self.state(state, self.system.now().0),
            None => self.words.push(-5),
        }
    }

    /// A document, with times as of `now`.
    fn state(&mut self, state: &'a State, now: i64) {
        self.token(state.token);
        self.words.push(state.capacity);
        self.flag(state.is_set);
        self.words.push(state.broken.is_some().into());
        state.broken.into_iter().for_each(|broken| self.token(broken));
        for holder in &state.holders {
            self.id(&holder.id);
            self.words.push(holder.permits);
            self.token(holder.token);
            // The clock may go back by the margin.
            self.words.push((holder.until.0 - now).max(-SKEW));
            self.flag(holder.is_kept());
        }
        self.words.push(-1);
        for waiter in &state.queue {
            self.id(&waiter.id);
            self.words.push(waiter.permits);
            self.words.push((waiter.until.0 - now).max(-SKEW));
        }
        self.words.push(-1);
        if self.system.purge {
            self.words.push((state.purge_at.0 - now).max(-SKEW));
        }
    }
}
