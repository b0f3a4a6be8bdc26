//! Checks of the servers' log.

use std::collections::{HashMap, HashSet};

use super::{Case, OFF, Promise, Violation};
use crate::{
    clock::MILLI,
    history::Operation,
    oplog::{Entry, State, Version},
    record::Upon,
};

/// Maximum error of a moment of the servers' clock beside one of ours: their clock has milliseconds, and the two
/// clocks of the machine drift a little between two measurements.
const TOLERANCE: u64 = 3 * MILLI;

/// Checks that every grant is in the log; and that no handle ever called itself safe beyond the end of its lease
/// there, by the earliest of the servers' clocks.
pub(super) fn lost_in_time(case: &Case<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for held in case.held() {
        let Some(until) = case.entries.until(held) else {
            let text = format!("{} is not in the servers' log", held.describe());
            violations.push(case.violation(Promise::Durable, held, held.grant.from, text));
            continue;
        };
        let promised = held.grant.valid_until.unwrap_or(0).max(held.grant.promised_until);
        let until = until.saturating_sub(OFF);
        if held.grant.valid_until.is_some() && promised > until + TOLERANCE {
            let beyond = (promised - until) / MILLI;
            let text = format!(
                "{} called itself safe until {beyond} ms after the end of its lease",
                held.describe()
            );
            violations.push(case.violation(Promise::LostInTime, held, until, text));
        }
    }
    violations
}

/// Checks that the documents themselves never grant more than there is room for, and that their tokens only rise.
/// Holders keep what they have when the number of permits is lowered.
pub(super) fn capacity(case: &Case<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    // The document of the last version, its token, and the largest of all.
    let mut tokens: HashMap<&str, (usize, i64, i64)> = HashMap::new();
    let mut held: HashMap<&str, Vec<Option<i64>>> = HashMap::new();
    for (version, saved) in case.versions() {
        let Some(state) = &version.state else { continue };
        let found = |promise, text| at_servers(case, promise, version, text);
        let taken: i64 = state.holders.iter().map(|holder| holder.permits).sum();
        let holders = state.holders.iter().map(|holder| holder.token).collect();
        let before = held.insert(&version.name, holders).unwrap_or_default();
        let grants = state.holders.iter().any(|holder| !before.contains(&holder.token));
        if taken > state.capacity && grants {
            let text = format!("{taken} permits of {} are held in the document", state.capacity);
            violations.push(found(Promise::Exclusion, text));
        }
        let (epoch, last, largest) = tokens.get(version.name.as_str()).copied().unwrap_or_default();
        tokens.insert(&version.name, (version.epoch, state.token, largest.max(state.token)));
        // A new document has issued none: its number of permits can be set before anybody acquires.
        let before = if version.epoch == epoch { last } else { 0 };
        if state.token < before && !saved {
            let text = format!("the document's token fell from {before} to {}", state.token);
            violations.push(found(Promise::Tokens, text));
        } else if state.token > before && state.token <= largest && !saved {
            let text = format!("{} was issued again, or after {largest}", state.token);
            violations.push(found(Promise::Tokens, text));
        }
        if state
            .holders
            .iter()
            .any(|holder| holder.token.is_none_or(|token| token > state.token))
        {
            let text = "a holder has a token that was not issued".to_owned();
            violations.push(found(Promise::Tokens, text));
        }
    }
    violations
}

/// Checks that no client becomes a holder while a live entry before it stays in the queue, and that no two change
/// places. Only an upgrade goes before others.
pub(super) fn queue(case: &Case<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let operations = case.history.operations.iter();
    let upgrades = operations.filter(|operation| matches!(operation.upon, Some(Upon::Reader(_))));
    let upgrades: HashSet<String> = upgrades.map(Operation::reason).collect();
    let mut before: HashMap<&str, &Version> = HashMap::new();
    for (version, saved) in case.versions() {
        let Some(earlier) = before.insert(&version.name, version) else {
            continue;
        };
        if !saved
            && let (Some(from), Some(to)) = (&earlier.state, &version.state)
            && earlier.epoch == version.epoch
            && let Some(text) = overtaken(from, to, version.at, &upgrades)
        {
            violations.push(at_servers(case, Promise::Queue, version, text));
        }
    }
    violations
}

fn overtaken(from: &State, to: &State, at: i64, upgrades: &HashSet<String>) -> Option<String> {
    let place = |state: &State, id: &str| state.queue.iter().position(|waiter| waiter.id == id);
    // A hold that is left behind or taken up goes on under another id.
    let is_granted = |holder: &&Entry| from.holders.iter().all(|other| other.token != holder.token);
    for holder in to.holders.iter().filter(is_granted) {
        if upgrades.contains(&holder.reason) {
            continue;
        }
        // An entry that was not in the queue comes after all that were.
        let position = place(from, &holder.id).unwrap_or(from.queue.len());
        let passed = from.queue[..position]
            .iter()
            .find(|waiter| waiter.until > at && place(to, &waiter.id).is_some());
        if let Some(passed) = passed {
            return Some(format!(
                "{} was granted before {}, who came first",
                holder.reason, passed.reason
            ));
        }
    }
    // An entry that had run out may have come back, and is a new one then.
    let waiting = to.queue.iter().filter(|waiter| !upgrades.contains(&waiter.reason));
    let stayed: Vec<usize> = waiting
        .filter_map(|waiter| place(from, &waiter.id))
        .filter(|place| from.queue[*place].until > at)
        .collect();
    (!stayed.is_sorted()).then(|| "entries of the queue changed places".to_owned())
}

fn at_servers(case: &Case<'_>, promise: Promise, version: &Version, text: String) -> Violation {
    Violation::new(promise, case.history.moment(version.at), Some(&version.name), text)
}
