#![doc = include_str!("../README.md")]

mod client;
mod error;
mod handle;
mod inspect;
mod lost;
mod mutex;
mod protocol;
mod session;
mod store;
mod wake_mode;

pub use client::{LockClient, LockClientBuilder};
pub use error::{
    AcquireError, BuildError, InvalidInput, OperateError, ReleaseError, RenewError, RunError, ServerError,
    UsedOtherwise,
};
pub use handle::{FencingToken, LockHandle, LockStatus, LockView, Released};
pub use inspect::{HolderInfo, LockInfo, WaiterInfo};
pub use lost::LostReason;
pub use mutex::{Acquire, Mutex, TryAcquire};
pub use protocol::Kind;
pub use wake_mode::{PollingReason, WakeMode, WakeSource};
