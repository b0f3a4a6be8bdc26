//! The resources of client and server: memory, cursors, connections, sessions, tasks.

use std::fs;

use mongodb::{
    Client,
    bson::{Bson, Document, doc},
};
use tokio::{runtime::Handle, time::Instant};
use watchlock_testkit::Cluster;

use crate::{Result, client::connect};

/// A gauge of a server and of this process, with a connection of its own.
#[derive(Debug)]
pub(super) struct Gauge(Client);

/// The resources in use at some moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// In KB: the memory that the server has asked for and not given back, except for the storage engine's cache. It
    /// fills the cache up to its limit, whatever happens; this figure must stay flat.
    pub(super) server_heap: u64,
    /// In KB: the size of this process.
    pub(super) client_memory: u64,
    /// Open at the server.
    pub(super) cursors: i64,
    pub(super) connections: i64,
    pub(super) sessions: i64,
    /// Of this process's runtime.
    pub(super) tasks: usize,
}

impl Gauge {
    pub(super) async fn new(cluster: &Cluster) -> Result<Self> {
        let database = connect(&cluster.uri(), "admin", "gauge").await?;
        Ok(Self(database.client().clone()))
    }

    pub(super) async fn read(&self) -> Result<Sample> {
        let admin = self.0.database("admin");
        let status = admin.run_command(doc! { "serverStatus": 1, "tcmalloc": 1 }).await?;
        let allocated = number(&status, &["tcmalloc", "generic", "current_allocated_bytes"]);
        let cached = number(&status, &["wiredTiger", "cache", "bytes currently in the cache"]);
        Ok(Sample {
            at: Instant::now(),
            server_heap: u64::try_from(allocated - cached).unwrap_or(0) / 1024,
            client_memory: own_memory(),
            cursors: number(&status, &["metrics", "cursor", "open", "total"]),
            connections: number(&status, &["connections", "current"]),
            sessions: number(&status, &["logicalSessionRecordCache", "activeSessionsCount"]),
            tasks: Handle::current().metrics().num_alive_tasks(),
        })
    }
}

/// Returns a number somewhere in a document; 0 if there is none.
fn number(document: &Document, path: &[&str]) -> i64 {
    let Some((last, path)) = path.split_last() else {
        return 0;
    };
    let mut within = document;
    for field in path {
        match within.get(field) {
            Some(Bson::Document(document)) => within = document,
            _ => return 0,
        }
    }
    match within.get(last) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the server counts some things in doubles"
        )]
        Some(Bson::Double(number)) => *number as i64,
        _ => 0,
    }
}

fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
