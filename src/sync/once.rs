//! A job that is done once in a period.

use std::{ops::Deref, time::Duration};

use super::{LockView, block_on};
use crate::{
    contention::Contention,
    error::{AcquireError, ReleaseError, RunError},
    handle::Released,
    locks::once::{self, LastRun, OnceOutcome},
};

/// A job that is done at most once in each period, among all processes: [`watchlock::Once`] for threads.
///
/// [`watchlock::Once`]: crate::Once
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// use std::time::Duration;
/// use watchlock::OnceOutcome;
///
/// let nightly = locks.once("nightly-report", Duration::from_secs(24 * 3600));
/// let first = nightly.run(|_| Ok::<_, std::io::Error>(12))?;
/// assert!(matches!(first, OnceOutcome::Done { output: 12, recorded: true, .. }));
/// let second = nightly.run(|_| Ok::<_, std::io::Error>(12))?;
/// assert!(matches!(second, OnceOutcome::RanAlready(_)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is begun or run"]
pub struct Once {
    once: once::Once,
}

/// The answer to a request to begin the job: [`watchlock::Turn`] for threads.
///
/// [`watchlock::Turn`]: crate::Turn
#[derive(Debug)]
#[non_exhaustive]
pub enum Turn {
    /// The job is ours to do.
    Ours(OnceHandle),
    /// The job is done for this period.
    RanAlready(Box<LastRun>),
    /// Another run is in progress.
    Busy(Box<Contention>),
}

impl Once {
    pub(super) fn new(once: once::Once) -> Self {
        Self { once }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        self.once.name()
    }

    /// See [`Once::offset`](crate::Once::offset).
    pub fn offset(self, offset: Duration) -> Self {
        Self::new(self.once.offset(offset))
    }

    /// See [`Once::since_success`](crate::Once::since_success).
    pub fn since_success(self) -> Self {
        Self::new(self.once.since_success())
    }

    /// See [`Once::failures_count`](crate::Once::failures_count).
    pub fn failures_count(self) -> Self {
        Self::new(self.once.failures_count())
    }

    /// See [`Once::reason`](crate::Once::reason).
    pub fn reason(self, reason: impl Into<String>) -> Self {
        Self::new(self.once.reason(reason))
    }

    /// See [`Once::lease`](crate::Once::lease).
    pub fn lease(self, lease: Duration) -> Self {
        Self::new(self.once.lease(lease))
    }

    /// See [`Once::timeout`](crate::Once::timeout).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self::new(self.once.timeout(timeout))
    }

    /// Begins the job, unless it is done for this period or another run is in progress; see
    /// [`Once::begin`](crate::Once::begin).
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn begin(&self) -> Result<Turn, AcquireError> {
        Ok(match block_on(self.once.begin())? {
            once::Turn::Ours(job) => Turn::Ours(OnceHandle::new(job)),
            once::Turn::RanAlready(run) => Turn::RanAlready(run),
            once::Turn::Busy(contention) => Turn::Busy(contention),
        })
    }

    /// Does the job, unless it is done for this period or another run is in progress; see
    /// [`Once::run`](crate::Once::run).
    ///
    /// A thread can't be stopped from outside. If the lock is lost the work goes on, unless it checks the
    /// [`lost_reason`](LockView::lost_reason) itself and returns.
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] as for [`begin`](Self::begin), and [`RunError::Lost`] if the lock was lost before the work
    /// finished; the work's result is dropped then.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics). If the work panics, the period stays open.
    pub fn run<T, E>(&self, work: impl FnOnce(LockView) -> Result<T, E>) -> Result<OnceOutcome<T, E>, RunError> {
        let job = match self.begin()? {
            Turn::Ours(job) => job,
            Turn::RanAlready(run) => return Ok(OnceOutcome::RanAlready(run)),
            Turn::Busy(contention) => return Ok(OnceOutcome::Busy(contention)),
        };
        let output = work(job.view());
        job.check()?;
        Ok(block_on(self.once.settle(job.job, output)))
    }
}

/// A job that was begun: [`watchlock::OnceHandle`] for threads.
///
/// [`watchlock::OnceHandle`]: crate::OnceHandle
#[must_use = "the period stays open when the handle is dropped"]
#[derive(Debug)]
pub struct OnceHandle {
    job: once::OnceHandle,
    view: LockView,
}

impl OnceHandle {
    fn new(job: once::OnceHandle) -> Self {
        let view = LockView::new(job.view());
        Self { job, view }
    }

    /// Returns a view of this hold for the code that works under it; it can be cloned, and outlives the handle.
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// Reports that the job is done; see [`OnceHandle::done`](crate::OnceHandle::done).
    ///
    /// # Errors
    ///
    /// As for [`LockHandle::release`](crate::sync::LockHandle::release).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn done(self) -> Result<Released, ReleaseError> {
        block_on(self.job.done())
    }

    /// Leaves the period open; see [`OnceHandle::give_up`](crate::OnceHandle::give_up).
    ///
    /// # Errors
    ///
    /// As for [`LockHandle::release`](crate::sync::LockHandle::release).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn give_up(self) -> Result<Released, ReleaseError> {
        block_on(self.job.give_up())
    }
}

impl Deref for OnceHandle {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.view
    }
}
