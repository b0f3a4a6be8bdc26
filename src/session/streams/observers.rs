//! The observers of a session, of some locks or of all: what they were told, and what is to be read for them.
//!
//! Observers are told what a majority has, and nothing that a fail-over can undo: a reported state can't be taken back.
//! The session's stream reports which of the observed locks were written, and a read shows how they are: as of the time
//! of the stream in the server's log, and of the reads before it, so it shows every write that was reported, and nothing
//! earlier than what was told. Observers of one lock share what is read. While no stream is open, everything that is
//! observed is read again and again.
//!
//! A list of all locks can take long, so locks are read by their names beside it. Neither of two readings that overlap
//! is known to be the later one: a lock that is in both is read once more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    super::timer_queue::AT_A_TIME,
    inbox::{Inbox, Seen, is_present},
};
use crate::{
    error::ServerError,
    protocol::State,
    store::{LogTime, Observed, UNREADABLE_MOST, Unreadable, Watched},
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
    /// Whether `locks` has all that are held.
    is_complete: bool,
    unreadable: usize,
    source: Source,
    /// Names that are to be read.
    pub(super) unread: BTreeSet<String>,
    /// When all locks are listed.
    all_at: Option<Instant>,
    /// When all are read that are observed by their names, while no stream reports them.
    names_at: Option<Instant>,
    /// Until when not all locks are read, whatever the stream reports, as they were read just now, or the server was too
    /// slow for it.
    rests_until: Option<Instant>,
    /// The ends of the first leases: no event reports that a lease is over.
    ends: BTreeSet<(Instant, String)>,
    /// The time in the log as of which is read.
    pub(super) as_of: Option<LogTime>,
    /// For each reading that is under way, the names that the other one has read or told since it began.
    beside: HashMap<Reading, BTreeSet<String>>,
    has_ended: bool,
    /// What is no lock, and is to be told to operators.
    pub(super) untold: Vec<Unreadable>,
    /// Notified when there is more to be read.
    pub(super) changed: Arc<Notify>,
    /// Whether there is a task that reads.
    pub(super) is_read: bool,
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

/// The two readings, which go on beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub(super) fn end(&mut self) {
        self.end_all(None);
        self.has_ended = true;
    }

    /// Notes that a stream is open. Events of the time before may have been missed, unless the stream goes on where
    /// another one ended.
    pub(super) fn stream_opened(&mut self, watched: &Watched, is_gap: bool) {
        let before = std::mem::replace(&mut self.source, Source::Stream(watched.clone()));
        let reported = match before {
            Source::Stream(before) if !is_gap => before.observed,
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
        self.note_beside(Reading::List, &unreadable.name);
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
            Scope::All => {
                for (name, lock) in &self.locks {
                    if let Some(last) = lock.last.as_ref().filter(|last| is_present(last)) {
                        inbox.put(name, last);
                    }
                }
                if !self.is_complete && (reads || watched == Some(&Observed::All)) {
                    self.all_at = Some(Instant::now());
                }
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
                    (self.is_complete, self.all_at) = (false, None);
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
        for inbox in by_name.chain(ended.of_all) {
            inbox.end(why.cloned());
        }
        (self.source, self.as_of) = (ended.source, ended.as_of);
        (self.changed, self.is_read) = (ended.changed, ended.is_read);
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
        self.changed.notify_waiters();
    }

    /// Plans the next reading of this kind, unless the stream reports what is written.
    pub(super) fn read_again(&mut self, reading: Reading, at: Instant) {
        if !matches!(self.source, Source::Reads) {
            return;
        }
        let has_names = self.locks.values().any(|lock| !lock.observers.is_empty());
        match reading {
            Reading::List if self.has_all() => drop(self.all_at.get_or_insert(at)),
            Reading::Names if has_names => drop(self.names_at.get_or_insert(at)),
            _ => {}
        }
    }

    /// Has all locks listed later, as that failed now. If the server had no time for it, it gets a rest.
    pub(super) fn list_later(&mut self, rest: Duration) {
        let at = Instant::now() + rest;
        (self.all_at, self.rests_until) = (Some(at), Some(at));
    }

    /// Returns when this reading is due.
    pub(super) fn due_at(&self, reading: Reading, now: Instant) -> Option<Instant> {
        match (&self.source, reading) {
            (Source::Pending, _) => None,
            (_, Reading::List) => self.all_at.filter(|_| self.has_all()),
            (_, Reading::Names) => {
                let unread = (!self.unread.is_empty()).then_some(now);
                let end = self.ends.first().map(|(end, _)| *end);
                unread.into_iter().chain(self.names_at).chain(end).min()
            }
        }
    }

    /// Begins the list of all locks.
    pub(super) fn begin_list(&mut self) {
        self.all_at = None;
        self.beside.insert(Reading::List, BTreeSet::new());
    }

    /// Begins to read names, at most so many.
    pub(super) fn begin_names(&mut self, most: usize, now: Instant) -> Vec<String> {
        self.beside.insert(Reading::Names, BTreeSet::new());
        if self.names_at.is_some_and(|at| at <= now) {
            self.names_at = None;
            let by_name = self.locks.iter().filter(|(_, lock)| !lock.observers.is_empty());
            self.unread.extend(by_name.map(|(name, _)| name.clone()));
        }
        while self.ends.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, name)) = self.ends.pop_first()
        {
            self.unread.insert(name);
        }
        let rest = self.unread.iter().nth(most).cloned();
        let rest = rest.map_or_else(BTreeSet::new, |first| self.unread.split_off(&first));
        std::mem::replace(&mut self.unread, rest).into_iter().collect()
    }

    /// Notes that a reading is over.
    pub(super) fn end_reading(&mut self, reading: Reading) {
        self.beside.remove(&reading);
    }

    /// Notes what a reading of names shows of one. If a list has told it meanwhile, it is read once more.
    pub(super) fn read(&mut self, name: &str, seen: Seen, clock: &ServerClock, now: Instant) {
        if self.beside.get(&Reading::Names).is_some_and(|told| told.contains(name)) {
            self.written(name);
        } else {
            // The list may show it as it was before, also where nobody has to be told of it.
            self.note_beside(Reading::List, name);
            self.report(name, seen, clock, now);
        }
    }

    fn note_beside(&mut self, reading: Reading, name: &str) {
        if let Some(beside) = self.beside.get_mut(&reading) {
            beside.insert(name.to_owned());
        }
    }

    /// Reports what a list of all locks shows. Those that it does not show are read: a free one may be there. They are
    /// not listed again before the end of the pause, unless for somebody who begins to observe all.
    ///
    /// What is no lock may have a name by which it can't be read. Of that, the list shows whether it is there.
    pub(super) fn listed(
        &mut self,
        listed: BTreeMap<String, Seen>,
        can_be_read: impl Fn(&Unreadable) -> bool,
        (clock, now): (&ServerClock, Instant),
        pause: Duration,
    ) {
        self.rests_until = Some(now + pause);
        let has_no_name = |seen: &Seen| seen.as_ref().is_err_and(|document| !can_be_read(document));
        let mut gone = Vec::new();
        for (name, lock) in self.locks.iter().filter(|(name, _)| !listed.contains_key(*name)) {
            match &lock.last {
                Some(last) if lock.observers.is_empty() && has_no_name(last) => gone.push(name.clone()),
                Some(last) if is_present(last) => drop(self.unread.insert(name.clone())),
                _ => {}
            }
        }
        let beside = self.beside.remove(&Reading::List).unwrap_or_default();
        gone.retain(|name| !beside.contains(name));
        let gone = gone.into_iter().map(|name| (name, Ok(None)));
        for (name, seen) in listed.into_iter().chain(gone) {
            if beside.contains(&name) && !has_no_name(&seen) {
                self.written(&name);
            } else if self.report(&name, seen, clock, now) {
                self.note_beside(Reading::Names, &name);
            }
        }
        // Those who asked for the list may have gone.
        self.is_complete = self.has_all();
        self.changed.notify_waiters();
    }

    /// Reports what was seen of a document, unless it is as it was told last. Returns whether it was new.
    fn report(&mut self, name: &str, seen: Seen, clock: &ServerClock, now: Instant) -> bool {
        let seen = seen.map(|state| state.map(|state| without_expired(state, clock, now)));
        let is_too_much = seen.is_err() && self.unreadable >= UNREADABLE_MOST;
        let is_observed = self.has_all() && is_present(&seen) && !is_too_much;
        if !is_observed && !self.locks.contains_key(name) {
            return false;
        }
        let last = self.locks.get(name).and_then(|lock| lock.last.as_ref());
        let is_new = last != Some(&seen);
        let was_unreadable = matches!(last, Some(Err(_)));
        if let (Err(unreadable), true) = (&seen, is_new) {
            self.untold.push(unreadable.clone());
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
        is_new
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
    fn taken(observers: &mut Observers) -> Vec<String> {
        let names = observers.begin_names(MANY, Instant::now());
        observers.end_reading(Reading::Names);
        names
    }

    fn shown(register: &mut Observers, name: &str, seen: Seen) {
        register.read(name, seen, &ServerClock::default(), Instant::now());
    }

    /// Ends a list that shows these, of which those that can't be read have no name.
    fn listed(register: &mut Observers, listed: &[(&str, Seen)]) {
        let listed = listed.iter().map(|(name, seen)| ((*name).to_owned(), seen.clone()));
        let clock = ServerClock::default();
        register.listed(listed.collect(), |_| false, (&clock, Instant::now()), Duration::ZERO);
        register.end_reading(Reading::List);
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
        assert_eq!(
            observers.due_at(Reading::Names, Instant::now()),
            None,
            "the stream is not open yet"
        );
        observers.stream_opened(&of(&["a"]), true);
        assert_eq!(taken(&mut observers), ["a"]);
        shown(&mut observers, "a", Ok(None));
        // Another is read once the stream has been turned to it, and the first not again.
        let other = join(&mut observers, "b");
        assert_eq!(taken(&mut observers), [""; 0]);
        assert_eq!(observers.observed(), of(&["a", "b"]).observed);
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

    /// As on a slow server, whose streams break as well.
    #[test]
    fn a_stream_that_opens_again_and_again_has_no_slow_collection_read_without_a_rest() {
        let mut observers = Observers::new(true);
        observers.join(&Scope::All, &Arc::new(Inbox::new(true)));
        let one = join(&mut observers, "x");
        let rest = Duration::from_secs(300);
        observers.stream_opened(&all(), true);
        let begun = Instant::now();
        let due_at = |observers: &Observers, reading| observers.due_at(reading, begun);
        assert!(due_at(&observers, Reading::List).is_some_and(|at| at <= Instant::now()));
        observers.begin_list();
        observers.list_later(rest);
        for _ in 0..3 {
            observers.stream_closed(true);
            observers.stream_opened(&all(), true);
        }
        assert!(due_at(&observers, Reading::List).is_some_and(|at| at >= begun + rest));
        // What is observed by its name is read meanwhile.
        assert_eq!(due_at(&observers, Reading::Names), Some(begun));
        assert_eq!(taken(&mut observers), ["x"]);
        drop(one);
    }

    /// A list of many locks takes long, and may show each as it was at any time meanwhile.
    #[test]
    fn what_is_told_beside_a_list_is_not_taken_back_by_it() {
        let mut observers = Observers::new(true);
        let inbox = Arc::new(Inbox::new(true));
        observers.join(&Scope::All, &inbox);
        observers.stream_opened(&all(), true);
        let register = &mut observers;
        register.begin_list();
        // One is held by another by now, and one was released that nobody had been told of.
        for (name, seen) in [("a", held(2)), ("b", Ok(None))] {
            register.unread.insert(name.to_owned());
            assert_eq!(register.begin_names(MANY, Instant::now()), [name]);
            shown(register, name, seen);
            register.end_reading(Reading::Names);
        }
        listed(register, &[("a", held(1)), ("b", held(1)), ("c", held(3))]);
        assert_eq!(told(&inbox), [2, 3]);
        // Which of the two readings was the later one shows another.
        assert_eq!(register.begin_names(MANY, Instant::now()), ["a", "b"]);
        // Nor does a reading of names take back what a list has told meanwhile.
        register.begin_list();
        listed(register, &[("a", held(4)), ("c", held(3))]);
        shown(register, "a", held(2));
        shown(register, "b", held(5));
        register.end_reading(Reading::Names);
        assert_eq!(told(&inbox), [4, 5]);
        assert_eq!(taken(register), ["a"]);
        // One that the list does not show any more may be free.
        register.begin_list();
        listed(register, &[("a", held(4)), ("b", held(5))]);
        assert_eq!(taken(register), ["c"]);
    }

    /// Only lists and streams show them.
    #[test]
    fn a_document_without_a_name_is_there_until_a_list_does_not_show_it() {
        let mut observers = Observers::new(true);
        let inbox = Arc::new(Inbox::new(true));
        observers.join(&Scope::All, &inbox);
        observers.stream_opened(&all(), true);
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
        observers.stream_opened(&all(), true);
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
        observers.stream_opened(&all(), true);
        observers.begin_list();
        observers.leave(&scope, &first);
        listed(&mut observers, &[("a", held(1))]);
        let second = Arc::new(Inbox::new(true));
        observers.join(&scope, &second);
        assert!(observers.due_at(Reading::List, Instant::now()).is_some());
        observers.begin_list();
        listed(&mut observers, &[("a", held(1))]);
        assert_eq!(told(&second), [1]);
    }
}
