//! The checks of a run afterwards.
//!
//! Each check is one function from the [`History`] to the breaches of one promise. None trusts another, and none
//! trusts the library: a history consists of the clients' records, the director's actions, and the servers' log.
//!
//! A foreign hand (a dropped collection, a broken lock) takes a lock away from its holder, which learns of it a hop
//! later; the promises do not cover that hop. Such a hold is *void* from the moment at which the director raised the
//! hand; the servers' log shows which holds it struck. From there on, the judge only requires that they are over at
//! the end of their last lease, as no renewal succeeds any more.
//!
//! A save of an old document is such a hand as well. It strikes a client that was a holder and is none any more, or is
//! one for a shorter time: exclusion is not promised to it from the save on. The order of the queue is the saved one.
//! These promises hold all the same: no token is issued again, a holder that lost the lock learns of it, and the lock
//! can be acquired.
//!
//! A hold that was detached and taken up is two operations with one token, which hold the lock without a gap.

mod deadlocks;
mod entries;
mod exclusion;
pub(crate) mod growth;
mod harm;
mod leftovers;
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
    oplog::{Entry, State, Version},
    record::End,
};

use entries::Entries;

/// Maximum distance of a server's set clock from the true time.
const OFF: u64 = CLOCK_OFF * MILLI;

/// Maximum distance of a moment of the servers' log from one of ours: their clocks have milliseconds, and may have
/// been set.
const MARGIN: u64 = SECOND / 20 + OFF;

/// The kind of fault that is a save of an old document.
const SAVED: &str = "old document saved";

/// The task number of the operations by which the director checks whether there is progress.
pub(crate) const PROBE: usize = 1_000;

/// A promise that was broken.
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
    Told,
    Woken,
    GuardedWrites,
    Deadlocks,
    Flat,
    Complaint,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "exclusion: handles were valid at once beyond the lock's capacity",
            Self::LostInTime => "lost in time: a handle called itself safe beyond its lease at the servers",
            Self::Tokens => {
                "tokens: they rise with every grant but of readers at once, none is issued twice, and a hold keeps its own"
            }
            Self::Durable => "durable: what was granted is in the servers' log",
            Self::Queue => "queue: the servers' queue is served in its order",
            Self::Turn => "turn: the tasks of one client are served in the order in which they asked",
            Self::Ended => "ended: every acquire and every release comes to an end",
            Self::Progress => "progress: with the cluster whole, every lock is to be had",
            Self::NothingLeft => "nothing left: at the end there is no change stream, and no entry but of a hold that was lost",
            Self::Unharmed => "unharmed: what no fault strikes is neither lost nor held up",
            Self::Told => {
                "told: a holder finds out about a break within the pause between two readings and a little more"
            }
            Self::Woken => "woken: with nothing wrong any more, clients are woken by their streams",
            Self::GuardedWrites => "guarded writes: what is written under a document's lock is not lost",
            Self::Deadlocks => "deadlocks: tasks that wait for each other are told, and no others",
            Self::Flat => "flat: what a long soak takes does not grow",
            Self::Complaint => "complaint: a client saw what must not be",
        })
    }
}

/// One breach of a promise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) text: String,
    /// Its position in the time-line, with its lock.
    pub(crate) at: Moment,
    pub(crate) name: Option<String>,
}

impl Violation {
    fn new(promise: Promise, at: Moment, name: Option<&str>, text: impl Into<String>) -> Self {
        Self {
            promise,
            text: text.into(),
            at,
            name: name.map(str::to_owned),
        }
    }
}

/// The waits for locks of a client's own, and for releases; and those that no fault struck while the machine had time. The
/// same of the pairs of tasks that waited for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) waits: usize,
    pub(crate) waits_in_fair_weather: usize,
    pub(crate) circles: usize,
    pub(crate) circles_in_fair_weather: usize,
}

