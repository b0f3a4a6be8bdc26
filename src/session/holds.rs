//! The holds of one line.

use std::{collections::BTreeMap, sync::Arc};

use super::hold::Hold;

/// A hold that came to a line or went, in its order.
#[derive(Debug)]
pub(super) enum Change {
    Came(Arc<Hold>),
    Gone(Arc<Hold>),
}

/// The holds of one line by their entries. It records which came and went since the last call of
/// [`take_changes`](Self::take_changes): the heartbeat has its own books of all holds, so that it need not search the
/// lines.
#[derive(Debug, Default)]
pub(super) struct Holds {
    by_id: BTreeMap<String, Arc<Hold>>,
    changes: Vec<Change>,
}

impl Holds {
    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.by_id.values()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Arc<Hold>> {
        self.by_id.get(id)
    }

    pub(super) fn insert(&mut self, id: String, hold: Arc<Hold>) {
        self.changes.push(Change::Came(hold.clone()));
        if let Some(before) = self.by_id.insert(id, hold) {
            self.changes.push(Change::Gone(before));
        }
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Arc<Hold>> {
        let hold = self.by_id.remove(id)?;
        self.changes.push(Change::Gone(hold.clone()));
        Some(hold)
    }

    /// Returns the holds that came and went since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}
