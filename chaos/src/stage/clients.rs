//! The client processes: one at a time in each place.

use std::{env, fs, process::Stdio, time::Duration};

use futures::future::join_all;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{PATIENCE, Stage};
use crate::{Result, history::HISTORY, journal::Note};

/// Maximum time for a client to give back its locks and end.
const FAREWELL: Duration = Duration::from_secs(60);

/// The place of one client: when its process is killed, another takes it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    child: Option<Child>,
    label: String,
    incarnation: u64,
}

impl Stage {
    /// Starts a process for every place that has none.
    pub(crate) async fn fill(&self) -> Result<()> {
        for index in 0..self.clients.len() {
            self.start_client(index).await?;
        }
        Ok(())
    }

    /// Waits until every client has written its first line; in vain if a fault prevents that.
    pub(crate) async fn await_clients(&self) {
        let start = Instant::now();
        for slot in &self.clients {
            let history = self.play.folder.join(format!("{}{HISTORY}", slot.lock().await.label));
            let is_empty = || fs::metadata(&history).map_or(true, |file| file.len() == 0);
            while is_empty() && start.elapsed() < PATIENCE {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    pub(super) async fn start_client(&self, index: usize) -> Result<()> {
        let mut slot = self.clients[index].lock().await;
        if slot.child.is_some() {
            return Ok(());
        }
        slot.incarnation += 1;
        slot.label = format!("client-{index}.{}", slot.incarnation);
        self.note(Note::Started {
            client: slot.label.clone(),
        });
        let seed = self.play.seed ^ (u64::try_from(index)? << 32) ^ (slot.incarnation << 48);
        let mut command = Command::new(env::current_exe()?);
        command
            .arg("client")
            .args([
                "--uri",
                &self.cluster.uri(),
                "--database",
                &self.database,
                "--label",
                &slot.label,
            ])
            .args(["--seed", &seed.to_string(), "--history"])
            .arg(self.play.folder.join(format!("{}{HISTORY}", slot.label)))
            .stdin(Stdio::piped())
            .kill_on_drop(true);
        if self.play.ignores_loss {
            command.arg("--ignores-loss");
        }
        if self.play.soaks {
            command.arg("--soaks");
        }
        slot.child = Some(command.spawn()?);
        Ok(())
    }

    /// Kills the process of a client, whose place stays empty until [`start_client`](Self::start_client).
    pub(super) async fn kill_client(&self, client: usize) -> Result<()> {
        let mut slot = self.clients[client].lock().await;
        let mut child = slot.child.take().ok_or("it has been killed already")?;
        self.note(Note::Killed {
            client: slot.label.clone(),
        });
        child.kill().await?;
        Ok(())
    }

    /// Asks every client to give back its locks and to end, and waits for that.
    pub(crate) async fn dismiss(&self) -> Result<()> {
        let farewells = self.clients.iter().map(async |slot| -> Result<()> {
            let mut slot = slot.lock().await;
            let Some(mut child) = slot.child.take() else {
                return Ok(());
            };
            drop(child.stdin.take());
            let problem = match timeout(FAREWELL, child.wait()).await {
                Ok(status) => Some(status?)
                    .filter(|status| !status.success())
                    .map(|status| status.to_string()),
                Err(_) => {
                    child.kill().await?;
                    Some(format!("it did not end within {FAREWELL:?}"))
                }
            };
            self.note(Note::Dismissed {
                client: slot.label.clone(),
                problem,
            });
            Ok(())
        });
        join_all(farewells).await.into_iter().collect()
    }

    /// Returns the name by which the servers and the histories know the present process of a client.
    pub(super) async fn label(&self, client: usize) -> String {
        self.clients[client].lock().await.label.clone()
    }

    pub(super) async fn client_pid(&self, client: usize) -> Result<u32> {
        let slot = self.clients[client].lock().await;
        Ok(slot.child.as_ref().and_then(Child::id).ok_or("it has been killed")?)
    }
}