/// The history, with data that several checks need.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) history: &'a History,
    /// From when on a hold does not count any more, as a foreign hand took its lock; by name and token.
    void: HashMap<(&'a str, i64), Moment>,
    /// When an operator's break took a hold out of the document, in the same way.
    broken: HashMap<(&'a str, i64), Moment>,
    entries: Entries<'a>,
    /// The versions in the servers' log that are old ones, saved by another program.
    saved: HashSet<usize>,
    /// The operations that take up what was left behind, by the name of the lock and the reason of the hold.
    taking_up: HashMap<(&'a str, String), Vec<&'a Operation>>,
}

/// An operation that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) operation: &'a Operation,
    pub(crate) grant: &'a Grant,
}

impl<'a> Case<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        let (mut void, mut evicted) = (HashMap::new(), HashMap::new());
        let (mut last, mut saved) = (HashMap::new(), HashSet::new());
        for (index, version) in history.versions.iter().enumerate() {
            let name = version.name.as_str();
            let earlier = last.insert(name, version);
            let before = earlier.and_then(|version| version.state.as_ref());
            let is_saved = is_saved(history, earlier, version);
            if is_saved {
                saved.insert(index);
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
                    if version.state.is_some() && !is_saved {
                        evicted.entry((name, token)).or_insert(history.moment(version.at));
                    }
                }
            }
        }
        let mut taking_up: HashMap<_, Vec<_>> = HashMap::new();
        for operation in history.operations.iter().filter(|operation| operation.takes_up()) {
            let hold = (operation.name.as_str(), operation.entry_reason());
            taking_up.entry(hold).or_default().push(operation);
        }
        Self {
            history,
            void,
            broken: evicted,
            entries: Entries::new(history),
            saved,
            taking_up,
        }
    }

    /// Returns the versions in the servers' log, and whether each is an old one that another program saved.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&'a Version, bool)> {
        let versions = self.history.versions.iter().enumerate();
        versions.map(|(index, version)| (version, self.saved.contains(&index)))
    }

    /// Returns all grants, in the order in which the clients saw them.
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

    /// Returns the same, by the name of the lock.
    pub(crate) fn held_by_name(&self) -> BTreeMap<&'a str, Vec<Held<'a>>> {
        let mut by_name: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for held in self.held() {
            by_name.entry(&held.operation.name).or_default().push(held);
        }
        by_name
    }

    /// Returns from when on the hold does not count any more.
    pub(crate) fn void(&self, held: Held<'_>) -> Option<Moment> {
        let token = self.entries.token(held).unwrap_or(held.grant.token);
        self.void.get(&(held.operation.name.as_str(), token)).copied()
    }

    /// Returns when a break took the hold out of the document.
    pub(crate) fn broken(&self, held: Held<'_>) -> Option<Moment> {
        let token = self.entries.token(held).unwrap_or(held.grant.token);
        self.broken.get(&(held.operation.name.as_str(), token)).copied()
    }

    /// Whether the hold came from another task of its process although a hand had taken the lock away: the news of that
    /// takes a hop. Its token may be smaller than the next holder's, so a fence refuses it.
    pub(crate) fn came_late(&self, held: Held<'_>) -> bool {
        let handed_on = self.entries.token(held).is_some_and(|token| token != held.grant.token);
        handed_on && self.void(held).is_some_and(|void| void <= held.grant.from)
    }

    /// Whether it is a reader that shares the hold of another task of its process.
    pub(crate) fn is_shared(&self, held: Held<'_>) -> bool {
        let locally = self.entries.token(held).is_some_and(|token| token != held.grant.token);
        locally && held.operation.share.permits < held.operation.share.capacity
    }

    /// Returns up to when nobody else may have the lock; `None` if the hold never was valid. One that was left behind lasts
    /// until it is taken up.
    pub(crate) fn claimed_until(&self, held: Held<'_>) -> Option<Moment> {
        let claimed = held.grant.claimed_until()?;
        let claimed = self
            .left_until(held)
            .map_or(claimed, |left| left.unwrap_or_else(|most| claimed.min(most)));
        Some(self.void(held).map_or(claimed, |void| claimed.min(void)))
    }

    /// Returns when a hold that was left behind was taken up; or, as the error, when that was tried, after which it may have
    /// been given back unseen.
    fn left_until(&self, held: Held<'_>) -> Option<Result<Moment, Moment>> {
        let left = held.grant.let_go.as_ref()?.at;
        let operations = self
            .taking_up
            .get(&(held.operation.name.as_str(), held.operation.entry_reason()))?;
        let taken_up = operations.iter().filter_map(|operation| {
            let grant = operation.grant.as_ref().filter(|grant| grant.valid_until.is_some());
            grant.map(|grant| grant.from).filter(|from| *from >= left)
        });
        let tried = operations.iter().filter_map(|operation| {
            // Who found that it is gone did not take it up.
            let over = operation
                .ended
                .is_some_and(|(at, how)| at < left || how == End::NotFree);
            (operation.grant.is_none() && !over).then_some(operation.requested.max(left))
        });
        let (taken_up, tried) = (taken_up.min(), tried.min());
        taken_up.map(Ok).or(tried.map(Err))
    }

    fn violation(&self, promise: Promise, held: Held<'_>, at: Moment, text: String) -> Violation {
        Violation::new(promise, at, Some(&held.operation.name), text)
    }

    /// Returns all breaches, and how many waits were judged.
    pub(crate) fn judge(&self) -> (Vec<Violation>, Judged) {
        let mut judged = Judged::default();
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
            deadlocks::told(self, &mut judged),
            deadlocks::untrue(self),
            harm::unharmed(self, &mut judged),
            harm::told(self),
            harm::woken(self),
            growth::check(self),
        ];
        let mut violations: Vec<Violation> = checks.into_iter().flatten().collect();
        violations.sort_by_key(|violation| (violation.promise, violation.at));
        (violations, judged)
    }
}

