//! Acquires that another task or thread cancels by a token.

use tokio_util::sync::CancellationToken;

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_acquire_gives_its_queue_position_back() {
    for (a, b) in places("token").await {
        let held = a.mutex("x").acquire().await.unwrap();
        let stop = CancellationToken::new();
        let waiting = b.mutex("x").acquire().cancelled_by(&stop);
        let waiting = spawn(waiting);
        let several = b.multi(["y", "x"]).acquire().cancelled_by(&stop).run(async |_| {});
        let cancel = async {
            until_waiting(&a, "x", 1).await;
            stop.cancel();
        };
        let (ended, ()) = within(PATIENCE, "the end", async { tokio::join!(several, cancel) }).await;
        let error = within(PATIENCE, "the end", waiting).await.unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Cancelled), "{error:?}");
        assert_is!(ended, Err(AcquireError::Cancelled));
        until_waiting(&a, "x", 0).await;
        held.release().await.unwrap();
        // Cancelled before: nothing is sent, also for a free lock.
        for error in [
            b.mutex("free").acquire().cancelled_by(&stop).await.unwrap_err(),
            b.mutex("free").try_acquire().cancelled_by(&stop).await.unwrap_err(),
        ] {
            assert!(matches!(error, AcquireError::Cancelled), "{error:?}");
        }
        assert_eq!(a.inspect("free").await.unwrap(), None);
        // Cancelled after: the hold stays.
        let stop = CancellationToken::new();
        let held = b.mutex("x").acquire().cancelled_by(&stop).await.unwrap();
        stop.cancel();
        assert!(held.is_held());
        held.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_claim_ends() {
    let ground = Ground::replica_set("token").await;
    let orders = ground.locks().await.documents::<Document>(ground.documents().await);
    let stop = CancellationToken::new();
    let claiming = spawn(orders.claim(doc! {}).cancelled_by(&stop));
    stop.cancel();
    let error = within(PATIENCE, "the end", claiming).await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::Cancelled), "{error:?}");
}

/// Of fifty threads, the one that is cancelled comes back, and the others go on waiting.
#[cfg(feature = "sync")]
#[test]
fn one_blocked_thread_is_cancelled() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ground = runtime.block_on(Ground::replica_set("token"));
    let locks = runtime.block_on(ground.locks());
    let blocking = locks.blocking();
    let held = blocking.mutex("x").acquire().run().unwrap();
    let stop = CancellationToken::new();
    let one = blocking.mutex("x").acquire().cancelled_by(&stop);
    let one = std::thread::spawn(move || one.run());
    let others = (0..50).map(|_| {
        let mutex = blocking.mutex("x");
        std::thread::spawn(move || mutex.acquire().run()?.release().map_err(|error| panic!("{error}")))
    });
    let others: Vec<std::thread::JoinHandle<Result<_, AcquireError>>> = others.collect();
    runtime.block_on(until_waiting(&locks, "x", 1));
    stop.cancel();
    assert!(matches!(one.join().unwrap(), Err(AcquireError::Cancelled)));
    // The others are still in line.
    runtime.block_on(until_waiting(&locks, "x", 1));
    held.release().unwrap();
    for other in others {
        other.join().unwrap().unwrap();
    }
}
