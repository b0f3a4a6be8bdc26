//! A lock whose document is watched, and not only asked for: the common part of the latch and the barrier.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;

use crate::{
    error::{AcquireError, InvalidInput, KindMismatch},
    handle::owned::OwnedHold,
    input::{check_count, check_name},
    locks::{options::Options, request::Share},
    name::LockName,
    protocol::{Exchange, Kind, State},
    session::{
        UserHandle,
        streams::{Observations, observers::Scope},
    },
    waitlist::Patience,
};

/// Time for which a place stays taken if nobody says otherwise.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 3600);

/// A lock with a number of places, each of which takes one permit.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) session: UserHandle,
    pub(super) name: LockName,
    pub(super) kind: Kind,
    pub(super) count: u32,
}

impl Places {
    /// Refuses values that are out of bounds, before anything is sent.
    pub(super) fn check(&self, of: &str, most: usize) -> Result<(), InvalidInput> {
        check_name(&self.name)?;
        check_count(
            self.kind,
            usize::try_from(self.count).unwrap_or(usize::MAX),
            of,
            1..=most,
        )
    }

    /// Acquires one place, with a value for others to read. The client's limits to holding don't apply: a place is held
    /// for as long as the others are awaited.
    pub(super) fn acquire(&self, value: Option<String>) -> BoxFuture<'static, Result<OwnedHold, AcquireError>> {
        let share = Share {
            capacity: i64::from(self.count),
            value,
            ..Share::whole(self.session.clone(), self.name.clone(), self.kind)
        };
        Box::pin(share.acquire(Options::unlimited(), Patience::Wait))
    }

    /// Reads the document as the primary has it, without entries whose time is over.
    pub(super) async fn newest(&self) -> Result<Option<State>, AcquireError> {
        self.read(self.session.inspect(&self.name).await?)
    }

    /// Does the same with the state that a majority has.
    pub(super) async fn committed(&self) -> Result<Option<State>, AcquireError> {
        self.read(self.session.observe(&self.name).await?)
    }

    fn read(&self, read: Option<(State, Exchange)>) -> Result<Option<State>, AcquireError> {
        let Some((mut state, exchange)) = read else {
            return Ok(None);
        };
        if let Some(now) = exchange.now {
            state.holders.retain(|holder| holder.until > now);
        }
        self.check_fit(&state)?;
        Ok(Some(state))
    }

    /// Begins to watch the document.
    pub(super) fn watch(&self) -> Watch<'_> {
        let observations = Observations::begin(self.session.clone(), Scope::One(self.name.to_string()));
        Watch {
            places: self,
            observations,
            last: None,
            mismatch: None,
        }
    }

    /// Refuses a state that is of another kind or number of places.
    fn check_fit(&self, state: &State) -> Result<(), KindMismatch> {
        let (kind, count) = (self.kind, i64::from(self.count));
        let is_idle = state.holders.is_empty();
        if !is_idle && (state.kind, state.capacity) != (kind, count) {
            return Err(KindMismatch::new(&self.name, state, (kind, count), 0));
        }
        Ok(())
    }
}

/// The states of the document one after the other, without entries whose time is over. A majority has each of them, so
/// none is undone; states that last for less than a hop may be skipped.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    places: &'a Places,
    observations: Observations,
    last: Option<Arc<State>>,
    mismatch: Option<KindMismatch>,
}

impl Watch<'_> {
    /// Returns the last state that was seen.
    pub(super) fn last(&self) -> Option<&State> {
        self.last.as_deref()
    }

    /// Returns the error if the last state was of another use of the name, and still is. A majority can have that state
    /// for a moment after that use has ended, so a request for a place goes by its own answer alone.
    pub(super) async fn mismatch(&mut self) -> Result<(), AcquireError> {
        match self.mismatch.take() {
            None => Ok(()),
            Some(_) => self.places.newest().await.map(drop),
        }
    }

    /// Waits for another state.
    pub(super) async fn changed(&mut self) -> Result<(), AcquireError> {
        loop {
            match self.observations.next().await {
                Some(Ok((_, Ok(state)))) => {
                    let fit = state.as_ref().map_or(Ok(()), |state| self.places.check_fit(state));
                    self.mismatch = fit.err();
                    self.last = state.filter(|_| self.mismatch.is_none());
                    return Ok(());
                }
                // Not a lock's document. Nobody else may read it, and it is told once.
                Some(Ok((_, Err(_)))) => drop(self.places.newest().await?),
                Some(Err(error)) => return Err(error.into()),
                None => return Err(AcquireError::Closed),
            }
        }
    }
}
