//! Holds that no client has: how one leaves this client, and how this client takes it up.

use std::{future::ready, sync::Arc, time::Duration};

use scopeguard::{ScopeGuard, guard};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{Session, claims, hold::Hold};
use crate::{
    backoff::Backoff,
    contention::Contention,
    detached::Detached,
    error::{AcquireError, InvalidInput, ServerError},
    hold_options::Terms,
    lost_reason,
    name::LockName,
    protocol::{Change, DETACHED, Entry, Exchange, Kind, Owner, State},
    status::LostReason,
    telemetry::Attempt,
    token::FencingToken,
    truncated_debug::shown_in_a_line,
    waitlist::{Grant, How},
};

impl Session {
    /// Prepares a hold to be detached, unless others share it. From now on no task of this client gets it.
    pub(crate) fn begin_detaching(&self, hold: &Arc<Hold>) -> Result<Detached, InvalidInput> {
        let name = shown_in_a_line(&hold.name);
        if self.store.is_in_place() {
            let why = format!("the lock of the document {name} can't be detached; only locks with names can");
            return Err(InvalidInput::new(why));
        }
        if hold.used.0 == Kind::Election {
            return Err(InvalidInput::new(format!(
                "the leadership of `{name}` can't be detached; release it"
            )));
        }
        if hold.upgraded().is_some() {
            let why = format!("the writer of `{name}` was a reader and can't be detached; only a reader can");
            return Err(InvalidInput::new(why));
        }
        let handles = hold.begin_detaching().err().unwrap_or_else(|| {
            let holds = self.table().lines.holds_of(&hold.name);
            holds.iter().filter(|other| other.id == hold.id).count()
        });
        if handles > 1 {
            let why = format!("the hold of `{name}` has {handles} handles and can't be detached; it must have 1");
            return Err(InvalidInput::new(why));
        }
        let granted_as = FencingToken::new(hold.granted_as);
        Ok(Detached {
            name: hold.name.clone(),
            token: hold.token,
            granted_as: (granted_as != hold.token).then_some(granted_as),
            at_least: hold.lease.at_least,
        })
    }

