//! watchlock against real servers: a module for each subject.

mod actions;
mod cancellation;
mod claim_many;
mod claims;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod crowds;
mod deadlocks;
mod documents;
mod election;
mod elements;
mod failover;
mod faults;
mod fences;
mod finishing;
mod fleet;
mod gathering;
mod holds;
mod input;
mod memory;
mod multi;
mod multi_kinds;
mod mutex;
mod once;
mod operate;
mod rw_lock;
mod semaphore;
mod servers;
mod setup;
mod streams;
#[cfg(feature = "sync")]
mod sync;
mod together;
mod wanted;
