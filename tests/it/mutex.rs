//! What a mutex promises while nothing goes wrong.

use std::time::Duration;

use watchlock::{AcquireError, LockClient, LockStatus, LostReason, Released, WakeMode};
use watchlock_testkit::shared;

async fn client(database: &str) -> LockClient {
    let client = shared::replica_set().await.client().await.unwrap();
    LockClient::builder(client.database(database)).build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_hands_over_to_the_next_client_in_line() {
    let database = shared::unique_name("handover");
    let (a, b) = (client(&database).await, client(&database).await);
    let held = a.mutex("x").acquire().await.unwrap();
    assert_eq!(held.status(), LockStatus::Held);
    let (mutex, other) = (b.mutex("x"), b.clone());
    let waiting = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    loop {
        let lock = other.inspect("x").await.unwrap().unwrap();
        if lock.waiters.len() == 1 {
            break;
        }
    }
    let before = held.token();
    let t = std::time::Instant::now();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    let next = waiting.await.unwrap();
    println!("handover {:?} {:?}", t.elapsed(), other.wake_mode());
    assert!(next.token() > before);
    assert_eq!(other.wake_mode(), WakeMode::ChangeStream);
    assert!(a.mutex("x").try_acquire().await.unwrap().is_none());
    let t = std::time::Instant::now();
    let error = a.mutex("x").acquire().timeout(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Timeout { .. }), "{error}");
    println!("{error} {:?}", t.elapsed());
    let t = std::time::Instant::now();
    a.break_lock("x").await.unwrap();
    println!("broken {:?}", t.elapsed());
    assert_eq!(next.lost().await, LostReason::Broken);
    println!("broken {:?}", t.elapsed());
    assert_eq!(next.release().await.unwrap(), Released::WasLost);
    a.shutdown().await;
}
