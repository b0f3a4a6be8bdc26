//! Hedged readings of a session: each is repeated beside its own unanswered attempts, and must be answered in time.
//!
//! A reading is repeated to get round dead connections. From here, a connection that is dead looks like a server that
//! takes long, and a server that takes long must not get the same work several times. So a reading that costs next to
//! nothing is repeated soon and often, and one that can be of any length only once, after a third of the time that the
//! server may take. Before a reading that costs more, a small one finds a connection that works: the driver uses the
//! last one first. A server that gives up for lack of time is not asked again, and has the time to say so.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{
    Session,
    in_flight::{DEAD_MOST, SHORTEST, TOGETHER, patience},
};
use crate::{
    error::ServerError,
    protocol::Exchange,
    store::{
        Documents, LONG_READ_WITHIN, READ_WITHIN, Store, View,
        detached::{Output, detached, downcast},
    },
};

/// Time that the server may take to connect: longer than the driver looks for a server, as the driver's error says more.
const CONNECT_WITHIN: Duration = Duration::from_secs(120);

/// The cost of a reading for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Of a few documents by their names, which are sent at once, and read as fast as one or nearly.
    Small,
    /// Of many documents, or of one of the user's own, which can have 16 MB.
    Large,
    /// Of any number of documents that the server searches for.
    Unknown,
    /// Of the first commands of all, for which the driver connects. Nothing is usual then.
    Connecting,
}

impl Cost {
    /// Returns the time that each attempt has for itself, the number of attempts, and the time that the server may take for
    /// one, where it usually does an operation within this time.
    fn limits(self, usual: Duration) -> (Duration, u32, Duration) {
        match self {
            Self::Small => (patience(usual), DEAD_MOST, READ_WITHIN),
            Self::Large => (patience(usual) * 4, DEAD_MOST / 2, LONG_READ_WITHIN),
            Self::Unknown => (LONG_READ_WITHIN / 3, DEAD_MOST / 4, LONG_READ_WITHIN),
            Self::Connecting => (patience(SHORTEST) * 4, DEAD_MOST, CONNECT_WITHIN),
        }
    }
}

/// Reads, and reads again beside attempts of which nothing comes: the first answer counts. The other attempts run on
/// by themselves. `usual`: the time within which the server usually does an operation.
///
/// Only for commands that change nothing.
pub(crate) async fn read_beside<T, F>(
    runtime: &Handle,
    hedging: (Cost, Duration),
    mut read: impl FnMut() -> F + Send,
) -> Result<T, ServerError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ServerError>> + Send + 'static,
{
    downcast(first_answer(runtime, hedging, &mut || reading(read())).await?)
}

/// An attempt, whose output has no type here, so that all that follows is compiled once.
type Reading = BoxFuture<'static, Result<Output, ServerError>>;

fn reading<T: Send + 'static>(read: impl Future<Output = Result<T, ServerError>> + Send + 'static) -> Reading {
    Box::pin(async { Ok(Box::new(read.await?) as Output) })
}

async fn first_answer(
    runtime: &Handle,
    (cost, usual): (Cost, Duration),
    attempt: &mut (dyn FnMut() -> Reading + Send),
) -> Result<Output, ServerError> {
    let begun = Instant::now();
    let (pause, most, within) = cost.limits(usual);
    let last = begun + patience(within);
    let mut attempts = FuturesUnordered::from_iter([detached(runtime, attempt())]);
    let mut sent = 1;
    loop {
        // Where answers take long, there is time for fewer.
        let next_at = Some(begun + pause * sent).filter(|at| sent < most && *at < last);
        tokio::select! {
            biased;
            Some(ended) = attempts.next() => match ended.and_then(|answer| answer) {
                // Other attempts are still on their way.
                Err(error) if !(attempts.is_empty() || is_for_all(&error)) => {}
                ended => return ended,
            },
            () = sleep_until(next_at.unwrap_or(last)) => {
                if next_at.is_none() {
                    return Err(ServerError::unanswered(begun.elapsed()));
                }
                attempts.push(detached(runtime, attempt()));
                sent += 1;
            }
        }
    }
}

/// Whether every other attempt would fail like this one: the server refuses, or takes longer than it may, or there is
/// none.
fn is_for_all(error: &ServerError) -> bool {
    error.is_final() || error.found_no_server() || error.ran_out_of_time()
}

impl Session {
    /// Reads the documents of these names in this view, in time, and notes the server's clock.
    pub(crate) async fn read_names(
        self: &Arc<Self>,
        view: View,
        names: &[String],
    ) -> Result<(Documents, Exchange), ServerError> {
        let cost = if names.len() > TOGETHER {
            Cost::Large
        } else {
            Cost::Small
        };
        let read = move |store: Store, names: Vec<String>| async move { store.read(view, &names).await };
        let (documents, exchange) = self.read(cost, names.to_vec(), read).await?;
        self.note(&exchange);
        if matches!(view, View::Newest) {
            self.note_log(&exchange, 0);
        }
        Ok((documents, exchange))
    }

