//! The entries ahead of a waiter, as a read of the document finds them.

use mongodb::bson::{Document, doc};
use watchlock_testkit::shared;

use super::{
    STEPS,
    sequence::Sequence,
    setup::{MIXED, Setup},
};
use crate::protocol::{Kind, ServerTime, ahead};

/// The server and the specification find the same ahead of an entry, also if the entry is not there, or no lock. What
/// can't be read is not taken for a queue without the entry.
#[tokio::test]
async fn the_entries_ahead_of_a_waiter_are_found_alike() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("ahead"));
    let collection = database.collection::<Document>("locks");
    let (mut in_queue, mut elsewhere, mut asleep, mut unreadable) = (0, 0, 0, 0);
    for (path, uses) in [("", MIXED), ("a.b", &[(Kind::Document, 1)])] {
        let setup = Setup::at_path(path, uses);
        let look = async |id: &str, entry: &str| {
            let mut projection = ahead::projection(&setup.at, entry);
            projection.insert("now", "$$NOW");
            let found = collection.find_one(doc! { "_id": id }).projection(projection).await;
            let found = found.unwrap().unwrap();
            let now = ServerTime::in_field(&found, "now").unwrap();
            (ahead::read(&found, now), now)
        };
        for seed in 0..60 {
            let mut sequence = Sequence::new(seed, &setup);
            for number in 0..STEPS {
                drop(sequence.step(number, &setup));
                let (Some(state), Some(mut document)) = (sequence.expected.clone(), sequence.document(&setup)) else {
                    continue;
                };
                let id = format!("{path} {seed} {number}");
                document.insert("_id", &id);
                collection.insert_one(&document).await.unwrap();
                let holders = state.holders.iter().map(|holder| &holder.id);
                let entries = holders.chain(state.queue.iter().map(|waiter| &waiter.id));
                for entry in entries.map(String::as_str).chain(["nobody", "$holders.id"]) {
                    let (found, now) = look(&id, entry).await;
                    let expected = ahead::Ahead::of(&state, entry, now);
                    assert_eq!(found.as_ref(), Ok(&expected), "{entry} in {state:?}");
                    in_queue += u32::from(expected.is_some_and(|ahead| ahead.turns > 0));
                    elsewhere += u32::from(expected.is_none());
                    asleep += u32::from(expected.is_some_and(|ahead| ahead.asleep));
                }
                let Some(waiter) = state.queue.last().filter(|_| seed % 8 == 0) else {
                    continue;
                };
                for missing in ["queue", "holders", "capacity"] {
                    let mut document = document.clone();
                    setup.at.lock_mut(&mut document).unwrap().remove(missing);
                    let id = format!("{id} {missing}");
                    document.insert("_id", &id);
                    collection.insert_one(&document).await.unwrap();
                    let (found, _) = look(&id, &waiter.id).await;
                    assert!(found.is_err(), "{document}: {found:?}");
                    assert!(setup.at.state(&document).is_err(), "{document}");
                    unreadable += 1;
                }
            }
        }
        let nothing = [
            doc! {},
            doc! { "a": 7 },
            doc! { "a": { "b": 7 } },
            doc! { "a": { "b": { "c": 7 } } },
        ];
        for (number, mut document) in nothing.into_iter().enumerate() {
            let id = format!("{path} without a lock {number}");
            document.insert("_id", &id);
            collection.insert_one(document).await.unwrap();
            assert_eq!(look(&id, "nobody").await.0, Ok(None), "{id}");
        }
    }
    assert!(
        in_queue > 100 && elsewhere > 100 && asleep > 10 && unreadable > 10,
        "{in_queue} {elsewhere} {asleep} {unreadable}"
    );
}
