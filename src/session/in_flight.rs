//! The one way in which a session's commands are in flight: their limit, the wait for an answer, and late answers.
//!
//! A command can stay without an answer for ever, on a connection that a firewall has forgotten, or at a primary that
//! stands still. It can also stay so for long: the server says nothing of a document that a transaction has written
//! until that transaction ends. So every command has a limit at the server, and here a little more patience than that.
//! After that time the command counts as failed with an unknown outcome: its slot is free, and the line sends another
//! beside it. The driver's future runs on by itself, as one that is dropped half-way stalls the connection pool; we
//! call it adrift. Its late answer grants nothing. The answer shows the server's clock, and entries that have come
//! late, which are then taken out.
//!
//! A command has one of the [slots](super::slots), and moves to a slow one if its answer is not prompt.

use std::{
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    Session,
    line::UNANSWERED,
    slots::{Slot, Slots},
};
use crate::{config::Config, error::ServerError};

/// Minimum time that the server may try an operation that it usually answers in milliseconds.
pub(super) const SHORTEST: Duration = Duration::from_millis(200);

/// That time as a multiple of the slowest recent answer, if this is more. An answer that takes longer than the slowest
/// is not prompt.
const TIMES_THE_SLOWEST: u32 = 4;

/// Time for which the slowest answer counts as recent: one fast answer does not make a fast server.
const RECENT: Duration = Duration::from_secs(5);

/// Maximum time that the server may try, where it reports each time that it needs longer: long enough for any server
/// that can renew leases at all.
const LONGEST: Duration = Duration::from_secs(10);

/// Number of commands that are given up at full pace while nothing is answered at all: each can have taken a dead
/// connection out of the pool. The pause before the next one grows by its time for each such number, as it occupies a
/// connection too, or waits for one, and shows little more about the server.
const ADRIFT_AT_EASE: u32 = 8;

/// The commands of a session that are on their way, and the recent speed of the server.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) slots: Arc<Slots>,
    seen: Mutex<Seen>,
}

/// What the answers have shown of the server.
#[derive(Debug, Default)]
struct Seen {
    /// The longest recent answer time, and when it was seen.
    slowest: Option<(Duration, Instant)>,
    /// When the youngest answered command was sent.
    heard: Option<Instant>,
    /// Number of commands that were given up and are not answered.
    adrift: u32,
    /// When one was given up last.
    given_up: Option<Instant>,
}

/// The time that the server may try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) within: Duration,
    tells: Tells,
}

/// What an answer time says about that of other commands. A claim searches documents by a filter of the user's, which
/// says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    Speed,
    Slowness,
    Nothing,
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

/// A command that was given up and runs on by itself.
#[derive(Debug)]
pub(super) struct Adrift {
    in_flight: Arc<InFlight>,
    sent: Instant,
    limit: Limit,
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
        self.in_flight.answered(self.sent, self.limit, &late);
        (waiting_for.upgrade(), late)
    }
}

impl Drop for Adrift {
    fn drop(&mut self) {
        self.in_flight.seen().adrift -= 1;
    }
}

impl InFlight {
    /// Creates it with so many prompt slots; `shares`: whether the store runs several operations in a command.
    pub(super) fn new(most: usize, shares: bool) -> Arc<Self> {
        let (slots, seen) = (Slots::new(most, shares), Mutex::default());
        Arc::new(Self { slots, seen })
    }

    /// Returns the time that the server may try what it usually answers at once.
    pub(super) fn usual(&self) -> Duration {
        self.seen().usual()
    }

    /// Returns the time that the server may try: twice as long for each try in a row that it reported as overdue, so that
    /// a slow server gets it done in the end.
    pub(super) fn limit(&self, overdue: u32, config: &Config) -> Limit {
        Limit {
            within: grown(self.usual(), overdue, config.lease),
            tells: Tells::Speed,
        }
    }

    /// Returns the same for a look at a queue position. A slow one shows that the server is slow, but a fast one says
    /// nothing of a write, which a majority confirms.
    pub(super) fn limit_of_look(&self, config: &Config) -> Limit {
        Limit {
            tells: Tells::Slowness,
            ..self.limit(0, config)
        }
    }

