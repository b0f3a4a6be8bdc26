//! The one action: an acquire of any target, and how it goes on where the lock is not free.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Mutex as Cell, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::options::Options;
#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    error::AcquireError,
    handle::{
        Held, Released, View,
        owned::OwnedHold,
        target::{AnyLock, CanIdle, CanReenter, Count, IsLock, IsOne, One, Target},
    },
    status::{Lost, LostReason},
    truncated_debug::Brief,
    world::{Async, Sealed, World},
};

/// A target that can be acquired: all but [`AnyLock`](crate::action::AnyLock) and [`Once`](crate::locks::Once), which are
/// held only. With `Count = One` it gives one handle, as all but claims of many documents do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be acquired here",
    note = "documents must be `DeserializeOwned + Send + Sync`; `AnyLock` is held, and never acquired"
)]
pub trait CanAcquire: Target<Request: Clone + Send + Sync + Unpin, Data: Send + Sync> + 'static {
    #[doc(hidden)]
    fn ask(
        request: Self::Request,
        options: Options,
    ) -> impl Future<Output = Result<Of<Self, Got<Self>>, AcquireError>> + Send;
}

/// A held lock as one of any kind.
impl<T: IsOne + CanAcquire, W: World> From<Held<T, W>> for Held<AnyLock, W> {
    fn from(held: Held<T, W>) -> Self {
        held.into_lock().0
    }
}

impl<T: IsOne + CanAcquire, W: World> From<View<T, W>> for View<AnyLock, W> {
    fn from(view: View<T, W>) -> Self {
        Self::of(view.seen)
    }
}

/// [`Wait`], [`Try`] or [`OrHeld`]: how an acquire goes on where the lock is not free. The second parameter of
/// [`Acquire`].
pub trait Patience: Sealed + Unpin + 'static {
    /// The result of an acquire, whose handle is an `X`: that, or for a [`Try`] an `Option<X>`.
    type Given<X>;
    #[doc(hidden)]
    const TRIES: bool;

    #[doc(hidden)]
    fn given<X>(acquired: Result<X, AcquireError>) -> Result<Self::Given<X>, AcquireError>;
}

/// Waits for its turn.
#[derive(Clone, Copy, Debug)]
pub enum Wait {}

/// Does not wait: gives `None` if the lock is not free.
#[derive(Clone, Copy, Debug)]
pub enum Try {}

/// Does not wait: fails with [`AcquireError::Held`], which names the holder, if the lock is not free.
#[derive(Clone, Copy, Debug)]
pub enum OrHeld {}

impl Sealed for Wait {}
impl Sealed for Try {}
impl Sealed for OrHeld {}

impl Patience for Wait {
    type Given<X> = X;
    const TRIES: bool = false;

    fn given<X>(acquired: Result<X, AcquireError>) -> Result<X, AcquireError> {
        acquired
    }
}

impl Patience for Try {
    type Given<X> = Option<X>;
    const TRIES: bool = true;

