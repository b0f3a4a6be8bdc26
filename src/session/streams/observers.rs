//! The observers of a session, of some locks or of all: what they were told, and what is to be read for them.
//!
//! Observers are told what a majority has, and nothing that a fail-over can undo: a reported state can't be taken back.
//! The session's stream reports which of the observed locks were written, and a read shows how they are: as of the time
//! of the stream in the server's log, and of the reads before it, so it shows every write that was reported, and nothing
//! earlier than what was told. Observers of one lock share what is read. While no stream is open, everything that is
//! observed is read again and again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::inbox::{Inbox, Seen, is_present};
use crate::{
    error::ServerError,
    protocol::State,
    store::{LogTime, Observed, UNREADABLE_MOST, Unreadable, Watched},
    telemetry,
    waitlist::clock::ServerClock,
};

/// Maximum number of names that are read together, and by which the stream's events are selected: if more are observed, it
/// reports those of all.
pub(super) const NAMES_TOGETHER: usize = 1_000;

/// The locks to observe.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// One name, whether there is a document or not.
    One(String),
    /// All names that have documents.
    All,
}

/// The observers of a session.
#[derive(Debug)]
pub(in crate::session) struct Observers {
    register: Mutex<Register>,
    /// Notified when there is more to be read.
    pub(super) changed: Arc<Notify>,
    /// Set when there is a task that reads.
    pub(super) begun: OnceLock<()>,
}

/// The observers, and what they were told.
#[derive(Debug, Default)]
pub(super) struct Register {
    /// The locks that are observed by their names, and, for those who observe all, those that are held or unreadable.
    locks: HashMap<String, Lock>,
    of_all: Vec<Arc<Inbox>>,
    /// Those who observe all, and were not told yet which locks there are.
    joining: Vec<Arc<Inbox>>,
    /// Whether `locks` has all that are held.
    is_complete: bool,
    unreadable: usize,
    source: Source,
    /// Names that are to be read.
    pub(super) unread: BTreeSet<String>,
    /// When everything is read.
    all_at: Option<Instant>,
    /// Until when not all locks are read, whatever the stream reports, as they were read just now, or the server was too
    /// slow for it.
    rests_until: Option<Instant>,
    /// The ends of the first leases: no event reports that a lease is over.
    ends: BTreeSet<(Instant, String)>,
    /// The time in the log as of which is read.
    pub(super) as_of: Option<LogTime>,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Lock {
    observers: Vec<Arc<Inbox>>,
    /// The last state that was told.
    last: Option<Seen>,
    /// The end of its first lease.
    end: Option<Instant>,
}

/// The source of news.
#[derive(Debug, Default)]
enum Source {
    /// None: a stream is about to be opened.
    #[default]
    Pending,
    /// The stream, of this.
    Stream(Watched),
    /// Reads at times.
    Reads,
}

/// What is to be read now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    List,
    Names(Vec<String>),
}

impl Observers {
    pub(in crate::session) fn new(may_stream: bool) -> Self {
        let source = if may_stream { Source::Pending } else { Source::Reads };
        Self {
            register: Mutex::new(Register {
                source,
                ..Register::default()
            }),
            changed: Arc::default(),
            begun: OnceLock::new(),
        }
    }

    pub(super) fn register(&self) -> MutexGuard<'_, Register> {
        self.register.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the stream must report for the observers.
    pub(in crate::session) fn observed(&self) -> Observed {
        let register = self.register();
        if register.has_all() || register.locks.len() > NAMES_TOGETHER {
            return Observed::All;
        }
        Observed::These(register.locks.keys().cloned().collect())
    }

    pub(in crate::session) fn are_none(&self) -> bool {
        let register = self.register();
        register.locks.is_empty() && !register.has_all()
    }

    pub(super) fn join(&self, scope: &Scope, inbox: &Arc<Inbox>) {
        self.register().join(scope, inbox);
        self.changed.notify_one();
    }

    pub(super) fn leave(&self, scope: &Scope, inbox: &Arc<Inbox>) {
        self.register().leave(scope, inbox);
    }

    /// Ends all observers. There are none from now on.
    pub(super) fn end(&self) {
        let mut register = self.register();
        register.end_all(None);
        register.has_ended = true;
    }

    /// Notes that a stream is open. Events of the time before may have been missed, unless the stream goes on where
    /// another one ended.
    pub(super) fn stream_opened(&self, watched: &Watched, is_gap: bool) {
        let mut register = self.register();
        let before = std::mem::replace(&mut register.source, Source::Stream(watched.clone()));
        let reported = match before {
            Source::Stream(before) if !is_gap => before.observed,
            _ => Observed::default(),
        };
        register.read_all_but(&reported);
        self.changed.notify_one();
    }

