//! Many who want the same lock: what that costs the clients and the server, and whether it stays so.

use std::{env, fmt, fs, future::poll_fn, path::PathBuf, process::Stdio, task::Poll, time::Duration};

use futures::future::try_join_all;
use mongodb::bson::{Bson, Document, doc};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use watchlock::LockClient;
use watchlock_testkit::Cluster;

use crate::{
    Result,
    client::connect,
    clock::wall_ahead,
    director,
    history::{JOURNAL, SERVERS},
    journal::{Entry, Note},
    oplog::Reader,
    record::Log,
};

const DATABASE: &str = "load";

/// How long 64 processes may take to give back what they have and end, on a slow machine.
const FAREWELL: Duration = Duration::from_secs(120);

/// How often a long wait is looked at.
const SAMPLES: u32 = 6;

/// The server's clock ticks of `/proc`, as Linux gives them to programs.
const TICKS: f64 = 100.0;

/// Who contends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// Tasks of one client.
    Waiters(usize),
    /// Client processes.
    Processes(usize),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) crowd: Crowd,
    pub(crate) lasts: Duration,
    pub(crate) folder: PathBuf,
}

/// Runs and reports. Returns whether no promise was broken.
pub(crate) async fn run(load: Load) -> Result<bool> {
    match load.crowd {
        Crowd::Waiters(count) => waiters(count, load.lasts).await,
        Crowd::Processes(count) => processes(count, load.lasts, load.folder).await,
    }
}

/// What has been used up to some moment.
#[derive(Clone, Debug)]
struct Usage {
    at: Instant,
    commands: i64,
    get_mores: i64,
    server_seconds: f64,
    server_memory: u64,
    client_memory: u64,
}

impl Usage {
    async fn read(cluster: &Cluster, clients: &[u32]) -> Result<Self> {
        let admin = cluster.client().await?.database("admin");
        let status = admin.run_command(doc! { "serverStatus": 1 }).await?;
        let commands = status.get_document("metrics")?.get_document("commands")?;
        let total = |command: &Document| command.get("total").and_then(whole).unwrap_or(0);
        // Monitoring, and what this measurement itself asks, is not of the locks' making.
        let theirs = ["findAndModify", "update", "aggregate", "getMore", "find"];
        let count = |name: &&str| commands.get_document(name).map_or(0, total);
        let pid = cluster.pid(0).ok_or("the server is not running")?;
        Ok(Self {
            at: Instant::now(),
            commands: theirs.iter().map(count).sum(),
            get_mores: count(&"getMore"),
            server_seconds: processor_seconds(pid),
            server_memory: memory(pid),
            client_memory: clients.iter().map(|pid| memory(*pid)).sum(),
        })
    }

    fn since<'a>(&'a self, earlier: &'a Self) -> Spent<'a> {
        Spent { earlier, later: self }
    }
}

/// What was used between two moments.
struct Spent<'a> {
    earlier: &'a Usage,
    later: &'a Usage,
}

impl Spent<'_> {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    fn commands_per(&self, count: usize) -> f64 {
        (self.later.commands - self.earlier.commands) as f64 / count as f64
    }
}

impl fmt::Display for Spent<'_> {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (earlier, later) = (self.earlier, self.later);
        let seconds = (later.at - earlier.at).as_secs_f64();
        write!(
            f,
            "{:>6.1} s  {:>8.1} commands/s ({:>6.1} getMore)  server {:>4.0} % of a core, {:>5} MB  clients {:>5} MB",
            seconds,
            (later.commands - earlier.commands) as f64 / seconds,
            (later.get_mores - earlier.get_mores) as f64 / seconds,
            100.0 * (later.server_seconds - earlier.server_seconds) / seconds,
            later.server_memory / 1024,
            later.client_memory / 1024,
        )
    }
}

