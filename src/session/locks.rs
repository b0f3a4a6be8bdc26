//! A session over a collection of lock documents.

use std::{fmt, ops::Deref, sync::Arc};

use super::Session;
use crate::{config::Config, protocol::Exchange, store::LockStore, wake_mode::WakeMode};

/// A session over locks, which can also be listed and followed.
#[derive(Clone)]
pub(crate) struct LockSession {
    session: Arc<Session>,
    locks: Arc<LockStore>,
}

impl LockSession {
    pub(crate) fn new(config: Config, locks: LockStore, first: Option<&Exchange>, mode: WakeMode) -> Self {
        let session = Session::new(config, locks.store(), first, mode);
        let locks = Arc::new(locks);
        Self { session, locks }
    }

    /// Creates one for a test, from a session over the same store.
    #[cfg(test)]
    pub(crate) fn over(session: Arc<Session>, locks: LockStore) -> Self {
        let locks = Arc::new(locks);
        Self { session, locks }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn locks(&self) -> &Arc<LockStore> {
        &self.locks
    }
}

impl fmt::Debug for LockSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the store: the driver's client shows the user's connection options.
        self.session.fmt(f)
    }
}

impl Deref for LockSession {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}
