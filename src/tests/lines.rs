//! The fuzzing of lines: the waiting client of `watchlock_proofs`, with everything that the library puts around the
//! waitlist. It has the channels of tasks and releases, the holds that handles look at, and the errors of a server.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};
use watchlock_proofs::fuzzing::{
    Claimed, Held, Joining, News, WaitingClient,
    seeds::{bytes_of, on_all},
    waiting_client,
};

use super::decoding::{error, harmless};
use crate::{
    grant_path::How,
    hold_options::Terms,
    protocol::{Ahead, Exchange, Operation, Owner, ServerTime, State, document::Malformed, wake},
    session::{
        hold::Hold,
        line::{AcquireOptions, Context, Line, LineEffect, Need, Pending, PositionLook},
    },
    status::LostReason,
    store::{Answer, StoreError},
    waitlist::{Grant, Key, deadline::Deadline},
};

struct FuzzedLine {
    line: Line,
    /// The holds that were reported: a task that re-enters gets the same again.
    reported: Vec<Arc<Hold>>,
}

impl FuzzedLine {
    /// Has the line act, and reports what becomes of its holds.
    fn feed(&mut self, news: &mut Vec<News>, act: impl FnOnce(&mut Line, &mut Vec<LineEffect>)) {
        let mut effects = Vec::new();
        act(&mut self.line, &mut effects);
        for effect in effects {
            match effect {
                LineEffect::Answer(_, Ok(Some(hold))) => {
                    if !self.reported.iter().any(|reported| Arc::ptr_eq(reported, &hold)) {
                        self.reported.push(hold.clone());
                        news.push(News::Granted(held(&hold)));
                    }
                }
                LineEffect::Answer(_, Err(error)) => harmless(&error.to_string()),
                LineEffect::Lost(hold, _) => news.push(News::Lost { entry: hold.id.clone() }),
                LineEffect::Answer(_, Ok(None)) | LineEffect::Released(..) | LineEffect::Doubted(_) => {}
            }
        }
    }
}

impl WaitingClient for FuzzedLine {
    type Failure = StoreError;

    fn new(alone_at: Option<Instant>) -> Self {
        Self {
            line: Line::new("x".to_owned(), alone_at, None),
            reported: Vec::new(),
        }
    }

    fn failures() -> Vec<StoreError> {
        vec![
            StoreError::overdue(),
            StoreError::unanswered(Duration::from_secs(1)),
            // DuplicateKey, Unauthorized, MaxTimeMSExpired, ShutdownInProgress
            error(11000),
            error(13),
            error(50),
            error(91),
        ]
    }

    fn unreadable(malformed: Malformed) -> StoreError {
        malformed.into()
    }

    fn join(&mut self, task: Joining, context: &Context<'_>, news: &mut Vec<News>) {
        let (kind, capacity) = task.used;
        let options = AcquireOptions {
            kind,
            capacity,
            permits: task.permits,
            wait: task.waits,
            reports_contention: task.reports_contention,
            reentrant: task.reenters,
            terms: Terms::default(),
            owner: Owner::default(),
        };
        // Nobody listens: the answers are checked on their way.
        let (to, _) = oneshot::channel();
        let pending = Pending::new(task.key, task.entry, options, to);
        self.feed(news, |line, effects| line.join(pending, context, effects));
    }

    fn cancel(&mut self, key: Key, context: &Context<'_>) {
        let standing = self.line.cancel(key, context);
        if let Some((Some(contention), _)) = standing.map(|standing| standing.report(context.ids)) {
            harmless(&contention.to_string());
        }
    }

    fn let_go(&mut self, held: &Held, too_long: bool, is_awaited: bool, context: &Context<'_>, news: &mut Vec<News>) {
        let hold = self.line.holds().find(|hold| hold.id == held.entry).cloned();
        let hold = hold.expect("a hold that is not lost");
        if too_long {
            hold.lose(LostReason::HeldTooLong);
        }
        let to = is_awaited.then(|| oneshot::channel().0);
        self.feed(news, |line, effects| line.let_go(&hold, to, context, effects));
        assert!(!self.line.has(&hold), "{hold:?} is kept");
    }

