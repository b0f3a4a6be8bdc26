//! Many want one lock. Two workloads are played by the same code:
//!
//! - *hand-over*: whoever has released the lock wants it again as soon as somebody else has got it, and each holder
//!   holds for long enough that everybody waits by then. So every hand-over is one from a holder to somebody who
//!   waited, and the number of waiters stays the same.
//! - *contention*: whoever has released the lock wants it again at once. So a peer that lets newcomers in first looks
//!   fast, and its fairness shows at whose cost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinSet, time};

use super::{LEASE, Round, close, connect, fresh_name, millis};
use crate::{
    client::{Client, Result},
    engines::Engine,
    peers::Peer,
    statistics,
};

/// Time that the first holder leaves the others to connect and to wait, for a small crowd and for a great one.
const SETTLING: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1_500)];

/// Number of waiters from which a crowd is great.
pub(crate) const GREAT: usize = 50;

/// Maximum time for all who still wait to get the lock and to leave.
const LEAVING: Duration = Duration::from_secs(30);

/// Number of grants once it is over: whoever is granted afterwards waits for nobody.
const OVER: u64 = u64::MAX;

/// Maximum number of hand-overs of a round: their quantiles move no more.
const MOST: u64 = 3_000;

/// Number of hand-overs, at least, for which a round takes long enough.
const HAND_OVERS: u32 = 20;

/// Number of turns of each task in contention for which a round takes long enough.
const SOME: u32 = 10;

/// The size of a crowd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) waiters: usize,
    pub(crate) clients: usize,
    pub(crate) hold: Duration,
}

impl Crowd {
    pub(crate) fn case(&self) -> String {
        let many = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (waiters, clients) = (many(self.waiters, "waiter"), many(self.clients, "client"));
        format!("{waiters}, {clients}, hold {} ms", self.hold.as_millis())
    }

    /// Measures the time from the call of a release until the acquire of the next holder has returned.
    pub(crate) async fn hand_over(&self, peer: &Peer, engine: &Engine, time: Duration) -> Result<Round> {
        let (line, _) = self.play(peer, engine, true, time.max(self.hold * HAND_OVERS)).await?;
        let latencies = line.state().hand_overs.clone();
        Ok(Round {
            latencies,
            ..Round::default()
        })
    }

    /// Measures how long an acquire waits, how many there are in a second, and how they are shared out.
    pub(crate) async fn contend(&self, peer: &Peer, engine: &Engine, time: Duration) -> Result<Round> {
        let (line, took) = self.play(peer, engine, false, time.max(self.some_turns())).await?;
        let line = line.state();
        let mut round = Round {
            latencies: line.waits.clone(),
            ..Round::default()
        };
        let grants = line.waits.len();
        round.more("grants/s", rate(grants, took));
        let shares: Vec<f64> = line.shares.iter().map(|&share| f64::from(share)).collect();
        round.more("Jain's index", statistics::jain(&shares));
        let number = self.clients.min(shares.len());
        round.more("Jain's index of clients", statistics::jain(&by_client(&shares, number)));
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        round.less("overtaken by, mean", line.overtaken as f64 / grants.max(1) as f64);
        round.less("longest wait, ms", line.longest_wait);
        Ok(round)
    }

    /// Returns the time in which each task can have had its turn some times: with fewer, chance decides who had more.
    fn some_turns(&self) -> Duration {
        let tasks = u32::try_from(self.waiters + 1).unwrap_or(u32::MAX);
        self.hold * tasks * SOME
    }

    async fn play(&self, peer: &Peer, engine: &Engine, in_turn: bool, time: Duration) -> Result<(Arc<Line>, Duration)> {
        let clients = connect(peer, engine, self.clients, LEASE).await?;
        let first = peer.connect(&engine.address, LEASE).await?;
        let (name, tasks) = (fresh_name(), self.waiters + 1);
        let held = first.acquire(&name).await?;
        let line = Arc::new(Line::new(tasks));
        let mut playing = JoinSet::new();
        for (number, client) in clients.iter().cycle().take(tasks).enumerate() {
            playing.spawn(
                line.clone()
                    .stand(number, client.clone(), name.clone(), self.hold, in_turn),
            );
        }
        time::sleep(SETTLING[usize::from(self.waiters >= GREAT)]).await;
        line.begin();
        held.release().await?;
        let begun = Instant::now();
        let mut failed = None;
        let over = async {
            tokio::select! {
                () = time::sleep(time) => {}
                _ = line.until(|grants| grants >= MOST) => {}
                Some(ended) = playing.join_next() => {
                    failed = Some(ended.map_err(Into::into).flatten().err().unwrap_or_else(|| "left the line".into()));
                }
            }
        };
        over.await;
        let took = begun.elapsed();
        line.end();
        let leaving = time::timeout(LEAVING, async { while playing.join_next().await.is_some() {} });
        if leaving.await.is_err() {
            playing.shutdown().await;
        }
        close(clients).await;
        close(vec![first]).await;
        let overlaps = line.state().overlaps;
        if overlaps > 0 {
            return Err(format!("two held the lock at once, {overlaps} times").into());
        }
        failed.map_or(Ok((line, took)), Err)
    }
}

/// Returns the share of each client, over which the tasks are dealt out one by one.
fn by_client(shares: &[f64], clients: usize) -> Vec<f64> {
    let of_client = |client| shares.iter().skip(client).step_by(clients.max(1)).sum();
    (0..clients).map(of_client).collect()
}

