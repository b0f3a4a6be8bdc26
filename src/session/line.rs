//! The line before one lock: the [`Waitlist`] that decides for the tasks of this process, and what the session knows of
//! the lock beside it, for the errors of tasks that give up: the last answer of the server, or its last error.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::hold::Hold;
pub(crate) use crate::waitlist::{Context, Need};
use crate::{
    backoff::LONGEST_PAUSE,
    contention::Contention,
    error::{AcquireError, KindMismatch, ServerError, own::Own},
    protocol::{Operation, QUEUE_MOST, ServerTime, wake},
    store::{Answer, Failure, LogTime},
    waitlist::{
        Key, Refusal, Setback, Waitlist,
        ids::Ids,
        timing::{PROMPT, SHORT_HOLD},
    },
};

/// Time without an answer after which a server is more than merely slow.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);

/// An action owed to the outside, to be taken when the mutex is released.
pub(crate) type Effect = crate::waitlist::Effect<Hold>;

/// The end of an operation, which is the reason for what tasks are told.
pub(crate) type Ended = Result<Arc<Answer>, ServerError>;

/// Returns the error of a task that does not get the lock; `ended`: the operation behind it.
pub(crate) fn refused(why: Refusal, name: &str, ended: Option<&Ended>, ids: &Ids) -> AcquireError {
    let answer = ended.and_then(|ended| ended.as_ref().ok());
    let state = answer.and_then(|answer| answer.state.as_ref());
    match (why, state) {
        (Refusal::Denied { before }, _) => {
            let contention = answer.and_then(|answer| contention(answer, Duration::ZERO, before, ids));
            AcquireError::Held {
                name: name.to_owned(),
                contention: Box::new(contention.unwrap_or_else(|| Contention::behind(0))),
            }
        }
        (Refusal::Mismatched { wanted, permits }, Some(state)) => {
            KindMismatch::new(name, state, wanted, permits).into()
        }
        (Refusal::Mismatched { .. } | Refusal::Missing, _) => AcquireError::NoDocument { name: name.to_owned() },
        (Refusal::Failed, _) => error_of(ended).into(),
        (Refusal::Closed, _) => AcquireError::Closed,
    }
}

/// Returns the contention that an answer of that age shows to a task with so many waiters ahead of it.
fn contention(answer: &Answer, age: Duration, before: usize, ids: &Ids) -> Option<Contention> {
    let state = answer.state.as_ref()?;
    let as_of = answer.exchange.now.unwrap_or(state.at);
    Some(Contention::new(state, as_of, age, before, |id| ids.made(id)))
}

/// Returns whether the lock has so many permits left in an answer, with nobody before them.
fn has_room(answer: &Answer, permits: i64) -> bool {
    answer.state.as_ref().is_some_and(|state| {
        let now = answer.exchange.now.unwrap_or(state.at);
        let holders = state.holders.iter().filter(|holder| holder.is_live(now));
        let taken = holders.fold(permits, |taken, holder| taken.saturating_add(holder.permits));
        taken <= state.capacity && state.queue.iter().all(|waiter| waiter.until <= now)
    })
}

/// Returns the error of an operation that failed.
pub(crate) fn error_of(ended: Option<&Ended>) -> ServerError {
    match ended {
        Some(Err(error)) => error.clone(),
        Some(Ok(_)) => Own::Unshown.into(),
        None => ServerError::overdue(),
    }
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) waitlist: Waitlist<Hold>,
    /// The server's last answer to the tasks that wait now, and when it came. Only kept while one waits.
    last_answer: Option<(Arc<Answer>, Instant)>,
    /// The error of the last operation, if it failed.
    trouble: Option<ServerError>,
    /// When the first operation was sent that the server has not answered so far, nor any since.
    silent_since: Option<Instant>,
    /// Whether its many holders were reported.
    tells_holders: bool,
    /// Whether nothing is known of the lock so far.
    pub(super) is_unknown: bool,
    /// The need of the line, as counted by the session.
    pub(super) counted: Need,
}

impl Line {
    /// Creates a line; `alone_at`: when the lock was last seen free, or is expected to be; `pace`: the time of a hand-over
    /// when it was waited for last.
    pub(crate) fn new(name: String, alone_at: Option<Instant>, pace: Duration) -> Self {
        Self {
            waitlist: Waitlist::new(name, alone_at, pace),
            last_answer: None,
            trouble: None,
            silent_since: None,
            tells_holders: false,
            is_unknown: false,
            counted: Need::Nothing,
        }
    }

