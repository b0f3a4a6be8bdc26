//! How the commands of a session are sent, and for how long their answers are awaited.
//!
//! A command can stay without an answer for ever: on a connection that a firewall has forgotten, or at a primary that
//! stands still. Or for long: the server says nothing of a document that a transaction has written until that ends. So
//! every command has a limit at the server, and here a little more patience than that. When that is over, the command
//! counts as failed with an unknown outcome: its place among the operations is free, and it is asked for again beside. The
//! driver's future runs on by itself, as one that is dropped half-way stalls the connection pool; we call it adrift. Its
//! late answer grants nothing. It shows the server's clock, and entries that have come late, which are taken out then.
//!
//! Few operations are on their way at once, as the pool is the user's. One that is not answered promptly moves over to
//! places of its own, so that those that hang leave the way free to all others; and two places are for entries that
//! leave, so that a release gets through when everything else hangs.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, sleep_until},
};

use crate::{config::Config, store::StoreError, waitlist::TimedOut};

/// Operations that are on their way at one time, so that a burst of acquires and cancels leaves slot in the connection
/// pool, which is the user's; the driver's has ten connections by default.
pub(super) const OPERATIONS_AT_ONCE: usize = 6;

/// Operations beside these that were not answered promptly, or not in time when they were sent last. Each can have a
/// connection of the pool for as long as the server may try.
const SLOW_AT_ONCE: usize = 4;

/// Operations beside all of these in which entries leave.
const LEAVES_AT_ONCE: usize = 2;

/// A prompt answer is here by then, or in twice the time that answers take of late, where that is more: what takes longer
/// hangs.
const PROMPT: Duration = Duration::from_millis(30);

/// For how long the server may try an operation that it usually answers in milliseconds.
const SHORTEST: Duration = Duration::from_millis(200);

/// And if it takes longer of late, so many times as long.
const TIMES_THE_SLOWEST: u32 = 3;

/// For how long it may try at the most, where it says that it takes longer each time: long enough for any server that
/// can renew leases at all.
const LONGEST: Duration = Duration::from_secs(10);

/// The same where it says nothing: by then there can be another primary, or another connection.
const LONGEST_UNANSWERED: Duration = Duration::from_secs(2);

/// So many tries in a row are made at full pace although none is answered: each can have got a dead connection out of the
/// pool, of which [`OPERATIONS_AT_ONCE`] have carried operations at once.
const DEAD_CONNECTIONS: u32 = 6;

/// Operations of a session that may come to be adrift while nothing is answered: more of them tell no more about the
/// server.
const ADRIFT_AT_ONCE: usize = 16;

/// Beyond that one more after each such pause, so that another primary is noticed.
const ADRIFT_PAUSE: Duration = Duration::from_secs(1);

/// The most that are adrift in any case. Each occupies a connection, or a place in the line for one.
const ADRIFT_MOST: usize = 64;

/// How often it is looked whether an overdue operation may be given up, where it could not be at once.
const RETRY_GIVING_UP: Duration = Duration::from_millis(250);

/// For how long a claim may take at the server: the filter is the user's, and may go through many documents.
const CLAIM: Duration = Duration::from_secs(1);

/// The operations of a session that are on their way, and how long the server takes.
#[derive(Debug)]
pub(super) struct Asking {
    prompt: Semaphore,
    slow: Semaphore,
    leaves: Semaphore,
    begun: Instant,
    /// The longest that an answer took of late, in microseconds.
    slowest: AtomicU64,
    /// When the youngest operation was sent that was answered, in microseconds from the beginning.
    heard: AtomicU64,
    adrift: AtomicUsize,
    /// When one was last given up, in microseconds from the beginning.
    given_up: AtomicU64,
}

/// A place among the operations that are on their way.
pub(super) struct Slot<'a> {
    /// Only held.
    _permit: SemaphorePermit<'a>,
    /// It is to be left to others as soon as the answer is not prompt.
    prompt: bool,
}

impl<'a> Slot<'a> {
    fn new(permit: SemaphorePermit<'a>, prompt: bool) -> Self {
        Self {
            _permit: permit,
            prompt,
        }
    }
}

/// For how long the server may try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) within: Duration,
    /// It looks for documents by a filter of the user's: how long that takes tells nothing of other operations.
    is_of_filter: bool,
}

