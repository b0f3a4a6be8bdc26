//! Handles and views of what is held.

pub(crate) mod guard;
pub(crate) mod owned;
pub(crate) mod target;

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    ops::Deref,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use tokio_util::sync::CancellationToken;

use crate::{
    detached::Detached,
    error::HoldError,
    handle::{
        owned::{OwnedHold, SeenHold, cancelled},
        target::{AnyLock, IsLock, IsOne, Target},
    },
    session::hold::Hold,
    status::{LockStatus, Lost, LostReason},
    token::FencingToken,
    world::{Async, World},
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
    /// ([`Acquire::reentrant`](crate::Acquire::reentrant)), or of the writer that this reader
    /// [became](Held::upgrade). The last of them releases it.
    StillHeld,
    /// The lock was ours to the end, and is kept taken although nobody holds it, as the acquire [asked
    /// for](crate::Acquire::at_least_for); [`inspect`](crate::LockClient::inspect) shows until when.
    Kept,
    /// The lock was lost before: another holder may have it, and the release did not touch that hold.
    WasLost,
}

/// A held target: a lock, several locks, a document, an element, a leadership, a job.
///
/// It dereferences to a [`View`], which has its name and token and reports its loss. It is renewed in the background
/// for as long as the handle lives, unless it was acquired for a [fixed](crate::Acquire::fixed) time. Dropping it
/// [releases](Self::release) the lock in the background.
///
/// # Guarantees
///
/// - No other handle to the lock is valid, in any process, from the grant until this one is released or lost, except
///   those of the same client that were [acquired re-entrantly](crate::Acquire::reentrant).
/// - [`lost`](View::lost) resolves before the server would give the lock to another because of a missing renewal, even
///   if the server can't be reached; and within a hop if somebody breaks, overwrites or deletes the lock.
/// - A lost lock is never acquired again behind the holder's back.
///
/// The time is that of this machine's monotonic clock. On Linux that stands still while the whole machine is suspended,
/// so work after a suspension is only safe under the [fencing token](View::token).
///
/// # One handle
///
/// A hold has one handle: keep it in a variable with a name. [Locks](crate::guide::locks#acquiring) lists what releases
/// it at once without a warning. It can't be cloned; its views can.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn example(locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// locks.mutex("invoice-42").acquire().await?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
/// let handle = locks.mutex("invoice-42").acquire().await?;
/// let other = handle.clone();
/// # Ok(()) }
/// ```
///
/// Code that works with locks of all kinds takes `Held`, which is `Held<AnyLock>`: `handle.into()` converts into it,
/// and so does a view.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// use std::time::Duration;
/// use watchlock::{LostReason, Released};
///
/// let handle = locks.mutex("invoice-42").acquire().await?;
/// assert!(handle.renew().await? > Duration::from_secs(20));
/// // A step follows in which the server may be away for some minutes.
/// assert!(handle.renew_for(Duration::from_secs(600)).await? > Duration::from_secs(590));
/// let view = handle.view();
/// tokio::select! {
///     biased; // The loss first: work that is done at the same moment may not have been done under the lock.
///     lost = handle.lost() => return Err(lost.into()),
///     () = handle.wanted() => println!("somebody waits for it: be quick"),
///     () = async { /* the work, or its next batch */ } => {}
/// }
/// assert_eq!(handle.release().await?, Released::Released);
/// assert_eq!(view.lost().await, LostReason::Released);
/// # Ok(()) }
/// ```
#[doc(alias("lock guard", "MutexGuard"))]
#[must_use = "dropping the handle releases the lock: `let _ = ..` does so at once"]
pub struct Held<T: Target = AnyLock, W: World = Async> {
    view: View<T, W>,
    /// The first part of a multi-lock, whose others are in the data.
    pub(crate) own: OwnedHold,
    pub(crate) data: T::Data,
}

impl<T: Target, W: World> Held<T, W> {
    pub(crate) fn new((own, data): (OwnedHold, T::Data)) -> Self {
        let others = T::others(&data);
        let others = (!others.is_empty()).then(|| Others::new(others));
        let view = View::new(own.seen(), others.map(Arc::new));
        Self { view, own, data }
    }

    /// Returns a view of this hold for the code that works under it; it can be cloned, and outlives the handle.
    pub fn view(&self) -> View<T, W> {
        self.view.clone()
    }

    /// Renews the lock now, in addition to the renewals in the background, and returns for how long it is safe.
    /// [`Held`] has an example. Cancel safe: the renewal goes on in the background.
    ///
    /// [`HoldError::Lost`] if it, or any part of a multi-lock, is lost. After a [`HoldError::Server`] it is still held,
    /// and renewals go on in the background.
    #[doc(alias("keepalive", "keep_alive", "extend"))]
    pub fn renew(&self) -> W::Call<impl Future<Output = Result<Duration, HoldError>>> {
        W::call(self.renewed(None))
    }

