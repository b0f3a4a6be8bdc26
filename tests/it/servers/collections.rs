//! Places in which locks can't be kept, and collections that are odd and do no harm.

use mongodb::{
    Database, IndexModel,
    bson::{Binary, RawDocumentBuf, spec::BinarySubtype},
    options::IndexOptions,
};
use watchlock::errors::{BuildError, OperateError, ServerErrorKind};
use watchlock_testkit::{Liar, liar::Told};

use crate::setup::*;

/// Makes a collection as somebody else might; `false` if the server is too old to know the options.
async fn made(database: &Database, name: &str, options: Document) -> bool {
    let mut create = doc! { "create": name };
    create.extend(options);
    let Err(error) = database.run_command(create).await else {
        return true;
    };
    let about = database.run_command(doc! { "buildInfo": 1 }).await.unwrap();
    let version = about.get_array("versionArray").unwrap()[0].as_i32();
    assert!(version < Some(6), "{error}");
    eprintln!("left out: {error}");
    false
}

fn index(keys: Document, options: IndexOptions) -> IndexModel {
    IndexModel::builder().keys(keys).options(options).build()
}

fn unique() -> IndexOptions {
    IndexOptions::builder().unique(true).build()
}

fn ttl() -> IndexOptions {
    IndexOptions::builder().expire_after(Duration::from_secs(60)).build()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_server_s_own_keeps_no_locks() {
    // Nobody listens there: nothing is sent.
    let driver = mongodb::Client::with_uri_str("mongodb://127.0.0.1:1").await.unwrap();
    let locks = LockClient::in_memory();
    let checks = async {
        for name in ["local", "config", "admin"] {
            let database = driver.database(name);
            let builder = LockClient::builder(database.clone());
            for error in [
                builder.clone().build_lazily().unwrap_err(),
                builder.build().await.unwrap_err(),
            ] {
                assert_is!(error, BuildError::Invalid(_));
                assert_says(&error, &[&format!("`{name}`")]);
            }
            let documents = locks.documents(database.collection::<Document>("any"));
            let error = documents.acquire(1).await.unwrap_err();
            assert!(matches!(error, AcquireError::Invalid(_)), "{error:?}");
            let error = documents.try_claim(doc! {}).await.unwrap_err();
            assert!(matches!(error, AcquireError::Invalid(_)), "{error:?}");
            let error = documents
                .element::<Document>("a", doc! { "b": 1 })
                .inspect(1)
                .await
                .unwrap_err();
            assert!(matches!(error, OperateError::Invalid(_)), "{error:?}");
        }
    };
    within(SOON, "nothing is waited for", checks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_loses_locks_or_takes_one_for_another_is_refused() {
    for (name, options, problem) in [
        ("capped", doc! { "capped": true, "size": 4096 }, "it is capped"),
        ("view", doc! { "viewOn": "any", "pipeline": [] }, "it is a view"),
        (
            "series",
            doc! { "timeseries": { "timeField": "at" } },
            "it is a time series",
        ),
        (
            "collation",
            doc! { "collation": { "locale": "en", "strength": 2 } },
            "it has the collation `en`",
        ),
        ("ttl", doc! {}, "its TTL index on `holders.since`"),
    ] {
        let ground = Ground::replica_set(name).await;
        let database = ground.driver().await.database(&ground.database);
        if !made(&database, COLLECTION, options).await {
            continue;
        }
        if name == "ttl" {
            let collection = database.collection::<Document>(COLLECTION);
            collection
                .create_index(index(doc! { "holders.since": 1 }, ttl()))
                .await
                .unwrap();
        }
        let error = ground.builder().await.build().await.unwrap_err();
        let BuildError::Unsuitable {
            namespace,
            problem: found,
            ..
        } = &error
        else {
            panic!("{name}: {error:?}");
        };
        assert_eq!(*namespace, format!("{}.{COLLECTION}", ground.database));
        assert!(found.contains(problem), "{found}");
        database.drop().await.unwrap();
    }
}

/// Behind a server that says of itself what a router says.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_another_field_than_the_id_shards_is_refused() {
    let ground = Ground::replica_set("sharded").await;
    let server = watchlock_testkit::shared::replica_set().await.addr(0);
    for (field, is_refused) in [("tenant", true), ("_id", false)] {
        let router = Liar::before(
            server,
            move |command| {
                if command.get_str("find").ok() != Some("collections") {
                    return Told::Server;
                }
                let sharded = doc! { "_id": "any", "key": { field: "hashed" } };
                Told::Client(
                    doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "config.collections", "firstBatch": [sharded] } },
                )
            },
            |command, answer| {
                if ["hello", "ismaster", "isMaster"]
                    .iter()
                    .any(|name| command.contains_key(name))
                {
                    answer.remove("setName");
                    answer.insert("msg", "isdbgrid");
                }
            },
        );
        let router = router.await.unwrap();
        let ground = ground.through(router.uri());
        match ground.builder().await.build().await {
            Err(BuildError::Unsuitable { problem, .. }) if is_refused => {
                assert!(problem.contains("sharded by `tenant`"), "{problem}");
            }
            built => assert!(built.is_ok() && !is_refused, "{field}: {built:?}"),
        }
    }
}

