//! The handles of a hold and its permits: a part of them can go to another handle, and a reader's hold can become a
//! writer's.

use std::sync::Arc;

use super::Hold;
use crate::status::LostReason;

/// The remains of a hold when one of its handles goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Other handles.
    Held,
    /// Handles of other parts, which have so many permits together.
    Parts(u64),
    /// Nothing: this was the last handle, and the hold must be released.
    Nothing,
    /// Nothing: it was lost before.
    Lost(LostReason),
}

impl Hold {
    pub(crate) fn permits(&self) -> u64 {
        self.state().permits
    }

    /// Makes it the hold of a reader, unless it has more than one handle; returns their number then.
    ///
    /// Decided under the same mutex as [`enter`](crate::waitlist::Hold::enter): no task shares it as a writer from now
    /// on.
    pub(crate) fn downgrade(&self, permits: u64) -> Result<(), usize> {
        let mut state = self.state();
        if state.handles > 1 {
            return Err(state.handles);
        }
        state.permits = state.permits.min(permits);
        Ok(())
    }

    /// Gives up so many permits of it, of which there are more; returns the number that is left.
    pub(crate) fn give_up(&self, permits: u64) -> u64 {
        let mut state = self.state();
        state.permits = state.permits.saturating_sub(permits);
        state.permits
    }

    /// Adds a handle of a part, unless the hold is over.
    pub(crate) fn split(&self) -> Result<(), LostReason> {
        self.look()?;
        let mut state = self.state();
        state.handles += 1;
        // Another task may get it.
        state.is_of_several = true;
        state.lost.map_or(Ok(()), Err)
    }

    /// Notes that one handle has the parts of two.
    pub(crate) fn merge(&self) {
        let mut state = self.state();
        state.handles = state.handles.saturating_sub(1);
    }

    /// Notes the reader's hold that became a writer's with this one. Returns whether that is news.
    pub(crate) fn note_upgraded(&self, reader: &Arc<Self>) -> bool {
        let upgrades = &mut self.state().upgrades;
        let is_news = upgrades.is_none();
        upgrades.get_or_insert_with(|| reader.clone());
        is_news
    }

    /// Whether it is over when this one is.
    pub(in crate::session) fn is_upgrade_of(&self, reader: &Self) -> bool {
        let state = self.state();
        state
            .upgrades
            .as_ref()
            .is_some_and(|upgrades| upgrades.number == reader.number)
    }

    /// Returns the reader's hold that became a writer's with this one.
    pub(crate) fn upgraded(&self) -> Option<Arc<Self>> {
        match self.is_forked() {
            true => None,
            false => self.state().upgrades.clone(),
        }
    }

    /// Takes out the reader's hold that became a writer's with this one, to give back the handle of it.
    pub(crate) fn take_upgraded(&self) -> Option<Arc<Self>> {
        match self.is_forked() {
            true => None,
            false => self.state().upgrades.take(),
        }
    }

    /// Prepares it to be detached, unless it has more than one handle; returns their number then. Decided under the same
    /// mutex as [`enter`](crate::waitlist::Hold::enter).
    pub(crate) fn begin_detaching(&self) -> Result<(), usize> {
        let mut state = self.state();
        if state.handles > 1 {
            return Err(state.handles);
        }
        state.detaching = true;
        Ok(())
    }

    /// Drops a handle of all permits; with the last one the hold is over.
    pub(crate) fn exit(&self) -> Remains {
        self.exit_part(u64::MAX)
    }

    /// Drops a handle of so many permits, which go with it if other handles have others.
    pub(crate) fn exit_part(&self, permits: u64) -> Remains {
        if let Err(reason) = self.look() {
            return Remains::Lost(reason);
        }
        {
            let mut state = self.state();
            if let Some(reason) = state.lost {
                return Remains::Lost(reason);
            }
            state.handles = state.handles.saturating_sub(1);
            if state.handles > 0 {
                let left = state.permits.saturating_sub(permits);
                if left == 0 {
                    return Remains::Held;
                }
                state.permits = left;
                return Remains::Parts(left);
            }
            self.end(&mut state, LostReason::Released);
        }
        self.ended.cancel();
        Remains::Nothing
    }
}
