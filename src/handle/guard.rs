//! Transactions that can only be committed while a lock is held.

use mongodb::ClientSession;

use crate::{
    error::GuardError,
    handle::{View, target::IsOne},
    status::LostReason,
    store::{abort, is_in_transaction},
};

impl<T: IsOne> View<T> {
    /// Makes the lock a condition of the transaction in progress in `session`: it can be committed only if the lock is
    /// held at that moment.
    ///
    /// The session must belong to the driver's client that the lock client was built with. The locks may be in a
    /// different database from the data.
    ///
    /// # Guarantees
    ///
    /// - A guarded transaction that is committed was committed while the lock was held under this very token. The guard
    ///   writes to the lock's document within the transaction (a renewal), and the server lets nobody else write to
    ///   that document until the transaction ends. So even if the lease expires by the server's clock between the guard
    ///   and the commit, the next holder comes after the commit. And if somebody had written to the document since the
    ///   transaction began to read, the server refuses the guard.
    /// - After an error the transaction can't be committed, even if the error is ignored: it is ended on the server.
    ///   (Except if the server could not be reached and never saw the guard.)
    /// - The guard notifies nobody, and does not count as a renewal for [`safe_for`](View::safe_for).
    ///
    /// # When to call it
    ///
    /// First, if the transaction deletes the locked document or replaces it as a whole: afterwards there is no lock
    /// left to guard, which is [`GuardError::Removed`]. Otherwise last, right before the commit: from the guard to the
    /// end of the transaction, all other users of the lock's document have to wait, and so do its renewals. A
    /// transaction that stays open for longer than the lease costs the lock, and if others have permits of the same
    /// semaphore, theirs too. Never await a release before the commit.
    ///
    /// A renewal in the background or a client that queues up between the transaction's first operation and the guard
    /// is a conflict: the error has the label `TransientTransactionError` and the transaction should be run again,
    /// which the driver's `and_run` and `and_run2` do by themselves. If that happens too often, guard first instead.
    ///
    /// # Errors
    ///
    /// A [`GuardError`]. Within the driver's `and_run`, `?` converts it into the driver's own error: a retryable one is
    /// retried, and [`get_custom`](mongodb::error::Error::get_custom) finds the others.
    ///
    /// # Cancel safety
    ///
    /// As with any operation of a transaction: if the future is dropped, abort the transaction. Don't drop a guard that
    /// comes first: the driver takes the transaction for one that has not begun (`mongodb` 3.9), so it stays open on
    /// the server, and the lock's document with it, until the session begins another or the server ends it, after a
    /// minute by default.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: mongodb::Client, locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
    /// use mongodb::bson::{Document, doc};
    /// use watchlock::errors::GuardError;
    ///
    /// let accounts = client.database("app").collection::<Document>("accounts");
    /// let handle = locks.mutex("transfers").acquire().await?;
    /// let mut session = client.start_session().await?;
    /// let transferred = session
    ///     .start_transaction()
    ///     .and_run2(async |session| {
    ///         let from = accounts.update_one(doc! { "_id": "a" }, doc! { "$inc": { "balance": -10 } });
    ///         from.session(&mut *session).await?;
    ///         let to = accounts.update_one(doc! { "_id": "b" }, doc! { "$inc": { "balance": 10 } });
    ///         to.session(&mut *session).await?;
    ///         Ok(handle.guard_transaction(session).await?)
    ///     })
    ///     .await;
    /// match transferred {
    ///     Ok(()) => println!("committed, and the lock was held"),
    ///     Err(error) => match error.get_custom::<GuardError>() {
    ///         Some(refused) => println!("nothing was written: {refused}"),
    ///         None => return Err(error.into()),
    ///     },
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn guard_transaction(&self, session: &mut ClientSession) -> Result<(), GuardError> {
        let hold = &self.seen.hold;
        match self.seen.session.upgrade() {
            Some(locks) => locks.guard(hold, session).await,
            None if !is_in_transaction(session).await => Err(GuardError::NotInTransaction),
            // No client is left that could hold it.
            None => {
                abort(session).await;
                let reason = hold.lost_reason().unwrap_or(LostReason::Released);
                Err(hold.lost_as(reason).into())
            }
        }
    }
}
