//! Clients that are built without asking the server.

use watchlock::{
    errors::{BuildError, OperateError, ServerErrorKind},
    operate::WakeSource,
};
use watchlock_testkit::Proxy;

use crate::setup::*;

/// Soon enough for a test to wait for it.
const SELECTION: &str = "serverSelectionTimeoutMS=300";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_built_while_its_server_is_away_waits_for_it() {
    let ground = Ground::replica_set("lazy").await;
    let cluster = watchlock_testkit::shared::replica_set().await;
    let proxy = Proxy::before(cluster.addr(0)).unwrap();
    proxy.cut();
    let through = ground.through(format!("{}&{SELECTION}", proxy.uri()));
    let error = through.builder().await.build().await.unwrap_err();
    assert!(matches!(error, BuildError::Server(_)), "{error:?}");
    let locks = through.builder().await.build_lazily().unwrap();
    // Each call has the error, from one task and from fifty.
    for error in join_all((0..50).map(|_| locks.inspect("x"))).await {
        let error = error.unwrap_err();
        assert_is!(error, OperateError::Server(error) if error.kind() == ServerErrorKind::Unavailable);
    }
    let error = locks
        .mutex("x")
        .try_acquire()
        .timeout(Duration::from_secs(1))
        .await
        .unwrap_err();
    assert_is!(error, AcquireError::Server(_) | AcquireError::Unanswered { .. });
    let waiting = spawn(locks.mutex("x").acquire());
    proxy.heal();
    let held = within(PATIENCE, "the server", waiting).await.unwrap().unwrap();
    assert!(ground.locks().await.mutex("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_built_without_a_look_refuses_what_a_build_refuses() {
    let ground = Ground::replica_set("lazy_refused").await;
    let database = ground.driver().await.database(&ground.database);
    let capped = doc! { "create": COLLECTION, "capped": true, "size": 4096 };
    database.run_command(capped).await.unwrap();
    let locks = ground.builder().await.build_lazily().unwrap();
    for _ in 0..2 {
        let error = locks.mutex("x").acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Server(_)), "{error:?}");
        assert!(error.to_string().contains("locks can't be kept in"), "{error}");
        assert!(locks.inspect("x").await.unwrap_err().to_string().contains("capped"));
    }
    // It is looked at until it suits.
    database
        .collection::<mongodb::bson::Document>(COLLECTION)
        .drop()
        .await
        .unwrap();
    eventually(PATIENCE, "the next look", async || {
        locks.mutex("x").try_acquire().await.is_ok()
    })
    .await;

    let standalone = Ground::standalone("lazy_refused").await;
    let builder = standalone.builder().await.wake_source(WakeSource::ChangeStream);
    let error = builder.build_lazily().unwrap().mutex("x").acquire().await.unwrap_err();
    assert!(error.to_string().contains("a change stream is required"), "{error}");
    let locks = standalone.builder().await.build_lazily().unwrap();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
}
