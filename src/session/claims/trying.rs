//! One try to claim a document, and the handling of its answer.

use std::{pin::pin, sync::Arc, time::Duration};

use mongodb::bson::Bson;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    super::{documents::DocumentSession, hold::Hold, line::UNANSWERED},
    passed::PASSED_AT_ONCE,
    *,
};
use crate::{
    config::millis,
    error::ServerError,
    protocol::{Operation, Owner, Request, Requests},
    store::{Among, Claimed, DocumentStore, StoreError, Wanted},
    terms::Terms,
    waitlist::{Grant, How, SWEEPS, TimedOut, deadline::Deadline, timing},
};

/// The outcome of a claim that was answered.
#[derive(Debug)]
pub(super) enum Round {
    Claimed(ClaimedDocument),
    NothingFree,
    /// A document could not be claimed, for this reason; others may be.
    PassedOver(StoreError),
}

/// The server's answer to a claim.
#[derive(Debug)]
pub(super) enum Next {
    Claimed(Box<Claimed>),
    NothingFree,
    /// The document with this `_id` can't be written.
    Refused(Bson, StoreError),
}

impl Next {
    fn of(claimed: Option<Claimed>) -> Self {
        claimed.map_or(Self::NothingFree, |claimed| Self::Claimed(Box::new(claimed)))
    }
}

/// Claims; where the server refuses, finds out whether a single document is the cause.
pub(super) async fn claim_next(
    documents: &DocumentStore,
    wanted: &Wanted,
    passed: &[Bson],
    operation: &Operation,
    within: Duration,
) -> Result<Next, StoreError> {
    let among = Among::AllBut(passed);
    let refused = match documents.claim(wanted, among, operation, within).await {
        Err(error) if error.may_concern_document() => error,
        claimed => return Ok(Next::of(claimed?)),
    };
    // The refusal does not name the document. A filter that is refused is refused here as well.
    let Ok(candidate) = documents.candidate(wanted, among).await else {
        return Err(refused);
    };
    let Some(candidate) = candidate else {
        return Ok(Next::NothingFree);
    };
    // It may be another document by now: only one that is refused by itself is passed over.
    match documents
        .claim(wanted, Among::Only(&candidate), operation, within)
        .await
    {
        Err(error) if error.may_concern_document() => Ok(Next::Refused(candidate, error)),
        claimed => Ok(Next::of(claimed?)),
    }
}

