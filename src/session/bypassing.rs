//! Operations that bypass the lines, as nobody gets in line or leaves it by them: a leader proclaims a value, a writer
//! becomes a reader, and locks that are kept taken are cleared.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::{Session, admin::ONCE, hold::Hold, in_flight::patience};
use crate::{
    backoff::Backoff,
    error::ServerError,
    protocol::{Downgrade, Evict, Operation, Proclaim, State},
};

impl Session {
    /// Gives a holder another value; `false` when it no longer holds.
    pub(crate) async fn proclaim(self: &Arc<Self>, hold: &Hold, value: String) -> Result<bool, ServerError> {
        let number = hold.proclamation();
        let proclaim = Some(Proclaim {
            id: hold.id.clone(),
            value,
            number,
        });
        let operation = Operation {
            proclaim,
            ..self.operation()
        };
        let state = self.operate(&hold.name, operation, Some(hold.deadline())).await?;
        let holder = state
            .iter()
            .flat_map(|state| &state.holders)
            .find(|holder| hold.is(holder));
        // A later value may have arrived first, and then stays.
        Ok(holder.is_some_and(|holder| holder.owner.proclaimed >= number))
    }

    /// Makes a writer a reader, without letting go; `false` when it no longer holds. The hold counts as a reader's from
    /// the beginning, even if the operation fails.
    pub(crate) async fn downgrade(self: &Arc<Self>, hold: &Hold, permits: i64) -> Result<bool, ServerError> {
        let downgrade = Some(Downgrade {
            id: hold.id.clone(),
            token: hold.granted_as,
            permits,
        });
        let operation = Operation {
            downgrade,
            // The document has it as long as the hold is there.
            leave_capacity: Some(hold.used.1),
            keep: self.config.keep_millis_for(hold.lease.length),
            ..self.operation()
        };
        let state = self.operate(&hold.name, operation, Some(hold.deadline())).await?;
        let mut holders = state.iter().flat_map(|state| &state.holders);
        Ok(holders.any(|holder| hold.is(holder) && holder.permits <= permits))
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
            record: self.config.record(),
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
    ) -> Result<Option<State>, ServerError> {
        let (mut backoff, mut overdue) = (Backoff::default(), 0);
        loop {
            let within = match deadline {
                Some(_) => self.in_flight.limit(overdue, &self.config).within,
                None => ONCE,
            };
            let (store, name, operation) = (self.store.clone(), name.to_owned(), operation.clone());
            let running = async move { store.run(&name, &operation, within).await };
            let sent = Instant::now();
            match self.in_time(patience(within), running).await {
                Ok(answer) => {
                    self.in_flight.heard(sent);
                    return Ok(answer.state);
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
