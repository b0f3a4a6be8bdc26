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
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{Session, line};
use crate::{
    config::Config,
    error::ServerError,
    protocol::{Evict, Operation, State},
    store::{Answer, Documents, Exchange, Store, StoreError},
    telemetry,
    waitlist::{Vain, answers::asked_for, timing::BACKOFF},
};

/// Operations that are on their way at one time, so that a burst of acquires and cancels leaves room in the connection
/// pool, which is the user's; the driver's has ten connections by default.
const OPERATIONS_AT_ONCE: usize = 6;

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
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The most attempts of one reading at once.
const READS_AT_ONCE: usize = 8;

/// For how long an operator's eviction may take at the server. It is not repeated, so it is given time.
const BREAK: Duration = Duration::from_secs(5);

/// A connection that has answered is taken to answer for so long after.
const ANSWERS_STILL: Duration = Duration::from_secs(1);

/// For how long a proclamation may take at the server before it is made anew. So long that the next is sent when the
/// last is over.
pub(super) const PROCLAIM: Duration = Duration::from_secs(2);

/// For how long a claim may take at the server: the filter is the user's, and may go through many documents.
const CLAIM: Duration = Duration::from_secs(1);

/// How a reading is asked for again beside its own unanswered attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long the first attempt is by itself; the later ones, in the end, for twice as long each.
    beside: Duration,
    /// By when there must be an answer.
    in_all: Duration,
}

impl Pace {
    /// For what may be long.
    const LONG: Self = Self {
        beside: Duration::from_secs(2),
        in_all: Duration::from_secs(30),
    };

    /// For the first command of all. Longer than the driver looks for a server, as its error tells more.
    pub(crate) const CONNECT: Self = Self {
        in_all: Duration::from_secs(120),
        ..Self::LONG
    };

    /// For a few documents by their names.
    fn short(beside: Duration) -> Self {
        Self {
            beside,
            in_all: Duration::from_secs(10),
        }
    }
}

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
pub(super) struct Room<'a> {
    /// Only held.
    _permit: SemaphorePermit<'a>,
    /// It is to be left to others as soon as the answer is not prompt.
    prompt: bool,
}

