//! Limits of how long a lock is held.

use crate::setup::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_too_long_is_held_on() {
    let memory = InMemory::new();
    let locks = memory.builder().warn_after(60 * SECOND).build().await.unwrap();
    let held = locks.mutex("x").acquire().await.unwrap();
    let longer = locks.mutex("y").acquire().warn_after(600 * SECOND).await.unwrap();
    let both = locks.multi(["a", "b"]).acquire().await.unwrap();
    let leads = locks.election("z").campaign("me").await.unwrap();
    tokio::time::sleep(59 * SECOND).await;
    assert_eq!((held.status(), both.status()), (LockStatus::Held, LockStatus::Held));
    tokio::time::sleep(241 * SECOND).await;
    assert_eq!(
        (held.status(), both.status(), longer.status(), leads.status()),
        (
            LockStatus::HeldTooLong,
            LockStatus::HeldTooLong,
            LockStatus::Held,
            LockStatus::Held
        )
    );
    assert!(held.safe_for() > 20 * SECOND, "it is renewed");
    assert_eq!(held.release().await.unwrap(), Released::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_as_long_as_it_may_be_is_lost_and_handed_over() {
    let places = places("limit").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let held = a.mutex("x").acquire().lose_after(2 * SECOND).await.unwrap();
        assert!(held.safe_for() <= 2 * SECOND);
        let (waiting, view) = (b.mutex("x"), held.view());
        let waiting = spawn(async move {
            let next = waiting.acquire().await.unwrap();
            // By the clock, whatever task runs first.
            (next, view.lost_reason())
        });
        until_waiting(b, "x", 1).await;
        let until = info(b, "x").await.unwrap().holders[0].until;
        assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::HeldTooLong);
        assert_eq!((held.status(), held.safe_for()), (LockStatus::Lost, Duration::ZERO));
        let (next, lost) = within(PATIENCE, "the grant", waiting).await.unwrap();
        assert_eq!(lost, Some(LostReason::HeldTooLong));
        let granted = info(a, "x").await.unwrap().holders[0].since;
        assert!(granted < until, "long before the end of the lease");
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        next.release().await.unwrap();
        assert!(is_vacant(b, "x").await);
    });
    join_all(everywhere).await;
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_is_lost_with_the_part_that_was_held_too_long() {
    let memory = InMemory::new();
    let locks = memory.client();
    let both = locks.multi(["a", "b"]).acquire().lose_after(5 * SECOND).await.unwrap();
    let lost = both.lost().await;
    assert_eq!(lost.reason, LostReason::HeldTooLong);
    drop(both);
    for name in ["a", "b"] {
        let _ = memory.client().mutex(name).acquire().timeout(SECOND).await.unwrap();
    }
}

/// The client's limits are not for leaders, but a campaign can have its own.
#[tokio::test(start_paused = true)]
async fn a_leadership_ends_with_the_limit_or_the_fixed_time_of_its_campaign() {
    let memory = InMemory::new();
    let locks = memory.builder().lose_after(60 * SECOND).build().await.unwrap();
    let campaign = locks.election("x").campaign("limited");
    let limited = campaign.warn_after(90 * SECOND).lose_after(300 * SECOND).await.unwrap();
    let campaign = memory.client().election("x").campaign("fixed").fixed(20 * SECOND);
    let next = spawn(campaign);
    tokio::time::sleep(80 * SECOND).await;
    assert_eq!(limited.status(), LockStatus::Held);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(limited.status(), LockStatus::HeldTooLong);
    assert_eq!(limited.lost().await, LostReason::HeldTooLong);
    let fixed = next.await.unwrap().unwrap();
    assert!(fixed.token() > limited.token());
    assert_eq!(fixed.lost().await, LostReason::Elapsed);
    let last = memory.client().election("x").campaign("last").await.unwrap();
    assert!(last.token() > fixed.token());
}
