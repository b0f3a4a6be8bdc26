//! The open streams of stores in memory.

use tokio::{sync::mpsc, time::timeout};

use super::{AWAIT_TIME, Event, ServerError, connection::Connection};
use crate::error::own::Own;

/// Maximum number of events that wait for the reader of a stream: a few times the writes of a renewal, which changes up
/// to a thousand documents at once. A reader that is further behind is not reading; each of its events can hold the
/// whole state of a lock, and reading the locks once tells it more.
const BEHIND_MOST: usize = 4_096;

/// An open stream.
#[derive(Debug)]
pub(crate) struct MemoryStream {
    events: mpsc::Receiver<Event>,
    connection: Connection,
}

impl MemoryStream {
    /// Opens a stream. The store drops its end when the reader is gone or fell behind.
    pub(super) fn open(connection: Connection) -> (mpsc::Sender<Event>, Self) {
        let (sender, events) = mpsc::channel(BEHIND_MOST);
        (sender, Self { events, connection })
    }

    /// Returns the next events. An error ends the stream: its reader fell behind, and has read what came before, or
    /// there is an outage.
    ///
    /// Cancel safe: no event is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Vec<Event>, ServerError> {
        let mut events = Vec::new();
        loop {
            self.connection.reach().await?;
            let received = timeout(AWAIT_TIME, self.events.recv_many(&mut events, BEHIND_MOST));
            tokio::select! {
                biased;
                () = self.connection.disturbed() => {}
                received = received => return match received {
                    Ok(0) => Err(Own::FellBehind.into()),
                    // Silence is reported as by a server.
                    Ok(_) | Err(_) => Ok(events),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mongodb::bson::{DateTime, doc};

    use super::*;
    use crate::{
        client::LockClient,
        config::Config,
        operate::watch::LockEvent,
        protocol::fixtures,
        store::{LockLayout, MemoryDocuments, MemoryStore, Watched, lock_layout::Paths},
    };

    /// Reads a stream to its end, and returns the number of its events.
    async fn events_of(mut stream: MemoryStream) -> usize {
        let mut count = 0;
        loop {
            match stream.next().await {
                Ok(events) if events.is_empty() => panic!("{count} events, and no end"),
                Ok(events) => count += events.len(),
                Err(error) => {
                    assert_eq!(error.to_string(), Own::FellBehind.to_string());
                    return count;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_reads_ends_and_keeps_no_more_events() {
        let collection = Arc::new(MemoryDocuments::default());
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let locks = MemoryStore::new(collection.clone(), place, Connection::default());
        let lock = doc! {
            "kind": "document", "capacity": 1, "token": 7, "holders": [], "queue": [], "wake": "", "version": 1,
            "at": DateTime::MIN, "purge_at": DateTime::MAX,
        };
        collection.insert(doc! { "_id": 1, "lock": lock }).unwrap();
        let watch = || locks.watch("0123456789abcdef", Watched::default());
        let unread = watch();
        let write = |count: usize| {
            for _ in 0..count {
                collection
                    .update(&doc! {}, &doc! { "$inc": { "lock.token": 1 } }.into(), 1)
                    .unwrap();
            }
        };
        write(BEHIND_MOST + 100);
        assert_eq!(events_of(unread).await, BEHIND_MOST);
        // One that is read goes on.
        let mut read = watch();
        for _ in 0..2 {
            write(BEHIND_MOST);
            let mut count = 0;
            while count < BEHIND_MOST {
                count += read.next().await.unwrap().len();
            }
        }
    }

    /// The path is that of a server's stream whose history is lost: the stream is opened anew, and everything is read.
    #[tokio::test(start_paused = true)]
    async fn an_observer_that_fell_behind_goes_on_by_reading() {
        let store = Arc::new(MemoryStore::default());
        let locks = LockClient::over_memory(&store, Config::default());
        let held = locks.mutex("held before").acquire().await.unwrap();
        let mut events = locks.watch_all();
        let first = events.next().await.unwrap().unwrap();
        assert!(matches!(first.1, LockEvent::Granted { .. }), "{first:?}");
        held.release().await.unwrap();
        for number in 0..BEHIND_MOST {
            let (entry, operation) = (format!("entry {number}"), format!("operation {number}"));
            store
                .run("x", &fixtures::asking(&operation, fixtures::request(&entry)))
                .unwrap();
            store.run("x", &fixtures::leaving(&operation, &entry)).unwrap();
        }
        let _held = locks.mutex("held after").acquire().await.unwrap();
        let (mut released, mut granted) = (false, false);
        while !(released && granted) {
            let (name, event) = events.next().await.unwrap().unwrap();
            released |= name == "held before" && matches!(event, LockEvent::Released { .. });
            granted |= name == "held after" && matches!(event, LockEvent::Granted { .. });
        }
    }
}
