//! The observers of a session, of some locks or of all: what they were told, and what is to be read for them.
//!
//! Observers are told what a majority has, and nothing that a fail-over can undo: a reported state can't be taken back.
//! The session's stream reports which of the observed locks were written, and a read shows how they are: as of the time
//! of the stream in the server's log, and of the reads before it, so it shows every write that was reported, and nothing
//! earlier than what was told. Observers of one lock share what is read. While no stream is open, everything that is
//! observed is read again and again.
//!
//! A list of all locks can take long, so locks are read by their names beside it. Neither of two readings that overlap
//! is known to be the later one, and the list says nothing of a lock that is in both. Where the other one began first, it
//! may be as of the time before the stream, so the lock is read once more.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    super::timer_queue::{AT_A_TIME, TimerQueue},
    inbox::{Inbox, Seen, is_present},
};
use crate::{
    error::ServerError,
    protocol::State,
    store::{LogTime, Observed, UNREADABLE_MOST, Unreadable},
    waitlist::clock::ServerClock,
};

/// The locks to observe.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// One name, whether there is a document or not.
    One(String),
    /// All names that have documents.
    All,
}

/// The observers of a session, and what they were told.
#[derive(Debug, Default)]
pub(in crate::session) struct Observers {
    /// The locks that are observed by their names, and, for those who observe all, those that are held or unreadable.
    locks: BTreeMap<String, Lock>,
    of_all: Vec<Arc<Inbox>>,
    unreadable: usize,
    source: Source,
    /// Names that are to be read.
    pub(super) unread: BTreeSet<String>,
    /// Whether all locks are to be listed.
    unlisted: bool,
    /// The ends of the first leases: no event reports that a lease is over.
    ends: TimerQueue<Arc<str>>,
    /// The time in the log as of which is read.
    pub(super) as_of: Option<LogTime>,
    /// The names that are being read.
    being_read: Vec<String>,
    /// While a list is under way, the names that were read or told beside it.
    beside: Option<BTreeSet<String>>,
    has_ended: bool,
    /// What is no lock, and is to be told to operators.
    pub(super) untold: Vec<Unreadable>,
    /// Notified when there is more to be read.
    pub(super) changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Lock {
    observers: Vec<Arc<Inbox>>,
    /// The last state that was told.
    last: Option<Seen>,
}

/// The source of news.
#[derive(Debug, Default)]
enum Source {
    /// None: a stream is about to be opened.
    #[default]
    Pending,
    /// The stream, of these locks.
    Stream(Observed),
    /// Reads at times.
    Reads,
}

/// The two readings, which go on beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The list of all locks.
    List,
    /// Locks by their names.
    Names,
}

impl Observers {
    pub(in crate::session) fn new(may_stream: bool) -> Self {
        let source = if may_stream { Source::Pending } else { Source::Reads };
        Self {
            source,
            ..Self::default()
        }
    }

    /// Returns what the stream must report for the observers: of all, if more are observed by name than are read
    /// together.
    pub(in crate::session) fn observed(&self) -> Observed {
        if self.has_all() || self.locks.len() > AT_A_TIME {
            return Observed::All;
        }
        Observed::These(self.locks.keys().cloned().collect())
    }

    pub(in crate::session) fn are_none(&self) -> bool {
        self.locks.is_empty() && !self.has_all()
    }

    /// Ends all observers. There are none from now on.
    pub(in crate::session) fn end(&mut self) {
        self.end_all(None);
        self.has_ended = true;
    }

    /// Notes that a stream is open. Events of the time before may have been missed, unless the stream goes on where
    /// another one ended.
    pub(super) fn stream_opened(&mut self, observed: &Observed, is_gap: bool) {
        let before = std::mem::replace(&mut self.source, Source::Stream(observed.clone()));
        let reported = match before {
            Source::Stream(before) if !is_gap => before,
            _ => Observed::default(),
        };
        self.read_all_but(&reported);
    }

    /// Notes that no stream is open. Whoever observes waits for the next one, or `reads` until then.
    pub(super) fn stream_closed(&mut self, reads: bool) {
        self.source = if reads { Source::Reads } else { Source::Pending };
        if reads {
            self.everything();
        }
    }

