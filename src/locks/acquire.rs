//! Actions that acquire any kind of lock.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crate::{
    brief::shown,
    contention::Contention,
    error::{AcquireError, InvalidInput},
    handle::LockHandle,
    input::{check_name, check_permits, check_text, check_timeout},
    name::LockName,
    protocol::{Kind, Owner},
    session::{Session, UserHandle, line::AcquireOptions},
    telemetry::Attempt,
    terms::Terms,
    waitlist::Patience,
};

/// The demand of a kind of lock on the engine: a number of permits, out of a capacity, under a name.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) session: UserHandle<Arc<Session>>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) permits: i64,
}

/// Options common to both actions.
#[derive(Clone)]
struct LockRequest {
    share: Share,
    reason: Option<String>,
    value: Option<String>,
    reentrant: bool,
    terms: Terms,
}

/// The handling of a request that is not granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Otherwise {
    Wait,
    /// `None`.
    Nothing,
    /// [`AcquireError::Held`].
    Report,
}

impl LockRequest {
    fn new(share: Share) -> Self {
        Self {
            share,
            reason: None,
            value: None,
            reentrant: false,
            terms: Terms::default(),
        }
    }

    /// Refuses values that are out of bounds, before anything is sent.
    fn check(&self, timeout: Option<Duration>) -> Result<(), InvalidInput> {
        let Share {
            name,
            kind,
            capacity,
            permits,
            ..
        } = &self.share;
        // The `_id` of a document has a bound of its own, and has been checked.
        if *kind != Kind::Document {
            check_name(name)?;
        }
        if let Some(reason) = &self.reason {
            check_text("reason", reason)?;
        }
        if let Some(value) = &self.value {
            check_text("value", value)?;
        }
        timeout.map_or(Ok(()), check_timeout)?;
        self.terms.check(&self.share.session.config)?;
        check_permits(*kind, *capacity, *permits)?;
        if self.reentrant && *kind == Kind::Semaphore {
            let message = format!(
                "the semaphore `{}` is requested re-entrantly, which is not possible: ask for more permits",
                shown(name.escape_debug())
            );
            return Err(InvalidInput::new(message));
        }
        Ok(())
    }

    fn attempt(&self, patience: Patience) -> Attempt {
        let Share {
            name, kind, permits, ..
        } = &self.share;
        let label = self.share.session.config.metered.label(name);
        let waits = patience == Patience::Wait;
        Attempt::begin(Some(name), label, *kind, *permits, waits, self.reason.as_deref())
    }

    /// Waits for the lock; asks only once if the wait may take no time.
    async fn wait(self, timeout: Option<Duration>) -> Result<LockHandle, AcquireError> {
        let name = self.share.name.clone();
        let acquired = if timeout == Some(Duration::ZERO) {
            self.send(Otherwise::Report, None).await
        } else {
            self.send(Otherwise::Wait, timeout).await
        };
        let contention = match acquired {
            Ok(Some(handle)) => return Ok(handle),
            Ok(None) => None,
            Err(AcquireError::Held { contention, .. }) => Some(contention),
            Err(error) => return Err(error),
        };
        Err(AcquireError::Timeout {
            name: name.to_string(),
            waited: Duration::ZERO,
            contention,
        })
    }

    async fn send(self, otherwise: Otherwise, timeout: Option<Duration>) -> Result<Option<LockHandle>, AcquireError> {
        let Share {
            session,
            name,
            kind,
            capacity,
            permits,
        } = self.share;
        if timeout == Some(Duration::ZERO) {
            return Err(AcquireError::Unanswered {
                name: name.to_string(),
                waited: Duration::ZERO,
                contention: None,
                error: None,
            });
        }
        let owner = Owner {
            value: self.value,
            ..session.config.owner(self.reason)
        };
        let acquiring = session.join(
            &name,
            AcquireOptions {
                kind,
                capacity,
                permits,
                wait: otherwise == Otherwise::Wait,
                reports_contention: otherwise == Otherwise::Report,
                reentrant: self.reentrant,
                terms: self.terms,
                owner,
            },
        );
        let hold = acquiring.outcome(timeout).await?;
        Ok(hold.map(|hold| LockHandle::new(session, hold)))
    }
}

