//! The look at the server by which a client is built; one that is built without it looks before its first command.

use std::sync::{Arc, PoisonError};

use mongodb::{Database, bson::doc};
use tokio::{
    runtime::Handle,
    sync::OnceCell,
    time::{Instant, timeout},
};

use super::{MongoStore, READ_WITHIN};
use crate::{
    config::Config,
    error::{BuildError, ServerError, own::Own},
    machine::exchanged,
    protocol::{Exchange, ServerTime},
    store::detached::detached,
    wake_mode::WakeSource,
};

/// What the server told when it was looked at.
pub(crate) struct Seen {
    /// Whether the server is neither a member of a replica set nor a router.
    pub(crate) standalone: bool,
    /// With the last write in the log of the primary.
    pub(crate) exchange: Exchange,
    /// Why no client can be built over the server.
    pub(crate) problem: Option<BuildError>,
}

impl MongoStore {
    /// Creates a store whose server is looked at before the first command.
    pub(crate) fn unseen(database: &Database, collection: &str, config: &Config) -> Arc<Self> {
        let streams = config.stream_read_preference.clone();
        Arc::new(Self {
            looked: OnceCell::new(),
            requires_stream: config.wake_source == WakeSource::ChangeStream,
            ..Self::new(&database.collection(collection), Arc::default(), streams)
        })
    }

    /// Asks the server for its kind and its clock, and for what kind of collection it has under the name.
    pub(crate) async fn see(&self) -> Result<Seen, ServerError> {
        let sent = Instant::now();
        // Asked of the primary, which also answers for the collection's writes, so that an unreachable primary is
        // noticed here.
        let hello = self.ask_primary(doc! { "hello": 1 }).await?;
        let mut exchange = exchanged(sent, ServerTime::in_field(&hello, "localTime"));
        let is_router = hello.get_str("msg").is_ok_and(|message| message == "isdbgrid");
        let standalone = !is_router && !hello.contains_key("setName");
        let last = hello
            .get_document("lastWrite")
            .and_then(|last| last.get_document("opTime"));
        exchange.logged_by = last.and_then(|time| time.get_timestamp("ts")).ok();
        let problem = match self.unsuitable(is_router).await? {
            Some(problem) => Some(BuildError::Unsuitable {
                namespace: self.collection.namespace().to_string(),
                problem,
            }),
            None => (standalone && self.requires_stream).then_some(BuildError::NoChangeStream),
        };
        if problem.is_none() {
            // It may be done already, or be under way by this.
            let _ = self.looked.set(());
        }
        Ok(Seen {
            standalone,
            exchange,
            problem,
        })
    }

    /// Looks at the server, unless that was done; of several that ask, one looks and the others wait for it. After a
    /// failure its error stands for a growing time.
    pub(in crate::store) async fn look(self: &Arc<Self>) -> Result<(), ServerError> {
        self.looked.get_or_try_init(|| self.look_anew()).await.copied()
    }

    async fn look_anew(self: &Arc<Self>) -> Result<(), ServerError> {
        let failed = || self.look_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some((error, until)), _) = &*failed()
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let store = self.clone();
        let looking = async move { store.see().await };
        // No command of the driver is abandoned half-way. A connection that died costs the commands behind it that time.
        let looked = timeout(READ_WITHIN, detached(&Handle::current(), looking)).await;
        let looked = looked.unwrap_or_else(|_| Ok(Err(ServerError::unanswered(READ_WITHIN))));
        let problem = match looked.and_then(|seen| seen) {
            Ok(seen) => seen.problem.map(|problem| Own::NotBuilt(problem).into()),
            Err(error) => Some(error),
        };
        let Some(error) = problem else { return Ok(()) };
        let (last, backoff) = &mut *failed();
        *last = Some((error.clone(), Instant::now() + backoff.failed()));
        Err(error)
    }
}
