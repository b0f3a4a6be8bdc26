//! The name of a lock as given by the user: of any size until it is checked.

use std::{fmt, ops::Deref, sync::Arc};

use crate::truncated_debug::Brief;

/// A shared name; cloning it copies no text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl Deref for LockName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl LockName {
    pub fn new(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Brief(&*self.0).fmt(f)
    }
}
