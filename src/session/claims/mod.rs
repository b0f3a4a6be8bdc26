//! Claims of the user's own documents: a task claims any document that is free.
//!
//! A lock of a known name is waited for in the queue of its document. A claim asks for any document that is free, so
//! it has no document to stand in line at. It tries, and when none is free it tries again as soon as one may have
//! become free. The change stream reports releases, and documents that came or changed; ends of leases are reckoned
//! from the documents. Of the tasks of one client that claim the same, only one tries at a time once none is free: the
//! others wait behind it, first come, first served.

mod pace;
pub(crate) mod passed;
mod trying;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use mongodb::bson::{Bson, Document};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Session,
    documents::DocumentSession,
    hold::Hold,
    streams::watcher::{Demand, NextFreed},
};
use crate::{
    backoff::Backoff,
    error::{AcquireError, ServerError},
    protocol::{Kind, Owner},
    store::{Outlook, StoreError, Wanted, name},
    telemetry::{self},
    waitlist::{
        How, Patience, TimedOut,
        answers::TRY_FOR,
        timing::{self, CLOCK_RESOLUTION},
    },
};
use pace::Pace;
use passed::{Passed, Why};

/// The kind and capacity of a claimed document's lock.
const USED: (Kind, i64) = (Kind::Document, 1);

/// Pause between two looks for unclaimable documents by a claim that finds nothing, while there were none.
const UNCLAIMABLE_LOOK_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of filters with a known last look; they are forgotten together, which costs a look each.
const KNOWN_LOOKS_MOST: usize = 64;

/// Maximum number of characters shown of an unclaimable `_id`, as it may be too long.
const ID_SHOWN_MOST: usize = 200;

/// The shared state of a session's claims.
#[derive(Debug, Default)]
pub(in crate::session) struct Claims {
    /// By filter and order: the turn of the task that found nothing free.
    turns: Mutex<HashMap<Vec<u8>, Weak<tokio::sync::Mutex<()>>>>,
    /// By filter and order: the last look for unclaimable documents, and whether it found any.
    looks: Mutex<HashMap<Vec<u8>, (Instant, bool)>>,
    passed: Mutex<Passed>,
    freed: watch::Sender<Freed>,
}

/// The news of documents that become free.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    /// Counts the events that may have made a document free.
    times: u64,
    next: NextFreed,
}

/// Returns the filter, the order and the number of attempts as a key.
fn key(wanted: &Wanted) -> Vec<u8> {
    let mut key = Vec::new();
    key.extend(wanted.attempts_most.unwrap_or_default().to_le_bytes());
    for part in [Some(&wanted.filter), wanted.sort.as_ref()].into_iter().flatten() {
        // The driver refuses what can't be written, at any turn.
        let _ = part.to_writer(&mut key);
    }
    key
}

/// Returns the name of an unclaimable document, shortened if it is too long.
fn shown(id: &Bson) -> String {
    let name = name::of_id(id);
    match name.char_indices().nth(ID_SHOWN_MOST) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name,
    }
}

impl Claims {
    fn turn(&self, key: &[u8]) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(key.to_vec(), Arc::downgrade(&turn));
        turn
    }

    /// Whether to look for unclaimable documents now: always, as long as the last look found some.
    fn look_is_due(&self, key: &[u8]) -> bool {
        let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks
            .get(key)
            .is_none_or(|(at, found)| *found || at.elapsed() >= UNCLAIMABLE_LOOK_EVERY)
    }

    fn looked(&self, key: &[u8], found: bool) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.len() >= KNOWN_LOOKS_MOST && !looks.contains_key(key) {
            looks.clear();
        }
        looks.insert(key.to_vec(), (Instant::now(), found));
    }

    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim of any document that is free.
#[derive(Debug)]
pub(crate) struct Claiming {
    pub(crate) wanted: Wanted,
    pub(crate) owner: Owner,
    pub(crate) patience: Patience,
    /// Whether it has passed over a document already.
    pub(crate) has_passed: bool,
}

/// A claimed document. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct ClaimedDocument {
    session: Arc<Session>,
    hold: Option<Arc<Hold>>,
    document: Document,
    attempt: Option<i64>,
}

