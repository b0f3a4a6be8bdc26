//! Lost answers, bad networks, and foreign hands on the documents.

mod clocks;
mod dead_connections;
pub(crate) mod processes;

use std::time::{Instant, SystemTime};

use mongodb::error::ErrorKind;
use watchlock::locks;

use crate::setup::*;

/// By when a lock is free or truly owned after an answer was lost.
const SETTLED: Duration = Duration::from_secs(2);

/// Waits until the client has opened another stream than `before`: while it opens, it may have the only connection, and
/// where answers are lost, none can be made for a request. No other client may have streams.
async fn until_streaming_anew(ground: &Ground, driver: &Client, before: &[i64]) {
    eventually(PATIENCE, "its stream is open", async || {
        ground
            .streams(driver)
            .await
            .iter()
            .any(|stream| !before.contains(stream))
    })
    .await;
}

/// The lock is free: another client gets it within the time in which everything is to be settled, and nobody else is in
/// the document then.
async fn assert_free(other: &LockClient, name: &str, case: &str) {
    let start = Instant::now();
    let handle = within(SETTLED, case, async {
        loop {
            if let Some(handle) = other.mutex(name).try_acquire().await.unwrap() {
                return handle;
            }
        }
    })
    .await;
    handle.release().await.unwrap();
    let rest = SETTLED.saturating_sub(start.elapsed());
    eventually(rest, case, async || is_vacant(other, name).await).await;
}

