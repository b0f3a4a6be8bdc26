//! One attempt to claim a document, and the handling of its answer.

use std::{any::TypeId, sync::Arc, time::Duration};

use mongodb::bson::Bson;
use scopeguard::guard;
use tokio::time::{Instant, timeout};

use super::super::{
    Session,
    hold::Hold,
    in_flight::{Slot, patience},
    line::{Context, UNANSWERED},
};
use super::{ClaimedDocument, Claiming, Response, skip_list::SKIPPED_AT_ONCE};
use crate::{
    config::millis,
    error::{AcquireError, ServerError},
    hold_options::Lease,
    protocol::{CapacityIs, Entry, Exchange, Kind, Operation, Owner, Request, Requests},
    store::{Claimed, Taken},
    telemetry,
    waitlist::{Grant, How, Step, deadline, timing},
};

/// The kind and capacity of a claimed document's lock.
pub(super) const USED: (Kind, i64) = (Kind::Document, 1);

/// The outcome of an attempt that was answered: the documents, and why one could not be claimed, as others may be. Where it
/// has neither, none is free.
type Round = (Vec<ClaimedDocument>, Option<ServerError>);

impl Claiming {
    /// Notes that the server has answered.
    pub(super) fn answered(&self) {
        *self.response() = Response::Answer;
    }

    /// Notes that the server is silent since then. A silence lasts from its beginning, and not from the last try.
    pub(super) fn silent_since(&self, since: Instant) {
        let mut response = self.response();
        if !matches!(*response, Response::Silence(_)) {
            *response = Response::Silence(since);
        }
    }

    /// Notes an error that a later try may get over.
    pub(super) fn note(&self, error: ServerError) {
        let mut response = self.response();
        if !(error.is_unanswered() && matches!(*response, Response::Silence(_))) {
            *response = Response::Error(error);
        }
        self.filter.note_answer(None);
    }

