//! The holds of one line.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::hold::Hold;

/// A hold that came to a line or went, in its order.
#[derive(Debug)]
pub(super) enum HoldChange {
    Came(Arc<Hold>),
    Gone(Arc<Hold>),
}

/// Returns the names of the locks of these holds, each once.
pub(super) fn names_of<'a>(holds: impl IntoIterator<Item = &'a Arc<Hold>>) -> Vec<String> {
    let names: BTreeSet<&String> = holds.into_iter().map(|hold| &hold.name).collect();
    names.into_iter().cloned().collect()
}

/// The holds of one line by their entries; readers may share an entry. It records which came and went since the last
/// call of [`take_changes`](Self::take_changes): the heartbeat has its own books of all holds, so that it need not
/// search the lines.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// Those of one entry in the order in which they came.
    by_id: BTreeMap<String, Vec<Arc<Hold>>>,
    changes: Vec<HoldChange>,
}

impl Holds {
    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.by_id.values().flatten()
    }

    /// Returns the holds that have an entry.
    pub(super) fn of(&self, id: &str) -> &[Arc<Hold>] {
        self.by_id.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn has(&self, hold: &Hold) -> bool {
        self.of(&hold.id).iter().any(|held| held.number == hold.number)
    }

    /// Adds a hold in place of whatever has its entry.
    pub(super) fn insert(&mut self, hold: Arc<Hold>) {
        self.remove(&hold.id);
        self.share(hold);
    }

    /// Adds a hold beside those that have its entry.
    pub(super) fn share(&mut self, hold: Arc<Hold>) {
        self.changes.push(HoldChange::Came(hold.clone()));
        self.by_id.entry(hold.id.clone()).or_default().push(hold);
    }

    /// Removes all holds that have an entry.
    pub(super) fn remove(&mut self, id: &str) -> Vec<Arc<Hold>> {
        let gone = self.by_id.remove(id).unwrap_or_default();
        self.changes.extend(gone.iter().cloned().map(HoldChange::Gone));
        gone
    }

    /// Removes one hold, and leaves the others that have its entry.
    pub(super) fn part(&mut self, hold: &Hold) {
        let Some(held) = self.by_id.get_mut(&hold.id) else {
            return;
        };
        if let Some(place) = held.iter().position(|held| held.number == hold.number) {
            self.changes.push(HoldChange::Gone(held.remove(place)));
        }
        if held.is_empty() {
            self.by_id.remove(&hold.id);
        }
    }

    /// Returns the holds that came and went since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<HoldChange> {
        std::mem::take(&mut self.changes)
    }
}
