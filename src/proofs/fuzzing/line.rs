//! Checks on a line whose document another program changes: see [`crate::proofs::fuzzing`].

use std::{collections::HashMap, sync::Arc};

use mongodb::bson::Document;
use tokio::{sync::oneshot, time::Instant};

use super::{Choices, corruption};
use crate::{
    config::{Config, Settings, millis},
    protocol::{Ahead, Exchange, Kind, Operation, Owner, QUEUE_MOST, ServerTime, State, state, wake},
    session::{
        hold::Hold,
        line::{AcquireOptions, Context, Line, LineEffect, Need, Pending, PositionLook},
    },
    store::{Answer, StoreError},
    terms::Terms,
    waitlist::{
        StreamState,
        clock::{ServerClock, offset},
        ids::Ids,
    },
};

const SESSION: &str = "me";

/// Maximum number of steps for one input.
const STEPS: usize = 60;

/// The server's clock at its first reading.
const NOW: i64 = 1_700_000_000_000;

/// Grants that the server's answers and events in this step permit: by entry and token, with their ends.
type Permitted = HashMap<(String, i64), Option<Instant>>;

struct Bench {
    config: Config,
    /// It goes on only with a look.
    now: Instant,
    clock: ServerClock,
    ids: Ids,
    stream: StreamState,
    line: Line,
    /// The document as the server has it.
    document: Option<State>,
    keys: u64,
    granted: Vec<Arc<Hold>>,
    /// The entries that were requested.
    asked: Vec<String>,
    /// The looks at its queue position that are on their way.
    looks: Vec<PositionLook>,
    /// Number of looks that were sent.
    sent: usize,
}

const STREAM_STATES: [StreamState; 4] = [
    StreamState::Open,
    StreamState::Opening,
    StreamState::OnDemand,
    StreamState::Unavailable,
];

/// Runs a line: tasks come and go, operations are answered by the specification on a document that others corrupt,
/// forged events arrive, and looks at the queue position show anything. Panics if the line does, if it believes in a
/// grant that no document shows, or if it waits without asking. Returns the number of looks that were sent.
pub(crate) fn drive(choices: &mut Choices<'_>) -> usize {
    let now = Instant::now();
    let mut bench = Bench {
        config: Settings::default().unchecked(),
        now,
        clock: ServerClock::default(),
        ids: Ids::new(SESSION.to_owned()),
        stream: choices.pick(&STREAM_STATES),
        line: Line::new("x".to_owned(), choices.pick(&[None, Some(now)]), None),
        document: None,
        keys: 0,
        granted: Vec::new(),
        asked: Vec::new(),
        looks: Vec::new(),
        sent: 0,
    };
    bench.join(choices);
    for _ in 0..STEPS {
        if choices.is_over() {
            break;
        }
        bench.step(choices);
    }
    bench.sent
}

