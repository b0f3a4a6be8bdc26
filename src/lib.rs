//! Distributed locks for processes that share a MongoDB: a change stream wakes waiters the moment a lock is released,
//! and holders find out the moment they lose one.
//!
//! ```no_run
//! use std::time::Duration;
//! use watchlock::LockClient;
//!
//! type Error = Box<dyn std::error::Error>;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let client = mongodb::Client::with_uri_str("mongodb://localhost:27017/app?replicaSet=rs0").await?;
//!     // One lock client per process. The scope shuts it down, also after an error or a panic, so no lock stays taken.
//!     let billed = LockClient::builder(client.database("app")).label("billing").scope(bill).await?;
//!     // After the locks, which need it.
//!     client.shutdown().await;
//!     billed
//! }
//!
//! async fn bill(locks: LockClient) -> Result<(), Error> {
//!     let turn = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).reason("monthly run");
//!     // Waits for its turn, works, and releases; drops the work if the lock is lost.
//!     turn.run(async |held| bill_invoice(held.token()).await).await??;
//!     Ok(())
//! }
//!
//! async fn bill_invoice(token: watchlock::FencingToken) -> Result<(), std::io::Error> {
//!     println!("billing under token {token}");
//!     Ok(())
//! }
//! ```
//!
//! A [`LockClient`] makes the locks of every kind: [mutexes, semaphores and the like](locks), [elections](election),
//! and locks in [documents] of your own. An [`Acquire`] has the options of each, and gives a [`Held`], which reports
//! the loss and has the [`FencingToken`] for writes that a [fence] checks. Tests of your own code need
//! [no server](testing::InMemory).
//!
//! The [guide] shows each kind of lock, how to run and migrate services, and recipes; [guarantees] has what is promised
//! and why it holds.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod contention;
mod deadlock;
mod detached;
pub mod documents;
mod error;
pub mod fence;
#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}
// Documentation alone.
#[cfg(any(doc, doctest))]
pub mod guide;
mod handle;
mod hidden;
mod inspect;
pub mod locks;
mod machine;
#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/observability.md")]
pub mod observability {}
pub mod operate;
// Its examples are compiled, like those of the guide.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
#[cfg(feature = "serde")]
mod rfc3339;
mod session;
mod status;
mod store;
#[cfg(feature = "sync")]
#[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
pub mod sync;
mod telemetry;
#[cfg(any(test, fuzzing))]
mod tests;
mod token;
mod wake_mode;
mod world;

// The protocol and the waiting client, without I/O, are a crate of their own: here they are as if they were modules.
pub(crate) use watchlock_core::{
    backoff, config, grant_path, hold_options, input, lost_reason, name, protocol, truncated_debug, waitlist,
};

/// The driver that this crate is built with. A program that uses it from here needs no `mongodb` dependency of its own,
/// whose version would have to match.
pub use mongodb;

pub use client::{LockClient, builder::LockClientBuilder};
pub use detached::Detached;
pub use handle::{Held, Released, View};
pub use locks::acquire::Acquire;
pub use status::{LockStatus, Lost, LostReason};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use tests::decoding;
pub use token::FencingToken;

/// The parameters of [`Acquire`], [`Held`] and [`View`]: their target, the patience of an acquire, and the world in
/// which calls are awaited or block the thread.
///
/// A program names them only in its own signatures. A target is the type of the lock, without its world: `Held<Mutex>`,
/// `Held<Document<Order>>`, `Held<Election>`; [`AnyLock`](action::AnyLock) is any of them.
///
/// ```
/// use watchlock::{Acquire, Held, action::{CanAcquire, One, Try}, errors::AcquireError};
///
/// type Tried<T> = Result<Option<Held<T>>, AcquireError>;
///
/// async fn tried_twice<T: CanAcquire<Count = One>>(acquire: Acquire<T, Try>) -> Tried<T::Held> {
///     match acquire.clone().await? {
///         None => acquire.await,
///         held => Ok(held),
///     }
/// }
/// ```
pub mod action {
    pub use crate::{
        handle::target::{AnyLock, Count, IsLock, IsOne, One, Several, Target},
        locks::acquire::{CanAcquire, OrHeld, Patience, Try, Wait},
        world::{Async, World},
    };
}

/// Elections of one leader among all processes. [`LockClient::election`] makes one; the guide has
/// [a page on them](guide::elections).
pub mod election {
    pub use crate::locks::election::{Candidacy, Election, Leader};
}

/// Errors, one for each kind of call, and what is in the way of an acquire: its [`Contention`](errors::Contention).
///
/// A message is a line for people that names the lock, the holder or the value at fault, and `Debug` shows no more. A
/// program matches on the variants; [`ServerError::kind`](errors::ServerError::kind) says whether to try again.
///
/// ```
/// use watchlock::{LockClient, errors::AcquireError};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), AcquireError> {
/// let locks = LockClient::in_memory();
/// let held = locks.mutex("invoice-42").acquire().reason("monthly run").await?;
/// if let Err(AcquireError::Held { contention, .. }) = locks.mutex("invoice-42").try_acquire().or_held().await {
///     assert_eq!(contention.holders[0].owner.reason.as_deref(), Some("monthly run"));
/// }
/// # Ok(()) }
/// ```
pub mod errors {
    pub use crate::{
        contention::Contention,
        deadlock::Deadlock,
        error::{
            AcquireError, BuildError, CandidacyError, FenceError, GuardError, HoldError, InvalidInput, KindMismatch,
            OperateError, ServerError, ServerErrorKind,
        },
    };
}

/// Locks and documents in memory, for tests of your own code: the same protocol and the same answers, without a server.
///
/// [`LockClient::in_memory`] is the shortest way to one client; an [`InMemory`](testing::InMemory) is a server that
/// several clients share.
pub mod testing {
    pub use crate::{client::in_memory::InMemory, documents::memory_collection::MemoryCollection};
}
