//! The holder is killed, and somebody who waits takes over.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, stdin},
    process::Command,
    time,
};

use super::{Round, close, fresh_name, millis};
use crate::{
    client::Result,
    engines::Engine,
    peers::{Death, Peer},
};

/// Lease here: short enough to wait for, and the sessions of ZooKeeper can be no shorter than 4 s.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// Maximum time until the take-over.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum time until the holder holds.
const STARTING: Duration = Duration::from_secs(20);

/// Argument by which this program plays the holder.
pub(crate) const HOLD: &str = "hold";

/// Word of the holder, when it holds.
const HELD: &str = "held";

/// Measures the time from the kill until the waiter has the lock, and the part of it that is beyond the lease.
pub(crate) async fn round(peer: &Peer, engine: &Engine) -> Result<Round> {
    let lease = match peer.death {
        Death::Lease => LEASE,
        Death::Connection => Duration::ZERO,
        Death::Never => return Err("never: its locks have no lease".into()),
        Death::Together => return Err("the holder is no process of its own".into()),
    };
    let name = fresh_name();
    let mut holder = Command::new(std::env::current_exe()?)
        .args([HOLD, peer.id, &engine.address, &name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let waiter = peer.connect(&engine.address, LEASE).await?;
    let mut word = String::new();
    let mut said = BufReader::new(holder.stdout.take().ok_or("the holder has no output")?);
    time::timeout(STARTING, said.read_line(&mut word)).await??;
    let begun = Instant::now();
    if word.trim() != HELD {
        return Err(format!("the holder said `{}`", word.trim()).into());
    }
    let acquire = tokio::spawn(waiter.acquire(&name));
    let killed = Instant::now();
    holder.kill().await?;
    let held = time::timeout(PATIENCE, acquire).await???;
    let taken_over = Instant::now();
    held.release().await?;
    close(vec![waiter]).await;
    let mut round = Round::default();
    round.less("kill to take-over, ms", millis(taken_over - killed));
    let whole = millis(taken_over - begun);
    round.less("beyond the lease, ms", whole - millis(lease));
    Ok(round)
}

/// Plays the holder: acquires, says so, and holds until its input ends.
pub(crate) async fn hold(peer: &Peer, address: &str, name: &str) -> Result<()> {
    let client = peer.connect(address, LEASE).await?;
    let held = client.acquire(name).await?;
    println!("{HELD}");
    stdin().read_to_end(&mut Vec::new()).await?;
    held.release().await?;
    client.close().await;
    Ok(())
}
