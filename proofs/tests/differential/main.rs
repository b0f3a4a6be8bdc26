//! The pipelines, run by a real server, against the specification.
//!
//! Here are the run of sequences side by side, and the tests of each use. The other tests compare with the
//! specification what is no step of a sequence:
//!
//! - [`sharing`]: renewals of many locks in one document, and the removal of those that are idle for long.
//! - [`later`]: documents of a later protocol, which no pipeline changes.
//! - [`single`]: single operations: those that write nothing, and the one with the most entries.
//! - [`sizes`]: the bounds of documents in commands.
//! - [`together`]: operations on several locks in one statement.

mod later;
mod sharing;
mod single;
mod sizes;
mod together;

use mongodb::bson::Document;
use watchlock_core::protocol::Kind;
use watchlock_proofs::differential::{MIXED, Seen, Setup, compare};
use watchlock_testkit::shared;

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
async fn run(setup: &Setup, seeds: impl IntoIterator<Item = u64>) {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("differential"));
    let collection = database.collection::<Document>("locks");
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let mut seen = Vec::new();
    for together in seeds.chunks(TOGETHER) {
        let compared = compare(&collection, setup, together.iter().copied(), STEPS)
            .await
            .unwrap();
        seen.extend(compared.unwrap_or_else(|mismatch| panic!("{mismatch}")));
    }
    let number = |of: fn(&Seen) -> u32| seen.iter().map(of).sum::<u32>();
    let kept = (number(|seen| seen.kept), number(|seen| seen.spared));
    assert!(kept.0 > 10 && kept.1 > 0, "{kept:?}");
    let breaks = (number(|seen| seen.broken), number(|seen| seen.not_broken));
    assert!(breaks.0 > 10 && breaks.1 > 10, "{breaks:?}");
    if setup.uses.iter().any(|(_, capacity)| *capacity > 1) {
        let downgrades = (number(|seen| seen.downgraded), number(|seen| seen.not_downgraded));
        assert!(downgrades.0 > 0 && downgrades.1 > 0, "{downgrades:?}");
        let upgrades = (number(|seen| seen.upgraded), number(|seen| seen.not_upgraded));
        assert!(upgrades.0 > 2 && upgrades.1 > 2, "{upgrades:?}");
        let found_no_room = number(|seen| seen.found_no_room);
        assert!(found_no_room > 0);
        let changes = (number(|seen| seen.lengthened), number(|seen| seen.renamed));
        assert!(changes.0 > 0 && changes.1 > 0, "{changes:?}");
    }
    let mut semaphores = setup.uses.iter().map(|(kind, _)| *kind == Kind::Semaphore);
    if semaphores.clone().any(|is_one| is_one) {
        assert!(number(|seen| seen.met_other_number) > 0);
    }
    if semaphores.all(|is_one| is_one) {
        let sets = (number(|seen| seen.set_granted), number(|seen| seen.set_refused));
        assert!(sets.0 > 0 && sets.1 > 0, "{sets:?}");
    }
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
