//! Locked documents that are changed and released by one write.

use watchlock::errors::HoldError;

use crate::{
    documents::{Place, Scene, waits},
    setup::*,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_changed_and_free_by_one_write() {
    for scene in Scene::everywhere("finish").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let held = a.claim(doc! { "n": 1 }).await.unwrap();
        let (view, before) = (held.view(), held.token());
        held.update_and_release(doc! { "$inc": { "n": 1 } }).await.unwrap();
        assert_eq!(view.lost().await.reason, LostReason::Released);
        let document = scene.find(1).await;
        let lock = document.get_document("watchlock").unwrap();
        assert_eq!(document.get_i32("n").unwrap(), 2);
        assert!(lock.get_array("holders").unwrap().is_empty());
        // A claim and a write of its holder: a release alone would have counted as much.
        assert_eq!(lock.get_i64("version").unwrap(), 2);
        let next = b.try_claim(doc! { "n": 2 }).await.unwrap().unwrap();
        assert!(next.token() > before);
        if matches!(scene.place, Place::Server(_)) {
            let pipeline = vec![doc! { "$set": { "n": { "$add": ["$n", 1] } } }];
            next.update_and_release(pipeline).await.unwrap();
            assert_eq!(scene.find(1).await.get_i32("n").unwrap(), 3);
            assert!(a.try_acquire(1).await.unwrap().is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_takes_two_commands() {
    let ground = Ground::replica_set("finish_cost").await;
    let (driver, sent) = ground.noting_driver().await;
    let events = ground.of(&driver, "events");
    events.insert_one(doc! { "_id": 1, "done": false }).await.unwrap();
    let locks = ground.locks().await;
    let jobs = locks.documents(events);
    let job = jobs.claim(doc! { "done": false }).await.unwrap();
    job.update_and_release(doc! { "$set": { "done": true } }).await.unwrap();
    let writes = ["findAndModify", "update", "delete"].map(|name| sent.count(name));
    assert_eq!(writes, [1, 1, 0], "{:?}", sent.names());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_gets_the_document_as_it_was_left() {
    for scene in Scene::everywhere("finish_waiter").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let held = a.acquire(1).await.unwrap();
        let waiter = waits(&a, 1, b.acquire(1)).await;
        // So does a claim that the update makes match.
        let claim = spawn(a.claim(doc! { "n": 2 }));
        held.update_and_release(doc! { "$set": { "n": 2 } }).await.unwrap();
        let next = within(PATIENCE, "the grant", waiter).await.unwrap().unwrap();
        assert_eq!(next.document().get_i32("n").unwrap(), 2);
        next.update_and_release(doc! { "$set": { "m": 3 } }).await.unwrap();
        let claimed = within(SOON * 5, "the claim", claim).await.unwrap().unwrap();
        assert_eq!(claimed.document().get_i32("m").unwrap(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_whose_lock_was_lost_stays_as_it_is() {
    for scene in Scene::everywhere("finish_lost").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let held = a.acquire(1).await.unwrap();
        b.break_lock(1).await.unwrap();
        let _next = b.acquire(1).await.unwrap();
        let error = held.update_and_release(doc! { "$set": { "n": 2 } }).await.unwrap_err();
        assert_is!(error, HoldError::Lost(lost) if lost.reason == LostReason::Broken);
        assert_eq!(scene.find(1).await.get_i32("n").unwrap(), 1);

        // What can't be an update changes nothing, and the lock is given back.
        scene.insert(doc! { "_id": 2, "n": 1 }).await;
        let held = a.acquire(2).await.unwrap();
        let error = held
            .update_and_release(doc! { "$set": { "watchlock": 1 } })
            .await
            .unwrap_err();
        assert!(matches!(error, HoldError::Invalid(_)), "{error:?}");
        drop(within(PATIENCE, "the lock", b.acquire(2)).await.unwrap());
    }
}

/// The client has a driver of its own, which is the one that is struck.
async fn struck(ground: &Ground) -> DocumentLocks<Document> {
    let locks = ground.locks().await;
    locks.documents(ground.collection("events").await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_whose_answer_is_lost_is_made_once_and_said_to_be() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "finish_answer");
    let named = ground.by_name();
    let (jobs, scene) = (struck(&named).await, Scene::on(ground.clone()).await);
    let fail = async |strikes, fault| ground.fail(cluster, times(strikes), &["update"], fault).await;
    let count = doc! { "$inc": { "n": 1 } };
    // It is applied, and neither of two answers says so.
    let lost = doc! {
        "closeConnection": false,
        "writeConcernError": { "code": 64, "errmsg": "timed out", "errorLabels": ["RetryableWriteError"] },
    };
    // It is not applied.
    let refused = doc! { "errorCode": 262 };
    for (id, times, fault) in [(1, 2, lost.clone()), (2, 5, refused.clone()), (3, 6, lost)] {
        scene.insert(doc! { "_id": id, "n": 0 }).await;
        let job = jobs.acquire(id).await.unwrap();
        let fault = fail(times, fault).await;
        within(PATIENCE, "the answer", job.update_and_release(count.clone()))
            .await
            .unwrap();
        fault.off().await.unwrap();
        assert_eq!(scene.find(id).await.get_i32("n").unwrap(), 1, "{id}");
        assert!(scene.locks().1.try_acquire(id).await.unwrap().is_some());
    }
    // The lock is broken before any try is applied.
    scene.insert(doc! { "_id": 4, "n": 0 }).await;
    let job = jobs.acquire(4).await.unwrap();
    let fault = fail(10_000, refused).await;
    let finishing = spawn(job.update_and_release(count));
    fault.wait_entered(2, PATIENCE).await.unwrap();
    scene.locks().1.break_lock(4).await.unwrap();
    fault.off().await.unwrap();
    let error = within(PATIENCE, "the answer", finishing).await.unwrap().unwrap_err();
    assert_is!(error, HoldError::Lost(lost) if lost.reason == LostReason::Broken);
    assert_eq!(scene.find(4).await.get_i32("n").unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_a_shutdown_overtakes_is_not_said_to_be_made() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "finish_shutdown");
    let named = ground.by_name();
    let (locks, scene) = (named.locks().await, Scene::on(ground.clone()).await);
    let database = named.driver().await.database(&ground.database);
    let jobs = locks.documents::<Document>(database.collection("events"));
    let mut held = Vec::new();
    for id in 0..8 {
        scene.insert(doc! { "_id": id, "n": 0 }).await;
        held.push((id, jobs.acquire(id).await.unwrap()));
    }
    let fault = doc! { "errorCode": 262 };
    let fault = ground
        .fail(cluster, times(10_000), &["findAndModify", "update"], fault)
        .await;
    let finishing: Vec<_> = held
        .into_iter()
        .map(|(id, job)| (id, spawn(job.update_and_release(doc! { "$inc": { "n": 1 } }))))
        .collect();
    fault.wait_entered(16, PATIENCE).await.unwrap();
    let shutting_down = spawn(async move { locks.shutdown().await });
    fault.off().await.unwrap();
    within(PATIENCE, "the shutdown", shutting_down).await.unwrap();
    for (id, finishing) in finishing {
        let made = within(PATIENCE, "the answer", finishing).await.unwrap();
        let n = scene.find(id).await.get_i32("n").unwrap();
        assert_eq!(made.is_ok(), n == 1, "{id}: {made:?}, {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_is_dropped_leaves_the_document_free() {
    for scene in Scene::everywhere("finish_dropped").await {
        let (a, b) = scene.locks();
        for id in 0..20 {
            scene.insert(doc! { "_id": id, "n": 0 }).await;
            let held = a.acquire(id).await.unwrap();
            let limit = std::time::Duration::from_micros(u64::try_from(id).unwrap() * 100);
            let finishing = held.update_and_release(doc! { "$inc": { "n": 1 } });
            let finished = tokio::time::timeout(limit, finishing).await;
            let next = within(PATIENCE, "the lock", b.acquire(id)).await;
            let n = next.unwrap().document().get_i32("n").unwrap();
            assert!(n == 1 || (n == 0 && finished.is_err()), "{id}: {n}");
        }
    }
}
