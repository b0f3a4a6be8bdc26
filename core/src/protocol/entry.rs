//! The entries of a lock's document, and their owners.

use std::collections::{BTreeSet, HashMap};

use super::ServerTime;

/// Beginning of the entries of holds that no client has. The id of a session has other letters.
pub const DETACHED: &str = "detached-";

/// An entry in the queue, or one that holds the lock: that is the same entry with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub permits: i64,
    /// The lease of the entry in the queue, and the time that a renewal adds to the server's now, in milliseconds.
    pub lease: i64,
    /// The first, short lease after a hand-over, in milliseconds: the time that a waiter which died unnoticed costs.
    pub claim: i64,
    pub since: ServerTime,
    pub until: ServerTime,
    pub owner: Owner,
    /// Zero in the queue, where the document has none.
    pub token: i64,
    /// When its holder released it, if the lock is kept beyond that: until `until`, and nobody renews it.
    pub released: Option<ServerTime>,
    /// What its client does with it. `None`: no renewal has shown that. No transition depends on it.
    pub shown: Option<Shown>,
}

/// What a client does with a holder, as a renewal shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Whether no task has it, so that it stays with the client for the next one.
    pub is_idle: bool,
    /// The lock for which the task that has it has waited for long.
    pub awaits: Option<Awaited>,
    /// The [number](Showing::as_of) of that renewal.
    pub as_of: i64,
}

/// A lock that a task of a holder waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    pub lock: String,
    /// Another number for each wait of the client.
    pub wait: i64,
}

/// What a renewal shows of its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Showing {
    pub idle: BTreeSet<String>,
    pub awaits: HashMap<String, Awaited>,
    /// Larger in a renewal that knows of something later. Renewals overtake each other, and one from before a task took
    /// the lock again must not show it as idle afterwards.
    pub as_of: i64,
}

impl Entry {
    /// Returns whether its time is not over. Nobody holds a lock, or keeps it taken, by an entry whose time is over, even
    /// if no write has removed it so far.
    pub fn is_live(&self, now: ServerTime) -> bool {
        self.until > now
    }

    /// Returns whether the lock is kept although its holder released it. Such an entry goes by expiry or by an eviction
    /// only: its session is done with it, and a leave that comes late must not open the lock.
    pub fn is_kept(&self) -> bool {
        self.released.is_some()
    }

    /// Returns whether no client has it: it lasts for its lease, unless a client takes it up.
    pub fn is_detached(&self) -> bool {
        self.id.starts_with(DETACHED)
    }

    pub fn is_idle(&self) -> bool {
        self.shown.as_ref().is_some_and(|shown| shown.is_idle)
    }

    /// Returns whether this is the hold that was granted to an entry with this token. The entry alone does not show it:
    /// where the hold was removed while a request for it was on its way, the entry is granted anew, and nothing at its
    /// client has that hold.
    pub fn is_grant(&self, id: &str, token: i64) -> bool {
        self.id == id && self.token == token && !self.is_kept()
    }
}

/// The owner of an entry, for people to read: of all this only the identity decides anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    pub host: String,
    pub pid: i64,
    pub label: Option<String>,
    pub reason: Option<String>,
    /// The value that a leader proclaims.
    pub value: Option<String>,
    /// The number of that value among those that this entry has proclaimed; zero for the one it was requested with.
    pub proclaimed: i64,
    pub identity: Option<Identity>,
}

/// An owner that is the same over its restarts, and one of its incarnations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub id: String,
    /// The server's clock when this incarnation began, in microseconds: of two, the one with the larger is the younger.
    pub born: i64,
}

impl Identity {
    /// Returns whether an entry of `owner` belongs to an earlier incarnation.
    ///
    /// A later incarnation is never superseded, and none supersedes itself. So a request of a dead incarnation that is
    /// applied late takes nothing from the living one, and of two that live at once only the younger takes.
    pub(super) fn supersedes(&self, owner: &Owner) -> bool {
        let other = owner.identity.as_ref();
        other.is_some_and(|other| other.id == self.id && other.born < self.born)
    }
}
