//! A server whose clock is set while locks are held, by libfaketime; where there is none, chaos says that it is left
//! out.

use mongodb::bson::DateTime;
use watchlock_testkit::{Cluster, clock};

use crate::setup::*;

const LEASE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_clock_is_set_ahead_gives_nothing_away_that_is_believed_held() {
    if clock::library().is_none() {
        eprintln!("left out: there is no libfaketime");
        return;
    }
    let cluster = Cluster::builder().standalone().clocks(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "clock").by_name();
    let other = Ground::through(&ground, cluster.uri()).locks().await;
    let locks = ground.builder().await.lease(LEASE).build().await.unwrap();
    let held = locks.mutex("x").acquire().await.unwrap();
    // Renewals hang, so that it is to be seen what becomes of the deadline without them.
    let fault = ground.fail(&cluster, "alwaysOn", &["update"], blocks(10_000)).await;
    let before = held.safe_for();
    assert!(before > LEASE / 2, "{before:?}");
    cluster.set_clock(0, 8_000).unwrap();
    // Whatever is sent tells the server's clock, once the server has noticed.
    let heard = async || {
        locks.mutex("heard").acquire().await.unwrap().release().await.unwrap();
        before.saturating_sub(held.safe_for()) > Duration::from_millis(7_500)
    };
    eventually(Duration::from_secs(6), "the deadline is earlier", heard).await;
    assert!(held.lost_reason().is_none());
    let beside = locks.mutex("y").acquire().await.unwrap();
    assert_eq!((held.status(), beside.status()), (LockStatus::AtRisk, LockStatus::Held));
    fault.off().await.unwrap();
    eventually(PATIENCE, "it is renewed by the new clock", async || {
        held.status() == LockStatus::Held && held.safe_for() > LEASE / 2
    })
    .await;

    // Further than a lease, and nobody but the heartbeat asks.
    cluster.set_clock(0, 8_000 + 2 * 20_000).unwrap();
    pause(clock::NOTICED).await;
    let taken = eventually_taken(&other).await;
    // Whoever had it hears of the clock by its next beat, although it asks for nothing.
    let lost = within(PATIENCE, "the loss", held.lost()).await;
    assert!(
        matches!(lost.reason, LostReason::Expired | LostReason::Overwritten),
        "{lost}"
    );
    assert!(taken.token() > held.token());
}

async fn eventually_taken(other: &watchlock::LockClient) -> watchlock::Held<watchlock::locks::Mutex> {
    let mutex = other.mutex("x");
    within(PATIENCE, "it is free by the server's clock", async {
        loop {
            if let Some(handle) = mutex.try_acquire().await.unwrap() {
                return handle;
            }
            pause(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// As after a fail-over to a primary whose clock is behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_client_is_the_later_one_also_where_the_clock_was_set_back() {
    if clock::library().is_none() {
        eprintln!("left out: there is no libfaketime");
        return;
    }
    let cluster = Cluster::builder().replica_set(1).clocks(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "back");
    let builder = async || ground.builder().await.owner_id("worker-3");
    let admin = ground.driver().await.database("admin");
    let set = async |ahead: i64| {
        cluster.set_clock(0, ahead).unwrap();
        eventually(PATIENCE, "the server has noticed", async || {
            let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
            let clock = hello.get_datetime("localTime").unwrap().timestamp_millis();
            (clock - DateTime::now().timestamp_millis() - ahead).abs() < 10_000
        })
        .await;
    };
    set(60_000).await;
    let before = builder().await.build().await.unwrap();
    let held = before.mutex("x").acquire().await.unwrap();
    set(0).await;
    for _ in 0..2 {
        let after = builder().await.build().await.unwrap();
        let again = after.mutex("x").acquire().timeout(PATIENCE).await.unwrap();
        assert!(again.token() > held.token());
        // It dies.
        std::mem::forget(again);
        std::mem::forget(after);
    }
    assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Adopted);
}
