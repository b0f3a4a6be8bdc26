//! What operators see of a client: spans and events through `tracing`, and numbers through `metrics` where that feature
//! is on.
//!
//! Every name is here, or in [`meters`], and is told in `docs/observability.md`: they are part of the public face. A lock's
//! name is a field and never a label. What the server says about a command that it refuses is left out, as it may
//! quote the command, and with it what users wrote.
//!
//! Nothing here is called while a mutex of the session is held: a subscriber may do what it likes, also with locks, and
//! also panic: see [`shield`].

mod meters;
mod shield;

use std::{error::Error as StdError, fmt, future::Future, time::Duration};

use tokio::time::Instant;
use tracing::{Span, debug, field::Empty, info, info_span, warn};

use crate::{
    config::check_name,
    error::{AcquireError, CandidacyError, ServerError},
    protocol::{Evict, Kind, Operation},
    status::LostReason,
    store::error::{Failure, StoreError},
    token::FencingToken,
    wake_mode::{PollingReason, WakeMode},
};

use shield::{in_span, shielded};

const TARGET: &str = "watchlock";

/// How a grant came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum How {
    /// With the answer to the first request.
    AtOnce,
    /// From a task of the same client, in the write by which that one let go.
    Local,
    /// By a change event.
    Event,
    /// With the answer to a request that was repeated.
    Asking,
    /// By joining a hold of the same client.
    Reentered,
}

impl How {
    fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at_once",
            Self::Local => "local",
            Self::Event => "event",
            Self::Asking => "asking",
            Self::Reentered => "reentered",
        }
    }
}

/// A lock that was granted to somebody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<'a> {
    pub(crate) lock: &'a str,
    pub(crate) kind: Kind,
    pub(crate) token: FencingToken,
    pub(crate) how: How,
}

/// An acquire on its way, with its span. Dropping it says that the acquire was cancelled.
#[derive(Debug)]
#[must_use = "an attempt that is dropped was cancelled"]
pub(crate) struct Attempt {
    span: Span,
    /// Unknown to a claim before it has a document.
    lock: Option<String>,
    kind: Kind,
    since: Instant,
    ended: bool,
}

