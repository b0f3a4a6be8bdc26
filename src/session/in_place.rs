//! Documents of the user's own: claiming any that is free, and reading and changing one that is held.
//!
//! A lock of a known name is waited for in the queue of its document. A claim asks for whatever document is free, so it
//! has no document to stand in line at: it tries, and when there is none it tries again as soon as one may have become
//! free. The change stream tells of releases, and of documents that came or changed; ends of leases are reckoned from
//! the documents. Of the tasks of one client that claim the same only one tries at a time once there is none: the
//! others wait behind it, first come, first served.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Session,
    hold::Hold,
    line::UNANSWERED,
    pace::Pace,
    passed::{PASSED_AT_ONCE, Passed, Why},
    watcher::Demand,
};
use crate::{
    error::{AcquireError, ServerError},
    protocol::{Kind, Operation, Owner, Request, Requests},
    status::LostReason,
    store::{Among, Claimed, Outlook, Store, StoreError, Wanted, name},
    telemetry::{self, How},
    waitlist::{
        Grant, SWEEPS, Vain,
        answers::TRY_FOR,
        deadline::Deadline,
        timing::{self, BACKOFF, CLOCK_RESOLUTION},
    },
};

/// What a document is locked as.
const USED: (Kind, i64) = (Kind::Document, 1);

/// How often a claim that finds nothing looks for documents that can't be claimed, once it has found none of them.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of filters for which the last look is known; they are forgotten together, which costs a look each.
const LOOKS_MOST: usize = 64;

/// Maximum number of characters of an `_id` that are shown where it can't be claimed, as it may be too long.
const SHOWN_MOST: usize = 200;

/// What the claims of a session share.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By what is wanted: whoever found nothing free has the turn.
    turns: Mutex<HashMap<Vec<u8>, Weak<tokio::sync::Mutex<()>>>>,
    /// By what is wanted: when it was looked for documents that can't be claimed, and whether there was any.
    looks: Mutex<HashMap<Vec<u8>, (Instant, bool)>>,
    passed: Mutex<Passed>,
    freed: watch::Sender<Freed>,
}

/// What is known of documents that become free.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    /// Counts what may have made a document free.
    times: u64,
    /// The stream tells of it.
    streaming: bool,
}

/// How a claim ended that was answered.
#[derive(Debug)]
enum Round {
    Claimed(Given),
    NothingFree,
    /// A document could not be claimed, for this reason; the others may be.
    PassedOver(StoreError),
}

/// What the server did with a claim.
#[derive(Debug)]
enum Next {
    Claimed(Claimed),
    NothingFree,
    /// The document with this `_id` can't be written.
    Refused(Bson, StoreError),
}

/// What is wanted, as a key.
fn key(wanted: &Wanted) -> Vec<u8> {
    let mut key = Vec::new();
    for part in [Some(&wanted.filter), wanted.sort.as_ref()].into_iter().flatten() {
        // What can't be written is refused by the driver, whoever's turn it is.
        let _ = part.to_writer(&mut key);
    }
    key
}

/// The name of a document that can't be claimed, which may be too long for a name.
fn shown(id: &Bson) -> String {
    let name = name::of_id(id);
    match name.char_indices().nth(SHOWN_MOST) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name,
    }
}