    /// Claims, and notes how that went. `Ok(Err)`: a later attempt may get over it.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        how: How,
    ) -> Result<Result<Vec<ClaimedDocument>, ServerError>, AcquireError> {
        let claimed = self.once(how).await;
        match &claimed {
            Ok(_) => self.answered(),
            Err(error) if error.is_final() => return Err(error.clone().into()),
            Err(error) => self.note(error.clone()),
        }
        Ok(claimed)
    }

    /// Claims, and goes on with the next document if one can't be claimed. Returns no document if none is free.
    async fn once(self: &Arc<Self>, how: How) -> Result<Vec<ClaimedDocument>, ServerError> {
        // That wait is none for the server.
        let _many = match self.most {
            1 => None,
            _ => Some(self.filter.many.lock().await),
        };
        for passed in 1.. {
            let (claimed, passed_over) = self.round(how).await?;
            self.filter.note_answer(Some(!claimed.is_empty()));
            let Some(why) = passed_over.filter(|_| claimed.is_empty()) else {
                return Ok(claimed);
            };
            if passed == SKIPPED_AT_ONCE {
                return Err(why);
            }
            self.passed();
        }
        Ok(Vec::new())
    }

    /// Claims by a task of its own, which gives back what nobody waits for any more.
    async fn round(self: &Arc<Self>, how: How) -> Result<Round, ServerError> {
        let slot = self.session.in_flight.slot_of_claim().await;
        let asked_at = Instant::now();
        if matches!(*self.response(), Response::NotAsked) {
            self.silent_since(asked_at);
        }
        let mut task = self.session.spawn_for(self.clone().run_once(how, slot));
        match timeout(UNANSWERED, &mut task).await {
            Ok(claimed) => claimed?,
            Err(_) => {
                self.silent_since(asked_at);
                self.filter.note_answer(None);
                task.await?
            }
        }
    }

    /// Claims once. Without an answer in time, the command runs on by itself. Documents that nobody takes are given
    /// back with the result.
    async fn run_once(self: Arc<Self>, how: How, slot: Option<Slot>) -> Result<Round, ServerError> {
        let (session, filter, lease) = (&self.session, &self.filter, self.lease);
        let length = lease.length.min(session.config.lease);
        let within = session.in_flight.limit_of_claim(filter.takes(), length);
        // One after the other, so that the end of the session sees the first before any is sent.
        let entries: Vec<String> = (0..self.most).map(|_| session.ids.claim()).collect();
        if session.takes_nothing_new() {
            session.settle_claims(&entries);
            return Ok(Round::default());
        }
        let command = session.ids.operation();
        let operations = entries.iter().map(|entry| Operation {
            // To its documents, a command is one operation.
            id: command.clone(),
            ..session.operation_of_claim(entry.clone(), self.owner.clone(), lease)
        });
        let operations: Vec<Operation> = operations.collect();
        let (store, asked) = (session.store.clone(), filter.clone());
        let skipped = session.claims.skip_list().ids(filter.of, Instant::now());
        let sent = Instant::now();
        let mut claim = Box::pin(async move { store.claim(&asked.wanted, &skipped, &operations, within).await });
        let (answer, adrift) = match session.in_flight.answer(claim.as_mut(), slot, within).await {
            Ok(answer) => (answer, None),
            Err(adrift) => (Err(ServerError::unanswered(patience(within))), Some(adrift)),
        };
        let error = answer.as_ref().map_or_else(Some, |taken| taken.unsent.as_ref());
        if error.is_none_or(ServerError::ran_out_of_time) {
            // Where it ran out of time, such claims take longer than that.
            filter.took(sent.elapsed());
        }
        let taken = answer.unwrap_or_else(|error| Taken {
            failed: Some(error),
            ..Taken::default()
        });
        // Where no server was found, nothing was sent.
        let is_unknown = |error: &ServerError| !(error.is_final() || error.found_no_server());
        if taken.failed.as_ref().is_some_and(is_unknown) {
            let is_there = |entry: &String| taken.claimed.iter().any(|claimed| claimed.entry == *entry);
            for entry in entries.iter().filter(|entry| !is_there(entry)) {
                session.search_orphan(filter, entry.clone(), lease.length, sent + within);
            }
        }
        let outcome = self.outcome(taken, how);
        session.settle_claims(&entries);
        if let Some(adrift) = adrift {
            let session = session.clone();
            self.session.spawn(async move {
                // Nothing waits for it any more.
                if let (Some(session), Ok(late)) = session.outlast(adrift, claim.as_mut()).await {
                    for late in late.claimed {
                        session.take_out_claim(late.name, late.entry, lease.length);
                    }
                }
            });
        }
        outcome
    }

    /// Carries out what an answer demands.
    fn outcome(&self, taken: Taken, how: How) -> Result<Round, ServerError> {
        let (mut round, mut failed) = (Round::default(), taken.failed.or(taken.unsent));
        for (document, error) in taken.refused {
            self.session
                .pass_over(self.filter.of, document, Arc::new(error.clone()), true);
            round.1 = Some(error);
        }
        for claimed in taken.claimed {
            if let (Some(most), Some(attempt)) = (self.filter.wanted.attempts_most, claimed.attempt)
                && attempt >= most
            {
                telemetry::last_attempt(&claimed.name, attempt);
            }
            let terms = (self.lease, how, self.filter.of);
            let added = self.session.claimed(claimed, terms, &mut round);
            failed = added.err().or(failed);
        }
        match failed {
            Some(error) if round.0.is_empty() => Err(error),
            _ => Ok(round),
        }
    }
}

/// Returns the grant of a claim that this answer shows, unless its lease may be over.
pub(in crate::session) fn grant_of(
    holder: &Entry,
    lease: Lease,
    exchange: &Exchange,
    how: How,
    context: &Context<'_>,
) -> Option<Grant> {
    let Context { clock, config, now, .. } = *context;
    let deadline = deadline::of_answer(exchange, holder.until, lease.length, clock, now, config)?;
    (deadline > now).then(|| Grant {
        token: holder.token,
        granted_as: holder.token,
        used: USED,
        permits: 1,
        lease,
        how,
        deadline,
        // A claim that is not answered is given up, so this is the answer to the write itself.
        renew_at: lease
            .next_renewal(exchange.sent)
            .map(|at| timing::in_time(at, deadline, now)),
    })
}

