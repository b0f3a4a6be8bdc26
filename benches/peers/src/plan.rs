//! The cases of a run, in order, and how much of each is played.

use std::time::Duration;

use crate::workloads::crowd::Crowd;

/// Hold of the hand-over, in milliseconds: by then a task that has just released the lock has asked for it again, in vain,
/// and waits as the others do. With less, a library that polls would be measured by the first try of a newcomer.
const WAITED: u64 = 10;

/// A case of a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Uncontended { fresh: bool },
    HandOver(Crowd),
    Contention(Crowd),
    Distinct { clients: usize },
    Idle { waiters: usize },
    Crash,
    Ghosts { count: usize },
}

impl Step {
    pub(crate) fn workload(&self) -> &'static str {
        match self {
            Self::Uncontended { .. } => "uncontended",
            Self::HandOver(_) => "hand-over",
            Self::Contention(_) => "contention",
            Self::Distinct { .. } => "distinct names",
            Self::Idle { .. } => "idle cost",
            Self::Crash => "crash",
            Self::Ghosts { .. } => "ghosts",
        }
    }

    pub(crate) fn case(&self) -> String {
        use crate::workloads::{crash, distinct, idle};
        match self {
            Self::Uncontended { fresh: false } => String::from("a known name"),
            Self::Uncontended { fresh: true } => String::from("a fresh name each time"),
            Self::HandOver(crowd) | Self::Contention(crowd) => crowd.case(),
            Self::Distinct { clients } => format!("{} names, {clients} clients", distinct::TASKS),
            Self::Idle { waiters } => format!("{waiters} waiters, {} clients", idle::CLIENTS),
            Self::Crash => format!("SIGKILL, lease {} s", crash::LEASE.as_secs()),
            Self::Ghosts { count } => format!("{count} acquires dropped"),
        }
    }
}

/// The whole of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) form: &'static str,
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
        let mut steps = vec![Step::Uncontended { fresh: false }, Step::Uncontended { fresh: true }];
        steps.extend(crowds.map(Step::HandOver));
        steps.extend([
            Step::Contention(crowd((10, 8, 1))),
            Step::Distinct { clients: 8 },
            Step::Idle { waiters: 50 },
            Step::Crash,
            Step::Ghosts { count: 60 },
        ]);
        Self {
            form: "quick",
            rounds: 1,
            time: Duration::from_secs(1),
            idle_time: Duration::from_millis(1_500),
            steps,
        }
    }

    /// Less than an hour: what is published.
    pub(crate) fn full() -> Self {
        let crowds = [(1, 2), (10, 1), (10, 8), (100, 8), (100, 32)];
        let mut steps = vec![Step::Uncontended { fresh: false }, Step::Uncontended { fresh: true }];
        steps.extend(crowds.map(|(waiters, clients)| Step::HandOver(crowd((waiters, clients, WAITED)))));
        let contending = [(10, 8, 0), (10, 8, 50), (100, 32, 0), (100, 32, 1)];
        steps.extend(contending.map(|sizes| Step::Contention(crowd(sizes))));
        steps.extend([
            Step::Distinct { clients: 1 },
            Step::Distinct { clients: 8 },
            Step::Idle { waiters: 50 },
            Step::Crash,
            Step::Ghosts { count: 400 },
        ]);
        Self {
            form: "full",
            rounds: 3,
            time: Duration::from_secs(2),
            idle_time: Duration::from_secs(6),
            steps,
        }
    }

    /// Adds the hand-over among a thousand waiters, for which the clients need some thousand connections and threads.
    pub(crate) fn with_thousand(mut self) -> Self {
        self.steps.push(Step::HandOver(crowd((1_000, 32, WAITED))));
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
