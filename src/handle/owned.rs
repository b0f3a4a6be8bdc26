//! A hold of one lock, and the view of it.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use super::Released;
use crate::{
    detached::Detached,
    error::{AcquireError, HoldError, InvalidInput, ServerError},
    protocol::wake::Left,
    session::{
        Session, UserHandle,
        hold::{Hold, Remains},
    },
    status::{Lost, LostReason},
    store::LockLayout,
    telemetry,
    truncated_debug::shown_in_a_line,
    waitlist::Hold as _,
};

/// A hold of one lock: released when it is dropped.
pub struct OwnedHold {
    session: UserHandle,
    seen: SeenHold,
    /// Whether it no longer counts among the handles of the hold.
    gone: bool,
}

impl OwnedHold {
    pub(crate) fn new(session: UserHandle, hold: Arc<Hold>) -> Self {
        let seen = SeenHold {
            session: Arc::downgrade(&**session),
            locked: session.store.in_place().cloned(),
            permits: Arc::new(AtomicU64::new(hold.permits())),
            hold,
        };
        Self {
            session,
            seen,
            gone: false,
        }
    }

    /// Splits so many permits off, for a handle of their own.
    pub(crate) fn split(&self, permits: u64) -> Result<Self, HoldError> {
        self.take(permits)?;
        if let Err(reason) = self.hold().split() {
            return Err(self.lost_as(reason).into());
        }
        let part = Self::new(self.session.clone(), self.hold().clone());
        part.seen.permits.store(permits, Ordering::Relaxed);
        Ok(part)
    }

    /// Takes the permits of another part of the same hold; `Err`: it is of another one.
    pub(crate) fn merge(&self, mut other: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(self.hold(), other.hold()) {
            return Err(other);
        }
        other.gone = true;
        self.seen.permits.fetch_add(other.permits(), Ordering::Relaxed);
        if !self.session.is_forked() {
            self.hold().merge();
        }
        Ok(())
    }

    /// Gives so many permits back, and keeps the others.
    pub(crate) async fn release_some(&self, permits: u64) -> Result<(), HoldError> {
        self.take(permits)?;
        self.keep_permits(self.hold().give_up(permits)).await
    }

    fn ensure_usable(&self) -> Result<(), HoldError> {
        self.check()?;
        Ok(self.session.ensure_usable()?)
    }

    /// Takes so many permits out of this handle, which keeps at least one.
    fn take(&self, permits: u64) -> Result<(), HoldError> {
        self.ensure_usable()?;
        let left = |held: u64| held.checked_sub(permits).filter(|left| permits > 0 && *left > 0);
        let taken = self
            .seen
            .permits
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        taken.map(drop).map_err(|held| {
            InvalidInput::new(format!(
                "{permits} of the {held} permits of `{}` can't be given away; it must be from 1 to one less than are held",
                shown_in_a_line(&self.name)
            ))
            .into()
        })
    }

    /// Returns another handle of a reader of so many permits that is to become a writer. As long as it has that, it keeps
    /// them.
    pub(crate) fn to_upgrade(session: &UserHandle, reader: &Arc<Hold>, permits: i64) -> Result<Self, AcquireError> {
        if reader.enter(permits) {
            return Ok(Self::new(session.clone(), reader.clone()));
        }
        if let Some(reason) = reader.lost_reason() {
            return Err(reader.lost_as(reason).into());
        }
        let name = shown_in_a_line(&reader.name);
        let why = format!("the reader of `{name}` was downgraded and can't be upgraded; acquire a new one");
        Err(InvalidInput::new(why).into())
    }

    /// Notes that the reader became a writer by this hold, which is over with it.
    pub(crate) fn note_upgraded(&self, mut reader: Self) {
        if self.hold().note_upgraded(reader.hold()) {
            // The hold has its handle now.
            reader.gone = true;
            // What has ended the reader since may not have met this hold.
            self.session.let_go_if_over(self.hold());
        }
    }

    /// Keeps one permit, that of a plain reader.
    pub(crate) async fn become_reader(&self) -> Result<(), HoldError> {
        self.ensure_usable()?;
        if let Err(handles) = self.hold().downgrade(1) {
            return Err(InvalidInput::new(format!(
                "the hold of `{}` has {handles} handles and can't be downgraded; it must have 1",
                shown_in_a_line(&self.name)
            ))
            .into());
        }
        self.seen.permits.store(1, Ordering::Relaxed);
        self.keep_permits(1).await?;
        self.session.discard_upgraded(self.hold());
        Ok(())
    }

