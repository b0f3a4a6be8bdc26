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

/// A session as a client, a lock, a handle or a future of the user's has it: an [`Arc<Session>`](Session), or that with
/// its store. Tasks have the session without this.
#[derive(Clone)]
pub(crate) struct UserHandle<S> {
    session: S,
    life: Arc<ClientLife>,
}

/// The life of a client as its user sees it. Its last handle ends it.
pub(crate) struct ClientLife(Arc<Session>);

impl Drop for ClientLife {
    fn drop(&mut self) {
        self.0.end_in_background();
    }
}

impl<S> UserHandle<S> {
    /// Creates the first handle of a session.
    pub(crate) fn first(session: S) -> Self
    where
        S: Deref<Target = Arc<Session>>,
    {
        let life = Arc::new(ClientLife((*session).clone()));
        Self { session, life }
    }

    /// Returns a handle on the session alone.
    pub(crate) fn alone(&self) -> UserHandle<Arc<Session>> {
        UserHandle {
            session: self.life.0.clone(),
            life: self.life.clone(),
        }
    }

    /// Returns a handle on the session in another form.
    pub(crate) fn with<T>(self, form: impl FnOnce(S) -> T) -> UserHandle<T> {
        UserHandle {
            session: form(self.session),
            life: self.life,
        }
    }

    /// Returns the life of the client, without keeping it alive.
    pub(crate) fn life(&self) -> Weak<ClientLife> {
        Arc::downgrade(&self.life)
    }
}

impl UserHandle<Arc<Session>> {
    /// Returns another handle, as long as there is one.
    pub(crate) fn upgrade(life: &Weak<ClientLife>) -> Option<Self> {
        let life = life.upgrade()?;
        let session = life.0.clone();
        Some(Self { session, life })
    }
}

impl<S> Deref for UserHandle<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.session
    }
}

impl<S: fmt::Debug> fmt::Debug for UserHandle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}
