//! Locks over TLS, as the driver makes it.

use watchlock::operate::WakeMode;
use watchlock_testkit::Cluster;

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn locks_work_over_tls_and_nobody_gets_in_without_it() {
    let cluster = Cluster::builder().replica_set(1).tls(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "tls");
    let builder = ground.builder().await.renewal_interval(Duration::from_millis(200));
    let (a, b) = (builder.build().await.unwrap(), ground.locks().await);
    let held = a.mutex("x").acquire().await.unwrap();
    let waiting = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
    for locks in [&a, &b] {
        until_mode(locks, PATIENCE, |mode| mode == WakeMode::ChangeStream).await;
    }
    let before = ground.version("x").await;
    eventually(PATIENCE, "it is renewed", async || {
        ground.version("x").await >= before + 2
    })
    .await;
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Released::Released);
    let next = within(SOON, "the hand-over", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);

    // Without TLS, and with an authority that did not sign: an error soon, which says why.
    let (addr, set) = (cluster.addr(0), "replicaSet=watchlock&serverSelectionTimeoutMS=1500");
    for (options, word) in [("", "end of file"), ("&tls=true", "certificate")] {
        let outside = ground.through(format!("mongodb://{addr}/?{set}{options}"));
        let database = outside.driver().await.database(&outside.database);
        let error = within(PATIENCE, "the refusal", LockClient::builder(database).build())
            .await
            .unwrap_err();
        let told = with_causes(&error);
        assert!(told.contains(word), "{options}: {told}");
        assert!(!told.contains("mongodb://") && !told.contains(".pem"), "{told}");
    }
}
