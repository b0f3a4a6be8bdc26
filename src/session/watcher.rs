//! The one change stream of a session: opened when somebody needs it, re-opened when it breaks or goes silent.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Session,
    stream::{Opening, SILENT},
};
use crate::{
    store::{Event, Failure, ResumeAt, StoreError, Stream},
    telemetry::{self, StreamOf},
    wake_mode::{PollingReason, WakeMode},
};

/// Pauses between tries to open the stream: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often it is tried again where the server has no change streams or does not permit them: both can change.
const UNAVAILABLE: Duration = Duration::from_secs(30);

/// A stream that nobody needs is closed after this, so that short pauses don't cost opening it again.
const LINGER: Duration = Duration::from_secs(30);

/// Where the watcher stands.
enum Phase {
    /// Nobody waits and nobody holds for long: no stream is open.
    Idle,
    /// A stream is wanted; it takes up after the last event where that is known.
    Opening {
        opening: Opening<Stream<Event>>,
        resume: Option<ResumeAt>,
        pause: Duration,
    },
    /// Events arrive.
    Streaming(Stream<Event>),
}

/// Runs until the session ends.
///
/// # Recovery
///
/// After every opening all waiters ask again and all holds are verified, whatever was missed meanwhile. While no stream
/// is open the lines poll.
pub(super) async fn run(session: Weak<Session>, mut demand: watch::Receiver<bool>, ended: CancellationToken) {
    let steps = async {
        let mut phase = Phase::Idle;
        loop {
            phase = match phase {
                Phase::Idle => {
                    if demand.wait_for(|demand| *demand).await.is_err() {
                        return;
                    }
                    Phase::Opening {
                        opening: Opening::new(),
                        resume: None,
                        pause: BACKOFF.0,
                    }
                }
                Phase::Opening { opening, resume, pause } => {
                    let Some(session) = session.upgrade() else { return };
                    session.open_stream(opening, resume, pause).await
                }
                Phase::Streaming(stream) => {
                    let Some(next) = pump(&session, stream).await else {
                        return;
                    };
                    next
                }
            };
        }
    };
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        () = steps => {}
    }
}

/// Routes events until the stream ends or nobody needs it; `None` when the session is gone.
async fn pump(session: &Weak<Session>, mut stream: Stream<Event>) -> Option<Phase> {
    let mut needed_at = Instant::now();
    loop {
        let batch = tokio::time::timeout(SILENT, stream.next()).await;
        let session = session.upgrade()?;
        let error = match batch {
            Ok(Ok(events)) => {
                events.iter().for_each(|event| session.on_event(event));
                if session.needs_stream() {
                    needed_at = Instant::now();
                } else if needed_at.elapsed() >= LINGER
                    && let Some(idle) = session.close_stream()
                {
                    return Some(idle);
                }
                continue;
            }
            Ok(Err(error)) => Some(error),
            // In memory there is nothing to be overdue.
            Err(_) if matches!(stream, Stream::Memory(_)) => continue,
            Err(_) => None,
        };
        let resume = match &error {
            // What the server refuses to continue (its history is lost, an event is too large) starts from now.
            Some(error) if error.is_final() => None,
            _ => stream.resume_at(),
        };
        telemetry::stream_interrupted(StreamOf::Locks, error.as_ref());
        session.streams(false);
        session.set_mode(WakeMode::Polling(PollingReason::Interrupted));
        session.on_gap();
        return Some(Phase::Opening {
            opening: Opening::new(),
            resume,
            pause: BACKOFF.0,
        });
    }
}

impl Session {
    async fn open_stream(
        self: Arc<Self>,
        mut opening: Opening<Stream<Event>>,
        resume: Option<ResumeAt>,
        pause: Duration,
    ) -> Phase {
        let attempt = {
            let (session, resume) = (self.clone(), resume.clone());
            async move { session.store.watch(session.ids.session(), resume.as_ref()).await }
        };
        let error = match opening.attempt(attempt).await {
            Some(Ok(stream)) => {
                telemetry::stream_opened(StreamOf::Locks, resume.is_some());
                self.streams(true);
                self.set_mode(WakeMode::ChangeStream);
                self.on_gap();
                return Phase::Streaming(stream);
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        let reason = error.as_ref().map_or(PollingReason::Interrupted, why_polling);
        let resume = resume.filter(|_| error.is_none_or(|error| !error.is_final()));
        self.set_mode(WakeMode::Polling(reason));
        let pause_now = if reason == PollingReason::Interrupted {
            pause
        } else {
            UNAVAILABLE
        };
        let session = Arc::downgrade(&self);
        drop(self);
        tokio::time::sleep(pause_now).await;
        let Some(session) = session.upgrade() else {
            return Phase::Idle;
        };
        if let Some(idle) = session.close_stream() {
            return idle;
        }
        Phase::Opening {
            opening,
            resume,
            pause: (pause * 2).min(BACKOFF.1),
        }
    }

    fn needs_stream(&self) -> bool {
        !self.table().lines.by_name.is_empty()
    }

    /// Lets the stream go, unless somebody has come to need it.
    fn close_stream(&self) -> Option<Phase> {
        // Who comes to need it says so under the same lock.
        let mut table = self.table();
        if !table.lines.by_name.is_empty() {
            return None;
        }
        table.streaming = false;
        self.demand.send_replace(false);
        Some(Phase::Idle)
    }

    fn streams(&self, streaming: bool) {
        self.table().streaming = streaming;
    }
}

/// Codes of the server: an aggregation it has no stage for as it is no replica set (40573, and 40324 for an unknown
/// stage), and what it does not permit (13).
fn why_polling(error: &StoreError) -> PollingReason {
    match (error.kind, error.code()) {
        (Failure::Refused, Some(40573 | 40324)) => PollingReason::Standalone,
        (Failure::Refused, Some(13)) => PollingReason::NotPermitted,
        _ => PollingReason::Interrupted,
    }
}
