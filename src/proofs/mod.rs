//! Proofs: checks that look at the library as a whole. Nothing of this is in the published package.
//!
//! - [`model`]: every state that a few clients, a server and a network get into.
//! - [`differential`]: the pipelines on a real server against the transitions in memory, to the bit.
//! - [`simulation`]: whole clients on a paused clock, in worlds in which everything goes wrong.
//! - [`fuzzing`]: everything that is decoded from a server, and a line whose document is in other hands.

#[cfg(test)]
mod differential;
pub mod fuzzing;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
mod simulation;