/// An acquire that waits for its turn; await it. Made by [`Mutex::acquire`](crate::Mutex::acquire).
///
/// It is an action and not yet a future: if you need a future (`tokio::spawn`, `pin!`, `join_all`), write
/// `.into_future()`, from [`IntoFuture`]. A pinned future that is polled repeatedly keeps its queue position.
#[derive(Clone)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    request: LockRequest,
    timeout: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            request: LockRequest::new(share),
            timeout: None,
        }
    }

    pub(crate) fn on(mut self, terms: Terms) -> Self {
        self.request.terms = terms;
        self
    }

    /// Sets the value that a leader proclaims.
    pub(crate) fn value(mut self, value: String) -> Self {
        self.request.value = Some(value);
        self
    }

    /// Gives up after `timeout`; at most 366 days. Zero asks the server and does not wait for the lock; like a try, it
    /// fails if the server has not answered for ten seconds.
    ///
    /// The error is [`AcquireError::Timeout`] if the lock was taken, with its holder and the number of waiters ahead of
    /// us, and [`AcquireError::Unanswered`] if the server did not answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.request.reason = Some(reason.into());
        self
    }

    /// Gives this hold a lease of its own, instead of the [client's](crate::LockClientBuilder::lease): how long the
    /// lock outlives its holder's last sign of life. From 500 ms, and more than twice the client's skew margin, to 366
    /// days.
    ///
    /// It is renewed in the background at the same part of the lease as the client's other holds. The client's queue
    /// position lives as long too. If both this and [`fixed`](Self::fixed) are set, the last one counts.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// // If this holder crashes, the others wait for 5 seconds, not for the client's 30.
    /// let handle = locks.mutex("invoice-42").acquire().lease(Duration::from_secs(5)).await?;
    /// assert!(handle.safe_for() < Duration::from_secs(5));
    /// # Ok(()) }
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.set_lease(lease);
        self
    }

    /// Holds the lock for `length` and no longer, as nothing renews it in the background. The bounds are those of
    /// [`lease`](Self::lease).
    ///
    /// When its time ends, the hold is [lost] as [`Elapsed`](crate::LostReason::Elapsed): earlier than at the server by
    /// the client's skew margin and a thousandth of the length. The lock itself stays taken for the whole `length`, by the
    /// server's clock. Until then it behaves like a renewed lock, and an early release opens it. The length counts from
    /// the grant; a waiter that was woken counts it from the moment at which it confirms its grant, at most 300 ms later.
    /// [`LockHandle::renew`] gives it a full length again, and so does
    /// [`LockClient::renew_holder`](crate::LockClient::renew_holder). It can't be shorter than
    /// [`at_least_for`](Self::at_least_for).
    ///
    /// [lost]: crate::LockView::lost
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    /// use watchlock::LostReason;
    ///
    /// let handle = locks.mutex("invoice-42").acquire().fixed(Duration::from_secs(5)).await?;
    /// assert_eq!(handle.lost().await, LostReason::Elapsed);
    /// # Ok(()) }
    /// ```
    pub fn fixed(mut self, length: Duration) -> Self {
        self.request.terms.set_fixed(length);
        self
    }

    /// Keeps the lock taken for at least `least` after the grant, even if it is released earlier; at most 366 days.
    ///
    /// Use it for short jobs that several hosts start at about the same time: the second finds the lock taken, although
    /// the first is done. An early release marks the lock as released, and nobody renews it any more. [`inspect`] shows
    /// when it was released and until when it is kept taken. The first waiter is granted the lock when that time ends,
    /// by the server's clock. A release after `least` opens the lock at once, as usual.
    ///
    /// A dropped handle keeps the lock taken as well, and so does a holder that dies or [loses](crate::LockView::lost) the
    /// lock: its lease is no shorter than `least`, so after a death it is free when that lease is over. A waiter that was
    /// woken has that lease from when it has confirmed its grant, a round trip later. A [`fixed`](Self::fixed) time that
    /// is shorter than `least` is refused. An operator opens a lock that is kept taken with
    /// [`break_lock`](crate::LockClient::break_lock).
    ///
    /// [`inspect`]: crate::LockClient::inspect
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    /// use watchlock::Released;
    ///
    /// let handle = locks.mutex("reminders").acquire().at_least_for(Duration::from_secs(300)).await?;
    /// // ... send the reminders, which takes a second ...
    /// assert_eq!(handle.release().await?, Released::Kept);
    /// assert!(locks.mutex("reminders").try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn at_least_for(mut self, least: Duration) -> Self {
        self.request.terms.set_at_least(least);
        self
    }

    /// Reports the hold if it lasts longer than `most`, instead of the [client's](crate::LockClientBuilder::max_hold)
    /// maximum. From 10 ms to 366 days, counted from the moment at which this client learned of its grant.
    ///
    /// From then on [`status`](crate::LockView::status) is [`HeldTooLong`](crate::LockStatus::HeldTooLong), unless
    /// renewals fail too. An event and a metric report it once. The lock is held and renewed as before.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    /// use watchlock::LockStatus;
    ///
    /// let handle = locks.mutex("nightly").acquire().max_hold(Duration::from_secs(3600)).await?;
    /// tokio::time::sleep(Duration::from_secs(3601)).await;
    /// assert_eq!(handle.status(), LockStatus::HeldTooLong);
    /// # Ok(()) }
    /// ```
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.request.terms.set_max_hold(most);
        self
    }

    /// Loses the lock when it has been held for `limit`, instead of the
    /// [client's](crate::LockClientBuilder::lose_after) limit: as [`HeldTooLong`](crate::LostReason::HeldTooLong), with
    /// the bounds and the count of [`max_hold`](Self::max_hold).
    ///
    /// The client then releases the lock at once, so that a job that hangs does not keep the others from it (for longer
    /// than [`at_least_for`](Self::at_least_for) does). The code
    /// under the lock must stop by then, as before the end of a lease: [`safe_for`](crate::LockView::safe_for) counts
    /// down to it, and [`lost`](crate::LockView::lost) resolves. Code that may go on nevertheless should write under
    /// the [fencing token](crate::LockView::token).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    /// use watchlock::LostReason;
    ///
    /// let handle = locks.mutex("nightly").acquire().lose_after(Duration::from_secs(3600)).await?;
    /// assert_eq!(handle.lost().await, LostReason::HeldTooLong);
    /// # Ok(()) }
    /// ```
    pub fn lose_after(mut self, limit: Duration) -> Self {
        self.request.terms.set_lose_after(limit);
        self
    }

    /// Keeps the lock idle with this client for that long after its release, instead of the
    /// [client's](crate::LockClientBuilder::keep_idle) time; at most 366 days, and zero gives it back at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// let account = locks.mutex("account-7");
    /// account.acquire().keep_idle(Duration::from_secs(10)).await?.release().await?;
    /// // This acquire sends no command; its release sends one, as it does not keep the lock.
    /// account.acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn keep_idle(mut self, keep: Duration) -> Self {
        self.request.terms.set_keep_idle(keep);
        self
    }

    /// Shares the hold of this client, if it has one already: the call then returns one more handle to the same hold
    /// without waiting for the lock.
    ///
    /// All handles to a hold have the same token and are lost together. The lock is released with the last of them, in
    /// any order. The first reason that was given stays, and so do the first terms: [`lease`](Self::lease),
    /// [`fixed`](Self::fixed), [`at_least_for`](Self::at_least_for), [`max_hold`](Self::max_hold),
    /// [`lose_after`](Self::lose_after).
    ///
    /// # By client, not by task
    ///
    /// Any task of this client that asks re-entrantly gets in next to the task that holds the lock, even while others
    /// wait for it: exclusion is then among clients, and the tasks must coordinate among themselves. To exclude tasks
    /// from one another, give each its own client, or use an acquire that is not re-entrant, which is the default.
    ///
    /// Only holds of the same kind are shared: a reader of a readers-writer lock gets in next to a reader, even though
    /// a writer waits, and a writer next to a writer. A reader that asks to write waits for itself. A semaphore
    /// refuses.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::Released;
    ///
    /// let mutex = locks.mutex("invoice-42");
    /// let outer = mutex.acquire().await?;
    /// let inner = mutex.acquire().reentrant().await?;
    /// assert_eq!(inner.token(), outer.token());
    /// assert_eq!(outer.release().await?, Released::StillHeld);
    /// assert_eq!(inner.release().await?, Released::Released);
    /// # Ok(()) }
    /// ```
    pub fn reentrant(mut self) -> Self {
        self.request.reentrant = true;
        self
    }
}

