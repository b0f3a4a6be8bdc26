//! Which faults come when: a pure function of the seed.

use std::{fmt, time::Duration};

use crate::{
    locks::{self, JOBS},
    random::Random,
};

/// How many client processes there are at any time.
pub(crate) const CLIENTS: usize = 5;

/// How many nodes the replica set has.
pub(crate) const NODES: usize = 3;

/// A node by the role that it has when the fault comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Primary,
    /// One of the others.
    Other(usize),
}

/// What is wrong with the way between two processes.
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

/// How many milliseconds a node's clock may be from the true time: two of them are apart by the skew margin of the clients
/// at most, which is a tenth of their lease.
pub(crate) const CLOCK_OFF: u64 = 100;

/// How commands of clients fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is closed instead of an answer; the command is not run.
    Closed,
    /// The command is not run.
    Refused(i32),
    /// The command is run, and its write concern is said to have failed.
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
    /// An operator puts the holder of a lock out.
    Break(&'static str),
    FailCommand(&'static str, Failure),
    /// Milliseconds ahead of the others, or behind.
    SetClock(Node, i64),
}

/// A fault with its time, counted from the begin of the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) after: Duration,
    pub(crate) lasts: Duration,
    pub(crate) fault: Fault,
}

/// Faults that come together; after them the cluster is made whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) faults: Vec<Planned>,
}

impl Burst {
    /// The burst of that number.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed, 1_000_000 + number);
        let length = random.within(4_000..12_000);
        let count = random.within(2..8);
        let mut faults: Vec<Planned> = (0..count)
            .map(|_| Planned {
                after: random.millis(0..length),
                // Shorter than a lease, or longer.
                lasts: if random.chance(50) {
                    random.millis(50..1_500)
                } else {
                    random.millis(1_500..7_000)
                },
                fault: Fault::any(&mut random),
            })
            .collect();
        faults.sort_by_key(|planned| planned.after);
        Self { faults }
    }
}

impl Fault {
    fn any(random: &mut Random) -> Self {
        let node = |random: &mut Random| {
            if random.chance(60) {
                Node::Primary
            } else {
                Node::Other(random.index(NODES - 1))
            }
        };
        match random.within(0..100) {
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
            _ => {
                let command = random.pick(&["findAndModify", "update", "getMore", "aggregate"]);
                Self::FailCommand(command, Failure::any(command, random))
            }
        }
    }

    /// What kind of fault it is, for counting.
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
        }
    }

    /// Whether it takes the lock of that name away from its holders.
    pub(crate) fn takes(self, lock: locks::Lock) -> bool {
        match self {
            // The documents that are locked in place are in another collection.
            Self::DropCollection => lock.kind != locks::Kind::Document,
            Self::Break(name) => lock.name == name,
            _ => false,
        }
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
        }
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Planned { after, lasts, fault } in &self.faults {
            writeln!(
                f,
                "  {:>6} ms  for {:>4} ms  {fault}",
                after.as_millis(),
                lasts.as_millis()
            )?;
        }
        writeln!(f, "             then all is made whole")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_burst_follows_from_its_seed_and_number() {
        assert_eq!(Burst::of(7, 3), Burst::of(7, 3));
        assert_ne!(Burst::of(7, 3), Burst::of(7, 4));
        assert_ne!(Burst::of(7, 3), Burst::of(8, 3));
    }

    #[test]
    fn every_kind_of_fault_comes_up() {
        let faults = (0..200).flat_map(|number| Burst::of(1, number).faults);
        let kinds: BTreeSet<&str> = faults.map(|planned| planned.fault.kind()).collect();
        assert_eq!(kinds.len(), 14, "{kinds:?}");
    }
}
