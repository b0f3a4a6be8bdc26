//! A count-down latch.
//!
//! An arrival is a hold of one place that was released and is kept taken: the document's holders are the record of the
//! arrivals, and waiting calls only watch the document.

use std::{future::Future, marker::PhantomData, time::Duration};

use tokio::time::sleep;

#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    backoff::{Backoff, LONGEST_PAUSE},
    config::millis,
    error::{AcquireError, InvalidInput},
    handle::{Released, owned::OwnedHold},
    input::{at_least, check_duration, check_text},
    locks::{
        once::KEPT_LEAST,
        request::Share,
        watched::{self, KEPT, Watch},
    },
    protocol::{Entry, KeptUntil, QUEUE_MOST, State},
    store::View,
    world::{Async, World},
};

/// A count-down latch among all processes: it opens when a number of arrivals has been counted. Made by
/// [`LockClient::latch`](crate::LockClient::latch).
///
/// Use it when several steps must be done before another may begin: all shards are migrated, all workers are ready. The
/// change stream wakes each process that [waits](Self::wait); waiting adds nothing to the latch's document, so any
/// number may wait.
///
/// # Guarantees
///
/// - `wait` returns once it sees `count` arrivals counted at the same time, in the state that a majority of the servers
///   has: no fail-over undoes it.
/// - An arrival outlives its process: it counts when [`count_down`](Self::count_down) has returned, for [a
///   time](Self::counts_for) by the server's clock.
/// - A named party is counted once, however often it arrives: [`count_down_as`](Self::count_down_as).
///
/// A latch stays open until its first arrival has counted for its time, which later arrivals don't extend. Give each
/// use a name of its own (`migrate-42/done`), and a time that outlasts the latest call of `wait`.
/// [`inspect`](crate::LockClient::inspect) shows the arrivals, and [`break_lock`](crate::LockClient::break_lock) takes
/// all of them back.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let migrated = locks.latch("migrate-42/done", 3);
/// let waiting = tokio::spawn({
///     let migrated = migrated.clone();
///     async move { migrated.wait().await }
/// });
/// migrated.count_down_as("shard-0").await?;
/// migrated.count_down_as("shard-0").await?; // restarted, and counted once
/// assert_eq!(migrated.missing().await?, 2);
/// migrated.count_down_as("shard-1").await?;
/// migrated.count_down().await?;
/// waiting.await??;
/// # Ok(()) }
/// ```
#[doc(alias("CountDownLatch", "RCountDownLatch"))]
#[derive(Clone, Debug)]
pub struct Latch<W: World = Async> {
    place: Share,
    counts_for: Duration,
    of: PhantomData<fn() -> W>,
}

impl<W: World> Latch<W> {
    pub(crate) fn new(place: Share) -> Self {
        Self {
            place,
            counts_for: KEPT,
            of: PhantomData,
        }
    }

    /// Returns the name of the latch.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Returns the number of arrivals that open it.
    pub fn count(&self) -> u32 {
        self.place.count()
    }

    /// Sets for how long each arrival of this process counts: a day unless set, from a second to 366 days. Afterwards
    /// it is forgotten, and the document with it.
    pub fn counts_for(mut self, time: Duration) -> Self {
        self.counts_for = time;
        self
    }

    /// Counts an arrival. An open latch stays as it is. [`Latch`] has an example.
    ///
    /// An [`AcquireError`] says why it failed: a latch of no arrivals or of more than 256 is invalid, and so is a time
    /// out of bounds. If the future is dropped, or after [`AcquireError::Server`] and [`AcquireError::Closed`], the
    /// arrival may or may not have been counted: [`count_down_as`](Self::count_down_as) can be repeated without
    /// counting twice.
    pub fn count_down(&self) -> W::Call<impl Future<Output = Result<(), AcquireError>>> {
        W::call(self.arrive(None))
    }

    /// Counts the arrival of a named party (up to 1,024 bytes) once, however often any process repeats it: a worker
    /// that was restarted does not open the latch in the place of another.
    /// [`OwnerInfo::value`](crate::operate::OwnerInfo::value) shows the name. All else is as for
    /// [`count_down`](Self::count_down); it is safe to repeat.
    pub fn count_down_as(&self, party: impl Into<String>) -> W::Call<impl Future<Output = Result<(), AcquireError>>> {
        W::call(async move {
            let party = party.into();
            check_text("name of the party", &party)?;
            self.arrive(Some(party)).await
        })
    }

    /// Waits until the latch is open. Wrap it in `tokio::time::timeout` to wait for no longer than that. While the
    /// server can't be reached it keeps waiting. Cancel safe: it only reads. Errors are those of
    /// [`count_down`](Self::count_down). [`Latch`] has an example.
    pub fn wait(&self) -> W::Call<impl Future<Output = Result<(), AcquireError>>> {
        W::call(self.opened())
    }

    async fn opened(&self) -> Result<(), AcquireError> {
        self.check()?;
        let mut watch = Watch::begin(&self.place);
        while !watch.last().is_some_and(|state| self.is_open(state)) {
            watch.changed().await?;
            watch.mismatch().await?;
        }
        Ok(())
    }

