//! The signals of a client for its operators: spans and events through `tracing`, and numbers through `metrics` if that
//! feature is enabled.
//!
//! All names are here, or in [`meters`], and `docs/observability.md` documents them: they are part of the public API. A
//! lock's name is a field, and a label only of the locks in [`metrics_for`](crate::LockClientBuilder::metrics_for). The
//! server's text about a refused command is left out, as it may quote the command, and the user's data with it.
//!
//! Nothing here is called while a mutex of the session is held: a subscriber may do anything, including using locks and
//! panicking: see [`shield`].

pub(crate) mod meters;
mod shield;
#[cfg(test)]
mod tests;

use std::{error::Error as StdError, future::Future, pin::pin, time::Duration};

use tokio::time::Instant;
use tracing::{Span, debug, field::Empty, info, info_span, warn};

use crate::{
    config::LockLabel,
    deadlock::Deadlock,
    error::{AcquireError, CandidacyError, ServerError, failure::Failure},
    grant_path::How,
    input::check_name,
    lost_reason::{self, LostReason},
    name::LockName,
    protocol::{Evict, Kind, Operation},
    token::FencingToken,
    wake_mode::{PollingReason, WakeMode},
};

pub(crate) use shield::caught;
use shield::{in_span, shielded};

const TARGET: &str = "watchlock";

/// A lock that was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<'a> {
    pub(crate) lock: &'a str,
    pub(crate) kind: Kind,
    pub(crate) token: FencingToken,
    pub(crate) how: How,
    /// Set if the lock has metrics of its own.
    pub(crate) label: Option<&'a LockLabel>,
}

/// An acquire in progress, with its span. Dropping it reports that the acquire was cancelled.
#[derive(Debug)]
#[must_use = "an attempt that is dropped was cancelled"]
pub(crate) struct Attempt {
    span: Span,
    /// A claim does not know it before it has a document.
    lock: Option<LockName>,
    /// Set if the lock has metrics of its own.
    label: Option<LockLabel>,
    kind: Kind,
    since: Instant,
    ended: bool,
}

impl Attempt {
    /// Begins an attempt. Call it with input that has passed the checks, as it is reported unchanged.
    pub(crate) fn begin(
        lock: Option<LockName>,
        label: Option<LockLabel>,
        kind: Kind,
        permits: i64,
        waits: bool,
        reason: Option<&str>,
    ) -> Self {
        let span = shielded(|| {
            info_span!(
                target: TARGET,
                "watchlock.acquire",
                lock = lock.as_deref(),
                kind = kind.as_str(),
                permits,
                waits,
                reason,
                outcome = Empty,
                how = Empty,
                token = Empty,
            )
        });
        let span = span.unwrap_or_else(Span::none);
        meters::change(&meters::WAITING, 1.0, &[kind.as_str()], label.as_ref());
        Self {
            span,
            lock,
            label,
            kind,
            since: Instant::now(),
            ended: false,
        }
    }

    /// Runs the acquire in its span, and reports how it ended; `granted` finds the locks in its result.
    pub(crate) async fn follow<T>(
        mut self,
        acquiring: impl Future<Output = Result<T, AcquireError>> + Send,
        granted: impl FnOnce(&T) -> Vec<Granted<'_>>,
    ) -> Result<T, AcquireError> {
        let acquired = in_span(&self.span, pin!(acquiring)).await;
        match acquired.as_ref().map(granted) {
            Ok(granted) if granted.is_empty() => self.came_to_nothing("busy"),
            Ok(granted) => self.granted(&granted),
            Err(error) => self.came_to_nothing(outcome(error)),
        }
        acquired
    }

