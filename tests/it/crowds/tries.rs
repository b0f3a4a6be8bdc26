//! Tries of tasks that share a client: one in line with others is refused by the server only.

use std::time::Instant;

use watchlock::locks;

use crate::{documents::Scene, setup::*};

/// A client that notes what it sends, and has made what the first use of a collection makes.
async fn noting(ground: &Ground) -> (LockClient, Sent) {
    let (driver, sent) = ground.noting_driver().await;
    let locks = LockClient::builder(driver.database(&ground.database));
    let locks = locks.build().await.unwrap();
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    (locks, sent)
}

/// How many operations `tries` cost, and the handles of those that got in.
async fn counted<T>(
    sent: &Sent,
    tries: impl Iterator<Item = impl Future<Output = Result<Option<T>, AcquireError>>>,
) -> (usize, Vec<T>) {
    let before = sent.count("findAndModify");
    let tried = within(PATIENCE, "the tries", join_all(tries)).await;
    let handles = tried.into_iter().filter_map(|tried| tried.unwrap()).collect();
    (sent.count("findAndModify") - before, handles)
}

/// On one thread, so that all of them have come before the first is answered.
#[tokio::test]
async fn as_many_tasks_as_there_are_permits_get_in_by_three_commands() {
    for ground in Ground::both("tries").await {
        let (locks, sent) = noting(&ground).await;
        // Their releases are commands too.
        let mut held = Vec::new();
        for count in [10_u32, 100] {
            let semaphore = locks.semaphore(format!("s-{count}"), count);
            let all = (0..count).map(|_| semaphore.try_acquire());
            let (commands, permits) = counted(&sent, all).await;
            assert_eq!(permits.len(), count as usize);
            assert!(commands <= 3, "{commands} commands for {count} permits");
            let refused = (0..50).map(|_| semaphore.try_acquire());
            let (commands, none) = counted(&sent, refused).await;
            assert!(none.is_empty());
            assert!(commands <= 2, "{commands} commands for as many refusals");
            held.extend(permits.into_iter().map(Into::<Held>::into));
        }
        // One range of tokens is enough for these; where an answer is too slow to be shared, all ask.
        for count in [10, 60] {
            let prices = locks.rw_lock(format!("r-{count}"));
            let all = (0..count).map(|_| prices.try_read());
            let (commands, readers) = counted(&sent, all).await;
            assert_eq!(readers.len(), count);
            assert!(commands <= 3, "{commands} commands for {count} readers");
            held.extend(readers.into_iter().map(Into::<Held>::into));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_refused_only_if_all_permits_are_taken() {
    for (a, b) in places("shedding").await {
        let _one = b.semaphore("x", 50).acquire().await.unwrap();
        let limit = a.semaphore("x", 50);
        let mut served: Vec<Held<locks::Semaphore>> = Vec::new();
        for _ in 0..20 {
            let five = join_all((0..5).map(|_| limit.try_acquire())).await;
            served.extend(five.into_iter().filter_map(|tried| tried.unwrap()));
        }
        assert_eq!(served.len(), 49);
        join_all(served.into_iter().map(Held::release)).await;
        // No time to wait is a try too.
        let all = (0..49).map(|_| limit.acquire().timeout(Duration::ZERO));
        let served: Result<Vec<_>, _> = join_all(all).await.into_iter().collect();
        assert_eq!(served.unwrap().len(), 49);
        // Of several locks each is tried by itself: one task gets the last, and the others learn who has it.
        let pairs: Vec<_> = (0..8)
            .map(|pair| a.multi([format!("a-{pair}"), "b".to_owned()]))
            .collect();
        let tried = join_all(pairs.iter().map(|pair| pair.try_acquire().or_held())).await;
        let (got, refused): (Vec<_>, Vec<_>) = tried.into_iter().partition(Result::is_ok);
        assert_eq!(got.len(), 1);
        for refused in refused {
            let contention = contention(refused.map(drop).unwrap_err());
            assert!(contention.held_here && contention.holders.len() == 1, "{contention:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_behind_a_task_that_waits_is_refused_by_who_holds_now() {
    for (a, b) in places("behind").await {
        let held = b.mutex("x").acquire().reason("the first").await.unwrap();
        let waiting = in_line(&a, "x", 1, a.mutex("x").acquire()).await;
        held.release().await.unwrap();
        let next = within(PATIENCE, "the grant", waiting).await.unwrap().unwrap();
        let third = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
        for told in join_all((0..5).map(|_| b.mutex("x").try_acquire().or_held())).await {
            let contention = contention(told.map(drop).unwrap_err());
            assert_eq!(contention.holders[0].token, next.token());
            assert_eq!((contention.waiting_before, contention.age), (1, Duration::ZERO));
        }
        third.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_on_documents_and_elements_are_answered_alike() {
    for scene in Scene::everywhere("tries").await {
        let (a, _) = scene.locks();
        let line = |sku: &str| a.element::<Document>("lines", doc! { "sku": sku });
        scene.insert(doc! { "_id": 1, "lines": [{ "sku": "x" }] }).await;
        let documents = join_all((0..5).map(|_| a.try_acquire(1).or_held())).await;
        let elements: Vec<_> = (0..5).map(|_| line("x").try_acquire(1).or_held()).collect();
        let elements = join_all(elements).await;
        assert_eq!(documents.iter().filter(|tried| tried.is_ok()).count(), 1);
        assert_eq!(elements.iter().filter(|tried| tried.is_ok()).count(), 1);
        let refused = documents.into_iter().filter_map(Result::err);
        for error in refused.chain(elements.into_iter().filter_map(Result::err)) {
            let contention = contention(error);
            assert!(contention.held_here && contention.holders.len() == 1, "{contention:?}");
        }
        for missing in join_all((0..5).map(|_| a.try_acquire(2))).await {
            assert!(matches!(missing, Err(AcquireError::NoDocument { .. })), "{missing:?}");
        }
        for missing in join_all((0..5).map(|_| line("y").try_acquire(1))).await {
            assert!(matches!(missing, Err(AcquireError::NoElement { .. })), "{missing:?}");
        }
        for id in 10..20 {
            scene.insert(doc! { "_id": id, "to_do": true }).await;
        }
        let claims = (0..10).map(|_| a.try_claim(doc! { "to_do": true }));
        let claimed = join_all(claims)
            .await
            .into_iter()
            .filter_map(|claimed| claimed.unwrap());
        assert_eq!(claimed.count(), 10);
    }
}

/// Beside one whose request is not answered, another has no answer either.
#[tokio::test(flavor = "multi_thread")]
async fn all_tries_of_a_client_end_with_the_outage() {
    let (cluster, _turn) = faulty().await;
    let proxy = cluster.proxy(0).unwrap();
    let uri = format!("{}&serverSelectionTimeoutMS=1000", proxy.uri());
    let ground = Ground::on(cluster, "frozen").through(uri);
    // A server that says nothing, and one that is not there: the driver knows of that after a while.
    for is_there in [true, false] {
        let locks = ground.locks().await;
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
        if is_there {
            proxy.black_hole();
        } else {
            proxy.cut();
        }
        let begun = Instant::now();
        let tries = (0..10).map(async |number| {
            let mutex = locks.mutex("x");
            let tried = if number % 2 == 0 {
                mutex.try_acquire().await.map(|handle| handle.is_some())
            } else {
                mutex.acquire().timeout(Duration::ZERO).await.map(|_| true)
            };
            (tried, begun.elapsed())
        });
        for (tried, took) in within(PATIENCE, "the tries", join_all(tries)).await {
            assert!(matches!(tried, Err(AcquireError::Server(_))), "{is_there}: {tried:?}");
            // Ten seconds, and the time of one more command.
            assert!(took < Duration::from_secs(14), "{is_there}: {took:?}");
        }
        proxy.heal();
    }
}
