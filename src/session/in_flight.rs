//! The one way in which a session's commands are in flight: their slots, their limit, the wait for an answer, and late
//! answers. For each name one operation is on its way at a time, beside the unanswered ones that were given up.
//!
//! Few commands are on their way at once, as the pool is the user's. While all their slots are taken, operations queue
//! up. A slot that becomes free takes the first of them, and with it those that can share its command: the more there
//! is to do, the more locks go into a command, and nothing ever waits for company.
//!
//! An operation that was not done in time has a slow slot the next time, so that it doesn't block the others. One that was
//! not done again and again is most likely held up by its own document, such as by a transaction that has written it, and
//! the server may try it for long. Such operations have slots of their own, so that one which was slow for a moment waits
//! behind none of them.
//!
//! A command can stay without an answer for ever, on a connection that a firewall has forgotten, or at a primary that
//! stands still. It can also stay so for long: the server says nothing of a document that a transaction has written
//! until that transaction ends. So every command has a limit at the server, and here a little more patience than that.
//! After that time the command counts as failed with an unknown outcome: its slot is free, and the line sends another
//! beside it. The driver's future runs on by itself, as one that is dropped half-way stalls the connection pool; we
//! call it adrift. Its late answer grants nothing. The answer shows the server's clock, and entries that have come
//! late, which are then taken out.

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout},
};

use super::{Session, line::UNANSWERED};
use crate::{
    config::Config,
    error::ServerError,
    protocol::Operation,
    store::{Answer, Asked, Store},
    telemetry,
    waitlist::answers::asked_for,
};

/// Maximum number of commands beside the prompt ones whose operation was not done in time when it was last sent. Each can
/// occupy a connection of the pool for as long as the server may try.
const SLOW_AT_ONCE: usize = 4;

/// Maximum number of commands whose operation is stuck: few, as each can occupy a connection for as long, and two, so that
/// one which hangs does not stop the others.
const STUCK_AT_ONCE: usize = 2;

/// Number of tries in a row that were not done in time, after which an operation is stuck. A server that stood still
/// for a second makes two of them.
const STUCK_AFTER: u32 = 3;

/// Maximum number of operations in a command: more of them hardly cost the server less, and all wait for the last.
pub(crate) const TOGETHER: usize = 64;

/// Minimum time that the server may try an operation that it usually answers in milliseconds.
pub(super) const SHORTEST: Duration = Duration::from_millis(200);

/// That time as a multiple of the slowest recent answer, if this is more.
const TIMES_THE_SLOWEST: u32 = 4;

/// Time for which the slowest answer counts as recent: one fast answer does not make a fast server.
const RECENT: Duration = Duration::from_secs(5);

/// Maximum time that the server may try, where it reports each time that it needs longer: long enough for any server
/// that can renew leases at all.
const LONGEST: Duration = Duration::from_secs(10);

/// Number of dead connections that a command may meet one after the other: about as many carry commands at once by
/// default. So many are given up at full pace while nothing is answered at all. The pause before the next one grows by its
/// time for each such number, as it occupies a connection too, or waits for one, and shows little more about the server.
pub(super) const DEAD_MOST: u32 = 8;

/// The commands of a session that are on their way, and the recent speed of the server.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Whether the store runs several operations in a command.
    shares: bool,
    prompt: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    stuck: Arc<Semaphore>,
    /// Half as many as prompt ones, for claims: each can take seconds, and the release of what was claimed before must not
    /// wait for that. Claims at one time contend for the same documents.
    claims: Arc<Semaphore>,
    /// The right to ask whether a transaction is open.
    pub(super) questions: Semaphore,
    /// Operations that wait for a prompt slot, in their order. Taking one out ends its own wait.
    queue: Mutex<VecDeque<(Asked, oneshot::Sender<Turn>)>>,
    seen: Mutex<Seen>,
}

/// A slot for a command that is on its way.
pub(super) type Slot = OwnedSemaphorePermit;

/// A slot, and the operations that have it together.
type Turn = (Slot, Vec<Asked>);

