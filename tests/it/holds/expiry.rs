//! The ends of holds: the time of a hold is over for everybody when the server's clock says so, and not before.

use watchlock::{Detached, operate::HoldEnd};

use crate::setup::*;

const SECOND: Duration = Duration::from_secs(1);

/// Not much longer than twice the skew margin, which is the least.
const BRIEF: Duration = Duration::from_millis(2_200);

async fn until_over(locks: &LockClient, name: &str) {
    eventually(PATIENCE, "its time is over", async || {
        !info(locks, name).await.unwrap().is_held()
    })
    .await;
}

/// Acquires in a process of its own, as it were, which then ends without a release.
async fn of_a_dead_process<T: Send + 'static>(acquire: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    let dies = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let acquired = runtime.block_on(acquire());
        runtime.shutdown_background();
        acquired
    });
    tokio::task::spawn_blocking(|| dies.join().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_over_is_nobodys_to_break_to_renew_or_to_release() {
    let places = places("over").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let held = a.mutex("x").acquire().fixed(BRIEF).await.unwrap();
        until_over(b, "x").await;
        let before = holder(b, "x").await;
        assert_eq!(before.token, held.token());
        assert_eq!(b.break_holder("x", held.token()).await.unwrap(), None);
        let named = Detached::new("x", held.token());
        assert_eq!(b.renew_detached(&named).await.unwrap(), None);
        assert!(b.attach(&named).await.unwrap().is_none());
        let after = b.break_lock("x").await.unwrap().unwrap();
        assert!(!after.is_held() && after.to_string().ends_with("free"), "{after}");
        assert_eq!(holder(b, "x").await, before, "nothing was written");
        assert_eq!(held.lost().await, LostReason::Elapsed);
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_leaves_out_the_holders_whose_time_is_over() {
    for ground in Ground::both("some_over").await {
        let (a, b) = (ground.locks().await, ground.locks().await);
        let live = a.semaphore("s", 3).acquire().await.unwrap();
        let over = of_a_dead_process(async move || {
            let held = ground
                .locks()
                .await
                .semaphore("s", 3)
                .acquire()
                .fixed(BRIEF)
                .await
                .unwrap();
            let token = held.token();
            std::mem::forget(held);
            token
        })
        .await;
        let is_over = async || {
            let lock = info(&b, "s").await.unwrap();
            let mut holders = lock.holders.iter();
            holders.any(|holder| holder.token == over && holder.until <= lock.as_of)
        };
        eventually(PATIENCE, "its time is over", is_over).await;
        assert_eq!(b.break_holder("s", over).await.unwrap(), None);
        assert_eq!(
            (live.lost_reason(), info(&b, "s").await.unwrap().holders.len()),
            (None, 2)
        );
        let after = b.break_lock("s").await.unwrap().unwrap();
        assert!(after.holders.is_empty(), "{after:?}");
        assert_eq!(within(PATIENCE, "the break", live.lost()).await, LostReason::Broken);
    }
}

/// The history says the same as the holder, whoever removes the entry.
#[tokio::test(start_paused = true)]
async fn a_hold_whose_time_was_over_is_recorded_as_expired() {
    let locks = InMemory::new().builder().history(3).build().await.unwrap();
    let held = locks.mutex("x").acquire().fixed(10 * SECOND).await.unwrap();
    let until = holder(&locks, "x").await.until;
    assert_eq!(held.lost().await, LostReason::Elapsed);
    let next = locks.mutex("x").acquire().await.unwrap();
    let past = info(&locks, "x").await.unwrap().past.remove(0);
    assert_eq!((past.how, past.ended), (HoldEnd::Expired, until));
    assert!(holder(&locks, "x").await.since >= until);
    next.release().await.unwrap();
}

/// Its process ends without a release, with a lease that is shorter.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_stays_taken_for_its_least_time_although_its_holder_died() {
    let (ground, least) = (Ground::replica_set("least").await, 5 * SECOND);
    let b = ground.locks().await;
    let first = b.mutex("woken").acquire().await.unwrap();
    let (dying, observer) = (ground.clone(), b.clone());
    of_a_dead_process(async move || {
        let locks = dying.locks().await;
        let acquire = locks.mutex("x").acquire().lease(BRIEF).at_least_for(least);
        std::mem::forget(acquire.await.unwrap());
        // One that is woken, too, from when it has confirmed its grant.
        let woken = locks.mutex("woken").acquire().at_least_for(2 * least);
        let woken = spawn(woken);
        until_waiting(&observer, "woken", 1).await;
        first.release().await.unwrap();
        std::mem::forget(within(PATIENCE, "the grant", woken).await.unwrap().unwrap());
        let is_confirmed = async || {
            let holder = holder(&observer, "woken").await;
            holder.until >= holder.since + 2 * least
        };
        eventually(PATIENCE, "it is confirmed", is_confirmed).await;
    })
    .await;
    let dead = holder(&b, "x").await;
    assert!(dead.until >= dead.since + least, "{dead:?}");
    let next = within(PATIENCE, "the grant", b.mutex("x").acquire());
    let next = next.await.unwrap();
    let now = holder(&b, "x").await;
    assert_eq!(now.token, next.token());
    assert!(now.since >= dead.until && now.since < dead.until + SOON, "{now:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_after_a_shutdown_says_that_the_lock_is_kept() {
    for (a, b) in places("shutdown").await {
        let kept = a.mutex("kept").acquire().at_least_for(60 * SECOND).await.unwrap();
        let brief = a.mutex("brief").acquire().at_least_for(SECOND / 10).await.unwrap();
        let free = a.mutex("free").acquire().await.unwrap();
        pause(SECOND / 5).await;
        a.shutdown().await;
        assert_eq!(kept.release().await.unwrap(), Released::Kept);
        assert!(b.mutex("kept").try_acquire().await.unwrap().is_none());
        for free in [brief, free] {
            assert_eq!(free.release().await.unwrap(), Released::Released);
        }
    }
}
