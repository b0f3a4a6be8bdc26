//! The follower of one name or all: it reports the states of their documents over time, for observers.
//!
//! Observers read what a majority has, and nothing that a fail-over can undo: a reported state can't be taken back.
//! They read at their own pace, which no document can change.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    task::{self, Poll},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    super::{Session, UserHandle, fork_guard::Process},
    ends::LeaseEnds,
    subscription::{News, Subscription},
};
use crate::{
    backoff::{Backoff, LONGEST_PAUSE},
    error::ServerError,
    protocol::{Exchange, State},
    store::{Listed, NamedSighting, ResumeAt, Selection, Sighting, Unreadable, View},
    telemetry::{self, StreamOf},
    waitlist::clock::ServerClock,
};

/// Maximum number of states that an observer may lag behind before the follower waits for it.
const BEHIND: usize = 64;

/// Maximum number of names that are read together. If there are more, everything that is followed is read.
const READ_TOGETHER: usize = 1_000;

/// Maximum number of unreadable documents that are reported, and remembered so as to be reported once: with as many,
/// the observer knows that something is wrong with the collection.
const UNREADABLE_REPORTED_MOST: usize = 256;

/// Maximum number of the user's own documents that are remembered while nobody holds them: they keep a state that is
/// read late from being taken for a later one, and there are as many free documents as the user likes.
const FREE_DOCUMENTS_REMEMBERED: usize = 1_000;

/// Multiple of the time for which a collection of the user's own was read to wait before the next time, where no stream
/// reports changes, or for which the server read any in vain: a large one is not read without end.
const READING_REST: u32 = 10;

/// The report of a follower.
#[derive(Clone, Debug)]
pub(crate) enum Observation {
    /// The state of a document whenever it changed, without holders whose lease is over; `None`: there is no document,
    /// or none of a lock.
    State(String, Option<State>),
    /// A document that is not a lock; reported once.
    Unreadable(Unreadable),
}

pub(crate) type Observed = Result<Observation, ServerError>;

/// The names to follow.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// One name, whether there is a document or not.
    One(String),
    /// All names that have documents.
    All,
}

impl Scope {
    fn name(&self) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::All => None,
        }
    }
}

/// Follows names until the receiver is dropped or the client shuts down. The present states come first.
///
/// The latest state always comes, and the stream is resumed where it broke; states that last for less than a hop may
/// be skipped. An error that the server would repeat ends the sequence.
pub(crate) fn follow(session: UserHandle, scope: Scope) -> Observations {
    let (to, seen) = mpsc::channel(BEHIND);
    let observations = Observations {
        seen,
        followed_in: session.made_in,
        session,
    };
    let session = &*observations.session;
    if session.ensure_usable().is_err() {
        return observations;
    }
    let follower = Follower::new(session.clone(), scope, to);
    session.spawn(async move {
        let ended = follower.session.ended.clone();
        let gone = follower.to.clone();
        tokio::select! {
            () = follower.run() => {}
            () = ended.cancelled() => {}
            () = gone.closed() => {}
        }
    });
    observations
}

/// The reports of a follower, in order.
#[derive(Debug)]
pub(crate) struct Observations {
    seen: mpsc::Receiver<Observed>,
    followed_in: Process,
    /// The follower has it without its user.
    session: UserHandle,
}

impl Observations {
    /// Ends at once in a process that was forked, as nothing is followed there.
    pub(crate) fn poll_recv(&mut self, context: &mut task::Context<'_>) -> Poll<Option<Observed>> {
        if !self.followed_in.is_this() {
            return Poll::Ready(None);
        }
        self.seen.poll_recv(context)
    }

    /// Returns the next report; `None`: the client was shut down.
    pub(crate) async fn next(&mut self) -> Option<Observed> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }
}