    /// Notes that no stream is open. Whoever observes waits for the next one, or `reads` until then.
    pub(super) fn stream_closed(&self, reads: bool) {
        let mut register = self.register();
        register.source = if reads { Source::Reads } else { Source::Pending };
        if reads {
            register.read_all_but(&Observed::default());
            self.changed.notify_one();
        }
    }

    /// Notes the time in the log up to which the stream has reported all events, before they are told.
    pub(super) fn stream_read(&self, as_of: Option<LogTime>) {
        let mut register = self.register();
        register.as_of = register.as_of.max(as_of);
    }

    /// Notes that a lock was written.
    pub(in crate::session) fn written(&self, name: &str) {
        let mut register = self.register();
        if register.has_all() || register.locks.contains_key(name) {
            register.unread.insert(name.to_owned());
            self.changed.notify_one();
        }
    }

    /// Notes a document that is not a lock.
    pub(in crate::session) fn unreadable(&self, unreadable: &Unreadable) {
        let (now, clock) = (Instant::now(), ServerClock::default());
        self.register()
            .report(&unreadable.name, Err(unreadable.clone()), &clock, now);
    }

    /// Notes that anything may have happened.
    pub(in crate::session) fn everything(&self) {
        self.register().read_all_but(&Observed::default());
        self.changed.notify_one();
    }
}

impl Register {
    pub(super) fn has_all(&self) -> bool {
        !(self.of_all.is_empty() && self.joining.is_empty())
    }

    fn join(&mut self, scope: &Scope, inbox: &Arc<Inbox>) {
        if self.has_ended {
            inbox.end(None);
            return;
        }
        let watched = match &self.source {
            Source::Stream(watched) => Some(&watched.observed),
            _ => None,
        };
        let reads = matches!(self.source, Source::Reads);
        match scope {
            Scope::One(name) => {
                let is_reported = reads || watched.is_some_and(|observed| observed.has(name));
                let lock = self.locks.entry(name.clone()).or_default();
                lock.observers.push(inbox.clone());
                match &lock.last {
                    Some(last) => inbox.put(name, last),
                    None if is_reported => drop(self.unread.insert(name.clone())),
                    // A reading from before the stream reports the lock would have to be repeated.
                    None => {}
                }
            }
            Scope::All if self.is_complete => {
                self.tell_present(inbox);
                self.of_all.push(inbox.clone());
            }
            Scope::All => {
                self.joining.push(inbox.clone());
                if reads || watched == Some(&Observed::All) {
                    self.all_at = Some(Instant::now());
                }
            }
        }
    }

    fn leave(&mut self, scope: &Scope, inbox: &Arc<Inbox>) {
        let without = |inboxes: &mut Vec<Arc<Inbox>>| inboxes.retain(|other| !Arc::ptr_eq(other, inbox));
        match scope {
            Scope::One(name) => {
                if let Some(lock) = self.locks.get_mut(name) {
                    without(&mut lock.observers);
                    self.forget_if_unobserved(name);
                }
            }
            Scope::All => {
                without(&mut self.of_all);
                without(&mut self.joining);
                if !self.has_all() {
                    self.is_complete = false;
                    let names: Vec<String> = self.locks.keys().cloned().collect();
                    names.iter().for_each(|name| self.forget_if_unobserved(name));
                }
            }
        }
    }

    /// Forgets a lock that nobody observes.
    fn forget_if_unobserved(&mut self, name: &str) {
        let Some(lock) = self.locks.get(name) else { return };
        let is_present = lock.last.as_ref().is_some_and(is_present);
        if lock.observers.is_empty() && !(self.has_all() && is_present) {
            self.unreadable -= usize::from(matches!(lock.last, Some(Err(_))));
            if let Some(end) = lock.end {
                self.ends.remove(&(end, name.to_owned()));
            }
            self.locks.remove(name);
        }
    }

    /// Ends all observers there are.
    pub(super) fn end_all(&mut self, why: Option<&ServerError>) {
        let ended = std::mem::take(self);
        let by_name = ended.locks.into_values().flat_map(|lock| lock.observers);
        for inbox in by_name.chain(ended.of_all).chain(ended.joining) {
            inbox.end(why.cloned());
        }
        (self.source, self.as_of) = (ended.source, ended.as_of);
    }

