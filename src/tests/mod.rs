//! Tests of whole clients from inside, on a network and a clock that are simulated. None of this is in the published
//! package.
//!
//! - [`simulation`]: clients in worlds where everything goes wrong.
//! - [`crowds`]: very many clients that wait for one lock at a slow server.
//! - [`fleets`]: very many clients that hold a lock each, while others write more and less.
//! - [`simulated`]: the network of both, and of tests of single files.
//! - [`decoding`]: what the library decodes, for the fuzzing. It is here under `cfg(fuzzing)` too, for the targets in
//!   `fuzz/`.
//! - [`lines`]: the fuzzing of the waiting client with the holds of the session.

#[cfg(test)]
mod crowds;
pub mod decoding;
#[cfg(test)]
mod fleets;
#[cfg(test)]
mod lines;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod simulation;
