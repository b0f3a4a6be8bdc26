//! Tests of the line against the specification of the protocol in place of a server, on paused time. Each file has the
//! tests of one subject; here is what they share: the [`Bench`] with a line and its document, and what others do to it.

mod adopting;
mod answers;
mod calm;
mod expiring;
mod full_queue;
mod grants;
mod handing_on;
mod idling;
mod keeping;
mod leaving;
mod news;
mod outages;
mod queue_position;
mod reentering;
mod reporting;
mod set_permits;
mod sharing;
mod trying;
mod waiting;

use std::io;

use tokio::sync::oneshot;

use super::{
    super::hold::{AcquireOutcome, ReleaseOutcome, Remains},
    *,
};
use crate::{
    config::Config,
    error::ServerError,
    hold_options::Terms,
    protocol::{
        CapacityIs, Evict, Exchange, Expects, KeptUntil, Kind, Owner, QUEUE_MOST, Request, Requests, State, fixtures,
        state,
    },
    status::{LockStatus, LostReason},
    waitlist::{AcquireOptions, Patience, SWEEPS, Step, StreamState, clock::ServerClock, deadline},
};

/// One line, and the one document behind it.
struct Bench {
    config: Config,
    clock: ServerClock,
    ids: Ids,
    line: Line,
    document: Option<State>,
    started: Instant,
    stream: StreamState,
    operations: usize,
    keys: u64,
}

type Receiver = oneshot::Receiver<AcquireOutcome>;

impl Bench {
    fn new() -> Self {
        Self {
            config: Config::default(),
            clock: ServerClock::default(),
            ids: Ids::new("me".to_owned()),
            line: Line::new("x".to_owned(), None, Duration::ZERO),
            document: None,
            started: Instant::now(),
            stream: StreamState::Open,
            operations: 0,
            keys: 0,
        }
    }

    fn server_now(&self) -> ServerTime {
        ServerTime(1_000_000 + i64::try_from(self.started.elapsed().as_millis()).unwrap())
    }

