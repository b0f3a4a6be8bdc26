//! Guards of transactions that write the locked document themselves.

use std::sync::Arc;

use futures::TryStreamExt as _;
use mongodb::{ClientSession, error::TRANSIENT_TRANSACTION_ERROR};
use tokio::time::sleep;
use watchlock::{
    documents,
    errors::{GuardError, HoldError},
};
use watchlock_testkit::Cluster;

use crate::setup::*;

struct Scene {
    client: Client,
    jobs: Collection<Document>,
    archive: Collection<Document>,
    locks: DocumentLocks<Document>,
    ground: Ground,
}

impl Scene {
    async fn new(prefix: &str) -> Self {
        let ground = Ground::replica_set(prefix).await;
        let client = ground.driver().await;
        let database = client.database(&ground.database);
        for name in ["jobs", "archive"] {
            database.create_collection(name).await.unwrap();
        }
        let locks = LockClient::builder(database.clone()).build().await.unwrap();
        let jobs = database.collection("jobs");
        Self {
            client,
            locks: locks.documents(jobs.clone()),
            jobs,
            archive: database.collection("archive"),
            ground,
        }
    }

    async fn job(&self, id: i32) -> Held<documents::Document<Document>> {
        self.jobs.insert_one(doc! { "_id": id, "task": "mail" }).await.unwrap();
        self.locks.acquire(id).await.unwrap()
    }

    async fn begin(&self) -> ClientSession {
        transaction(&self.client).await
    }
}

