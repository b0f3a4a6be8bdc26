//! Errors as a person reads them: of a real server and the driver, in a line that says the cause.

use std::{error::Error, fmt::Debug};

use watchlock::{errors::ServerErrorKind, locks};

use crate::{
    common::users::{PASSWORD, cluster, user},
    setup::*,
};

/// Checks the message, `Debug`, and the chain of sources as programs print it. Returns the message.
fn checked(error: &(dyn Error + 'static)) -> String {
    for told in [format!("{error:?}"), format!("{error:#?}"), with_causes(error)] {
        assert!(told.len() < 1_000, "{} bytes: {told}", told.len());
        let secrets = [
            PASSWORD,
            "mongodb://",
            "signature",
            "RawDocument",
            "{ ",
            "$literal",
            "$set",
        ];
        assert!(!secrets.iter().any(|secret| told.contains(secret)), "{told}");
    }
    error.to_string()
}

fn told<T: Debug>(result: Result<T, impl Error + 'static>, cause: &str) {
    let told = checked(&result.unwrap_err());
    assert!(told.contains(cause), "{told}");
}

async fn acquired(locks: &LockClient) -> Result<Held<locks::Mutex>, AcquireError> {
    within(PATIENCE, "an answer", locks.mutex("x").acquire()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_user_is_told_which_privilege_is_missing() {
    let (ground, _) = user("reads", &["find", "changeStream"]).await;
    let locks = ground.locks().await;
    let missing = format!(
        "the server refused the operation: Unauthorized (13): missing one of `find`, `insert`, `update` on {}.distributed_locks",
        ground.database
    );
    let refused = acquired(&locks).await.unwrap_err();
    assert_eq!(checked(&refused), missing);
    let AcquireError::Server(refused) = refused else {
        panic!("{refused}")
    };
    assert!(matches!(refused.kind(), ServerErrorKind::Unauthorized(_)), "{refused}");
    // On request there is all of it.
    assert!(refused.driver().unwrap().to_string().len() > 1_000);
    told(locks.mutex("x").try_acquire().await, &missing);
    told(locks.break_lock("x").await, &missing);
    let documents = locks.documents::<Document>(ground.collection("others").await);
    told(documents.acquire(1).await, "Unauthorized (13): missing one of ");
    told(documents.claim(doc! {}).await, "Unauthorized (13): missing one of ");
    told(documents.list().await, "Unauthorized (13): missing `find` on ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_a_wrong_address_are_told_and_not_shown() {
    let addr = cluster().await.addr(0);
    for (uri, cause) in [
        (
            format!("mongodb://locker:{PASSWORD}x@{addr}/?replicaSet=watchlock&authSource=admin"),
            "Authentication",
        ),
        (
            format!("mongodb://locker:{PASSWORD}@127.0.0.1:1/?serverSelectionTimeoutMS=200"),
            "127.0.0.1:1: I/O error: Connection refused",
        ),
    ] {
        let client = Client::with_uri_str(uri).await.unwrap();
        let builder = LockClient::builder(client.database("any"));
        let shown = format!("{builder:?}");
        assert!(!shown.contains(PASSWORD) && !shown.contains("mongodb://"), "{shown}");
        match within(PATIENCE, "an answer", builder.build()).await {
            Err(error) => told(Err::<(), _>(error), cause),
            Ok(locks) => told(locks.mutex("x").try_acquire().await, cause),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_the_server_refuses_is_told_without_the_document() {
    let cluster = shared::replica_set().await;
    let ground = Ground::on(cluster, "errors").by_name();
    let database = ground.driver().await.database(&ground.database);
    let secret = doc! { "$literal": "signature".repeat(20) };

    // A validator that no lock passes.
    let strict = doc! { "create": "distributed_locks", "validator": { "paid": true } };
    database.run_command(strict).await.unwrap();
    let locks = ground.locks().await;
    told(acquired(&locks).await, "DocumentValidationFailure (121)");

    // A unique index, and a document that is full.
    let orders = database.collection::<Document>("orders");
    let unique = doc! { "createIndexes": "orders", "indexes": [{ "key": { "n": 1 }, "name": "n", "unique": true }] };
    database.run_command(unique).await.unwrap();
    let full = doc! { "_id": 2, "n": 2, "text": "x".repeat((16 << 20) - 300) };
    orders.insert_many([doc! { "_id": 1, "n": 1 }, full]).await.unwrap();
    let documents = locks.documents::<Document>(orders.clone());
    let held = documents.acquire(1).await.unwrap();
    told(
        held.update(doc! { "$set": { "n": 2, "secret": "signature" } }).await,
        "DuplicateKey (11000)",
    );
    told(
        held.update(doc! { "$unknown": { "secret": secret } }).await,
        "the server refused the operation: ",
    );
    told(documents.acquire(2).await, "the server refused the operation: ");

    // A write that is applied and not confirmed.
    let unconfirmed =
        doc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "{ $set: \"signature\" }" };
    let unconfirmed = doc! { "writeConcernError": unconfirmed };
    // Also what the client still takes out after its refused acquire.
    let fault = ground
        .fail(cluster, times(1_000), &["findAndModify"], unconfirmed)
        .await;
    told(
        held.update(doc! { "$set": { "secret": "signature" } }).await,
        "the server did not confirm the write: UnsatisfiableWriteConcern (100)",
    );
    fault.off().await.unwrap();
}
