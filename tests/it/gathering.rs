//! Latches and barriers: on a replica set, on a standalone by polling, and in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{future::join_all, poll};
use tokio::time::sleep;
use watchlock::{
    LockClient, Lost, LostReason,
    errors::{AcquireError, BarrierError},
    operate::Kind,
    testing::InMemory,
};

use crate::{
    everywhere::places,
    setup::{PATIENCE, SOON, eventually, is_vacant, spawn, within},
};

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
        assert_eq!((lock.kind, lock.capacity, lock.holders.len()), (Kind::Latch, 3, 3));
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
        let mut parties: Vec<_> = parties.into_iter().filter_map(|holder| holder.value).collect();
        parties.sort();
        assert_eq!(parties, ["shard-0", "shard-1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arrival_that_is_dropped_anywhere_counts_or_not_and_takes_no_place_for_long() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    for polls in 0..60 {
        let name = format!("x-{polls}");
        let (here, there) = (a.latch(&name, 2), b.latch(&name, 2));
        let mut arriving = Box::pin(here.count_down());
        for _ in 0..polls {
            if poll!(&mut arriving).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(arriving);
        there.count_down().await.unwrap();
        eventually(SOON, "the dropped one counts, or is gone", async || {
            let lock = b.inspect(&name).await.unwrap().unwrap();
            lock.holders.iter().all(|holder| holder.released.is_some())
        })
        .await;
        let missing = there.missing().await.unwrap();
        assert!(missing <= 1);
        if missing == 1 {
            there.count_down().await.unwrap();
        }
        within(SOON, "the latch opens", here.wait()).await.unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn the_parties_of_a_barrier_pass_together_phase_by_phase() {
    const PARTIES: u32 = 5;
    const PHASES: u32 = 4;
    for (a, b) in places("phases").await {
        let done = Arc::new(AtomicU32::new(0));
        let parties = (0..PARTIES).map(|party| {
            let barrier = if party % 2 == 0 { &a } else { &b }.barrier("x", PARTIES);
            let done = done.clone();
            spawn(async move {
                let mut passes = Vec::new();
                for phase in 0..PHASES {
                    // Nobody begins a phase before all have done the one before.
                    assert!(done.load(Ordering::SeqCst) >= phase * PARTIES);
                    done.fetch_add(1, Ordering::SeqCst);
                    passes.push(barrier.wait().await.unwrap());
                    assert!(done.load(Ordering::SeqCst) >= (phase + 1) * PARTIES);
                }
                passes
            })
        });
        let passes = within(2 * PATIENCE, "all phases", join_all(parties)).await;
        let passes: Vec<_> = passes.into_iter().map(Result::unwrap).collect();
        let mut last = None;
        for phase in 0..PHASES as usize {
            let generation = passes[0][phase].generation();
            assert!(passes.iter().all(|party| party[phase].generation() == generation));
            assert_eq!(passes.iter().filter(|party| party[phase].is_leader()).count(), 1);
            assert!(last < Some(generation));
            last = Some(generation);
        }
        // What they leave behind is cleared.
        eventually(SOON, "the places are cleared", async || is_vacant(&a, "x").await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_party_that_gives_up_is_not_counted() {
    for (a, b) in places("gave_up").await {
        let (here, there) = (a.barrier("x", 2), b.barrier("x", 2));
        assert!(
            tokio::time::timeout(Duration::from_millis(100), here.wait())
                .await
                .is_err()
        );
        eventually(SOON, "the place is given back", async || is_vacant(&a, "x").await).await;
        let mut waiting = Box::pin(there.wait());
        assert!(
            tokio::time::timeout(Duration::from_millis(100), &mut waiting)
                .await
                .is_err()
        );
        let (one, other) = within(PATIENCE, "both pass", futures::future::join(waiting, here.wait())).await;
        assert_eq!(one.unwrap().generation(), other.unwrap().generation());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_parties_wait_for_the_next_generation() {
    for (a, b) in places("more").await {
        let (here, there) = (a.barrier("x", 2), b.barrier("x", 2));
        let mut calls: Vec<_> = (0..3)
            .map(|call| {
                let barrier = if call == 1 { &there } else { &here }.clone();
                spawn(async move { barrier.wait().await.unwrap().generation() })
            })
            .collect();
        let mut first = Vec::new();
        for _ in 0..2 {
            let (pass, at, _) = within(PATIENCE, "a pass", futures::future::select_all(&mut calls)).await;
            first.push(pass.unwrap());
            drop(calls.remove(at));
        }
        assert_eq!(first[0], first[1]);
        sleep(Duration::from_millis(50)).await;
        assert!(!calls[0].is_finished());
        let last = within(PATIENCE, "the fourth call", there.wait()).await.unwrap();
        assert!(last.generation() > first[0]);
        assert_eq!(
            within(PATIENCE, "the third call", calls.remove(0)).await.unwrap(),
            last.generation()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_lost_is_told() {
    for (a, b) in places("lost_place").await {
        let barrier = a.barrier("x", 2);
        let waiting = spawn(async move { barrier.wait().await });
        eventually(SOON, "the place is taken", async || {
            let lock = b.inspect("x").await.unwrap();
            lock.is_some_and(|lock| lock.kind == Kind::Barrier && lock.holders.len() == 1)
        })
        .await;
        b.break_lock("x").await.unwrap();
        let error = within(PATIENCE, "the loss", waiting).await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                BarrierError::Lost(Lost {
                    reason: LostReason::Broken,
                    ..
                })
            ),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_is_out_of_bounds_is_refused_with_the_bound() {
    let locks = LockClient::in_memory();
    for (count, parties) in [(0, 0), (257, 65)] {
        let latch = locks.latch("x", count);
        let bound = format!("the latch has {count} arrivals; it must have 1 to 256");
        for error in [
            latch.count_down().await.unwrap_err(),
            latch.wait().await.unwrap_err(),
            latch.missing().await.unwrap_err(),
        ] {
            assert!(
                matches!(error, AcquireError::Invalid(_)) && error.to_string() == bound,
                "{error}"
            );
        }
        let error = locks.barrier("x", parties).wait().await.unwrap_err();
        let bound = format!("the barrier has {parties} parties; it must have 1 to 64");
        assert!(
            matches!(&error, BarrierError::Enter(AcquireError::Invalid(_))) && error.to_string() == bound,
            "{error}"
        );
    }
    let error = locks.latch("x", 2).count_down_as("x".repeat(1_025)).await.unwrap_err();
    assert!(
        error.to_string().contains("the name of the party has 1025 bytes"),
        "{error}"
    );
    let error = locks
        .latch("x", 2)
        .counts_for(Duration::from_millis(1))
        .wait()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("1ms is shorter than 1s"), "{error}");
    assert!(locks.latch("", 2).wait().await.is_err());
    assert!(locks.barrier("x".repeat(2_000), 2).wait().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_in_use_otherwise_is_refused() {
    for (a, b) in places("mismatch").await {
        let held = a.mutex("x").acquire().await.unwrap();
        let latch = b.latch("x", 2);
        for error in [
            latch.count_down().await.unwrap_err(),
            latch.wait().await.unwrap_err(),
            latch.missing().await.unwrap_err(),
        ] {
            assert!(matches!(error, AcquireError::KindMismatch(_)), "{error}");
        }
        let error = b.barrier("x", 2).wait().await.unwrap_err();
        assert!(
            matches!(error, BarrierError::Enter(AcquireError::KindMismatch(_))),
            "{error}"
        );
        held.release().await.unwrap();
        b.latch("x", 2).count_down().await.unwrap();
        let error = a.latch("x", 3).wait().await.unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is in use as a latch of 2 arrivals, and was requested as a latch of 3 arrivals"),
            "{error}"
        );
        assert!(a.mutex("x").try_acquire().await.is_err());
    }
}
