//! The cost of waiting: clients wait for a lock that is held for long, and somebody else writes meanwhile.

use std::time::{Duration, Instant};

use tokio::{task::JoinSet, time};

use super::{
    LEASE, Round, close, connect,
    cost::{self, Cost},
    fresh_name, millis,
};
use crate::{
    client::Result,
    engines::{Engine, ForeignWrite},
    peers::Peer,
    statistics,
};

/// Number of clients over which the waiters are spread.
pub(crate) const CLIENTS: usize = 8;

/// Time until everybody waits and the pauses between tries are what they become.
const SETTLING: Duration = Duration::from_secs(2);

/// Number of waiters whose connections alone take longer than that.
const MANY: usize = 500;

/// Pause between two foreign writes, as one after the other would be answered together.
const PAUSE: Duration = Duration::from_millis(2);

/// Processor time of the waiting alone, in each second, from which that of some writes beside it can't be told any
/// more.
const BUSY: f64 = 0.1;

/// Maximum time for all waiters to get the lock and to leave.
const LEAVING: Duration = Duration::from_secs(30);

/// Measures commands and processor time of the server while `waiters` wait, and those of a foreign write; what the same
/// server takes while nobody waits is taken off.
pub(crate) async fn round(peer: &Peer, engine: &Engine, waiters: usize, time: Duration) -> Result<Round> {
    let Some(mut write) = engine.foreign_writer().await? else {
        return Err("there is no server".into());
    };
    // This makes the connections and the place.
    write(0).await?;
    let alone = cost::of(engine, time / 3).await?;
    let (write_alone, latencies_alone) = writes(engine, &mut write, time / 3, &alone).await?;

    let holder = peer.connect(&engine.address, LEASE).await?;
    let name = fresh_name();
    let held = holder.acquire(&name).await?;
    let clients = connect(peer, engine, CLIENTS, LEASE).await?;
    let mut waiting = JoinSet::new();
    for client in clients.iter().cycle().take(waiters) {
        let acquire = client.acquire(&name);
        waiting.spawn(async move { acquire.await?.release().await });
    }
    time::sleep(if waiters >= MANY { 5 * SETTLING } else { SETTLING }).await;
    let beside = cost::of(engine, time).await?;
    let (write_beside, latencies) = writes(engine, &mut write, time, &beside).await?;
    if let Some(ended) = waiting.try_join_next() {
        ended??;
        return Err("somebody did not wait".into());
    }
    held.release().await?;
    let leaving = time::timeout(LEAVING, async { while waiting.join_next().await.is_some() {} });
    if leaving.await.is_err() {
        waiting.shutdown().await;
    }
    close(clients).await;
    close(vec![holder]).await;

    let mut round = Round::default();
    if let (Some(alone), Some(beside)) = (alone.commands, beside.commands) {
        round.less("commands/s", (beside - alone).max(0.0));
    }
    if let (Some(alone), Some(beside)) = (alone.bytes, beside.bytes) {
        round.less("KiB/s", (beside - alone).max(0.0) / 1024.0);
    }
    round.less("server, ms of CPU/s", (beside.server - alone.server).max(0.0) * 1e3);
    for (name, cost, idle) in [
        ("foreign write, us of CPU", write_beside, &beside),
        ("the same alone, us of CPU", write_alone, &alone),
    ] {
        if cost > 0.0 && idle.server < BUSY {
            round.less(name, cost);
        }
    }
    round.less("foreign write, p50 ms", statistics::median(&latencies));
    round.less("the same alone, p50 ms", statistics::median(&latencies_alone));
    Ok(round)
}

/// Writes for some time, and returns the processor time of one write in microseconds, without what the server takes
/// anyhow, and the latencies in milliseconds.
async fn writes(engine: &Engine, write: &mut ForeignWrite, time: Duration, idle: &Cost) -> Result<(f64, Vec<f64>)> {
    let mut latencies = Vec::new();
    let (before, begun) = (engine.processor_time()?.unwrap_or_default(), Instant::now());
    for number in 0.. {
        if begun.elapsed() >= time {
            break;
        }
        let sent = Instant::now();
        write(number).await?;
        latencies.push(millis(sent.elapsed()));
        time::sleep(PAUSE).await;
    }
    let taken = engine.processor_time()?.unwrap_or_default() - before;
    let taken = taken.as_secs_f64() - idle.server * begun.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let count = latencies.len().max(1) as f64;
    Ok((taken * 1e6 / count, latencies))
}
