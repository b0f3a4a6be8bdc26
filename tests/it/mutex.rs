//! Mutexes, wherever the locks live.

use std::time::Instant;

use watchlock::{
    LockClientBuilder,
    operate::{PollingReason, WakeMode, WakeSource},
};

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_keeps_its_promises_wherever_it_lives() {
    let (memory, alone) = (InMemory::new(), Ground::standalone("promises").await);
    let (streams, polls) = (Ground::replica_set("streams").await, Ground::replica_set("polls").await);
    let polling = |builder: LockClientBuilder| builder.wake_source(WakeSource::Polling);
    for (place, ground, mode) in [
        ("in memory", None, WakeMode::ChangeStream),
        ("by a stream", Some(&streams), WakeMode::ChangeStream),
        ("by polling", Some(&polls), WakeMode::Polling(PollingReason::Configured)),
        (
            "on a standalone",
            Some(&alone),
            WakeMode::Polling(PollingReason::Standalone),
        ),
    ] {
        // What fails, fails at the last of these.
        println!("{place}");
        let client = async |_| match ground {
            None => memory.client(),
            Some(ground) if place == "by polling" => ground.locks_with(polling).await,
            Some(ground) => ground.locks().await,
        };
        let clients = [client(0).await, client(1).await, client(2).await, client(3).await];
        promises_are_kept(ground, clients, mode).await;
    }
    assert_eq!(polls.streams(&polls.driver().await).await, [0_i64; 0]);
}

/// Holders look after their locks twice a second, also without a stream.
const NOTICED: Duration = Duration::from_millis(1500);

async fn promises_are_kept(ground: Option<&Ground>, [a, b, c, d]: [LockClient; 4], mode: WakeMode) {
    let held = a.mutex("x").acquire().await.unwrap();
    assert_eq!(held.status(), LockStatus::Held);
    assert!(held.renew().await.unwrap() > Duration::from_secs(25));

    // A try and a timeout, which leave nothing behind.
    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
    for timeout in [Duration::ZERO, Duration::from_millis(30), Duration::from_millis(100)] {
        let start = Instant::now();
        let error = b.mutex("x").acquire().timeout(timeout).await.unwrap_err();
        let (AcquireError::Timeout { name, waited, .. } | AcquireError::Unanswered { name, waited, .. }) = error else {
            panic!("{error}");
        };
        assert_eq!((&name[..], waited), ("x", timeout));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        until_waiting(&a, "x", 0).await;
    }

    // First come, first served. The last one is the second of its process, so it waits there, and joins the queue with
    // the first's release.
    let mut waiting = Vec::new();
    for (number, locks) in [&b, &c, &d, &b].into_iter().enumerate() {
        waiting.push(in_line(&a, "x", (number + 1).min(3), locks.mutex("x").acquire()).await);
    }
    let mut last = held.token();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    for next in waiting {
        let next = within(2 * SOON, "the next", next).await.unwrap().unwrap();
        assert!(next.token() > last, "{} after {last}", next.token());
        last = next.token();
        next.release().await.unwrap();
    }
    until_vacant(&a, "x").await;

    // A waiter is dropped, behind which a task of its own client and another client wait, and then a handle. Whoever
    // still has a view of it knows at once, the next in line a hop later.
    let held = a.mutex("x").acquire().await.unwrap();
    let gone = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
    let beside = spawn(b.mutex("x").acquire());
    let behind = in_line(&a, "x", 2, c.mutex("x").acquire()).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let (view, token) = (held.view(), held.token());
    drop(held);
    assert_eq!(view.status(), LockStatus::Lost);
    let each = [beside, behind].map(async |next| {
        let next = within(2 * SOON, "both get it", next).await.unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    });
    join_all(each).await;
    until_vacant(&c, "x").await;

    // What happens to the lock is noticed, and nothing is taken back.
    let held = a.mutex("x").acquire().await.unwrap();
    let (view, ended) = (held.view(), held.lost_token());
    let next = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
    b.break_lock("x").await.unwrap();
    let next = granted(next).await;
    assert_eq!(within(NOTICED, "it is broken", held.lost()).await, LostReason::Broken);
    assert!(ended.is_cancelled());
    assert_eq!((held.status(), held.safe_for()), (LockStatus::Lost, Duration::ZERO));
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert_eq!(
        (view.lost_reason(), next.status()),
        (Some(LostReason::Broken), LockStatus::Held)
    );
    assert_eq!(info(&b, "x").await.unwrap().holders[0].token, next.token());
    next.release().await.unwrap();
    if let Some(ground) = ground {
        let held = a.mutex("x").acquire().await.unwrap();
        ground.documents().await.delete_one(doc! { "_id": "x" }).await.unwrap();
        assert_eq!(within(NOTICED, "it is deleted", held.lost()).await, LostReason::Deleted);
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        assert!(info(&a, "x").await.is_none());
    }

    // The ends of the clients: of one that waits, and of one that holds.
    let held = a.mutex("x").acquire().await.unwrap();
    let waiting = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
    for locks in [&b, &c, &d, &a] {
        assert_eq!(locks.wake_mode(), mode);
        within(PATIENCE, "the client ends", locks.shutdown()).await;
        assert_is!(locks.mutex("x").acquire().await, Err(AcquireError::Closed));
    }
    assert_is!(waiting.await.unwrap(), Err(AcquireError::Closed));
    assert_eq!(held.lost_reason(), Some(LostReason::Released));
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
