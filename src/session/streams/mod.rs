//! The change streams of a session: opened when something needs them, resumed when they break, and followed for
//! observers.

pub(crate) mod budget;
mod ends;
pub(crate) mod follow;
mod opening;
mod subscription;
pub(in crate::session) mod suspicion;
pub(in crate::session) mod watcher;
