//! Latches.

use tokio::time::sleep;
use watchlock::operate::Kind;
use watchlock_testkit::Cluster;

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_latch_opens_at_its_last_arrival_and_stays_open() {
    for (a, b) in places("latch").await {
        let (here, there) = (a.latch("x", 3), b.latch("x", 3));
        let waiting: Vec<_> = [&here, &there]
            .map(|latch| {
                let latch = latch.clone();
                spawn(async move { latch.wait().await })
            })
            .into();
        for (latch, missing) in [(&here, 2), (&there, 1)] {
            latch.count_down().await.unwrap();
            assert_eq!(here.missing().await.unwrap(), missing);
        }
        sleep(Duration::from_millis(30)).await;
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        here.count_down().await.unwrap();
        for opened in within(PATIENCE, "the latch opens", join_all(waiting)).await {
            opened.unwrap().unwrap();
        }
        // One more changes nothing, and who comes late does not wait.
        within(SOON, "an arrival at an open latch", there.count_down())
            .await
            .unwrap();
        within(SOON, "an open latch", there.wait()).await.unwrap();
        assert_eq!(there.missing().await.unwrap(), 0);
        let lock = a.inspect("x").await.unwrap().unwrap();
        assert_eq!(
            (lock.kind, lock.capacity, lock.holders.len()),
            (Kind::Latch, Some(3), 3)
        );
        assert!(lock.holders.iter().all(|holder| holder.released.is_some()));
        // An operator takes the arrivals back.
        b.break_lock("x").await.unwrap();
        assert_eq!(here.missing().await.unwrap(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_arrive_at_once_and_each_is_counted() {
    for (a, b) in places("crowd").await {
        let (here, there) = (a.latch("x", 40), b.latch("x", 40));
        let arrivals = (0..39).map(|place| {
            let latch = if place % 2 == 0 { &here } else { &there };
            latch.count_down()
        });
        for arrived in within(PATIENCE, "they arrive", join_all(arrivals)).await {
            arrived.unwrap();
        }
        assert_eq!(here.missing().await.unwrap(), 1);
        let waiting = spawn({
            let here = here.clone();
            async move { here.wait().await }
        });
        // More than are missing: one of them opens it, and the others find it open.
        for arrived in within(PATIENCE, "the last ones", join_all((0..3).map(|_| there.count_down()))).await {
            arrived.unwrap();
        }
        within(PATIENCE, "the latch opens", waiting).await.unwrap().unwrap();
        eventually(SOON, "who found it open has left the queue", async || {
            let lock = a.inspect("x").await.unwrap().unwrap();
            (lock.holders.len(), lock.waiters.len()) == (40, 0)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_party_is_counted_once_however_often_it_arrives() {
    for (a, b) in places("party").await {
        let (here, there) = (a.latch("x", 3), b.latch("x", 3));
        let twins = (0..8).map(|twin| {
            let latch = if twin % 2 == 0 { &here } else { &there };
            latch.count_down_as("shard-0")
        });
        for arrived in within(PATIENCE, "the twins arrive", join_all(twins)).await {
            arrived.unwrap();
        }
        there.count_down_as("shard-0").await.unwrap();
        assert_eq!(here.missing().await.unwrap(), 2);
        here.count_down_as("shard-1").await.unwrap();
        let parties = a.inspect("x").await.unwrap().unwrap().holders;
        let mut parties: Vec<_> = parties.into_iter().filter_map(|holder| holder.owner.value).collect();
        parties.sort();
        assert_eq!(parties, ["shard-0", "shard-1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_arrival_counts_for_its_time() {
    let locks = LockClient::in_memory();
    let latch = locks.latch("x", 2).counts_for(Duration::from_secs(60));
    latch.count_down_as("one").await.unwrap();
    sleep(Duration::from_secs(59)).await;
    assert_eq!(latch.missing().await.unwrap(), 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(latch.missing().await.unwrap(), 2);
    latch.count_down_as("one").await.unwrap();
    latch.count_down_as("two").await.unwrap();
    latch.wait().await.unwrap();
}

/// The only other member of the set stands still, so a majority has what was there before.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_use_of_the_name_that_a_majority_still_has_is_not_taken_for_this_one() {
    let cluster = Cluster::builder().replica_set(2).in_memory(true);
    let cluster = cluster.election_timeout(Duration::from_secs(60)).start().await.unwrap();
    let ground = Ground::on(&cluster, "earlier");
    let (locks, operator) = (ground.locks().await, ground.locks().await);
    let (opened, locked) = (locks.latch("opened", 1), locks.latch("locked", 1));
    opened.count_down().await.unwrap();
    let held = locks.mutex("locked").acquire().await.unwrap();
    let other = 1 - cluster.primary().await.unwrap();
    cluster.freeze(other).unwrap();

    let breaking = ["opened", "locked"].map(|name| {
        let operator = operator.clone();
        spawn(async move { operator.break_lock(name).await })
    });
    eventually(PATIENCE, "the primary alone has it", async || {
        let missing = [opened.missing().await, locked.missing().await];
        missing
            .into_iter()
            .all(|missing| missing.is_ok_and(|missing| missing == 1))
    })
    .await;
    #[cfg(feature = "sync")]
    {
        let waits = locks.clone().blocking().latch("opened", 1);
        let waiting = std::thread::spawn(move || waits.wait_timeout(Duration::ZERO));
        let is_open = tokio::task::spawn_blocking(move || waiting.join().unwrap());
        assert!(!within(SOON, "an answer", is_open).await.unwrap().unwrap());
    }
    let arrivals = [&opened, &locked].map(|latch| {
        let latch = latch.clone();
        spawn(async move { latch.count_down().await })
    });
    sleep(Duration::from_secs(1)).await;
    cluster.thaw(other).unwrap();
    for broken in within(PATIENCE, "both are broken", join_all(breaking)).await {
        broken.unwrap().unwrap();
    }
    for arrived in within(PATIENCE, "both arrive", join_all(arrivals)).await {
        arrived.unwrap().unwrap();
    }
    assert_eq!(
        [opened.missing().await.unwrap(), locked.missing().await.unwrap()],
        [0, 0]
    );
    drop(held);
}