    fn given<X>(acquired: Result<X, AcquireError>) -> Result<Option<X>, AcquireError> {
        match acquired {
            Err(AcquireError::Held { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }
}

impl Patience for OrHeld {
    type Given<X> = X;
    const TRIES: bool = true;

    fn given<X>(acquired: Result<X, AcquireError>) -> Result<X, AcquireError> {
        acquired
    }
}

/// A hold, and the data that come with it.
pub(crate) type Got<T> = (OwnedHold, <T as Target>::Data);

/// One `X`, or several: what an acquire of a `T` gives.
type Of<T, X> = <<T as Target>::Count as Count>::Of<X>;

/// The handles that an acquire of a `T` gives.
type Handles<T, W> = Of<T, Held<<T as Target>::Held, W>>;

type Running<T> = Pin<Box<dyn Future<Output = Result<Of<T, Got<T>>, AcquireError>> + Send>>;

/// An acquire of a `T`: a mutex, a document, a leadership, and so on. Await it; in the blocking world, run it.
///
/// It gives a [`Held<T>`](crate::Held), or a list of them; as a try, an `Option` of that. Errors are those of
/// [`AcquireError`]. It has the [options](crate::guide::locks#options-of-each-kind) that its target can have: others
/// don't compile.
///
/// # Cancel safety
///
/// Cancel safe: if it is dropped, its queue position, or the lock if it was granted at that moment, is given back in
/// the background. It takes its queue position when it is first polled; from then on options have no effect. A pinned
/// acquire that is polled repeatedly keeps its queue position, also on its way into `run`; one that is made anew in
/// each turn of a `select!` loop gives it up each time. A clone begins anew. Like most futures, one that is done must
/// not be polled or run again: that panics. The compiler warns of one that is forgotten:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn example(locks: watchlock::LockClient) {
/// locks.mutex("invoice-42").acquire();
/// # }
/// ```
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// use std::time::Duration;
/// use watchlock::{LostReason, Released, errors::AcquireError};
///
/// const HOUR: Duration = Duration::from_secs(3600);
///
/// let report = locks.mutex("report");
/// let held = report.acquire().timeout(Duration::from_secs(5)).reason("night of the 3rd").lease(HOUR).await?;
/// match report.try_acquire().or_held().await {
///     Err(AcquireError::Held { contention, .. }) => println!("it is being made already: {contention}"),
///     other => println!("{other:?}"),
/// }
/// let again = report.acquire().reentrant().await?;
/// assert_eq!(again.token(), held.token());
/// assert_eq!(held.release().await?, Released::StillHeld);
/// again.release().await?;
///
/// let held = report.acquire().lose_after(HOUR).await?;
/// assert_eq!(held.lost().await, LostReason::HeldTooLong);
/// let held = report.acquire().fixed(HOUR).await?;
/// assert_eq!(held.lost().await, LostReason::Elapsed);
/// # tokio::time::sleep(HOUR).await;
/// let held = report.acquire().at_least_for(HOUR).await?;
/// assert_eq!(held.release().await?, Released::Kept);
/// assert!(report.try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[must_use = "an acquire does nothing until it is awaited, or run in the blocking world"]
pub struct Acquire<T: Target, P: Patience = Wait, W: World = Async> {
    pub(crate) request: T::Request,
    pub(crate) options: Options,
    /// Set by the first poll. Never locked: it makes the action `Sync`.
    running: Cell<Option<Running<T>>>,
    of: PhantomData<fn() -> (P, W)>,
}

impl<T: Target, P: Patience, W: World> Acquire<T, P, W> {
    pub(crate) fn new(request: T::Request) -> Self {
        Self {
            request,
            options: Options::default(),
            running: Cell::new(None),
            of: PhantomData,
        }
    }

    pub(crate) fn with(request: T::Request, options: Options) -> Self {
        Self {
            options,
            ..Self::new(request)
        }
    }

    /// Gives up after `timeout`; at most 366 days.
    ///
    /// - An acquire, a claim and a campaign that wait fail with [`AcquireError::Timeout`] if the lock was taken (a
    ///   claim: if no matching document was free), and with [`AcquireError::Unanswered`] if the server did not answer.
    ///   Zero asks the server and does not wait for the lock; like a try, it fails if the server has not answered for
    ///   ten seconds.
    /// - A try fails with [`AcquireError::Unanswered`] if the server has not answered; zero gives up before anything is
    ///   sent. Without a timeout it asks several times within ten seconds, and then fails with
    ///   [`AcquireError::Server`]. The request goes on in the background, and is withdrawn once the server has
    ///   processed it.
    /// - For a multi-lock it is the time for all parts.
    #[doc(alias = "waitTime")]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets why it is wanted, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.options.reason = Some(reason.into());
        self
    }

    /// Gives up when `token` is cancelled, with [`AcquireError::Cancelled`], also on another thread: its queue position
    /// goes back, or the lock if it was granted at that moment. With a token that was cancelled before, nothing is
    /// sent. Once it is done, the token does nothing more.
    #[doc(alias("interrupt", "lockInterruptibly"))]
    pub fn cancelled_by(mut self, token: &CancellationToken) -> Self {
        self.options.cancelled = Some(token.clone());
        self
    }

    /// Fails with [`AcquireError::Deadlock`] when the task waits for a lock whose holder waits, directly or through others,
    /// for a lock of this task. Otherwise only the event `watchlock.deadlock` reports that, and the task waits on.
    ///
    /// It takes up to a lease until a [deadlock](crate::guide::locks#deadlocks) is certain. Of several acquires in it
    /// that would fail, that of the task whose lock was granted last does; another does if the deadlock is still there
    /// a fifth of the longest lease later, so release what you hold by then.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use watchlock::errors::AcquireError;
    ///
    /// let held = locks.mutex("a").acquire().await?;
    /// let (a, b) = (locks.mutex("a").acquire(), locks.mutex("b").acquire());
    /// let other = tokio::spawn(async move {
    ///     let _b = b.await?;
    ///     a.await
    /// });
    /// # tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    /// let crossing = locks.mutex("b").acquire().fail_on_deadlock().await;
    /// if matches!(crossing, Err(AcquireError::Deadlock(_))) {
    ///     held.release().await?; // and begin again
    /// }
    /// # other.await??;
    /// # Ok(()) }
    /// ```
    pub fn fail_on_deadlock(mut self) -> Self
    where
        T: IsLock,
    {
        self.options.fails_on_deadlock = true;
        self
    }

    /// Gives this hold a lease of its own, instead of the [client's](crate::LockClientBuilder::lease): how long the
    /// lock outlives its holder's last sign of life. From 500 ms, and more than twice the client's skew margin, to 366
    /// days.
    ///
    /// It is renewed in the background at the same part of the lease as the client's other holds. The client's queue
    /// position lives as long too. If both this and [`fixed`](Self::fixed) are set, the last one counts.
    #[doc(alias("ttl", "leaseTime"))]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.terms.set_lease(lease);
        self
    }

    /// Holds the lock for `length` and no longer, as nothing renews it in the background. The bounds are those of
    /// [`lease`](Self::lease).
    ///
    /// When its time ends, the hold is [lost](crate::View::lost) as [`Elapsed`](crate::LostReason::Elapsed): earlier
    /// than at the server by the client's skew margin and a thousandth of the length. The lock itself stays taken for
    /// the whole `length`, by the server's clock; an early release opens it. The length counts from the grant; for a
    /// waiter that was woken, from the moment at which it confirms that, at most a sixteenth of the claim lease later.
    /// [`Held::renew`] gives it a full length again. A leader that [proclaims](Held::proclaim), a writer that [becomes a
    /// reader](Held::downgrade), a semaphore's hold that gives [some](Held::release_some) or a [part](Held::split) of its
    /// permits back, and a [guarded transaction](crate::View::guard_transaction) keep the lock taken for a full length
    /// more, and lose it as before: the other permits too, which nobody can use then. It can't be shorter than
    /// [`at_least_for`](Self::at_least_for).
    pub fn fixed(mut self, length: Duration) -> Self
    where
        T::Held: IsOne,
    {
        self.options.terms.set_fixed(length);
        self
    }

    /// Keeps the lock taken for at least `least` after the grant, even if it is released earlier; at most 366 days.
    ///
    /// Use it for short jobs that several hosts start at about the same time: the second finds the lock taken, although
    /// the first is done. An early release marks the lock as released, and [`inspect`](crate::LockClient::inspect)
    /// shows until when it is kept taken; the first waiter is granted it at that time, by the server's clock. Only a
    /// release of the whole hold keeps the lock taken: permits that a part gives back are free at once, and a writer
    /// that becomes a reader lets others read. An operator [breaks](crate::LockClient::break_lock) a lock that is kept.
    ///
    /// A dropped handle keeps the lock taken as well, and so does a holder that dies or [loses](crate::View::lost) the
    /// lock: its lease is no shorter than `least` (for a waiter that was woken, from when it has confirmed its grant),
    /// so after a death it is free when that lease is over.
    #[doc(alias = "lockAtLeastFor")]
    pub fn at_least_for(mut self, least: Duration) -> Self
    where
        T: IsLock,
    {
        self.options.terms.at_least = least;
        self
    }

    /// Reports the hold if it lasts longer than `limit`, instead of the
    /// [client's](crate::LockClientBuilder::warn_after) limit, by an event, a metric and its
    /// [status](crate::LockStatus::HeldTooLong). The lock is held and renewed as before. From 10 ms to 366 days,
    /// counted from the moment at which this client learned of its grant.
    pub fn warn_after(mut self, limit: Duration) -> Self {
        self.options.terms.limits.report = Some(limit);
        self
    }

    /// Loses the lock when it has been held for `limit`, instead of the
    /// [client's](crate::LockClientBuilder::lose_after) limit: as [`HeldTooLong`](crate::LostReason::HeldTooLong), with
    /// the bounds and the count of [`warn_after`](Self::warn_after).
    ///
    /// The client then releases the lock at once, so that a job that hangs does not keep the others from it. The code
    /// under the lock must stop by then, as before the end of a lease: [`safe_for`](crate::View::safe_for) counts down
    /// to it. Code that may go on nevertheless should write under the [fencing token](crate::View::token).
    #[doc(alias = "lockAtMostFor")]
    pub fn lose_after(mut self, limit: Duration) -> Self {
        self.options.terms.limits.lose = Some(limit);
        self
    }

    /// Keeps the lock idle with this client for that long after its release, instead of the
    /// [client's](crate::LockClientBuilder::keep_idle) time; at most 366 days, and zero gives it back at once. A lock
    /// that is held for a [`fixed`](Self::fixed) time or kept by [`at_least_for`](Self::at_least_for), and some but not
    /// all permits of a semaphore, go back at once in any case.
    pub fn keep_idle(mut self, keep: Duration) -> Self
    where
        T: CanIdle,
    {
        self.options.terms.keep_idle = Some(keep);
        self
    }

    /// Shares the hold of this client, if it has one already: the call then returns one more handle to the same hold
    /// without waiting for the lock.
    ///
    /// All handles to a hold have the token, the terms and the reason of the first, and are lost together; the last of
    /// them releases the lock. **Any task** of this client that asks re-entrantly gets in next to the task that holds
    /// the lock, even while others wait for it: to exclude tasks from one another, don't ask re-entrantly.
    ///
    /// Only holds of the same kind are shared: a reader gets in next to a reader, even though a writer waits, and a
    /// writer next to a writer. An upgradeable reader gets in next to one that has become a writer too. A plain reader
    /// that asks to write waits for itself.
    pub fn reentrant(mut self) -> Self
    where
        T: CanReenter,
    {
        self.options.reentrant = true;
        self
    }
}

impl<T: Target, W: World> Acquire<T, Try, W> {
    /// Fails with [`AcquireError::Held`], which names the holder, where it would give `None`. Of a multi-lock that is
    /// the holder of the first name that is not free; a claim takes any free document, so it has none. A try that was
    /// polled before begins anew.
    ///
    /// ```compile_fail,E0271
    /// # async fn example(events: watchlock::documents::DocumentLocks<mongodb::bson::Document>) {
    /// events.try_claim(mongodb::bson::doc! { "done": false }).or_held().await;
    /// # }
    /// ```
    pub fn or_held(self) -> Acquire<T, OrHeld, W>
    where
        T: Target<Held = T>,
    {
        Acquire::with(self.request, self.options)
    }
}

impl<T: CanAcquire, P: Patience, W: World> Acquire<T, P, W> {
    /// Acquires in any world, from code that has none. One that has begun goes on from its queue position.
    pub(crate) async fn held(self) -> Result<Handles<T, W>, AcquireError> {
        let acquired = match self.running.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(running) => running.await,
            None => asked::<T>(self.request, self.options, P::TRIES).await,
        };
        acquired.map(given::<T, W>)
    }
}

