//! The runs of the job, as the database has them: the judge of the library's promises.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{DateTime, Document, doc},
    options::{CollectionOptions, WriteConcern},
};
use watchlock_testkit::stage::{Result, moment::since};

use crate::node::{LEASE, TICK};

/// Time beyond the lease that the job may rest: until the next tick, plus the delays of a busy machine.
const MARGIN: Duration = TICK.saturating_add(Duration::from_secs(1));

/// One document for each run. Nothing in it keeps a tick from being entered twice, as that is the election's task.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Collection<Document>);

/// The ledger's result at the end.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) runs: usize,
    pub(crate) leaders: usize,
    pub(crate) longest_rest: Duration,
}

struct Run {
    tick: i64,
    token: i64,
    by: String,
    at: SystemTime,
}

impl Ledger {
    pub(crate) fn of(database: &Database) -> Self {
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .build();
        Self(database.collection_with_options("runs", options))
    }

    pub(crate) async fn enter(&self, tick: i64, token: i64, by: &str) -> Result<()> {
        let run = doc! { "tick": tick, "token": token, "by": by, "at": DateTime::now() };
        self.0.insert_one(run).await?;
        Ok(())
    }

    /// Looks for violations.
    pub(crate) async fn judge(&self) -> Result<Verdict> {
        let runs = self.0.find(doc! {}).sort(doc! { "tick": 1, "token": 1 }).await?;
        let runs: Vec<Document> = runs.try_collect().await?;
        let runs: Vec<Run> = runs.iter().map(Run::read).collect::<Result<_>>()?;
        let mut verdict = Verdict {
            runs: runs.len(),
            leaders: usize::from(!runs.is_empty()),
            longest_rest: Duration::ZERO,
        };
        for (earlier, later) in runs.iter().zip(runs.iter().skip(1)) {
            let (one, other) = (&earlier.by, &later.by);
            if earlier.tick == later.tick {
                return Err(format!("tick {} was run twice, by {one} and by {other}", later.tick).into());
            }
            if earlier.token > later.token {
                return Err(format!("{other} ran tick {} after {one} had been elected", later.tick).into());
            }
            if earlier.token == later.token && one != other {
                return Err(format!("{one} and {other} led with the same token, {}", later.token).into());
            }
            verdict.leaders += usize::from(earlier.token != later.token);
            verdict.longest_rest = verdict.longest_rest.max(since(earlier.at, later.at));
        }
        if verdict.longest_rest > LEASE + MARGIN {
            let rest = verdict.longest_rest;
            return Err(
                format!("nobody ran the job for {rest:?}; the lease is {LEASE:?}, the margin {MARGIN:?}").into(),
            );
        }
        Ok(verdict)
    }
}

impl Run {
    fn read(document: &Document) -> Result<Self> {
        Ok(Self {
            tick: document.get_i64("tick")?,
            token: document.get_i64("token")?,
            by: document.get_str("by")?.to_owned(),
            at: document.get_datetime("at")?.to_system_time(),
        })
    }
}
