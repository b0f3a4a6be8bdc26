//! Hedged readings of a session: each is repeated beside its own unanswered attempts, and must be answered in time.
//!
//! A reading is repeated to get round dead connections. From here, a connection that is dead looks like a server that
//! takes long, and a server that takes long must not get the same work several times. So a reading of a few documents
//! is repeated soon, as its repetitions cost next to nothing, and one of a whole document of the user's own a little
//! later. One of many documents, or of a whole collection, waits until a small reading has found a connection that
//! works: the driver uses the last one first. Two of its attempts run at once at most, the second after a pause in which
//! most answers begin to come, and none beside an answer of which parts are coming: that one has found a connection
//! that works. A server that gives up for lack of time is not asked again, and has the time to say so.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{Session, asking::patience};
use crate::{
    error::ServerError,
    protocol::Exchange,
    store::{Arrival, Documents, LONG_READ_WITHIN, Store, to_its_end},
};

/// The limits of a reading that is repeated beside its own unanswered attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hedging {
    /// Time that each attempt has for itself; twice as long as the one before once as many are unanswered as there may
    /// be at once.
    beside: Duration,
    /// Time within which there must be an answer.
    in_all: Duration,
    /// Maximum number of attempts at once.
    at_once: usize,
}

impl Hedging {
    /// For readings of any length.
    const LONG: Self = Self {
        beside: Duration::from_secs(10),
        in_all: LONG_READ_WITHIN.saturating_add(SAYING_SO),
        at_once: LARGE_READS_AT_ONCE,
    };

    /// For the first command of all. Longer than the driver looks for a server, as the driver's error says more.
    pub(crate) const CONNECT: Self = Self {
        beside: Duration::from_secs(2),
        in_all: Duration::from_secs(120),
        at_once: READS_AT_ONCE,
    };

    /// For a whole document of the user's own by its id, where a small reading is usually answered within `usual`. The
    /// server finds it as soon as any, and may take longer to send it: it can have 16 MB.
    fn document(usual: Duration) -> Self {
        Self {
            beside: usual * TIMES_OF_A_DOCUMENT,
            in_all: Self::LONG.in_all,
            at_once: DOCUMENT_READS_AT_ONCE,
        }
    }

    /// For so many documents by their names, of which one is usually answered within `usual`.
    fn of(documents: usize, usual: Duration) -> Self {
        let (beside, at_once) = match documents {
            0..=FEW => (usual, READS_AT_ONCE),
            _ => (usual * TIMES_OF_MANY, LARGE_READS_AT_ONCE),
        };
        Self {
            beside,
            in_all: Duration::from_secs(10),
            at_once,
        }
    }
}

/// Maximum number of attempts at once of a reading that costs next to nothing.
pub(super) const READS_AT_ONCE: usize = 8;

/// The same for one that may keep the server busy: the second is for a connection that died after another was found to
/// work.
const LARGE_READS_AT_ONCE: usize = 2;

/// Maximum number of attempts at once to read a whole document: each may carry all of it.
const DOCUMENT_READS_AT_ONCE: usize = 4;

/// Time that an attempt to read a whole document has for itself, as a multiple of that for a small reading.
const TIMES_OF_A_DOCUMENT: u32 = 4;

/// Maximum number of documents that are read as fast as one, or nearly.
const FEW: usize = 50;

/// Time that the first attempt to read more has for itself, as a multiple of that for one: up to a thousand are read
/// together.
const TIMES_OF_MANY: u32 = 8;

/// Time in which the news that a server gave up for lack of time still comes: it shows that the server is slow and not
/// silent, and those who read again leave a slow one its rest.
const SAYING_SO: Duration = Duration::from_secs(5);

