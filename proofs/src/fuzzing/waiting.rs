//! Checks on a waiting client whose document another program changes: see [`super`].

use std::collections::HashMap;

use mongodb::bson::Document;
use tokio::time::Instant;
use watchlock_core::{
    config::{Config, Settings, millis},
    protocol::{
        Ahead, Exchange, Kind, Operation, QUEUE_MOST, Request, ServerTime, State, document::Malformed, made_up, state,
        wake,
    },
    waitlist::{
        Context, Need, PositionLook, StreamState,
        clock::{ServerClock, offset},
        deadline::Deadline,
        ids::Ids,
    },
};

use super::{
    Choices, corruption,
    waiting_client::{Claimed, Held, Joining, News, WaitingClient},
};

const SESSION: &str = "me";

/// Maximum number of steps for one input.
const STEPS: usize = 60;

/// The server's clock at its first reading.
const NOW: i64 = 1_700_000_000_000;

/// Grants that the server's answers and events in this step permit: by entry and token, with their ends.
type Permitted = HashMap<(String, i64), Option<Instant>>;

/// What a waiting client has been through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course {
    /// Number of looks at its queue position that were sent.
    pub looks: usize,
    /// Number of grants.
    pub grants: usize,
    /// Number of documents that were claimed.
    pub claims: usize,
}

struct Bench<C> {
    config: Config,
    /// It goes on only with a look.
    now: Instant,
    clock: ServerClock,
    ids: Ids,
    stream: StreamState,
    client: C,
    /// The document as the server has it.
    document: Option<State>,
    keys: u64,
    granted: Vec<Held>,
    /// The entries that were requested.
    asked: Vec<String>,
    /// The looks at its queue position that are on their way.
    looks: Vec<PositionLook>,
    course: Course,
}

const STREAM_STATES: [StreamState; 4] = [
    StreamState::Open,
    StreamState::Opening,
    StreamState::OnDemand,
    StreamState::Unavailable,
];

