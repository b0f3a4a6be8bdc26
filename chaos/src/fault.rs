//! The kinds of faults.

use std::fmt;

use crate::{
    locks::{self, ALL, CROSSED, JOBS, LOCKS, OWN_MUTEX},
    random::Random,
};

/// Number of client processes at any time.
pub(crate) const CLIENTS: usize = 5;

/// Number of nodes of the replica set.
pub(crate) const NODES: usize = 3;

/// A node, by its role when the fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Primary,
    /// One of the others.
    Other(usize),
}

/// A fault of the way between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    BlackHole,
    /// Requests get through, replies do not.
    NoReplies,
    /// Connections are cut, and new ones refused.
    Cut,
    /// Connections are cut once.
    CutOnce,
    /// Milliseconds, each way.
    Delay(u64),
}

/// Maximum number of milliseconds by which a node's clock may be off: two of them are apart by the skew margin of the
/// clients at most, which is a tenth of their lease.
pub(crate) const CLOCK_OFF: u64 = 100;

/// A failure of clients' commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is closed instead of an answer; the command is not run.
    Closed,
    /// The command is not run.
    Refused(i32),
    /// The command is run, and its write concern is reported as failed.
    WriteConcern(i32),
    /// It is run this many milliseconds late.
    Late(u64),
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillNode(Node),
    FreezeNode(Node),
    ShutDownNode(Node),
    StepDown,
    KillClient(usize),
    FreezeClient(usize),
    /// Between a client and one node, or all of them.
    ClientNetwork(usize, Option<Node>, Network),
    /// From a node to another: what the first sends, and what it gets in reply.
    NodeNetwork(Node, Node, Network),
    /// A node loses sight of all others, both ways; clients still reach it.
    Isolate(Node),
    KillCursors,
    DropCollection,
    /// An operator evicts the holder of a lock.
    Break(&'static str),
    FailCommand(&'static str, Failure),
    /// Milliseconds ahead of the others, or behind.
    SetClock(Node, i64),
    /// The servers hold this many commands of that name from a client until the fault is over, and run them then.
    Unanswered(usize, &'static str, u32),
    /// Some of a client's open connections swallow everything and are never closed; others and new ones work.
    LoseConnections(usize, Which),
    /// Another program's transaction has written the documents of these locks, and stays open.
    Block(Locks),
    /// A validator refuses writes to the document of a lock, one of the many that are renewed together.
    Refuse(&'static str),
    /// A document with an `_id` that is no text is inserted and deleted among the documents of locks.
    Unreadable(&'static str),
    /// The document of a lock is read when the fault comes, and saved in that state some seconds later.
    SaveOld(&'static str),
}

/// A selection of a client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that have carried a command.
    Carried(&'static str),
    EverySecond,
}

/// Maximum number of lost connections and of unanswered commands at a time: more of them would leave the driver
/// without any, as its pool has ten.
pub(crate) const LOST_MOST: u32 = 3;

/// Some of the locks, a bit for each of [`ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locks(u8);

/// The kinds that are [confined](Fault::is_confined).
pub(crate) const CONFINED_KINDS: [&str; 10] = [
    "client killed",
    "client frozen",
    "network between client and node",
    "lock broken",
    "commands unanswered",
    "connections dead",
    "documents blocked",
    "document refused",
    "event unreadable",
    "old document saved",
];

impl Locks {
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let locks = ALL.into_iter().enumerate();
        locks.filter_map(move |(place, lock)| (self.0 >> place & 1 == 1).then_some(lock.name))
    }

    fn any(random: &mut Random) -> Self {
        match random.within(0..10) {
            0..4 => Self(1 << random.index(ALL.len())),
            4..7 => Self(u8::try_from(random.within(1..256)).unwrap_or(u8::MAX)),
            // More than a client has on their way at a time.
            _ => Self(u8::MAX),
        }
    }
}

/// Every kind of fault there is.
pub(crate) const KINDS: [&str; 20] = [
    "node killed",
    "node frozen",
    "node shut down",
    "step-down",
    "client killed",
    "client frozen",
    "network between client and node",
    "network between nodes",
    "node isolated",
    "cursors killed",
    "collection dropped",
    "lock broken",
    "commands failing",
    "clock set",
    "commands unanswered",
    "connections dead",
    "documents blocked",
    "document refused",
    "event unreadable",
    "old document saved",
];

impl Fault {
    /// Returns a fault whose kind is wanted; there must be one.
    pub(crate) fn any_of(random: &mut Random, wanted: impl Fn(Self) -> bool) -> Self {
        loop {
            let fault = Self::any(random);
            if wanted(fault) {
                return fault;
            }
        }
    }

    fn any(random: &mut Random) -> Self {
        let node = |random: &mut Random| {
            if random.chance(60) {
                Node::Primary
            } else {
                Node::Other(random.index(NODES - 1))
            }
        };
        match random.within(0..136) {
            0..8 => Self::KillNode(node(random)),
            8..16 => Self::FreezeNode(node(random)),
            16..20 => Self::ShutDownNode(node(random)),
            20..28 => Self::StepDown,
            28..36 => Self::KillClient(random.index(CLIENTS)),
            36..46 => Self::FreezeClient(random.index(CLIENTS)),
            46..60 => {
                let to = if random.chance(50) { None } else { Some(node(random)) };
                Self::ClientNetwork(random.index(CLIENTS), to, Network::any(random))
            }
            60..66 => {
                let (a, b) = (Node::Primary, Node::Other(random.index(NODES - 1)));
                let (from, to) = if random.chance(50) { (a, b) } else { (b, a) };
                Self::NodeNetwork(from, to, Network::any(random))
            }
            66..72 => Self::Isolate(node(random)),
            72..78 => Self::KillCursors,
            78..81 => Self::DropCollection,
            81..86 => Self::Break(random.pick(&locks::ALL).name),
            86..91 => Self::SetClock(node(random), random.around_zero(CLOCK_OFF)),
            91..100 => {
                let command = random.pick(&["findAndModify", "update", "getMore", "aggregate"]);
                Self::FailCommand(command, Failure::any(command, random))
            }
            100..107 => {
                let command = random.pick(&["findAndModify", "findAndModify", "update", "find", "getMore"]);
                let count = u32::try_from(random.within(1..u64::from(LOST_MOST) + 1)).unwrap_or(1);
                Self::Unanswered(random.index(CLIENTS), command, count)
            }
            107..114 => {
                let which = if random.chance(70) {
                    Which::Carried(random.pick(&["findAndModify", "findAndModify", "update", "getMore"]))
                } else {
                    Which::EverySecond
                };
                Self::LoseConnections(random.index(CLIENTS), which)
            }
            114..120 => Self::Block(Locks::any(random)),
            120..126 => Self::Refuse(random.pick(&ALL).name),
            126..131 => Self::Unreadable(random.pick(&[LOCKS, JOBS])),
            _ => Self::SaveOld(random.pick(&ALL).name),
        }
    }

    /// Returns the kind of fault, for counting.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::KillNode(_) => "node killed",
            Self::FreezeNode(_) => "node frozen",
            Self::ShutDownNode(_) => "node shut down",
            Self::StepDown => "step-down",
            Self::KillClient(_) => "client killed",
            Self::FreezeClient(_) => "client frozen",
            Self::ClientNetwork(..) => "network between client and node",
            Self::NodeNetwork(..) => "network between nodes",
            Self::Isolate(_) => "node isolated",
            Self::KillCursors => "cursors killed",
            Self::DropCollection => "collection dropped",
            Self::Break(_) => "lock broken",
            Self::FailCommand(..) => "commands failing",
            Self::SetClock(..) => "clock set",
            Self::Unanswered(..) => "commands unanswered",
            Self::LoseConnections(..) => "connections dead",
            Self::Block(_) => "documents blocked",
            Self::Refuse(_) => "document refused",
            Self::Unreadable(_) => "event unreadable",
            Self::SaveOld(_) => "old document saved",
        }
    }

    /// Returns the locks that it takes away from their holders: names, or beginnings of names with a star.
    pub(crate) fn takes(self) -> Vec<String> {
        match self {
            // The documents that are locked in place are in another collection.
            Self::DropCollection => {
                let all = ALL.into_iter().chain(CROSSED);
                let dropped = all.filter(|lock| lock.kind != locks::Kind::Document);
                let own = std::iter::once(format!("{OWN_MUTEX}*"));
                dropped.map(|lock| lock.name.to_owned()).chain(own).collect()
            }
            Self::Break(name) | Self::SaveOld(name) => vec![name.to_owned()],
            _ => Vec::new(),
        }
    }

    /// Whether it strikes one client or some locks, so that nothing else may be harmed.
    pub(crate) fn is_confined(self) -> bool {
        self.victim().is_some() || self.concerns().is_some()
    }

    /// Returns the client that it strikes, if it strikes no other.
    pub(crate) fn victim(self) -> Option<usize> {
        match self {
            Self::KillClient(client)
            | Self::FreezeClient(client)
            | Self::ClientNetwork(client, ..)
            | Self::Unanswered(client, ..)
            | Self::LoseConnections(client, _) => Some(client),
            _ => None,
        }
    }

    /// Returns the locks that it concerns, if it concerns no other.
    pub(crate) fn concerns(self) -> Option<Vec<String>> {
        let names: Vec<&str> = match self {
            Self::Block(locks) => locks.names().collect(),
            Self::Break(name) | Self::Refuse(name) | Self::SaveOld(name) => vec![name],
            Self::Unreadable(_) => Vec::new(),
            _ => return None,
        };
        Some(names.into_iter().map(str::to_owned).collect())
    }

    /// Whether its victim can go on, and only has to ask again for commands without an answer.
    pub(crate) fn leaves_a_way(self) -> bool {
        matches!(self, Self::Unanswered(..) | Self::LoseConnections(..))
    }

    /// Whether it shows only if it lasts longer than anything waits for an answer.
    pub(crate) fn needs_time(self) -> bool {
        self.leaves_a_way() || matches!(self, Self::Block(_) | Self::Refuse(_))
    }
}

impl Network {
    fn any(random: &mut Random) -> Self {
        match random.within(0..10) {
            0..3 => Self::BlackHole,
            3..5 => Self::NoReplies,
            5 => Self::Cut,
            6 => Self::CutOnce,
            _ => Self::Delay(random.within(5..800)),
        }
    }
}

impl Failure {
    fn any(command: &str, random: &mut Random) -> Self {
        // InterruptedDueToReplStateChange, PrimarySteppedDown, HostUnreachable, MaxTimeMSExpired, WriteConflict,
        // ShutdownInProgress; and for streams CursorNotFound and ChangeStreamHistoryLost.
        let codes: &[i32] = match command {
            "getMore" | "aggregate" => &[11_602, 189, 50, 43, 286],
            _ => &[11_602, 189, 6, 50, 112, 91],
        };
        match random.within(0..4) {
            0 => Self::Closed,
            1 if matches!(command, "findAndModify" | "update") && random.chance(50) => {
                Self::WriteConcern(random.pick(&[64, 91]))
            }
            1 | 2 => Self::Refused(random.pick(codes)),
            _ => Self::Late(random.within(50..3_000)),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("the primary"),
            Self::Other(index) => write!(f, "secondary {index}"),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlackHole => f.write_str("a black hole"),
            Self::NoReplies => f.write_str("replies lost"),
            Self::Cut => f.write_str("cut"),
            Self::CutOnce => f.write_str("cut once"),
            Self::Delay(millis) => write!(f, "{millis} ms late each way"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closes the connection"),
            Self::Refused(code) => write!(f, "fails with {code}"),
            Self::WriteConcern(code) => write!(f, "is done, with write concern error {code}"),
            Self::Late(millis) => write!(f, "is {millis} ms late"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillNode(node) => write!(f, "{node} is killed"),
            Self::FreezeNode(node) => write!(f, "{node} is frozen"),
            Self::ShutDownNode(node) => write!(f, "{node} is shut down"),
            Self::StepDown => f.write_str("the primary steps down"),
            Self::KillClient(client) => write!(f, "client {client} is killed"),
            Self::FreezeClient(client) => write!(f, "client {client} is frozen"),
            Self::ClientNetwork(client, Some(node), network) => write!(f, "client {client} to {node}: {network}"),
            Self::ClientNetwork(client, None, network) => write!(f, "client {client} to all nodes: {network}"),
            Self::NodeNetwork(from, to, network) => write!(f, "{from} to {to}: {network}"),
            Self::Isolate(node) => write!(f, "{node} loses sight of the other nodes"),
            Self::KillCursors => f.write_str("all change streams are killed"),
            Self::DropCollection => write!(f, "the collection of the locks is dropped (not `{JOBS}`)"),
            Self::Break(name) => write!(f, "the lock {name} is broken"),
            Self::FailCommand(command, failure) => write!(f, "{command} {failure}, on all nodes"),
            Self::SetClock(node, ahead) => write!(f, "the clock of {node} is set {ahead} ms ahead"),
            Self::Unanswered(client, command, count) => {
                write!(f, "{count} {command} of client {client} are not answered")
            }
            Self::LoseConnections(client, Which::Carried(command)) => {
                write!(f, "connections of client {client} that have carried {command} are dead")
            }
            Self::LoseConnections(client, Which::EverySecond) => {
                write!(f, "every second connection of client {client} is dead")
            }
            Self::Block(locks) => {
                let names: Vec<&str> = locks.names().collect();
                write!(f, "a transaction blocks {}", names.join(", "))
            }
            Self::Refuse(name) => write!(f, "no write of {name} is allowed"),
            Self::Unreadable(collection) => write!(f, "a document that can't be read is in `{collection}`"),
            Self::SaveOld(name) => write!(f, "an old document of {name} is saved"),
        }
    }
}