impl Attempt {
    /// To be called with what has passed the checks of input, as it is told as it is.
    pub(crate) fn begin(lock: Option<&str>, kind: Kind, permits: i64, waits: bool, reason: Option<&str>) -> Self {
        let span = shielded(|| {
            info_span!(
                target: TARGET,
                "watchlock.acquire",
                lock,
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
        meters::change(meters::WAITING, 1.0, &[("kind", kind.as_str())]);
        Self {
            span,
            lock: lock.map(str::to_owned),
            kind,
            since: Instant::now(),
            ended: false,
        }
    }

    /// Runs the acquire in its span, and tells how it ended; `granted` finds the lock in what it returns.
    pub(crate) async fn follow<T>(
        mut self,
        acquiring: impl Future<Output = Result<T, AcquireError>>,
        granted: impl FnOnce(&T) -> Option<Granted<'_>>,
    ) -> Result<T, AcquireError> {
        let acquired = in_span(&self.span, acquiring).await;
        match acquired.as_ref().map(granted) {
            Ok(Some(granted)) => self.granted(granted),
            Ok(None) => self.came_to_nothing("busy"),
            Err(AcquireError::Timeout { source, .. }) => self.timed_out(source.as_ref()),
            Err(error) => self.came_to_nothing(outcome(error)),
        }
        acquired
    }

    fn granted(&mut self, granted: Granted<'_>) {
        let Granted { lock, kind, token, how } = granted;
        let (kind, token, how) = (kind.as_str(), token.as_i64(), how.as_str());
        let waited = self.end("granted");
        let names_itself = self.lock.is_none();
        self.tell(|span| {
            if names_itself {
                span.record("lock", lock);
            }
            span.record("how", how).record("token", token);
        });
        self.tell_in_span(|| {
            let waited_ms = millis(waited);
            debug!(name: "watchlock.granted", target: TARGET, lock, kind, token, how, waited_ms, "lock granted");
        });
        meters::count(meters::GRANTS, 1, &[("kind", kind), ("how", how)]);
        if how != How::Reentered.as_str() {
            meters::change(meters::HELD, 1.0, &[("kind", kind)]);
        }
    }

    fn timed_out(&mut self, source: Option<&ServerError>) {
        let waited_ms = millis(self.end("timeout"));
        let (lock, kind, answered) = (self.lock.as_deref(), self.kind.as_str(), source.is_none());
        self.tell_in_span(|| {
            info!(name: "watchlock.timed_out", target: TARGET, lock, kind, waited_ms, answered, "lock not free in time");
        });
    }

    fn came_to_nothing(&mut self, outcome: &'static str) {
        let waited_ms = millis(self.end(outcome));
        let (lock, kind) = (self.lock.as_deref(), self.kind.as_str());
        self.tell_in_span(|| {
            debug!(name: "watchlock.not_acquired", target: TARGET, lock, kind, outcome, waited_ms, "lock not acquired");
        });
    }

    fn tell(&self, tell: impl FnOnce(&Span)) {
        shielded(|| tell(&self.span));
    }

    fn tell_in_span(&self, tell: impl FnOnce()) {
        shielded(|| self.span.in_scope(tell));
    }

    fn end(&mut self, outcome: &'static str) -> Duration {
        let (kind, waited) = (self.kind.as_str(), self.since.elapsed());
        self.ended = true;
        self.tell(|span| {
            span.record("outcome", outcome);
        });
        let labels = [("kind", kind), ("outcome", outcome)];
        meters::count(meters::ACQUIRES, 1, &labels);
        meters::time(meters::WAIT, waited, &labels);
        meters::change(meters::WAITING, -1.0, &[("kind", kind)]);
        waited
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.came_to_nothing("cancelled");
        }
        let span = std::mem::replace(&mut self.span, Span::none());
        // Its subscriber is told that it is closed.
        shielded(|| drop(span));
    }
}

fn outcome(error: &AcquireError) -> &'static str {
    match error {
        AcquireError::Invalid(_) => "invalid",
        AcquireError::Timeout { .. } => "timeout",
        AcquireError::Held { .. } => "busy",
        AcquireError::KindMismatch(_) => "used_otherwise",
        AcquireError::Server(_) => "failed",
        AcquireError::NoDocument { .. } => "no_document",
        AcquireError::Unreadable { .. } => "unreadable",
        AcquireError::Unclaimable { .. } => "unclaimable",
        AcquireError::Closed => "closed",
    }
}

/// Somebody has it no more, after so long.
pub(crate) fn ended(lock: &str, kind: Kind, token: FencingToken, reason: LostReason, held: Duration) {
    let (kind, token, end, held_ms) = (kind.as_str(), token.as_i64(), lost(reason), millis(held));
    if reason == LostReason::Released {
        shielded(|| debug!(name: "watchlock.released", target: TARGET, lock, kind, token, held_ms, "lock released"));
    } else {
        shielded(
            || warn!(name: "watchlock.lost", target: TARGET, lock, kind, token, reason = end, held_ms, "lock lost"),
        );
        meters::count(meters::LOSSES, 1, &[("kind", kind), ("reason", end)]);
    }
    meters::time(meters::HOLD, held, &[("kind", kind), ("end", end)]);
    meters::change(meters::HELD, -1.0, &[("kind", kind)]);
}

fn lost(reason: LostReason) -> &'static str {
    match reason {
        LostReason::Expired => "expired",
        LostReason::Broken => "broken",
        LostReason::Adopted => "adopted",
        LostReason::Overwritten => "overwritten",
        LostReason::Deleted => "deleted",
        LostReason::Forked => "forked",
        LostReason::Released => "released",
    }
}

/// A release was refused, or could not be confirmed for the time of a lease.
pub(crate) fn release_failed(lock: &str, error: &ServerError) {
    let (error, source) = (failure(error.store()), Source(error.store()));
    shielded(|| warn!(name: "watchlock.release_failed", target: TARGET, lock, error, %source, "release not confirmed"));
}

