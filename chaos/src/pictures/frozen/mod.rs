//! The frozen holder: what becomes of the write that it had decided on before it was frozen, with a fence and without.

mod picture;

use std::{env, fs, io, path::Path, process::Stdio, time::Duration};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    time::{Instant, sleep},
};
use watchlock::{FenceError, Held, LockClient, target};
use watchlock_testkit::{Cluster, signal};

use crate::{
    Result,
    client::connect,
    clock::{Moment, now},
    record::{self, Log},
};

const RECORD: &str = "frozen.jsonl";

const DATABASE: &str = "pictures";
const LOCK: &str = "report";

/// The lease of both clients; short, so that the picture is.
const LEASE: Duration = Duration::from_secs(2);

/// The time for which the first process stays frozen: longer than its lease.
const FROZEN: Duration = Duration::from_millis(4_500);

/// The time between the notable moments of the scene, so that they don't touch in the picture.
const PACE: Duration = Duration::from_millis(700);

/// Maximum time for anything that the scene waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process that a line is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Process {
    First,
    Second,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    at: Moment,
    process: Process,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Waits,
    Granted {
        token: i64,
    },
    /// It found its handle valid for so many nanoseconds more, and goes on to write.
    Looked {
        safe_for: u64,
    },
    Frozen,
    Thawed,
    /// The write without a fence was answered.
    Plain {
        written: bool,
    },
    /// The same write with a fence.
    Fenced {
        written: bool,
    },
    Lost {
        reason: String,
    },
    /// The end of the scene.
    End,
}

struct Scene {
    log: Log,
    process: Process,
    documents: Collection<Document>,
}

impl Scene {
    async fn new(uri: &str, file: &Path, process: Process) -> Result<(Self, LockClient)> {
        let label = if process == Process::First { "first" } else { "second" };
        let database = connect(uri, DATABASE, label).await?;
        let scene = Self {
            log: Log::open(file)?,
            process,
            documents: database.collection("reports"),
        };
        let locks = LockClient::builder(database).lease(LEASE).label(label).build().await?;
        Ok((scene, locks))
    }

    fn note(&self, what: What) {
        self.note_at(now(), self.process, what);
    }

    fn note_at(&self, at: Moment, process: Process, what: What) {
        self.log.write(&Line { at, process, what });
    }

    /// Writes to both documents, to one of them with a fence.
    async fn write(&self, handle: &Held<target::Mutex>) -> Result<()> {
        let update = doc! { "$set": { "by": handle.token().as_i64() } };
        let written = self
            .documents
            .update_one(doc! { "_id": "plain" }, update.clone())
            .await?;
        self.note(What::Plain {
            written: written.modified_count == 1,
        });
        let fenced = handle
            .fence()
            .update_one(&self.documents, doc! { "_id": "fenced" }, update);
        let written = match fenced.await {
            Ok(written) => written.modified_count == 1,
            Err(FenceError::Fenced(_)) => false,
            Err(error) => return Err(error.into()),
        };
        self.note(What::Fenced { written });
        Ok(())
    }
}

/// Runs as the first process: takes the lock, finds it valid, and writes when its standard input says so, without
/// another look.
pub(crate) async fn holder(uri: &str, file: &Path) -> Result<()> {
    let (scene, locks) = Scene::new(uri, file, Process::First).await?;
    let handle = locks.mutex(LOCK).acquire().await?;
    scene.note(What::Granted {
        token: handle.token().as_i64(),
    });
    sleep(PACE).await;
    let at = now();
    if let Some(reason) = handle.lost_reason() {
        return Err(format!("lost at once: {reason}").into());
    }
    let safe_for = u64::try_from(handle.safe_for().as_nanos())?;
    scene.note_at(at, Process::First, What::Looked { safe_for });
    // The thread stands still, as in the computation between a check and the write.
    tokio::task::block_in_place(|| io::stdin().read_line(&mut String::new()))?;
    scene.write(&handle).await?;
    let at = now();
    let reason = handle
        .lost_reason()
        .map_or("none".to_owned(), |reason| format!("{reason:?}"));
    scene.note_at(at, Process::First, What::Lost { reason });
    Ok(())
}

pub(super) async fn record(folder: &Path) -> Result<()> {
    let file = folder.join(RECORD);
    if file.exists() {
        fs::remove_file(&file)?;
    }
    let cluster = Cluster::replica_set(1).await?;
    let (scene, locks) = Scene::new(&cluster.uri(), &file, Process::Second).await?;
    let reports = ["plain", "fenced"].map(|id| doc! { "_id": id, "by": 0_i64 });
    scene.documents.insert_many(reports).await?;

    let mut first = Command::new(env::current_exe()?)
        .args(["frozen", "--uri", &cluster.uri(), "--folder"])
        .arg(&file)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pid = first.id().ok_or("the first process is gone")?;
    let mut keyboard = first.stdin.take().ok_or("no standard input")?;
    until(&file, |what| matches!(what, What::Granted { .. })).await?;

    scene.note(What::Waits);
    let mutex = locks.mutex(LOCK);
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    until(&file, |what| matches!(what, What::Looked { .. })).await?;
    let at = now();
    signal::freeze(pid)?;
    scene.note_at(at, Process::First, What::Frozen);
    let frozen = Instant::now();

    let handle = waiting.await??;
    scene.note(What::Granted {
        token: handle.token().as_i64(),
    });
    sleep(PACE).await;
    scene.write(&handle).await?;
    sleep(FROZEN.saturating_sub(frozen.elapsed())).await;
    // It is there when the process wakes up.
    keyboard.write_all(b"go on\n").await?;
    let at = now();
    signal::thaw(pid)?;
    scene.note_at(at, Process::First, What::Thawed);
    let status = first.wait().await?;
    if !status.success() {
        return Err(format!("the first process ended with {status}").into());
    }
    sleep(PACE).await;
    if let Some(reason) = handle.lost_reason() {
        return Err(format!("the second process lost the lock: {reason}").into());
    }
    scene.note(What::End);
    handle.release().await?;
    locks.shutdown().await;
    Ok(())
}

/// Waits until a line is in the record.
async fn until(file: &Path, is_it: impl Fn(&What) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        let lines: Vec<Line> = record::read(file)?;
        if lines.iter().any(|line| is_it(&line.what)) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err("the first process did not come to its point".into());
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Draws the stored scene.
pub(super) fn draw(folder: &Path) -> Result<String> {
    let mut lines: Vec<Line> = record::read(&folder.join(RECORD))?;
    lines.sort_by_key(|line| line.at);
    Ok(picture::draw(&lines).ok_or("the record lacks a part of the scene")?)
}
