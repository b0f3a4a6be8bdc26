//! The kinds of locks: [`Mutex`], [`Semaphore`], [`RwLock`], [`MultiLock`], [`Latch`], [`Barrier`] and [`Once`], each a
//! thin shell of one engine with one queue.
//!
//! [`LockClient`](crate::LockClient) makes them. Their acquires and tries return an [`Acquire`](crate::Acquire), which has
//! the options, the errors and the cancel safety of all, and is awaited. [Locks and handles](crate::guide::locks) shows how
//! to use each. A type without parameters is awaited; see [`World`](crate::action::World) for the other.

pub(crate) mod acquire;
pub(crate) mod barrier;
pub(crate) mod election;
pub(crate) mod latch;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod request;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
pub(crate) mod targets;
mod watched;

pub use barrier::{Barrier, BarrierPass};
pub use latch::Latch;
pub use multi::{MultiLock, Part};
pub use mutex::Mutex;
pub use once::{LastRun, Once, OnceOutcome, Turn};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use targets::{Read, UpgradeableRead, Write};
