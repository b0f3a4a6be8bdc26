//! Redis through `rslock`: `SET NX` again and again at a random pause, and a lease that nobody extends.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use rslock::LockManager;

use crate::client::{Client, Held, Result};

struct Redis {
    manager: LockManager,
    lease: Duration,
}

/// Takes the default bound of the random pause where none is given.
pub(crate) async fn connect(address: &str, lease: Duration, pause: Option<Duration>) -> Result<Arc<dyn Client>> {
    let mut manager = LockManager::new(vec![address]);
    if let Some(pause) = pause {
        // An acquire begins anew after this many tries, without a pause.
        manager.set_retry(u32::MAX, pause);
    }
    Ok(Arc::new(Redis { manager, lease }))
}

impl Client for Redis {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (manager, name, lease) = (self.manager.clone(), name.to_owned(), self.lease);
        Box::pin(async move {
            let guard = manager.acquire(name.as_str(), lease).await?;
            Ok(Held::new(async move {
                guard.release().await;
                Ok(())
            }))
        })
    }
}
