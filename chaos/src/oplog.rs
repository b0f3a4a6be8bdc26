//! The servers' evidence: every version of every lock, out of the replica set's own log.
//!
//! The clients' histories are one witness, and this is the other. The log has, in the one order in which the set
//! agreed on them, all writes to the locks' documents: who stood where in the queue, who was granted when under which
//! token, and until when by the servers' clock. It is read when the cluster is whole, with read concern majority, so
//! nothing in it can be rolled back any more.

use std::{collections::HashMap, io};

use futures::TryStreamExt;
use mongodb::{
    Client,
    bson::{Bson, Document, Timestamp, doc},
    options::ReadConcern,
};
use serde::{Deserialize, Serialize};

use crate::{
    Result,
    foreign::UNREADABLE,
    locks::{FIELD, JOBS, LOCKS},
    record::Log,
};

/// One version of one lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) name: String,
    /// Number of earlier deletions of documents of this name.
    pub(crate) epoch: usize,
    /// When it was written, in milliseconds by the primary's clock.
    pub(crate) at: i64,
    /// `None`: it is gone.
    pub(crate) state: Option<State>,
}

/// The contents of a lock's document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) capacity: i64,
    pub(crate) token: i64,
    /// The largest token that an operator evicted.
    pub(crate) broken: Option<i64>,
    pub(crate) holders: Vec<Entry>,
    pub(crate) queue: Vec<Entry>,
    /// The count of writes: it falls where another program saved an earlier state.
    #[serde(default)]
    pub(crate) version: i64,
}

/// A holder of the lock, or a waiter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) permits: i64,
    pub(crate) until: i64,
    /// The client and its operation.
    pub(crate) reason: String,
    /// Only of a holder.
    pub(crate) token: Option<i64>,
}

/// A reader of the log, part by part.
#[derive(Debug)]
pub(crate) struct Reader {
    database: String,
    after: Option<Timestamp>,
    documents: HashMap<(String, String), Document>,
    last: HashMap<String, Version>,
    epochs: HashMap<String, usize>,
}

impl Reader {
    pub(crate) fn new(database: &str) -> Self {
        Self {
            database: database.to_owned(),
            after: None,
            documents: HashMap::new(),
            last: HashMap::new(),
            epochs: HashMap::new(),
        }
    }

    /// Records what came since the last time, from the primary that `client` leads to.
    pub(crate) async fn read(&mut self, client: &Client, to: &Log) -> Result<()> {
        let log = client.database("local").collection::<Document>("oplog.rs");
        if let Some(after) = self.after {
            let first = log.find_one(doc! {}).sort(doc! { "$natural": 1 }).await?;
            let first = first.and_then(|entry| entry.get_timestamp("ts").ok());
            if first.is_none_or(|first| first > after) {
                return Err("the servers' log has run over: it has to be longer, or a burst shorter".into());
            }
        }
        let (locks, jobs) = (
            format!("{}.{LOCKS}", self.database),
            format!("{}.{JOBS}", self.database),
        );
        // Unreadable documents are of no lock; their `_id`s are texts to the server.
        let unreadable = doc! { "$not": { "$gte": UNREADABLE, "$lt": format!("{UNREADABLE}~") } };
        let mut filter = doc! {
            "ns": { "$in": [locks, jobs, format!("{}.$cmd", self.database)] },
            "o._id": unreadable,
        };
        if let Some(after) = self.after {
            filter.insert("ts", doc! { "$gt": after });
        }
        let entries = log
            .find(filter)
            .sort(doc! { "$natural": 1 })
            .read_concern(ReadConcern::majority());
        let mut entries = entries.await?;
        while let Some(entry) = entries.try_next().await? {
            for version in self.take(&entry)? {
                to.write(&version);
            }
            self.after = Some(entry.get_timestamp("ts")?);
        }
        Ok(())
    }

    /// Returns the versions that one entry of the log makes.
    fn take(&mut self, entry: &Document) -> Result<Vec<Version>> {
        let at = entry.get_datetime("wall")?.timestamp_millis();
        let object = entry.get_document("o")?;
        let namespace = entry.get_str("ns")?;
        let collection = namespace
            .strip_prefix(&format!("{}.", self.database))
            .unwrap_or(namespace);
        let operation = entry.get_str("op")?;
        if operation == "c" {
            let Ok(dropped) = object.get_str("drop") else {
                return Ok(Vec::new());
            };
            let gone: Vec<_> = self.documents.keys().filter(|(of, _)| of == dropped).cloned().collect();
            return Ok(gone.into_iter().filter_map(|key| self.remove(key, at)).collect());
        }
        let id = match operation {
            "u" => entry.get_document("o2")?.get_str("_id")?,
            "i" | "d" => object.get_str("_id")?,
            _ => return Ok(Vec::new()),
        };
        let key = (collection.to_owned(), id.to_owned());
        match operation {
            "d" => return Ok(self.remove(key, at).into_iter().collect()),
            "u" if object.contains_key("$v") => {
                let diff = object.get_document("diff")?;
                let document = self.documents.get_mut(&key).ok_or("an update of nothing in the log")?;
                patch(document, diff)?;
            }
            _ => {
                self.documents.insert(key.clone(), object.clone());
            }
        }
        let document = &self.documents[&key];
        let lock = if collection == JOBS {
            document.get_document(FIELD).ok()
        } else {
            Some(document)
        };
        let Some(state) = lock.and_then(state) else {
            return Ok(Vec::new());
        };
        let epoch = self.epochs.get(&key.1).copied().unwrap_or(0);
        let version = Version {
            name: key.1.clone(),
            epoch,
            at,
            state: Some(state),
        };
        // A document that is locked in place changes without its lock.
        let known = self.last.get(&key.1);
        if known.is_some_and(|last| last.state == version.state && last.epoch == epoch) {
            return Ok(Vec::new());
        }
        self.last.insert(key.1, version.clone());
        Ok(vec![version])
    }

