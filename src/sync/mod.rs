//! The blocking API, for programs without async: each call blocks the thread until it is done. It needs the feature
//! `sync`, which enables the driver's own feature of that name.
//!
//! It reads like the driver's synchronous API: actions that are awaited there have `run` here, and the same options:
//! see [`Action`]. The types of this module are thin wrappers around those of the crate, with the same guarantees.
//! Their documentation describes the differences, and refers to the crate's types for the rest.
//!
//! # Connecting
//!
//! A [`LockClient`] is made from the driver's `mongodb::Database`, as a `mongodb::sync::Database` gives no access to
//! the connections beneath it. The other direction works: make one async client, and derive the synchronous one from
//! it.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use mongodb::options::ClientOptions;
//! use watchlock::sync::LockClient;
//!
//! let options = ClientOptions::parse("mongodb://localhost:27017/?replicaSet=rs0").run()?;
//! let client = mongodb::Client::with_options(options)?;
//! let locks = LockClient::builder(client.database("app")).label("billing").build()?;
//! // For your own work, over the same connections.
//! let app = mongodb::sync::Client::from(client).database("app");
//!
//! let handle = locks.mutex("invoice-42").acquire().reason("monthly run").run()?;
//! // ... bill the invoice, in time: see `LockView::lost_reason` and `LockView::safe_for` ...
//! handle.release()?;
//! locks.shutdown();
//! # Ok(()) }
//! ```
//!
//! # In the background
//!
//! Two threads of the library's own runtime renew held locks, wake waiters, and carry out dropped releases, regardless
//! of the program's threads. The first call starts them, and they end with the process: call [`LockClient::shutdown`]
//! before that, or do the work in a [`scope`](LockClientBuilder::scope), which does so after an error or a panic too.
//!
//! A forked process has none of these threads, and does not own the locks of its parent: every client and handle of the
//! parent reports that at once ([`LostReason::Forked`](crate::LostReason::Forked)). The driver has its own threads,
//! which are missing there as well: fork before the first call, or start the child as a separate program.
//!
//! # Panics
//!
//! As with the driver's synchronous API, every blocking call panics on a thread of an async runtime, whose other tasks
//! it would block: there, use the types of the crate itself, or `tokio::task::spawn_blocking`. The first call also
//! panics if the system refuses to start the threads. Dropping a handle blocks nowhere.

mod action;
mod actions;
mod barrier;
mod client;
mod documents;
mod election;
mod elements;
mod handle;
mod latch;
mod multi;
mod mutex;
mod once;
mod rw_lock;
mod semaphore;
mod watch;

use std::sync::{LazyLock, Mutex as Lock, PoisonError};

use tokio::runtime::{Builder, EnterGuard, Runtime};

pub use action::Action;
pub use barrier::Barrier;
pub use client::{LockClient, LockClientBuilder};
pub use documents::{DocumentHandle, DocumentLocks};
pub use election::{Election, Leaders, Leadership};
pub use elements::{ElementHandle, ElementLocks};
pub use handle::{LockHandle, LockView};
pub use latch::Latch;
pub use multi::{MultiHandle, MultiLock, MultiView};
pub use mutex::Mutex;
pub use once::{Once, OnceHandle, Turn};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use watch::{AllLockEvents, LockEvents};

/// Number of threads: while one is busy with a large answer of the server, the other keeps renewing.
const THREADS: usize = 2;

/// The runtime, and the process that owns its threads.
static RUNTIME: LazyLock<(u32, Runtime)> = LazyLock::new(|| (std::process::id(), started()));

/// The runtime of a process that was forked from the one with the first runtime.
static FORKED: Lock<Option<(u32, &'static Runtime)>> = Lock::new(None);

fn runtime() -> &'static Runtime {
    let (process, runtime) = &*RUNTIME;
    if *process == std::process::id() {
        return runtime;
    }
    let mut present = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    match *present {
        Some((process, runtime)) if process == std::process::id() => runtime,
        // A parent's runtime is not dropped: its threads do not exist here, so nothing can wait for them.
        _ => present.insert((std::process::id(), Box::leak(Box::new(started())))).1,
    }
}

fn started() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let built = builder
        .worker_threads(THREADS)
        .thread_name("watchlock")
        .enable_all()
        .build();
    match built {
        Ok(runtime) => runtime,
        Err(error) => panic!("the background threads could not be started: {error}"),
    }
}

/// Runs the future on this thread, and waits for it.
fn block_on<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}

/// Enters the runtime, for calls that do not wait but start tasks.
fn enter() -> EnterGuard<'static> {
    runtime().enter()
}