    /// The span of a claim of many has the first of its documents; each of them is told and counted.
    fn granted(&mut self, granted: &[Granted<'_>]) {
        let Some(first) = granted.first() else { return };
        let waited_ms = millis(self.end("granted", first.label));
        let names_itself = self.lock.is_none();
        self.tell(|span| {
            // A claim knows it only now.
            if names_itself {
                span.record("lock", first.lock);
            }
            span.record("how", first.how.as_str())
                .record("token", first.token.as_i64());
        });
        for granted in granted {
            let Granted { lock, label, .. } = *granted;
            let (kind, token, how) = (granted.kind.as_str(), granted.token.as_i64(), granted.how.as_str());
            self.tell_in_span(|| {
                debug!(name: "watchlock.granted", target: TARGET, lock, kind, token, how, waited_ms, "lock granted");
            });
            meters::count(&meters::GRANTS, 1, &[kind, how], label);
            if how != How::Reentered.as_str() {
                meters::change(&meters::HELD, 1.0, &[kind], label);
            }
        }
    }

    fn came_to_nothing(&mut self, outcome: &'static str) {
        let waited_ms = millis(self.end(outcome, self.label.clone().as_ref()));
        let (lock, kind) = (self.lock.as_deref(), self.kind.as_str());
        self.tell_in_span(|| match outcome {
            "timeout" | "unanswered" => {
                let answered = outcome == "timeout";
                info!(name: "watchlock.timed_out", target: TARGET, lock, kind, waited_ms, answered, "lock not acquired in time");
            }
            _ => {
                debug!(name: "watchlock.not_acquired", target: TARGET, lock, kind, outcome, waited_ms, "lock not acquired");
            }
        });
    }

    fn tell(&self, tell: impl FnOnce(&Span)) {
        shielded(|| tell(&self.span));
    }

    fn tell_in_span(&self, tell: impl FnOnce()) {
        shielded(|| self.span.in_scope(tell));
    }

    fn end(&mut self, outcome: &'static str, label: Option<&LockLabel>) -> Duration {
        let (kind, waited) = (self.kind.as_str(), self.since.elapsed());
        self.ended = true;
        self.tell(|span| {
            span.record("outcome", outcome);
        });
        meters::count(&meters::ACQUIRES, 1, &[kind, outcome], label);
        meters::time(&meters::WAIT, waited, &[kind, outcome], label);
        // As it began.
        meters::change(&meters::WAITING, -1.0, &[kind], self.label.as_ref());
        waited
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.came_to_nothing("cancelled");
        }
        let span = std::mem::replace(&mut self.span, Span::none());
        // Its subscriber is notified that it is closed.
        shielded(|| drop(span));
    }
}

fn outcome(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::Invalid(_) => "invalid",
        AcquireError::Timeout { .. } => "timeout",
        AcquireError::Unanswered { .. } => "unanswered",
        AcquireError::Held { .. } => "busy",
        AcquireError::KindMismatch(_) => "used_otherwise",
        AcquireError::Server(_) => "failed",
        AcquireError::NoDocument { .. } => "no_document",
        AcquireError::NoElement { .. } => "no_element",
        AcquireError::AmbiguousElement { .. } => "ambiguous_element",
        AcquireError::Unreadable { .. } => "unreadable",
        AcquireError::Unclaimable { .. } => "unclaimable",
        AcquireError::Closed => "closed",
        AcquireError::Lost(_) => "lost",
        AcquireError::Cancelled => "cancelled",
        AcquireError::Deadlock(_) => "deadlock",
    }
}

/// Reports that a lock is no longer held, after this time.
pub(crate) fn ended(
    lock: &str,
    label: Option<&LockLabel>,
    kind: Kind,
    token: FencingToken,
    reason: LostReason,
    held: Duration,
) {
    let (kind, token, end, held_ms) = (kind.as_str(), token.as_i64(), lost_reason::name(reason), millis(held));
    if reason == LostReason::Released {
        shielded(|| debug!(name: "watchlock.released", target: TARGET, lock, kind, token, held_ms, "lock released"));
    } else {
        shielded(
            || warn!(name: "watchlock.lost", target: TARGET, lock, kind, token, reason = end, held_ms, "lock lost"),
        );
        meters::count(&meters::LOSSES, 1, &[kind, end], label);
    }
    meters::time(&meters::HOLD, held, &[kind, end], label);
    meters::change(&meters::HELD, -1.0, &[kind], label);
}

/// Reports a lock that is held for longer than the limit that was set for it: once.
pub(crate) fn held_too_long(
    lock: &str,
    label: Option<&LockLabel>,
    kind: Kind,
    token: FencingToken,
    held: Duration,
    most: Duration,
) {
    let (kind, token, held_ms, most_ms) = (kind.as_str(), token.as_i64(), millis(held), millis(most));
    shielded(
        || warn!(name: "watchlock.held_too_long", target: TARGET, lock, kind, token, held_ms, most_ms, "lock held too long"),
    );
    meters::count(&meters::OVERLONG, 1, &[kind], label);
}

/// Reports that a task which waits for `lock` is part of a deadlock: once for each wait.
pub(crate) fn deadlock(lock: &str, deadlock: &Deadlock) {
    shielded(|| warn!(name: "watchlock.deadlock", target: TARGET, lock, %deadlock, "tasks wait for each other"));
}

