//! The commands that a server has executed.

use std::{collections::BTreeMap, fmt, time::Duration};

use mongodb::{
    Client,
    bson::{Bson, Document, doc},
    options::{ClientOptions, ServerMonitoringMode},
};
use tokio::time::{Instant, sleep};
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

    /// Counts what is executed in this time, which is returned as it was.
    pub(crate) async fn count_for(&self, time: Duration) -> Result<(Commands, Duration)> {
        let (before, begun) = (self.read().await?, Instant::now());
        sleep(time).await;
        let elapsed = begun.elapsed();
        Ok((self.read().await?.since(&before), elapsed))
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
        (self.all() - self.of("getMore") - self.monitoring()) as f64
    }

    pub(crate) fn monitoring(&self) -> i64 {
        MONITORING.iter().map(|name| self.of(name)).sum()
    }
}

impl fmt::Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.0.iter().map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}
