//! Values of a leader that reach the server in another order than they were proclaimed in.

use std::time::Duration;

use mongodb::bson::doc;

use crate::setup::{Ground, PATIENCE, faulty, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_comes_late_does_not_replace_a_later_one() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "late").by_name();
    let locks = ground.locks().await;
    let leading = std::sync::Arc::new(locks.election("x").campaign("zero").await.unwrap());
    let hung = doc! {
        "failCommands": ["findAndModify"], "appName": &ground.database, "blockConnection": true, "blockTimeMS": 1500,
    };
    let failing = cluster.fail_commands(0, doc! { "times": 1 }, hung).await.unwrap();
    let early = leading.clone();
    let early = tokio::spawn(async move { early.proclaim("one").await });
    failing.wait_entered(1, Duration::from_secs(20)).await.unwrap();
    leading.proclaim("two").await.unwrap();
    assert!(!early.is_finished());
    // It was proclaimed, and something else since.
    within(PATIENCE, "the first", early).await.unwrap().unwrap();
    assert_eq!(locks.election("x").leader().await.unwrap().unwrap().value, "two");
    leading.proclaim("three").await.unwrap();
    assert_eq!(locks.election("x").leader().await.unwrap().unwrap().value, "three");
    failing.off().await.unwrap();
}
