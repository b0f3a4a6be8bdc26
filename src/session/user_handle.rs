//! A session in the hands of its users, as opposed to its tasks.
//!
//! A task keeps the session for as long as a command is on its way, and a command can stay without an answer for ever.
//! So the life of the client is that of its users' handles: when the last one goes, everything that still stays with
//! the client goes back, whatever its tasks wait for.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Weak},
};

use super::Session;

/// A session as a client, a lock, a handle or a future of the user's has it. Tasks have the session without this.
#[derive(Clone)]
pub(crate) struct UserHandle(Arc<ClientLife>);

/// The life of a client as its user sees it. Its last handle ends it.
pub(crate) struct ClientLife(Arc<Session>);

impl Drop for ClientLife {
    fn drop(&mut self) {
        self.0.end_in_background();
    }
}

impl UserHandle {
    /// Creates the first handle of a session.
    pub(crate) fn first(session: Arc<Session>) -> Self {
        Self(Arc::new(ClientLife(session)))
    }

    /// Returns the life of the client, without keeping it alive.
    pub(crate) fn life(&self) -> Weak<ClientLife> {
        Arc::downgrade(&self.0)
    }

    /// Returns another handle, as long as there is one.
    pub(crate) fn upgrade(life: &Weak<ClientLife>) -> Option<Self> {
        life.upgrade().map(Self)
    }
}

impl Deref for UserHandle {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0.0
    }
}

impl fmt::Debug for UserHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
