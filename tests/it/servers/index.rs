//! The index by which the server purges free locks.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use tokio::{join, time::sleep};

use crate::setup::*;

const INDEX: &str = "watchlock_purge_at";

fn millis(time: &Bson) -> Option<Duration> {
    let millis = time.as_i64().or_else(|| time.as_i32().map(i64::from))?;
    u64::try_from(millis).ok().map(Duration::from_millis)
}

async fn is_there(ground: &Ground) -> bool {
    let names = ground.documents().await.list_index_names().await.unwrap_or_default();
    names.iter().any(|name| name == INDEX)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_asked_for_before_the_first_operation() {
    let ground = Ground::replica_set("first").await;
    let (client, sent) = ground.noting_driver().await;
    let locks = ground.locks_over(&client).await;
    locks.inspect("x").await.unwrap();
    locks.list().await.unwrap();
    // Who only looks makes nothing.
    assert_eq!(sent.count("createIndexes"), 0);
    let both = join!(locks.mutex("x").acquire(), locks.mutex("y").acquire());
    let _held = (both.0.unwrap(), both.1.unwrap());
    assert!(is_there(&ground).await);
    let commands = sent.names();
    let first = |name| commands.iter().position(|command| command == name);
    assert!(first("createIndexes") < first("findAndModify"), "{commands:?}");
    assert_eq!(sent.count("createIndexes"), 1);
}

/// The server builds an index with all others shut out, for which it waits until no transaction is in the way.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_missing_where_a_transaction_is_open_stops_nobody_for_long() {
    let ground = Ground::replica_set("open").await;
    let driver = ground.driver().await;
    let documents = ground.of(&driver, COLLECTION);
    documents.insert_one(doc! { "_id": "written" }).await.unwrap();
    let mut session = writing(&driver, &documents, "written").await;

    // While an index is to be built, all others wait. How long they do is the machine's too, so the time counts that
    // the server may take for it.
    let building = Arc::new(Mutex::new(Vec::new()));
    let times = building.clone();
    let hear = move |event| {
        if let CommandEvent::Started(started) = event
            && started.command_name == "createIndexes"
        {
            times
                .lock()
                .unwrap()
                .push(started.command.get("maxTimeMS").and_then(millis));
        }
    };
    let locks = ground.locks_over(&ground.overheard_driver(hear).await).await;
    let start = Instant::now();
    let mut served = 0;
    while start.elapsed() < Duration::from_secs(4) {
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
        served += 1;
        sleep(Duration::from_millis(5)).await;
    }
    let took = start.elapsed();
    let building = building.lock().unwrap().clone();
    let limits: Vec<Duration> = building.into_iter().map(|limit| limit.expect("a limit")).collect();
    assert!(!limits.is_empty(), "the transaction is in the way");
    assert!(limits.iter().sum::<Duration>() < took / 4, "{limits:?} of {took:?}");
    // Nor does each wait by itself.
    assert!(served > 10, "{served}");
    assert!(!is_there(&ground).await);
    session.abort_transaction().await.unwrap();
    // The pause after the second try that the server gave up.
    eventually(PATIENCE, "it is there", async || is_there(&ground).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_asked_for_again_after_a_failure_that_passes() {
    let (cluster, _turn, ground) = faulty_ground("again").await;
    // An index that a majority may not have can be rolled back.
    let lagging = doc! { "writeConcernError": { "code": 91, "errmsg": "soon" } };
    for failure in [doc! { "closeConnection": true }, lagging] {
        let (client, sent) = ground.noting_driver().await;
        let failing = ground.fail(cluster, times(2), &["createIndexes"], failure).await;
        let locks = ground.locks_over(&client).await;
        let held = locks.mutex("x").acquire().await.unwrap();
        // Two that failed, and one that was answered, or more where a busy server takes longer than the first of them
        // give it.
        eventually(PATIENCE, "it is asked for again", async || {
            sent.count("createIndexes") >= 3
        })
        .await;
        failing.wait_entered(2, PATIENCE).await.unwrap();
        eventually(PATIENCE, "it is there", async || is_there(&ground).await).await;
        // On a busy server it may ask once more, and would meet the next failure.
        held.release().await.unwrap();
        locks.shutdown().await;
        failing.off().await.unwrap();
    }
}
