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

/// All of them. Few, so that there is contention.
pub(crate) const ALL: [Lock; 8] = [
    Lock {
        name: "mutex-0",
        kind: Kind::Mutex,
    },
    Lock {
        name: "mutex-1",
        kind: Kind::Mutex,
    },
    Lock {
        name: "semaphore-0",
        kind: Kind::Semaphore,
    },
    Lock {
        name: "rwlock-0",
        kind: Kind::RwLock,
    },
    Lock {
        name: "rwlock-1",
        kind: Kind::RwLock,
    },
    Lock {
        name: "election-0",
        kind: Kind::Election,
    },
    Lock {
        name: "document-0",
        kind: Kind::Document,
    },
    Lock {
        name: "document-1",
        kind: Kind::Document,
    },
];

/// Two mutexes that a task of each client takes together, in either order: where two of them wait for each other, one is
/// to be told.
pub(crate) const CROSSED: [Lock; 2] = [
    Lock {
        name: "crossed-0",
        kind: Kind::Mutex,
    },
    Lock {
        name: "crossed-1",
        kind: Kind::Mutex,
    },
];

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
        Self {
            kind,
            permits: 1,
            capacity: 1,
        }
    }

    pub(crate) fn permits(permits: u32) -> Self {
        Self {
            kind: Kind::Semaphore,
            permits,
            capacity: PERMITS,
        }
    }

    pub(crate) fn reader() -> Self {
        Self {
            kind: Kind::RwLock,
            permits: 1,
            capacity: WRITER,
        }
    }

    pub(crate) fn writer() -> Self {
        Self {
            permits: WRITER,
            ..Self::reader()
        }
    }

    pub(crate) fn upgradeable_reader() -> Self {
        Self {
            permits: UPGRADEABLE,
            ..Self::reader()
        }
    }

    /// Returns what an upgradeable reader lacks as a writer.
    pub(crate) fn upgrade() -> Self {
        Self {
            permits: WRITER - UPGRADEABLE,
            ..Self::reader()
        }
    }

    /// Whether nobody else can have any of it meanwhile.
    pub(crate) fn is_exclusive(self) -> bool {
        self.permits == self.capacity
    }
}
