//! watchlock against real servers.
//!
//! Tests begin in the order of their names. A file of tests that take ten seconds or more has a name from the first
//! half of the alphabet: what begins last would run alone at the end.

mod acquire_terms;
mod breaks;
mod cancel;
mod claims;
mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod corrupted;
mod crowds;
mod dead_connections;
mod docs;
mod documents;
mod dropped;
mod elements;
mod errors;
mod everywhere;
mod expiry;
mod failover;
mod faults;
mod fences;
mod fencing;
mod fleet;
mod gathering;
mod guards;
mod handing_on;
mod history;
mod identity;
mod idle;
mod ids;
mod index;
mod injection;
mod input;
mod limits;
mod multi;
mod observed;
mod once;
mod one_action;
mod panics;
mod places;
mod polling;
mod privileges;
mod process;
mod proclaim;
mod renewals;
mod run;
mod runtime;
#[cfg(feature = "serde")]
mod serial;
mod setup;
mod share;
mod shared_reads;
mod shutdown;
mod stream;
mod subscription;
#[cfg(feature = "sync")]
mod sync;
mod telemetry;
mod tls;
mod tokens;
mod tries;
mod unknown_names;
mod versions;
