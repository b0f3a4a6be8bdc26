//! Upgradeable readers, which become writers and readers again.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::task::{JoinSet, yield_now};
use tokio_util::sync::CancellationToken;
use watchlock::{
    LockClientBuilder,
    errors::{GuardError, HoldError},
    operate::{Access, WakeSource},
};

use crate::setup::*;

const BRIEFLY: Duration = Duration::from_millis(100);

/// Less than a waiter's pause before it asks again without cause.
const LEASE_THIRD: Duration = Duration::from_secs(10);

/// The waiting writer waits for the upgradeable reader, and so does the reader behind it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_goes_before_the_queue_and_waits_for_the_readers() {
    for (a, b) in places("upgrade").await {
        let (ours, theirs) = (a.rw_lock("x"), b.rw_lock("x"));
        let read = ours.upgradeable_read().await.unwrap();
        let other = theirs.read().await.unwrap();
        let writer = in_line(&a, "x", 1, theirs.write()).await;
        let upgrade = in_line(&b, "x", 2, read.upgrade()).await;
        let later = in_line(&b, "x", 3, a.rw_lock("x").read());
        let later = within(LEASE_THIRD, "its place behind the upgrade", later).await;
        assert!(theirs.try_read().await.unwrap().is_none());
        let shown = info(&b, "x").await.unwrap();
        let waiting: Vec<_> = shown.waiters.iter().map(|waiter| waiter.access).collect();
        assert_eq!(waiting, [Some(Access::Write), Some(Access::Write), Some(Access::Read)]);
        let before = [read.token(), other.token()];
        drop(other);
        let write = granted(upgrade).await;
        assert!(before.iter().all(|token| write.token() > *token));
        assert_eq!((write.status(), read.status()), (LockStatus::Held, LockStatus::Held));
        let shown = info(&b, "x").await.unwrap();
        let holding: Vec<_> = shown.holders.iter().map(|holder| holder.access).collect();
        assert_eq!(holding, [Some(Access::Read), Some(Access::Write)], "{shown}");
        assert!(!writer.is_finished() && !later.is_finished());
        write.renew().await.unwrap();
        assert_eq!(write.release().await.unwrap(), Released::Released);
        // It is what it was, and the writer waits for it.
        assert_eq!((read.token(), read.status()), (before[0], LockStatus::Held));
        assert!(!writer.is_finished() && !later.is_finished());
        let again = within(PATIENCE, "a second upgrade", read.upgrade().into_future())
            .await
            .unwrap();
        drop(again);
        assert_eq!(read.release().await.unwrap(), Released::Released);
        granted(writer).await.release().await.unwrap();
        granted(later).await.release().await.unwrap();
        eventually(PATIENCE, "nothing is left", async || is_vacant(&b, "x").await).await;
    }
}

