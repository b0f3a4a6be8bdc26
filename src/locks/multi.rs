//! Several mutexes, all or nothing.
//!
//! Every client takes the names in one order, that of their bytes, and holds only names that come before the one it
//! waits for. The client that waits for the largest name that anybody waits for waits for a client that is not waiting
//! itself: so there is no cycle, for any orders in which the names were given. The order also holds when a part is
//! lost on the way: the later parts are released before the client waits for the lost one again.

use std::{
    fmt,
    future::{Future, IntoFuture},
    ops::Deref,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::{runtime::Handle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    brief::Brief,
    contention::Contention,
    error::{AcquireError, InvalidInput, ReleaseError, RenewError, RunError},
    handle::{LockHandle, LockView, Released},
    input::{check_names, check_text, check_timeout},
    locks::mutex::Mutex,
    name::LockName,
    session::{Session, UserHandle},
    status::{LockStatus, Lost, LostReason},
    terms::Terms,
    token::FencingToken,
};

/// Several mutexes that are held together or not at all. Made by [`LockClient::multi`](crate::LockClient::multi).
///
/// Each part is the [`Mutex`](crate::Mutex) of its name, for everybody: a holder of `locks.mutex("a")` keeps a
/// multi-lock of `a` and `b` waiting, and vice versa.
///
/// # Guarantees
///
/// - From the grant until the handle is released or lost, every part is held; it is lost when any part is lost.
/// - Multi-locks never deadlock among each other, for any orders in which their names are given, as all take them in
///   one order: sorted by their bytes. Nor do they deadlock with mutexes that are acquired one at a time, or in the
///   same order. Not re-entrant: a task that already holds one of the names waits for itself.
/// - A part that is lost while others are still awaited does not count as held: the parts after it in the order are
///   released, and it is acquired again, within the same timeout.
/// - Parts that are held already are renewed while the others are awaited.
///
/// # Under contention
///
/// A multi-lock waits in one queue at a time, first come, first served, and holds the smaller names in the meantime: of
/// two multi-locks with common names, the one that is granted the smallest common name first has them all first. There
/// is no further fairness across names, and while a multi-lock waits for its last name it keeps others from its first,
/// without working. So put contended names late in the order, use few names and hold them briefly.
///
/// # Cost
///
/// An acquire takes one round trip per name if all are free, one after the other; the release is sent for all at once.
/// The client renews the parts together with its other locks. At most 128 names.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let accounts = locks.multi(["account-7", "account-3"]);
/// let handle = accounts.acquire().await?;
/// assert!(locks.mutex("account-3").try_acquire().await?.is_none());
/// // ... transfer ...
/// handle.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    session: UserHandle<Arc<Session>>,
    /// Sorted.
    names: Vec<LockName>,
}

impl MultiLock {
    pub(crate) fn new(session: UserHandle<Arc<Session>>, mut names: Vec<LockName>) -> Self {
        names.sort_unstable();
        Self { session, names }
    }

    /// Returns the names, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(Deref::deref)
    }

    /// Acquires all parts, waiting for each in turn. Await the returned action.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`]. No names, more than 128, and a name given twice are invalid; nothing is sent then. After
    /// any error nothing is held: parts already acquired are released in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the future is dropped, its queue position and the parts it held are given back in the
    /// background. It takes its first queue position when it is first polled.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// let handle = locks.multi(["b", "a"]).acquire().timeout(Duration::from_secs(5)).reason("transfer").await?;
    /// assert_eq!(handle.tokens().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> MultiAcquire {
        MultiAcquire {
            request: self.request(),
            timeout: None,
        }
    }

    /// Acquires all parts if every one is free and nobody waits for any; `None` otherwise. Await the returned action.
    ///
    /// It asks for one after the other. If one is taken, it releases the previous ones in the background; until then
    /// others may find those taken.
    ///
    /// # Errors
    ///
    /// Same as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let other = locks.mutex("b").acquire().await?;
    /// assert!(locks.multi(["a", "b"]).try_acquire().await?.is_none());
    /// assert!(locks.mutex("a").try_acquire().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> TryMultiAcquire {
        TryMultiAcquire {
            request: self.request(),
            timeout: None,
        }
    }

    fn request(&self) -> MultiRequest {
        MultiRequest {
            session: self.session.clone(),
            names: self.names.clone(),
            reason: None,
            terms: Terms::default(),
        }
    }

    /// Acquires all parts, runs the future that `work` makes, and releases them: short for `acquire().run(work)`, which
    /// takes options. See [`MultiAcquire::run`].
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if they were not acquired, [`RunError::Lost`] if one was lost on the way.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work's future and releases all parts in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let moved = locks.multi(["a", "b"]).run(|held| async move { held.token("a") }).await?;
    /// assert!(moved.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn run<F, Fut>(&self, work: F) -> Result<Fut::Output, RunError>
    where
        F: FnOnce(MultiView) -> Fut,
        Fut: Future,
    {
        self.acquire().run(work).await
    }
}

