//! The kinds of locks.

// `watchlock` has it in its public face.
#![warn(missing_docs)]

use std::fmt;

/// The kind of a lock. A name has one kind and one capacity as long as anybody holds the lock or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
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
pub type Use = (Kind, i64);

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

    /// All of them, in the order in which they are documented.
    const ALL: [Self; 7] = [
        Self::Mutex,
        Self::Semaphore,
        Self::RwLock,
        Self::Election,
        Self::Document,
        Self::Latch,
        Self::Barrier,
    ];
}

/// Whether a lock of this kind can be handed on inside a process.
pub(crate) fn is_handed_on(kind: Kind) -> bool {
    matches!(kind, Kind::Mutex | Kind::Semaphore | Kind::RwLock)
}

/// Returns the kind of this name.
pub fn read(text: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.as_str() == text)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_by_which_it_is_read() {
        for (kind, name) in [
            (Kind::Mutex, "mutex"),
            (Kind::Semaphore, "semaphore"),
            (Kind::RwLock, "rwlock"),
            (Kind::Election, "election"),
            (Kind::Document, "document"),
            (Kind::Latch, "latch"),
            (Kind::Barrier, "barrier"),
        ] {
            assert_eq!((kind.as_str(), kind.to_string()), (name, name.to_owned()));
            assert_eq!(read(name), Some(kind));
        }
        assert_eq!(read("of another version"), None);
    }
}
