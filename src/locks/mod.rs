//! The kinds of locks, each a thin shell of the one engine, and the acquires that they share.

pub(crate) mod acquire;
pub(crate) mod barrier;
pub(crate) mod election;
pub(crate) mod latch;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod patience;
pub(crate) mod request;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod targets;
mod watched;
