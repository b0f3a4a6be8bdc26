//! What the user of the connection must be permitted to do, and what works without; indexes of others; secrets.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use mongodb::{
    Client, Database, IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};
use tokio::sync::OnceCell;
use watchlock::{AcquireError, Fence, FenceError, LockClient, LostReason, PollingReason, Released, WakeMode};
use watchlock_testkit::Cluster;

use crate::setup::{COLLECTION, Ground, PATIENCE, SOON, eventually, faulty, until_mode, until_waiting, within};

pub(crate) const PASSWORD: &str = "aSecretOfThisTest";

/// The least role, as the README has it.
pub(crate) const LEAST: [&str; 4] = ["find", "insert", "update", "changeStream"];

/// A replica set that asks who one is.
async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(async || Cluster::builder().replica_set(1).auth(true).start().await.unwrap())
        .await
}

/// A user who may do nothing but `actions`, and on the locks' collection alone.
pub(crate) async fn user(prefix: &str, actions: &[&str]) -> (Ground, Database) {
    let cluster = cluster().await;
    let ground = Ground::on(cluster, prefix);
    let database = cluster.client().await.unwrap().database(&ground.database);
    let privilege = doc! { "resource": { "db": &ground.database, "collection": COLLECTION }, "actions": actions };
    let role = doc! { "createRole": "locker", "privileges": [privilege], "roles": [] };
    database.run_command(role).await.unwrap();
    let user = doc! { "createUser": "locker", "pwd": PASSWORD, "roles": ["locker"] };
    database.run_command(user).await.unwrap();
    let uri = format!(
        "mongodb://locker:{PASSWORD}@{}/?replicaSet=watchlock&authSource={}",
        cluster.addr(0),
        ground.database
    );
    (ground.through(uri), database)
}

/// Two clients hand a lock over, and one sees that it is lost.
async fn works(ground: &Ground, mode: WakeMode) {
    let (a, b) = (ground.locks().await, ground.locks().await);
    let held = a.mutex("x").acquire().await.unwrap();
    let mutex = b.mutex("x");
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    until_waiting(&a, "x", 1).await;
    for locks in [&a, &b] {
        until_mode(locks, PATIENCE, |is| is == mode).await;
    }
    held.renew().await.unwrap();
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    let next = within(SOON, "the hand-over", waiting).await.unwrap();
    assert!(next.token() > token);
    a.break_lock("x").await.unwrap();
    assert_eq!(within(2 * SOON, "the loss", next.lost()).await, LostReason::Broken);
    assert!(a.mutex("y").try_acquire().await.unwrap().is_some());
    assert_eq!((a.wake_mode(), b.wake_mode()), (mode, mode));
}

