//! A subscription: a change stream that is opened, resumed where it broke, and given up when it goes silent.
//!
//! Grants, claims and observers read their events through it, so that all of them keep the same rules: which errors
//! are final, how long to pause, and how many streams the client may have open at once. The consumer only decides what
//! to do when a stream is open, when it is not, and with each batch.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    budget::{Permit, StreamBudget},
    opening::Opening,
    suspicion::Sign,
};
use crate::{
    backoff::Backoff,
    error::ServerError,
    store::{AWAIT_TIME, Elected, Failure, ResumeAt, Stream},
    telemetry::{self, StreamOf},
    wake_mode::PollingReason,
};

/// Longest silence of an open stream, which gives a sign of life at least once in the await time. A stream that is
/// overdue by half a second is dropped. This is the back-stop of `suspicion`, which explains such silences.
const SILENT: Duration = AWAIT_TIME.saturating_add(Duration::from_millis(500));

/// Time after the opening of a stream, or after events, in which the next batch is expected where there is much to
/// tell. If none comes, the stream is quiet, or its server is gone: see `suspicion`.
const QUIET: Duration = Duration::from_secs(1);

/// Age at which a stream has earned a fresh back-off: ten times the longest pause, and more than a silence. A stream
/// that breaks sooner, again and again, is opened at the pace of the longest pause.
const EARNED: Duration = Duration::from_secs(10);

/// Pause before the next try where the server has no change streams or does not permit them: both can change.
const UNAVAILABLE: Duration = Duration::from_secs(30);

/// Opens a stream from now on, or after the last event of another one.
pub(in crate::session) type Opener<T> =
    Box<dyn Fn(Option<ResumeAt>) -> BoxFuture<'static, Result<Stream<T>, ServerError>> + Send + Sync>;

/// A report of a subscription.
#[derive(Debug)]
pub(in crate::session) enum News<T> {
    /// A stream is open. Events of the time before may have been missed.
    Opened,
    /// Events; none of them is a sign of life.
    Events(Vec<T>),
    /// Nothing has followed the opening or the last events for a second. Told once.
    Quiet,
    /// No stream is open, for this reason; the subscription goes on trying.
    Closed(PollingReason),
}

/// A change stream that comes back.
pub(in crate::session) struct Subscription<T> {
    of: StreamOf,
    open: Opener<T>,
    /// The client's budget, if the stream counts against it.
    budget: Option<Arc<StreamBudget>>,
    permit: Option<Permit>,
    opening: Opening<Stream<T>>,
    resume: Option<ResumeAt>,
    /// The pauses between openings. The first opening, and the first after a stream that has earned it, come without
    /// one.
    backoff: Backoff,
    phase: Phase<T>,
}

enum Phase<T> {
    /// Waits until there is room among the client's streams.
    Crowded,
    /// The next attempt to open the stream begins then.
    Paused(Instant),
    /// An attempt is on its way.
    Opening,
    /// Events arrive.
    Open {
        stream: Stream<T>,
        since: Instant,
        /// When it said something last.
        heard_at: Instant,
        /// When the batch that is asked for is overdue.
        overdue_at: Option<Instant>,
        /// Whether there were events since it was quiet last.
        busy: bool,
        /// The election of the primary, as it was found first since the opening.
        elected: Option<Elected>,
    },
}