    /// Returns the same for a claim with this lease, of which the last ones took so long.
    pub(super) fn limit_of_claim(&self, took: Duration, lease: Duration) -> Limit {
        let usual = self.usual().max(UNANSWERED).max(took.saturating_mul(TIMES_THE_SLOWEST));
        Limit {
            // A time that was too short is part of what such claims take.
            within: grown(usual, 0, lease),
            tells: Tells::Nothing,
        }
    }

    /// Waits for the answer to a command that is sent now. The caller runs the future on once it is given up.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        mut command: Pin<&mut impl Future<Output = Result<T, ServerError>>>,
        mut slot: Option<Slot>,
        limit: Limit,
    ) -> Result<Result<T, ServerError>, Adrift> {
        let sent = Instant::now();
        let mut slow = pin!(async {
            // A command that takes longer may hang.
            sleep(self.usual() / TIMES_THE_SLOWEST).await;
            self.slots.slot(1).await
        });
        let mut overdue = pin!(sleep(limit.patience()));
        loop {
            let moves = slot.as_ref().is_some_and(Slot::is_prompt);
            tokio::select! {
                biased;
                answer = &mut command => {
                    self.answered(sent, limit, &answer);
                    return Ok(answer);
                }
                other = &mut slow, if moves => slot = other,
                () = &mut overdue => match self.give_up(sent, limit) {
                    Some(adrift) => return Err(adrift),
                    None => overdue.as_mut().reset(Instant::now() + limit.patience()),
                },
            }
        }
    }

    /// Notes that a command that was sent then was answered.
    pub(super) fn heard(&self, sent: Instant) {
        let mut seen = self.seen();
        seen.heard = seen.heard.max(Some(sent));
    }

    /// Whether a command that was sent at most `time` ago was answered.
    pub(super) fn was_answered_within(&self, time: Duration, now: Instant) -> bool {
        let heard = self.seen().heard;
        heard.is_some_and(|heard| now.saturating_duration_since(heard) <= time)
    }

    /// Whether no prompt command is on its way, and none is adrift; slow ones don't count.
    pub(super) fn is_quiet(&self) -> bool {
        self.slots.is_quiet() && self.seen().adrift == 0
    }

    /// Notes the end of a command.
    fn answered<T>(&self, sent: Instant, limit: Limit, answer: &Result<T, ServerError>) {
        // Where the server did not get it done within its limit, it answers all the same. An error of the driver's own
        // says nothing of the server.
        if answer.as_ref().is_err_and(|error| !error.ran_out_of_time()) {
            return;
        }
        let mut seen = self.seen();
        seen.heard = seen.heard.max(Some(sent));
        if answer.is_ok() && limit.tells != Tells::Nothing {
            // A single one that hung says little of the others; nor do several that hung at the same time, each of which
            // counts as if it had come within its own limit.
            let took = sent.elapsed().min(seen.usual()).min(limit.within);
            let now = Instant::now();
            let stays = seen
                .slowest
                .is_some_and(|(slowest, at)| slowest > took && (now - at < RECENT || limit.tells == Tells::Slowness));
            if !stays {
                seen.slowest = Some((took, now));
            }
        }
    }

    /// Gives up an overdue command. Where a later one has been answered, the silence is the connection's, or that of a
    /// server that is no longer the primary. Otherwise the server may be silent, and the more commands are adrift, the
    /// more seldom another is given up.
    fn give_up(self: &Arc<Self>, sent: Instant, limit: Limit) -> Option<Adrift> {
        let (mut seen, now) = (self.seen(), Instant::now());
        let pause = limit.patience() * (seen.adrift / ADRIFT_AT_EASE);
        if seen.heard <= Some(sent) && seen.given_up.is_some_and(|at| now - at < pause) {
            return None;
        }
        seen.adrift += 1;
        seen.given_up = Some(now);
        let in_flight = self.clone();
        Some(Adrift { in_flight, sent, limit })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing under it panics.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn usual(&self) -> Duration {
        let slowest = self.slowest.map_or(Duration::ZERO, |(slowest, _)| slowest);
        slowest.saturating_mul(TIMES_THE_SLOWEST).clamp(SHORTEST, LONGEST)
    }
}