    fn claimed(&mut self, claimed: &Claimed, context: &Context<'_>) {
        let Held { entry, used, token, .. } = claimed.held.clone();
        let grant = Grant {
            token,
            granted_as: token,
            used,
            permits: 1,
            lease: Terms::default().lease(context.config),
            how: How::AtOnce,
            deadline: Deadline::at(claimed.held.deadline),
            renew_at: None,
        };
        let hold = Arc::new(Hold::new(entry, "x".to_owned(), &grant));
        self.reported.push(hold.clone());
        self.line.hold(hold, &claimed.exchange, context);
    }

    fn next(&mut self, context: &Context<'_>) -> Option<Operation> {
        self.line.next(context)
    }

    fn answered(
        &mut self,
        operation: &Operation,
        state: Option<&State>,
        exchange: &Exchange,
        context: &Context<'_>,
        news: &mut Vec<News>,
    ) {
        let answer = Answer {
            state: state.cloned(),
            exchange: *exchange,
            logged_by: None,
        };
        self.feed(news, |line, effects| {
            line.answered(operation, &answer, context, effects);
            line.remember(answer, context);
        });
    }

    fn failed(&mut self, operation: &Operation, failure: &StoreError, context: &Context<'_>, news: &mut Vec<News>) {
        self.feed(news, |line, effects| line.failed(operation, failure, context, effects));
    }

    fn signalled(
        &mut self,
        id: &str,
        signal: wake::Signal,
        at: ServerTime,
        context: &Context<'_>,
        news: &mut Vec<News>,
    ) {
        self.feed(news, |line, effects| {
            line.signalled(id, signal, at, None, context, effects)
        });
    }

    fn verified(
        &mut self,
        read: Option<&Result<State, Malformed>>,
        sent: Option<Instant>,
        held: &[String],
        context: &Context<'_>,
        news: &mut Vec<News>,
    ) {
        self.feed(news, |line, effects| line.verified(read, sent, held, context, effects));
    }

    fn doubt(&mut self, context: &Context<'_>) {
        self.line.doubt(context);
    }

    fn next_look(&mut self, context: &Context<'_>) -> Option<PositionLook> {
        self.line.next_look(context)
    }

    fn admit(&mut self, look: &PositionLook, context: &Context<'_>) -> bool {
        self.line.admit(look, context)
    }

    fn looked(&mut self, look: &PositionLook, ahead: Option<Ahead>, context: &Context<'_>) {
        self.line.looked(look, ahead, context);
    }

    fn look_failed(&mut self, look: &PositionLook, failure: &StoreError, context: &Context<'_>) {
        self.line.look_failed(look, failure, context);
    }

    fn due_at(&self) -> Option<Instant> {
        self.line.due_at()
    }

    fn need(&self) -> Need {
        self.line.need()
    }

    fn waits_for_event(&self) -> bool {
        self.line.waits_for_event()
    }
}

fn held(hold: &Hold) -> Held {
    Held {
        entry: hold.id.clone(),
        token: hold.token.as_i64(),
        granted_as: hold.granted_as,
        used: hold.used,
        deadline: hold.deadline(),
    }
}

#[test]
fn a_line_grants_nothing_that_no_document_says() {
    on_all(4_000, 320, |data| {
        waiting_client::<FuzzedLine>(data);
    });
}

/// Else the fuzzing of lines would say nothing about looks, grants and claims.
#[test]
fn lines_at_random_look_are_granted_and_claim() {
    let courses = (0..1_000).map(|seed| waiting_client::<FuzzedLine>(&bytes_of(seed, 320)));
    let (mut looks, mut grants, mut claims) = (0, 0, 0);
    for course in courses {
        looks += course.looks;
        grants += course.grants;
        claims += course.claims;
    }
    assert!(
        looks > 50 && grants > 500 && claims > 100,
        "{looks}, {grants}, {claims}"
    );
}
