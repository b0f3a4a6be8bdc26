//! Documents of the user's own: claiming any that is free, and reading and changing one that is held.
//!
//! A lock of a known name is waited for in the queue of its document. A claim asks for whatever document is free, so it
//! has no document to stand in line at: it tries, and when there is none it tries again as soon as one may have become
//! free. The change stream tells of releases, and of documents that came or changed; ends of leases are reckoned from
//! the documents. Of the tasks of one client that claim the same only one tries at a time once there is none: the
//! others wait behind it, first come, first served.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use mongodb::{bson::Document, options::UpdateModifications};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Session,
    clock::offset,
    hold::{Grant, Hold},
    line,
    stream::{Opening, SILENT},
};
use crate::{
    error::{AcquireError, ServerError},
    protocol::{Kind, Operation, Owner, Request, Requests},
    status::LostReason,
    store::{Claimed, ResumeAt, StoreError, Wanted},
    telemetry::{self, How, StreamOf},
};

/// What a document is locked as.
const USED: (Kind, i64) = (Kind::Document, 1);

/// A stream that no claim needs is closed after this.
const LINGER: Duration = Duration::from_secs(30);

/// How often the stream is tried again where the server has none or does not permit it.
const UNAVAILABLE: Duration = Duration::from_secs(30);

/// What the claims of a session share.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By what is wanted: whoever found nothing free has the turn.
    turns: Mutex<HashMap<Vec<u8>, Weak<tokio::sync::Mutex<()>>>>,
    freed: watch::Sender<Freed>,
    /// Whether the stream's task runs.
    watched: Mutex<bool>,
}

/// What is known of documents that become free.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    /// Counts what may have made a document free.
    times: u64,
    /// The stream tells of it.
    streaming: bool,
}

impl Claims {
    fn turn(&self, wanted: &Wanted) -> Arc<tokio::sync::Mutex<()>> {
        let mut key = Vec::new();
        for part in [Some(&wanted.filter), wanted.sort.as_ref()].into_iter().flatten() {
            // What can't be written is refused by the driver, whoever's turn it is.
            let _ = part.to_writer(&mut key);
        }
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

/// A document that was claimed. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Given {
    session: Arc<Session>,
    hold: Option<Arc<Hold>>,
    document: Document,
}

impl Given {
    /// The hold, now the caller's to let go of, and the user's part of the document.
    pub(crate) fn take(mut self) -> (Option<Arc<Hold>>, Document) {
        (self.hold.take(), std::mem::take(&mut self.document))
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.session.discard(&hold);
        }
    }
}

