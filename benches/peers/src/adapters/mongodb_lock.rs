//! The crate `mongodb-lock`: an insert under a unique index again and again at a fixed pause, and no lease at all.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use mongodb_lock::Mutex;

use super::PATIENCE;
use crate::client::{Client, Held, Result};

struct MongodbLock {
    /// Its guards borrow it. It is leaked, once for each client, as a held lock here outlives every borrow.
    mutex: &'static Mutex<String>,
    pause: Duration,
}

pub(crate) async fn connect(uri: &str, pause: Duration) -> Result<Arc<dyn Client>> {
    let driver = mongodb::Client::with_uri_str(uri).await?;
    let mutex = Mutex::new(&driver.database("mongodb-lock"), "locks").await?;
    Ok(Arc::new(MongodbLock {
        mutex: Box::leak(Box::new(mutex)),
        pause,
    }))
}

impl Client for MongodbLock {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (mutex, name, pause) = (self.mutex, name.to_owned(), self.pause);
        Box::pin(async move {
            let guard = mutex
                .lock(PATIENCE, pause, name)
                .await
                .map_err(|error| error.to_string())?;
            Ok(Held::new(async move {
                // Its drop deletes the document in the background; nobody can wait for that.
                drop(guard);
                Ok(())
            }))
        })
    }
}
