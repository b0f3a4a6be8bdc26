//! Documents of the user's own with locks in them: a holder reads, changes and deletes the document around its lock, and
//! learns why a hold is over that the server denies.

use std::{sync::Arc, time::Duration};

use mongodb::{bson::Document, options::UpdateModifications};

use super::{Session, admin::ONCE, hedged_read::Cost, hold::Hold, in_flight::patience};
use crate::{
    error::ServerError,
    status::{Lost, LostReason},
    store::ElementUpdate,
};

/// Maximum time for a change of a held document, however long its lease is: far longer than a transaction of another
/// program may usually keep a document from being written (a minute), and a limit that every server accepts.
const CHANGED_WITHIN: Duration = Duration::from_secs(600);

impl Session {
    /// Reads the user's part of a document.
    pub(crate) async fn fetch(self: &Arc<Self>, name: &str) -> Result<Option<Document>, ServerError> {
        let fetching = self.read(Cost::Large, || {
            let (store, name) = (self.store.clone(), name.to_owned());
            async move { store.fetch(&name).await }
        });
        fetching.await
    }

    /// Changes the user's part of a held document, and returns it; `None` when it is no longer held.
    pub(crate) async fn change(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: UpdateModifications,
    ) -> Result<Option<Document>, ServerError> {
        let (store, held, within) = (self.store.clone(), hold.clone(), time_to_change(hold));
        let operation = self.ids.operation();
        let changing = async move {
            let holder = (held.id.as_str(), held.granted_as);
            store.change(&held.name, holder, &update, &operation, within).await
        };
        // It can take its time, and is not repeated.
        self.in_time(within, changing).await
    }

    /// Reads the elements that have the key in this name; `None` when there is no document.
    pub(crate) async fn elements(self: &Arc<Self>, name: &str) -> Result<Option<Vec<Document>>, ServerError> {
        let fetching = self.read(Cost::Large, || {
            let (store, name) = (self.store.clone(), name.to_owned());
            async move { store.elements(&name).await }
        });
        fetching.await
    }

    /// Changes a held element, and returns it; `None` when it is no longer held, or there is not exactly one with its
    /// key.
    pub(crate) async fn change_element(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        update: ElementUpdate,
    ) -> Result<Option<Document>, ServerError> {
        let (store, held, within) = (self.store.clone(), hold.clone(), time_to_change(hold));
        let operation = self.ids.operation();
        let changing = async move {
            let holder = (held.id.as_str(), held.granted_as);
            store
                .change_element(&held.name, holder, update, &operation, within)
                .await
        };
        // As with a document: it can take its time, and is not repeated.
        self.in_time(within, changing).await
    }

    /// Reads whether a hold that the server denied is held, and returns its loss if it is lost.
    pub(crate) async fn verified(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<(), Lost> {
        let (session, held) = (self.clone(), hold.clone());
        // If the task is stopped or the server does not answer, the caller knows no more than before.
        let _ = self
            .spawn_for(async move { session.verify_together(&[held]).await })
            .await;
        hold.lost_reason().map_or(Ok(()), |reason| Err(hold.lost_as(reason)))
    }

    /// Forgets how often a document was claimed; `false` if that is not counted.
    pub(crate) async fn clear_attempts(self: &Arc<Self>, name: &str) -> Result<bool, ServerError> {
        let (store, name) = (self.store.clone(), name.to_owned());
        let clearing = async move { store.clear_attempts(&name, ONCE).await };
        self.in_time(patience(ONCE), clearing).await
    }

    /// Deletes a held document; `false` when it is no longer held.
    pub(crate) async fn delete(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let (session, held, within) = (self.clone(), hold.clone(), time_to_change(hold));
        let deleting = async move {
            let holder = (held.id.as_str(), held.granted_as);
            held.begin_deleting();
            let deleted = session.store.delete(&held.name, holder, within).await;
            if matches!(deleted, Ok(true)) {
                // The entry is gone with its document: nothing has to leave.
                session.update(&held.name, None, |lines, _| {
                    lines.line(&held.name).waitlist.forget(&held.id)
                });
            }
            held.end_deleting(matches!(deleted, Ok(true)));
            held.report_end();
            deleted
        };
        self.in_time(within, deleting).await
    }

    /// Notes that the server denies a hold: looks up why, and ends it.
    pub(crate) async fn give_up(self: &Arc<Self>, hold: &Arc<Hold>) -> Lost {
        // If the server does not answer, the hold ends all the same.
        let _ = self.verified(hold).await;
        hold.lose(LostReason::Expired);
        self.let_go_if_over(hold);
        hold.lost_as(hold.lost_reason().unwrap_or(LostReason::Expired))
    }
}

/// Returns the time for a change of a held document. It can take its time, and is not repeated.
fn time_to_change(hold: &Hold) -> Duration {
    hold.length().min(CHANGED_WITHIN)
}