/// What the answers have shown of the server.
#[derive(Debug, Default)]
struct Seen {
    /// The longest recent answer time, and when it was seen.
    slowest: Option<(Duration, Instant)>,
    /// When the youngest answered command was sent.
    heard: Option<Instant>,
    /// Had by the commands that were given up and are not answered.
    adrift: Arc<()>,
    /// When one was given up last.
    given_up: Option<Instant>,
}

impl Seen {
    /// Returns the number of commands that were given up and are not answered.
    fn adrift(&self) -> u32 {
        u32::try_from(Arc::strong_count(&self.adrift) - 1).unwrap_or(u32::MAX)
    }
}

/// Returns the time to wait for an answer: a little longer than the server may try, so that it can still say so.
pub(super) fn patience(within: Duration) -> Duration {
    within + within / 4
}

/// A command that was given up and runs on by itself: it counts as one while the first part is there, and was sent then.
pub(super) type Adrift = (Arc<()>, Instant);

impl InFlight {
    /// Creates it with so many prompt slots; `shares`: whether the store runs several operations in a command.
    pub(super) fn new(most: usize, shares: bool) -> Arc<Self> {
        let slots = |count| Arc::new(Semaphore::new(count));
        Arc::new(Self {
            shares,
            prompt: slots(most),
            slow: slots(SLOW_AT_ONCE),
            stuck: slots(STUCK_AT_ONCE),
            claims: slots(most.div_ceil(2)),
            questions: Semaphore::new(SLOW_AT_ONCE),
            queue: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// Waits for the turn of an operation that was overdue in so many tries in a row; `None` if it has gone along in
    /// another's command. Not cancel safe: an operation whose wait is dropped may stay in the queue, and go along.
    pub(super) async fn turn(&self, asked: Asked, overdue: u32) -> Option<Turn> {
        if overdue > 0 {
            return Some((self.slot(overdue).await?, vec![asked]));
        }
        if let Ok(slot) = self.prompt.clone().try_acquire_owned() {
            return Some((slot, vec![asked]));
        }
        let (waits, mut turn) = oneshot::channel();
        self.queue().push_back((asked, waits));
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return turn.ok(),
                // Whose turn it is does not depend on who waited for the slot.
                slot = self.slot(0) => self.hand_over(slot?),
            }
        }
    }

    /// Waits for a slot for a command that was overdue in so many tries in a row. Cancel safe.
    pub(super) async fn slot(&self, overdue: u32) -> Option<Slot> {
        let of = match overdue {
            0 => &self.prompt,
            1..STUCK_AFTER => &self.slow,
            _ => &self.stuck,
        };
        // It is never closed.
        of.clone().acquire_owned().await.ok()
    }

    /// Waits for a slot for a claim. Cancel safe.
    pub(super) async fn slot_of_claim(&self) -> Option<Slot> {
        self.claims.clone().acquire_owned().await.ok()
    }

    /// Gives a slot to the first operation of the queue that requests nothing, as others may get a lock by it, or else to
    /// the first; and has those go along that can share its command. One that requests too does not go before: such come
    /// without an end, and those that only leave come after requests that were served.
    fn hand_over(&self, slot: Slot) {
        let mut queue = self.queue();
        let first = queue.iter().position(|(asked, _)| asked.operation.requests.is_none());
        let Some((first, waits)) = queue.remove(first.unwrap_or(0)) else {
            return;
        };
        let mut together = vec![first];
        let shares = self.shares && together[0].operation.is_shareable();
        let mut passed = 0;
        // Only those with not too many others before them.
        while shares && together.len() < TOGETHER && passed < TOGETHER.min(queue.len()) {
            if !queue[passed].0.operation.is_shareable() {
                passed += 1;
            } else if let Some((mut asked, _)) = queue.remove(passed) {
                // To its documents, a command is one operation.
                asked.operation.id.clone_from(&together[0].operation.id);
                together.push(asked);
            }
        }
        drop(queue);
        // Tasks that wait end with their runtime alone.
        let _ = waits.send((slot, together));
    }

    /// Returns the time that the server may try what it usually answers at once.
    pub(super) fn usual(&self) -> Duration {
        let slowest = self.seen().slowest.map_or(Duration::ZERO, |(slowest, _)| slowest);
        slowest.saturating_mul(TIMES_THE_SLOWEST).clamp(SHORTEST, LONGEST)
    }

    /// Returns the time that the server may try: twice as long for each try in a row that it reported as overdue, so that
    /// a slow server gets it done in the end.
    pub(super) fn limit(&self, overdue: u32, config: &Config) -> Duration {
        grown(self.usual(), overdue, config.lease)
    }

    /// Returns the same for a claim with this lease, of which the last ones took so long.
    pub(super) fn limit_of_claim(&self, took: Duration, lease: Duration) -> Duration {
        let usual = self.usual().max(UNANSWERED).max(took.saturating_mul(TIMES_THE_SLOWEST));
        // A time that was too short is part of what such claims take.
        grown(usual, 0, lease)
    }

    /// Waits for the answer to a command that is sent now and has this slot. The caller runs the future on once it is given
    /// up.
    pub(super) async fn answer<T>(
        &self,
        mut command: Pin<&mut (dyn Future<Output = Result<T, ServerError>> + Send)>,
        _slot: Option<Slot>,
        within: Duration,
    ) -> Result<Result<T, ServerError>, Adrift> {
        let sent = Instant::now();
        loop {
            if let Ok(answer) = timeout(patience(within), command.as_mut()).await {
                self.answered(sent, &answer);
                return Ok(answer);
            }
            if let Some(adrift) = self.give_up(sent, within) {
                return Err(adrift);
            }
        }
    }

    /// Notes that a command that was sent then was answered.
    pub(super) fn heard(&self, sent: Instant) {
        let mut seen = self.seen();
        seen.heard = seen.heard.max(Some(sent));
    }

    /// Whether a command that was sent just now was answered, and none is adrift.
    pub(super) fn finds_connections(&self) -> bool {
        let seen = self.seen();
        seen.adrift() == 0 && seen.heard.is_some_and(|heard| heard.elapsed() <= UNANSWERED)
    }

    /// Notes the end of a command.
    fn answered<T>(&self, sent: Instant, answer: &Result<T, ServerError>) {
        // Where the server did not get it done within its limit, it answers all the same. An error of the driver's own
        // says nothing of the server.
        if answer.as_ref().err().is_none_or(ServerError::ran_out_of_time) {
            self.heard(sent);
        }
    }

    /// Notes how long an operation took that the server was to try `within` that time. Of other commands, that of a claim
    /// says nothing, which searches documents by a filter of the user's.
    pub(super) fn took(&self, sent: Instant, within: Duration) {
        // A single one that hung says little of the others; nor do several that hung at the same time, each of which
        // counts as if it had come within its own limit.
        let took = sent.elapsed().min(self.usual()).min(within);
        let (mut seen, now) = (self.seen(), Instant::now());
        let stays = |(slowest, at): (Duration, Instant)| slowest > took && now - at < RECENT;
        if !seen.slowest.is_some_and(stays) {
            seen.slowest = Some((took, now));
        }
    }

    /// Gives up an overdue command. Where a later one has been answered, the silence is the connection's, or that of a
    /// server that is no longer the primary. Otherwise the server may be silent, and the more commands are adrift, the
    /// more seldom another is given up.
    fn give_up(&self, sent: Instant, within: Duration) -> Option<Adrift> {
        let (mut seen, now) = (self.seen(), Instant::now());
        let pause = patience(within) * (seen.adrift() / DEAD_MOST);
        if seen.heard <= Some(sent) && seen.given_up.is_some_and(|at| now - at < pause) {
            return None;
        }
        seen.given_up = Some(now);
        Some((seen.adrift.clone(), sent))
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(Asked, oneshot::Sender<Turn>)>> {
        // Nothing under it panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // As above.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn grown(usual: Duration, overdue: u32, lease: Duration) -> Duration {
    let longest = (lease / 3).clamp(SHORTEST, LONGEST);
    usual.saturating_mul(2_u32.saturating_pow(overdue)).min(longest)
}

impl Session {
    /// Runs an operation on one name. Its end runs the next one that the line wants.
    pub(super) async fn run(self: Arc<Self>, name: String, (operation, overdue): (Operation, u32)) {
        self.prepare().await;
        let asked = Asked { name, operation };
        // Without a turn of its own it has gone along in another's command.
        if let Some((slot, all)) = self.in_flight.turn(asked, overdue).await {
            let within = self.in_flight.limit(overdue, &self.config);
            self.send(slot, all, within).await;
        }
    }

    /// Runs operations in one command.
    async fn send(self: Arc<Self>, slot: Slot, all: Vec<Asked>, within: Duration) {
        let (in_flight, store) = (self.in_flight.clone(), self.store.clone());
        let sent = Instant::now();
        let mut command = pin!(async {
            let answers = run(&store, &all, within).await;
            answers.inspect(|_| in_flight.took(sent, within))
        });
        let adrift = match in_flight.answer(command.as_mut(), Some(slot), within).await {
            Ok(answers) => {
                if let Err(error) = &answers {
                    self.note_failure(error);
                }
                return self.ended(&all, answers, within);
            }
            Err(adrift) => adrift,
        };
        let error = ServerError::unanswered(patience(within));
        for Asked { name, operation } in &all {
            telemetry::operation_failed(telemetry::purpose(operation), Some(name), &error);
        }
        self.ended(&all, Err(error), within);
        if let (Some(session), late) = self.outlast(adrift, command).await {
            for (asked, answer) in all.iter().zip(each(late, all.len())) {
                session.came_late(asked, &answer);
            }
        }
    }

    /// Feeds the answers to operations to their lines, or their failure; the server was to try them `within` that time.
    fn ended(
        self: &Arc<Self>,
        all: &[Asked],
        answers: Result<Vec<Result<Answer, ServerError>>, ServerError>,
        within: Duration,
    ) {
        for (Asked { name, operation }, answer) in all.iter().zip(each(answers, all.len())) {
            // Before the answer is acted on: its times are reckoned by this clock.
            if let Ok(answer) = &answer {
                self.note(&answer.exchange);
                // All of them are in the log just before that time.
                self.note_log(&answer.exchange, all.len() as u64);
            }
            let answer = answer.map(Arc::new);
            let mut holders = None;
            self.update(name, Some(&answer), |lines, context| {
                let Some(line) = lines.by_name.get_mut(name) else {
                    return;
                };
                match &answer {
                    Ok(answer) => {
                        line.answered(operation, answer, context);
                        holders = line.many_holders(answer);
                        if let Some(is_free) = line.first_seen(operation) {
                            lines.expects_free = is_free;
                        }
                    }
                    Err(error) => line.failed(operation, error, within, context),
                }
            });
            if let Some(holders) = holders {
                telemetry::many_holders(name, holders);
            }
        }
    }

    /// Notes the end of an operation that was given up.
    fn came_late(self: &Arc<Self>, Asked { name, operation }: &Asked, answer: &Result<Answer, ServerError>) {
        match answer {
            Ok(answer) => {
                self.note(&answer.exchange);
                let Some(state) = &answer.state else { return };
                if asked_for(operation, state).next().is_some() {
                    self.update(name, None, |lines, context| {
                        lines.line(name).waitlist.step(context).applied_late(operation, state);
                    });
                }
            }
            Err(error) => self.update(name, None, |lines, _| {
                if let Some(line) = lines.by_name.get_mut(name) {
                    line.failed_late(error);
                }
            }),
        }
    }

    /// Waits for the late answer to a command that was given up, and notes it. Returns the session too if that is still
    /// there: a command adrift keeps no session alive.
    pub(super) async fn outlast<T>(
        self: Arc<Self>,
        (_adrift, sent): Adrift,
        command: Pin<&mut (dyn Future<Output = Result<T, ServerError>> + Send)>,
    ) -> (Option<Arc<Self>>, Result<T, ServerError>) {
        let (in_flight, waiting_for) = (self.in_flight.clone(), Arc::downgrade(&self));
        drop(self);
        let late = command.await;
        in_flight.answered(sent, &late);
        (waiting_for.upgrade(), late)
    }

    /// Runs a command in a task of its own, and waits up to `patience` for its answer. After that the command counts
    /// as failed with an unknown outcome, and runs on by itself.
    pub(crate) async fn in_time<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        command: impl Future<Output = Result<T, ServerError>> + Send + 'static,
    ) -> Result<T, ServerError> {
        self.ensure_usable()?;
        let answered = timeout(patience, self.spawn_for(command)).await;
        answered.map_err(|_| ServerError::unanswered(patience))??
    }
}

/// Runs one operation, or several that share a command.
async fn run(store: &Store, all: &[Asked], within: Duration) -> Result<Vec<Result<Answer, ServerError>>, ServerError> {
    match all {
        [Asked { name, operation }] => Ok(vec![Ok(store.run(name, operation, within).await?)]),
        _ => store.run_together(all, within).await,
    }
}

/// Returns the answer to each of so many operations.
fn each(
    answers: Result<Vec<Result<Answer, ServerError>>, ServerError>,
    count: usize,
) -> Vec<Result<Answer, ServerError>> {
    answers.unwrap_or_else(|error| {
        // One document can hold up all of a command, and a reading can be refused after the write: their own commands
        // show which and why.
        let is_anyones = count > 1 && (error.ran_out_of_time() || error.is_final());
        let error = if is_anyones { ServerError::unsaid() } else { error };
        vec![Err(error); count]
    })
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::{task::JoinHandle, time::sleep};

    use super::{
        super::fixtures::{ONE, OTHER, client, memory},
        *,
    };
    use crate::{
        client::LockClient,
        config::Config,
        error::AcquireError,
        handle::Held,
        locks,
        protocol::{Expects, Operation, fixtures, fixtures::leaving},
        tests::simulated::Link,
        waitlist::answers::TRY_FOR,
        wake_mode::WakeSource,
    };

    const MOST: usize = 6;

    fn in_flight() -> (Arc<InFlight>, Config) {
        (InFlight::new(MOST, true), Config::default())
    }

    #[tokio::test(start_paused = true)]
    async fn limits_grow_with_the_time_that_answers_take_but_not_with_that_of_claims() {
        let (in_flight, config) = in_flight();
        let millis = Duration::from_millis;
        let limit = |overdue| in_flight.limit(overdue, &config);
        // Longer only where the server asks for it.
        assert_eq!([0, 3, 99].map(limit), [SHORTEST, 8 * SHORTEST, LONGEST]);
        let took = async |took| {
            let (sent, within) = (Instant::now(), limit(0));
            tokio::time::advance(millis(took)).await;
            in_flight.took(sent, within);
        };
        let of_claim = |took| in_flight.limit_of_claim(millis(took), config.lease);
        // Where such claims took long, the next one gets the time at once.
        assert_eq!((of_claim(0), of_claim(2_000)), (UNANSWERED, millis(8_000)));
        for (takes, then) in [(100, 400), (1, 400), (4_998, 1_600), (1, 1_600)] {
            took(takes).await;
            assert_eq!(limit(0), millis(then), "{takes}");
        }
        tokio::time::advance(RECENT).await;
        took(1).await;
        assert_eq!(limit(0), SHORTEST);
    }

    /// A server that stood still for a moment answers all at once.
    #[tokio::test(start_paused = true)]
    async fn many_late_answers_make_the_server_no_slower_than_one() {
        let (in_flight, config) = in_flight();
        let (sent, limit) = (Instant::now(), in_flight.limit(0, &config));
        tokio::time::advance(Duration::from_secs(4)).await;
        for _ in 0..6 {
            in_flight.took(sent, limit);
            assert_eq!(in_flight.usual(), SHORTEST * TIMES_THE_SLOWEST);
        }
        // One that is slow again and again is given no more than any server that can renew leases needs.
        for _ in 0..6 {
            let (sent, limit) = (Instant::now(), in_flight.limit(0, &config));
            tokio::time::advance(LONGEST * 2).await;
            in_flight.took(sent, limit);
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
            let (sent, slot) = (Instant::now(), in_flight.slot(0).await);
            let mut hung = pin!(std::future::pending::<Result<(), ServerError>>());
            let adrift = in_flight.answer(hung.as_mut(), slot, limit).await.unwrap_err();
            (adrift, sent.elapsed())
        };
        let mut all = Vec::new();
        for number in 0..3 * DEAD_MOST {
            let (adrift, waited) = hang().await;
            assert_eq!(waited, patience(limit) * (number / DEAD_MOST).max(1), "{number}");
            all.push(adrift);
        }
        let (heard, ()) = tokio::join!(hang(), async {
            let (later, slot) = (Instant::now(), in_flight.slot(0).await);
            tokio::time::advance(Duration::from_millis(1)).await;
            drop(slot);
            in_flight.heard(later + Duration::from_millis(1));
        });
        assert_eq!(heard.1, patience(limit));
        // Its slot is another's meanwhile, as that of any command that hangs.
        assert!(in_flight.prompt.available_permits() == MOST && in_flight.seen().adrift() > 0);
        drop((all, heard));
        assert_eq!(in_flight.seen().adrift(), 0);
    }

    fn asked(name: &str, operation: Operation) -> Asked {
        let name = name.to_owned();
        Asked { name, operation }
    }

    /// A request for a lock that is expected to be free.
    fn request(name: &str) -> Asked {
        let operation = fixtures::asking(&format!("a.{name}"), fixtures::request(&format!("a-{name}")));
        let expects = Expects::Alone;
        asked(name, Operation { expects, ..operation })
    }

    /// A release that may hand its lock over.
    fn release(name: &str) -> Asked {
        let operation = leaving(&format!("a.{name}"), &format!("a-{name}"));
        let expects = Expects::OnlyHolder;
        asked(name, Operation { expects, ..operation })
    }

    async fn soon<T>(turn: impl Future<Output = T>) -> Option<T> {
        timeout(Duration::from_millis(1), turn).await.ok()
    }

    /// Takes all prompt slots.
    async fn full() -> (Arc<InFlight>, Vec<Option<Slot>>) {
        let slots = InFlight::new(MOST, true);
        let mut taken = Vec::new();
        while let Some(slot) = soon(slots.slot(0)).await {
            taken.push(slot);
        }
        assert_eq!(taken.len(), MOST);
        (slots, taken)
    }

    /// Queues these up, and frees a slot once all of them wait. Returns the names of each command, each of which ends
    /// at once.
    async fn commands(queued: impl IntoIterator<Item = Asked>) -> Vec<Vec<String>> {
        let (slots, mut taken) = full().await;
        let (commands, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for asked in queued {
            let (slots, commands) = (slots.clone(), commands.clone());
            tasks.push(tokio::spawn(async move {
                let Some((_slot, together)) = slots.turn(asked, 0).await else {
                    return;
                };
                let id = &together[0].operation.id;
                assert!(together.iter().all(|asked| asked.operation.id == *id));
                let names = together.iter().map(|asked| asked.name.clone());
                commands.lock().unwrap().push(names.collect());
            }));
            tokio::task::yield_now().await;
        }
        taken.pop();
        for task in tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut *commands.lock().unwrap())
    }

    /// Otherwise each command would leave as many waits and tasks behind, for as long as any operation is queued.
    #[tokio::test(start_paused = true)]
    async fn the_waits_of_operations_that_go_along_end_with_that() {
        let (slots, mut taken) = full().await;
        let names = (0..TOGETHER).map(|number| number.to_string());
        let mut turns: Vec<_> = names.map(|name| Box::pin(slots.turn(request(&name), 0))).collect();
        for turn in &mut turns {
            assert!(soon(turn).await.is_none());
        }
        taken.pop();
        let turns = soon(join_all(turns)).await.expect("none waits for a slot of its own");
        let commands: Vec<_> = turns.into_iter().flatten().collect();
        assert_eq!(
            commands.iter().map(|(_, all)| all.len()).collect::<Vec<_>>(),
            [TOGETHER]
        );
        assert!(soon(slots.turn(request("x"), 0)).await.is_none());
    }

    /// Many documents of a transaction are asked for meanwhile.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_only_leaves_goes_first() {
        let alone = |mut asked: Asked| {
            asked.operation.expects = Expects::Nothing;
            asked
        };
        let joint = |name: &str| {
            let mut asked = request(name);
            asked.operation.leave = release(name).operation.leave;
            asked
        };
        let queued = [request("1"), joint("2"), release("3"), joint("4"), release("5")].map(alone);
        let commands = commands(queued).await;
        assert_eq!(commands, ["3", "5", "1", "2", "4"].map(|name| vec![name]));
    }

    #[tokio::test(start_paused = true)]
    async fn operations_that_queue_up_share_the_next_command_and_nothing_waits_for_company() {
        let slots = InFlight::new(MOST, true);
        let mut turns = Vec::new();
        for number in 0..MOST {
            let turn = soon(slots.turn(request(&number.to_string()), 0));
            let (slot, alone) = turn.await.flatten().expect("a slot is free");
            assert_eq!(alone.len(), 1);
            turns.push(slot);
        }
        let names: Vec<String> = (0..TOGETHER + 6).map(|number| number.to_string()).collect();
        let commands = commands(names.iter().map(|name| request(name))).await;
        assert_eq!(commands, [&names[..TOGETHER], &names[TOGETHER..]]);
    }

    /// Those that go alone come in their order.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_cannot_share_a_command_goes_alone() {
        let in_full = |name: &str| {
            let mut asked = request(name);
            asked.operation.expects = Expects::Nothing;
            asked
        };
        let commands = commands([request("1"), in_full("2"), request("3"), in_full("4")]).await;
        assert_eq!(commands, [vec!["1", "3"], vec!["2"], vec!["4"]]);
    }

