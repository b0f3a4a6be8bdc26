//! Locks in documents of the user's own: these can also be claimed, read, changed and deleted.

use crate::error::ServerError;
use std::time::Duration;

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use super::{Among, ElementUpdate, LONG_READ_WITHIN, Outlook, Store, Taken, Wanted};
use crate::{protocol::Operation, telemetry};

impl Store {
    /// Locks wanted documents that are free, one by each of these operations at most. The server gives up after
    /// `within`.
    pub(crate) async fn claim(
        &self,
        wanted: &Wanted,
        among: Among<'_>,
        operations: &[Operation],
        within: Duration,
    ) -> Result<Taken, ServerError> {
        self.ask(
            ("claim", None),
            |store| store.claim(wanted, among, operations, within),
            |store| store.claim(wanted, among, operations),
        )
        .await
        .inspect(|taken| {
            for error in [&taken.failed, &taken.unsent].into_iter().flatten() {
                telemetry::operation_failed("claim", None, error);
            }
        })
    }

    /// Returns the `_id` of a document that a claim would take next, which may be the one at which it failed.
    pub(crate) async fn candidate(&self, wanted: &Wanted, among: Among<'_>) -> Result<Option<Bson>, ServerError> {
        let found = self.ask(
            ("read", None),
            |store| store.candidates(wanted, among, 1, LONG_READ_WITHIN),
            // In memory nothing refuses to be claimed.
            |_| Ok(Vec::new()),
        );
        match found.await?.pop() {
            // One without an `_id` that can be read can't be named.
            Some(None) => Err(ServerError::overdue()),
            found => Ok(found.flatten()),
        }
    }

    /// Looks at the wanted documents, none of which is free; those in `passed` count as unfit.
    pub(crate) async fn outlook(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, ServerError> {
        self.ask(
            ("read", None),
            |store| store.outlook(wanted, passed),
            |store| store.outlook(wanted, passed),
        )
        .await
    }

    /// Returns the reason why the document with this `_id` can't be claimed; `None` when it has become fit, or is gone.
    pub(crate) async fn why_unfit(&self, id: &Bson) -> Result<Option<ServerError>, ServerError> {
        self.ask(
            ("read", None),
            |store| store.why_unfit(id),
            |store| Ok(store.why_unfit(id)),
        )
        .await
    }

    /// Returns the names of the wanted documents in which one of these entries is a holder, each with that entry.
    pub(crate) async fn held_by(
        &self,
        wanted: &Wanted,
        entries: &[String],
    ) -> Result<Vec<(String, String)>, ServerError> {
        self.ask(
            ("read", None),
            |store| store.held_by(wanted, entries),
            |store| store.held_by(wanted, entries),
        )
        .await
    }

    /// Returns the user's part of a document as it is now.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Option<Document>, ServerError> {
        self.ask(
            ("read", Some(name)),
            |store| store.fetch(name),
            |store| Ok(store.fetch(name)),
        )
        .await
    }

    /// Changes the user's part of a document and returns it, if this entry holds it under this token; returns `None`
    /// otherwise. The id of the operation goes into `wake`, which shows claims that the document is still held; or that
    /// it is free, if the change `releases` the lock: then it is not made where others wait for it. The server gives up
    /// after `within`.
    pub(crate) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: &UpdateModifications,
        (operation, releases): (&str, bool),
        within: Duration,
    ) -> Result<Option<Document>, ServerError> {
        self.ask(
            ("update", Some(name)),
            |store| store.change(name, holder, update.clone(), (operation, releases), within),
            |store| store.change(name, holder, update, (operation, releases)),
        )
        .await
    }

    /// Returns the elements that have the key in this name as they are now; `None` when there is no document.
    pub(crate) async fn elements(&self, name: &str) -> Result<Option<Vec<Document>>, ServerError> {
        self.ask(
            ("read", Some(name)),
            |store| store.elements(name),
            |store| Ok(store.elements(name)),
        )
        .await
    }

    /// Changes the one element that has the key in this name, and returns it, if this entry holds its lock under this
    /// token; returns `None` otherwise, and if no element or more than one has the key. The id of the operation goes
    /// into `wake`. The server gives up after `within`.
    pub(crate) async fn change_element(
        &self,
        name: &str,
        holder: (&str, i64),
        update: ElementUpdate,
        operation: &str,
        within: Duration,
    ) -> Result<Option<Document>, ServerError> {
        let ElementUpdate {
            of_document,
            of_element,
        } = update;
        self.ask(
            ("update", Some(name)),
            |store| store.change_element(name, holder, of_document, operation, within),
            |store| store.change_element(name, holder, &of_element, operation),
        )
        .await
    }

    /// Forgets how often a document was claimed, and reports whether that was counted. The server gives up after
    /// `within`.
    pub(crate) async fn clear_attempts(&self, name: &str, within: Duration) -> Result<bool, ServerError> {
        self.ask(
            ("update", Some(name)),
            |store| store.clear_attempts(name, within),
            |store| Ok(store.clear_attempts(name)),
        )
        .await
    }

    /// Deletes a document if this entry holds it under this token, and reports whether it did. The server gives up
    /// after `within`.
    pub(crate) async fn delete(&self, name: &str, holder: (&str, i64), within: Duration) -> Result<bool, ServerError> {
        self.ask(
            ("delete", Some(name)),
            |store| store.delete(name, holder, within),
            |store| Ok(store.delete(name, holder)),
        )
        .await
    }
}
