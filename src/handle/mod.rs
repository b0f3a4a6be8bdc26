//! Handles and views of held locks.

pub(crate) mod guard;

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    brief::shown,
    error::{InvalidInput, ReleaseError, RenewError, ServerError},
    protocol::{Kind, wake::Left},
    session::{
        Session, UserHandle,
        hold::{Hold, Remains},
    },
    status::{LockStatus, Lost, LostReason},
    store::{InPlace, Statements, StoreError},
    telemetry,
    token::FencingToken,
};

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// The lock was ours to the end, and is now free or handed over. A lock that a task hands on [inside the
    /// process](crate::guarantees#inside-a-process), or leaves to tasks that share it, was ours as far as the client
    /// knew.
    Released,
    /// This handle is gone, and the lock is still held by another handle of this client from a re-entrant acquire
    /// ([`Acquire::reentrant`](crate::Acquire::reentrant)). The last of them releases it.
    StillHeld,
    /// The lock was ours to the end, and is kept taken although nobody holds it, as the acquire [asked
    /// for](crate::Acquire::at_least_for); [`inspect`](crate::LockClient::inspect) shows until when.
    Kept,
    /// The lock was lost before: another holder may have it, and the release did not touch that hold.
    WasLost,
}

/// A held lock.
///
/// It dereferences to a [`LockView`], which has its name and token and reports its loss. It is renewed in the
/// background for as long as the handle lives, unless it was acquired for a [fixed](crate::Acquire::fixed) time.
/// Dropping it releases the lock in the background; [`release`](Self::release) does so and returns when it is done.
///
/// # Guarantees
///
/// - No other handle to the lock is valid, in any process, from the grant until this one is released or lost, except
///   those of the same client that were [acquired re-entrantly](crate::Acquire::reentrant).
/// - [`lost`](LockView::lost) resolves before the server would give the lock to another because of a missing renewal,
///   even if the server can't be reached; and within a hop if somebody breaks, overwrites or deletes the lock.
/// - A lost lock is never acquired again behind the holder's back.
///
/// The time is read from this machine's monotonic clock. On Linux that clock stands still while the whole machine is
/// suspended, so work after a suspension is only safe under the [fencing token](LockView::token).
#[must_use = "the lock is released when the handle is dropped"]
pub struct LockHandle {
    session: UserHandle<Arc<Session>>,
    view: LockView,
    /// Whether it no longer counts among the handles of the hold.
    gone: bool,
}

impl LockHandle {
    pub(crate) fn new(session: UserHandle<Arc<Session>>, hold: Arc<Hold>) -> Self {
        let view = LockView {
            hold,
            session: Arc::downgrade(&*session),
            locked: session.store.in_place().cloned(),
        };
        Self {
            session,
            view,
            gone: false,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.view.hold
    }

    /// Returns a view of this hold for the code that works under it; it can be cloned, and outlives the handle.
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// Renews the lock now, in addition to the renewals in the background, and returns for how long it is safe.
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: the lock is still
    /// held, and renewals go on in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the renewal goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// let safe_for = handle.renew().await?;
    /// assert!(safe_for > std::time::Duration::from_secs(20));
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self) -> Result<Duration, RenewError> {
        self.check()?;
        self.session.ensure_usable()?;
        // Not as its user: the answer can take longer than the user keeps the handle.
        let (session, hold) = ((*self.session).clone(), self.hold.clone());
        let within = hold.safe_for();
        let renewal = async move { session.renew_together(&[hold], Statements::Shared, within).await };
        // It can hang in the driver for longer than the lease, which other renewals extend in the meantime.
        let renewed = tokio::select! {
            biased;
            renewed = self.session.in_time(within, renewal) => renewed,
            lost = self.lost() => return Err(lost.into()),
        };
        self.check()?;
        match renewed {
            Err(error) | Ok(Some(error)) => Err(ServerError::from(error).into()),
            Ok(None) => Ok(self.safe_for()),
        }
    }

    /// Returns why the lock is lost, after a write under it has found that. The watch over the hold may not have
    /// noticed yet, so the server is asked.
    pub(crate) async fn loss(&self) -> Lost {
        match self.renew().await {
            Err(RenewError::Lost(lost)) => lost,
            _ => self.check().err().unwrap_or(self.lost_as(LostReason::Overwritten)),
        }
    }