/// Options common to both actions.
#[derive(Clone)]
struct MultiRequest {
    session: UserHandle<Arc<Session>>,
    /// Sorted.
    names: Vec<LockName>,
    reason: Option<String>,
    terms: Terms,
}

impl MultiRequest {
    fn check(&self, timeout: Option<Duration>) -> Result<(), InvalidInput> {
        check_names(&self.names)?;
        timeout.map_or(Ok(()), check_timeout)?;
        self.terms.check(&self.session.config)?;
        self.reason
            .as_ref()
            .map_or(Ok(()), |reason| check_text("reason", reason))
    }

    /// Waits for one name after the other, up to `timeout` in all.
    async fn acquire(self, timeout: Option<Duration>) -> Result<MultiHandle, AcquireError> {
        self.check(timeout)?;
        // Zero means the same for each part as for a mutex: ask, and do not wait.
        let deadline = timeout
            .filter(|timeout| !timeout.is_zero())
            .map(|timeout| Instant::now() + timeout);
        let mut held: Vec<LockHandle> = Vec::with_capacity(self.names.len());
        loop {
            // A part lost in the meantime must be acquired again, and no later part may be held then.
            if let Some(lost) = held.iter().position(|part| part.lost_reason().is_some()) {
                held.truncate(lost);
            }
            let Some(name) = self.names.get(held.len()) else {
                return Ok(MultiHandle::new(held));
            };
            let mut acquire = Mutex::new(self.session.clone(), name.clone()).acquire().on(self.terms);
            if let Some(left) = deadline.map_or(timeout, |at| Some(until(at))) {
                if deadline.is_some() && left.is_zero() {
                    return Err(overdue(name.to_string(), timeout));
                }
                acquire = acquire.timeout(left);
            }
            if let Some(reason) = &self.reason {
                acquire = acquire.reason(reason);
            }
            tokio::select! {
                biased;
                () = any_lost(held.iter().map(Deref::deref)) => {}
                acquired = acquire => held.push(acquired.map_err(|error| in_all(error, timeout))?),
            }
        }
    }

