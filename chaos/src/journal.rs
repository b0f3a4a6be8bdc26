//! The director's notes: the faults as they came, the ends of clients, and the differences between the clocks.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// Time above which an answer is noted as slow.
pub(crate) const SLOW: Duration = Duration::from_millis(500);

/// One line; `at` is read before the event, unless the event says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) at: Moment,
    #[serde(flatten)]
    pub(crate) note: Note,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub(crate) enum Note {
    /// The wall clock is so far ahead of the monotonic one, in nanoseconds.
    Clock { ahead: i64 },
    /// A fault begins.
    Began {
        fault: usize,
        kind: String,
        text: String,
        /// The locks that it takes away from their holders: names, or beginnings of names with a star.
        takes: Vec<String>,
        #[serde(default)]
        reach: Reach,
    },
    /// It could not be had, as another fault was in its way: after the fact.
    Missed { fault: usize, why: String },
    /// It is over: after the fact.
    Over { fault: usize },
    /// A client process was started.
    Started { client: String },
    /// A client is killed.
    Killed { client: String },
    /// A client was asked to end, and did or did not: after the fact.
    Dismissed { client: String, problem: Option<String> },
    /// The cluster is whole again: after the fact.
    Whole,
    /// From now on nothing is disturbed any more: after the fact.
    Calm,
    /// Clients are about to be asked to end.
    Dismissing,
    /// The primary took so long to answer the director's own write: after the fact. The machine had no time then, or
    /// the servers did not work.
    Slow { millis: u64 },
    /// All clients have ended, the director's too, and all leases have run out: after the fact.
    Silence,
    /// A deadlock of tasks that never wait for each other was listed: after the fact.
    Deadlock { text: String },
    /// Something that nobody should have left behind: after the fact.
    Remains { text: String },
    /// Change streams of clients that were killed or cut off, or on nodes that have stepped down, which the servers
    /// close in their own time.
    Abandoned { streams: usize },
    /// So many change streams were killed by one fault: after the fact.
    CursorsKilled { streams: usize },
    /// What the primary uses at this moment of a soak.
    Reading { figures: BTreeMap<String, u64> },
    /// Something is wrong with the run itself.
    Trouble { text: String },
}

/// The reach of a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reach {
    #[default]
    Everything,
    /// These locks, and no others.
    Locks(Vec<String>),
    /// This client, and no other.
    Client(String),
    /// This client, which has a way left: it may lose its locks, and has to ask again for commands without an answer.
    Answers(String),
}