/// Reads, and reads again beside attempts of which nothing comes: the first answer counts. The other attempts run on
/// by themselves.
///
/// Only for commands that change nothing.
pub(crate) async fn read_beside<T, F>(
    runtime: &Handle,
    hedging: Hedging,
    mut read: impl FnMut(Arrival) -> F,
) -> Result<T, ServerError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ServerError>> + Send + 'static,
{
    let begun = Instant::now();
    let until = begun + hedging.in_all;
    let mut pause = hedging.beside;
    let arrival = Arrival::default();
    let mut attempts = FuturesUnordered::new();
    loop {
        if attempts.len() < hedging.at_once && !arrival.is_coming(hedging.beside) {
            attempts.push(to_its_end(runtime, read(arrival.clone())));
        }
        if attempts.len() == hedging.at_once {
            pause *= 2;
        }
        let again = (Instant::now() + pause).min(until);
        loop {
            let ended = tokio::select! {
                biased;
                Some(ended) = attempts.next() => ended.and_then(|answer| answer),
                () = sleep_until(again) => break,
            };
            match ended {
                // Other attempts are still on their way.
                Err(error) if !(attempts.is_empty() || is_for_all(&error)) => {}
                ended => return ended,
            }
        }
        if Instant::now() >= until {
            return Err(ServerError::unanswered(begun.elapsed()));
        }
    }
}

/// Whether every other attempt would fail like this one: the server refuses, or takes longer than it may, or there is
/// none.
fn is_for_all(error: &ServerError) -> bool {
    error.is_final() || error.found_no_server() || error.ran_out_of_time()
}

/// Time after an answer for which the connection is expected to answer again.
pub(super) const ANSWERS_STILL: Duration = Duration::from_secs(1);

impl Session {
    /// Reads the documents of these names, in time.
    pub(crate) async fn read_names(self: &Arc<Self>, names: &[String]) -> Result<(Documents, Exchange), ServerError> {
        let read = |store: Store, arrival: Arrival| {
            let names = names.to_vec();
            async move { store.read(&names, &arrival).await }
        };
        self.read_some(names.len(), read).await
    }

    /// Reads so many documents by their names, in time.
    pub(crate) async fn read_some<T, F>(
        self: &Arc<Self>,
        documents: usize,
        read: impl Fn(Store, Arrival) -> F,
    ) -> Result<T, ServerError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ServerError>> + Send + 'static,
    {
        self.ensure_usable()?;
        if documents > FEW {
            self.find_connection().await?;
        }
        let hedging = Hedging::of(documents, patience(self.asking.usual()));
        read_beside(self.start(), hedging, |arrival| read(self.store.clone(), arrival)).await
    }

    /// Has a small reading find a connection that works, for a command that is sent once: the driver reuses its last
    /// connection first. No reading is needed where that one has answered just now.
    pub(super) async fn find_connection(self: &Arc<Self>) -> Result<(), ServerError> {
        self.ensure_usable()?;
        if !self.asking.is_quiet() || !self.asking.was_answered_within(ANSWERS_STILL, Instant::now()) {
            let hedging = Hedging::of(0, patience(self.asking.usual()));
            let read = |arrival: Arrival| {
                let store = self.store.clone();
                async move { store.read(&[], &arrival).await }
            };
            read_beside(self.start(), hedging, read).await?;
        }
        Ok(())
    }

    /// Reads a whole document of the user's own, in time.
    pub(super) async fn read_document<T, F>(self: &Arc<Self>, read: impl Fn() -> F) -> Result<T, ServerError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ServerError>> + Send + 'static,
    {
        self.find_connection().await?;
        let hedging = Hedging::document(patience(self.asking.usual()));
        read_beside(self.start(), hedging, |_| read()).await
    }

    /// Reads a result of any length, in time.
    pub(crate) async fn read_long<T, F>(self: &Arc<Self>, read: impl Fn(Arrival) -> F) -> Result<T, ServerError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ServerError>> + Send + 'static,
    {
        self.find_connection().await?;
        read_beside(self.start(), Hedging::LONG, read).await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use tokio::time::sleep;

    use super::*;
    use crate::{error::own::OutOfTime, store::Failure};

    const SECOND: Duration = Duration::from_secs(1);

    /// Attempts, each of which takes as much longer as there are others.
    #[tokio::test(start_paused = true)]
    async fn a_long_reading_makes_a_slow_server_no_slower() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = |_| {
            let attempts = attempts.clone();
            async move {
                let before = attempts.fetch_add(1, Ordering::Relaxed);
                sleep(20 * SECOND * (before as u32 + 1)).await;
                Ok(())
            }
        };
        let begun = Instant::now();
        read_beside(&Handle::current(), Hedging::LONG, read).await.unwrap();
        assert_eq!((begun.elapsed(), attempts.load(Ordering::Relaxed)), (20 * SECOND, 2));
        attempts.store(0, Ordering::Relaxed);
        let many = Hedging::of(1_000, SECOND / 4);
        let read = |_| {
            attempts.fetch_add(1, Ordering::Relaxed);
            pending::<Result<(), ServerError>>()
        };
        assert!(read_beside(&Handle::current(), many, read).await.is_err());
        assert_eq!(attempts.load(Ordering::Relaxed), LARGE_READS_AT_ONCE);
    }

