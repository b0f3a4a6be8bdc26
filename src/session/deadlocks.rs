//! Waits that last: they are shown in what their tasks hold, and looked at as long as they do.
//!
//! The branches of a `join!` are one [`Task`]: while one of them waits and another goes on, the task is polled without cause
//! from here, and the wait counts anew.

use std::{
    collections::{HashMap, HashSet},
    future::{pending, poll_fn},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use scopeguard::defer;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{Session, hold::Hold, task::Task, timer_queue::AT_A_TIME};
use crate::{
    deadlock::{Deadlock, Looks, awaited_lock},
    error::{OperateError, ServerError},
    protocol::{Awaited, Exchange, ServerTime, State},
    store::{Selection, View},
    telemetry,
};

/// Part of the lease from which a wait is long: as often is a hold renewed by default, and no renewal is under way for as
/// long.
const LONG_FROM: u32 = 5;

/// Maximum time that a list of deadlocks waits for the renewals that make one certain.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// The long waits of a session, and the looks at them.
#[derive(Debug, Default)]
pub(super) struct LongWaits {
    /// By the keys of the tasks in line.
    waits: HashMap<u64, LongWait>,
    looks: Looks,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct LongWait {
    task: Task,
    lock: String,
    number: i64,
    /// When it has had that number for long: it is not shown before.
    long_from: Instant,
    /// Whether a renewal has shown it: its task holds a lock.
    is_shown: bool,
    is_told: bool,
    /// Number of looks that have counted it in one deadlock, and the tokens of the holders in that.
    found: (usize, Vec<i64>),
    /// Set if it is to end then.
    ends: Option<oneshot::Sender<Deadlock>>,
}

impl LongWaits {
    /// Returns the locks that the tasks of these holds wait for, by the entries of the holds.
    pub(super) fn awaited(&mut self, holds: &[Arc<Hold>]) -> HashMap<String, Awaited> {
        if self.waits.is_empty() {
            return HashMap::new();
        }
        let mut waits = HashMap::new();
        for wait in self.waits.values_mut() {
            // A task that waits for several at once may go on with any.
            let several = waits.contains_key(&wait.task);
            waits.insert(wait.task, Some(wait).filter(|_| !several));
        }
        let now = Instant::now();
        let mut awaited = HashMap::<String, Awaited>::new();
        for hold in holds {
            let Some(task) = hold.task() else { continue };
            let Some(Some(wait)) = waits.get_mut(&task) else {
                continue;
            };
            // A task that waits for more of what it has may have given that to another: each permit to one that works.
            if wait.lock == hold.name || wait.long_from > now {
                continue;
            }
            wait.is_shown = true;
            let number = wait.number;
            // Readers of one client share an entry, which stays for as long as any of them waits.
            if awaited.get(&hold.id).is_none_or(|other| other.wait > number) {
                let (lock, wait) = (wait.lock.clone(), number);
                awaited.insert(hold.id.clone(), Awaited { lock, wait });
            }
        }
        awaited
    }
}

impl Session {
    /// Waits until the task's wait for `lock` is found to be part of a deadlock; if it does not end then, for ever. Await it
    /// in the task, beside the answer.
    pub(super) async fn deadlocked(&self, key: u64, lock: &str, ends: bool) -> Deadlock {
        let long = self.config.lease / LONG_FROM;
        // Holds of documents don't show what their tasks wait for.
        if self.store.is_in_place() {
            return pending().await;
        }
        sleep(long).await;
        let (told, mut telling) = oneshot::channel();
        let wait = LongWait {
            task: Task::current().await,
            lock: lock.to_owned(),
            number: self.number_of_wait(),
            long_from: Instant::now(),
            is_shown: false,
            is_told: false,
            found: Default::default(),
            ends: ends.then_some(told),
        };
        self.table().long_waits.waits.insert(key, wait);
        defer! {
            let long = &mut self.table().long_waits;
            long.waits.remove(&key);
            if long.waits.is_empty() {
                long.looks = Looks::default();
            }
        }
        let (mut is_first, mut polled_at) = (true, None::<Instant>);
        let mut telling = pin!(async move {
            match (&mut telling).await {
                Ok(deadlock) => deadlock,
                Err(_) => pending().await,
            }
        });
        poll_fn(|context| {
            let polled = telling.as_mut().poll(context);
            // It goes on with something else if that happens often; a look at the end of a lease is no sign of that.
            if polled.is_pending()
                && !std::mem::take(&mut is_first)
                && let Some(before) = polled_at.replace(Instant::now())
                && before.elapsed() < self.config.lease / 2
            {
                let number = self.number_of_wait();
                if let Some(wait) = self.table().long_waits.waits.get_mut(&key) {
                    (wait.number, wait.long_from) = (number, Instant::now() + long);
                }
            }
            polled
        })
        .await
    }

    fn number_of_wait(&self) -> i64 {
        i64::try_from(self.ids.number()).unwrap_or(i64::MAX)
    }

    /// Looks at the locks for which tasks have waited for long that hold others, after a renewal has shown that.
    pub(super) fn look_at_long_waits(self: &Arc<Self>) {
        let pause = self.config.lease / LONG_FROM / 2;
        {
            let long = &mut self.table().long_waits;
            if long.looked_at.is_some_and(|at| at.elapsed() < pause) {
                return;
            }
            long.looked_at = Some(Instant::now());
        }
        let session = self.clone();
        self.spawn(async move {
            let awaited = {
                let table = session.table();
                let shown = table.long_waits.waits.values().filter(|wait| wait.is_shown);
                shown.map(|wait| wait.lock.clone()).collect::<HashSet<String>>()
            };
            // One that lasts would prove nothing.
            if let Ok(Ok(Some((locks, exchange)))) = timeout(pause, session.read_awaited(awaited)).await {
                session.looked_at_long_waits(&locks, &exchange);
            }
        });
    }

    /// Reads these locks, those for which their holders wait, and so on; `None`: they are more than go together.
    async fn read_awaited(
        self: &Arc<Self>,
        mut asked: HashSet<String>,
    ) -> Result<Option<(HashMap<String, State>, Exchange)>, ServerError> {
        let mut next: Vec<String> = asked.iter().cloned().collect();
        let mut locks = HashMap::new();
        loop {
            next.sort_unstable();
            if asked.len() > AT_A_TIME {
                return Ok(None);
            }
            let (documents, exchange) = self.read_names(View::Newest, &next).await?;
            next.clear();
            for (name, state) in documents {
                let Ok(state) = state else { continue };
                for awaited in state.holders.iter().filter_map(awaited_lock) {
                    if asked.insert(awaited.to_owned()) {
                        next.push(awaited.to_owned());
                    }
                }
                locks.insert(name, state);
            }
            if next.is_empty() {
                return Ok(Some((locks, exchange)));
            }
        }
    }

    /// Reports the deadlocks that a look has found, once for each wait of this client, and ends the waits that are to end:
    /// that of the youngest hold first, and each of the others if the deadlock is still there two counted looks later. One
    /// would be too few, as the client of the younger may look just after this one.
    fn looked_at_long_waits(&self, locks: &HashMap<String, State>, exchange: &Exchange) {
        let Some(now) = exchange.now else { return };
        let (mut new, mut ended) = (Vec::new(), Vec::new());
        {
            let long = &mut self.table().long_waits;
            let knots = long.looks.see(locks, now);
            for knot in knots.iter().filter(|knot| knot.is_certain) {
                long.looks.note_counted(knot, now);
                let mut held = knot.held.clone();
                // Locks granted at the same time can have the same token.
                held.sort_unstable_by_key(|(name, holder)| (std::cmp::Reverse(holder.token), *name));
                let tokens: Vec<i64> = held.iter().map(|(_, holder)| holder.token).collect();
                let mut own = Vec::new();
                for (younger, holder) in held.iter().enumerate() {
                    let shown = holder.1.shown.as_ref().and_then(|shown| shown.awaits.as_ref());
                    let number = shown.map(|awaited| awaited.wait);
                    let is_own = self.ids.made(&holder.1.id);
                    let Some(wait) = long
                        .waits
                        .values_mut()
                        .find(|wait| is_own && Some(wait.number) == number)
                    else {
                        continue;
                    };
                    // A task can hold several of the locks: the youngest decides.
                    if own.contains(&wait.number) {
                        continue;
                    }
                    own.push(wait.number);
                    if !std::mem::replace(&mut wait.is_told, true) {
                        new.push((wait.lock.clone(), knot.circle(*holder, locks)));
                    }
                    let before = if wait.found.1 == tokens { wait.found.0 } else { 0 };
                    wait.found = (before + 1, tokens.clone());
                    if before >= 2 * younger
                        && let Some(ends) = wait.ends.take()
                    {
                        ended.push((ends, knot.circle(*holder, locks)));
                    }
                }
            }
        }
        for (lock, deadlock) in &new {
            telemetry::deadlock(lock, deadlock);
        }
        // With no mutex held, as that wakes the task. It may be gone.
        ended.into_iter().for_each(|(ends, deadlock)| drop(ends.send(deadlock)));
    }

    /// Lists all deadlocks. Where there may be one, it looks until that is certain, or every holder in it has had the time
    /// of its lease to show that it is none, a minute at most.
    pub(crate) async fn deadlocks(self: &Arc<Self>) -> Result<Vec<Deadlock>, OperateError> {
        if self.store.is_in_place() {
            return Ok(Vec::new());
        }
        let selection = Selection {
            awaits: true,
            most: Some(AT_A_TIME),
            ..Selection::default()
        };
        let listed = self.list(&selection, View::Newest).await?;
        // Of those beyond the limit, none is taken for one that blocks another.
        let mut locks: HashMap<String, State> = listed.found.into_iter().collect();
        let mut now = listed.now;
        let begun = Instant::now();
        let mut looks = Looks::default();
        loop {
            let longest = {
                let knots = looks.see(&locks, now.unwrap_or(ServerTime(0)));
                let doubtful = knots.iter().filter(|knot| !knot.is_certain);
                let leases = doubtful.flat_map(|knot| knot.held.iter().map(|(_, holder)| holder.lease));
                let longest = Duration::from_millis(leases.max().unwrap_or(0).unsigned_abs());
                let longest = longest.min(LISTED_WITHIN);
                if begun.elapsed() >= longest {
                    let certain = knots.iter().filter(|knot| knot.is_certain);
                    let circles = certain.filter_map(|knot| Some(knot.circle(*knot.held.first()?, &locks)));
                    return Ok(circles.collect());
                }
                longest
            };
            sleep(longest / 16).await;
            let mut names: Vec<String> = locks.keys().cloned().collect();
            names.sort_unstable();
            let (documents, exchange) = self.read_names(View::Newest, &names).await?;
            now = exchange.now;
            locks = documents
                .into_iter()
                .filter_map(|(name, state)| Some((name, state.ok()?)))
                .collect();
        }
    }
}
