//! The workloads, each defined once for all peers.

pub(crate) mod allocations;
mod cost;
pub(crate) mod crash;
pub(crate) mod crowd;
pub(crate) mod distinct;
pub(crate) mod ghosts;
pub(crate) mod held;
pub(crate) mod idle;
pub(crate) mod lost;
pub(crate) mod raw;
pub(crate) mod uncontended;

use std::{sync::Arc, time::Duration};

use futures::future::{join_all, try_join_all};
use uuid::Uuid;

use crate::{
    client::{Client, Result},
    engines::Engine,
    peers::Peer,
};

/// Lease of the workloads in which nobody dies, which is the default of ours and of the .NET library.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Which of two numbers is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Less,
    More,
}

/// The outcome of one round of one workload by one peer.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// Latencies in milliseconds.
    pub(crate) latencies: Vec<f64>,
    pub(crate) numbers: Vec<Number>,
}

/// A number other than a quantile of the latencies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) better: Better,
}

impl Round {
    fn less(&mut self, name: &'static str, value: f64) {
        self.numbers.push(Number {
            name,
            value,
            better: Better::Less,
        });
    }

    fn more(&mut self, name: &'static str, value: f64) {
        self.numbers.push(Number {
            name,
            value,
            better: Better::More,
        });
    }
}

/// Returns a name that was never used.
fn fresh_name() -> String {
    format!("bench-{}", Uuid::new_v4().simple())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

async fn connect(peer: &Peer, engine: &Engine, count: usize, lease: Duration) -> Result<Vec<Arc<dyn Client>>> {
    try_join_all((0..count).map(|_| peer.connect(&engine.address, lease))).await
}

async fn close(clients: Vec<Arc<dyn Client>>) {
    join_all(clients.iter().map(|client| client.close())).await;
}
