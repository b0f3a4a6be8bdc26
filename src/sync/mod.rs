//! The blocking API, for programs without async: each call blocks the thread until it is done. It needs the feature
//! `sync`, which enables the driver's own feature of that name.
//!
//! It is the same API in another [world](crate::action::World), with [`Blocking`] for the last parameter of each type:
//! `Mutex<Blocking>`, `Held<Mutex, Blocking>`. Methods that return a future there return its output here. Actions that
//! are awaited there have `run` here, and `run` with work is [`run_with`](crate::Acquire::run_with); streams are
//! iterators. [`Held::into_async`](crate::Held::into_async) takes a handle into async code: writes under a
//! [`fence`](crate::View::fence), for one, can only be awaited. Neither world has the calls of the other:
//!
//! ```compile_fail,E0277
//! # async fn example(locks: watchlock::LockClient<watchlock::sync::Blocking>) {
//! locks.mutex("invoice-42").acquire().await;
//! # }
//! ```
//!
//! ```compile_fail,E0061
//! # async fn example(locks: watchlock::LockClient) {
//! locks.mutex("invoice-42").acquire().run();
//! # }
//! ```
//!
//! ```
//! # async fn example(locks: watchlock::LockClient, blocking: watchlock::LockClient<watchlock::sync::Blocking>) {
//! locks.mutex("invoice-42").acquire().await;
//! blocking.mutex("invoice-42").acquire().run();
//! # }
//! ```
//!
//! # Connecting
//!
//! A [`LockClient`](crate::LockClient) is made from an async one, or from its builder, by `blocking()`. That takes the
//! driver's `mongodb::Database`, from whose client the synchronous one can be derived:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use mongodb::options::ClientOptions;
//! use watchlock::LockClient;
//!
//! let options = ClientOptions::parse("mongodb://localhost:27017/?replicaSet=rs0").run()?;
//! let client = mongodb::Client::with_options(options)?;
//! let locks = LockClient::builder(client.database("app")).label("billing").blocking().build()?;
//! // For your own work, over the same connections.
//! let app = mongodb::sync::Client::from(client).database("app");
//!
//! let handle = locks.mutex("invoice-42").acquire().reason("monthly run").run()?;
//! // ... bill the invoice, in time: see `View::lost_reason` and `View::safe_for` ...
//! handle.release()?;
//! locks.shutdown();
//! # Ok(()) }
//! ```
//!
//! # Examples
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let locks = watchlock::LockClient::in_memory().blocking();
//! use std::time::Duration;
//! use watchlock::LostReason;
//!
//! let election = locks.election("scheduler");
//! let mut leaders = election.observe();
//! assert!(leaders.next().expect("it goes on")?.is_none());
//! let leadership = election.campaign("10.0.0.7:8080").run()?;
//! assert_eq!(leaders.next().expect("it goes on")?.expect("a leader").value, "10.0.0.7:8080");
//! leadership.release()?;
//!
//! let ready = locks.latch("deploy-7/ready", 1);
//! assert!(!ready.wait_timeout(Duration::from_millis(10))?);
//!
//! // Work in steps, with checks between them, and a thread that waits for the loss.
//! let handle = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).run()?;
//! assert!(locks.mutex("invoice-42").try_acquire().run()?.is_none());
//! for step in 0..3 {
//!     handle.check()?;
//!     // ... the step, under the fencing token ...
//! }
//! let view = handle.view();
//! let guard = std::thread::spawn(move || println!("no longer held: {}", view.lost()));
//! assert_eq!(handle.lost_within(Duration::from_millis(10)), None);
//! locks.break_lock("invoice-42")?;
//! assert_eq!(handle.lost_within(Duration::from_secs(5)).expect("a loss"), LostReason::Broken);
//! guard.join().expect("it ends with the hold");
//! # Ok(()) }
//! ```
//!
//! # In the background
//!
//! Two threads of the library's own runtime renew held locks, wake waiters, and carry out dropped releases. The first
//! call starts them, and they end with the process: call [`LockClient::shutdown`](crate::LockClient::shutdown) before
//! that, or do the work in a [`scope`](crate::LockClientBuilder::scope).
//!
//! A forked process has none of these threads, nor those of the driver, and does not own the locks of its parent: every
//! client and handle of the parent reports that at once ([`LostReason::Forked`](crate::LostReason::Forked)). Fork
//! before the first call, or start the child as a separate program.
//!
//! # Panics
//!
//! As with the driver's synchronous API, every blocking call panics on a thread of an async runtime, whose other tasks
//! it would block: there, use the types of the crate itself, or `tokio::task::spawn_blocking`. The first call also
//! panics if the system refuses to start the threads. Dropping a handle blocks nowhere.

use std::{
    future::Future,
    sync::{LazyLock, Mutex as Lock, PoisonError},
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

pub use crate::world::Blocking;
use crate::{
    handle::{View, target::Target},
    status::Lost,
    world::World,
};

impl World for Blocking {
    type Call<F: Future> = F::Output;

    fn call<F: Future>(future: F) -> F::Output {
        runtime().block_on(future)
    }

    fn within<O>(start: impl FnOnce() -> O) -> O {
        let _entered = runtime().enter();
        start()
    }
}

impl<T: Target> View<T, Blocking> {
    /// Blocks until it is lost, or `limit` is over: then it returns `None`, and it is still held.
    pub fn lost_within(&self, limit: Duration) -> Option<Lost> {
        Blocking::call(async { tokio::time::timeout(limit, self.ended()).await.ok() })
    }
}

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