struct Follower {
    session: Arc<Session>,
    scope: Scope,
    to: mpsc::Sender<Observed>,
    /// The last reported state of each name. When all are followed, names without a document are left out.
    last: HashMap<String, Option<State>>,
    /// Names of the user's own documents that nobody held when they were reported last, the oldest first.
    free: VecDeque<String>,
    /// The unreadable documents that were reported.
    unreadable: HashSet<Unreadable>,
    ends: LeaseEnds,
    /// The pauses after readings that failed one after the other.
    failing: Backoff,
    /// Names whose state the stream could not report.
    unclear: HashSet<String>,
    /// When some names can be read again.
    some_at: Instant,
    /// When everything is read next; `None`: the stream reports changes.
    read_at: Option<Instant>,
    /// When everything was read last.
    last_read_at: Option<Instant>,
    /// Until when not everything is read, whatever the stream reports, as the server was too slow for it.
    rests_until: Instant,
}

impl Follower {
    fn new(session: Arc<Session>, scope: Scope, to: mpsc::Sender<Observed>) -> Self {
        let (now, pause) = (Instant::now(), session.config.poll_interval.1);
        Self {
            session,
            scope,
            to,
            last: HashMap::new(),
            free: VecDeque::new(),
            unreadable: HashSet::new(),
            ends: LeaseEnds::default(),
            failing: Backoff::between(pause, LONGEST_PAUSE.max(pause)),
            unclear: HashSet::new(),
            some_at: now,
            read_at: Some(now),
            last_read_at: None,
            rests_until: now,
        }
    }

    async fn run(mut self) {
        if let Err(error) = self.follow().await {
            // The observer may be gone by now.
            let _ = self.to.send(Err(error)).await;
        }
    }

    /// Runs until the server refuses for good.
    async fn follow(&mut self) -> Result<(), ServerError> {
        let mut subscription = self.session.config.may_stream().then(|| self.subscribe());
        let mut signs = self.session.suspicion.signs();
        let mut is_open = false;
        if subscription.is_some() {
            // A reading from before the stream is open would have to be repeated.
            self.read_at = None;
        }
        loop {
            let read_at = self.read_at;
            let some_at = self.some_due_at();
            let (mut began, mut is_scan) = (Instant::now(), false);
            let result = tokio::select! {
                news = next(&mut subscription) => match news {
                    News::Opened => {
                        is_open = true;
                        self.session.ask_for_primary();
                        self.read_soon();
                        Ok(())
                    }
                    News::Quiet => {
                        self.session.ask_for_primary();
                        Ok(())
                    }
                    News::Events(sightings) => {
                        self.sighted(sightings).await;
                        Ok(())
                    }
                    News::Closed(_) => {
                        is_open = false;
                        self.read_soon();
                        Ok(())
                    }
                },
                Some(sign) = signs.next() => {
                    let stream = subscription.as_mut();
                    if stream.is_some_and(|stream| stream.heed(&sign).is_some()) {
                        is_open = false;
                        self.read_soon();
                    }
                    Ok(())
                }
                () = until(read_at) => {
                    began = Instant::now();
                    is_scan = matches!(self.scope, Scope::All);
                    self.read_all().await.inspect(|()| {
                        let rest = if self.session.store.is_in_place() { READING_REST } else { 0 };
                        self.failing = self.failing.after(0);
                        let pause = self.session.config.poll_interval.1.max(began.elapsed() * rest);
                        self.read_at = (!is_open).then(|| Instant::now() + pause);
                    })
                }
                () = until(some_at) => {
                    began = Instant::now();
                    self.read_some().await
                }
            };
            match result {
                Err(error) if error.is_final() => return Err(error),
                // Whichever reading it was, everything is read next.
                Err(error) => self.read_at = Some(Instant::now() + self.rest_after(&error, is_scan, began.elapsed())),
                Ok(()) => {}
            }
        }
    }

