// The README links to files; here the same names link to the modules that include these files. The first of two
// definitions of a name counts.
#![doc = include_str!("guide/links.md")]
#![doc = ""]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod contention;
mod documents;
mod error;
mod fence;
#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}
// Documentation alone.
#[cfg(any(doc, doctest))]
pub mod guide;
mod handle;
mod inspect;
mod locks;
mod machine;
#[doc = include_str!("guide/links.md")]
#[doc = ""]
#[doc = include_str!("../docs/observability.md")]
pub mod observability {}
mod operate;
#[cfg(feature = "serde")]
mod rfc3339;
#[cfg(feature = "serde")]
mod serial;
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
    backoff, config, grant_path, hold_options, hold_watch, input, lost_reason, metric_names, name, protocol,
    truncated_debug, waitlist,
};

/// The driver that this crate is built with. A program that uses it from here needs no `mongodb` dependency of its own,
/// whose version would have to match.
pub use mongodb;

pub use client::in_memory::InMemory;
pub use client::{LockClient, builder::LockClientBuilder};
pub use contention::Contention;
pub use documents::memory_collection::MemoryCollection;
pub use documents::{DocumentLocks, ElementLocks};
pub use error::{
    AcquireError, BarrierError, BuildError, CandidacyError, DocumentError, FenceError, Fenced, GuardError,
    InvalidInput, KindMismatch, MissingPrivilege, OperateError, ReleaseError, RenewError, RunError, ServerError,
    ServerErrorKind,
};
pub use fence::{Fence, FencedDelete, FencedInsert, FencedUpdate};
pub use handle::{Held, Released, View};
pub use inspect::{Access, HolderInfo, LockInfo, PastHold, WaiterInfo};
pub use locks::acquire::Acquire;
pub use locks::barrier::{Barrier, BarrierPass};
pub use locks::election::{Candidacy, Election, Leader, Leaders};
pub use locks::latch::Latch;
pub use locks::multi::MultiLock;
pub use locks::mutex::Mutex;
pub use locks::once::{LastRun, Once, OnceOutcome, Turn};
pub use locks::rw_lock::RwLock;
pub use locks::semaphore::Semaphore;
pub use operate::list::{List, Listing, UnreadableInfo};
pub use operate::watch::{AllLockEvents, LockEvent, LockEvents};
pub use protocol::{HoldEnd, Kind};
pub use status::{LockStatus, Lost, LostReason};
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub use telemetry::buckets::HISTOGRAM_BUCKETS;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use tests::decoding;
pub use token::FencingToken;
pub use wake_mode::{HoldWatch, PollingReason, WakeMode, WakeSource};

/// The targets: what can be acquired and held, and what each can do. The first parameter of [`Acquire`], [`Held`] and
/// [`View`].
pub mod target {
    pub use crate::{
        documents::{Claim, DocumentTarget as Document, Element},
        handle::target::{AnyLock, IsOne, Target},
        locks::{
            acquire::CanAcquire,
            multi::Multi,
            once::Period,
            options::{CanFix, CanIdle, CanKeep, CanLimit, CanReenter, HasHolder},
            targets::{Leadership, Mutex, Read, Semaphore, Write},
        },
    };
}

/// The parameters of an action besides its target: its patience, and the world in which it is carried out.
pub mod action {
    #[cfg(feature = "sync")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
    pub use crate::world::Blocking;
    pub use crate::{
        locks::patience::{OrHeld, Patience, Try, Wait},
        world::{Async, Awaits, World},
    };
}
