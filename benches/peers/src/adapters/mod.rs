//! One client for each lock library, each used as its documentation shows.

pub(crate) mod distributed_lock_mongo;
pub(crate) mod dotnet;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod mongo_lock;
pub(crate) mod mongo_lock_async;
pub(crate) mod mongodb_lock;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod watchlock;
pub(crate) mod zookeeper;

use std::time::Duration;

use crate::client::Result;

/// Wait of a peer that insists on a bound. No measurement takes as long.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Checks that a lock was taken away: a signal for another one would be taken for its.
fn expect_one(taken: u64) -> Result<()> {
    if taken == 1 {
        return Ok(());
    }
    Err(format!("{taken} locks were taken away instead of one").into())
}