impl Session {
    /// Claims a document; waits until one is free, or returns `None` when none is. While it waits `failing` has the last
    /// error, unless the server has answered since.
    ///
    /// Cancel safe: what was claimed in the moment in which the future is dropped is given back.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        wanted: Wanted,
        owner: Owner,
        wait: bool,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<Given>, AcquireError> {
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(AcquireError::Closed),
            claimed = self.claim_or_wait(wanted, owner, wait, failing) => claimed,
        }
    }

    async fn claim_or_wait(
        self: &Arc<Self>,
        wanted: Wanted,
        owner: Owner,
        wait: bool,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<Given>, AcquireError> {
        // Until there is a first answer.
        *failing = Some(line::unanswered(Duration::ZERO).into());
        let wanted = Arc::new(wanted);
        let turn = self.claims.turn(&wanted);
        // As long as there is enough for all, nobody waits for anybody.
        let nobody_waits = turn.try_lock().is_ok();
        if nobody_waits || !wait {
            match self.claim_once(&wanted, &owner, How::AtOnce, failing).await {
                Ok(None) if wait => *failing = None,
                Err(error) if wait && !error.is_final() => *failing = Some(error.into()),
                Ok(claimed) => return Ok(claimed),
                Err(error) => return Err(ServerError::from(error).into()),
            }
        } else {
            // Whoever has the turn has been answered.
            *failing = None;
        }
        let _turn = turn.lock().await;
        let since = Instant::now();
        let mut freed = self.claims.freed.subscribe();
        self.watch_free();
        let mut pause = line::BACKOFF.0;
        let mut how = How::Asking;
        loop {
            let streaming = freed.borrow_and_update().streaming;
            let again = match self.claim_once(&wanted, &owner, how, failing).await {
                Ok(Some(given)) => return Ok(Some(given)),
                Err(error) if error.is_final() => return Err(ServerError::from(error).into()),
                Err(error) => {
                    *failing = Some(error.into());
                    sleep(pause).await;
                    pause = (pause * 2).min(line::BACKOFF.1);
                    continue;
                }
                Ok(None) if streaming => self.free_at(&wanted).await,
                Ok(None) => Instant::now() + line::poll_interval(&self.config, 0, since.elapsed()),
            };
            *failing = None;
            pause = line::BACKOFF.0;
            how = tokio::select! {
                // The sender is the session's own.
                _ = freed.changed() => How::Event,
                () = sleep_until(again) => How::Asking,
            };
        }
    }

    /// When it is tried again although no event said so: at the first end of a lease, or after a while.
    async fn free_at(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Instant {
        let (session, wanted) = (self.clone(), wanted.clone());
        let reading = self.spawn_for(async move { session.store.free_at(&wanted).await });
        let routine = Instant::now() + line::refresh(&self.config);
        let soonest = Instant::now() + self.config.poll_interval.0;
        let Ok(Ok(Some((free_at, exchange)))) = reading.await else {
            return routine;
        };
        let mut table = self.table();
        table.clock.note(&exchange);
        let over = table.clock.after(free_at).map(|at| at + line::CLOCK_RESOLUTION);
        over.map_or(routine, |over| over.min(routine)).max(soonest)
    }

    async fn claim_once(
        self: &Arc<Self>,
        wanted: &Arc<Wanted>,
        owner: &Owner,
        how: How,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<Given>, StoreError> {
        let (session, wanted, owner) = (self.clone(), wanted.clone(), owner.clone());
        let mut claiming = self.spawn_for(async move { session.run_claim(wanted, owner, how).await });
        let claimed = match timeout(line::UNANSWERED, &mut claiming).await {
            Ok(claimed) => claimed,
            Err(_) => {
                *failing = Some(line::unanswered(line::UNANSWERED).into());
                claiming.await
            }
        };
        claimed.unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)))
    }

    async fn run_claim(
        self: Arc<Self>,
        wanted: Arc<Wanted>,
        owner: Owner,
        how: How,
    ) -> Result<Option<Given>, StoreError> {
        // The semaphore is never closed.
        let _permit = self.operations.acquire().await;
        let id = self.ids.claim();
        if self.closing.is_cancelled() {
            self.ids.settled(&id);
            return Ok(None);
        }
        let entry = Request {
            id: id.clone(),
            permits: 1,
            lease: self.config.lease_millis(),
            claim: self.config.claim_millis(),
            wait: false,
            fresh: true,
            owner,
        };
        let requests = Requests {
            kind: USED.0,
            capacity: USED.1,
            entries: vec![entry],
            // Only what is free is claimed.
            adopts: None,
        };
        let operation = Operation {
            requests: Some(requests),
            ..self.operation()
        };
        let answer = match self.store.claim(&wanted, &operation).await {
            Ok(Some(claimed)) => Ok(self.claimed(&id, claimed, how)),
            Ok(None) => Ok(None),
            Err(error) => {
                if !error.is_final() {
                    self.spawn(self.clone().take_out(wanted, id.clone()));
                }
                Err(error)
            }
        };
        self.ids.settled(&id);
        // A shutdown waits for claims too.
        self.drained.notify_waiters();
        answer
    }

    /// Enters a claimed document among what is held; `None` when the news came too late to be believed.
    fn claimed(self: &Arc<Self>, id: &str, claimed: Claimed, how: How) -> Option<Given> {
        let Claimed {
            name,
            document,
            state,
            exchange,
        } = claimed;
        let holder = state.holders.iter().find(|holder| holder.id == id);
        self.table().clock.note(&exchange);
        let deadline = holder
            .map(|holder| offset(exchange.sent, state.at, holder.until))
            .and_then(|until| until.checked_sub(self.config.skew_margin))
            .filter(|deadline| *deadline > Instant::now());
        let mut hold = None;
        self.feed(&name, |lines, context, _| {
            context.ids.settled(id);
            if let (Some(holder), Some(deadline), false) = (holder, deadline, lines.closed) {
                let grant = Grant {
                    token: holder.token,
                    used: USED,
                    permits: 1,
                    lease: context.config.lease,
                    uncertain: false,
                    how,
                    deadline,
                    renew_at: exchange.sent + context.config.renewal_interval,
                };
                let granted = Arc::new(Hold::new(id.to_owned(), name.clone(), &grant));
                lines.line(&name).hold(granted.clone());
                hold = Some(granted);
            } else {
                lines.line(&name).take_out(id.to_owned(), USED, context);
            }
        });
        let session = self.clone();
        hold.map(|hold| Given {
            session,
            hold: Some(hold),
            document,
        })
    }

    /// A claim of unknown outcome may have been applied, or still be: it is looked for, and taken out again.
    async fn take_out(self: Arc<Self>, wanted: Arc<Wanted>, id: String) {
        for pause in line::SWEEPS {
            sleep(pause).await;
            for name in self.store.held_by(&wanted, &id).await.unwrap_or_default() {
                self.feed(&name, |lines, context, _| {
                    lines.line(&name).take_out(id.clone(), USED, context);
                });
            }
        }
    }

    /// Sees to it that the stream of what becomes free is open, as long as somebody claims.
    fn watch_free(self: &Arc<Self>) {
        let mut watched = self.claims.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.config.wake_source.may_stream() || std::mem::replace(&mut *watched, true) {
            return;
        }
        let (session, ended) = (Arc::downgrade(self), self.ended.clone());
        drop(self.spawn_for(async move {
            tokio::select! {
                () = pump(session) => {}
                () = ended.cancelled() => {}
            }
        }));
    }

    /// Something may be free now.
    fn freed(&self, streaming: bool) {
        self.claims.freed.send_modify(|freed| {
            freed.times += 1;
            freed.streaming = streaming;
        });
    }

    /// Whether the stream is to end, as nobody claims; whoever does from here on starts it anew.
    fn unwatched(&self) -> bool {
        let mut watched = self.claims.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = self.claims.freed.receiver_count() == 0;
        *watched = !ends;
        ends
    }

    /// The user's part of a document.
    pub(crate) async fn fetch(self: &Arc<Self>, name: &str) -> Result<Option<Document>, ServerError> {
        let (session, name) = (self.clone(), name.to_owned());
        let fetching = self.spawn_for(async move { session.store.fetch(&name).await });
        let fetched = fetching
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)));
        Ok(fetched?)
    }

    /// Changes the user's part of a document that is held, and returns it; `None` when it is not held any more.
    pub(crate) async fn change(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<Option<Document>, ServerError> {
        let (session, held) = (self.clone(), hold.clone());
        let changing = self.spawn_for(async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            session.store.change(&held.name, holder, update).await
        });
        let changed = changing
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)));
        Ok(changed?)
    }

    /// Deletes a document that is held; `false` when it is not held any more.
    pub(crate) async fn delete(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let (session, held) = (self.clone(), hold.clone());
        let deleting = self.spawn_for(async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            held.begin_deleting();
            let deleted = session.store.delete(&held.name, holder).await;
            if matches!(deleted, Ok(true)) {
                // Gone with its document: there is nothing to take out.
                session.feed(&held.name, |lines, _, _| lines.line(&held.name).forget(&held.id));
            }
            held.end_deleting(matches!(deleted, Ok(true)));
            held.tell_end();
            deleted
        });
        let deleted = deleting
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)));
        Ok(deleted?)
    }

    /// The server said that a hold is over: looks up why, and ends it.
    pub(crate) async fn give_up(self: &Arc<Self>, hold: &Arc<Hold>) -> LostReason {
        let (session, held) = (self.clone(), hold.clone());
        // Should the task be stopped, or the server not answer, its time is over all the same.
        let _ = self
            .spawn_for(async move { session.verify_together(&[held]).await })
            .await;
        hold.lose(LostReason::Expired);
        hold.tell_end();
        hold.lost_reason().unwrap_or(LostReason::Expired)
    }
}

