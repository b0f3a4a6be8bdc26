//! The crate `distributed-lock-mongo`: a `findOneAndUpdate` again and again at a fixed pause, and a lease that nobody
//! extends.

use std::{sync::Arc, time::Duration};

use distributed_lock_core::traits::{DistributedLock, LockHandle};
use distributed_lock_mongo::{MongoDistributedLock, MongoDistributedLockOptions};
use futures::future::BoxFuture;

use crate::client::{Client, Held, Result};

struct DistributedLockMongo {
    driver: mongodb::Client,
    options: MongoDistributedLockOptions,
}

/// Takes the default pause where none is given.
pub(crate) async fn connect(uri: &str, lease: Duration, pause: Option<Duration>) -> Result<Arc<dyn Client>> {
    let driver = mongodb::Client::with_uri_str(uri).await?;
    let mut options = MongoDistributedLockOptions {
        expiry: lease,
        ..Default::default()
    };
    if let Some(pause) = pause {
        options.min_busy_wait_sleep_time = pause;
    }
    Ok(Arc::new(DistributedLockMongo { driver, options }))
}

impl Client for DistributedLockMongo {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let database = self.driver.database("distributed-lock-mongo");
        let lock = MongoDistributedLock::new(name.to_owned(), database, None, Some(self.options.clone()));
        Box::pin(async move {
            let handle = lock.acquire(None).await?;
            Ok(Held::new(async move { Ok(handle.release().await?) }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let driver = self.driver.clone();
        Box::pin(async move { driver.shutdown().immediate(true).await })
    }
}