impl Session {
    /// Notes that the outcome of an attempt with these entries is known.
    pub(in crate::session) fn settle_claims(&self, entries: &[String]) {
        for entry in entries {
            self.ids.pending_claims.settled(entry);
        }
        // A shutdown waits for claims too, and may have seen them pending.
        self.drained.notify_waiters();
    }

    /// Takes out an entry that no task here holds.
    pub(super) fn take_out_claim(self: &Arc<Self>, name: String, entry: String, lease: Duration) {
        self.update(&name, None, |lines, context| {
            context.ids.pending_claims.settled(&entry);
            lines.line(&name).waitlist.step(context).take_out(entry, USED, lease);
        });
    }

    /// Returns the operation that takes a free document for this entry.
    pub(super) fn operation_of_claim(&self, id: String, owner: Owner, lease: Lease) -> Operation {
        let entry = Request {
            id,
            permits: 1,
            lease: millis(lease.length),
            claim: millis(lease.claim),
            wait: false,
            fresh: true,
            reserve: 0,
            upgrades: None,
            owner,
        };
        let requests = Requests {
            kind: USED.0,
            capacity: USED.1,
            by: CapacityIs::Demanded,
            entries: vec![entry],
            // A claim only takes a free document.
            adopts: None,
        };
        Operation {
            requests: Some(requests),
            keep: self.config.keep_millis_for(lease.length),
            ..self.operation()
        }
    }

    /// Adds a claimed document to the holds, unless the news came too late to be believed: then the server took too
    /// long for this lease.
    fn claimed(
        self: &Arc<Self>,
        claimed: Claimed,
        (lease, how, of): (Lease, How, TypeId),
        (documents, passed_over): &mut Round,
    ) -> Result<(), ServerError> {
        let Claimed {
            entry,
            name,
            document,
            state,
            attempt,
            exchange,
        } = claimed;
        self.note(&exchange);
        let state = match state {
            Ok(state) => state,
            Err(malformed) => {
                // Nobody could ever release it.
                self.take_out_claim(name, entry, lease.length);
                let error = ServerError::from(malformed);
                let id = document.get("_id").cloned().unwrap_or(Bson::Null);
                self.pass_over(of, id, Arc::new(error.clone()), true);
                passed_over.get_or_insert(error);
                return Ok(());
            }
        };
        let holder = state.holders.iter().find(|holder| holder.id == entry);
        let added = self.settle(&name, &entry, |step, context| {
            let grant = grant_of(holder?, lease, &exchange, how, context)?;
            Some(step.claimed(entry.clone(), &grant, &exchange))
        });
        let Some(hold) = added else {
            self.take_out_claim(name, entry, lease.length);
            return match self.takes_nothing_new() {
                true => Ok(()),
                false => Err(ServerError::overdue()),
            };
        };
        let session = self.clone();
        let gives_back: Box<dyn FnOnce(Arc<Hold>) + Send> = Box::new(move |hold| session.discard(&hold));
        documents.push((guard(hold, gives_back), document, attempt));
        Ok(())
    }

    /// Adds the hold of an entry that was pending. `None`: the client shuts down, or the news came too late to be
    /// believed. Then the entry is pending still, until the caller has seen to it.
    pub(in crate::session) fn settle(
        self: &Arc<Self>,
        name: &str,
        entry: &str,
        add: impl FnOnce(&mut Step<'_, Hold>, &Context<'_>) -> Option<Arc<Hold>>,
    ) -> Option<Arc<Hold>> {
        let (mut added, mut doubted) = (None, false);
        self.update(name, None, |lines, context| {
            if lines.closed {
                return;
            }
            let line = lines.line(name);
            added = add(&mut line.waitlist.step(context), context);
            if added.is_some() {
                // News of its end may have come first.
                doubted = context.ids.pending_claims.settled_with(entry, name);
            }
        });
        if doubted {
            self.verify(added.iter().cloned().collect());
        }
        added
    }
}

#[cfg(test)]
mod tests;
