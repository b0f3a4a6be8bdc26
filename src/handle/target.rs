//! The kinds of things that are acquired and held.

use std::convert::Infallible;

use tokio::sync::Mutex as AsyncMutex;

use super::{
    count::{Count, One},
    own::Own,
    owned::OwnedHold,
};
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
    type Held: Target<Own = Self::Own, Data = Self::Data>;
    /// How many handles an acquire gives: [`One`], except that
    /// [`claim_many`](crate::documents::DocumentLocks::claim_many) gives several.
    type Count: Count;
    /// The request by which it is acquired.
    #[doc(hidden)]
    type Request;
    /// The hold itself.
    #[doc(hidden)]
    type Own: Own;
    /// The data that comes with the hold.
    #[doc(hidden)]
    type Data;

    /// Whether the holder itself has deleted the lock, with what it locks.
    #[doc(hidden)]
    fn deleted(_: &Self::Data) -> Option<&AsyncMutex<bool>> {
        None
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
    type Own = OwnedHold;
    type Data = ();
}

/// A target that is one lock, with one name and one fencing token.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has a name and a token for each part",
    note = "take those of a part: `token_of(name)`, `part(name)`"
)]
pub trait IsOne: Target<Own = OwnedHold> {}

impl IsOne for AnyLock {}

/// A target whose hold can be left to another client: all that it is stands in its lock.
///
/// ```compile_fail,E0277
/// # async fn example(leadership: watchlock::Held<watchlock::locks::Election>) {
/// leadership.detach().await;
/// # }
/// ```
///
/// ```
/// # async fn example(held: watchlock::Held<watchlock::locks::Mutex>) {
/// let detached = held.detach().await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "a hold of `{Self}` can't be detached",
    note = "a mutex, a semaphore and a readers-writer lock can"
)]
pub trait CanDetach: IsOne {}

impl CanDetach for AnyLock {}

/// A target that is one lock, of a kind that is known: all but [`AnyLock`].
#[doc(hidden)]
pub trait IsKnown: IsOne {}
