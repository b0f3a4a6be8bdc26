//! The cases of a run, in order, and how much of each is played.

use std::time::Duration;

use crate::{
    engines::Kind,
    peers::{OURS, Pace, Peer, Role},
    workloads::{
        LEASE,
        crowd::{Crowd, GREAT},
    },
};

/// Hold of the hand-over, in milliseconds: by then a task that has just released the lock has asked for it again, in
/// vain, and waits as the others do. With less, a library that polls would be measured by the first try of a newcomer.
const WAITED: u64 = 10;

/// Longer holds of the hand-over, in milliseconds. Where the server hands over, it can matter how long the next one has
/// waited: etcd looks after fresh watches every 100 ms.
const LONG_HOLDS: [u64; 3] = [100, 500, 1_000];

/// Maximum time of one round of one peer: beyond it something hangs, and the run goes on without it.
const PATIENCE: Duration = Duration::from_secs(120);

/// The same for the rounds that begin with thousands of acquires or connections.
const LONG_PATIENCE: Duration = Duration::from_secs(240);

/// Number of waiters or locks from which a round takes so long.
const THOUSAND: usize = 1_000;

/// The form that is published.
const FULL: &str = "full";

/// The form of the cases of a thousand waiters, which is published beside it.
pub(crate) const OF_A_THOUSAND: &str = "thousand";

/// A case of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Allocations,
    Uncontended { fresh: bool },
    HandOver(Crowd),
    Contention(Crowd),
    Distinct { clients: usize },
    Idle { waiters: usize },
    Held { count: usize, lease: Duration },
    Crash,
    Lost,
    Ghosts { count: usize },
}

impl Step {
    pub(crate) fn workload(&self) -> &'static str {
        match self {
            Self::Allocations => "allocations",
            Self::Uncontended { .. } => "uncontended",
            Self::HandOver(_) => "hand-over",
            Self::Contention(_) => "contention",
            Self::Distinct { .. } => "distinct names",
            Self::Idle { .. } => "idle cost",
            Self::Held { .. } => "held locks",
            Self::Crash => "crash",
            Self::Lost => "lost signal",
            Self::Ghosts { .. } => "ghosts",
        }
    }

    pub(crate) fn case(&self) -> String {
        use crate::workloads::{crash, distinct, idle, lost};
        match self {
            Self::Allocations => String::from("acquire and release of a fresh name"),
            Self::Uncontended { fresh: false } => String::from("a known name"),
            Self::Uncontended { fresh: true } => String::from("a fresh name each time"),
            Self::HandOver(crowd) | Self::Contention(crowd) => crowd.case(),
            Self::Distinct { clients } => format!("{} names, {clients} clients", distinct::TASKS),
            Self::Idle { waiters } => format!("{waiters} waiters, {} clients", idle::CLIENTS),
            Self::Held { count, lease } => format!("{count} locks, 1 client, lease {} s", lease.as_secs()),
            Self::Crash => format!("SIGKILL, lease {} s", crash::LEASE.as_secs()),
            Self::Lost => format!("taken away, lease {} s", lost::LEASE.as_secs()),
            Self::Ghosts { count } => format!("{count} acquires dropped"),
        }
    }

    fn holds_long(&self) -> bool {
        matches!(self, Self::HandOver(crowd) if crowd.hold > Duration::from_millis(WAITED))
    }

    /// Returns whether a peer plays this case: not where another setting of its library would do the same.
    pub(crate) fn is_played_by(&self, peer: &Peer) -> bool {
        if self.holds_long() {
            // A waiter that polls is as late after a long wait as after a short one.
            return peer.id == OURS || matches!(peer.engine, Kind::Etcd | Kind::Postgres | Kind::ZooKeeper);
        }
        let waits = matches!(self, Self::HandOver(_) | Self::Contention(_));
        match (peer.role, peer.pace) {
            (Role::Floor, _) => match self {
                Self::Allocations | Self::Uncontended { .. } | Self::Distinct { .. } | Self::Held { .. } => true,
                Self::HandOver(crowd) => crowd.waiters == 1,
                _ => false,
            },
            (_, Pace::Usual) => true,
            (_, Pace::Eager) => waits || matches!(self, Self::Idle { .. } | Self::Crash),
        }
    }

    /// Returns the number of rounds, of those that a run has: fewer where each takes long, or has many samples.
    pub(crate) fn rounds(&self, rounds: u32) -> u32 {
        match self {
            Self::Held { .. } => 1,
            _ if self.holds_long() => 1,
            Self::HandOver(Crowd { waiters, .. })
            | Self::Contention(Crowd { waiters, .. })
            | Self::Idle { waiters }
                if *waiters >= THOUSAND =>
            {
                1
            }
            Self::HandOver(crowd) | Self::Contention(crowd) if crowd.waiters >= GREAT => rounds.min(2),
            Self::Idle { .. } | Self::Allocations | Self::Crash | Self::Lost | Self::Ghosts { .. } => rounds.min(2),
            _ => rounds,
        }
    }

    /// Returns the maximum time of one round of one peer.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::HandOver(Crowd { waiters: count, .. })
            | Self::Contention(Crowd { waiters: count, .. })
            | Self::Idle { waiters: count }
            | Self::Held { count, .. }
                if *count >= THOUSAND =>
            {
                LONG_PATIENCE
            }
            _ => PATIENCE,
        }
    }
}