/// Tells the claims whenever something may be free, until nobody claims for a while.
async fn pump(session: Weak<Session>) {
    let mut resume: Option<ResumeAt> = None;
    let mut pause = line::BACKOFF.0;
    let mut opening = Opening::new();
    loop {
        let Some(opener) = session.upgrade() else { return };
        if opener.unwatched() {
            return;
        }
        let attempt = {
            let (session, from) = (opener.clone(), resume.clone());
            async move { session.store.watch_free(from.as_ref()).await }
        };
        let opened = opening.attempt(attempt).await;
        // Whatever was missed meanwhile: everybody tries again.
        opener.freed(matches!(opened, Some(Ok(_))));
        drop(opener);
        let mut stream = match opened {
            Some(Ok(stream)) => stream,
            None => {
                sleep(pause).await;
                pause = (pause * 2).min(line::BACKOFF.1);
                continue;
            }
            Some(Err(error)) => {
                resume = resume.filter(|_| !error.is_final());
                sleep(if error.is_final() { UNAVAILABLE } else { pause }).await;
                pause = (pause * 2).min(line::BACKOFF.1);
                continue;
            }
        };
        opening = Opening::new();
        telemetry::stream_opened(StreamOf::Claims, resume.is_some());
        pause = line::BACKOFF.0;
        let mut needed_at = Instant::now();
        loop {
            let batch = tokio::time::timeout(SILENT, stream.next()).await;
            let Some(session) = session.upgrade() else { return };
            let error = match batch {
                Ok(Ok(events)) if events.is_empty() => None,
                Ok(Ok(_)) => {
                    session.freed(true);
                    None
                }
                Ok(Err(error)) => Some(Some(error)),
                Err(_) => Some(None),
            };
            if let Some(error) = error {
                telemetry::stream_interrupted(StreamOf::Claims, error.as_ref());
                resume = stream
                    .resume_at()
                    .filter(|_| error.is_none_or(|error| !error.is_final()));
                break;
            }
            if session.claims.freed.receiver_count() > 0 {
                needed_at = Instant::now();
            } else if needed_at.elapsed() >= LINGER && session.unwatched() {
                session.claims.freed.send_modify(|freed| freed.streaming = false);
                return;
            }
        }
        if let Some(session) = session.upgrade() {
            session.freed(false);
        }
    }
}
