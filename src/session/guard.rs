//! A hold made part of a transaction of the user's.

use std::sync::Arc;

use mongodb::{
    ClientSession,
    error::{Error, TRANSIENT_TRANSACTION_ERROR},
};
use tokio::time::Instant;

use super::{Session, hold::Hold};
use crate::{
    error::GuardError,
    status::LostReason,
    store::{Documents, Exchange, Guarding, MongoStore, Store, StoreError, abort, is_in_transaction},
    telemetry,
};

impl Session {
    /// Writes the lock's document within the transaction, if the lock is held. Otherwise the transaction is ended on the
    /// server, so that it can't be committed whatever becomes of the error.
    pub(crate) async fn guard(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        transaction: &mut ClientSession,
    ) -> Result<(), GuardError> {
        if !is_in_transaction(transaction).await {
            return Err(GuardError::NotInTransaction);
        }
        let Store::Mongo(store) = &self.store else {
            abort(transaction).await;
            return Err(GuardError::InMemory);
        };
        if let Some(reason) = hold.lost_reason() {
            abort(transaction).await;
            return Err(reason.into());
        }
        // From here on until the transaction ends the server makes every renewal of this document wait.
        hold.guarded_at(Instant::now());
        let guarding = Guarding {
            operation: self.ids.operation(),
            name: &hold.name,
            holder: (&hold.id, hold.token.as_i64()),
            keep: self.config.keep_millis(),
        };
        let held = match store.guard(&guarding, transaction).await {
            Ok(held) => held,
            Err(error) if MongoStore::has_no_transactions(&error) => return Err(GuardError::Standalone),
            Err(error) => {
                telemetry::operation_failed("guard", Some(&hold.name), &error.clone().into());
                // What may be tried again is over to the server already; what was never sent is not.
                if !error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
                    abort(transaction).await;
                }
                return Err(GuardError::Server(error));
            }
        };
        match (held, hold.lost_reason()) {
            (true, None) => Ok(()),
            (_, Some(reason)) => {
                abort(transaction).await;
                Err(reason.into())
            }
            (false, None) => {
                abort(transaction).await;
                Err(self.why_not(hold, store, &guarding, transaction).await)
            }
        }
    }

    /// Why the transaction did not find the lock held.
    async fn why_not(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        store: &MongoStore,
        guarding: &Guarding<'_>,
        transaction: &mut ClientSession,
    ) -> GuardError {
        let (session, name) = (self.clone(), [hold.name.clone()]);
        let reading = self.spawn_for(async move { session.store.read(&name).await });
        let read: Result<(Documents, Exchange), StoreError> = reading
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)));
        let (documents, exchange) = match read {
            Ok(read) => read,
            Err(error) => return GuardError::Server(error.into_driver_error()),
        };
        let document = documents.get(&hold.name);
        self.compare(hold, document);
        if let Some(reason) = hold.lost_reason() {
            return reason.into();
        }
        let state = document.and_then(|document| document.as_ref().ok());
        let mut holders = state.iter().flat_map(|state| &state.holders);
        let holds = |until| exchange.now.is_some_and(|now| now < until);
        if !holders.any(|holder| hold.is(holder) && holds(holder.until)) {
            // The server's clock is further ahead than the skew margin allows for.
            hold.lose(LostReason::Expired);
            hold.tell_end();
            return hold.lost_reason().unwrap_or(LostReason::Expired).into();
        }
        // It is held, and the transaction does not see it yet. What the server says to the next command of a transaction
        // that it has ended is what the driver tells from other errors when it runs a transaction again.
        match store.guard(guarding, transaction).await {
            Err(error) => GuardError::Outdated(error),
            Ok(_) => GuardError::Server(Error::custom("a transaction that was aborted went on")),
        }
    }
}
