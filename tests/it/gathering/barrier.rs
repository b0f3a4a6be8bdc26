//! Barriers.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tokio::time::sleep;
use watchlock::operate::Kind;

use crate::setup::*;

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

/// One of those that remain takes its place too: unless it is still counted, as it died just now, while it waited.
#[tokio::test(start_paused = true)]
async fn those_that_remain_pass_for_a_party_that_died() {
    let lease = Duration::from_secs(30);
    for died_before in [None, Some(2 * lease), Some(lease / 2)] {
        let memory = InMemory::new();
        let (dying, one, other) = (memory.client(), memory.client(), memory.client());
        let wait = |locks: &LockClient| {
            let barrier = locks.barrier("x", 3);
            spawn(async move { barrier.wait().await.map(|pass| pass.generation()) })
        };
        let is_counted = died_before.is_some_and(|ago| ago < lease);
        if let Some(ago) = died_before {
            let _dies = wait(&dying);
            eventually(SOON, "it waits", async || {
                let lock = one.inspect("x").await.unwrap();
                lock.is_some_and(|lock| lock.holders.iter().any(|holder| holder.owner.value.is_some()))
            })
            .await;
            memory.set_frozen(&dying, true).unwrap();
            sleep(ago).await;
        }
        let (own, others, instead) = (wait(&one), wait(&other), wait(&one));
        if is_counted {
            let passed = within(SOON, "both pass", join_all([own, others])).await;
            assert!(passed.into_iter().all(|passed| passed.unwrap().is_ok()));
            assert!(!instead.is_finished());
            instead.abort();
            eventually(SOON, "nobody waits", async || {
                let lock = one.inspect("x").await.unwrap();
                lock.is_some_and(|lock| lock.waiters.is_empty())
            })
            .await;
        } else {
            let passed = within(SOON, "those that remain pass", join_all([own, others, instead])).await;
            let passed: Vec<_> = passed.into_iter().map(|passed| passed.unwrap().unwrap()).collect();
            assert!(passed.iter().all(|generation| *generation == passed[0]), "{passed:?}");
        }
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
        assert_lost!(AcquireError, Broken, error);
    }
}
