//! Values of a leader that reach the server late: after another value, or after its leadership.

use watchlock::{errors::HoldError, operate::WakeSource};

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_comes_late_does_not_replace_a_later_one() {
    let (cluster, _turn, ground) = faulty_ground("late").await;
    let locks = ground.locks().await;
    let leading = std::sync::Arc::new(locks.election("x").campaign("zero").await.unwrap());
    let failing = ground.fail(cluster, times(1), &["findAndModify"], blocks(1500)).await;
    let early = leading.clone();
    let early = spawn(async move { early.proclaim("one").await });
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

/// The loss comes before the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_not_answered_before_the_loss_may_be_there() {
    let ground = Ground::replica_set("proclaimed_unanswered").await;
    let beside = ground.locks().await;
    let proxy = shared::replica_set().await.proxy(0).unwrap();
    let through = ground.through(proxy.uri()).builder().await;
    let locks = through.lease(Duration::from_secs(2)).build().await.unwrap();
    let leading = locks.election("x").campaign("zero").await.unwrap();
    proxy.black_hole_after("findAndModify");
    let proclaiming = spawn(async move { leading.proclaim("one").await });
    eventually(SOON, "the server has it", async || {
        let leader = beside.election("x").leader().await.unwrap();
        leader.is_some_and(|leader| leader.value == "one")
    })
    .await;
    let lost = within(PATIENCE, "the loss", proclaiming).await.unwrap().unwrap_err();
    assert!(matches!(lost, HoldError::Lost(_)), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_comes_after_the_loss_tells_how_it_was_lost() {
    let ground = Ground::replica_set("proclaimed_late").await;
    // Nothing tells it of the loss before its next renewal.
    let polling = ground.builder().await.wake_source(WakeSource::Polling);
    let locks = polling.build().await.unwrap();
    let other = ground.locks().await;
    let leading = locks.election("leader").campaign("zero").await.unwrap();
    let writing = locks.rw_lock("table").write().await.unwrap();
    for name in ["leader", "table"] {
        other.break_lock(name).await.unwrap().expect("it was held");
    }
    let late = leading.proclaim("one").await.unwrap_err();
    assert_lost!(HoldError, Broken, late);
    let late = writing.downgrade().await.unwrap_err();
    assert_lost!(HoldError, Broken, late);
}
