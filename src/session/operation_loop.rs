//! The run of an operation: one at a time for each name, and beside the unanswered ones that were given up. A look at a
//! queue position, or for room in the queue, holds up none.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Session,
    in_flight::{Slot, patience},
};
use crate::{
    error::ServerError,
    protocol::{Exchange, Operation},
    store::{Answer, Asked, Documents, Store, View},
    telemetry,
    waitlist::{Look, answers::asked_for},
};

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
                self.signs.send_if_modified(|signs| signs.note(sent, answers.as_ref()));
                return self.ended(&all, answers, within);
            }
            Err(adrift) => adrift,
        };
        let error = ServerError::unanswered(patience(within));
        for Asked { name, operation } in &all {
            telemetry::operation_failed(telemetry::purpose(operation), Some(name), &error);
        }
        self.ended(&all, Err(error), within);
        if let (Some(session), late) = adrift.outlast(self, command).await {
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

    /// Reads what the head of a line looks at. If there is no answer in time, the head asks, and the error of that shows
    /// why.
    pub(super) async fn look(self: Arc<Self>, name: String, look: Look) {
        let within = self.in_flight.usual();
        let Ok(slot) = timeout(patience(within), self.in_flight.slot(0)).await else {
            return self.looked(&name, look, None);
        };
        let line = self
            .table()
            .lines
            .by_name
            .get(&name)
            .map(|line| line.waitlist.is_looking(look));
        if line != Some(true) {
            // An operation has overtaken it, and may wait for this slot.
            return;
        }
        let (store, in_flight) = (self.store.clone(), self.in_flight.clone());
        let (names, room) = (std::slice::from_ref(&name), look.room);
        let mut reading = pin!(store.read(View::Queue { room, within }, names));
        match in_flight.answer(reading.as_mut(), slot, within).await {
            Ok(seen) => self.looked(&name, look, seen.ok()),
            Err(adrift) => {
                self.looked(&name, look, None);
                if let (Some(session), Ok((_, exchange))) = adrift.outlast(self, reading).await {
                    session.note(&exchange);
                }
            }
        }
    }

    fn looked(self: &Arc<Self>, name: &str, look: Look, seen: Option<(Documents, Exchange)>) {
        let (documents, exchange) = seen.unzip();
        exchange.iter().for_each(|exchange| self.note(exchange));
        let document = documents.as_ref().map(|documents| documents.get(name));
        let state = document.map(|document| document.and_then(|document| document.as_ref().ok()));
        let now = exchange.and_then(|exchange| exchange.now);
        self.update(name, None, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(name) {
                line.waitlist.step(context).looked(look, state, now);
            }
        });
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

    use super::*;
    use crate::{
        client::LockClient,
        config::Config,
        error::AcquireError,
        handle::Held,
        locks::Mutex,
        protocol::ServerTime,
        store::{MemoryStore, Store},
        tests::simulated::Link,
        waitlist::answers::TRY_FOR,
        wake_mode::{PollingReason, WakeMode, WakeSource},
    };

    type Waiting = JoinHandle<Result<Held<Mutex>, AcquireError>>;

    struct Bench {
        link: Arc<Link>,
        session: Arc<Session>,
        locks: LockClient,
        held: Held<Mutex>,
        waiting: Waiting,
    }

    /// A client that polls and does one thing at a time.
    fn client(memory: &Arc<MemoryStore>, id: &str) -> (Arc<Link>, Arc<Session>) {
        let link = Link::new(memory.clone(), 1);
        link.calm();
        let settings = Config {
            wake_source: WakeSource::Polling,
            max_operations: 1,
            ..Config::default()
        };
        let (config, store) = (settings.validate().unwrap(), Store::Simulated(link.clone()));
        let mode = WakeMode::Polling(PollingReason::Configured);
        let session = Session::of(id.to_owned(), config, store, None, mode);
        (link, session)
    }

    fn memory() -> Arc<MemoryStore> {
        Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)))
    }

    /// While the server is silent, the first operations have all slots for as long as the driver waits.
    #[tokio::test(start_paused = true)]
    async fn a_try_behind_operations_that_hang_ends_in_time() {
        let (link, session) = client(&memory(), "0123456789abcdef");
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
        let (_, other) = client(&memory, "fedcba9876543210");
        let held = LockClient::new(other).mutex("x").acquire().await.unwrap();
        let (link, session) = client(&memory, "0123456789abcdef");
        let locks = LockClient::new(session.clone());
        let waiting = tokio::spawn(locks.mutex("x").acquire());
        sleep(Duration::from_secs(3)).await;
        assert!(link.reads() > 20, "{}", link.reads());
        Bench {
            link,
            session,
            locks,
            held,
            waiting,
        }
    }

    impl Bench {
        /// Waits until one more look has been sent.
        async fn looks(&self) {
            let reads = self.link.reads();
            while self.link.reads() == reads {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// The driver looks for a server for longer than a command is waited for: its error comes late.
    #[tokio::test(start_paused = true)]
    async fn who_gives_up_in_an_outage_is_told_its_cause() {
        let (link, session) = client(&memory(), "0123456789abcdef");
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

    /// It makes room for other operations, and for the request in its place, when it is overdue.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_holds_up_nothing_else() {
        let bench = waiting().await;
        bench.link.kill_idle(1);
        bench.looks().await;
        let sent = Instant::now();
        bench.locks.mutex("y").acquire().await.unwrap().release().await.unwrap();
        assert!(sent.elapsed() < Duration::from_millis(300), "{:?}", sent.elapsed());
        sleep(Duration::from_millis(100)).await;
        // It is given up, and has a connection still.
        assert!(!bench.session.in_flight.is_quiet());
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
        assert!(!bench.session.in_flight.is_quiet());
        sleep(Duration::from_secs(1_000)).await;
        assert!(bench.session.in_flight.is_quiet());
    }

    /// Of two that wait for the one slot, the look came first.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_an_operation_has_overtaken_takes_no_slot() {
        let Bench {
            link,
            session,
            held: _held,
            waiting,
            ..
        } = waiting().await;
        for round in 0..25 {
            let slot = session.in_flight.slot(0).await;
            // A look is due at some time meanwhile.
            sleep(Duration::from_millis(10 * round)).await;
            session.on_doubt("x");
            let reads = link.reads();
            drop(slot);
            sleep(Duration::from_millis(5)).await;
            assert_eq!(link.reads(), reads, "{round}");
            sleep(Duration::from_millis(300)).await;
        }
        waiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_leaves_the_queue_beside_its_look() {
        let bench = waiting().await;
        bench.link.kill_idle(1);
        bench.looks().await;
        bench.waiting.abort();
        // Its look has the only slot until it is overdue.
        sleep(Duration::from_millis(300)).await;
        let memory = bench.link.memory();
        memory.look("x", |state, _| assert_eq!(state.unwrap().queue, []));
    }
}
