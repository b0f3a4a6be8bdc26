//! One attempt to claim a document, and the handling of its answer.

use std::{pin::pin, sync::Arc, time::Duration};

use mongodb::bson::{Bson, Document};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::super::{
    Session,
    line::{Context, UNANSWERED},
};
use super::{ClaimedDocument, Claiming, filter::Filter, scan::Telling, skip_list::SKIPPED_AT_ONCE};
use crate::{
    config::millis,
    error::ServerError,
    hold_options::Lease,
    protocol::{Exchange, Holder, Kind, Operation, Owner, Request, Requests},
    store::{Among, Claimed, Store, Wanted, name},
    telemetry,
    waitlist::{Grant, How, deadline::Deadline, timing},
};

/// The kind and capacity of a claimed document's lock.
pub(super) const USED: (Kind, i64) = (Kind::Document, 1);

/// The outcome of a claim that was answered.
#[derive(Debug)]
enum Round {
    Claimed(ClaimedDocument),
    NothingFree,
    /// A document could not be claimed, for this reason; others may be.
    PassedOver(ServerError),
}

/// The server's answer to a claim.
#[derive(Debug)]
enum Next {
    Claimed(Box<Claimed>),
    NothingFree,
    /// The document with this `_id` can't be written.
    Refused(Bson, ServerError),
}

impl Next {
    fn of(claimed: Option<Claimed>) -> Self {
        claimed.map_or(Self::NothingFree, |claimed| Self::Claimed(Box::new(claimed)))
    }
}

/// Claims; where the server refuses, finds out whether a single document is the cause.
async fn claim_next(
    store: &Store,
    wanted: &Wanted,
    passed: &[Bson],
    operation: &Operation,
    within: Duration,
) -> Result<Next, ServerError> {
    let among = Among::AllBut(passed);
    let refused = match store.claim(wanted, among, operation, within).await {
        Err(error) if error.may_concern_document() => error,
        claimed => return Ok(Next::of(claimed?)),
    };
    claim_one_by_one(store, wanted, among, operation, within, refused).await
}

/// Claims the document that would be next, by its `_id`: a refusal does not name the document. It may be another's by
/// then, of those who want the same: so the next one is tried, for as long as the server may take for a claim.
///
/// A router of an older version refuses claims without the shard key, so there this is the way of every claim.
async fn claim_one_by_one(
    store: &Store,
    wanted: &Wanted,
    among: Among<'_>,
    operation: &Operation,
    within: Duration,
    refused: ServerError,
) -> Result<Next, ServerError> {
    let begun = Instant::now();
    while begun.elapsed() < within {
        // A filter that is refused is refused here as well.
        let Ok(candidate) = store.candidate(wanted, among).await else {
            return Err(refused);
        };
        let Some(candidate) = candidate else {
            return Ok(Next::NothingFree);
        };
        let only = Among::Only(&candidate);
        match store.claim(wanted, only, operation, within).await {
            // Only one that is refused by itself is passed over.
            Err(error) if error.may_concern_document() => return Ok(Next::Refused(candidate, error)),
            Err(error) => return Err(error),
            Ok(Some(claimed)) => return Ok(Next::of(Some(claimed))),
            Ok(None) => {}
        }
    }
    // As if the server had taken too long: the claim is tried again.
    Err(ServerError::overdue())
}

/// What is asked for by each attempt of a claim.
#[derive(Debug)]
struct Asked {
    filter: Arc<Filter>,
    owner: Owner,
    lease: Lease,
}

