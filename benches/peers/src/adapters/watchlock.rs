//! The library of this repository: by change stream, by polling, and in memory.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use mongodb::bson::{Document, doc};
use watchlock::{LockClient, operate::WakeSource, testing::InMemory};

use crate::client::{Client, Held, Result};

struct Watchlock {
    driver: Option<mongodb::Client>,
    locks: LockClient,
}

/// Database of the locks.
const DATABASE: &str = "watchlock";

/// Collection of the locks.
const LOCKS: &str = "locks";

pub(crate) async fn connect(uri: &str, lease: Duration, source: WakeSource) -> Result<Arc<dyn Client>> {
    let driver = mongodb::Client::with_uri_str(uri).await?;
    let builder = LockClient::builder(driver.database(DATABASE)).collection(LOCKS);
    let locks = builder.lease(lease).wake_source(source).build().await?;
    Ok(Arc::new(Watchlock {
        driver: Some(driver),
        locks,
    }))
}

/// All clients in memory share one memory.
pub(crate) async fn in_memory(lease: Duration) -> Result<Arc<dyn Client>> {
    static MEMORY: OnceLock<InMemory> = OnceLock::new();
    let memory = MEMORY.get_or_init(InMemory::new);
    let locks = memory.builder().lease(lease).build().await?;
    Ok(Arc::new(Watchlock { driver: None, locks }))
}

impl Client for Watchlock {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let mutex = self.locks.mutex(name);
        Box::pin(async move {
            let handle = mutex.acquire().await?;
            let lost = handle.lost_token().cancelled_owned();
            let held = Held::new(async move {
                handle.release().await?;
                Ok(())
            });
            Ok(held.with_signal(lost))
        })
    }

    fn take_away(&self, name: &str) -> Option<BoxFuture<'static, Result<()>>> {
        let driver = self.driver.clone()?;
        let name = name.to_owned();
        Some(Box::pin(async move {
            let locks = driver.database(DATABASE).collection::<Document>(LOCKS);
            let deleted = locks.delete_one(doc! { "_id": name }).await?.deleted_count;
            super::expect_one(deleted)
        }))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let (locks, driver) = (self.locks.clone(), self.driver.clone());
        Box::pin(async move {
            locks.shutdown().await;
            if let Some(driver) = driver {
                driver.shutdown().immediate(true).await;
            }
        })
    }
}
