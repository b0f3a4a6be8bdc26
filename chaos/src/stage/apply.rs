//! The beginning of each fault, and its end.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep, timeout};
use watchlock_testkit::{FailPoint, Trouble, signal};

use super::{PATIENCE, RECOVERY, Stage, apart};
use crate::{
    Result,
    fault::{Failure, Fault, LOST_MOST, Locks, NODES, Network, Node, Which},
    foreign,
    journal::Note,
    locks::LOCKS,
    schedule::Planned,
    streams,
};

/// Pause before another try of something that met another fault.
const RETRY: Duration = Duration::from_millis(300);

/// The end of a fault; none where it is over by itself. A later end of a fault, or the repair of the whole cluster, makes up
/// for a failure of it.
pub(super) type Remedy<'a> = Option<BoxFuture<'a, ()>>;

fn ended_by<'a, T>(end: impl Future<Output = T> + Send + 'a) -> Result<Remedy<'a>> {
    Ok(Some(Box::pin(async move { drop(end.await) })))
}

impl Stage {
    /// Begins a fault, and returns the remedy that ends it. `number` distinguishes it from others of its kind, and
    /// `old` is the document that was read for it.
    pub(super) async fn apply(&self, number: usize, planned: Planned, old: Option<Document>) -> Result<Remedy<'_>> {
        match planned.fault {
            Fault::KillNode(node) => self.kill_node(node).await,
            Fault::FreezeNode(node) => self.freeze_node(node).await,
            Fault::ShutDownNode(node) => self.shut_down_node(node).await,
            Fault::StepDown => self.step_down().await,
            Fault::SetClock(node, ahead) => self.set_clock(node, ahead).await,
            Fault::KillClient(client) => {
                self.kill_client(client).await?;
                ended_by(async move {
                    if let Err(error) = self.start_client(client).await {
                        let text = error.to_string();
                        self.note(Note::Trouble { text });
                    }
                })
            }
            Fault::FreezeClient(client) => self.freeze_client(client).await,
            Fault::ClientNetwork(client, to, network) => self.disturb_client(client, to, network).await,
            Fault::NodeNetwork(from, to, network) => self.disturb_node(from, to, network).await,
            Fault::Isolate(node) => self.isolate(node).await,
            Fault::LoseConnections(client, which) => self.lose_connections(client, which).await,
            Fault::FailCommand(command, failure) => self.fail_command(command, failure).await,
            Fault::Unanswered(client, command, count) => {
                self.leave_unanswered(client, command, count, planned.lasts).await
            }
            Fault::KillCursors => self.kill_cursors().await,
            Fault::DropCollection => self.drop_collection().await,
            Fault::Break(name) => self.break_lock(name).await,
            Fault::Block(locks) => self.block(locks).await,
            Fault::Refuse(name) => self.refuse(name).await,
            Fault::Unreadable(collection) => self.insert_unreadable(collection, number).await,
            Fault::SaveOld(name) => self.save_old(name, old).await,
        }
    }
}

/// Faults of nodes.
impl Stage {
    async fn kill_node(&self, node: Node) -> Result<Remedy<'_>> {
        let node = self.find(node).await?;
        self.cluster.kill(node);
        ended_by(self.cluster.restart(node))
    }

    async fn freeze_node(&self, node: Node) -> Result<Remedy<'_>> {
        let node = self.find(node).await?;
        self.cluster.freeze(node)?;
        ended_by(async move { self.cluster.thaw(node) })
    }

    async fn shut_down_node(&self, node: Node) -> Result<Remedy<'_>> {
        let node = self.find(node).await?;
        self.cluster.shut_down(node).await?;
        ended_by(self.cluster.restart(node))
    }

    async fn step_down(&self) -> Result<Remedy<'_>> {
        let primary = self.find(Node::Primary).await?;
        timeout(PATIENCE, self.cluster.step_down(primary, 3)).await??;
        Ok(None)
    }

    async fn set_clock(&self, node: Node, ahead: i64) -> Result<Remedy<'_>> {
        let node = self.find(node).await?;
        self.cluster.set_clock(node, ahead)?;
        ended_by(async move { self.cluster.set_clock(node, 0) })
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
}

/// Faults of clients, and of the ways between processes.
impl Stage {
    async fn freeze_client(&self, client: usize) -> Result<Remedy<'_>> {
        let pid = self.client_pid(client).await?;
        tokio::task::spawn_blocking(move || signal::freeze(pid)).await??;
        ended_by(async move { tokio::task::spawn_blocking(move || signal::thaw(pid)).await })
    }

    async fn disturb_client(&self, client: usize, to: Option<Node>, network: Network) -> Result<Remedy<'_>> {
        let pid = self.client_pid(client).await?;
        let nodes = match to {
            Some(node) => vec![self.find(node).await?],
            None => (0..NODES).collect(),
        };
        self.disturb(nodes.into_iter().map(|node| (node, pid)).collect(), network)
    }

    async fn disturb_node(&self, from: Node, to: Node, network: Network) -> Result<Remedy<'_>> {
        let (from, to) = (self.find(from).await?, self.find(to).await?);
        let pid = self.cluster.pid(from).ok_or("it is not running")?;
        self.disturb(vec![(to, pid)], network)
    }

    /// Cuts a node off from the others, both ways.
    async fn isolate(&self, node: Node) -> Result<Remedy<'_>> {
        let node = self.find(node).await?;
        let own = self.cluster.pid(node).ok_or("it is not running")?;
        let others = (0..NODES).filter(|other| *other != node);
        let ways = others.flat_map(|other| {
            let inward = self.cluster.pid(other).map(|pid| (node, pid));
            [Some((other, own)), inward].into_iter().flatten()
        });
        self.disturb(ways.collect(), Network::BlackHole)
    }

    /// Disturbs the ways to nodes from processes.
    fn disturb(&self, ways: Vec<(usize, u32)>, network: Network) -> Result<Remedy<'_>> {
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
        ended_by(async move {
            for (node, pid) in ways {
                self.cluster.network(node).inspect(|proxy| proxy.heal_for(pid));
            }
        })
    }

    /// Has open connections of a client swallow everything, up to [`LOST_MOST`] of them.
    async fn lose_connections(&self, client: usize, which: Which) -> Result<Remedy<'_>> {
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
        ended_by(async move {
            for proxy in (0..NODES).filter_map(|node| self.cluster.network(node)) {
                proxy.close_lost(|flow| flow.origin() == Some(pid));
            }
        })
    }
}