    /// Returns how many arrivals are missing at this moment; zero if the latch is open. The primary's state decides, so
    /// a fail-over can still undo it, unlike the return of [`wait`](Self::wait), whose errors and cancel safety it has.
    /// [`Latch`] has an example.
    pub fn missing(&self) -> W::Call<impl Future<Output = Result<u32, AcquireError>>> {
        W::call(async move {
            self.check()?;
            let state = self.place.newest::<AcquireError>().await?;
            let arrived = state.map_or(0, |state| arrivals(&state).count());
            Ok(self.count().saturating_sub(u32::try_from(arrived).unwrap_or(u32::MAX)))
        })
    }

    fn check(&self) -> Result<(), InvalidInput> {
        // Each is an entry in the document, as a waiter is.
        watched::check(&self.place, "arrivals", QUEUE_MOST)?;
        at_least("time for which an arrival counts", self.counts_for, KEPT_LEAST)?;
        check_duration("time for which an arrival counts", self.counts_for)
    }

    fn is_open(&self, state: &State) -> bool {
        arrivals(state).count() >= usize::try_from(self.count()).unwrap_or(usize::MAX)
    }

    /// Takes a place, and leaves it taken.
    async fn arrive(&self, party: Option<String>) -> Result<(), AcquireError> {
        self.check()?;
        let mut twin = Backoff::default();
        loop {
            if self.is_done(party.as_deref()).await? {
                return Ok(());
            }
            let Some(place) = self.take(party.as_deref()).await? else {
                return Ok(());
            };
            match &party {
                Some(party) if self.has_twin(&place, party).await? => {
                    // The other one arrives or dies, which leaves its place taken for the rest of its lease; either way
                    // this one looks again.
                    let _ = place.release().await;
                    sleep(twin.failed()).await;
                }
                _ if self.leave_taken(place).await? => return Ok(()),
                // It was lost before it was counted.
                _ => {}
            }
        }
    }

    /// Whether there is nothing left to count. The primary decides, as a majority can lag behind with an earlier use of
    /// the name; and then a majority, as a fail-over could undo what the primary has.
    async fn is_done(&self, party: Option<&str>) -> Result<bool, AcquireError> {
        let is_done = |state: &State| self.is_open(state) || party.is_some_and(|party| has(state, party));
        let newest = self.place.read_in::<AcquireError>(View::Newest).await?;
        let Some((_, read)) = newest.filter(|(state, _)| is_done(state)) else {
            return Ok(false);
        };
        let view = View::Committed(read.logged_by);
        let confirmed = self.place.read_in::<AcquireError>(view).await?;
        Ok(confirmed.is_some_and(|(state, _)| is_done(&state)))
    }

    /// Takes a place. `None`: other arrivals have all places, or this party has arrived.
    async fn take(&self, party: Option<&str>) -> Result<Option<OwnedHold>, AcquireError> {
        let mut acquire = watched::take(&self.place, party.map(str::to_owned));
        loop {
            tokio::select! {
                biased;
                place = &mut acquire => return place.map(Some),
                // Those who have the places may arrive meanwhile.
                () = sleep(LONGEST_PAUSE) => {}
            }
            if self.is_done(party).await? {
                return Ok(None);
            }
        }
    }

    /// Whether the same party has arrived or has taken an earlier place, or this place is not in the document. Both
    /// places are in the document before either party looks, so at least the later one sees the other.
    async fn has_twin(&self, place: &OwnedHold, party: &str) -> Result<bool, AcquireError> {
        let hold = place.hold();
        let state = self.place.newest::<AcquireError>().await?;
        let mut holders = state.iter().flat_map(|state| &state.holders);
        // It was lost, or a member answered that is no longer the primary.
        let is_missing = !holders.clone().any(|holder| hold.is(holder));
        Ok(is_missing
            || holders.any(|other| {
                let is_twin = other.owner.value.as_deref() == Some(party) && !hold.is(other);
                is_twin && (other.is_kept() || other.token < hold.granted_as)
            }))
    }

    /// Releases a place and keeps it taken; `false`: it was lost.
    async fn leave_taken(&self, place: OwnedHold) -> Result<bool, AcquireError> {
        if !place.hold().keep(KeptUntil::AfterRelease(millis(self.counts_for))) {
            return Ok(false);
        }
        Ok(place.leave().await? == Released::Kept)
    }
}

/// Returns the entries of the arrivals.
fn arrivals(state: &State) -> impl Iterator<Item = &Entry> {
    state.holders.iter().filter(|holder| holder.is_kept())
}

/// Whether the party has arrived.
fn has(state: &State, party: &str) -> bool {
    arrivals(state).any(|arrival| arrival.owner.value.as_deref() == Some(party))
}

#[cfg(feature = "sync")]
impl Latch<Blocking> {
    /// Waits until the latch is open, for at most `timeout` (up to 366 days). Returns whether it is open: once the time
    /// is over, by the server's answer to one more question, for which it waits a few seconds if the server is silent.
    ///
    /// Errors are those of [`wait`](Self::wait), [`AcquireError::Invalid`] for a timeout out of bounds, and
    /// [`AcquireError::Server`] if that question has no answer.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, AcquireError> {
        check_duration("timeout", timeout)?;
        Blocking::call(async {
            match tokio::time::timeout(timeout, self.opened()).await {
                Ok(opened) => opened.map(|()| true),
                // The server may not have answered by then.
                Err(_) => self.is_done(None).await,
            }
        })
    }
}
