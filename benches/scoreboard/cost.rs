//! The server's processor time for an operation, and what others change in a number.

use std::{fs, time::Duration};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use watchlock_testkit::Cluster;

use crate::Result;

/// Number of writes by which the time of the server's processor is measured.
const WRITES: u32 = 3_000;

/// Pause between two operations, as one writer after the other would wake waiting cursors together: 500 a second.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// Returns the first node's processor time so far, as the kernel counts it, in hundredths of a second.
pub(crate) fn processor_time(cluster: &Cluster) -> Result<Duration> {
    let pid = cluster.pid(0).ok_or("the server has no process")?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in stat")?;
    // The 14th and 15th of all fields: in user mode and in the kernel.
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    Ok(Duration::from_millis(ticks.sum::<std::result::Result<u64, _>>()? * 10))
}

/// Returns the server's processor time for each of so many operations, in microseconds, without its idle work.
pub(crate) async fn cost(
    cluster: &Cluster,
    times: u32,
    mut operation: impl AsyncFnMut(u32) -> Result<()>,
) -> Result<f64> {
    let (before, begun) = (processor_time(cluster)?, Instant::now());
    sleep(PAUSE * times).await;
    let idle = (processor_time(cluster)? - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    let (before, begun) = (processor_time(cluster)?, Instant::now());
    for number in 0..times {
        operation(number).await?;
        sleep(PAUSE).await;
    }
    let taken = (processor_time(cluster)? - before).as_secs_f64() - idle * begun.elapsed().as_secs_f64();
    Ok(taken * 1e6 / f64::from(times))
}

/// Returns the cost of a write to another collection.
pub(crate) async fn cost_of_writes(cluster: &Cluster, writer: &Client) -> Result<f64> {
    cost_of(cluster, writer, WRITES).await
}

/// Returns the same, by so many writes.
pub(crate) async fn cost_of(cluster: &Cluster, writer: &Client, writes: u32) -> Result<f64> {
    let foreign = writer.database("foreign").collection::<Document>("events");
    let write = async |number| Ok(foreign.insert_one(doc! { "n": number }).await.map(drop)?);
    cost(cluster, writes, write).await
}

/// Makes another program write 500 times a second, until it is aborted.
pub(crate) fn others_write(writer: &Client) -> JoinHandle<()> {
    let foreign = writer.database("foreign").collection::<Document>("others");
    tokio::spawn(async move {
        loop {
            // What this writer is told does not matter.
            drop(foreign.insert_one(doc! {}).await);
            sleep(PAUSE).await;
        }
    })
}

/// A number without others, and beside them.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) alone: f64,
    pub(crate) beside: f64,
}

impl Beside {
    /// Measures before others come, beside them, and after they have left, as the machine may get slower or faster
    /// meanwhile.
    pub(crate) async fn measure<T>(
        measure: impl AsyncFn() -> Result<f64>,
        come: impl Future<Output = Result<T>>,
        leave: impl AsyncFnOnce(T) -> Result<()>,
    ) -> Result<Self> {
        // This makes the connections and the collection.
        measure().await?;
        let before = measure().await?;
        let others = come.await?;
        let beside = measure().await?;
        leave(others).await?;
        Ok(Self {
            alone: f64::midpoint(before, measure().await?),
            beside,
        })
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.beside / self.alone
    }
}
