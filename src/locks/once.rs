//! A job that is done once in a period, although many processes start it.
//!
//! It is a mutex that is only tried, and that a success leaves taken until the period is over: the entry of the one
//! that did the job is the record of it.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    marker::PhantomData,
    time::{Duration, SystemTime},
};

use super::{acquire::unless_lost, options::Options, request::Share};
#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    config::millis,
    contention::{Contention, between},
    error::{AcquireError, HoldError, InvalidInput},
    handle::{
        Held, Released, View,
        target::{IsOne, One, Target},
    },
    hold_options::Terms,
    input::{at_least, below, check_duration},
    inspect::HolderInfo,
    protocol::KeptUntil,
    world::{Async, Sealed, World},
};

/// Shortest time for which a lock is kept taken as a record: the clocks of two primaries may differ by a second.
pub(super) const KEPT_LEAST: Duration = Duration::from_secs(1);

/// A job that is done at most once in each period, among all processes. Made by
/// [`LockClient::once`](crate::LockClient::once).
///
/// It is for jobs that a timer starts on several hosts at about the same time, such as cron. One of them does the job;
/// the others learn that another run is in progress, or that the job is done, when and by which process. All times are
/// by the server's clock.
///
/// By default the periods are windows that follow on each other: with a period of an hour, from each full hour to the
/// next, and with a day from midnight to midnight in UTC. A job counts for the window in which it *began*, however long
/// it takes. A timer must fire [far from the boundary](crate::guide::jobs) of two windows: [`offset`](Self::offset)
/// moves them. With [`since_success`](Self::since_success), a period begins when the job is done.
///
/// # Guarantees
///
/// - From the first success in a period until its end, no other process begins the job.
/// - No process begins the job while another run is in progress, as with any [`Mutex`](crate::locks::Mutex): the name
///   is that of a mutex.
/// - A failed job leaves the period open, unless [failures count](Self::failures_count). A process that dies on the way
///   leaves it open too, once its lease is over. Either may have done a part of the job, so make it repeatable.
///
/// An operator opens the period again with [`break_lock`](crate::LockClient::break_lock).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// use std::time::Duration;
/// use watchlock::{Released, locks::{OnceOutcome, Turn}};
///
/// let nightly = locks.once("nightly-report", Duration::from_secs(24 * 3600));
/// # for _ in 0..2 {
/// match nightly.run(async |held| report(held.token()).await).await? {
///     OnceOutcome::Done { output, .. } => println!("{output} pages"),
///     OnceOutcome::Failed(error) => eprintln!("failed; the period stays open: {error}"),
///     OnceOutcome::RanAlready(run) => println!("{run}"),
///     OnceOutcome::Busy(contention) => println!("another run is in progress: {contention}"),
///     _ => {}
/// }
/// # }
///
/// // By hand:
/// let hourly = locks.once("sweep", Duration::from_secs(3600)).since_success();
/// if let Turn::Ours(job) = hourly.begin().await? {
///     job.release().await?; // It is still to be done.
/// }
/// if let Turn::Ours(job) = hourly.begin().await? {
///     // ... sweep, watching `job.lost()` ...
///     assert_eq!(job.done().await?, Released::Kept);
/// }
/// assert!(matches!(hourly.begin().await?, Turn::RanAlready(_)));
/// # Ok(()) }
/// # async fn report(_: watchlock::FencingToken) -> Result<u32, std::io::Error> { Ok(12) }
/// ```
#[doc(alias("SchedulerLock", "ShedLock", "cron"))]
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is begun or run"]
pub struct Once<W: World = Async> {
    /// That of a mutex.
    share: Share,
    period: Duration,
    /// One window begins at this time after the Unix epoch; `None`: a period begins with each success.
    offset: Option<Duration>,
    failures_count: bool,
    options: Options,
    of: PhantomData<fn() -> W>,
}

