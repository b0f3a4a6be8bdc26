//! A process that holds several locks is killed, and those who wait take over.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines, stdin},
    process::{ChildStdout, Command},
    time,
};

use super::{Round, close, fresh_name, millis};
use crate::{
    client::Result,
    engines::Engine,
    peers::{Death, Peer},
    statistics,
};

/// Lease here: short enough to wait for, and the sessions of ZooKeeper can be no shorter than 4 s.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// Maximum time until the take-over.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum time until the holder holds.
const STARTING: Duration = Duration::from_secs(20);

/// Argument by which this program plays the holder.
pub(crate) const HOLD: &str = "hold";

/// Number of locks of the holder: that many take-overs are measured at once.
const LOCKS: usize = 10;

/// Time for which everybody waits before the kill.
const SETTLING: Duration = Duration::from_millis(300);

/// Measures the time by which the waiters get the locks later than the death allows: beyond the lease, or beyond the
/// kill where a lock ends with its connection.
pub(crate) async fn round(peer: &Peer, engine: &Engine) -> Result<Round> {
    match peer.death {
        Death::Lease | Death::Connection => {}
        Death::Never => return Err("never: its locks have no lease".into()),
        Death::Together => return Err("the holder is no process of its own".into()),
    }
    let prefix = fresh_name();
    let mut holder = Command::new(std::env::current_exe()?)
        .args([HOLD, peer.id, &engine.address, &prefix])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let waiter = peer.connect(&engine.address, LEASE).await?;
    let mut said = BufReader::new(holder.stdout.take().ok_or("the holder has no output")?).lines();
    let mut begun = [None; LOCKS];
    time::timeout(STARTING, async {
        for _ in 0..LOCKS {
            let lock = heard(&mut said).await?;
            *begun.get_mut(lock).ok_or("the holder has another lock")? = Some(Instant::now());
        }
        Result::Ok(())
    })
    .await??;
    let takes = (0..LOCKS).map(|lock| {
        let acquire = waiter.acquire(&name(&prefix, lock));
        tokio::spawn(async move {
            let held = time::timeout(PATIENCE, acquire).await??;
            let taken_over = Instant::now();
            held.release().await?;
            Result::Ok(taken_over)
        })
    });
    let takes: Vec<_> = takes.collect();
    time::sleep(SETTLING).await;
    let killed = Instant::now();
    holder.kill().await?;
    let mut round = Round::default();
    let mut after_kill = Vec::new();
    for (taken, begun) in try_join_all(takes).await?.into_iter().zip(begun) {
        let (taken, begun) = (taken?, begun.ok_or("a lock was never held")?);
        round.latencies.push(match peer.death {
            Death::Connection => beyond(taken, killed, Duration::ZERO),
            _ => beyond(taken, begun, LEASE),
        });
        after_kill.push(beyond(taken, killed, Duration::ZERO));
    }
    close(vec![waiter]).await;
    round.less("kill to take-over, ms", statistics::median(&after_kill));
    Ok(round)
}

/// Returns the milliseconds from the end of this time to `at`, less than nothing if `at` is earlier.
fn beyond(at: Instant, since: Instant, time: Duration) -> f64 {
    let passed = at.checked_duration_since(since).map(millis);
    passed.unwrap_or_else(|| -millis(since.saturating_duration_since(at))) - millis(time)
}

fn name(prefix: &str, lock: usize) -> String {
    format!("{prefix}-{lock}")
}

/// Reads the number of a lock that the holder has got.
async fn heard(said: &mut Lines<BufReader<ChildStdout>>) -> Result<usize> {
    let line = said.next_line().await?.ok_or("the holder has ended")?;
    line.parse().map_err(|_| format!("the holder said `{line}`").into())
}

/// Plays the holder: acquires, says so, and holds until its input ends.
pub(crate) async fn hold(peer: &Peer, address: &str, prefix: &str) -> Result<()> {
    let client = peer.connect(address, LEASE).await?;
    // This makes the connections: no lock of those that count is held for longer than its holder says.
    client.acquire(&name(prefix, LOCKS)).await?.release().await?;
    let mut held = Vec::new();
    for lock in 0..LOCKS {
        held.push(client.acquire(&name(prefix, lock)).await?);
        println!("{lock}");
    }
    stdin().read_to_end(&mut Vec::new()).await?;
    for held in held {
        held.release().await?;
    }
    client.close().await;
    Ok(())
}
