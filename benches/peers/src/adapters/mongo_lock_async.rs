//! The crate `mongo-lock-async`: an upsert again and again at a fixed pause, and the clock of the client.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use mongo_lock_async::Lock;

use super::PATIENCE;
use crate::client::{Client, Held, Result};

struct MongoLockAsync {
    driver: mongodb::Client,
    lease: Duration,
    pause: Duration,
}

pub(crate) async fn connect(uri: &str, lease: Duration, pause: Duration) -> Result<Arc<dyn Client>> {
    let driver = mongodb::Client::with_uri_str(uri).await?;
    let prepared = mongo_lock_async::prepare_database(&driver).await;
    prepared.map_err(|error| error.to_string())?;
    Ok(Arc::new(MongoLockAsync { driver, lease, pause }))
}

impl Client for MongoLockAsync {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (driver, name, lease, pause) = (self.driver.clone(), name.to_owned(), self.lease, self.pause);
        Box::pin(async move {
            let acquired = Lock::try_acquire_with_timeout(&driver, &name, lease, PATIENCE, pause).await;
            let lock = acquired.map_err(|error| error.to_string())?.ok_or("timed out")?;
            Ok(Held::new(async move {
                lock.release().await.map_err(|error| error.to_string())?;
                Ok(())
            }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let driver = self.driver.clone();
        Box::pin(async move { driver.shutdown().immediate(true).await })
    }
}
