//! Many client processes that contend for one lock, and are judged.

use std::{env, fs, path::PathBuf, process::Stdio, time::Duration};

use futures::future::try_join_all;
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};
use watchlock_testkit::Cluster;

use super::{DATABASE, SAMPLES, gauge::Gauge};
use crate::{
    Result,
    clock::wall_ahead,
    director,
    history::{JOURNAL, SERVERS},
    journal::{Entry, Note},
    oplog::Reader,
    record::Log,
};

/// Maximum time for 64 processes to give back their locks and end, on a slow machine.
const FAREWELL: Duration = Duration::from_secs(120);

pub(super) async fn run(count: usize, lasts: Duration, folder: PathBuf) -> Result<bool> {
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
    let gauge = Gauge::new(&cluster, pids).await?;
    let mut earlier = gauge.read().await?;
    for _ in 0..SAMPLES {
        sleep(lasts / SAMPLES).await;
        let later = gauge.read().await?;
        println!("  {}", later.since(&earlier));
        earlier = later;
        // The log has to be read before it overflows.
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
