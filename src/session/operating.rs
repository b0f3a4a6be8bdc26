//! Commands beside the lines: operators look at a lock and break it, and leaders proclaim.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Session, hold::Hold};
use crate::{
    error::ServerError,
    protocol::{Evict, Expects, Operation, Proclaim, QUEUE_MOST, State},
    store::{Exchange, StoreError},
    telemetry,
    waitlist::timing::BACKOFF,
};

impl Session {
    /// Reads the document of `name`; with it, the server's clock at that moment.
    pub(crate) async fn inspect(self: &Arc<Self>, name: &str) -> Result<Option<(State, Exchange)>, ServerError> {
        let read = self.read_names(&[name.to_owned()]).await;
        let (mut documents, exchange) = read.map_err(ServerError::from)?;
        match documents.remove(name) {
            None => Ok(None),
            Some(Ok(state)) => Ok(Some((state, exchange))),
            Some(Err(malformed)) => Err(StoreError::from(malformed).into()),
        }
    }

    /// Gives a holder another value; `false` when it holds no more.
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
        // A later value may have got there first, and then stays.
        Ok(holder.is_some_and(|holder| holder.owner.proclaimed >= number))
    }

    pub(super) fn operation(&self) -> Operation {
        Operation {
            id: self.ids.operation(),
            leave: Vec::new(),
            leave_capacity: None,
            evict: Evict::Nobody,
            proclaim: None,
            requests: None,
            expects: Expects::Nothing,
            room: QUEUE_MOST,
            keep: self.config.keep_millis(),
        }
    }
}
/// For how long an operator's eviction may take at the server. It is not repeated, so it is given time.
pub(super) const BREAK: Duration = Duration::from_secs(5);

/// A connection that has answered is taken to answer for so long after.
pub(super) const ANSWERS_STILL: Duration = Duration::from_secs(1);

/// For how long a proclamation may take at the server before it is made anew. So long that the next is sent when the
/// last is over.
pub(super) const PROCLAIM: Duration = Duration::from_secs(2);

impl Session {
    /// Puts holders of `name` out. Not repeated when its outcome is unknown: it could be those who came after.
    pub(crate) async fn evict(self: &Arc<Self>, name: &str, evict: Evict) -> Result<Option<State>, ServerError> {
        let operation = Operation {
            evict,
            ..self.operation()
        };
        // As it is not repeated, it had better not meet with a dead connection: a reading finds one that works. The driver
        // uses first the connection that it used last, so where one was answered just now there is no need.
        let sent = Instant::now();
        if !self.asking.is_idle() || !self.asking.was_answered_within(ANSWERS_STILL, sent) {
            self.read_names(&[name.to_owned()]).await?;
        }
        let state = self.operate(name, operation, BREAK, None).await?;
        self.asking.heard(sent);
        telemetry::broke(name);
        Ok(state)
    }

    /// Runs an operation; one that can be run twice again and again until it gets through, up to a deadline. The server
    /// may try each time for as long as said.
    pub(super) async fn operate(
        self: &Arc<Self>,
        name: &str,
        operation: Operation,
        within: Duration,
        deadline: Option<Instant>,
    ) -> Result<Option<State>, ServerError> {
        let mut pause = BACKOFF.0;
        loop {
            let (store, name, operation) = (self.store.clone(), name.to_owned(), operation.clone());
            let running = async move { store.run(&name, &operation, within).await };
            match self.in_time(within + within / 4, running).await {
                Ok(answer) => return Ok(answer.state),
                Err(error) if error.is_final() || deadline.is_none_or(|deadline| Instant::now() > deadline) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }
}
