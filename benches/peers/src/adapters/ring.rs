//! No lock: raw clients of MongoDB that hand a turn round, each woken by a change stream of its own. An acquire writes
//! that somebody waits, a release writes whose turn it is; whose that is, the clients know from each other, as they are
//! in one process. What so many streams and two writes cost is in it, and nothing else. It is no lower bound: a lock
//! that needs fewer streams can be faster.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt, future::BoxFuture};
use mongodb::{
    Client as Driver, Collection,
    bson::{Document, doc},
    options::{Acknowledgment, CollectionOptions, WriteConcern},
};
use tokio::{sync::oneshot, task::JoinHandle};
use uuid::Uuid;

use crate::client::{Client, Held, Result};

/// The turns that go round, by name.
static TURNS: Mutex<BTreeMap<String, Turn>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Turn {
    is_taken: bool,
    /// In the order in which their requests were written.
    waiting: VecDeque<(Arc<Seat>, oneshot::Sender<()>)>,
    /// Number of turns so far.
    number: i64,
}

/// A client's part of the ring: where the one waits whose turn has been written.
struct Seat {
    id: String,
    called: Mutex<VecDeque<oneshot::Sender<()>>>,
}

struct Raw {
    driver: Driver,
    turns: Collection<Document>,
    seat: Arc<Seat>,
    reading: JoinHandle<()>,
}

pub(crate) async fn connect(uri: &str) -> Result<Arc<dyn Client>> {
    let driver = Driver::with_uri_str(uri).await?;
    let durable = WriteConcern::builder()
        .w(Acknowledgment::Majority)
        .journal(true)
        .build();
    let options = CollectionOptions::builder().write_concern(durable).build();
    let turns = driver.database("raw").collection_with_options("turns", options);
    let seat = Arc::new(Seat {
        id: Uuid::new_v4().simple().to_string(),
        called: Mutex::default(),
    });
    let mine = doc! { "operationType": "update", "updateDescription.updatedFields.to": &seat.id };
    let mut events = turns.watch().pipeline([doc! { "$match": mine }]).await?;
    let own = seat.clone();
    let reading = tokio::spawn(async move {
        // At the end of the stream the next turn is called in vain, and the round fails.
        while let Some(Ok(_)) = events.next().await {
            own.call();
        }
    });
    Ok(Arc::new(Raw {
        driver,
        turns,
        seat,
        reading,
    }))
}

impl Seat {
    fn called(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<()>>> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) {
        if let Some(first) = self.called().pop_front() {
            // Whoever is gone by now was stopped at the end of the round.
            let _ = first.send(());
        }
    }
}

fn turns() -> MutexGuard<'static, BTreeMap<String, Turn>> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the request, and waits for the turn unless nobody has it.
async fn stand(turns_of: &Collection<Document>, seat: Arc<Seat>, name: &str) -> Result<()> {
    let waits = doc! { "$set": { "waits": &seat.id }, "$inc": { "requests": 1 } };
    turns_of.update_one(doc! { "_id": name }, waits).upsert(true).await?;
    let called = {
        let mut turns = turns();
        let turn = turns.entry(name.to_owned()).or_default();
        if !turn.is_taken {
            turn.is_taken = true;
            return Ok(());
        }
        let (call, called) = oneshot::channel();
        turn.waiting.push_back((seat, call));
        called
    };
    Ok(called.await?)
}

/// Writes whose turn is next. A client that follows itself needs no event.
async fn pass_on(turns_of: &Collection<Document>, seat: &Arc<Seat>, name: &str) -> Result<()> {
    let (next, number) = {
        let mut turns = turns();
        let turn = turns.entry(name.to_owned()).or_default();
        turn.number += 1;
        let next = turn.waiting.pop_front().map(|(next, call)| {
            next.called().push_back(call);
            next
        });
        turn.is_taken = next.is_some();
        (next, turn.number)
    };
    let to = next.as_ref().map_or("nobody", |next| &next.id);
    let given = doc! { "$set": { "to": to, "turn": number } };
    turns_of.update_one(doc! { "_id": name }, given).await?;
    if let Some(next) = next.filter(|next| Arc::ptr_eq(next, seat)) {
        next.call();
    }
    Ok(())
}

impl Client for Raw {
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>> {
        let (turns, seat, name) = (self.turns.clone(), self.seat.clone(), name.to_owned());
        Box::pin(async move {
            stand(&turns, seat.clone(), &name).await?;
            Ok(Held::new(async move { pass_on(&turns, &seat, &name).await }))
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.reading.abort();
        let driver = self.driver.clone();
        Box::pin(async move { driver.shutdown().immediate(true).await })
    }
}
