//! Exclusion and tokens: several clients contend, and a judge looks at what they held.
//!
//! Each client has its own driver client, and so shares nothing with the others but the server. Some acquires give up,
//! some are dropped, some holds are of a fixed length and outlast it, and some locks are broken.

mod judge;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
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

use super::{
    pace::Pace,
    report::{Check, Verdict},
};
use crate::{
    connection::to_its_end,
    exit::Failure,
    ground::{Ground, asked},
    text::span_of,
};

use judge::{Break, Hold, Record, judge};

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

/// A short lease, for locks that are taken away and for holds that outlast theirs: more than twice the default skew
/// margin.
const SHORT: Duration = Duration::from_millis(2_500);

/// How a check contends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Contest {
    Mutex,
    Semaphore,
    ReadersAndWriters,
    Documents,
    /// Mutexes whose holders outlast a fixed length, or are broken.
    TakenAway,
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
            Self::TakenAway => "locks taken away",
            Self::FailOver => "contention through it",
        }
    }

    fn capacity(self) -> u32 {
        match self {
            Self::Semaphore => PERMITS,
            Self::ReadersAndWriters => WRITER,
            Self::Mutex | Self::Documents | Self::TakenAway | Self::FailOver => 1,
        }
    }
}

/// Contends for about this long.
pub(super) async fn run(
    ground: &Ground<'_>,
    pace: &Pace,
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
        Contest::TakenAway,
    ];
    let share = time / u32::try_from(contests.len()).unwrap_or(1);
    for contest in contests {
        let (check, ()) = contend(ground, pace, &clients, contest, seed, sleep(share)).await?;
        let verdict = check.verdict;
        let hangs = verdict == Verdict::Inconclusive || verdict == Verdict::Broken && check.evidence.is_none();
        checks.push(check);
        if hangs {
            // The others would take as long.
            break;
        }
    }
    Ok(())
}

/// Makes all clients contend until this is over, and judges what they held; returns how it ended too.
pub(super) async fn contend<T>(
    ground: &Ground<'_>,
    pace: &Pace,
    clients: &[LockClient],
    contest: Contest,
    seed: u64,
    meanwhile: impl Future<Output = T>,
) -> Result<(Check, T), Failure> {
    let documents = ground.collection("documents");
    let counted = ground.collection("counted");
    for name in ["a", "b"] {
        let (documents, counted) = (documents.clone(), counted.clone());
        let name = name_of(contest, name);
        let written = async move {
            documents.insert_one(doc! { "_id": &name }).await?;
            counted.insert_one(doc! { "_id": name, "n": 0_i64 }).await
        };
        asked(written).await?;
    }
    let record = Arc::new(Mutex::new(Record::default()));
    let goes_on = Arc::new(AtomicBool::new(true));
    let mut tasks: JoinSet<Result<(), AcquireError>> = JoinSet::new();
    for (locks, client) in clients.iter().zip(0..) {
        for task in 0..TASKS {
            let player = Player {
                locks: locks.clone(),
                contest,
                documents: documents.clone(),
                counted: counted.clone(),
                client,
                writes: (client + task).is_multiple_of(3),
                random: Random::new(seed ^ (client * TASKS + task)),
                record: record.clone(),
            };
            tasks.spawn(player.play(goes_on.clone()));
        }
    }
    let ended = meanwhile.await;
    goes_on.store(false, Ordering::Relaxed);
    let played = async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|stopped| Failure::internal(format!("a task was stopped: {stopped}")))??;
        }
        Ok::<_, Failure>(())
    };
    let Ok(played) = timeout(pace.patience, played).await else {
        let found = format!(
            "an acquire has not come to its end {} after the time",
            span_of(pace.patience)
        );
        // Eighteen tasks hold five times each, by five commands: most of them under one name, one after the other.
        return Ok((pace.late(contest.name(), (pace.patience, 450), found), ended));
    };
    played?;
    let record = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
    let count = asked(async move { sum(&counted, contest).await }).await?;
    Ok((judge(contest, record, count), ended))
}

