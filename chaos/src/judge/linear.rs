//! An external judge: the linearizability tester of `stateright`, with a lock as its specification.
//!
//! The history of every lock that only one can hold becomes operations that overlap in time: an acquire that returns a
//! token, and the end of that hold. The tester looks for *one* order of them, each at some moment between its
//! beginning and its end, in which a plain sequential lock gives the same answers.
//!
//! - A release that was acknowledged lies between its call and its return.
//! - Every other end (a handle dropped, lost, or gone with its process) lies somewhere after the last moment at which
//!   the hold was claimed, and before the next grant returned. That is all that a lease says.
//! - Acquires that got nothing are left out: they leave no trace.
//!
//! The search is exponential at its worst, so a history is cut where nothing overlaps: the known state of the lock
//! there, free or held under a token, is the beginning of the next part. Where the contention never ends, a long part
//! is examined through windows of successive tokens. And as all orders in which the tokens do not rise are wrong, only
//! the next token is tried.

use std::{collections::BTreeMap, rc::Rc};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::{Case, Held, Promise, Violation};
use crate::clock::Moment;

/// Maximum number of operations of one part that the tester gets at once.
const PART_MOST: usize = 200;

/// Number of tokens of a longer part that are examined together.
const WINDOW: usize = 40;

/// The amount of judged operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// By the external judge.
    pub(crate) operations: usize,
    pub(crate) parts: usize,
    /// Acquires of a client's own locks, and releases; and those that no fault struck while the machine had time.
    pub(crate) waits: usize,
    pub(crate) waits_in_fair_weather: usize,
}

/// A lock as one program would have it.
#[derive(Clone, Debug, PartialEq)]
struct Sequential {
    holder: Option<i64>,
    /// The tokens that are still to be issued: those of the history, in rising order.
    tokens: Rc<[i64]>,
    issued: usize,
    last: i64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Acquire,
    Leave(i64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Token(i64),
    Left,
    /// The answer of the lock to an impossible operation.
    Refused,
}

impl SequentialSpec for Sequential {
    type Op = Operation;
    type Ret = Answer;

    fn invoke(&mut self, operation: &Operation) -> Answer {
        match (*operation, self.holder) {
            (Operation::Acquire, None) => {
                let next = self.tokens.get(self.issued);
                let Some(token) = next.filter(|token| **token > self.last) else {
                    return Answer::Refused;
                };
                self.last = *token;
                self.issued += 1;
                self.holder = Some(*token);
                Answer::Token(*token)
            }
            (Operation::Leave(token), Some(holder)) if token == holder => {
                self.holder = None;
                Answer::Left
            }
            _ => Answer::Refused,
        }
    }
}

/// An operation with its beginning and end.
#[derive(Clone, Debug)]
struct Interval {
    /// The process, which does one thing after the other.
    process: usize,
    operation: Operation,
    answer: Answer,
    from: Moment,
    to: Moment,
    who: String,
}

impl Interval {
    /// Returns the token of the hold that it begins or ends.
    fn token(&self) -> i64 {
        match (self.operation, self.answer) {
            (Operation::Leave(token), _) | (Operation::Acquire, Answer::Token(token)) => token,
            (Operation::Acquire, _) => 0,
        }
    }
}

/// The holder and the last token at the beginning of a part.
type Begin = (Option<i64>, i64);

/// Submits all locks that only one can hold to the tester.
pub(super) fn check(case: &Case<'_>) -> (Vec<Violation>, Judged) {
    let (mut violations, mut judged) = (Vec::new(), Judged::default());
    for (name, held) in exclusive(case) {
        let (mut holder, mut last) = (None, 0);
        for part in parts(intervals(case, &held)) {
            judged.parts += 1;
            judged.operations += part.len();
            let begin = (holder, last);
            holder = after(holder, &part);
            last = tokens(&part).last().map_or(last, |token| last.max(*token));
            for (begin, window) in windows(begin, part) {
                if !is_linearizable(begin, &window) {
                    let (first, last) = (&window[0], &window[window.len() - 1]);
                    violations.push(Violation {
                        promise: Promise::Linearizable,
                        text: format!("{name}: no lock does what was seen from {} to {}", first.who, last.who),
                        at: first.from,
                        name: Some(name.to_owned()),
                    });
                }
            }
        }
    }
    (violations, judged)
}

/// Returns the pieces of a part that the tester gets at a time, each with the holder and the last token at its
/// beginning: all of it, or the operations of some successive tokens, in windows that overlap by half.
fn windows(begin: Begin, part: Vec<Interval>) -> Vec<(Begin, Vec<Interval>)> {
    if part.len() <= PART_MOST {
        return vec![(begin, part)];
    }
    let tokens = tokens(&part);
    let mut windows = Vec::new();
    for start in (0..tokens.len()).step_by(WINDOW / 2) {
        let within = &tokens[start..tokens.len().min(start + WINDOW)];
        let (first, last) = (within[0], within[within.len() - 1]);
        // The holder at the beginning of the part leaves in the part's first window. The other windows begin with a
        // free lock: the window before has judged the earlier holders.
        let (begin, first) = match start.checked_sub(1) {
            Some(before) => ((None, tokens[before]), first),
            None => (begin, 0),
        };
        let concerned = part.iter().filter(|one| (first..=last).contains(&one.token()));
        windows.push((begin, concerned.cloned().collect()));
    }
    windows
}

fn exclusive<'a>(case: &Case<'a>) -> BTreeMap<&'a str, Vec<Held<'a>>> {
    let mut by_name = case.held_by_name();
    by_name
        .values_mut()
        .for_each(|held| held.retain(|held| !case.came_late(*held)));
    by_name.retain(|_, held| held.iter().all(|held| held.operation.share.capacity == 1));
    by_name
}

