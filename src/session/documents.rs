//! A session whose documents are the user's own, with locks in them: holders read, change and delete the document around
//! their lock.

use std::{ops::Deref, sync::Arc};

use mongodb::{bson::Document, options::UpdateModifications};

use super::{Session, hold::Hold};
use crate::{error::ServerError, status::LostReason, store::DocumentStore};

/// A session over documents, which can also be claimed, read, changed and deleted.
#[derive(Clone, Debug)]
pub(crate) struct DocumentSession {
    session: Arc<Session>,
    documents: Arc<DocumentStore>,
}

impl DocumentSession {
    /// `session` is one over the same documents.
    pub(crate) fn new(session: Arc<Session>, documents: Arc<DocumentStore>) -> Self {
        Self { session, documents }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn documents(&self) -> &Arc<DocumentStore> {
        &self.documents
    }

    /// The user's part of a document.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Option<Document>, ServerError> {
        let fetching = self.read_long(|_| {
            let (documents, name) = (self.documents.clone(), name.to_owned());
            async move { documents.fetch(&name).await }
        });
        Ok(fetching.await?)
    }

    /// Changes the user's part of a document that is held, and returns it; `None` when it is not held any more.
    pub(crate) async fn change(
        &self,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<Option<Document>, ServerError> {
        let (documents, held, within) = (self.documents.clone(), hold.clone(), hold.lease);
        let operation = self.ids.operation();
        let changing = async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            documents.change(&held.name, holder, update, &operation, within).await
        };
        // It can take its time, and is not repeated.
        Ok(self.in_time(within, changing).await?)
    }

    /// Deletes a document that is held; `false` when it is not held any more.
    pub(crate) async fn delete(&self, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let (session, held, within) = (self.clone(), hold.clone(), hold.lease);
        let deleting = async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            held.begin_deleting();
            let deleted = session.documents.delete(&held.name, holder, within).await;
            if matches!(deleted, Ok(true)) {
                // Gone with its document: there is nothing to take out.
                session.feed(&held.name, |lines, _, _| lines.line(&held.name).forget(&held.id));
            }
            held.end_deleting(matches!(deleted, Ok(true)));
            held.tell_end();
            deleted
        };
        Ok(self.in_time(within, deleting).await?)
    }

    /// The server said that a hold is over: looks up why, and ends it.
    pub(crate) async fn give_up(&self, hold: &Arc<Hold>) -> LostReason {
        let (session, held) = (self.clone(), hold.clone());
        // Should the task be stopped, or the server not answer, its time is over all the same.
        let _ = self
            .spawn_for(async move { session.verify_together(&[held]).await })
            .await;
        hold.lose(LostReason::Expired);
        self.bury(hold);
        hold.lost_reason().unwrap_or(LostReason::Expired)
    }
}

impl Deref for DocumentSession {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.session
    }
}
