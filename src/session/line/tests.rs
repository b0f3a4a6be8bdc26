//! Tests of the line against the specification of the protocol in place of a server, on paused time.

mod answers;
mod handing_on;
mod idling;
mod looking;
mod news;
mod sharing;

use std::io;

use super::{super::hold::Remains, *};
use crate::{
    config::{Config, Settings},
    protocol::{Evict, Exchange, Expects, Identity, Kept, KeptUntil, QUEUE_MOST, Record, Request, Requests, state},
    status::LockStatus,
    waitlist::{
        SWEEPS, StreamState,
        answers::{RACES, TRY_FOR},
        clock::ServerClock,
        deadline::Deadline,
        timing::{CLAIM_CHECK, KNOCK},
    },
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
            config: Settings::default().validate().unwrap(),
            clock: ServerClock::default(),
            ids: Ids::new("me".to_owned()),
            line: Line::new("x".to_owned(), None, None),
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

    fn feed<T>(
        &mut self,
        input: impl FnOnce(&mut Line, &Context<'_>, &mut Vec<LineEffect>) -> T,
    ) -> (T, Vec<LineEffect>) {
        let mut effects = Vec::new();
        let context = Context {
            now: Instant::now(),
            config: &self.config,
            clock: &self.clock,
            stream: self.stream,
            ids: &self.ids,
            room: QUEUE_MOST,
        };
        let output = input(&mut self.line, &context, &mut effects);
        (output, effects)
    }

    fn join(&mut self, wait: bool) -> (u64, Receiver) {
        self.join_as(Kind::Mutex, 1, wait)
    }

    fn join_as(&mut self, kind: Kind, capacity: i64, wait: bool) -> (u64, Receiver) {
        self.join_for(AcquireOptions {
            kind,
            capacity,
            permits: 1,
            wait,
            reports_contention: false,
            reentrant: false,
            terms: Terms::default(),
            owner: Owner::default(),
        })
    }

    fn join_for(&mut self, options: AcquireOptions) -> (u64, Receiver) {
        self.keys += 1;
        let (to, outcome) = oneshot::channel();
        let pending = Pending::new(self.keys, self.ids.entry(), options, to);
        let ((), effects) = self.feed(|line, context, effects| line.join(pending, context, effects));
        carry_out(effects);
        (self.keys, outcome)
    }

    /// Gives up, and returns how it stood.
    fn give_up(&mut self, key: u64) -> (Option<Contention>, Option<StoreError>) {
        let (standing, effects) = self.feed(|line, context, _| line.cancel(key, context));
        carry_out(effects);
        standing.expect("it waits").report(&self.ids)
    }

    fn next(&mut self) -> Option<Operation> {
        let ((), effects) = self.feed(|line, context, effects| line.attend_to_idle(context, effects));
        carry_out(effects);
        self.feed(|line, context, _| line.next(context)).0
    }

    /// Returns the answer that the server would give now.
    fn apply(&mut self, operation: &Operation) -> Answer {
        self.operations += 1;
        assert!(self.operations < 10_000, "it goes on for ever: {operation:?}");
        let selected = self.document.as_ref().is_none_or(|state| operation.selects(state));
        self.document = state::apply(self.document.as_ref(), operation, self.server_now());
        let now = Instant::now();
        let exchange = Exchange {
            sent: now,
            received: now,
            now: Some(self.server_now()),
        };
        let _ = self.clock.note(&exchange, &self.config);
        Answer {
            state: self.document.clone().filter(|_| selected),
            exchange,
            logged_by: None,
        }
    }

    fn answered(&mut self, operation: &Operation, answer: &Answer) {
        let ((), effects) = self.feed(|line, context, effects| {
            line.answered(operation, answer, context, effects);
            let state = answer.state.clone();
            let exchange = answer.exchange;
            line.remember(
                Answer {
                    state,
                    exchange,
                    logged_by: None,
                },
                context,
            );
        });
        carry_out(effects);
    }

    fn failed(&mut self, operation: &Operation, kind: Failure) {
        let error = error(kind);
        let ((), effects) = self.feed(|line, context, effects| line.failed(operation, &error, context, effects));
        carry_out(effects);
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

    /// Carries out the look that is due, and returns whether it shows the entry in the queue.
    fn look(&mut self) -> Option<bool> {
        let look = self.next_look()?;
        Some(self.looked(&look))
    }

    fn next_look(&mut self) -> Option<PositionLook> {
        self.feed(|line, context, _| line.next_look(context)).0
    }

    /// Shows the queue position as it is now.
    fn looked(&mut self, look: &PositionLook) -> bool {
        let state = self.document.as_ref();
        let ahead = state.and_then(|state| Ahead::of(state, &look.entry, self.server_now()));
        self.feed(|line, context, _| line.looked(look, ahead, context));
        ahead.is_some()
    }

    fn look_failed(&mut self, look: &PositionLook, error: &StoreError) {
        self.feed(|line, context, _| line.look_failed(look, error, context));
    }

    /// Lets the time go by until the line looks. Returns the look, and when it has asked before that.
    async fn asks_until_it_looks(&mut self) -> (PositionLook, Vec<Instant>) {
        let mut asked = Vec::new();
        loop {
            self.pass().await;
            let before = self.operations;
            self.settle();
            if self.operations > before {
                asked.push(Instant::now());
            }
            if let Some(look) = self.next_look() {
                return (look, asked);
            }
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
        tokio::time::sleep_until(self.line.due_at().expect("there is more to do")).await;
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
            let ((), effects) =
                self.feed(|line, context, effects| line.signalled(id, signal, at, None, context, effects));
            carry_out(effects);
        }
    }

    fn let_go(&mut self, hold: &Hold) -> oneshot::Receiver<super::ReleaseOutcome> {
        let (to, left) = oneshot::channel();
        self.feed(|line, context, effects| line.let_go(hold, Some(to), context, effects));
        left
    }

    fn ids_in_document(&self) -> Vec<&str> {
        let state = self.document.as_ref().unwrap();
        let holders = state.holders.iter().map(|holder| holder.id.as_str());
        holders
            .chain(state.queue.iter().map(|waiter| waiter.id.as_str()))
            .collect()
    }
}

fn carry_out(effects: Vec<LineEffect>) {
    for effect in effects {
        match effect {
            LineEffect::Answer(to, outcome) => drop(to.send(outcome)),
            LineEffect::Released(to, left) => drop(to.send(left)),
            LineEffect::Lost(hold, reason) => drop(hold.lose(reason)),
            LineEffect::Doubted(_) => {}
        }
    }
}

fn error(kind: Failure) -> StoreError {
    StoreError {
        kind,
        source: Arc::new(io::Error::other("as the test wants it")),
    }
}

fn held(outcome: &mut Receiver) -> Arc<Hold> {
    outcome
        .try_recv()
        .expect("it was answered")
        .expect("without an error")
        .expect("with a grant")
}

fn foreign(id: &str, leave: &[&str], request: Option<&str>) -> Operation {
    let entry = |id: &str| Request {
        id: id.to_owned(),
        permits: 1,
        lease: 30_000,
        claim: 5_000,
        wait: true,
        fresh: true,
        reserve: 0,
        owner: Owner::default(),
    };
    Operation {
        id: id.to_owned(),
        leave: leave.iter().map(|id| (*id).to_owned()).collect(),
        kept: Vec::new(),
        leave_capacity: None,
        evict: Evict::Nobody,
        proclaim: None,
        downgrade: None,
        requests: request.map(|id| Requests {
            kind: Kind::Mutex,
            capacity: 1,
            entries: vec![entry(id)],
            adopts: None,
        }),
        expects: Expects::Nothing,
        room: QUEUE_MOST,
        keep: 60_000,
        record: Record::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn where_it_goes_through_the_server_handing_a_lock_from_task_to_task_costs_one_operation() {
    let mut bench = Bench::new();
    bench.config.hands_on = false;
    let mut outcomes: Vec<_> = (0..50).map(|_| bench.join(true).1).collect();
    bench.settle();
    let mut last = 0;
    for outcome in &mut outcomes {
        let hold = held(outcome);
        assert!(hold.token.as_i64() > last, "first come, first served");
        last = hold.token.as_i64();
        assert!(bench.document.as_ref().unwrap().queue.len() <= 2);
        let mut left = bench.let_go(&hold);
        bench.settle();
        assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    }
    // One to begin with, one for the second in line, and then one for each hand-over.
    assert!(bench.operations <= 52, "{} operations", bench.operations);
    assert!(bench.line.is_unused());
}

#[tokio::test(start_paused = true)]
async fn beside_others_a_client_has_one_place_in_the_queue() {
    let mut bench = Bench::new();
    let mut outcomes: Vec<Receiver> = (0..5).map(|_| bench.join(true).1).collect();
    bench.settle();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    // The other is behind the second in line, and not known of before the answer to this; so the third follows it.
    let first = held(&mut outcomes[0]);
    let _left = bench.let_go(&first);
    bench.settle();
    let second = held(&mut outcomes[1]);
    let _left = bench.let_go(&second);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 2);
    assert_eq!(bench.ids_in_document()[0], "b-1");
    bench.foreign(&foreign("b.2", &["b-1"], Some("b-2")), true);
    // The fourth gets in line while the third holds, behind the other, and nobody with it.
    let third = held(&mut outcomes[2]);
    bench.settle();
    let _left = bench.let_go(&third);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 2);
    assert_eq!(bench.ids_in_document()[0], "b-2");
}

#[tokio::test(start_paused = true)]
async fn a_try_behind_others_fails_without_asking() {
    let mut bench = Bench::new();
    let (_, _first) = bench.join(true);
    let (_, mut tried) = bench.join(false);
    assert!(tried.try_recv().unwrap().unwrap().is_none());
    assert_eq!(bench.operations, 0);
}

#[tokio::test(start_paused = true)]
async fn a_leave_follows_the_request_it_undoes() {
    let mut bench = Bench::new();
    let (key, outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.feed(|line, context, _| line.cancel(key, context));
    drop(outcome);
    assert!(bench.next().is_none(), "nothing overtakes what is on its way");
    let answer = bench.apply(&request);
    bench.answered(&request, &answer);
    assert_eq!(bench.ids_in_document().len(), 1);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 0);
    assert!(bench.line.is_unused());
}

#[tokio::test(start_paused = true)]
async fn what_was_applied_late_is_swept_out() {
    for cancelled_early in [true, false] {
        let mut bench = Bench::new();
        let (key, outcome) = bench.join(true);
        let request = bench.next().unwrap();
        if cancelled_early {
            bench.feed(|line, context, _| line.cancel(key, context));
            bench.failed(&request, Failure::Unavailable);
        } else {
            bench.failed(&request, Failure::Unavailable);
            bench.feed(|line, context, _| line.cancel(key, context));
        }
        drop(outcome);
        tokio::time::advance(Duration::from_millis(100)).await;
        bench.settle();
        // The first leave came too early: only now the server gets round to the request.
        bench.apply(&request);
        assert_eq!(bench.ids_in_document().len(), 1);
        while !bench.line.is_unused() {
            let due = bench.line.due_at().expect("there is more to do");
            tokio::time::sleep_until(due).await;
            bench.settle();
        }
        assert_eq!(bench.ids_in_document().len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_a_release() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let hold = held(&mut outcome);
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    bench.apply(&release);
    bench.failed(&release, Failure::Unavailable);
    left.try_recv().unwrap_err();
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
}

#[tokio::test(start_paused = true)]
async fn an_event_grants_and_the_claim_is_checked_soon() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 2);
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    let hold = held(&mut outcome);
    assert!(hold.safe_for() <= bench.config.claim_lease - bench.config.skew_margin);
    assert_eq!(hold.renew_at(), Some(Instant::now() + CLAIM_CHECK));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_not_believed() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    bench.foreign(&foreign("b.2", &["b-1"], None), false);
    let stale = bench.ids_in_document()[0].to_owned();
    // The process was frozen: the claim is over before the event is seen.
    tokio::time::advance(bench.config.claim_lease).await;
    bench.announce();
    outcome.try_recv().unwrap_err();
    bench.settle();
    let hold = held(&mut outcome);
    assert_ne!(hold.id, stale, "under a new entry, with a token of its own");
    assert!(hold.safe_for() > Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_not_stretched_by_a_server_clock_that_was_set_ahead() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let ahead = ServerTime(bench.server_now().0 + 3_600_000);
    let id = bench.ids_in_document()[1].to_owned();
    let granted = wake::Signal::Granted { token: 1_000_000_002 };
    let ((), effects) =
        bench.feed(|line, context, effects| line.signalled(&id, granted, ahead, None, context, effects));
    carry_out(effects);
    assert!(held(&mut outcome).safe_for() <= bench.config.claim_lease);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_the_document_no_longer_has_is_lost() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let hold = held(&mut outcome);
    let id = hold.id.clone();
    bench.foreign(&foreign("b.1", &[&id], Some("b-1")), false);
    assert_eq!(hold.lost_reason(), None);
    // The next request of any kind reveals it.
    let _second = bench.join(true);
    bench.settle();
    assert_eq!(hold.lost_reason(), Some(LostReason::Overwritten));
}

#[tokio::test(start_paused = true)]
async fn an_answer_older_than_a_grant_does_not_undo_it() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    // The answer is on its way while the lock is handed over and the event arrives.
    let answer = bench.apply(&request);
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    let hold = held(&mut outcome);
    bench.answered(&request, &answer);
    assert_eq!(hold.lost_reason(), None);
    bench.settle();
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn a_name_in_use_as_something_else_is_refused_with_both_sides() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let before = bench.document.clone();
    let (_, mut outcome) = bench.join_as(Kind::Semaphore, 5, true);
    bench.settle();
    let error = outcome.try_recv().unwrap().unwrap_err().to_string();
    assert!(
        error.contains("mutex with capacity 1") && error.contains("semaphore with capacity 5"),
        "{error}"
    );
    assert_eq!(bench.document, before);
}

#[tokio::test(start_paused = true)]
async fn the_head_asks_when_the_holder_expires() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let started = Instant::now();
    while outcome.try_recv().is_err() {
        tokio::time::sleep_until(bench.line.due_at().expect("it asks again")).await;
        bench.settle();
    }
    let waited = started.elapsed();
    assert!(
        waited >= Duration::from_secs(30) && waited < Duration::from_millis(30_010),
        "{waited:?}"
    );
    // Three routine questions and the one at the expiry.
    assert!(bench.operations <= 5, "{} operations", bench.operations);
}

#[tokio::test(start_paused = true)]
async fn without_a_stream_the_head_asks_often_and_then_less_often() {
    let mut bench = Bench::new();
    bench.stream = StreamState::Unavailable;
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let _waiting = bench.join(true);
    bench.settle();
    let mut pauses = Vec::new();
    while bench.started.elapsed() < Duration::from_secs(20) {
        let due = bench.line.due_at().unwrap();
        pauses.push(due - Instant::now());
        tokio::time::sleep_until(due).await;
        bench.settle();
        bench.look();
    }
    // As the lock has just changed hands.
    assert_eq!(pauses.first(), Some(&Duration::from_millis(1)));
    assert!(pauses.last().unwrap() >= &Duration::from_millis(350));
    assert!(pauses.is_sorted(), "{pauses:?}");
    // A dozen more than where the pace is not known.
    let quick = pauses.iter().filter(|pause| **pause < Duration::from_millis(10));
    assert!((5..=20).contains(&quick.count()), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_is_told_of_an_outage_and_a_waiter_goes_on() {
    let mut bench = Bench::new();
    let (_, mut tried) = bench.join(false);
    for _ in 0..2 {
        tried.try_recv().unwrap_err();
        tokio::time::sleep_until(bench.line.due_at().unwrap()).await;
        let request = bench.next().unwrap();
        bench.failed(&request, Failure::Unavailable);
    }
    assert!(matches!(tried.try_recv().unwrap(), Err(AcquireError::Server(_))));

    let (_, mut waiting) = bench.join(true);
    for _ in 0..20 {
        tokio::time::sleep_until(bench.line.due_at().unwrap()).await;
        let request = bench.next().unwrap();
        bench.failed(&request, Failure::Unavailable);
        waiting.try_recv().unwrap_err();
    }
    tokio::time::sleep_until(bench.line.due_at().unwrap()).await;
    bench.settle();
    held(&mut waiting);
}

#[tokio::test(start_paused = true)]
async fn a_try_outlives_one_cut_whether_it_was_applied_or_not() {
    for applied in [false, true] {
        let mut bench = Bench::new();
        let (_, mut tried) = bench.join(false);
        let request = bench.next().unwrap();
        if applied {
            bench.apply(&request);
        }
        bench.failed(&request, Failure::Unavailable);
        tokio::time::sleep_until(bench.line.due_at().unwrap()).await;
        bench.settle();
        held(&mut tried);
        assert_eq!(bench.ids_in_document().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_an_endless_race_are_told() {
    for (kind, times) in [(Failure::Refused, 1), (Failure::Raced, RACES + 1)] {
        let mut bench = Bench::new();
        let (_, mut outcome) = bench.join(true);
        for _ in 0..times {
            outcome.try_recv().unwrap_err();
            let request = bench.next().unwrap();
            bench.failed(&request, kind);
        }
        assert!(matches!(outcome.try_recv().unwrap(), Err(AcquireError::Server(_))));
        assert!(bench.line.is_unused());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_overtakes_the_answer_is_not_forgotten() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    let operation = bench.next().expect("it asks");
    let answer = bench.apply(&operation);
    // The event of the deletion arrives before the answer that the waiter is queued.
    bench.document = None;
    bench.feed(|line, context, _| line.doubt(context));
    bench.answered(&operation, &answer);
    bench.settle();
    held(&mut outcome);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_broken_before_its_answer_arrives_is_none() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    let operation = bench.next().expect("it asks");
    let answer = bench.apply(&operation);
    let breaking = Operation {
        evict: Evict::Everybody,
        ..foreign("other.1", &[], None)
    };
    bench.foreign(&breaking, true);
    bench.answered(&operation, &answer);
    assert!(outcome.try_recv().is_err(), "the grant was broken");
    bench.settle();
    let hold = held(&mut outcome);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
}

/// The short release is the one that hands over, of locks of many permits too.
#[tokio::test(start_paused = true)]
async fn a_release_of_a_permit_takes_for_granted_that_it_is_held() {
    let mut bench = Bench::new();
    let (_, mut first) = bench.join_as(Kind::Semaphore, 2, true);
    let (_, mut second) = bench.join_as(Kind::Semaphore, 2, true);
    bench.settle();
    let (first, second) = (held(&mut first), held(&mut second));
    let mut waits = foreign("b.1", &[], Some("b-1"));
    if let Some(requests) = &mut waits.requests {
        (requests.kind, requests.capacity) = (Kind::Semaphore, 2);
    }
    bench.foreign(&waits, false);

    let mut left = bench.let_go(&first);
    let release = bench.next().unwrap();
    assert!(release.expects == Expects::Holding);
    let answer = bench.apply(&release);
    bench.answered(&release, &answer);
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    assert_eq!(bench.ids_in_document(), [second.id.as_str(), "b-1"]);

    // It was put out, and what it had has gone on to somebody else.
    bench.foreign(&foreign("b.2", &[&second.id], None), false);
    let mut left = bench.let_go(&second);
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Nowhere);
    assert_eq!(bench.ids_in_document(), ["b-1"]);
}

#[tokio::test(start_paused = true)]
async fn who_expects_to_be_alone_and_is_not_asks_in_full() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let hold = held(&mut outcome);
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    assert!(release.expects == Expects::Alone, "nobody else was seen a moment ago");
    // Somebody got in line in that moment.
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let answer = bench.apply(&release);
    assert!(wake::left(&answer.state.as_ref().unwrap().wake, &release.id).is_none());
    bench.answered(&release, &answer);
    left.try_recv().unwrap_err();
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    assert_eq!(
        bench.document.as_ref().unwrap().holders[0].id,
        "b-1",
        "it was handed over"
    );

    // The same for an acquire of a lock that was idle when it was last seen.
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    drop(bench.let_go(&held(&mut outcome)));
    bench.settle();
    let alone_at = bench.line.alone_at();
    assert!(alone_at.is_some());
    bench.line = Line::new("x".to_owned(), alone_at, None);
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    assert!(request.expects == Expects::Alone);
    let answer = bench.apply(&request);
    bench.answered(&request, &answer);
    bench.settle();
    outcome.try_recv().unwrap_err();
    assert_eq!(bench.document.as_ref().unwrap().queue.len(), 1, "it waits in line");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_its_grant_was_broken_leaves_no_ghost() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    // It asks once more, and the request takes its time.
    bench.feed(|line, context, _| line.doubt(context));
    let operation = bench.next().expect("it asks");
    bench.foreign(&foreign("other.2", &["other-1"], None), true);
    let hold = held(&mut outcome);
    // The lock is broken, of which nothing is heard yet, and then the request puts the entry in again.
    let breaking = Operation {
        evict: Evict::Everybody,
        ..foreign("other.3", &[], None)
    };
    bench.foreign(&breaking, false);
    let answer = bench.apply(&operation);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
    bench.answered(&operation, &answer);
    assert!(hold.lost_reason().is_some(), "the grant was broken");
    bench.settle();
    assert!(bench.ids_in_document().is_empty(), "nobody has the second grant");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_comes_late_ends_no_later_grant() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    // It is handed the lock, which is broken, of neither of which it has heard when it asks again.
    bench.foreign(&foreign("other.2", &["other-1"], None), false);
    let breaking = Operation {
        evict: Evict::Everybody,
        ..foreign("other.3", &[], None)
    };
    bench.foreign(&breaking, false);
    let broken = bench.document.as_ref().expect("there is one").clone();
    bench.feed(|line, context, _| line.doubt(context));
    bench.settle();
    let hold = held(&mut outcome);
    for (id, signal) in wake::signals(&broken.wake, "me") {
        let ((), effects) =
            bench.feed(|line, context, effects| line.signalled(id, signal, broken.at, None, context, effects));
        carry_out(effects);
    }
    assert_eq!(hold.lost_reason(), None, "another grant was broken");
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_is_lost_after_its_grant_was_broken_leaves_no_ghost() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    bench.feed(|line, context, _| line.doubt(context));
    let operation = bench.next().expect("it asks");
    bench.foreign(&foreign("other.2", &["other-1"], None), true);
    let hold = held(&mut outcome);
    let breaking = Operation {
        evict: Evict::Everybody,
        ..foreign("other.3", &[], None)
    };
    bench.foreign(&breaking, false);
    let broken = bench.document.as_ref().expect("there is one").clone();
    // The request puts the entry in again, and nobody is told.
    bench.apply(&operation);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
    for (id, signal) in wake::signals(&broken.wake, "me") {
        let ((), effects) =
            bench.feed(|line, context, effects| line.signalled(id, signal, broken.at, None, context, effects));
        carry_out(effects);
    }
    assert_eq!(hold.lost_reason(), Some(LostReason::Broken));
    bench.failed(&operation, Failure::Unavailable);
    tokio::time::advance(Duration::from_secs(1)).await;
    bench.settle();
    assert!(bench.ids_in_document().is_empty(), "nobody has the second grant");
}

fn try_told() -> AcquireOptions {
    AcquireOptions {
        kind: Kind::Mutex,
        capacity: 1,
        permits: 1,
        wait: false,
        reports_contention: true,
        reentrant: false,
        terms: Terms::default(),
        owner: Owner::default(),
    }
}

fn reentrant() -> AcquireOptions {
    AcquireOptions {
        wait: true,
        reports_contention: false,
        reentrant: true,
        ..try_told()
    }
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_is_told_who_holds_and_how_many_come_before() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    bench.foreign(&foreign("b.2", &[], Some("b-2")), false);
    let (first, _first) = bench.join(true);
    let (second, _second) = bench.join(true);
    bench.settle();
    tokio::time::advance(Duration::from_secs(3)).await;
    let (contention, trouble) = bench.give_up(second);
    let contention = contention.unwrap();
    assert!(trouble.is_none());
    // The one of the other client, and ours before it.
    assert_eq!((contention.waiting_before, contention.held_here), (2, false));
    assert_eq!(
        contention.holders[0].token.as_i64(),
        bench.document.as_ref().unwrap().token
    );
    assert_eq!(contention.age, Duration::from_secs(3));
    assert_eq!(bench.give_up(first).0.unwrap().waiting_before, 1);
    bench.settle();
    assert!(bench.line.last_answer.is_none(), "nobody waits any more");
}

#[tokio::test(start_paused = true)]
async fn a_try_is_told_who_holds_and_that_it_is_oneself() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let hold = held(&mut outcome);
    let told = |outcome: &mut Receiver| match outcome.try_recv().unwrap() {
        Err(AcquireError::Held { name, contention }) if name == "x" => contention,
        other => panic!("{other:?}"),
    };
    let (_, mut tried) = bench.join_for(try_told());
    bench.settle();
    let contention = told(&mut tried);
    assert!(contention.held_here && contention.holders[0].token == hold.token);
    assert_eq!(contention.waiting_before, 0);
    // Behind a task that the server has not answered yet, and then behind the same one in line.
    let _waiting = bench.join(true);
    let (_, mut tried) = bench.join_for(try_told());
    let contention = told(&mut tried);
    assert_eq!((contention.holders.len(), contention.waiting_before), (0, 1));
    bench.settle();
    let (_, mut tried) = bench.join_for(try_told());
    let contention = told(&mut tried);
    assert_eq!((contention.holders.len(), contention.waiting_before), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_read_like_contention() {
    // Never answered: an error, and before there is one.
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    tokio::time::advance(Duration::from_millis(30)).await;
    bench.failed(&request, Failure::Unavailable);
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_none());
    assert_eq!(trouble.unwrap().source.to_string(), "as the test wants it");

    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    bench.next().unwrap();
    tokio::time::advance(Duration::from_millis(30)).await;
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_none());
    assert_eq!(trouble.unwrap().source.to_string(), "no answer for 30ms");

    // Answered, and then no more.
    for fails in [true, false] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        let (key, _outcome) = bench.join(true);
        bench.settle();
        bench.feed(|line, context, _| line.doubt(context));
        let again = bench.next().unwrap();
        tokio::time::advance(UNANSWERED).await;
        if fails {
            bench.failed(&again, Failure::Unavailable);
        }
        let (contention, trouble) = bench.give_up(key);
        assert_eq!(contention.unwrap().holders.len(), 1);
        assert!(trouble.is_some());
    }

    // Answered again: what was before is no trouble now.
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (key, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.failed(&request, Failure::Unavailable);
    tokio::time::sleep_until(bench.line.due_at().unwrap()).await;
    bench.settle();
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_some() && trouble.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_entered_again_only_where_that_is_asked_for() {
    let mut bench = Bench::new();
    let (_, mut outer) = bench.join(true);
    bench.settle();
    let outer = held(&mut outer);
    let operations = bench.operations;
    let (_, mut inner) = bench.join_for(reentrant());
    let inner = held(&mut inner);
    assert!(Arc::ptr_eq(&inner, &outer));
    assert_eq!(bench.operations, operations, "nothing is sent for it");
    let (_, mut other) = bench.join(true);
    // Behind one that waits, too.
    let (_, mut third) = bench.join_for(reentrant());
    bench.settle();
    other.try_recv().unwrap_err();
    assert!(Arc::ptr_eq(&held(&mut third), &outer));
    assert_eq!([outer.exit(), inner.exit()], [Remains::Held, Remains::Held]);
    assert_eq!(outer.lost_reason(), None);
    assert_eq!(outer.exit(), Remains::Nothing);
    assert_eq!(outer.exit(), Remains::Lost(LostReason::Released));

    // Its last handle has gone, and the line has not heard of that.
    let (_, mut late) = bench.join_for(reentrant());
    late.try_recv().unwrap_err();
    drop(bench.let_go(&outer));
    bench.settle();
    let other = held(&mut other);
    assert!(
        Arc::ptr_eq(&held(&mut late), &other),
        "it enters the next hold of this client"
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_re_entrantly_enters_the_first_hold_of_the_client() {
    for by_event in [true, false] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        let (_, mut first) = bench.join(true);
        let (_, mut plain) = bench.join(true);
        let (_, mut entering) = bench.join_for(reentrant());
        bench.settle();
        bench.foreign(&foreign("b.2", &["b-1"], None), by_event);
        if !by_event {
            bench.feed(|line, context, _| line.doubt(context));
            bench.settle();
        }
        let first = held(&mut first);
        assert!(Arc::ptr_eq(&held(&mut entering), &first));
        plain.try_recv().unwrap_err();
        bench.settle();
        assert_eq!([first.exit(), first.exit()], [Remains::Held, Remains::Nothing]);
        drop(bench.let_go(&first));
        bench.settle();
        let plain = held(&mut plain);
        assert_eq!(bench.ids_in_document(), [plain.id.as_str()], "no entry is left behind");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_never_entered_again() {
    let mut bench = Bench::new();
    let (_, mut outer) = bench.join(true);
    bench.settle();
    let outer = held(&mut outer);
    tokio::time::advance(bench.config.lease).await;
    let (_, mut late) = bench.join_for(reentrant());
    assert_eq!(outer.lost_reason(), Some(LostReason::Expired));
    bench.settle();
    let anew = held(&mut late);
    assert!(anew.token > outer.token);
}

#[tokio::test(start_paused = true)]
async fn only_the_same_share_is_entered() {
    let reader = AcquireOptions {
        kind: Kind::RwLock,
        capacity: 10,
        ..reentrant()
    };
    let writer = AcquireOptions {
        permits: 10,
        ..reader.clone()
    };
    let mut bench = Bench::new();
    let (_, mut reading) = bench.join_for(reader.clone());
    bench.settle();
    let reading = held(&mut reading);
    let (_, mut writing) = bench.join_for(writer);
    bench.settle();
    writing.try_recv().unwrap_err();
    let (_, mut again) = bench.join_for(reader);
    assert!(Arc::ptr_eq(&held(&mut again), &reading), "although a writer waits");
}

fn incarnation(born: i64) -> Option<Identity> {
    Some(Identity {
        id: "worker".to_owned(),
        born,
    })
}

/// A wish of this client as an incarnation of `worker`.
fn wanted_as(born: i64) -> AcquireOptions {
    AcquireOptions {
        wait: true,
        reports_contention: false,
        owner: Owner {
            identity: incarnation(born),
            ..Owner::default()
        },
        ..try_told()
    }
}

/// A request of another client that is an incarnation of `worker`.
fn foreign_as(born: i64, id: &str, request: &str) -> Operation {
    let mut operation = foreign(id, &[], Some(request));
    let requests = operation.requests.as_mut().unwrap();
    requests.adopts = incarnation(born);
    requests.entries[0].owner.identity = incarnation(born);
    operation
}

#[tokio::test(start_paused = true)]
async fn a_later_incarnation_has_the_lock_at_once_and_nobody_else_loses_a_place() {
    let mut bench = Bench::new();
    bench.foreign(&foreign_as(1, "b.1", "b-1"), false);
    bench.foreign(&foreign("c.1", &[], Some("c-1")), false);
    bench.foreign(&foreign_as(1, "b.2", "b-2"), false);
    let before = bench.document.as_ref().unwrap().token;
    let (_, mut outcome) = bench.join_for(wanted_as(2));
    // The answer to the first is lost: asking again comes to the same.
    let request = bench.next().unwrap();
    bench.apply(&request);
    let granted = bench.document.as_ref().unwrap().token;
    bench.failed(&request, Failure::Unavailable);
    tokio::time::sleep_until(bench.line.due_at().unwrap()).await;
    bench.settle();
    let hold = held(&mut outcome);
    assert_eq!(hold.token.as_i64(), granted, "granted once");
    assert_eq!(bench.ids_in_document(), [hold.id.as_str(), "c-1"]);
    assert_eq!(bench.document.as_ref().unwrap().adopted, [before]);
}

#[tokio::test(start_paused = true)]
async fn who_never_held_gets_in_line_as_everybody() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("c.1", &[], Some("c-1")), false);
    bench.foreign(&foreign_as(1, "b.1", "b-1"), false);
    bench.foreign(&foreign("d.1", &[], Some("d-1")), false);
    let _waiting = bench.join_for(wanted_as(2));
    let request = bench.next().unwrap();
    assert!(request.requests.as_ref().unwrap().adopts.is_some());
    let answer = bench.apply(&request);
    bench.answered(&request, &answer);
    let ours = bench.ids_in_document()[2].to_owned();
    assert_eq!(bench.ids_in_document(), ["c-1", "d-1", &ours]);
    // It is in line, so there is nobody left to put out.
    bench.feed(|line, context, _| line.doubt(context));
    assert!(bench.next().unwrap().requests.unwrap().adopts.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_earlier_incarnation_that_lives_loses_its_hold_and_takes_nothing_back() {
    for announced in [true, false] {
        let mut bench = Bench::new();
        let (_, mut holding) = bench.join_for(wanted_as(1));
        bench.settle();
        let hold = held(&mut holding);
        bench.foreign(&foreign_as(2, "b.1", "b-1"), announced);
        let (_, mut waiting) = bench.join_for(wanted_as(1));
        bench.settle();
        // From the event, or from the next answer.
        assert_eq!(hold.lost_reason(), Some(LostReason::Adopted));
        waiting.try_recv().unwrap_err();
        assert_eq!(bench.ids_in_document()[0], "b-1", "the later one keeps it");
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_incarnation_that_waits_is_put_out_and_asks_again_behind() {
    for announced in [true, false] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("c.1", &[], Some("c-1")), false);
        let (_, mut waiting) = bench.join_for(wanted_as(1));
        bench.settle();
        bench.foreign(&foreign_as(2, "b.1", "b-1"), announced);
        assert_eq!(bench.ids_in_document(), ["c-1", "b-1"]);
        bench.feed(|line, context, _| line.doubt(context));
        bench.settle();
        assert_eq!(bench.ids_in_document()[..2], ["c-1", "b-1"]);
        assert_eq!(bench.ids_in_document().len(), 3);
        bench.foreign(&foreign("c.2", &["c-1"], None), true);
        bench.foreign(&foreign("b.2", &["b-1"], None), true);
        held(&mut waiting);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_incarnation_asked_for_takes_nothing_however_late_it_comes() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join_for(wanted_as(2));
    bench.settle();
    let hold = held(&mut outcome);
    bench.foreign(&foreign_as(1, "b.1", "b-1"), true);
    assert_eq!(hold.lost_reason(), None);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str(), "b-1"]);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_client_never_take_from_each_other() {
    let mut bench = Bench::new();
    let (_, mut first) = bench.join_for(wanted_as(1));
    bench.settle();
    let first = held(&mut first);
    let (_, mut second) = bench.join_for(wanted_as(1));
    let (_, mut tried) = bench.join_for(AcquireOptions {
        wait: false,
        ..wanted_as(1)
    });
    assert!(tried.try_recv().unwrap().unwrap().is_none());
    bench.settle();
    second.try_recv().unwrap_err();
    assert_eq!(first.lost_reason(), None);
}

fn unanswered() -> StoreError {
    StoreError::unanswered(Duration::from_millis(250))
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_is_asked_for_beside_at_once() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(false);
    for times in 1..=3 {
        let operation = bench.next().expect("it asks");
        let ((), effects) =
            bench.feed(|line, context, effects| line.failed(&operation, &unanswered(), context, effects));
        carry_out(effects);
        assert_eq!(bench.line.timed_out().unanswered, times);
    }
    // A try as well; but not for ever.
    assert!(outcome.try_recv().is_err());
    tokio::time::advance(TRY_FOR).await;
    let operation = bench.next().expect("it asks");
    let ((), effects) = bench.feed(|line, context, effects| line.failed(&operation, &unanswered(), context, effects));
    carry_out(effects);
    assert!(matches!(outcome.try_recv(), Ok(Err(AcquireError::Server(_)))));
    // An answer makes all good again.
    bench.settle();
    assert_eq!(bench.line.timed_out().unanswered, 0);
}

/// The first request is still on its way when the second is answered.
#[tokio::test(start_paused = true)]
async fn a_try_that_is_denied_takes_out_what_an_unanswered_one_may_put_in() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("a-1", &[], Some("a-1")), false);
    let (_, mut outcome) = bench.join(false);
    let late = bench.next().expect("it asks");
    let ((), effects) = bench.feed(|line, context, effects| line.failed(&late, &unanswered(), context, effects));
    carry_out(effects);
    bench.settle();
    assert!(matches!(outcome.try_recv(), Ok(Ok(None))));
    // The holder goes, and the first request comes.
    bench.foreign(&foreign("a-2", &["a-1"], None), false);
    bench.apply(&late);
    assert_eq!(bench.ids_in_document().len(), 1);
    for pause in SWEEPS {
        tokio::time::advance(pause).await;
        bench.settle();
    }
    assert!(bench.ids_in_document().is_empty());
    assert!(bench.line.is_unused());
}

/// It comes after all sweeps, and its answer tells of it.
#[tokio::test(start_paused = true)]
async fn an_entry_that_a_late_answer_shows_is_taken_out() {
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let late = bench.next().expect("it asks");
    let ((), effects) = bench.feed(|line, context, effects| line.failed(&late, &unanswered(), context, effects));
    carry_out(effects);
    bench.give_up(key);
    bench.settle();
    for pause in SWEEPS {
        tokio::time::advance(pause).await;
        bench.settle();
    }
    assert!(bench.line.is_unused());
    let answer = bench.apply(&late);
    assert_eq!(bench.ids_in_document().len(), 1);
    let state = answer.state.expect("there is a document");
    bench.feed(|line, context, _| line.applied_late(&late, &state, context));
    bench.settle();
    assert!(bench.ids_in_document().is_empty());
}

/// The queue of others is full when we come.
fn crowded() -> Bench {
    let mut bench = Bench::new();
    for number in 0..=QUEUE_MOST {
        bench.foreign(
            &foreign(&format!("s.{number}"), &[], Some(&format!("s-{number}"))),
            false,
        );
    }
    assert_eq!(bench.document.as_ref().unwrap().queue.len(), QUEUE_MOST);
    bench
}

#[tokio::test(start_paused = true)]
async fn who_finds_the_queue_full_knocks_until_there_is_room() {
    let mut bench = crowded();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    assert!(bench.ids_in_document().iter().all(|id| id.starts_with("s-")));
    assert!(!bench.line.waitlist.is_queued(), "no event tells of room");
    // It knocks about once a second, at a price that does not grow with the queue but for now and then.
    let (begun, before) = (Instant::now(), bench.document.clone());
    let (mut full, operations) = (0, bench.operations);
    while begun.elapsed() < Duration::from_secs(60) {
        tokio::time::advance(Duration::from_millis(10)).await;
        if let Some(operation) = bench.next() {
            full += usize::from(operation.expects != Expects::Room);
            let answer = bench.apply(&operation);
            assert_eq!(answer.state.is_none(), operation.expects == Expects::Room);
            bench.answered(&operation, &answer);
        }
        // Those in the queue are alive.
        for waiter in &mut bench.document.as_mut().unwrap().queue {
            waiter.until = waiter.until.plus_millis(10);
        }
        bench.document.as_mut().unwrap().holders[0].until = bench.server_now().plus_millis(30_000);
    }
    let knocks = bench.operations - operations;
    assert!((45..=85).contains(&knocks), "{knocks}");
    assert!((5..=11).contains(&full), "{full} of {knocks}");
    let (version, now) = (before.unwrap().version, bench.document.as_ref().unwrap().version);
    assert_eq!(version, now, "who knocks writes nothing");

    // One goes, and there is room.
    bench.foreign(&foreign("s.x", &["s-7"], None), false);
    tokio::time::advance(KNOCK + KNOCK / 4).await;
    bench.settle();
    assert!(bench.line.waitlist.is_queued());
    let queue = &bench.document.as_ref().unwrap().queue;
    assert_eq!(
        (queue.len(), queue[QUEUE_MOST - 1].id.starts_with("me-")),
        (QUEUE_MOST, true)
    );
    let others: Vec<String> = queue
        .iter()
        .map(|waiter| waiter.id.clone())
        .filter(|id| !id.starts_with("me"))
        .collect();
    for id in others {
        bench.foreign(&foreign("s.y", &[&id], None), true);
    }
    bench.foreign(&foreign("s.z", &["s-0"], None), true);
    assert!(held(&mut outcome).lost_reason().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_told_and_keeps_no_try_waiting() {
    let mut bench = crowded();
    let (key, _outcome) = bench.join(true);
    bench.settle();
    let (contention, _) = bench.give_up(key);
    let contention = contention.expect("the server said who holds it");
    assert!(
        contention.queue_full && contention.waiting_before == QUEUE_MOST,
        "{contention}"
    );
    assert!(
        contention
            .to_string()
            .contains("256 waiters in the queue, which is full"),
        "{contention}"
    );
    bench.settle();
    let operations = bench.operations;
    let (_, mut tried) = bench.join(false);
    bench.settle();
    assert!(matches!(tried.try_recv(), Ok(Ok(None))));
    assert_eq!(bench.operations, operations + 1);
}

#[tokio::test(start_paused = true)]
async fn who_knocks_asks_in_full_when_the_document_may_have_changed() {
    let mut bench = crowded();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    bench.document = None;
    bench.feed(|line, context, _| line.doubt(context));
    bench.settle();
    assert!(held(&mut outcome).lost_reason().is_none());
}

/// Takes the lock in line with these terms, as the only one.
fn kept_for(bench: &mut Bench, least: Duration) -> Arc<Hold> {
    let mut terms = Terms::default();
    terms.set_at_least(least);
    let (_, mut outcome) = bench.join_for(AcquireOptions { terms, ..try_told() });
    bench.settle();
    held(&mut outcome)
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_release_that_keeps_the_lock_does_so_once_however_often_it_is_sent() {
    let mut bench = Bench::new();
    let hold = kept_for(&mut bench, MINUTE);
    assert_eq!(hold.exit(), Remains::Nothing);
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    bench.apply(&release);
    let kept = bench.document.clone().unwrap().holders;
    assert_eq!(kept[0].released, Some(bench.server_now()));
    assert_eq!(kept[0].until, kept[0].since.plus_millis(60_000));
    // The answer is lost.
    bench.failed(&release, Failure::Unavailable);
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Kept);
    assert_eq!(bench.document.as_ref().unwrap().holders, kept);
    assert!(bench.line.is_unused());
    // And a first one that was on its way meanwhile.
    bench.apply(&release);
    assert_eq!(bench.document.as_ref().unwrap().holders, kept);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_comes_late_opens_a_lock_that_is_kept() {
    let mut bench = Bench::new();
    let (_, mut before) = bench.join(true);
    bench.settle();
    let before = held(&mut before);
    let hold = {
        let mut terms = Terms::default();
        terms.set_at_least(MINUTE);
        let (_, mut outcome) = bench.join_for(AcquireOptions {
            wait: true,
            terms,
            ..try_told()
        });
        bench.settle();
        let _left = bench.let_go(&before);
        bench.settle();
        held(&mut outcome)
    };
    hold.exit();
    let _left = bench.let_go(&hold);
    bench.settle();
    let is_kept = |bench: &Bench| {
        let holders = &bench.document.as_ref().unwrap().holders;
        matches!(&holders[..], [holder] if holder.id == hold.id && holder.is_kept())
    };
    assert!(is_kept(&bench));
    // The event of its grant, of which this client knows nothing any more.
    let token = hold.token.as_i64();
    let at = bench.server_now();
    bench.feed(|line, context, effects| {
        line.signalled(&hold.id, wake::Signal::Granted { token }, at, None, context, effects);
    });
    bench.settle();
    assert!(is_kept(&bench));
    // An answer that shows it.
    let (_, mut tried) = bench.join(false);
    bench.settle();
    assert!(tried.try_recv().unwrap().unwrap().is_none());
    tokio::time::advance(Duration::from_secs(20)).await;
    bench.settle();
    assert!(is_kept(&bench));
    // A renewal.
    let ids = [hold.id.clone()];
    let now = bench.server_now();
    let renewed = state::renew(bench.document.as_mut().unwrap(), "me.99", &ids, 60_000, now);
    assert!(!renewed && is_kept(&bench));
    // In its time the next one gets it.
    tokio::time::advance(MINUTE).await;
    let (_, mut next) = bench.join(false);
    bench.settle();
    assert!(held(&mut next).token > hold.token);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_not_kept() {
    let mut bench = Bench::new();
    let hold = kept_for(&mut bench, MINUTE);
    tokio::time::advance(bench.config.lease).await;
    assert_eq!(hold.lost_reason(), Some(LostReason::Expired));
    bench.feed(|line, context, effects| line.let_go(&hold, None, context, effects));
    assert!(bench.next().unwrap().kept.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_that_the_lock_is_kept_for_another_time() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut waiting) = bench.join(true);
    bench.settle();
    let in_line = bench.line.due_at().unwrap() - Instant::now();
    assert!(in_line > Duration::from_secs(10), "{in_line:?}");
    let token = bench.document.as_ref().unwrap().token;
    let kept = vec![Kept {
        id: "b-1".to_owned(),
        token,
        until: KeptUntil::AfterRelease(3_000),
    }];
    let released = Operation {
        kept,
        ..foreign("b.2", &["b-1"], None)
    };
    bench.foreign(&released, true);
    bench.settle();
    let in_line = bench.line.due_at().unwrap() - Instant::now();
    assert!(in_line <= Duration::from_millis(3_100), "{in_line:?}");
    tokio::time::advance(in_line).await;
    bench.settle();
    held(&mut waiting);
}

#[tokio::test(start_paused = true)]
async fn a_place_in_line_is_confirmed_by_the_lease_of_the_waiter() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let mut terms = Terms::default();
    terms.set_lease(Duration::from_secs(3));
    let (_, mut waiting) = bench.join_for(AcquireOptions {
        wait: true,
        terms,
        ..try_told()
    });
    bench.settle();
    let ids = ["b-1".to_owned()];
    for _ in 0..20 {
        let in_line = bench.line.due_at().unwrap() - Instant::now();
        assert!(in_line < Duration::from_secs(2), "{in_line:?}");
        tokio::time::advance(in_line).await;
        bench.settle();
        let now = bench.server_now();
        state::renew(bench.document.as_mut().unwrap(), "b.9", &ids, 60_000, now);
        assert!(bench.document.as_ref().unwrap().queue[0].until > now);
    }
    // And so is what it then holds.
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    let hold = held(&mut waiting);
    assert_eq!(hold.renew_at(), Some(Instant::now() + CLAIM_CHECK));
    assert!(hold.safe_for() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_fixed_hold_is_renewed_until_its_grant_is_confirmed_and_no_longer() {
    let mut bench = Bench::new();
    let mut terms = Terms::default();
    terms.set_fixed(Duration::from_secs(20));
    let fixed = AcquireOptions {
        wait: true,
        terms,
        ..try_told()
    };
    let (_, mut outcome) = bench.join_for(fixed.clone());
    bench.settle();
    let at_once = held(&mut outcome);
    assert_eq!(at_once.renew_at(), None);
    let least = Duration::from_secs(20) - bench.config.skew_margin - Duration::from_millis(20);
    assert_eq!(at_once.safe_for(), least);
    let _left = bench.let_go(&at_once);
    bench.settle();

    // Behind another it is woken, and holds on its claim.
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join_for(fixed);
    bench.settle();
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    let woken = held(&mut outcome);
    assert_eq!(woken.renew_at(), Some(Instant::now() + CLAIM_CHECK));
    let number = woken.renewing(Instant::now());
    woken.failed(number, Instant::now() + Duration::from_millis(7), true);
    assert_eq!(woken.renew_at(), Some(Instant::now()));
    let sent = Instant::now();
    let renewed = Deadline::of_renewal(sent, woken.lease.length, &bench.clock, &bench.config);
    woken.renewed(renewed, sent);
    assert_eq!((woken.renew_at(), woken.safe_for()), (None, least));
    // One that was sent beside it fails, or is refused, and is not missed.
    woken.failed(number, Instant::now(), true);
    woken.refused(|_, _| Duration::ZERO);
    assert_eq!((woken.renew_at(), woken.status()), (None, LockStatus::Held));
    // The clock was set ahead: there is less time, and it is no less sure.
    woken.shorten(&bench.clock, &bench.config);
    assert_eq!((woken.renew_at(), woken.status()), (None, LockStatus::Held));
}

/// A report that arrives when the lease is over finds nothing to keep, and somebody else may have the lock since.
#[tokio::test(start_paused = true)]
async fn a_lock_whose_lease_ended_before_its_release_was_not_kept() {
    for (least, swept) in [(10 * MINUTE, false), (10 * MINUTE, true), (MINUTE / 4, false)] {
        let mut bench = Bench::new();
        let hold = kept_for(&mut bench, least);
        assert_eq!(hold.exit(), Remains::Nothing);
        let mut left = bench.let_go(&hold);
        let release = bench.next().unwrap();
        bench.failed(&release, Failure::Unavailable);
        tokio::time::advance(hold.lease.length + Duration::from_secs(1)).await;
        if swept {
            // Another client was granted the lock, and let it go.
            bench.document.as_mut().unwrap().holders.clear();
        }
        bench.settle();
        // A lock that was to be kept taken for less than the lease has been kept for that time.
        let expected = if least < MINUTE {
            wake::Left::Holder
        } else {
            wake::Left::Nowhere
        };
        assert_eq!(left.try_recv().unwrap().unwrap(), expected, "{least:?}, {swept}");
    }
}
