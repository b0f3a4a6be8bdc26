//! The look at the server by which a client is built, for one that is built without it: before its first command.

use std::sync::{Arc, Mutex, PoisonError};

use mongodb::{Database, options::ReadPreference};
use tokio::{
    runtime::Handle,
    sync::OnceCell,
    time::{Instant, timeout},
};

use super::{MongoStore, READ_WITHIN};
use crate::{backoff::Backoff, error::ServerError, store::detached::detached};

/// Whether the server was looked at, and found to keep locks.
#[derive(Debug)]
pub(super) struct FirstLook {
    done: OnceCell<()>,
    requires_stream: bool,
    /// The error of the last look, and until when it stands for the next: longer after each that fails.
    failed: Mutex<(Option<(ServerError, Instant)>, Backoff)>,
}

impl FirstLook {
    /// Returns that of a store whose server has been looked at.
    pub(super) fn taken() -> Self {
        Self {
            done: OnceCell::new_with(Some(())),
            ..Self::due(false)
        }
    }

    /// Returns that of a store whose server has not; it may be required to have change streams.
    fn due(requires_stream: bool) -> Self {
        Self {
            done: OnceCell::new(),
            requires_stream,
            failed: Mutex::default(),
        }
    }
}

impl MongoStore {
    /// Creates a store whose server is looked at before the first command.
    pub(crate) fn unseen(
        database: &Database,
        collection: &str,
        streams: ReadPreference,
        requires_stream: bool,
    ) -> Self {
        Self {
            first_look: FirstLook::due(requires_stream),
            ..Self::new(database.collection(collection), Arc::default(), streams)
        }
    }

    /// Looks at the server, unless that was done; of several that ask, one looks and the others wait for it. After a
    /// failure its error stands for a growing time.
    pub(in crate::store) async fn look(&self) -> Result<(), ServerError> {
        let done = &self.first_look.done;
        done.get_or_try_init(|| self.look_anew()).await.copied()
    }

    async fn look_anew(&self) -> Result<(), ServerError> {
        let look = &self.first_look;
        let failed = || look.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some((error, until)), _) = &*failed()
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let namespace = self.collection.namespace();
        let (database, streams) = (self.database.clone(), self.streams.clone());
        let looking = async move { Self::connect(&database, &namespace.coll, streams).await };
        // No command of the driver is abandoned half-way. A connection that died costs the commands behind it that time.
        let looked = timeout(READ_WITHIN, detached(&Handle::current(), looking)).await;
        let looked = looked.unwrap_or_else(|_| Ok(Err(ServerError::unanswered(READ_WITHIN))));
        let problem = match looked.and_then(|connected| connected) {
            Ok(mut connected) => connected.problem(look.requires_stream).map(ServerError::not_built),
            Err(error) => Some(error),
        };
        let Some(error) = problem else { return Ok(()) };
        let (last, backoff) = &mut *failed();
        *last = Some((error.clone(), Instant::now() + backoff.failed()));
        Err(error)
    }
}
