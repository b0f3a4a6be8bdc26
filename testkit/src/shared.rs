//! One server for all the tests of a process, and names to keep them apart.
//!
//! A server takes a second or more to start, so tests that leave it as they found it share one: each works in a
//! database of its own, named by [`unique_name`], with a client of its own, as a client belongs to the runtime it
//! was made in and every `#[tokio::test]` has one.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OnceCell;

use crate::Cluster;

/// Returns the replica set of one node that all tests of this process share. The first call starts it.
///
/// # Panics
///
/// It does not start.
pub async fn replica_set() -> &'static Cluster {
    static REPLICA_SET: OnceCell<Cluster> = OnceCell::const_new();
    REPLICA_SET
        .get_or_init(
            async || match Cluster::builder().replica_set(1).in_memory(true).start().await {
                Ok(cluster) => cluster,
                Err(error) => panic!("{error}"),
            },
        )
        .await
}

/// Returns the standalone server that all tests of this process share. The first call starts it.
///
/// # Panics
///
/// It does not start.
pub async fn standalone() -> &'static Cluster {
    static STANDALONE: OnceCell<Cluster> = OnceCell::const_new();
    STANDALONE
        .get_or_init(async || match Cluster::builder().in_memory(true).start().await {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        })
        .await
}

/// Returns a name that no other call has returned, in this process or in one that runs at the same time: `prefix`, the
/// process id and a number. It is valid for a database if `prefix` is.
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "{prefix}_{}_{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}