impl DocumentSession {
    /// Claims, and goes on with the next document if one can't be claimed; `passed` is then set.
    pub(super) async fn claim_once(
        &self,
        wanted: &Arc<Wanted>,
        owner: &Owner,
        how: How,
        timed_out: &mut TimedOut,
        passed: &mut bool,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<ClaimedDocument>, StoreError> {
        for _ in 1..PASSED_AT_ONCE {
            match self.claim_round(wanted, owner, how, timed_out, failing).await? {
                Round::Claimed(given) => return Ok(Some(given)),
                Round::NothingFree => return Ok(None),
                Round::PassedOver(_) => *passed = true,
            }
        }
        match self.claim_round(wanted, owner, how, timed_out, failing).await? {
            Round::Claimed(given) => Ok(Some(given)),
            Round::NothingFree => Ok(None),
            Round::PassedOver(why) => Err(why),
        }
    }

    pub(super) async fn claim_round(
        &self,
        wanted: &Arc<Wanted>,
        owner: &Owner,
        how: How,
        timed_out: &mut TimedOut,
        failing: &mut Option<ServerError>,
    ) -> Result<Round, StoreError> {
        let (to, mut answer) = oneshot::channel();
        let claiming = self
            .clone()
            .run_claim(wanted.clone(), owner.clone(), how, *timed_out, to);
        let task = self.spawn_for(claiming);
        let claimed = match timeout(UNANSWERED, &mut answer).await {
            Ok(claimed) => claimed,
            Err(_) => {
                *failing = Some(StoreError::unanswered(UNANSWERED).into());
                answer.await
            }
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            // The sender was dropped without an answer, as the runtime is shutting down.
            Err(_) => Err(task.await.map_or_else(|stopped| stopped, |()| StoreError::overdue())),
        };
        match &claimed {
            Ok(_) => *timed_out = TimedOut::default(),
            Err(error) if error.is_unanswered() => timed_out.unanswered = timed_out.unanswered.saturating_add(1),
            Err(error) if error.ran_out_of_time() => timed_out.overdue = timed_out.overdue.saturating_add(1),
            Err(_) => {}
        }
        claimed
    }

    /// Claims once, and sends the result. Without an answer in time, the command runs on by itself.
    pub(super) async fn run_claim(
        self,
        wanted: Arc<Wanted>,
        owner: Owner,
        how: How,
        timed_out: TimedOut,
        to: oneshot::Sender<Result<Round, StoreError>>,
    ) {
        let limit = self.asking.limit_of_claim(timed_out, &self.config);
        let slot = self.asking.enter(false, timed_out).await;
        let id = self.ids.claim();
        if self.closing.is_cancelled() {
            self.ids.pending_claims.settled(&id);
            // The receiver may be gone.
            drop(to.send(Ok(Round::NothingFree)));
            return;
        }
        let lease = Terms::default().lease(&self.config);
        let entry = Request {
            id: id.clone(),
            permits: 1,
            lease: millis(lease.length),
            claim: millis(lease.claim),
            wait: false,
            fresh: true,
            reserve: 0,
            owner,
        };
        let requests = Requests {
            kind: USED.0,
            capacity: USED.1,
            entries: vec![entry],
            // A claim only takes a free document.
            adopts: None,
        };
        let operation = Operation {
            requests: Some(requests),
            ..self.operation()
        };
        let (documents, passed) = (self.documents().clone(), self.claims.passed().ids(Instant::now()));
        let mut claiming = pin!(claim_next(&documents, &wanted, &passed, &operation, limit.within));
        let (answer, adrift) = match self.asking.answer(claiming.as_mut(), slot, limit).await {
            Ok(answer) => (answer, None),
            Err(adrift) => (Err(StoreError::unanswered(limit.patience())), Some(adrift)),
        };
        let answer = match answer {
            Ok(Next::Claimed(claimed)) => {
                if let (Some(most), Some(attempt)) = (wanted.attempts_most, claimed.attempt)
                    && attempt >= most
                {
                    telemetry::last_attempt(&claimed.name, attempt);
                }
                self.claimed(&id, *claimed, how)
            }
            Ok(Next::NothingFree) => Ok(Round::NothingFree),
            Ok(Next::Refused(document, error)) => {
                self.note_passed(document, Arc::new(error.clone()), false);
                Ok(Round::PassedOver(error))
            }
            Err(error) => {
                if !error.is_final() {
                    self.spawn(self.clone().take_out(wanted.clone(), id.clone()));
                }
                Err(error)
            }
        };
        self.ids.pending_claims.settled(&id);
        // The receiver may be gone; a claimed document is given back then.
        drop(to.send(answer));
        // A shutdown waits for claims too.
        self.drained.notify_waiters();
        let Some(adrift) = adrift else { return };
        // A claim adrift keeps no session alive.
        let session = Arc::downgrade(self.session());
        drop(self);
        let late = claiming.await;
        adrift.ended(&late);
        // Nothing waits for it any more.
        if let (Some(session), Ok(Next::Claimed(late))) = (session.upgrade(), late) {
            session.feed(&late.name, |lines, context, _| {
                lines.line(&late.name).take_out(id, USED, context);
            });
        }
    }

    /// Adds a claimed document to the holds, unless the news came too late to be believed.
    pub(super) fn claimed(&self, id: &str, claimed: Claimed, how: How) -> Result<Round, StoreError> {
        let Claimed {
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
                // Written and not readable: nobody could ever release it.
                self.feed(&name, |lines, context, _| {
                    context.ids.pending_claims.settled(id);
                    lines.line(&name).take_out(id.to_owned(), USED, context);
                });
                let error = StoreError::from(malformed);
                let document = document.get("_id").cloned().unwrap_or(Bson::Null);
                self.note_passed(document, Arc::new(error.clone()), false);
                return Ok(Round::PassedOver(error));
            }
        };
        let holder = state.holders.iter().find(|holder| holder.id == id);
        let mut hold = None;
        let mut doubted = false;
        self.feed(&name, |lines, context, effects| {
            let overtaken = context.ids.pending_claims.settled(id);
            let lease = Terms::default().lease(context.config);
            let deadline = holder
                .and_then(|holder| {
                    let lease = lease.length;
                    Deadline::of_answer(
                        &exchange,
                        holder.until,
                        lease,
                        context.clock,
                        context.now,
                        context.config,
                    )
                })
                .filter(|deadline| deadline.instant() > context.now);
            if let (Some(holder), Some(deadline), false) = (holder, deadline, lines.closed) {
                let grant = Grant {
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
                        .map(|at| timing::in_time(at, deadline, context.now)),
                };
                let mut granted = Hold::new(id.to_owned(), name.clone(), &grant);
                granted.label = context.config.metered.label(&name);
                let granted = Arc::new(granted);
                let line = lines.line(&name);
                line.hold(granted.clone());
                // News of its end may have come first.
                doubted = overtaken.doubts(&name);
                for (signal, at) in overtaken.signals {
                    line.signalled(id, signal, at, None, context, effects);
                }
                hold = Some(granted);
            } else {
                lines.line(&name).take_out(id.to_owned(), USED, context);
            }
        });
        let Some(hold) = hold else {
            return Ok(Round::NothingFree);
        };
        if doubted {
            self.verify(vec![hold.clone()]);
        }
        self.claims
            .passed()
            .forget(&shown(document.get("_id").unwrap_or(&Bson::Null)));
        Ok(Round::Claimed(ClaimedDocument {
            session: self.session().clone(),
            hold: Some(hold),
            document,
            attempt,
        }))
    }

    /// Looks for the entry of a claim with an unknown outcome, which may be applied now or later, and takes it out
    /// again.
    pub(super) async fn take_out(self, wanted: Arc<Wanted>, id: String) {
        for pause in SWEEPS {
            sleep(pause).await;
            let reading = self.read_long(|_| {
                let (documents, wanted, id) = (self.documents().clone(), wanted.clone(), id.clone());
                async move { documents.held_by(&wanted, &id).await }
            });
            for name in reading.await.unwrap_or_default() {
                self.feed(&name, |lines, context, _| {
                    lines.line(&name).take_out(id.clone(), USED, context);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