    /// Returns whether the lock was free, if this answer to a request is the first to show it.
    pub(super) fn first_seen(&mut self, operation: &Operation) -> Option<bool> {
        let is_first = std::mem::take(&mut self.is_unknown);
        (is_first && operation.requests.is_some()).then(|| self.waitlist.alone_at().is_some())
    }

    /// Whether the lock would stay taken if nothing were sent any more. A hold that nobody renews is made to outlive its
    /// process.
    pub(super) fn would_stay_taken(&self) -> bool {
        let mut held = self.waitlist.holds().filter(|hold| hold.lease.interval.is_some());
        held.any(|hold| hold.lost_reason().is_none()) || self.waitlist.lets_go()
    }

    pub(crate) fn next(&mut self, context: &Context<'_>) -> Option<Operation> {
        let operation = self.waitlist.step(context).next_operation()?;
        self.silent_since.get_or_insert(context.now);
        Some(operation)
    }

    /// Takes out a task that gives up after its timeout, or a try that had none. Returns what makes its error of the
    /// lock's name, by the last news of the lock; `None`: it was answered before. Only an answer of the server says that
    /// the lock is taken. The error is to be made outside of the line, as that copies strings for each holder.
    pub(crate) fn give_up(
        &mut self,
        key: Key,
        timeout: Option<Duration>,
        context: &Context<'_>,
    ) -> Option<impl FnOnce(&str, &Ids) -> AcquireError + use<>> {
        let position = self.waitlist.position(key)?;
        let waiting = self.waitlist.waiting();
        let before = waiting.range(..position).filter(|ahead| ahead.waits()).count();
        let waiting = &waiting[position];
        // An answer that shows room for the task is to an earlier operation: its own request has had none.
        let answer = self.last_answer.as_ref();
        let answer = answer.filter(|(answer, _)| !has_room(answer, waiting.wants.permits));
        let age = |at: Instant| context.now.saturating_duration_since(at);
        let news = answer.map(|(answer, at)| {
            let before = before + self.others_ahead(answer, context.ids);
            (answer.clone(), age(*at), before)
        });
        // An operation can hang for longer than a task wants to wait, so there may be no error yet.
        let unanswered = || {
            let for_long = age(self.silent_since?);
            (news.is_none() || for_long >= UNANSWERED).then(|| ServerError::unanswered(for_long))
        };
        let trouble = match &self.trouble {
            // The silence lasts from its beginning, and not from the last operation.
            Some(error) if error.is_unanswered() => self.silent_since.map(|at| ServerError::unanswered(age(at))),
            trouble => trouble.clone().or_else(unanswered),
        };
        // Whatever others were told before, a try has had no answer.
        let is_try = !waiting.waits();
        let trouble = trouble.or_else(|| is_try.then(|| ServerError::unanswered(age(waiting.since))));
        let queue_full = self.waitlist.is_kept_out();
        self.waitlist.step(context).cancel(key);
        Some(move |name: &str, ids: &Ids| {
            let Some(waited) = timeout else {
                return trouble.unwrap_or_else(ServerError::overdue).into();
            };
            let contention = news.and_then(|(answer, age, before)| contention(&answer, age, before, ids));
            let contention = contention.map(|contention| {
                Box::new(Contention {
                    queue_full,
                    ..contention
                })
            });
            let name = name.to_owned();
            match (contention, trouble) {
                (contention @ Some(_), None) => AcquireError::Timeout {
                    name,
                    waited,
                    contention,
                },
                (contention, error) => AcquireError::Unanswered {
                    name,
                    waited,
                    contention,
                    error,
                },
            }
        })
    }

    /// Returns the number of other clients' waiters ahead of the head, by an answer.
    fn others_ahead(&self, answer: &Answer, ids: &Ids) -> usize {
        let head = self.waitlist.waiting().front().map(|head| head.entry.as_str());
        let queue = answer.state.iter().flat_map(|state| &state.queue);
        let ahead = queue
            .map(|waiter| waiter.id.as_str())
            .take_while(|id| Some(*id) != head);
        ahead.filter(|id| !ids.made(id)).count()
    }

