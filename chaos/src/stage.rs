//! The cluster and the client processes, and the faults that strike them.

use std::{env, fs, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use futures::future::join_all;
use mongodb::{
    ClientSession,
    bson::{Document, doc},
};
use tokio::{
    process::{Child, Command},
    sync::Mutex,
    time::{Instant, sleep, timeout},
};
use watchlock_testkit::{Cluster, FailPoint, Trouble, signal};

use crate::{
    Result,
    client::Actor,
    clock::now,
    fault::{CLIENTS, Failure, Fault, LOST_MOST, NODES, Network, Node, Which},
    foreign,
    history::HISTORY,
    journal::{Entry, Note, Reach},
    locks::{JOBS, LOCKS},
    record::Log,
    schedule::Planned,
    streams::{self, Stream},
};

/// Maximum time for a fault that needs a server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause before another try of something that met another fault.
const RETRY: Duration = Duration::from_millis(300);

/// Maximum time for the cluster to be whole again.
const RECOVERY: Duration = Duration::from_secs(120);

/// Maximum time for a client to give back its locks and end.
const FAREWELL: Duration = Duration::from_secs(60);

/// The cluster, the clients and the folder of a run.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) database: String,
    pub(crate) folder: PathBuf,
    pub(crate) journal: Log,
    seed: u64,
    ignores_loss: bool,
    clients: Vec<Mutex<Slot>>,
    operator: Arc<Actor>,
}

/// The place of one client: when its process is killed, another takes it.
#[derive(Debug)]
struct Slot {
    child: Option<Child>,
    label: String,
    incarnation: u64,
}

/// The remedy that ends a fault.
#[derive(Debug)]
enum Remedy {
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
    pub(crate) fn new(
        cluster: Cluster,
        database: String,
        folder: PathBuf,
        journal: Log,
        seed: u64,
        ignores_loss: bool,
        operator: Arc<Actor>,
    ) -> Self {
        let slot = |_| {
            Mutex::new(Slot {
                child: None,
                label: String::new(),
                incarnation: 0,
            })
        };
        let clients = (0..CLIENTS).map(slot).collect();
        Self {
            cluster,
            database,
            folder,
            journal,
            seed,
            ignores_loss,
            clients,
            operator,
        }
    }

