//! What faults do to what they do not strike.
//!
//! A fault may be confined: to one client, or to some locks. While no other is about, everything else has to go on: no hold
//! is lost, and an acquire of a lock that nobody else asks for, and every release, is answered within a bound.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use super::{Case, Judged, Promise, Violation};
use crate::{
    client::{CLAIM_LEASE, LEASE},
    clock::{MILLI, Moment, SECOND},
    director::SLOW,
    fault::LOST_MOST,
    history::{Grant, Operation},
    journal::{Note, Reach},
    locks::is_own,
    record::End,
};

/// How long what a fault has left behind may go on: two leases, and an election.
const SETTLE: u64 = 5 * SECOND;

/// A command that a client gives up, at the pace of the library: the server may try it for 200 ms, and the client waits for
/// a quarter more.
const GIVEN_UP: u64 = 250 * MILLI;

/// So many are given up at that pace; later ones are given a third of the lease and a quarter more.
const AT_FULL_PACE: u64 = 6;
const GIVEN_UP_LATER: u64 = nanos(LEASE) / 3 / 4 * 5;

/// An answer that takes longer than this is noted, and nothing is judged then.
const ANSWER: u64 = nanos(SLOW);

/// A holder that did not look at its lock for so long had no processor: whatever it lost, it lost by that.
const STALLED: u64 = SECOND / 2;

/// The longest that an acquire of a free lock, or a release, may take that no fault strikes.
///
/// Servers that take just less than what is noted are too slow for the limits that a client begins with: it gives up all
/// that it asks at full pace, and one more at twice the limit. The next has its answer. Client and judge may both have been
/// without a processor for as long as is not called stalled.
pub(super) const HELD_UP: u64 = AT_FULL_PACE * GIVEN_UP + 2 * GIVEN_UP + ANSWER + 2 * STALLED;

/// The same where one fault lets a client's commands go unanswered, or its connections die: each costs one command more,
/// and not at full pace any more.
const ASKS_AGAIN: u64 = HELD_UP + LOST_MOST as u64 * GIVEN_UP_LATER;

/// A lock that was handed over is held on a short lease until it is renewed, first after a quarter of that. News of it that
/// come later than this before its end leave no time for that: the servers may take so long for the answer.
const CLAIM_TO_RENEW: u64 = nanos(CLAIM_LEASE) / 4 + ANSWER;

/// What is lost now may have been on its way to be lost for this long.
const BEFORE: u64 = nanos(LEASE);

#[allow(clippy::cast_possible_truncation, reason = "seconds are few")]
const fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A fault with its time and its reach.
#[derive(Debug)]
pub(super) struct Strike<'a> {
    kind: &'a str,
    from: Moment,
    to: Moment,
    reach: &'a Reach,
}

/// What faults mean for one lock of one client at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// None strikes it.
    Fair,
    /// It has to ask again.
    AsksAgain,
    /// Anything may happen.
    Foul,
}

/// The longest waits while one kind of fault was about and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) acquires: usize,
    pub(crate) longest_acquire: u64,
    pub(crate) releases: usize,
    pub(crate) longest_release: u64,
}

/// The faults, and when the machine or the servers were too slow for anything to be judged.
#[derive(Debug)]
struct Sky<'a> {
    strikes: Vec<Strike<'a>>,
    slow: Vec<(Moment, Moment)>,
}

impl<'a> Sky<'a> {
    fn of(case: &Case<'a>) -> Self {
        let journal = &case.history.journal;
        let mut ends: HashMap<usize, Moment> = HashMap::new();
        for entry in journal {
            match &entry.note {
                Note::Over { fault } => ends.insert(*fault, entry.at),
                // Where there was no answer it may still strike, for as long as the driver tries.
                Note::Missed { fault, why } if why.contains("elapsed") => ends.insert(*fault, entry.at + 60 * SECOND),
                Note::Missed { fault, .. } => ends.insert(*fault, entry.at),
                _ => None,
            };
        }
        let strikes = journal.iter().filter_map(|entry| {
            let Note::Began { fault, kind, reach, .. } = &entry.note else {
                return None;
            };
            let whole = || {
                let later = journal.iter().filter(|later| later.at > entry.at);
                later
                    .filter_map(|later| matches!(later.note, Note::Whole).then_some(later.at))
                    .min()
            };
            // Nodes come back in their own time.
            let to = match reach {
                Reach::Everything => whole(),
                _ => ends.get(fault).copied(),
            };
            Some(Strike {
                kind,
                from: entry.at,
                to: to.unwrap_or(Moment::MAX),
                reach,
            })
        });
        let slow = journal.iter().filter_map(|entry| match entry.note {
            Note::Slow { millis } => Some((entry.at.saturating_sub(millis * MILLI), entry.at)),
            _ => None,
        });
        Self {
            strikes: strikes.collect(),
            slow: slow.collect(),
        }
    }

    fn weather(&self, operation: &Operation, from: Moment, to: Moment) -> Weather {
        let mut unanswered = 0;
        for strike in &self.strikes {
            if strike.from > to || strike.to.saturating_add(SETTLE) < from {
                continue;
            }
            match strike.reach {
                Reach::Everything => return Weather::Foul,
                Reach::Locks(names) if names.contains(&operation.name) => return Weather::Foul,
                Reach::Client(client) if *client == operation.client => return Weather::Foul,
                Reach::Answers(client) if *client == operation.client => unanswered += 1,
                _ => {}
            }
        }
        let slow = |(begin, end): &(Moment, Moment)| *begin <= to && *end + BEFORE >= from;
        if self.slow.iter().any(slow) {
            return Weather::Foul;
        }
        match unanswered {
            0 => Weather::Fair,
            1 => Weather::AsksAgain,
            // With the connections of several faults the pool is used up.
            _ => Weather::Foul,
        }
    }

