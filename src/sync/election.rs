//! One leader at a time.

use std::{
    ops::{ControlFlow, Deref},
    time::Duration,
};

use super::{Action, LockView, block_on, enter};
use crate::{
    error::{AcquireError, OperateError, ReleaseError, RenewError},
    handle::Released,
    locks::election::{Campaign, Leader},
};

/// An election of one leader among all processes: [`watchlock::Election`] for threads.
///
/// [`watchlock::Election`]: crate::Election
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::sync::LockClient::in_memory();
/// let election = locks.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:8080").run()?;
/// assert_eq!(election.leader()?.expect("there is one").value, "10.0.0.7:8080");
/// leadership.resign()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    election: crate::Election,
}

impl Election {
    pub(super) fn new(election: crate::Election) -> Self {
        Self { election }
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &str {
        self.election.name()
    }

    /// Campaigns until elected, proclaiming `value` from then on. [`run`](Action::run) the returned action.
    pub fn campaign(&self, value: impl Into<String>) -> Action<Campaign> {
        Action::new(self.election.campaign(value))
    }

    /// Returns the leader at this moment; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the name is out of bounds or in use as something else, or the server can't be reached.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn leader(&self) -> Result<Option<Leader>, OperateError> {
        block_on(self.election.leader())
    }

    /// Observes the leadership: an iterator that blocks until there is a change. See
    /// [`Election::observe`](crate::Election::observe), which has the same errors.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::sync::LockClient::in_memory();
    /// let election = locks.election("scheduler");
    /// let mut leaders = election.observe();
    /// assert!(leaders.next().expect("it goes on")?.is_none());
    /// let leadership = election.campaign("node 7").run()?;
    /// assert_eq!(leaders.next().expect("it goes on")?.expect("a leader").value, "node 7");
    /// # Ok(()) }
    /// ```
    pub fn observe(&self) -> Leaders {
        let _entered = enter();
        Leaders {
            leaders: self.election.observe(),
        }
    }

    /// Leads repeatedly: campaigns, does the work, resigns, and campaigns again after [`ControlFlow::Continue`];
    /// returns after [`ControlFlow::Break`].
    ///
    /// A thread can't be stopped from outside: if the leadership is lost, the work must notice it through its
    /// [`lost_reason`](LockView::lost_reason), and return. To lead alongside other work, run it on its own thread.
    ///
    /// # Errors
    ///
    /// See [`AcquireError`].
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
    /// use std::ops::ControlFlow;
    ///
    /// let mut jobs = vec!["backup", "report"];
    /// let last = locks.election("scheduler").run("node 7", |leading| {
    ///     while leading.lost_reason().is_none() {
    ///         let Some(job) = jobs.pop() else { return ControlFlow::Break(leading.token()) };
    ///         println!("{job}");
    ///     }
    ///     ControlFlow::Continue(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn run<T>(
        &self,
        value: impl Into<String>,
        mut lead: impl FnMut(LockView) -> ControlFlow<T>,
    ) -> Result<T, AcquireError> {
        let value = value.into();
        loop {
            let leadership = self.campaign(&value).run()?;
            let led = lead(leadership.view());
            // An event reports an unconfirmed resignation.
            let _ = leadership.resign();
            if let ControlFlow::Break(output) = led {
                return Ok(output);
            }
        }
    }
}

/// A held leadership: [`watchlock::Leadership`] for threads. Dropping it resigns in the background.
///
/// [`watchlock::Leadership`]: crate::Leadership
#[must_use = "the leader resigns when its leadership is dropped"]
#[derive(Debug)]
pub struct Leadership {
    leadership: crate::Leadership,
    view: LockView,
}

impl Leadership {
    pub(super) fn new(leadership: crate::Leadership) -> Self {
        let view = LockView::new(leadership.view());
        Self { leadership, view }
    }

    /// Returns the same leadership for async code.
    pub fn as_async(&self) -> &crate::Leadership {
        &self.leadership
    }

    /// Returns a view of the leadership for the code that works under it.
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// Proclaims another value; see [`Leadership::proclaim`](crate::Leadership::proclaim).
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if the leadership is lost; nothing is proclaimed then. [`RenewError::Server`] if the server
    /// refuses or can't be reached.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn proclaim(&self, value: impl Into<String>) -> Result<(), RenewError> {
        block_on(self.leadership.proclaim(value))
    }

    /// Renews the leadership now, and returns for how long it is safe; see
    /// [`Leadership::renew`](crate::Leadership::renew), which has the same errors.
    ///
    /// # Errors
    ///
    /// [`RenewError::Lost`] if it is lost. [`RenewError::Server`] if the server could not be reached: it still leads.
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn renew(&self) -> Result<Duration, RenewError> {
        block_on(self.leadership.renew())
    }

    /// Resigns: the next candidate leads at once.
    ///
    /// # Errors
    ///
    /// Same as for [`LockHandle::release`](super::LockHandle::release).
    ///
    /// # Panics
    ///
    /// On a thread of an async runtime; see [`sync`](crate::sync#panics).
    pub fn resign(self) -> Result<Released, ReleaseError> {
        block_on(self.leadership.resign())
    }
}

impl Deref for Leadership {
    type Target = LockView;

    fn deref(&self) -> &LockView {
        &self.view
    }
}

/// The leaders of an election, one after the other: an iterator that blocks until there is a change. Made by
/// [`Election::observe`].
///
/// # Panics
///
/// `next` panics on a thread of an async runtime; see [`sync`](crate::sync#panics).
#[must_use = "an iterator does nothing unless it is asked for the next item"]
#[derive(Debug)]
pub struct Leaders {
    leaders: crate::Leaders,
}

impl Iterator for Leaders {
    type Item = Result<Option<Leader>, OperateError>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.leaders.next())
    }
}