fn rate(count: usize, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let count = count as f64;
    count / took.as_secs_f64()
}

/// The view of somebody who stands beside the line and writes down who gets the lock.
struct Line {
    state: Mutex<State>,
    /// Number of grants so far, or [`OVER`].
    grants: watch::Sender<u64>,
    over: AtomicBool,
}

#[derive(Default)]
struct State {
    counting: bool,
    held: bool,
    /// Number of grants while somebody held the lock: whatever is measured then is no lock.
    overlaps: u64,
    /// The last release was called at this time.
    released: Option<Instant>,
    /// The requests that wait, in the order in which they were made.
    waiting: BTreeMap<u64, Instant>,
    requests: u64,
    hand_overs: Vec<f64>,
    waits: Vec<f64>,
    longest_wait: f64,
    /// Number of waiters that were passed by, one for each grant that passed them.
    overtaken: u64,
    /// The grants of each.
    shares: Vec<u32>,
}

impl Line {
    fn new(tasks: usize) -> Self {
        Self {
            state: Mutex::new(State {
                shares: vec![0; tasks],
                ..State::default()
            }),
            grants: watch::Sender::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        let mut state = self.state();
        let now = Instant::now();
        // The time before does not count as waiting.
        state.waiting.values_mut().for_each(|since| *since = now);
        state.counting = true;
    }

    fn end(&self) {
        let mut state = self.state();
        state.counting = false;
        let waited = state
            .waiting
            .values()
            .map(|since| millis(since.elapsed()))
            .fold(0.0, f64::max);
        state.longest_wait = state.longest_wait.max(waited);
        drop(state);
        self.over.store(true, Ordering::Relaxed);
        self.grants.send_replace(OVER);
    }

    async fn until(&self, reached: impl FnMut(u64) -> bool) {
        let mut reached = reached;
        let mut grants = self.grants.subscribe();
        // The sender is in `self`, so there is no other end.
        let _ = grants.wait_for(|&grants| reached(grants)).await;
    }

    /// Wants the lock, again and again, until it is over.
    async fn stand(
        self: Arc<Self>,
        number: usize,
        client: Arc<dyn Client>,
        name: String,
        hold: Duration,
        in_turn: bool,
    ) -> Result<()> {
        while !self.over.load(Ordering::Relaxed) {
            let request = self.requested();
            let held = client.acquire(&name).await?;
            let grants = self.granted(number, request);
            if !hold.is_zero() && !self.over.load(Ordering::Relaxed) {
                time::sleep(hold).await;
            }
            self.releasing();
            held.release().await?;
            if in_turn {
                self.until(|seen| seen > grants || seen == OVER).await;
            }
        }
        Ok(())
    }

    fn releasing(&self) {
        let mut state = self.state();
        state.held = false;
        state.released = Some(Instant::now());
    }

    fn requested(&self) -> u64 {
        let mut state = self.state();
        state.requests += 1;
        let request = state.requests;
        state.waiting.insert(request, Instant::now());
        request
    }

    /// Returns the number of this grant.
    fn granted(&self, number: usize, request: u64) -> u64 {
        let now = Instant::now();
        let mut state = self.state();
        let since = state.waiting.remove(&request);
        if state.held {
            state.overlaps += 1;
        }
        state.held = true;
        if state.counting {
            let released = state.released.take();
            state.hand_overs.extend(released.map(|released| millis(now - released)));
            let wait = since.map_or(0.0, |since| millis(now - since));
            state.waits.push(wait);
            state.longest_wait = state.longest_wait.max(wait);
            state.overtaken += u64::try_from(state.waiting.range(..request).count()).unwrap_or(u64::MAX);
            if let Some(share) = state.shares.get_mut(number) {
                *share += 1;
            }
        }
        drop(state);
        self.grants.send_if_modified(|grants| {
            *grants = grants.saturating_add(1);
            true
        });
        *self.grants.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_sees_who_was_passed_by_and_how_unfair_that_was() {
        let line = Line::new(2);
        line.begin();
        let (first, second, third) = (line.requested(), line.requested(), line.requested());
        line.granted(0, first);
        line.releasing();
        // The second is passed by.
        line.granted(0, third);
        line.releasing();
        line.end();
        let state = line.state();
        assert_eq!(
            (state.overtaken, state.overlaps, state.shares.as_slice()),
            (1, 0, [2, 0].as_slice())
        );
        assert_eq!((state.waits.len(), state.hand_overs.len()), (2, 1));
        let waited = millis(state.waiting.get(&second).expect("it still waits").elapsed());
        assert!(state.longest_wait > 0.0 && state.longest_wait <= waited);
    }

    #[test]
    fn a_client_has_the_shares_of_its_tasks() {
        assert_eq!(by_client(&[1.0, 2.0, 3.0, 4.0, 5.0], 3), [5.0, 7.0, 3.0]);
        assert_eq!(by_client(&[1.0, 2.0], 1), [3.0]);
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let line = Line::new(2);
        let (first, second) = (line.requested(), line.requested());
        line.granted(0, first);
        line.granted(1, second);
        assert_eq!(line.state().overlaps, 1);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_grant_once_it_is_over() {
        let line = Line::new(1);
        line.end();
        let grants = line.granted(0, 0);
        let waited = time::timeout(LEAVING, line.until(|seen| seen > grants || seen == OVER));
        waited.await.expect("it is over");
    }
}
