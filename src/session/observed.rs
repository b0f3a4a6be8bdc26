//! A session whose locks can be listed and followed: over locks, or over documents with locks in them.

use std::{fmt, future::Future, ops::Deref, pin::Pin, sync::Arc};

use super::{Session, UserHandle, documents::DocumentSession, locks::LockSession};
use crate::store::{Listed, NamedSighting, ResumeAt, Selection, StoreError, Stream, View};

/// Opens a stream of sightings.
pub(super) type Following = Pin<Box<dyn Future<Output = Result<Stream<NamedSighting>, StoreError>> + Send>>;

/// A session as observers and operators use it.
#[derive(Clone)]
pub(crate) enum ObservedSession {
    Locks(LockSession),
    Documents(DocumentSession),
}

impl ObservedSession {
    /// Lists what is selected.
    pub(crate) async fn list(&self, selection: &Selection, view: View) -> Result<Listed, StoreError> {
        match self {
            Self::Locks(session) => {
                let listing = session.read_long(|arrival| {
                    let (locks, selection) = (session.locks().clone(), selection.clone());
                    async move { locks.list(&selection, view, &arrival).await }
                });
                listing.await
            }
            Self::Documents(session) => {
                let listing = session.read_long(|arrival| {
                    let (documents, selection) = (session.documents().clone(), selection.clone());
                    async move { documents.list(&selection, view, &arrival).await }
                });
                listing.await
            }
        }
    }

    /// Opens a stream of whatever happens to one name or to all.
    pub(super) fn follow(&self, name: Option<String>, resume: Option<ResumeAt>) -> Following {
        match self {
            Self::Locks(session) => {
                let locks = session.locks().clone();
                Box::pin(async move { locks.follow(name.as_deref(), resume.as_ref()).await })
            }
            Self::Documents(session) => {
                let documents = session.documents().clone();
                Box::pin(async move { documents.follow(name.as_deref(), resume.as_ref()).await })
            }
        }
    }

    /// Whether the locks are in documents of the user's own.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self, Self::Documents(_))
    }
}

impl fmt::Debug for ObservedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the store: the driver's client shows the user's connection options.
        (**self).fmt(f)
    }
}

impl Deref for ObservedSession {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        match self {
            Self::Locks(session) => session,
            Self::Documents(session) => session,
        }
    }
}

impl From<UserHandle<LockSession>> for UserHandle<ObservedSession> {
    fn from(session: UserHandle<LockSession>) -> Self {
        session.with(ObservedSession::Locks)
    }
}

impl From<UserHandle<DocumentSession>> for UserHandle<ObservedSession> {
    fn from(session: UserHandle<DocumentSession>) -> Self {
        session.with(ObservedSession::Documents)
    }
}