    /// Makes a writer of a [readers-writer lock](crate::RwLock) a reader, without letting go in between: its changes
    /// are still there when it reads.
    ///
    /// Readers that wait at the head of the queue get in with the same write; they stay behind a writer that came
    /// before them. The token, the lease and the handle stay the same. A reader stays a reader. There is no way back:
    /// readers that wait to become writers would wait for each other.
    ///
    /// # Errors
    ///
    /// [`RenewError::Invalid`] for any other kind of lock, and for a hold that was [acquired
    /// re-entrantly](crate::Acquire::reentrant) and has other handles, which still count on it; nothing was sent.
    /// [`RenewError::Lost`] if the lock is lost. [`RenewError::Server`] if the server refused, or did not answer before
    /// the deadline of the hold: this handle is a reader's nevertheless, and others may have to wait until it is
    /// released, or until another call of `downgrade` succeeds.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the handle is a reader's, and others may have to wait as after an error. It can be
    /// called again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let prices = locks.rw_lock("prices");
    /// let handle = prices.write().await?;
    /// // ... write ...
    /// handle.downgrade().await?;
    /// assert!(prices.try_read().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(&self) -> Result<(), RenewError> {
        /// Number of permits that a reader has.
        const READER: i64 = 1;

        let kind = self.hold.used.0;
        let name = shown(self.name().escape_debug());
        if kind != Kind::RwLock {
            return Err(InvalidInput::new(format!(
                "the {kind} `{name}` can't be downgraded; only a writer of a readers-writer lock can"
            ))
            .into());
        }
        self.check()?;
        self.session.ensure_usable()?;
        if let Err(handles) = self.hold.downgrade(READER.unsigned_abs()) {
            return Err(InvalidInput::new(format!(
                "the writer of `{name}` has {handles} handles and can't be downgraded; it must have 1"
            ))
            .into());
        }
        let downgraded = tokio::select! {
            biased;
            downgraded = self.session.downgrade(self.hold(), READER) => downgraded,
            lost = self.lost() => return Err(lost.into()),
        };
        self.check()?;
        match downgraded {
            Err(error) => Err(error.into()),
            Ok(true) => Ok(()),
            Ok(false) => Err(self.loss().await.into()),
        }
    }

    /// Releases the lock: it is handed to the next in the queue, or is free, unless it is [kept
    /// taken](crate::Acquire::at_least_for) or [idle](crate::LockClientBuilder::keep_idle).
    ///
    /// If the lock was re-entered, or several readers of the process
    /// [share it](crate::guarantees#inside-a-process), only the last handle releases it and sends anything.
    ///
    /// # Errors
    ///
    /// If the server refuses, or can't be reached for the time of a lease; or at once, if the runtime on which the
    /// client was first used has ended. Even then the lock is no longer ours, and it stays taken for at most the rest
    /// of its lease.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::Released;
    ///
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// assert_eq!(handle.release().await?, Released::Released);
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<Released, ReleaseError> {
        self.gone = true;
        let remains = self.hold().exit();
        self.hold().report_end();
        match remains {
            Remains::Nothing => {}
            Remains::Held => return Ok(Released::StillHeld),
            // The client's shutdown released it.
            Remains::Lost(LostReason::Released) if self.session.stays_taken(self.hold()) => return Ok(Released::Kept),
            Remains::Lost(LostReason::Released) => return Ok(Released::Released),
            // A lost lock is not touched: its entry is gone, or the server ends it.
            Remains::Lost(_) => return Ok(Released::WasLost),
        }
        let left = self.session.let_go(self.hold());
        let left = tokio::select! {
            biased;
            left = tokio::time::timeout(self.session.config.lease, left) => left,
            stands_still = self.session.stands_still() => return Err(self.unconfirmed(stands_still)),
        };
        match left {
            Ok(Ok(Ok(Left::Holder))) => Ok(Released::Released),
            Ok(Ok(Ok(Left::Kept))) => Ok(Released::Kept),
            Ok(Ok(Err(error))) => Err(self.unconfirmed(error)),
            Ok(Ok(Ok(_)) | Err(_)) => Ok(Released::WasLost),
            // The release goes on in the background.
            Err(_) => Err(self.unconfirmed(StoreError::overdue().into())),
        }
    }

    fn unconfirmed(&self, error: ServerError) -> ReleaseError {
        telemetry::release_failed(self.name(), &error);
        ReleaseError::Server {
            name: self.name().to_owned(),
            error,
        }
    }
}

