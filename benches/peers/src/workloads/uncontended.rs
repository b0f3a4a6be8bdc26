//! Nobody else wants the lock: one client acquires and releases it, again and again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{LEASE, Round, close, connect, fresh_name, millis};
use crate::{
    client::{Client, Result},
    engines::Engine,
    peers::Peer,
};

/// Number of cycles before any is measured: connections and plans are made then.
const WARM_UP: usize = 20;

/// Maximum number of cycles of a round: their quantiles move no more.
const MOST: usize = 2_000;

/// Measures acquire and release together, of one name or each time of another.
pub(crate) async fn round(peer: &Peer, engine: &Engine, fresh: bool, time: Duration) -> Result<Round> {
    let mut clients = connect(peer, engine, 1, LEASE).await?;
    cycles(clients.pop().ok_or("one client was asked for")?, fresh, time).await
}

/// Measures the cycles of a client, one after the other.
pub(crate) async fn cycles(client: Arc<dyn Client>, fresh: bool, time: Duration) -> Result<Round> {
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
    close(vec![client]).await;
    Ok(round)
}
