//! Many tasks, each with a name of its own: nobody waits for anybody but the service.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{LEASE, Round, close, connect, fresh_name, millis};
use crate::{
    client::{Client, Result},
    engines::Engine,
    peers::Peer,
};

/// Number of tasks at once.
pub(crate) const TASKS: usize = 32;

/// Measures how many cycles of acquire and release are done in a second, by this many clients together.
pub(crate) async fn round(peer: &Peer, engine: &Engine, clients: usize, time: Duration) -> Result<Round> {
    let clients = connect(peer, engine, clients, LEASE).await?;
    cycles(&clients, time).await
}

/// Measures the cycles of all tasks together.
pub(crate) async fn cycles(clients: &[Arc<dyn Client>], time: Duration) -> Result<Round> {
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    for client in clients.iter().cycle().take(TASKS) {
        tasks.spawn(cycle(client.clone(), begun, time));
    }
    let mut round = Round::default();
    while let Some(done) = tasks.join_next().await {
        round.latencies.append(&mut done??);
    }
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let cycles = round.latencies.len() as f64;
    round.more("cycles/s", cycles / begun.elapsed().as_secs_f64());
    close(clients.to_vec()).await;
    Ok(round)
}

async fn cycle(client: Arc<dyn Client>, begun: Instant, time: Duration) -> Result<Vec<f64>> {
    let name = fresh_name();
    let mut latencies = Vec::new();
    while begun.elapsed() < time {
        let before = Instant::now();
        client.acquire(&name).await?.release().await?;
        latencies.push(millis(before.elapsed()));
    }
    Ok(latencies)
}
