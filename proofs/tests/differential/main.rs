//! The pipelines, run by a real server, against the specification.
//!
//! Random sequences of operations and renewals, with time moved on and back at will, are applied to the pure
//! transitions and to a collection; after every step the two documents must be the same, to the bit. Many sequences go
//! side by side, each with a document of its own.
//!
//! - [`setup`]: the locks of a run, and the strings and ids of their steps.
//! - [`steps`]: the drawing of a step, with the weights of each kind.
//! - [`sequence`]: one sequence on its way, and the document that it must have.
//!
//! Here are the run of sequences side by side, and the tests of each use. The other tests compare with the
//! specification what is no step of a sequence:
//!
//! - [`sharing`]: renewals of many locks in one document, and the removal of those that are idle for long.
//! - [`ahead`]: reads of the entries ahead of a waiter.
//! - [`later`]: documents of a later protocol, which no pipeline changes.
//! - [`single`]: single operations: those that write nothing, and the one with the most entries.
//! - [`sizes`]: the bounds of documents in commands.
//! - [`together`]: operations on several locks in one statement.

mod ahead;
mod later;
mod sequence;
mod setup;
mod sharing;
mod single;
mod sizes;
mod steps;
mod together;

use std::{collections::HashMap, ops::Range};

use futures::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Bson, Document, doc},
};
use watchlock_core::protocol::Kind;
use watchlock_testkit::shared;

use sequence::{Seen, Sequence};
use setup::{MIXED, Setup};
use steps::Move;

/// Sequences of an everyday run, and steps in each. `WATCHLOCK_SEQUENCES=10000` sets more.
const SEQUENCES: u64 = 300;
const STEPS: usize = 8;

/// Sequences whose steps are sent in one command.
const TOGETHER: usize = 250;

fn sequences() -> u64 {
    match std::env::var("WATCHLOCK_SEQUENCES") {
        Ok(number) => number.parse().expect("a number"),
        Err(_) => SEQUENCES,
    }
}

/// Runs sequences side by side, with a step of all of them in one command.
async fn run(setup: &Setup, seeds: Range<u64>) {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("differential"));
    let collection = database.collection::<Document>("locks");
    let seeds: Vec<u64> = seeds.collect();
    let mut seen = Vec::new();
    for together in seeds.chunks(TOGETHER) {
        let mut sequences: Vec<_> = together.iter().map(|seed| Sequence::new(*seed, setup)).collect();
        let users: Vec<_> = sequences.iter().filter_map(|sequence| sequence.users.clone()).collect();
        if !users.is_empty() {
            collection.insert_many(users).await.unwrap();
        }
        for number in 0..STEPS {
            let taken = take_a_step(&mut sequences, number, setup, &database).await;
            let mut found = documents(&sequences, &collection).await;
            for (sequence, step) in sequences.iter().zip(&taken) {
                let found = found.remove(sequence.id.as_str().unwrap());
                let seed = sequence.seed;
                assert_eq!(
                    found,
                    sequence.document(setup),
                    "sequence {seed}, step {number}: {step:?}"
                );
            }
        }
        seen.extend(sequences.iter().map(|sequence| sequence.seen));
    }
    let number = |of: fn(&Seen) -> u32| seen.iter().map(of).sum::<u32>();
    let kept = (number(|seen| seen.kept), number(|seen| seen.spared));
    assert!(kept.0 > 10 && kept.1 > 0, "{kept:?}");
    let breaks = (number(|seen| seen.broken), number(|seen| seen.not_broken));
    assert!(breaks.0 > 10 && breaks.1 > 10, "{breaks:?}");
    if setup.uses.iter().any(|(_, capacity)| *capacity > 1) {
        let downgrades = (number(|seen| seen.downgraded), number(|seen| seen.not_downgraded));
        assert!(downgrades.0 > 0 && downgrades.1 > 0, "{downgrades:?}");
    }
}

/// Takes a step of each sequence by the specification and on the server. Returns the steps.
async fn take_a_step(
    sequences: &mut [Sequence],
    number: usize,
    setup: &Setup,
    database: &Database,
) -> Vec<Option<Move>> {
    let mut updates = Vec::new();
    let mut taken = Vec::new();
    for sequence in sequences {
        let step = sequence.step(number, setup);
        taken.push(step.map(|(step, update)| {
            updates.push(update);
            step
        }));
    }
    let answer = database
        .run_command(doc! { "update": "locks", "updates": updates, "ordered": false })
        .await
        .unwrap();
    assert_eq!(answer.get("writeErrors"), None);
    taken
}

/// Returns the documents of the sequences as the server has them, by their ids.
async fn documents(sequences: &[Sequence], collection: &Collection<Document>) -> HashMap<String, Document> {
    let ids: Vec<&Bson> = sequences.iter().map(|sequence| &sequence.id).collect();
    let found = collection.find(doc! { "_id": { "$in": ids } }).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let found = found.into_iter();
    found
        .map(|document| (document.get_str("_id").unwrap().to_owned(), document))
        .collect()
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_mixed_uses() {
    run(&Setup::at_path("", MIXED), 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_mutexes() {
    run(&Setup::at_path("", &[(Kind::Mutex, 1)]), 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_elections() {
    let seeds = sequences()..2 * sequences();
    run(&Setup::at_path("", &[(Kind::Election, 1)]), seeds).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_semaphores() {
    run(&Setup::at_path("", &[(Kind::Semaphore, 3)]), 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_readers_and_writers() {
    run(&Setup::at_path("", &[(Kind::RwLock, 1 << 20)]), 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_locks_in_documents() {
    let paths = ["watchlock", "a.b", r#"a.of%2Elines.sku="%24NOW",line=7"#];
    let third = sequences() / 3;
    for (path, seeds) in paths
        .into_iter()
        .zip([0..third, third..2 * third, 2 * third..sequences()])
    {
        run(&Setup::at_path(path, &[(Kind::Document, 1)]), seeds).await;
    }
}