    /// Returns until when the line expects no event, if its client has requested none since `begun`. The events are
    /// requested in time even if a lock goes often from task to task of this client, or the client often asks for the
    /// lock.
    ///
    /// The server wakes a waiting `getMore` for every write of the whole replica set, and checks each write of a lock for
    /// whether it concerns this client. When many clients take one lock in turn, that is most of the cost of a hand-over:
    /// each write wakes all of them, and concerns one. So a client that has just been served, or that is further back in a
    /// moving queue, requests the next events only shortly before its turn. None is lost: the stream resumes after the last
    /// one.
    pub(crate) fn calm_until(&self, begun: Instant, context: &Context<'_>) -> Instant {
        let list = &self.waitlist;
        if let Some(hold) = list.holds().next() {
            // A hold that is this short is followed by another request, whose answer says more.
            return hold.since.min(begun) + SHORT_HOLD;
        }
        if let Some(sent_at) = self.silent_since.filter(|_| list.is_under_way()) {
            return sent_at.min(begun) + PROMPT;
        }
        // Those ahead can all leave at once: then the waiter is served so much later, which is less than without a
        // stream.
        let most = (context.config.claim_lease() / 20).min(LONGEST_PAUSE / 4);
        match list.hand_overs(context.config) {
            Some((seen_at, hand_overs)) => seen_at + hand_overs.min(most),
            // The line is about to go.
            None if list.is_at_rest() => begun + most,
            None => context.now,
        }
        .min(begun + most)
    }

    /// Notes the answer to the operation on its way, and keeps it for the waiting tasks, in case they give up.
    pub(crate) fn answered(&mut self, operation: &Operation, answer: &Arc<Answer>, context: &Context<'_>) {
        (self.silent_since, self.trouble) = (None, None);
        let (state, exchange) = (answer.state.as_ref(), &answer.exchange);
        self.waitlist.step(context).answered(operation, state, exchange);
        self.note_logged(exchange.logged_by);
        if self.waitlist.waiting().is_empty() {
            self.last_answer = None;
        } else if state.is_some() {
            self.last_answer = Some((answer.clone(), context.now));
        }
    }

    /// Returns the number of holders, if this answer is the first to show many. All are written with every change: the
    /// queue has a bound for this reason, and permits have been promised.
    pub(super) fn many_holders(&mut self, answer: &Answer) -> Option<usize> {
        let holders = answer.state.as_ref()?.holders.len();
        let is_first = holders > QUEUE_MOST && !self.tells_holders;
        self.tells_holders |= is_first;
        is_first.then_some(holders)
    }

    /// Notes that the operation on its way has failed, on which the server may work `within` that time once it has it.
    pub(crate) fn failed(
        &mut self,
        operation: &Operation,
        error: &ServerError,
        within: Duration,
        context: &Context<'_>,
    ) {
        self.trouble = (error.kind == Failure::Unavailable).then(|| error.clone());
        if !error.is_unanswered() {
            self.silent_since = None;
        }
        let setback = setback(error);
        self.waitlist.step(context).failed(operation, setback);
        let may_come = matches!(setback, Setback::Unanswered | Setback::Interrupted) && !error.was_answered();
        if may_come && operation.requests.is_some() {
            self.waitlist.may_be_applied(within);
        }
    }

    /// Notes that an operation that was given up has failed, which says more than its silence.
    pub(crate) fn failed_late(&mut self, error: &ServerError) {
        if self.trouble.as_ref().is_some_and(ServerError::is_unanswered) && error.kind == Failure::Unavailable {
            self.trouble = Some(error.clone());
        }
    }

    /// Notes another client's write, at a time of the server, that names one of our entries.
    pub(crate) fn signalled(
        &mut self,
        id: &str,
        signal: wake::Signal,
        at: ServerTime,
        logged_at: Option<LogTime>,
        context: &Context<'_>,
    ) {
        self.waitlist.step(context).signalled(id, signal, at);
        self.note_logged(logged_at);
        let granted = |effect: &Effect| matches!(effect, Effect::Granted { .. });
        if self.waitlist.effects().iter().any(granted) {
            // The grant changed the document that was seen before.
            self.last_answer = None;
        }
    }

    /// Notes the position in the server's log by which the latest grants happened.
    fn note_logged(&self, at: Option<LogTime>) {
        for effect in self.waitlist.effects() {
            if let (Effect::Came(hold), Some(at)) = (effect, at) {
                hold.note_logged(at);
            }
        }
    }
}

/// Returns what a failure means to the waitlist.
pub(crate) fn setback(error: &ServerError) -> Setback {
    match error.kind {
        Failure::Raced if error.is_unsaid() => Setback::Unsaid,
        Failure::Raced => Setback::Raced,
        Failure::Refused if error.is_malformed() => Setback::Unreadable,
        Failure::Refused => Setback::Refused,
        Failure::Unavailable if error.is_unanswered() => Setback::Unanswered,
        Failure::Unavailable if error.ran_out_of_time() => Setback::Overdue,
        Failure::Unavailable if error.found_no_server() => Setback::NoServer,
        Failure::Unavailable => Setback::Interrupted,
    }
}

#[cfg(test)]
mod tests;
