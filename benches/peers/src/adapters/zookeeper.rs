//! ZooKeeper through `zookeeper-client`: Curator's recipe, with nodes that go with their session.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

use crate::client::{Client, Held, Result};

struct ZooKeeper(zookeeper_client::Client);

pub(crate) async fn connect(address: &str, lease: Duration) -> Result<Arc<dyn Client>> {
    let connector = zookeeper_client::Client::connector().with_session_timeout(lease);
    Ok(Arc::new(ZooKeeper(connector.connect(address).await?)))
}

impl Client for ZooKeeper {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (service, folder) = (self.0.clone(), format!("/{name}"));
        Box::pin(async move {
            let prefix = LockPrefix::new_curator(&folder, "latch-")?;
            let ancestors = CreateMode::Persistent.with_acls(Acls::anyone_all());
            let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(ancestors)?;
            let lock = service.lock(prefix, b"", options).await?.into_owned();
            Ok(Held::new(async move {
                // Its drop would delete the node too, and nobody could wait for that.
                lock.client().clone().delete(lock.lock_path(), None).await?;
                Ok(())
            }))
        })
    }
}
