//! The whole system: the server with its log, the network, the clients and the time; and every step that can be taken.

use std::{fmt, sync::Arc};

use super::{
    breach::Breach,
    client::{Client, World, instant, is_believed},
    rules::{EPOCH, LEASE, Rules, SKEW},
};
use crate::{
    protocol::{Kind, Operation, ServerTime, State, state, wake::Signal},
    waitlist::fixtures::PlainHold,
};

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) rules: Rules,
    pub(super) kind: Kind,
    pub(super) capacity: i64,
    /// The other capacity that an operator may set; 0: none.
    pub(super) sets: i64,
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
    /// Holders may change their entry, which renews it too.
    pub(super) changes: bool,
    /// The document of a free lock is purged in the end.
    pub(super) purge: bool,
    /// How many faults may come to pass in one run, and of which sorts.
    pub(super) faults: u8,
    pub(super) sorts: &'static [Fault],
    /// Everything that waits must be granted once the faults stop, from each state.
    pub(super) liveness: bool,
    /// How many steps a run may have; 0: any number.
    pub(super) steps: usize,
}

/// The faults of the system, and the actions of users and operators at the worst moment.
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
    /// An operator sets the capacity, to the other of two.
    Set,
    /// Another primary takes over: writes that no majority had are undone, and its clock differs.
    FailOver,
    /// Another program reads the document, and saves that state at any later time.
    Restore,
}

/// All faults that come up in the normal course; [`Fault::Restore`] is a mistake of another program.
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

/// The document of one lock, and a record of its past.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Slot {
    pub(super) state: Option<Arc<State>>,
    /// The last token that was issued for the name, even if the document was deleted or set back.
    pub(super) token: i64,
    /// The tokens of the holders that an old document, saved by another program, no longer has.
    pub(super) struck: Vec<i64>,
}

