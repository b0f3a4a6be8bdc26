//! Tries of tasks that share a client: one in line with others is refused by the server only.

use watchlock::locks;

use crate::{documents::Scene, setup::*};

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
