//! The servers that the peers need, on this machine, with their defaults: one node of each, or several of MongoDB.

mod process;

use std::{collections::BTreeMap, fmt, path::PathBuf, process::Command, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use mongodb::{
    bson::{Bson, Document, doc},
    options::{ClientOptions, ServerMonitoringMode},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use watchlock_testkit::Cluster;

use self::process::{Folder, Process, find, free_port};
use crate::client::Result;

/// Maximum time for a server to start.
const STARTING: Duration = Duration::from_secs(60);

/// Maximum time for the answer to a question about its counters.
const ANSWER: Duration = Duration::from_secs(5);

/// A lock service, or the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    MongoDb,
    Etcd,
    Postgres,
    Redis,
    ZooKeeper,
    Memory,
}

impl Kind {
    /// Returns the line that installs it.
    fn installation(self) -> &'static str {
        match self {
            Self::MongoDb | Self::Memory => "nothing: the test kit brings it along",
            Self::Etcd => {
                "apt-get install etcd-server protobuf-compiler libprotobuf-dev, and build with the feature `etcd`"
            }
            Self::Postgres => "apt-get install postgresql",
            Self::Redis => "apt-get install redis-server",
            Self::ZooKeeper => "apt-get install zookeeperd",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MongoDb => "MongoDB",
            Self::Etcd => "etcd",
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
            Self::ZooKeeper => "ZooKeeper",
            Self::Memory => "memory",
        })
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) kind: Kind,
    /// The address in the form that the clients of this engine take.
    pub(crate) address: String,
    pub(crate) version: String,
    server: Server,
}

#[derive(Debug)]
enum Server {
    Memory,
    MongoDb {
        cluster: Cluster,
        observer: mongodb::Client,
    },
    Process {
        process: Process,
        port: u16,
    },
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Commands, without those of drivers that watch over the server.
    pub(crate) commands: Option<u64>,
    /// Bytes received and sent.
    pub(crate) bytes: Option<u64>,
    /// Number of bytes of the answer that these counters came with, where they will be among them.
    pub(crate) answer: u64,
}

/// A repeated write that has nothing to do with locks, by a client of its own.
pub(crate) type ForeignWrite = Box<dyn FnMut(i32) -> BoxFuture<'static, Result<()>> + Send>;

impl Engine {
    /// Starts it with this number of nodes, which is one for all but MongoDB.
    ///
    /// An engine that does not start, or is not there, is an error that says how to install it.
    pub(crate) async fn start(kind: Kind, nodes: usize) -> Result<Self> {
        let starting = async {
            match kind {
                Kind::Memory => {
                    let none = String::from("-");
                    Ok(Self::of(kind, String::from("memory"), none, Server::Memory))
                }
                Kind::MongoDb => mongodb(nodes).await,
                Kind::Etcd => etcd().await,
                Kind::Postgres => postgres().await,
                Kind::Redis => redis().await,
                Kind::ZooKeeper => zookeeper().await,
            }
        };
        let started = timeout(STARTING, starting).await.map_err(Into::into).flatten();
        started.map_err(|error| format!("{kind}: {error} (install it by: {})", kind.installation()).into())
    }

    fn of(kind: Kind, address: String, version: String, server: Server) -> Self {
        Self {
            kind,
            address,
            version,
            server,
        }
    }

    /// Returns the processor time that the server has taken so far, where there is a server.
    pub(crate) fn processor_time(&self) -> Result<Option<Duration>> {
        let pid = match &self.server {
            Server::Memory => return Ok(None),
            Server::MongoDb { cluster, .. } => cluster.pid(0).ok_or("the server has ended")?,
            Server::Process { process, .. } => process.pid(),
        };
        process::processor_time(pid).map(Some)
    }

