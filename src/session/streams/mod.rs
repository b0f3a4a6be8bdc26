//! The change stream of a session: opened when something needs it, opened anew when it breaks, and shared by holders,
//! waiters, claims and observers.

pub(in crate::session) mod failover_detector;
mod inbox;
pub(crate) mod observers;
pub(in crate::session) mod observing;
mod subscription;
pub(in crate::session) mod watcher;

pub(crate) use observing::Observations;