    /// Notes a time in the log up to which the stream has reported all events, before they are told, or which was read.
    pub(super) fn seen_as_of(&mut self, as_of: Option<LogTime>) {
        self.as_of = self.as_of.max(as_of);
    }

    /// Notes that a lock was written.
    pub(in crate::session) fn written(&mut self, name: &str) {
        if self.has_all() || self.locks.contains_key(name) {
            self.unread.insert(name.to_owned());
            self.changed.notify_waiters();
        }
    }

    /// Notes that anything may have happened to the locks in a document of the user's own, whose names begin with this.
    pub(in crate::session) fn document(&mut self, names: &str) {
        let from = self.locks.range::<str, _>((Bound::Included(names), Bound::Unbounded));
        let known = from.take_while(|(name, _)| name.starts_with(names));
        let known: Vec<String> = known.map(|(name, _)| name.clone()).collect();
        if !known.is_empty() {
            self.unread.extend(known);
            self.changed.notify_waiters();
        }
    }

    /// Notes a document that is not a lock.
    pub(in crate::session) fn unreadable(&mut self, unreadable: &Unreadable) {
        let (now, clock) = (Instant::now(), ServerClock::default());
        self.beside
            .iter_mut()
            .for_each(|beside| beside.extend([unreadable.name.clone()]));
        self.report(&unreadable.name, Err(unreadable.clone()), &clock, now);
    }

    /// Notes that anything may have happened.
    pub(in crate::session) fn everything(&mut self) {
        self.read_all_but(&Observed::default());
    }

    pub(super) fn has_all(&self) -> bool {
        !self.of_all.is_empty()
    }

    pub(super) fn join(&mut self, scope: &Scope, inbox: &Arc<Inbox>) {
        if self.has_ended {
            inbox.end(None);
            return;
        }
        match scope {
            Scope::One(name) => {
                let is_reported = match &self.source {
                    Source::Pending => false,
                    Source::Stream(observed) => observed.has(name),
                    Source::Reads => true,
                };
                let lock = self.locks.entry(name.clone()).or_default();
                lock.observers.push(inbox.clone());
                match &lock.last {
                    Some(last) => inbox.put(name, last),
                    None if is_reported => drop(self.unread.insert(name.clone())),
                    // A reading from before the stream reports the lock would have to be repeated.
                    None => {}
                }
            }
            Scope::All => {
                for (name, lock) in &self.locks {
                    if let Some(last) = lock.last.as_ref().filter(|last| is_present(last)) {
                        inbox.put(name, last);
                    }
                }
                self.unlisted |= !self.has_all();
                self.of_all.push(inbox.clone());
            }
        }
        self.changed.notify_waiters();
    }

