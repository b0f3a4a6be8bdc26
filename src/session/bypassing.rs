//! Operations that bypass the lines, as nobody gets in line or leaves it by them: a leader proclaims a value, a hold is
//! changed, and locks that are kept taken are cleared.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Session, admin::ONCE, hold::Hold, in_flight::patience};
use crate::{
    backoff::Backoff,
    config::millis,
    error::ServerError,
    hold_options::Lease,
    protocol::{Change, Entry, Evict, Operation},
    store::Answer,
    waitlist::deadline,
};

impl Session {
    /// Gives a holder another value; `false` when it no longer holds.
    pub(crate) async fn proclaim(self: &Arc<Self>, hold: &Hold, value: String) -> Result<bool, ServerError> {
        let number = hold.proclamation();
        let change = Change {
            value: Some((value, number)),
            ..Change::of(hold.id.clone(), hold.granted_as)
        };
        let changed = self.change_hold(hold, change).await?;
        // A later value may have arrived first, and then stays.
        Ok(changed.is_some_and(|(holder, _)| holder.owner.proclaimed >= number))
    }

    /// Leaves a hold so many permits, without letting go: a writer becomes a reader. `false` when it no longer holds. The
    /// hold counts as one of that many from the beginning, even if the operation fails.
    pub(crate) async fn downgrade(self: &Arc<Self>, hold: &Hold, permits: i64) -> Result<bool, ServerError> {
        let change = Change {
            permits,
            ..Change::of(hold.id.clone(), hold.granted_as)
        };
        let changed = self.change_hold(hold, change).await?;
        Ok(changed.is_some_and(|(holder, _)| holder.permits <= permits))
    }

    /// Gives a hold a longer lease from now on, and renews it for that; `false` when it no longer holds.
    ///
    /// Renewals that are on their way give no more than the lease of their sending, and without an answer the hold keeps
    /// the shorter one: the document may have the longer one then.
    pub(crate) async fn lengthen(self: &Arc<Self>, hold: &Arc<Hold>, lease: Lease) -> Result<bool, ServerError> {
        let change = Change {
            lease: millis(lease.length),
            ..Change::of(hold.id.clone(), hold.granted_as)
        };
        let change = || self.change_entry(&hold.name, change.clone(), lease.length, hold.deadline());
        // Before the first try, as that may be the one that was applied.
        let mut sent = Instant::now();
        let mut changed = change().await?;
        let mut backoff = Backoff::default();
        while changed.is_some() && self.table().clock.ran_ahead_since(sent) {
            // It gave the time by the clock of before.
            sleep(backoff.failed()).await;
            sent = Instant::now();
            changed = change().await?;
        }
        if changed.is_none() {
            return Ok(false);
        }
        hold.upkeep().lengthen(lease);
        self.acknowledged(hold, deadline::of_renewal(sent, lease.length, &self.config), sent);
        if let Some(line) = self.table().lines.by_name.get_mut(&hold.name) {
            line.waitlist.note_lease(&hold.id, lease.length);
        }
        self.reschedule(std::slice::from_ref(hold));
        Ok(true)
    }

    pub(super) async fn change_hold(
        self: &Arc<Self>,
        hold: &Hold,
        change: Change,
    ) -> Result<Option<(Entry, Answer)>, ServerError> {
        self.change_entry(&hold.name, change, hold.length(), hold.deadline())
            .await
    }

    /// Changes a holder, whose lease is afterwards no longer than this. Returns the holder after that, and the answer;
    /// `None` when it no longer holds.
    pub(super) async fn change_entry(
        self: &Arc<Self>,
        name: &str,
        change: Change,
        lease: Duration,
        deadline: Instant,
    ) -> Result<Option<(Entry, Answer)>, ServerError> {
        let (becomes, token) = (change.becomes.clone(), change.token);
        let operation = Operation {
            change: Some(change),
            keep: self.config.keep_millis_for(lease),
            ..self.operation()
        };
        let answer = self.operate(name, operation, Some(deadline)).await?;
        let mut holders = answer.state.iter().flat_map(|state| &state.holders);
        let holder = holders.find(|holder| holder.is_grant(&becomes, token)).cloned();
        Ok(holder.map(|holder| (holder, answer)))
    }

    /// Removes the entries of `name` that were released and are kept taken, up to the token `last`. Nobody holds these,
    /// and nobody is granted a token up to `last` any more, so the operation does no harm twice or late.
    pub(crate) async fn clear(self: &Arc<Self>, name: &str, last: i64) -> Result<(), ServerError> {
        let operation = Operation {
            evict: Evict::Kept(last),
            ..self.operation()
        };
        self.operate(name, operation, None).await.map(drop)
    }

    /// Returns an operation that changes nothing, to be filled in.
    pub(super) fn operation(&self) -> Operation {
        Operation {
            history: self.config.history,
            ..Operation::blank(self.ids.operation(), self.config.keep_millis())
        }
    }

    /// Runs an operation. With a deadline it is one that can be run twice: it is repeated until it gets through or the
    /// deadline passes. Without, it is sent once, and gets more time.
    pub(super) async fn operate(
        self: &Arc<Self>,
        name: &str,
        operation: Operation,
        deadline: Option<Instant>,
    ) -> Result<Answer, ServerError> {
        let (mut backoff, mut overdue) = (Backoff::default(), 0);
        loop {
            let within = match deadline {
                Some(_) => self.in_flight.limit(overdue, &self.config),
                None => ONCE,
            };
            let (store, name, operation) = (self.store.clone(), name.to_owned(), operation.clone());
            let running = async move { store.run(&name, &operation, within).await };
            let sent = Instant::now();
            match self.in_time(patience(within), running).await {
                Ok(answer) => {
                    self.in_flight.heard(sent);
                    return Ok(answer);
                }
                Err(error) if error.is_final() || deadline.is_none_or(|deadline| Instant::now() > deadline) => {
                    return Err(error);
                }
                // A server that takes longer to answer than it may try says nothing within our patience.
                Err(error) => overdue += u32::from(error.ran_out_of_time() || error.is_unanswered()),
            }
            sleep(backoff.failed()).await;
        }
    }
}
