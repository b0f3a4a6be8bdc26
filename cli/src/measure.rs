//! Raw driver commands beside which locks are measured, and the latencies of both. The scoreboard measures with the same.

use std::{fmt, time::Duration};

use futures::TryStreamExt as _;
use mongodb::{
    Collection,
    bson::{Document, doc},
    error::Error,
};
use tokio::{sync::mpsc, time::Instant};

/// Latencies of one kind, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.0.push(latency.as_secs_f64() * 1e3);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among some thousands"
        )]
        let place = (last as f64 * part).round() as usize;
        sorted.get(place).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.median(), self.quantile(0.99));
        write!(f, "p50 {p50:.3} ms, p99 {p99:.3} ms of {}", self.len())
    }
}

/// The latencies of a lock, and of the driver's commands that it needs at least, in alternate rounds.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) raw: Samples,
    pub(crate) lock: Samples,
}

impl Compared {
    /// Adds a round, if it counts.
    pub(crate) fn push(&mut self, counts: bool, raw: Option<Duration>, lock: Duration) {
        if counts {
            raw.into_iter().for_each(|raw| self.raw.push(raw));
            self.lock.push(lock);
        }
    }

    /// Returns the ratio of the medians.
    pub(crate) fn ratio(&self) -> f64 {
        self.lock.median() / self.raw.median()
    }
}

/// Measures an upsert and a deletion of the same document: the least that takes and frees a lock.
pub(crate) async fn upserted_and_deleted(raw: Collection<Document>, id: String) -> Result<Duration, Error> {
    let sent = Instant::now();
    raw.find_one_and_update(doc! { "_id": &id }, doc! { "$set": { "holder": 1 } })
        .upsert(true)
        .await?;
    raw.delete_one(doc! { "_id": id }).await?;
    Ok(sent.elapsed())
}

/// Measures the least that marks a free document of those that are `pending` as taken, and then as free again.
pub(crate) async fn claimed_and_freed(raw: Collection<Document>) -> Result<Duration, Error> {
    let sent = Instant::now();
    let free = doc! { "state": "pending", "holder": null };
    let taken = raw.find_one_and_update(free, doc! { "$set": { "holder": 1 } }).await?;
    let Some(taken) = taken else {
        return Err(Error::custom("no document is free"));
    };
    let of_it = doc! { "_id": taken.get("_id") };
    raw.update_one(of_it, doc! { "$set": { "holder": null } }).await?;
    Ok(sent.elapsed())
}

/// A change stream of one client that notes when an event came in, and another client whose writes make the events.
#[derive(Debug)]
pub(crate) struct Hop {
    sender: Collection<Document>,
    received: mpsc::UnboundedReceiver<Instant>,
}

impl Hop {
    /// Opens the stream; the collections are the same one, each of its own client.
    pub(crate) async fn between(sender: Collection<Document>, receiver: Collection<Document>) -> Result<Self, Error> {
        sender
            .update_one(doc! { "_id": "hop" }, doc! { "$set": { "round": 0 } })
            .upsert(true)
            .await?;
        let mut stream = receiver.watch().await?;
        let (to, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(_)) = stream.try_next().await {
                if to.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { sender, received })
    }

    /// Measures from the sending of a write to the arrival of its event.
    pub(crate) async fn once(&mut self) -> Result<Duration, Error> {
        let (sender, update) = (self.sender.clone(), doc! { "$inc": { "round": 1 } });
        self.after(sender.update_one(doc! { "_id": "hop" }, update).into_future())
            .await
    }

    /// Measures the same of this write of the sender's.
    pub(crate) async fn after<T>(&mut self, write: impl Future<Output = Result<T, Error>>) -> Result<Duration, Error> {
        let sent = Instant::now();
        write.await?;
        let received = self.received.recv().await;
        let received = received.ok_or_else(|| Error::custom("the raw change stream ended"))?;
        Ok(received - sent)
    }
}