/// A document can't be claimed, and is passed over for a while.
pub(crate) fn passed_over(document: &str, why: &(dyn StdError + Send + Sync + 'static)) {
    match why.downcast_ref::<StoreError>() {
        Some(error) => {
            let (error, source) = (failure(error), Source(error));
            warn!(name: "watchlock.passed_over", target: TARGET, lock = document, error, %source, "document can't be claimed");
        }
        // The text may quote the document.
        None => {
            let error = "unreadable";
            warn!(name: "watchlock.passed_over", target: TARGET, lock = document, error, "document can't be claimed");
        }
    }
    meters::count(meters::PASSED_OVER, 1, &[]);
}

/// So many locks were renewed in one command.
pub(crate) fn renewed(locks: u64) {
    meters::count(meters::RENEWALS, locks, &[("outcome", "renewed")]);
}

/// So many locks could not be renewed; they are held on, up to their deadlines.
pub(crate) fn renewal_failed(locks: usize, error: &StoreError) {
    let (locks, source, error) = (locks as u64, Source(error), failure(error));
    shielded(|| warn!(name: "watchlock.renewal_failed", target: TARGET, locks, error, %source, "renewal failed"));
    meters::count(meters::RENEWALS, locks, &[("outcome", "failed")]);
}

/// So many locks were refused, alone among those that were renewed with them.
pub(crate) fn renewals_refused(locks: usize) {
    meters::count(meters::RENEWALS, locks as u64, &[("outcome", "failed")]);
}

/// The server refuses to renew this lock: told once, until it is renewed again.
pub(crate) fn renewal_refused(lock: &str, error: &StoreError) {
    let (error, source) = (failure(error), Source(error));
    shielded(|| warn!(name: "watchlock.renewal_refused", target: TARGET, lock, error, %source, "renewal refused"));
}

/// The server's clock was set, or is another's, by more than the margin that deadlines have for it.
pub(crate) fn clock_jumped(by: Duration, ahead: bool) {
    let by_ms = millis(by);
    shielded(|| warn!(name: "watchlock.clock_jumped", target: TARGET, by_ms, ahead, "the server's clock jumped"));
    meters::count(meters::JUMPS, 1, &[("direction", if ahead { "ahead" } else { "back" })]);
}

/// Somebody put the holders of a lock out through this client.
pub(crate) fn broke(lock: &str) {
    shielded(|| info!(name: "watchlock.broke", target: TARGET, lock, "lock broken"));
    meters::count(meters::BREAKS, 1, &[]);
}

/// A client was built, or begins to lock the documents of a collection.
pub(crate) fn session_began(mode: WakeMode) {
    meters::describe();
    meters::change(meters::SESSIONS, 1.0, &mode_labels(mode));
}

pub(crate) fn session_ended(mode: WakeMode) {
    meters::change(meters::SESSIONS, -1.0, &mode_labels(mode));
}

pub(crate) fn wake_mode(before: WakeMode, mode: WakeMode) {
    let [(_, wake_mode), (_, reason)] = mode_labels(mode);
    let reason = (!reason.is_empty()).then_some(reason);
    shielded(|| info!(name: "watchlock.wake_mode", target: TARGET, mode = wake_mode, reason, "wake mode changed"));
    meters::change(meters::SESSIONS, -1.0, &mode_labels(before));
    meters::change(meters::SESSIONS, 1.0, &mode_labels(mode));
}

/// The reason of a stream is empty, so that both modes have the same labels.
fn mode_labels(mode: WakeMode) -> [(&'static str, &'static str); 2] {
    let (mode, reason) = match mode {
        WakeMode::ChangeStream => ("change_stream", ""),
        WakeMode::Polling(PollingReason::Configured) => ("polling", "configured"),
        WakeMode::Polling(PollingReason::Standalone) => ("polling", "standalone"),
        WakeMode::Polling(PollingReason::NotPermitted) => ("polling", "not_permitted"),
        WakeMode::Polling(PollingReason::Interrupted) => ("polling", "interrupted"),
        WakeMode::Polling(PollingReason::StreamLimit) => ("polling", "stream_limit"),
    };
    [("mode", mode), ("reason", reason)]
}

/// A change stream was opened; `resumed`: where an earlier one broke, so that nothing was missed.
pub(crate) fn stream_opened(stream: StreamOf, resumed: bool) {
    let stream = stream.as_str();
    shielded(|| debug!(name: "watchlock.stream_opened", target: TARGET, stream, resumed, "change stream opened"));
}

/// A change stream broke, or gave no sign of life; it is re-opened.
pub(crate) fn stream_interrupted(stream: StreamOf, error: Option<&StoreError>) {
    let (stream, source) = (
        stream.as_str(),
        error.map(|error| tracing::field::display(Source(error))),
    );
    let error = error.map_or("silent", failure);
    shielded(
        || info!(name: "watchlock.stream_interrupted", target: TARGET, stream, error, source, "change stream interrupted"),
    );
    meters::count(meters::INTERRUPTIONS, 1, &[("stream", stream), ("error", error)]);
}

/// What a change stream tells of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamOf {
    /// Grants and losses.
    Locks,
    /// The same, and documents that become free to be claimed.
    Claims,
    /// What observers see.
    Observers,
}

