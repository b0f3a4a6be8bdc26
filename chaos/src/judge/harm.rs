//! The harm of faults to clients and locks that they do not strike.
//!
//! A fault may be confined: to one client, or to some locks. While no other is active, everything else has to go on:
//! no hold is lost, and an acquire of a lock that nobody else asks for, and every release, is answered within a bound.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use super::{Case, Judged, MARGIN, Promise, Violation};
use crate::{
    client::{CLAIM_LEASE, LEASE, READS},
    clock::{MILLI, Moment, SECOND},
    fault::LOST_MOST,
    history::{Grant, Operation},
    journal::{Note, Reach, SLOW},
    locks::is_own,
    record::{End, Upon},
};

/// Time for which the aftermath of a fault may last: two leases, and an election.
const SETTLE: u64 = 5 * SECOND;

/// Time after which a client gives up a command, at the pace of the library: the server may try it for 200 ms, and the
/// client waits for a quarter more.
const GIVEN_UP: u64 = 250 * MILLI;

/// Number of commands that are given up at that pace; later ones get a third of the lease and a quarter more.
const AT_FULL_PACE: u64 = 6;
const GIVEN_UP_LATER: u64 = nanos(LEASE) / 3 / 4 * 5;

/// Maximum time of an answer for a judgement: slower ones are noted, and nothing is judged then.
const ANSWER: u64 = nanos(SLOW);

/// Time without a look at its lock after which a holder had no processor: this explains any loss.
const STALLED: u64 = SECOND / 2;

/// Maximum time of an acquire of a free lock, or of a release, that no fault strikes.
///
/// Servers that take just less than the noted time are too slow for the limits that a client starts with: it gives up
/// everything that it asks at full pace, and one more at twice the limit. The next has its answer. Client and judge
/// may both have been without a processor for as long as is not called stalled.
pub(super) const HELD_UP: u64 = AT_FULL_PACE * GIVEN_UP + 2 * GIVEN_UP + ANSWER + 2 * STALLED;

/// The same where one fault leaves a client's commands without an answer, or its connections die: each costs one
/// command more, and not at full pace any more.
const ASKS_AGAIN: u64 = HELD_UP + LOST_MOST as u64 * GIVEN_UP_LATER;

/// Time for the first renewal of a lock that was handed over: it is held on a short lease until that, which comes
/// after a quarter of the lease. News of the lock that leave less than this of the lease leave no time for it: the
/// servers may take so long for the answer.
const CLAIM_TO_RENEW: u64 = nanos(CLAIM_LEASE) / 4 + ANSWER;

/// Maximum time from a break to its report where no other fault strikes: a hold is read once it is a fifth of a second old,
/// then after every pause, and a reading may take as long as any answer. Of a client with a stream it is a hop.
const TOLD: u64 = SECOND / 5 + nanos(READS) + ANSWER + MARGIN;

/// Time for which a present loss may have been on its way.
const BEFORE: u64 = nanos(LEASE);

#[allow(clippy::cast_possible_truncation, reason = "seconds are few")]
pub(super) const fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// A fault with its time and its reach.
#[derive(Debug)]
pub(super) struct Strike<'a> {
    from: Moment,
    to: Moment,
    reach: &'a Reach,
    /// The locks that it takes away.
    takes: &'a [String],
}

/// The effect of the faults on one lock of one client at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    /// None strikes it.
    Fair,
    /// It has to ask again.
    AsksAgain,
    /// Anything may happen.
    Foul,
}

/// The faults, and the times when the machine or the servers were too slow for a judgement.
#[derive(Debug)]
pub(super) struct Sky<'a> {
    strikes: Vec<Strike<'a>>,
    slow: Vec<(Moment, Moment)>,
}

