//! A lock whose document is watched, and not only asked for: the common part of the latch and the barrier. Each of
//! their places takes one permit.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;

use crate::{
    error::{AcquireError, InvalidInput},
    handle::owned::OwnedHold,
    input::{check_count, check_name},
    locks::{options::Options, request::Share},
    protocol::State,
    session::streams::{Observations, observers::Scope},
};

/// Time for which a place stays taken if nobody says otherwise.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Refuses values that are out of bounds, before anything is sent.
pub(super) fn check(share: &Share, of: &str, most: usize) -> Result<(), InvalidInput> {
    check_name(&share.name)?;
    let count = usize::try_from(share.capacity).unwrap_or(usize::MAX);
    check_count(share.kind, count, of, 1..=most)
}

/// Acquires one place, with a value for others to read. The client's limits to holding don't apply: a place is held for
/// as long as the others are awaited.
pub(super) fn take(share: &Share, value: Option<String>) -> BoxFuture<'static, Result<OwnedHold, AcquireError>> {
    let share = Share { value, ..share.clone() };
    Box::pin(share.acquire(Options::unlimited()))
}

/// The states of the document one after the other, without entries whose time is over. A majority has each of them, so
/// none is undone; states that last for less than a hop may be skipped.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    share: &'a Share,
    observations: Observations,
    last: Option<Arc<State>>,
    mismatch: bool,
}

impl<'a> Watch<'a> {
    /// Begins to watch the document.
    pub(super) fn begin(share: &'a Share) -> Self {
        let scope = Scope::One(share.name.to_string());
        Self {
            share,
            observations: Observations::begin(share.session.clone(), scope),
            last: None,
            mismatch: false,
        }
    }

    /// Returns the last state that was seen.
    pub(super) fn last(&self) -> Option<&State> {
        self.last.as_deref()
    }

    /// Returns the error if the last state was of another use of the name, and still is. A majority can have that state
    /// for a moment after that use has ended, so a request for a place goes by its own answer alone.
    pub(super) async fn mismatch(&mut self) -> Result<(), AcquireError> {
        match std::mem::take(&mut self.mismatch) {
            false => Ok(()),
            true => self.share.newest().await.map(drop),
        }
    }

    /// Waits for another state.
    pub(super) async fn changed(&mut self) -> Result<(), AcquireError> {
        loop {
            match self.observations.next().await {
                Some(Ok((_, Ok(state)))) => {
                    let present = state.as_ref();
                    self.mismatch = present.is_some_and(|state| self.share.check_fit(state).is_err());
                    self.last = state.filter(|_| !self.mismatch);
                    return Ok(());
                }
                // Not a lock's document. Nobody else may read it, and it is told once.
                Some(Ok((_, Err(_)))) => drop(self.share.newest::<AcquireError>().await?),
                Some(Err(error)) => return Err(error.into()),
                None => return Err(AcquireError::Closed),
            }
        }
    }
}
