//! The way of one claim: it takes what is free, or waits until a document becomes free.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    super::{Session, hedged_read::Cost},
    ClaimedDocument, Claiming,
    filter::Filter,
    skip_list::Why,
};
use crate::{
    backoff::Backoff,
    error::{AcquireError, ServerError},
    store::{Outlook, Store, name},
    truncated_debug::shown,
    waitlist::{How, answers::TRY_FOR, timing},
};

impl Claiming {
    /// Claims what is free, or whatever comes to be free if it `waits`.
    pub(super) async fn run(self: &Arc<Self>, waits: bool) -> Result<Vec<ClaimedDocument>, AcquireError> {
        if !waits {
            return self.claim_at_once().await;
        }
        // As long as there is enough for all, no task waits for another.
        if self.filter.nobody_waits()
            && let Ok(claimed) = self.attempt(How::AtOnce).await?
            && !claimed.is_empty()
        {
            return Ok(claimed);
        }
        self.claim_when_free().await
    }

    /// Claims what is free now, and tries for some seconds if the server gives no answer.
    async fn claim_at_once(self: &Arc<Self>) -> Result<Vec<ClaimedDocument>, AcquireError> {
        let until = Instant::now() + TRY_FOR;
        let mut backoff = Backoff::default();
        loop {
            let was_doubtful = self.is_in_doubt();
            let claimed = timeout_at(until, self.attempt(How::AtOnce)).await;
            let why = match claimed.unwrap_or_else(|_| Ok(Err(ServerError::unanswered(TRY_FOR))))? {
                Ok(claimed) if !claimed.is_empty() => return Ok(claimed),
                // Once no orphan holds a document, the next answer counts.
                Ok(_) if was_doubtful || self.is_in_doubt() => ServerError::overdue(),
                Ok(_) => break,
                Err(error) if error.found_no_server() => return Err(error.into()),
                // Another try may get a connection that works, the next primary, or a limit that is long enough, or be faster
                // than others.
                Err(error) => error,
            };
            sleep_until((Instant::now() + backoff.failed()).min(until)).await;
            // Nobody would wait for another, which counts as one that its document allows.
            if Instant::now() >= until {
                return Err(why.into());
            }
        }
        // The claim was answered; the scan is only for documents that may hold up all claims.
        if let Some(turn) = self.filter.begin_scan(false)
            && let Ok(Ok(outlook)) = timeout_at(until, self.session.scan(&self.filter, turn)).await
        {
            self.some_are_claimable(&outlook, true)?;
        }
        Ok(Vec::new())
    }

    /// Claims again whenever a document may have become free, in its turn.
    async fn claim_when_free(self: &Arc<Self>) -> Result<Vec<ClaimedDocument>, AcquireError> {
        let (session, filter) = (&self.session, &self.filter);
        let has_passed = || self.has_passed.load(Ordering::Relaxed);
        // Who has met a document that can't be claimed looks for others before its turn, and is told if there are none:
        // whoever has the turn may wait for long.
        let mut turn = match has_passed() {
            true => None,
            false => Some(filter.turn.lock().await),
        };
        let since = Instant::now();
        let mut how = How::Asking;
        let mut freed = session.claims.freed.subscribe();
        // The stream reports what becomes free, as long as a task has subscribed to it.
        session.need_stream();
        let mut backoff = Backoff::default();
        loop {
            let is_reported = *freed.borrow_and_update();
            let began = Instant::now();
            // When to try again after an event, and without one.
            let (after_event, again) = match self.attempt(how).await? {
                Ok(claimed) if !claimed.is_empty() => return Ok(claimed),
                Ok(_) => {
                    backoff = Backoff::default();
                    let soonest = filter.tried_in_vain(began);
                    let polled = Instant::now() + timing::poll_interval(&session.config, 0, since.elapsed());
                    let scan = filter.begin_scan(true);
                    let is_old = scan.is_none();
                    if let Some(turn_to_scan) = scan {
                        match session.scan(filter, turn_to_scan).await {
                            Ok(outlook) => {
                                self.some_are_claimable(&outlook, has_passed())?;
                                if turn.is_none() {
                                    turn = Some(filter.turn.lock().await);
                                }
                            }
                            Err(error) => self.note(error),
                        }
                    }
                    let polled = polled.max(soonest);
                    // A lease that ends is polled for where nothing reports what becomes free.
                    let again = if is_reported {
                        filter.again_at(is_old, polled)
                    } else {
                        polled
                    };
                    (soonest, again)
                }
                Err(error) => {
                    let now = Instant::now();
                    let soonest = now + backoff.failed();
                    match error.ran_out_of_time() {
                        // It kept the server as busy as a try that is answered. It may have met a transaction that has
                        // written the document, and that ends with an event.
                        true => (
                            soonest.max(now + (now - began)),
                            soonest.max(filter.tried_in_vain(began)),
                        ),
                        false => (soonest, soonest),
                    }
                }
            };
            how = tokio::select! {
                // The sender is the session's own.
                _ = freed.changed() => {
                    sleep_until(after_event).await;
                    How::Event
                }
                () = sleep_until(again) => How::Asking,
            };
        }
    }

