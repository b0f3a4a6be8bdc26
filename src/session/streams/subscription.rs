//! A subscription: a change stream that is opened, opened anew when it breaks, and given up when it goes silent.
//!
//! It knows which errors are final and how long to pause. Its consumer only decides what to do when a stream is open, when
//! it is not, and with each batch.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until, timeout_at},
};

use super::failover_detector::Primary;
use crate::{
    backoff::{Backoff, LONGEST_PAUSE},
    error::ServerError,
    store::{AWAIT_TIME, Detached, Elected, Event, Failure, LogTime, ResumeAt, Stream, Watched, detached},
    telemetry,
    wake_mode::PollingReason,
};

/// Longest silence of an open stream, which gives a sign of life at least once in the await time. A stream that is
/// overdue by half a second is dropped. This is the back-stop of `failover_detector`, which explains such silences.
const SILENT: Duration = AWAIT_TIME.saturating_add(Duration::from_millis(500));

/// Time after which the first attempt to open a stream, after none or one that was open, is given up: it can hang on a
/// server that is gone, although another stands already. Until then the consumer takes a stream that was open for open.
const OPENED_WITHIN: Duration = Duration::from_secs(2);

/// Pause before the next try where the server has no change streams or does not permit them: both can change.
const UNAVAILABLE: Duration = Duration::from_secs(30);

/// A stream, and the events that it reports.
pub(in crate::session) type Opened = Result<(Stream, Watched), ServerError>;

/// Opens a stream from now on, or after the last event of another one.
pub(in crate::session) type Opener = Box<dyn Fn(Option<ResumeAt>) -> BoxFuture<'static, Opened> + Send + Sync>;

/// A report of a subscription.
#[derive(Debug)]
pub(in crate::session) enum News {
    /// A stream of this is open. Events of the time before may have been missed, unless it goes on where another one was
    /// turned.
    Opened { watched: Watched, is_gap: bool },
    /// Events; none of them is a sign of life.
    Events(Vec<Event>),
    /// No stream is open, for this reason; the subscription goes on trying.
    Closed(PollingReason),
}

/// A change stream that comes back.
pub(in crate::session) struct Subscription {
    open: Opener,
    /// The position after the last event of a stream that was closed for another selection of events. A stream that
    /// broke is not resumed: whatever its events would have told is asked for and read once there is another.
    resume: Option<ResumeAt>,
    /// The pauses between openings. The first opening, and the first after a stream that has earned it, come without
    /// one.
    backoff: Backoff,
    /// Attempts that failed since a stream was open last: at a slow server, and while the members of a replica set look
    /// for each other, every attempt takes long.
    failures: u32,
    phase: Phase,
}

enum Phase {
    /// The next attempt to open the stream begins then.
    Paused(Instant),
    /// An attempt is on its way.
    Opening {
        attempt: Detached<Opened>,
        /// When it is given up: it closes the stream that it opens.
        until: Instant,
    },
    /// Events arrive.
    Open {
        stream: Stream,
        since: Instant,
        /// When the batch that is asked for is overdue.
        overdue_at: Option<Instant>,
        /// The election of the primary, as it was found first since the opening.
        elected: Option<Elected>,
    },
}

impl Subscription {
    /// Creates a subscription. It opens nothing before the first [`next`](Self::next).
    pub(in crate::session) fn new(open: Opener) -> Self {
        Self {
            open,
            resume: None,
            backoff: Backoff::default(),
            failures: 0,
            phase: Phase::Paused(Instant::now()),
        }
    }

    /// Goes on with what is to be watched by now, after the last event of the stream so far. What came with the opening
    /// is told first: otherwise needs that change with each opening would keep all events back.
    pub(in crate::session) fn turn(&mut self) {
        if let Phase::Open { stream, .. } = &self.phase
            && !stream.has_untold()
        {
            self.resume = stream.resume_at();
            self.close();
        }
    }

    /// Closes the stream. The next call to [`next`](Self::next) opens it anew from its time on, no sooner than it would
    /// have been opened otherwise.
    pub(in crate::session) fn suspend(&mut self) {
        self.close();
        self.resume = None;
    }

    fn close(&mut self) {
        self.earn();
        if !matches!(self.phase, Phase::Paused(_)) {
            self.phase = Phase::Paused(Instant::now() + self.backoff.pause());
        }
    }

    /// Resets the back-off of a stream that has lived for ten times the longest pause, and more than a silence. One that
    /// breaks sooner, again and again, is opened at the pace of the longest pause.
    fn earn(&mut self) {
        if let Phase::Open { since, .. } = &self.phase
            && since.elapsed() >= LONGEST_PAUSE * 10
        {
            self.backoff = Backoff::default();
        }
    }

    /// Returns the time in the log up to which the stream has reported all events.
    pub(in crate::session) fn as_of(&self) -> Option<LogTime> {
        match &self.phase {
            Phase::Open { stream, .. } => stream.as_of(),
            _ => None,
        }
    }

