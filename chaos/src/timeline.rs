//! The events of one lock around a violation, as lines in the order of their times.

use crate::{
    clock::{MILLI, Moment, SECOND},
    history::Operation,
    journal::Note,
    judge::{Case, Held, Violation},
};

/// Time before and after the moment that is shown.
const AROUND: Moment = 6 * SECOND;

/// Tells what happened to a lock around a violation: a line for each event of a task, and of a fault.
pub(crate) fn tell(case: &Case<'_>, violation: &Violation) -> String {
    let mut events = vec![(violation.at, format!("!! {}: {}", violation.promise, violation.text))];
    let concerned = |operation: &&Operation| violation.name.as_ref().is_none_or(|name| *name == operation.name);
    for operation in case.history.operations.iter().filter(concerned) {
        let told = of_operation(case, operation).into_iter();
        let who = format!("{}, {} task {}", operation.name, operation.reason(), operation.task);
        events.extend(told.map(|(at, text)| (at, format!("{who}: {text}"))));
    }
    for entry in &case.history.journal {
        let text = match &entry.note {
            Note::Began { fault, text, .. } => format!("fault {fault} begins: {text}"),
            Note::Over { fault } => format!("fault {fault} is over"),
            Note::Slow { millis } => format!("the director's write took {millis} ms"),
            _ => continue,
        };
        events.push((entry.at, text));
    }
    let shown = violation.at.saturating_sub(AROUND)..=violation.at + AROUND;
    events.retain(|(at, _)| shown.contains(at));
    events.sort();
    let line = |(at, text): (Moment, String)| {
        let offset = i128::from(at / MILLI) - i128::from(violation.at / MILLI);
        format!("{offset:>+6} ms  {text}\n")
    };
    events.into_iter().map(line).collect()
}

/// Returns what is known of an acquire and its hold, with the times.
fn of_operation(case: &Case<'_>, operation: &Operation) -> Vec<(Moment, String)> {
    let mut events = vec![(operation.requested, "asks".to_owned())];
    let Some(grant) = &operation.grant else {
        let ended = operation.ended.map(|(at, end)| (at, format!("ended, {end:?}")));
        events.extend(ended);
        return events;
    };
    events.push((grant.from, format!("holds, token {}", grant.token)));
    let valid = grant.valid_until;
    events.extend(valid.map(|at| (at, "was valid up to here".to_owned())));
    let claimed = case.claimed_until(Held { operation, grant });
    events.extend(claimed.map(|at| (at, "had been promised to be safe up to here".to_owned())));
    let lost = grant.lost.as_ref();
    events.extend(lost.map(|(at, reason)| (*at, format!("lost, {reason}"))));
    let let_go = grant.let_go.as_ref();
    events.extend(let_go.map(|let_go| (let_go.at, "lets go".to_owned())));
    events
}
