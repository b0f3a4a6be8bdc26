//! Claims of many documents in few commands.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use serde::Deserialize;
use watchlock::documents;

use crate::{documents::Scene, setup::*};

type Claimed = Vec<Held<documents::Document<Document>>>;

fn ids(claimed: &Claimed) -> Vec<i32> {
    claimed.iter().map(|held| held.id().as_i32().unwrap()).collect()
}

async fn insert(scene: &Scene, count: i32) {
    for id in 0..count {
        scene.insert(doc! { "_id": id, "n": 1 }).await;
    }
}

/// In the order of their `_id`s.
async fn claim(locks: &DocumentLocks<Document>, most: usize) -> Result<Option<Claimed>, AcquireError> {
    locks
        .try_claim_many(doc! { "n": 1 }, most)
        .sort(doc! { "_id": 1 })
        .await
}

async fn are_held(scene: &Scene) -> usize {
    let held = doc! { "watchlock.holders.id": { "$exists": true } };
    scene.events.find(held).await.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_many_takes_what_is_free_and_each_is_held_by_itself() {
    for scene in Scene::everywhere("claim_many").await {
        insert(&scene, 5).await;
        let (a, b) = scene.locks();
        let taken = b.acquire(1).await.unwrap();
        let mut first = claim(&a, 3).await.unwrap().unwrap();
        assert_eq!(ids(&first), [0, 2, 3]);
        // Few that are free make a short list.
        let rest = claim(&b, 3).await.unwrap().unwrap();
        assert_eq!(ids(&rest), [4]);
        assert!(claim(&a, 3).await.unwrap().is_none());
        let tokens: BTreeSet<_> = first
            .iter()
            .map(|held| (held.name().to_owned(), held.token()))
            .collect();
        assert_eq!(tokens.len(), 3);
        let last = first.pop().unwrap();
        assert_eq!(last.document(), &doc! { "_id": 3, "n": 1 });
        last.update(doc! { "$set": { "done": true } }).await.unwrap();
        last.renew().await.unwrap();
        assert_eq!(last.release().await.unwrap(), Released::Released);
        assert!(first.iter().all(|held| held.is_held()));
        assert_eq!(are_held(&scene).await, 4);
        // Dropped handles release.
        drop(first);
        eventually(SOON * 5, "they are free", async || are_held(&scene).await == 2).await;
        drop((taken, rest));
        // Bounds are named, and nothing is sent.
        for most in [0, 65, usize::MAX] {
            for refused in [claim(&a, most).await, a.claim_many(doc! {}, most).await.map(Some)] {
                let refused = refused.unwrap_err();
                assert!(matches!(refused, AcquireError::Invalid(_)), "{refused:?}");
                let text = refused.to_string();
                assert!(text.contains(&most.to_string()) && text.contains("1 to 64"), "{text}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_many_waits_for_one_document_and_takes_all_that_are_free_then() {
    for scene in Scene::everywhere("claim_many_waits").await {
        let (a, b) = scene.locks();
        insert(&scene, 4).await;
        let held = claim(&a, 64).await.unwrap().unwrap();
        assert_eq!(held.len(), 4);
        let waiting = spawn(b.claim_many(doc! { "n": 1 }, 64));
        let refused = b.claim_many(doc! { "n": 1 }, 64).timeout(SOON / 4).await.unwrap_err();
        assert_is!(refused, AcquireError::Timeout { .. } | AcquireError::Unanswered { .. });
        for one in held {
            one.release().await.unwrap();
        }
        let claimed = within(PATIENCE, "a document", waiting).await.unwrap().unwrap();
        assert!(!claimed.is_empty());
    }
}

/// One half of them each document by itself.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_workers_claim_each_document_once() {
    const DOCUMENTS: i32 = 120;
    for scene in Scene::everywhere("claim_many_workers").await {
        insert(&scene, DOCUMENTS).await;
        let (a, b) = scene.locks();
        let (at_work, done) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
        let worker = async |number: usize| {
            let locks = if number.is_multiple_of(2) { &a } else { &b };
            let to_do = || doc! { "done": { "$exists": false } };
            let claim = async || match number % 4 {
                0 | 1 => locks.try_claim_many(to_do(), 5).await.unwrap(),
                _ => locks.try_claim(to_do()).await.unwrap().map(|held| vec![held]),
            };
            while let Some(batch) = claim().await {
                let ids = ids(&batch);
                for id in &ids {
                    assert!(at_work.lock().unwrap().insert(*id), "{id} is at work twice");
                }
                tokio::task::yield_now().await;
                for (id, held) in ids.into_iter().zip(batch) {
                    held.update(doc! { "$set": { "done": true } }).await.unwrap();
                    assert!(at_work.lock().unwrap().remove(&id));
                    done.lock().unwrap().push(id);
                    held.release().await.unwrap();
                }
            }
            let never_claimed = doc! { "watchlock": { "$exists": false } };
            assert_eq!(scene.events.find(never_claimed).await.len(), 0);
        };
        within(PATIENCE * 2, "the work", join_all((0..50).map(worker))).await;
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..DOCUMENTS).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_claims_of_many_are_each_counted() {
    for scene in Scene::everywhere("claim_many_attempts").await {
        insert(&scene, 6).await;
        let (a, b) = scene.locks();
        for attempt in 1..=2 {
            for locks in [&a, &b] {
                let limited = locks
                    .try_claim_many(doc! { "n": 1 }, 3)
                    .max_attempts(2)
                    .sort(doc! { "watchlock.attempts": 1 });
                let batch = limited.await.unwrap().unwrap();
                assert_eq!(
                    batch.iter().map(|held| held.attempt()).collect::<Vec<_>>(),
                    [Some(attempt); 3]
                );
                for held in batch {
                    held.release().await.unwrap();
                }
            }
        }
        assert!(
            a.try_claim_many(doc! { "n": 1 }, 3)
                .max_attempts(2)
                .await
                .unwrap()
                .is_none()
        );
        assert_eq!(scene.events.find(doc! { "watchlock.attempts": 2 }).await.len(), 6);
    }
}

/// By a validator that came later. A claim takes those before it, and the next one those after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_document_divides_its_batch() {
    for ground in Ground::both("claim_many_refused").await {
        let (driver, sent) = ground.noting_driver().await;
        let scene = Scene::on(ground.clone()).await;
        let locks = scene.a.documents(ground.of(&driver, "events"));
        for id in 0..8 {
            scene.insert(doc! { "_id": id, "n": 1, "ok": id != 3 }).await;
        }
        let validator = doc! { "collMod": "events", "validator": { "ok": true } };
        driver.database(&ground.database).run_command(validator).await.unwrap();
        let count = || (sent.count("update"), sent.count("findAndModify"));
        let claimed = claim(&locks, 6).await.unwrap().unwrap();
        assert_eq!(ids(&claimed), [0, 1, 2]);
        assert_eq!(count(), (1, 0));
        // It is found by itself, and left out from now on.
        let rest = claim(&locks, 6).await.unwrap().unwrap();
        assert_eq!(ids(&rest), [4, 5, 6, 7]);
        assert_eq!(count(), (4, 0), "{:?}", sent.names());
        let error = claim(&locks, 6).await.map(|claimed| claimed.map(|it| ids(&it)));
        assert!(matches!(error, Ok(None)), "{error:?}");
        drop((claimed, rest));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_cannot_be_read_holds_up_no_others() {
    for bad in [doc! { "_id": "?", "n": 1 }, doc! { "_id": -1, "n": 1, "text": "?" }] {
        let ground = Ground::replica_set("claim_many_unreadable").await;
        let scene = Scene::on(ground.clone()).await;
        let bad = doc! { "insert": "events", "documents": [bad] };
        run_with_bad_text(&ground.driver().await.database(&ground.database), bad).await;
        insert(&scene, 4).await;
        // It is not told by an error while others can be claimed.
        let claimed = within(PATIENCE, "the others", scene.locks().0.claim_many(doc! { "n": 1 }, 8));
        let mut ids = ids(&claimed.await.unwrap());
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3]);
    }
}

#[derive(Debug, Deserialize)]
struct Job {
    size: i32,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_many_passes_over_what_cannot_be_claimed() {
    for scene in Scene::everywhere("claim_many_unfit").await {
        let locks = scene.locks_of::<Job>(&scene.a);
        for id in 0..6 {
            let size = if id % 2 == 0 {
                Bson::from("large")
            } else {
                Bson::from(id)
            };
            scene.insert(doc! { "_id": id, "size": size }).await;
        }
        scene.insert(doc! { "_id": 6, "size": 6, "watchlock": "mine" }).await;
        let claimed = locks.claim_many(doc! {}, 16).sort(doc! { "_id": 1 }).await.unwrap();
        let sizes: Vec<i32> = claimed.iter().map(|held| held.document().size).collect();
        assert_eq!(sizes, [1, 3, 5]);
        // The unreadable ones were given back.
        eventually(SOON * 5, "they are free", async || are_held(&scene).await == 3).await;
        let refused = locks.try_claim_many(doc! { "$nonsense": 1 }, 16).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Server(_)), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_claimed_by_conditions_that_only_finds_have() {
    let ground = Ground::replica_set("claim_many_near").await;
    let scene = Scene::on(ground.clone()).await;
    let events = ground.collection("events").await;
    let index = mongodb::IndexModel::builder().keys(doc! { "at": "2dsphere" }).build();
    events.create_index(index).await.unwrap();
    let point = doc! { "type": "Point", "coordinates": [1.0, 1.0] };
    for id in 0..3 {
        scene.insert(doc! { "_id": id, "n": 1, "at": &point }).await;
    }
    let near = doc! { "at": { "$near": { "$geometry": &point, "$maxDistance": 10 } } };
    for condition in [doc! { "$where": "this.n == 1" }, near] {
        let claimed = scene.locks().0.try_claim_many(condition, 16).await.unwrap().unwrap();
        assert_eq!(claimed.len(), 3);
        join_all(claimed.into_iter().map(|held| held.release())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_many_whose_answer_is_lost_is_taken_back() {
    let (cluster, _turn) = faulty().await;
    // A refusal says nothing of the statement before it.
    for (command, code) in [("update", 64), ("find", 202), ("find", 1)] {
        let ground = Ground::on(cluster, "claim_many_lost").by_name();
        let scene = Scene::on(ground.clone()).await;
        insert(&scene, 4).await;
        let (a, b) = scene.locks();
        drop(claim(&a, 1).await.unwrap());
        eventually(SOON * 5, "it is free", async || are_held(&scene).await == 0).await;
        // The candidates are found first, and the documents are read last.
        let (mode, fault) = match command {
            "update" => (
                times(1),
                doc! { "writeConcernError": { "code": code, "errmsg": "timed out" } },
            ),
            _ => (doc! { "skip": 1 }, doc! { "errorCode": code }),
        };
        let fault = ground.fail(cluster, mode, &[command], fault).await;
        let claimed = claim(&a, 4).await;
        match command {
            // What holds them is found out in time.
            "update" => assert_eq!(claimed.unwrap().unwrap().len(), 4),
            _ => assert!(matches!(claimed, Err(AcquireError::Server(_))), "{claimed:?}"),
        }
        fault.off().await.unwrap();
        eventually(
            SOON * 5,
            &format!("free again after a lost {command} ({code})"),
            async || are_held(&scene).await == 0,
        )
        .await;
        assert_eq!(claim(&b, 4).await.unwrap().unwrap().len(), 4);
    }
}

/// The documents by a client of the driver that notes how long a reading of some by their `_id`s may take.
async fn noting_readings(ground: &Ground, limits: Arc<Mutex<Vec<i32>>>) -> Collection<Document> {
    let hear = move |event| {
        if let CommandEvent::Started(started) = event
            && started.command_name == "find"
            && started
                .command
                .get_document("filter")
                .is_ok_and(|filter| filter.contains_key("_id"))
        {
            limits
                .lock()
                .unwrap()
                .push(started.command.get_i32("maxTimeMS").unwrap());
        }
    };
    let driver = ground.overheard_driver(hear).await;
    ground.of(&driver, "events")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_document_costs_its_batch_one_round() {
    let ground = Ground::replica_set("claim_many_blocked").await;
    let (scene, driver) = (Scene::on(ground.clone()).await, ground.driver().await);
    insert(&scene, 6).await;
    let limits = Arc::<Mutex<Vec<i32>>>::default();
    let a = scene.a.documents(noting_readings(&ground, limits.clone()).await);
    drop(claim(&a, 1).await.unwrap());
    eventually(SOON * 5, "it is free", async || are_held(&scene).await == 0).await;
    let events = ground.of(&driver, "events");
    let mut session = writing(&driver, &events, 3).await;
    let claimed = within(
        PATIENCE,
        "a part of them",
        a.claim_many(doc! { "n": 1 }, 6).sort(doc! { "_id": 1 }),
    );
    let claimed = claimed.await.unwrap();
    assert!(!claimed.is_empty() && !ids(&claimed).contains(&3), "{claimed:?}");
    // By the reading alone they are known, and a busy server takes longer than an instant for it.
    let limits = std::mem::take(&mut *limits.lock().unwrap());
    assert!(
        !limits.is_empty() && limits.iter().all(|limit| *limit >= 100),
        "{limits:?}"
    );
    session.abort_transaction().await.unwrap();
    drop(claimed);
    eventually(PATIENCE, "nothing stays behind", async || are_held(&scene).await == 0).await;
}

/// A claim that counts, in the order of the `_id`s.
async fn claim_counted(locks: &DocumentLocks<Document>, attempts: u32) -> Result<Option<Claimed>, AcquireError> {
    let claiming = locks.try_claim_many(doc! { "n": 1 }, 8).max_attempts(attempts);
    claiming.sort(doc! { "_id": 1 }).await
}

fn attempts(claimed: &Claimed) -> Vec<u32> {
    claimed.iter().filter_map(|held| held.attempt()).collect()
}

/// What the lost answer has claimed is used up by one, and a try that says that there is none holds none.
#[tokio::test(flavor = "multi_thread")]
async fn a_counted_claim_of_many_whose_answer_is_lost_has_used_one_attempt() {
    let (cluster, _turn) = faulty().await;
    let not_applied = [doc! { "closeConnection": true }, doc! { "errorCode": 10_107 }];
    let applied = doc! { "writeConcernError": { "code": 91, "errmsg": "soon" } };
    let faults = not_applied.map(|fault| (fault, 0)).into_iter().chain([(applied, 1)]);
    for (fault, lost) in faults {
        for most in 1..=2 {
            let ground = Ground::on(cluster, "claim_many_counted").by_name();
            let scene = Scene::on(ground.clone()).await;
            let (a, _) = scene.locks();
            assert!(claim_counted(&a, most).await.unwrap().is_none());
            insert(&scene, 4).await;
            let failing = ground.fail(cluster, times(1), &["update"], fault.clone()).await;
            let claimed = claim_counted(&a, most).await.unwrap();
            let held = are_held(&scene).await;
            failing.off().await.unwrap();
            match claimed {
                None => assert_eq!((lost, held), (most, 0), "{fault}"),
                Some(claimed) => assert_eq!(attempts(&claimed), [1 + lost; 4], "{fault}"),
            }
            let counted = doc! { "watchlock.attempts": i64::from((1 + lost).min(most)) };
            assert_eq!(scene.events.find(counted).await.len(), 4, "{fault}");
        }
    }
}

/// What a transaction has written is counted when it is claimed, and not when a claim met it.
#[tokio::test(flavor = "multi_thread")]
async fn counted_claims_that_a_transaction_holds_up_have_used_no_attempt() {
    let ground = Ground::replica_set("claim_many_unused").await;
    let (scene, driver) = (Scene::on(ground.clone()).await, ground.driver().await);
    insert(&scene, 6).await;
    let (a, _) = scene.locks();
    let events = ground.of(&driver, "events");
    let mut session = transaction(&driver).await;
    let written = doc! { "_id": { "$in": [2, 4] } };
    let write = events.update_many(written, doc! { "$set": { "x": 1 } });
    write.session(&mut session).await.unwrap();
    let first = within(PATIENCE, "a part", claim_counted(&a, 1)).await.unwrap().unwrap();
    let found = ids(&first);
    assert!(
        found.contains(&0) && !found.contains(&2) && !found.contains(&4),
        "{found:?}"
    );
    let rest = a.clone();
    let rest = spawn(async move { claim_counted(&rest, 1).await });
    tokio::time::sleep(SOON / 2).await;
    session.abort_transaction().await.unwrap();
    let mut claimed = first;
    claimed.extend(within(PATIENCE, "the rest", rest).await.unwrap().unwrap().unwrap());
    while let Some(more) = claim_counted(&a, 1).await.unwrap() {
        claimed.extend(more);
    }
    let mut found = ids(&claimed);
    found.sort_unstable();
    assert_eq!(found, [0, 1, 2, 3, 4, 5]);
    assert_eq!(attempts(&claimed), [1; 6]);
}

/// Whatever answers the fail-overs take: nothing is claimed twice at once or too often, and a try that says that there
/// is none has left none.
#[tokio::test(flavor = "multi_thread")]
async fn counted_tries_of_many_are_true_while_the_primary_steps_down() {
    const DOCUMENTS: i32 = 400;
    const FAIL_OVERS: u32 = 2;
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "claim_many_stepdown");
    let scene = Scene::on(ground.clone()).await;
    insert(&scene, DOCUMENTS).await;
    let (a, _) = scene.locks();
    let stepping = spawn(async move {
        for _ in 0..FAIL_OVERS {
            cluster.step_down(0, 1).await.unwrap();
            cluster.wait_until_ready(PATIENCE).await.unwrap();
            tokio::time::sleep(SOON / 4).await;
        }
    });
    let (mut done, mut unsure, mut failed) = (BTreeSet::new(), BTreeSet::new(), 0);
    let work = async {
        loop {
            let to_do = doc! { "done": { "$exists": false } };
            match a.try_claim_many(to_do.clone(), 5).max_attempts(1 + FAIL_OVERS).await {
                Ok(Some(batch)) => {
                    let ids = ids(&batch);
                    let counted = attempts(&batch);
                    assert!(counted.iter().all(|attempt| *attempt <= 1 + FAIL_OVERS), "{counted:?}");
                    let finish = |held: Held<documents::Document<Document>>| {
                        held.update_and_release(doc! { "$set": { "done": true } })
                    };
                    for (id, finished) in ids.into_iter().zip(join_all(batch.into_iter().map(finish)).await) {
                        match finished {
                            Ok(_) => assert!(done.insert(id), "{id} was done before"),
                            // It is claimed again if it was not.
                            Err(_) => drop(unsure.insert(id)),
                        }
                    }
                }
                Ok(None) => {
                    let left = scene.events.find(to_do).await;
                    // Those are released in the background.
                    let is_unsure = |document: &Document| unsure.contains(&document.get_i32("_id").unwrap());
                    assert!(left.iter().all(is_unsure), "{left:?}");
                    if left.is_empty() {
                        break;
                    }
                }
                Err(_) => failed += 1,
            }
        }
    };
    within(PATIENCE * 3, "the work", work).await;
    stepping.await.unwrap();
    println!("{} known to be done, {failed} tries failed", done.len());
    eventually(PATIENCE, "nothing stays behind", async || are_held(&scene).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_one_and_of_many_that_are_dropped_leave_nothing_behind() {
    for scene in Scene::everywhere("claim_many_drop").await {
        insert(&scene, 9).await;
        let (a, b) = scene.locks();
        for micros in (0..60).map(|step| step * 150) {
            // Given up somewhere on their way.
            let limit = Duration::from_micros(micros);
            let _ = tokio::time::timeout(limit, a.claim(doc! {})).await;
            let _ = tokio::time::timeout(limit, a.claim_many(doc! {}, 5)).await;
        }
        eventually(SOON * 3, "all are free", async || are_held(&scene).await == 0).await;
        let mut held = Vec::new();
        while held.len() < 9 {
            // A claim that the server carried out only now has one for a moment more.
            held.extend(
                within(SOON * 3, "free documents", b.claim_many(doc! {}, 9))
                    .await
                    .unwrap(),
            );
        }
        // One that waits, and is given up.
        let waiting = a.claim(doc! {}).timeout(Duration::from_millis(40)).await;
        assert_is!(
            waiting,
            Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. })
        );
        drop(held);
        scene.a.shutdown().await;
        assert_is!(a.try_claim(doc! {}).await, Err(AcquireError::Closed));
        assert_is!(claim(&a, 5).await, Err(AcquireError::Closed));
    }
}
