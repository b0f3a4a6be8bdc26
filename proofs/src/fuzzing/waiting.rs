//! Checks on a waiting client whose document another program changes: see [`super`].

use std::{collections::HashMap, sync::Arc, time::Duration};

use mongodb::bson::Document;
use tokio::time::Instant;
use watchlock_core::{
    config::{Config, millis},
    hold_options::Terms,
    protocol::{
        CapacityIs, Exchange, Kind, Operation, Owner, QUEUE_MOST, Request, ServerTime, State, Use, document::Malformed,
        fixtures, state, wake,
    },
    waitlist::{
        AcquireOptions, Context, Effect, Grant, Hold, How, LeftAs, Need, Patience, Setback, Step, StreamState,
        Waitlist,
        clock::{ServerClock, offset},
        deadline,
        fixtures::PlainHold,
        ids::Ids,
    },
};

use super::{Choices, corruption};

const SESSION: &str = "me";

/// A readers-writer lock, and the permits that an upgradeable reader lacks.
const READERS: Use = (Kind::RwLock, 5);
const UPGRADE: i64 = 2;

/// Maximum number of steps for one input.
const STEPS: usize = 60;

/// The server's clock at its first reading.
const NOW: i64 = 1_700_000_000_000;

/// Grants that the server's answers and events in this step permit: by entry and token, with their ends.
type Permitted = HashMap<(String, i64), Option<Instant>>;

/// What a waiting client has been through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course {
    /// Number of requests that were repeated.
    pub repeated: usize,
    /// Number of grants.
    pub grants: usize,
    /// Number of documents that were claimed.
    pub claims: usize,
    /// Number of upgrades that came.
    pub upgrades: usize,
}

/// A hold, and the channels of tasks, as the fuzzing has them.
pub trait Fuzzed: Hold {
    /// Returns the channel of a task.
    fn task() -> Self::Task;

    /// Returns the channel of a release.
    fn release() -> Self::Release;

    /// Returns its token, and that of its entry in the document.
    fn tokens(&self) -> (i64, i64);

    /// Returns the time up to which its task believes in it.
    fn believed_until(&self) -> Instant;

    /// Returns the hold once it is held too long.
    fn held_too_long(self: &Arc<Self>) -> Arc<Self>;
}

impl Fuzzed for PlainHold {
    fn task() -> u64 {
        0
    }

    fn release() -> u64 {
        0
    }

    fn tokens(&self) -> (i64, i64) {
        (self.token, self.granted_as)
    }

    fn believed_until(&self) -> Instant {
        self.deadline
    }

    fn held_too_long(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            left_as: LeftAs::HeldTooLong,
            ..Self::clone(self)
        })
    }
}

/// A failure of each kind but one that is unreadable.
const SETBACKS: [Setback; 7] = [
    Setback::Unanswered,
    Setback::Raced,
    Setback::Unsaid,
    Setback::Refused,
    Setback::NoServer,
    Setback::Overdue,
    Setback::Interrupted,
];

struct Bench<H: Hold> {
    config: Config,
    /// It goes on only with a wait.
    now: Instant,
    clock: ServerClock,
    ids: Ids,
    stream: StreamState,
    client: Waitlist<H>,
    /// The document as the server has it.
    document: Option<State>,
    keys: u64,
    granted: Vec<Arc<H>>,
    /// The entries that were requested.
    asked: Vec<String>,
    /// The number of entries that the queue has room for.
    room: usize,
    course: Course,
}

const STREAM_STATES: [StreamState; 4] = [
    StreamState::Open,
    StreamState::Opening,
    StreamState::OnDemand,
    StreamState::Unavailable,
];