    /// Asks for one name after the other, until one is not free: then [`AcquireError::Held`].
    async fn try_acquire(self, timeout: Option<Duration>) -> Result<MultiHandle, AcquireError> {
        self.check(timeout)?;
        let begun = Instant::now();
        let deadline = timeout.map(|timeout| begun + timeout);
        let mut held: Vec<LockHandle> = Vec::with_capacity(self.names.len());
        for name in &self.names {
            let mut acquire = Mutex::new(self.session.clone(), name.clone())
                .try_acquire()
                .on(self.terms);
            if let Some(deadline) = deadline {
                acquire = acquire.timeout(until(deadline));
            }
            if let Some(reason) = &self.reason {
                acquire = acquire.reason(reason);
            }
            held.push(acquire.or_held().await.map_err(|error| in_all(error, timeout))?);
        }
        let mut lost = held.iter().filter_map(|part| Some((part.name(), part.lost_reason()?)));
        match lost.next() {
            None => {}
            Some((name, reason)) => return Err(lost_meanwhile(name, reason, begun.elapsed())),
        }
        Ok(MultiHandle::new(held))
    }
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Returns the error of a try whose part was lost while the others were asked for.
fn lost_meanwhile(name: &str, reason: LostReason, waited: Duration) -> AcquireError {
    let name = name.to_owned();
    match reason {
        LostReason::Released => AcquireError::Closed,
        // Nobody was in the way: the server took too long with the others.
        LostReason::Expired | LostReason::Elapsed | LostReason::HeldTooLong => AcquireError::Unanswered {
            name,
            waited,
            contention: None,
            error: None,
        },
        // Somebody took it from us.
        _ => AcquireError::Held {
            name,
            contention: Box::new(Contention::behind(0)),
        },
    }
}

/// Returns the error for a timeout that expired before the name was requested, which may be free.
fn overdue(name: String, timeout: Option<Duration>) -> AcquireError {
    AcquireError::Unanswered {
        name,
        waited: timeout.unwrap_or_default(),
        contention: None,
        error: None,
    }
}

/// Adjusts the error of a part that was not free in the rest of the timeout: it reports the whole timeout.
fn in_all(mut error: AcquireError, timeout: Option<Duration>) -> AcquireError {
    if let (AcquireError::Timeout { waited, .. } | AcquireError::Unanswered { waited, .. }, Some(timeout)) =
        (&mut error, timeout)
    {
        *waited = timeout;
    }
    error
}

/// Waits until any of the parts is lost; forever if there are none.
async fn any_lost(parts: impl Iterator<Item = &LockView>) {
    let mut losses: FuturesUnordered<_> = parts.map(LockView::lost).collect();
    if losses.next().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// An acquire of several locks that waits for its turn; await it. Made by [`MultiLock::acquire`].
///
/// It is an action, like [`Acquire`](crate::Acquire).
#[derive(Clone)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct MultiAcquire {
    request: MultiRequest,
    timeout: Option<Duration>,
}

impl MultiAcquire {
    /// Gives up after `timeout` in all, with [`AcquireError::Timeout`] for the name that was not free, or
    /// [`AcquireError::Unanswered`] if the server did not answer; at most 366 days. Zero asks the server and does not
    /// wait for the locks.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets why the locks are wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.request.reason = Some(reason.into());
        self
    }

    /// Gives each part a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.set_lease(lease);
        self
    }

    /// Reports parts that are held for longer than `most`; see [`Acquire::max_hold`](crate::Acquire::max_hold).
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.request.terms.set_max_hold(most);
        self
    }

    /// Loses the locks when the first of them has been held for `limit`; see
    /// [`Acquire::lose_after`](crate::Acquire::lose_after).
    pub fn lose_after(mut self, limit: Duration) -> Self {
        self.request.terms.set_lose_after(limit);
        self
    }
}

impl IntoFuture for MultiAcquire {
    type Output = Result<MultiHandle, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.request.acquire(self.timeout))
    }
}

/// An acquire of several locks that does not wait; await it. Made by [`MultiLock::try_acquire`].
#[derive(Clone)]
#[must_use = "a try does nothing until it is awaited"]
pub struct TryMultiAcquire {
    request: MultiRequest,
    timeout: Option<Duration>,
}

impl TryMultiAcquire {
    /// Sets why the locks are wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.request.reason = Some(reason.into());
        self
    }

    /// Gives each part a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.set_lease(lease);
        self
    }

    /// Reports parts that are held for longer than `most`; see [`Acquire::max_hold`](crate::Acquire::max_hold).
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.request.terms.set_max_hold(most);
        self
    }

    /// Loses the locks when the first of them has been held for `limit`; see
    /// [`Acquire::lose_after`](crate::Acquire::lose_after).
    pub fn lose_after(mut self, limit: Duration) -> Self {
        self.request.terms.set_lose_after(limit);
        self
    }

    /// Gives up if the server has not answered for all parts after `timeout`; see [`TryAcquire::timeout`].
    ///
    /// [`TryAcquire::timeout`]: crate::TryAcquire::timeout
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tries, and fails with [`AcquireError::Held`], which names the holder, for the first name that is not free. Set
    /// other options first.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe, like [`MultiLock::acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::AcquireError;
    ///
    /// let other = locks.mutex("b").acquire().reason("audit").await?;
    /// let error = locks.multi(["a", "b"]).try_acquire().or_held().await.unwrap_err();
    /// assert!(matches!(error, AcquireError::Held { name, .. } if name == "b"));
    /// # Ok(()) }
    /// ```
    pub async fn or_held(self) -> Result<MultiHandle, AcquireError> {
        self.request.try_acquire(self.timeout).await
    }
}