/// Faults of commands and of change streams.
impl Stage {
    /// Has about half of the commands of that name fail, on every node.
    async fn fail_command(&self, command: &str, failure: Failure) -> Result<Remedy<'_>> {
        let mut data = doc! { "failCommands": [command] };
        match failure {
            Failure::Closed => data.insert("closeConnection", true),
            Failure::Refused(code) => data.insert("errorCode", code),
            Failure::WriteConcern(code) => data.insert("writeConcernError", doc! { "code": code, "errmsg": "chaos" }),
            Failure::Late(millis) => {
                data.insert("blockConnection", true);
                data.insert("blockTimeMS", i64::try_from(millis)?)
            }
        };
        // A failed command here and there, as one that always fails is only an outage.
        let mode = doc! { "activationProbability": 0.5 };
        self.fail_commands(mode, data).await
    }

    /// Has the servers hold some commands of a client for as long as the fault lasts.
    async fn leave_unanswered(&self, client: usize, command: &str, count: u32, lasts: Duration) -> Result<Remedy<'_>> {
        let label = self.label(client).await;
        let data = doc! {
            "failCommands": [command],
            "blockConnection": true,
            "blockTimeMS": i64::try_from(lasts.as_millis())?,
            "appName": label,
        };
        self.fail_commands(doc! { "times": count }, data).await
    }

    /// Sets a fail point on every node that is up.
    async fn fail_commands(&self, mode: Document, data: Document) -> Result<Remedy<'_>> {
        let up = (0..NODES).filter(|node| self.cluster.pid(*node).is_some());
        let on = up.map(|node| timeout(PATIENCE, self.cluster.fail_commands(node, mode.clone(), data.clone())));
        let points: Vec<FailPoint> = join_all(on).await.into_iter().flatten().flatten().collect();
        // A frozen node does not hear of it; see `make_whole`.
        ended_by(async move { join_all(points.into_iter().map(|point| timeout(PATIENCE, point.off()))).await })
    }

    async fn kill_cursors(&self) -> Result<Remedy<'_>> {
        let killed = timeout(PATIENCE, self.kill_streams()).await??;
        if killed == 0 {
            return Err("there are none".into());
        }
        self.note(Note::CursorsKilled { streams: killed });
        Ok(None)
    }

    /// Kills all change streams, and returns their number.
    async fn kill_streams(&self) -> Result<usize> {
        let streams = self.streams().await?;
        for stream in &streams {
            let client = self.cluster.node_client(stream.node).await?;
            streams::kill(&client, &self.database, stream).await?;
        }
        Ok(streams.len())
    }
}

/// Faults of the locks' documents: foreign programs write them, and an operator.
impl Stage {
    async fn drop_collection(&self) -> Result<Remedy<'_>> {
        let collection = self.database().await?.collection::<Document>(LOCKS);
        timeout(PATIENCE, async move { collection.drop().await }).await??;
        Ok(None)
    }

    async fn break_lock(&self, name: &'static str) -> Result<Remedy<'_>> {
        let operator = self.operator.clone();
        timeout(PATIENCE, tokio::spawn(async move { operator.break_lock(name).await })).await???;
        Ok(None)
    }

    async fn block(&self, locks: Locks) -> Result<Remedy<'_>> {
        let client = self.cluster.client().await?;
        let blocked = foreign::block(client, self.database.clone(), locks.names().collect());
        let session = apart(blocked).await?;
        // Where the primary has changed, the transaction has gone with it.
        ended_by(apart(foreign::unblock(session)))
    }

    async fn refuse(&self, name: &'static str) -> Result<Remedy<'_>> {
        apart(foreign::refuse(self.database().await?, name)).await?;
        // A transaction may be in the way, for as long as a fault lasts at most.
        ended_by(async move {
            let start = Instant::now();
            while self.allow(foreign::home(name)).await.is_err() && start.elapsed() < RECOVERY {
                sleep(RETRY).await;
            }
        })
    }

    async fn insert_unreadable(&self, collection: &'static str, number: usize) -> Result<Remedy<'_>> {
        apart(foreign::insert_unreadable(self.database().await?, collection, number)).await?;
        ended_by(async move {
            let database = self.database().await?;
            apart(foreign::delete_unreadable(database, collection, number)).await
        })
    }

    async fn save_old(&self, name: &'static str, old: Option<Document>) -> Result<Remedy<'_>> {
        let database = self.database().await?;
        apart(foreign::save(database, name, old.ok_or("nothing was read")?)).await?;
        Ok(None)
    }
}
