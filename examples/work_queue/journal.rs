//! The record of who worked on which event, and when: the evidence for judging the library.
//!
//! A worker enters its start before it begins, and its end before it releases. All moments are from the machine's
//! monotonic clock, which all processes share.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
    options::{CollectionOptions, WriteConcern},
};
use watchlock::{Held, documents};
use watchlock_testkit::stage::{Result, moment::uptime};

use crate::queue::{self, Event};

/// One document for each time that a worker worked on an event.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    entries: Collection<Document>,
    events: Collection<Document>,
}

/// The journal's result at the end.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Number of events that were begun more than once, as their workers died or froze.
    pub(crate) begun_again: usize,
    /// Number of events that each worker finished.
    pub(crate) finished: BTreeMap<String, usize>,
}

struct Entry {
    by: String,
    token: i64,
    begun: i64,
    /// The time until which its lock was valid at least.
    valid_until: i64,
    ended: bool,
}

impl Journal {
    pub(crate) fn of(database: &Database) -> Self {
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .build();
        Self {
            entries: database.collection_with_options("journal", options),
            events: queue::events(database),
        }
    }

    /// Enters the start of a worker's work; returns the entry's id.
    pub(crate) async fn begin(&self, event: &Held<documents::Document<Event>>, by: &str) -> Result<Bson> {
        let begun = uptime();
        let entry = doc! {
            "event": event.document().id, "token": event.token().as_i64(), "by": by, "begun": nanos(begun),
            // A killed or frozen worker has its lock for this long, whether or not it can use it.
            "safe_until": nanos(begun + event.safe_for()),
        };
        Ok(self.entries.insert_one(entry).await?.inserted_id)
    }

    /// Enters that the worker's update was made. The worker still has the lock.
    pub(crate) async fn end(&self, entry: Bson) -> Result<()> {
        let ended = doc! { "$set": { "ended": nanos(uptime()) } };
        self.entries.update_one(doc! { "_id": entry }, ended).await?;
        Ok(())
    }

    /// Looks for violations among `count` events.
    pub(crate) async fn judge(&self, count: i64) -> Result<Verdict> {
        let mut entries: HashMap<i64, Vec<Entry>> = HashMap::new();
        let mut found = self.entries.find(doc! {}).sort(doc! { "begun": 1 }).await?;
        while let Some(entry) = found.try_next().await? {
            entries
                .entry(entry.get_i64("event")?)
                .or_default()
                .push(Entry::read(&entry)?);
        }
        let mut verdict = Verdict {
            begun_again: 0,
            finished: BTreeMap::new(),
        };
        let events: Vec<Document> = self.events.find(doc! {}).await?.try_collect().await?;
        if i64::try_from(events.len())? != count {
            return Err(format!("there were {count} events, and now there are {}", events.len()).into());
        }
        for event in &events {
            let id = event.get_i64("_id")?;
            let entries = entries.remove(&id).unwrap_or_default();
            judge_event(event, &entries).map_err(|problem| format!("event {id} {problem}"))?;
            verdict.begun_again += usize::from(entries.len() > 1);
            *verdict.finished.entry(event.get_str("by")?.to_owned()).or_default() += 1;
        }
        Ok(verdict)
    }
}

/// Returns the violation of an event, whose entries are in the order in which they were begun.
fn judge_event(event: &Document, entries: &[Entry]) -> Result<(), String> {
    let times = event.get_i32("times").unwrap_or(0);
    if times != 1 || !event.get_bool("done").unwrap_or(false) {
        return Err(format!("was processed {times} times"));
    }
    let (by, token) = (event.get_str("by").ok(), event.get_i64("token").ok());
    let Some(last) = entries.last().filter(|last| Some(last.token) == token) else {
        return Err("was not finished by the last worker that began it".to_owned());
    };
    if by != Some(&last.by) {
        return Err(format!("was finished by {by:?}, but {} had it", last.by));
    }
    for (at, later) in entries.iter().enumerate() {
        for earlier in &entries[..at] {
            let (one, other) = (&earlier.by, &later.by);
            if earlier.ended {
                return Err(format!("was finished by {one}, and begun again by {other}"));
            }
            if later.token <= earlier.token {
                return Err(format!("was given to {other} after {one} without a larger token"));
            }
            if later.begun < earlier.valid_until {
                return Err(format!("was processed by {one} and {other} at the same time"));
            }
        }
    }
    Ok(())
}

impl Entry {
    fn read(entry: &Document) -> Result<Self> {
        let ended = entry.get_i64("ended").ok();
        Ok(Self {
            by: entry.get_str("by")?.to_owned(),
            token: entry.get_i64("token")?,
            begun: entry.get_i64("begun")?,
            valid_until: ended.unwrap_or(entry.get_i64("safe_until")?),
            ended: ended.is_some(),
        })
    }
}

fn nanos(moment: Duration) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}
