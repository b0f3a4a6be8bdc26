//! The commands that look at a server: `doctor`, `verify` and `bench`.
//!
//! They take the longest of all. Tests begin in the order of their names: these are among the first.

pub(crate) mod doctor;
mod doctor_worlds;
pub(crate) mod verify;