impl IntoFuture for Acquire {
    type Output = Result<LockHandle, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.request.check(self.timeout)?;
            let asks_once = self.timeout == Some(Duration::ZERO);
            let patience = if asks_once { Patience::Try } else { Patience::Wait };
            let attempt = self.request.attempt(patience);
            let acquiring = self.request.wait(self.timeout);
            attempt.follow(acquiring, |handle| Some(handle.hold().granted())).await
        })
    }
}

/// An acquire that does not wait; await it. Made by [`Mutex::try_acquire`](crate::Mutex::try_acquire).
#[derive(Clone)]
#[must_use = "a try does nothing until it is awaited"]
pub struct TryAcquire {
    request: LockRequest,
    timeout: Option<Duration>,
}

impl TryAcquire {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            request: LockRequest::new(share),
            timeout: None,
        }
    }

    pub(crate) fn on(mut self, terms: Terms) -> Self {
        self.request.terms = terms;
        self
    }

    /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.request.reason = Some(reason.into());
        self
    }

    /// Gives up if the server has not answered after `timeout`, with [`AcquireError::Unanswered`]; at most 366 days, and
    /// zero gives up before anything is sent.
    ///
    /// Without it a try fails with [`AcquireError::Server`] if the server has not answered for ten seconds; in that
    /// time it asks several times. The request goes on in the background, and is withdrawn once the server has
    /// processed it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// let maybe = locks.mutex("nightly-job").try_acquire().timeout(Duration::from_secs(2)).await?;
    /// # assert!(maybe.is_some());
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Gives this hold a lease of its own; see [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.set_lease(lease);
        self
    }

    /// Holds the lock for `length` and no longer; see [`Acquire::fixed`].
    pub fn fixed(mut self, length: Duration) -> Self {
        self.request.terms.set_fixed(length);
        self
    }

    /// Keeps the lock taken for at least `least` after the grant; see [`Acquire::at_least_for`].
    pub fn at_least_for(mut self, least: Duration) -> Self {
        self.request.terms.set_at_least(least);
        self
    }

    /// Reports the hold if it lasts longer than `most`; see [`Acquire::max_hold`].
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.request.terms.set_max_hold(most);
        self
    }

    /// Loses the lock when it has been held for `limit`; see [`Acquire::lose_after`].
    pub fn lose_after(mut self, limit: Duration) -> Self {
        self.request.terms.set_lose_after(limit);
        self
    }

    /// Keeps the lock idle with this client for that long after its release; see [`Acquire::keep_idle`].
    pub fn keep_idle(mut self, keep: Duration) -> Self {
        self.request.terms.set_keep_idle(keep);
        self
    }

    /// Shares a hold of this client, as [`Acquire::reentrant`] does.
    pub fn reentrant(mut self) -> Self {
        self.request.reentrant = true;
        self
    }

    /// Tries, and fails with [`AcquireError::Held`], which names the holder, if the lock is not free. Set other options
    /// first.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::AcquireError;
    ///
    /// let handle = locks.mutex("nightly-job").acquire().reason("night of the 3rd").await?;
    /// match locks.mutex("nightly-job").try_acquire().or_held().await {
    ///     Err(AcquireError::Held { contention, .. }) => {
    ///         assert_eq!(contention.holders[0].reason.as_deref(), Some("night of the 3rd"));
    ///         println!("the job is running already: {contention}");
    ///     }
    ///     other => println!("{other:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn or_held(self) -> Result<LockHandle, AcquireError> {
        let name = self.request.share.name.clone();
        let tried = self.send(Otherwise::Report).await?;
        // This variant never answers `None`.
        tried.ok_or_else(|| AcquireError::Held {
            name: name.to_string(),
            contention: Box::new(Contention::behind(0)),
        })
    }

    async fn send(self, otherwise: Otherwise) -> Result<Option<LockHandle>, AcquireError> {
        self.request.check(self.timeout)?;
        let attempt = self.request.attempt(Patience::Try);
        let trying = self.request.send(otherwise, self.timeout);
        attempt
            .follow(trying, |handle| handle.as_ref().map(|handle| handle.hold().granted()))
            .await
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Option<LockHandle>, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send(Otherwise::Nothing))
    }
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share {
            name, kind, permits, ..
        } = &self.share;
        write!(f, "{permits} of the {kind} {name:?}")
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("request", &self.request)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for TryAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryAcquire")
            .field("request", &self.request)
            .field("timeout", &self.timeout)
            .finish()
    }
}