    /// Has everything read that is observed, but for what a stream has reported all the time.
    fn read_all_but(&mut self, reported: &Observed) {
        let unread = self
            .locks
            .iter()
            .filter(|(name, lock)| !lock.observers.is_empty() && !reported.has(name));
        self.unread.extend(unread.map(|(name, _)| name.clone()));
        if self.has_all() && *reported != Observed::All {
            self.is_complete = false;
            self.all_at = Some(Instant::now()).max(self.rests_until);
        }
    }

    /// Whether nothing reports what is written.
    fn must_read_again(&self) -> bool {
        matches!(self.source, Source::Reads) && (self.has_all() || !self.locks.is_empty())
    }

    /// Plans the next reading of everything, unless the stream reports what is written.
    pub(super) fn read_again(&mut self, at: Instant) {
        if self.must_read_again() {
            self.all_at.get_or_insert(at);
        }
    }

    /// Has read later what could not be read now. If the server had no time to read all, it gets a rest.
    pub(super) fn put_back(&mut self, work: Work, rest: Duration) {
        match work {
            Work::Names(names) => self.unread.extend(names),
            Work::List => {
                let at = Instant::now() + rest;
                (self.all_at, self.rests_until) = (Some(at), Some(at));
            }
        }
    }

    /// Returns when something is to be read.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        let unread = (!self.unread.is_empty()).then_some(now);
        let end = self.ends.first().map(|(end, _)| *end);
        match self.source {
            Source::Pending => None,
            _ => unread.into_iter().chain(self.all_at).chain(end).min(),
        }
    }

    /// Takes what is to be read now, at most so many names.
    pub(super) fn take(&mut self, most: usize, now: Instant) -> Work {
        if self.all_at.is_some_and(|at| at <= now) {
            self.all_at = None;
            let by_name = self.locks.iter().filter(|(_, lock)| !lock.observers.is_empty());
            self.unread.extend(by_name.map(|(name, _)| name.clone()));
            if self.has_all() {
                return Work::List;
            }
        }
        while self.ends.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, name)) = self.ends.pop_first()
        {
            self.unread.insert(name);
        }
        let rest = self.unread.iter().nth(most).cloned();
        let rest = rest.map_or_else(BTreeSet::new, |first| self.unread.split_off(&first));
        Work::Names(std::mem::replace(&mut self.unread, rest).into_iter().collect())
    }

    /// Reports what a list of all locks shows. Those that it does not show are read: a free one may be there. They are
    /// not listed again before the end of the pause, unless for somebody who begins to observe all.
    pub(super) fn listed(
        &mut self,
        listed: BTreeMap<String, Seen>,
        clock: &ServerClock,
        now: Instant,
        pause: Duration,
    ) {
        self.rests_until = Some(now + pause);
        let gone = self
            .locks
            .iter()
            .filter(|(name, lock)| lock.last.as_ref().is_some_and(is_present) && !listed.contains_key(*name));
        self.unread.extend(gone.map(|(name, _)| name.clone()));
        for (name, seen) in listed {
            self.report(&name, seen, clock, now);
        }
        self.is_complete = true;
        for inbox in std::mem::take(&mut self.joining) {
            self.tell_present(&inbox);
            self.of_all.push(inbox);
        }
    }

    fn tell_present(&self, inbox: &Inbox) {
        for (name, lock) in &self.locks {
            if let Some(last) = lock.last.as_ref().filter(|last| is_present(last)) {
                inbox.put(name, last);
            }
        }
    }

    /// Reports what was seen of a document, unless it is as it was told last.
    pub(super) fn report(&mut self, name: &str, seen: Seen, clock: &ServerClock, now: Instant) {
        let seen = seen.map(|state| state.map(|state| without_expired(state, clock, now)));
        let is_too_much = seen.is_err() && self.unreadable >= UNREADABLE_MOST;
        let is_observed = self.has_all() && is_present(&seen) && !is_too_much;
        if !is_observed && !self.locks.contains_key(name) {
            return;
        }
        let last = self.locks.get(name).and_then(|lock| lock.last.as_ref());
        let is_new = last != Some(&seen);
        let was_unreadable = matches!(last, Some(Err(_)));
        if let (Err(Unreadable { problem, .. }), true) = (&seen, is_new) {
            telemetry::unreadable(name, problem);
        }
        self.unreadable = self.unreadable - usize::from(was_unreadable) + usize::from(seen.is_err());
        let lock = self.locks.entry(name.to_owned()).or_default();
        if let Some(end) = lock.end.take() {
            self.ends.remove(&(end, name.to_owned()));
        }
        lock.end = first_end(&seen, clock);
        self.ends.extend(lock.end.map(|end| (end, name.to_owned())));
        if is_new {
            for inbox in lock.observers.iter().chain(&self.of_all) {
                inbox.put(name, &seen);
            }
            lock.last = Some(seen);
        }
        self.forget_if_unobserved(name);
    }
}

