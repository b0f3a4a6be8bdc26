//! Exclusion and tokens: several clients contend, and a judge looks at what they held.
//!
//! Each client has its own driver client, and so shares nothing with the others but the server. Some acquires give up,
//! some are dropped, some holds are of a fixed length and outlast it, and some locks are broken.

use std::{
    collections::BTreeMap,
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

use super::{
    ground::{Ground, told},
    report::{Check, Verdict},
};
use crate::{connection::to_its_end, exit::Failure, text::span_of};

pub(super) const SECTION: &str = "exclusion";

/// Clients, and the tasks of each.
const CLIENTS: u64 = 4;
const TASKS: u64 = 3;

/// Acquires of each task, however little time there is.
const ROUNDS: u64 = 5;

/// Permits of the semaphore.
const PERMITS: u32 = 3;

/// A writer takes all that readers can.
const WRITER: u32 = 1_000;

/// A short lease, for holds that outlast theirs: more than twice the default skew margin.
const SHORT: Duration = Duration::from_millis(2_500);

/// Maximum time for an acquire that does not give up, beyond the time of the check: every hold ends long before.
const ENDED: Duration = Duration::from_secs(30);

/// A hold, as its client saw it.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) name: String,
    pub(super) client: u64,
    pub(super) permits: u32,
    pub(super) token: i64,
    /// Read before the handle said that it was valid.
    pub(super) from: Instant,
    /// The same, at the end; a handle does not become valid again. So it was valid all the time from the one to the
    /// other.
    pub(super) until: Instant,
}

impl Hold {
    /// Says it in a line, with times since `begun`.
    fn line(&self, begun: Instant) -> String {
        let Self {
            name,
            client,
            permits,
            token,
            from,
            until,
        } = self;
        let at = |moment: &Instant| moment.saturating_duration_since(begun);
        let (from, until) = (at(from), at(until));
        format!("`{name}`: client {client} had {permits} permits under token {token} from {from:?} to {until:?}")
    }
}

/// What the tasks of a check have recorded.
#[derive(Debug, Default)]
struct Record {
    holds: Vec<Hold>,
    /// Breaks: the lock, and the time right before.
    breaks: Vec<(String, Instant)>,
    counted: u64,
}

/// How a check contends.
#[derive(Clone, Copy, Debug)]
enum Contest {
    Mutex,
    Semaphore,
    ReadersAndWriters,
    Documents,
    /// Mutexes whose holders outlast a fixed length, or are broken.
    TakenAway,
}

impl Contest {
    fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutexes",
            Self::Semaphore => "semaphores",
            Self::ReadersAndWriters => "readers and writers",
            Self::Documents => "documents",
            Self::TakenAway => "locks taken away",
        }
    }

    fn capacity(self) -> u32 {
        match self {
            Self::Semaphore => PERMITS,
            Self::ReadersAndWriters => WRITER,
            Self::Mutex | Self::Documents | Self::TakenAway => 1,
        }
    }
}

/// Contends for about this long.
pub(super) async fn run(
    ground: &Ground<'_>,
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
        let check = contend(ground, &clients, contest, seed, share).await?;
        let hangs = check.verdict == Verdict::Broken && check.evidence.is_none();
        checks.push(check);
        if hangs {
            // The others would take as long.
            break;
        }
    }
    Ok(())
}