    fn remove(&mut self, key: (String, String), at: i64) -> Option<Version> {
        self.documents.remove(&key)?;
        let epoch = self.epochs.entry(key.1.clone()).or_default();
        let version = Version {
            name: key.1,
            epoch: *epoch,
            at,
            state: None,
        };
        *epoch += 1;
        Some(version)
    }
}

/// Returns the lock of a document; `None` if there is none in it.
fn state(lock: &Document) -> Option<State> {
    let entries = |field: &str| -> Option<Vec<Entry>> {
        let entries = lock.get_array(field).ok()?.iter().filter_map(Bson::as_document);
        entries.map(entry).collect()
    };
    Some(State {
        capacity: whole(lock.get("capacity"))?,
        token: whole(lock.get("token"))?,
        broken: whole(lock.get("broken")),
        holders: entries("holders")?,
        queue: entries("queue")?,
        version: whole(lock.get("version")).unwrap_or(0),
    })
}

fn entry(entry: &Document) -> Option<Entry> {
    let owner = entry.get_document("owner").ok()?;
    Some(Entry {
        id: entry.get_str("id").ok()?.to_owned(),
        permits: whole(entry.get("permits"))?,
        until: entry.get_datetime("until").ok()?.timestamp_millis(),
        reason: owner.get_str("reason").unwrap_or_default().to_owned(),
        token: whole(entry.get("token")),
    })
}

fn whole(value: Option<&Bson>) -> Option<i64> {
    match value? {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

/// Applies a difference as the log has it from MongoDB 5.0 on (`$v: 2`).
///
/// `d` lists fields that go, `u` and `i` those that are set, and `s` before a name stands for a difference inside that
/// field. A difference inside an array has `a: true`, perhaps its new length `l`, and `u` or `s` before indexes.
fn patch(document: &mut Document, diff: &Document) -> io::Result<()> {
    for (key, value) in diff {
        match (key.as_str(), value) {
            ("d", Bson::Document(gone)) => gone.keys().for_each(|field| {
                document.remove(field);
            }),
            ("u" | "i", Bson::Document(set)) => {
                for (field, value) in set {
                    document.insert(field, value.clone());
                }
            }
            (key, Bson::Document(inner)) if key.starts_with('s') => match document.get_mut(&key[1..]) {
                Some(Bson::Document(field)) => patch(field, inner)?,
                Some(Bson::Array(field)) => patch_array(field, inner)?,
                _ => return Err(io::Error::other(format!("the log changes `{key}`, which is not there"))),
            },
            _ => {
                return Err(io::Error::other(format!(
                    "the log has a difference that is unknown: {diff}"
                )));
            }
        }
    }
    Ok(())
}

fn patch_array(array: &mut Vec<Bson>, diff: &Document) -> io::Result<()> {
    let unknown = || io::Error::other(format!("the log has a difference of an array that is unknown: {diff}"));
    for (key, value) in diff {
        if key == "a" {
            continue;
        }
        if key == "l" {
            let length = whole(Some(value)).and_then(|length| usize::try_from(length).ok());
            array.resize(length.ok_or_else(unknown)?, Bson::Null);
            continue;
        }
        let index: usize = key.get(1..).and_then(|index| index.parse().ok()).ok_or_else(unknown)?;
        if index >= array.len() {
            array.resize(index + 1, Bson::Null);
        }
        match (key.as_bytes()[0], &mut array[index], value) {
            (b'u', element, value) => *element = value.clone(),
            (b's', Bson::Document(element), Bson::Document(inner)) => patch(element, inner)?,
            (b's', Bson::Array(element), Bson::Document(inner)) => patch_array(element, inner)?,
            _ => return Err(unknown()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_applied() {
        let mut document = doc! {
            "a": 1, "gone": 2, "inner": { "x": 1, "y": 2 }, "list": [{ "n": 1 }, { "n": 2 }, { "n": 3 }],
        };
        let diff = doc! {
            "d": { "gone": false }, "u": { "a": 5 }, "i": { "new": "n" },
            "sinner": { "u": { "y": 3 } },
            "slist": { "a": true, "l": 2, "s0": { "u": { "n": 9 } }, "u1": { "n": 8 } },
        };
        patch(&mut document, &diff).unwrap();
        let expected = doc! {
            "a": 5, "inner": { "x": 1, "y": 3 }, "list": [{ "n": 9 }, { "n": 8 }], "new": "n",
        };
        assert_eq!(document, expected);

        let mut grows = doc! { "list": [1] };
        patch(&mut grows, &doc! { "slist": { "a": true, "u1": 2 } }).unwrap();
        assert_eq!(grows, doc! { "list": [1, 2] });
        patch(&mut grows, &doc! { "selse": { "u": { "x": 1 } } }).unwrap_err();
    }
}
