//! The commands that a server has executed, and its processor time.

use std::{collections::BTreeMap, fmt, fs, time::Duration};

use mongodb::{
    Client,
    bson::{Bson, Document, doc},
    options::{ClientOptions, ServerMonitoringMode},
};
use watchlock_testkit::Cluster;

use crate::Result;

/// Command by which drivers watch over the server and greet it, for every client. Older servers call it `isMaster`,
/// and the driver uses that name until it knows better.
const MONITORING: [&str; 3] = ["hello", "isMaster", "ping"];

/// A reader of the counters of a cluster's first node, which is not counted itself.
#[derive(Debug)]
pub(crate) struct Observer(Client);

impl Observer {
    pub(crate) async fn new(cluster: &Cluster) -> Result<Self> {
        let mut options = ClientOptions::parse(cluster.node_uri(0)).await?;
        // Greets the server once and then not again while anything is measured.
        options.server_monitoring_mode = Some(ServerMonitoringMode::Poll);
        options.heartbeat_freq = Some(Duration::from_secs(3_600));
        let observer = Self(Client::with_options(options)?);
        observer.read().await?;
        Ok(observer)
    }

    /// Returns all of `serverStatus.metrics.commands.*.total`, except `serverStatus` itself, which nothing else runs.
    pub(crate) async fn read(&self) -> Result<Commands> {
        let status = self.0.database("admin").run_command(doc! { "serverStatus": 1 }).await?;
        let commands = status.get_document("metrics")?.get_document("commands")?;
        let counted = commands.iter().filter(|(name, _)| *name != "serverStatus");
        Ok(Commands(
            counted
                .filter_map(|(name, counts)| Some((name.clone(), total(counts.as_document()?))))
                .collect(),
        ))
    }
}

fn total(counts: &Document) -> i64 {
    match counts.get("total") {
        Some(Bson::Int64(total)) => *total,
        Some(Bson::Int32(total)) => i64::from(*total),
        _ => 0,
    }
}

/// The number of executions of each command by a server, for all clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands(BTreeMap<String, i64>);

impl Commands {
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let counts = self
            .0
            .iter()
            .map(|(name, count)| (name.clone(), count - earlier.of(name)));
        Self(counts.filter(|(_, count)| *count != 0).collect())
    }

    pub(crate) fn of(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn all(&self) -> i64 {
        self.0.values().sum()
    }

    /// Returns the number of all but `getMore` and the drivers' monitoring.
    pub(crate) fn of_use(&self) -> f64 {
        float(self.all() - self.of("getMore") - self.monitoring())
    }

    pub(crate) fn monitoring(&self) -> i64 {
        MONITORING.iter().map(|name| self.of(name)).sum()
    }
}

/// Returns the first node's processor time so far, as the kernel counts it, in hundredths of a second.
pub(crate) fn processor_time(cluster: &Cluster) -> Result<Duration> {
    let pid = cluster.pid(0).ok_or("the server has no process")?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in stat")?;
    // The 14th and 15th of all fields: in user mode and in the kernel.
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<std::result::Result<_, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of this size are exact")]
pub(crate) fn float(count: i64) -> f64 {
    count as f64
}