impl<'a> Room<'a> {
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
    fn usual(&self) -> Duration {
        self.slowest().saturating_mul(TIMES_THE_SLOWEST).max(SHORTEST)
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest.load(Ordering::Relaxed))
    }

    /// For how long the server may try, after so many tries in vain.
    ///
    /// It grows with each that the server did not get done in time, so that a slow server gets it done in the end. Of those
    /// that it did not answer at all, it grows when there have been more than there can be dead connections.
    pub(super) fn limit(&self, vain: Vain, config: &Config) -> Limit {
        let within = Self::grown(self.usual(), vain, config);
        Limit {
            within,
            is_of_filter: false,
        }
    }

    /// The same for a claim.
    pub(super) fn limit_of_claim(&self, vain: Vain, config: &Config) -> Limit {
        let within = Self::grown(self.usual().max(CLAIM), vain, config);
        Limit {
            within,
            is_of_filter: true,
        }
    }

    fn grown(usual: Duration, vain: Vain, config: &Config) -> Duration {
        let longest = (config.lease / 3).clamp(SHORTEST, LONGEST);
        let (doublings, most) = match vain.overdue {
            0 => (
                vain.unanswered.saturating_sub(DEAD_CONNECTIONS),
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
    pub(super) async fn enter(&self, leaves: bool, vain: Vain) -> Option<Room<'_>> {
        let prompt = vain.overdue == 0;
        let lane = if prompt { &self.prompt } else { &self.slow };
        // The semaphores are never closed.
        if !leaves {
            return lane.acquire().await.ok().map(|permit| Room::new(permit, prompt));
        }
        tokio::select! {
            biased;
            permit = lane.acquire() => permit.ok().map(|permit| Room::new(permit, prompt)),
            permit = self.leaves.acquire() => permit.ok().map(|permit| Room::new(permit, false)),
        }
    }

    /// Waits for the answer to what is sent now; once it is given up the future is to be run on.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        mut asking: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
        room: Option<Room<'_>>,
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
            None => self.late_answer(asking, room, Sent { at: sent, limit }).await?,
        };
        self.answered(Sent { at: sent, limit }, &answer);
        Ok(answer)
    }

    async fn late_answer<T>(
        self: &Arc<Self>,
        mut asking: Pin<&mut impl Future<Output = T>>,
        mut room: Option<Room<'_>>,
        sent: Sent,
    ) -> Result<T, Adrift> {
        let mut overdue_at = sent.at + sent.limit.patience();
        loop {
            let moves = room.as_ref().is_some_and(|room| room.prompt);
            tokio::select! {
                biased;
                answer = &mut asking => return Ok(answer),
                permit = self.slow.acquire(), if moves => {
                    room = permit.ok().map(|permit| Room::new(permit, false));
                }
                () = sleep_until(overdue_at) => {
                    if let Some(adrift) = self.give_up(sent) {
                        return Err(adrift);
                    }
                    overdue_at = Instant::now() + LOOK_AGAIN;
                }
            }
        }
    }

    /// Whether an operation was answered that was sent so shortly before.
    fn was_answered_within(&self, time: Duration, now: Instant) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        heard > 0 && Duration::from_micros(self.micros(now).saturating_sub(heard)) <= time
    }

    /// Whether no operation is on its way.
    fn is_idle(&self) -> bool {
        self.prompt.available_permits() == OPERATIONS_AT_ONCE && self.adrift.load(Ordering::Relaxed) == 0
    }

    /// An operation was answered that was sent at that time.
    fn heard(&self, sent: Instant) {
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

/// Reads, and reads again beside what is not answered: the first answer counts. What is left over runs on by itself.
///
/// Only for what changes nothing.
pub(crate) async fn read_beside<T, F>(
    runtime: &Handle,
    pace: Pace,
    mut read: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let begun = Instant::now();
    let until = begun + pace.in_all;
    let mut pause = pace.beside;
    let mut attempts = FuturesUnordered::new();
    loop {
        if attempts.len() < READS_AT_ONCE {
            attempts.push(runtime.spawn(read()));
        }
        let again = (Instant::now() + pause).min(until);
        loop {
            let ended = tokio::select! {
                biased;
                Some(ended) = attempts.next() => ended.unwrap_or_else(|stopped| Err(StoreError::stopped(stopped))),
                () = sleep_until(again) => break,
            };
            match ended {
                // Others are on their way still. Where there is no server there is none for them.
                Err(error) if !(error.is_final() || error.found_no_server() || attempts.is_empty()) => {}
                ended => return ended,
            }
        }
        if Instant::now() >= until {
            return Err(StoreError::unanswered(begun.elapsed()));
        }
        if attempts.len() >= OPERATIONS_AT_ONCE {
            pause *= 2;
        }
    }
}

impl Session {
    /// Reads the documents of these names, in time.
    pub(crate) async fn read_names(self: &Arc<Self>, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        let read = |store: Arc<Store>| {
            let names = names.to_vec();
            async move { store.read(&names).await }
        };
        self.read_short(read).await
    }

    /// Reads a few documents, in time.
    pub(crate) async fn read_short<T, F>(self: &Arc<Self>, read: impl Fn(Arc<Store>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.lives()?;
        let usual = self.asking.usual();
        let pace = Pace::short(usual + usual / 4);
        read_beside(self.start(), pace, || read(self.store.clone())).await
    }

    /// Reads what may be long, in time.
    pub(crate) async fn read_long<T, F>(self: &Arc<Self>, read: impl Fn(Arc<Store>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.lives()?;
        read_beside(self.start(), Pace::LONG, || read(self.store.clone())).await
    }

    /// Runs operations on one name for as long as its line wants any.
    pub(super) async fn run(self: Arc<Self>, name: String, mut next: Option<(Operation, Vain)>) {
        if next.is_some() {
            self.prepare().await;
        }
        while let Some((operation, vain)) = next {
            let limit = self.asking.limit(vain, &self.config);
            let room = self.asking.enter(!operation.leave.is_empty(), vain).await;
            let store = self.store.clone();
            let mut asking = pin!(store.run(&name, &operation, limit.within));
            match self.asking.answer(asking.as_mut(), room, limit).await {
                Ok(answer) => next = self.settle(&name, &operation, answer),
                Err(adrift) => {
                    self.give_up_on(&name, &operation, limit.patience());
                    // What is adrift keeps no session alive.
                    let session = Arc::downgrade(&self);
                    drop(self);
                    let late = asking.await;
                    adrift.ended(&late);
                    if let Some(session) = session.upgrade() {
                        session.came_late(&name, &operation, &late);
                    }
                    return;
                }
            }
        }
        // What is still to be taken out has nobody else: its handles and futures, and the client too, may be gone, and
        // with them the session but for this task.
        let leaves_at = self.table().lines.by_name.get(&name).and_then(line::Line::leaves_at);
        if let Some(at) = leaves_at {
            tokio::select! {
                biased;
                () = sleep_until(at) => self.feed(&name, |_, _, _| {}),
                () = self.ended.cancelled() => {}
            }
        }
    }

    /// An operation counts as failed, and the line goes on beside it.
    fn give_up_on(self: &Arc<Self>, name: &str, operation: &Operation, waited: Duration) {
        let error = StoreError::unanswered(waited);
        telemetry::operation_failed(telemetry::purpose(operation), Some(name), &error);
        let next = self.settle(name, operation, Err(error));
        self.spawn(self.clone().run(name.to_owned(), next));
    }

    pub(super) fn settle(
        self: &Arc<Self>,
        name: &str,
        operation: &Operation,
        answer: Result<Answer, StoreError>,
    ) -> Option<(Operation, Vain)> {
        // Before what the answer says is looked at: it is reckoned by this clock.
        if let Ok(answer) = &answer {
            self.note(&answer.exchange);
        }
        let mut effects = Vec::new();
        let next = {
            let mut table = self.table();
            let table = &mut *table;
            let context = self.context(table.streaming, &table.clock);
            let line = table.lines.by_name.get_mut(name)?;
            match answer {
                Ok(answer) => {
                    line.answered(operation, &answer, &context, &mut effects);
                    line.remember(answer, &context);
                }
                Err(error) => {
                    line.failed(operation, &error, &context, &mut effects);
                }
            }
            let next = line.next(&context).map(|next| (next, line.vain()));
            self.after(table, name);
            next
        };
        self.carry_out(name, effects);
        next
    }

    /// An operation that was given up has ended.
    fn came_late(self: &Arc<Self>, name: &str, operation: &Operation, answer: &Result<Answer, StoreError>) {
        match answer {
            Ok(answer) => {
                self.note(&answer.exchange);
                let Some(state) = &answer.state else { return };
                if asked_for(operation, state).next().is_some() {
                    self.feed(name, |lines, context, _| {
                        lines.line(name).applied_late(operation, state, context);
                    });
                }
            }
            Err(error) => self.feed(name, |lines, _, _| {
                if let Some(line) = lines.by_name.get_mut(name) {
                    line.failed_late(error);
                }
            }),
        }
    }

    /// Puts holders of `name` out. Not repeated when its outcome is unknown: it could be those who came after.
    pub(crate) async fn evict(self: &Arc<Self>, name: &str, evict: Evict) -> Result<Option<State>, ServerError> {
        let operation = Operation {
            evict,
            ..self.operation()
        };
        // As it is not repeated, it had better not meet with a dead connection: a reading finds one that works. The driver
        // uses first the connection that it used last, so where one was answered just now there is no need.
        let sent = Instant::now();
        if !self.asking.is_idle() || !self.asking.was_answered_within(ANSWERS_STILL, sent) {
            self.read_names(&[name.to_owned()]).await?;
        }
        let state = self.operate(name, operation, BREAK, None).await?;
        self.asking.heard(sent);
        telemetry::broke(name);
        Ok(state)
    }

    /// Runs an operation; one that can be run twice again and again until it gets through, up to a deadline. The server
    /// may try each time for as long as said.
    pub(super) async fn operate(
        self: &Arc<Self>,
        name: &str,
        operation: Operation,
        within: Duration,
        deadline: Option<Instant>,
    ) -> Result<Option<State>, ServerError> {
        let mut pause = BACKOFF.0;
        loop {
            let (store, name, operation) = (self.store.clone(), name.to_owned(), operation.clone());
            let running = async move { store.run(&name, &operation, within).await };
            match self.in_time(within + within / 4, running).await {
                Ok(answer) => return Ok(answer.state),
                Err(error) if error.is_final() || deadline.is_none_or(|deadline| Instant::now() > deadline) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// Runs a command in a task of its own, and waits for its answer for so long. After that it counts as failed with an
    /// unknown outcome, and runs on by itself.
    pub(crate) async fn in_time<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        command: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.lives()?;
        match timeout(patience, self.start().spawn(command)).await {
            Ok(answer) => answer.unwrap_or_else(|stopped| Err(StoreError::stopped(stopped))),
            Err(_) => Err(StoreError::unanswered(patience)),
        }
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
        let limit = |asking: &Asking, unanswered, overdue| asking.limit(Vain { unanswered, overdue }, &config).within;
        assert_eq!(limit(&asking, 0, 0), SHORTEST);
        // At full pace while it can be for dead connections, then more slowly; longer only where the server asks for it.
        assert_eq!(limit(&asking, DEAD_CONNECTIONS, 0), SHORTEST);
        assert_eq!(limit(&asking, DEAD_CONNECTIONS + 1, 0), 2 * SHORTEST);
        assert_eq!(limit(&asking, 99, 0), LONGEST_UNANSWERED);
        assert_eq!(limit(&asking, 0, 3), 8 * SHORTEST);
        assert_eq!(limit(&asking, 0, 99), LONGEST);

        let claim = Sent {
            at: Instant::now(),
            limit: asking.limit_of_claim(Vain::default(), &config),
        };
        tokio::time::advance(millis(900)).await;
        asking.answered(claim, &Ok(()));
        assert_eq!(limit(&asking, 0, 0), SHORTEST);
        let operation = Sent {
            at: Instant::now(),
            limit: asking.limit(Vain::default(), &config),
        };
        tokio::time::advance(millis(100)).await;
        asking.answered(operation, &Ok(()));
        assert_eq!(limit(&asking, 0, 0), millis(300));
    }
}