    /// Renews the lock now for `length`, and from now on in the background too, where the lease was shorter. The bounds
    /// are those of [`Acquire::lease`](crate::Acquire::lease). [`Held`] has an example.
    ///
    /// No promise is taken back: with a `length` below the present lease this is [`renew`](Self::renew). A
    /// [fixed](crate::Acquire::fixed) hold has the length once, from now. The parts of a multi-lock all have it.
    ///
    /// [`HoldError::Invalid`] if `length` is out of bounds. The others are those of [`renew`](Self::renew): after
    /// [`HoldError::Server`], or if the future is dropped, the lease may or may not be longer, so the lock may stay
    /// taken for `length` if its process dies. It can be called again.
    #[doc(alias("extend", "updateLeaseTime"))]
    pub fn renew_for(&self, length: Duration) -> W::Call<impl Future<Output = Result<Duration, HoldError>>> {
        W::call(self.renewed(Some(length)))
    }

    /// Releases it: the lock is handed to the next in the queue, or is free, unless it is [kept
    /// taken](crate::Acquire::at_least_for) or [idle](crate::LockClientBuilder::keep_idle). [`Held`] has an example.
    ///
    /// The parts of a multi-lock are released at once. The result is [`Released::WasLost`] if any was lost before,
    /// regardless of the others, and [`Released::StillHeld`] if another task of this client has re-entered any. A
    /// released leader has resigned, and a released job leaves its period open.
    ///
    /// [`HoldError::Unconfirmed`] if the server refuses, or can't be reached for the time of a lease; or at once, if
    /// the runtime on which the client was first used has ended. Even then the lock is no longer ours, and it stays
    /// taken for at most the rest of its lease. If the future is dropped, the release goes on in the background.
    #[doc(alias("unlock", "resign"))]
    pub fn release(self) -> W::Call<impl Future<Output = Result<Released, HoldError>>> {
        W::call(self.released())
    }

    /// Returns the same handle for async code.
    pub fn into_async(self) -> Held<T> {
        self.into_world()
    }

    /// Returns the same handle for code that blocks its thread.
    #[cfg(feature = "sync")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
    pub fn into_blocking(self) -> Held<T, crate::world::Blocking> {
        self.into_world()
    }

    fn into_world<V: World>(self) -> Held<T, V> {
        let view = View::new(self.view.seen, self.view.others);
        Held {
            view,
            own: self.own,
            data: self.data,
        }
    }

    async fn renewed(&self, length: Option<Duration>) -> Result<Duration, HoldError> {
        let parts = [&self.own].into_iter().chain(T::others(&self.data));
        let renewing = parts.map(|part| match length {
            Some(length) => part.renew_for(length).boxed(),
            None => part.renew().boxed(),
        });
        let renewed = join_all(renewing).await;
        self.check()?;
        renewed.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(self.safe_for())
    }

    pub(crate) async fn released(self) -> Result<Released, HoldError> {
        let (own, others) = (self.own, T::into_others(self.data));
        if others.is_empty() {
            return own.release().await;
        }
        let released = join_all([own].into_iter().chain(others).map(OwnedHold::release)).await;
        let worst = released.into_iter().min_by_key(|part| match part {
            Ok(Released::WasLost) => 0,
            Err(_) => 1,
            // Another task of this client that re-entered a part still holds it, and a caller that needs everything
            // free learns of it.
            Ok(Released::StillHeld) => 2,
            Ok(_) => 3,
        });
        worst.unwrap_or(Ok(Released::Released))
    }

    /// Waits until it is lost, other than by a deletion through this handle.
    pub(crate) async fn lost_otherwise(&self) -> Lost {
        let lost = self.ended().await;
        if self.is_deletion(&lost) {
            std::future::pending::<()>().await;
        }
        lost
    }

    /// Whether the loss is a deletion through this handle.
    pub(crate) fn is_deletion(&self, lost: &Lost) -> bool {
        *lost == LostReason::Released && self.own.is_deleted()
    }

    /// Keeps `held.clone()` from being a clone of the view.
    #[doc(hidden)]
    #[expect(clippy::should_implement_trait, reason = "it can't be called")]
    pub fn clone(&self) -> Self
    where
        Self: Clone,
    {
        Clone::clone(self)
    }
}

