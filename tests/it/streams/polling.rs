//! Clients without a change stream, beside others.

use watchlock::{
    errors::BuildError,
    operate::{WakeMode, WakeSource},
};

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn those_who_poll_and_those_who_watch_share_one_queue() {
    let ground = Ground::replica_set("mixed").await;
    let polling = async || ground.polling().await;
    let (first, second, third) = (ground.locks().await, polling().await, ground.locks().await);
    let held = first.mutex("x").acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (number, locks) in [second.clone(), third.clone()].into_iter().enumerate() {
        let served = served.clone();
        spawn(async move {
            let handle = locks.mutex("x").acquire().await.unwrap();
            served.send(number).unwrap();
            handle.release().await.unwrap();
        });
        until_waiting(&first, "x", number + 1).await;
    }
    held.release().await.unwrap();
    for number in 0..2 {
        assert_eq!(within(SOON, "the next", order.recv()).await, Some(number));
    }
    assert_eq!(third.wake_mode(), WakeMode::ChangeStream);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_stream_can_be_insisted_on() {
    let standalone = Ground::standalone("insisting").await;
    let error = standalone
        .builder()
        .await
        .wake_source(WakeSource::ChangeStream)
        .build()
        .await
        .unwrap_err();
    assert!(matches!(error, BuildError::NoChangeStream), "{error}");
    assert!(error.to_string().contains("replica set"), "{error}");

    let ground = Ground::replica_set("insisting").await;
    let locks = ground
        .locks_with(|builder| builder.wake_source(WakeSource::ChangeStream))
        .await;
    assert_eq!(locks.wake_mode(), WakeMode::ChangeStream);
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wake_mode_tells_how_waiters_are_woken() {
    let modes: Vec<String> = places("mode")
        .await
        .iter()
        .map(|(a, _)| a.wake_mode().to_string())
        .collect();
    assert_eq!(
        modes,
        [
            "change stream",
            "change stream",
            "polling, as the server is a standalone"
        ]
    );
}
