//! The resources in use, of a server and of a client process: what must stay flat in a soak.

use std::{collections::BTreeMap, fs, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};
use tokio::runtime::Handle;

use crate::{Result, locks::LOCKS};

/// Pause between two readings.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Reads a server, and the number of the locks' documents.
pub(crate) async fn of_server(database: &Database) -> Result<BTreeMap<String, u64>> {
    let admin = database.client().database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1, "tcmalloc": 1 }).await?;
    let number = |path: &[&str]| number(&status, path).unwrap_or(0);
    let allocated = number(&["tcmalloc", "generic", "current_allocated_bytes"]);
    let cached = number(&["wiredTiger", "cache", "bytes currently in the cache"]);
    let documents = database
        .collection::<Document>(LOCKS)
        .estimated_document_count()
        .await?;
    let figures = [
        // Without the storage engine's cache, which it fills up to its limit whatever happens.
        ("server heap, KB", allocated.saturating_sub(cached) / 1024),
        ("server cursors", number(&["metrics", "cursor", "open", "total"])),
        ("server connections", number(&["connections", "current"])),
        (
            "server sessions",
            number(&["logicalSessionRecordCache", "activeSessionsCount"]),
        ),
        ("documents", documents),
    ];
    Ok(figures.map(|(figure, value)| (figure.to_owned(), value)).into())
}

/// Reads this process.
pub(crate) fn of_this_process() -> BTreeMap<String, u64> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let tasks = Handle::current().metrics().num_alive_tasks() as u64;
    let figures = [("client memory, KB", memory.unwrap_or(0)), ("client tasks", tasks)];
    figures.map(|(figure, value)| (figure.to_owned(), value)).into()
}

/// Returns a number somewhere in a document.
fn number(document: &Document, path: &[&str]) -> Option<u64> {
    let (last, path) = path.split_last()?;
    let within = path
        .iter()
        .try_fold(document, |within, field| within.get_document(field).ok())?;
    match within.get(last)? {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the server counts some things in doubles"
        )]
        Bson::Double(number) => Some(*number as u64),
        _ => None,
    }
}
