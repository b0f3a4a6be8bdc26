//! The locks that have metrics of their own.

use std::{collections::BTreeSet, sync::Arc};

/// A lock's name as the value of a label.
pub type LockLabel = Arc<str>;

/// Names of locks, given by the user: their metrics have the label `lock`.
#[derive(Clone, Debug, Default)]
pub struct Metered(Arc<BTreeSet<LockLabel>>);

impl Metered {
    pub fn new(names: Vec<String>) -> Self {
        Self(Arc::new(names.into_iter().map(LockLabel::from).collect()))
    }

    /// Returns the label of a lock; `None` if it has no metrics of its own.
    pub fn label(&self, name: &str) -> Option<LockLabel> {
        self.0.get(name).cloned()
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }
}
