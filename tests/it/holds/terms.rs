//! The terms of an acquire: a lease of its own, a fixed length, and a time for which the lock is kept.

use std::time::SystemTime;

use watchlock::{errors::HoldError, operate::LockEvent};

use crate::setup::*;

const SECOND: Duration = Duration::from_secs(1);

fn after(later: SystemTime, earlier: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_job_that_two_hosts_try_is_done_by_one() {
    for (a, b) in places("short").await {
        let job = a.mutex("job").try_acquire().at_least_for(60 * SECOND).reason("night");
        let job = job.await.unwrap().unwrap();
        let token = job.token();
        assert_eq!(job.release().await.unwrap(), Released::Kept);
        // The other comes late, and so does the one once more.
        for locks in [&b, &a] {
            let error = locks.mutex("job").try_acquire().or_held().await.unwrap_err();
            let message = error.to_string();
            let contention = contention(error);
            let kept = &contention.holders[0];
            let released = kept.released.unwrap();
            assert_eq!((kept.token, contention.held_here), (token, false));
            assert_eq!(after(kept.until, kept.since), 60 * SECOND);
            assert!(released >= kept.since && released < kept.until);
            assert_says(&message, &["kept taken by", "night"]);
            assert!(locks.mutex("job").try_acquire().await.unwrap().is_none());
        }
        assert_eq!(holder(&b, "job").await.token, token);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_as_the_time_of_a_kept_lock_ends() {
    let places = places("kept").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let held = a.mutex("x").acquire().at_least_for(3 * SECOND).await.unwrap();
        let waiting = in_line(a, "x", 1, b.mutex("x").acquire()).await;
        assert_eq!(held.release().await.unwrap(), Released::Kept);
        let kept = holder(a, "x").await;
        let granted = within(PATIENCE, "the grant", waiting).await.unwrap().unwrap();
        let next = holder(a, "x").await;
        assert_eq!(next.token, granted.token());
        // By the server's clock, and although no event tells of an end.
        assert!(next.since >= kept.until, "{next:?} beside {kept:?}");
        let late = after(next.since, kept.until);
        assert!(late < SOON, "{late:?}");
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_handle_and_a_shutdown_keep_the_lock_too() {
    for (a, b) in places("dropped").await {
        drop(a.mutex("x").acquire().at_least_for(60 * SECOND).await.unwrap());
        let _held = a.mutex("y").acquire().at_least_for(60 * SECOND).await.unwrap();
        a.shutdown().await;
        for name in ["x", "y"] {
            eventually(PATIENCE, "it is kept", async || {
                holder(&b, name).await.released.is_some()
            })
            .await;
            assert!(b.mutex(name).try_acquire().await.unwrap().is_none());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_an_operator_opens_a_kept_lock() {
    let ground = Ground::replica_set("operator").await;
    let of = async || ground.builder().await.owner_id("worker").build().await.unwrap();
    let (first, other) = (of().await, ground.locks().await);
    let held = first.mutex("x").acquire().at_least_for(60 * SECOND).await.unwrap();
    let token = held.token();
    held.release().await.unwrap();
    // A later incarnation takes over what an earlier one holds, and this one holds nothing.
    let second = of().await;
    assert!(second.mutex("x").try_acquire().await.unwrap().is_none());
    let waiting = in_line(&other, "x", 1, second.mutex("x").acquire()).await;
    assert_eq!(holder(&other, "x").await.token, token);
    other.break_lock("x").await.unwrap();
    let granted = within(PATIENCE, "the grant", waiting).await.unwrap().unwrap();
    assert!(granted.token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_that_a_lock_is_kept_and_when_it_opens() {
    let places = places("observed").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let mut events = b.watch("x");
        let mut next = async || within(PATIENCE, "an event", events.next()).await.unwrap().unwrap();
        let held = a.mutex("x").acquire().at_least_for(4 * SECOND).await.unwrap();
        let token = held.token();
        let granted = next().await;
        assert!(matches!(&granted, LockEvent::Granted { holder, .. } if holder.released.is_none()));
        assert_eq!(held.release().await.unwrap(), Released::Kept);
        let event = next().await;
        let LockEvent::Kept { token: of, until, .. } = event else {
            panic!("{event:?}");
        };
        assert_eq!((of, until), (token, holder(b, "x").await.until));
        let event = next().await;
        assert_is!(event, LockEvent::Released { token: of, .. } if *of == token);
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_not_purged_while_its_lock_is_kept_or_held_for_long() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let ground = Ground::replica_set("purged").await;
    let locks = ground.locks().await;
    let kept = locks.mutex("kept").acquire().at_least_for(30 * DAY).await.unwrap();
    kept.release().await.unwrap();
    let held = locks.mutex("held").acquire().lease(30 * DAY).await.unwrap();
    held.renew().await.unwrap();
    let _fixed = locks.mutex("fixed").acquire().fixed(30 * DAY).await.unwrap();
    for name in ["kept", "held", "fixed"] {
        let until = holder(&locks, name).await.until;
        let documents = ground.documents().await;
        let document = documents.find_one(doc! { "_id": name }).await.unwrap().unwrap();
        let purge_at = document.get_datetime("purge_at").unwrap().to_system_time();
        assert!(purge_at >= until + DAY / 2, "{name}: {purge_at:?}, {until:?}");
    }
}

/// The client's lease is 30 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_lease_is_renewed_in_time_and_its_holders_death_costs_no_more() {
    let lease = 5 * SECOND;
    let places = places("lease").await;
    let renewed = places.iter().map(async |(a, b)| {
        let held = a.mutex("x").acquire().lease(lease).await.unwrap();
        let (long, first) = (a.mutex("long").acquire().await.unwrap(), holder(b, "x").await);
        assert_eq!(after(first.until, first.since), lease);
        pause(lease + SECOND).await;
        assert_eq!((held.status(), long.status()), (LockStatus::Held, LockStatus::Held));
        assert!(holder(b, "x").await.until > first.until + SECOND);
        assert!(held.safe_for() < lease && long.safe_for() > 2 * lease);
        held.release().await.unwrap();
    });
    join_all(renewed).await;
    // A process that ends without a release.
    let ground = Ground::replica_set("lease").await;
    let (dying, b) = (ground.clone(), ground.locks().await);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let locks = dying.locks().await;
            std::mem::forget(locks.mutex("x").acquire().lease(lease).await.unwrap());
        });
        runtime.shutdown_background();
    })
    .join()
    .unwrap();
    let dead = holder(&b, "x").await;
    let next = within(PATIENCE, "the grant", b.mutex("x").acquire()).await.unwrap();
    let next = (next.token(), holder(&b, "x").await);
    assert_eq!(next.0, next.1.token);
    assert!(next.1.since >= dead.until && after(next.1.since, dead.since) < 2 * lease + SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_hold_is_lost_as_its_time_ends_and_nobody_else_has_it_before() {
    let length = 5 * SECOND;
    let places = places("fixed").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let held = a.mutex("x").acquire().fixed(length).await.unwrap();
        let before = holder(b, "x").await;
        let (waiting, view) = (b.mutex("x"), held.view());
        let waiting = spawn(async move {
            let next = waiting.acquire().await.unwrap();
            // By the clock, whatever task runs first.
            (next, view.lost_reason())
        });
        until_waiting(a, "x", 1).await;
        pause(SECOND).await;
        assert_eq!(held.status(), LockStatus::Held);
        assert_eq!(holder(b, "x").await.until, before.until, "nobody renews it");
        let lost = within(PATIENCE, "the loss", held.lost()).await;
        assert_eq!(lost.to_string(), "`x` is lost: the fixed time of the hold is over");
        let (_next, lost) = within(PATIENCE, "the grant", waiting).await.unwrap();
        assert_eq!(lost, Some(LostReason::Elapsed));
        let next = holder(a, "x").await;
        // It stops a margin before the server ends it, and others have the lock when the server says so.
        assert!(next.since >= before.until && next.since < before.until + SOON);
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
    });
    join_all(everywhere).await;
}

/// Whoever is woken holds on a claim lease first, and has its fixed time from when it confirms that.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_woken_has_its_fixed_time_and_no_more() {
    let length = 6 * SECOND;
    let places = places("woken").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let first = a.mutex("x").acquire().await.unwrap();
        let waiting = in_line(a, "x", 1, b.mutex("x").acquire().fixed(length)).await;
        first.release().await.unwrap();
        let held = within(PATIENCE, "the grant", waiting).await.unwrap().unwrap();
        eventually(PATIENCE, "its grant is confirmed", async || {
            after(holder(a, "x").await.until, holder(a, "x").await.since) >= length
        })
        .await;
        let confirmed = holder(a, "x").await;
        assert!(after(confirmed.until, confirmed.since) < length + SOON);
        assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Elapsed);
        let gone = info(a, "x").await.unwrap();
        assert!(gone.holders.iter().all(|holder| holder.until == confirmed.until));
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_hold_that_is_broken_or_deleted_is_lost_at_once() {
    let ground = Ground::replica_set("foreign").await;
    let locks = ground.locks().await;
    let broken = locks.mutex("broken").acquire().fixed(60 * SECOND).await.unwrap();
    let deleted = locks.mutex("deleted").acquire().fixed(60 * SECOND).await.unwrap();
    ground.locks().await.break_lock("broken").await.unwrap();
    ground
        .documents()
        .await
        .delete_one(doc! { "_id": "deleted" })
        .await
        .unwrap();
    assert_eq!(within(PATIENCE, "the loss", broken.lost()).await, LostReason::Broken);
    assert_eq!(within(PATIENCE, "the loss", deleted.lost()).await, LostReason::Deleted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_renewed_for_longer_has_that_lease_from_then_on_and_never_a_shorter_one() {
    let places = places("longer").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let (brief, long) = (Duration::from_millis(2_200), 20 * SECOND);
        let left = async |name| {
            let lock = info(b, name).await.unwrap();
            after(lock.holders[0].until, lock.as_of)
        };
        let held = a.mutex("x").acquire().lease(brief).await.unwrap();
        let fixed = a.mutex("fixed").acquire().fixed(brief).await.unwrap();
        let several = a.multi(["p", "q"]).acquire().lease(brief).await.unwrap();
        assert!(left("x").await <= brief);
        assert!(held.renew_for(long).await.unwrap() > long - 3 * SECOND);
        assert!(fixed.renew_for(long).await.unwrap() > long - 3 * SECOND);
        assert!(several.renew_for(long).await.unwrap() > long - 3 * SECOND);
        for name in ["x", "fixed", "p", "q"] {
            assert!(left(name).await > long - 2 * SECOND, "{name}");
        }
        // What was promised stays promised.
        assert!(held.renew_for(brief).await.unwrap() > long - 3 * SECOND);
        let error = held.renew_for(Duration::from_millis(1)).await.unwrap_err();
        assert!(error.to_string().contains("1ms") && held.is_held(), "{error}");
        // It is renewed for that in the background too, and a fixed one is not.
        pause(6 * SECOND).await;
        assert!(held.safe_for() > long - 6 * SECOND, "{held:?}");
        assert!(several.safe_for() > long - 6 * SECOND, "{several:?}");
        assert!(fixed.safe_for() < long - 5 * SECOND, "{fixed:?}");
        // The next task of the client does not inherit it.
        held.release().await.unwrap();
        let next = a.mutex("x").acquire().lease(brief).await.unwrap();
        assert!(left("x").await <= brief);
        next.release().await.unwrap();
        let lost = a.mutex("lost").acquire().await.unwrap();
        b.break_lock("lost").await.unwrap();
        assert!(matches!(lost.renew_for(60 * SECOND).await, Err(HoldError::Lost(_))));
    });
    join_all(everywhere).await;
}

/// Renewals that are on their way meanwhile, or whose answers were lost, promise no more than the document has.
#[tokio::test(start_paused = true)]
async fn a_longer_lease_that_the_server_does_not_confirm_is_not_counted_on() {
    let memory = InMemory::new();
    let locks = memory.builder().lease(10 * SECOND).build().await.unwrap();
    let held = locks.mutex("x").acquire().await.unwrap();
    pause(SECOND).await;
    memory.set_frozen(&locks, true).unwrap();
    let view = held.view();
    let renewing = tokio::spawn(async move { (held.renew_for(60 * SECOND).await, held) });
    pause(SECOND).await;
    assert!(view.safe_for() < 9 * SECOND, "{view:?}");
    memory.set_frozen(&locks, false).unwrap();
    let (safe_for, held) = renewing.await.unwrap();
    let safe_for = safe_for.unwrap();
    let lock = memory.client().inspect("x").await.unwrap().unwrap();
    assert!(
        safe_for > 50 * SECOND && held.safe_for() < after(lock.holders[0].until, lock.as_of),
        "{lock:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_document_and_an_element_are_renewed_for_longer() {
    let ground = Ground::replica_set("longer").await;
    let documents = ground.documents().await;
    documents
        .insert_one(doc! { "_id": 7, "lines": [{ "sku": "x" }] })
        .await
        .unwrap();
    let locks = ground.locks().await.documents::<Document>(documents.clone());
    let document = locks.acquire(7).await.unwrap();
    let element = locks
        .element::<Document>("lines", doc! { "sku": "x" })
        .acquire(7)
        .await
        .unwrap();
    for safe_for in [
        document.renew_for(60 * SECOND).await,
        element.renew_for(60 * SECOND).await,
    ] {
        assert!(safe_for.unwrap() > 50 * SECOND);
    }
    assert!(document.is_held() && element.is_held());
    document.release().await.unwrap();
    element.release().await.unwrap();
}