    pub(crate) fn session(&self) -> &UserHandle {
        &self.session
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.seen.hold
    }

    /// Returns the hold, and that of the reader that became a writer with it.
    fn with_reader(&self) -> Vec<Arc<Hold>> {
        let own = self.hold();
        [own.clone()].into_iter().chain(own.upgraded()).collect()
    }

    /// Has the document count the permits of the other parts alone. It goes on even if nobody waits for it any more.
    async fn release_part(&self, left: u64) -> Result<Released, ServerError> {
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        let (session, hold) = ((**self.session).clone(), self.hold().clone());
        let releasing = self
            .session
            .spawn_for(async move { session.downgrade(&hold, left).await });
        match releasing.await.and_then(|released| released) {
            Ok(true) => Ok(Released::Released),
            // The others may be released by now.
            Ok(false) if self.hold().lost_reason() == Some(LostReason::Released) => Ok(Released::Released),
            Ok(false) => Ok(Released::WasLost),
            Err(error) => Err(self.unconfirmed(error)),
        }
    }

    /// Keeps so many permits of the hold, and gives up the others.
    async fn keep_permits(&self, permits: u64) -> Result<(), HoldError> {
        let permits = i64::try_from(permits).unwrap_or(i64::MAX);
        self.changed(self.session.downgrade(self.hold(), permits)).await
    }

    /// Runs a change of the hold, which reports whether it still holds.
    pub(crate) async fn changed(
        &self,
        change: impl Future<Output = Result<bool, ServerError>>,
    ) -> Result<(), HoldError> {
        match self.unless_lost(change).await? {
            true => Ok(()),
            false => Err(self.loss().await.into()),
        }
    }

    /// Runs an operation on the hold to its end, or to that of the hold: it can hang in the driver for longer than the
    /// lease, which renewals extend in the meantime.
    async fn unless_lost<O>(&self, operation: impl Future<Output = Result<O, ServerError>>) -> Result<O, HoldError> {
        let done = tokio::select! {
            biased;
            done = operation => done,
            lost = self.hold().lost() => return Err(self.lost_as(lost).into()),
        };
        self.check()?;
        Ok(done?)
    }