/// The whole of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) form: &'static str,
    /// Number of nodes of a server.
    pub(crate) nodes: usize,
    pub(crate) rounds: u32,
    /// Time of one round of one peer, without connecting and leaving. The cost of waiting has a time of its own, as the
    /// kernel counts processor time in hundredths of a second.
    pub(crate) time: Duration,
    pub(crate) idle_time: Duration,
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// Some minutes: enough to see that everything works, and who is how fast roughly.
    pub(crate) fn quick() -> Self {
        let crowds = [(1, 2, WAITED), (10, 8, WAITED), (100, 8, WAITED)].map(crowd);
        let mut steps = vec![
            Step::Allocations,
            Step::Uncontended { fresh: false },
            Step::Uncontended { fresh: true },
        ];
        steps.extend(crowds.map(Step::HandOver));
        steps.extend([
            Step::Contention(crowd((10, 8, 1))),
            Step::Distinct { clients: 8 },
            Step::Idle { waiters: 50 },
            Step::Held {
                count: 1_000,
                lease: Duration::from_secs(9),
            },
            Step::Crash,
            Step::Lost,
            Step::Ghosts { count: 60 },
        ]);
        Self {
            form: "quick",
            nodes: 1,
            rounds: 1,
            time: Duration::from_secs(1),
            idle_time: Duration::from_millis(1_500),
            steps,
        }
    }

    /// About 40 minutes: what is published.
    pub(crate) fn full() -> Self {
        let crowds = [(1, 2), (10, 1), (10, 8), (100, 8), (100, 32)];
        let mut steps = vec![
            // First: nothing that a case leaves behind in this process is counted.
            Step::Allocations,
            Step::Uncontended { fresh: false },
            Step::Uncontended { fresh: true },
        ];
        steps.extend(crowds.map(|(waiters, clients)| Step::HandOver(crowd((waiters, clients, WAITED)))));
        steps.extend(LONG_HOLDS.map(|hold| Step::HandOver(crowd((1, 2, hold)))));
        let contending = [(10, 8, 0), (10, 8, 1), (10, 8, 50), (100, 32, 1)];
        steps.extend(contending.map(|sizes| Step::Contention(crowd(sizes))));
        steps.extend([
            Step::Distinct { clients: 1 },
            Step::Distinct { clients: 8 },
            Step::Idle { waiters: 50 },
            Step::Held {
                count: 10_000,
                lease: LEASE,
            },
            Step::Crash,
            Step::Lost,
            Step::Ghosts { count: 400 },
        ]);
        Self {
            form: FULL,
            nodes: 1,
            rounds: 3,
            time: Duration::from_millis(1_500),
            idle_time: Duration::from_secs(4),
            steps,
        }
    }

    /// Leaves the cases for which the number of nodes matters most: a grant waits for the network.
    pub(crate) fn with_nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        if nodes > 1 {
            self.steps.retain(|step| match step {
                Step::Uncontended { .. } | Step::Crash => true,
                Step::HandOver(crowd) => matches!((crowd.waiters, crowd.clients), (1, _) | (10, 8)),
                _ => false,
            });
        }
        self
    }

    /// Replaces the cases by those of a thousand waiters, for which the clients need some thousand connections and
    /// threads; and by the hand-over to one waiter, the only one that the floor plays.
    pub(crate) fn of_a_thousand(mut self) -> Self {
        if self.form == FULL {
            self.form = OF_A_THOUSAND;
        }
        self.steps = vec![
            Step::HandOver(crowd((1, 2, WAITED))),
            Step::HandOver(crowd((THOUSAND, 32, WAITED))),
            Step::Idle { waiters: THOUSAND },
        ];
        self
    }
}

fn crowd((waiters, clients, hold): (usize, usize, u64)) -> Crowd {
    Crowd {
        waiters,
        clients,
        hold: Duration::from_millis(hold),
    }
}
