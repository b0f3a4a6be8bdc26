//! watchlock against real servers.

mod cancel;
mod everywhere;
mod failover;
mod setup;
