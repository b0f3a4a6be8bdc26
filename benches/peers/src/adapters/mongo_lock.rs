//! The crate `mongo-lock`: blocking, an upsert again and again at a fixed pause, and the clock of the client.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use mongo_lock::Lock;
use mongodb_2::sync;
use tokio::task::spawn_blocking;

use super::PATIENCE;
use crate::client::{Client, Held, Result};

struct MongoLock {
    driver: sync::Client,
    lease: Duration,
    pause: Duration,
}

pub(crate) async fn connect(uri: &str, lease: Duration, pause: Duration) -> Result<Arc<dyn Client>> {
    let uri = uri.to_owned();
    let driver = spawn_blocking(move || {
        let driver = sync::Client::with_uri_str(uri)?;
        mongo_lock::prepare_database(&driver).map_err(|error| error.to_string())?;
        Result::Ok(driver)
    });
    Ok(Arc::new(MongoLock {
        driver: driver.await??,
        lease,
        pause,
    }))
}

impl Client for MongoLock {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (driver, name, lease, pause) = (self.driver.clone(), name.to_owned(), self.lease, self.pause);
        Box::pin(async move {
            // A thread of its own for each waiter, as in a program that blocks.
            let acquired =
                spawn_blocking(move || Lock::try_acquire_with_timeout(&driver, &name, lease, PATIENCE, pause));
            let lock = acquired.await?.map_err(|error| error.to_string())?.ok_or("timed out")?;
            Ok(Held::new(async move {
                // The release is its drop, which waits for the answer.
                Ok(spawn_blocking(move || drop(lock)).await?)
            }))
        })
    }
}