/// Asks, until that is cancelled.
async fn asked<T: CanAcquire>(
    request: T::Request,
    mut options: Options,
    tries: bool,
) -> Result<Of<T, Got<T>>, AcquireError> {
    options.tries = tries;
    let cancelled = options.cancelled.take();
    let asking = T::ask(request, options);
    match cancelled {
        None => asking.await,
        Some(cancelled) => tokio::select! {
            biased;
            () = cancelled.cancelled() => Err(AcquireError::Cancelled),
            asked = asking => asked,
        },
    }
}

/// Returns the handles of what was acquired.
fn given<T: CanAcquire, W: World>(acquired: Of<T, Got<T>>) -> Handles<T, W> {
    T::Count::each(acquired, Held::new)
}

impl<T: CanAcquire, P: Patience> Future for Acquire<T, P> {
    type Output = Result<P::Given<Handles<T, Async>>, AcquireError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let running = this.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        let running =
            running.get_or_insert_with(|| Box::pin(asked::<T>(this.request.clone(), this.options.clone(), P::TRIES)));
        let acquired = running.as_mut().poll(context);
        acquired.map(|acquired| P::given(acquired.map(given::<T, Async>)))
    }
}

/// Runs the work until it is done or the lock is lost. The loss comes first: work that finished at the same moment may
/// not have been done under the lock.
pub(crate) async fn unless_lost<L, Fut: Future>(lost: impl Future<Output = L>, work: Fut) -> Result<Fut::Output, L> {
    tokio::select! {
        biased;
        reason = lost => Err(reason),
        output = work => Ok(output),
    }
}

