//! Proofs of the core: checks of everything that it does with what others send.
//!
//! - `fuzzing`: documents of locks, words of events, and a waiting client whose document another program changes. The
//!   fuzz targets in `fuzz/` and the tests run the same checks, and those of the library's decoders take their input
//!   from here.
//! - [`differential`]: random sequences of operations, applied to the pure transitions and to a server's collection;
//!   after every step both must be the same, to the bit. The tests run them, and `watchlock verify` on the user's own
//!   server.

pub mod differential;
#[cfg(feature = "fuzzing")]
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
