//! Actions that run on the calling thread instead of being awaited.
//!
//! They are types of their own: an action of the async API has no call that would block, and one of this API can't be
//! awaited.

use std::time::Duration;

use crate::{
    documents::{AcquireDocument, AcquireElement, Claim, TryAcquireDocument, TryAcquireElement, TryClaim},
    locks::{
        acquire::{Acquire, TryAcquire},
        election::Campaign,
        multi::{MultiAcquire, TryMultiAcquire},
    },
    operate::list::List,
    protocol::Kind,
};
use mongodb::bson::Document;

/// An action of the async API, to be run on the calling thread: `Action<Acquire>` has the options of
/// [`Acquire`](crate::Acquire), and `run`.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// use std::time::Duration;
///
/// let handle = locks.mutex("invoice-42").acquire().timeout(Duration::from_secs(5)).reason("billing").run()?;
/// # handle.release()?;
/// # Ok(()) }
/// ```
///
/// It can't be awaited, as it would block the thread:
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::sync::LockClient) {
/// locks.mutex("invoice-42").acquire().await;
/// # }
/// ```
///
/// And an action of the async API can't be run on a thread of the runtime, where that would panic:
///
/// ```compile_fail,E0061
/// # async fn example(locks: watchlock::LockClient) {
/// locks.mutex("invoice-42").acquire().run();
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an action does nothing until it is run"]
pub struct Action<A> {
    pub(super) action: A,
}

impl<A> Action<A> {
    pub(super) fn new(action: A) -> Self {
        Self { action }
    }

    fn with(self, set: impl FnOnce(A) -> A) -> Self {
        Self::new(set(self.action))
    }
}

/// Forwards options to the action of the same name.
macro_rules! options {
    ($([$($generic:ident)?] $action:ty { $($(#[$doc:meta])* $option:ident($($value:ident: $type:ty)?);)* })*) => {$(
        impl$(<$generic>)? Action<$action> {$(
            $(#[$doc])*
            pub fn $option(self $(, $value: $type)?) -> Self {
                self.with(|action| action.$option($($value)?))
            }
        )*}
    )*};
}

options! {
    [] Acquire {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Shares the hold of this client, if it has one already; see
        /// [`Acquire::reentrant`](crate::Acquire::reentrant).
        reentrant();
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
        /// Keeps the lock taken for that long at least; see [`Acquire::at_least_for`](crate::Acquire::at_least_for).
        at_least_for(least: Duration);
        /// Keeps the lock with this client for so long after its release; see
        /// [`Acquire::keep_idle`](crate::Acquire::keep_idle).
        keep_idle(keep: Duration);
    }
    [] TryAcquire {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Shares the hold of this client, if it has one already; see
        /// [`Acquire::reentrant`](crate::Acquire::reentrant).
        reentrant();
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
        /// Keeps the lock taken for that long at least; see [`Acquire::at_least_for`](crate::Acquire::at_least_for).
        at_least_for(least: Duration);
        /// Keeps the lock with this client for so long after its release; see
        /// [`Acquire::keep_idle`](crate::Acquire::keep_idle).
        keep_idle(keep: Duration);
    }
    [] MultiAcquire {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [] TryMultiAcquire {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [] Campaign {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
    }
    [T] AcquireDocument<T> {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [T] TryAcquireDocument<T> {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [E] AcquireElement<E> {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [E] TryAcquireElement<E> {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Gives the hold a lease of its own; see [`Acquire::lease`](crate::Acquire::lease).
        lease(lease: Duration);
        /// Makes a lock of a fixed length; see [`Acquire::fixed`](crate::Acquire::fixed).
        fixed(length: Duration);
        /// Reports the hold if it lasts longer than that; see [`Acquire::max_hold`](crate::Acquire::max_hold).
        max_hold(most: Duration);
        /// Loses the lock when it has been held for so long; see [`Acquire::lose_after`](crate::Acquire::lose_after).
        lose_after(limit: Duration);
    }
    [T] Claim<T> {
        /// Gives up after `timeout`; see [`Acquire::timeout`](crate::Acquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
        sort(sort: Document);
        /// Claims only documents that were claimed fewer than `most` times, and counts this claim; see
        /// [`Claim::max_attempts`](crate::Claim::max_attempts).
        max_attempts(most: u32);
    }
    [T] TryClaim<T> {
        /// Gives up if the server has not answered after `timeout`; see
        /// [`TryAcquire::timeout`](crate::TryAcquire::timeout).
        timeout(timeout: Duration);
        /// Sets why the lock is wanted, up to 1,024 bytes, for people to read.
        reason(reason: impl Into<String>);
        /// Sets which of the documents comes first, as in the driver's `find_one_and_update`.
        sort(sort: Document);
        /// Claims only documents that were claimed fewer than `most` times, and counts this claim; see
        /// [`Claim::max_attempts`](crate::Claim::max_attempts).
        max_attempts(most: u32);
    }
    [] List {
        /// Lists only locks whose name begins with this prefix; see [`List::prefix`](crate::List::prefix).
        prefix(prefix: impl Into<String>);
        /// Lists only locks of this kind.
        kind(kind: Kind);
        /// Lists only locks that somebody holds, or that nobody does.
        held(held: bool);
        /// Lists only locks with a holder whose label, owner id or host is this.
        owner(owner: impl Into<String>);
        /// Lists only locks that some holder has held for longer than this, by the server's clock.
        older_than(age: Duration);
    }
}