impl Bench {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(14) {
            0 | 1 => self.join(choices),
            2 => {
                let key = self.keys.min(choices.below(8) as u64);
                let standing = self.feed(&Permitted::new(), |line, context, _| line.cancel(key, context));
                if let Some((Some(contention), _)) = standing.map(|standing| standing.report(&self.ids)) {
                    assert!(!contention.to_string().chars().any(char::is_control));
                }
            }
            3 => {
                if let Some(hold) = self.granted.pop() {
                    self.feed(&Permitted::new(), |line, context, effects| {
                        line.let_go(&hold, None, context, effects)
                    });
                }
            }
            4 => self.signal(choices),
            5 => self.verify(choices),
            6 => {
                self.document = self.corrupted(choices).and_then(Result::ok);
                self.feed(&Permitted::new(), |line, context, _| line.doubt(context));
            }
            7 | 8 => self.look(choices),
            9 => {
                self.stream = choices.pick(&STREAM_STATES);
                if choices.one_in(2) {
                    self.feed(&Permitted::new(), |line, context, _| line.doubt(context));
                }
            }
            _ => self.exchange(choices),
        }
        // Its queue position is confirmed twice a lease, whatever it has been shown.
        if self.line.waits_for_event() || self.line.need() == Need::Looks {
            let due_at = self.line.due_at();
            assert!(
                due_at.is_some_and(|at| at <= self.now + self.config.lease),
                "{due_at:?}"
            );
        }
    }

    fn feed<T>(
        &mut self,
        permitted: &Permitted,
        input: impl FnOnce(&mut Line, &Context<'_>, &mut Vec<LineEffect>) -> T,
    ) -> T {
        let mut effects = Vec::new();
        let context = Context {
            now: self.now,
            config: &self.config,
            clock: &self.clock,
            stream: self.stream,
            ids: &self.ids,
            room: QUEUE_MOST,
        };
        let now = context.now;
        let output = input(&mut self.line, &context, &mut effects);
        let _ = (self.line.due_at(), self.line.need());
        for effect in effects {
            match effect {
                LineEffect::Answer(_, Ok(Some(hold))) => self.granted(hold, now, permitted),
                LineEffect::Lost(hold, _) => self.granted.retain(|held| held.id != hold.id),
                LineEffect::Answer(..) | LineEffect::Released(..) | LineEffect::Doubted(_) => {}
            }
        }
        output
    }

    /// Checks that the grant is in the server's last answer or event, under that token, and is believed for no longer
    /// than that permits.
    fn granted(&mut self, hold: Arc<Hold>, now: Instant, permitted: &Permitted) {
        if self.granted.iter().any(|held| Arc::ptr_eq(held, &hold)) {
            // Shared by a task that re-enters.
            return;
        }
        let until = permitted.get(&(hold.id.clone(), hold.token.as_i64()));
        let Some(until) = until else {
            panic!("{hold:?} is granted, and no document says so: {permitted:?}");
        };
        let margin = self.config.skew_margin;
        assert!(hold.deadline() > now, "{hold:?} is over");
        assert!(
            hold.deadline() + margin <= now + self.config.lease,
            "{hold:?} is for too long"
        );
        assert!(
            until.is_none_or(|until| hold.deadline() + margin <= until),
            "{hold:?}, and the server said {until:?}"
        );
        self.granted.push(hold);
    }

    fn join(&mut self, choices: &mut Choices<'_>) {
        self.keys += 1;
        let (kind, capacity) = choices.pick(&[(Kind::Mutex, 1), (Kind::Mutex, 1), (Kind::Semaphore, 3)]);
        let options = AcquireOptions {
            kind,
            capacity,
            permits: choices.pick(&[1, capacity]),
            wait: !choices.one_in(3),
            reports_contention: choices.one_in(2),
            reentrant: choices.one_in(4),
            terms: Terms::default(),
            owner: Owner::default(),
        };
        // Nobody listens: the answers are checked on their way.
        let (to, _) = oneshot::channel();
        let pending = Pending::new(self.keys, self.ids.entry(), options, to);
        self.feed(&Permitted::new(), |line, context, effects| {
            line.join(pending, context, effects)
        });
    }

    /// Sends the next operation, and answers it in one of several ways.
    fn exchange(&mut self, choices: &mut Choices<'_>) {
        let Some(operation) = self.feed(&Permitted::new(), |line, context, _| line.next(context)) else {
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
            let error = choices.pick(&[
                StoreError::overdue(),
                crate::proofs::fuzzing::decoding::error(11000),
                crate::proofs::fuzzing::decoding::error(13),
            ]);
            return self.failed(&operation, &error);
        }
        let now = ServerTime(NOW + i64::from(u8::try_from(choices.below(256)).unwrap_or(0)) * 500);
        self.document = state::apply(self.document.as_ref(), &operation, now);
        // The corruption is part of the answer, as another program may write at any time.
        let answered = match self.corrupted(choices) {
            Some(Err(malformed)) if operation.needs_a_lock() => return self.failed(&operation, &malformed.into()),
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
        let answer = || Answer {
            state: answered.clone(),
            exchange,
            logged_by: None,
        };
        self.feed(&permitted, |line, context, effects| {
            line.answered(&operation, &answer(), context, effects);
            line.remember(answer(), context);
        });
        if choices.one_in(4) {
            self.document = answered;
        }
    }

    fn failed(&mut self, operation: &Operation, error: &StoreError) {
        self.feed(&Permitted::new(), |line, context, effects| {
            line.failed(operation, error, context, effects)
        });
    }

    /// Lets the time go by until something is due, sends the look if it is one, and ends one of those on their way in
    /// one of several ways.
    fn look(&mut self, choices: &mut Choices<'_>) {
        for _ in 0..4 {
            if let Some(due_at) = self.line.due_at() {
                self.now = self.now.max(due_at);
            }
            let look = self.feed(&Permitted::new(), |line, context, _| line.next_look(context));
            self.sent += usize::from(look.is_some());
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
        let error = choices.pick(&[StoreError::overdue(), crate::proofs::fuzzing::decoding::error(13)]);
        let end = choices.below(6);
        let is_waited_for = self.feed(&Permitted::new(), |line, context, _| match end {
            // It has waited for a slot, and is sent now.
            0 => line.admit(&look, context),
            1 => {
                line.look_failed(&look, &error, context);
                false
            }
            2 => {
                line.looked(&look, None, context);
                false
            }
            _ => {
                line.looked(&look, Some(ahead), context);
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
            self.feed(&permitted, |line, context, effects| {
                line.signalled(id, signal, at, None, context, effects)
            });
        }
    }

    /// Delivers a read of the document. A hold that is not in it is lost.
    fn verify(&mut self, choices: &mut Choices<'_>) {
        let read = self.corrupted(choices);
        let held: Vec<String> = self.granted.iter().map(|hold| hold.id.clone()).collect();
        self.feed(&Permitted::new(), |line, context, effects| {
            line.verified(read.as_ref(), Some(context.now), &held, context, effects);
        });
        let has = |hold: &Hold| {
            let state = read.as_ref().and_then(|read| read.as_ref().ok());
            state.is_some_and(|state| state.holders.iter().any(|holder| hold.is(holder)))
        };
        let kept = |id: &str| self.line.holds().any(|hold| hold.id == id);
        for hold in &self.granted {
            assert!(
                has(hold) || !kept(&hold.id),
                "{hold:?} is kept, and the document has none: {read:?}"
            );
        }
    }

    /// Returns the document as decoded; usually unchanged.
    fn corrupted(&self, choices: &mut Choices<'_>) -> Option<Result<State, crate::protocol::document::Malformed>> {
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
