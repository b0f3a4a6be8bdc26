//! Ends: of operations, of clients, of the run.

use std::collections::{BTreeMap, HashSet};

use super::{
    Case, Held, PROBE, Promise, Violation,
    harm::{Sky, nanos},
};
use crate::{
    client::LEASE,
    clock::{MILLI, SECOND},
    history::LetGo,
    journal::{Note, Reach},
    oplog::{Entry, Version},
};

/// Checks that every operation of a client that was not killed has an end, and so has the client.
pub(super) fn ended(case: &Case<'_>) -> Vec<Violation> {
    let killed: HashSet<&str> = killed(case).collect();
    let open = case
        .history
        .operations
        .iter()
        .filter(|operation| !operation.is_over() && !killed.contains(operation.client.as_str()));
    let open = open.map(|operation| {
        let text = format!("{} never came to an end", operation.reason());
        Violation::new(Promise::Ended, operation.requested, Some(&operation.name), text)
    });
    let ends = notes(case).filter_map(|(at, note)| match note {
        Note::Dismissed {
            client,
            problem: Some(problem),
        } => Some(Violation::new(Promise::Ended, at, None, format!("{client}: {problem}"))),
        _ => None,
    });
    open.chain(ends).chain(late(case)).collect()
}

/// Time after its limit within which an acquire must give up. The machine may be busy.
const GIVES_UP: u64 = 5 * SECOND;

/// Checks that every acquire gives up in its time, whatever happens, unless its client is frozen then.
fn late(case: &Case<'_>) -> Vec<Violation> {
    let mut frozen: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for (at, note) in notes(case) {
        if let Note::Began {
            fault,
            kind,
            reach: Reach::Client(client),
            ..
        } = note
            && kind == "client frozen"
        {
            let over = super::over(case.history, *fault).unwrap_or(u64::MAX);
            frozen.entry(client).or_default().push((at, over));
        }
    }
    let mut violations = Vec::new();
    for operation in &case.history.operations {
        let granted = operation.grant.as_ref().map(|grant| grant.from);
        let end = granted.or(operation.ended.map(|(at, _)| at));
        let (Some(limit), Some(end)) = (operation.limit, end) else {
            continue;
        };
        let due = operation.requested + limit * MILLI;
        let is_frozen = |(from, to): &(u64, u64)| *from <= end && *to >= due;
        let frozen = frozen.get(operation.client.as_str());
        if end > due + GIVES_UP && !frozen.is_some_and(|times| times.iter().any(is_frozen)) {
            let (reason, millis) = (operation.reason(), (end - due) / MILLI);
            let text = format!("{reason} went on for {millis} ms after its time");
            violations.push(Violation::new(Promise::Ended, due, Some(&operation.name), text));
        }
    }
    violations
}

/// Checks that every probe of a whole cluster was granted.
pub(super) fn progress(case: &Case<'_>) -> Vec<Violation> {
    let probes = case
        .history
        .operations
        .iter()
        .filter(|operation| operation.task == PROBE);
    let failed = probes.filter(|operation| operation.grant.is_none());
    failed
        .map(|operation| {
            let (name, error) = (&operation.name, operation.error.as_deref().unwrap_or_default());
            let text = format!("{name} was not to be had: {:?} {error}", operation.ended);
            Violation::new(Promise::Progress, operation.requested, Some(name), text)
        })
        .collect()
}

/// Checks that at the end no entry is left, and nothing else was found that should not be there.
///
/// A hold that ran out leaves its entry to whoever comes next, who may be nobody. So an entry whose time is over is no
/// breach where its client lost the hold, left it behind, was killed, or had no processor at the end of the lease.
pub(super) fn remains(case: &Case<'_>) -> Vec<Violation> {
    let found = notes(case).filter_map(|(at, note)| match note {
        Note::Remains { text } => Some(Violation::new(Promise::NothingLeft, at, None, text)),
        _ => None,
    });
    let silence = notes(case).find_map(|(at, note)| matches!(note, Note::Silence).then_some(at));
    let entries = silence.into_iter().flat_map(|at| left_entries(case, at));
    found.chain(entries).collect()
}

