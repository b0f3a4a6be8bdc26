//! The entries ahead of a waiter, as a read of the document finds them.

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use watchlock_testkit::shared;

use super::{
    STEPS,
    sequence::Sequence,
    setup::{MIXED, Setup},
};
use crate::protocol::{Ahead, Kind, ServerTime, State, ahead, document::Malformed};

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
        for seed in 0..60 {
            looks.compare_along_a_sequence(seed, &mut seen).await;
        }
        looks.find_nothing_without_a_lock().await;
    }
    assert!(
        seen.in_queue > 100 && seen.elsewhere > 100 && seen.asleep > 10 && seen.unreadable > 10,
        "{seen:?}"
    );
}

/// How many entries were found in each way.
#[derive(Debug, Default)]
struct Seen {
    in_queue: u32,
    elsewhere: u32,
    asleep: u32,
    unreadable: u32,
}

/// Looks at the documents of one collection.
struct Looks<'a> {
    setup: &'a Setup,
    collection: Collection<Document>,
}

impl Looks<'_> {
    async fn insert(&self, id: &str, mut document: Document) {
        document.insert("_id", id);
        self.collection.insert_one(document).await.unwrap();
    }

    /// Returns what the server finds ahead of an entry, and the server's time.
    async fn look(&self, id: &str, entry: &str) -> (Result<Option<Ahead>, Malformed>, ServerTime) {
        let mut projection = ahead::projection(&self.setup.at, entry);
        projection.insert("now", "$$NOW");
        let found = self
            .collection
            .find_one(doc! { "_id": id })
            .projection(projection)
            .await;
        let found = found.unwrap().unwrap();
        let now = ServerTime::in_field(&found, "now").unwrap();
        (ahead::read(&found, now), now)
    }

    /// Compares what is ahead of the entries after each step of a sequence.
    async fn compare_along_a_sequence(&self, seed: u64, seen: &mut Seen) {
        let mut sequence = Sequence::new(seed, self.setup);
        for number in 0..STEPS {
            drop(sequence.step(number, self.setup));
            let (Some(state), Some(document)) = (&sequence.expected, sequence.document(self.setup)) else {
                continue;
            };
            let id = format!("{} {seed} {number}", self.setup.at.path());
            self.insert(&id, document.clone()).await;
            self.compare(&id, state, seen).await;
            if let Some(waiter) = state.queue.last().filter(|_| seed.is_multiple_of(8)) {
                self.refuse_broken_locks(&id, &waiter.id, &document).await;
                seen.unreadable += 1;
            }
        }
    }

    /// Compares what is ahead of each entry of a document, and of entries that it does not have.
    async fn compare(&self, id: &str, state: &State, seen: &mut Seen) {
        let holders = state.holders.iter().map(|holder| &holder.id);
        let entries = holders.chain(state.queue.iter().map(|waiter| &waiter.id));
        for entry in entries.map(String::as_str).chain(["nobody", "$holders.id"]) {
            let (found, now) = self.look(id, entry).await;
            let expected = Ahead::of(state, entry, now);
            assert_eq!(found.as_ref(), Ok(&expected), "{entry} in {state:?}");
            seen.in_queue += u32::from(expected.is_some_and(|ahead| ahead.turns > 0));
            seen.elsewhere += u32::from(expected.is_none());
            seen.asleep += u32::from(expected.is_some_and(|ahead| ahead.asleep));
        }
    }

    /// Checks that a lock without one of the fields that a look reads is refused.
    async fn refuse_broken_locks(&self, id: &str, waiter: &str, document: &Document) {
        for missing in ["queue", "holders", "capacity"] {
            let mut document = document.clone();
            self.setup.at.lock_mut(&mut document).unwrap().remove(missing);
            let id = format!("{id} {missing}");
            self.insert(&id, document.clone()).await;
            let (found, _) = self.look(&id, waiter).await;
            assert!(found.is_err(), "{document}: {found:?}");
            assert!(self.setup.at.state(&document).is_err(), "{document}");
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
            self.insert(&id, document).await;
            assert_eq!(self.look(&id, "nobody").await.0, Ok(None), "{id}");
        }
    }
}
