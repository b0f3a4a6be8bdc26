//! The cluster and the client processes, and the faults that strike them.

mod apply;
mod clients;

use std::{sync::Arc, time::Duration};

use mongodb::{
    Database,
    bson::{Document, doc},
};
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    client::Actor,
    clock::now,
    fault::{CLIENTS, Fault, NODES},
    foreign,
    journal::{Entry, Note, Reach},
    locks::{JOBS, LOCKS},
    record::Log,
    schedule::{Planned, Play},
    streams::{self, Stream},
};

use clients::Slot;

/// Maximum time for a fault that needs a server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time for the cluster to be whole again.
const RECOVERY: Duration = Duration::from_secs(120);

/// The cluster, the clients and the settings of a run.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) database: String,
    pub(crate) journal: Log,
    pub(crate) play: Play,
    clients: Vec<Mutex<Slot>>,
    operator: Arc<Actor>,
}

impl Stage {
    pub(crate) fn new(cluster: Cluster, database: String, journal: Log, play: Play, operator: Arc<Actor>) -> Self {
        let clients = (0..CLIENTS).map(|_| Mutex::default()).collect();
        Self {
            cluster,
            database,
            journal,
            play,
            clients,
            operator,
        }
    }

    pub(crate) fn note(&self, note: Note) {
        self.journal.write(&Entry { at: now(), note });
    }

    /// Starts a fault, lets it last, and ends it.
    pub(crate) async fn inflict(&self, fault: usize, planned: Planned) {
        sleep(planned.after).await;
        let prepared = self.prepare(planned).await;
        self.note(Note::Began {
            fault,
            kind: planned.fault.kind().to_owned(),
            text: planned.fault.to_string(),
            takes: planned.fault.takes(),
            reach: self.reach(planned.fault).await,
        });
        let remedy = match prepared {
            Ok(old) => self.apply(fault, planned, old).await,
            Err(error) => Err(error),
        };
        match remedy {
            Ok(remedy) => {
                if let Some(remedy) = remedy {
                    sleep(planned.lasts).await;
                    remedy.await;
                }
                self.note(Note::Over { fault });
            }
            Err(error) => self.note(Note::Missed {
                fault,
                why: error.to_string(),
            }),
        }
    }

    /// Does the harmless first part of a fault: an old document is old before it is saved.
    async fn prepare(&self, planned: Planned) -> Result<Option<Document>> {
        let Fault::SaveOld(name) = planned.fault else {
            return Ok(None);
        };
        let document = apart(foreign::load(self.database().await?, name)).await?;
        sleep(planned.lasts).await;
        Ok(Some(document))
    }

    async fn reach(&self, fault: Fault) -> Reach {
        if let Some(client) = fault.victim() {
            let label = self.label(client).await;
            if fault.leaves_a_way() {
                return Reach::Answers(label);
            }
            return Reach::Client(label);
        }
        fault.concerns().map_or(Reach::Everything, Reach::Locks)
    }

    /// Undoes the rest of the faults, and waits until the cluster is whole and every client there.
    pub(crate) async fn make_whole(&self) -> Result<()> {
        for node in 0..NODES {
            if let Some(proxy) = self.cluster.network(node) {
                proxy.heal();
            }
            // Without clocks of their own there was nothing to set.
            let _ = self.cluster.set_clock(node, 0);
            if self.cluster.pid(node).is_some() {
                self.cluster.thaw(node)?;
            } else {
                self.cluster.restart(node).await?;
            }
            // It may have been frozen when it was to be switched off.
            let client = self.cluster.node_client(node).await?;
            client
                .database("admin")
                .run_command(doc! { "configureFailPoint": "failCommand", "mode": "off" })
                .await?;
        }
        self.fill().await?;
        self.cluster.wait_until_ready(RECOVERY).await?;
        for collection in [LOCKS, JOBS] {
            // After a drop there may be none.
            let _ = self.allow(collection).await;
        }
        self.note(Note::Whole);
        Ok(())
    }

    async fn allow(&self, collection: &'static str) -> Result<()> {
        apart(foreign::allow(self.database().await?, collection)).await
    }

    async fn database(&self) -> Result<Database> {
        Ok(self.cluster.client().await?.database(&self.database))
    }

    /// Returns the change streams that are open on any node.
    pub(crate) async fn streams(&self) -> Result<Vec<Stream>> {
        let mut found = Vec::new();
        for node in (0..NODES).filter(|node| self.cluster.pid(*node).is_some()) {
            let client = self.cluster.node_client(node).await?;
            found.extend(streams::find(&client, node, &self.database).await?);
        }
        Ok(found)
    }
}

/// Runs a command that needs a server's answer, for up to [`PATIENCE`], and does not drop it then: it is the driver's.
async fn apart<T: Send + 'static>(doing: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    timeout(PATIENCE, tokio::spawn(doing)).await??
}
