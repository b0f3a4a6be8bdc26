//! Deadlocks: of two tasks that wait for each other at least one is told, and nobody is who is in no such pair.

use std::collections::HashMap;

use super::{Case, Held, Judged, Promise, Violation, harm};
use crate::{
    client::LEASE,
    clock::{MILLI, Moment},
    history::Operation,
    journal::Note,
    record::{End, Upon},
};

/// Maximum time for a deadlock to be told: it takes a wait of a fifth of a lease, and some renewals of both holders after
/// that; each can be held up as an acquire of a free lock can.
const TOLD: u64 = 2 * harm::nanos(LEASE) + harm::HELD_UP;

/// Time before a report in which a command that was late may have shown what was no more.
const BEFORE: u64 = 2 * harm::nanos(LEASE);

/// A wait of a task that holds another lock.
#[derive(Clone, Copy)]
struct Crossing<'a> {
    held: Held<'a>,
    waits: &'a Operation,
}

impl Crossing<'_> {
    /// Whether each waits for the lock that the other holds.
    fn meets(&self, other: &Self) -> bool {
        self.waits.name == other.held.operation.name && other.waits.name == self.held.operation.name
    }

    /// Returns when the wait ended.
    fn until(&self) -> Option<Moment> {
        let granted = self.waits.grant.as_ref().map(|grant| grant.from);
        granted.or(self.waits.ended.map(|(at, _)| at))
    }

    fn told(&self) -> Option<Moment> {
        let (at, end) = self.waits.ended?;
        (end == End::Deadlock).then_some(at)
    }
}

fn crossings<'a>(case: &Case<'a>) -> Vec<Crossing<'a>> {
    let held = case.held().into_iter();
    let held: HashMap<String, Held<'_>> = held.map(|held| (held.operation.reason(), held)).collect();
    let crossing = |waits: &'a Operation| {
        let Some(Upon::Holding(reason)) = &waits.upon else {
            return None;
        };
        let held = *held.get(reason)?;
        Some(Crossing { held, waits })
    };
    case.history.operations.iter().filter_map(crossing).collect()
}

/// Checks that one of two tasks is told that wait for each other for long, with no fault near.
///
/// A task does nothing else while it waits, and looks at what it holds after that: what was valid then was valid all the
/// time.
pub(super) fn told(case: &Case<'_>, judged: &mut Judged) -> Vec<Violation> {
    let sky = harm::Sky::of(case);
    let crossings = crossings(case);
    let mut violations = Vec::new();
    for (position, one) in crossings.iter().enumerate() {
        for other in crossings[..position].iter().filter(|other| one.meets(other)) {
            let from = one.waits.requested.max(other.waits.requested);
            let (Some(one_until), Some(other_until)) = (one.until(), other.until()) else {
                continue;
            };
            let to = one_until.min(other_until);
            let holds = |held: Held<'_>| {
                held.grant.valid_until.is_some_and(|valid| valid >= to) && case.void(held).is_none_or(|void| void > to)
            };
            if from >= to || !holds(one.held) || !holds(other.held) {
                continue;
            }
            judged.circles += 1;
            // A pair that was told soon counts only if the judge would have noticed that it was not.
            let due = from + TOLD;
            let fair = |waits| sky.weather(waits, from, due) == harm::Weather::Fair;
            if !fair(one.waits) || !fair(other.waits) {
                continue;
            }
            judged.circles_in_fair_weather += 1;
            if to > due {
                let text = format!(
                    "{} and {} waited for each other for {} ms, and none was told",
                    one.waits.reason(),
                    other.waits.reason(),
                    (to - from) / MILLI
                );
                violations.push(case.violation(Promise::Deadlocks, one.held, from, text));
            }
        }
    }
    violations
}

/// Checks that each task that was told did wait for another that waited for it until just before, unless commands may have
/// been late; and that no others were found.
pub(super) fn untrue(case: &Case<'_>) -> Vec<Violation> {
    let crossings = crossings(case);
    let sky = harm::Sky::of(case);
    let mut violations = Vec::new();
    for one in &crossings {
        let Some(at) = one.told() else { continue };
        let waited_then = |other: &&Crossing<'_>| {
            let until = other.until().unwrap_or(Moment::MAX);
            one.meets(other) && other.waits.requested <= at && until >= at.saturating_sub(BEFORE)
        };
        if crossings.iter().any(|other| waited_then(&other)) || sky.is_rough(at.saturating_sub(BEFORE), at) {
            continue;
        }
        let text = format!("{} was told, and nobody waited for it", one.waits.reason());
        violations.push(case.violation(Promise::Deadlocks, one.held, at, text));
    }
    // The cluster was whole when they were looked for.
    let found = case.history.journal.iter().filter_map(|entry| match &entry.note {
        Note::Deadlock { text } if !sky.is_slow(entry.at.saturating_sub(BEFORE), entry.at) => {
            Some(Violation::new(Promise::Deadlocks, entry.at, None, text))
        }
        _ => None,
    });
    violations.extend(found);
    violations
}