/// Returns the operations of a lock, in the order of their beginnings.
fn intervals(case: &Case<'_>, held: &[Held<'_>]) -> Vec<Interval> {
    let mut processes = BTreeMap::new();
    let mut fresh = held.len();
    let mut intervals = Vec::new();
    for one in held {
        let count = processes.len();
        let process = *processes
            .entry((&one.operation.client, one.operation.task))
            .or_insert(count);
        let token = one.grant.token;
        let who = one.describe();
        intervals.push(Interval {
            process,
            operation: Operation::Acquire,
            answer: Answer::Token(token),
            from: one.operation.requested,
            to: one.grant.from,
            who: who.clone(),
        });
        let released = one.grant.let_go.as_ref().and_then(|let_go| {
            let (at, outcome) = let_go.outcome.as_ref()?;
            (outcome == "Released" && case.void(*one).is_none()).then_some((let_go.at, *at))
        });
        let (process, from, to) = match released {
            Some((from, to)) => (process, from, to),
            None => {
                // Before the next grant returned. With none the lock is not seen again.
                let later = held.iter().filter(|next| next.grant.token > token);
                let Some(to) = later.map(|next| next.grant.from).min() else {
                    continue;
                };
                fresh += 1;
                let from = case.claimed_until(*one).unwrap_or(one.operation.requested);
                // If that lies before the claim's end, exclusion is broken, and this must not hide it.
                (fresh, from, to.max(from + 1))
            }
        };
        let operation = Operation::Leave(token);
        intervals.push(Interval {
            process,
            operation,
            answer: Answer::Left,
            from,
            to,
            who,
        });
    }
    intervals.sort_by_key(|interval| interval.from);
    // An action that begins at the very moment at which another of the same process ended comes after it.
    let mut ends: BTreeMap<usize, Moment> = BTreeMap::new();
    for interval in &mut intervals {
        let end = ends.entry(interval.process).or_default();
        if interval.from == *end {
            interval.from += 1;
            interval.to = interval.to.max(interval.from);
        }
        *end = interval.to;
    }
    intervals
}

/// Cuts a history where nothing overlaps.
fn parts(intervals: Vec<Interval>) -> Vec<Vec<Interval>> {
    let mut parts: Vec<Vec<Interval>> = Vec::new();
    let mut end = 0;
    for interval in intervals {
        let from = interval.from;
        let reaches = interval.to;
        match parts.last_mut() {
            Some(part) if from <= end => part.push(interval),
            _ => parts.push(vec![interval]),
        }
        end = end.max(reaches);
    }
    parts
}

fn tokens(part: &[Interval]) -> Rc<[i64]> {
    let mut tokens: Vec<i64> = part
        .iter()
        .filter_map(|interval| match interval.answer {
            Answer::Token(token) => Some(token),
            _ => None,
        })
        .collect();
    tokens.sort_unstable();
    tokens.into()
}

/// Returns the holder after a part, as everything in it is over.
fn after(holder: Option<i64>, part: &[Interval]) -> Option<i64> {
    let left = |token: i64| {
        part.iter()
            .any(|interval| interval.operation == Operation::Leave(token))
    };
    let issued = tokens(part);
    issued.last().copied().or(holder).filter(|token| !left(*token))
}

fn is_linearizable((holder, last): Begin, part: &[Interval]) -> bool {
    let begin = Sequential {
        holder,
        tokens: tokens(part),
        issued: 0,
        last,
    };
    // Beginnings and ends in their order; at the same moment the beginning comes first, which makes them overlap.
    let begins = part
        .iter()
        .enumerate()
        .map(|(index, interval)| (interval.from, 0, index));
    let ends = part.iter().enumerate().map(|(index, interval)| (interval.to, 1, index));
    let mut moments: Vec<_> = begins.chain(ends).collect();
    moments.sort_unstable();
    let mut tester = LinearizabilityTester::new(begin);
    for (_, end, index) in moments {
        let interval = &part[index];
        let told = if end == 1 {
            tester.on_return(interval.process, interval.answer)
        } else {
            tester.on_invoke(interval.process, interval.operation)
        };
        if told.is_err() {
            return false;
        }
    }
    tester.is_consistent()
}