/// Many tasks of one client wait for one lock; then each gets it, in turn.
async fn waiters(count: usize, lasts: Duration) -> Result<bool> {
    let cluster = Cluster::replica_set(1).await?;
    let own = [std::process::id()];
    let client = async |label| -> Result<(mongodb::Client, LockClient)> {
        let database = connect(&cluster.uri(), DATABASE, label).await?;
        Ok((database.client().clone(), LockClient::builder(database).build().await?))
    };
    let (holding, holder) = client("holder").await?;
    let (waiting, locks) = client("waiters").await?;

    println!("one lock, {count} tasks of one client wait for it");
    let held = holder.mutex("one").acquire().await?;
    let before = Usage::read(&cluster, &own).await?;
    println!(
        "  before               server {:>5} MB  client {:>5} MB",
        before.server_memory / 1024,
        before.client_memory / 1024
    );
    let mut tasks = Vec::new();
    for _ in 0..count {
        // It gets in line with the first poll, so this is the order in which they ask.
        let mut acquire = locks.mutex("one").acquire().into_future();
        let asked = poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await;
        if asked.is_ready() {
            return Err("a lock that is held was to be had".into());
        }
        tasks.push(tokio::spawn(async move {
            let handle = acquire.await?;
            let token = handle.token();
            handle.release().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(token)
        }));
    }
    while holder.inspect("one").await?.is_none_or(|lock| lock.waiters.is_empty()) {
        sleep(Duration::from_millis(20)).await;
    }
    let mut earlier = Usage::read(&cluster, &own).await?;
    for _ in 0..SAMPLES {
        sleep(lasts / SAMPLES).await;
        let later = Usage::read(&cluster, &own).await?;
        println!("  all wait   {}", later.since(&earlier));
        earlier = later;
    }
    let queue = holder.inspect("one").await?.map_or(0, |lock| lock.waiters.len());
    println!("  in the server's queue: {queue}");

    held.release().await?;
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await??);
    }
    let later = Usage::read(&cluster, &own).await?;
    let spent = later.since(&earlier);
    println!("  all served {spent}");
    println!("  commands for each: {:.2}", spent.commands_per(count));
    let fair = tokens.is_sorted_by(|earlier, later| earlier < later);
    println!(
        "  in the order in which they asked, with rising tokens: {}",
        if fair { "yes" } else { "NO" }
    );
    let idle = holder.mutex("one").try_acquire().await?.is_some();
    println!("  free at the end: {}", if idle { "yes" } else { "NO" });
    locks.shutdown().await;
    holder.shutdown().await;
    drop((locks, holder));
    waiting.shutdown().await;
    holding.shutdown().await;
    let after = Usage::read(&cluster, &own).await?;
    println!(
        "  after                server {:>5} MB  client {:>5} MB",
        after.server_memory / 1024,
        after.client_memory / 1024
    );
    Ok(fair && idle && queue == 1)
}

/// Many client processes contend for one lock, and are judged.
async fn processes(count: usize, lasts: Duration, folder: PathBuf) -> Result<bool> {
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let cluster = Cluster::replica_set(1).await?;
    let journal = Log::open(&folder.join(JOURNAL))?;
    let note = |note| {
        journal.write(&Entry {
            at: crate::clock::now(),
            note,
        })
    };
    let clock = || {
        note(Note::Clock {
            ahead: i64::try_from(wall_ahead()).unwrap_or(0),
        })
    };
    clock();
    println!("one lock, {count} client processes contend for it");
    let mut clients: Vec<(String, Child)> = Vec::new();
    for index in 0..count {
        let label = format!("client-{index}");
        note(Note::Started { client: label.clone() });
        let child = Command::new(env::current_exe()?)
            .args([
                "client",
                "--contend",
                "--uri",
                &cluster.uri(),
                "--database",
                DATABASE,
                "--label",
                &label,
                "--folder",
            ])
            .arg(&folder)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        clients.push((label, child));
    }
    let pids: Vec<u32> = clients.iter().filter_map(|(_, child)| child.id()).collect();
    let (servers, mut reader) = (Log::open(&folder.join(SERVERS))?, Reader::new(DATABASE));
    let node = cluster.client().await?;
    let mut earlier = Usage::read(&cluster, &pids).await?;
    for _ in 0..SAMPLES {
        sleep(lasts / SAMPLES).await;
        let later = Usage::read(&cluster, &pids).await?;
        println!("  {}", later.since(&earlier));
        earlier = later;
        // The log has to be read before it runs over.
        reader.read(&node, &servers).await?;
        clock();
    }
    for (_, child) in &mut clients {
        drop(child.stdin.take());
    }
    try_join_all(clients.iter_mut().map(async |(label, child)| -> Result<()> {
        let problem = match timeout(FAREWELL, child.wait()).await {
            Ok(status) => Some(status?)
                .filter(|status| !status.success())
                .map(|status| status.to_string()),
            Err(_) => Some(format!("it did not end within {FAREWELL:?}")),
        };
        note(Note::Dismissed {
            client: label.clone(),
            problem,
        });
        Ok(())
    }))
    .await?;
    reader.read(&node, &servers).await?;
    clock();
    director::judge(&folder)
}

/// How much memory a process occupies, in KB.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// How long a process has been running on some core.
fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may hold anything, the state is the first field, and the two times are the 12th and 13th.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split_whitespace());
    let ticks = fields.map(|fields| {
        fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok())
            .sum()
    });
    ticks.map_or(0.0, |ticks: f64| ticks / TICKS)
}

fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}
