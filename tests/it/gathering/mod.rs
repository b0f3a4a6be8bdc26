//! Latches and barriers: on a replica set, on a standalone by polling, and in memory.

mod barrier;
mod latch;

use crate::setup::*;

#[tokio::test]
async fn what_is_out_of_bounds_is_refused_with_the_bound() {
    let locks = LockClient::in_memory();
    for (count, parties) in [(0, 0), (257, 65)] {
        let latch = locks.latch("x", count);
        let bound = format!("the latch has {count} arrivals; it must have 1 to 256");
        for error in [
            latch.count_down().await.unwrap_err(),
            latch.wait().await.unwrap_err(),
            latch.missing().await.unwrap_err(),
        ] {
            assert!(
                matches!(error, AcquireError::Invalid(_)) && error.to_string() == bound,
                "{error}"
            );
        }
        let error = locks.barrier("x", parties).wait().await.unwrap_err();
        let bound = format!("the barrier has {parties} parties; it must have 1 to 64");
        assert!(
            matches!(&error, AcquireError::Invalid(_)) && error.to_string() == bound,
            "{error}"
        );
    }
    let error = locks.latch("x", 2).count_down_as("x".repeat(1_025)).await.unwrap_err();
    assert_says(&error, &["the name of the party has 1025 bytes"]);
    let error = locks
        .latch("x", 2)
        .counts_for(Duration::from_millis(1))
        .wait()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("1ms is shorter than 1s"), "{error}");
    assert!(locks.latch("", 2).wait().await.is_err());
    assert!(locks.barrier("x".repeat(2_000), 2).wait().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_in_use_otherwise_is_refused() {
    for (a, b) in places("mismatch").await {
        let held = a.mutex("x").acquire().await.unwrap();
        let latch = b.latch("x", 2);
        for error in [
            latch.count_down().await.unwrap_err(),
            latch.wait().await.unwrap_err(),
            latch.missing().await.unwrap_err(),
        ] {
            assert!(matches!(error, AcquireError::KindMismatch(_)), "{error}");
        }
        let error = b.barrier("x", 2).wait().await.unwrap_err();
        assert_is!(error, AcquireError::KindMismatch(_));
        held.release().await.unwrap();
        b.latch("x", 2).count_down().await.unwrap();
        let error = a.latch("x", 3).wait().await.unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is a latch of 2 arrivals, and was requested as a latch of 3 arrivals"),
            "{error}"
        );
        assert!(a.mutex("x").try_acquire().await.is_err());
    }
}