    /// Forty documents that a transaction has written: the server tries each for longer every time.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_was_slow_once_waits_behind_none_that_is_stuck() {
        let slots = InFlight::new(MOST, true);
        for number in 0..40 {
            let slots = slots.clone();
            tokio::spawn(async move {
                for tries in 0.. {
                    let mut asked = release(&number.to_string());
                    asked.operation.expects = Expects::Nothing;
                    let turn = slots.turn(asked, tries).await;
                    sleep(Duration::from_millis(200 << tries.min(5))).await;
                    drop(turn);
                }
            });
        }
        // Each of them has been tried three times by then.
        sleep(Duration::from_secs(20)).await;
        for tries in 0..STUCK_AFTER {
            for asked in [request("x"), release("x")] {
                let entered = soon(slots.turn(asked, tries)).await;
                assert!(matches!(entered, Some(Some(_))), "{tries}");
            }
        }
    }

    /// However often they ran out of time.
    #[tokio::test(start_paused = true)]
    async fn claims_take_no_slot_of_an_operation() {
        let slots = InFlight::new(MOST, true);
        let mut claims = Vec::new();
        while let Some(slot) = soon(slots.slot_of_claim()).await {
            claims.push(slot);
        }
        assert_eq!(claims.len(), MOST / 2);
        for (overdue, most) in [(0, MOST), (1, SLOW_AT_ONCE), (STUCK_AFTER, STUCK_AT_ONCE)] {
            let mut free = Vec::new();
            while let Some(slot) = soon(slots.slot(overdue)).await {
                free.push(slot);
            }
            assert_eq!(free.len(), most, "{overdue}");
        }
    }

    /// There is always another that was slow for a moment.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_is_stuck_gets_its_turn_beside_any_number_that_are_slow() {
        let second = Duration::from_secs(1);
        let (slots, _taken) = full().await;
        for _ in 0..4 * SLOW_AT_ONCE {
            let slots = slots.clone();
            tokio::spawn(async move {
                loop {
                    let slot = slots.slot(1).await;
                    sleep(second).await;
                    drop(slot);
                }
            });
        }
        sleep(second / 2).await;
        let mut stuck = Vec::new();
        while let Some(slot) = soon(slots.slot(STUCK_AFTER)).await {
            stuck.push(slot);
        }
        assert_eq!(stuck.len(), STUCK_AT_ONCE);
        stuck.pop();
        let served = soon(slots.turn(request("y"), STUCK_AFTER)).await;
        assert!(matches!(served, Some(Some(_))));
    }

    type Waiting = JoinHandle<Result<Held<locks::Mutex>, AcquireError>>;

    struct Bench {
        link: Arc<Link>,
        session: Arc<Session>,
        locks: LockClient,
        held: Held<locks::Mutex>,
        waiting: Waiting,
    }

    /// Settings of a client that polls and does one thing at a time.
    fn polling() -> Config {
        Config {
            wake_source: WakeSource::Polling,
            max_operations: 1,
            ..Config::default()
        }
    }

    /// While the server is silent, the first operations have all slots for as long as the driver waits.
    #[tokio::test(start_paused = true)]
    async fn a_try_behind_operations_that_hang_ends_in_time() {
        let (link, session) = client(&memory(), ONE, polling());
        let locks = LockClient::new(session);
        link.cut(true);
        let tries = (0..200).map(|number| {
            let mutex = locks.mutex(format!("x{}", number / 2));
            async move {
                let begun = Instant::now();
                let error = match number % 2 {
                    0 => mutex.try_acquire().await.unwrap_err(),
                    _ => mutex.acquire().timeout(Duration::ZERO).await.unwrap_err(),
                };
                assert!(matches!(error, AcquireError::Server(_)), "{error:?}");
                assert_eq!(
                    (error.to_string(), begun.elapsed()),
                    ("the server did not answer for 10s".into(), TRY_FOR)
                );
            }
        });
        join_all(tries).await;
    }

    /// One that waits for a lock that another has had for a while.
    async fn waiting() -> Bench {
        let memory = memory();
        let (_, other) = client(&memory, OTHER, polling());
        let held = LockClient::new(other).mutex("x").acquire().await.unwrap();
        let (link, session) = client(&memory, ONE, polling());
        let locks = LockClient::new(session.clone());
        let waiting = tokio::spawn(locks.mutex("x").acquire());
        sleep(Duration::from_secs(3)).await;
        Bench {
            link,
            session,
            locks,
            held,
            waiting,
        }
    }

    impl Bench {
        /// Has the next question hang on a dead connection.
        async fn asks_in_vain(&self) {
            self.link.kill_idle(1);
            while self.session.in_flight.prompt.available_permits() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// The driver looks for a server for longer than a command is waited for: its error comes late.
    #[tokio::test(start_paused = true)]
    async fn who_gives_up_in_an_outage_is_told_its_cause() {
        let (link, session) = client(&memory(), ONE, polling());
        link.cut(true);
        let locks = LockClient::new(session);
        // The first such error comes after 20 s, and from then on one after the other, between others that are given up.
        let told = (20_000..22_000).step_by(5).map(|millis| {
            let acquiring = locks.mutex("x").acquire().timeout(Duration::from_millis(millis));
            async move {
                match acquiring.await.unwrap_err() {
                    AcquireError::Unanswered { error, .. } => !error.unwrap().is_unanswered(),
                    other => panic!("{other:?}"),
                }
            }
        });
        let told = join_all(told).await;
        assert!(told.contains(&true));
    }

    /// It makes room for other operations, and for the next question, when it is overdue.
    #[tokio::test(start_paused = true)]
    async fn a_question_that_hangs_holds_up_nothing_else() {
        let bench = waiting().await;
        bench.asks_in_vain().await;
        let sent = Instant::now();
        bench.locks.mutex("y").acquire().await.unwrap().release().await.unwrap();
        assert!(sent.elapsed() < Duration::from_millis(300), "{:?}", sent.elapsed());
        sleep(Duration::from_millis(100)).await;
        // It is given up, and has a connection still.
        assert_eq!(bench.session.in_flight.seen().adrift(), 1);
        bench.held.release().await.unwrap();
        let released = Instant::now();
        bench.waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(
            released.elapsed() < Duration::from_millis(100),
            "{:?}",
            released.elapsed()
        );
        while !bench.session.is_unused() {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(bench.session.in_flight.seen().adrift(), 1);
        sleep(Duration::from_secs(1_000)).await;
        assert_eq!(bench.session.in_flight.seen().adrift(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_leaves_the_queue_after_its_question() {
        let bench = waiting().await;
        bench.asks_in_vain().await;
        bench.waiting.abort();
        // Its question has the only slot until it is overdue.
        sleep(Duration::from_millis(300)).await;
        let memory = bench.link.memory();
        memory.look("x", |state, _| assert_eq!(state.unwrap().queue, []));
    }
}
