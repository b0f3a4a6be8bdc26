//! watchlock against real servers.

mod cancel;
mod cli;
mod corrupted;
mod documents;
mod dropped;
mod everywhere;
mod failover;
mod faults;
mod fencing;
mod identity;
mod injection;
mod input;
mod multi;
mod polling;
mod privileges;
mod process;
mod setup;
mod stream;
#[cfg(feature = "sync")]
mod sync;
mod telemetry;
mod tls;
