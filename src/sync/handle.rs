//! Handles and views of held locks.

use std::{ops::Deref, time::Duration};

use super::block_on;
use crate::{
    error::{ReleaseError, RenewError},
    handle::Released,
    status::{LockStatus, Lost, LostReason},
    token::FencingToken,
};

/// A held lock: [`watchlock::LockHandle`] for threads.
///
/// It dereferences to a [`LockView`], and is renewed in the background regardless of the program's threads. Dropping it
/// releases the lock in the background, without blocking.
///
/// [`watchlock::LockHandle`]: crate::LockHandle
#[must_use = "the lock is released when the handle is dropped"]
#[derive(Debug)]
pub struct LockHandle {
    handle: crate::LockHandle,
    view: LockView,
}

impl LockHandle {
    pub(super) fn new(handle: crate::LockHandle) -> Self {
        let view = LockView::new(handle.view());
        Self { handle, view }
    }

    /// Returns the same handle for async code.
    pub fn as_async(&self) -> &crate::LockHandle {
        &self.handle
    }

    /// Returns a view of this hold for the code that works under it; it can be cloned, and outlives the handle.
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// Renews the lock now, and returns for how long it is safe; see [`LockHandle::renew`](crate::LockHandle::renew).
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: the lock is still
    /// held, and renewals go on in the background.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn renew(&self) -> Result<Duration, RenewError> {
        block_on(self.handle.renew())
    }

    /// Makes a writer a reader, without letting go; see [`LockHandle::downgrade`](crate::LockHandle::downgrade).
    ///
    /// # Errors
    ///
    /// [`RenewError::Invalid`] if it is no readers-writer lock, or has other handles. [`RenewError::Lost`] if it is
    /// lost. [`RenewError::Server`] if the server refused or did not answer.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn downgrade(&self) -> Result<(), RenewError> {
        block_on(self.handle.downgrade())
    }

    /// Releases the lock, and blocks until it is done; see [`LockHandle::release`](crate::LockHandle::release).
    ///
    /// # Errors
    ///
    /// If the server refuses, or can't be reached for the time of a lease. Even then the lock is no longer ours.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn release(self) -> Result<Released, ReleaseError> {
        block_on(self.handle.release())
    }
}

impl Deref for LockHandle {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.view
    }
}

/// A view of a held lock, for the code that works under it: [`watchlock::LockView`] for threads.
///
/// [`watchlock::LockView`]: crate::LockView
///
/// # Examples
///
/// Work in steps, and check between them:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let handle = locks.mutex("invoice-42").acquire().run()?;
/// for step in 0..3 {
///     handle.check()?;
///     // ... the step, under the fencing token ...
/// }
/// handle.release()?;
/// # Ok(()) }
/// ```
///
/// Or have a separate thread wait for the loss:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let handle = locks.mutex("invoice-42").acquire().run()?;
/// let view = handle.view();
/// let guard = std::thread::spawn(move || println!("no longer held: {}", view.lost()));
/// handle.release()?;
/// guard.join().expect("it ends with the hold");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LockView {
    view: crate::LockView,
}

impl LockView {
    pub(super) fn new(view: crate::LockView) -> Self {
        Self { view }
    }

    /// Returns the same view for async code.
    pub fn as_async(&self) -> &crate::LockView {
        &self.view
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        self.view.name()
    }

    /// Returns the fencing token of this grant.
    pub fn token(&self) -> FencingToken {
        self.view.token()
    }

    /// Returns the number of held permits: 1 for a mutex, the requested number for a semaphore.
    pub fn permits(&self) -> u64 {
        self.view.permits()
    }

    /// Blocks until the lock is lost, and returns the loss: an error that names the lock and the reason.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn lost(&self) -> Lost {
        block_on(self.view.lost())
    }

    /// Blocks until the lock is lost, or `limit` is over: then it returns `None`, and the lock is still held.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// use std::time::Duration;
    /// use watchlock::LostReason;
    ///
    /// let handle = locks.mutex("stuck").acquire().run()?;
    /// assert_eq!(handle.lost_within(Duration::from_millis(10)), None);
    /// locks.break_lock("stuck")?;
    /// assert_eq!(handle.lost_within(Duration::from_secs(5)).expect("a loss"), LostReason::Broken);
    /// # Ok(()) }
    /// ```
    pub fn lost_within(&self, limit: Duration) -> Option<Lost> {
        block_on(async { tokio::time::timeout(limit, self.view.lost()).await.ok() })
    }

    /// Returns the loss if the lock is lost; see [`LockView::check`](crate::LockView::check). It does not block, and
    /// checks the clock on the spot.
    ///
    /// # Errors
    ///
    /// The loss.
    pub fn check(&self) -> Result<(), Lost> {
        self.view.check()
    }

    /// Returns why the lock was lost; `None` while it is held. It does not block, and checks the clock on the spot.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.view.lost_reason()
    }

    /// Returns whether the lock is still held; see [`LockView::is_held`](crate::LockView::is_held). It does not block,
    /// and checks the clock on the spot.
    pub fn is_held(&self) -> bool {
        self.view.is_held()
    }

    /// Returns how safe the lock is at present.
    pub fn status(&self) -> LockStatus {
        self.view.status()
    }

    /// Returns for how long the lock is surely ours; see [`LockView::safe_for`](crate::LockView::safe_for).
    pub fn safe_for(&self) -> Duration {
        self.view.safe_for()
    }
}
