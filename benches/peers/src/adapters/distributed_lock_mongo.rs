//! The crate `distributed-lock-mongo`: a `findOneAndUpdate` again and again at a fixed pause, and a lease that nobody
//! extends.

use std::{sync::Arc, time::Duration};

use distributed_lock_core::traits::{DistributedLock, LockHandle};
use distributed_lock_mongo::{MongoDistributedLock, MongoDistributedLockOptions};
use futures::future::BoxFuture;
use mongodb::bson::{Document, doc};

use crate::client::{Client, Held, Result};

/// Database of the locks.
const DATABASE: &str = "distributed-lock-mongo";

/// Collection of the locks, the library's default.
const LOCKS: &str = "DistributedLocks";

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
        let database = self.driver.database(DATABASE);
        let lock = MongoDistributedLock::new(name.to_owned(), database, None, Some(self.options.clone()));
        Box::pin(async move {
            let handle = lock.acquire(None).await?;
            let mut signal = handle.lost_token().clone();
            let held = Held::new(async move { Ok(handle.release().await?) });
            // A closed channel ends this too: its receiver has no other way to say anything.
            Ok(held.with_signal(async move { drop(signal.wait_for(|lost| *lost).await) }))
        })
    }

    fn take_away(&self, name: &str) -> Option<BoxFuture<'static, Result<()>>> {
        let locks = self.driver.database(DATABASE).collection::<Document>(LOCKS);
        let name = name.to_owned();
        Some(Box::pin(async move {
            let deleted = locks.delete_one(doc! { "_id": name }).await?.deleted_count;
            super::expect_one(deleted)
        }))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let driver = self.driver.clone();
        Box::pin(async move { driver.shutdown().immediate(true).await })
    }
}