/// A client's other tasks keep its queue position, and its readers come after the upgrade.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_takes_no_place_from_the_tasks_of_its_client() {
    for (a, b) in places("upgrade_here").await {
        let (ours, theirs) = (a.rw_lock("x"), b.rw_lock("x"));
        let read = ours.upgradeable_read().await.unwrap();
        let (shared, other) = (ours.read().await.unwrap(), theirs.read().await.unwrap());
        let mine = in_line(&b, "x", 1, ours.clone().write()).await;
        let next = in_line(&b, "x", 2, theirs.write()).await;
        let upgrade = in_line(&b, "x", 3, read.upgrade()).await;
        assert!(ours.try_read().await.unwrap().is_none());
        drop(shared);
        drop(other);
        let write = granted(upgrade).await;
        drop((read, write));
        let mine = granted(mine).await;
        assert!(!next.is_finished());
        drop(mine);
        drop(granted(next).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_gives_up_leaves_the_reader_as_it_was() {
    for (a, b) in places("no_upgrade").await {
        let read = a.rw_lock("x").upgradeable_read().await.unwrap();
        let theirs = b.rw_lock("x");
        let (other, token) = (theirs.read().await.unwrap(), read.token());
        assert!(read.try_upgrade().await.unwrap().is_none());
        let held = read.try_upgrade().or_held().await.unwrap_err();
        assert_is!(held, AcquireError::Held { contention, .. } if contention.waiting_before == 0);
        // In line it has had its answer, so that the end of its time is told as such.
        let late = in_line(&b, "x", 1, read.upgrade().timeout(SOON)).await;
        let late = within(PATIENCE, "the end", late).await.unwrap().unwrap_err();
        assert!(matches!(late, AcquireError::Timeout { .. }), "{late}");
        let now = read.upgrade().timeout(Duration::ZERO).await.unwrap_err();
        assert!(matches!(now, AcquireError::Timeout { .. }), "{now}");
        until_waiting(&b, "x", 0).await;
        let stop = CancellationToken::new();
        let stopped = in_line(&b, "x", 1, read.upgrade().cancelled_by(&stop)).await;
        stop.cancel();
        let stopped = within(PATIENCE, "the end", stopped).await.unwrap().unwrap_err();
        assert!(matches!(stopped, AcquireError::Cancelled), "{stopped}");
        // Its entry would be taken for that of the next one.
        until_waiting(&b, "x", 0).await;
        let dropped = in_line(&b, "x", 1, read.upgrade()).await;
        dropped.abort();
        until_waiting(&b, "x", 0).await;
        // Nobody waits any more; the error says who does after all.
        let joined = theirs.try_read().or_held().await;
        drop(joined.unwrap());
        assert_eq!((read.token(), read.status()), (token, LockStatus::Held));
        other.release().await.unwrap();
        let write = within(PATIENCE, "the upgrade", read.upgrade().into_future())
            .await
            .unwrap();
        assert!(theirs.try_read().await.unwrap().is_none());
        drop((write, read));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_is_lost_with_its_reader_and_not_the_other_way_round() {
    for (a, b) in places("lost_upgrade").await {
        let lock = a.rw_lock("x");
        let read = lock.upgradeable_read().await.unwrap();
        let write = read.upgrade().await.unwrap();
        assert!(b.break_holder("x", write.token()).await.unwrap().is_some());
        assert_eq!(within(PATIENCE, "the loss", write.lost()).await, LostReason::Broken);
        assert_eq!(read.status(), LockStatus::Held);
        assert_eq!(write.release().await.unwrap(), Released::WasLost);

        let write = read.upgrade().await.unwrap();
        let (view, ended) = (write.view(), write.lost_token());
        assert!(b.break_holder("x", read.token()).await.unwrap().is_some());
        assert_eq!(within(PATIENCE, "the loss", write.lost()).await, LostReason::Broken);
        within(PATIENCE, "the token", ended.cancelled()).await;
        assert_eq!(
            (view.lost_reason(), view.safe_for()),
            (Some(LostReason::Broken), Duration::ZERO)
        );
        eventually(PATIENCE, "the rest is released", async || is_vacant(&b, "x").await).await;
        assert_eq!(write.release().await.unwrap(), Released::WasLost);
        let late = read.upgrade().await.map(drop).unwrap_err();
        assert_is!(late, AcquireError::Lost(lost) if lost.reason == LostReason::Broken);

        let (read, other) = (
            lock.upgradeable_read().await.unwrap(),
            b.rw_lock("x").read().await.unwrap(),
        );
        let upgrade = in_line(&b, "x", 1, read.upgrade()).await;
        assert!(b.break_holder("x", read.token()).await.unwrap().is_some());
        let lost = within(PATIENCE, "the loss", upgrade).await.unwrap().unwrap_err();
        assert_is!(lost, AcquireError::Lost(lost) if lost.reason == LostReason::Broken);
        drop(other);
        eventually(PATIENCE, "the queue position is given back", async || {
            is_vacant(&b, "x").await
        })
        .await;
    }
}

/// By one that learns of a loss only by its answers.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_a_deleted_lock_makes_no_document_and_is_lost() {
    let ground = Ground::replica_set("deleted_upgrade").await;
    let (locks, theirs) = (ground.polling().await, ground.polling().await);
    let (lock, documents) = (locks.rw_lock("x"), ground.documents().await);
    let delete = async || documents.delete_one(doc! { "_id": "x" }).await.unwrap();
    let see_lost = |error: AcquireError| {
        let is_lost = matches!(&error, AcquireError::Lost(lost) if lost.reason == LostReason::Deleted);
        assert!(is_lost, "{error}");
    };
    for way in ["waits", "tries", "asks once"] {
        let read = lock.upgradeable_read().await.unwrap();
        delete().await;
        let upgraded = match way {
            "waits" => read.upgrade().await.map(drop),
            "tries" => read.try_upgrade().await.map(drop),
            _ => read.upgrade().timeout(Duration::ZERO).await.map(drop),
        };
        see_lost(upgraded.unwrap_err());
        assert_eq!(read.lost_reason(), Some(LostReason::Deleted));
        assert_eq!(read.release().await.unwrap(), Released::WasLost);
        assert_eq!(documents.find_one(doc! {}).await.unwrap(), None, "{way}");
    }

    let (read, other) = (
        lock.upgradeable_read().await.unwrap(),
        theirs.rw_lock("x").read().await.unwrap(),
    );
    let upgrade = in_line(&theirs, "x", 1, read.upgrade()).await;
    delete().await;
    see_lost(within(PATIENCE, "the loss", upgrade).await.unwrap().unwrap_err());
    drop((read, other));
    eventually(PATIENCE, "nothing is left", async || is_vacant(&theirs, "x").await).await;
    assert_eq!(documents.find_one(doc! {}).await.unwrap(), None);

    // Those who come beside it acquire the lock anew.
    let read = lock.upgradeable_read().await.unwrap();
    delete().await;
    let beside = async { lock.try_write().await.unwrap() };
    let (upgraded, write) = tokio::join!(read.upgrade().into_future(), beside);
    see_lost(upgraded.map(drop).unwrap_err());
    assert!(write.expect("the lock is taken").token() > read.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgradeable_reader_and_what_it_becomes_can_be_plain_readers() {
    for (a, b) in places("plain").await {
        let (ours, theirs) = (a.rw_lock("x"), b.rw_lock("x"));
        let read = ours.upgradeable_read().await.unwrap();
        let write = read.upgrade().await.unwrap();
        let refused = read.downgrade().await.unwrap_err();
        assert!(matches!(refused, HoldError::Invalid(_)), "{refused}");
        assert!(refused.to_string().contains("2 handles"), "{refused}");
        let token = write.token();
        write.downgrade().await.unwrap();
        let beside = theirs.read().await.unwrap();
        assert_eq!(
            (write.token(), write.status(), write.permits()),
            (token, LockStatus::Held, 1)
        );
        assert!(theirs.try_upgradeable_read().await.unwrap().is_none());
        read.downgrade().await.unwrap();
        let error = read.upgrade().await.map(drop).unwrap_err();
        assert!(matches!(error, AcquireError::Invalid(_)), "{error}");
        assert!(error.to_string().contains("downgraded"), "{error}");
        let other = theirs.try_upgradeable_read().await.unwrap().expect("there is none");
        assert!(other.try_upgrade().await.unwrap().is_none());
        drop((read, write, beside));
        drop(
            within(PATIENCE, "the upgrade", other.upgrade().into_future())
                .await
                .unwrap(),
        );
        drop(other);

        // The last handle of it is the writer's.
        let write = ours.upgradeable_read().await.unwrap().upgrade().await.unwrap();
        write.downgrade().await.unwrap();
        drop(
            within(PATIENCE, "another", theirs.upgradeable_read().into_future())
                .await
                .unwrap(),
        );
        drop(write);

        let inner = ours.upgradeable_read().await.unwrap();
        let outer = ours.upgradeable_read().reentrant().await.unwrap();
        assert_eq!(inner.token(), outer.token());
        assert!(ours.try_upgradeable_read().await.unwrap().is_none());
        let write = inner.upgrade().await.unwrap();
        let error = write.detach().await.unwrap_err();
        assert!(matches!(error, HoldError::Invalid(_)), "{error}");
        drop(
            within(PATIENCE, "the second", outer.upgrade().into_future())
                .await
                .unwrap(),
        );
        assert_eq!(inner.release().await.unwrap(), Released::StillHeld);
        assert_eq!(outer.release().await.unwrap(), Released::Released);
    }
}

/// It takes the place of its own reader, at the head of the queue, and waits for the upgradeable one there.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_goes_before_a_restarted_reader_that_wants_to_write() {
    let memory = InMemory::new();
    let ground = Ground::replica_set("restarted_reader").await;
    let builders = [memory.builder(), memory.builder(), memory.builder()];
    let on_server = [ground.builder().await, ground.builder().await, ground.builder().await];
    for [ours, first, second] in [builders, on_server] {
        let locks = ours.build().await.unwrap();
        let worker = async |builder: LockClientBuilder| builder.owner_id("worker").build().await.unwrap();
        let (first, second) = (worker(first).await, worker(second).await);
        let read = locks.rw_lock("x").upgradeable_read().await.unwrap();
        let theirs = first.rw_lock("x").read().await.unwrap();
        let upgrade = in_line(&locks, "x", 1, read.upgrade()).await;
        let writer = spawn(second.rw_lock("x").write());
        assert_eq!(within(PATIENCE, "the loss", theirs.lost()).await, LostReason::Adopted);
        let write = within(LEASE_THIRD, "the upgrade", upgrade).await.unwrap().unwrap();
        drop((read, write));
        drop(granted(writer).await);
    }
}

/// The writer keeps the reader's hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_whose_reader_is_dropped_leaves_with_it_in_one_write() {
    let ground = Ground::replica_set("leave_together").await;
    let (a, b) = (ground.locks().await, ground.locks().await);
    let read = a.rw_lock("x").upgradeable_read().await.unwrap();
    let write = read.upgrade().await.unwrap();
    drop(read);
    assert!(b.rw_lock("x").try_read().await.unwrap().is_none());
    let before = ground.version("x").await;
    assert_eq!(write.release().await.unwrap(), Released::Released);
    assert_eq!(ground.version("x").await, before + 1);
    assert!(is_vacant(&b, "x").await);

    let read = a.rw_lock("x").upgradeable_read().await.unwrap();
    let write = read.upgrade().await.unwrap();
    within(PATIENCE, "the shutdown", a.shutdown()).await;
    assert_eq!(
        (read.lost_reason(), write.lost_reason()),
        (Some(LostReason::Released), Some(LostReason::Released))
    );
    assert!(is_vacant(&b, "x").await);
}

/// By one that learns of a loss only by its answers; as each is of both entries, none is taken for that of one.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_writer_does_it_does_for_its_reader_too() {
    let ground = Ground::replica_set("both_parts").await;
    let client = ground.driver().await;
    let builder = || LockClient::builder(client.database(&ground.database)).wake_source(WakeSource::Polling);
    let (a, b) = (builder().build().await.unwrap(), builder().build().await.unwrap());
    let (lock, longer) = (a.rw_lock("x"), Duration::from_secs(120));
    for drops in [true, false] {
        let read = lock.upgradeable_read().await.unwrap();
        let (token, write) = (read.token(), read.upgrade().await.unwrap());
        let read = Some(read).filter(|_| !drops);
        let long = write.renew_for(longer).await.unwrap();
        assert!(long > longer / 2 && write.safe_for() > longer / 2, "{long:?}");
        assert!(write.renew().await.unwrap() > longer / 2);
        assert!(b.break_holder("x", token).await.unwrap().is_some());
        assert_eq!(write.release().await.unwrap(), Released::WasLost, "dropped: {drops}");
        drop(read);
    }
    for breaks in [false, true] {
        let read = lock.upgradeable_read().await.unwrap();
        let write = read.upgrade().await.unwrap();
        let mut session = transaction(&client).await;
        if breaks {
            assert!(b.break_holder("x", read.token()).await.unwrap().is_some());
            let error = write.guard_transaction(&mut session).await.unwrap_err();
            assert_is!(error, GuardError::Lost(lost) if lost.token == write.token());
        } else {
            write.guard_transaction(&mut session).await.unwrap();
            session.commit_transaction().await.unwrap();
        }
        drop((read, write));
    }
}

/// Its lease is that of its reader, and it is over with it, by the clock alone.
#[tokio::test(start_paused = true)]
async fn a_writer_is_safe_for_no_longer_than_its_reader() {
    let second = Duration::from_secs(1);
    let locks = InMemory::new().client();
    let read = locks.rw_lock("x").upgradeable_read().fixed(10 * second).await.unwrap();
    let write = read.upgrade().await.unwrap();
    tokio::time::sleep(2 * second).await;
    assert!(write.safe_for() <= read.safe_for() && write.safe_for() < 8 * second);
    let ended = write.lost_token();
    assert_eq!(write.lost().await, LostReason::Elapsed);
    assert_eq!(read.lost_reason(), Some(LostReason::Elapsed));
    ended.cancelled().await;
    // By the server's clock its reader lasts a skew margin longer, and the writer's lease for much longer.
    let next = locks.rw_lock("x").write().timeout(2 * second).await;
    assert!(next.is_ok(), "{next:?}");
    drop((read, write));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_a_silent_server_does_not_answer_leaves_the_reader_as_it_was() {
    let cluster = watchlock_testkit::shared::replica_set().await;
    let proxy = cluster.proxy(0).unwrap();
    let ground = Ground::on(cluster, "silent_upgrade");
    let (locks, other) = (ground.through(proxy.uri()).locks().await, ground.polling().await);
    let read = locks.rw_lock("x").upgradeable_read().await.unwrap();
    for replies in [false, true] {
        if replies {
            proxy.black_hole_replies();
        } else {
            proxy.black_hole();
        }
        let error = read.upgrade().timeout(BRIEFLY).await.unwrap_err();
        assert!(matches!(error, AcquireError::Unanswered { .. }), "{error}");
        proxy.cut();
        proxy.heal();
        // A request that was applied, or comes late, is withdrawn.
        let beside = within(PATIENCE, "a reader beside it", other.rw_lock("x").read().into_future())
            .await
            .unwrap();
        assert!(read.is_held(), "{read:?}");
        beside.release().await.unwrap();
        let write = within(PATIENCE, "the upgrade", read.upgrade().into_future())
            .await
            .unwrap();
        write.release().await.unwrap();
    }
    read.release().await.unwrap();
    eventually(PATIENCE, "nothing is left", async || is_vacant(&other, "x").await).await;
}

/// Each reads a number and writes the next one, so that none is lost; readers meet no writer.
#[tokio::test(flavor = "multi_thread")]
async fn many_that_upgrade_at_once_lose_nothing_and_never_wait_for_each_other() {
    const TASKS: u64 = 4;
    const ROUNDS: u64 = 4;
    for (a, b) in places("upgrades").await {
        let (number, mut tasks) = (Arc::<AtomicU64>::default(), JoinSet::new());
        let work = |locks: &LockClient| (locks.rw_lock("x"), number.clone());
        for locks in [&a, &b] {
            for _ in 0..TASKS {
                let (lock, number) = work(locks);
                tasks.spawn(async move {
                    for _ in 0..ROUNDS {
                        let read = lock.upgradeable_read().await.unwrap();
                        let seen = number.load(Ordering::SeqCst);
                        yield_now().await;
                        let write = read.upgrade().await.unwrap();
                        assert_eq!(number.swap(u64::MAX, Ordering::SeqCst), seen);
                        yield_now().await;
                        number.store(seen + 1, Ordering::SeqCst);
                        write.release().await.unwrap();
                    }
                });
                let (lock, number) = work(locks);
                tasks.spawn(async move {
                    for _ in 0..ROUNDS {
                        let read = lock.read().await.unwrap();
                        assert_ne!(number.load(Ordering::SeqCst), u64::MAX);
                        read.release().await.unwrap();
                    }
                });
            }
        }
        within(3 * PATIENCE, "all are done", async {
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        })
        .await;
        assert_eq!(number.load(Ordering::SeqCst), 2 * TASKS * ROUNDS);
    }
}
