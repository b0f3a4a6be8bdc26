//! The crate `mongo-lock`: blocking, an upsert again and again at a fixed pause, and the clock of the client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use mongo_lock::Lock;
use mongodb_2::sync;
use tokio::task::spawn_blocking;

use crate::client::{Client, Held, Result};

/// Time after which a blocked thread looks whether anybody still wants its lock. Nothing else ends it, and those of a
/// case would go on polling through all that follow.
const LOOK: Duration = Duration::from_secs(1);

struct MongoLock {
    driver: sync::Client,
    wanted: Wanted,
    lease: Duration,
    pause: Duration,
}

/// Cleared when the client is dropped.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
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
        wanted: Wanted(Arc::new(AtomicBool::new(true))),
        lease,
        pause,
    }))
}

impl Client for MongoLock {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (driver, name, lease, pause) = (self.driver.clone(), name.to_owned(), self.lease, self.pause);
        let wanted = self.wanted.0.clone();
        Box::pin(async move {
            // A thread of its own for each waiter, as in a program that blocks.
            let acquired = spawn_blocking(move || {
                while wanted.load(Ordering::Relaxed) {
                    let lock = Lock::try_acquire_with_timeout(&driver, &name, lease, LOOK, pause);
                    if let Some(lock) = lock.map_err(|error| error.to_string())? {
                        return Ok(lock);
                    }
                }
                Err(String::from("its client is gone"))
            });
            let lock = acquired.await??;
            Ok(Held::new(async move {
                // The release is its drop, which waits for the answer.
                Ok(spawn_blocking(move || drop(lock)).await?)
            }))
        })
    }
}