/// The handle is what the document says, and stays so when it is asked.
async fn assert_owned(handle: &Held<locks::Mutex>, other: &LockClient, case: &str) {
    let lock = info(other, handle.name()).await.unwrap();
    let tokens: Vec<_> = lock.holders.iter().map(|holder| holder.token).collect();
    assert_eq!(tokens, [handle.token()], "{case}");
    assert_eq!(handle.lost_reason(), None, "{case}");
    handle.renew().await.unwrap();
    assert_eq!(handle.status(), LockStatus::Held, "{case}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_applied_after_the_timeout_leaves_the_lock_free() {
    let (cluster, _turn) = faulty().await;
    let case = "applied late";
    let proxy = cluster.proxy(0).unwrap();
    let ground = Ground::on(cluster, "late");
    let behind = ground.through(proxy.uri());
    let (locks, other) = (behind.locks().await, ground.polling().await);
    let driver = ground.driver().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    until_streaming_anew(&ground, &driver, &[]).await;
    held.release().await.unwrap();
    let before = info(&other, "x").await.unwrap().token;
    // The network keeps it, and delivers it when its task has given up.
    proxy.black_hole();
    let error = locks
        .mutex("x")
        .acquire()
        .timeout(Duration::from_millis(150))
        .await
        .unwrap_err();
    assert!(matches!(error, AcquireError::Unanswered { .. }), "{error}");
    assert_eq!(info(&other, "x").await.unwrap().token, before);
    proxy.heal();
    // It has not been applied yet, so this looks until it was, and was undone.
    eventually(SETTLED, case, async || info(&other, "x").await.unwrap().token > before).await;
    assert_free(&other, "x", case).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_comes_leaves_the_lock_free_or_owned() {
    let (cluster, _turn) = faulty().await;
    let case = "answer lost";
    let proxy = cluster.proxy(0).unwrap();
    let ground = Ground::on(cluster, "lost");
    // The acquire must not need a new connection, whose greeting would have no answer: it would never be sent. The
    // driver takes a connection back a moment after its command.
    let behind = ground.through(format!("{}&minPoolSize=4", proxy.uri()));
    let (locks, other) = (behind.locks().await, ground.polling().await);
    let driver = ground.driver().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    until_streaming_anew(&ground, &driver, &[]).await;
    held.release().await.unwrap();
    let token = info(&other, "x").await.unwrap().token;

    // It times out while the server has granted it long since.
    proxy.black_hole_replies();
    let error = locks
        .mutex("x")
        .acquire()
        .timeout(Duration::from_millis(150))
        .await
        .unwrap_err();
    assert!(matches!(error, AcquireError::Unanswered { .. }), "{error}");
    eventually(PATIENCE, "it is granted", async || {
        info(&other, "x").await.unwrap().token > token
    })
    .await;
    assert_eq!(
        info(&other, "x").await.unwrap().holders.len(),
        1,
        "held by nobody, for now"
    );
    proxy.cut();
    let before = ground.streams(&driver).await;
    proxy.heal();
    assert_free(&other, "x", case).await;

    // It goes on waiting, and gets what it was granted.
    let held = locks.mutex("x").acquire().await.unwrap();
    until_streaming_anew(&ground, &driver, &before).await;
    held.release().await.unwrap();
    let token = info(&other, "x").await.unwrap().token;
    proxy.black_hole_replies();
    let acquire = spawn(locks.mutex("x").acquire());
    let mut granted = token;
    eventually(PATIENCE, "it is granted to who waits", async || {
        granted = info(&other, "x").await.unwrap().token;
        granted > token
    })
    .await;
    proxy.cut();
    let before = ground.streams(&driver).await;
    proxy.heal();
    let handle = within(SETTLED, case, acquire).await.unwrap().unwrap();
    assert_owned(&handle, &other, case).await;
    assert_eq!(handle.token(), granted);

    // It is released while the answer is lost.
    until_streaming_anew(&ground, &driver, &before).await;
    proxy.black_hole_replies();
    let release = spawn(handle.release());
    eventually(PATIENCE, "it is released", async || {
        info(&other, "x").await.unwrap().holders.is_empty()
    })
    .await;
    proxy.cut();
    proxy.heal();
    let released = within(SETTLED, case, release).await.unwrap().unwrap();
    assert_eq!(released, Released::Released);
    assert_free(&other, "x", case).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_outlives_its_connection_is_undone() {
    let (cluster, _turn) = faulty().await;
    for given_up in [true, false] {
        let case = format!("given up: {given_up}");
        let proxy = cluster.proxy(0).unwrap();
        let ground = Ground::on(cluster, "outlives");
        let behind = ground.through(proxy.uri());
        let (locks, other) = (behind.by_name().locks().await, ground.locks().await);
        let admin = ground.driver().await;
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
        // It waits in the server, which doesn't notice that nobody waits for its answer any more. It gives up by itself
        // in time, or applies it: nothing of it is left in either case.
        let block = blocks(900);
        let blocked = ground.fail(cluster, times(1), &["findAndModify"], block).await;
        let timeout = if given_up { Duration::from_millis(150) } else { PATIENCE };
        let acquire = spawn(locks.mutex("x").acquire().timeout(timeout));
        blocked.wait_entered(1, PATIENCE).await.unwrap();
        let cut = || {
            proxy.cut();
            proxy.heal();
        };
        if given_up {
            let error = acquire.await.unwrap().unwrap_err();
            assert!(matches!(error, AcquireError::Unanswered { .. }), "{case}: {error:?}");
            cut();
        } else {
            // Asked for once more, it is granted before the first request is applied.
            cut();
            let handle = acquire.await.unwrap().unwrap();
            assert_owned(&handle, &other, &case).await;
            handle.release().await.unwrap();
        }
        eventually(PATIENCE, &case, async || {
            let operations = ground.operations(&admin).await;
            !operations.iter().any(|operation| {
                operation.get_str("type").is_ok_and(|kind| kind == "op") && is_find_and_modify(operation)
            })
        })
        .await;
        assert_free(&other, "x", &case).await;
    }
}

fn is_find_and_modify(operation: &Document) -> bool {
    operation
        .get_document("command")
        .is_ok_and(|command| command.contains_key("findAndModify"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_applied_and_not_confirmed_is_undone_or_owned() {
    let (cluster, _turn, ground) = faulty_ground("concern").await;
    let case = "unconfirmed";
    let (locks, other) = (ground.locks().await, ground.locks().await);
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    let unconfirmed = || doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };

    let point = ground.fail(cluster, times(1), &["findAndModify"], unconfirmed()).await;
    let handle = within(SETTLED, case, locks.mutex("x").acquire()).await.unwrap();
    point.wait_entered(1, PATIENCE).await.unwrap();
    assert_owned(&handle, &other, case).await;
    handle.release().await.unwrap();

    let point = ground.fail(cluster, times(1), &["findAndModify"], unconfirmed()).await;
    let tried = locks.mutex("x").try_acquire().await.unwrap();
    point.wait_entered(1, PATIENCE).await.unwrap();
    let handle = tried.expect("what was applied is found");
    assert_owned(&handle, &other, case).await;
    handle.release().await.unwrap();

    let token = info(&other, "x").await.unwrap().token;
    // Not only twice: on a busy machine something that is sent later on for the handle before may be among them.
    let point = ground
        .fail(cluster, "alwaysOn", &["findAndModify"], unconfirmed())
        .await;
    // And it is not tried for as long as the error lasts.
    let tried = within(SETTLED, case, locks.mutex("x").try_acquire()).await;
    let error = tried.unwrap_err();
    assert!(matches!(error, AcquireError::Server(_)), "{error}");
    point.wait_entered(2, PATIENCE).await.unwrap();
    point.off().await.unwrap();
    // It was granted all the same, and so it is undone.
    eventually(SETTLED, case, async || info(&other, "x").await.unwrap().token > token).await;
    assert_free(&other, "x", case).await;
}

/// Nothing is left of the client but the task that takes its entry out.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_repeated_although_handle_and_client_are_gone() {
    let (cluster, _turn, ground) = faulty_ground("gone").await;
    let other = ground.locks().await;
    let locks = ground.locks().await;
    let handle = locks.mutex("x").acquire().await.unwrap();
    let cut = doc! { "closeConnection": true };
    let point = ground.fail(cluster, times(3), &["findAndModify"], cut).await;
    drop((handle, locks));
    let seen = point.wait_entered(3, PATIENCE).await;
    eventually(2 * SOON, "it is released", async || is_vacant(&other, "x").await).await;
    seen.unwrap();
    point.off().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_black_hole_the_loss_is_known_before_the_server_gives_the_lock_away() {
    let ground = Ground::replica_set("hole").await;
    let proxy = watchlock_testkit::shared::replica_set().await.proxy(0).unwrap();
    let locks = ground.through(proxy.uri()).locks_for(Duration::from_secs(2)).await;
    let other = ground.locks().await;
    let handle = locks.mutex("x").acquire().await.unwrap();
    let mutex = other.mutex("x");
    let next = spawn(async move { mutex.acquire().await.map(|handle| (handle, SystemTime::now())) });
    until_waiting(&other, "x", 1).await;
    // A grant and a renewal count differently, and this is to be a renewal that the holder has heard of.
    let mut safe_for = handle.safe_for();
    eventually(PATIENCE, "it is renewed", async || {
        let before = std::mem::replace(&mut safe_for, handle.safe_for());
        safe_for > before
    })
    .await;

    proxy.black_hole();
    let mut warned = false;
    let lost_at = within(PATIENCE, "the loss", async {
        loop {
            match handle.status() {
                LockStatus::Lost => return SystemTime::now(),
                LockStatus::AtRisk => warned = true,
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    // What has got through by now is the last that could: this is the server's own word.
    let until = info(&other, "x").await.unwrap().holders[0].until;
    let margin = until
        .duration_since(lost_at)
        .expect("the loss is known before the lease ends at the server");
    assert_eq!(handle.lost().await, LostReason::Expired);
    assert!(warned, "the lock was at risk before it was lost");
    // A tenth of the lease, less what the answer took; a loaded machine wakes up late.
    assert!(margin <= Duration::from_millis(500), "lost {margin:?} before the end");

    let (next, got_at) = within(PATIENCE, "the next gets it", next).await.unwrap().unwrap();
    assert!(got_at >= until && next.token() > handle.token());
    let (release, token) = (handle.release(), next.token());
    assert_eq!(
        within(SOON, "no answer is waited for", release).await.unwrap(),
        Released::WasLost
    );
    proxy.heal();
    // What was held back arrives now, late renewals and the leave, and harms nobody.
    locks.shutdown().await;
    assert_owned(&next, &other, "the next").await;
    assert_eq!(next.token(), token);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_renewals_are_no_loss() {
    let (cluster, _turn) = faulty().await;
    // After a closed connection the driver takes half a second to find the server again, so there must be room for
    // that.
    let lease = Duration::from_secs(3);
    let faults = [
        ("closed", doc! { "closeConnection": true }),
        ("stepped down", doc! { "errorCode": 10107 }),
        ("refused", doc! { "errorCode": 8000 }),
        (
            "unconfirmed",
            doc! { "writeConcernError": { "code": 64, "errmsg": "timed out" } },
        ),
    ];
    for (case, fault) in faults {
        let ground = Ground::on(cluster, "renewal");
        let locks = ground.by_name().locks_for(lease).await;
        let handle = locks.mutex("x").acquire().await.unwrap();
        let start = Instant::now();
        // Twice, so that it is at risk for long enough to be seen.
        let point = ground.fail(cluster, times(2), &["update"], fault).await;
        eventually(lease, case, async || handle.status() == LockStatus::AtRisk).await;
        point.wait_entered(2, PATIENCE).await.unwrap();
        eventually(lease, case, async || handle.status() == LockStatus::Held).await;
        // It lives on the renewals, not on its first lease.
        eventually(2 * lease, case, async || {
            assert_eq!(handle.lost_reason(), None, "{case}");
            start.elapsed() > lease
        })
        .await;
        assert_eq!(handle.release().await.unwrap(), Released::Released, "{case}");
    }
}

/// What a foreign hand can do to a held lock.
#[derive(Clone, Copy, Debug)]
enum Foul {
    Delete,
    Replace,
    ReplaceByNoLock,
    EmptyHolders,
    RemoveHolders,
    Drop,
    Rename,
}

impl Foul {
    const ALL: [Self; 7] = [
        Self::Delete,
        Self::Replace,
        Self::ReplaceByNoLock,
        Self::EmptyHolders,
        Self::RemoveHolders,
        Self::Drop,
        Self::Rename,
    ];

    async fn commit(self, documents: &Collection<Document>) {
        let filter = doc! { "_id": "x" };
        match self {
            Self::Delete => assert_eq!(documents.delete_one(filter).await.unwrap().deleted_count, 1),
            Self::Replace => {
                let mut document = documents.find_one(filter.clone()).await.unwrap().unwrap();
                document.get_array_mut("holders").unwrap()[0]
                    .as_document_mut()
                    .unwrap()
                    .insert("id", "somebody-1");
                document.remove("wake");
                documents.replace_one(filter, document).await.unwrap();
            }
            Self::ReplaceByNoLock => {
                documents
                    .replace_one(filter, doc! { "some": "thing", "holders": 7 })
                    .await
                    .unwrap();
            }
            Self::EmptyHolders => {
                documents
                    .update_one(filter, doc! { "$set": { "holders": [] } })
                    .await
                    .unwrap();
            }
            Self::RemoveHolders => {
                documents
                    .update_one(filter, doc! { "$unset": { "holders": "" } })
                    .await
                    .unwrap();
            }
            Self::Drop => documents.drop().await.unwrap(),
            Self::Rename => {
                let namespace = documents.namespace();
                let rename = doc! { "renameCollection": namespace.to_string(), "to": format!("{namespace}_old") };
                let admin = documents.client().database("admin");
                eventually(PATIENCE, "the collection is renamed", async || {
                    match admin.run_command(rename.clone()).await.map_err(|error| *error.kind) {
                        // An index is still being built.
                        Err(ErrorKind::Command(error)) if error.code == 12587 => false,
                        renamed => {
                            renamed.unwrap();
                            true
                        }
                    }
                })
                .await;
            }
        }
    }

    fn reason(self) -> LostReason {
        match self {
            Self::Delete | Self::Drop | Self::Rename => LostReason::Deleted,
            Self::Replace | Self::ReplaceByNoLock | Self::EmptyHolders | Self::RemoveHolders => LostReason::Overwritten,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_foreign_hand_takes_is_lost_at_once_and_stays_lost() {
    join_all(Foul::ALL.map(async |foul| {
        let ground = Ground::replica_set("foul").await;
        let (documents, driver) = (ground.documents().await, ground.driver().await);
        // Short, so that many renewals would be due in the time that it is watched.
        let lease = Duration::from_secs(2);
        let locks = ground.locks_for(lease).await;
        let handle = locks.mutex("x").acquire().await.unwrap();
        until_streaming(&ground, &driver, 1).await;
        foul.commit(&documents).await;
        let after = documents.find_one(doc! { "_id": "x" }).await.unwrap();
        let reason = within(SOON, &format!("{foul:?} is noticed"), handle.lost()).await;
        assert_eq!(reason, foul.reason(), "{foul:?}");
        assert_eq!(handle.status(), LockStatus::Lost, "{foul:?}");
        assert_eq!(handle.release().await.unwrap(), Released::WasLost, "{foul:?}");
        // Two leases long nothing of the client touches it; and then it has nothing more to do.
        let start = Instant::now();
        let untouched = async || documents.find_one(doc! { "_id": "x" }).await.unwrap() == after;
        eventually(PATIENCE, "watched", async || {
            assert!(untouched().await, "{foul:?}");
            start.elapsed() > 2 * lease
        })
        .await;
        locks.shutdown().await;
        assert!(untouched().await, "{foul:?}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_deleted_or_replaced_is_lost_without_a_look() {
    for foul in [Foul::Delete, Foul::Replace] {
        for waited in [false, true] {
            let ground = Ground::replica_set("unread").await;
            let (documents, driver) = (ground.documents().await, ground.driver().await);
            let (noting, sent) = ground.by_name().noting_driver().await;
            let locks = ground.locks_over(&noting).await;
            let handle = if waited {
                let held = ground.polling().await.mutex("x").acquire().await.unwrap();
                let waiting = in_line(&locks, "x", 1, locks.mutex("x").acquire()).await;
                until_streaming(&ground, &driver, 1).await;
                held.release().await.unwrap();
                waiting.await.unwrap().unwrap()
            } else {
                let handle = locks.mutex("x").acquire().await.unwrap();
                until_streaming(&ground, &driver, 1).await;
                handle
            };
            let looks = || sent.count("find");
            // A stream that was opened just now has the hold read once.
            let mut before = looks();
            eventually(PATIENCE, "it looks no more", async || {
                pause(Duration::from_millis(500)).await;
                std::mem::replace(&mut before, looks()) == before
            })
            .await;
            foul.commit(&documents).await;
            let case = format!("{foul:?}, waited: {waited}");
            assert_eq!(within(SOON, &case, handle.lost()).await, foul.reason(), "{case}");
            assert_eq!(looks(), before, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_over_what_a_foreign_hand_does() {
    join_all(Foul::ALL.map(async |foul| {
        let ground = Ground::replica_set("waiters").await;
        let (documents, driver) = (ground.documents().await, ground.driver().await);
        let (holder, waiter) = (ground.locks().await, ground.locks().await);
        let handle = holder.mutex("x").acquire().await.unwrap();
        let waiting = in_line(&holder, "x", 1, waiter.mutex("x").acquire()).await;
        until_streaming(&ground, &driver, 2).await;
        foul.commit(&documents).await;
        let reason = within(SOON, &format!("{foul:?} is noticed"), handle.lost()).await;
        // Before the holder has looked, the waiter may have made the document anew: then it is there, and another's.
        assert!(
            reason == foul.reason() || reason == LostReason::Overwritten,
            "{foul:?}: {reason}"
        );
        match foul {
            // There is no lock to be had under that name.
            Foul::Replace | Foul::ReplaceByNoLock => {
                let error = within(SOON, &format!("{foul:?}: the waiter"), waiting)
                    .await
                    .unwrap()
                    .unwrap_err();
                assert!(matches!(error, AcquireError::Server(_)), "{foul:?}: {error}");
            }
            _ => {
                let next = within(SOON, &format!("{foul:?}: the waiter"), waiting)
                    .await
                    .unwrap()
                    .unwrap();
                assert!(next.token() > handle.token(), "{foul:?}");
            }
        }
    }))
    .await;
}
