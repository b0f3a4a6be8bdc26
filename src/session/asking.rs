//! The way that a session's commands are sent, and the time for which their answers are awaited.
//!
//! A command can stay without an answer for ever, on a connection that a firewall has forgotten, or at a primary that
//! stands still. It can also stay so for long: the server says nothing of a document that a transaction has written
//! until that transaction ends. So every command has a limit at the server, and here a little more patience than that.
//! After that time the command counts as failed with an unknown outcome: its slot is free, and the line sends another
//! beside it. The driver's future runs on by itself, as one that is dropped half-way stalls the connection pool; we
//! call it adrift. Its late answer grants nothing. The answer shows the server's clock, and entries that have come
//! late, which are then taken out.
//!
//! A command has one of the slots of [`in_flight`](super::in_flight), and moves to a slow one if its answer is not prompt.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    Session,
    in_flight::{InFlight, Slot},
};
use crate::{config::Config, error::ServerError, waitlist::TimedOut};

/// Time within which an answer is prompt, or twice the recent answer time if that is more: an operation that takes
/// longer hangs.
const PROMPT: Duration = Duration::from_millis(30);

/// Minimum time that the server may try an operation that it usually answers in milliseconds.
const SHORTEST: Duration = Duration::from_millis(200);

/// That time as a multiple of the slowest recent answer, if this is more.
const TIMES_THE_SLOWEST: u32 = 3;

/// Maximum time that the server may try, where it reports each time that it needs longer: long enough for any server
/// that can renew leases at all.
const LONGEST: Duration = Duration::from_secs(10);

/// The same limit while the server answers nothing at all: by then another primary or another connection may answer.
const LONGEST_UNANSWERED: Duration = Duration::from_secs(2);

/// Number of tries in a row at full pace although none is answered: each can have taken a dead connection out of the
/// pool, of which this many have carried operations at once by default.
const DEAD_CONNECTIONS: u32 = 6;

/// Maximum number of operations that come to be adrift while nothing is answered: more of them show no more about the
/// server.
const ADRIFT_AT_ONCE: usize = 16;

/// Pause after which one more than those may be adrift, so that another primary is noticed.
const ADRIFT_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of operations adrift in any case. Each occupies a connection, or waits for one.
const ADRIFT_MOST: usize = 64;

/// Pause before another check whether an overdue operation may be given up, if it could not be at once.
const RETRY_GIVING_UP: Duration = Duration::from_millis(250);

/// Minimum time that the server may take for a claim: the filter is the user's, and may go through many documents.
const CLAIM: Duration = Duration::from_secs(1);

/// The operations of a session that are on their way, and the recent speed of the server.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) in_flight: Arc<InFlight>,
    begun: Instant,
    /// The longest recent answer time, in microseconds.
    slowest: AtomicU64,
    /// When the youngest answered operation was sent, in microseconds from the beginning.
    heard: AtomicU64,
    adrift: AtomicUsize,
    /// When an operation was last given up, in microseconds from the beginning.
    given_up: AtomicU64,
}

/// The time that the server may try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) within: Duration,
    of: CommandKind,
}

/// The kind of a command, which decides what its answer time says about other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandKind {
    Operation,
    /// A look at a queue position. It writes nothing: if its answer is slow, those of operations are, and not the other
    /// way round.
    Look,
    /// It searches documents by a filter of the user's, which says nothing.
    Claim,
}

impl Limit {
    pub(super) fn patience(self) -> Duration {
        patience(self.within)
    }
}

/// Returns the time to wait for an answer: a little longer than the server may try, so that it can still say so.
pub(super) fn patience(within: Duration) -> Duration {
    within + within / 4
}

/// The instant and the limit with which an operation was sent.
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
    /// Waits for its late answer, and notes it. Returns the session too if that is still there: a command adrift keeps
    /// no session alive.
    pub(super) async fn outlast<T>(
        self,
        session: Arc<Session>,
        command: Pin<&mut impl Future<Output = Result<T, ServerError>>>,
    ) -> (Option<Arc<Session>>, Result<T, ServerError>) {
        let waiting_for = Arc::downgrade(&session);
        drop(session);
        let late = command.await;
        self.asking.answered(self.sent, &late);
        (waiting_for.upgrade(), late)
    }
}

