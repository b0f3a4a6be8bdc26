//! The resources of client and server: processor time, memory, commands, cursors, connections, tasks.

use std::{fmt, fs};

use mongodb::{
    Client,
    bson::{Bson, Document, doc},
};
use tokio::{runtime::Handle, time::Instant};
use watchlock_testkit::Cluster;

use crate::{Result, client::connect};

/// The clock ticks of `/proc`, as Linux gives them to programs.
const TICKS: f64 = 100.0;

/// The commands that locks cause. Monitoring, and the commands of the measurement itself, don't count.
const COMMANDS: [&str; 5] = ["findAndModify", "update", "aggregate", "getMore", "find"];

/// A gauge of a server and of this process, with a connection of its own.
#[derive(Debug)]
pub(super) struct Gauge {
    client: Client,
    server: u32,
}

/// The resources in use at some moment, or used up to it.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    commands: i64,
    get_mores: i64,
    server_seconds: f64,
    client_seconds: f64,
    /// In KB, as all memory here: the size of the process.
    pub(super) server_memory: u64,
    /// The memory that the server has asked for and not given back, except for the storage engine's cache. It fills
    /// the cache up to its limit, whatever happens; this figure must stay flat.
    pub(super) server_heap: u64,
    pub(super) client_memory: u64,
    /// Open at the server.
    pub(super) cursors: i64,
    pub(super) connections: i64,
    pub(super) sessions: i64,
    /// Of this process's runtime.
    pub(super) tasks: usize,
}

impl Gauge {
    /// Creates the gauge of the first node of a cluster.
    pub(super) async fn new(cluster: &Cluster) -> Result<Self> {
        let database = connect(&cluster.uri(), "admin", "gauge").await?;
        Ok(Self {
            client: database.client().clone(),
            server: cluster.pid(0).ok_or("the server is not running")?,
        })
    }

    pub(super) async fn read(&self) -> Result<Sample> {
        let admin = self.client.database("admin");
        let status = admin.run_command(doc! { "serverStatus": 1, "tcmalloc": 1 }).await?;
        let commands = |names: &[&str]| -> i64 {
            let total = |name: &&str| number(&status, &["metrics", "commands", name, "total"]);
            names.iter().map(total).sum()
        };
        let allocated = number(&status, &["tcmalloc", "generic", "current_allocated_bytes"]);
        let cached = number(&status, &["wiredTiger", "cache", "bytes currently in the cache"]);
        Ok(Sample {
            at: Instant::now(),
            commands: commands(&COMMANDS),
            get_mores: commands(&["getMore"]),
            server_seconds: processor_seconds(self.server),
            client_seconds: processor_seconds(std::process::id()),
            server_memory: memory(self.server),
            server_heap: u64::try_from(allocated - cached).unwrap_or(0) / 1024,
            client_memory: memory(std::process::id()),
            cursors: number(&status, &["metrics", "cursor", "open", "total"]),
            connections: number(&status, &["connections", "current"]),
            sessions: number(&status, &["logicalSessionRecordCache", "activeSessionsCount"]),
            tasks: Handle::current().metrics().num_alive_tasks(),
        })
    }
}

impl Sample {
    pub(super) fn since<'a>(&'a self, earlier: &'a Self) -> Spent<'a> {
        Spent { earlier, later: self }
    }
}

impl fmt::Display for Sample {
    /// Shows the resources at this moment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, client) = (self.server_memory / 1024, self.client_memory / 1024);
        write!(f, "server {server:>5} MB  client {client:>5} MB")
    }
}

/// The resources used between two moments.
#[derive(Debug)]
pub(super) struct Spent<'a> {
    earlier: &'a Sample,
    later: &'a Sample,
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
impl Spent<'_> {
    pub(super) fn commands(&self) -> i64 {
        self.later.commands - self.earlier.commands
    }

    fn commands_per_second(&self) -> f64 {
        self.commands() as f64 / self.seconds()
    }

    fn seconds(&self) -> f64 {
        (self.later.at - self.earlier.at).as_secs_f64()
    }

    /// In percent of a core.
    fn server_load(&self) -> f64 {
        100.0 * (self.later.server_seconds - self.earlier.server_seconds) / self.seconds()
    }

    fn client_load(&self) -> f64 {
        100.0 * (self.later.client_seconds - self.earlier.client_seconds) / self.seconds()
    }
}

impl fmt::Display for Spent<'_> {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get_mores = (self.later.get_mores - self.earlier.get_mores) as f64 / self.seconds();
        write!(
            f,
            "{:>6.1} s  {:>7.1} commands/s ({:>6.1} getMore)  server {:>3.0} % of a core, {:>4} MB  client {:>3.0} %, {:>4} MB",
            self.seconds(),
            self.commands_per_second(),
            get_mores,
            self.server_load(),
            self.later.server_memory / 1024,
            self.client_load(),
            self.later.client_memory / 1024,
        )
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

/// Returns the size of a process, in KB.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns how long a process has been running on some core.
fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may hold anything, the state is the first field, and the two times are the 12th and 13th.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split_whitespace());
    let ticks = fields.map(|fields| {
        fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum()
    });
    ticks.map_or(0.0, |ticks: f64| ticks / TICKS)
}