impl<T: Send + 'static> Subscription<T> {
    /// Creates a subscription. It opens nothing before the first [`next`](Self::next).
    pub(in crate::session) fn new(of: StreamOf, budget: Option<Arc<StreamBudget>>, open: Opener<T>) -> Self {
        Self {
            of,
            open,
            budget,
            permit: None,
            opening: Opening::new(),
            resume: None,
            backoff: Backoff::default(),
            phase: Phase::Paused(Instant::now()),
        }
    }

    /// Goes on with another selection of events, after the last event of the stream so far.
    pub(in crate::session) fn turn(&mut self, of: StreamOf, open: Opener<T>) {
        if let Phase::Open { stream, .. } = &self.phase {
            self.resume = stream.resume_at();
        }
        self.close();
        self.of = of;
        self.open = open;
    }

    /// Closes the stream, and makes room for others. The next call to [`next`](Self::next) opens it anew from its time
    /// on, no sooner than it would have been opened otherwise.
    pub(in crate::session) fn suspend(&mut self) {
        self.close();
        self.resume = None;
        self.permit = None;
    }

    fn close(&mut self) {
        self.earn();
        // Attempts that are on their way close the streams that they open.
        self.opening = Opening::new();
        if !matches!(self.phase, Phase::Paused(_)) {
            self.phase = Phase::Paused(Instant::now() + self.backoff.pause());
        }
    }

    /// Resets the back-off of a stream that has lived for a while.
    fn earn(&mut self) {
        if let Phase::Open { since, .. } = &self.phase
            && since.elapsed() >= EARNED
        {
            self.backoff = Backoff::default();
        }
    }

    /// Whether other streams of the client wait for the room that this one takes.
    pub(in crate::session) fn is_in_the_way(&self) -> bool {
        self.permit.is_some() && self.budget.as_ref().is_some_and(|budget| budget.is_wanted())
    }

    /// Waits for the next report. Cancel safe: no event is lost when the future is dropped, and no attempt is made
    /// twice.
    pub(in crate::session) async fn next(&mut self) -> News<T> {
        loop {
            match &mut self.phase {
                Phase::Crowded => {
                    if let Some(budget) = &self.budget {
                        self.permit = Some(budget.acquire().await);
                    }
                    self.phase = Phase::Paused(Instant::now());
                }
                Phase::Paused(until) => {
                    sleep_until(*until).await;
                    if let (None, Some(budget)) = (&self.permit, &self.budget) {
                        self.permit = budget.try_acquire();
                        if self.permit.is_none() {
                            self.phase = Phase::Crowded;
                            return News::Closed(PollingReason::StreamLimit);
                        }
                    }
                    self.phase = Phase::Opening;
                }
                Phase::Opening => {
                    let (open, resume) = (&self.open, &self.resume);
                    let opened = self.opening.attempt(|| open(resume.clone())).await;
                    return match opened {
                        Some(Ok(stream)) => self.opened(stream),
                        Some(Err(error)) => self.failed(&error),
                        None => self.pause(PollingReason::Interrupted),
                    };
                }
                Phase::Open {
                    stream,
                    heard_at,
                    overdue_at,
                    busy,
                    ..
                } => {
                    let overdue_at_now = *overdue_at.get_or_insert_with(|| Instant::now() + SILENT);
                    let quiet_at = *heard_at + QUIET;
                    let until = if *busy {
                        overdue_at_now.min(quiet_at)
                    } else {
                        overdue_at_now
                    };
                    let batch = timeout_at(until, stream.next()).await;
                    if batch.is_err() && until < overdue_at_now {
                        *busy = false;
                        return News::Quiet;
                    }
                    let silent = batch.is_err() && !matches!(stream, Stream::Memory(_));
                    *overdue_at = None;
                    match batch {
                        Ok(Ok(events)) => {
                            *heard_at = Instant::now();
                            *busy |= !events.is_empty();
                            return News::Events(events);
                        }
                        Ok(Err(error)) => return self.broke(Some(&error)),
                        Err(_) if silent => return self.broke(None),
                        // In memory nothing is overdue.
                        Err(_) => {}
                    }
                }
            }
        }
    }

    /// Gives the stream up if it has said nothing since a fail-over; takes it up at another primary if it has said
    /// nothing since that one was found.
    pub(in crate::session) fn heed(&mut self, sign: &Sign) -> Option<News<T>> {
        let Phase::Open {
            stream,
            since,
            heard_at,
            elected,
            ..
        } = &mut self.phase
        else {
            return None;
        };
        match *sign {
            Sign::FailedOver(at) => (*heard_at < at).then(|| self.broke(None)),
            Sign::Primary(asked, _) if asked < *since => None,
            Sign::Primary(asked, found) => {
                if *elected.get_or_insert(found) != found && *heard_at < asked {
                    self.resume = stream.resume_at();
                    self.close();
                }
                None
            }
        }
    }

    fn opened(&mut self, stream: Stream<T>) -> News<T> {
        telemetry::stream_opened(self.of, self.resume.is_some());
        // Leftover attempts close themselves.
        self.opening = Opening::new();
        let now = Instant::now();
        self.phase = Phase::Open {
            stream,
            since: now,
            heard_at: now,
            overdue_at: None,
            busy: true,
            elected: None,
        };
        News::Opened
    }

    fn failed(&mut self, error: &ServerError) -> News<T> {
        if error.is_final() {
            // Its history is lost, or the server refuses to resume from there for another reason: the next one starts
            // afresh.
            self.resume = None;
        }
        let reason = why_polling(error);
        if reason == PollingReason::Interrupted {
            return self.pause(reason);
        }
        // Other streams may be permitted while this one is not.
        self.permit = None;
        self.phase = Phase::Paused(Instant::now() + UNAVAILABLE);
        News::Closed(reason)
    }

    fn broke(&mut self, error: Option<&ServerError>) -> News<T> {
        telemetry::stream_interrupted(self.of, error);
        self.earn();
        if let Phase::Open { stream, .. } = &self.phase {
            self.resume = stream
                .resume_at()
                .filter(|_| error.is_none_or(|error| !error.is_final()));
        }
        self.pause(PollingReason::Interrupted)
    }

    fn pause(&mut self, reason: PollingReason) -> News<T> {
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
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::store::{MemoryStore, NamedSighting};
    use crate::tests::decoding::error;

    const STANDALONE: i32 = 40_573;
    const NOT_PERMITTED: i32 = 13;
    const HISTORY_LOST: i32 = 286;
    const UNREACHABLE: i32 = 6;

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

        fn subscribe(self: &Arc<Self>, budget: Option<&Arc<StreamBudget>>) -> Subscription<NamedSighting> {
            let server = self.clone();
            let open = move |_| {
                let server = server.clone();
                Box::pin(async move {
                    server.openings.fetch_add(1, Ordering::Relaxed);
                    match server.answers.lock().unwrap().pop() {
                        Some(code) => Err(error(code)),
                        None => Ok(server.memory.open()),
                    }
                }) as _
            };
            Subscription::new(StreamOf::Observers, budget.cloned(), Box::new(open))
        }
    }

    async fn closed(subscription: &mut Subscription<NamedSighting>) -> PollingReason {
        match subscription.next().await {
            News::Closed(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    async fn opened(subscription: &mut Subscription<NamedSighting>) {
        let mut news = subscription.next().await;
        while matches!(news, News::Quiet) {
            news = subscription.next().await;
        }
        assert!(matches!(news, News::Opened), "{news:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn openings_become_rare_whatever_the_error_is() {
        for code in [HISTORY_LOST, UNREACHABLE, 2] {
            let server = Server::new(vec![code; 10]);
            let mut subscription = server.subscribe(None);
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
    async fn a_suspect_stream_is_given_up_unless_it_has_said_something() {
        let server = Server::new(Vec::new());
        let mut subscription = server.subscribe(None);
        assert!(
            subscription.heed(&Sign::FailedOver(Instant::now())).is_none(),
            "there is none"
        );
        opened(&mut subscription).await;
        let before = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(
            subscription.heed(&Sign::FailedOver(before)).is_none(),
            "it was opened later"
        );
        let news = subscription.heed(&Sign::FailedOver(Instant::now()));
        assert!(
            matches!(news, Some(News::Closed(PollingReason::Interrupted))),
            "{news:?}"
        );
        opened(&mut subscription).await;
        assert_eq!(server.openings.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_after_news_is_told_once() {
        let server = Server::new(Vec::new());
        let mut subscription = server.subscribe(None);
        let began = Instant::now();
        opened(&mut subscription).await;
        let news = subscription.next().await;
        assert!(matches!(news, News::Quiet), "{news:?}");
        assert_eq!(began.elapsed(), QUIET);
        for _ in 0..5 {
            // Signs of life are no news.
            let news = subscription.next().await;
            assert!(matches!(&news, News::Events(none) if none.is_empty()), "{news:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_is_taken_up_at_another_primary() {
        let server = Server::new(Vec::new());
        let mut subscription = server.subscribe(None);
        let found = |subscription: &mut Subscription<NamedSighting>, asked, term: u8| {
            let news = subscription.heed(&Sign::Primary(asked, Elected([term; 12].into())));
            assert!(news.is_none(), "nobody polls for it: {news:?}");
        };
        let before = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        opened(&mut subscription).await;
        let opened_at = Instant::now();
        found(&mut subscription, before, 1);
        found(&mut subscription, opened_at, 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        found(&mut subscription, Instant::now(), 2);
        found(&mut subscription, opened_at, 3);
        assert!(
            matches!(subscription.phase, Phase::Open { .. }),
            "it was heard of since"
        );
        found(&mut subscription, Instant::now(), 3);
        opened(&mut subscription).await;
        assert_eq!(server.openings.load(Ordering::Relaxed), 2);
        found(&mut subscription, Instant::now(), 3);
        assert!(
            matches!(subscription.phase, Phase::Open { .. }),
            "it is of this primary"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_breaks_young_has_not_earned_a_fresh_back_off() {
        let server = Server::new(Vec::new());
        let mut subscription = server.subscribe(None);
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
            let (server, budget) = (Server::new(vec![code]), StreamBudget::new(2));
            let mut subscription = server.subscribe(Some(&budget));
            let begin = Instant::now();
            assert_eq!(closed(&mut subscription).await, reason);
            // Meanwhile others may have the room, and nobody who comes to need the stream hurries it.
            drop(budget.try_acquire().unwrap());
            subscription.suspend();
            opened(&mut subscription).await;
            assert_eq!(begin.elapsed(), UNAVAILABLE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_streams_are_open_than_the_client_may_have() {
        let (server, budget) = (Server::new(Vec::new()), StreamBudget::new(3));
        let mut first = server.subscribe(Some(&budget));
        let mut second = server.subscribe(Some(&budget));
        opened(&mut first).await;
        opened(&mut second).await;
        assert!(!first.is_in_the_way());
        let mut third = server.subscribe(Some(&budget));
        assert_eq!(closed(&mut third).await, PollingReason::StreamLimit);
        let waiting = tokio::spawn(async move {
            opened(&mut third).await;
            third
        });
        tokio::task::yield_now().await;
        assert!(first.is_in_the_way() && second.is_in_the_way());
        assert_eq!(server.openings.load(Ordering::Relaxed), 2);
        first.suspend();
        let _third = waiting.await.unwrap();
        assert!(!second.is_in_the_way());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_for_news_misses_none() {
        let server = Server::new(vec![UNREACHABLE; 3]);
        let mut subscription = server.subscribe(None);
        let mut news = 0;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            if let Ok(next) = tokio::time::timeout(Duration::from_millis(7), subscription.next()).await {
                news += 1;
                if matches!(next, News::Opened) {
                    break;
                }
            }
        }
        assert_eq!((news, server.openings.load(Ordering::Relaxed)), (4, 4));
    }
}
