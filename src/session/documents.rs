//! The user's document around a lock in place, which its holder reads, changes and deletes; and the end of a hold that
//! the server denies.

use std::sync::Arc;

use mongodb::{bson::Document, options::UpdateModifications};

use super::{Session, hold::Hold};
use crate::{error::ServerError, status::LostReason};

impl Session {
    /// Reads the user's part of a document.
    pub(crate) async fn fetch(self: &Arc<Self>, name: &str) -> Result<Option<Document>, ServerError> {
        let fetching = self.read_long(|store| {
            let name = name.to_owned();
            async move { store.fetch(&name).await }
        });
        Ok(fetching.await?)
    }

    /// Changes the user's part of a held document, and returns it; `None` when it is no longer held.
    pub(crate) async fn change(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<Option<Document>, ServerError> {
        let (store, held, within) = (self.store.clone(), hold.clone(), hold.lease);
        let operation = self.ids.operation();
        let changing = async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            store.change(&held.name, holder, update, &operation, within).await
        };
        // It can take its time, and is not repeated.
        Ok(self.in_time(within, changing).await?)
    }

    /// Deletes a held document; `false` when it is no longer held.
    pub(crate) async fn delete(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let (session, held, within) = (self.clone(), hold.clone(), hold.lease);
        let deleting = async move {
            let holder = (held.id.as_str(), held.token.as_i64());
            held.begin_deleting();
            let deleted = session.store.delete(&held.name, holder, within).await;
            if matches!(deleted, Ok(true)) {
                // The entry is gone with its document: nothing has to leave.
                session.feed(&held.name, |lines, _, _| lines.line(&held.name).forget(&held.id));
            }
            held.end_deleting(matches!(deleted, Ok(true)));
            held.report_end();
            deleted
        };
        Ok(self.in_time(within, deleting).await?)
    }

    /// Takes in that the server denies a hold: looks up why, and ends it.
    pub(crate) async fn give_up(self: &Arc<Self>, hold: &Arc<Hold>) -> LostReason {
        let (session, held) = (self.clone(), hold.clone());
        // If the task is stopped or the server does not answer, the hold ends all the same.
        let _ = self
            .spawn_for(async move { session.verify_together(&[held]).await })
            .await;
        hold.lose(LostReason::Expired);
        self.let_go_if_over(hold);
        hold.lost_reason().unwrap_or(LostReason::Expired)
    }
}
