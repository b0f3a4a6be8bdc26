//! Locks in documents of the user's own: these can also be claimed, read, changed and deleted.

use crate::error::ServerError;
use std::{collections::HashSet, time::Duration};

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use super::{Outlook, Store, Taken, Wanted};
use crate::{protocol::Operation, telemetry};

impl Store {
    /// Locks wanted documents that are free, one by each of these operations at most, but for those that are `passed`
    /// over. The server gives up after `within`.
    pub(crate) async fn claim(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        operations: &[Operation],
        within: Duration,
    ) -> Result<Taken, ServerError> {
        self.ask(
            ("claim", None),
            |store| store.claim(wanted, passed, operations, within),
            |store| store.claim(wanted, passed, operations),
        )
        .await
        .inspect(|taken| {
            for error in [&taken.failed, &taken.unsent].into_iter().flatten() {
                telemetry::operation_failed("claim", None, error);
            }
        })
    }

    /// Looks at the wanted documents, none of which is free; those in `passed`, by their names, count as unfit.
    pub(crate) async fn outlook(&self, wanted: &Wanted, passed: &HashSet<String>) -> Result<Outlook, ServerError> {
        self.ask(
            ("read", None),
            |store| store.outlook(wanted, passed),
            |store| store.outlook(wanted, passed),
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

    /// Returns what is locked under the name as it is now: the user's part of a document, or the elements that have the
    /// key in it.
    pub(crate) async fn fetch(&self, name: &str) -> Result<Vec<Document>, ServerError> {
        self.ask(
            ("read", Some(name)),
            |store| store.fetch(name),
            |store| Ok(store.fetch(name)),
        )
        .await
    }

    /// Changes the user's part of a document, or the one element that has the key in the name, and returns it, if this
    /// entry holds its lock under this token; returns `None` otherwise, and if no element or more than one has the key.
    /// The id of the operation goes into `wake`, which shows claims that the document is still held; or that it is free,
    /// if the change `releases` the lock: then it is not made where others wait for it. The server gives up after
    /// `within`.
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