    /// Gives the hold up here, and leaves the lock taken for the client that takes it up.
    pub(crate) async fn detach(mut self) -> Result<Detached, HoldError> {
        self.ensure_usable()?;
        let (session, hold) = ((**self.session).clone(), self.hold().clone());
        let detached = session.begin_detaching(&hold)?;
        self.gone = true;
        let remains = hold.exit();
        hold.report_end();
        if let Remains::Lost(reason) = remains {
            return Err(self.lost_as(reason).into());
        }
        // It goes on even if nobody waits for it any more.
        let detaching = session.clone().spawn_for(async move { session.detach(&hold).await });
        match detaching.await? {
            Ok(None) => Ok(detached),
            Ok(Some(reason)) => Err(self.lost_as(reason).into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns why the lock is lost, after a write under it has found that. The watch over the hold may not have
    /// noticed yet, so the server is asked.
    pub(crate) async fn loss(&self) -> Lost {
        match self.renew().await {
            Err(HoldError::Lost(lost)) => lost,
            _ => self.seen.loss().unwrap_or(self.lost_as(LostReason::Overwritten)),
        }
    }

    fn unconfirmed(&self, error: ServerError) -> ServerError {
        telemetry::release_failed(&self.hold().name, &error);
        error
    }

    pub(super) fn seen(&self) -> SeenHold {
        self.seen.clone()
    }

    pub(crate) async fn renew(&self) -> Result<Duration, HoldError> {
        self.ensure_usable()?;
        // Not as its user: the answer can take longer than the user keeps the handle.
        let (session, holds) = ((**self.session).clone(), self.with_reader());
        let within = self.safe_for();
        let renewal = async move { session.renew_together(&holds, within).await };
        match self.unless_lost(self.session.in_time(within, renewal)).await? {
            Some(error) => Err(error.into()),
            None => Ok(self.safe_for()),
        }
    }

    pub(crate) async fn renew_for(&self, length: Duration) -> Result<Duration, HoldError> {
        self.ensure_usable()?;
        let holds = self.with_reader();
        let longer = holds.iter().map(|hold| hold.longer_lease(length, &self.session.config));
        let longer = longer.collect::<Result<Vec<_>, _>>()?;
        let is_long = longer.iter().any(Option::is_none);
        for (hold, lease) in holds.iter().zip(longer) {
            let Some(lease) = lease else { continue };
            self.changed(self.session.lengthen(hold, lease)).await?;
        }
        if is_long {
            self.renew().await
        } else {
            Ok(self.safe_for())
        }
    }

    /// Releases it, for its user: an error names it.
    pub(crate) async fn release(self) -> Result<Released, HoldError> {
        let name = self.name.clone();
        let released = self.leave().await;
        released.map_err(|error| HoldError::Unconfirmed { name, error })
    }

    /// Releases it.
    pub(crate) async fn leave(mut self) -> Result<Released, ServerError> {
        self.gone = true;
        let remains = self.hold().exit_part(self.permits());
        self.hold().report_end();
        if let Remains::Lost(_) = remains {
            self.session.discard_upgraded(self.hold());
        }
        let left = match remains {
            Remains::Nothing => self.session.let_go(self.hold()).left_future(),
            Remains::Held => return Ok(Released::StillHeld),
            Remains::Parts(left) => return self.release_part(left).await,
            // The client's shutdown releases it, or its document was deleted.
            Remains::Lost(LostReason::Released) => match self.hold().left_by_shutdown.get() {
                Some(left) => left.clone().right_future(),
                None => return Ok(Released::Released),
            },
            // A lost lock is not touched: its entry is gone, or the server ends it.
            Remains::Lost(_) => return Ok(Released::WasLost),
        };
        let left = tokio::select! {
            biased;
            left = tokio::time::timeout(self.session.config.lease, left) => left,
            stands_still = self.session.stands_still() => return Err(self.unconfirmed(stands_still)),
            // After a shutdown it is not known whether it is still sent.
            () = self.session.has_ended() => return Err(self.unconfirmed(ServerError::overdue())),
        };
        match left {
            Ok(Ok(Ok(Left::Holder))) => Ok(Released::Released),
            Ok(Ok(Ok(Left::Kept))) => Ok(Released::Kept),
            Ok(Ok(Err(error))) => Err(self.unconfirmed(error)),
            Ok(Ok(Ok(_))) => Ok(Released::WasLost),
            // Nothing is left to be answered, or the runtime ends, and with it the task of a shutdown.
            Ok(Err(_)) => tokio::select! {
                biased;
                ran = self.session.spawn_for(async {}) => match ran {
                    Ok(()) => Ok(Released::WasLost),
                    Err(ended) => Err(self.unconfirmed(ended)),
                },
                stands_still = self.session.stands_still() => Err(self.unconfirmed(stands_still)),
            },
            // The release goes on in the background.
            Err(_) => Err(self.unconfirmed(ServerError::unanswered(self.session.config.lease))),
        }
    }
}

impl Deref for OwnedHold {
    type Target = SeenHold;

    fn deref(&self) -> &SeenHold {
        &self.seen
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if !self.gone {
            self.session.discard_part(self.hold(), self.permits());
        }
    }
}

impl fmt::Debug for OwnedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seen.fmt(f)
    }
}

/// A view of a hold of one lock.
#[derive(Clone)]
pub struct SeenHold {
    pub(super) hold: Arc<Hold>,
    /// A view that outlives handles and clients keeps nothing alive.
    pub(super) session: Weak<Session>,
    /// For a document: the place of such locks.
    pub(crate) locked: Option<Arc<LockLayout>>,
    /// The permits of its handle: those of the hold, unless that has several parts.
    permits: Arc<AtomicU64>,
}

impl SeenHold {
    pub(crate) fn permits(&self) -> u64 {
        self.permits.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        self.loss().map_or(Ok(()), Err)
    }

    /// Notes that a task waits for the loss.
    fn await_losses(&self) {
        if let Some(session) = self.session.upgrade() {
            session.await_losses();
        }
    }

    pub(crate) async fn lost(&self) -> Lost {
        self.await_losses();
        self.lost_as(self.hold.lost().await)
    }

    pub(crate) fn loss(&self) -> Option<Lost> {
        self.lost_reason().map(|reason| self.lost_as(reason))
    }

    pub(crate) fn lost_token(&self) -> CancellationToken {
        if self.lost_reason() == Some(LostReason::Forked) {
            return cancelled();
        }
        self.await_losses();
        // A child: cancelling the user's token must not end the lock.
        self.hold.ended().child_token()
    }
}

impl Deref for SeenHold {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

/// Returns a token for a fork, in which that of the hold is not asked: a thread of the parent may have had its mutex.
pub(crate) fn cancelled() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}

impl fmt::Debug for SeenHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.hold.name)
            .field("token", &self.hold.token.as_i64())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
