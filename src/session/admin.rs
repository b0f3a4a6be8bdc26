//! What an operator does with a lock, whoever has it: reads it, and breaks it.

use std::{sync::Arc, time::Duration};

use super::{Session, hedged_read::Cost};
use crate::{
    config::millis,
    error::{KindMismatch, OperateError, ServerError},
    input::DURATION_MOST,
    inspect::LockInfo,
    protocol::{CapacityIs, Evict, Exchange, Kind, Operation, Requests, State, wake},
    store::{Failure, Listed, Selection, Store, View},
    telemetry,
    waitlist::answers::RACES,
};

/// Maximum time that the server may take for a command that is not repeated: it gets more than one that is.
pub(super) const ONCE: Duration = Duration::from_secs(5);

impl Session {
    /// Reads the document of `name`, and the server's clock at that moment.
    pub(crate) async fn inspect(self: &Arc<Self>, name: &str) -> Result<Option<(State, Exchange)>, ServerError> {
        self.inspect_in(View::Newest, name).await
    }

    /// Does so in this view.
    pub(crate) async fn inspect_in(
        self: &Arc<Self>,
        view: View,
        name: &str,
    ) -> Result<Option<(State, Exchange)>, ServerError> {
        let (mut documents, exchange) = self.read_names(view, &[name.to_owned()]).await?;
        let found = documents.remove(name).transpose().map_err(ServerError::from)?;
        Ok(found.map(|state| (state, exchange)))
    }

    /// Evicts all holders of `name`, and returns the lock afterwards, also where nobody held it.
    pub(crate) async fn break_lock(self: &Arc<Self>, name: &str) -> Result<Option<LockInfo>, ServerError> {
        if let Some(state) = self.evict(name, Evict::Everybody).await? {
            return Ok(Some(LockInfo::after_write(name, &state)));
        }
        let read = self.inspect(name).await?;
        Ok(read.map(|read| LockInfo::of_reading(name, &read)))
    }

    /// Evicts the holder with this token, and returns the lock afterwards; `None` if nobody holds it under the token.
    pub(crate) async fn break_holder(
        self: &Arc<Self>,
        name: &str,
        token: i64,
    ) -> Result<Option<LockInfo>, ServerError> {
        let state = self.evict(name, Evict::Holder(token)).await?;
        Ok(state.map(|state| LockInfo::after_write(name, &state)))
    }

    /// Evicts holders of `name`. Not repeated when its outcome is unknown: that could evict their successors. `None`: there
    /// was nobody to evict whose time was not over, and nothing was changed.
    async fn evict(self: &Arc<Self>, name: &str, evict: Evict) -> Result<Option<State>, ServerError> {
        // As it is not repeated, it must not meet a dead connection.
        self.find_connection().await?;
        let operation = Operation {
            evict,
            ..self.operation()
        };
        let id = operation.id.clone();
        let state = self.operate(name, operation, None).await?.state;
        let broken = state.filter(|state| wake::left(&state.wake, &id).is_some());
        if broken.is_some() {
            telemetry::broke(name, self.config.label(name).as_ref());
        }
        Ok(broken)
    }

    /// Sets the number of permits of the semaphore `name`, which may be in use, and returns the lock afterwards. Not
    /// repeated when its outcome is unknown: that could undo a later one.
    pub(crate) async fn set_permits(self: &Arc<Self>, name: &str, permits: i64) -> Result<LockInfo, OperateError> {
        self.find_connection().await?;
        self.prepare().await;
        let requests = Requests {
            kind: Kind::Semaphore,
            capacity: permits,
            by: CapacityIs::Set,
            entries: Vec::new(),
            adopts: None,
        };
        let operation = Operation {
            requests: Some(requests),
            // The number stays while nobody uses the lock: for longer than any two deployments are apart.
            keep: millis(DURATION_MOST),
            ..self.operation()
        };
        let mut races = 0;
        let state = loop {
            match self.operate(name, operation.clone(), None).await {
                // Another client made the document first, and nothing was written.
                Err(error) if error.kind == Failure::Raced && races < RACES => races += 1,
                answer => break answer?.state,
            }
        };
        match state {
            Some(state) if wake::left(&state.wake, &operation.id).is_some() => {
                telemetry::set_permits(name, permits);
                Ok(LockInfo::after_write(name, &state))
            }
            Some(state) => Err(KindMismatch::new(name, &state, (Kind::Semaphore, permits), 0).into()),
            // The operation makes the document where there is none.
            None => Err(ServerError::overdue().into()),
        }
    }

    /// Lists what is selected.
    pub(crate) async fn list(self: &Arc<Self>, selection: &Selection, view: View) -> Result<Listed, ServerError> {
        let list = move |store: Store, selection: Selection| async move { store.list(&selection, view).await };
        self.read(Cost::Unknown, selection.clone(), list).await
    }
}
