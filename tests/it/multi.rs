//! Several locks, all or nothing.

use tokio::time::Instant;

use crate::setup::*;

async fn all_vacant(locks: &LockClient, names: &[&str]) -> bool {
    for name in names {
        if !is_vacant(locks, name).await {
            return false;
        }
    }
    true
}

/// Which of the names somebody holds.
async fn held(locks: &LockClient, names: &[&str]) -> Vec<String> {
    let mut held = Vec::new();
    for name in names {
        if info(locks, name).await.is_some_and(|lock| !lock.holders.is_empty()) {
            held.push((*name).to_owned());
        }
    }
    held
}

/// Three seconds for the first name leave two for the second.
#[tokio::test(start_paused = true)]
async fn the_timeout_is_that_of_all_names_together() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let first = a.mutex("x").acquire().await.unwrap();
    let _second = a.mutex("y").acquire().await.unwrap();
    let start = Instant::now();
    let waiting = spawn(b.multi(["y", "x"]).acquire().timeout(Duration::from_secs(5)));
    tokio::time::sleep(Duration::from_secs(3)).await;
    first.release().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_is!(error, AcquireError::Timeout { name, waited, .. } if name == "y" && *waited == Duration::from_secs(5));
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_lost_when_any_part_is() {
    const NAMES: [&str; 3] = ["x", "y", "z"];
    for (a, b) in places("multi_lost").await {
        for broken in NAMES {
            let handle = a.multi(NAMES).acquire().await.unwrap();
            let (early, view) = (handle.lost_token(), handle.view());
            b.break_lock(broken).await.unwrap();
            let lost = within(2 * SOON, "the loss", handle.lost()).await;
            assert_eq!((lost.name.as_str(), lost.reason), (broken, LostReason::Broken));
            assert_eq!(
                lost.to_string(),
                format!("`{broken}` is lost: the lock was broken by an operator")
            );
            within(SOON, "the token", early.cancelled()).await;
            assert!(handle.lost_token().is_cancelled());
            assert_eq!((handle.status(), handle.safe_for()), (LockStatus::Lost, Duration::ZERO));
            assert_eq!(handle.release().await.unwrap(), Released::WasLost);
            // The release of the others does not paint over it.
            assert_eq!(view.check(), Err(lost));
            assert!(all_vacant(&b, &NAMES).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_lost_while_others_are_waited_for_is_waited_for_anew() {
    for (a, b) in places("multi_anew").await {
        let other = b.mutex("z").acquire().await.unwrap();
        let waiting = in_line(&b, "z", 1, a.multi(["z", "y", "x"]).acquire()).await;
        let kept = info(&b, "x").await.unwrap().holders[0].token;

        // An operator takes the middle part away, and it goes to somebody who waits for it.
        let thief = in_line(&b, "y", 1, b.mutex("y").acquire()).await;
        b.break_lock("y").await.unwrap();
        let thief = within(PATIENCE, "the next has it", thief).await.unwrap().unwrap();
        until_waiting(&b, "y", 1).await;
        until_waiting(&b, "z", 0).await;

        // All that it waited for first is free now, and still it must not go on.
        other.release().await.unwrap();
        assert!(b.mutex("z").try_acquire().await.unwrap().is_some());
        assert!(!waiting.is_finished());
        let token = thief.token();
        thief.release().await.unwrap();
        let handle = within(PATIENCE, "all parts", waiting).await.unwrap().unwrap();
        assert_eq!(handle.check(), Ok(()));
        assert!(handle.token_of("y").unwrap() > token);
        // What comes before the lost one in the order was never given up.
        assert_eq!(handle.token_of("x"), Some(kept));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_with_a_lost_part_is_never_returned() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let other = b.mutex("y").acquire().await.unwrap();
    let mut acquire = std::pin::pin!(a.multi(["x", "y"]).acquire());
    let before = tokio::select! {
        biased;
        handle = &mut acquire => panic!("{handle:?}"),
        () = until_waiting(&b, "y", 1) => info(&b, "x").await.unwrap().token,
    };
    // The acquire is not polled until both have happened: it finds the grant and the loss there.
    other.release().await.unwrap();
    b.break_lock("x").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let handle = acquire.await.unwrap();
    assert_eq!(handle.check(), Ok(()));
    assert!(handle.token_of("x").unwrap() > before);
}

/// One that asked for it anew might never end.
#[tokio::test(start_paused = true)]
async fn a_try_that_loses_a_part_on_the_way_ends() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let mut trying = std::pin::pin!(a.multi(["x", "y"]).try_acquire());
    assert!(futures::poll!(&mut trying).is_pending());
    eventually(SOON, "the first part", async || !is_vacant(&b, "x").await).await;
    assert!(futures::poll!(&mut trying).is_pending());
    b.break_lock("x").await.unwrap();
    tokio::time::sleep(SOON).await;
    let tried = trying.await;
    assert_is!(tried, Err(AcquireError::Unanswered { name, .. }) if name == "x");
}

#[tokio::test(start_paused = true)]
async fn held_parts_are_renewed_while_others_are_waited_for() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let other = b.mutex("y").acquire().await.unwrap();
    let waiting = in_line(&b, "y", 1, a.multi(["x", "y"]).acquire()).await;
    let token = info(&b, "x").await.unwrap().holders[0].token;
    tokio::time::sleep(Duration::from_secs(300)).await;
    other.release().await.unwrap();
    let handle = waiting.await.unwrap().unwrap();
    assert_eq!((handle.token_of("x"), handle.check()), (Some(token), Ok(())));

    // And run out together with it when nobody renews them.
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(handle.check().unwrap_err(), LostReason::Expired);
    assert_eq!(handle.release().await.unwrap(), Released::WasLost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shut_down_client_ends_its_multi_locks() {
    for (a, b) in places("multi_shutdown").await {
        let handle = a.multi(["x", "y"]).acquire().await.unwrap();
        let waiting = spawn(a.multi(["w", "x"]).acquire());
        eventually(PATIENCE, "it waits", async || held(&b, &["w"]).await == ["w"]).await;
        a.shutdown().await;
        let ended = within(SOON, "the wait ends", waiting).await.unwrap();
        assert!(matches!(ended, Err(AcquireError::Closed)), "{ended:?}");
        assert_eq!(handle.lost().await.reason, LostReason::Released);
        assert!(all_vacant(&b, &["w", "x", "y"]).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_costs_one_round_trip() {
    const NAMES: [&str; 5] = ["v", "w", "x", "y", "z"];
    let ground = Ground::replica_set("multi_cost").await;
    let (driver, sent) = ground.noting_driver().await;
    let locks = ground.locks_over(&driver).await;
    // What is held for long is looked after, which is another matter.
    let asked = || sent.count("findAndModify");
    // What the first use of a client costs it once.
    let warm = locks.mutex("warm").acquire().await.unwrap();
    warm.release().await.unwrap();
    eventually(PATIENCE, "the index is made", async || sent.count("createIndexes") > 0).await;
    // Of names that were never seen, and of names that were.
    for _ in 0..2 {
        let before = asked();
        let handle = locks.multi(NAMES).acquire().await.unwrap();
        assert_eq!(asked() - before, NAMES.len());
        handle.release().await.unwrap();
        assert_eq!(asked() - before, 2 * NAMES.len());
    }
    let other = ground.locks().await;
    let held = other.mutex("x").acquire().await.unwrap();
    let before = asked();
    assert!(locks.multi(NAMES).try_acquire().await.unwrap().is_none());
    let others = &["v", "w", "y", "z"];
    eventually(SOON, "it is given back", async || all_vacant(&other, others).await).await;
    assert!(asked() - before <= 6, "{:?}", sent.names());
    held.release().await.unwrap();
}