    /// Waits for the next report. Cancel safe: no event is lost when the future is dropped, and no attempt is made
    /// twice.
    pub(in crate::session) async fn next(&mut self) -> News {
        loop {
            match &mut self.phase {
                Phase::Paused(until) => {
                    sleep_until(*until).await;
                    let attempt = detached(&Handle::current(), (self.open)(self.resume.clone()));
                    let until = Instant::now() + OPENED_WITHIN * (self.failures.min(15) + 1);
                    self.phase = Phase::Opening { attempt, until };
                }
                Phase::Opening { attempt, until } => {
                    let opened = timeout_at(*until, attempt).await;
                    self.failures = self.failures.saturating_add(1);
                    return match opened {
                        Ok(Ok(Ok((stream, watched)))) => self.opened(stream, watched),
                        Ok(Ok(Err(error))) => self.failed(&error),
                        Ok(Err(_)) | Err(_) => self.pause(PollingReason::Interrupted),
                    };
                }
                Phase::Open { stream, overdue_at, .. } => {
                    let until = *overdue_at.get_or_insert_with(|| Instant::now() + SILENT);
                    let batch = timeout_at(until, stream.next()).await;
                    *overdue_at = None;
                    match batch {
                        Ok(Ok(events)) => return News::Events(events),
                        Ok(Err(error)) => return self.broke(Some(&error)),
                        // In memory nothing is overdue.
                        Err(_) if matches!(stream, Stream::Memory(_)) => {}
                        Err(_) => return self.broke(None),
                    }
                }
            }
        }
    }

    /// Has the stream opened anew if there is another primary than when it was opened.
    pub(in crate::session) fn heed(&mut self, primary: Option<Primary>) {
        if let Phase::Open { since, elected, .. } = &mut self.phase
            && let Some((_, found)) = primary.filter(|(asked, _)| asked >= since)
            && *elected.get_or_insert(found) != found
        {
            self.close();
        }
    }

    fn opened(&mut self, stream: Stream, watched: Watched) -> News {
        telemetry::stream_opened();
        self.failures = 0;
        self.phase = Phase::Open {
            stream,
            since: Instant::now(),
            overdue_at: None,
            elected: None,
        };
        let is_gap = self.resume.take().is_none();
        News::Opened { watched, is_gap }
    }

    fn failed(&mut self, error: &ServerError) -> News {
        let reason = why_polling(error);
        if reason == PollingReason::Interrupted {
            return self.pause(reason);
        }
        self.resume = None;
        self.phase = Phase::Paused(Instant::now() + UNAVAILABLE);
        News::Closed(reason)
    }

    fn broke(&mut self, error: Option<&ServerError>) -> News {
        telemetry::stream_interrupted(error);
        self.earn();
        self.pause(PollingReason::Interrupted)
    }

    fn pause(&mut self, reason: PollingReason) -> News {
        self.resume = None;
        self.phase = Phase::Paused(Instant::now() + self.backoff.pause());
        self.backoff.failed();
        News::Closed(reason)
    }
}