impl ClaimedDocument {
    /// Returns how often the document was claimed, this time included, if its claims are counted.
    pub(crate) fn attempt(&self) -> Option<i64> {
        self.attempt
    }

    /// Returns the hold, now the caller's to let go of, and the user's part of the document.
    pub(crate) fn take(mut self) -> (Option<Arc<Hold>>, Document) {
        (self.hold.take(), std::mem::take(&mut self.document))
    }
}

impl Drop for ClaimedDocument {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.session.discard(&hold);
        }
    }
}

impl DocumentSession {
    /// Claims a document; waits until one is free, or returns `None` when none is. While it waits, `failing` has the
    /// last error, unless the server has answered since.
    ///
    /// Cancel safe: a document claimed at the moment the future is dropped is given back.
    pub(crate) async fn claim(
        &self,
        claiming: Claiming,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<ClaimedDocument>, AcquireError> {
        self.ensure_usable()?;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(self.why_closed()),
            claimed = self.claim_or_wait(claiming, failing) => claimed,
        }
    }

    async fn claim_or_wait(
        &self,
        claiming: Claiming,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<ClaimedDocument>, AcquireError> {
        let Claiming {
            wanted,
            owner,
            patience,
            has_passed: mut passed,
        } = claiming;
        let waits = patience == Patience::Wait;
        // Until the first answer comes.
        *failing = Some(StoreError::unanswered(Duration::ZERO).into());
        let begun = Instant::now();
        let wanted = Arc::new(wanted);
        let key = key(&wanted);
        let turn = self.claims.turn(&key);
        let mut timed_out = TimedOut::default();
        // As long as there is enough for all, no task waits for another.
        let nobody_waits = turn.try_lock().is_ok();
        if nobody_waits || !waits {
            let mut backoff = Backoff::default();
            loop {
                let claimed = self.claim_once(&wanted, &owner, How::AtOnce, &mut timed_out, &mut passed, failing);
                match claimed.await {
                    Ok(None) if waits => *failing = None,
                    Ok(None) => {
                        if passed || self.claims.look_is_due(&key) {
                            // The claim was answered; the look is only for documents that may hold up all claims.
                            let outlook = self.look(&wanted, &key).await;
                            self.some_are_claimable(outlook.ok().as_ref(), true).await?;
                        }
                        return Ok(None);
                    }
                    Err(error) if waits && !error.is_final() => *failing = Some(error.into()),
                    // Another try may get a connection that works, or a limit that is long enough.
                    Err(error) if (error.is_unanswered() || error.ran_out_of_time()) && begun.elapsed() < TRY_FOR => {
                        sleep(backoff.failed()).await;
                        continue;
                    }
                    Ok(claimed) => return Ok(claimed),
                    Err(error) => return Err(ServerError::from(error).into()),
                }
                break;
            }
        } else {
            // The task that has the turn was answered.
            *failing = None;
        }
        let _turn = turn.lock().await;
        let since = Instant::now();
        let mut freed = self.claims.freed.subscribe();
        self.watch_free();
        let mut backoff = Backoff::default();
        let mut pace = Pace::new(Instant::now());
        let mut free_at: Option<Instant> = None;
        let mut how = How::Asking;
        loop {
            let streaming = freed.borrow_and_update().next == NextFreed::Reported;
            let began = Instant::now();
            let claimed = self.claim_once(&wanted, &owner, how, &mut timed_out, &mut passed, failing);
            match claimed.await {
                Ok(Some(given)) => return Ok(Some(given)),
                Ok(None) => {}
                Err(error) if error.is_final() => return Err(ServerError::from(error).into()),
                Err(error) => {
                    *failing = Some(error.into());
                    sleep(backoff.failed()).await;
                    continue;
                }
            }
            *failing = None;
            backoff = Backoff::default();
            let now = Instant::now();
            pace.tried(began, now);
            let polled = now + timing::poll_interval(&self.config, 0, since.elapsed());
            // After an event, a look from a moment ago will do.
            let seen = free_at.filter(|free_at| how == How::Event && now < pace.look_at().min(*free_at));
            let again = match seen {
                Some(free_at) if streaming => free_at.min(pace.look_at()),
                _ if streaming || passed || self.claims.look_is_due(&key) => match self.look(&wanted, &key).await {
                    Ok(outlook) => {
                        pace.looked(now, Instant::now());
                        self.some_are_claimable(Some(&outlook), passed).await?;
                        free_at = Some(self.free_at(&outlook));
                        free_at.filter(|_| streaming).unwrap_or(polled)
                    }
                    Err(error) => {
                        free_at = None;
                        *failing = Some(error.into());
                        polled
                    }
                },
                _ => polled,
            };
            how = tokio::select! {
                // The sender is the session's own.
                _ = freed.changed() => {
                    sleep_until(pace.ready_at()).await;
                    How::Event
                }
                () = sleep_until(again) => How::Asking,
            };
        }
    }

    async fn look(&self, wanted: &Arc<Wanted>, key: &[u8]) -> Result<Outlook, StoreError> {
        let passed = self.claims.passed().ids(Instant::now());
        let reading = self.read_long(|_| {
            let (documents, wanted, passed) = (self.documents().clone(), wanted.clone(), passed.clone());
            async move { documents.outlook(&wanted, &passed).await }
        });
        let outlook = reading.await?;
        self.note(&outlook.exchange);
        self.claims.looked(key, outlook.unfit.is_some());
        Ok(outlook)
    }

    /// Fails if all matching documents are unclaimable. Where this is known already, it fails again only if `asked`.
    async fn some_are_claimable(&self, outlook: Option<&Outlook>, asked: bool) -> Result<(), AcquireError> {
        let Some((outlook, id)) = outlook.and_then(|outlook| Some((outlook, outlook.unfit.as_ref()?))) else {
            return Ok(());
        };
        let name = shown(id);
        let known = self.claims.passed().why(&name, Instant::now());
        let news = known.is_none();
        let why = match known {
            Some(why) => why,
            None => {
                let reading = self.read_long(|_| {
                    let (documents, unfit) = (self.documents().clone(), id.clone());
                    async move { documents.why_unfit(&unfit).await }
                });
                let why = match reading.await {
                    Ok(Some(why)) => why,
                    Err(error) if error.is_final() => error,
                    // It is fit by now; or that is not known, and the next look asks again.
                    Ok(None) | Err(_) => return Ok(()),
                };
                let why: Why = Arc::new(why);
                self.note_passed(id.clone(), why.clone(), true);
                why
            }
        };
        if outlook.others || !(asked || news) {
            return Ok(());
        }
        Err(AcquireError::Unclaimable { name, source: why })
    }
}

impl Session {
    /// Returns when to try again without an event: at the first end of a lease, or after a while.
    fn free_at(&self, outlook: &Outlook) -> Instant {
        let routine = Instant::now() + self.config.lease / 2;
        let soonest = Instant::now() + self.config.poll_interval.0;
        let over = outlook.free_at.and_then(|free_at| self.table().clock.after(free_at));
        let over = over.map(|at| at + CLOCK_RESOLUTION);
        over.map_or(routine, |over| over.min(routine)).max(soonest)
    }

