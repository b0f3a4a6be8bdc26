// The README links to files; here the same names link to the modules that have these files. Of two definitions of one
// name the first counts.
#![doc = "[docs/guarantees.md]: crate::guarantees\n[docs/observability.md]: crate::observability\n\n"]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod brief;
mod client;
mod config;
mod contention;
mod documents;
mod election;
mod error;
mod fence;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}
mod guard;
mod handle;
mod in_memory;
mod inspect;
mod list;
mod memory_collection;
mod multi;
mod mutex;
mod name;
#[doc = include_str!("../docs/observability.md")]
pub mod observability {}
mod protocol;
mod rw_lock;
mod semaphore;
mod session;
mod status;
mod store;
#[cfg(feature = "sync")]
#[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
pub mod sync;
mod telemetry;
mod token;
mod waitlist;
mod wake_mode;
mod watch;

pub use acquire::{Acquire, TryAcquire};
pub use client::{LockClient, LockClientBuilder};
pub use contention::Contention;
pub use documents::{AcquireDocument, Claim, DocumentHandle, DocumentLocks, TryAcquireDocument, TryClaim};
pub use election::{Campaign, Candidacy, Election, Leader, Leaders, Leadership};
pub use error::{
    AcquireError, BuildError, CandidacyError, DocumentError, FenceError, Fenced, GuardError, InvalidInput,
    KindMismatch, MissingPrivilege, MultiRunError, OperateError, ReleaseError, RenewError, RunError, ServerError,
    ServerErrorKind,
};
pub use fence::{Fence, FencedDelete, FencedInsert, FencedUpdate};
pub use handle::{LockHandle, LockView, Released};
pub use in_memory::InMemory;
pub use inspect::{Access, HolderInfo, LockInfo, WaiterInfo};
pub use list::{List, Listing, UnreadableInfo};
pub use memory_collection::MemoryCollection;
pub use multi::{MultiAcquire, MultiHandle, MultiLock, MultiView, TryMultiAcquire};
pub use mutex::Mutex;
pub use protocol::Kind;
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use status::{LockStatus, LostPart, LostReason};
pub use token::FencingToken;
pub use wake_mode::{PollingReason, WakeMode, WakeSource};
pub use watch::{AllLockEvents, LockEvent, LockEvents};
