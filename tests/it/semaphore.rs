//! Semaphores, wherever the locks live.

use watchlock::errors::{HoldError, OperateError};

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_gives_out_its_permits_and_no_more() {
    for (a, b) in places("semaphore").await {
        let (here, there) = (a.semaphore("x", 3), b.semaphore("x", 3));
        assert_eq!(here.available_permits().await.unwrap(), 3);
        let two = here.acquire_many(2).await.unwrap();
        let one = there.acquire().await.unwrap();
        assert_eq!((two.permits(), here.available_permits().await.unwrap()), (2, 0));
        assert!(there.try_acquire().await.unwrap().is_none());
        // Who wants all is not overtaken by who wants one, although there would be one.
        let all = in_line(&a, "x", 1, here.acquire_many(3)).await;
        one.release().await.unwrap();
        assert!(there.try_acquire().await.unwrap().is_none());
        let small = in_line(&a, "x", 2, there.acquire()).await;
        two.release().await.unwrap();
        let all = granted(all).await;
        assert!(!small.is_finished());
        all.release().await.unwrap();
        assert_eq!(granted(small).await.permits(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_permits_as_there_never_are_can_not_be_asked_for() {
    for (a, _) in places("bounds").await {
        for (error, words) in [
            (
                a.semaphore("x", 3).acquire_many(4).await.unwrap_err(),
                "4 permits are requested; for this semaphore it must be 1 to 3",
            ),
            (
                a.semaphore("x", 3).acquire_many(0).await.unwrap_err(),
                "0 permits are requested",
            ),
            (
                a.semaphore("x", 0).try_acquire().await.unwrap_err(),
                "has 0 permits; it must have at least 1",
            ),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(a.inspect("x").await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn some_permits_are_given_back_and_the_others_stay_held() {
    for (a, b) in places("some").await {
        let (here, there) = (a.semaphore("x", 4), b.semaphore("x", 4));
        let held = here.acquire_many(4).await.unwrap();
        for permits in [0, 4, 5] {
            let error = held.release_some(permits).await.unwrap_err();
            assert!(matches!(error, HoldError::Invalid(_)), "{error:?}");
            assert!(error.to_string().contains("of the 4 permits of `x`"), "{error}");
        }
        let waiting = in_line(&a, "x", 1, there.acquire_many(2)).await;
        held.release_some(1).await.unwrap();
        assert!(!waiting.is_finished());
        let token = held.token();
        held.release_some(1).await.unwrap();
        let other = granted(waiting).await;
        assert_eq!((held.permits(), other.permits()), (2, 2));
        assert_eq!((held.token(), held.is_held()), (token, true));
        assert!(here.try_acquire().await.unwrap().is_none());
        // Two at once: each gives back what it says, and one permit is always left.
        let (one, two) = tokio::join!(held.release_some(1), held.release_some(1));
        assert!(one.is_ok() != two.is_ok(), "{one:?}, {two:?}");
        assert_eq!(here.available_permits().await.unwrap(), 1);
        held.release().await.unwrap();
        assert_eq!(here.available_permits().await.unwrap(), 2);
        other.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_raised_lets_waiters_in_by_the_same_write() {
    for (a, b) in places("raised").await {
        let (here, there) = (a.semaphore("x", 1), b.semaphore("x", 1));
        let one = here.acquire().await.unwrap();
        let two = in_line(&a, "x", 1, there.acquire()).await;
        let three = in_line(&a, "x", 2, here.acquire()).await;
        let lock = b.semaphore("x", 3).set_permits(3).await.unwrap();
        assert_eq!((lock.capacity, lock.holders.len(), lock.waiters.len()), (Some(3), 3, 0));
        let (two, three) = (granted(two).await, granted(three).await);
        assert_eq!((one.total_permits(), there.available_permits().await.unwrap()), (1, 0));
        assert!(there.try_acquire().await.unwrap().is_none());
        drop((one, two, three));
    }
}

/// Two of three permits go back before anybody gets one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_lowered_takes_nothing_from_holders_and_grants_nothing_beyond() {
    for (a, b) in places("lowered").await {
        let (here, there) = (a.semaphore("x", 3), b.semaphore("x", 3));
        let (two, one) = (here.acquire_many(2).await.unwrap(), there.acquire().await.unwrap());
        let large = in_line(&a, "x", 1, there.acquire_many(2)).await;
        let small = in_line(&a, "x", 2, here.acquire()).await;
        let lock = here.set_permits(1).await.unwrap();
        // Who waits for more than there are is refused, and keeps nobody out.
        assert_eq!((lock.capacity, lock.holders.len(), lock.waiters.len()), (Some(1), 2, 1));
        let refused = within(PATIENCE, "the refusal", large).await.unwrap().unwrap_err();
        assert!(matches!(refused, AcquireError::KindMismatch(_)), "{refused}");
        assert!(there.acquire_many(2).await.is_err() && there.try_acquire_many(2).await.is_err());
        assert!(two.is_held() && one.is_held());
        one.release().await.unwrap();
        assert!(!small.is_finished());
        assert!(there.try_acquire().await.unwrap().is_none());
        two.release().await.unwrap();
        let small = granted(small).await;
        assert_eq!(
            (small.total_permits(), there.available_permits().await.unwrap()),
            (1, 0)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_hold_are_released_one_by_one_and_lost_together() {
    for (a, b) in places("parts").await {
        let (here, there) = (a.semaphore("x", 6), b.semaphore("x", 6));
        let held = here.acquire_many(6).await.unwrap();
        let (one, two) = (held.split(1).unwrap(), held.split(2).unwrap());
        assert_eq!([held.permits(), one.permits(), two.permits()], [3, 1, 2]);
        assert_eq!([one.token(), two.token()], [held.token(); 2]);
        assert!(matches!(one.split(1), Err(HoldError::Invalid(_))));
        assert!(there.try_acquire().await.unwrap().is_none());
        let waiting = in_line(&a, "x", 1, there.acquire()).await;
        assert_eq!(one.release().await.unwrap(), Released::Released);
        let other = granted(waiting).await;
        assert!(there.try_acquire().await.unwrap().is_none());
        // A dropped part gives its permits back too.
        let waiting = in_line(&a, "x", 1, there.acquire_many(2)).await;
        drop(two);
        let both = granted(waiting).await;
        assert!(held.is_held());
        assert_eq!(here.available_permits().await.unwrap(), 0);
        both.release().await.unwrap();
        // Parts come together again, and those of another hold do not.
        let part = held.split(2).unwrap();
        held.merge(part).unwrap();
        assert_eq!(held.permits(), 3);
        let strange = here.acquire().await.unwrap();
        let strange = held.merge(strange).unwrap_err();
        assert_eq!((strange.permits(), held.permits()), (1, 3));
        strange.release().await.unwrap();
        // All at once, from many tasks: whatever is left is free.
        let parts = [held.split(1).unwrap(), held.split(1).unwrap(), held];
        for released in join_all(parts.map(|part| spawn(part.release()))).await {
            assert_eq!(released.unwrap().unwrap(), Released::Released);
        }
        assert_eq!(here.available_permits().await.unwrap(), 5);
        other.release().await.unwrap();
        let held = here.acquire_many(4).await.unwrap();
        let part = held.split(2).unwrap();
        assert!(matches!(held.detach().await, Err(HoldError::Invalid(_))));
        assert!(part.is_held());
        b.break_lock("x").await.unwrap();
        assert_eq!(within(PATIENCE, "the loss", part.lost()).await, LostReason::Broken);
        assert_eq!(part.release().await.unwrap(), Released::WasLost);
        assert!(is_vacant(&a, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_another_number_goes_by_that_of_the_lock_or_is_refused() {
    for (a, b) in places("other_number").await {
        let held = a.semaphore("x", 2).acquire().await.unwrap();
        let other = b.semaphore("x", 9);
        let second = other.try_acquire().await.unwrap().unwrap();
        assert_eq!(second.total_permits(), 2);
        assert_eq!((other.permits(), other.available_permits().await.unwrap()), (9, 0));
        assert!(other.try_acquire().await.unwrap().is_none());
        let too_many = other.acquire_many(3).await.unwrap_err();
        assert_eq!(
            too_many.to_string(),
            "`x` is a semaphore of 2 permits, and 3 of 9 were requested"
        );
        let exact = other.clone().exact();
        for error in [
            exact.acquire().await.unwrap_err(),
            exact.try_acquire().await.unwrap_err(),
        ] {
            assert!(matches!(error, AcquireError::KindMismatch(_)), "{error}");
        }
        let refused = exact.acquire_many(4).await.unwrap_err().to_string();
        assert!(refused.ends_with("4 of 9 were requested"), "{refused}");
        drop((held, second));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_was_set_stays_while_nobody_holds_the_lock() {
    for (a, b) in places("set").await {
        let pool = a.semaphore("x", 4);
        pool.set_permits(2).await.unwrap();
        assert_eq!(b.semaphore("x", 9).available_permits().await.unwrap(), 2);
        for locks in [&a, &b] {
            let held = locks.semaphore("x", 9).acquire().await.unwrap();
            assert_eq!(held.total_permits(), 2);
            held.release().await.unwrap();
            let exact = locks.semaphore("x", 9).exact();
            for (error, wanted) in [
                (
                    exact.try_acquire().await.unwrap_err(),
                    "was requested as a semaphore of 9 permits",
                ),
                (
                    locks.semaphore("x", 9).acquire_many(3).await.unwrap_err(),
                    "3 of 9 were requested",
                ),
            ] {
                assert_eq!(
                    error.to_string(),
                    format!("`x` is a semaphore of 2 permits, and {wanted}")
                );
            }
            assert!(locks.semaphore("x", 2).exact().try_acquire().await.unwrap().is_some());
        }
        assert!(b.mutex("x").try_acquire().await.is_err(), "it is a semaphore");
        let lock = b.inspect("x").await.unwrap().unwrap();
        assert_eq!((lock.capacity, lock.is_held()), (Some(2), false));
        // A lock of another kind keeps its kind while it is used.
        let mutex = a.mutex("y").acquire().await.unwrap();
        let refused = b.semaphore("y", 1).set_permits(1).await.unwrap_err();
        assert!(matches!(refused, OperateError::KindMismatch(_)), "{refused}");
        mutex.release().await.unwrap();
        assert!(b.semaphore("y", 1).set_permits(0).await.is_err());
        b.semaphore("y", 1).set_permits(5).await.unwrap();
        assert_eq!(a.semaphore("y", 1).available_permits().await.unwrap(), 5);
    }
}

/// A hold that is handed from task to task hears of it, as of a waiter. Each number is set once, so that it names its
/// setting.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_tasks_hold_no_more_permits_than_were_set_while_they_ran() {
    let ground = Ground::replica_set("set_in_use").await;
    let (a, b, operator) = (ground.locks().await, ground.locks().await, ground.locks().await);
    let set = async |permits: u32| operator.semaphore("x", 9).set_permits(permits).await.unwrap();
    let mut sets = vec![set(3).await];
    let mut tasks: Vec<_> = (0..50)
        .map(|number| {
            let (locks, own) = (if number % 2 == 0 { a.clone() } else { b.clone() }, 9 + number % 3);
            spawn(async move {
                let held = locks.semaphore("x", own).acquire().await.unwrap();
                let lock = locks.inspect("x").await.unwrap().unwrap();
                assert!(lock.holders.iter().any(|holder| holder.until > lock.as_of));
                held.release().await.unwrap();
                lock
            })
        })
        .collect();
    let mut seen = Vec::new();
    for permits in [1, 4, 2, 5] {
        let lock = set(permits).await;
        assert_eq!(lock.capacity, Some(permits.into()));
        sets.push(lock);
        for task in tasks.drain(..10) {
            seen.push(within(PATIENCE, "the permits", task).await.unwrap());
        }
    }
    for task in tasks {
        seen.push(within(PATIENCE, "the permits", task).await.unwrap());
    }
    let mut granted_since = 0;
    for lock in seen {
        let set = sets.iter().find(|set| set.capacity == lock.capacity).unwrap();
        let held: u64 = lock.holders.iter().filter_map(|holder| holder.permits).sum();
        if lock.holders.iter().any(|holder| holder.token > set.token) {
            granted_since += 1;
            assert!(held <= lock.capacity.unwrap(), "{lock:?}");
        }
    }
    assert!(granted_since > 20, "{granted_since}");
    assert_eq!(a.semaphore("x", 9).available_permits().await.unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_that_are_given_back_after_the_number_was_lowered_are_granted_to_nobody() {
    for (a, b) in places("given_back").await {
        let (here, there) = (a.semaphore("x", 4), b.semaphore("x", 4));
        let held = here.acquire_many(4).await.unwrap();
        let waiting = in_line(&a, "x", 1, there.acquire()).await;
        there.set_permits(2).await.unwrap();
        held.release_some(1).await.unwrap();
        held.release_some(1).await.unwrap();
        assert!(!waiting.is_finished());
        let lock = a.inspect("x").await.unwrap().unwrap();
        assert_eq!((lock.holders.len(), lock.waiters.len()), (1, 1));
        held.release_some(1).await.unwrap();
        let other = granted(waiting).await;
        assert_eq!(there.available_permits().await.unwrap(), 0);
        drop((held, other));
    }
}