    /// The one kind of fault that was about; none is one too.
    fn only_kind(&self, operation: &Operation, from: Moment, to: Moment) -> Option<&'a str> {
        let about = self
            .strikes
            .iter()
            .filter(|strike| strike.from <= to && strike.to >= from);
        let mut kinds = HashSet::new();
        for strike in about {
            match strike.reach {
                Reach::Locks(names) if names.contains(&operation.name) => return None,
                Reach::Client(client) if *client == operation.client => return None,
                _ => kinds.insert(strike.kind),
            };
        }
        let mut kinds = kinds.into_iter();
        let kind = kinds.next().unwrap_or("no fault");
        kinds.next().is_none().then_some(kind)
    }
}

/// Nothing is lost or held up that no fault strikes. Counts the waits that there were, and those that were judged.
pub(super) fn unharmed(case: &Case<'_>, judged: &mut Judged) -> Vec<Violation> {
    let sky = Sky::of(case);
    let mut violations = Vec::new();
    for operation in &case.history.operations {
        let mut found = |at, text| {
            violations.push(Violation {
                promise: Promise::Unharmed,
                text,
                at,
                name: Some(operation.name.clone()),
            });
        };
        for (from, to, what) in waits(operation) {
            judged.waits += 1;
            let bound = match sky.weather(operation, from, to) {
                Weather::Fair => HELD_UP,
                Weather::AsksAgain => ASKS_AGAIN,
                Weather::Foul => continue,
            };
            judged.waits_in_fair_weather += 1;
            if to - from > bound {
                let text = format!(
                    "{what} {} by {} took {} ms, and no fault struck it",
                    operation.name,
                    operation.reason(),
                    (to - from) / MILLI
                );
                found(from, text);
            }
        }
        if let Some((at, reason)) = operation.grant.as_ref().and_then(loss)
            && sky.weather(operation, at.saturating_sub(BEFORE), at) == Weather::Fair
        {
            let text = format!(
                "{} lost {} ({reason}), and no fault struck it",
                operation.reason(),
                operation.name
            );
            found(at, text);
        }
    }
    violations
}

/// When it was lost, unless its process had no time to see to it, or had heard of it too late to renew it.
fn loss(grant: &Grant) -> Option<(Moment, &str)> {
    let (at, reason) = grant.lost.as_ref()?;
    let looked = grant.valid_until.unwrap_or(grant.from);
    let renewed = grant.promised_until > grant.from + nanos(CLAIM_LEASE);
    let in_time = renewed || grant.safe_at_first >= CLAIM_TO_RENEW;
    (at - looked < STALLED && in_time).then_some((*at, reason))
}

/// From when to when it waited, for what is not a holder.
fn waits(operation: &Operation) -> Vec<(Moment, Moment, &'static str)> {
    let mut waits = Vec::new();
    let granted = operation.grant.as_ref().map(|grant| grant.from);
    let ended = operation.ended.filter(|(_, how)| *how != End::Cancelled);
    if let Some(to) = granted.or(ended.map(|(at, _)| at)).filter(|_| is_own(&operation.name)) {
        waits.push((operation.requested, to, "an acquire of"));
    }
    let let_go = operation.grant.as_ref().and_then(|grant| grant.let_go.as_ref());
    if let Some(let_go) = let_go
        && let Some((to, _)) = &let_go.outcome
    {
        waits.push((let_go.at, *to, "a release of"));
    }
    waits
}

/// The longest waits for each kind of fault.
pub(crate) fn measure<'a>(case: &Case<'a>) -> BTreeMap<&'a str, Waits> {
    let sky = Sky::of(case);
    let mut measured: BTreeMap<&str, Waits> = BTreeMap::new();
    for operation in &case.history.operations {
        for (from, to, what) in waits(operation) {
            let Some(kind) = sky.only_kind(operation, from, to) else {
                continue;
            };
            let waits = measured.entry(kind).or_default();
            let (count, longest) = if what == "a release of" {
                (&mut waits.releases, &mut waits.longest_release)
            } else {
                (&mut waits.acquires, &mut waits.longest_acquire)
            };
            *count += 1;
            *longest = (*longest).max(to - from);
        }
    }
    measured
}

/// When clients are told to end, and nothing was done to them for a while, they are woken by streams.
pub(super) fn woken(case: &Case<'_>) -> Vec<Violation> {
    let journal = &case.history.journal;
    let Some(end) = journal.iter().find(|entry| matches!(entry.note, Note::Dismissing)) else {
        return Vec::new();
    };
    let sky = Sky::of(case);
    let slow = |(_, to): &(Moment, Moment)| *to + SETTLE >= end.at;
    if sky.slow.iter().any(slow) {
        return Vec::new();
    }
    let mut last: BTreeMap<&str, (Moment, bool)> = BTreeMap::new();
    for (client, at, by_stream) in &case.history.wakes {
        if *at <= end.at {
            last.insert(client, (*at, *by_stream));
        }
    }
    for entry in journal {
        if let Note::Killed { client } = &entry.note {
            last.remove(client.as_str());
        }
    }
    let polling = last
        .into_iter()
        .filter(|(_, (at, by_stream))| !by_stream && *at + SETTLE < end.at);
    polling
        .map(|(client, (at, _))| Violation {
            promise: Promise::Woken,
            text: format!(
                "{client} has polled for {} ms, and nothing is wrong any more",
                (end.at - at) / MILLI
            ),
            at: end.at,
            name: None,
        })
        .collect()
}