    /// Has the line act. Returns what it owes, but for the heartbeat's part.
    fn feed<T>(&mut self, input: impl FnOnce(&mut Line, &Context<'_>) -> T) -> (T, Vec<Effect>) {
        let context = Context {
            now: Instant::now(),
            config: &self.config,
            clock: &self.clock,
            stream: self.stream,
            ids: &self.ids,
            room: QUEUE_MOST,
        };
        let output = input(&mut self.line, &context);
        let mut effects = self.line.waitlist.take_effects();
        effects.retain(|effect| !matches!(effect, Effect::Came(_) | Effect::Gone(_)));
        (output, effects)
    }

    /// Has the line act, and carries out what it owes; `ended`: the operation behind it.
    fn act<T>(&mut self, ended: Option<&Ended>, input: impl FnOnce(&mut Line, &Context<'_>) -> T) -> T {
        let (output, effects) = self.feed(input);
        self.carry_out(effects, ended);
        output
    }

    /// Has the waitlist take a step.
    fn step<T>(&mut self, input: impl FnOnce(&mut Step<'_, Hold>) -> T) -> T {
        self.act(None, |line, context| input(&mut line.waitlist.step(context)))
    }

    fn carry_out(&self, effects: Vec<Effect>, ended: Option<&Ended>) {
        for effect in effects {
            match effect {
                Effect::Granted { to, hold } => drop(to.send(Ok(hold))),
                Effect::Refused { to, why } => drop(to.send(Err(refused(why, "x", ended, &self.ids)))),
                Effect::Released { to, found } => drop(to.send(found.ok_or_else(|| error_of(ended)))),
                Effect::Lost { hold, reason } => drop(hold.lose(reason)),
                Effect::Doubted(_) | Effect::Wanted(_) | Effect::Came(_) | Effect::Gone(_) => {}
            }
        }
    }

    fn join(&mut self, wait: bool) -> (u64, Receiver) {
        self.join_as(Kind::Mutex, 1, wait)
    }

    fn join_as(&mut self, kind: Kind, capacity: i64, wait: bool) -> (u64, Receiver) {
        let patience = if wait { Patience::Wait } else { Patience::Try };
        let options = AcquireOptions {
            used: (kind, capacity),
            patience,
            ..tries()
        };
        self.join_for(options)
    }

    fn join_for(&mut self, options: AcquireOptions) -> (u64, Receiver) {
        self.keys += 1;
        let key = self.keys;
        let (to, outcome) = oneshot::channel();
        self.step(|step| step.join(key, to, options));
        (key, outcome)
    }

    /// Gives up, and returns how it stood.
    fn give_up(&mut self, key: u64) -> (Option<Contention>, Option<ServerError>) {
        let error = self.act(None, |line, context| line.give_up(key, Some(Duration::ZERO), context));
        match error.expect("it waits")("x", &self.ids) {
            AcquireError::Timeout { contention, .. } => (contention.map(|it| *it), None),
            AcquireError::Unanswered { contention, error, .. } => (contention.map(|it| *it), error),
            other => panic!("{other}"),
        }
    }

    /// Has a task acquire the lock.
    fn take(&mut self) -> Arc<Hold> {
        let (_, mut outcome) = self.join(true);
        self.settle();
        held(&mut outcome)
    }

    /// Creates one whose task has the lock.
    fn holding() -> (Self, Arc<Hold>) {
        let mut bench = Self::new();
        let hold = bench.take();
        (bench, hold)
    }

    /// Creates one whose task waits behind another client's.
    fn behind_another() -> (Self, Receiver) {
        let mut bench = Self::new();
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        let (_, outcome) = bench.join(true);
        bench.settle();
        (bench, outcome)
    }

    fn next(&mut self) -> Option<Operation> {
        self.step(|step| step.settle());
        self.act(None, |line, context| line.next(context))
    }

    /// Returns the answer that the server would give now.
    fn apply(&mut self, operation: &Operation) -> Answer {
        self.operations += 1;
        assert!(self.operations < 10_000, "it goes on for ever: {operation:?}");
        self.document = state::apply(self.document.as_ref(), operation, self.server_now());
        let now = Instant::now();
        let exchange = Exchange::new(now, now, Some(self.server_now()));
        let _ = self.clock.note(&exchange, &self.config);
        Answer {
            state: self.document.clone(),
            exchange,
        }
    }

    fn answered(&mut self, operation: &Operation, answer: &Answer) {
        let answer = Arc::new(Answer {
            state: answer.state.clone(),
            ..*answer
        });
        self.act(Some(&Ok(answer.clone())), |line, context| {
            line.answered(operation, &answer, context)
        });
    }

    /// Has the server carry an operation out, and its answer come.
    fn answer(&mut self, operation: &Operation) {
        let answer = self.apply(operation);
        self.answered(operation, &answer);
    }

    fn failed(&mut self, operation: &Operation, kind: Failure) {
        self.fails(operation, &error(kind));
    }

    fn fails(&mut self, operation: &Operation, error: &ServerError) {
        let ended = Err(error.clone());
        self.act(Some(&ended), |line, context| {
            line.failed(operation, error, Duration::ZERO, context)
        });
    }

    fn signalled(&mut self, id: &str, signal: wake::Signal, at: ServerTime) {
        self.act(None, |line, context| line.signalled(id, signal, at, None, context));
    }

    /// Runs operations until the line wants no more.
    fn settle(&mut self) {
        let before = self.operations;
        while let Some(operation) = self.next() {
            assert!(self.operations < before + 1_000, "it goes on for ever: {operation:?}");
            let answer = self.apply(&operation);
            self.answered(&operation, &answer);
        }
    }

    /// Creates one whose task waits behind another client's, without a stream.
    fn polling() -> (Self, Receiver) {
        let mut bench = Self::new();
        bench.stream = StreamState::Unavailable;
        bench.foreign(&foreign("other", &[], Some("other")), false);
        let (_, outcome) = bench.join(true);
        bench.settle();
        (bench, outcome)
    }

    /// Lets the time go by until the line has something to do.
    async fn pass(&mut self) {
        tokio::time::sleep_until(self.line.waitlist.due_at().expect("there is more to do")).await;
    }

    /// Applies another session's operation to the document; its announcements reach the line unless they get lost.
    fn foreign(&mut self, operation: &Operation, announced: bool) {
        self.document = state::apply(self.document.as_ref(), operation, self.server_now());
        if announced {
            self.announce();
        }
    }

    fn announce(&mut self) {
        let state = self.document.as_ref().unwrap();
        let (wake, at) = (state.wake.clone(), state.at);
        for (id, signal) in wake::signals(&wake, "me") {
            self.signalled(id, signal, at);
        }
    }

    fn let_go(&mut self, hold: &Hold) -> oneshot::Receiver<ReleaseOutcome> {
        let (to, left) = oneshot::channel();
        self.step(|step| step.let_go(hold, Some(to)));
        left
    }

    /// Releases a hold as its last handle does. Returns whether the release was answered without an operation.
    fn release(&mut self, hold: &Hold) -> bool {
        assert_eq!(hold.exit(), Remains::Nothing);
        let (to, mut left) = oneshot::channel();
        self.step(|step| step.let_go(hold, Some(to)));
        let answered = left.try_recv();
        if let Ok(left) = &answered {
            assert_eq!(*left.as_ref().unwrap(), wake::Left::Holder);
        }
        self.settle();
        answered.is_ok()
    }

    fn ids_in_document(&self) -> Vec<&str> {
        let state = self.document.as_ref().unwrap();
        let holders = state.holders.iter().map(|holder| holder.id.as_str());
        holders
            .chain(state.queue.iter().map(|waiter| waiter.id.as_str()))
            .collect()
    }
}

fn error(kind: Failure) -> ServerError {
    ServerError {
        kind,
        source: Arc::new(io::Error::other("as the test wants it")),
    }
}

fn held(outcome: &mut Receiver) -> Arc<Hold> {
    outcome.try_recv().expect("it was answered").expect("with a grant")
}

fn foreign(id: &str, leave: &[&str], request: Option<&str>) -> Operation {
    let entry = |id: &str| Request {
        lease: 30_000,
        claim: 5_000,
        ..fixtures::request(id)
    };
    Operation {
        leave: leave.iter().map(|id| (*id).to_owned()).collect(),
        requests: request.map(|id| Requests {
            kind: Kind::Mutex,
            capacity: 1,
            by: CapacityIs::Demanded,
            entries: vec![entry(id)],
            adopts: None,
        }),
        ..Operation::blank(id.to_owned(), 60_000)
    }
}

fn tries() -> AcquireOptions {
    AcquireOptions {
        used: (Kind::Mutex, 1),
        by: CapacityIs::Demanded,
        permits: 1,
        patience: Patience::Try,
        reentrant: false,
        upgrades: None,
        terms: Terms::default(),
        owner: Owner::default(),
    }
}

fn reentrant() -> AcquireOptions {
    AcquireOptions {
        patience: Patience::Wait,
        reentrant: true,
        ..tries()
    }
}

fn unanswered() -> ServerError {
    ServerError::unanswered(Duration::from_millis(250))
}

const MINUTE: Duration = Duration::from_secs(60);

/// Takes the lock in line with these terms, as the only one.
fn kept_for(bench: &mut Bench, least: Duration) -> Arc<Hold> {
    let terms = Terms {
        at_least: least,
        ..Terms::default()
    };
    let (_, mut outcome) = bench.join_for(AcquireOptions { terms, ..tries() });
    bench.settle();
    held(&mut outcome)
}