    pub(super) fn leave(&mut self, scope: &Scope, inbox: &Arc<Inbox>) {
        let without = |inboxes: &mut Vec<Arc<Inbox>>| inboxes.retain(|other| !Arc::ptr_eq(other, inbox));
        match scope {
            Scope::One(name) => {
                if let Some(lock) = self.locks.get_mut(name) {
                    without(&mut lock.observers);
                    self.forget_if_unobserved(name);
                }
                if !self.has_all() && !self.locks.contains_key(name) {
                    self.unread.remove(name);
                }
            }
            Scope::All => {
                without(&mut self.of_all);
                if !self.has_all() {
                    self.unlisted = false;
                    let names: Vec<String> = self.locks.keys().cloned().collect();
                    names.iter().for_each(|name| self.forget_if_unobserved(name));
                    self.unread.retain(|name| self.locks.contains_key(name));
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
            self.ends.set(name.into(), None);
            self.locks.remove(name);
        }
    }

    /// Ends all observers there are.
    pub(super) fn end_all(&mut self, why: Option<&ServerError>) {
        let ended = std::mem::take(self);
        let by_name = ended.locks.into_values().flat_map(|lock| lock.observers);
        for inbox in by_name.chain(ended.of_all) {
            inbox.end(why.cloned());
        }
        (self.source, self.as_of) = (ended.source, ended.as_of);
        (self.changed, self.has_ended) = (ended.changed, ended.has_ended);
    }

    /// Has everything read that is observed, but for what a stream has reported all the time.
    fn read_all_but(&mut self, reported: &Observed) {
        let unread = self
            .locks
            .iter()
            .filter(|(name, lock)| !lock.observers.is_empty() && !reported.has(name));
        self.unread.extend(unread.map(|(name, _)| name.clone()));
        self.unlisted |= self.has_all() && *reported != Observed::All;
        self.changed.notify_waiters();
    }

    /// Returns when this reading is due; `again_at`: when it is repeated where no stream reports what is written.
    pub(super) fn due_at(&self, reading: Reading, again_at: Instant, now: Instant) -> Option<Instant> {
        let again = matches!(self.source, Source::Reads).then_some(again_at);
        match (&self.source, reading) {
            (Source::Pending, _) => None,
            (Source::Stream(Observed::These(_)), Reading::List) => None,
            (_, Reading::List) if self.unlisted => Some(now),
            (_, Reading::List) => again.filter(|_| self.has_all()),
            (_, Reading::Names) if !self.unread.is_empty() => Some(now),
            (_, Reading::Names) => {
                let again = again.filter(|_| self.observed_by_name().next().is_some());
                again.into_iter().chain(self.ends.first().map(|(end, _)| *end)).min()
            }
        }
    }

    fn observed_by_name(&self) -> impl Iterator<Item = &String> {
        let locks = self.locks.iter().filter(|(_, lock)| !lock.observers.is_empty());
        locks.map(|(name, _)| name)
    }

    /// Begins the list of all locks.
    pub(super) fn begin_list(&mut self) {
        self.unlisted = false;
        self.unread.extend(self.being_read.iter().cloned());
        self.beside = Some(self.being_read.iter().cloned().collect());
    }

    /// Notes that a list has failed: it is made again.
    pub(super) fn list_failed(&mut self) {
        (self.unlisted, self.beside) = (self.has_all(), None);
    }

    /// Begins to read names, at most so many, of those that can be read; `again`: what is observed by its name is to be
    /// read again, unless the stream reports what is written.
    pub(super) fn begin_names(
        &mut self,
        most: usize,
        again: bool,
        can_be_read: impl Fn(&str) -> bool,
        now: Instant,
    ) -> Vec<String> {
        if again && matches!(self.source, Source::Reads) {
            let names: Vec<String> = self.observed_by_name().cloned().collect();
            self.unread.extend(names);
        }
        let ended = self.ends.take(now, usize::MAX);
        self.unread.extend(ended.iter().map(|name| name.to_string()));
        let rest = self.unread.iter().nth(most).cloned();
        let rest = rest.map_or_else(BTreeSet::new, |first| self.unread.split_off(&first));
        let names = std::mem::replace(&mut self.unread, rest).into_iter();
        // Lists show what else there is.
        self.being_read = names.filter(|name| can_be_read(name)).collect();
        if let Some(beside) = &mut self.beside {
            beside.extend(self.being_read.iter().cloned());
        }
        self.being_read.clone()
    }

    /// Notes that names were read.
    pub(super) fn end_names(&mut self) {
        self.being_read.clear();
    }

    /// Reports what a list of all locks shows. Those that it does not show are read: a free one may be there.
    ///
    /// What is no lock may have a name by which it can't be read. Of that, the list shows whether it is there.
    pub(super) fn listed(
        &mut self,
        listed: BTreeMap<String, Seen>,
        can_be_read: impl Fn(&Unreadable) -> bool,
        clock: &ServerClock,
        now: Instant,
    ) {
        let has_no_name = |seen: &Seen| seen.as_ref().is_err_and(|document| !can_be_read(document));
        let mut gone = Vec::new();
        for (name, lock) in self.locks.iter().filter(|(name, _)| !listed.contains_key(*name)) {
            match &lock.last {
                Some(last) if lock.observers.is_empty() && has_no_name(last) => gone.push((name.clone(), Ok(None))),
                Some(last) if is_present(last) => drop(self.unread.insert(name.clone())),
                _ => {}
            }
        }
        let beside = self.beside.take().unwrap_or_default();
        for (name, seen) in listed.into_iter().chain(gone) {
            // What was read of others beside it may be newer.
            if !beside.contains(&name) {
                self.report(&name, seen, clock, now);
            }
        }
        self.changed.notify_waiters();
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
        if let (Err(unreadable), true) = (&seen, is_new) {
            self.untold.push(unreadable.clone());
        }
        self.unreadable = self.unreadable - usize::from(was_unreadable) + usize::from(seen.is_err());
        self.ends.set(name.into(), first_end(&seen, clock));
        let lock = self.locks.entry(name.to_owned()).or_default();
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
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::protocol::{ServerTime, fixtures, state};

    const MANY: usize = 9;

    fn of(names: &[&str]) -> Observed {
        Observed::These(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn is_due(observers: &Observers, reading: Reading) -> bool {
        let now = Instant::now();
        observers.due_at(reading, now, now).is_some_and(|at| at <= now)
    }

    /// The names that are to be read now.
    fn taken(observers: &mut Observers) -> Vec<String> {
        let names = observers.begin_names(MANY, true, |name| name != "bad", Instant::now());
        observers.end_names();
        names
    }

    fn shown(register: &mut Observers, name: &str, seen: Seen) {
        register.report(name, seen, &ServerClock::default(), Instant::now());
    }

    /// Ends a list that shows these, of which those that can't be read have no name.
    fn listed(register: &mut Observers, listed: &[(&str, Seen)]) {
        let listed = listed.iter().map(|(name, seen)| ((*name).to_owned(), seen.clone()));
        let clock = ServerClock::default();
        register.listed(listed.collect(), |_| false, &clock, Instant::now());
    }

    /// A lock that is held under this token.
    fn held(token: i64) -> Seen {
        let asked = fixtures::asking("1", fixtures::request("a-1"));
        let mut state = state::apply(None, &asked, ServerTime(0)).unwrap();
        state.holders[0].token = token;
        Ok(Some(Arc::new(state)))
    }

    /// The tokens that were told, in order of size; 0 for a lock that is free.
    fn told(inbox: &Inbox) -> Vec<i64> {
        let mut told = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok((_, seen)))) = inbox.poll(&mut context) {
            told.push(seen.unwrap().map_or(0, |state| state.holders[0].token));
        }
        told.sort_unstable();
        told
    }

    fn join(observers: &mut Observers, name: &str) -> (Scope, Arc<Inbox>) {
        let (scope, inbox) = (Scope::One(name.to_owned()), Arc::new(Inbox::new(false)));
        observers.join(&scope, &inbox);
        (scope, inbox)
    }

    #[test]
    fn a_lock_is_read_once_the_stream_reports_it_and_whenever_it_was_written() {
        let mut observers = Observers::new(true);
        let one = join(&mut observers, "a");
        assert!(!is_due(&observers, Reading::Names), "the stream is not open yet");
        observers.stream_opened(&of(&["a"]), true);
        assert_eq!(taken(&mut observers), ["a"]);
        shown(&mut observers, "a", Ok(None));
        // Another is read once the stream has been turned to it, and the first not again.
        let other = join(&mut observers, "b");
        assert_eq!(taken(&mut observers), [""; 0]);
        assert_eq!(observers.observed(), of(&["a", "b"]));
        observers.stream_opened(&of(&["a", "b"]), false);
        assert_eq!(taken(&mut observers), ["b"]);
        observers.written("a");
        observers.written("of nobody's interest");
        assert_eq!(taken(&mut observers), ["a"]);
        // One that was read although the stream did not report it then is read again.
        let third = join(&mut observers, "c");
        observers.everything();
        assert_eq!(taken(&mut observers), ["a", "b", "c"]);
        shown(&mut observers, "c", Ok(None));
        observers.stream_opened(&of(&["a", "b", "c"]), false);
        assert_eq!(taken(&mut observers), ["c"]);
        for is_open in [false, true] {
            if is_open {
                observers.stream_opened(&of(&["a", "b", "c"]), true);
            } else {
                observers.stream_closed(true);
            }
            assert_eq!(taken(&mut observers), ["a", "b", "c"], "{is_open}");
        }
        for (scope, inbox) in [one, other, third] {
            assert!(!observers.are_none());
            observers.leave(&scope, &inbox);
        }
        assert!(observers.are_none());
    }

    /// A list of many locks takes long, and may show each as it was at any time meanwhile.
    #[test]
    fn what_is_told_beside_a_list_is_not_taken_back_by_it() {
        let mut observers = Observers::new(true);
        let inbox = Arc::new(Inbox::new(true));
        observers.join(&Scope::All, &inbox);
        observers.stream_opened(&Observed::All, true);
        let register = &mut observers;
        // Two are being read already, as they were before; one of them is shown as it was before the stream.
        register.unread.extend(["d".to_owned(), "e".to_owned()]);
        register.begin_names(MANY, false, |_| true, Instant::now());
        register.begin_list();
        shown(register, "d", held(4));
        shown(register, "e", Ok(None));
        register.end_names();
        assert_eq!(taken(register), ["d", "e"]);
        shown(register, "d", held(4));
        shown(register, "e", held(6));
        // One is held by another by now, and one was released that nobody had been told of.
        for (name, seen) in [("a", held(2)), ("b", Ok(None))] {
            register.unread.insert(name.to_owned());
            assert_eq!(taken(register), [name]);
            shown(register, name, seen);
        }
        let lists = [("a", held(1)), ("b", held(1)), ("c", held(3)), ("d", held(5))];
        listed(register, &lists);
        assert_eq!(told(&inbox), [2, 3, 4, 6]);
        assert_eq!(taken(register), ["e"]);
        shown(register, "e", Ok(None));
        assert_eq!(told(&inbox), [0]);
        // One that the list does not show any more may be free.
        register.begin_list();
        listed(register, &lists[..3]);
        assert_eq!(told(&inbox), [1, 1]);
        assert_eq!(taken(register), ["d"]);
    }

    /// Only lists and streams show them.
    #[test]
    fn a_document_without_a_name_is_there_until_a_list_does_not_show_it() {
        let mut observers = Observers::new(true);
        let inbox = Arc::new(Inbox::new(true));
        observers.join(&Scope::All, &inbox);
        observers.stream_opened(&Observed::All, true);
        let nameless = |name: &str| Unreadable::new(name.to_owned(), &"of the test");
        let told = || {
            let mut context = Context::from_waker(Waker::noop());
            match inbox.poll(&mut context) {
                Poll::Ready(Some(Ok((name, seen)))) => Some((name, seen.is_err())),
                _ => None,
            }
        };
        for _ in 0..2 {
            observers.begin_list();
            // This one comes meanwhile.
            observers.unreadable(&nameless("late"));
            observers.written("bad");
            assert_eq!(taken(&mut observers), [""; 0]);
            listed(&mut observers, &[("bad", Err(nameless("bad")))]);
        }
        assert_eq!(told(), Some(("late".to_owned(), true)));
        assert_eq!(told(), Some(("bad".to_owned(), true)));
        assert_eq!((told(), taken(&mut observers)), (None, vec![]));
        observers.begin_list();
        listed(&mut observers, &[("late", Err(nameless("late")))]);
        assert_eq!(told(), Some(("bad".to_owned(), false)));
        assert_eq!((told(), taken(&mut observers)), (None, vec![]));
    }

    #[test]
    fn nothing_is_read_for_one_that_has_left() {
        let mut observers = Observers::new(true);
        let (scope, of_all) = (Scope::All, Arc::new(Inbox::new(true)));
        observers.join(&scope, &of_all);
        let (one, inbox) = join(&mut observers, "x");
        observers.stream_opened(&Observed::All, true);
        for name in ["a", "x"] {
            observers.written(name);
        }
        observers.leave(&scope, &of_all);
        assert_eq!(observers.unread.iter().collect::<Vec<_>>(), ["x"]);
        observers.leave(&one, &inbox);
        assert!(observers.unread.is_empty());
    }

    /// The list that it asked for shows nothing to those who come later.
    #[test]
    fn an_observer_that_leaves_before_its_list_leaves_none_to_the_next() {
        let mut observers = Observers::new(true);
        let (scope, first) = (Scope::All, Arc::new(Inbox::new(true)));
        observers.join(&scope, &first);
        observers.stream_opened(&Observed::All, true);
        observers.begin_list();
        observers.leave(&scope, &first);
        listed(&mut observers, &[("a", held(1))]);
        let second = Arc::new(Inbox::new(true));
        observers.join(&scope, &second);
        assert!(is_due(&observers, Reading::List));
        observers.begin_list();
        listed(&mut observers, &[("a", held(1))]);
        assert_eq!(told(&second), [1]);
    }
}