    /// Returns what the server has done and moved so far, as far as it counts that.
    pub(crate) async fn traffic(&self) -> Result<Traffic> {
        match &self.server {
            Server::MongoDb { observer, .. } => timeout(ANSWER, mongodb_traffic(observer)).await?,
            Server::Process { port, .. } if self.kind == Kind::Redis => {
                let info = ask(*port, "INFO stats\r\nQUIT\r\n").await?;
                let number = |label| number_after(&info, label);
                Ok(Traffic {
                    commands: Some(number("total_commands_processed:")?),
                    bytes: Some(number("total_net_input_bytes:")? + number("total_net_output_bytes:")?),
                    answer: info.len() as u64,
                })
            }
            Server::Process { port, .. } if self.kind == Kind::ZooKeeper => {
                let state = ask(*port, "mntr").await?;
                Ok(Traffic {
                    commands: Some(number_after(&state, "zk_packets_received\t")?),
                    ..Traffic::default()
                })
            }
            Server::Process { port, .. } if self.kind == Kind::Etcd => {
                let answer = ask(*port, "GET /metrics HTTP/1.0\r\n\r\n").await?;
                let bytes = ["received", "sent"].map(|way| format!("etcd_network_client_grpc_{way}_bytes_total "));
                Ok(Traffic {
                    // Messages received by streams and by single calls alike.
                    commands: Some(sum_of(&answer, "grpc_server_msg_received_total{")),
                    bytes: Some(bytes.iter().map(|counter| sum_of(&answer, counter)).sum()),
                    // This question is not among its counters.
                    answer: 0,
                })
            }
            _ => Ok(Traffic::default()),
        }
    }