fn grown(usual: Duration, overdue: u32, lease: Duration) -> Duration {
    let longest = (lease / 3).clamp(SHORTEST, LONGEST);
    usual.saturating_mul(2_u32.saturating_pow(overdue)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn in_flight() -> (Arc<InFlight>, Config) {
        (InFlight::new(6, true), Settings::default().validate().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn limits_grow_with_the_time_that_answers_take_but_not_with_that_of_claims() {
        let (in_flight, config) = in_flight();
        let millis = Duration::from_millis;
        let limit = |overdue| in_flight.limit(overdue, &config).within;
        // Longer only where the server asks for it.
        assert_eq!([0, 3, 99].map(limit), [SHORTEST, 8 * SHORTEST, LONGEST]);
        let took = async |limit: Limit, took| {
            let sent = Instant::now();
            tokio::time::advance(millis(took)).await;
            in_flight.answered(sent, limit, &Ok(()));
        };
        let of_claim = |took| in_flight.limit_of_claim(millis(took), config.lease);
        took(of_claim(0), 900).await;
        assert_eq!(limit(0), SHORTEST);
        // Where such claims took long, the next one gets the time at once.
        assert_eq!(
            (of_claim(0).within, of_claim(2_000).within),
            (UNANSWERED, millis(8_000))
        );
        for (takes, then) in [(100, 400), (1, 400), (4_998, 1_600), (1, 1_600)] {
            took(in_flight.limit(0, &config), takes).await;
            assert_eq!(limit(0), millis(then), "{takes}");
        }
        tokio::time::advance(RECENT).await;
        // A small read is fast where writes are slow.
        let look = in_flight.limit_of_look(&config);
        assert_eq!(look.within, millis(1_600));
        took(look, 1).await;
        assert_eq!(limit(0), millis(1_600));
        took(in_flight.limit(0, &config), 1).await;
        assert_eq!(limit(0), SHORTEST);
    }

    /// A server that stood still for a moment answers all at once.
    #[tokio::test(start_paused = true)]
    async fn many_late_answers_make_the_server_no_slower_than_one() {
        let (in_flight, config) = in_flight();
        let (sent, limit) = (Instant::now(), in_flight.limit(0, &config));
        tokio::time::advance(Duration::from_secs(4)).await;
        for _ in 0..6 {
            in_flight.answered(sent, limit, &Ok(()));
            assert_eq!(in_flight.usual(), SHORTEST * TIMES_THE_SLOWEST);
        }
        // One that is slow again and again is given no more than any server that can renew leases needs.
        for _ in 0..6 {
            let (sent, limit) = (Instant::now(), in_flight.limit(0, &config));
            tokio::time::advance(LONGEST * 2).await;
            in_flight.answered(sent, limit, &Ok(()));
        }
        assert_eq!(in_flight.usual(), LONGEST);
    }

    /// A server that answers nothing at all gets ever fewer commands; a dead connection beside others that work costs no
    /// more than one patience.
    #[tokio::test(start_paused = true)]
    async fn the_more_commands_are_adrift_the_more_seldom_another_is_given_up_while_nothing_is_answered() {
        let (in_flight, config) = in_flight();
        let limit = in_flight.limit(0, &config);
        let hang = async || {
            let (sent, slot) = (Instant::now(), in_flight.slots.slot(0).await);
            let mut hung = pin!(std::future::pending::<Result<(), ServerError>>());
            let adrift = in_flight.answer(hung.as_mut(), slot, limit).await.unwrap_err();
            (adrift, sent.elapsed())
        };
        let mut all = Vec::new();
        for number in 0..3 * ADRIFT_AT_EASE {
            let (adrift, waited) = hang().await;
            assert_eq!(waited, limit.patience() * (number / ADRIFT_AT_EASE).max(1), "{number}");
            all.push(adrift);
        }
        let (heard, ()) = tokio::join!(hang(), async {
            let (later, slot) = (Instant::now(), in_flight.slots.slot(0).await);
            tokio::time::advance(Duration::from_millis(1)).await;
            drop(slot);
            in_flight.answered(later + Duration::from_millis(1), limit, &Ok(()));
        });
        assert_eq!(heard.1, limit.patience());
        // Its slot is another's meanwhile, as that of any command that hangs.
        assert!(in_flight.slots.is_quiet() && !in_flight.is_quiet());
        drop((all, heard));
        assert!(in_flight.is_quiet());
    }
}
