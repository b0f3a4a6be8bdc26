//! Exclusion and tokens: several clients contend, and a judge looks at what they held.
//!
//! Each client has its own driver client, and so shares nothing with the others but the server. Some acquires give up,
//! and some are dropped.

mod judge;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use watchlock::{Held, LockClient, errors::AcquireError};
use watchlock_proofs::Random;

use super::report::{Check, Verdict};
use crate::{
    exit::Failure,
    ground::{Ground, asked},
    text::span_of,
};

use judge::{Hold, judge};

pub(super) const SECTION: &str = "exclusion";

/// Clients, and the tasks of each.
const CLIENTS: usize = 6;
const TASKS: u64 = 3;

/// Acquires of each task, however little time there is.
const ROUNDS: u64 = 5;

/// Permits of the semaphore.
const PERMITS: u32 = 3;

/// A writer takes all that readers can.
const WRITER: u32 = 1_000;

/// How a check contends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Contest {
    Mutex,
    Semaphore,
    ReadersAndWriters,
    Documents,
    /// Mutexes while the primary of the set steps down.
    FailOver,
}

impl Contest {
    fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutexes",
            Self::Semaphore => "semaphores",
            Self::ReadersAndWriters => "readers and writers",
            Self::Documents => "documents",
            Self::FailOver => "contention through it",
        }
    }

    fn capacity(self) -> u32 {
        match self {
            Self::Semaphore => PERMITS,
            Self::ReadersAndWriters => WRITER,
            Self::Mutex | Self::Documents | Self::FailOver => 1,
        }
    }
}

/// Contends for about this long.
pub(super) async fn run(
    ground: &Ground<'_>,
    patience: Duration,
    (seed, time): (u64, Duration),
    checks: &mut Vec<Check>,
) -> Result<(), Failure> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(ground.client().await?);
    }
    let contests = [
        Contest::Mutex,
        Contest::Semaphore,
        Contest::ReadersAndWriters,
        Contest::Documents,
    ];
    let share = time / u32::try_from(contests.len()).unwrap_or(1);
    for contest in contests {
        let check = contend(ground, patience, &clients, contest, seed, share).await?;
        let hangs = check.verdict == Verdict::Inconclusive;
        checks.push(check);
        if hangs {
            // The others would take as long.
            break;
        }
    }
    Ok(())
}

/// Makes all clients contend for this long, and judges what they held.
pub(super) async fn contend(
    ground: &Ground<'_>,
    patience: Duration,
    clients: &[LockClient],
    contest: Contest,
    seed: u64,
    time: Duration,
) -> Result<Check, Failure> {
    let documents = ground.collection("documents");
    let both = ["a", "b"].map(|name| doc! { "_id": name_of(contest, name) });
    let written = documents.clone();
    asked(async move { written.insert_many(both).await }).await?;
    let record = Arc::new(Mutex::new(Vec::new()));
    let end = Instant::now() + time;
    let mut tasks: JoinSet<Result<(), AcquireError>> = JoinSet::new();
    for (locks, client) in clients.iter().zip(0..) {
        for task in 0..TASKS {
            let player = Player {
                locks: locks.clone(),
                contest,
                documents: documents.clone(),
                client,
                writes: (client + task).is_multiple_of(3),
                random: Random::new(seed ^ (client * TASKS + task)),
                record: record.clone(),
            };
            tasks.spawn(player.play(end));
        }
    }
    let played = async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|stopped| Failure::internal(format!("a task was stopped: {stopped}")))??;
        }
        Ok::<_, Failure>(())
    };
    let Ok(played) = timeout(time + patience, played).await else {
        let found = format!(
            "an acquire has not come to its end {} after the time",
            span_of(patience)
        );
        return Ok(Check::inconclusive(SECTION, contest.name(), found));
    };
    played?;
    let record = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(judge(contest, record))
}

fn name_of(contest: Contest, name: &str) -> String {
    format!("{} {name}", contest.name())
}

/// One task that acquires, holds and gives back.
struct Player {
    locks: LockClient,
    contest: Contest,
    documents: Collection<Document>,
    client: u64,
    /// Whether it takes all that readers can, or two permits.
    writes: bool,
    random: Random,
    record: Arc<Mutex<Vec<Hold>>>,
}

impl Player {
    async fn play(mut self, end: Instant) -> Result<(), AcquireError> {
        let mut rounds = 0..;
        while rounds.next() < Some(ROUNDS) || Instant::now() < end {
            let name = name_of(self.contest, if self.random.below(3) == 0 { "b" } else { "a" });
            // Some give up, and the acquires of some are dropped.
            let patience = (self.random.below(4) == 0).then(|| Duration::from_millis(5 + self.random.below(50)));
            let dropped = (self.random.below(8) == 0).then(|| Duration::from_millis(self.random.below(30)));
            let acquiring = self.acquire(&name, patience);
            let acquired = match dropped {
                Some(after) => match timeout(after, acquiring).await {
                    Ok(acquired) => acquired,
                    Err(_) => continue,
                },
                None => acquiring.await,
            };
            match acquired {
                Ok((held, permits)) => self.hold(&name, held, permits).await,
                Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }) if patience.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn acquire(&self, name: &str, patience: Option<Duration>) -> Result<(Held, u32), AcquireError> {
        // For ever is not among the time-outs; this is longer than a contest may take.
        let patience = patience.unwrap_or(Duration::from_secs(7_200));
        Ok(match self.contest {
            Contest::Mutex | Contest::FailOver => (self.locks.mutex(name).acquire().timeout(patience).await?.into(), 1),
            Contest::Semaphore => {
                let permits = if self.writes { 2 } else { 1 };
                let semaphore = self.locks.semaphore(name, PERMITS);
                let held = semaphore.acquire_many(permits).timeout(patience).await?;
                (held.into(), permits)
            }
            Contest::ReadersAndWriters if self.writes => {
                let held = self.locks.rw_lock(name).write().timeout(patience).await?;
                (held.into(), WRITER)
            }
            Contest::ReadersAndWriters => (self.locks.rw_lock(name).read().timeout(patience).await?.into(), 1),
            Contest::Documents => {
                let documents = self.locks.documents(self.documents.clone());
                let held = documents.acquire(name).timeout(patience).await?;
                (held.into(), 1)
            }
        })
    }

    async fn hold(&mut self, name: &str, held: Held, permits: u32) {
        let from = Instant::now();
        if !held.is_held() {
            return;
        }
        sleep(Duration::from_millis(self.random.below(6))).await;
        let until = Instant::now();
        // A hold that was lost meanwhile was valid at its begin at least.
        let until = if held.is_held() { until } else { from };
        self.record.lock().unwrap_or_else(PoisonError::into_inner).push(Hold {
            name: name.to_owned(),
            client: self.client,
            permits,
            token: held.token().as_i64(),
            from,
            until,
        });
        // A release that is not confirmed ends at the end of the lease.
        drop(held.release().await);
    }
}