/// Runs a waiting client: tasks come and go, operations are answered by the specification on a document that others
/// corrupt, forged events arrive, and looks at the queue position show anything. Panics if the client does, if it
/// believes in a grant that no document shows, or if it waits without asking.
pub(super) fn drive<C: WaitingClient>(choices: &mut Choices<'_>) -> Course {
    let now = Instant::now();
    let mut bench = Bench {
        config: Settings::default().unchecked(),
        now,
        clock: ServerClock::default(),
        ids: Ids::new(SESSION.to_owned()),
        stream: choices.pick(&STREAM_STATES),
        client: C::new(choices.pick(&[None, Some(now)])),
        document: None,
        keys: 0,
        granted: Vec::new(),
        asked: Vec::new(),
        looks: Vec::new(),
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

impl<C: WaitingClient> Bench<C> {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(15) {
            0 | 1 => self.join(choices),
            2 => {
                let key = self.keys.min(choices.below(8) as u64);
                self.feed(&Permitted::new(), |client, context, _| client.cancel(key, context));
            }
            3 => self.let_go(choices),
            4 => self.signal(choices),
            5 => self.verify(choices),
            6 => {
                self.document = self.corrupted(choices).and_then(Result::ok);
                self.feed(&Permitted::new(), |client, context, _| client.doubt(context));
            }
            7 | 8 => self.look(choices),
            9 => {
                self.stream = choices.pick(&STREAM_STATES);
                if choices.one_in(2) {
                    self.feed(&Permitted::new(), |client, context, _| client.doubt(context));
                }
            }
            10 => self.claim(choices),
            _ => self.exchange(choices),
        }
        // Its queue position is confirmed twice a lease, whatever it has been shown.
        if self.client.waits_for_event() || self.client.need() == Need::Looks {
            let due_at = self.client.due_at();
            assert!(
                due_at.is_some_and(|at| at <= self.now + self.config.lease),
                "{due_at:?}"
            );
        }
    }

    fn feed<T>(&mut self, permitted: &Permitted, input: impl FnOnce(&mut C, &Context<'_>, &mut Vec<News>) -> T) -> T {
        let mut news = Vec::new();
        let context = Context {
            now: self.now,
            config: &self.config,
            clock: &self.clock,
            stream: self.stream,
            ids: &self.ids,
            room: QUEUE_MOST,
        };
        let now = context.now;
        let output = input(&mut self.client, &context, &mut news);
        let _ = (self.client.due_at(), self.client.need());
        for each in news {
            match each {
                News::Granted(held) => self.granted(held, now, permitted),
                News::Lost { entry } => self.granted.retain(|held| held.entry != entry),
            }
        }
        output
    }

    /// Lets go of a hold that goes through the server.
    fn let_go(&mut self, choices: &mut Choices<'_>) {
        let Some(held) = self.granted.pop() else {
            return;
        };
        let (too_long, is_awaited) = (choices.one_in(3), choices.one_in(2));
        self.feed(&Permitted::new(), |client, context, news| {
            client.let_go(&held, too_long, is_awaited, context, news)
        });
    }

    /// Claims the document, if the lock is free.
    fn claim(&mut self, choices: &mut Choices<'_>) {
        let entry = self.ids.claim();
        let request = Request {
            lease: millis(self.config.lease),
            claim: millis(self.config.claim_lease),
            wait: false,
            ..made_up::request(&entry)
        };
        let now = ServerTime(NOW + 1_000);
        let claim = made_up::asking(&self.ids.operation(), request);
        let claimed = state::apply(self.document.as_ref(), &claim, now);
        self.ids.pending_claims.settled(&entry);
        let mut holders = claimed.iter().flat_map(|state| &state.holders);
        let Some(holder) = holders.find(|holder| holder.id == entry).cloned() else {
            return;
        };
        self.document = claimed;
        let exchange = Exchange {
            sent: self.now,
            received: self.now,
            now: choices.pick(&[None, Some(now)]),
        };
        let lease = self.config.lease;
        let deadline = Deadline::of_answer(&exchange, holder.until, lease, &self.clock, self.now, &self.config);
        let Some(deadline) = deadline.map(Deadline::instant).filter(|deadline| *deadline > self.now) else {
            return;
        };
        let held = Held {
            entry,
            token: holder.token,
            granted_as: holder.token,
            used: made_up::MUTEX,
            deadline,
        };
        let claimed = Claimed {
            held: held.clone(),
            exchange,
        };
        self.feed(&Permitted::new(), |client, context, _| {
            client.claimed(&claimed, context)
        });
        self.granted.push(held);
        self.course.claims += 1;
    }

    /// Checks that the grant is in the server's last answer or event, under that token, and is believed for no longer
    /// than that permits.
    fn granted(&mut self, held: Held, now: Instant, permitted: &Permitted) {
        self.course.grants += 1;
        let until = permitted.get(&(held.entry.clone(), held.token));
        let Some(until) = until else {
            panic!("{held:?}, and no document says so: {permitted:?}");
        };
        let (deadline, margin) = (held.deadline, self.config.skew_margin);
        assert!(deadline > now, "{held:?} is over");
        assert!(deadline + margin <= now + self.config.lease, "{held:?} is for too long");
        assert!(
            until.is_none_or(|until| deadline + margin <= until),
            "{held:?}, and the server said {until:?}"
        );
        self.granted.push(held);
    }

    fn join(&mut self, choices: &mut Choices<'_>) {
        self.keys += 1;
        let (kind, capacity) = choices.pick(&[(Kind::Mutex, 1), (Kind::Mutex, 1), (Kind::Semaphore, 3)]);
        let permits = choices.pick(&[1, capacity]);
        let task = Joining {
            key: self.keys,
            entry: self.ids.entry(),
            used: (kind, capacity),
            permits,
            waits: !choices.one_in(3),
            reenters: choices.one_in(4),
            reports_contention: choices.one_in(2),
        };
        self.feed(&Permitted::new(), |client, context, news| {
            client.join(task, context, news)
        });
    }

    /// Sends the next operation, and answers it in one of several ways.
    fn exchange(&mut self, choices: &mut Choices<'_>) {
        let Some(operation) = self.feed(&Permitted::new(), |client, context, _| client.next(context)) else {
            return;
        };
        let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
        self.asked.extend(entries.map(|entry| entry.id.clone()));
        let sent = self.now;
        while choices.one_in(4) {
            // The answer on its way may be one to others than to these.
            self.join(choices);
        }
        if choices.below(8) == 0 {
            let failure = choices.pick(&C::failures());
            return self.failed(&operation, &failure);
        }
        let now = ServerTime(NOW + i64::from(u8::try_from(choices.below(256)).unwrap_or(0)) * 500);
        self.document = state::apply(self.document.as_ref(), &operation, now);
        // The corruption is part of the answer, as another program may write at any time.
        let answered = match self.corrupted(choices) {
            Some(Err(malformed)) if operation.needs_a_lock() => {
                return self.failed(&operation, &C::unreadable(malformed));
            }
            answered => answered.and_then(Result::ok),
        };
        let now = match choices.below(8) {
            0 => None,
            1 => Some(ServerTime(choices.number())),
            _ => Some(now),
        };
        let exchange = Exchange {
            sent,
            received: self.now,
            now,
        };
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
        self.feed(&permitted, |client, context, news| {
            client.answered(&operation, answered.as_ref(), &exchange, context, news);
        });
        if choices.one_in(4) {
            self.document = answered;
        }
    }

    fn failed(&mut self, operation: &Operation, failure: &C::Failure) {
        self.feed(&Permitted::new(), |client, context, news| {
            client.failed(operation, failure, context, news)
        });
    }

    /// Lets the time go by until something is due, sends the look if it is one, and ends one of those on their way in
    /// one of several ways.
    fn look(&mut self, choices: &mut Choices<'_>) {
        for _ in 0..4 {
            if let Some(due_at) = self.client.due_at() {
                self.now = self.now.max(due_at);
            }
            let look = self.feed(&Permitted::new(), |client, context, _| client.next_look(context));
            self.course.looks += usize::from(look.is_some());
            self.looks.extend(look);
            if !self.looks.is_empty() {
                break;
            }
            // A request was due instead.
            self.exchange(choices);
        }
        if self.looks.is_empty() || choices.one_in(3) {
            return;
        }
        let look = self.looks.remove(choices.below(self.looks.len().min(256)));
        let time = |choices: &mut Choices<'_>| match choices.below(3) {
            0 => None,
            1 => Some(ServerTime(choices.number())),
            _ => Some(ServerTime(NOW)),
        };
        let now = time(choices).unwrap_or(ServerTime(NOW + 60_000));
        let state = self.document.as_ref().filter(|_| choices.one_in(2));
        let shown = state.and_then(|state| Ahead::of(state, &look.entry, now));
        let ahead = shown.unwrap_or_else(|| Ahead {
            turns: u64::try_from(choices.number()).unwrap_or(u64::MAX),
            position: choices.pick(&[0, 0, 1, 7, u64::MAX]),
            free: choices.number(),
            served_at: time(choices),
            first_end: time(choices),
            asleep: choices.one_in(2),
            now,
        });
        let failure = choices.pick(&C::failures());
        let end = choices.below(6);
        let is_waited_for = self.feed(&Permitted::new(), |client, context, _| match end {
            // It has waited for a slot, and is sent now.
            0 => client.admit(&look, context),
            1 => {
                client.look_failed(&look, &failure, context);
                false
            }
            2 => {
                client.looked(&look, None, context);
                false
            }
            _ => {
                client.looked(&look, Some(ahead), context);
                false
            }
        });
        if is_waited_for {
            self.looks.push(look);
        }
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
                let claim = at.plus_millis(millis(self.config.claim_lease));
                permitted.insert((id.to_owned(), token), self.clock.until(claim).map(|(_, end)| end));
            }
            self.feed(&permitted, |client, context, news| {
                client.signalled(id, signal, at, context, news)
            });
        }
    }

    /// Delivers a read of the document. A hold that is not in it is lost.
    fn verify(&mut self, choices: &mut Choices<'_>) {
        let read = self.corrupted(choices);
        let held: Vec<String> = self.granted.iter().map(|held| held.entry.clone()).collect();
        self.feed(&Permitted::new(), |client, context, news| {
            client.verified(read.as_ref(), Some(context.now), &held, context, news);
        });
        let state = read.as_ref().and_then(|read| read.as_ref().ok());
        let holders = || state.iter().flat_map(|state| &state.holders);
        for held in &self.granted {
            assert!(
                holders().any(|holder| holder.is_grant(&held.entry, held.granted_as)),
                "{held:?} is kept, and the document has none: {read:?}"
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