impl Limit {
    /// A little longer than the server may try, so that it can still say so.
    pub(super) fn patience(self) -> Duration {
        self.within + self.within / 4
    }
}

/// When something was sent, and with which limit.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    limit: Limit,
}

/// An operation that was given up and runs on by itself.
#[derive(Debug)]
pub(super) struct Adrift {
    asking: Arc<Asking>,
    sent: Sent,
}

impl Adrift {
    /// It has ended after all.
    pub(super) fn ended<T>(self, answer: &Result<T, StoreError>) {
        self.asking.answered(self.sent, answer);
    }
}

impl Drop for Adrift {
    fn drop(&mut self) {
        self.asking.adrift.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Asking {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            prompt: Semaphore::new(OPERATIONS_AT_ONCE),
            slow: Semaphore::new(SLOW_AT_ONCE),
            leaves: Semaphore::new(LEAVES_AT_ONCE),
            begun: Instant::now(),
            slowest: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            adrift: AtomicUsize::new(0),
            given_up: AtomicU64::new(0),
        })
    }

    /// For how long the server may try what it usually answers at once.
    pub(super) fn usual(&self) -> Duration {
        self.slowest().saturating_mul(TIMES_THE_SLOWEST).max(SHORTEST)
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest.load(Ordering::Relaxed))
    }

    /// For how long the server may try, after so many tries in vain.
    ///
    /// It grows with each that the server did not get done in time, so that a slow server gets it done in the end. Of those
    /// that it did not answer at all, it grows when there have been more than there can be dead connections.
    pub(super) fn limit(&self, timed_out: TimedOut, config: &Config) -> Limit {
        let within = Self::grown(self.usual(), timed_out, config);
        Limit {
            within,
            is_of_filter: false,
        }
    }

    /// The same for a claim.
    pub(super) fn limit_of_claim(&self, timed_out: TimedOut, config: &Config) -> Limit {
        let within = Self::grown(self.usual().max(CLAIM), timed_out, config);
        Limit {
            within,
            is_of_filter: true,
        }
    }

    fn grown(usual: Duration, timed_out: TimedOut, config: &Config) -> Duration {
        let longest = (config.lease / 3).clamp(SHORTEST, LONGEST);
        let (doublings, most) = match timed_out.overdue {
            0 => (
                timed_out.unanswered.saturating_sub(DEAD_CONNECTIONS),
                LONGEST_UNANSWERED.max(usual),
            ),
            overdue => (overdue, longest),
        };
        usual
            .saturating_mul(2_u32.saturating_pow(doublings))
            .min(most)
            .min(longest)
    }

    /// Waits for a place.
    pub(super) async fn enter(&self, leaves: bool, timed_out: TimedOut) -> Option<Slot<'_>> {
        let prompt = timed_out.overdue == 0;
        let lane = if prompt { &self.prompt } else { &self.slow };
        // The semaphores are never closed.
        if !leaves {
            return lane.acquire().await.ok().map(|permit| Slot::new(permit, prompt));
        }
        tokio::select! {
            biased;
            permit = lane.acquire() => permit.ok().map(|permit| Slot::new(permit, prompt)),
            permit = self.leaves.acquire() => permit.ok().map(|permit| Slot::new(permit, false)),
        }
    }

    /// Waits for the answer to what is sent now; once it is given up the future is to be run on.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        mut asking: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
        slot: Option<Slot<'_>>,
        limit: Limit,
    ) -> Result<Result<T, StoreError>, Adrift> {
        let sent = Instant::now();
        let prompt = tokio::select! {
            biased;
            answer = &mut asking => Some(answer),
            () = sleep(PROMPT.max(self.slowest() * 2)) => None,
        };
        let answer = match prompt {
            Some(answer) => answer,
            None => self.late_answer(asking, slot, Sent { at: sent, limit }).await?,
        };
        self.answered(Sent { at: sent, limit }, &answer);
        Ok(answer)
    }

    async fn late_answer<T>(
        self: &Arc<Self>,
        mut asking: Pin<&mut impl Future<Output = T>>,
        mut slot: Option<Slot<'_>>,
        sent: Sent,
    ) -> Result<T, Adrift> {
        let mut overdue_at = sent.at + sent.limit.patience();
        loop {
            let moves = slot.as_ref().is_some_and(|slot| slot.prompt);
            tokio::select! {
                biased;
                answer = &mut asking => return Ok(answer),
                permit = self.slow.acquire(), if moves => {
                    slot = permit.ok().map(|permit| Slot::new(permit, false));
                }
                () = sleep_until(overdue_at) => {
                    if let Some(adrift) = self.give_up(sent) {
                        return Err(adrift);
                    }
                    overdue_at = Instant::now() + RETRY_GIVING_UP;
                }
            }
        }
    }

    /// Whether an operation was answered that was sent so shortly before.
    pub(super) fn was_answered_within(&self, time: Duration, now: Instant) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        heard > 0 && Duration::from_micros(self.micros(now).saturating_sub(heard)) <= time
    }

    /// Whether no operation is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.prompt.available_permits() == OPERATIONS_AT_ONCE && self.adrift.load(Ordering::Relaxed) == 0
    }

    /// An operation was answered that was sent at that time.
    pub(super) fn heard(&self, sent: Instant) {
        self.heard.fetch_max(self.micros(sent), Ordering::Relaxed);
    }

    /// What was sent at that time was answered.
    fn answered<T>(&self, sent: Sent, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => {}
            // It did not get it done, as we asked; but it answers.
            Err(error) if error.ran_out_of_time() => return self.heard(sent.at),
            // An error of the driver's own says nothing of the server.
            Err(_) => return,
        }
        self.heard(sent.at);
        if sent.limit.is_of_filter {
            return;
        }
        let slowest = self.slowest.load(Ordering::Relaxed);
        // A single one that hung does not tell of the others; and one fast answer does not make a fast server.
        let took = Instant::now().saturating_duration_since(sent.at).min(self.usual());
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.slowest.store(took.max(slowest / 4 * 3), Ordering::Relaxed);
    }

    /// Gives up an overdue operation, unless many are adrift already. That is not so where what was sent later has been
    /// answered: then it is not the server that does not answer, but the connection, or another server than the present
    /// primary.
    fn give_up(self: &Arc<Self>, sent: Sent) -> Option<Adrift> {
        let now = self.micros(Instant::now());
        let adrift = self.adrift.load(Ordering::Relaxed);
        let answers = self.heard.load(Ordering::Relaxed) > self.micros(sent.at);
        let paused = || {
            let pause = u64::try_from(ADRIFT_PAUSE.as_micros()).unwrap_or(u64::MAX);
            now.saturating_sub(self.given_up.load(Ordering::Relaxed)) >= pause
        };
        if adrift >= ADRIFT_MOST || !(answers || adrift < ADRIFT_AT_ONCE || paused()) {
            return None;
        }
        self.given_up.store(now, Ordering::Relaxed);
        self.adrift.fetch_add(1, Ordering::Relaxed);
        let asking = self.clone();
        Some(Adrift { asking, sent })
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[tokio::test(start_paused = true)]
    async fn limits_grow_with_the_time_that_answers_take_but_not_with_that_of_claims() {
        let (asking, config) = (Asking::new(), Settings::default().validate().unwrap());
        let millis = Duration::from_millis;
        let limit =
            |asking: &Asking, unanswered, overdue| asking.limit(TimedOut { unanswered, overdue }, &config).within;
        assert_eq!(limit(&asking, 0, 0), SHORTEST);
        // At full pace while it can be for dead connections, then more slowly; longer only where the server asks for it.
        assert_eq!(limit(&asking, DEAD_CONNECTIONS, 0), SHORTEST);
        assert_eq!(limit(&asking, DEAD_CONNECTIONS + 1, 0), 2 * SHORTEST);
        assert_eq!(limit(&asking, 99, 0), LONGEST_UNANSWERED);
        assert_eq!(limit(&asking, 0, 3), 8 * SHORTEST);
        assert_eq!(limit(&asking, 0, 99), LONGEST);

        let claim = Sent {
            at: Instant::now(),
            limit: asking.limit_of_claim(TimedOut::default(), &config),
        };
        tokio::time::advance(millis(900)).await;
        asking.answered(claim, &Ok(()));
        assert_eq!(limit(&asking, 0, 0), SHORTEST);
        let operation = Sent {
            at: Instant::now(),
            limit: asking.limit(TimedOut::default(), &config),
        };
        tokio::time::advance(millis(100)).await;
        asking.answered(operation, &Ok(()));
        assert_eq!(limit(&asking, 0, 0), millis(300));
    }
}
