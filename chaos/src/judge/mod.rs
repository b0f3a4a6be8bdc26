//! What is checked of a run afterwards.
//!
//! Each check is one function from the [`History`] to the breaches of one promise. None trusts another, and none trusts
//! the library: a history is what clients wrote down, what the director did, and what the servers' log says.
//!
//! A foreign hand (a dropped collection, a broken lock) takes a lock away from its holder, who learns of it a hop later;
//! the promises do not cover that hop. Such a hold is *void* from the moment at which the director raised the hand: which
//! holds it struck is told by the servers' log. Nothing is judged of them from there on, but that they are over at the end
//! of their last lease, as no renewal succeeds any more.

mod exclusion;
mod leftovers;
mod linear;
mod order;
mod servers;
mod tokens;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::{
    clock::{MILLI, Moment, SECOND},
    history::{Grant, History, Operation},
    journal::Note,
    schedule::CLOCK_OFF,
};

pub(crate) use linear::{Judged, edn};

/// How far a server's clock may have been set from the true time.
const OFF: u64 = CLOCK_OFF * MILLI;

/// The task number of those operations by which the director sees whether there is progress.
pub(crate) const PROBE: usize = 1_000;

/// The task number of those by which it sees, at the end, that every lock is idle.
pub(crate) const IDLE: usize = 1_001;

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    Exclusion,
    LostInTime,
    Tokens,
    Durable,
    Queue,
    Turn,
    Ended,
    Progress,
    NothingLeft,
    GuardedWrites,
    Linearizable,
    Complaint,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion: handles were valid at once beyond the lock's capacity",
            Self::LostInTime => "lost in time: a handle called itself safe beyond its lease at the servers",
            Self::Tokens => "tokens: they rise with every grant and none is issued twice",
            Self::Durable => "durable: what was granted is in the servers' log",
            Self::Queue => "queue: the servers' queue is served in its order",
            Self::Turn => "turn: the tasks of one client are served in the order in which they asked",
            Self::Ended => "ended: every acquire and every release comes to an end",
            Self::Progress => "progress: with the cluster whole, every lock is to be had",
            Self::NothingLeft => "nothing left: at the end there is no entry, no holder and no change stream",
            Self::GuardedWrites => "guarded writes: what is written under a document's lock is not lost",
            Self::Linearizable => "linearizable: the history is one of a lock",
            Self::Complaint => "complaint: a client saw what must not be",
        })
    }
}

/// One breach of a promise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) text: String,
    /// Where in the time-line it is, and of which lock.
    pub(crate) at: Moment,
    pub(crate) name: Option<String>,
}

/// The history, with what several checks want to know of it.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) history: &'a History,
    /// From when on a hold does not count any more, as a foreign hand took its lock; by name and token.
    void: HashMap<(&'a str, i64), Moment>,
    /// The last moment at which the servers' log lets a hold be.
    until: HashMap<(&'a str, i64), Moment>,
}

/// An operation that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) operation: &'a Operation,
    pub(crate) grant: &'a Grant,
}

impl<'a> Case<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        let (mut void, mut until) = (HashMap::new(), HashMap::new());
        let mut last = HashMap::new();
        for version in &history.versions {
            let name = version.name.as_str();
            let before = last.insert(name, version).and_then(|version| version.state.as_ref());
            if let Some(state) = &version.state {
                for (token, ends) in state
                    .holders
                    .iter()
                    .filter_map(|holder| Some((holder.token?, holder.until)))
                {
                    let ends = history.moment(ends);
                    let known: &mut Moment = until.entry((name, token)).or_default();
                    *known = ends.max(*known);
                }
            }
            let broken = version.state.as_ref().map_or(Some(i64::MAX), |state| state.broken);
            let taken = before
                .iter()
                .flat_map(|state| &state.holders)
                .filter_map(|holder| holder.token);
            for token in taken.filter(|token| broken.is_some_and(|broken| *token <= broken)) {
                let still = version.state.iter().flat_map(|state| &state.holders);
                if still.filter_map(|holder| holder.token).all(|other| other != token)
                    && let Some(hand) = hand(history, name, history.moment(version.at))
                {
                    void.entry((name, token)).or_insert(hand);
                }
            }
        }
        Self { history, void, until }
    }

    /// All that was granted, in the order of the grants as the clients saw them.
    pub(crate) fn held(&self) -> Vec<Held<'a>> {
        let operations = self.history.operations.iter();
        let held = operations.filter_map(|operation| {
            Some(Held {
                operation,
                grant: operation.grant.as_ref()?,
            })
        });
        let mut held: Vec<_> = held.collect();
        held.sort_by_key(|held| held.grant.from);
        held
    }

    /// The same, by the name of the lock.
    pub(crate) fn held_by_name(&self) -> BTreeMap<&'a str, Vec<Held<'a>>> {
        let mut by_name: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for held in self.held() {
            by_name.entry(&held.operation.name).or_default().push(held);
        }
        by_name
    }

    /// From when on the hold does not count any more.
    pub(crate) fn void(&self, held: Held<'_>) -> Option<Moment> {
        self.void
            .get(&(held.operation.name.as_str(), held.grant.token))
            .copied()
    }

    /// Up to when nobody else may have the lock; `None` if the hold never was valid.
    pub(crate) fn claimed_until(&self, held: Held<'_>) -> Option<Moment> {
        let claimed = held.grant.claimed_until()?;
        Some(self.void(held).map_or(claimed, |void| claimed.min(void)))
    }

    fn violation(&self, promise: Promise, held: Held<'_>, at: Moment, text: String) -> Violation {
        Violation {
            promise,
            text,
            at,
            name: Some(held.operation.name.clone()),
        }
    }

    /// All breaches, and what the external judge had to say.
    pub(crate) fn judge(&self) -> (Vec<Violation>, Judged) {
        let (linear, judged) = linear::check(self);
        let checks = [
            exclusion::check(self),
            servers::lost_in_time(self),
            servers::capacity(self),
            servers::queue(self),
            tokens::check(self),
            order::turn(self),
            leftovers::ended(self),
            leftovers::progress(self),
            leftovers::remains(self),
            leftovers::guarded_writes(self),
            leftovers::complaints(self),
            linear,
        ];
        let mut violations: Vec<Violation> = checks.into_iter().flatten().collect();
        violations.sort_by_key(|violation| (violation.promise, violation.at));
        (violations, judged)
    }
}

/// When the hand was raised that took a lock away at a moment of the servers' clock.
fn hand(history: &History, name: &str, at: Moment) -> Option<Moment> {
    // The servers' clocks have milliseconds, may have been set, and are compared with ours.
    let margin = SECOND / 20 + OFF;
    let (mut striking, mut latest) = (None, None);
    for entry in &history.journal {
        let Note::Began { fault, takes, .. } = &entry.note else {
            continue;
        };
        if entry.at > at + margin || takes.iter().all(|taken| taken != name) {
            continue;
        }
        latest = Some(entry.at);
        let over = history.journal.iter().find_map(|later| match &later.note {
            Note::Over { fault: of } if of == fault => Some(later.at),
            // It may strike for as long as the driver tries.
            Note::Missed { fault: of, .. } if of == fault => Some(later.at + 60 * SECOND),
            _ => None,
        });
        if over.is_none_or(|over| over + margin >= at) {
            // With several in the air the first counts, as it is not known which of them it was.
            striking = striking.or(Some(entry.at));
        }
    }
    striking.or(latest)
}

impl Held<'_> {
    pub(crate) fn describe(&self) -> String {
        format!("{} (token {})", self.operation.reason(), self.grant.token)
    }
}

#[cfg(test)]
mod tests;