impl<T: IsOne, W: World> Held<T, W> {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        self.own.hold()
    }

    /// Gives the hold up without releasing it: the lock stays taken for its lease, under the same token, and this or
    /// another process takes it up again by [`LockClient::attach`](crate::LockClient::attach), which has an example.
    ///
    /// Nobody renews a detached hold, so acquire it with a [`lease`](crate::Acquire::lease) or
    /// [`fixed`](crate::Acquire::fixed) time that lasts until then; it is renewed for all of that once more. Views of
    /// this handle report [`LostReason::Released`]. An operator can break it as any other; a later client with the same
    /// [owner id](crate::LockClientBuilder::owner_id) takes it by an acquire.
    ///
    /// # Errors
    ///
    /// The handle is gone in any case. [`HoldError::Invalid`] for a hold that other handles of this client share, which
    /// keep it, and for the lock of a document, whatever it was converted into: this handle is released.
    /// [`HoldError::Lost`] if the lock is lost. After a [`HoldError::Server`] it is taken for the rest of its lease at
    /// most. If the future is dropped after it was polled, the hold is detached in the background; before that, it is
    /// released.
    #[doc(alias("forget", "suspend"))]
    pub fn detach(self) -> W::Call<impl Future<Output = Result<Detached, HoldError>>>
    where
        T: IsLock,
    {
        W::call(self.own.detach())
    }

    /// Returns the lock alone.
    pub(crate) fn into_lock(self) -> (Held<AnyLock, W>, T::Data) {
        (Held::new((self.own, ())), self.data)
    }
}

impl<T: Target, W: World> Deref for Held<T, W> {
    type Target = View<T, W>;

    fn deref(&self) -> &View<T, W> {
        &self.view
    }
}

impl<T: Target, W: World> fmt::Debug for Held<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt_as("Held", f)
    }
}

/// A view of a hold, for the code that works under it: it can watch the hold, but not release it.
///
/// Guarantees are those of [`Held`], which has an example; a view that outlives the handle reports
/// [`LostReason::Released`].
pub struct View<T: Target = AnyLock, W: World = Async> {
    pub(crate) seen: SeenHold,
    /// The other parts of a multi-lock.
    others: Option<Arc<Others>>,
    of: PhantomData<fn() -> (T, W)>,
}

/// The parts of a multi-lock after the first; never empty.
struct Others {
    /// Sorted by name.
    parts: Vec<SeenHold>,
    /// The first observed loss stays, as with a single lock.
    lost: OnceLock<Lost>,
    ended: OnceLock<CancellationToken>,
}

impl Others {
    fn new(parts: &[OwnedHold]) -> Self {
        Self {
            parts: parts.iter().map(OwnedHold::seen).collect(),
            lost: OnceLock::new(),
            ended: OnceLock::new(),
        }
    }
}

/// Resolves when one of them does; never, if there is none.
pub(crate) async fn any(mut all: FuturesUnordered<BoxFuture<'_, ()>>) {
    if all.next().await.is_none() {
        std::future::pending::<()>().await;
    }
}

impl<T: Target, W: World> View<T, W> {
    fn new(seen: SeenHold, others: Option<Arc<Others>>) -> Self {
        Self {
            seen,
            others,
            of: PhantomData,
        }
    }

    pub(crate) fn of(seen: SeenHold) -> Self {
        Self::new(seen, None)
    }

