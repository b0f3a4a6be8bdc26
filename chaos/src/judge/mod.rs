//! What is checked of a run afterwards.
//!
//! Each check is one function from the [`History`] to the breaches of one promise. None trusts another, and none trusts
//! the library: a history is what clients wrote down, what the director did, and what the servers' log says.
//!
//! A foreign hand (a dropped collection, a broken lock) takes a lock away from its holder, who learns of it a hop later;
//! the promises do not cover that hop. Such a hold is *void* from the moment at which the director raised the hand: which
//! holds it struck is told by the servers' log. Nothing is judged of them from there on, but that they are over at the end
//! of their last lease, as no renewal succeeds any more.
//!
//! A save of an old document is such a hand as well. It strikes who was a holder and is none any more, or is one for a
//! shorter time: exclusion is not promised to them from the save on. The order of the queue is what was saved. What is
//! promised all the same: no token is issued again, who lost the lock is told, and the lock is to be had.

mod exclusion;
mod harm;
mod leftovers;
mod linear;
mod order;
mod servers;
mod tokens;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use crate::{
    clock::{MILLI, Moment, SECOND},
    fault::CLOCK_OFF,
    history::{Grant, History, Operation},
    journal::Note,
    oplog::{Entry, Version},
};

pub(crate) use harm::{Waits, measure};
pub(crate) use linear::{Judged, edn};

/// How far a server's clock may have been set from the true time.
const OFF: u64 = CLOCK_OFF * MILLI;

/// How far a moment of the servers' log may be from one of ours: their clocks have milliseconds, and may have been set.
const MARGIN: u64 = SECOND / 20 + OFF;

/// The kind of fault that is a save of an old document.
const SAVED: &str = "old document saved";

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
    Unharmed,
    Woken,
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
            Self::Unharmed => "unharmed: what no fault strikes is neither lost nor held up",
            Self::Woken => "woken: with nothing wrong any more, clients are woken by their streams",
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
    /// Which versions in the servers' log are old ones that somebody else saved.
    saved: HashSet<usize>,
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
        let (mut last, mut saved) = (HashMap::new(), HashSet::new());
        for (index, version) in history.versions.iter().enumerate() {
            let name = version.name.as_str();
            let earlier = last.insert(name, version);
            let before = earlier.and_then(|version| version.state.as_ref());
            let is_saved = is_saved(history, earlier, version);
            if is_saved {
                saved.insert(index);
            }
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
                .filter_map(|holder| Some((holder.token?, holder.until)));
            let struck = |token| is_saved || broken.is_some_and(|broken| token <= broken);
            for (token, until) in taken.filter(|(token, _)| struck(*token)) {
                let mut still = version.state.iter().flat_map(|state| &state.holders);
                let stays = |holder: &Entry| holder.token == Some(token) && !(is_saved && holder.until < until);
                if !still.any(stays)
                    && let Some(hand) = hand(history, name, history.moment(version.at))
                {
                    void.entry((name, token)).or_insert(hand);
                }
            }
        }
        Self {
            history,
            void,
            until,
            saved,
        }
    }

    /// The versions in the servers' log, and whether each is an old one that somebody else saved.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&'a Version, bool)> {
        let versions = self.history.versions.iter().enumerate();
        versions.map(|(index, version)| (version, self.saved.contains(&index)))
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
        let (linear, mut judged) = linear::check(self);
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
            harm::unharmed(self, &mut judged),
            harm::woken(self),
            linear,
        ];
        let mut violations: Vec<Violation> = checks.into_iter().flatten().collect();
        violations.sort_by_key(|violation| (violation.promise, violation.at));
        (violations, judged)
    }
}

/// Whether a version is an old one that somebody else saved: it does not count on, and a hand was there to save it.
fn is_saved(history: &History, earlier: Option<&Version>, version: &Version) -> bool {
    let Some(state) = &version.state else {
        return false;
    };
    let counts_on = earlier.is_some_and(|earlier| {
        let before = earlier.state.as_ref();
        earlier.epoch == version.epoch && before.is_some_and(|before| state.version > before.version)
    });
    let at = history.moment(version.at);
    let mut saves = saves(history, &version.name);
    !counts_on && saves.any(|(from, to)| from <= at + MARGIN && to + MARGIN >= at)
}

/// From when to when somebody saved an old document of a lock.
fn saves<'a>(history: &'a History, name: &'a str) -> impl Iterator<Item = (Moment, Moment)> + 'a {
    history.journal.iter().filter_map(move |entry| match &entry.note {
        Note::Began { fault, kind, takes, .. } if kind == SAVED && takes.iter().any(|taken| taken == name) => {
            Some((entry.at, over(history, *fault).unwrap_or(Moment::MAX - MARGIN)))
        }
        _ => None,
    })
}

/// When a hand was not raised any more.
fn over(history: &History, fault: usize) -> Option<Moment> {
    history.journal.iter().find_map(|later| match &later.note {
        Note::Over { fault: of } if *of == fault => Some(later.at),
        // It may strike for as long as the driver tries.
        Note::Missed { fault: of, .. } if *of == fault => Some(later.at + 60 * SECOND),
        _ => None,
    })
}

/// When the hand was raised that took a lock away at a moment of the servers' clock.
fn hand(history: &History, name: &str, at: Moment) -> Option<Moment> {
    let (mut striking, mut latest) = (None, None);
    for entry in &history.journal {
        let Note::Began { fault, takes, .. } = &entry.note else {
            continue;
        };
        let takes = takes.iter().any(|taken| match taken.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => taken == name,
        });
        if entry.at > at + MARGIN || !takes {
            continue;
        }
        latest = Some(entry.at);
        if over(history, *fault).is_none_or(|over| over + MARGIN >= at) {
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
