//! The least of a lock: the commands of one with leases, a queue, fencing tokens and clean-up, written by hand. Where a
//! library of MongoDB is faster than these, its locks do less.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture};
use mongodb::{
    Client as Driver, Database, IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};
use tokio::task::JoinHandle;

use self::commands::{acquires, modify, releases};
use super::{Round, allocations, distinct, held, uncontended};
use crate::{
    client::{Client, Held, Result},
    engines::Engine,
    plan::Step,
};

#[expect(dead_code, reason = "those of a hand-over are for the scoreboard")]
#[path = "../../../scoreboard/commands.rs"]
mod commands;

const COLLECTION: &str = "least";

/// Plays one of the cases in which nobody waits.
pub(crate) async fn round(step: &Step, engine: &Engine, time: Duration) -> Result<Round> {
    match *step {
        Step::Allocations => allocations::count(connect(engine, false).await?).await,
        // A holder hears of a loss by its stream.
        Step::Held { count, .. } => held::turnover(connect(engine, true).await?, count).await,
        Step::Uncontended { fresh } => uncontended::cycles(connect(engine, false).await?, fresh, time).await,
        Step::Distinct { clients } => {
            let mut connected = Vec::new();
            for _ in 0..clients {
                connected.push(connect(engine, false).await?);
            }
            distinct::cycles(&connected, time).await
        }
        _ => Err("it is for locks that nobody waits for".into()),
    }
}

struct Least {
    driver: Driver,
    database: Database,
    reading: Option<JoinHandle<()>>,
}

async fn connect(engine: &Engine, streams: bool) -> Result<Arc<dyn Client>> {
    let driver = Driver::with_uri_str(&engine.address).await?;
    let database = driver.database("raw");
    let locks = database.collection::<Document>(COLLECTION);
    let removal = IndexOptions::builder().expire_after(Duration::ZERO).build();
    let index = IndexModel::builder().keys(doc! { "expires": 1 }).options(removal);
    locks.create_index(index.build()).await?;
    let reading = if streams {
        let mine = doc! { "operationType": "update", "updateDescription.updatedFields.wake": "present" };
        let mut events = locks.watch().pipeline([doc! { "$match": mine }]).await?;
        Some(tokio::spawn(async move { while events.next().await.is_some() {} }))
    } else {
        None
    };
    Ok(Arc::new(Least {
        driver,
        database,
        reading,
    }))
}

/// Returns whether the lock has a holder, which is the one that asked: nobody else does here.
fn is_held(document: &Document) -> bool {
    document.get_array("holders").is_ok_and(|holders| !holders.is_empty())
}

impl Client for Least {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (database, name) = (self.database.clone(), name.to_owned());
        Box::pin(async move {
            if !is_held(&modify(database.clone(), COLLECTION, &name, acquires()).await?) {
                return Err("a free lock was not granted".into());
            }
            Ok(Held::new(async move {
                if is_held(&modify(database, COLLECTION, &name, releases()).await?) {
                    return Err("a lock is held after its release".into());
                }
                Ok(())
            }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
        let driver = self.driver.clone();
        Box::pin(async move { driver.shutdown().immediate(true).await })
    }
}