/// Runs a waiting client: tasks come and go, operations are answered by the specification on a document that others
/// corrupt, and forged events arrive. Panics if the client does, if it believes in a grant that no document shows, or if
/// it waits without asking.
pub(super) fn drive<H: Fuzzed>(choices: &mut Choices<'_>) -> Course {
    let now = Instant::now();
    let mut bench = Bench::<H> {
        config: Config::default(),
        now,
        clock: ServerClock::default(),
        ids: Ids::new(SESSION.to_owned()),
        stream: choices.pick(&STREAM_STATES),
        client: Waitlist::new("x".to_owned(), choices.pick(&[None, Some(now)]), Duration::ZERO),
        document: None,
        keys: 0,
        granted: Vec::new(),
        asked: Vec::new(),
        room: choices.pick(&[QUEUE_MOST, 0]),
        course: Course::default(),
    };
    bench.join(choices);
    for _ in 0..STEPS {
        if choices.is_over() {
            break;
        }
        bench.step(choices);
    }
    bench.course
}

impl<H: Fuzzed> Bench<H> {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(15) {
            0 | 1 => self.join(choices),
            2 => {
                let key = self.keys.min(choices.below(8) as u64);
                self.feed(&Permitted::new(), |client| drop(client.cancel(key)));
            }
            3 => self.let_go(choices),
            4 => self.signal(choices),
            5 => self.verify(choices),
            6 => {
                self.document = self.corrupted(choices).and_then(Result::ok);
                self.feed(&Permitted::new(), |client| client.doubt());
            }
            7 | 8 => self.wait(choices),
            9 => {
                self.stream = choices.pick(&STREAM_STATES);
                if choices.one_in(2) {
                    self.feed(&Permitted::new(), |client| client.doubt());
                }
            }
            10 => self.claim(choices),
            _ => self.exchange(choices),
        }
        // Its queue position is confirmed twice a lease, whatever it has been shown. So does a client ask that is kept out.
        let is_in_line = self.client.waits_for_event() || self.client.need() == Need::Position;
        if is_in_line || self.client.is_kept_out() {
            let due_at = self.client.due_at();
            assert!(
                due_at.is_some_and(|at| at <= self.now + self.config.lease),
                "{due_at:?}"
            );
        }
        // An upgrade waits while its reader holds.
        let readers = self
            .client
            .waiting()
            .iter()
            .filter_map(|waiting| waiting.wants.upgrades.as_ref());
        for reader in readers {
            assert!(
                self.client.holds().any(|hold| hold.entry() == reader),
                "{reader} is over"
            );
        }
    }

    fn feed<T>(&mut self, permitted: &Permitted, input: impl FnOnce(&mut Step<'_, H>) -> T) -> T {
        let context = Context {
            now: self.now,
            config: &self.config,
            clock: &self.clock,
            stream: self.stream,
            ids: &self.ids,
            room: self.room,
        };
        let mut step = self.client.step(&context);
        let output = input(&mut step);
        step.settle();
        let _ = (self.client.due_at(), self.client.need());
        for effect in self.client.take_effects() {
            match effect {
                // A task that re-enters gets the same again.
                Effect::Granted { hold, .. } if !self.granted.iter().any(|known| Arc::ptr_eq(known, &hold)) => {
                    self.granted(hold, permitted);
                }
                Effect::Lost { hold: lost, .. } => self.granted.retain(|hold| hold.entry() != lost.entry()),
                _ => {}
            }
        }
        output
    }

    /// Lets go of a hold that goes through the server.
    fn let_go(&mut self, choices: &mut Choices<'_>) {
        let Some(mut hold) = self.granted.pop() else {
            return;
        };
        if choices.one_in(3) {
            hold = hold.held_too_long();
        }
        let to = choices.one_in(2).then(H::release);
        self.feed(&Permitted::new(), |client| client.let_go(&hold, to));
        assert!(!self.client.has(&hold), "{} is kept", hold.entry());
    }

    /// Claims the document, if the lock is free.
    fn claim(&mut self, choices: &mut Choices<'_>) {
        let entry = self.ids.claim();
        let request = Request {
            lease: millis(self.config.lease),
            claim: millis(self.config.claim_lease()),
            wait: false,
            ..fixtures::request(&entry)
        };
        let now = ServerTime(NOW + 1_000);
        let claim = fixtures::asking(&self.ids.operation(), request);
        let claimed = state::apply(self.document.as_ref(), &claim, now);
        self.ids.pending_claims.settled(&entry);
        let mut holders = claimed.iter().flat_map(|state| &state.holders);
        let Some(holder) = holders.find(|holder| holder.id == entry).cloned() else {
            return;
        };
        self.document = claimed;
        let exchange = Exchange::new(self.now, self.now, choices.pick(&[None, Some(now)]));
        let lease = self.config.lease;
        let deadline = deadline::of_answer(&exchange, holder.until, lease, &self.clock, self.now, &self.config);
        let Some(deadline) = deadline.filter(|deadline| *deadline > self.now) else {
            return;
        };
        let grant = Grant {
            token: holder.token,
            granted_as: holder.token,
            used: fixtures::MUTEX,
            permits: 1,
            lease: Terms::default().lease(&self.config),
            how: How::AtOnce,
            deadline,
            renew_at: None,
        };
        let hold = self.feed(&Permitted::new(), |client| client.claimed(entry, &grant, &exchange));
        self.granted.push(hold);
        self.course.claims += 1;
    }

    /// Checks that the grant is in the server's last answer or event, under that token, and is believed for no longer
    /// than that permits; or that it is a reader's beside another.
    fn granted(&mut self, hold: Arc<H>, permitted: &Permitted) {
        self.course.grants += 1;
        let (entry, (token, granted_as)) = (hold.entry(), hold.tokens());
        if token != granted_as {
            let mut others = self.granted.iter().filter(|other| other.entry() == entry);
            let is_shared = others.any(|other| other.believed_until() >= hold.believed_until());
            assert!(is_shared, "{entry} has {token}, and no reader shares its hold with it");
            return self.granted.push(hold);
        }
        let until = permitted.get(&(entry.to_owned(), token));
        let Some(until) = until else {
            panic!("{entry} has {token}, and no document says so: {permitted:?}");
        };
        let (deadline, margin) = (hold.believed_until(), self.config.skew_margin());
        assert!(deadline > self.now, "{entry} is over");
        assert!(
            deadline + margin <= self.now + self.config.lease,
            "{entry} is for too long"
        );
        assert!(
            until.is_none_or(|until| deadline + margin <= until),
            "{entry} until {deadline:?}, and the server said {until:?}"
        );
        self.granted.push(hold);
    }

    fn join(&mut self, choices: &mut Choices<'_>) {
        self.keys += 1;
        let key = self.keys;
        let mut readers = self.granted.iter().filter(|hold| hold.used() == READERS);
        let upgrades = readers.next().filter(|_| choices.one_in(2));
        let upgrades = upgrades.map(|reader| reader.entry().to_owned());
        let uses = [(Kind::Mutex, 1), (Kind::Mutex, 1), (Kind::Semaphore, 3), READERS];
        let (kind, capacity) = match upgrades {
            Some(_) => READERS,
            None => choices.pick(&uses),
        };
        self.course.upgrades += usize::from(upgrades.is_some());
        let options = AcquireOptions {
            used: (kind, capacity),
            by: match kind {
                Kind::Semaphore => choices.pick(&[CapacityIs::Demanded, CapacityIs::Offered]),
                _ => CapacityIs::Demanded,
            },
            permits: match upgrades {
                Some(_) => UPGRADE,
                None => choices.pick(&[1, capacity - UPGRADE, capacity]).max(1),
            },
            patience: choices.pick(&[Patience::Wait, Patience::Try]),
            reentrant: choices.one_in(4),
            upgrades,
            terms: Terms::default(),
            owner: Owner::default(),
        };
        self.feed(&Permitted::new(), |client| client.join(key, H::task(), options));
    }

    /// Sends the next operation, and answers it in one of several ways.
    fn exchange(&mut self, choices: &mut Choices<'_>) {
        let Some(operation) = self.feed(&Permitted::new(), |client| client.next_operation()) else {
            return;
        };
        let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
        self.course.repeated += usize::from(entries.clone().any(|entry| !entry.fresh));
        self.asked.extend(entries.map(|entry| entry.id.clone()));
        let sent = self.now;
        while choices.one_in(4) {
            // The answer on its way may be one to others than to these.
            self.join(choices);
        }
        if choices.below(8) == 0 {
            return self.failed(&operation, choices.pick(&SETBACKS));
        }
        let now = ServerTime(NOW + i64::from(u8::try_from(choices.below(256)).unwrap_or(0)) * 500);
        self.document = state::apply(self.document.as_ref(), &operation, now);
        // The corruption is part of the answer, as another program may write at any time.
        let answered = match self.corrupted(choices) {
            Some(Err(malformed)) if malformed.ends(&operation) => {
                return self.failed(&operation, Setback::Unreadable);
            }
            answered => answered.and_then(Result::ok),
        };
        let now = match choices.below(8) {
            0 => None,
            1 => Some(ServerTime(choices.number())),
            _ => Some(now),
        };
        let exchange = Exchange::new(sent, self.now, now);
        let _ = self.clock.note(&exchange, &self.config);
        let until = |until: ServerTime| match now {
            Some(now) => Some(offset(sent, now, until)),
            None => self.clock.until(until).map(|(_, end)| end),
        };
        let permitted: Permitted = answered
            .iter()
            .flat_map(|state| &state.holders)
            .map(|holder| ((holder.id.clone(), holder.token), until(holder.until)))
            .collect();
        self.feed(&permitted, |client| {
            client.answered(&operation, answered.as_ref(), &exchange)
        });
        if choices.one_in(4) {
            self.document = answered;
        }
    }

    fn failed(&mut self, operation: &Operation, setback: Setback) {
        self.feed(&Permitted::new(), |client| client.failed(operation, setback));
    }

    /// Lets the time go by until something is due, and sends it.
    fn wait(&mut self, choices: &mut Choices<'_>) {
        if let Some(due_at) = self.client.due_at() {
            self.now = self.now.max(due_at);
        }
        self.exchange(choices);
    }

    /// Delivers an event: of the last write, or a forged one.
    fn signal(&mut self, choices: &mut Choices<'_>) {
        let words = match &self.document {
            Some(state) if choices.one_in(2) => state.wake.clone(),
            _ => {
                let mut words = corruption::words(choices);
                if let Some(asked) = self.asked.last() {
                    let (mark, token) = (choices.pick(&["+", "!", "~"]), choices.number());
                    words = format!("{words};{asked}{mark}{token};");
                }
                words
            }
        };
        let at = match choices.below(3) {
            0 => ServerTime(choices.number()),
            _ => ServerTime(NOW),
        };
        for (id, signal) in wake::signals(&words, SESSION) {
            let mut permitted = Permitted::new();
            if let wake::Signal::Granted { token } = signal {
                let claim = at.plus_millis(millis(self.config.claim_lease()));
                permitted.insert((id.to_owned(), token), self.clock.until(claim).map(|(_, end)| end));
            }
            self.feed(&permitted, |client| client.signalled(id, signal, at));
        }
    }

    /// Delivers a read of the document. A hold that is not in it is lost.
    fn verify(&mut self, choices: &mut Choices<'_>) {
        let read = self.corrupted(choices);
        let held: Vec<String> = self.granted.iter().map(|hold| hold.entry().to_owned()).collect();
        let sent = Some(self.now);
        self.feed(&Permitted::new(), |client| client.verified(read.as_ref(), sent, &held));
        let state = read.as_ref().and_then(|read| read.as_ref().ok());
        let holders = || state.iter().flat_map(|state| &state.holders);
        for hold in &self.granted {
            let (entry, (_, granted_as)) = (hold.entry(), hold.tokens());
            assert!(
                holders().any(|holder| holder.is_grant(entry, granted_as)),
                "{entry} is kept, and the document has none: {read:?}"
            );
        }
    }

    /// Returns the document as decoded; usually unchanged.
    fn corrupted(&self, choices: &mut Choices<'_>) -> Option<Result<State, Malformed>> {
        if choices.one_in(16) {
            return None;
        }
        let mut document: Document = self.document.as_ref()?.fields();
        if choices.one_in(3) {
            corruption::corrupt(&mut document, choices);
        }
        Some(State::from_document(&document))
    }
}