/// Returns the sum of what the holders have counted.
async fn sum(counted: &Collection<Document>, contest: Contest) -> Result<u64, mongodb::error::Error> {
    let mut sum = 0;
    for name in ["a", "b"] {
        let found = counted.find_one(doc! { "_id": name_of(contest, name) }).await?;
        let n = found.and_then(|found| found.get_i64("n").ok()).unwrap_or(0);
        sum += u64::try_from(n).unwrap_or(0);
    }
    Ok(sum)
}

fn name_of(contest: Contest, name: &str) -> String {
    format!("{} {name}", contest.name())
}

/// One task that acquires, holds and gives back.
struct Player {
    locks: LockClient,
    contest: Contest,
    documents: Collection<Document>,
    counted: Collection<Document>,
    client: u64,
    /// Whether it takes all that readers can, or two permits, or holds of a fixed length.
    writes: bool,
    random: Random,
    record: Arc<Mutex<Record>>,
}

impl Player {
    async fn play(mut self, goes_on: Arc<AtomicBool>) -> Result<(), AcquireError> {
        let mut rounds = 0..;
        while rounds.next() < Some(ROUNDS) || goes_on.load(Ordering::Relaxed) {
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
            Contest::TakenAway => {
                let mutex = self.locks.mutex(name);
                let held = match self.writes {
                    true => mutex.acquire().fixed(SHORT).timeout(patience).await?,
                    false => mutex.acquire().lease(SHORT).timeout(patience).await?,
                };
                (held.into(), 1)
            }
        })
    }

    async fn hold(&mut self, name: &str, held: Held, permits: u32) {
        let from = Instant::now();
        if !held.is_held() {
            return;
        }
        let mut counted = false;
        if self.contest.capacity() == permits {
            counted = self.count(name).await;
        }
        let outlasts = matches!(self.contest, Contest::TakenAway) && self.random.below(40) == 0;
        let pause = if outlasts {
            SHORT + SHORT / 5
        } else {
            Duration::from_millis(self.random.below(6))
        };
        let mut until = from;
        let end = from + pause;
        loop {
            let look = Instant::now();
            if held.is_held() {
                until = look;
            }
            if look >= end {
                break;
            }
            sleep((end - look).min(Duration::from_millis(2))).await;
        }
        if matches!(self.contest, Contest::TakenAway) && self.random.below(6) == 0 {
            // By another holder's hand, or one's own: it is taken away all the same.
            let at = Instant::now();
            let below = match self.locks.break_lock(name).await {
                // The next holder has it in the same write.
                Ok(Some(after)) => {
                    let next = after.holders.first().map(|next| next.token.as_i64());
                    Some(next.unwrap_or(after.token.as_i64() + 1))
                }
                Ok(None) => Some(0),
                Err(_) => None,
            };
            let name = name.to_owned();
            self.note(|record| record.breaks.push(Break { name, at, below }));
        }
        let hold = Hold {
            name: name.to_owned(),
            client: self.client,
            permits,
            token: held.token().as_i64(),
            from,
            until,
        };
        // It still has the lock at this look, so nobody else has counted since its read.
        let sure = counted && held.is_held();
        self.note(|record| {
            record.holds.push(hold);
            record.counted += u64::from(sure);
        });
        // A release that is not confirmed ends at the end of the lease.
        drop(held.release().await);
    }

    /// Reads a number, and writes the next one: two holders at once would write the same. Returns whether it did.
    async fn count(&self, name: &str) -> bool {
        let (counted, name) = (self.counted.clone(), name.to_owned());
        let counting = async move {
            let found = counted.find_one(doc! { "_id": &name }).await?;
            let n = found.and_then(|found| found.get_i64("n").ok()).unwrap_or(0);
            counted
                .update_one(doc! { "_id": name }, doc! { "$set": { "n": n + 1 } })
                .await
        };
        matches!(to_its_end(counting).await, Ok(Ok(_)))
    }

    fn note(&self, note: impl FnOnce(&mut Record)) {
        note(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