/// Releases what the work is done with. The release may be the first to find that it was lost.
async fn given_back<T: Target, W: World>(held: Held<T, W>) -> Result<(), Lost> {
    let view = held.view();
    // An event reports an unconfirmed release.
    if !matches!(held.released().await, Ok(Released::WasLost)) {
        return Ok(());
    }
    let lost = view.ended().await;
    Err(match lost.reason {
        LostReason::Released => Lost {
            reason: LostReason::Overwritten,
            ..lost
        },
        _ => lost,
    })
}

impl<T: CanAcquire<Count = One>, P: Patience> Acquire<T, P> {
    /// Acquires, runs the future that `work` makes of the handle, and releases. A try that finds the lock taken gives
    /// `None`, and then `work` is not called.
    ///
    /// The work borrows the handle; a [view](Held::view) can be cloned into tasks that it spawns. If the lock is lost,
    /// the future is dropped at its next await point, and the loss is returned, also if only the release finds it,
    /// after the work. The future's own output, even a `Result`, is returned unchanged. Work on a document may delete
    /// it, and its lock with it.
    ///
    /// Errors are those of an [`Acquire`], and [`AcquireError::Lost`] if the lock was lost on the way: the work was
    /// begun, but for that of an [upgrade](Held::upgrade), whose reader may have been lost before. A release that can't
    /// be confirmed is no error: the work is done, and the lease limits the rest. Dropping the future drops the work's
    /// future and releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use mongodb::bson::{Document, doc};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = watchlock::testing::MemoryCollection::new();
    /// # memory.insert_one(doc! { "n": 1 }).await?;
    /// # let locks = watchlock::LockClient::in_memory();
    /// # let events = locks.documents_in_memory::<Document>(&memory);
    /// use std::time::Duration;
    ///
    /// let read = locks.rw_lock("prices").read().timeout(Duration::from_secs(5)).reason("a quote");
    /// let token = read.run(async |held| held.token()).await?;
    ///
    /// while let Some(deleted) = events.try_claim(doc! {}).run(async |event| event.delete().await).await? {
    ///     deleted?;
    /// }
    /// # assert!(memory.find(doc! {}).await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn run<O>(self, work: impl AsyncFnOnce(&Held<T::Held>) -> O) -> Result<P::Given<O>, AcquireError> {
        let held = match self.held().await {
            Ok(held) => held,
            Err(error) => return P::given(Err(error)),
        };
        let output = unless_lost(held.lost_otherwise(), async { work(&held).await }).await?;
        given_back(held).await?;
        P::given(Ok(output))
    }
}

