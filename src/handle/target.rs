//! The kinds of things that are acquired and held, and how many an acquire gives.

use std::convert::Infallible;

use super::owned::OwnedHold;
use crate::world::Sealed;

/// A kind of thing that is acquired and held: the first parameter of [`Acquire`](crate::Acquire),
/// [`Held`](crate::Held) and [`View`](crate::View).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no target",
    note = "a target is named without its world: `Held<Mutex>`, `Held<Document<Order>>`, `Held<Mutex, Blocking>`"
)]
pub trait Target: Sealed {
    /// The target that is held afterwards: the same, except that a [`Claim`](crate::documents::Claim) holds a
    /// [`Document`](crate::documents::Document).
    type Held: Target<Data = Self::Data>;
    /// How many handles an acquire gives: [`One`], except that
    /// [`claim_many`](crate::documents::DocumentLocks::claim_many) gives several.
    type Count: Count;
    /// The request by which it is acquired.
    #[doc(hidden)]
    type Request;
    /// The data that comes with the hold.
    #[doc(hidden)]
    type Data;

    /// The holds of the other parts of a multi-lock.
    #[doc(hidden)]
    fn others(_: &Self::Data) -> &[OwnedHold] {
        &[]
    }

    #[doc(hidden)]
    fn into_others(_: Self::Data) -> Vec<OwnedHold> {
        Vec::new()
    }
}

/// [`One`] or [`Several`]: how many handles an acquire gives.
pub trait Count: Sealed + Send + Sync + Unpin + 'static {
    /// One `X`, or several.
    type Of<X>;

    /// Returns what was acquired; `None` if that is nothing.
    #[doc(hidden)]
    fn of<X>(acquired: Vec<X>) -> Option<Self::Of<X>>;

    #[doc(hidden)]
    fn each<X, Y>(acquired: Self::Of<X>, to: impl FnMut(X) -> Y) -> Self::Of<Y>;
}

/// One handle.
#[derive(Clone, Copy, Debug)]
pub enum One {}

/// A list of handles, which is not empty.
#[derive(Clone, Copy, Debug)]
pub enum Several {}

impl Sealed for One {}
impl Sealed for Several {}

impl Count for One {
    type Of<X> = X;

    fn of<X>(mut acquired: Vec<X>) -> Option<X> {
        acquired.pop()
    }

    fn each<X, Y>(acquired: X, mut to: impl FnMut(X) -> Y) -> Y {
        to(acquired)
    }
}

impl Count for Several {
    type Of<X> = Vec<X>;

    fn of<X>(acquired: Vec<X>) -> Option<Vec<X>> {
        Some(acquired).filter(|acquired| !acquired.is_empty())
    }

    fn each<X, Y>(acquired: Vec<X>, to: impl FnMut(X) -> Y) -> Vec<Y> {
        acquired.into_iter().map(to).collect()
    }
}

/// A lock of any kind, for code that works with all of them: [`Held`](crate::Held) and [`View`](crate::View) without
/// parameters. It is held, and not acquired: each held lock converts into it.
#[derive(Clone, Copy, Debug)]
pub enum AnyLock {}

impl Sealed for AnyLock {}

impl Target for AnyLock {
    type Held = Self;
    type Count = One;
    type Request = Infallible;
    type Data = ();
}

/// A target that is one lock, with one name and one fencing token.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.multi(["a", "b"]).acquire().fixed(time).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has a name, a token and a renewed lease for each part",
    note = "take those of a part: `token_of(name)`, `part(name)`"
)]
pub trait IsOne: Target {}

/// A lock of its own: a mutex, permits, a reader or a writer. It can stay taken after its release, and its hold can be
/// left to another client: all that it is stands in its lock.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.multi(["a", "b"]).acquire().at_least_for(time).await;
/// # }
/// ```
///
/// ```compile_fail,E0277
/// # async fn example(leadership: watchlock::Held<watchlock::locks::Election>) {
/// leadership.detach().await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't stay taken after its release, be detached, or fail on a deadlock",
    note = "a mutex, a semaphore and a readers-writer lock can"
)]
pub trait IsLock: IsOne + Target<Held = Self> {}

/// A target that can stay with the client after its release.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.rw_lock("prices").read().keep_idle(time).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't stay idle with the client after its release",
    note = "a mutex, a writer and all permits of a semaphore can"
)]
pub trait CanIdle: Target {}

/// A target whose hold can be shared by another acquire of the same client.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.semaphore("exports", 4).acquire().reentrant().await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be acquired re-entrantly",
    note = "a mutex and a readers-writer lock can; of a semaphore, acquire more permits"
)]
pub trait CanReenter: Target {}

impl IsOne for AnyLock {}
impl IsLock for AnyLock {}
