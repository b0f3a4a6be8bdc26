//! A session in the hands of its users, as opposed to its tasks.
//!
//! A task keeps the session for as long as a command is on its way, and a command can stay without an answer for ever.
//! So the life of the client is that of its users' handles: when the last one goes, everything that still stays with
//! the client goes back, whatever its tasks wait for.

use std::{fmt, ops::Deref, sync::Arc};

use super::Session;

/// A session as a client, a lock, a handle or a future of the user's has it. Tasks have the session without this.
pub(crate) type UserHandle = Arc<ClientLife>;

/// The life of a client as its user sees it. It ends with the last handle.
pub(crate) struct ClientLife(Arc<Session>);

impl ClientLife {
    /// Returns the first handle of a session.
    pub(crate) fn begin(session: Arc<Session>) -> UserHandle {
        Arc::new(Self(session))
    }
}

impl Drop for ClientLife {
    fn drop(&mut self) {
        self.0.end_in_background();
    }
}

impl Deref for ClientLife {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl fmt::Debug for ClientLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
