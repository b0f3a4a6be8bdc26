//! Standalone servers and replica sets.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    slice,
    time::{Duration, Instant},
};

use futures::future::{join_all, try_join_all};
use mongodb::{
    Client,
    bson::{Bson, Document, doc, oid::ObjectId},
    error::ErrorKind,
    options::ClientOptions,
};
use tokio::time::{sleep, timeout};

use crate::{
    Error, FailPoint, Proxy, binary,
    certificates::Certificates,
    clock,
    folder::Folder,
    node::{Node, QUICK_SHUTDOWN},
};

/// The name of every replica set of this crate.
const SET_NAME: &str = "watchlock";

/// The name and the password of the user, if clients must authenticate.
const USER: &str = "root";

/// Default time for nodes to agree on a primary: three of MongoDB's default election timeouts, for an election that
/// has to be repeated.
const ELECTION_PATIENCE: Duration = Duration::from_secs(30);

/// Maximum time for one node to answer a `hello`.
const HELLO_PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two questions to nodes whether they are ready.
const POLL: Duration = Duration::from_millis(20);

/// One or more `mongod` processes on loopback ports, with their data in a throw-away folder.
///
/// Dropping it kills the processes and removes the folder. The end of this process does the same, however it comes, so
/// a cluster in a `static` is fine too. A cluster is not bound to the runtime in which it was started.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: servers first, then the folder they write to.
    nodes: Vec<Node>,
    /// The proxies before the nodes, in the same order, if all connections go through them.
    proxies: Vec<Proxy>,
    replica_set: bool,
    auth: bool,
    tls: Option<Certificates>,
    folder: Folder,
}

/// The settings of a [`Cluster`]. By default, one node that is no replica set.
#[derive(Clone, Debug)]
#[must_use = "a cluster is not there before `start`"]
pub struct ClusterBuilder {
    nodes: usize,
    replica_set: bool,
    auth: bool,
    tls: bool,
    client_certificates: bool,
    proxied: bool,
    clocks: bool,
    in_memory: bool,
    args: Vec<String>,
    election_timeout: Option<Duration>,
}

impl ClusterBuilder {
    /// Asks for one server without a replica set: it has neither change streams nor transactions.
    pub fn standalone(mut self) -> Self {
        self.nodes = 1;
        self.replica_set = false;
        self
    }

    /// Asks for a replica set of `nodes` voting members, all with the same priority.
    pub fn replica_set(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self.replica_set = true;
        self
    }

    /// Sets whether clients have to authenticate. The connection strings then name the user `root`, who may do
    /// everything. Off by default. A replica set of several nodes takes an election timeout longer to start with it.
    pub fn auth(mut self, auth: bool) -> Self {
        self.auth = auth;
        self
    }

    /// Sets whether the servers require TLS, under certificates made for this cluster: the connection strings then ask
    /// for TLS and name the file of the authority. Off by default.
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// Sets whether servers with TLS require a certificate of every client: the connection strings then name the file of
    /// one. Off by default.
    pub fn client_certificates(mut self, client_certificates: bool) -> Self {
        self.client_certificates = client_certificates;
        self
    }

    /// Sets whether a proxy stands before every node, [telling apart](Proxy::telling_apart) the processes that
    /// connect: the members of a replica set know each other, and are known to its clients, by the proxies' addresses.
    /// See [`Cluster::network`]. Off by default.
    pub fn proxied(mut self, proxied: bool) -> Self {
        self.proxied = proxied;
        self
    }

    /// Sets whether the data may be in memory, in `/dev/shm`: where that has 6 GiB to spare, and `TMPDIR` is not set.
    /// Writes then wait for no disk, and tests not for what else uses the disk. A killed server finds its data again as
    /// it would on a disk. Off by default, as benchmarks are to pay for the disk.
    pub fn in_memory(mut self, in_memory: bool) -> Self {
        self.in_memory = in_memory;
        self
    }

    /// Adds arguments to the command line of every `mongod`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets whether each server has a wall clock of its own, which [`Cluster::set_clock`] sets. That takes
    /// libfaketime; see [`clock::library`].
    pub fn clocks(mut self, clocks: bool) -> Self {
        self.clocks = clocks;
        self
    }

    /// Sets the time without the primary after which the secondaries elect another one, in whole milliseconds.
    /// MongoDB's default is 10 s. The interval between heartbeats, 2 s by default, shrinks in proportion.
    pub fn election_timeout(mut self, election_timeout: Duration) -> Self {
        self.election_timeout = Some(election_timeout);
        self
    }

