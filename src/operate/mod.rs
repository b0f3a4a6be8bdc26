//! Locks as operators see them: lists, and events as they happen.

pub(crate) mod list;
pub(crate) mod watch;
