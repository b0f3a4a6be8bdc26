//! The entries ahead of a waiter, as a read of the document finds them.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use futures::TryStreamExt;
use mongodb::{
    Collection,
    bson::{Document, doc},
};
use watchlock_core::protocol::{Ahead, Kind, ServerTime, State, ahead, document::Malformed};
use watchlock_proofs::differential::{MIXED, Sequence, Setup};
use watchlock_testkit::shared;

use super::{STEPS, sequences};

/// The server and the specification find the same ahead of an entry, also if the entry is not there, or no lock. What
/// can't be read is not taken for a queue without the entry.
#[tokio::test]
async fn the_entries_ahead_of_a_waiter_are_found_alike() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("ahead"));
    let mut seen = Seen::default();
    for (path, uses) in [("", MIXED), ("a.b", &[(Kind::Document, 1)])] {
        let setup = Setup::at_path(path, uses);
        let looks = Looks {
            setup: &setup,
            collection: database.collection("locks"),
        };
        looks.compare_along_sequences(0..sequences() / 5, &mut seen).await;
        looks.find_nothing_without_a_lock().await;
    }
    assert!(
        seen.in_queue > 100 && seen.elsewhere > 100 && seen.unreadable > 30,
        "{seen:?}"
    );
}

/// How many entries were found in each way.
#[derive(Debug, Default)]
struct Seen {
    in_queue: u32,
    elsewhere: u32,
    unreadable: u32,
}

/// Looks at the documents of one collection.
struct Looks<'a> {
    setup: &'a Setup,
    collection: Collection<Document>,
}

/// What a look finds: the entries ahead, and the server's time.
type Found = (Result<Option<Ahead>, Malformed>, ServerTime);

impl Looks<'_> {
    /// Inserts documents under these ids.
    async fn insert(&self, documents: impl IntoIterator<Item = (String, Document)>) {
        let with_id = |(id, mut document): (String, Document)| {
            document.insert("_id", id);
            document
        };
        let documents: Vec<_> = documents.into_iter().map(with_id).collect();
        self.collection.insert_many(documents).await.unwrap();
    }

    /// Returns what the server finds ahead of an entry in each of these documents.
    async fn look(&self, ids: &[&str], entry: &str) -> HashMap<String, Found> {
        let mut projection = ahead::projection(&self.setup.at, entry);
        projection.extend(doc! { "now": "$$NOW", "of": "$_id" });
        let found = self.collection.find(doc! { "_id": { "$in": ids } });
        let found = found.projection(projection).await.unwrap();
        let read = |document: Document| {
            let now = ServerTime::in_field(&document, "now").unwrap();
            let id = document.get_str("of").unwrap().to_owned();
            (id, (ahead::read(&document, now), now))
        };
        found.map_ok(read).try_collect().await.unwrap()
    }

    /// Compares what is ahead of the entries after each step of these sequences.
    async fn compare_along_sequences(&self, seeds: Range<u64>, seen: &mut Seen) {
        let (mut readable, mut broken) = (BTreeMap::new(), BTreeMap::new());
        for seed in seeds {
            let mut sequence = Sequence::new(seed, self.setup);
            for number in 0..STEPS {
                drop(sequence.step(number, self.setup));
                let (Some(state), Some(document)) = (&sequence.expected, sequence.document(self.setup)) else {
                    continue;
                };
                let id = format!("{} {seed} {number}", self.setup.at.path());
                if let Some(waiter) = state.queue.last().filter(|_| seed.is_multiple_of(8)) {
                    for missing in ["queue", "holders", "capacity"] {
                        let mut document = document.clone();
                        self.setup.at.lock_mut(&mut document).unwrap().remove(missing);
                        broken.insert(format!("{id} {missing}"), (waiter.id.clone(), document));
                    }
                }
                readable.insert(id, (state.clone(), document));
            }
        }
        self.compare(readable, seen).await;
        self.refuse(broken, seen).await;
    }

    /// Compares what is ahead of each entry of these documents, and of entries that they don't have.
    async fn compare(&self, documents: BTreeMap<String, (State, Document)>, seen: &mut Seen) {
        self.insert(
            documents
                .iter()
                .map(|(id, (_, document))| (id.clone(), document.clone())),
        )
        .await;
        let mut looked_for: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (id, (state, _)) in &documents {
            let holders = state.holders.iter().map(|holder| &holder.id);
            let entries = holders.chain(state.queue.iter().map(|waiter| &waiter.id));
            for entry in entries.map(String::as_str).chain(["nobody", "$holders.id"]) {
                looked_for.entry(entry).or_default().push(id);
            }
        }
        for (entry, ids) in looked_for {
            let mut found = self.look(&ids, entry).await;
            for id in ids {
                let (state, _) = &documents[id];
                let (found, now) = found.remove(id).unwrap();
                let expected = Ahead::of(state, entry, now);
                assert_eq!(found.as_ref(), Ok(&expected), "{entry} in {state:?}");
                seen.in_queue += u32::from(expected.is_some_and(|ahead| ahead.turns > 0));
                seen.elsewhere += u32::from(expected.is_none());
            }
        }
    }

    /// Checks that locks without one of the fields that a look reads are refused.
    async fn refuse(&self, documents: BTreeMap<String, (String, Document)>, seen: &mut Seen) {
        self.insert(
            documents
                .iter()
                .map(|(id, (_, document))| (id.clone(), document.clone())),
        )
        .await;
        for (id, (waiter, document)) in &documents {
            let (found, _) = self.look(&[id], waiter).await.remove(id).unwrap();
            assert!(found.is_err(), "{document}: {found:?}");
            assert!(self.setup.at.state(document).is_err(), "{document}");
            seen.unreadable += 1;
        }
    }

    async fn find_nothing_without_a_lock(&self) {
        let documents = [
            doc! {},
            doc! { "a": 7 },
            doc! { "a": { "b": 7 } },
            doc! { "a": { "b": { "c": 7 } } },
        ];
        for (number, document) in documents.into_iter().enumerate() {
            let id = format!("{} without a lock {number}", self.setup.at.path());
            self.insert([(id.clone(), document)]).await;
            let (found, _) = self.look(&[&id], "nobody").await.remove(&id).unwrap();
            assert_eq!(found, Ok(None), "{id}");
        }
    }
}