/// A claim, and the outcome of its attempts so far.
pub(super) struct Attempts<'a> {
    session: &'a Arc<Session>,
    asked: Arc<Asked>,
    /// Attempts in a row that ran out of time.
    overdue: u32,
    /// Whether a document was passed over.
    have_passed: bool,
    /// The last error, unless the server has answered since. The caller begins with a silence.
    pub(super) failing: &'a mut Option<ServerError>,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(session: &'a Arc<Session>, claiming: Claiming, failing: &'a mut Option<ServerError>) -> Self {
        let filter = session.claims.filter(claiming.wanted);
        if claiming.has_passed {
            filter.ask_for_scan();
        }
        let asked = Asked {
            filter,
            owner: claiming.owner,
            lease: claiming.terms.lease(&session.config),
        };
        Self {
            session,
            asked: Arc::new(asked),
            overdue: 0,
            have_passed: claiming.has_passed,
            failing,
        }
    }

    pub(super) fn filter(&self) -> &Arc<Filter> {
        &self.asked.filter
    }

    /// Returns whether the claim fails where it is known already that all matching documents are unclaimable: while it
    /// waits, only if it has met one itself.
    pub(super) fn telling(&self) -> Telling {
        if self.have_passed {
            Telling::Again
        } else {
            Telling::OnlyNews
        }
    }

    /// Notes an error that a later try may get over. A silence lasts from its beginning, and not from the last try.
    pub(super) fn note(&mut self, error: ServerError) {
        let is_silent = self.failing.as_ref().is_some_and(|error| error.is_unanswered());
        if !(is_silent && error.is_unanswered()) {
            *self.failing = Some(error);
        }
    }

    /// Claims, and goes on with the next document if one can't be claimed.
    pub(super) async fn once(&mut self, how: How) -> Result<Option<ClaimedDocument>, ServerError> {
        for _ in 1..SKIPPED_AT_ONCE {
            match self.round(how).await? {
                Round::Claimed(given) => return Ok(Some(given)),
                Round::NothingFree => return Ok(None),
                Round::PassedOver(_) => {
                    self.have_passed = true;
                    // The document may hold up all claims.
                    self.filter().ask_for_scan();
                }
            }
        }
        match self.round(how).await? {
            Round::Claimed(given) => Ok(Some(given)),
            Round::NothingFree => Ok(None),
            Round::PassedOver(why) => Err(why),
        }
    }

    /// Claims by a task of its own, which gives back what nobody waits for any more.
    async fn round(&mut self, how: How) -> Result<Round, ServerError> {
        let (to, mut answer) = oneshot::channel();
        let claiming = self
            .session
            .clone()
            .run_claim(self.asked.clone(), (how, self.overdue), to);
        let task = self.session.spawn_for(claiming);
        let claimed = match timeout(UNANSWERED, &mut answer).await {
            Ok(claimed) => claimed,
            Err(_) => {
                self.note(ServerError::unanswered(UNANSWERED));
                answer.await
            }
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            // The sender was dropped without an answer, as the runtime is shutting down.
            Err(_) => Err(task.await.map_or_else(|stopped| stopped, |()| ServerError::overdue())),
        };
        match &claimed {
            Ok(_) => self.overdue = 0,
            Err(error) if error.ran_out_of_time() => self.overdue = self.overdue.saturating_add(1),
            Err(_) => {}
        }
        claimed
    }
}