/// Whether a version is an old one that another program saved: its count falls back, and a hand was there to save it.
/// Where the collection was dropped since it was read, the new document's count may be the lower one; its token is not.
fn is_saved(history: &History, earlier: Option<&Version>, version: &Version) -> bool {
    let Some(state) = &version.state else {
        return false;
    };
    let counts_on = earlier.is_some_and(|earlier| {
        let before = earlier.state.as_ref();
        let follows = |before: &State| state.version > before.version && state.token >= before.token;
        earlier.epoch == version.epoch && before.is_some_and(follows)
    });
    let at = history.moment(version.at);
    let mut saves = saves(history, &version.name);
    !counts_on && saves.any(|(from, to)| from <= at + MARGIN && to + MARGIN >= at)
}

/// Returns the times in which another program saved an old document of a lock.
fn saves<'a>(history: &'a History, name: &'a str) -> impl Iterator<Item = (Moment, Moment)> + 'a {
    history.journal.iter().filter_map(move |entry| match &entry.note {
        Note::Began { fault, kind, takes, .. } if kind == SAVED && takes.iter().any(|taken| taken == name) => {
            Some((entry.at, over(history, *fault).unwrap_or(Moment::MAX - MARGIN)))
        }
        _ => None,
    })
}

/// Returns when a hand was no longer raised.
fn over(history: &History, fault: usize) -> Option<Moment> {
    history.journal.iter().find_map(|later| match &later.note {
        Note::Over { fault: of } if *of == fault => Some(later.at),
        // It may strike for as long as the driver tries.
        Note::Missed { fault: of, .. } if *of == fault => Some(later.at + 60 * SECOND),
        _ => None,
    })
}

/// Returns when the hand was raised that took a lock away at a moment of the servers' clock.
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
            // Of several active hands the first counts, as the one that struck is not known.
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