fn left_entries(case: &Case<'_>, silence: u64) -> Vec<Violation> {
    let killed: HashSet<&str> = killed(case).collect();
    let ran_out = |held: &Held<'_>| {
        let (grant, let_go) = (held.grant, held.grant.let_go.as_ref());
        let outcome = let_go.and_then(|let_go| let_go.outcome.as_ref());
        let was_lost = outcome.is_some_and(|(_, outcome)| outcome == "WasLost");
        was_lost || grant.lost.is_some() || grant.valid_until.is_none() || let_go.is_some_and(LetGo::is_left)
    };
    let ran_out = case.held().into_iter().filter(ran_out);
    let ran_out: HashSet<(&str, Option<i64>)> = ran_out
        .map(|held| (held.operation.name.as_str(), case.entries.token(held)))
        .filter(|(_, token)| token.is_some())
        .collect();
    let sky = Sky::of(case);
    let is_excused = |name: &str, entry: &Entry| {
        let over = case.history.moment(entry.until);
        let client = entry.reason.split('#').next().unwrap_or_default();
        let is_slow = || sky.is_slow(over.saturating_sub(nanos(LEASE)), over);
        over <= silence && (killed.contains(client) || ran_out.contains(&(name, entry.token)) || is_slow())
    };
    let versions = case.history.versions.iter();
    let last: BTreeMap<&str, &Version> = versions.map(|version| (version.name.as_str(), version)).collect();
    let states = last
        .into_iter()
        .filter_map(|(name, version)| Some((name, version.state.as_ref()?)));
    let entries =
        states.flat_map(|(name, state)| state.holders.iter().chain(&state.queue).map(move |entry| (name, entry)));
    let left = entries.filter(|(name, entry)| !is_excused(name, entry));
    left.map(|(name, entry)| {
        let text = format!("the entry of {} is left in {name}", entry.reason);
        Violation::new(Promise::NothingLeft, silence, Some(name), text)
    })
    .collect()
}

/// Checks that each write under a document's lock counts up a number that was read under it: no number is written
/// twice, unless another program saved an old one in between.
pub(super) fn guarded_writes(case: &Case<'_>) -> Vec<Violation> {
    let mut written: BTreeMap<(&str, usize, i64), Held<'_>> = BTreeMap::new();
    let mut violations = Vec::new();
    for held in case.held() {
        let Some((count, Some(true))) = held.operation.wrote else {
            continue;
        };
        let Some(saves) = saves_before(case, held) else {
            continue;
        };
        if let Some(other) = written.insert((&held.operation.name, saves, count), held) {
            let text = format!(
                "{} and {} both counted up to {count}",
                other.describe(),
                held.describe()
            );
            violations.push(case.violation(Promise::GuardedWrites, held, held.grant.from, text));
        }
    }
    violations
}

/// Returns how often an old document had been saved when the lock was granted; `None` if one was saved while it was
/// held.
fn saves_before(case: &Case<'_>, held: Held<'_>) -> Option<usize> {
    let let_go = held.grant.let_go.as_ref().map(|let_go| let_go.at);
    let until = let_go.or(held.grant.valid_until).unwrap_or(held.grant.from);
    let mut before = 0;
    for (from, to) in super::saves(case.history, &held.operation.name) {
        if to < held.grant.from {
            before += 1;
        } else if from <= until {
            return None;
        }
    }
    Some(before)
}

/// Returns the complaints of clients and the director.
pub(super) fn complaints(case: &Case<'_>) -> Vec<Violation> {
    let complaint = |text, at| Violation::new(Promise::Complaint, at, None, text);
    let clients = case.history.complaints.iter();
    let clients = clients.map(|(client, at, text)| complaint(format!("{client}: {text}"), *at));
    let run = notes(case).filter_map(|(at, note)| match note {
        Note::Trouble { text } => Some(complaint(text.clone(), at)),
        _ => None,
    });
    clients.chain(run).collect()
}

/// Returns the clients that were killed.
fn killed<'a>(case: &Case<'a>) -> impl Iterator<Item = &'a str> {
    notes(case).filter_map(|(_, note)| match note {
        Note::Killed { client } => Some(client.as_str()),
        _ => None,
    })
}

fn notes<'a>(case: &Case<'a>) -> impl Iterator<Item = (u64, &'a Note)> {
    case.history.journal.iter().map(|entry| (entry.at, &entry.note))
}