impl Drop for Adrift {
    fn drop(&mut self) {
        self.asking.adrift.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Asking {
    /// Creates it with so many prompt slots; `shares`: whether the store runs several operations in a command.
    pub(super) fn new(most: usize, shares: bool) -> Arc<Self> {
        Arc::new(Self {
            in_flight: InFlight::new(most, shares),
            begun: Instant::now(),
            slowest: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            adrift: AtomicUsize::new(0),
            given_up: AtomicU64::new(0),
        })
    }

    /// Returns the time that the server may try what it usually answers at once.
    pub(super) fn usual(&self) -> Duration {
        self.slowest().saturating_mul(TIMES_THE_SLOWEST).max(SHORTEST)
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest.load(Ordering::Relaxed))
    }

    /// Returns the time that the server may try, after these tries in vain.
    ///
    /// It grows with each try that the server reported as overdue, so that a slow server gets it done in the end. With
    /// unanswered tries it grows only when there have been more than there can be dead connections.
    pub(super) fn limit(&self, timed_out: TimedOut, config: &Config) -> Limit {
        let (within, of) = (
            Self::grown(self.usual(), timed_out, config.lease),
            CommandKind::Operation,
        );
        Limit { within, of }
    }

    /// Returns the same for a look at a queue position, which is not repeated by itself.
    pub(super) fn limit_of_look(&self, config: &Config) -> Limit {
        Limit {
            of: CommandKind::Look,
            ..self.limit(TimedOut::default(), config)
        }
    }

    /// Returns the same for a claim with this lease, of which the last ones took so long.
    pub(super) fn limit_of_claim(&self, took: Duration, timed_out: TimedOut, lease: Duration) -> Limit {
        let usual = self.usual().max(CLAIM).max(took.saturating_mul(TIMES_THE_SLOWEST));
        let (within, of) = (Self::grown(usual, timed_out, lease), CommandKind::Claim);
        Limit { within, of }
    }

    fn grown(usual: Duration, timed_out: TimedOut, lease: Duration) -> Duration {
        let longest = (lease / 3).clamp(SHORTEST, LONGEST);
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

    /// Waits for the answer to an operation that is sent now. The caller runs the future on once it is given up.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        mut asking: Pin<&mut impl Future<Output = Result<T, ServerError>>>,
        slot: Option<Slot>,
        limit: Limit,
    ) -> Result<Result<T, ServerError>, Adrift> {
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

    /// Waits in the same way, and calls `overdue` once the time is over: giving up may have to wait for longer.
    pub(super) async fn answer_or<T>(
        self: &Arc<Self>,
        asking: Pin<&mut impl Future<Output = Result<T, ServerError>>>,
        slot: Option<Slot>,
        limit: Limit,
        overdue: impl FnOnce(),
    ) -> Result<Result<T, ServerError>, Adrift> {
        let mut answer = pin!(self.answer(asking, slot, limit));
        match timeout(limit.patience(), answer.as_mut()).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(adrift)) => {
                overdue();
                Err(adrift)
            }
            Err(_) => {
                overdue();
                answer.await
            }
        }
    }

    async fn late_answer<T>(
        self: &Arc<Self>,
        mut asking: Pin<&mut impl Future<Output = T>>,
        mut slot: Option<Slot>,
        sent: Sent,
    ) -> Result<T, Adrift> {
        let mut overdue_at = sent.at + sent.limit.patience();
        let mut slow = pin!(self.in_flight.slow());
        loop {
            let moves = slot.as_ref().is_some_and(Slot::is_prompt);
            tokio::select! {
                biased;
                answer = &mut asking => return Ok(answer),
                other = &mut slow, if moves => slot = other,
                () = sleep_until(overdue_at) => {
                    if let Some(adrift) = self.give_up(sent) {
                        return Err(adrift);
                    }
                    overdue_at = Instant::now() + RETRY_GIVING_UP;
                }
            }
        }
    }

