//! A lock whose document is watched, and not only asked for: what the latch and the barrier share.

use crate::{
    error::{AcquireError, InvalidInput, KindMismatch},
    input::check_name,
    locks::acquire::Share,
    name::LockName,
    protocol::{Kind, State},
    session::{
        locks::LockSession,
        streams::follow::{Observation, Observations, Scope, follow},
    },
};

/// Maximum number of arrivals of a latch, and of parties of a barrier. Each is an entry of about 300 bytes in one
/// document, which every write rewrites: the bound of a [queue](crate::protocol::QUEUE_MOST) for the same reason.
pub(super) const PLACES_MOST: u32 = 256;

/// A lock of so many places, each of which takes one permit.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) session: LockSession,
    pub(super) name: LockName,
    pub(super) kind: Kind,
    pub(super) count: u32,
}

impl Places {
    /// Refuses values that are out of bounds, before anything is sent.
    pub(super) fn check(&self, of: &str) -> Result<(), InvalidInput> {
        check_name(&self.name)?;
        if !(1..=PLACES_MOST).contains(&self.count) {
            let (kind, count) = (self.kind, self.count);
            let message = format!("the {kind} has {count} {of}; it must have 1 to {PLACES_MOST}");
            return Err(InvalidInput::new(message));
        }
        Ok(())
    }

    /// Returns what one place asks of the engine.
    pub(super) fn one(&self) -> Share {
        Share {
            session: self.session.session().clone(),
            name: self.name.clone(),
            kind: self.kind,
            capacity: i64::from(self.count),
            permits: 1,
        }
    }

    /// Reads the document, without entries whose time is over.
    pub(super) async fn read(&self) -> Result<Option<State>, AcquireError> {
        let Some((mut state, exchange)) = self.session.inspect(&self.name).await? else {
            return Ok(None);
        };
        if let Some(now) = exchange.now {
            state.holders.retain(|holder| holder.until > now);
        }
        self.fits(state).map(Some)
    }

    /// Begins to watch the document.
    pub(super) fn watch(&self) -> Watch<'_> {
        let observations = follow(self.session.clone(), Scope::One(self.name.to_string()));
        Watch {
            places: self,
            observations,
            last: None,
        }
    }

    /// Returns the state, if it is one of this kind and number of places.
    fn fits(&self, state: State) -> Result<State, AcquireError> {
        let (kind, count) = (self.kind, i64::from(self.count));
        let is_idle = state.holders.is_empty();
        if !is_idle && (state.kind, state.capacity) != (kind, count) {
            return Err(KindMismatch::new(&self.name, &state, kind, count).into());
        }
        Ok(state)
    }
}

/// The states of the document as they follow on each other, without entries whose time is over. As a majority has them,
/// so none is taken back; states that last for less than a hop may be skipped.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    places: &'a Places,
    observations: Observations,
    last: Option<State>,
}

impl Watch<'_> {
    /// Returns the last state that was seen.
    pub(super) fn last(&self) -> Option<&State> {
        self.last.as_ref()
    }

    /// Waits for another state.
    pub(super) async fn changed(&mut self) -> Result<(), AcquireError> {
        loop {
            match self.observations.next().await {
                Some(Ok(Observation::State(_, state))) => {
                    self.last = state.map(|state| self.places.fits(state)).transpose()?;
                    return Ok(());
                }
                // No document of a lock: whoever asks for the lock is told.
                Some(Ok(Observation::Unreadable(_))) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Err(AcquireError::Closed),
            }
        }
    }
}