/// Returns the grant of a claim that this answer shows, unless its lease may be over.
fn grant_of(holder: &Holder, lease: Lease, exchange: &Exchange, how: How, context: &Context<'_>) -> Option<Grant> {
    let Context { clock, config, now, .. } = *context;
    let deadline = Deadline::of_answer(exchange, holder.until, lease.length, clock, now, config)?;
    (deadline.instant() > now).then(|| Grant {
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
    /// Claims once, and sends the result. Without an answer in time, the command runs on by itself.
    async fn run_claim(
        self: Arc<Self>,
        asked: Arc<Asked>,
        (how, overdue): (How, u32),
        to: oneshot::Sender<Result<Round, ServerError>>,
    ) {
        let Asked { filter, owner, lease } = &*asked;
        let length = lease.length.min(self.config.lease);
        let limit = self.in_flight.limit_of_claim(filter.takes(), length);
        let slot = self.in_flight.slots.slot(overdue).await;
        let id = self.ids.claim();
        if self.takes_nothing_new() {
            self.ids.pending_claims.settled(&id);
            // The receiver may be gone.
            drop(to.send(Ok(Round::NothingFree)));
            // The end may have seen it pending.
            self.drained.notify_waiters();
            return;
        }
        let operation = self.operation_of_claim(id.clone(), owner.clone(), *lease);
        let (store, skipped) = (self.store.clone(), self.claims.skip_list().ids(Instant::now()));
        let sent = Instant::now();
        let mut claiming = pin!(claim_next(&store, &filter.wanted, &skipped, &operation, limit.within));
        let (answer, adrift) = match self.in_flight.answer(claiming.as_mut(), slot, limit).await {
            Ok(answer) => (answer, None),
            Err(adrift) => (Err(ServerError::unanswered(limit.patience())), Some(adrift)),
        };
        let answer = match answer {
            Ok(next) => {
                filter.took(sent.elapsed());
                self.outcome(&id, next, filter, (*lease, how))
            }
            Err(error) => {
                if error.ran_out_of_time() {
                    // Such claims take longer than that. The next one begins with a limit that may be long enough.
                    filter.took(sent.elapsed());
                }
                // Where no server was found, nothing was sent.
                if !(error.is_final() || error.found_no_server()) {
                    let given_up_at = sent + limit.within;
                    self.search_orphan(filter, id.clone(), lease.length, given_up_at);
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
        // Nothing waits for it any more.
        if let (Some(session), Ok(Next::Claimed(late))) = adrift.outlast(self, claiming).await {
            session.feed(&late.name, |lines, context| {
                let line = lines.line(&late.name);
                line.waitlist.step(context).take_out(id, USED, lease.length);
            });
        }
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
            owner,
        };
        let requests = Requests {
            kind: USED.0,
            capacity: USED.1,
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

    /// Carries out what an answer demands.
    fn outcome(
        self: &Arc<Self>,
        id: &str,
        next: Next,
        filter: &Filter,
        asked: (Lease, How),
    ) -> Result<Round, ServerError> {
        match next {
            Next::Claimed(claimed) => {
                if let (Some(most), Some(attempt)) = (filter.wanted.attempts_most, claimed.attempt)
                    && attempt >= most
                {
                    telemetry::last_attempt(&claimed.name, attempt);
                }
                self.claimed(id, *claimed, asked)
            }
            Next::NothingFree => Ok(Round::NothingFree),
            Next::Refused(document, error) => {
                self.note_unclaimable(document, Arc::new(error.clone()), true);
                Ok(Round::PassedOver(error))
            }
        }
    }

    /// Adds a claimed document to the holds, unless the news came too late to be believed: then the server took too
    /// long for this lease.
    fn claimed(self: &Arc<Self>, id: &str, claimed: Claimed, (lease, how): (Lease, How)) -> Result<Round, ServerError> {
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
            Err(malformed) => return Ok(self.claimed_unreadable(id, &name, &document, lease, malformed.into())),
        };
        let holder = state.holders.iter().find(|holder| holder.id == id);
        let mut hold = None;
        let (mut doubted, mut is_closed) = (false, false);
        self.feed(&name, |lines, context| {
            is_closed = lines.closed;
            let overtaken = context.ids.pending_claims.settled(id);
            let grant = holder.and_then(|holder| grant_of(holder, lease, &exchange, how, context));
            if let Some(grant) = grant.filter(|_| !lines.closed) {
                let line = lines.line(&name);
                let granted = line.waitlist.step(context).claimed(id.to_owned(), &grant, &exchange);
                // News of its end may have come first.
                doubted = overtaken.doubted;
                if let Some((signal, at)) = overtaken.put_out {
                    line.signalled(id, signal, at, None, context);
                }
                hold = Some(granted);
            } else {
                let line = lines.line(&name);
                line.waitlist.step(context).take_out(id.to_owned(), USED, lease.length);
            }
        });
        let Some(hold) = hold else {
            return if is_closed {
                Ok(Round::NothingFree)
            } else {
                Err(ServerError::overdue())
            };
        };
        if doubted {
            self.verify(vec![hold.clone()]);
        }
        self.claims
            .skip_list()
            .forget(&name::of_id(document.get("_id").unwrap_or(&Bson::Null)));
        Ok(Round::Claimed(ClaimedDocument {
            session: self.clone(),
            hold: Some(hold),
            document,
            attempt,
        }))
    }

    /// Takes out the entry of a document that was written and can't be read: nobody could ever release it.
    fn claimed_unreadable(
        self: &Arc<Self>,
        id: &str,
        name: &str,
        document: &Document,
        lease: Lease,
        error: ServerError,
    ) -> Round {
        self.feed(name, |lines, context| {
            context.ids.pending_claims.settled(id);
            let line = lines.line(name);
            line.waitlist.step(context).take_out(id.to_owned(), USED, lease.length);
        });
        let document = document.get("_id").cloned().unwrap_or(Bson::Null);
        self.note_unclaimable(document, Arc::new(error.clone()), true);
        Round::PassedOver(error)
    }
}

#[cfg(test)]
mod tests;