/// The answer to a request to begin the job. From [`Once::begin`].
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn example(nightly: watchlock::locks::Once) -> Result<(), Box<dyn std::error::Error>> {
/// nightly.begin().await?; // The job is given up at once.
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a job of ours that is dropped leaves its period open: `let _ = ..` does so at once"]
#[non_exhaustive]
pub enum Turn<W: World = Async> {
    /// The job is ours to do.
    Ours(Held<Once, W>),
    /// The job is done for this period.
    RanAlready(Box<LastRun>),
    /// The lock is held: another run is in progress, or a handle that [re-entered](crate::Acquire::reentrant) the lock of
    /// a job is not released yet.
    Busy(Box<Contention>),
}

/// The outcome of [`Once::run`], whose work returned a `Result<T, E>` if it was begun.
///
/// A failure of the work is an outcome, and not an error of `run`:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn example(nightly: watchlock::locks::Once) -> Result<(), Box<dyn std::error::Error>> {
/// nightly.run(async |_| std::io::Result::Ok(())).await?;
/// # Ok(()) }
/// ```
///
/// ```
/// #![deny(unused_must_use)]
/// # async fn example(nightly: watchlock::locks::Once) -> Result<(), Box<dyn std::error::Error>> {
/// use watchlock::locks::OnceOutcome;
///
/// if let OnceOutcome::Failed(error) = nightly.run(async |_| std::io::Result::Ok(())).await? {
///     return Err(error.into());
/// }
/// let turn = nightly.begin().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the work may have failed"]
#[non_exhaustive]
pub enum OnceOutcome<T, E> {
    /// This process did the job.
    #[non_exhaustive]
    Done {
        /// The value that the work returned.
        output: T,
        /// Whether the server confirmed that the job is done for this period. If not, another process may do it once
        /// more, and an event reports why; or a handle that [re-entered](crate::Acquire::reentrant) the lock has it
        /// still.
        recorded: bool,
    },
    /// The work failed. The period is open, unless failures [count](Once::failures_count).
    Failed(E),
    /// The job was done in this period before; our work was not begun.
    RanAlready(Box<LastRun>),
    /// The lock is held, as for [`Turn::Busy`]; our work was not begun.
    Busy(Box<Contention>),
}

/// The run that used up a period. In [`Turn::RanAlready`] and [`OnceOutcome::RanAlready`].
///
/// Its `Display` is a sentence for people: ``done 12s ago by billing (web-1, process 4711) under token 7; the next
/// period begins in 48s``.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// When it was done, by the server's clock.
    pub at: SystemTime,
    /// When the next period begins, by the server's clock.
    pub until: SystemTime,
    /// The holder that did it, with its token.
    pub by: HolderInfo,
    /// The time of the server's report, by its own clock.
    pub as_of: SystemTime,
}

impl<W: World> Once<W> {
    pub(crate) fn new(share: Share, period: Duration) -> Self {
        Self {
            share,
            period,
            offset: Some(Duration::ZERO),
            failures_count: false,
            // The period counts from the grant, and a failed attempt must leave the lock to the next process that
            // tries.
            options: Options {
                tries: true,
                terms: Terms {
                    by_server: true,
                    ..Terms::default()
                },
                ..Options::default()
            },
            of: PhantomData,
        }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.share.name
    }

    /// Moves the windows: they begin `offset` after the multiples of the period, which must be longer; the first is the
    /// Unix epoch, a Thursday at midnight UTC. `once("job", hour).offset(hour / 2)` is for a timer that fires at full
    /// hours.
    pub fn offset(mut self, offset: Duration) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Has a period begin when the job is done, instead of at fixed times.
    pub fn since_success(mut self) -> Self {
        self.offset = None;
        self
    }

    /// Has [`run`](Self::run) count a failed job as done: it is not begun again in this period.
    pub fn failures_count(mut self) -> Self {
        self.failures_count = true;
        self
    }

    /// Sets what the job is for, up to 1,024 bytes, for people to read.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.options.reason = Some(reason.into());
        self
    }

    /// Gives the lock a lease of its own while the job is done; see [`Acquire::lease`](crate::Acquire::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.terms.set_lease(lease);
        self
    }

    /// Gives up beginning the job if the server has not answered after `timeout`; see
    /// [`Acquire::timeout`](crate::Acquire::timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Begins the job, unless it is done for this period or another run is in progress, for which it does not wait.
    /// Cancel safe, like an [`Acquire`](crate::Acquire). [`Once`] has an example.
    ///
    /// An [`AcquireError`] says why it failed. A period shorter than a second or longer than 366 days is invalid, and
    /// so is an offset that is not shorter than the period.
    pub fn begin(&self) -> W::Call<impl Future<Output = Result<Turn<W>, AcquireError>>> {
        W::call(self.turn())
    }

    async fn turn(&self) -> Result<Turn<W>, AcquireError> {
        self.check()?;
        let contention = match self.share.clone().acquire(self.options.clone()).await {
            Ok(own) => return Ok(Turn::Ours(Held::new((own, self.kept())))),
            Err(AcquireError::Held { contention, .. }) => contention,
            Err(error) => return Err(error),
        };
        let as_of = contention.as_of;
        let mut holders = contention.holders.iter();
        let ran = holders.find_map(|holder| {
            let (at, by) = (holder.released?, holder.clone());
            let until = by.until;
            Some(LastRun { at, until, by, as_of })
        });
        Ok(match ran {
            Some(ran) => Turn::RanAlready(Box::new(ran)),
            None => Turn::Busy(contention),
        })
    }

    /// Reports the end of the work to the server.
    async fn settle<T, E>(&self, job: Held<Once, W>, output: Result<T, E>) -> OnceOutcome<T, E> {
        match output {
            Ok(output) => {
                let recorded = matches!(job.report().await, Ok(Released::Kept | Released::Released));
                OnceOutcome::Done { output, recorded }
            }
            Err(error) => {
                // An event reports an unconfirmed release; the period then stays taken until the lease is over.
                let _ = if self.failures_count {
                    job.report().await
                } else {
                    job.own.release().await
                };
                OnceOutcome::Failed(error)
            }
        }
    }

    fn check(&self) -> Result<(), InvalidInput> {
        at_least("period", self.period, KEPT_LEAST)?;
        check_duration("period", self.period)?;
        let offset = self.offset;
        offset.map_or(Ok(()), |offset| below("offset", offset, "period", self.period))
    }

    fn kept(&self) -> KeptUntil {
        let length = millis(self.period);
        match self.offset.map(millis) {
            Some(offset) => KeptUntil::WindowEnd { length, offset },
            None => KeptUntil::AfterRelease(length),
        }
    }
}

