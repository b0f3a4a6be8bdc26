//! Change streams: opened when somebody needs them, kept alive, and routed.

pub(crate) mod budget;
pub(crate) mod follow;
mod opening;
mod subscription;
pub(in crate::session) mod watcher;