/// Reports a release that was refused, or not confirmed for the time of a lease.
pub(crate) fn release_failed(lock: &str, error: &ServerError) {
    let (error, source) = (failure(error), error.cause());
    shielded(|| warn!(name: "watchlock.release_failed", target: TARGET, lock, error, %source, "release not confirmed"));
}

/// Reports locks that nobody released before the client's runtime ended.
pub(crate) fn left_taken(locks: usize) {
    let locks = locks as u64;
    shielded(|| warn!(name: "watchlock.left_taken", target: TARGET, locks, "locks left taken, as the runtime ended"));
}

/// Reports a document that can't be claimed, and is passed over for a while.
pub(crate) fn passed_over(document: &str, why: &(dyn StdError + Send + Sync + 'static)) {
    let error = why.downcast_ref::<ServerError>();
    let source = error.map(|error| tracing::field::display(error.cause()));
    // The text of another error may quote the document.
    let error = error.map_or("unreadable", failure);
    shielded(
        || warn!(name: "watchlock.passed_over", target: TARGET, lock = document, error, source, "document can't be claimed"),
    );
    meters::count(&meters::PASSED_OVER, 1, &[], None);
}

/// Reports the last claim of a document that its claims allow.
pub(crate) fn last_attempt(document: &str, attempt: i64) {
    shielded(
        || warn!(name: "watchlock.last_attempt", target: TARGET, lock = document, attempt, "last attempt at a document"),
    );
}

/// Counts the locks renewed in one command.
pub(crate) fn renewed(locks: u64) {
    meters::count(&meters::RENEWALS, locks, &["renewed"], None);
}

/// Counts locks that could not be renewed; they are still held, up to their deadlines.
pub(crate) fn renewals_failed(locks: usize) {
    meters::count(&meters::RENEWALS, locks as u64, &["failed"], None);
}

/// Reports locks whose renewals are overdue, the first of which is lost after this time: once, until they are not any
/// more. `error`: why the last renewal failed; `None`: the server has not answered it.
pub(crate) fn renewals_overdue(locks: usize, left: Duration, error: Option<&ServerError>) {
    let (locks, left_ms) = (locks as u64, millis(left));
    let source = error.map(|error| tracing::field::display(error.cause()));
    let error = error.map_or("unanswered", failure);
    shielded(
        || warn!(name: "watchlock.renewals_overdue", target: TARGET, locks, left_ms, error, source, "renewals overdue"),
    );
}

/// Reports that no renewal is overdue any more, this long after that was reported.
pub(crate) fn renewals_recovered(overdue: Duration) {
    let overdue_ms = millis(overdue);
    shielded(|| warn!(name: "watchlock.renewals_recovered", target: TARGET, overdue_ms, "renewals in time again"));
}

/// Reports that the server refuses to renew this lock: once, until it is renewed again.
pub(crate) fn renewal_refused(lock: &str, error: &ServerError) {
    let (error, source) = (failure(error), error.cause());
    shielded(|| warn!(name: "watchlock.renewal_refused", target: TARGET, lock, error, %source, "renewal refused"));
}

/// Reports that the server's clock was set by more than the margin of the deadlines, or is another server's that far
/// off.
pub(crate) fn clock_jumped(by: Duration, ahead: bool) {
    let by_ms = millis(by);
    shielded(|| warn!(name: "watchlock.clock_jumped", target: TARGET, by_ms, ahead, "the server's clock jumped"));
    meters::count(&meters::JUMPS, 1, &[if ahead { "ahead" } else { "back" }], None);
}

/// Reports that somebody evicted the holders of a lock through this client.
pub(crate) fn broke(lock: &str, label: Option<&LockLabel>) {
    shielded(|| info!(name: "watchlock.broke", target: TARGET, lock, "lock broken"));
    meters::count(&meters::BREAKS, 1, &[], label);
}

/// Reports that somebody set the number of permits of a semaphore through this client.
pub(crate) fn set_permits(lock: &str, permits: i64) {
    shielded(|| info!(name: "watchlock.set_permits", target: TARGET, lock, permits, "number of permits set"));
}

/// Reports that a semaphore was acquired which has another number of permits than it was requested with.
pub(crate) fn other_permits(lock: &str, permits: i64, requested: i64) {
    shielded(|| {
        info!(
            name: "watchlock.other_permits", target: TARGET, lock, permits, requested,
            "the lock has another number of permits"
        );
    });
}

/// Reports that a lock has so many holders that each operation on it is slow.
pub(crate) fn many_holders(lock: &str, holders: usize) {
    let holders = holders as u64;
    shielded(|| info!(name: "watchlock.many_holders", target: TARGET, lock, holders, "the lock has many holders"));
}

/// Reports that a client was built, or begins to lock the documents of a collection.
pub(crate) fn session_began(mode: WakeMode) {
    meters::describe();
    meters::change(&meters::SESSIONS, 1.0, &mode_labels(mode), None);
}

pub(crate) fn session_ended(mode: WakeMode) {
    meters::change(&meters::SESSIONS, -1.0, &mode_labels(mode), None);
}

pub(crate) fn wake_mode(before: WakeMode, mode: WakeMode) {
    let [wake_mode, reason] = mode_labels(mode);
    let reason = (!reason.is_empty()).then_some(reason);
    shielded(|| info!(name: "watchlock.wake_mode", target: TARGET, mode = wake_mode, reason, "wake mode changed"));
    meters::change(&meters::SESSIONS, -1.0, &mode_labels(before), None);
    meters::change(&meters::SESSIONS, 1.0, &mode_labels(mode), None);
}

/// Returns the values of the labels of a mode. The reason of a stream is empty, so that both modes have the same
/// labels.
fn mode_labels(mode: WakeMode) -> [&'static str; 2] {
    match mode {
        WakeMode::ChangeStream => ["change_stream", ""],
        WakeMode::StreamForWaiters => ["stream_for_waiters", ""],
        WakeMode::Polling(PollingReason::Configured) => ["polling", "configured"],
        WakeMode::Polling(PollingReason::Standalone) => ["polling", "standalone"],
        WakeMode::Polling(PollingReason::NotPermitted) => ["polling", "not_permitted"],
        WakeMode::Polling(PollingReason::Interrupted) => ["polling", "interrupted"],
    }
}

/// Reports that a change stream was opened.
pub(crate) fn stream_opened() {
    shielded(|| debug!(name: "watchlock.stream_opened", target: TARGET, "change stream opened"));
}

/// Reports that a change stream broke, or fell silent; it is re-opened.
pub(crate) fn stream_interrupted(error: Option<&ServerError>) {
    let source = error.map(|error| tracing::field::display(error.cause()));
    let error = error.map_or("silent", failure);
    shielded(
        || info!(name: "watchlock.stream_interrupted", target: TARGET, error, source, "change stream interrupted"),
    );
    meters::count(&meters::INTERRUPTIONS, 1, &[error], None);
}

/// Reports a document in the collection of the locks that is not a lock; it is skipped.
pub(crate) fn unreadable(name: &str, problem: &str) {
    shielded(|| warn!(name: "watchlock.unreadable", target: TARGET, lock = name, problem, "document is not a lock"));
}

/// Reports that the index that purges free locks could not be created.
pub(crate) fn index_missing(error: &ServerError) {
    let (error, source) = (failure(error), error.cause());
    shielded(
        || warn!(name: "watchlock.index_missing", target: TARGET, error, %source, "free locks stay, as the index is missing"),
    );
}

/// Reports a candidacy that ended although nobody withdrew it.
pub(crate) fn candidacy_ended(lock: &str, error: &CandidacyError) {
    // A refused name can be of any size.
    let lock = check_name(lock).map_or("", |()| lock);
    let source = match error {
        CandidacyError::Campaign(AcquireError::Server(error)) => error.cause().to_string(),
        error => error.to_string(),
    };
    shielded(|| warn!(name: "watchlock.candidacy_ended", target: TARGET, lock, source, "candidacy ended"));
}

/// Reports that the server could not be reached for an operation, or refused it. The consequences are reported
/// separately.
pub(crate) fn operation_failed(operation: &'static str, lock: Option<&str>, error: &ServerError) {
    let (source, error) = (error.cause(), failure(error));
    shielded(
        || debug!(name: "watchlock.operation_failed", target: TARGET, operation, lock, error, %source, "operation failed"),
    );
    meters::count(&meters::ERRORS, 1, &[operation, error], None);
}

/// Returns the name of an operation on one lock.
pub(crate) fn purpose(operation: &Operation) -> &'static str {
    if operation.evict != Evict::Nobody {
        "break"
    } else if operation.proclaims() {
        "proclaim"
    } else if operation.change.is_some() {
        "change"
    } else if operation.sets() {
        "set_permits"
    } else if operation.requests.is_some() {
        "request"
    } else {
        "release"
    }
}

fn failure(error: &ServerError) -> &'static str {
    match error.kind {
        Failure::Raced => "raced",
        Failure::Unavailable => "unavailable",
        Failure::Refused => "refused",
    }
}

/// Returns the milliseconds, to a tenth.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}
