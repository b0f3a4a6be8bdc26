//! A process that works through the queue.

use std::time::Duration;

use mongodb::bson::doc;
use tokio::time::sleep;
use watchlock::{
    Held, LockClient,
    documents::{self, DocumentLocks},
    errors::DocumentError,
};
use watchlock_testkit::stage::{Part, Result, chance, say};

use crate::{
    journal::Journal,
    news::News,
    queue::{self, Event},
};

/// A short lease, as the death of a worker costs its event this long, and somebody is watching. Real programs should
/// use the default, 30 s: a holder also survives an outage of the server this long.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// Shortest and longest time to process an event.
const WORK: (Duration, Duration) = (Duration::from_millis(40), Duration::from_millis(120));

/// Works until it is dismissed.
pub(crate) async fn work(part: Part) -> Result<()> {
    let database = part.server.connect().await?;
    let journal = Journal::of(&database);
    let locks = LockClient::builder(database.clone()).lease(LEASE).label(&part.label);
    let work = async |locks: LockClient| {
        let events = locks.documents(queue::events(&database));
        tokio::select! {
            worked = drain(&events, &journal, &part.label) => worked,
            _ = part.dismissed => Ok(()),
        }
    };
    // Its end gives back all holds, so that nobody has to wait for a lease to expire.
    locks.scope(work).await?
}

async fn drain(events: &DocumentLocks<Event>, journal: &Journal, label: &str) -> Result<()> {
    loop {
        // The first event that is open and that nobody holds. Waits until there is one.
        let event = events.claim(queue::open()).sort(doc! { "_id": 1 }).await?;
        process(&event, journal, label).await?;
        event.release().await?;
    }
}

async fn process(event: &Held<documents::Document<Event>>, journal: &Journal, label: &str) -> Result<()> {
    let (id, token) = (event.document().id, event.token().as_i64());
    let entry = journal.begin(event, label).await?;
    say(News::Took { event: id, token })?;

    // The work.
    sleep(chance::between(WORK.0, WORK.1)).await;

    // Made only if the lock is still held at that moment, by the server's clock.
    let done = doc! { "$set": { "done": true, "by": label, "token": token }, "$inc": { "times": 1 } };
    match event.update(done).await {
        Ok(_) => {
            journal.end(entry).await?;
            say(News::Finished { event: id })?;
        }
        // Too late: another worker has it by now.
        Err(DocumentError::Lost(_)) => say(News::Refused { event: id })?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