/// Returns why a client polls, by codes of the server: an aggregation without a stage for it, as it is no replica set
/// (40573, and 40324 for an unknown stage), and a missing permission (13).
fn why_polling(error: &ServerError) -> PollingReason {
    match (error.kind, error.code()) {
        (Failure::Refused, Some(40573 | 40324)) => PollingReason::Standalone,
        (Failure::Refused, Some(13)) => PollingReason::NotPermitted,
        _ => PollingReason::Interrupted,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;
    use crate::{store::MemoryStore, tests::decoding::error};

    const STANDALONE: i32 = 40_573;
    const NOT_PERMITTED: i32 = 13;
    const HISTORY_LOST: i32 = 286;
    const UNREACHABLE: i32 = 6;

    /// No answer at all.
    const SILENCE: i32 = -1;

    /// A server that answers each opening with the next of these codes, or opens the stream.
    struct Server {
        memory: MemoryStore,
        answers: Mutex<Vec<i32>>,
        openings: AtomicUsize,
    }

    impl Server {
        fn new(mut answers: Vec<i32>) -> Arc<Self> {
            answers.reverse();
            Arc::new(Self {
                memory: MemoryStore::default(),
                answers: Mutex::new(answers),
                openings: AtomicUsize::new(0),
            })
        }

        fn subscribe(self: &Arc<Self>) -> Subscription {
            let server = self.clone();
            let open = move |_| {
                let server = server.clone();
                Box::pin(async move {
                    server.openings.fetch_add(1, Ordering::Relaxed);
                    let answer = server.answers.lock().unwrap().pop();
                    match answer {
                        Some(SILENCE) => pending().await,
                        Some(code) => Err(error(code)),
                        None => {
                            let stream = server.memory.watch("0123456789abcdef", Watched::default());
                            Ok((Stream::Memory(stream), Watched::default()))
                        }
                    }
                }) as _
            };
            Subscription::new(Box::new(open))
        }
    }

    async fn closed(subscription: &mut Subscription) -> PollingReason {
        match subscription.next().await {
            News::Closed(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn opened(subscription: &mut Subscription) {
        let news = subscription.next().await;
        assert!(matches!(news, News::Opened { .. }), "{news:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn openings_become_rare_whatever_the_error_is() {
        for code in [HISTORY_LOST, UNREACHABLE, 2] {
            let server = Server::new(vec![code; 10]);
            let mut subscription = server.subscribe();
            let begin = Instant::now();
            for _ in 0..10 {
                assert_eq!(closed(&mut subscription).await, PollingReason::Interrupted, "{code}");
            }
            // Pauses of 0, 50, 100, 200, 400 and 800 ms, and of a second.
            assert_eq!(begin.elapsed(), Duration::from_millis(1_550 + 3_000), "{code}");
            opened(&mut subscription).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_opened_anew_at_another_primary() {
        let server = Server::new(Vec::new());
        let mut subscription = server.subscribe();
        let is_open_after = |subscription: &mut Subscription, asked, term: u8| {
            subscription.heed(Some((asked, Elected::from([term; 12]))));
            matches!(subscription.phase, Phase::Open { .. })
        };
        let before = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        opened(&mut subscription).await;
        let opened_at = Instant::now();
        for (asked, term) in [(before, 1), (opened_at, 2), (before, 3), (opened_at, 2)] {
            assert!(is_open_after(&mut subscription, asked, term));
        }
        assert!(!is_open_after(&mut subscription, opened_at, 3));
        opened(&mut subscription).await;
        assert_eq!(server.openings.load(Ordering::Relaxed), 2);
        assert!(
            is_open_after(&mut subscription, Instant::now(), 3),
            "it is of this primary"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_breaks_young_has_not_earned_a_fresh_back_off() {
        let server = Server::new(Vec::new());
        let mut subscription = server.subscribe();
        let mut pauses = Vec::new();
        for lived in [0, 0, 9, 0, 10, 0] {
            let begin = Instant::now();
            opened(&mut subscription).await;
            pauses.push(begin.elapsed().as_millis());
            tokio::time::sleep(Duration::from_secs(lived)).await;
            subscription.broke(Some(&error(HISTORY_LOST)));
        }
        assert_eq!(pauses, [0, 0, 50, 100, 200, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_can_be_no_stream_it_is_tried_again_after_a_while() {
        for (code, reason) in [
            (STANDALONE, PollingReason::Standalone),
            (NOT_PERMITTED, PollingReason::NotPermitted),
        ] {
            let mut subscription = Server::new(vec![code]).subscribe();
            let begin = Instant::now();
            assert_eq!(closed(&mut subscription).await, reason);
            // Nobody who comes to need the stream hurries it.
            subscription.suspend();
            opened(&mut subscription).await;
            assert_eq!(begin.elapsed(), UNAVAILABLE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_an_answer_is_given_up_for_another() {
        let server = Server::new(vec![SILENCE; 5]);
        let mut subscription = server.subscribe();
        let begin = Instant::now();
        let mut given_up = Vec::new();
        for _ in 0..5 {
            assert_eq!(closed(&mut subscription).await, PollingReason::Interrupted);
            given_up.push(begin.elapsed().as_millis());
        }
        // Each has two seconds more than the one before, with pauses of 0, 50, 100 and 200 ms.
        assert_eq!(given_up, [2_000, 6_000, 12_050, 20_150, 30_350]);
        opened(&mut subscription).await;
    }

    /// Nobody polls or reads meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_opened_anew_and_hangs_is_told_soon_however_often_it_failed_before() {
        let server = Server::new(vec![UNREACHABLE; 12]);
        let mut subscription = server.subscribe();
        for _ in 0..12 {
            closed(&mut subscription).await;
        }
        opened(&mut subscription).await;
        for term in [1, 2] {
            subscription.heed(Some((Instant::now(), Elected::from([term; 12]))));
        }
        server.answers.lock().unwrap().push(SILENCE);
        let begun = Instant::now();
        closed(&mut subscription).await;
        // The pause is that of a stream that lived for no time.
        assert_eq!(begun.elapsed(), LONGEST_PAUSE + OPENED_WITHIN);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_for_news_misses_none() {
        let server = Server::new(vec![UNREACHABLE; 3]);
        let mut subscription = server.subscribe();
        let mut news = 0;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            if let Ok(next) = tokio::time::timeout(Duration::from_millis(7), subscription.next()).await {
                news += 1;
                if matches!(next, News::Opened { .. }) {
                    break;
                }
            }
        }
        assert_eq!((news, server.openings.load(Ordering::Relaxed)), (4, 4));
    }
}
