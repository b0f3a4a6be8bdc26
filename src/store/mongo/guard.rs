//! A lock's document in a transaction of the user's.

use mongodb::{
    ClientSession,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind},
    options::{Acknowledgment, ReadConcern, WriteConcern},
};

use super::{MongoStore, now};
use crate::{
    protocol::{Location, pipeline},
    store::{Guarding, failure::code, name},
    telemetry,
};

/// The server's code for a write that another transaction stands in the way of.
const WRITE_CONFLICT: i32 = 112;

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

    /// The whole document, as others see it.
    pub(crate) async fn whole(&self, name: &str) -> Result<Option<Document>, Error> {
        let find = self
            .collection
            .find_one(doc! { "_id": name::id_of(&self.location, name) });
        find.read_concern(ReadConcern::local()).await
    }

    /// Whether it was the transaction itself that took the lock out of its document, which others see `whole`.
    ///
    /// A transaction that is older than the lock does not see it either. To tell the two apart it puts the lock back:
    /// the server lets it write the document only if nobody else has since it began to read; so where it may, the lock
    /// was there when it began. Afterwards the transaction is to be aborted.
    ///
    /// # Errors
    ///
    /// The server's refusal, which has ended the transaction.
    pub(crate) async fn was_removed(
        &self,
        guarding: &Guarding<'_>,
        mut whole: Document,
        transaction: &mut ClientSession,
    ) -> Result<bool, Error> {
        let at = &self.location;
        let one = doc! { "_id": name::id_of(at, guarding.name) };
        let inside = self.collection.find_one(one.clone()).session(&mut *transaction).await?;
        let (id, token) = guarding.holder;
        let put_back = match &inside {
            Some(inside) if holds(at, inside, id, token) => return Ok(false),
            // Changed a little, as the server takes what changes nothing for no write.
            Some(_) if at.is_root() => self
                .collection
                .update_one(one, doc! { "$set": { "wake": &guarding.operation } }),
            Some(_) => {
                let mut lock = at.take_lock(&mut whole).unwrap_or_default();
                lock.insert("wake", &guarding.operation);
                self.collection.update_one(one, doc! { "$set": { at.path(): lock } })
            }
            None => {
                let inserted = self.collection.insert_one(whole).session(&mut *transaction).await;
                return inserted.map(|_| true);
            }
        };
        put_back.session(transaction).await.map(|_| true)
    }

    /// Whether somebody's transaction has written the document and has not ended: the server makes whoever else writes it
    /// wait for that, but for another transaction, which is refused at once. Nothing is written.
    pub(crate) async fn is_in_transaction_of_others(&self, guarding: &Guarding<'_>) -> Result<bool, Error> {
        let mut probe = self.collection.client().start_session().await?;
        probe.start_transaction().await?;
        let conflicts = match self.guard(guarding, &mut probe).await {
            Ok(_) => Ok(false),
            Err(error) if code(&error) == Some(WRITE_CONFLICT) => Ok(true),
            Err(error) => Err(error),
        };
        // Where it was refused, the server has ended it already.
        let _ = probe.abort_transaction().await;
        conflicts
    }

    /// Whether this is how a standalone server refuses a transaction: as an illegal operation.
    pub(crate) fn has_no_transactions(error: &Error) -> bool {
        code(error) == Some(20)
    }
}

/// Whether the lock in a document is held by this entry under this token.
fn holds(at: &Location, document: &Document, id: &str, token: i64) -> bool {
    let holders = at.lock(document).and_then(|lock| lock.get_array("holders").ok());
    let mut holders = holders.into_iter().flatten().filter_map(Bson::as_document);
    holders.any(|holder| {
        holder.get_str("id").is_ok_and(|its| its == id) && holder.get_i64("token").is_ok_and(|its| its == token)
    })
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