    /// Leaves the lock of a hold taken by no client; the hold is over here already. Returns why it was over before, if
    /// it was.
    pub(crate) async fn detach(self: &Arc<Self>, hold: &Hold) -> Result<Option<LostReason>, ServerError> {
        let change = Change {
            becomes: format!("{DETACHED}{}", hold.id),
            // What gives the others back may come later, and find no entry.
            permits: i64::try_from(hold.permits()).unwrap_or(i64::MAX),
            ..Change::of(hold.id.clone(), hold.granted_as)
        };
        let changed = self.change_hold(hold, change).await;
        // A late request may put the entry in once more; and without an answer it may still be there.
        self.update(&hold.name, None, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(&hold.name) {
                line.waitlist.step(context).renounce(hold);
            }
        });
        match changed? {
            Some(_) => Ok(None),
            None => self.reason_of_absence(hold).await.map(Some),
        }
    }

    /// Reads why a hold is not in the document.
    async fn reason_of_absence(self: &Arc<Self>, hold: &Hold) -> Result<LostReason, ServerError> {
        if hold.deadline() <= Instant::now() {
            return Ok(hold.run_out());
        }
        let Some((state, _)) = self.inspect(&hold.name).await? else {
            return Ok(LostReason::Deleted);
        };
        Ok(lost_reason::of_absence(&state, hold.granted_as))
    }

    /// Takes up a detached hold; `None`: nobody holds the lock under its token any more. If the future is dropped, the
    /// hold is detached again.
    pub(crate) async fn attach(self: &Arc<Self>, detached: &Detached) -> Result<Option<Arc<Hold>>, AcquireError> {
        self.ensure_usable()?;
        let (to, taken_up) = oneshot::channel();
        let (session, detached) = (self.clone(), detached.clone());
        self.spawn(async move {
            let taken_up = session.take_up(&detached).await;
            // The caller may be gone, and drop what comes for it.
            drop(to.send(taken_up.map(|hold| hold.map(|hold| guard(hold, move |hold| session.detach_again(hold))))));
        });
        let taken_up = tokio::select! {
            biased;
            taken_up = taken_up => taken_up,
            stands_still = self.stands_still() => return Err(stands_still.into()),
        };
        // The sender is dropped without an answer only when the session's runtime ends.
        let taken_up = taken_up.map_err(|_| self.why_closed())?;
        let Some(hold) = taken_up?.map(ScopeGuard::into_inner) else {
            return Ok(None);
        };
        // Its end will be reported. What is attached was not known before.
        let (name, permits) = (LockName::new(hold.name.clone()), i64::try_from(hold.permits()));
        let permits = permits.unwrap_or(i64::MAX);
        let attempt = Attempt::begin(Some(name), hold.label.clone(), hold.used.0, permits, false, None);
        let reported = attempt.follow(ready(Ok(hold)), |hold| vec![hold.granted()]);
        reported.await.map(Some)
    }

    /// Detaches a hold that was taken up, as nobody has come for it.
    fn detach_again(self: &Arc<Self>, hold: Arc<Hold>) {
        if self.begin_detaching(&hold).is_err() {
            // Others of this client have come to share it, and it goes with the last of them.
            self.discard(&hold);
            return;
        }
        hold.exit();
        hold.report_end();
        let session = self.clone();
        self.spawn(async move {
            // Without an answer it is taken until its lease is over.
            let _ = session.detach(&hold).await;
        });
    }

    async fn take_up(self: &Arc<Self>, detached: &Detached) -> Result<Option<Arc<Hold>>, AcquireError> {
        let mut backoff = Backoff::default();
        loop {
            if self.closing.is_cancelled() {
                return Err(self.why_closed());
            }
            let Some((state, exchange, holder)) = self.holder_of(detached).await? else {
                return Ok(None);
            };
            if !holder.is_detached() {
                return Err(self.held_by(detached, state, &exchange, holder));
            }
            if let Some(hold) = self.try_to_take_up(detached, &state, &exchange, holder).await? {
                return Ok(Some(hold));
            }
            // Another client was faster, or its time is over.
            sleep(backoff.failed()).await;
        }
    }

    /// Makes a detached holder an entry of this client. The entry is pending meanwhile, as a claim is: nothing takes it
    /// for a stranger. `None`: it is not detached any more.
    async fn try_to_take_up(
        self: &Arc<Self>,
        detached: &Detached,
        state: &State,
        exchange: &Exchange,
        holder: Entry,
    ) -> Result<Option<Arc<Hold>>, AcquireError> {
        let length = Duration::from_millis(holder.lease.unsigned_abs());
        let mut terms = Terms::default();
        terms.set_lease(length);
        terms.at_least = detached.at_least.min(length);
        terms.check(&self.config)?;
        let lease = terms.lease(&self.config);
        let used = (state.kind, state.capacity);
        let entry = self.ids.claim();
        let change = Change {
            becomes: entry.clone(),
            owner: Some(Owner {
                reason: holder.owner.reason,
                value: holder.owner.value,
                proclaimed: holder.owner.proclaimed,
                ..self.config.owner(None)
            }),
            ..Change::of(holder.id, holder.token)
        };
        let left = exchange.now.map_or(length, |now| holder.until.since(now));
        let name = &detached.name;
        let changed = self.change_entry(name, change, length, Instant::now() + left).await;
        let (holder, answer) = match changed {
            Ok(Some(changed)) => changed,
            not_changed => {
                self.settle_claims(std::slice::from_ref(&entry));
                return Ok(not_changed.map(|_| None)?);
            }
        };
        self.note(&answer.exchange);
        let version = answer.state.as_ref().map_or(0, |state| state.version);
        let added = self.settle(name, &entry, |step, context| {
            let grant = claims::grant_of(&holder, lease, &answer.exchange, How::Asking, context)?;
            let grant = Grant {
                token: detached.token.as_i64(),
                used,
                permits: holder.permits.unsigned_abs(),
                ..grant
            };
            Some(step.attached(entry.clone(), &grant, version))
        });
        if added.is_some() {
            return Ok(added);
        }
        // Nobody has released it: it is detached again. A shutdown waits for that, as the entry is pending.
        let change = Change {
            becomes: format!("{DETACHED}{entry}"),
            ..Change::of(entry.clone(), holder.token)
        };
        let (session, name) = (self.clone(), name.clone());
        self.spawn(async move {
            // Without an answer it is taken until its lease is over.
            let _ = session
                .change_entry(&name, change, length, Instant::now() + length)
                .await;
            session.settle_claims(&[entry]);
        });
        Err(match self.takes_nothing_new() {
            true => self.why_closed(),
            false => ServerError::overdue().into(),
        })
    }

    /// Renews a detached hold for its lease, and returns the reading of the lock afterwards; `None`: there is no such
    /// hold.
    pub(crate) async fn renew_detached(
        self: &Arc<Self>,
        detached: &Detached,
    ) -> Result<Option<(State, Exchange)>, ServerError> {
        let found = self.holder_of(detached).await?;
        let Some((_, exchange, holder)) = found.filter(|(.., holder)| holder.is_detached()) else {
            return Ok(None);
        };
        let length = Duration::from_millis(holder.lease.unsigned_abs());
        let left = exchange.now.map_or(length, |now| holder.until.since(now));
        let change = Change::of(holder.id, holder.token);
        let deadline = Instant::now() + left;
        let changed = self.change_entry(&detached.name, change, length, deadline).await?;
        Ok(changed.and_then(|(_, answer)| Some((answer.state?, answer.exchange))))
    }

    /// Reads the lock, and who holds it under this token, if anybody does and has not released it.
    async fn holder_of(self: &Arc<Self>, detached: &Detached) -> Result<Option<(State, Exchange, Entry)>, ServerError> {
        let Some((state, exchange)) = self.inspect(&detached.name).await? else {
            return Ok(None);
        };
        let is_live = |holder: &&Entry| exchange.now.is_none_or(|now| holder.is_live(now)) && !holder.is_kept();
        let mut holders = state.holders.iter().filter(is_live);
        // The entry has reserved the tokens after its own, up to the counter at most.
        let is_of = |holder: &&Entry| {
            holder.token == detached.entry_token() && (holder.token..=state.token).contains(&detached.token.as_i64())
        };
        let holder = holders.find(is_of).cloned();
        Ok(holder.map(|holder| (state, exchange, holder)))
    }

    /// Returns the error of a hold that a client has.
    fn held_by(&self, detached: &Detached, state: State, exchange: &Exchange, holder: Entry) -> AcquireError {
        let as_of = exchange.now.unwrap_or(state.at);
        let state = State {
            holders: vec![holder],
            ..state
        };
        let contention = Contention::new(&state, as_of, Duration::ZERO, 0, |id| self.ids.made(id));
        AcquireError::Held {
            name: detached.name.clone(),
            contention: Box::new(contention),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::{
        super::fixtures::{self, ONE, OTHER, memory},
        *,
    };
    use crate::{client::LockClient, config::Config, store::MemoryStore, tests::simulated::Link};

    const BRIEFLY: Duration = Duration::from_millis(50);

    fn client(memory: &Arc<MemoryStore>, id: &str) -> (Arc<Link>, LockClient) {
        let (link, session) = fixtures::client(memory, id, Config::default());
        (link, LockClient::new(session))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_detached_without_the_permits_that_are_on_their_way_back() {
        let (link, locks) = client(&memory(), ONE);
        let held = locks.semaphore("x", 4).acquire_many(4).await.unwrap();
        let part = held.split(3).unwrap();
        link.kill_idle(1);
        drop(part);
        sleep(BRIEFLY).await;
        assert_eq!(link.kill_idle(0), 0, "the part is on its way");
        let detached = held.detach().await.unwrap();
        assert!(locks.semaphore("x", 4).try_acquire_many(3).await.unwrap().is_some());
        assert_eq!(locks.attach(&detached).await.unwrap().unwrap().permits(), 1);
    }

    /// It went through other hands, as a cookie does.
    #[tokio::test(start_paused = true)]
    async fn a_token_that_the_hold_can_not_have_attaches_nothing() {
        let (_, locks) = client(&memory(), ONE);
        let detached = locks.mutex("x").acquire().await.unwrap().detach().await.unwrap();
        let token = detached.token.as_i64();
        for other in [token - 1, token + (1 << 40)] {
            let forged = Detached {
                token: FencingToken::new(other),
                granted_as: Some(detached.token),
                ..detached.clone()
            };
            assert!(locks.attach(&forged).await.unwrap().is_none(), "{other}");
            assert!(locks.renew_detached(&forged).await.unwrap().is_none(), "{other}");
        }
        assert!(locks.attach(&detached).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_that_nobody_waits_for_and_a_client_that_ends_takes_up_stays_detached() {
        let memory = memory();
        let ((_, detaches), (link, attaches)) = (client(&memory, ONE), client(&memory, OTHER));
        let detached = detaches.mutex("x").acquire().await.unwrap().detach().await.unwrap();
        link.block("x", true);
        let dropped = timeout(BRIEFLY, attaches.attach(&detached)).await;
        assert!(dropped.is_err(), "its write is on its way: {dropped:?}");
        let unblocked = async {
            sleep(BRIEFLY).await;
            link.block("x", false);
        };
        tokio::join!(attaches.shutdown(), unblocked);
        let shown = detaches.inspect("x").await.unwrap().expect("it is held");
        assert!(shown.is_held() && shown.holders[0].detached, "{shown:?}");
        assert!(detaches.attach(&detached).await.unwrap().is_some());
    }
}