    /// Starts the servers and waits until they are ready: a replica set has a writable primary, all its other nodes
    /// are secondaries, and a write has been acknowledged by the majority.
    ///
    /// # Errors
    ///
    /// There is no `mongod` to be had, or it does not start; the message then ends with the last lines of its log.
    pub async fn start(self) -> Result<Cluster, Error> {
        if self.nodes == 0 {
            return Err(Error::new("a replica set has at least one node"));
        }
        // Installing a server takes seconds and blocks.
        let program = tokio::task::spawn_blocking(binary::mongod)
            .await
            .map_err(|error| Error::caused("the search for mongod was abandoned", error))??;

        let folder = Folder::create(self.in_memory)?;
        let tls = self
            .tls
            .then(|| Certificates::make(folder.path(), self.client_certificates))
            .transpose()?;
        let mut args = self.node_args(folder.path())?;
        args.extend(tls.iter().flat_map(Certificates::node_args));
        let clocks = match clock::library() {
            _ if !self.clocks => None,
            Some(library) => Some(library),
            None => {
                let missing = "no libfaketime to set clocks with: install the package `faketime`, or set \
                               WATCHLOCK_FAKETIME=/path/to/libfaketime.so.1";
                return Err(Error::new(missing));
            }
        };
        let nodes = try_join_all((0..self.nodes).map(|index| {
            let folder = folder.path().join(format!("node-{index}"));
            Node::start(program, folder, args.clone(), clocks.as_deref())
        }))
        .await?;
        let proxies = if self.proxied {
            let proxies = nodes.iter().map(|node| Proxy::telling_apart(node.addr()));
            proxies.collect::<io::Result<_>>()?
        } else {
            Vec::new()
        };
        let cluster = Cluster {
            nodes,
            proxies,
            replica_set: self.replica_set,
            auth: self.auth,
            tls,
            folder,
        };
        if self.replica_set {
            cluster.initiate(self.election_timeout).await?;
        } else if self.auth {
            cluster.create_user(0).await?;
        }
        Ok(cluster)
    }

    fn node_args(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let mut args: Vec<String> = [
            "--wiredTigerCacheSizeGB=0.5",
            "--setParameter=enableTestCommands=1",
            "--setParameter=diagnosticDataCollectionEnabled=false",
            // A server that is asked to end would otherwise wait 15 s for its clients to look elsewhere. Older servers
            // don't know the parameter, and are started without it.
            QUICK_SHUTDOWN,
        ]
        .map(str::to_owned)
        .to_vec();
        if self.replica_set {
            args.push(format!("--replSet={SET_NAME}"));
            args.push("--oplogSize=64".to_owned());
        }
        match (self.auth, self.replica_set) {
            (false, _) => {}
            (true, false) => args.push("--auth".to_owned()),
            (true, true) => {
                // The members of a set know each other by a shared secret, in a file that nobody else may read.
                let key = folder.join("key");
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&key)?
                    .write_all(b"aSecretAmongThrowAwayServersOnly")?;
                args.push(format!("--keyFile={}", key.display()));
            }
        }
        args.extend_from_slice(&self.args);
        Ok(args)
    }
}

