//! Proofs of the core: checks of everything that it does with what others send.
//!
//! - [`fuzzing`]: documents of locks, words of events, and a waiting client whose document another program changes. The
//!   fuzz targets in `fuzz/` and the tests run the same checks, and those of the library's decoders take their input
//!   from here.
//! - `tests/differential`: the pipelines on a real server compared with the transitions in memory, bit by bit.

pub mod fuzzing;
mod random;

pub use random::Random;

/// Returns how many seeds of a proof a run takes: half of them every day, and all with `WATCHLOCK_PROOFS=whole`, as
/// `.ci/run` has it.
pub fn share_of(whole: u64) -> u64 {
    if std::env::var("WATCHLOCK_PROOFS").is_ok_and(|what| what == "whole") {
        whole
    } else {
        whole / 2
    }
}
