//! A lock's document in a transaction of the user's.

use mongodb::{
    ClientSession,
    bson::{Document, doc},
    error::{Error, ErrorKind},
    options::{Acknowledgment, WriteConcern},
};

use super::{MongoStore, code, now};
use crate::{
    protocol::pipeline,
    store::{Guarding, name},
    telemetry,
};

impl MongoStore {
    /// Renews a holder within the transaction, and says whether it holds the lock as the transaction sees it.
    ///
    /// Whatever is due is left to the next operation from outside: a transaction that is never committed must not have
    /// told anybody anything.
    pub(crate) async fn guard(&self, guarding: &Guarding<'_>, transaction: &mut ClientSession) -> Result<bool, Error> {
        let at = &self.location;
        let document = name::id_of(at, guarding.name);
        let selection = pipeline::holding(at, &document, guarding.holder, &now());
        let (id, _) = guarding.holder;
        let update = pipeline::guard(at, &guarding.operation, id, guarding.keep, &now());
        let updated = self
            .collection
            .update_one(selection, update)
            .session(transaction)
            .await?;
        Ok(updated.matched_count > 0)
    }

    /// Whether this is how a standalone server refuses a transaction: as an illegal operation.
    pub(crate) fn has_no_transactions(error: &Error) -> bool {
        code(error) == Some(20)
    }
}

/// Whether a transaction has been started in the session and not ended. Sends nothing.
pub(crate) async fn is_in_transaction(session: &mut ClientSession) -> bool {
    // The driver keeps that to itself, but lets no operation of a transaction have a write concern. This one it
    // refuses in any case, as it contradicts itself; so what it complains of first tells.
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

/// Ends the transaction on the server, while to the driver it is still in progress: so its commit will fail, and what
/// is still written in it will not be written outside of it instead.
pub(crate) async fn abort(transaction: &mut ClientSession) {
    let admin = transaction.client().database("admin");
    let aborting = admin.run_command(doc! { "abortTransaction": 1 });
    if let Err(error) = aborting.session(transaction).await {
        // Where it was not known to the server before this, there is no such transaction, which is as good.
        telemetry::operation_failed("abort", None, &error.into());
    }
}