/// One client waits for the other, and is woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_merely_odd_keeps_locks() {
    let key = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    let encrypted = doc! { "path": "secret", "bsonType": "string", "keyId": key };
    for (name, options) in [
        (
            "clustered",
            doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true }, "expireAfterSeconds": 1 },
        ),
        ("images", doc! { "changeStreamPreAndPostImages": { "enabled": true } }),
        ("warned", doc! { "validator": { "x": 1 }, "validationAction": "warn" }),
        ("encrypted", doc! { "encryptedFields": { "fields": [encrypted] } }),
        ("indexed", doc! {}),
    ] {
        let ground = Ground::replica_set(name).await;
        let database = ground.driver().await.database(&ground.database);
        if !made(&database, COLLECTION, options).await {
            continue;
        }
        if name == "indexed" {
            let collection = database.collection::<Document>(COLLECTION);
            collection
                .create_index(index(doc! { "other": 1 }, ttl()))
                .await
                .unwrap();
            collection
                .create_index(index(doc! { "$**": 1 }, IndexOptions::default()))
                .await
                .unwrap();
        }
        let (one, other) = (ground.locks().await, ground.locks().await);
        let held = one.mutex("x").acquire().timeout(PATIENCE).await.unwrap();
        let waiting = spawn(async move { other.mutex("x").acquire().timeout(PATIENCE).await });
        until_waiting(&one, "x", 1).await;
        let token = held.token();
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(next.token() > token, "{name}");
        next.release().await.unwrap();
        database.drop().await.unwrap();
    }
}

/// As nobody looks again, a holder finds out by the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_is_made_later_and_is_capped_loses_locks_and_the_holder_is_told() {
    let ground = Ground::replica_set("later").await;
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let database = ground.driver().await.database(&ground.database);
    assert!(made(&database, COLLECTION, doc! { "capped": true, "size": 4096 }).await);
    let held = locks.mutex("x").acquire().await.unwrap();
    let waiting = spawn(async move { other.mutex("x").acquire().await.unwrap().token() });
    until_waiting(&locks, "x", 1).await;
    let collection = database.collection::<Document>(COLLECTION);
    let filling = async {
        loop {
            collection.insert_one(doc! { "of": "x".repeat(1_000) }).await.unwrap();
            let lock = collection.find_one(doc! { "_id": "x" }).await.unwrap();
            if lock.is_none_or(|lock| lock.get_i64("token").unwrap() > held.token().as_i64()) {
                return;
            }
        }
    };
    within(PATIENCE, "it is full", filling).await;
    let reason = within(PATIENCE, "the loss", held.lost()).await;
    // The waiter may have made the document anew by then.
    assert!(
        matches!(reason.reason, LostReason::Deleted | LostReason::Overwritten),
        "{reason}"
    );
    let token = within(PATIENCE, "the waiter asks again", waiting).await.unwrap();
    assert!(token > held.token());
}

