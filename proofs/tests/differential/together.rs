//! Operations on several locks in one statement: to each document, what the specification says of its own operation.

use std::collections::HashMap;

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use watchlock_core::protocol::{
    Expects, Kind, Operation, Owner, ServerTime, State,
    fixtures::{asking, leaving, request},
    pipeline, state,
};
use watchlock_proofs::Random;
use watchlock_testkit::shared;

use watchlock_proofs::differential::{MIXED, Sequence, Setup};

use super::sequences;

const NAMES: u64 = 64;

/// The server's clock, among the times of the sequences.
const NOW: ServerTime = ServerTime(1_700_000_000_500);

/// A document as another program, or a later version, has left it.
type Spoiled = Option<Document>;

/// Returns a name, its lock after some steps, and sometimes what has become of its document since.
fn drawn(seed: u64, setup: &Setup) -> (String, Option<State>, Spoiled) {
    let mut random = Random::new(seed);
    let mut sequence = Sequence::new(seed, setup);
    for number in 0..usize::try_from(random.below(6)).unwrap() {
        sequence.step(number, setup);
    }
    let name = sequence.id.as_str().unwrap().to_owned();
    if let Some(state) = sequence.expected.as_mut().filter(|_| random.below(3) == 0) {
        // Everybody has left.
        state.holders.clear();
        state.queue.clear();
    }
    let spoiled = sequence
        .expected
        .as_ref()
        .filter(|_| random.below(8) == 0)
        .map(|state| {
            let mut document = state.to_document(&name);
            document.extend(match random.below(5) {
                0 => doc! { "protocol": 3_i64 },
                1 => doc! { "holders": "x" },
                2 => doc! { "token": f64::INFINITY, "holders": [1] },
                3 => doc! { "token": "x" },
                _ => doc! { "protocol": "x" },
            });
            document
        });
    (name, sequence.expected, spoiled)
}

/// Returns the operation of each of the names, all alike.
fn asked(
    locks: &[(String, Option<State>, Spoiled)],
    expects: Expects,
    requests: bool,
    setup: &Setup,
) -> Vec<Operation> {
    let mut random = Random::new(7);
    let mut operation = |number: usize, state: Option<&State>| {
        let entry = format!("z-{number}");
        if requests {
            let owner = Owner {
                host: random.pick(&setup.strings).clone(),
                reason: Some(random.pick(&setup.strings).clone()),
                ..Owner::default()
            };
            let request = watchlock_core::protocol::Request {
                owner,
                reserve: 63,
                ..request(&entry)
            };
            return Operation {
                expects,
                ..asking("z.1", request)
            };
        }
        // Mostly of one that holds the lock.
        let held = state.filter(|state| state.capacity == 1 && random.below(8) > 0);
        let holder = held.and_then(|state| state.holders.first());
        let entry = holder.map_or(entry, |holder| holder.id.clone());
        Operation {
            expects,
            ..leaving("z.1", &entry)
        }
    };
    let all = locks.iter().enumerate();
    all.map(|(number, (_, state, _))| operation(number, state.as_ref()))
        .collect()
}

#[tokio::test]
async fn a_statement_does_to_each_document_what_its_operation_would_alone() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("together"));
    let collection = database.collection::<Document>("locks");
    let (mut written, mut left) = ([0; 3], [0; 3]);
    let setups = [Setup::at_path("", MIXED), Setup::at_path("", &[(Kind::Mutex, 1)])];
    // One in which a semaphore of several holders was set to one permit.
    const FOUND: u64 = 576;
    for (first, setup) in (0..sequences())
        .step_by(64)
        .chain([FOUND])
        .flat_map(|first| setups.iter().map(move |setup| (first, setup)))
    {
        let locks: Vec<_> = (first..first + NAMES).map(|seed| drawn(seed, setup)).collect();
        let documents = locks.iter().filter_map(|(name, state, spoiled)| {
            spoiled
                .clone()
                .or_else(|| state.as_ref().map(|state| state.to_document(name)))
        });
        let documents: Vec<Document> = documents.collect();
        for (kind, (expects, requests)) in [
            (Expects::Alone, true),
            (Expects::Alone, false),
            (Expects::OnlyHolder, false),
        ]
        .into_iter()
        .enumerate()
        {
            collection.delete_many(doc! {}).await.unwrap();
            collection.insert_many(&documents).await.unwrap();
            let operations = asked(&locks, expects, requests, setup);
            assert!(
                operations
                    .iter()
                    .all(|one| one.is_shareable() && one.is_like(&operations[0]))
            );
            let asked: Vec<(&str, &Operation)> =
                locks.iter().map(|(name, ..)| name.as_str()).zip(&operations).collect();
            let names: Vec<&str> = asked.iter().map(|(name, _)| *name).collect();
            let update = doc! {
                "q": { "_id": { "$in": names } }, "u": pipeline::together(&asked, &Bson::from(NOW)), "multi": true,
            };
            let answer = database
                .run_command(doc! { "update": "locks", "updates": [update] })
                .await
                .unwrap();
            assert_eq!(answer.get("writeErrors"), None);
            let found: Vec<Document> = collection.find(doc! {}).await.unwrap().try_collect().await.unwrap();
            let by_name = found
                .into_iter()
                .map(|found| (found.get_str("_id").unwrap().to_owned(), found));
            let mut found: HashMap<String, Document> = by_name.collect();
            for ((name, before, spoiled), operation) in locks.iter().zip(&operations) {
                let after = before
                    .as_ref()
                    .and_then(|before| state::apply(Some(before), operation, NOW));
                let expected = spoiled
                    .clone()
                    .or_else(|| after.as_ref().map(|after| after.to_document(name)));
                assert_eq!(found.remove(name), expected, "{name} {operation:?} on {before:?}");
                if spoiled.is_none() && before.is_some() {
                    let count = if after == *before { &mut left } else { &mut written };
                    count[kind] += 1;
                }
            }
        }
    }
    assert!(
        written.iter().chain(&left).all(|count| *count > 10),
        "{written:?}, {left:?}"
    );
}
