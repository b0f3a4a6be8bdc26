// The README links to files; here the same names link to the modules that include these files. The first of two
// definitions of a name counts.
#![doc = "[docs/guarantees.md]: crate::guarantees\n[docs/observability.md]: crate::observability\n\n"]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod brief;
mod client;
mod config;
mod contention;
mod documents;
mod error;
mod fence;
#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}
mod handle;
mod input;
mod inspect;
mod locks;
mod name;
#[doc = include_str!("../docs/observability.md")]
pub mod observability {}
mod operate;
#[cfg(any(test, fuzzing))]
mod proofs;
mod protocol;
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

pub use client::in_memory::InMemory;
pub use client::{LockClient, LockClientBuilder};
pub use contention::Contention;
pub use documents::memory_collection::MemoryCollection;
pub use documents::{AcquireDocument, Claim, DocumentHandle, DocumentLocks, TryAcquireDocument, TryClaim};
pub use error::{
    AcquireError, BuildError, CandidacyError, DocumentError, FenceError, Fenced, GuardError, InvalidInput,
    KindMismatch, MissingPrivilege, MultiRunError, OperateError, ReleaseError, RenewError, RunError, ServerError,
    ServerErrorKind,
};
pub use fence::{Fence, FencedDelete, FencedInsert, FencedUpdate};
pub use handle::{LockHandle, LockView, Released};
pub use inspect::{Access, HolderInfo, LockInfo, WaiterInfo};
pub use locks::acquire::{Acquire, TryAcquire};
pub use locks::election::{Campaign, Candidacy, Election, Leader, Leaders, Leadership};
pub use locks::multi::{MultiAcquire, MultiHandle, MultiLock, MultiView, TryMultiAcquire};
pub use locks::mutex::Mutex;
pub use locks::rw_lock::RwLock;
pub use locks::semaphore::Semaphore;
pub use operate::list::{List, Listing, UnreadableInfo};
pub use operate::watch::{AllLockEvents, LockEvent, LockEvents};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use proofs::fuzzing;
pub use protocol::Kind;
pub use status::{LockStatus, LostPart, LostReason};
pub use token::FencingToken;
pub use wake_mode::{PollingReason, WakeMode, WakeSource};