async fn all(collection: &Collection<Document>) -> Vec<Document> {
    collection.find(doc! {}).await.unwrap().try_collect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_after_the_lock_was_removed_by_the_transaction_is_final() {
    let scene = Scene::new("removed").await;
    for (id, replaces) in [(1, false), (2, true)] {
        let held = scene.job(id).await;
        let mut attempts = 0;
        let mut session = scene.client.start_session().await.unwrap();
        let moving = session.start_transaction().and_run2(async |session| {
            attempts += 1;
            scene
                .archive
                .insert_one(doc! { "_id": id })
                .session(&mut *session)
                .await?;
            match replaces {
                true => {
                    let replace = scene.jobs.replace_one(doc! { "_id": id }, doc! { "task": "done" });
                    replace.session(&mut *session).await?;
                }
                false => {
                    scene.jobs.delete_one(doc! { "_id": id }).session(&mut *session).await?;
                }
            }
            Ok(held.guard_transaction(session).await?)
        });
        let error = within(PATIENCE, "the refusal", moving).await.unwrap_err();
        let refused = error.get_custom::<GuardError>();
        let Some(refused @ GuardError::Removed) = refused else {
            panic!("{error}")
        };
        assert!(refused.to_string().contains("guarded first"), "{refused}");
        assert_eq!(attempts, 1);
        assert_eq!(all(&scene.archive).await, []);
        held.renew().await.unwrap();
        let stored = scene.jobs.find_one(doc! { "_id": id }).await.unwrap().unwrap();
        assert_eq!(stored.get_str("task").unwrap(), "mail");
        assert_eq!(held.status(), LockStatus::Held);
        held.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_guarded_first_may_remove_the_lock() {
    let scene = Scene::new("archive").await;
    let held = scene.job(1).await;
    let mut session = scene.client.start_session().await.unwrap();
    let moving = session.start_transaction().and_run2(async |session| {
        held.guard_transaction(&mut *session).await?;
        scene
            .archive
            .insert_one(doc! { "_id": 1 })
            .session(&mut *session)
            .await?;
        scene.jobs.delete_one(doc! { "_id": 1 }).session(&mut *session).await?;
        Ok(())
    });
    within(PATIENCE, "the move", moving).await.unwrap();
    assert_eq!(all(&scene.jobs).await, []);
    assert_eq!(all(&scene.archive).await, [doc! { "_id": 1 }]);
    assert_eq!(within(SOON, "the loss", held.lost()).await, LostReason::Deleted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_older_than_the_lock_of_a_document_is_run_again() {
    let scene = Scene::new("older").await;
    scene.jobs.insert_one(doc! { "_id": 1 }).await.unwrap();
    for (id, inserted) in [(1, false), (2, true)] {
        let mut session = scene.begin().await;
        // It sees the collections as of now.
        scene
            .archive
            .insert_one(doc! { "_id": id })
            .session(&mut session)
            .await
            .unwrap();
        if inserted {
            scene.jobs.insert_one(doc! { "_id": id }).await.unwrap();
        }
        let held = scene.locks.acquire(id).await.unwrap();
        match held.guard_transaction(&mut session).await {
            Err(GuardError::Outdated(error)) => assert!(error.contains_label(TRANSIENT_TRANSACTION_ERROR), "{error}"),
            other => panic!("{other:?}"),
        }
        session.commit_transaction().await.unwrap_err();
        assert_eq!(held.status(), LockStatus::Held);
        let mut session = scene.begin().await;
        held.guard_transaction(&mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_beside_a_guarded_transaction_is_refused_until_it_ends() {
    let scene = Scene::new("beside").await;
    let held = scene.job(1).await;
    for commits in [true, false] {
        let mut session = scene.begin().await;
        held.guard_transaction(&mut session).await.unwrap();
        let updating = held.update(doc! { "$set": { "beside": true } });
        let refused = within(PATIENCE, "the refusal", updating).await;
        assert!(matches!(refused, Err(HoldError::InTransaction)), "{refused:?}");
        let refused = within(PATIENCE, "the refusal", held.delete()).await;
        assert!(matches!(refused, Err(HoldError::InTransaction)), "{refused:?}");
        match commits {
            true => session.commit_transaction().await.unwrap(),
            false => session.abort_transaction().await.unwrap(),
        }
        // Not for ever, and at once.
        let updated = within(SOON, "the update", held.update(doc! { "$inc": { "after": 1 } }))
            .await
            .unwrap();
        assert!(!updated.contains_key("beside"), "{updated}");
    }
    let stored = scene.jobs.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    assert_eq!(stored.get_i32("after").unwrap(), 2);
    within(SOON, "the deletion", held.delete()).await.unwrap();
}

/// The transaction needs one to end.
#[tokio::test(flavor = "multi_thread")]
async fn writes_beside_a_guarded_transaction_leave_it_connections() {
    let scene = Scene::new("crowd").await;
    let held = Arc::new(scene.job(1).await);
    let mut session = scene.begin().await;
    held.guard_transaction(&mut session).await.unwrap();
    let update = |held: Arc<Held<_>>| async move { held.update(doc! { "$inc": { "n": 1 } }).await };
    let writes: Vec<_> = (0..20).map(|_| spawn(update(held.clone()))).collect();
    let admin = scene.ground.driver().await.database("admin");
    let waiting = async || {
        let ours = doc! { "ns": scene.jobs.namespace().to_string(), "op": "update", "active": true };
        let stages = [doc! { "$currentOp": {} }, doc! { "$match": ours }];
        let operations = admin.aggregate(stages).await.unwrap();
        operations.try_collect::<Vec<_>>().await.unwrap().len()
    };
    eventually(PATIENCE, "some wait", async || waiting().await > 0).await;
    pause(Duration::from_millis(300)).await;
    // The driver has ten.
    let waiting = waiting().await;
    assert!(waiting < 6, "{waiting}");
    session.commit_transaction().await.unwrap();
    for written in writes {
        let written = within(PATIENCE, "the update", written).await.unwrap();
        assert!(matches!(written, Ok(_) | Err(HoldError::InTransaction)), "{written:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_beside_a_guarded_transaction_is_refused_before_the_hold_is_over() {
    let scene = Scene::new("short").await;
    scene.jobs.insert_one(doc! { "_id": 1 }).await.unwrap();
    let held = scene
        .locks
        .acquire(1)
        .lease(Duration::from_millis(2_900))
        .await
        .unwrap();
    let mut session = scene.begin().await;
    held.guard_transaction(&mut session).await.unwrap();
    let refused = held.update(doc! { "$set": { "beside": true } }).await;
    match refused {
        Err(HoldError::InTransaction) => {}
        // On a machine that is that slow.
        Err(HoldError::Lost(_)) => assert!(held.lost_reason().is_some()),
        refused => panic!("{refused:?}"),
    }
}

/// The write by which it is asked whether a transaction is open is done, and not confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_majority_is_not_taken_for_an_open_transaction() {
    // No election while a member stands still.
    let cluster = Cluster::builder().replica_set(2).in_memory(true);
    let cluster = cluster.election_timeout(Duration::from_secs(60)).start().await.unwrap();
    let client = cluster.client().await.unwrap();
    let jobs = client.database("db").collection::<Document>("jobs");
    jobs.insert_one(doc! { "_id": 1 }).await.unwrap();
    let locks = LockClient::builder(client.database("db")).build().await.unwrap();
    let held = locks.documents(jobs).acquire(1).await.unwrap();
    let mut session = transaction(&client).await;
    held.guard_transaction(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let other = 1 - cluster.primary().await.unwrap();
    cluster.freeze(other).unwrap();
    let updating = held.update(doc! { "$set": { "n": 1 } });
    // The question is over by then.
    let thawing = async {
        sleep(Duration::from_secs(3)).await;
        cluster.thaw(other).unwrap();
    };
    let (updated, ()) = tokio::join!(within(PATIENCE, "the update", updating), thawing);
    assert_eq!(updated.unwrap().get_i32("n").unwrap(), 1);
}

/// The question whether a transaction is open writes the document.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_never_answered_leaves_the_document_to_others() {
    let (direct, proxy, behind) = Ground::proxied("probe_silent").await;
    let ground = behind;
    let client = ground.driver().await;
    let database = client.database(&ground.database);
    let jobs = database.collection::<Document>("jobs");
    jobs.insert_one(doc! { "_id": 1 }).await.unwrap();
    let locks = LockClient::builder(database).build().await.unwrap();
    let held = locks.documents(jobs.clone()).acquire(1).await.unwrap();
    let mut session = transaction(&client).await;
    held.guard_transaction(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    // No connection can be made from here on; several are there.
    let slow = doc! { "$where": "sleep(200) || true" };
    join_all((0..8).map(async |_| jobs.find_one(slow.clone()).await.unwrap())).await;
    proxy.black_hole_replies();
    let updated = within(PATIENCE, "an error", held.update(doc! { "$set": { "n": 1 } })).await;
    assert!(matches!(updated, Err(HoldError::Server(_))), "{updated:?}");
    let other = direct.collection("jobs").await;
    let writing = other.find_one_and_update(doc! { "_id": 1 }, doc! { "$set": { "beside": 1 } });
    let written = writing.max_time(Duration::from_secs(5)).await.unwrap();
    assert!(written.is_some_and(|document| !document.contains_key("n")));
}
