//! etcd through `etcd-client`: the lock service of the server, with leases that are kept alive.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use etcd_client::LockOptions;
use futures::{FutureExt, future::BoxFuture};
use tokio::{task::JoinHandle, time};

use crate::client::{Client, Held, Result};

struct Etcd {
    service: etcd_client::Client,
    /// One lease holds any number of names, but each only once: the waiters for one name need a lease each. A client
    /// keeps what it has been granted.
    leases: Arc<Mutex<Vec<Lease>>>,
    lease: Duration,
}

/// A lease that is kept alive until it is dropped.
struct Lease {
    id: i64,
    /// The names that are held with it or wanted. That of an acquire which was dropped stays here: the server may have
    /// granted it, and would grant it to this lease again.
    names: HashSet<String>,
    keeping: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

pub(crate) async fn connect(address: &str, lease: Duration) -> Result<Arc<dyn Client>> {
    Ok(Arc::new(Etcd {
        service: etcd_client::Client::connect([address], None).await?,
        leases: Arc::default(),
        lease,
    }))
}

impl Client for Etcd {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (mut service, leases, length) = (self.service.clone(), self.leases.clone(), self.lease);
        let name = name.to_owned();
        Box::pin(async move {
            let pooled = {
                let mut leases = leases.lock().unwrap_or_else(PoisonError::into_inner);
                let free = leases.iter_mut().find(|lease| !lease.names.contains(&name));
                free.map(|lease| {
                    lease.names.insert(name.clone());
                    lease.id
                })
            };
            let id = match pooled {
                Some(id) => id,
                None => {
                    let mut lease = grant(&mut service, length).await?;
                    let id = lease.id;
                    lease.names.insert(name.clone());
                    leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
                    id
                }
            };
            let options = LockOptions::new().with_lease(id);
            let key = service.lock(name.clone(), Some(options)).await?.key().to_vec();
            Ok(Held::new(async move {
                service.unlock(key).await?;
                let mut leases = leases.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(lease) = leases.iter_mut().find(|lease| lease.id == id) {
                    lease.names.remove(&name);
                }
                Ok(())
            }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).clear();
        async {}.boxed()
    }
}

async fn grant(service: &mut etcd_client::Client, length: Duration) -> Result<Lease> {
    let seconds = i64::try_from(length.as_secs())?;
    let id = service.lease_grant(seconds, None).await?.id();
    let mut service = service.clone();
    let keeping = tokio::spawn(async move {
        let Ok((mut keeper, mut answers)) = service.lease_keep_alive(id).await else {
            return;
        };
        // The official client does so every third of a lease too.
        while keeper.keep_alive().await.is_ok() && answers.message().await.is_ok_and(|answer| answer.is_some()) {
            time::sleep(length / 3).await;
        }
    });
    Ok(Lease {
        id,
        names: HashSet::new(),
        keeping,
    })
}