async fn contend(
    ground: &Ground<'_>,
    clients: &[LockClient],
    contest: Contest,
    seed: u64,
    time: Duration,
) -> Result<Check, Failure> {
    let documents = ground.collection("documents");
    let counted = ground.collection("counted");
    for name in ["a", "b"] {
        let (documents, counted) = (documents.clone(), counted.clone());
        let name = name_of(contest, name);
        let written = async move {
            documents.insert_one(doc! { "_id": &name }).await?;
            counted.insert_one(doc! { "_id": name, "n": 0_i64 }).await
        };
        told(to_its_end(written).await?)?;
    }
    let record = Arc::new(Mutex::new(Record::default()));
    let end = Instant::now() + time;
    let mut tasks: JoinSet<Result<(), AcquireError>> = JoinSet::new();
    for (number, locks) in (0..).zip(clients) {
        for task in 0..TASKS {
            let player = Player {
                locks: locks.clone(),
                contest,
                documents: documents.clone(),
                counted: counted.clone(),
                client: number,
                random: Random::new(seed ^ (number * TASKS + task)),
                record: record.clone(),
            };
            tasks.spawn(player.play(end));
        }
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Failure::from(error)),
                Err(stopped) => return Err(Failure::internal(format!("a task was stopped: {stopped}"))),
            }
        }
        Ok(())
    };
    let Ok(ended) = timeout(time + ENDED, all).await else {
        let found = format!("an acquire has not come to its end {} after all holds", span_of(ENDED));
        return Ok(Check::broken(SECTION, contest.name(), found));
    };
    ended?;
    let record = std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
    let count = told(to_its_end(async move { sum(&counted, contest).await }).await?)?;
    Ok(judge(contest, record, count))
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
    random: Random,
    record: Arc<Mutex<Record>>,
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
        // For ever is not among the time-outs.
        let patience = patience.unwrap_or(10 * ENDED);
        let writes = self.client.is_multiple_of(3);
        Ok(match self.contest {
            Contest::Mutex => (self.locks.mutex(name).acquire().timeout(patience).await?.into(), 1),
            Contest::Semaphore => {
                let permits = if writes { 2 } else { 1 };
                let semaphore = self.locks.semaphore(name, PERMITS);
                let held = semaphore.acquire_many(permits).timeout(patience).await?;
                (held.into(), permits)
            }
            Contest::ReadersAndWriters if writes => {
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
                let held = match writes {
                    true => mutex.acquire().fixed(SHORT).timeout(patience).await?,
                    false => mutex.acquire().timeout(patience).await?,
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
            self.note(|record| record.breaks.push((name.to_owned(), at)));
            // What comes of it is in the history.
            drop(self.locks.break_lock(name).await);
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

/// Judges what the tasks of a contest have recorded.
fn judge(contest: Contest, record: Record, sum: u64) -> Check {
    let Record {
        mut holds,
        breaks,
        counted,
    } = record;
    // A break takes the lock from a holder that learns of it a hop later: the promise does not cover that hop.
    for hold in &mut holds {
        for (name, at) in &breaks {
            if *name == hold.name && hold.from < *at {
                hold.until = hold.until.min(*at);
            }
        }
    }
    let count = holds.len();
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &holds {
        by_name.entry(&hold.name).or_default().push(hold);
    }
    let name = contest.name();
    for holds in by_name.values() {
        if let Some(evidence) = overlap(holds, contest.capacity()) {
            return Check::broken(SECTION, name, "holders at once beyond the lock's capacity").with(evidence);
        }
        if let Some(evidence) = tokens(holds, contest.capacity()) {
            return Check::broken(SECTION, name, "a fencing token did not rise").with(evidence);
        }
    }
    // Holders that were interrupted may have counted, too.
    if matches!(contest, Contest::Mutex | Contest::Documents) && sum < counted {
        let found = format!("{counted} holders have counted up one after the other, and {sum} is the number");
        return Check::broken(SECTION, name, found);
    }
    if count == 0 {
        return Check::skipped(SECTION, name, "nobody got a lock in the time of the check");
    }
    let broken = match breaks.len() {
        0 => String::new(),
        count => format!(", {count} breaks"),
    };
    Check::kept(SECTION, name, format!("{count} holds of {CLIENTS} clients{broken}"))
}

/// Finds holders that were valid at once and have more permits than there are.
fn overlap(holds: &[&Hold], capacity: u32) -> Option<String> {
    let mut sorted = holds.to_vec();
    sorted.sort_by_key(|hold| hold.from);
    for (index, hold) in sorted.iter().enumerate() {
        let at_once: Vec<&&Hold> = sorted[..index].iter().filter(|other| other.until > hold.from).collect();
        let taken: u32 = at_once.iter().map(|other| other.permits).sum();
        if taken + hold.permits > capacity {
            let begun = at_once.first().map_or(hold.from, |first| first.from);
            let lines = at_once.into_iter().chain([hold]).map(|hold| hold.line(begun));
            return Some(lines.collect::<Vec<_>>().join("\n"));
        }
    }
    None
}

/// Finds a token that was issued twice, or that is smaller than that of a hold which had to end before.
fn tokens(holds: &[&Hold], capacity: u32) -> Option<String> {
    let begun = holds.iter().map(|hold| hold.from).min()?;
    let fails = |first: &Hold, second: &Hold| {
        // Those that hold at once may learn of it in any order.
        let excludes = first.permits + second.permits > capacity;
        first.token == second.token || (excludes && first.until < second.from && first.token > second.token)
    };
    let mut sorted = holds.to_vec();
    sorted.sort_by_key(|hold| hold.from);
    sorted.iter().enumerate().find_map(|(index, second)| {
        let first = sorted[..index].iter().find(|first| fails(first, second))?;
        Some(format!("{}\n{}", first.line(begun), second.line(begun)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(begun: Instant, permits: u32, token: i64, (from, until): (u64, u64)) -> Hold {
        let at = |millis| begun + Duration::from_millis(millis);
        Hold {
            name: "a".to_owned(),
            client: 1,
            permits,
            token,
            from: at(from),
            until: at(until),
        }
    }

    fn judged(contest: Contest, holds: Vec<Hold>, breaks: Vec<(String, Instant)>) -> Check {
        let record = Record {
            holds,
            breaks,
            counted: 0,
        };
        judge(contest, record, 0)
    }

    #[test]
    fn holders_at_once_are_found() {
        let begun = Instant::now();
        let verdict = |contest, holds, breaks| format!("{:?}", judged(contest, holds, breaks).verdict);
        let after = vec![hold(begun, 1, 1, (0, 5)), hold(begun, 1, 2, (5, 9))];
        assert_eq!(verdict(Contest::Mutex, after, vec![]), "Kept");
        let at_once = || vec![hold(begun, 1, 1, (0, 5)), hold(begun, 1, 2, (4, 9))];
        assert_eq!(verdict(Contest::Mutex, at_once(), vec![]), "Broken");
        assert_eq!(verdict(Contest::Semaphore, at_once(), vec![]), "Kept");
        // Of a lock that was broken meanwhile.
        let breaks = vec![("a".to_owned(), begun + Duration::from_millis(3))];
        assert_eq!(verdict(Contest::TakenAway, at_once(), breaks), "Kept");
        let many = (1..=4).map(|token| hold(begun, 1, token, (0, 9))).collect();
        assert_eq!(verdict(Contest::Semaphore, many, vec![]), "Broken");
    }

    #[test]
    fn tokens_that_do_not_rise_are_found() {
        let begun = Instant::now();
        let holds = [
            hold(begun, 1, 2, (0, 5)),
            hold(begun, 1, 1, (6, 9)),
            hold(begun, 1, 3, (10, 11)),
        ];
        assert!(tokens(&holds.iter().collect::<Vec<_>>(), 1).is_some());
        let twice = [hold(begun, 1, 2, (0, 5)), hold(begun, 1, 2, (0, 9))];
        assert!(tokens(&twice.iter().collect::<Vec<_>>(), 9).is_some());
        let risen = [hold(begun, 1, 1, (0, 5)), hold(begun, 1, 2, (6, 9))];
        assert!(tokens(&risen.iter().collect::<Vec<_>>(), 1).is_none());
    }

    #[test]
    fn a_lost_count_is_found() {
        let begun = Instant::now();
        let record = || Record {
            holds: vec![hold(begun, 1, 1, (0, 5))],
            counted: 3,
            ..Record::default()
        };
        assert_eq!(format!("{:?}", judge(Contest::Mutex, record(), 2).verdict), "Broken");
        assert_eq!(format!("{:?}", judge(Contest::Mutex, record(), 3).verdict), "Kept");
    }
}
