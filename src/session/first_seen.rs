//! Locks of names that a client does not know.
//!
//! The request for a lock that is expected to be free is less than half as long as one that provides for a queue
//! ([`Expects::Alone`](crate::protocol::Expects::Alone)). A client that takes a lock for each invoice meets a name once,
//! and its lock is free. One that takes part in an election, or runs a job that all its siblings run, meets a name whose
//! lock is held. So the last names that were new to a client tell what to expect of the next one. If that is wrong,
//! nothing was written, and the request in full follows: one more round trip.

/// Number of unknown names in a row whose locks were free, from which the next one is expected to be free too. So of
/// names that a client asks for one after the other, at most one in five is a surprise; of those that it asks for at
/// once, all can be.
const FREE_IN_A_ROW: u8 = 4;

/// What a client has found under names that were new to it.
#[derive(Debug, Default)]
pub(super) struct UnknownNames {
    free_in_a_row: u8,
}

impl UnknownNames {
    /// Notes whether the lock of a name that was new was free.
    pub(super) fn met(&mut self, free: bool) {
        self.free_in_a_row = if free { self.free_in_a_row.saturating_add(1) } else { 0 };
    }

    /// Whether the lock of the next one is expected to be free.
    pub(super) fn are_free(&self) -> bool {
        self.free_in_a_row >= FREE_IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_surprise_ends_the_expectation() {
        let mut names = UnknownNames::default();
        for round in 0..1_000 {
            for _ in 0..4 {
                assert!(!names.are_free(), "{round}");
                names.met(true);
            }
            for _ in 0..round {
                assert!(names.are_free());
                names.met(true);
            }
            names.met(false);
        }
    }
}