impl Slot {
    /// Whether somebody else has set the counter back.
    pub(super) fn is_set_back(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.token < self.token)
    }

    /// The assumption about a document that is set back: the server's clock advances between the last grant and the
    /// next.
    pub(super) fn may_be_set_back(&self, now: ServerTime) -> bool {
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

impl Command {
    /// The grant that it renews.
    pub(super) fn renews(&self) -> Option<(&str, i64)> {
        match self {
            Self::Renew { id, token } => Some((id, *token)),
            Self::Run(operation) => {
                let change = operation.change.as_ref();
                change.map(|change| (&*change.id, change.token))
            }
        }
    }
}

impl Message {
    /// Whether it may be a part of a command for several locks, which may have done it or not.
    pub(super) fn is_shareable(&self) -> bool {
        matches!(&self.command, Command::Run(operation) if operation.is_shareable())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Applied {
    /// The state that the answer shows; for a renewal: the document, if it was changed.
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
    /// The reading of the monotonic clocks of all machines.
    pub(super) time: i64,
    /// How far the server's clock is ahead of that, and the range in which that has been.
    pub(super) ahead: i64,
    pub(super) clocks: (i64, i64),
    /// The documents: as a majority has them, then after each write that only the primary is known to have.
    pub(super) log: Vec<Vec<Slot>>,
    /// States share those that the step between them leaves alone.
    pub(super) clients: Vec<Arc<Client>>,
    pub(super) network: Vec<Message>,
    /// Each client's change stream.
    pub(super) streams: Vec<Vec<Notice>>,
    /// The state of a lock that another program has read, and may save.
    pub(super) copy: Option<(usize, Arc<State>)>,
    pub(super) faults: u8,
    pub(super) operations: u32,
    /// Whether the time of a purge matters.
    pub(super) purge: bool,
    /// Whether clients have no stream that tells of losses.
    pub(super) reads_losses: bool,
    /// Entries may have been left to their lease: their client crashed, or the command came after the last sweep.
    pub(super) abandoned: bool,
    pub(super) breach: Option<Breach>,
}

impl Setup {
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
                .map(|number| Arc::new(Client::new(number, self.permits[number], self.locks, self.acquires)))
                .collect(),
            purge: self.purge,
            reads_losses: self.rules.reads_losses_every > 0,
            network: Vec::new(),
            streams: vec![Vec::new(); clients],
            copy: None,
            faults: self.faults,
            operations: 0,
            abandoned: false,
            breach: None,
        }
    }
}

impl System {
    /// The reading of the server's clock.
    pub(super) fn now(&self) -> ServerTime {
        ServerTime(EPOCH + self.time + self.ahead)
    }

    /// A client that is to be changed.
    pub(super) fn client(&mut self, number: usize) -> &mut Client {
        Arc::make_mut(&mut self.clients[number])
    }

    /// The documents as the primary has them.
    pub(super) fn documents(&self) -> &[Slot] {
        self.log.last().map_or(&[], Vec::as_slice)
    }

    /// The clocks of any two primaries differ by the margin at most.
    pub(super) fn clock_may_be(&self, ahead: i64) -> bool {
        self.clocks.1.max(ahead) - self.clocks.0.min(ahead) <= SKEW
    }

    pub(super) fn world<'a>(&self, setup: &'a Setup) -> World<'a> {
        World {
            now: self.time,
            rules: &setup.rules,
            used: setup.used(),
        }
    }

    /// Nothing has to happen before time goes on.
    pub(super) fn is_timely(&self, rules: &Rules) -> bool {
        let heard = |client: &Client| client.lags || self.streams[client.number].is_empty();
        let sent = |client: &Client| !client.lines.iter().any(|line| line.wants_to_send(self.time));
        let mut clients = self.clients.iter();
        clients.all(|client| client.frozen || (heard(client) && sent(client) && !client.must_read(self.time, rules)))
    }

    /// Notes since when holds are gone that their tasks believe in.
    pub(super) fn note_losses(&mut self, rules: &Rules) {
        let time = self.time;
        let states: Vec<Option<Arc<State>>> = self.documents().iter().map(|slot| slot.state.clone()).collect();
        for client in 0..self.clients.len() {
            for (lock, state) in states.iter().enumerate() {
                let line = &self.clients[client].lines[lock];
                let is_gone = |hold: &PlainHold| {
                    let mut holders = state.iter().flat_map(|state| &state.holders);
                    !holders.any(|holder| holder.is_grant(&hold.entry, hold.granted_as))
                };
                let mut believed = line.holds.iter().filter(|hold| is_believed(hold, time, rules));
                let since = believed.any(is_gone).then_some(time);
                let since = since.map(|now| line.gone_since.unwrap_or(now));
                if line.gone_since != since {
                    self.client(client).lines[lock].gone_since = since;
                }
            }
        }
    }

    pub(super) fn may_renew(&self, client: usize, hold: &PlainHold, rules: &Rules) -> bool {
        let on_its_way = self.network.iter().any(|message| {
            let renews = message.command.renews();
            message.client == client && message.awaited && renews.is_some_and(|(id, _)| id == hold.entry)
        });
        let gains = hold.deadline < instant(self.time + LEASE - rules.skew());
        instant(self.time) < hold.deadline && gains && !on_its_way
    }

    /// The holds that their clients believe in, except those that an operator evicted, or that the save of an old
    /// document removed.
    pub(super) fn believed(&self, setup: &Setup, lock: usize) -> Vec<&PlainHold> {
        let (mut believed, struck) = (self.valid(setup, lock), &self.documents()[lock].struck);
        believed.retain(|hold| !struck.contains(&hold.granted_as));
        believed
    }

    /// The holders that the save of an old document has removed.
    pub(super) fn struck(&self, setup: &Setup, lock: usize) -> Vec<&PlainHold> {
        let (mut believed, struck) = (self.valid(setup, lock), &self.documents()[lock].struck);
        believed.retain(|hold| struck.contains(&hold.granted_as));
        believed
    }

    pub(super) fn valid(&self, setup: &Setup, lock: usize) -> Vec<&PlainHold> {
        let broken = self.documents()[lock].state.as_ref().and_then(|state| state.broken);
        let holds = self.clients.iter().flat_map(|client| &client.lines[lock].holds);
        holds
            .filter(|hold| is_believed(hold, self.time, &setup.rules))
            .filter(|hold| broken.is_none_or(|broken| hold.granted_as > broken))
            .collect()
    }

    /// Whether anything is on its way between a client and a lock.
    pub(super) fn has_on_its_way(&self, client: usize, lock: usize) -> bool {
        let sent = |message: &Message| (message.client, message.lock) == (client, lock);
        self.network.iter().any(sent) || self.streams[client].iter().any(|notice| notice.lock == lock)
    }

    /// A number by which some states are chosen: of the ids that were made, which differ from state to state.
    pub(super) fn lot(&self) -> i64 {
        let clients = self.clients.iter().map(|client| client.made_so_far());
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
                .all(|line| line.is_unused())
    }
}

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
            for (lock, line) in client.lines.iter().enumerate().filter(|(_, line)| !line.is_unused()) {
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