/// What the server refuses for every lock is an error at once, and not a race that is run again.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_refuses_locks_is_an_error_at_once() {
    for (name, keys, options, code) in [
        ("unique", doc! { "kind": 1 }, unique(), 11_000),
        (
            "arrays",
            doc! { "holders.id": 1, "queue.id": 1 },
            IndexOptions::default(),
            171,
        ),
    ] {
        let ground = Ground::replica_set(name).await;
        let collection = ground.documents().await;
        collection.create_index(index(keys, options)).await.unwrap();
        let locks = ground.locks().await;
        let both = async {
            let first = locks.mutex("x").acquire().await;
            match locks.mutex("y").acquire().await {
                Err(AcquireError::Server(error)) => drop((first, error.clone())),
                other => panic!("{name}: {other:?}"),
            }
            let Err(AcquireError::Server(error)) = locks.mutex("y").try_acquire().await else {
                panic!("{name}");
            };
            assert_eq!(
                (error.kind(), error.code()),
                (ServerErrorKind::Refused, Some(code)),
                "{name}"
            );
        };
        within(PATIENCE, "both are answered", both).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_the_server_does_not_lock_are_refused_at_the_first_use() {
    let ground = Ground::replica_set("unlocked").await;
    let (driver, locks) = (ground.driver().await, ground.locks().await);
    let database = driver.database(&ground.database);
    for (name, options) in [
        ("view", doc! { "viewOn": "any", "pipeline": [] }),
        ("series", doc! { "timeseries": { "timeField": "at" } }),
    ] {
        if !made(&database, name, options).await {
            continue;
        }
        let documents = locks.documents(database.collection::<Document>(name));
        if name == "series" {
            // There is one to be blamed.
            let series = database.collection::<Document>(name);
            series
                .insert_one(doc! { "_id": 1, "at": mongodb::bson::DateTime::now() })
                .await
                .unwrap();
            let error = documents.try_claim_many(doc! {}, 2).await.unwrap_err();
            assert!(matches!(error, AcquireError::Server(_)), "{error:?}");
        }
        let errors = async {
            [
                documents.acquire(1).await.unwrap_err(),
                documents.try_acquire(1).await.unwrap_err(),
                documents.claim(doc! {}).await.unwrap_err(),
            ]
        };
        for error in within(PATIENCE, "they are refused", errors).await {
            let AcquireError::Server(error) = error else {
                panic!("{name}: {error:?}");
            };
            assert_eq!(
                (error.kind(), error.code()),
                (ServerErrorKind::Refused, Some(166)),
                "{name}"
            );
        }
    }
}

/// To the collection, other texts are the same `_id`.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_locked_by_its_exact_id_whatever_the_collation() {
    let ground = Ground::replica_set("collation").await;
    let (driver, locks) = (ground.driver().await, ground.locks().await);
    let database = driver.database(&ground.database);
    assert!(
        made(
            &database,
            "data",
            doc! { "collation": { "locale": "en", "strength": 2 } }
        )
        .await
    );
    let collection = database.collection::<Document>("data");
    collection
        .insert_one(doc! { "_id": "Order", "lines": [{ "sku": "x" }] })
        .await
        .unwrap();
    let documents = locks.documents(collection);
    let error = documents.acquire("order").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoDocument { .. }), "{error:?}");
    let lines = documents.element::<Document>("lines", doc! { "sku": "x" });
    let error = lines.acquire("order").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoElement { .. }), "{error:?}");
    let held = documents.acquire("Order").timeout(PATIENCE).await.unwrap();
    held.release().await.unwrap();
}

/// The server's `$mergeObjects` keeps the first of two fields with one name, and a lock is written by it.
#[tokio::test(flavor = "multi_thread")]
async fn locking_a_document_with_two_fields_of_one_name_leaves_the_first() {
    let ground = Ground::replica_set("twice").await;
    let (driver, locks) = (ground.driver().await, ground.locks().await);
    let collection = ground.of(&driver, "data");
    let element = |name: u8, value: u8| [0x10, name, 0, value, 0, 0, 0];
    let mut bytes = vec![0, 0, 0, 0];
    bytes.extend(*b"\x10_id\0\x01\0\0\0");
    bytes.extend([element(b'a', 1), element(b'b', 2), element(b'a', 3)].concat());
    bytes.push(0);
    bytes[0] = u8::try_from(bytes.len()).unwrap();
    let raw = collection.clone_with_type::<RawDocumentBuf>();
    let names = async || {
        let found = raw.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
        let fields = found.iter().map(|field| field.unwrap().0.to_string());
        fields.filter(|name| name != "watchlock").collect::<Vec<_>>()
    };
    for by_watchlock in [true, false] {
        raw.insert_one(RawDocumentBuf::from_bytes(bytes.clone()).unwrap())
            .await
            .unwrap();
        assert_eq!(names().await, ["_id", "a", "b", "a"]);
        if by_watchlock {
            locks
                .documents(collection.clone())
                .acquire(1)
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        } else {
            let merged = doc! { "$mergeObjects": ["$$ROOT", { "watchlock": 1 }] };
            raw.update_one(doc! { "_id": 1 }, vec![doc! { "$replaceWith": merged }])
                .await
                .unwrap();
        }
        assert_eq!(names().await, ["_id", "a", "b"]);
        let found = collection.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
        assert_eq!(found.get_i32("a").unwrap(), 1);
        raw.delete_one(doc! { "_id": 1 }).await.unwrap();
    }
}