#[cfg(feature = "sync")]
impl<T: CanAcquire, P: Patience> Acquire<T, P, Blocking> {
    /// Acquires on this thread, and blocks it until then; an [`AcquireError`] says why it failed.
    pub fn run(self) -> Result<P::Given<Handles<T, Blocking>>, AcquireError> {
        P::given(Blocking::call(self.held()))
    }
}

#[cfg(feature = "sync")]
impl<T: CanAcquire<Count = One>, P: Patience> Acquire<T, P, Blocking> {
    /// Acquires, does the work, and releases. A try that finds the lock taken gives `None` without doing the work.
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](crate::View::lost_reason) itself and returns, and its result is dropped. Errors are those of
    /// [`run`](Acquire::run). If the work panics, the lock is released.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory().blocking();
    /// let exports = locks.semaphore("exports", 4);
    /// let permits = exports.acquire_many(2).reason("report 7").run_with(|held| held.permits())?;
    /// assert_eq!((permits, exports.available_permits()?), (2, 4));
    /// # Ok(()) }
    /// ```
    pub fn run_with<O>(self, work: impl FnOnce(&Held<T::Held, Blocking>) -> O) -> Result<P::Given<O>, AcquireError> {
        let held = match Blocking::call(self.held()) {
            Ok(held) => held,
            Err(error) => return P::given(Err(error)),
        };
        let output = work(&held);
        if let Err(lost) = held.check()
            && !held.is_deletion(&lost)
        {
            return Err(lost.into());
        }
        Blocking::call(given_back(held))?;
        P::given(Ok(output))
    }
}

impl<T: Target<Request: Clone>, P: Patience, W: World> Clone for Acquire<T, P, W> {
    fn clone(&self) -> Self {
        Self::with(self.request.clone(), self.options.clone())
    }
}

impl<T: Target<Request: fmt::Debug>, P: Patience, W: World> fmt::Debug for Acquire<T, P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("request", &Brief(&self.request))
            .field("timeout", &self.options.timeout)
            .finish_non_exhaustive()
    }
}
