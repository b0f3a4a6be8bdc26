//! Holds that guard a transaction of the user's.

use std::{sync::Arc, time::Duration};

use mongodb::{
    ClientSession,
    error::{Error, TRANSIENT_TRANSACTION_ERROR},
};
use tokio::time::{Instant, timeout};

use super::{Session, admin::ONCE, hold::Hold, in_flight::patience};
use crate::{
    error::{GuardError, ServerError, failure::is_unconfirmed},
    store::{Guarding, MongoStore, Store, View, abort, is_in_transaction},
    telemetry,
};

/// Time for which a document can't be written before that counts as an open transaction's doing: far longer than the
/// primary takes for a write, or for the renewal that may be in its way.
const IN_ITS_WAY: Duration = Duration::from_secs(2);

impl Session {
    /// Writes the lock's document within the transaction, if the lock is held. Otherwise ends the transaction on the
    /// server, so that it can't be committed, even if the caller ignores the error.
    pub(crate) async fn guard(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        transaction: &mut ClientSession,
    ) -> Result<(), GuardError> {
        // A writer holds by two entries, and is lost with its reader's.
        if let Some(reader) = hold.upgraded() {
            self.guard_entry(&reader, transaction)
                .await
                .map_err(|error| match error {
                    GuardError::Lost(lost) => hold.lost_as(lost.reason).into(),
                    error => error,
                })?;
        }
        self.guard_entry(hold, transaction).await
    }

