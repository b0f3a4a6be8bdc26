//! The locks that the clients contend for.

use serde::{Deserialize, Serialize};

/// The collection of the locks' documents.
pub(crate) const LOCKS: &str = "distributed_locks";

/// The collection whose documents are locked in place.
pub(crate) const JOBS: &str = "jobs";

/// The field of those documents in which their locks are.
pub(crate) const FIELD: &str = "watchlock";

/// Number of permits of the semaphore, until a client sets the smaller number: as many as a client wants at most.
pub(crate) const PERMITS: u32 = 3;
pub(crate) const FEW_PERMITS: u32 = 2;

/// Number of permits that a writer takes of a readers-writer lock in the eyes of the judge: more than there are
/// readers.
const WRITER: u32 = 1_000_000;

/// Number of those that an upgradeable reader takes: there is room for one, and for readers beside it. As a writer it has
/// the others too.
const UPGRADEABLE: u32 = WRITER / 2 + 1;

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Mutex,
    Semaphore,
    RwLock,
    Election,
    Document,
}

/// One of the locks. No two share a name, whatever their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

const fn lock(name: &'static str, kind: Kind) -> Lock {
    Lock { name, kind }
}

/// All of them. Few, so that there is contention.
pub(crate) const ALL: [Lock; 8] = [
    lock("mutex-0", Kind::Mutex),
    lock("mutex-1", Kind::Mutex),
    lock("semaphore-0", Kind::Semaphore),
    lock("rwlock-0", Kind::RwLock),
    lock("rwlock-1", Kind::RwLock),
    lock("election-0", Kind::Election),
    lock("document-0", Kind::Document),
    lock("document-1", Kind::Document),
];

/// Two mutexes that a task of each client takes together, in either order: where two of them wait for each other, one is
/// to be told.
pub(crate) const CROSSED: [Lock; 2] = [lock("crossed-0", Kind::Mutex), lock("crossed-1", Kind::Mutex)];

/// Whether the lock of that name is one of those that are crossed.
pub(crate) fn is_crossed(name: &str) -> bool {
    CROSSED.iter().any(|lock| lock.name == name)
}

/// The beginning of the name of a mutex that one client has for itself; its label follows. Nobody contends for it, so
/// an acquire has to wait for nothing.
pub(crate) const OWN_MUTEX: &str = "own-mutex-";

/// The same of a document.
pub(crate) const OWN_DOCUMENT: &str = "own-document-";

/// Whether a client has the lock of that name for itself.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(OWN_MUTEX) || name.starts_with(OWN_DOCUMENT)
}

/// The share of a lock that is asked for: so many permits of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) kind: Kind,
    pub(crate) permits: u32,
    pub(crate) capacity: u32,
}

impl Share {
    /// Returns the whole of a lock that only one can have.
    pub(crate) fn whole(kind: Kind) -> Self {
        Self::of(kind, 1, 1)
    }

    pub(crate) fn permits(permits: u32) -> Self {
        Self::of(Kind::Semaphore, permits, PERMITS)
    }

    pub(crate) fn reader() -> Self {
        Self::of(Kind::RwLock, 1, WRITER)
    }

    pub(crate) fn writer() -> Self {
        Self::of(Kind::RwLock, WRITER, WRITER)
    }

    pub(crate) fn upgradeable_reader() -> Self {
        Self::of(Kind::RwLock, UPGRADEABLE, WRITER)
    }

    /// Returns what an upgradeable reader lacks as a writer.
    pub(crate) fn upgrade() -> Self {
        Self::of(Kind::RwLock, WRITER - UPGRADEABLE, WRITER)
    }

    fn of(kind: Kind, permits: u32, capacity: u32) -> Self {
        Self {
            kind,
            permits,
            capacity,
        }
    }

    /// Whether nobody else can have any of it meanwhile.
    pub(crate) fn is_exclusive(self) -> bool {
        self.permits == self.capacity
    }
}