    /// Returns the pause after a reading that failed. A server that gave up after so long was as busy as with one that
    /// it answered: a stream that breaks and is opened again, as on a slow server, does not shorten its rest. Another
    /// one has said nothing, and may be there again as soon as a stream opens.
    fn rest_after(&mut self, error: &ServerError, is_scan: bool, took: Duration) -> Duration {
        if !(is_scan && error.ran_out_of_time()) {
            return self.failing.failed().max(took);
        }
        let rest = self.failing.failed().max(took * READING_REST);
        self.rests_until = Instant::now() + rest;
        rest
    }

    fn subscribe(&self) -> Subscription<NamedSighting> {
        let (store, scope) = (self.session.store.clone(), self.scope.clone());
        let budget = store.is_remote().then(|| self.session.budget.clone());
        let open = move |resume: Option<ResumeAt>| {
            let (store, scope) = (store.clone(), scope.clone());
            Box::pin(async move { store.follow(scope.name(), resume.as_ref()).await }) as _
        };
        Subscription::new(StreamOf::Observers, budget, Box::new(open))
    }

    /// Has everything read now, or as soon as it may be read again.
    fn read_soon(&mut self) {
        let pause = self.session.config.poll_interval.1;
        let soonest = self
            .last_read_at
            .map_or_else(Instant::now, |last_read_at| last_read_at + pause);
        let soon = soonest.max(self.rests_until).max(Instant::now());
        self.read_at = Some(self.read_at.map_or(soon, |at| at.min(soon)));
    }

    async fn sighted(&mut self, sightings: Vec<NamedSighting>) {
        for sighting in sightings {
            match sighting {
                NamedSighting::Of(name, Sighting::State(state)) => self.report(name, Some(*state)).await,
                NamedSighting::Of(name, Sighting::Gone) => self.report(name, None).await,
                NamedSighting::Of(name, Sighting::Unclear) => {
                    self.unclear.insert(name);
                }
                NamedSighting::Unreadable(unreadable) => self.report_unreadable(unreadable).await,
                NamedSighting::Everything => self.read_soon(),
            }
        }
        if self.unclear.len() > READ_TOGETHER {
            self.unclear.clear();
            self.read_soon();
        }
    }

    /// Reads everything that is followed.
    async fn read_all(&mut self) -> Result<(), ServerError> {
        self.last_read_at = Some(Instant::now());
        if let Scope::One(name) = &self.scope {
            return self.read_names(vec![name.clone()]).await;
        }
        let in_place = self.session.store.is_in_place();
        let selection = Selection {
            // A free lock stays in a document of the user's own as long as the document does.
            held: in_place.then_some(true),
            ..Selection::default()
        };
        let sent = Instant::now();
        let listing = self.session.list(&selection, View::Committed).await?;
        let Listed {
            found, unreadable, now, ..
        } = listing;
        let received = Instant::now();
        self.session.note(&Exchange { sent, received, now });
        let listed: HashMap<String, State> = found.into_iter().collect();
        let gone = self.last.iter().filter(|(name, state)| {
            let is_held = state.as_ref().is_some_and(|state| !state.holders.is_empty());
            !listed.contains_key(*name) && (is_held || !in_place)
        });
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        if in_place {
            // Each was released or deleted.
            for names in gone.chunks(READ_TOGETHER) {
                self.read_names(names.to_vec()).await?;
            }
        } else {
            for name in gone {
                self.report(name, None).await;
            }
        }
        for (name, state) in listed {
            self.report(name, Some(state)).await;
        }
        // A document that is gone or mended is reported again if it comes back.
        self.unreadable.retain(|told| unreadable.contains(told));
        for unreadable in unreadable {
            self.report_unreadable(unreadable).await;
        }
        Ok(())
    }

    async fn read_names(&mut self, names: Vec<String>) -> Result<(), ServerError> {
        let (mut documents, exchange) = self.session.observe_names(&names).await?;
        self.session.note(&exchange);
        for name in names {
            let document = documents.remove(&name);
            if !matches!(document, Some(Err(_))) {
                // If it becomes unreadable once more, it is reported once more.
                self.unreadable.retain(|told| told.name != name);
            }
            match document {
                Some(Ok(state)) => self.report(name, Some(state)).await,
                None => self.report(name, None).await,
                Some(Err(malformed)) => {
                    // A document that is no lock holds nothing.
                    self.report(name.clone(), None).await;
                    self.report_unreadable(Unreadable::new(name, &malformed)).await;
                }
            }
        }
        Ok(())
    }

