//! Guards: a lock's document in a transaction of the user's.

use std::time::Duration;

use mongodb::{
    ClientSession,
    bson::{Document, doc},
    error::{Error, ErrorKind},
    options::{Acknowledgment, WriteConcern},
};

use super::{MongoStore, now, reading::first_in};
use crate::{error::ServerError, error::failure::code, protocol::pipeline, store::Guarding, telemetry};

impl MongoStore {
    /// Renews a holder within the transaction, and reports whether it holds the lock as the transaction sees it.
    ///
    /// Work that is due is left to the next operation from outside: a transaction that is never committed must not have
    /// notified anybody.
    pub(crate) async fn guard(&self, guarding: &Guarding<'_>, transaction: &mut ClientSession) -> Result<bool, Error> {
        let (selection, update) = self.guarded(guarding);
        let updating = self.collection.update_one(selection, update).session(transaction);
        Ok(updating.await?.matched_count > 0)
    }

    /// Writes the lock's document as [`Self::guard`] does, outside of any transaction. Returns whether the lock is
    /// held.
    pub(crate) async fn write_under(&self, guarding: &Guarding<'_>, within: Duration) -> Result<bool, ServerError> {
        let (selection, update) = self.guarded(guarding);
        self.update_one(doc! { "q": selection, "u": update }, within).await
    }

    /// Returns the filter for the lock's document while it is held, and the update that renews it.
    fn guarded(&self, guarding: &Guarding<'_>) -> (Document, Vec<Document>) {
        let member = self.layout.member(guarding.name);
        let at = &*member.location;
        let (id, _) = guarding.holder;
        (
            pipeline::holding(at, &member.id, guarding.holder, &now()),
            pipeline::guard(at, &guarding.operation, id, guarding.keep, &now()),
        )
    }

    /// Returns the whole document, as others see it.
    pub(crate) async fn whole(&self, name: &str) -> Result<Option<Document>, Error> {
        self.newest(self.collection.find(doc! { "_id": self.layout.id_of(name) }))
            .await
    }

    /// Reports whether the transaction itself removed the lock from its document, which others see as `whole`.
    ///
    /// A transaction that is older than the lock does not see the lock either. To distinguish the two cases it puts the
    /// lock back: the server lets it write the document only if nobody else has written it since the transaction began
    /// to read; so if the write succeeds, the lock was there when the transaction began. The caller must abort the
    /// transaction afterwards.
    ///
    /// # Errors
    ///
    /// The server's refusal, which has ended the transaction.
    pub(crate) async fn was_removed(
        &self,
        guarding: &Guarding<'_>,
        whole: Document,
        transaction: &mut ClientSession,
    ) -> Result<bool, Error> {
        let member = self.layout.member(guarding.name);
        let (at, one) = (&*member.location, doc! { "_id": member.id });
        let inside = first_in(self.collection.find(one.clone()), &mut *transaction).await?;
        let (id, token) = guarding.holder;
        let holds = |inside: &Document| {
            let state = at.state(inside).ok().flatten();
            state.is_some_and(|state| state.holders.iter().any(|holder| holder.is_grant(id, token)))
        };
        let put_back = match &inside {
            Some(inside) if holds(inside) => return Ok(false),
            // Changed slightly, as the server does not count a write that changes nothing.
            Some(_) => self
                .collection
                .update_one(one, doc! { "$set": { at.key("wake"): &guarding.operation } }),
            None => {
                let inserted = self.collection.insert_one(whole).session(&mut *transaction).await;
                return inserted.map(|_| true);
            }
        };
        put_back.session(transaction).await.map(|_| true)
    }

    /// Reports whether the error is a standalone server's refusal of a transaction: an illegal operation.
    pub(crate) fn has_no_transactions(error: &Error) -> bool {
        code(error) == Some(20)
    }
}

/// Reports whether the session has a transaction that was started and not ended. Sends nothing.
pub(crate) async fn is_in_transaction(session: &mut ClientSession) -> bool {
    // The driver does not show this, but it allows no operation of a transaction to have a write concern. It refuses
    // this one in any case, as the write concern contradicts itself; so the first complaint reveals whether there is a
    // transaction.
    let contradiction = WriteConcern::builder()
        .w(Acknowledgment::Nodes(0))
        .journal(true)
        .build();
    let nothing = doc! { "_id": { "$in": [] } };
    let collection = session.client().database("admin").collection::<Document>("watchlock");
    let probe = collection
        .update_one(nothing, doc! { "$unset": { "_": "" } })
        .write_concern(contradiction);
    let Err(refused) = probe.session(session).await else {
        return false;
    };
    matches!(&*refused.kind, ErrorKind::InvalidArgument { message, .. } if message.contains("transaction"))
}

/// Ends the transaction on the server, while the driver still considers it in progress: its commit will fail, and later
/// writes in it will not be written outside of it instead.
pub(crate) async fn abort(transaction: &mut ClientSession) {
    let admin = transaction.client().database("admin");
    let aborting = admin.run_command(doc! { "abortTransaction": 1 });
    if let Err(error) = aborting.session(transaction).await {
        // If the server did not know it before, there is no such transaction, which is just as good.
        telemetry::operation_failed("abort", None, &error.into());
    }
}