    /// Fails if all matching documents are unclaimable; where that is known already, and others were told, only if the
    /// claim `fails_again`.
    fn some_are_claimable(&self, outlook: &Outlook, fails_again: bool) -> Result<(), AcquireError> {
        let Some((id, why)) = &outlook.unfit else {
            return Ok(());
        };
        let (session, of) = (&self.session, self.filter.of);
        let known = session.claims.skip_list().why(of, name::of_id(id), Instant::now());
        let news = known.is_none();
        let why: Why = match (known, why) {
            (Some(known), _) => known,
            (None, Some(why)) => Arc::new(why.clone()),
            // It is passed over no longer, and is fit.
            (None, None) => return Ok(()),
        };
        if news {
            // The server would not choose it, so it can be claimed as soon as it is mended.
            session.pass_over(of, id.clone(), why.clone(), false);
        }
        if outlook.others || !(news || fails_again) {
            return Ok(());
        }
        let name = shown(name::of_id(id));
        Err(AcquireError::Unclaimable { name, cause: why })
    }
}

impl Session {
    /// Scans everything that is wanted, none of which is free: for when the next lease ends, and for documents that can
    /// never be claimed. It goes on without its claim, as the reading does, and its end tells the others when to scan.
    pub(super) async fn scan(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Outlook, ServerError> {
        self.spawn_for(self.clone().run_scan(filter.clone(), turn)).await?
    }

    async fn run_scan(
        self: Arc<Self>,
        filter: Arc<Filter>,
        _turn: OwnedMutexGuard<()>,
    ) -> Result<Outlook, ServerError> {
        let began = Instant::now();
        let skipped = self.claims.skip_list().ids(filter.of, began);
        let skipped: HashSet<String> = skipped.iter().map(name::of_id).collect();
        let read = |store: Store, (filter, skipped): (Arc<Filter>, HashSet<String>)| async move {
            store.outlook(&filter.wanted, &skipped).await
        };
        let outlook = tokio::select! {
            outlook = self.read(Cost::Unknown, (filter.clone(), skipped), read) => outlook,
            // It keeps no session alive: the reading runs on by itself.
            () = self.ended.cancelled() => return Err(ServerError::runtime_ended()),
        };
        if let Ok(outlook) = &outlook {
            self.note(&outlook.exchange);
        }
        let ended = outlook
            .as_ref()
            .map(|outlook| (outlook.unfit.is_some(), self.free_at(outlook)));
        filter.scanned(began, ended.map_err(|error| !error.found_no_server()));
        outlook
    }

    /// Returns when to try again without an event: at the first end of a lease, or after a while.
    fn free_at(&self, outlook: &Outlook) -> Instant {
        let routine = Instant::now() + self.config.lease / 2;
        let soonest = Instant::now() + self.config.poll_interval.0;
        let over = outlook.free_at.and_then(|free_at| self.table().clock.after(free_at));
        over.map_or(routine, |over| over.min(routine)).max(soonest)
    }
}
