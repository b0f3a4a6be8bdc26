//! Nobody else wants the lock: one client acquires and releases it, again and again.

use std::time::{Duration, Instant};

use super::{LEASE, Round, close, connect, fresh_name, millis};
use crate::{client::Result, engines::Engine, peers::Peer};

/// Number of cycles before any is measured: connections and plans are made then.
const WARM_UP: usize = 20;

/// Maximum number of cycles of a round: their quantiles move no more.
const MOST: usize = 2_000;

/// Measures acquire and release together, of one name or each time of another.
pub(crate) async fn round(peer: &Peer, engine: &Engine, fresh: bool, time: Duration) -> Result<Round> {
    let clients = connect(peer, engine, 1, LEASE).await?;
    let [client] = clients.as_slice() else {
        return Err("one client was asked for".into());
    };
    let known = fresh_name();
    let mut round = Round::default();
    let begun = Instant::now();
    let mut cycles = 0;
    while begun.elapsed() < time && round.latencies.len() < MOST {
        let name = if fresh { fresh_name() } else { known.clone() };
        let before = Instant::now();
        client.acquire(&name).await?.release().await?;
        cycles += 1;
        if cycles > WARM_UP {
            round.latencies.push(millis(before.elapsed()));
        }
    }
    close(clients).await;
    Ok(round)
}