    async fn guard_entry(
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
            return Err(hold.lost_as(reason).into());
        }
        if !hold.is_written() {
            // A transaction that began to read before the hold was handed on must not see the lock held since.
            if let Err(error) = self.write_under(hold, store, hold.safe_for()).await {
                abort(transaction).await;
                return Err(GuardError::Server(error));
            }
        }
        // A transaction that reads first and is guarded last fails if the lock's document was written in between, as
        // above for a hold that was handed on. So holds of this name go through the server while somebody guards.
        self.update(&hold.name, None, |lines, _| {
            if let Some(line) = lines.by_name.get_mut(&hold.name) {
                line.waitlist.note_guarded();
            }
        });
        // From here until the transaction ends, the server makes every renewal of this document wait.
        hold.upkeep().guarded_at = Some(Instant::now());
        self.reschedule(std::slice::from_ref(hold));
        let guarding = self.guarding(hold);
        // Here and not in a task of its own: the driver's session is the caller's, and a command in it can't outlive
        // the call.
        let held = match store.guard(&guarding, transaction).await {
            Ok(held) => held,
            Err(error) if MongoStore::has_no_transactions(&error) => return Err(GuardError::Standalone),
            Err(error) => {
                telemetry::operation_failed("guard", Some(&hold.name), &error.clone().into());
                // A transient error has ended the transaction on the server already; a command that was never sent has
                // not.
                if !error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
                    abort(transaction).await;
                }
                return Err(GuardError::Server(error.into()));
            }
        };
        // A renewal that was answered meanwhile was done before the guard.
        hold.upkeep().guarded_at = Some(Instant::now());
        self.reschedule(std::slice::from_ref(hold));
        match (held, hold.lost_reason()) {
            (true, None) => Ok(()),
            (_, Some(reason)) => {
                abort(transaction).await;
                Err(hold.lost_as(reason).into())
            }
            (false, None) => {
                let refused = self.why_not(hold, store, &guarding, transaction).await;
                abort(transaction).await;
                match refused {
                    Some(refused) => Err(refused),
                    None => Err(outdated(store, &guarding, transaction).await),
                }
            }
        }
    }

    /// Returns a guard of this hold, as an operation of its own.
    fn guarding<'a>(&self, hold: &'a Hold) -> Guarding<'a> {
        Guarding {
            operation: self.ids.operation(),
            name: &hold.name,
            holder: (&hold.id, hold.granted_as),
            keep: self.config.keep_millis_for(hold.length()),
        }
    }

    /// Writes the document of a hold that was handed on: the server then refuses the guard of a transaction that is
    /// older than the hold. A renewal would not do: it writes nothing where the lease is as long already, by the clock
    /// of an earlier primary.
    async fn write_under(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        store: &Arc<MongoStore>,
        within: Duration,
    ) -> Result<(), ServerError> {
        // With the wait for its answer it takes no longer than the hold is safe.
        let within = within.min(hold.safe_for() * 4 / 5);
        let (session, held, store) = (self.clone(), hold.clone(), store.clone());
        let writing = async move { store.write_under(&session.guarding(&held), within).await };
        // Where it is not held any more, the guard finds out why.
        if self.in_time(patience(within), writing).await? {
            hold.note_written();
        }
        Ok(())
    }

    /// Whether a transaction that the hold guards may still be open, so that a write of the document from outside of
    /// it would wait for its end, and be done then. A write that changes nothing of the user's shows that: the server
    /// has it wait too, and gives it up.
    pub(crate) async fn is_in_open_transaction(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<bool, ServerError> {
        let Store::Mongo(store) = &self.store else {
            return Ok(false);
        };
        if hold.upkeep().guarded_at.is_none() {
            return Ok(false);
        }
        // Few at once: each can occupy a connection, and the transaction needs one to end.
        let Ok(_turn) = timeout(hold.safe_for(), self.in_flight.questions.acquire()).await else {
            return Ok(true);
        };
        let sent = Instant::now();
        match self.write_under(hold, store, IN_ITS_WAY).await {
            // It was done, and only the majority is missing.
            Err(error) if error.driver().is_some_and(is_unconfirmed) => {}
            Err(error) if error.ran_out_of_time() => return Ok(true),
            asked => asked?,
        }
        hold.upkeep().no_transaction_before(sent);
        Ok(false)
    }

    /// Returns why the transaction did not find the lock held; `None` if it is older than the lock.
    async fn why_not(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        store: &Arc<MongoStore>,
        guarding: &Guarding<'_>,
        transaction: &mut ClientSession,
    ) -> Option<GuardError> {
        let (documents, exchange) = match self.read_names(View::Newest, std::slice::from_ref(&hold.name)).await {
            Ok(read) => read,
            Err(error) => return Some(GuardError::Server(error)),
        };
        let document = documents.get(&hold.name);
        self.compare(hold, document, exchange.sent);
        if let Some(reason) = hold.lost_reason() {
            return Some(hold.lost_as(reason).into());
        }
        let state = document.and_then(|document| document.as_ref().ok());
        let mut holders = state.iter().flat_map(|state| &state.holders);
        let holds = |until| exchange.now.is_some_and(|now| now < until);
        if !holders.any(|holder| hold.is(holder) && holds(holder.until)) {
            // The server's clock is further ahead than the skew margin allows for.
            return Some(self.give_up(hold).await.into());
        }
        // It is held, and the transaction does not see it: not yet, or no longer.
        let (reader, name) = (store.clone(), hold.name.clone());
        let reading = self.in_time(
            ONCE,
            async move { reader.whole(&name).await.map_err(ServerError::from) },
        );
        let whole = match reading.await {
            Ok(whole) => whole?,
            Err(error) => return Some(GuardError::Server(error)),
        };
        match store.was_removed(guarding, whole, transaction).await {
            Ok(false) => None,
            Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => Some(GuardError::Outdated(error.into())),
            // Something else keeps it from being put back: a write of the transaction itself.
            Ok(true) | Err(_) => Some(GuardError::Removed),
        }
    }
}

/// Returns the error of a transaction that is older than the lock, and has ended: the server's error to the next
/// command of an ended transaction is the one by which the driver knows that it should run the transaction again.
async fn outdated(store: &MongoStore, guarding: &Guarding<'_>, transaction: &mut ClientSession) -> GuardError {
    match store.guard(guarding, transaction).await {
        Err(error) => GuardError::Outdated(error.into()),
        Ok(_) => GuardError::Server(Error::custom("a transaction that was aborted went on").into()),
    }
}
