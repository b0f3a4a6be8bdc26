//! The kinds of locks.

use std::fmt;

/// The kind of a lock. A name has one kind and one capacity as long as anybody holds the lock or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// Up to a number of permits at a time.
    Semaphore,
    /// Many readers or one writer at a time.
    RwLock,
    /// One leader at a time.
    Election,
    /// A document of the user's own, with one holder at a time.
    Document,
    /// A number of arrivals, each counted once.
    Latch,
    /// A number of parties that wait for each other.
    Barrier,
}

/// The kind of a lock and its capacity.
pub(crate) type Use = (Kind, i64);

impl Kind {
    /// Returns the name of the kind in the lock's document: `mutex`, `semaphore`, `rwlock`, `election`, `document`,
    /// `latch` or `barrier`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Semaphore => "semaphore",
            Self::RwLock => "rwlock",
            Self::Election => "election",
            Self::Document => "document",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
        }
    }

    /// Whether such a lock can be handed on inside a process.
    pub(crate) fn is_handed_on(self) -> bool {
        matches!(self, Self::Mutex | Self::Semaphore | Self::RwLock)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [
            Self::Mutex,
            Self::Semaphore,
            Self::RwLock,
            Self::Election,
            Self::Document,
            Self::Latch,
            Self::Barrier,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