/// A guard needs nothing but the least role; a fence reads and updates the documents that it guards.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_role_is_enough_for_a_guard() {
    let (ground, database) = user("guard", &LEAST).await;
    let resource = doc! { "db": &ground.database, "collection": "data" };
    let privilege = doc! { "resource": resource, "actions": ["find", "update"] };
    let grant = doc! { "grantPrivilegesToRole": "locker", "privileges": [privilege] };
    database.run_command(grant).await.unwrap();
    database.collection("data").insert_one(doc! { "_id": 1 }).await.unwrap();

    let client = ground.driver().await;
    let locks = LockClient::builder(client.database(&ground.database))
        .build()
        .await
        .unwrap();
    let handle = locks.mutex("x").acquire().await.unwrap();
    let data = client.database(&ground.database).collection::<Document>("data");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let update = doc! { "$set": { "written": true } };
    let written = handle
        .fence()
        .update_one(&data, doc! { "_id": 1 }, update)
        .session(&mut session);
    assert_eq!(written.await.unwrap().matched_count, 1);
    handle.guard(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let smaller = Fence::new(1).update_one(&data, doc! { "_id": 1 }, doc! {}).await;
    assert!(matches!(smaller, Err(FenceError::Fenced(_))), "{smaller:?}");

    // A refused guard ends the transaction, for which nothing is needed either.
    session.start_transaction().await.unwrap();
    let view = handle.view();
    handle.release().await.unwrap();
    view.guard(&mut session).await.unwrap_err();
    session.commit_transaction().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_role_is_enough() {
    let (ground, database) = user("least", &LEAST).await;
    works(&ground, WakeMode::ChangeStream).await;
    // Not permitted, and missed by nobody at once: the index.
    let indexes = database
        .collection::<Document>(COLLECTION)
        .list_index_names()
        .await
        .unwrap();
    assert_eq!(indexes, ["_id_"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_right_to_create_indexes_idle_locks_are_purged() {
    let (ground, database) = user("index", &[&LEAST[..], &["createIndex"]].concat()).await;
    works(&ground, WakeMode::ChangeStream).await;
    let collection = database.collection::<Document>(COLLECTION);
    eventually(PATIENCE, "the index", async || {
        collection.list_index_names().await.unwrap().len() == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_watch_it_polls() {
    let (ground, _) = user("blind", &["find", "insert", "update"]).await;
    works(&ground, WakeMode::Polling(PollingReason::NotPermitted)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_other_action_of_the_least_role_it_does_not_work() {
    for missing in ["find", "insert", "update"] {
        let actions: Vec<&str> = LEAST.into_iter().filter(|action| *action != missing).collect();
        let (ground, _) = user("lacking", &actions).await;
        let locks = ground.locks().await;
        // Refused at once, and not waited for.
        let refused = within(SOON, missing, locks.mutex("x").acquire().into_future())
            .await
            .unwrap_err();
        assert!(matches!(refused, AcquireError::Server(_)), "{missing}: {refused:?}");
        let cause = refused.source().expect("the driver's error").to_string();
        assert!(cause.contains("not authorized"), "{missing}: {cause}");
        for told in [refused.to_string(), format!("{refused:?}"), cause] {
            assert!(!told.contains(PASSWORD), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_told() {
    let (ground, _) = user("secret", &LEAST).await;
    let driver = ground.driver().await;
    let builder = LockClient::builder(driver.database(&ground.database));
    let locks = builder.clone().build().await.unwrap();
    let mutex = locks.mutex("x");
    let handle = mutex.acquire().await.unwrap();
    let mut told = vec![
        format!("{locks:?}"),
        format!("{builder:?}"),
        format!("{mutex:?}"),
        format!("{:?}", mutex.acquire()),
        format!("{:?}", mutex.try_acquire()),
        format!("{handle:?} {:?}", handle.view()),
    ];
    // A wrong password, and nobody there.
    for uri in [
        format!(
            "mongodb://locker:{PASSWORD}x@{}/?replicaSet=watchlock&authSource=admin",
            cluster().await.addr(0)
        ),
        format!("mongodb://locker:{PASSWORD}@127.0.0.1:1/?serverSelectionTimeoutMS=200"),
    ] {
        let client = Client::with_uri_str(uri).await.unwrap();
        let error = LockClient::builder(client.database("any")).build().await;
        let error = match error {
            Ok(locks) => locks.mutex("x").try_acquire().await.unwrap_err().to_string(),
            Err(error) => format!("{error} {error:?} {:?}", error.source().map(ToString::to_string)),
        };
        told.push(error);
    }
    for told in told {
        assert!(!told.contains(PASSWORD) && !told.contains("mongodb://"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_of_others_are_in_nobodys_way() {
    let ten = Duration::from_secs(10);
    let options = |name: &str| IndexOptions::builder().name(name.to_owned());
    let others = [
        // Its name on another key; its key with another time, under its own name and under another one.
        (doc! { "some": 1 }, options("watchlock_purge_at").build()),
        (
            doc! { "purge_at": 1 },
            options("watchlock_purge_at").expire_after(ten).build(),
        ),
        (doc! { "purge_at": 1 }, options("another").expire_after(ten).build()),
        (doc! { "purge_at": 1 }, options("another").build()),
    ];
    for (keys, options) in others {
        let ground = Ground::replica_set("indexes").await;
        let documents = ground.documents().await;
        let case = format!("{keys} {options:?}");
        documents
            .create_index(IndexModel::builder().keys(keys).options(options).build())
            .await
            .unwrap();
        let before = documents.list_index_names().await.unwrap();
        let (a, b) = (ground.locks().await, ground.locks().await);
        let held = within(SOON, &case, a.mutex("x").acquire().into_future()).await.unwrap();
        let mutex = b.mutex("x");
        let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_waiting(&a, "x", 1).await;
        held.release().await.unwrap();
        within(SOON, &case, waiting).await.unwrap().release().await.unwrap();
        assert_eq!(documents.list_index_names().await.unwrap(), before, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acquire_waits_for_the_index() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "slow_index");
    let block = doc! {
        "failCommands": ["createIndexes"], "blockConnection": true, "blockTimeMS": 2_500, "appName": &ground.database,
    };
    let blocked = cluster.fail_commands(0, "alwaysOn", block).await.unwrap();
    let locks = ground.by_name().locks().await;
    let start = Instant::now();
    let handle = within(2 * SOON, "acquired", locks.mutex("x").acquire().into_future())
        .await
        .unwrap();
    handle.release().await.unwrap();
    blocked.wait_entered(1, PATIENCE).await.unwrap();
    // The index is still to come.
    assert!(start.elapsed() < Duration::from_millis(2_500));
    assert_eq!(ground.documents().await.list_index_names().await.unwrap(), ["_id_"]);
}
