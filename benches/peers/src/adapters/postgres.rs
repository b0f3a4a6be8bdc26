//! PostgreSQL's advisory locks through `tokio-postgres`: a session holds them, so each acquire has a connection.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_postgres::{NoTls, Statement};

use crate::client::{Client, Held, Result};

/// The number that an advisory lock has instead of a name.
const KEY: &str = "hashtextextended($1, 0)";

/// Ends the session that holds a lock: nobody else can take it away.
const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                   AND ((classid::bigint << 32) | objid::bigint) = hashtextextended($1, 0)";

struct Postgres {
    address: String,
    sessions: Arc<Mutex<Vec<Session>>>,
}

/// A connection of the pool, with its statements prepared.
struct Session {
    service: tokio_postgres::Client,
    lock: Statement,
    unlock: Statement,
    /// Closed when the connection has ended.
    alive: watch::Receiver<()>,
}

pub(crate) async fn connect(address: &str, _lease: Duration) -> Result<Arc<dyn Client>> {
    let first = Session::open(address).await?;
    Ok(Arc::new(Postgres {
        address: address.to_owned(),
        sessions: Arc::new(Mutex::new(vec![first])),
    }))
}

impl Session {
    async fn open(address: &str) -> Result<Self> {
        let (service, connection) = tokio_postgres::connect(address, NoTls).await?;
        let (living, alive) = watch::channel(());
        tokio::spawn(async move {
            let _living = living;
            // Its error is that of the statement that runs into it.
            let _ = connection.await;
        });
        Ok(Self {
            alive,
            lock: service.prepare(&format!("SELECT pg_advisory_lock({KEY})")).await?,
            unlock: service.prepare(&format!("SELECT pg_advisory_unlock({KEY})")).await?,
            service,
        })
    }
}

impl Client for Postgres {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (address, sessions, name) = (self.address.clone(), self.sessions.clone(), name.to_owned());
        Box::pin(async move {
            let pooled = sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let session = match pooled {
                Some(session) => session,
                None => Session::open(&address).await?,
            };
            session.service.query_one(&session.lock, &[&name]).await?;
            let mut alive = session.alive.clone();
            let held = Held::new(async move {
                session.service.query_one(&session.unlock, &[&name]).await?;
                sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session);
                Ok(())
            });
            // A session loses its locks with its connection, which the driver notices.
            Ok(held.with_signal(async move { while alive.changed().await.is_ok() {} }))
        })
    }

    fn take_away(&self, name: &str) -> Option<BoxFuture<'static, Result<()>>> {
        let (address, name) = (self.address.clone(), name.to_owned());
        Some(Box::pin(async move {
            let session = Session::open(&address).await?;
            let ended = session.service.query(END, &[&name]).await?;
            super::expect_one(u64::try_from(ended.len())?)
        }))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Box::pin(async {})
    }
}