    /// Whether an operation that was sent at most `time` ago was answered.
    pub(super) fn was_answered_within(&self, time: Duration, now: Instant) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        heard > 0 && Duration::from_micros(self.micros(now).saturating_sub(heard)) <= time
    }

    /// Whether no prompt operation is on its way, and none is adrift; slow ones don't count.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.is_quiet() && self.adrift.load(Ordering::Relaxed) == 0
    }

    /// Notes that an operation sent at that time was answered.
    pub(super) fn note_heard(&self, sent: Instant) {
        self.heard.fetch_max(self.micros(sent), Ordering::Relaxed);
    }

    /// Notes the end of an operation.
    fn answered<T>(&self, sent: Sent, answer: &Result<T, ServerError>) {
        match answer {
            Ok(_) => {}
            // The server did not get it done within the limit that we set; but it answers.
            Err(error) if error.ran_out_of_time() => return self.note_heard(sent.at),
            // An error of the driver's own says nothing of the server.
            Err(_) => return,
        }
        self.note_heard(sent.at);
        let slowest = self.slowest.load(Ordering::Relaxed);
        // One fast answer does not make a fast server.
        let before = match sent.limit.of {
            CommandKind::Operation => slowest / 4 * 3,
            CommandKind::Look => slowest,
            CommandKind::Claim => return,
        };
        // A single one that hung says nothing of the others.
        let took = Instant::now().saturating_duration_since(sent.at).min(self.usual());
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.slowest.store(took.max(before), Ordering::Relaxed);
    }

    /// Gives up an overdue operation, unless many are adrift already. That limit does not apply if a later operation
    /// has been answered: then the silence is the connection's, or that of a server that is no longer the primary.
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
        let (asking, config) = (Asking::new(6, true), Settings::default().validate().unwrap());
        let millis = Duration::from_millis;
        let limit =
            |asking: &Asking, unanswered, overdue| asking.limit(TimedOut { unanswered, overdue }, &config).within;
        assert_eq!(limit(&asking, 0, 0), SHORTEST);
        // At full pace while it can be for dead connections, then more slowly; longer only where the server asks for
        // it.
        assert_eq!(limit(&asking, DEAD_CONNECTIONS, 0), SHORTEST);
        assert_eq!(limit(&asking, DEAD_CONNECTIONS + 1, 0), 2 * SHORTEST);
        assert_eq!(limit(&asking, 99, 0), LONGEST_UNANSWERED);
        assert_eq!(limit(&asking, 0, 3), 8 * SHORTEST);
        assert_eq!(limit(&asking, 0, 99), LONGEST);

        let claim = Sent {
            at: Instant::now(),
            limit: asking.limit_of_claim(Duration::ZERO, TimedOut::default(), config.lease),
        };
        tokio::time::advance(millis(900)).await;
        asking.answered(claim, &Ok(()));
        assert_eq!(limit(&asking, 0, 0), SHORTEST);
        // Where such claims took long, the next one gets the time at once.
        let of_claim = |took| asking.limit_of_claim(took, TimedOut::default(), config.lease).within;
        assert_eq!(
            (of_claim(Duration::ZERO), of_claim(millis(3_000))),
            (CLAIM, millis(9_000))
        );
        let operation = Sent {
            at: Instant::now(),
            limit: asking.limit(TimedOut::default(), &config),
        };
        tokio::time::advance(millis(100)).await;
        asking.answered(operation, &Ok(()));
        assert_eq!(limit(&asking, 0, 0), millis(300));
        // Looks are quicker than writes.
        for (took, then) in [(1, 300), (120, 360), (1, 360)] {
            let look = Sent {
                at: Instant::now(),
                limit: asking.limit_of_look(&config),
            };
            tokio::time::advance(millis(took)).await;
            asking.answered(look, &Ok(()));
            assert_eq!(limit(&asking, 0, 0), millis(then), "{took}");
        }
    }

    /// Where many others are adrift already, a command that is overdue is given up later, and is overdue all the same.
    #[tokio::test(start_paused = true)]
    async fn an_overdue_command_is_reported_before_it_may_be_given_up() {
        let (asking, config) = (Asking::new(6, true), Settings::default().validate().unwrap());
        for adrift in [0, ADRIFT_AT_ONCE] {
            asking.adrift.store(adrift, Ordering::Relaxed);
            asking.given_up.store(asking.micros(Instant::now()), Ordering::Relaxed);
            let (limit, sent, mut reported) = (asking.limit_of_look(&config), Instant::now(), Vec::new());
            let slot = asking.in_flight.slot(TimedOut::default()).await;
            let mut hung = pin!(std::future::pending::<Result<(), ServerError>>());
            let overdue = || reported.push(sent.elapsed());
            let given_up = asking.answer_or(hung.as_mut(), slot, limit, overdue).await;
            assert!(given_up.is_err() && (sent.elapsed() >= ADRIFT_PAUSE) == (adrift > 0));
            assert_eq!(reported, [limit.patience()]);
            assert_eq!(asking.adrift.load(Ordering::Relaxed), adrift + 1);
            drop(given_up);
            assert_eq!(asking.adrift.load(Ordering::Relaxed), adrift);
        }
        // Its slot is another's meanwhile, as that of any operation that hangs.
        assert!(asking.in_flight.is_quiet());
    }
}
