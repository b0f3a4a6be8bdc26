//! The way of one claim: it takes what is free, or waits until a document becomes free.

use std::sync::Arc;

use tokio::time::{Instant, sleep, sleep_until};

use super::super::{Session, streams::watcher::NextFreed};
use super::{ClaimedDocument, Claiming, outlook::Telling, pace::Pace, shared, trying::Tries};
use crate::{
    backoff::Backoff,
    error::{AcquireError, ServerError},
    waitlist::{How, Patience, answers::TRY_FOR, timing},
};

/// The state of a claim that found nothing free.
struct Wait {
    since: Instant,
    pace: Pace,
    /// The end of the first lease, as the last look saw it.
    free_at: Option<Instant>,
    /// The reason for the next try.
    how: How,
    /// Whether the stream reported what becomes free when the last try began.
    is_reported: bool,
}

impl Session {
    /// Claims what is free; otherwise waits, or returns `None` if the claim must not wait.
    pub(super) async fn claim_or_wait(
        self: &Arc<Self>,
        claiming: Claiming,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<ClaimedDocument>, AcquireError> {
        let key = shared::key(&claiming.wanted);
        let waits = claiming.patience == Patience::Wait;
        let mut tries = Tries::new(self, claiming, &key, failing);
        if !waits {
            return self.claim_at_once(&mut tries, &key).await;
        }
        let turn = self.claims.turn(&key);
        // As long as there is enough for all, no task waits for another.
        let nobody_waits = turn.try_lock().is_ok();
        if nobody_waits {
            match tries.once(How::AtOnce).await {
                Ok(Some(claimed)) => return Ok(Some(claimed)),
                Ok(None) => *tries.failing = None,
                Err(error) if error.is_final() => return Err(error.into()),
                Err(error) => tries.note(error),
            }
        } else {
            // The task that has the turn was answered.
            *tries.failing = None;
        }
        let _turn = turn.lock().await;
        self.claim_when_free(&mut tries, &key).await
    }

    /// Claims what is free now, and tries for some seconds if the server gives no answer.
    async fn claim_at_once(
        self: &Arc<Self>,
        tries: &mut Tries<'_>,
        key: &[u8],
    ) -> Result<Option<ClaimedDocument>, AcquireError> {
        let begun = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            match tries.once(How::AtOnce).await {
                Ok(None) => {
                    *tries.failing = None;
                    break;
                }
                // Another try may get a connection that works, or a limit that is long enough.
                Err(error) if (error.is_unanswered() || error.ran_out_of_time()) && begun.elapsed() < TRY_FOR => {
                    sleep(backoff.failed()).await;
                }
                claimed => return Ok(claimed?),
            }
        }
        let looks = &self.claims.looks;
        if looks.are_due(key) || (tries.have_passed && !looks.are_resting(key)) {
            // The claim was answered; the look is only for documents that may hold up all claims.
            let outlook = self.look(&tries.wanted, key).await;
            self.some_are_claimable(outlook.ok().as_ref(), Telling::Again).await?;
        }
        Ok(None)
    }

    /// Claims again whenever a document may have become free. The caller has the turn.
    async fn claim_when_free(
        self: &Arc<Self>,
        tries: &mut Tries<'_>,
        key: &[u8],
    ) -> Result<Option<ClaimedDocument>, AcquireError> {
        let now = Instant::now();
        let mut wait = Wait {
            since: now,
            pace: Pace::new(now),
            free_at: None,
            how: How::Asking,
            is_reported: false,
        };
        let mut freed = self.claims.freed.subscribe();
        // The stream reports what becomes free, as long as a task has subscribed to it.
        self.need_stream();
        let mut backoff = Backoff::default();
        loop {
            wait.is_reported = freed.borrow_and_update().next == NextFreed::Reported;
            let began = Instant::now();
            match tries.once(wait.how).await {
                Ok(Some(claimed)) => return Ok(Some(claimed)),
                Ok(None) => {}
                Err(error) if error.is_final() => return Err(error.into()),
                Err(error) => {
                    let now = Instant::now();
                    let (soonest, mut again) = (now + backoff.failed(), now);
                    let mut after_event = soonest;
                    if error.ran_out_of_time() {
                        // It kept the server as busy as a try that is answered.
                        wait.pace.tried(began, now);
                        again = wait.pace.ready_at();
                        // It may have met a transaction that has written the document, and that ends with an event.
                        after_event = soonest.max(now + (now - began));
                    }
                    tries.note(error);
                    tokio::select! {
                        _ = freed.changed() => sleep_until(after_event).await,
                        () = sleep_until(again.max(soonest)) => {}
                    }
                    continue;
                }
            }
            *tries.failing = None;
            backoff = Backoff::default();
            wait.pace.tried(began, Instant::now());
            let again = self.next_try(tries, &mut wait, key).await?;
            wait.how = tokio::select! {
                // The sender is the session's own.
                _ = freed.changed() => {
                    sleep_until(wait.pace.ready_at()).await;
                    How::Event
                }
                () = sleep_until(again) => How::Asking,
            };
        }
    }

    /// Returns when to try again without an event: when a lease ends, or, where nothing reports what becomes free, by
    /// polling. Fails if no matching document can ever be claimed.
    async fn next_try(
        self: &Arc<Self>,
        tries: &mut Tries<'_>,
        wait: &mut Wait,
        key: &[u8],
    ) -> Result<Instant, AcquireError> {
        let now = Instant::now();
        let interval = timing::poll_interval(&self.config, 0, wait.since.elapsed());
        // Tries that take long are made seldom here too.
        let polled = (now + interval).max(wait.pace.ready_at());
        if let Some(free_at) = wait.free_at
            && wait.is_reported
            && wait.how == How::Event
            && now < wait.pace.look_at().min(free_at)
        {
            // After an event, a look from a moment ago will do.
            return Ok(free_at.min(wait.pace.look_at()));
        }
        let looks = &self.claims.looks;
        if looks.are_resting(key) || !(wait.is_reported || tries.have_passed || looks.are_due(key)) {
            return Ok(polled);
        }
        let began = now;
        match self.look(&tries.wanted, key).await {
            Ok(outlook) => {
                wait.pace.looked(began, Instant::now());
                let telling = if tries.have_passed {
                    Telling::Again
                } else {
                    Telling::OnlyNews
                };
                self.some_are_claimable(Some(&outlook), telling).await?;
                let free_at = self.free_at(&outlook);
                wait.free_at = Some(free_at);
                Ok(if wait.is_reported { free_at } else { polled })
            }
            Err(error) => {
                wait.free_at = None;
                tries.note(error);
                Ok((Instant::now() + interval).max(wait.pace.ready_at()))
            }
        }
    }
}