impl Cluster {
    /// Returns the settings of a cluster, at first of a standalone server.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            nodes: 1,
            replica_set: false,
            auth: false,
            tls: false,
            client_certificates: false,
            proxied: false,
            clocks: false,
            in_memory: false,
            args: Vec::new(),
            election_timeout: None,
        }
    }

    /// Starts a standalone server.
    ///
    /// # Errors
    ///
    /// As for [`ClusterBuilder::start`].
    pub async fn standalone() -> Result<Self, Error> {
        Self::builder().standalone().start().await
    }

    /// Starts a replica set of `nodes` nodes.
    ///
    /// # Errors
    ///
    /// As for [`ClusterBuilder::start`].
    pub async fn replica_set(nodes: usize) -> Result<Self, Error> {
        Self::builder().replica_set(nodes).start().await
    }

    /// Returns the number of nodes, running or not.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always at least one node")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the throw-away folder, which goes with the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the address of node `i`, the same before and after a restart.
    #[must_use]
    pub fn addr(&self, i: usize) -> SocketAddr {
        self.nodes[i].addr()
    }

    /// Returns the public address of node `i`: its proxy's, if it has one.
    fn public_addr(&self, i: usize) -> SocketAddr {
        self.proxies.get(i).map_or_else(|| self.addr(i), Proxy::addr)
    }

    /// Returns the proxy before node `i`, if the cluster is [`proxied`](ClusterBuilder::proxied). Everything that
    /// clients and other nodes send to the node goes through it, except the commands of this cluster itself and of
    /// clients of [`node_uri`](Self::node_uri). Messages of the node to others go through their proxies.
    #[must_use]
    pub fn network(&self, i: usize) -> Option<&Proxy> {
        self.proxies.get(i)
    }

    /// Returns the id of node `i`'s process, if it is running, frozen or not.
    #[must_use]
    pub fn pid(&self, i: usize) -> Option<u32> {
        self.nodes[i].pid()
    }

    /// Returns the connection string of the whole cluster: all nodes of a replica set, or the one standalone server.
    #[must_use]
    pub fn uri(&self) -> String {
        if !self.replica_set {
            return self.direct_uri(self.public_addr(0));
        }
        let hosts: Vec<String> = (0..self.len()).map(|i| self.public_addr(i).to_string()).collect();
        self.uri_of(&hosts.join(","), &format!("replicaSet={SET_NAME}"), self.auth)
    }

    /// Returns a connection string for node `i` and no other, whatever its role.
    #[must_use]
    pub fn node_uri(&self, i: usize) -> String {
        self.direct_uri(self.addr(i))
    }

    fn direct_uri(&self, addr: SocketAddr) -> String {
        self.uri_of(&addr.to_string(), "directConnection=true", self.auth)
    }

    fn uri_of(&self, hosts: &str, options: &str, auth: bool) -> String {
        let tls = self.tls.as_ref().map(Certificates::options).unwrap_or_default();
        if auth {
            format!("mongodb://{USER}:{USER}@{hosts}/?{options}{tls}&authSource=admin")
        } else {
            format!("mongodb://{hosts}/?{options}{tls}")
        }
    }

    /// Returns a fresh client of the whole cluster with the driver's default options. It belongs to the runtime in
    /// which it is made.
    ///
    /// # Errors
    ///
    /// The driver does not accept the connection string.
    pub async fn client(&self) -> mongodb::error::Result<Client> {
        Client::with_uri_str(self.uri()).await
    }

    /// Returns a fresh client of node `i` alone, with the driver's default options.
    ///
    /// # Errors
    ///
    /// The driver does not accept the connection string.
    pub async fn node_client(&self, i: usize) -> mongodb::error::Result<Client> {
        Client::with_uri_str(self.node_uri(i)).await
    }

    /// Returns the index of the writable primary, as the nodes themselves report it. Waits up to 30 s for one.
    ///
    /// # Errors
    ///
    /// There is none in that time.
    pub async fn primary(&self) -> Result<usize, Error> {
        self.wait_for_primary(ELECTION_PATIENCE).await
    }

    /// Returns the index of the writable primary, as the nodes themselves report it. Waits up to `patience` for one.
    ///
    /// Nodes that are not running, or frozen by [`freeze`](Self::freeze), are not asked. If two nodes take themselves
    /// for the primary, the one elected last is.
    ///
    /// # Errors
    ///
    /// There is none in that time.
    pub async fn wait_for_primary(&self, patience: Duration) -> Result<usize, Error> {
        let deadline = Instant::now() + patience;
        let clients = self.observers().await?;
        loop {
            if let Some(primary) = self.find_primary(&clients).await {
                return Ok(primary);
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("no primary within {patience:?}")));
            }
            sleep(POLL).await;
        }
    }

    /// Waits up to `patience` until there is a writable primary, and all other nodes that are running and not frozen
    /// are secondaries and have caught up with it. After that, any of them can take over.
    ///
    /// # Errors
    ///
    /// The nodes were not ready in time.
    pub async fn wait_until_ready(&self, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        let clients = self.observers().await?;
        loop {
            if let Some(primary) = self.find_primary(&clients).await
                && self.all_in_place(&clients).await
                && (!self.replica_set || self.have_caught_up(primary).await)
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("not all nodes ready within {patience:?}")));
            }
            sleep(POLL).await;
        }
    }

    /// Kills node `i` with `SIGKILL`, frozen or not, and waits for its end. A no-op if it is not running.
    pub fn kill(&self, i: usize) {
        self.nodes[i].kill();
    }

    /// Freezes node `i` with `SIGSTOP`: it keeps its connections and answers nothing.
    ///
    /// # Errors
    ///
    /// It is not running.
    pub fn freeze(&self, i: usize) -> Result<(), Error> {
        self.nodes[i].freeze()
    }

    /// Lets a frozen node `i` run on, with `SIGCONT`.
    ///
    /// # Errors
    ///
    /// It is not running.
    pub fn thaw(&self, i: usize) -> Result<(), Error> {
        self.nodes[i].thaw()
    }

    /// Sets the wall clock of node `i` `ahead` milliseconds ahead of the machine's; behind it if negative. The server
    /// takes [`clock::NOTICED`] to notice, and keeps the clock if it is started again later.
    ///
    /// # Errors
    ///
    /// The cluster was made without [`clocks`](ClusterBuilder::clocks).
    pub fn set_clock(&self, i: usize, ahead: i64) -> Result<(), Error> {
        let clock = self.nodes[i].clock();
        let clock = clock.ok_or_else(|| Error::new("the servers have the machine's clock"))?;
        Ok(clock.set(ahead)?)
    }

    /// Shuts node `i` down in good order, as `SIGTERM` does, and waits for its end.
    ///
    /// # Errors
    ///
    /// It is not running, or has not ended within 60 s.
    pub async fn shut_down(&self, i: usize) -> Result<(), Error> {
        self.nodes[i].shut_down().await
    }

    /// Starts node `i` again on the port and the data it had, and waits until it listens. It does not wait until the
    /// node is a working member of the replica set again: see [`wait_until_ready`](Self::wait_until_ready).
    ///
    /// # Errors
    ///
    /// It is running already, or does not start.
    pub async fn restart(&self, i: usize) -> Result<(), Error> {
        self.nodes[i].restart().await
    }

    /// Makes node `i` step down as the primary, and not stand for election again for `secs` seconds. If another node
    /// keeps up, it takes over at once. If none has in 10 s (or `secs`, if that is less), node `i` steps down all the
    /// same; alone in its set, it does so at once.
    ///
    /// # Errors
    ///
    /// It is not the primary, or cannot be reached.
    pub async fn step_down(&self, i: usize, secs: u32) -> Result<(), Error> {
        let client = self.node_client(i).await?;
        let admin = client.database("admin");
        if self.len() > 1 {
            // Only a step-down without force is followed by a hand-over; the others would wait for the election
            // timeout.
            let step_down = doc! { "replSetStepDown": secs, "secondaryCatchUpPeriodSecs": secs.min(10) };
            match admin.run_command(step_down).await {
                Ok(_) => return Ok(()),
                Err(error) if matches!(&*error.kind, ErrorKind::Command(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        admin
            .run_command(doc! { "replSetStepDown": secs, "secondaryCatchUpPeriodSecs": 0, "force": true })
            .await?;
        Ok(())
    }

    /// Switches a fail point on at node `i`: `command` is a whole
    /// `{ configureFailPoint: .., mode: .., data: .. }`.
    ///
    /// # Errors
    ///
    /// The node could not be reached, or does not accept the command.
    pub async fn fail_point(&self, i: usize, command: Document) -> Result<FailPoint, Error> {
        FailPoint::configure(self.node_uri(i), command).await
    }

    /// Makes node `i` fail commands: switches on the fail point `failCommand`, in the mode `"alwaysOn"`, `{ times: n
    /// }` or `{ skip: n }`, with the `data` that the server documents, as in `{ failCommands: ["insert"], errorCode:
    /// 11602 }`.
    ///
    /// It strikes all clients of the node. At a shared node, give the client an application name and set `appName` in
    /// `data`.
    ///
    /// # Errors
    ///
    /// The node could not be reached, or does not accept the command.
    pub async fn fail_commands(&self, i: usize, mode: impl Into<Bson>, data: Document) -> Result<FailPoint, Error> {
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": data };
        self.fail_point(i, command).await
    }

    /// Returns a new proxy before node `i`.
    ///
    /// A client has to reach it through [`Proxy::uri`], a direct connection. To the primary, which the one node of a
    /// replica set of one always is, that does for change streams and retryable writes as well.
    ///
    /// # Errors
    ///
    /// There is no port or no thread to be had.
    pub fn proxy(&self, i: usize) -> io::Result<Proxy> {
        Proxy::before(self.addr(i))
    }

    /// Makes a replica set of the nodes.
    async fn initiate(&self, election_timeout: Option<Duration>) -> Result<(), Error> {
        let members: Vec<Bson> = (0..self.len())
            .zip(0_i32..)
            .map(|(node, id)| doc! { "_id": id, "host": self.public_addr(node).to_string() }.into())
            .collect();
        let mut settings = Document::new();
        if let Some(election_timeout) = election_timeout {
            let millis = i64::try_from(election_timeout.as_millis()).unwrap_or(i64::MAX);
            settings.insert("electionTimeoutMillis", millis);
            // A frozen node is noticed when a heartbeat has gone unanswered for an election timeout. Heartbeats that
            // are not much more frequent than that make a new primary lose sight of the majority and resign at once.
            settings.insert("heartbeatIntervalMillis", (millis / 5).clamp(1, 2_000));
        }
        let config = doc! { "_id": SET_NAME, "members": members, "settings": settings };

        let first = self.observer(0).await?;
        let admin = first.database("admin");
        // It listens already; on a busy machine its first answer can take longer than a later one may.
        let deadline = Instant::now() + ELECTION_PATIENCE;
        while self.hello(&first, 0).await.is_none() && Instant::now() < deadline {
            sleep(POLL).await;
        }
        admin.run_command(doc! { "replSetInitiate": config }).await?;

        // Left alone, several nodes would first wait for an election timeout. The command fails until the others have
        // heard of their set, and always where it takes a user, who cannot be created yet.
        if self.len() > 1 {
            let deadline = Instant::now() + ELECTION_PATIENCE;
            while self.find_primary(slice::from_ref(&first)).await.is_none() {
                let _ = admin.run_command(doc! { "replSetStepUp": 1 }).await;
                if Instant::now() > deadline {
                    break;
                }
                sleep(POLL).await;
            }
        }
        let primary = self.primary().await?;
        if self.auth {
            self.create_user(primary).await?;
        }
        self.wait_until_ready(2 * ELECTION_PATIENCE).await
    }

    /// Creates the first user, which a server allows to anybody from its own machine.
    async fn create_user(&self, i: usize) -> Result<(), Error> {
        self.observer(i)
            .await?
            .database("admin")
            .run_command(doc! { "createUser": USER, "pwd": USER, "roles": ["root"] })
            .await?;
        Ok(())
    }

    /// Returns clients of all nodes, one each.
    async fn observers(&self) -> Result<Vec<Client>, Error> {
        try_join_all((0..self.len()).map(|i| self.observer(i))).await
    }

    /// Returns a client of node `i` without a user, which is enough for `hello`, and with a short patience.
    async fn observer(&self, i: usize) -> Result<Client, Error> {
        let uri = self.uri_of(&self.addr(i).to_string(), "directConnection=true", false);
        let mut options = ClientOptions::parse(uri).await?;
        options.server_selection_timeout = Some(HELLO_PATIENCE);
        Ok(Client::with_options(options)?)
    }

    /// Returns the answer of node `i` to `hello`, if it is up and answers.
    async fn hello(&self, client: &Client, i: usize) -> Option<Document> {
        if !self.nodes[i].is_awake() {
            return None;
        }
        let database = client.database("admin");
        let hello = database.run_command(doc! { "hello": 1 });
        timeout(HELLO_PATIENCE, hello).await.ok()?.ok()
    }

    /// Whether every node that is up reports itself as the primary or a secondary.
    async fn all_in_place(&self, clients: &[Client]) -> bool {
        let up = (0..self.len()).filter(|&i| self.nodes[i].is_awake());
        join_all(up.map(async |i| {
            let hello = self.hello(&clients[i], i).await?;
            let is = |role| hello.get_bool(role).unwrap_or(false);
            Some(is("isWritablePrimary") || is("secondary"))
        }))
        .await
        .into_iter()
        .all(|in_place| in_place == Some(true))
    }

    /// Whether every node that is up acknowledges a write to the primary. It goes to the oplog alone, so no test finds
    /// it among its data.
    async fn have_caught_up(&self, primary: usize) -> bool {
        let Ok(client) = self.node_client(primary).await else {
            return false;
        };
        let up = self.nodes.iter().filter(|node| node.is_awake()).count();
        let Ok(up) = i32::try_from(up) else {
            return false;
        };
        let database = client.database("admin");
        let write = database.run_command(doc! {
            "appendOplogNote": 1,
            "data": { "watchlock-testkit": "ready?" },
            "writeConcern": { "w": up, "wtimeout": 5_000 },
        });
        // Acknowledgements that do not come are no error of the command, but part of its reply.
        matches!(timeout(ELECTION_PATIENCE, write).await, Ok(Ok(reply)) if !reply.contains_key("writeConcernError"))
    }

    async fn find_primary(&self, clients: &[Client]) -> Option<usize> {
        let answers = join_all(clients.iter().enumerate().map(async |(i, client)| {
            let hello = self.hello(client, i).await?;
            let primary = hello.get_bool("isWritablePrimary").unwrap_or(false);
            // Election ids grow with the term. A standalone server has none.
            let election = hello
                .get_object_id("electionId")
                .unwrap_or(ObjectId::from_bytes([0; 12]));
            primary.then_some((election, i))
        }))
        .await;
        answers.into_iter().flatten().max().map(|(_, i)| i)
    }
}
