//! The end of each fault.

use std::time::Duration;

use futures::future::join_all;
use mongodb::ClientSession;
use tokio::time::{Instant, sleep, timeout};
use watchlock_testkit::{FailPoint, signal};

use super::{PATIENCE, RECOVERY, Stage, apart};
use crate::{fault::NODES, foreign, journal::Note};

/// Pause before another try of something that met another fault.
const RETRY: Duration = Duration::from_millis(300);

/// The remedy that ends a fault.
#[derive(Debug)]
pub(super) enum Remedy {
    Nothing,
    Restart(usize),
    Thaw(usize),
    Client(usize),
    ThawClient(u32),
    /// The ways from a process to nodes.
    Ways(Vec<(usize, u32)>),
    FailPoints(Vec<FailPoint>),
    SetClock(usize),
    /// The connections of a process that were lost.
    CloseLost(u32),
    Unblock(Box<ClientSession>),
    /// The collection.
    Allow(&'static str),
    /// The collection, and the number of the document.
    DeleteUnreadable(&'static str, usize),
}

impl Stage {
    /// Ends a fault.
    pub(super) async fn remedy(&self, remedy: Remedy) {
        // A later end of a fault, or the repair of the whole cluster, makes up for a failure here.
        match remedy {
            Remedy::Nothing => {}
            Remedy::Restart(node) => drop(self.cluster.restart(node).await),
            Remedy::Thaw(node) => drop(self.cluster.thaw(node)),
            Remedy::Client(client) => {
                if let Err(error) = self.start_client(client).await {
                    self.note(Note::Trouble {
                        text: error.to_string(),
                    });
                }
            }
            Remedy::ThawClient(pid) => {
                let _ = tokio::task::spawn_blocking(move || signal::thaw(pid)).await;
            }
            Remedy::Ways(ways) => {
                for (node, pid) in ways {
                    if let Some(proxy) = self.cluster.network(node) {
                        proxy.heal_for(pid);
                    }
                }
            }
            Remedy::SetClock(node) => drop(self.cluster.set_clock(node, 0)),
            Remedy::CloseLost(pid) => {
                for proxy in (0..NODES).filter_map(|node| self.cluster.network(node)) {
                    proxy.close_lost(|flow| flow.origin() == Some(pid));
                }
            }
            // Where the primary has changed, the transaction has gone with it.
            Remedy::Unblock(session) => drop(apart(foreign::unblock(*session)).await),
            Remedy::Allow(collection) => {
                // A transaction may be in the way, for as long as a fault lasts at most.
                let start = Instant::now();
                while self.allow(collection).await.is_err() && start.elapsed() < RECOVERY {
                    sleep(RETRY).await;
                }
            }
            Remedy::DeleteUnreadable(collection, number) => {
                if let Ok(database) = self.database().await {
                    let _ = apart(foreign::delete_unreadable(database, collection, number)).await;
                }
            }
            Remedy::FailPoints(points) => {
                // A frozen node does not hear of it; see `make_whole`.
                let off = points.into_iter().map(|point| timeout(PATIENCE, point.off()));
                let _ = join_all(off).await;
            }
        }
    }
}
