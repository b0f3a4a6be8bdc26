//! The index by which the server purges idle locks.

use mongodb::bson::doc;
use watchlock::LockClient;

use crate::setup::{Ground, PATIENCE, eventually, faulty};

const INDEX: &str = "watchlock_purge_at";

async fn is_there(ground: &Ground) -> bool {
    let names = ground.documents().await.list_index_names().await.unwrap_or_default();
    names.iter().any(|name| name == INDEX)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_asked_for_when_the_first_lock_is_granted() {
    let ground = Ground::replica_set("granted").await;
    let held = ground.locks().await.mutex("x").acquire().await.unwrap();
    let (client, sent) = ground.noting_driver().await;
    let locks = LockClient::builder(client.database(&ground.database))
        .build()
        .await
        .unwrap();
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
    assert!(locks.mutex("x").try_acquire().or_held().await.is_err());
    locks.inspect("x").await.unwrap();
    locks.list().await.unwrap();
    held.release().await.unwrap();
    // Nothing that comes to nothing asks for it, so this is the first.
    assert_eq!(sent.count("createIndexes"), 0);
    let _held = locks.mutex("x").acquire().await.unwrap();
    eventually(PATIENCE, "it is asked for", async || sent.count("createIndexes") == 1).await;
    eventually(PATIENCE, "it is there", async || is_there(&ground).await).await;
    let _other = locks.mutex("y").acquire().await.unwrap();
    assert_eq!(sent.count("createIndexes"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_asked_for_again_after_a_failure_that_passes() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "again").by_name();
    let (client, sent) = ground.noting_driver().await;
    let failing = doc! { "failCommands": ["createIndexes"], "appName": &ground.database, "closeConnection": true };
    let failing = cluster.fail_commands(0, doc! { "times": 2 }, failing).await.unwrap();
    let locks = LockClient::builder(client.database(&ground.database))
        .build()
        .await
        .unwrap();
    let _held = locks.mutex("x").acquire().await.unwrap();
    eventually(PATIENCE, "it is there", async || is_there(&ground).await).await;
    assert_eq!(sent.count("createIndexes"), 3);
    failing.off().await.unwrap();
}
