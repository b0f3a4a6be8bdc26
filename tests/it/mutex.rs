//! Mutexes, wherever the locks live.

use std::time::Duration;

use watchlock::{
    LockStatus, Lost, LostReason, Released,
    errors::{AcquireError, RunError},
    testing::InMemory,
};

use crate::setup::{SOON, eventually, granted, in_line, is_vacant, places, spawn, within};

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_is_handed_over_in_order() {
    for (a, b) in places("order").await {
        let first = a.mutex("x").acquire().await.unwrap();
        assert_eq!(first.status(), LockStatus::Held);
        let second = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
        let third = in_line(&a, "x", 2, a.mutex("x").acquire()).await;
        assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
        let mut last = first.token();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        for next in [second, third] {
            let next = granted(next).await;
            assert!(next.token() > last, "tokens rise");
            last = next.token();
            next.release().await.unwrap();
        }
        assert!(is_vacant(&a, "x").await);
        assert!(b.mutex("x").try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_leaves_no_place_in_the_queue() {
    for (a, b) in places("timeout").await {
        let held = a.mutex("x").acquire().await.unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(30)] {
            let error = b.mutex("x").acquire().timeout(timeout).await.unwrap_err();
            assert!(
                matches!(&error, AcquireError::Timeout { name, waited, .. } | AcquireError::Unanswered { name, waited, .. } if name == "x" && *waited == timeout)
            );
        }
        eventually(SOON, "the place is given up", async || {
            a.inspect("x").await.unwrap().unwrap().waiters.is_empty()
        })
        .await;
        assert_eq!(held.status(), LockStatus::Held);
        drop(held);
        let next = within(SOON, "a dropped handle releases", async {
            b.mutex("x").acquire().await
        })
        .await;
        assert!(next.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_releases_and_ends_what_runs_without_the_lock() {
    for (a, b) in places("run").await {
        assert_eq!(
            a.mutex("x")
                .acquire()
                .run(async |held| held.name().len())
                .await
                .unwrap(),
            1
        );
        assert!(is_vacant(&a, "x").await);
        let (started, begun) = tokio::sync::oneshot::channel();
        let mutex = a.mutex("x");
        let running = spawn(async move {
            mutex
                .acquire()
                .run(async move |_| {
                    let _ = started.send(());
                    std::future::pending::<()>().await;
                })
                .await
        });
        begun.await.unwrap();
        b.break_lock("x").await.unwrap();
        let ended = within(2 * SOON, "the future is dropped", running).await.unwrap();
        assert!(matches!(
            ended,
            Err(RunError::Lost(Lost {
                reason: LostReason::Broken,
                ..
            }))
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_by_hand_and_a_shutdown() {
    for (a, b) in places("shutdown").await {
        let held = a.mutex("x").acquire().await.unwrap();
        assert!(held.renew().await.unwrap() > Duration::from_secs(25));
        let waiting = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
        b.shutdown().await;
        assert!(matches!(waiting.await.unwrap(), Err(AcquireError::Closed)));
        assert!(matches!(b.mutex("x").acquire().await, Err(AcquireError::Closed)));
        assert!(a.inspect("x").await.unwrap().unwrap().waiters.is_empty());
        let view = held.view();
        a.shutdown().await;
        assert_eq!(held.lost_reason(), Some(LostReason::Released));
        assert_eq!(view.lost().await, LostReason::Released);
        assert!(is_vacant(&a, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_name_is_one_kind_of_lock_while_it_is_used() {
    for (a, b) in places("kinds").await {
        let held = a.semaphore("x", 3).acquire().await.unwrap();
        let before = a.inspect("x").await.unwrap().unwrap();
        let errors = [
            (
                b.semaphore("x", 4).exact().acquire().await.unwrap_err(),
                "a semaphore of 4 permits",
            ),
            (b.mutex("x").acquire().await.unwrap_err(), "a mutex"),
            (b.rw_lock("x").read().await.unwrap_err(), "a rwlock"),
            (b.rw_lock("x").write().timeout(SOON).await.unwrap_err(), "a rwlock"),
            (b.election("x").campaign("node 7").await.unwrap_err(), "an election"),
        ];
        for (error, wanted) in errors {
            let AcquireError::KindMismatch(error) = error else {
                panic!("{error}")
            };
            let expected = format!("`x` is a semaphore of 3 permits, and was requested as {wanted}");
            assert_eq!(error.to_string(), expected);
        }
        assert!(b.semaphore("x", 4).exact().available_permits().await.is_err());
        assert!(b.election("x").leader().await.is_err());
        let mut after = a.inspect("x").await.unwrap().unwrap();
        after.as_of = before.as_of;
        assert_eq!(after, before, "nothing was changed");
        held.release().await.unwrap();
        // Idle, it is whatever is wanted next.
        assert!(b.mutex("x").try_acquire().await.unwrap().is_some());
    }
}

/// Time is tokio's in memory: as it passes leases are renewed, and when it leaps they run out, as those of a process
/// that was frozen.
#[tokio::test(start_paused = true)]
async fn leases_are_renewed_and_run_out_on_paused_time() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let held = a.mutex("x").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(held.status(), LockStatus::Held);
    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());

    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(held.lost_reason(), Some(LostReason::Expired));
    let next = b.mutex("x").acquire().timeout(SOON).await.unwrap();
    assert!(next.token() > held.token());
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert_eq!(next.status(), LockStatus::Held);
}
