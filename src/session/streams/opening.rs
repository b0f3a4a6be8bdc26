//! The opening of a change stream at a server that may not answer: attempts beside each other, of which the first
//! counts.

use crate::error::ServerError;
use std::{future::Future, time::Duration};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use crate::store::{ToItsEnd, to_its_end};

/// Time for an attempt to open before another is made beside it: selecting a server can hang for 30 s on one that is
/// gone, although another stands already.
const OPENED_BESIDE: Duration = Duration::from_secs(2);

/// Maximum number of attempts at once, each of which can occupy a connection of the driver's pool, which is the
/// user's. They are enough for the time that it takes to elect another primary, and the driver gives up those to a
/// server that is gone.
const AT_ONCE: usize = 6;

/// The outcome of one attempt.
type Opened<S> = Result<S, ServerError>;

/// The attempts to open one stream, of which the first to get through counts.
///
/// A slow attempt is not given up: while the members of a replica set look for each other after a fail-over, every
/// attempt can take long. Leftover attempts close the streams that they open.
#[derive(Debug)]
pub(in crate::session) struct Opening<S> {
    attempts: FuturesUnordered<ToItsEnd<(u64, Opened<S>)>>,
    newest: u64,
    /// Until when the newest attempt is awaited; `None`: another is due.
    until: Option<Instant>,
}

impl<S: Send + 'static> Opening<S> {
    pub(in crate::session) fn new() -> Self {
        Self {
            attempts: FuturesUnordered::new(),
            newest: 0,
            until: None,
        }
    }

    /// Tries once more, unless many attempts are under way already; `None` when no attempt has got through in time,
    /// nor the last one failed. The failure of an earlier one says nothing: all attempts that hang on a dead server
    /// fail when it is found dead.
    ///
    /// Cancel safe: if the future is dropped, the next call goes on with the same attempt.
    pub(in crate::session) async fn attempt<A>(&mut self, attempt: impl FnOnce() -> A) -> Option<Opened<S>>
    where
        A: Future<Output = Opened<S>> + Send + 'static,
    {
        let until = match self.until {
            Some(until) => until,
            None => {
                while let Some(Some(ended)) = self.attempts.next().now_or_never() {
                    if let Ok((_, opened @ Ok(_))) = ended {
                        return Some(opened);
                    }
                }
                if self.attempts.len() < AT_ONCE {
                    self.newest += 1;
                    let (number, attempt) = (self.newest, attempt());
                    let attempt = async move { (number, attempt.await) };
                    self.attempts.push(to_its_end(&Handle::current(), attempt));
                }
                *self.until.insert(Instant::now() + OPENED_BESIDE)
            }
        };
        let newest = self.newest;
        let ended = async {
            while let Some(ended) = self.attempts.next().await {
                match ended {
                    Ok((number, opened)) if opened.is_ok() || number == newest => return Some(opened),
                    // An earlier one; or the runtime is shutting down, which stopped the task.
                    _ => {}
                }
            }
            None
        };
        let opened = timeout_at(until, ended).await.ok().flatten();
        self.until = None;
        opened
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    async fn after(seconds: u64, opened: Opened<u64>) -> Opened<u64> {
        sleep(Duration::from_secs(seconds)).await;
        opened
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_takes_long_counts_once_it_gets_through() {
        let begin = Instant::now();
        let mut opening = Opening::new();
        assert!(opening.attempt(|| after(5, Ok(1))).await.is_none());
        assert!(opening.attempt(|| after(60, Ok(2))).await.is_none());
        let third = opening.attempt(|| after(60, Ok(3))).await;
        assert!(matches!(third, Some(Ok(1))), "{third:?}");
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_a_few_are_made_at_once() {
        let mut opening = Opening::new();
        for _ in 0..AT_ONCE {
            assert!(opening.attempt(|| after(60, Ok(1))).await.is_none());
        }
        assert!(
            opening
                .attempt(|| async { unreachable!("there are enough") })
                .await
                .is_none()
        );
        sleep(Duration::from_secs(60)).await;
        assert!(matches!(opening.attempt(|| after(0, Ok(2))).await, Some(Ok(1))));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_got_through_meanwhile_counts_before_another_is_made() {
        let mut opening = Opening::new();
        assert!(opening.attempt(|| after(3, Ok(1))).await.is_none());
        sleep(Duration::from_secs(2)).await;
        let next = opening.attempt(|| async { unreachable!("it is open") }).await;
        assert!(matches!(next, Some(Ok(1))), "{next:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_fail_together_do_not_hold_up_the_next() {
        let failure = || Err(ServerError::unanswered(Duration::ZERO));
        for late in [false, true] {
            let mut opening = Opening::new();
            for number in 0..4 {
                assert!(opening.attempt(|| after(12 - 2 * number, failure())).await.is_none());
            }
            // They fail before the next is made, or after.
            sleep(Duration::from_secs(if late { 3 } else { 5 })).await;
            let begin = Instant::now();
            let next = opening.attempt(|| after(1, Ok(1))).await;
            assert!(matches!(next, Some(Ok(1))), "{next:?}");
            assert_eq!(begin.elapsed(), Duration::from_secs(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_stops_waiting_goes_on_with_the_same_attempt() {
        let mut opening = Opening::new();
        let begin = Instant::now();
        for _ in 0..10 {
            let waited = tokio::time::timeout(Duration::from_millis(100), opening.attempt(|| after(60, Ok(1))));
            assert!(waited.await.is_err());
        }
        assert_eq!(opening.attempts.len(), 1);
        assert!(opening.attempt(|| after(60, Ok(2))).await.is_none());
        assert_eq!(begin.elapsed(), OPENED_BESIDE);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_failed_meanwhile_is_made_anew() {
        let mut opening = Opening::new();
        let failure = || Err(ServerError::unanswered(Duration::ZERO));
        assert!(opening.attempt(|| after(3, failure())).await.is_none());
        sleep(Duration::from_secs(2)).await;
        let next = opening.attempt(|| after(1, Ok(2))).await;
        assert!(matches!(next, Some(Ok(2))), "{next:?}");
        let failed = opening.attempt(|| after(1, failure())).await;
        assert!(matches!(failed, Some(Err(_))), "{failed:?}");
    }
}
