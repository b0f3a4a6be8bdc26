//! The floor: the commands of MongoDB that a lock can't do without, with no lock around them. Where another service is
//! faster than these commands alone, no library for MongoDB could be as fast.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::BoxFuture};
use mongodb::{
    Client as Driver, Collection,
    bson::{Document, doc},
    change_stream::{ChangeStream, event::ChangeStreamEvent},
    options::{Acknowledgment, CollectionOptions, WriteConcern},
};
use tokio::time;

use super::{Round, allocations, distinct, fresh_name, held, millis, uncontended};
use crate::{
    client::{Client, Held, Result},
    engines::Engine,
    plan::Step,
};

/// Maximum time until an event arrives.
const ARRIVAL: Duration = Duration::from_secs(10);

/// Plays one of the cases that have a floor.
pub(crate) async fn round(step: &Step, engine: &Engine, time: Duration) -> Result<Round> {
    match *step {
        Step::Allocations => allocations::count(connect(engine, true).await?).await,
        Step::Held { count, .. } => held::turnover(connect(engine, true).await?, count).await,
        Step::Uncontended { fresh } => uncontended::cycles(connect(engine, fresh).await?, fresh, time).await,
        Step::Distinct { clients } => {
            let mut connected = Vec::new();
            for _ in 0..clients {
                connected.push(connect(engine, false).await?);
            }
            distinct::cycles(&connected, time).await
        }
        Step::HandOver(crowd) => hops(engine, crowd.hold, time).await,
        _ => Err("it has no floor".into()),
    }
}

/// Two writes, in the place of an acquire and a release.
struct Writes {
    driver: Driver,
    names: Collection<Document>,
    /// Whether the second write deletes what the first has made. Otherwise the document stays, as that of a known name
    /// may.
    deletes: bool,
}

async fn connect(engine: &Engine, deletes: bool) -> Result<Arc<dyn Client>> {
    let driver = Driver::with_uri_str(&engine.address).await?;
    let names = names(&driver);
    Ok(Arc::new(Writes { driver, names, deletes }))
}

/// Returns the place of the writes, each of which a majority has in its journal before it is answered.
fn names(driver: &Driver) -> Collection<Document> {
    let durable = WriteConcern::builder()
        .w(Acknowledgment::Majority)
        .journal(true)
        .build();
    let options = CollectionOptions::builder().write_concern(durable).build();
    driver.database("raw").collection_with_options("names", options)
}

impl Client for Writes {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (names, name, deletes) = (self.names.clone(), name.to_owned(), self.deletes);
        Box::pin(async move {
            let holder = doc! { "$set": { "holder": 1 } };
            names
                .find_one_and_update(doc! { "_id": &name }, holder)
                .upsert(true)
                .await?;
            Ok(Held::new(async move {
                if deletes {
                    names.delete_one(doc! { "_id": name }).await?;
                } else {
                    let nobody = doc! { "$set": { "holder": 0 } };
                    names.update_one(doc! { "_id": name }, nobody).await?;
                }
                Ok(())
            }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let driver = self.driver.clone();
        Box::pin(async move { driver.shutdown().immediate(true).await })
    }
}

/// Measures the time from the call of a write by one client until another has the event of it: a hand-over in which
/// nobody checks anything.
async fn hops(engine: &Engine, pause: Duration, time: Duration) -> Result<Round> {
    let (writer, reader) = (
        Driver::with_uri_str(&engine.address).await?,
        Driver::with_uri_str(&engine.address).await?,
    );
    let (written, name) = (names(&writer), fresh_name());
    written.insert_one(doc! { "_id": &name, "number": -1 }).await?;
    let mut events = names(&reader).watch().await?;
    let mut round = Round::default();
    let begun = Instant::now();
    for number in 0_i64.. {
        if begun.elapsed() >= time {
            break;
        }
        let before = Instant::now();
        let write = async {
            let change = doc! { "$set": { "number": number } };
            written.update_one(doc! { "_id": &name }, change).await?;
            Result::Ok(())
        };
        let arrival = async {
            next(&mut events).await?;
            Result::Ok(before.elapsed())
        };
        let ((), arrived) = time::timeout(ARRIVAL, async { futures::try_join!(write, arrival) }).await??;
        round.latencies.push(millis(arrived));
        time::sleep(pause).await;
    }
    drop(events);
    for driver in [writer, reader] {
        driver.shutdown().immediate(true).await;
    }
    Ok(round)
}

async fn next(events: &mut ChangeStream<ChangeStreamEvent<Document>>) -> Result<()> {
    let event = Pin::new(events).next().await.ok_or("the stream has ended")?;
    event?;
    Ok(())
}
