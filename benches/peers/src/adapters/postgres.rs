//! PostgreSQL's advisory locks through `tokio-postgres`: a session holds them, so each acquire has a connection.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio_postgres::{NoTls, Statement};

use crate::client::{Client, Held, Result};

/// The number that an advisory lock has instead of a name.
const KEY: &str = "hashtextextended($1, 0)";

struct Postgres {
    address: String,
    sessions: Arc<Mutex<Vec<Session>>>,
}

/// A connection of the pool, with its statements prepared.
struct Session {
    service: tokio_postgres::Client,
    lock: Statement,
    unlock: Statement,
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
        tokio::spawn(connection);
        Ok(Self {
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
            Ok(Held::new(async move {
                session.service.query_one(&session.unlock, &[&name]).await?;
                sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session);
                Ok(())
            }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Box::pin(async {})
    }
}