impl Once {
    /// Does the job, unless it is done for this period or another run is in progress. [`Once`] has an example.
    ///
    /// The job is done if the future that `work` makes returns `Ok`; an `Err` of it is [`OnceOutcome::Failed`]. If the
    /// lock is lost, the future is dropped at its next await point, and the period stays open.
    ///
    /// Errors are those of [`begin`](Self::begin), and [`AcquireError::Lost`] if the lock was lost on the way. Dropping
    /// the future drops the work's future, and leaves the period open.
    pub async fn run<F, Fut, T, E>(&self, work: F) -> Result<OnceOutcome<T, E>, AcquireError>
    where
        F: FnOnce(View<Once>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let job = match self.begin().await? {
            Turn::Ours(job) => job,
            Turn::RanAlready(run) => return Ok(OnceOutcome::RanAlready(run)),
            Turn::Busy(contention) => return Ok(OnceOutcome::Busy(contention)),
        };
        let output = unless_lost(job.lost(), async { work(job.view()).await }).await?;
        Ok(self.settle(job, output).await)
    }
}

#[cfg(feature = "sync")]
impl Once<Blocking> {
    /// Does the job, as async code [does](Once::run); but a thread can't be stopped from outside. If the lock is lost
    /// the work goes on, unless it checks the [`lost_reason`](View::lost_reason) itself and returns, and its result is
    /// dropped. If the work panics, the period stays open.
    pub fn run<T, E>(
        &self,
        work: impl FnOnce(View<Once, Blocking>) -> Result<T, E>,
    ) -> Result<OnceOutcome<T, E>, AcquireError> {
        let job = match self.begin()? {
            Turn::Ours(job) => job,
            Turn::RanAlready(run) => return Ok(OnceOutcome::RanAlready(run)),
            Turn::Busy(contention) => return Ok(OnceOutcome::Busy(contention)),
        };
        let output = work(job.view());
        job.check()?;
        Ok(Blocking::call(self.settle(job, output)))
    }
}

impl Sealed for Once {}

impl Target for Once {
    type Held = Self;
    type Count = One;
    type Request = Infallible;
    type Data = KeptUntil;
}

impl IsOne for Once {}

/// # A job that was begun
///
/// Dropping its handle, or a [release](Self::release), leaves the period open: the job is not done.
impl<W: World> Held<Once, W> {
    /// Reports that the job is done: no process begins it before the period is over. [`Once`] has an example.
    ///
    /// Returns [`Released::Kept`]; [`Released::Released`] if the window in which the job began is over already, so that
    /// it may begin for the present one; [`Released::WasLost`] if another process may have begun the job for this
    /// period; and [`Released::StillHeld`] if the lock was [re-entered](crate::Acquire::reentrant), so that the period
    /// is used up with the release of its last handle.
    ///
    /// Errors are those of [`release`](Self::release): the report is repeated in the background for as long as the
    /// lease runs. So it is if the future is dropped after it was polled; if it was never polled, the period stays
    /// open.
    pub fn done(self) -> W::Call<impl Future<Output = Result<Released, HoldError>>> {
        W::call(self.report())
    }

    async fn report(self) -> Result<Released, HoldError> {
        let ours = self.hold().keep(self.data);
        let released = self.own.release().await?;
        // A client that was shut down has released it before, and nothing was recorded.
        Ok(if ours { released } else { Released::WasLost })
    }
}

impl fmt::Display for LastRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ago, left) = (between(self.at, self.as_of), between(self.as_of, self.until));
        write!(f, "done {ago} ago by {}; the next period begins in {left}", self.by)
    }
}