    /// Leaves a document out of the coming claims for a while, as it can't be read as the requested type.
    pub(crate) fn pass_over(&self, id: Bson, why: Why) {
        self.note_passed(id, why, false);
    }

    fn note_passed(&self, id: Bson, why: Why, unselected: bool) {
        let name = shown(&id);
        let noted = self
            .claims
            .passed()
            .note(name.clone(), id, why.clone(), unselected, Instant::now());
        if noted {
            telemetry::passed_over(&name, &why);
        }
    }

    /// Makes the session's stream report what becomes free, as long as a task claims. The caller must have subscribed
    /// before.
    fn watch_free(&self) {
        if self.config.wake_source.may_stream() {
            let wanted = Demand {
                stream: true,
                claims: true,
            };
            self.demand
                .send_if_modified(|demand| std::mem::replace(demand, wanted) != wanted);
            // The watcher may wait as long as no line expects an event.
            self.stirred.notify_one();
        }
    }

    /// Notes that a document may be free now.
    pub(in crate::session) fn note_freed(&self, next: NextFreed) {
        self.claims.freed.send_modify(|freed| {
            freed.times += 1;
            freed.next = next;
        });
    }

    /// Whether a task waits for a document to become free.
    pub(in crate::session) fn is_claiming(&self) -> bool {
        self.claims.freed.receiver_count() > 0
    }
}