fn without_expired(mut state: Arc<State>, clock: &ServerClock, now: Instant) -> Arc<State> {
    let is_over = |until| clock.after(until).is_some_and(|over| over <= now);
    if state.holders.iter().any(|holder| is_over(holder.until)) {
        Arc::make_mut(&mut state)
            .holders
            .retain(|holder| !is_over(holder.until));
    }
    state
}

/// Returns when the first lease is over.
fn first_end(seen: &Seen, clock: &ServerClock) -> Option<Instant> {
    let state = seen.as_ref().ok()?.as_ref()?;
    let until = state.holders.iter().map(|holder| holder.until).min()?;
    clock.after(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 9;

    fn of(names: &[&str]) -> Watched {
        Watched {
            observed: Observed::These(names.iter().map(|name| (*name).to_owned()).collect()),
            ..Watched::default()
        }
    }

    fn all() -> Watched {
        Watched {
            observed: Observed::All,
            ..Watched::default()
        }
    }

    /// The names that are to be read now.
    fn taken(observers: &Observers) -> Vec<String> {
        match observers.register().take(MANY, Instant::now()) {
            Work::Names(names) => names,
            Work::List => panic!("nobody observes all"),
        }
    }

    fn join(observers: &Observers, name: &str) -> (Scope, Arc<Inbox>) {
        let (scope, inbox) = (Scope::One(name.to_owned()), Arc::new(Inbox::new(false)));
        observers.join(&scope, &inbox);
        (scope, inbox)
    }

    #[test]
    fn a_lock_is_read_once_the_stream_reports_it_and_whenever_it_was_written() {
        let observers = Observers::new(true);
        let one = join(&observers, "a");
        assert_eq!(
            observers.register().due_at(Instant::now()),
            None,
            "the stream is not open yet"
        );
        observers.stream_opened(&of(&["a"]), true);
        assert_eq!(taken(&observers), ["a"]);
        observers
            .register()
            .report("a", Ok(None), &ServerClock::default(), Instant::now());
        // Another is read once the stream has been turned to it, and the first not again.
        let other = join(&observers, "b");
        assert_eq!(taken(&observers), [""; 0]);
        assert_eq!(observers.observed(), of(&["a", "b"]).observed);
        observers.stream_opened(&of(&["a", "b"]), false);
        assert_eq!(taken(&observers), ["b"]);
        observers.written("a");
        observers.written("of nobody's interest");
        assert_eq!(taken(&observers), ["a"]);
        // One that was read although the stream did not report it then is read again.
        let third = join(&observers, "c");
        observers.everything();
        assert_eq!(taken(&observers), ["a", "b", "c"]);
        observers
            .register()
            .report("c", Ok(None), &ServerClock::default(), Instant::now());
        observers.stream_opened(&of(&["a", "b", "c"]), false);
        assert_eq!(taken(&observers), ["c"]);
        for is_open in [false, true] {
            if is_open {
                observers.stream_opened(&of(&["a", "b", "c"]), true);
            } else {
                observers.stream_closed(true);
            }
            assert_eq!(taken(&observers), ["a", "b", "c"], "{is_open}");
        }
        for (scope, inbox) in [one, other, third] {
            assert!(!observers.are_none());
            observers.leave(&scope, &inbox);
        }
        assert!(observers.are_none());
    }

    /// As on a slow server, whose streams break as well.
    #[test]
    fn a_stream_that_opens_again_and_again_has_no_slow_collection_read_without_a_rest() {
        let observers = Observers::new(true);
        observers.join(&Scope::All, &Arc::new(Inbox::new(true)));
        let one = join(&observers, "x");
        let rest = Duration::from_secs(300);
        observers.stream_opened(&all(), true);
        let begun = Instant::now();
        assert_eq!(observers.register().take(MANY, begun), Work::List);
        observers.register().put_back(Work::List, rest);
        for _ in 0..3 {
            observers.stream_closed(true);
            observers.stream_opened(&all(), true);
        }
        // What is observed by its name is read meanwhile.
        let work = observers.register().take(MANY, begun + rest - Duration::from_secs(1));
        assert_eq!(work, Work::Names(vec!["x".to_owned()]));
        let work = observers.register().take(MANY, begun + rest + Duration::from_secs(1));
        assert_eq!(work, Work::List);
        drop(one);
    }
}
