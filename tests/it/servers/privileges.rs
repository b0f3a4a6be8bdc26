//! What the user of the connection must be permitted to do, and what works without; indexes of others; secrets.

use std::{error::Error, time::Instant};

use mongodb::{IndexModel, options::IndexOptions};
use watchlock::{
    errors::{FenceError, GuardError, ServerErrorKind},
    fence::Fence,
    operate::{LockEvent, PollingReason, WakeMode},
};

use crate::{
    common::users::{LEAST, PASSWORD, cluster, user, user_of},
    setup::*,
};

#[test]
fn the_minimum_role_is_the_one_of_the_guide() {
    let (_, actions) = include_str!("../../../docs/privileges.md")
        .split_once("actions: [")
        .unwrap();
    let (actions, _) = actions.split_once(']').unwrap();
    let actions: Vec<_> = actions.split(", ").map(|action| action.trim_matches('"')).collect();
    assert_eq!(actions, [&LEAST[..], &["createIndex"]].concat());
}

/// Two clients hand a lock over, and one sees that it is lost.
async fn works(ground: &Ground, mode: WakeMode) {
    let (a, b) = (ground.locks().await, ground.locks().await);
    let held = a.mutex("x").acquire().await.unwrap();
    let waiting = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
    for locks in [&a, &b] {
        until_mode(locks, PATIENCE, |is| is == mode).await;
    }
    held.renew().await.unwrap();
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    let next = within(SOON, "the hand-over", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    a.break_lock("x").await.unwrap();
    assert_eq!(within(2 * SOON, "the loss", next.lost()).await, LostReason::Broken);
    assert!(a.mutex("y").try_acquire().await.unwrap().is_some());
    assert_eq!((a.wake_mode(), b.wake_mode()), (mode, mode));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_role_is_enough_for_a_guard() {
    let (ground, database) = user("guard", &LEAST).await;
    let resource = doc! { "db": &ground.database, "collection": "data" };
    let privilege = doc! { "resource": resource, "actions": ["find", "update"] };
    let grant = doc! { "grantPrivilegesToRole": "locker", "privileges": [privilege] };
    database.run_command(grant).await.unwrap();
    database.collection("data").insert_one(doc! { "_id": 1 }).await.unwrap();

    let client = ground.driver().await;
    let locks = ground.locks_over(&client).await;
    let handle = locks.mutex("x").acquire().await.unwrap();
    let data = ground.of(&client, "data");
    let mut session = transaction(&client).await;
    let update = doc! { "$set": { "written": true } };
    let written = handle
        .fence()
        .update_one(&data, doc! { "_id": 1 }, update)
        .session(&mut session);
    assert_eq!(written.await.unwrap().matched_count, 1);
    handle.guard_transaction(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    let smaller = Fence::new(1).update_one(&data, doc! { "_id": 1 }, doc! {}).await;
    assert!(matches!(smaller, Err(FenceError::Fenced { .. })), "{smaller:?}");

    // A refused guard ends the transaction, for which nothing is needed either.
    session.start_transaction().await.unwrap();
    let view = handle.view();
    handle.release().await.unwrap();
    view.guard_transaction(&mut session).await.unwrap_err();
    session.commit_transaction().await.unwrap_err();
}

/// Without the right to create indexes, nobody misses the index at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_role_is_enough_and_more_or_fewer_rights_change_what_the_guide_says() {
    let with_indexes = [&LEAST[..], &["createIndex"]].concat();
    let blind = WakeMode::Polling(PollingReason::NotPermitted);
    for (prefix, actions, mode, indexes) in [
        ("least", &LEAST[..], WakeMode::ChangeStream, 1),
        ("index", &with_indexes[..], WakeMode::ChangeStream, 2),
        ("blind", &["find", "insert", "update"][..], blind, 1),
    ] {
        let (ground, database) = user(prefix, actions).await;
        works(&ground, mode).await;
        let collection = database.collection::<Document>(COLLECTION);
        eventually(PATIENCE, prefix, async || {
            collection.list_index_names().await.unwrap().len() == indexes
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_other_action_of_the_least_role_it_does_not_work() {
    for missing in ["find", "insert", "update"] {
        let actions: Vec<&str> = LEAST.into_iter().filter(|action| *action != missing).collect();
        let (ground, _) = user("lacking", &actions).await;
        let locks = ground.locks().await;
        // Refused at once, and not waited for.
        let refused = within(SOON, missing, locks.mutex("x").acquire()).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Server(_)), "{missing}: {refused:?}");
        let told = told(&refused);
        assert!(
            told.contains("Unauthorized (13): missing one of `find`, `insert`, `update` on "),
            "{missing}: {told}"
        );
    }
}

/// All that an error tells, with its causes; and nothing of it is secret.
fn told(error: &(dyn Error + 'static)) -> String {
    let told = with_causes(error);
    assert!(!told.contains(PASSWORD) && !told.contains("mongodb://"), "{told}");
    told
}

#[track_caller]
fn not_authorized(error: &(dyn Error + 'static), case: &str) {
    let told = told(error);
    assert!(told.contains("Unauthorized (13)"), "{case}: {told}");
}

/// Whoever only looks needs to find; and without the change stream he looks again and again.
#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_locks_needs_no_right_to_write() {
    for actions in [&["find"][..], &["find", "changeStream"]] {
        let (ground, _) = user("looks", actions).await;
        let owner = Ground::on(cluster().await, "unused").through(cluster().await.uri());
        let owner = LockClient::builder(owner.driver().await.database(&ground.database))
            .build()
            .await
            .unwrap();
        let held = owner.mutex("x").acquire().reason("to be seen").await.unwrap();
        let locks = ground.locks().await;
        assert_eq!(
            info(&locks, "x").await.unwrap().holders[0].owner.reason.as_deref(),
            Some("to be seen")
        );
        assert_eq!(locks.list().held(true).await.unwrap().len(), 1);
        assert_eq!(locks.semaphore("other", 2).available_permits().await.unwrap(), 2);
        let (mut one, mut all) = (locks.watch("x"), locks.watch_all());
        let granted = within(SOON, "a grant", one.next()).await.unwrap().unwrap();
        assert!(matches!(granted, LockEvent::Granted { .. }), "{granted:?}");
        within(SOON, "a grant", all.next()).await.unwrap().unwrap();
        held.release().await.unwrap();
        let released = within(PATIENCE, "the release", one.next()).await.unwrap().unwrap();
        assert!(matches!(released, LockEvent::Released { .. }), "{released:?}");
        within(PATIENCE, "the release", all.next()).await.unwrap().unwrap();
        // What writes is refused, and says so.
        not_authorized(&locks.break_lock("x").await.unwrap_err(), "break");
        not_authorized(&locks.mutex("x").try_acquire().await.unwrap_err(), "try");
    }
    let (ground, _) = user("blindfold", &["insert", "update", "changeStream"]).await;
    let locks = ground.locks().await;
    not_authorized(&locks.inspect("x").await.unwrap_err(), "inspect");
    not_authorized(&locks.list().await.unwrap_err(), "list");
    let mut events = locks.watch("x");
    not_authorized(
        &within(PATIENCE, "the refusal", events.next())
            .await
            .unwrap()
            .unwrap_err(),
        "watch",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_at_locks_in_documents_needs_no_right_to_write() {
    for actions in [&["find"][..], &["find", "changeStream"]] {
        let (ground, database) = user_of("looks", &[("orders", actions)]).await;
        let orders = database.collection::<Document>("orders");
        orders.insert_one(doc! { "_id": 1 }).await.unwrap();
        let owner = LockClient::builder(database).build().await.unwrap().documents(orders);
        let held = owner.acquire(1).await.unwrap();
        let orders = ground.collection("orders").await;
        let locks = ground.locks().await.documents(orders);
        assert_eq!(locks.list().held(true).await.unwrap().len(), 1);
        assert_eq!(locks.inspect(1).await.unwrap().unwrap().holders[0].token, held.token());
        let (mut one, mut all) = (locks.watch(1), locks.watch_all());
        within(PATIENCE, "a grant", one.next()).await.unwrap().unwrap();
        within(PATIENCE, "a grant", all.next()).await.unwrap().unwrap();
        held.release().await.unwrap();
        let released = within(PATIENCE, "the release", one.next()).await.unwrap().unwrap();
        assert!(matches!(released, LockEvent::Released { .. }), "{released:?}");
        let (_, released) = within(PATIENCE, "the release", all.next()).await.unwrap().unwrap();
        assert!(matches!(released, LockEvent::Released { .. }), "{released:?}");
        not_authorized(&locks.break_lock(1).await.unwrap_err(), "break");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_need_what_the_guide_says() {
    let all = ["find", "update", "changeStream", "remove"];
    for missing in [None, Some("find"), Some("update"), Some("changeStream"), Some("remove")] {
        let case = format!("without {missing:?}");
        let actions: Vec<&str> = all.into_iter().filter(|action| Some(*action) != missing).collect();
        let (ground, database) = user_of("orders", &[("orders", &actions)]).await;
        let orders = [doc! { "_id": 1, "open": true }, doc! { "_id": 2, "open": true }];
        database.collection("orders").insert_many(orders).await.unwrap();
        let driver = ground.driver().await;
        let orders = ground.of(&driver, "orders");
        let locks = [ground.locks().await, ground.locks().await].map(|locks| locks.documents(orders.clone()));
        let [a, b] = &locks;
        let held = match (within(SOON * 5, &case, a.acquire(1)).await, missing) {
            (Err(refused), Some("find" | "update")) => {
                not_authorized(&refused, &case);
                let refused = within(SOON * 5, &case, a.claim(doc! { "open": true })).await;
                not_authorized(&refused.unwrap_err(), &case);
                continue;
            }
            (held, _) => held.unwrap(),
        };
        held.update(doc! { "$set": { "seen": true } }).await.unwrap();
        // Who waits for it is let in, and so is who waits for any.
        let (waits, claims) = (b.acquire(1), b.claim(doc! { "open": true, "_id": 1 }));
        let waiting = spawn(waits);
        eventually(PATIENCE, "it waits", async || {
            a.inspect(1).await.unwrap().unwrap().waiters.len() == 1
        })
        .await;
        held.release().await.unwrap();
        let next = within(PATIENCE, &case, waiting).await.unwrap().unwrap();
        let claiming = spawn(claims);
        next.release().await.unwrap();
        let claimed = within(PATIENCE, &case, claiming).await.unwrap().unwrap();
        match (claimed.delete().await, missing) {
            (Err(refused), Some("remove")) => {
                not_authorized(&refused, &case);
                assert_eq!(claimed.lost_reason(), None, "{case}: it is held as before");
                claimed.release().await.unwrap();
            }
            (deleted, _) => deleted.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_needs_what_the_guide_says() {
    for missing in [None, Some("find"), Some("update"), Some("insert"), Some("remove")] {
        let case = format!("without {missing:?}");
        let all = ["find", "update", "insert", "remove"];
        let actions: Vec<&str> = all.into_iter().filter(|action| Some(*action) != missing).collect();
        let (ground, database) = user_of("fenced", &[("data", &actions)]).await;
        database.collection("data").insert_one(doc! { "_id": 1 }).await.unwrap();
        let data = ground.collection("data").await;
        let (fence, set) = (Fence::new(7), doc! { "$set": { "n": 1 } });
        let expect = |done: Result<(), FenceError>, needs: &[&str]| match done {
            Ok(()) => assert!(
                !missing.is_some_and(|missing| needs.contains(&missing)),
                "{case}: it needs {needs:?}"
            ),
            Err(error) => {
                not_authorized(&error, &case);
                assert!(
                    missing.is_some_and(|missing| needs.contains(&missing)),
                    "{case}: {error}"
                );
            }
        };
        let updated = fence.update_one(&data, doc! { "_id": 1 }, set.clone()).await;
        expect(updated.map(drop), &["update"]);
        let replaced = fence.replace_one(&data, doc! { "_id": 1 }, doc! { "n": 2 }).await;
        expect(replaced.map(drop), &["update"]);
        let upserted = fence.update_one(&data, doc! { "_id": 2 }, set).upsert(true).await;
        expect(upserted.map(drop), &["update", "insert"]);
        expect(fence.insert_one(&data, doc! { "_id": 3 }).await.map(drop), &["insert"]);
        expect(fence.delete_one(&data, doc! { "_id": 1 }).await.map(drop), &["remove"]);
        // That the fence refuses is seen by a look at the document; without one nothing is written either.
        let own = database.collection::<Document>("data");
        own.insert_one(doc! { "_id": 4, "fence": 7_i64 }).await.unwrap();
        let (late, set) = (Fence::new(6), doc! { "$set": { "n": 1 } });
        for refused in [
            late.update_one(&data, doc! { "_id": 4 }, set).await.map(drop),
            late.delete_one(&data, doc! { "_id": 4 }).await.map(drop),
        ] {
            match refused.unwrap_err() {
                FenceError::Fenced { .. } => assert_ne!(missing, Some("find"), "{case}"),
                error => {
                    not_authorized(&error, &case);
                    assert!(matches!(missing, Some("find" | "update" | "remove")), "{case}");
                }
            }
        }
        let stands = own.find_one(doc! { "_id": 4 }).await.unwrap();
        assert_eq!(stands, Some(doc! { "_id": 4, "fence": 7_i64 }), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_needs_the_right_to_update_locks() {
    let (ground, database) = user("guards", &LEAST).await;
    let client = ground.driver().await;
    let locks = ground.locks_over(&client).await;
    let handle = locks.mutex("x").acquire().await.unwrap();
    let resource = doc! { "db": &ground.database, "collection": COLLECTION };
    let revoked = doc! { "resource": resource, "actions": ["update"] };
    database
        .run_command(doc! { "revokePrivilegesFromRole": "locker", "privileges": [revoked] })
        .await
        .unwrap();
    let mut session = transaction(&client).await;
    let refused = handle.guard_transaction(&mut session).await.unwrap_err();
    not_authorized(&refused, "guard");
    let GuardError::Server(refused) = refused else {
        panic!("{refused:?}")
    };
    let ServerErrorKind::Unauthorized(missing) = refused.kind() else {
        panic!("{refused:?}")
    };
    assert!(missing.contains("`update`"), "{missing}");
    assert!(
        missing.ends_with(&format!(" on {}.{COLLECTION}", ground.database)),
        "{missing}"
    );
    session.commit_transaction().await.unwrap_err();
    // Until the lease ends it is held all the same, and that it can't be renewed is seen.
    eventually(PATIENCE, "it is at risk", async || {
        handle.renew().await.is_err() && handle.status() == LockStatus::AtRisk
    })
    .await;
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
        let held = within(SOON, &case, a.mutex("x").acquire()).await.unwrap();
        let waiting = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
        held.release().await.unwrap();
        within(SOON, &case, waiting)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(documents.list_index_names().await.unwrap(), before, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acquire_waits_for_the_index() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "slow_index");
    let blocked = ground
        .fail(cluster, "alwaysOn", &["createIndexes"], blocks(2_500))
        .await;
    let locks = ground.by_name().locks().await;
    let start = Instant::now();
    let handle = within(2 * SOON, "acquired", locks.mutex("x").acquire()).await.unwrap();
    handle.release().await.unwrap();
    blocked.wait_entered(1, PATIENCE).await.unwrap();
    // The index is still to come.
    assert!(start.elapsed() < Duration::from_millis(2_500));
    assert_eq!(ground.documents().await.list_index_names().await.unwrap(), ["_id_"]);
}