impl StreamOf {
    fn as_str(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Claims => "claims",
            Self::Observers => "observers",
        }
    }
}

/// A document in the collection of the locks is not that of a lock; it is passed over.
pub(crate) fn unreadable(name: &str, problem: &str) {
    shielded(
        || warn!(name: "watchlock.unreadable", target: TARGET, lock = name, problem, "document is not that of a lock"),
    );
}

/// The index that purges idle locks could not be made.
pub(crate) fn index_missing(error: &StoreError) {
    let (error, source) = (failure(error), Source(error));
    shielded(
        || warn!(name: "watchlock.index_missing", target: TARGET, error, %source, "idle locks stay, as the index is missing"),
    );
}

/// A candidate stands no more, though nobody withdrew it.
pub(crate) fn candidacy_ended(lock: &str, error: &CandidacyError) {
    // A name that was refused can be of any size.
    let lock = check_name(lock).map_or("", |()| lock);
    shielded(|| warn!(name: "watchlock.candidacy_ended", target: TARGET, lock, source = %error, "candidacy ended"));
}

/// The server could not be reached for an operation, or refused it. What is done about it is told elsewhere.
pub(crate) fn operation_failed(operation: &'static str, lock: Option<&str>, error: &StoreError) {
    let (source, error) = (Source(error), failure(error));
    shielded(
        || debug!(name: "watchlock.operation_failed", target: TARGET, operation, lock, error, %source, "operation failed"),
    );
    meters::count(meters::ERRORS, 1, &[("operation", operation), ("error", error)]);
}

/// What an operation on one lock is for.
pub(crate) fn purpose(operation: &Operation) -> &'static str {
    if operation.evict != Evict::Nobody {
        "break"
    } else if operation.proclaim.is_some() {
        "proclaim"
    } else if operation.requests.is_some() {
        "request"
    } else {
        "release"
    }
}

fn failure(error: &StoreError) -> &'static str {
    match error.kind {
        Failure::Raced => "raced",
        Failure::Unavailable => "unavailable",
        Failure::Refused => "refused",
    }
}

/// What is behind an error: of the server's its code and the name of that, of others the text, without any answer.
struct Source<'a>(&'a StoreError);

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code_name(), self.0.code()) {
            (Some(name), Some(code)) => write!(f, "{name} ({code})"),
            (None, Some(code)) => write!(f, "code {code}"),
            (_, None) => self.0.cause().fmt(f),
        }
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use super::*;

    #[test]
    fn the_text_of_the_driver_is_told_without_what_surrounds_it() {
        let driver = mongodb::error::Error::from(io::Error::other("connection reset"));
        assert!(driver.to_string().contains("server response"), "{driver}");
        let driver = Source(&driver.into()).to_string();
        assert!(
            driver.contains("connection reset") && !driver.contains("server response"),
            "{driver}"
        );
        let other = StoreError {
            kind: Failure::Unavailable,
            source: Arc::new(io::Error::other("no answer")),
        };
        assert_eq!(Source(&other).to_string(), "no answer");
    }
}