impl<'a> Sky<'a> {
    pub(super) fn of(case: &Case<'a>) -> Self {
        let journal = &case.history.journal;
        let mut ends: HashMap<usize, Moment> = HashMap::new();
        for entry in journal {
            match &entry.note {
                Note::Over { fault } => ends.insert(*fault, entry.at),
                // Without an answer it may still strike, for as long as the driver tries.
                Note::Missed { fault, why } if why.contains("elapsed") => ends.insert(*fault, entry.at + 60 * SECOND),
                Note::Missed { fault, .. } => ends.insert(*fault, entry.at),
                _ => None,
            };
        }
        let strikes = journal.iter().filter_map(|entry| {
            let Note::Began {
                fault, reach, takes, ..
            } = &entry.note
            else {
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
                from: entry.at,
                to: to.unwrap_or(Moment::MAX),
                reach,
                takes,
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

    pub(super) fn weather(&self, operation: &Operation, from: Moment, to: Moment) -> Weather {
        self.weather_of(self.strikes.iter(), operation, from, to)
    }

    /// Returns the weather apart from the hands that take this very lock away.
    fn weather_beside_hands(&self, operation: &Operation, from: Moment, to: Moment) -> Weather {
        let takes = |strike: &Strike<'_>| *strike.reach != Reach::Everything && strike.takes.contains(&operation.name);
        let others = self.strikes.iter().filter(|strike| !takes(strike));
        self.weather_of(others, operation, from, to)
    }

    fn weather_of<'s>(
        &'s self,
        strikes: impl Iterator<Item = &'s Strike<'a>>,
        operation: &Operation,
        from: Moment,
        to: Moment,
    ) -> Weather
    where
        'a: 's,
    {
        let mut unanswered = 0;
        for strike in strikes {
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
        if self.is_slow(from, to) {
            return Weather::Foul;
        }
        match unanswered {
            0 => Weather::Fair,
            1 => Weather::AsksAgain,
            // With the connections of several faults the pool is used up.
            _ => Weather::Foul,
        }
    }
}

impl Sky<'_> {
    /// Whether the machine or the servers were slow.
    pub(super) fn is_slow(&self, from: Moment, to: Moment) -> bool {
        let mut slow = self.slow.iter();
        slow.any(|(begin, end)| *begin <= to && *end + BEFORE >= from)
    }

    /// Whether the commands of any client may have been late.
    pub(super) fn is_rough(&self, from: Moment, to: Moment) -> bool {
        let mut strikes = self.strikes.iter();
        let is_late =
            |strike: &Strike<'_>| strike.from <= to && strike.to >= from && !matches!(strike.reach, Reach::Locks(_));
        strikes.any(is_late) || self.is_slow(from, to)
    }
}

/// Checks that without a fault nothing is lost or held up. Counts the waits, and those that were judged.
pub(super) fn unharmed(case: &Case<'_>, judged: &mut Judged) -> Vec<Violation> {
    let sky = Sky::of(case);
    let mut violations = Vec::new();
    for operation in &case.history.operations {
        let mut found = |at, text: String| {
            violations.push(Violation::new(Promise::Unharmed, at, Some(&operation.name), text));
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

/// Checks that a break is reported in time, to clients with a stream and to those that read what they hold.
pub(super) fn told(case: &Case<'_>) -> Vec<Violation> {
    let sky = Sky::of(case);
    let late = case.held().into_iter().filter_map(|held| {
        let (broken, valid) = (case.broken(held)?, held.grant.valid_until?);
        let is_late = valid > broken + TOLD && held.grant.unseen < STALLED;
        let weather = || sky.weather_beside_hands(held.operation, broken, valid);
        (is_late && weather() == Weather::Fair).then(|| {
            let beyond = (valid - broken) / MILLI;
            let text = format!(
                "{} called itself valid {beyond} ms after it was broken",
                held.describe()
            );
            case.violation(Promise::Told, held, valid, text)
        })
    });
    late.collect()
}

/// Returns when it was lost, unless its process had no time to see to it, or had heard of it too late to renew it.
fn loss(grant: &Grant) -> Option<(Moment, &str)> {
    let (at, reason) = grant.lost.as_ref()?;
    let looked = grant.valid_until.unwrap_or(grant.from);
    let renewed = grant.promised_until > grant.from + nanos(CLAIM_LEASE);
    let in_time = renewed || grant.safe_at_first >= CLAIM_TO_RENEW;
    (at - looked < STALLED && in_time).then_some((*at, reason))
}

/// Returns the times in which it waited for anything but a holder.
fn waits(operation: &Operation) -> Vec<(Moment, Moment, &'static str)> {
    let mut waits = Vec::new();
    let granted = operation.grant.as_ref().map(|grant| grant.from);
    let ended = operation.ended.filter(|(_, how)| *how != End::Cancelled);
    if let Some(to) = granted.or(ended.map(|(at, _)| at)).filter(|_| is_own(&operation.name)) {
        waits.push((operation.requested, to, "an acquire of"));
    }
    let let_go = operation.grant.as_ref().and_then(|grant| grant.let_go.as_ref());
    // All parts of a multi-lock are released together, and a fault may strike another of them.
    if let Some(let_go) = let_go
        && let Some((to, _)) = &let_go.outcome
        && !matches!(operation.upon, Some(Upon::Multi(_)))
    {
        waits.push((let_go.at, *to, "a release of"));
    }
    waits
}

/// Checks that clients are woken by streams when they are asked to end, after a while without disturbance.
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
        .map(|(client, (at, _))| {
            let millis = (end.at - at) / MILLI;
            let text = format!("{client} has polled for {millis} ms, and nothing is wrong any more");
            Violation::new(Promise::Woken, end.at, None, text)
        })
        .collect()
}
