//! Commands that bypass the lines: an operator reads a lock and breaks it, and a leader proclaims a value.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Session, asking::patience, hold::Hold};
use crate::{
    backoff::Backoff,
    error::ServerError,
    protocol::{Downgrade, Evict, Exchange, Expects, Holder, Operation, Proclaim, QUEUE_MOST, State},
    store::{Renewal, Statements, StoreError},
    telemetry,
};

/// Maximum time that the server may take for a command of an operator. It is not repeated, so it gets time.
pub(super) const BREAK: Duration = Duration::from_secs(5);

/// Time after an answer for which the connection is expected to answer again.
pub(super) const ANSWERS_STILL: Duration = Duration::from_secs(1);

/// Maximum time that the server may take for a proclamation before it is made anew. Long enough that the next is sent
/// when the last is over.
pub(super) const PROCLAIM: Duration = Duration::from_secs(2);

impl Session {
    /// Reads the document of `name`, and the server's clock at that moment.
    pub(crate) async fn inspect(self: &Arc<Self>, name: &str) -> Result<Option<(State, Exchange)>, ServerError> {
        let read = self.read_names(&[name.to_owned()]).await;
        let (mut documents, exchange) = read.map_err(ServerError::from)?;
        match documents.remove(name) {
            None => Ok(None),
            Some(Ok(state)) => Ok(Some((state, exchange))),
            Some(Err(malformed)) => Err(StoreError::from(malformed).into()),
        }
    }

    /// Does the same with the state that a majority has: no fail-over undoes it, and it can be a little older.
    pub(crate) async fn observe(self: &Arc<Self>, name: &str) -> Result<Option<(State, Exchange)>, ServerError> {
        let reading = self.read_short(|store| {
            let names = [name.to_owned()];
            async move { store.observe(&names).await }
        });
        let (mut documents, exchange) = reading.await.map_err(ServerError::from)?;
        let found = documents.remove(name).transpose().map_err(StoreError::from)?;
        Ok(found.map(|state| (state, exchange)))
    }

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
        let state = self
            .operate(&hold.name, operation, PROCLAIM, Some(hold.deadline()))
            .await?;
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
        let state = self
            .operate(&hold.name, operation, PROCLAIM, Some(hold.deadline()))
            .await?;
        let mut holders = state.iter().flat_map(|state| &state.holders);
        Ok(holders.any(|holder| hold.is(holder) && holder.permits <= permits))
    }

    pub(super) fn operation(&self) -> Operation {
        Operation {
            id: self.ids.operation(),
            leave: Vec::new(),
            kept: Vec::new(),
            leave_capacity: None,
            evict: Evict::Nobody,
            proclaim: None,
            downgrade: None,
            requests: None,
            expects: Expects::Nothing,
            room: QUEUE_MOST,
            keep: self.config.keep_millis(),
            record: self.config.record(),
        }
    }

    /// Evicts holders of `name`. Not repeated when its outcome is unknown: that could evict their successors.
    pub(crate) async fn evict(self: &Arc<Self>, name: &str, evict: Evict) -> Result<Option<State>, ServerError> {
        let operation = Operation {
            evict,
            ..self.operation()
        };
        // As it is not repeated, it must not meet a dead connection: a reading finds one that works. The driver reuses
        // its last connection first, so no reading is needed where that one has answered just now.
        let sent = Instant::now();
        if !self.asking.is_idle() || !self.asking.was_answered_within(ANSWERS_STILL, sent) {
            self.read_names(&[name.to_owned()]).await?;
        }
        let state = self.operate(name, operation, BREAK, None).await?;
        self.asking.note_heard(sent);
        telemetry::broke(name, self.config.metered.label(name).as_ref());
        Ok(state)
    }

    /// Renews the holder with this token for its whole lease, no matter which process took the lock. Returns the state
    /// of the lock afterwards; `None`: nobody holds it under this token, and nothing was changed.
    ///
    /// The renewal goes by the entry. Only where the hold ends between the two commands, and a late request puts the
    /// same entry in again, does it renew another grant: of the same session, which does not know of it and takes it
    /// out.
    pub(crate) async fn renew_holder(self: &Arc<Self>, name: &str, token: i64) -> Result<Option<State>, ServerError> {
        let Some(holder) = self.held_under(name, token).await?.map(|(_, holder)| holder) else {
            return Ok(None);
        };
        let renewal = Renewal {
            operation: self.ids.operation(),
            entries: BTreeMap::from([(name.to_owned(), vec![holder.id])]),
            idle: None,
            keep: self
                .config
                .keep_millis_for(Duration::from_millis(holder.lease.unsigned_abs())),
            within: PROCLAIM,
            statements: Statements::Shared,
        };
        let store = self.store.clone();
        let renewing = async move { store.renew(&renewal).await };
        let renewed = self.in_time(patience(PROCLAIM), renewing).await?;
        if let Some(error) = renewed.refused.into_values().next() {
            return Err(error.into());
        }
        Ok(self.held_under(name, token).await?.map(|(state, _)| state))
    }

    /// Reads the lock, and its holder with this token, if there is one that has not released it.
    async fn held_under(self: &Arc<Self>, name: &str, token: i64) -> Result<Option<(State, Holder)>, ServerError> {
        let Some((state, exchange)) = self.inspect(name).await? else {
            return Ok(None);
        };
        let is_live = |holder: &&Holder| exchange.now.is_none_or(|now| holder.until > now) && !holder.is_kept();
        let mut holders = state.holders.iter().filter(is_live);
        let holder = holders.find(|holder| holder.token == token).cloned();
        Ok(holder.map(|holder| (state, holder)))
    }

    /// Removes the entries of `name` that were released and are kept taken, up to the token `last`. Nobody holds these,
    /// and nobody is granted a token up to `last` any more, so the operation does no harm twice or late.
    pub(crate) async fn clear(self: &Arc<Self>, name: &str, last: i64) -> Result<(), ServerError> {
        let operation = Operation {
            evict: Evict::Kept(last),
            ..self.operation()
        };
        self.operate(name, operation, PROCLAIM, None).await.map(drop)
    }

    /// Runs an operation, with the time `within` at the server for each try. With a deadline it is one that can be run
    /// twice: it is repeated until it gets through or the deadline passes.
    pub(super) async fn operate(
        self: &Arc<Self>,
        name: &str,
        operation: Operation,
        within: Duration,
        deadline: Option<Instant>,
    ) -> Result<Option<State>, ServerError> {
        let mut backoff = Backoff::default();
        loop {
            let (store, name, operation) = (self.store.clone(), name.to_owned(), operation.clone());
            let running = async move { store.run(&name, &operation, within).await };
            match self.in_time(patience(within), running).await {
                Ok(answer) => return Ok(answer.state),
                Err(error) if error.is_final() || deadline.is_none_or(|deadline| Instant::now() > deadline) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
            sleep(backoff.failed()).await;
        }
    }
}
