//! The queue: a collection of events to process.

use std::time::Duration;

use mongodb::{
    Collection, Database,
    bson::{Document, doc},
    options::{CollectionOptions, WriteConcern},
};
use serde::Deserialize;
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};
use watchlock_testkit::stage::Result;

/// Number of events when the queue is opened.
const AT_FIRST: i64 = 40;

/// Interval between new events: about as often as the workers can handle.
const EVERY: Duration = Duration::from_millis(25);

/// An event as the workers read it. They need not know of the lock, which is in the document too.
#[derive(Debug, Deserialize)]
pub(crate) struct Event {
    #[serde(rename = "_id")]
    pub(crate) id: i64,
}

/// Returns the filter of the events that are still to be processed.
pub(crate) fn open() -> Document {
    doc! { "done": false }
}

/// Returns the events, as durable as their locks.
pub(crate) fn events<T: Send + Sync>(database: &Database) -> Collection<T> {
    let options = CollectionOptions::builder()
        .write_concern(WriteConcern::majority())
        .build();
    database.collection_with_options("events", options)
}

/// The source of the events.
#[derive(Debug)]
pub(crate) struct Source {
    task: JoinHandle<Result<i64>>,
    stop: oneshot::Sender<()>,
}

impl Source {
    /// Opens the queue: some events at once, and then one after the other.
    pub(crate) fn open(events: Collection<Document>) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let event = |id: i64| doc! { "_id": id, "done": false };
            events.insert_many((1..=AT_FIRST).map(event)).await?;
            let mut last = AT_FIRST;
            while let Err(oneshot::error::TryRecvError::Empty) = stopped.try_recv() {
                last += 1;
                events.insert_one(event(last)).await?;
                sleep(EVERY).await;
            }
            Ok(last)
        });
        Self { task, stop }
    }

    /// Stops the events; returns how many came.
    pub(crate) async fn close(self) -> Result<i64> {
        // It has ended by itself if it failed; then it returns the reason.
        let _ = self.stop.send(());
        self.task.await?
    }
}