impl Deref for LockHandle {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.view
    }
}

impl Drop for LockHandle {
    fn drop(&mut self) {
        if !self.gone {
            self.session.discard(self.hold());
        }
    }
}

impl fmt::Debug for LockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockHandle")
            .field("name", &self.name())
            .field("token", &self.token().as_i64())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// A view of a held lock, for the code that works under it: it can watch the lock, but not release it.
///
/// # Guarantees
///
/// Same as for [`LockHandle`]; a view that outlives the handle reports [`LostReason::Released`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let handle = locks.mutex("invoice-42").acquire().await?;
/// let view = handle.view();
/// drop(handle);
/// assert_eq!(view.lost().await, watchlock::LostReason::Released);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockView {
    hold: Arc<Hold>,
    /// A view that outlives handles and clients keeps nothing alive.
    session: Weak<Session>,
    /// For a document: the place of such locks.
    locked: Option<Arc<InPlace>>,
}

impl LockView {
    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.hold.name
    }

    /// Returns the fencing token of this grant.
    ///
    /// If the lock was [handed on inside the process](crate::guarantees#inside-a-process), or several readers of the
    /// process share it, the lock's document shows a smaller one: that of the first task that had it.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// Returns the number of held permits: 1 for a mutex, the requested number for a semaphore.
    pub fn permits(&self) -> u64 {
        self.hold.permits()
    }

    /// Waits until the lock is lost, and returns the loss: an error that names the lock and the reason.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: use it in `select!`, again and again.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// # async fn work() {}
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// tokio::select! {
    ///     biased; // The loss first: work that is done at the same moment may not have been done under the lock.
    ///     lost = handle.lost() => return Err(lost.into()),
    ///     () = work() => {}
    /// }
    /// handle.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn lost(&self) -> Lost {
        self.lost_as(self.hold.lost().await)
    }

    /// Returns the loss if the lock is lost: an error that names the lock and the reason.
    ///
    /// Checks the clock on the spot: the answer is right even if no task of the program has run for a while.
    ///
    /// # Errors
    ///
    /// The loss.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// handle.check()?;
    /// locks.break_lock("invoice-42").await?;
    /// handle.lost().await;
    /// let lost = handle.check().unwrap_err();
    /// assert_eq!(lost.to_string(), "`invoice-42` is lost: the lock was broken by an operator");
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<(), Lost> {
        self.lost_reason().map_or(Ok(()), |reason| Err(self.lost_as(reason)))
    }

    pub(crate) fn lost_as(&self, reason: LostReason) -> Lost {
        self.hold.lost_as(reason)
    }

    /// Returns why the lock was lost; `None` while it is held.
    ///
    /// Checks the clock on the spot: the answer is right even if no task of the program has run for a while.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.hold.lost_reason()
    }

    /// Returns whether the lock is still held: whether there is no [`lost_reason`](Self::lost_reason), with whatever
    /// other [`status`](Self::status). Checks the clock on the spot.
    ///
    /// It can be lost a moment later. So use [`lost`](Self::lost) beside the work, and a [fence](Self::fence) where a
    /// late write would do harm.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// let view = handle.view();
    /// assert!(view.is_held());
    /// handle.release().await?;
    /// assert!(!view.is_held());
    /// # Ok(()) }
    /// ```
    pub fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    /// Returns how safe the lock is at present.
    pub fn status(&self) -> LockStatus {
        self.hold.status()
    }

    /// Returns for how long the lock is surely ours, even if the server can't be reached from now on.
    ///
    /// Right after a hand-over that is the claim lease, until the first renewal a few hundred milliseconds later.
    pub fn safe_for(&self) -> Duration {
        self.hold.safe_for()
    }

    /// Returns a token that is cancelled as soon as the lock is no longer ours: when it is lost, released or dropped.
    pub fn lost_token(&self) -> CancellationToken {
        // A child: cancelling the user's token must not end the lock.
        self.hold.ended().child_token()
    }

    pub(crate) fn locked(&self) -> Option<&Arc<InPlace>> {
        self.locked.as_ref()
    }

    pub(crate) fn parts(&self) -> (&Arc<Hold>, Option<Arc<Session>>) {
        (&self.hold, self.session.upgrade())
    }
}

impl fmt::Debug for LockView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockView")
            .field("name", &self.name())
            .field("token", &self.token().as_i64())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
