//! The algorithm of DistributedLock.MongoDB for .NET, written anew after its documentation: one `findOneAndUpdate` with
//! a pipeline takes a missing or expired lock, a random pause lies between two tries, a task extends the lease every
//! third of it and signals a loss when there is nothing to extend, and a release deletes the document.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use mongodb::{
    Collection, IndexModel,
    bson::{Document, doc},
    error::{ErrorKind, WriteFailure},
    options::{IndexOptions, ReturnDocument},
};
use tokio::{sync::oneshot, task::JoinHandle, time};
use uuid::Uuid;

use crate::client::{Client, Held, Result};

/// Code of the error that two upserts get which race for one name.
const DUPLICATE_KEY: i32 = 11_000;

struct Dotnet {
    driver: mongodb::Client,
    locks: Collection<Document>,
    lease: Duration,
    pauses: (Duration, Duration),
}

pub(crate) async fn connect(uri: &str, lease: Duration, pauses: (Duration, Duration)) -> Result<Arc<dyn Client>> {
    let driver = mongodb::Client::with_uri_str(uri).await?;
    let locks = driver.database("dotnet").collection::<Document>("distributed.locks");
    let expired = IndexOptions::builder().expire_after(Duration::ZERO).build();
    let index = IndexModel::builder()
        .keys(doc! { "expiresAt": 1 })
        .options(expired)
        .build();
    locks.create_index(index).await?;
    Ok(Arc::new(Dotnet {
        driver,
        locks,
        lease,
        pauses,
    }))
}

impl Client for Dotnet {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (locks, name, lease, (least, most)) = (self.locks.clone(), name.to_owned(), self.lease, self.pauses);
        Box::pin(async move {
            let id = Uuid::new_v4().to_string();
            while !try_acquire(&locks, &name, &id, lease).await? {
                let span = most.saturating_sub(least).as_nanos() + 1;
                let random = Uuid::new_v4().as_u128() % span;
                time::sleep(least + Duration::from_nanos(u64::try_from(random)?)).await;
            }
            let (lost, signal) = oneshot::channel::<()>();
            let extended = extend(locks.clone(), name.clone(), id.clone(), lease);
            let extending = Extending(tokio::spawn(async move {
                extended.await;
                // Nobody may be listening.
                let _ = lost.send(());
            }));
            let held = Held::new(async move {
                drop(extending);
                locks.delete_one(doc! { "_id": name, "lockId": id }).await?;
                Ok(())
            });
            Ok(held.with_signal(async move { drop(signal.await) }))
        })
    }

    fn take_away(&self, name: &str) -> Option<BoxFuture<'static, Result<()>>> {
        let (locks, name) = (self.locks.clone(), name.to_owned());
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

/// The background task of one held lock, which ends with it.
struct Extending(JoinHandle<()>);

impl Drop for Extending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn try_acquire(locks: &Collection<Document>, name: &str, id: &str, lease: Duration) -> Result<bool> {
    let free = doc! { "$lte": [{ "$ifNull": ["$expiresAt", "$$NOW"] }, "$$NOW"] };
    let either = |taken: mongodb::bson::Bson, kept: &str| doc! { "$cond": [&free, taken, kept] };
    let until = doc! { "$add": ["$$NOW", i64::try_from(lease.as_millis())?] };
    let token = doc! { "$add": [{ "$ifNull": ["$fencingToken", 0_i64] }, 1_i64] };
    let taken = doc! { "$set": {
        "lockId": either(id.into(), "$lockId"),
        "expiresAt": either(until.into(), "$expiresAt"),
        "acquiredAt": either("$$NOW".into(), "$acquiredAt"),
        "fencingToken": either(token.into(), "$fencingToken"),
    } };
    let command = locks.find_one_and_update(doc! { "_id": name }, vec![taken]);
    match command.upsert(true).return_document(ReturnDocument::After).await {
        Ok(found) => Ok(found.is_some_and(|lock| lock.get_str("lockId") == Ok(id))),
        Err(error) => match &*error.kind {
            ErrorKind::Write(WriteFailure::WriteError(refused)) if refused.code == DUPLICATE_KEY => Ok(false),
            ErrorKind::Command(refused) if refused.code == DUPLICATE_KEY => Ok(false),
            _ => Err(error.into()),
        },
    }
}

/// Runs until the release aborts it, or until the lock is somebody else's.
async fn extend(locks: Collection<Document>, name: String, id: String, lease: Duration) {
    loop {
        time::sleep(lease / 3).await;
        let Ok(lease) = i64::try_from(lease.as_millis()) else {
            return;
        };
        let extended = doc! { "$set": { "expiresAt": { "$add": ["$$NOW", lease] } } };
        let command = locks.update_one(doc! { "_id": &name, "lockId": &id }, vec![extended]);
        if command.await.is_ok_and(|answer| answer.matched_count == 0) {
            return;
        }
    }
}
