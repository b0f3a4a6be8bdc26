//! The locks that have metrics of their own.

use std::{collections::BTreeSet, sync::Arc};

/// A lock's name as the value of a label.
pub(crate) type LockLabel = Arc<str>;

/// Names of locks, given by the user: their metrics have the label `lock`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metered(Arc<BTreeSet<LockLabel>>);

impl Metered {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self(Arc::new(names.into_iter().map(LockLabel::from).collect()))
    }

    /// Returns the label of a lock; `None` if it has no metrics of its own.
    pub(crate) fn label(&self, name: &str) -> Option<LockLabel> {
        self.0.get(name).cloned()
    }

    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}