    /// Returns the holds that it is of: those of all parts of a multi-lock, sorted by name.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &SeenHold> {
        let others = self.others.iter().flat_map(|others| &others.parts);
        [&self.seen].into_iter().chain(others)
    }

    /// If several are lost, the first one observed.
    fn loss(&self) -> Option<Lost> {
        let Some(others) = &self.others else {
            return self.seen.loss();
        };
        if let Some(lost) = others.lost.get() {
            return Some(lost.clone());
        }
        let losses = || self.holds().filter_map(SeenHold::loss);
        // A loss says more than the release of the other parts after it.
        let lost = losses()
            .find(|lost| *lost != LostReason::Released)
            .or_else(|| losses().next())?;
        Some(others.lost.get_or_init(|| lost).clone())
    }

    /// Waits for the loss.
    pub(crate) async fn ended(&self) -> Lost {
        if self.others.is_none() {
            return self.seen.lost().await;
        }
        loop {
            if let Some(lost) = self.loss() {
                return lost;
            }
            any(self.holds().map(|part| part.lost().map(drop).boxed()).collect()).await;
        }
    }

    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_tuple(name);
        self.holds().for_each(|hold| {
            shown.field(hold);
        });
        shown.finish()
    }

    /// Returns the same view for async code.
    pub fn as_async(&self) -> View<T> {
        View::new(self.seen.clone(), self.others.clone())
    }

    /// Waits until the lock is lost, and returns the loss: an error that names the lock and the reason, and which part
    /// of a multi-lock was the first. Cancel safe: use it in `select!`, again and again. [`Held`] has an example.
    #[doc(alias("Done", "lost lease"))]
    pub fn lost(&self) -> W::Call<impl Future<Output = Lost>> {
        W::call(self.ended())
    }

    /// Waits until somebody waits for the lock: another client, or another task of this one. For work that can stop
    /// early in favor of others: a long batch, a leader that steps aside. It returns at once if somebody waits already,
    /// or has since the grant, and also when the hold is over. Cancel safe: use it in `select!`, again and again.
    /// [`Held`] has an example.
    ///
    /// The holder of a lock of several permits (a semaphore, a reader) hears of every waiter, also of one for which
    /// more of them must release, and when [permits are set](crate::locks::Semaphore::set_permits). A multi-lock is
    /// wanted when any part is. A document is wanted by those that `acquire` it; claims wait for none. The client is
    /// told by its change stream, or by the reads with which it looks after its holds (after half a second as a rule:
    /// see [Scaling](crate::guide::scaling)); behind more than 64 holders by reads alone.
    #[doc(alias("makeRevocable", "revocable", "yield"))]
    pub fn wanted(&self) -> W::Call<impl Future<Output = ()>> {
        W::call(any(self.holds().map(|part| part.wanted().boxed()).collect()))
    }

    /// Returns the loss if the lock is lost: an error that names the lock and the reason, and which part of a
    /// multi-lock was found lost first. It checks the clock on the spot: the answer is right even if no task of the
    /// program has run for a while.
    pub fn check(&self) -> Result<(), Lost> {
        self.loss().map_or(Ok(()), Err)
    }

    /// Returns why the lock was lost; `None` while it is held. Checks the clock on the spot, as [`check`](Self::check).
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.loss().map(|lost| lost.reason)
    }

    /// Returns whether the lock is still held, as [`check`](Self::check) says. It can be lost a moment later: so use
    /// [`lost`](Self::lost) beside the work, and a [fence](Self::fence) where a late write would do harm.
    pub fn is_held(&self) -> bool {
        self.lost_reason().is_none()
    }

    /// Returns how safe the lock is at present; for a multi-lock, the status of the least safe part.
    pub fn status(&self) -> LockStatus {
        if self.lost_reason().is_some() {
            return LockStatus::Lost;
        }
        self.holds()
            .map(|hold| hold.status())
            .fold(LockStatus::Held, LockStatus::max)
    }

    /// Returns for how long the lock, or every part of a multi-lock, is surely ours, even if the server can't be
    /// reached from now on. Right after a hand-over that is the claim lease, until the first renewal a few hundred
    /// milliseconds later.
    pub fn safe_for(&self) -> Duration {
        self.holds().map(|hold| hold.safe_for()).min().unwrap_or_default()
    }

    /// Returns a token that is cancelled as soon as the lock, or any part of a multi-lock, is no longer ours: when it
    /// is lost, released or dropped. When the runtime ends, nobody watches the lock any more, and the token of a single
    /// lock is cancelled at the first look at it after its deadline: so await [`lost`](View::lost) beside it, which
    /// looks by itself.
    pub fn lost_token(&self) -> CancellationToken {
        let Some(others) = &self.others else {
            return self.seen.lost_token();
        };
        // Without a session nobody watches the parts any more.
        let session = self.seen.session.upgrade();
        let Some(session) = session.filter(|_| self.lost_reason() != Some(LostReason::Forked)) else {
            return cancelled();
        };
        let ended = others.ended.get_or_init(|| {
            let ended = CancellationToken::new();
            let view = View::<AnyLock>::new(self.seen.clone(), self.others.clone());
            let guard = ended.clone().drop_guard();
            // The task ends with the hold. It is dropped with the runtime, and the guard with it.
            drop(session.spawn_for(async move {
                view.ended().await;
                drop(guard);
            }));
            ended
        });
        if self.lost_reason().is_some() {
            ended.cancel();
        }
        // A child: cancelling the user's token must not cancel those of others.
        ended.child_token()
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str
    where
        T: IsOne,
    {
        &self.seen.name
    }

    /// Returns the fencing token of this grant. The lock's document shows a smaller one, that of the first task that
    /// had it, if the lock was [handed on inside the process](crate::guarantees#inside-a-process), or several readers
    /// share it.
    pub fn token(&self) -> FencingToken
    where
        T: IsOne,
    {
        self.seen.token
    }

    /// Returns the number of held permits: 1 for a mutex, the requested number for a semaphore.
    pub fn permits(&self) -> u64
    where
        T: IsOne,
    {
        self.seen.permits()
    }
}

impl<T: Target, W: World> Clone for View<T, W> {
    fn clone(&self) -> Self {
        Self::new(self.seen.clone(), self.others.clone())
    }
}

impl<T: Target, W: World> fmt::Debug for View<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("View", f)
    }
}
