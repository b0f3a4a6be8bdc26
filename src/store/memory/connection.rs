//! Faults in memory: an outage for all clients, and a client whose commands are not answered.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use crate::error::{ServerError, own::Own};

/// Maximum time for which a command waits for an answer: then a driver gives up too, and nothing of it is done later.
const UNANSWERED_FOR: Duration = Duration::from_secs(30);

/// A client's connection to memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    /// Whether there is an outage; shared by all clients of one [`InMemory`](crate::testing::InMemory).
    outage: Arc<watch::Sender<bool>>,
    /// Whether the client's commands get no answer.
    frozen: Arc<watch::Sender<bool>>,
}

impl Connection {
    /// Returns the connection of another client with the same outages.
    pub(crate) fn of_another_client(&self) -> Self {
        Self {
            outage: self.outage.clone(),
            frozen: Arc::default(),
        }
    }

    /// Reports whether both have the same outages.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.outage, &other.outage)
    }

    pub(crate) fn set_outage(&self, outage: bool) {
        self.outage.send_replace(outage);
    }

    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Waits while the client is frozen, and fails during an outage.
    pub(in crate::store) async fn reach(&self) -> Result<(), ServerError> {
        let thawed = timeout(UNANSWERED_FOR, until(&self.frozen, false)).await;
        thawed.map_err(|_| ServerError::unanswered(UNANSWERED_FOR))?;
        match *self.outage.borrow() {
            false => Ok(()),
            true => Err(Own::Outage.into()),
        }
    }

    /// Waits until there is a fault.
    pub(super) async fn disturbed(&self) {
        tokio::select! {
            () = until(&self.frozen, true) => {}
            () = until(&self.outage, true) => {}
        }
    }
}

async fn until(state: &watch::Sender<bool>, wanted: bool) {
    // It lasts as long as the connection.
    let _ = state.subscribe().wait_for(|present| *present == wanted).await;
}