    /// Returns when some names are to be read: because the stream could not report their state, or because a holder's
    /// lease is over, which no event reports. No sooner than the shortest poll interval after the last time.
    fn some_due_at(&mut self) -> Option<Instant> {
        let due_at = if self.unclear.is_empty() {
            let clock = self.clock();
            self.ends.next(&clock, Instant::now())?
        } else {
            self.some_at
        };
        Some(due_at.max(self.some_at))
    }

    async fn read_some(&mut self) -> Result<(), ServerError> {
        let (least, most) = self.session.config.poll_interval;
        // There are never more of these than are read together.
        let mut names = std::mem::take(&mut self.unclear);
        let room = READ_TOGETHER.saturating_sub(names.len());
        let over = self.ends.over(&self.clock(), Instant::now(), room);
        names.extend(over.iter().cloned());
        if names.is_empty() {
            // A name's rest was over, and its lease is not.
            return Ok(());
        }
        let looked = self.read_names(names.into_iter().collect()).await;
        let (now, clock) = (Instant::now(), self.clock());
        self.some_at = now + least;
        for name in over {
            self.ends.rest(name, now + most, &clock, now);
        }
        looked
    }

    /// Returns the server's clock as the session knows it: reckoning with it must not hold up the session's locks.
    fn clock(&self) -> ServerClock {
        self.session.table().clock
    }

    /// Reports a state, unless it is older than the last one reported, or the same for an observer.
    async fn report(&mut self, name: String, state: Option<State>) {
        let state = state.map(|state| self.without_expired(state));
        let last = self.last.get(&name);
        if let (Some(Some(last)), Some(state)) = (last, &state)
            && state.is_before(last)
        {
            return;
        }
        if last == Some(&state) {
            return;
        }
        let all = matches!(self.scope, Scope::All);
        if all && last.is_none() && state.is_none() {
            // Any other document of the user's own that was deleted.
            return;
        }
        let is_free = state.as_ref().is_some_and(|state| state.holders.is_empty());
        if all && is_free && self.session.store.is_in_place() {
            self.free.push_back(name.clone());
        }
        let holders = state.iter().flat_map(|state| &state.holders);
        self.ends.note(&name, holders.map(|holder| holder.until).min());
        let seen = Observation::State(name.clone(), state.clone());
        if state.is_none() && all {
            self.last.remove(&name);
        } else {
            self.last.insert(name, state);
        }
        if self.free.len() > FREE_DOCUMENTS_REMEMBERED {
            self.forget_free();
        }
        // The follower ends with its receiver.
        let _ = self.to.send(Ok(seen)).await;
    }

    /// Forgets the document that has been free for longest.
    fn forget_free(&mut self) {
        if let Some(name) = self.free.pop_front()
            && let Some(Some(state)) = self.last.get(&name)
            && state.holders.is_empty()
        {
            self.last.remove(&name);
        }
    }

    async fn report_unreadable(&mut self, unreadable: Unreadable) {
        if self.unreadable.len() >= UNREADABLE_REPORTED_MOST || !self.unreadable.insert(unreadable.clone()) {
            return;
        }
        telemetry::unreadable(&unreadable.name, &unreadable.problem);
        let _ = self.to.send(Ok(Observation::Unreadable(unreadable))).await;
    }

    fn without_expired(&self, mut state: State) -> State {
        let (now, clock) = (Instant::now(), self.clock());
        state
            .holders
            .retain(|holder| clock.after(holder.until).is_none_or(|over| over > now));
        state
    }
}

/// Returns the next news of the stream; never, where there is none.
async fn next(subscription: &mut Option<Subscription<NamedSighting>>) -> News<NamedSighting> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
