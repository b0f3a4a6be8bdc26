//! Proofs: checks of the library as a whole. None of this is in the published package.
//!
//! - [`differential`]: the pipelines on a real server compared with the transitions in memory, bit by bit.
//! - [`simulation`]: whole clients on a paused clock, in worlds where everything goes wrong.
//! - `in_memory`, a part of the store in memory: its filters, sorts and updates compared with those of a real server.
//! - `crowds`: the same, of very many clients that wait for one lock at a slow server.
//! - [`simulated`]: the network that the simulation runs on.
//! - [`fuzzing`]: everything that is decoded from a server, and a line whose document another program changes.

#[cfg(test)]
mod crowds;
#[cfg(test)]
mod differential;
pub mod fuzzing;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod sizes;

/// How many seeds of a proof a run takes: half of them every day, and all with `WATCHLOCK_PROOFS=whole`, as `.ci/run`
/// has it.
#[cfg(test)]
fn share_of(whole: u64) -> u64 {
    if std::env::var("WATCHLOCK_PROOFS").is_ok_and(|what| what == "whole") {
        whole
    } else {
        whole / 2
    }
}
