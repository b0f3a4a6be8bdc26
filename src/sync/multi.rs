//! Several mutexes, all or nothing.

use std::{ops::Deref, time::Duration};

use super::{Action, LockView, block_on};
use crate::{
    error::{ReleaseError, RenewError, RunError},
    handle::Released,
    locks::multi::{MultiAcquire, TryMultiAcquire},
    status::{LockStatus, Lost},
    token::FencingToken,
};

/// Several mutexes that are held together or not at all: [`watchlock::MultiLock`] for threads.
///
/// [`watchlock::MultiLock`]: crate::MultiLock
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let handle = locks.multi(["account-7", "account-3"]).acquire().run()?;
/// assert!(locks.mutex("account-3").try_acquire().run()?.is_none());
/// // ... transfer ...
/// handle.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    multi: crate::MultiLock,
}

impl MultiLock {
    pub(super) fn new(multi: crate::MultiLock) -> Self {
        Self { multi }
    }

    /// Returns the names, in the order in which they are acquired.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.multi.names()
    }

    /// Acquires all parts, waiting for each in turn. [`run`](Action::run) the returned action.
    pub fn acquire(&self) -> Action<MultiAcquire> {
        Action::new(self.multi.acquire())
    }

    /// Acquires all parts if every one is free and nobody waits for any. [`run`](Action::run) the returned
    /// action.
    pub fn try_acquire(&self) -> Action<TryMultiAcquire> {
        Action::new(self.multi.try_acquire())
    }

    /// Acquires all parts, does the work, and releases them; see [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if they were not acquired, [`RunError::Lost`] if one was lost before the work
    /// finished.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn run<T>(&self, work: impl FnOnce(MultiView) -> T) -> Result<T, RunError> {
        self.acquire().run_with(work)
    }
}

/// Several held locks: [`watchlock::MultiHandle`] for threads. Dropping it releases them in the background.
///
/// [`watchlock::MultiHandle`]: crate::MultiHandle
#[must_use = "the locks are released when the handle is dropped"]
#[derive(Debug)]
pub struct MultiHandle {
    handle: crate::MultiHandle,
    view: MultiView,
}

impl MultiHandle {
    pub(super) fn new(handle: crate::MultiHandle) -> Self {
        let view = MultiView { view: handle.view() };
        Self { handle, view }
    }

    /// Returns the same handle for async code.
    pub fn as_async(&self) -> &crate::MultiHandle {
        &self.handle
    }

    /// Returns a view of these holds for the code that works under them; it can be cloned, and outlives the handle.
    pub fn view(&self) -> MultiView {
        self.view.clone()
    }

    /// Renews all parts now, and returns for how long they are safe; see
    /// [`MultiHandle::renew`](crate::MultiHandle::renew), which has the same errors.
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if any part is lost. [`RenewError::Server`] if the server could not be reached: all parts
    /// are still held.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn renew(&self) -> Result<Duration, RenewError> {
        block_on(self.handle.renew())
    }

    /// Releases all parts, and blocks until it is done; see [`MultiHandle::release`](crate::MultiHandle::release).
    ///
    /// # Errors
    ///
    /// Same as for [`LockHandle::release`](super::LockHandle::release), if the release of any part could not be
    /// confirmed.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn release(self) -> Result<Released, ReleaseError> {
        block_on(self.handle.release())
    }
}

impl Deref for MultiHandle {
    type Target = MultiView;

    fn deref(&self) -> &MultiView {
        &self.view
    }
}

/// A view of several held locks, for the code that works under them: [`watchlock::MultiView`] for threads.
///
/// [`watchlock::MultiView`]: crate::MultiView
#[derive(Clone, Debug)]
pub struct MultiView {
    view: crate::MultiView,
}

impl MultiView {
    /// Returns the same view for async code.
    pub fn as_async(&self) -> &crate::MultiView {
        &self.view
    }

    /// Returns the parts, in the order of their names.
    pub fn parts(&self) -> impl Iterator<Item = LockView> {
        self.view.parts().cloned().map(LockView::new)
    }

    /// Returns the part with this name.
    pub fn part(&self, name: &str) -> Option<LockView> {
        self.view.part(name).cloned().map(LockView::new)
    }

    /// Returns the fencing token of the part with this name.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.view.token(name)
    }

    /// Returns the names and their fencing tokens, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.view.tokens()
    }

    /// Blocks until any part is lost, and returns which one and why.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn lost(&self) -> Lost {
        block_on(self.view.lost())
    }

    /// Blocks until any part is lost, or `limit` is over: then it returns `None`, and all are still held.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn lost_within(&self, limit: Duration) -> Option<Lost> {
        block_on(async { tokio::time::timeout(limit, self.view.lost()).await.ok() })
    }

    /// Returns the loss if any part is lost. It does not block, and checks the clock on the spot.
    ///
    /// # Errors
    ///
    /// The loss.
    pub fn check(&self) -> Result<(), Lost> {
        self.view.check()
    }

    /// Returns how safe the locks are at present: the status of the least safe part.
    pub fn status(&self) -> LockStatus {
        self.view.status()
    }

    /// Returns for how long all parts are surely ours.
    pub fn safe_for(&self) -> Duration {
        self.view.safe_for()
    }
}