/// Claims; where the server refuses, finds out whether that is because of one document.
async fn claim_next(
    store: &Store,
    wanted: &Wanted,
    passed: &[Bson],
    operation: &Operation,
    within: Duration,
) -> Result<Next, StoreError> {
    let among = Among::AllBut(passed);
    let refused = match store.claim(wanted, among, operation, within).await {
        Err(error) if error.may_concern_document() => error,
        claimed => return Ok(claimed?.map_or(Next::NothingFree, Next::Claimed)),
    };
    // The refusal does not name the document. A filter that is refused is so here as well.
    let Ok(candidate) = store.candidate(wanted, among).await else {
        return Err(refused);
    };
    let Some(candidate) = candidate else {
        return Ok(Next::NothingFree);
    };
    // It may be another by now: only the one that is refused by itself is passed over.
    match store.claim(wanted, Among::Only(&candidate), operation, within).await {
        Err(error) if error.may_concern_document() => Ok(Next::Refused(candidate, error)),
        claimed => Ok(claimed?.map_or(Next::NothingFree, Next::Claimed)),
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

    /// Whether it is time to look for documents that can't be claimed: for as long as there are some it always is.
    fn look_is_due(&self, key: &[u8]) -> bool {
        let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks
            .get(key)
            .is_none_or(|(at, found)| *found || at.elapsed() >= LOOK_EVERY)
    }

    fn looked(&self, key: &[u8], found: bool) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.len() >= LOOKS_MOST && !looks.contains_key(key) {
            looks.clear();
        }
        looks.insert(key.to_vec(), (Instant::now(), found));
    }

    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// error, unless the server has answered since. `passed`: a document was passed over for its sake already.
    ///
    /// Cancel safe: what was claimed in the moment in which the future is dropped is given back.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        wanted: Wanted,
        owner: Owner,
        wait: bool,
        passed: bool,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<Given>, AcquireError> {
        self.stopped()?;
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(self.why_closed()),
            claimed = self.claim_or_wait(wanted, owner, wait, passed, failing) => claimed,
        }
    }

    async fn claim_or_wait(
        self: &Arc<Self>,
        wanted: Wanted,
        owner: Owner,
        wait: bool,
        mut passed: bool,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<Given>, AcquireError> {
        // Until there is a first answer.
        *failing = Some(StoreError::unanswered(Duration::ZERO).into());
        let begun = Instant::now();
        let wanted = Arc::new(wanted);
        let key = key(&wanted);
        let turn = self.claims.turn(&key);
        let mut vain = Vain::default();
        // As long as there is enough for all, nobody waits for anybody.
        let nobody_waits = turn.try_lock().is_ok();
        if nobody_waits || !wait {
            let mut pause = BACKOFF.0;
            loop {
                let claimed = self.claim_once(&wanted, &owner, How::AtOnce, &mut vain, &mut passed, failing);
                match claimed.await {
                    Ok(None) if wait => *failing = None,
                    Ok(None) => {
                        if passed || self.claims.look_is_due(&key) {
                            // The claim was answered; the look is only for what may hold up all claims.
                            let outlook = self.look(&wanted, &key).await;
                            self.some_are_claimable(outlook.ok().as_ref(), true).await?;
                        }
                        return Ok(None);
                    }
                    Err(error) if wait && !error.is_final() => *failing = Some(error.into()),
                    // Another try can meet with a connection that works, or with a limit that is long enough.
                    Err(error) if (error.is_unanswered() || error.ran_out_of_time()) && begun.elapsed() < TRY_FOR => {
                        sleep(pause).await;
                        pause = (pause * 2).min(BACKOFF.1);
                        continue;
                    }
                    Ok(claimed) => return Ok(claimed),
                    Err(error) => return Err(ServerError::from(error).into()),
                }
                break;
            }
        } else {
            // Whoever has the turn has been answered.
            *failing = None;
        }
        let _turn = turn.lock().await;
        let since = Instant::now();
        let mut freed = self.claims.freed.subscribe();
        self.watch_free();
        let mut pause = BACKOFF.0;
        let mut pace = Pace::new(Instant::now());
        let mut free_at: Option<Instant> = None;
        let mut how = How::Asking;
        loop {
            let streaming = freed.borrow_and_update().streaming;
            let began = Instant::now();
            let claimed = self.claim_once(&wanted, &owner, how, &mut vain, &mut passed, failing);
            match claimed.await {
                Ok(Some(given)) => return Ok(Some(given)),
                Ok(None) => {}
                Err(error) if error.is_final() => return Err(ServerError::from(error).into()),
                Err(error) => {
                    *failing = Some(error.into());
                    sleep(pause).await;
                    pause = (pause * 2).min(BACKOFF.1);
                    continue;
                }
            }
            *failing = None;
            pause = BACKOFF.0;
            let now = Instant::now();
            pace.tried(began, now);
            let polled = now + timing::poll_interval(&self.config, 0, since.elapsed());
            // What was seen a moment ago will do for an event.
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

    async fn look(self: &Arc<Self>, wanted: &Arc<Wanted>, key: &[u8]) -> Result<Outlook, StoreError> {
        let passed = self.claims.passed().ids(Instant::now());
        let reading = self.read_long(|store| {
            let (wanted, passed) = (wanted.clone(), passed.clone());
            async move { store.outlook(&wanted, &passed).await }
        });
        let outlook = reading.await?;
        self.note(&outlook.exchange);
        self.claims.looked(key, outlook.unfit.is_some());
        Ok(outlook)
    }

    /// When it is tried again although no event said so: at the first end of a lease, or after a while.
    fn free_at(&self, outlook: &Outlook) -> Instant {
        let routine = Instant::now() + timing::refresh(&self.config);
        let soonest = Instant::now() + self.config.poll_interval.0;
        let over = outlook.free_at.and_then(|free_at| self.table().clock.after(free_at));
        let over = over.map(|at| at + CLOCK_RESOLUTION);
        over.map_or(routine, |over| over.min(routine)).max(soonest)
    }

    /// Fails where all that match are documents that can't be claimed; of those that are known already it is only said
    /// again where that is `asked`.
    async fn some_are_claimable(self: &Arc<Self>, outlook: Option<&Outlook>, asked: bool) -> Result<(), AcquireError> {
        let Some((outlook, id)) = outlook.and_then(|outlook| Some((outlook, outlook.unfit.as_ref()?))) else {
            return Ok(());
        };
        let name = shown(id);
        let known = self.claims.passed().why(&name, Instant::now());
        let news = known.is_none();
        let why = match known {
            Some(why) => why,
            None => {
                let reading = self.read_long(|store| {
                    let unfit = id.clone();
                    async move { store.why_unfit(&unfit).await }
                });
                let Some(why) = reading.await.unwrap_or_else(Some) else {
                    return Ok(());
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

    /// Leaves a document out of the claims to come for a while, as it can't be read as what it is asked for.
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

    /// Claims, and goes on with the next document where one can't be claimed; `passed` then says so.
    async fn claim_once(
        self: &Arc<Self>,
        wanted: &Arc<Wanted>,
        owner: &Owner,
        how: How,
        vain: &mut Vain,
        passed: &mut bool,
        failing: &mut Option<ServerError>,
    ) -> Result<Option<Given>, StoreError> {
        for _ in 1..PASSED_AT_ONCE {
            match self.claim_round(wanted, owner, how, vain, failing).await? {
                Round::Claimed(given) => return Ok(Some(given)),
                Round::NothingFree => return Ok(None),
                Round::PassedOver(_) => *passed = true,
            }
        }
        match self.claim_round(wanted, owner, how, vain, failing).await? {
            Round::Claimed(given) => Ok(Some(given)),
            Round::NothingFree => Ok(None),
            Round::PassedOver(why) => Err(why),
        }
    }

    async fn claim_round(
        self: &Arc<Self>,
        wanted: &Arc<Wanted>,
        owner: &Owner,
        how: How,
        vain: &mut Vain,
        failing: &mut Option<ServerError>,
    ) -> Result<Round, StoreError> {
        let (to, mut answer) = oneshot::channel();
        let claiming = self.clone().run_claim(wanted.clone(), owner.clone(), how, *vain, to);
        let task = self.spawn_for(claiming);
        let claimed = match timeout(UNANSWERED, &mut answer).await {
            Ok(claimed) => claimed,
            Err(_) => {
                *failing = Some(StoreError::unanswered(UNANSWERED).into());
                answer.await
            }
        };
        let claimed = match claimed {
            Ok(claimed) => claimed,
            // It went without a word, as the runtime is shutting down.
            Err(_) => Err(task.await.map_or_else(StoreError::stopped, |()| StoreError::overdue())),
        };
        match &claimed {
            Ok(_) => *vain = Vain::default(),
            Err(error) if error.is_unanswered() => vain.unanswered = vain.unanswered.saturating_add(1),
            Err(error) if error.ran_out_of_time() => vain.overdue = vain.overdue.saturating_add(1),
            Err(_) => {}
        }
        claimed
    }

    /// Claims once, and sends what comes of it. Where that is not heard of in time, it runs on by itself.
    async fn run_claim(
        self: Arc<Self>,
        wanted: Arc<Wanted>,
        owner: Owner,
        how: How,
        vain: Vain,
        to: oneshot::Sender<Result<Round, StoreError>>,
    ) {
        let limit = self.asking.limit_of_claim(vain, &self.config);
        let room = self.asking.enter(false, vain).await;
        let id = self.ids.claim();
        if self.closing.is_cancelled() {
            self.ids.settled(&id);
            // Whoever waits for it may be gone.
            drop(to.send(Ok(Round::NothingFree)));
            return;
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
        let (store, passed) = (self.store.clone(), self.claims.passed().ids(Instant::now()));
        let mut claiming = pin!(claim_next(&store, &wanted, &passed, &operation, limit.within));
        let (answer, adrift) = match self.asking.answer(claiming.as_mut(), room, limit).await {
            Ok(answer) => (answer, None),
            Err(adrift) => (Err(StoreError::unanswered(limit.patience())), Some(adrift)),
        };
        let answer = match answer {
            Ok(Next::Claimed(claimed)) => self.claimed(&id, claimed, how),
            Ok(Next::NothingFree) => Ok(Round::NothingFree),
            Ok(Next::Refused(document, error)) => {
                self.note_passed(document, Arc::new(error.clone()), false);
                Ok(Round::PassedOver(error))
            }
            Err(error) => {
                if !error.is_final() {
                    self.spawn(self.clone().take_out(wanted.clone(), id.clone()));
                }
                Err(error)
            }
        };
        self.ids.settled(&id);
        // Whoever waits for it may be gone; what was claimed is given back then.
        drop(to.send(answer));
        // A shutdown waits for claims too.
        self.drained.notify_waiters();
        let Some(adrift) = adrift else { return };
        // What is adrift keeps no session alive.
        let session = Arc::downgrade(&self);
        drop(self);
        let late = claiming.await;
        adrift.ended(&late);
        // Nobody waits for it any more.
        if let (Some(session), Ok(Next::Claimed(late))) = (session.upgrade(), late) {
            session.feed(&late.name, |lines, context, _| {
                lines.line(&late.name).take_out(id, USED, context);
            });
        }
    }

    /// Enters a claimed document among what is held, unless the news came too late to be believed.
    fn claimed(self: &Arc<Self>, id: &str, claimed: Claimed, how: How) -> Result<Round, StoreError> {
        let Claimed {
            name,
            document,
            state,
            exchange,
        } = claimed;
        self.note(&exchange);
        let state = match state {
            Ok(state) => state,
            Err(malformed) => {
                // Written and not readable: nobody could ever release it.
                self.feed(&name, |lines, context, _| {
                    context.ids.settled(id);
                    lines.line(&name).take_out(id.to_owned(), USED, context);
                });
                let error = StoreError::from(malformed);
                let document = document.get("_id").cloned().unwrap_or(Bson::Null);
                self.note_passed(document, Arc::new(error.clone()), false);
                return Ok(Round::PassedOver(error));
            }
        };
        let holder = state.holders.iter().find(|holder| holder.id == id);
        let mut hold = None;
        let mut doubted = false;
        self.feed(&name, |lines, context, effects| {
            let overtaken = context.ids.settled(id);
            let deadline = holder
                .and_then(|holder| {
                    Deadline::of_answer(&exchange, holder.until, context.clock, context.now, context.config)
                })
                .filter(|deadline| deadline.instant() > context.now);
            if let (Some(holder), Some(deadline), false) = (holder, deadline, lines.closed) {
                let grant = Grant {
                    token: holder.token,
                    used: USED,
                    permits: 1,
                    lease: context.config.lease,
                    how,
                    deadline,
                    renew_at: exchange.sent + context.config.renewal_interval,
                };
                let granted = Arc::new(Hold::new(id.to_owned(), name.clone(), &grant));
                let line = lines.line(&name);
                line.hold(granted.clone());
                // Its end may have been heard of first.
                doubted = overtaken.doubts(&name);
                for (signal, at) in overtaken.signals {
                    line.signalled(id, signal, at, context, effects);
                }
                hold = Some(granted);
            } else {
                lines.line(&name).take_out(id.to_owned(), USED, context);
            }
        });
        let Some(hold) = hold else {
            return Ok(Round::NothingFree);
        };
        if doubted {
            self.verify(vec![hold.clone()]);
        }
        self.claims
            .passed()
            .forget(&shown(document.get("_id").unwrap_or(&Bson::Null)));
        Ok(Round::Claimed(Given {
            session: self.clone(),
            hold: Some(hold),
            document,
        }))
    }

    /// A claim of unknown outcome may have been applied, or still be: it is looked for, and taken out again.
    async fn take_out(self: Arc<Self>, wanted: Arc<Wanted>, id: String) {
        for pause in SWEEPS {
            sleep(pause).await;
            let reading = self.read_long(|store| {
                let (wanted, id) = (wanted.clone(), id.clone());
                async move { store.held_by(&wanted, &id).await }
            });
            for name in reading.await.unwrap_or_default() {
                self.feed(&name, |lines, context, _| {
                    lines.line(&name).take_out(id.clone(), USED, context);
                });
            }
        }
    }

    /// Has the session's stream tell what becomes free, as long as somebody claims. To be called by who is told of it.
    fn watch_free(&self) {
        if self.config.wake_source.may_stream() {
            let wanted = Demand {
                stream: true,
                claims: true,
            };
            self.demand
                .send_if_modified(|demand| std::mem::replace(demand, wanted) != wanted);
        }
    }

    /// Something may be free now; `streaming`: the stream tells whatever else becomes free.
    pub(super) fn freed(&self, streaming: bool) {
        self.claims.freed.send_modify(|freed| {
            freed.times += 1;
            freed.streaming = streaming;
        });
    }

    /// Whether somebody waits for a document to become free.
    pub(super) fn is_claiming(&self) -> bool {
        self.claims.freed.receiver_count() > 0
    }

    /// The user's part of a document.
    pub(crate) async fn fetch(self: &Arc<Self>, name: &str) -> Result<Option<Document>, ServerError> {
        let fetching = self.read_long(|store| {
            let name = name.to_owned();
            async move { store.fetch(&name).await }
        });
        Ok(fetching.await?)
    }

    /// Changes the user's part of a document that is held, and returns it; `None` when it is not held any more.
    pub(crate) async fn change(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<Option<Document>, ServerError> {
        let (store, held, within) = (self.store.clone(), hold.clone(), hold.lease);
        let operation = self.ids.operation();
        let changing = async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            store.change(&held.name, holder, update, &operation, within).await
        };
        // It can take its time, and is not repeated.
        Ok(self.in_time(within, changing).await?)
    }

    /// Deletes a document that is held; `false` when it is not held any more.
    pub(crate) async fn delete(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let (session, held, within) = (self.clone(), hold.clone(), hold.lease);
        let deleting = async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            held.begin_deleting();
            let deleted = session.store.delete(&held.name, holder, within).await;
            if matches!(deleted, Ok(true)) {
                // Gone with its document: there is nothing to take out.
                session.feed(&held.name, |lines, _, _| lines.line(&held.name).forget(&held.id));
            }
            held.end_deleting(matches!(deleted, Ok(true)));
            held.tell_end();
            deleted
        };
        Ok(self.in_time(within, deleting).await?)
    }

    /// The server said that a hold is over: looks up why, and ends it.
    pub(crate) async fn give_up(self: &Arc<Self>, hold: &Arc<Hold>) -> LostReason {
        let (session, held) = (self.clone(), hold.clone());
        // Should the task be stopped, or the server not answer, its time is over all the same.
        let _ = self
            .spawn_for(async move { session.verify_together(&[held]).await })
            .await;
        hold.lose(LostReason::Expired);
        self.bury(hold);
        hold.lost_reason().unwrap_or(LostReason::Expired)
    }
}

#[cfg(test)]
mod tests;