    pub(crate) fn note(&self, note: Note) {
        self.journal.write(&Entry { at: now(), note });
    }

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
            let history = self.folder.join(format!("{}{HISTORY}", slot.lock().await.label));
            let is_empty = || fs::metadata(&history).map_or(true, |file| file.len() == 0);
            while is_empty() && start.elapsed() < PATIENCE {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn start_client(&self, index: usize) -> Result<()> {
        let mut slot = self.clients[index].lock().await;
        if slot.child.is_some() {
            return Ok(());
        }
        slot.incarnation += 1;
        slot.label = format!("client-{index}.{}", slot.incarnation);
        self.note(Note::Started {
            client: slot.label.clone(),
        });
        let seed = self.seed ^ (u64::try_from(index)? << 32) ^ (slot.incarnation << 48);
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
            .args(["--seed", &seed.to_string(), "--folder"])
            .arg(&self.folder)
            .stdin(Stdio::piped())
            .kill_on_drop(true);
        if self.ignores_loss {
            command.args(["--sabotage", "ignore-loss"]);
        }
        slot.child = Some(command.spawn()?);
        Ok(())
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
                if !matches!(remedy, Remedy::Nothing) {
                    sleep(planned.lasts).await;
                }
                self.remedy(remedy).await;
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
        let database = self.cluster.client().await?.database(&self.database);
        let document = apart(foreign::load(database, name)).await?;
        sleep(planned.lasts).await;
        Ok(Some(document))
    }

    async fn reach(&self, fault: Fault) -> Reach {
        if let Some(client) = fault.victim() {
            let label = self.clients[client].lock().await.label.clone();
            if fault.leaves_a_way() {
                return Reach::Answers(label);
            }
            return Reach::Client(label);
        }
        fault.concerns().map_or(Reach::Everything, Reach::Locks)
    }

    async fn apply(&self, number: usize, planned: Planned, old: Option<Document>) -> Result<Remedy> {
        Ok(match planned.fault {
            Fault::KillNode(node) => {
                let node = self.find(node).await?;
                self.cluster.kill(node);
                Remedy::Restart(node)
            }
            Fault::FreezeNode(node) => {
                let node = self.find(node).await?;
                self.cluster.freeze(node)?;
                Remedy::Thaw(node)
            }
            Fault::ShutDownNode(node) => {
                let node = self.find(node).await?;
                self.cluster.shut_down(node).await?;
                Remedy::Restart(node)
            }
            Fault::StepDown => {
                let primary = self.find(Node::Primary).await?;
                timeout(PATIENCE, self.cluster.step_down(primary, 3)).await??;
                Remedy::Nothing
            }
            Fault::KillClient(client) => {
                let mut slot = self.clients[client].lock().await;
                let mut child = slot.child.take().ok_or("it has been killed already")?;
                self.note(Note::Killed {
                    client: slot.label.clone(),
                });
                child.kill().await?;
                Remedy::Client(client)
            }
            Fault::FreezeClient(client) => {
                let pid = self.client_pid(client).await?;
                tokio::task::spawn_blocking(move || signal::freeze(pid)).await??;
                Remedy::ThawClient(pid)
            }
            Fault::ClientNetwork(client, to, network) => {
                let pid = self.client_pid(client).await?;
                let nodes = match to {
                    Some(node) => vec![self.find(node).await?],
                    None => (0..NODES).collect(),
                };
                self.disturb(nodes.into_iter().map(|node| (node, pid)).collect(), network)?
            }
            Fault::NodeNetwork(from, to, network) => {
                let (from, to) = (self.find(from).await?, self.find(to).await?);
                let pid = self.cluster.pid(from).ok_or("it is not running")?;
                self.disturb(vec![(to, pid)], network)?
            }
            Fault::Isolate(node) => {
                let node = self.find(node).await?;
                let own = self.cluster.pid(node).ok_or("it is not running")?;
                let others = (0..NODES).filter(|other| *other != node);
                let ways = others.flat_map(|other| {
                    let inward = self.cluster.pid(other).map(|pid| (node, pid));
                    [Some((other, own)), inward].into_iter().flatten()
                });
                self.disturb(ways.collect(), Network::BlackHole)?
            }
            Fault::KillCursors => {
                let killed = timeout(PATIENCE, self.kill_cursors()).await??;
                if killed == 0 {
                    return Err("there are none".into());
                }
                Remedy::Nothing
            }
            Fault::DropCollection => {
                let client = self.cluster.client().await?;
                let collection = client.database(&self.database).collection::<Document>(LOCKS);
                timeout(PATIENCE, async move { collection.drop().await }).await??;
                Remedy::Nothing
            }
            Fault::Break(name) => {
                let operator = self.operator.clone();
                timeout(PATIENCE, tokio::spawn(async move { operator.break_lock(name).await })).await???;
                Remedy::Nothing
            }
            Fault::SetClock(node, ahead) => {
                let node = self.find(node).await?;
                self.cluster.set_clock(node, ahead)?;
                Remedy::SetClock(node)
            }
            Fault::Unanswered(client, command, count) => {
                let label = self.clients[client].lock().await.label.clone();
                let data = doc! {
                    "failCommands": [command],
                    "blockConnection": true,
                    "blockTimeMS": i64::try_from(planned.lasts.as_millis())?,
                    "appName": label,
                };
                self.fail_commands(doc! { "times": count }, data).await?
            }
            Fault::LoseConnections(client, which) => {
                let pid = self.client_pid(client).await?;
                let (mut seen, mut left) = (0, LOST_MOST);
                for proxy in (0..NODES).filter_map(|node| self.cluster.network(node)) {
                    proxy.lose(|flow| {
                        let of_kind = flow.origin() == Some(pid)
                            && match which {
                                Which::Carried(command) => flow.has_carried(command),
                                Which::EverySecond => {
                                    seen += 1;
                                    seen % 2 == 0
                                }
                            };
                        let chosen = of_kind && left > 0;
                        left -= u32::from(chosen);
                        chosen
                    });
                }
                if left == LOST_MOST {
                    return Err("there are none".into());
                }
                Remedy::CloseLost(pid)
            }
            Fault::Block(locks) => {
                let client = self.cluster.client().await?;
                let blocked = foreign::block(client, self.database.clone(), locks.names().collect());
                Remedy::Unblock(Box::new(apart(blocked).await?))
            }
            Fault::Refuse(name) => {
                let database = self.cluster.client().await?.database(&self.database);
                apart(foreign::refuse(database, name)).await?;
                Remedy::Allow(foreign::home(name))
            }
            Fault::Unreadable(collection) => {
                let database = self.cluster.client().await?.database(&self.database);
                apart(foreign::insert_unreadable(database, collection, number)).await?;
                Remedy::DeleteUnreadable(collection, number)
            }
            Fault::SaveOld(name) => {
                let database = self.cluster.client().await?.database(&self.database);
                apart(foreign::save(database, name, old.ok_or("nothing was read")?)).await?;
                Remedy::Nothing
            }
            Fault::FailCommand(command, failure) => {
                let mut data = doc! { "failCommands": [command] };
                match failure {
                    Failure::Closed => data.insert("closeConnection", true),
                    Failure::Refused(code) => data.insert("errorCode", code),
                    Failure::WriteConcern(code) => {
                        data.insert("writeConcernError", doc! { "code": code, "errmsg": "chaos" })
                    }
                    Failure::Late(millis) => {
                        data.insert("blockConnection", true);
                        data.insert("blockTimeMS", i64::try_from(millis)?)
                    }
                };
                // A failed command here and there, as one that always fails is only an outage.
                let mode = doc! { "activationProbability": 0.5 };
                self.fail_commands(mode, data).await?
            }
        })
    }

    async fn fail_commands(&self, mode: Document, data: Document) -> Result<Remedy> {
        let up = (0..NODES).filter(|node| self.cluster.pid(*node).is_some());
        let on = up.map(|node| timeout(PATIENCE, self.cluster.fail_commands(node, mode.clone(), data.clone())));
        let points = join_all(on).await.into_iter().flatten().flatten();
        Ok(Remedy::FailPoints(points.collect()))
    }

    fn disturb(&self, ways: Vec<(usize, u32)>, network: Network) -> Result<Remedy> {
        for &(node, pid) in &ways {
            let proxy = self.cluster.network(node).ok_or("there is no proxy")?;
            let trouble = match network {
                Network::BlackHole => Trouble::BlackHole,
                Network::NoReplies => Trouble::BlackHoleReplies,
                Network::Cut | Network::CutOnce => Trouble::Cut,
                Network::Delay(millis) => Trouble::Delay(Duration::from_millis(millis)),
            };
            proxy.trouble(pid, trouble);
            if network == Network::CutOnce {
                proxy.heal_for(pid);
            }
        }
        Ok(Remedy::Ways(ways))
    }

    async fn remedy(&self, remedy: Remedy) {
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
                if let Ok(client) = self.cluster.client().await {
                    let database = client.database(&self.database);
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
        let database = self.cluster.client().await?.database(&self.database);
        apart(foreign::allow(database, collection)).await
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

    /// Returns the change streams that are open on any node.
    pub(crate) async fn streams(&self) -> Result<Vec<Stream>> {
        let mut found = Vec::new();
        for node in (0..NODES).filter(|node| self.cluster.pid(*node).is_some()) {
            let client = self.cluster.node_client(node).await?;
            found.extend(streams::find(&client, node, &self.database).await?);
        }
        Ok(found)
    }

    async fn kill_cursors(&self) -> Result<usize> {
        let streams = self.streams().await?;
        for stream in &streams {
            let client = self.cluster.node_client(stream.node).await?;
            streams::kill(&client, &self.database, stream).await?;
        }
        Ok(streams.len())
    }

    /// Returns the index of the node at this moment.
    async fn find(&self, node: Node) -> Result<usize> {
        let primary = self.cluster.wait_for_primary(Duration::from_secs(3)).await;
        match node {
            Node::Primary => Ok(primary?),
            Node::Other(index) => {
                let others: Vec<usize> = (0..NODES).filter(|node| primary.as_ref().ok() != Some(node)).collect();
                Ok(others[index % others.len()])
            }
        }
    }

    async fn client_pid(&self, client: usize) -> Result<u32> {
        let slot = self.clients[client].lock().await;
        Ok(slot.child.as_ref().and_then(Child::id).ok_or("it has been killed")?)
    }
}

/// Runs a command that needs a server's answer, for up to [`PATIENCE`], and does not drop it then: it is the driver's.
async fn apart<T: Send + 'static>(doing: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    timeout(PATIENCE, tokio::spawn(doing)).await??
}