impl IntoFuture for TryMultiAcquire {
    type Output = Result<Option<MultiHandle>, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.or_held().await {
                Ok(handle) => Ok(Some(handle)),
                Err(AcquireError::Held { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

/// Several held locks.
///
/// It dereferences to a [`MultiView`], which has the tokens and reports a loss. All parts are renewed in the background
/// for as long as the handle lives. Dropping it releases them in the background; [`release`](Self::release) does so and
/// returns when it is done.
///
/// # Guarantees
///
/// Those of [`LockHandle`] for every part.
#[must_use = "the locks are released when the handle is dropped"]
pub struct MultiHandle {
    parts: Vec<LockHandle>,
    view: MultiView,
}

impl MultiHandle {
    fn new(parts: Vec<LockHandle>) -> Self {
        let view = MultiView {
            held: Arc::new(HeldParts {
                parts: parts.iter().map(LockHandle::view).collect(),
                runtime: Handle::current(),
                lost: OnceLock::new(),
                ended: OnceLock::new(),
            }),
        };
        Self { parts, view }
    }

    /// Returns a view of these holds for the code that works under them; it can be cloned, and outlives the handle.
    pub fn view(&self) -> MultiView {
        self.view.clone()
    }

    /// Renews all parts now, in addition to the renewals in the background, and returns for how long they are safe; see
    /// [`LockHandle::renew`].
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if any part is lost; it says which.
    /// [`RenewError::Server`] if the server could not be reached: all parts are still held, and renewals go on in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the renewals go on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.multi(["a", "b"]).acquire().await?;
    /// assert!(handle.renew().await? > std::time::Duration::from_secs(20));
    /// # Ok(()) }
    /// ```
    pub async fn renew(&self) -> Result<Duration, RenewError> {
        let renewed = join_all(self.parts.iter().map(LockHandle::renew)).await;
        self.check()?;
        renewed.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(self.safe_for())
    }

    /// Releases all parts at once. Returns [`Released::WasLost`] if any was lost before, regardless of the others;
    /// [`Released::StillHeld`] if another task of this client has re-entered any.
    ///
    /// # Errors
    ///
    /// Same as for [`LockHandle::release`], if the release of any part could not be confirmed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the releases go on in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::Released;
    ///
    /// let handle = locks.multi(["a", "b"]).acquire().await?;
    /// assert_eq!(handle.release().await?, Released::Released);
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<Released, ReleaseError> {
        let released = join_all(self.parts.into_iter().map(LockHandle::release)).await;
        if released
            .iter()
            .any(|part| part.as_ref().is_ok_and(|part| *part == Released::WasLost))
        {
            return Ok(Released::WasLost);
        }
        // Another task of this client that re-entered a part still holds it, and a caller that needs everything free
        // learns of it.
        let still_held = released
            .iter()
            .any(|part| part.as_ref().is_ok_and(|part| *part == Released::StillHeld));
        let released_all = if still_held {
            Released::StillHeld
        } else {
            Released::Released
        };
        released.into_iter().find(Result::is_err).unwrap_or(Ok(released_all))
    }
}

impl Deref for MultiHandle {
    type Target = MultiView;

    fn deref(&self) -> &MultiView {
        &self.view
    }
}

/// A view of several held locks, for the code that works under them: it can watch them, but not release them.
///
/// # Guarantees
///
/// Same as for [`MultiHandle`]; a view that outlives the handle reports [`LostReason::Released`].
#[derive(Clone)]
pub struct MultiView {
    held: Arc<HeldParts>,
}

struct HeldParts {
    /// Sorted by name; never empty.
    parts: Vec<LockView>,
    runtime: Handle,
    /// The first observed loss stays, as with a single lock.
    lost: OnceLock<Lost>,
    ended: OnceLock<CancellationToken>,
}

impl MultiView {
    /// Returns the parts, in the order of their names.
    pub fn parts(&self) -> impl Iterator<Item = &LockView> {
        self.held.parts.iter()
    }

    /// Returns the part with this name.
    pub fn part(&self, name: &str) -> Option<&LockView> {
        let found = self.held.parts.binary_search_by(|part| part.name().cmp(name));
        found.ok().map(|position| &self.held.parts[position])
    }

    /// Returns the fencing token of the part with this name. Tokens of different names are unrelated.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.part(name).map(LockView::token)
    }

    /// Returns the names and their fencing tokens, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.parts().map(|part| (part.name(), part.token()))
    }

    /// Waits until any part is lost, and returns which one and why.
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
    /// let handle = locks.multi(["a", "b"]).acquire().await?;
    /// locks.break_lock("b").await?;
    /// let lost = handle.lost().await;
    /// assert_eq!((lost.name.as_str(), lost.reason), ("b", watchlock::LostReason::Broken));
    /// # Ok(()) }
    /// ```
    pub async fn lost(&self) -> Lost {
        loop {
            if let Err(lost) = self.check() {
                return lost;
            }
            any_lost(self.parts()).await;
        }
    }

    /// Returns the loss if any part is lost, like [`LockView::check`]. If several are lost, the first one observed.
    ///
    /// # Errors
    ///
    /// The loss.
    pub fn check(&self) -> Result<(), Lost> {
        self.loss().map_or(Ok(()), Err)
    }

    fn loss(&self) -> Option<Lost> {
        if let Some(lost) = self.held.lost.get() {
            return Some(lost.clone());
        }
        let losses = || {
            self.parts()
                .filter_map(|part| part.lost_reason().map(|reason| (part, reason)))
        };
        // A loss says more than the release of the other parts after it.
        let (part, reason) = losses()
            .find(|(_, reason)| *reason != LostReason::Released)
            .or_else(|| losses().next())?;
        Some(self.held.lost.get_or_init(|| part.lost_as(reason)).clone())
    }

    /// Returns how safe the locks are at present: the status of the least safe part.
    pub fn status(&self) -> LockStatus {
        if self.check().is_err() {
            return LockStatus::Lost;
        }
        let statuses = self.parts().map(LockView::status);
        statuses.fold(LockStatus::Held, LockStatus::worse)
    }

    /// Returns for how long all parts are surely ours, even if the server can't be reached from now on.
    pub fn safe_for(&self) -> Duration {
        self.parts().map(LockView::safe_for).min().unwrap_or_default()
    }

    /// Returns a token that is cancelled as soon as any part is no longer ours: when it is lost, released or dropped;
    /// and when the runtime ends, as nobody renews the parts any more then.
    pub fn lost_token(&self) -> CancellationToken {
        let ended = self.held.ended.get_or_init(|| {
            let ended = CancellationToken::new();
            let (view, guard) = (self.clone(), ended.clone().drop_guard());
            // The task ends with the hold. It is dropped with the runtime, and the guard with it.
            drop(self.held.runtime.spawn(async move {
                view.lost().await;
                drop(guard);
            }));
            ended
        });
        if self.check().is_err() {
            ended.cancel();
        }
        // A child: cancelling the user's token must not cancel those of others.
        ended.child_token()
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiLock").field(&Brief(&self.names)).finish()
    }
}

impl fmt::Debug for MultiAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiAcquire")
            .field("names", &Brief(&self.request.names))
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for TryMultiAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryMultiAcquire")
            .field("names", &Brief(&self.request.names))
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for MultiHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiHandle").field(&self.view.held.parts).finish()
    }
}

impl fmt::Debug for MultiView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiView").field(&self.held.parts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only somebody who took the part makes it a lock that is taken.
    #[test]
    fn a_try_that_lost_a_part_says_why() {
        let error = |reason| lost_meanwhile("x", reason, Duration::from_secs(1));
        assert!(matches!(error(LostReason::Expired), AcquireError::Unanswered { .. }));
        assert!(matches!(error(LostReason::Released), AcquireError::Closed));
        for reason in [
            LostReason::Broken,
            LostReason::Overwritten,
            LostReason::Deleted,
            LostReason::Adopted,
        ] {
            assert!(matches!(error(reason), AcquireError::Held { .. }));
        }
    }
}