    /// One that holds up a holder: it is read by its id, and another attempt costs the server little.
    #[tokio::test(start_paused = true)]
    async fn a_document_is_read_soon_though_a_few_attempts_are_never_answered() {
        let attempts = AtomicUsize::new(0);
        let read = |_| {
            let before = attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                match before {
                    0..3 => pending().await,
                    _ => Ok(()),
                }
            }
        };
        let begun = Instant::now();
        let hedging = Hedging::document(SECOND / 4);
        read_beside(&Handle::current(), hedging, read).await.unwrap();
        assert_eq!(begun.elapsed(), 3 * SECOND);
    }

    /// A transfer that takes 25 seconds alone, and as much longer as there are others.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_coming_is_awaited_alone() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = |arrival: Arrival| {
            let attempts = attempts.clone();
            async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                sleep(9 * SECOND).await;
                for _ in 9..25 {
                    arrival.note();
                    sleep(SECOND * attempts.load(Ordering::Relaxed) as u32).await;
                }
                Ok(())
            }
        };
        let begun = Instant::now();
        read_beside(&Handle::current(), Hedging::LONG, read).await.unwrap();
        assert_eq!((begun.elapsed(), attempts.load(Ordering::Relaxed)), (25 * SECOND, 1));
    }

    /// As where the driver asks for the next part on a connection that is dead.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_no_further_is_not_waited_for_alone() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = |arrival: Arrival| {
            let attempts = attempts.clone();
            async move {
                arrival.note();
                match attempts.fetch_add(1, Ordering::Relaxed) {
                    0 => pending().await,
                    _ => Ok(()),
                }
            }
        };
        let begun = Instant::now();
        read_beside(&Handle::current(), Hedging::LONG, read).await.unwrap();
        assert_eq!((begun.elapsed(), attempts.load(Ordering::Relaxed)), (10 * SECOND, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_gives_up_a_long_reading_is_slow_and_not_silent() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = |_| {
            attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                sleep(LONG_READ_WITHIN + SECOND).await;
                let kind = Failure::Unavailable;
                let source = Arc::new(OutOfTime);
                Err::<(), _>(ServerError { kind, source })
            }
        };
        let begun = Instant::now();
        let failed = read_beside(&Handle::current(), Hedging::LONG, read).await.unwrap_err();
        assert!(failed.ran_out_of_time(), "{failed}");
        assert_eq!(begun.elapsed(), LONG_READ_WITHIN + SECOND);
        assert_eq!(attempts.load(Ordering::Relaxed), LARGE_READS_AT_ONCE);
    }

    /// Where connections break.
    #[tokio::test(start_paused = true)]
    async fn a_long_reading_whose_attempts_break_off_is_repeated_once() {
        let mut sent = Vec::new();
        let begun = Instant::now();
        let read = |_| {
            sent.push(begun.elapsed().as_secs());
            async {
                sleep(11 * SECOND).await;
                Err::<(), _>(ServerError::unanswered(11 * SECOND))
            }
        };
        assert!(read_beside(&Handle::current(), Hedging::LONG, read).await.is_err());
        assert_eq!(sent, [0, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_reading_gets_round_dead_connections() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = |_| {
            let attempts = attempts.clone();
            async move {
                match attempts.fetch_add(1, Ordering::Relaxed) {
                    0..5 => pending().await,
                    _ => Ok(()),
                }
            }
        };
        let begun = Instant::now();
        let few = Hedging::of(FEW, SECOND / 4);
        read_beside(&Handle::current(), few, read).await.unwrap();
        assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    }
}
