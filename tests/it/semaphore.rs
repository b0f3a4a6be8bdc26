//! Semaphores, wherever the locks live.

use crate::setup::{PATIENCE, granted, in_line, places, spawn, until_waiting, within};

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
async fn permits_for_many_tasks_of_one_client_come_together() {
    for (a, b) in places("permits").await {
        let semaphore = a.semaphore("x", 20);
        let gate = b.semaphore("x", 20).acquire_many(20).await.unwrap();
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let semaphore = semaphore.clone();
                spawn(async move { semaphore.acquire().await.unwrap() })
            })
            .collect();
        until_waiting(&b, "x", 1).await;
        gate.release().await.unwrap();
        let mut handles = Vec::new();
        for task in tasks {
            handles.push(within(PATIENCE, "the permits", task).await.unwrap());
        }
        assert_eq!(semaphore.available_permits().await.unwrap(), 0);
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
