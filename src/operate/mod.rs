//! Locks as operators see them: one lock, lists of them, events as they happen, and how a client is woken.
//!
//! [`LockClient::inspect`](crate::LockClient::inspect), [`list`](crate::LockClient::list) and
//! [`watch`](crate::LockClient::watch) return them. The same is at a terminal with the
//! [command line](crate::guide::command_line), and as spans, events and metrics with
//! [observability](crate::observability).

pub(crate) mod events;
pub(crate) mod list;
pub(crate) mod watch;

#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub use crate::telemetry::meters::HISTOGRAM_BUCKETS;
pub use crate::{
    inspect::{Access, HolderInfo, LockInfo, OwnerInfo, PastHold, WaiterInfo},
    protocol::{HoldEnd, Kind},
    store::UnreadableInfo,
    wake_mode::{HoldWatch, PollingReason, WakeMode, WakeSource},
};
pub use events::Events;
pub use list::{List, Listing};
pub use watch::LockEvent;