    /// Connects a client that writes to a place without locks.
    pub(crate) async fn foreign_writer(&self) -> Result<Option<ForeignWrite>> {
        Ok(match self.kind {
            Kind::Memory => None,
            Kind::MongoDb => {
                let client = mongodb::Client::with_uri_str(&self.address).await?;
                let foreign = client.database("foreign").collection::<Document>("events");
                Some(Box::new(move |number| {
                    let foreign = foreign.clone();
                    Box::pin(async move {
                        foreign.insert_one(doc! { "number": number }).await?;
                        Ok(())
                    })
                }))
            }
            #[cfg(feature = "etcd")]
            Kind::Etcd => {
                let client = etcd_client::Client::connect([&self.address], None).await?;
                Some(Box::new(move |number| {
                    let mut client = client.clone();
                    Box::pin(async move {
                        client.put(format!("foreign/{number}"), "x", None).await?;
                        Ok(())
                    })
                }))
            }
            #[cfg(not(feature = "etcd"))]
            Kind::Etcd => None,
            Kind::Postgres => {
                let (client, connection) = tokio_postgres::connect(&self.address, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                client
                    .batch_execute("CREATE TABLE IF NOT EXISTS foreign_events (number INT)")
                    .await?;
                let insert = client.prepare("INSERT INTO foreign_events VALUES ($1)").await?;
                let client = Arc::new(client);
                Some(Box::new(move |number| {
                    let (client, insert) = (client.clone(), insert.clone());
                    Box::pin(async move {
                        client.execute(&insert, &[&number]).await?;
                        Ok(())
                    })
                }))
            }
            Kind::Redis => {
                let client = redis::Client::open(self.address.as_str())?;
                let connection = client.get_multiplexed_async_connection().await?;
                Some(Box::new(move |number| {
                    let mut connection = connection.clone();
                    Box::pin(async move {
                        let mut set = redis::cmd("SET");
                        set.arg(format!("foreign:{number}")).arg("x");
                        set.exec_async(&mut connection).await?;
                        Ok(())
                    })
                }))
            }
            Kind::ZooKeeper => {
                use zookeeper_client::{Acls, Client, CreateMode, Error};
                let client = Client::connect(&self.address).await?;
                let made = client.create("/foreign", b"x", &CreateMode::Persistent.with_acls(Acls::anyone_all()));
                match made.await {
                    Ok(_) | Err(Error::NodeExists) => {}
                    Err(error) => return Err(error.into()),
                }
                Some(Box::new(move |number| {
                    let client = client.clone();
                    Box::pin(async move {
                        client.set_data("/foreign", &number.to_be_bytes(), None).await?;
                        Ok(())
                    })
                }))
            }
        })
    }
}

async fn mongodb(nodes: usize) -> Result<Engine> {
    let cluster = Cluster::replica_set(nodes).await?;
    let mut options = ClientOptions::parse(cluster.uri()).await?;
    // Greets the server once and then not again while anything is measured.
    options.server_monitoring_mode = Some(ServerMonitoringMode::Poll);
    options.heartbeat_freq = Some(Duration::from_secs(3_600));
    let observer = mongodb::Client::with_options(options)?;
    let built = observer.database("admin").run_command(doc! { "buildInfo": 1 }).await?;
    let version = built.get_str("version")?.to_owned();
    let (address, server) = (cluster.uri(), Server::MongoDb { cluster, observer });
    Ok(Engine::of(Kind::MongoDb, address, version, server))
}

async fn mongodb_traffic(observer: &mongodb::Client) -> Result<Traffic> {
    let status = observer
        .database("admin")
        .run_command(doc! { "serverStatus": 1 })
        .await?;
    let commands = status.get_document("metrics")?.get_document("commands")?;
    let mut sum = 0;
    for (name, counts) in commands {
        if !["hello", "isMaster", "ping", "serverStatus"].contains(&name.as_str())
            && let Some(Bson::Int64(total)) = counts.as_document().and_then(|counts| counts.get("total"))
        {
            sum += u64::try_from(*total)?;
        }
    }
    let network = status.get_document("network")?;
    let bytes = network.get_i64("bytesIn")? + network.get_i64("bytesOut")?;
    Ok(Traffic {
        commands: Some(sum),
        bytes: Some(u64::try_from(bytes)?),
        answer: mongodb::bson::to_vec(&status)?.len() as u64,
    })
}

async fn etcd() -> Result<Engine> {
    if !cfg!(feature = "etcd") {
        return Err("the feature `etcd` is off".into());
    }
    let program = find("etcd", &[]).ok_or("no `etcd` in PATH")?;
    let (folder, port, inner) = (Folder::create("etcd")?, free_port()?, free_port()?);
    let [address, inner] = [port, inner].map(|port| format!("http://127.0.0.1:{port}"));
    let arguments = [
        format!("--data-dir={}", folder.path().join("data").display()),
        format!("--listen-client-urls={address}"),
        format!("--advertise-client-urls={address}"),
        format!("--listen-peer-urls={inner}"),
        format!("--initial-advertise-peer-urls={inner}"),
        format!("--initial-cluster=default={inner}"),
    ];
    let version = first_line(Command::new(&program).arg("--version"))?;
    let process = Process::start(&program, &arguments, None, folder, port).await?;
    let version = version.trim_start_matches("etcd Version: ").to_owned();
    Ok(Engine::of(
        Kind::Etcd,
        address,
        version,
        Server::Process { process, port },
    ))
}

async fn postgres() -> Result<Engine> {
    // Debian keeps it out of `PATH`, one folder for each version.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    let initdb = find("initdb", &folders).ok_or("no `initdb` in PATH or in /usr/lib/postgresql")?;
    let program = initdb.with_file_name("postgres");
    let (folder, port) = (Folder::create("postgres")?, free_port()?);
    // It refuses to be run by root.
    let root = first_line(Command::new("id").arg("-u"))? == "0";
    let user = root.then_some("postgres");
    let mut initialize = Command::new("setpriv");
    if let Some(user) = user {
        let owned = Command::new("chown").arg(user).arg(folder.path()).status()?;
        if !owned.success() {
            return Err(format!("chown: {owned}").into());
        }
        initialize.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    let data = folder.path().join("data");
    initialize
        .arg("--")
        .arg(&initdb)
        .args(["--username=postgres", "--auth=trust", "-D"])
        .arg(&data);
    let made = initialize.output()?;
    if !made.status.success() {
        return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    let version = first_line(Command::new(&program).arg("--version"))?;
    let version = version.trim_start_matches("postgres (PostgreSQL) ").to_owned();
    let arguments = [
        String::from("-D"),
        data.display().to_string(),
        format!("--port={port}"),
        String::from("--listen_addresses=127.0.0.1"),
        format!("--unix_socket_directories={}", folder.path().display()),
        // A connection for each waiter: the default of 100 would not do.
        String::from("--max_connections=1200"),
    ];
    let process = Process::start(&program, &arguments, user, folder, port).await?;
    let address = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    until_ready(&address).await?;
    Ok(Engine::of(
        Kind::Postgres,
        address,
        version,
        Server::Process { process, port },
    ))
}

/// Waits until PostgreSQL takes sessions: it listens a moment earlier.
async fn until_ready(address: &str) -> Result<()> {
    let mut last = None;
    for _ in 0..100 {
        match tokio_postgres::connect(address, tokio_postgres::NoTls).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(last.map_or_else(|| "never asked".into(), Into::into))
}

async fn redis() -> Result<Engine> {
    let program = find("redis-server", &[]).ok_or("no `redis-server` in PATH")?;
    let (folder, port) = (Folder::create("redis")?, free_port()?);
    let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1"].map(str::to_owned);
    let version = first_line(Command::new(&program).arg("--version"))?;
    let version = version
        .split_once("v=")
        .map_or("?", |(_, rest)| rest.split(' ').next().unwrap_or("?"));
    let (version, address) = (version.to_owned(), format!("redis://127.0.0.1:{port}/"));
    let process = Process::start(&program, &arguments, None, folder, port).await?;
    Ok(Engine::of(
        Kind::Redis,
        address,
        version,
        Server::Process { process, port },
    ))
}

async fn zookeeper() -> Result<Engine> {
    let jar = PathBuf::from("/usr/share/java/zookeeper.jar");
    if !jar.is_file() {
        return Err(format!("no {}", jar.display()).into());
    }
    let java = find("java", &[]).ok_or("no `java` in PATH")?;
    let (folder, port) = (Folder::create("zookeeper")?, free_port()?);
    let settings = folder.path().join("zoo.cfg");
    // Several hundred clients come from one address, and the numbers are asked for by these words.
    let text = format!(
        "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
         maxClientCnxns=0\n4lw.commands.whitelist=mntr\n",
        folder.path().join("data").display()
    );
    std::fs::write(&settings, text)?;
    let arguments = [
        String::from("-cp"),
        jar.display().to_string(),
        String::from("org.apache.zookeeper.server.quorum.QuorumPeerMain"),
        settings.display().to_string(),
    ];
    let process = Process::start(&java, &arguments, None, folder, port).await?;
    // It listens a moment before it serves.
    let mut state = String::new();
    for _ in 0..100 {
        // It may take a connection then and never answer it.
        state = ask(port, "mntr").await.unwrap_or_default();
        if state.contains("zk_version") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let version = state.split_once("zk_version\t").map_or("?", |(_, rest)| rest);
    let version = version.split(['-', ',']).next().unwrap_or("?").to_owned();
    let address = format!("127.0.0.1:{port}");
    Ok(Engine::of(
        Kind::ZooKeeper,
        address,
        version,
        Server::Process { process, port },
    ))
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Sends a word and returns all that comes until the server hangs up.
async fn ask(port: u16, word: &str) -> Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Result::Ok(answer)
    };
    timeout(ANSWER, asked).await?
}

/// Returns the sum of the counters whose lines begin like this.
fn sum_of(metrics: &str, beginning: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(beginning));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let sum = counts.sum::<f64>() as u64;
    sum
}

fn number_after(text: &str, label: &str) -> Result<u64> {
    let (_, rest) = text
        .split_once(label)
        .ok_or_else(|| format!("no `{label}` in the answer"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Ok(digits.parse()?)
}

/// Returns the processor time of this process without its children, which are servers.
pub(crate) fn own_processor_time() -> Result<Duration> {
    process::own_processor_time(std::process::id())
}

/// The engines of a run, and the reasons why others are missing.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    running: BTreeMap<Kind, Engine>,
    pub(crate) missing: Vec<String>,
}

impl Engines {
    pub(crate) async fn start(kinds: impl IntoIterator<Item = Kind>, nodes: usize) -> Self {
        let mut engines = Self::default();
        for kind in kinds {
            match Engine::start(kind, nodes).await {
                Ok(engine) => drop(engines.running.insert(kind, engine)),
                Err(reason) => {
                    eprintln!("SKIPPED {reason}");
                    engines.missing.push(reason.to_string());
                }
            }
        }
        engines
    }

    pub(crate) fn get(&self, kind: Kind) -> Option<&Engine> {
        self.running.get(&kind)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Engine> {
        self.running.values()
    }
}