    /// Reads what is `asked` for in time. Before a reading of some cost, a small one finds a connection that works.
    pub(crate) async fn read<A, T, F>(
        self: &Arc<Self>,
        cost: Cost,
        asked: A,
        read: impl Fn(Store, A) -> F + Send,
    ) -> Result<T, ServerError>
    where
        A: Clone + Send,
        T: Send + 'static,
        F: Future<Output = Result<T, ServerError>> + Send + 'static,
    {
        self.ensure_usable()?;
        if cost != Cost::Small {
            self.find_connection().await?;
        }
        let (store, hedging) = (self.store.clone(), (cost, self.in_flight.usual()));
        read_beside(self.start(), hedging, move || read(store.clone(), asked.clone())).await
    }

    /// Has a small reading find a connection that works, for a command that is sent once: the driver reuses its last
    /// connection first. No reading is needed where one has answered just now.
    pub(super) async fn find_connection(self: &Arc<Self>) -> Result<(), ServerError> {
        self.ensure_usable()?;
        if !self.in_flight.finds_connections() {
            let read = || {
                let store = self.store.clone();
                async move { store.read(View::Newest, &[]).await }
            };
            read_beside(self.start(), (Cost::Small, self.in_flight.usual()), read).await?;
        }
        Ok(())
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
    use crate::tests::simulated::out_of_time;

    const SECOND: Duration = Duration::from_secs(1);

    /// Attempts, each of which takes as much longer as there are others.
    #[tokio::test(start_paused = true)]
    async fn a_long_reading_makes_a_slow_server_no_slower() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = || {
            let attempts = attempts.clone();
            async move {
                let before = attempts.fetch_add(1, Ordering::Relaxed);
                sleep(20 * SECOND * (before as u32 + 1)).await;
                Ok(())
            }
        };
        let begun = Instant::now();
        read_beside(&Handle::current(), (Cost::Unknown, SHORTEST), read)
            .await
            .unwrap();
        assert_eq!((begun.elapsed(), attempts.load(Ordering::Relaxed)), (20 * SECOND, 2));
    }

    /// One that holds up a holder: it is read by its id, and another attempt costs the server little.
    #[tokio::test(start_paused = true)]
    async fn a_document_is_read_soon_though_a_few_attempts_are_never_answered() {
        let attempts = AtomicUsize::new(0);
        let read = || {
            let before = attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                match before {
                    0..3 => pending().await,
                    _ => Ok(()),
                }
            }
        };
        let begun = Instant::now();
        let hedging = (Cost::Large, SHORTEST);
        read_beside(&Handle::current(), hedging, read).await.unwrap();
        assert_eq!(begun.elapsed(), 3 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_of_which_nothing_comes_has_few_attempts_and_ends() {
        let longest = 10 * SECOND;
        for (cost, usual, attempts) in [
            (Cost::Small, SHORTEST, 8),
            (Cost::Large, SHORTEST, 4),
            (Cost::Unknown, SHORTEST, 2),
            (Cost::Small, 2 * SECOND, 5),
            (Cost::Small, longest, 1),
            (Cost::Large, longest, 1),
            (Cost::Unknown, longest, 2),
        ] {
            let (mut sent, begun) = (0, Instant::now());
            let read = || {
                sent += 1;
                pending::<Result<(), ServerError>>()
            };
            let failed = read_beside(&Handle::current(), (cost, usual), read).await.unwrap_err();
            let within = cost.limits(usual).2;
            assert!(
                failed.is_unanswered() && begun.elapsed() == patience(within),
                "{failed}"
            );
            assert_eq!(sent, attempts, "{cost:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_gives_up_a_long_reading_is_slow_and_not_silent() {
        let attempts = Arc::new(AtomicUsize::new(0));
        let read = || {
            attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                sleep(LONG_READ_WITHIN + SECOND).await;
                Err::<(), _>(out_of_time())
            }
        };
        let begun = Instant::now();
        let failed = read_beside(&Handle::current(), (Cost::Unknown, SHORTEST), read)
            .await
            .unwrap_err();
        assert!(failed.ran_out_of_time(), "{failed}");
        assert_eq!(begun.elapsed(), LONG_READ_WITHIN + SECOND);
        assert_eq!(attempts.load(Ordering::Relaxed), 2);
    }

    /// Where connections break.
    #[tokio::test(start_paused = true)]
    async fn a_long_reading_whose_attempts_break_off_is_repeated_once() {
        let mut sent = Vec::new();
        let begun = Instant::now();
        let read = || {
            sent.push(begun.elapsed().as_secs());
            async {
                sleep(11 * SECOND).await;
                Err::<(), _>(ServerError::unanswered(11 * SECOND))
            }
        };
        assert!(
            read_beside(&Handle::current(), (Cost::Unknown, SHORTEST), read)
                .await
                .is_err()
        );
        assert_eq!(sent, [0, 10]);
    }
}
