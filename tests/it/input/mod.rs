//! Bad input, refused before anything is sent; and odd input, which is not bad.

mod errors;
mod injection;

use mongodb::options::UpdateModifications;
use watchlock::{
    LockClientBuilder, documents,
    errors::{BuildError, FenceError, HoldError, InvalidInput, OperateError},
    operate::WakeSource,
};

use crate::setup::*;

fn refused(error: &AcquireError) -> &InvalidInput {
    match error {
        AcquireError::Invalid(invalid) => invalid,
        error => panic!("{error:?}"),
    }
}

/// Whatever is sent gets no answer, so whatever answers has sent nothing.
#[tokio::test(flavor = "multi_thread")]
async fn bad_names_reasons_and_timeouts_are_refused_before_anything_is_sent() {
    let (ground, proxy, behind) = Ground::proxied("names").await;
    let locks = behind.locks().await;
    proxy.black_hole();
    let checks = async {
        for (name, words) in [
            (String::new(), ["empty", "1 to 1024"]),
            ("x".repeat(1025), ["1025", "1 to 1024"]),
        ] {
            let mutex = locks.mutex(&name);
            let errors = [
                mutex.acquire().await.unwrap_err(),
                mutex.acquire().timeout(Duration::ZERO).await.unwrap_err(),
                mutex.try_acquire().await.unwrap_err(),
            ];
            let mut messages: Vec<_> = errors.iter().map(|error| refused(error).to_string()).collect();
            for error in [
                locks.inspect(&name).await.unwrap_err(),
                locks.break_lock(&name).await.unwrap_err(),
            ] {
                assert!(matches!(error, OperateError::Invalid(_)), "{error:?}");
                messages.push(error.to_string());
            }
            for message in messages {
                assert!(words.iter().all(|word| message.contains(word)), "{message}");
            }
        }
        let mutex = locks.mutex("x");
        // 1,025 bytes in 513 letters.
        let long = format!("{}x", "é".repeat(512));
        let error = mutex.acquire().reason(&long).await.unwrap_err();
        assert_says(refused(&error), &["reason", "1025", "1024"]);
        let error = mutex.try_acquire().reason(&long).await.unwrap_err();
        refused(&error);
        let error = mutex.acquire().timeout(Duration::MAX).await.unwrap_err();
        assert_says(refused(&error), &["timeout", "184", "31622400s"]);
        // The bounds of the terms are the core's, whose tests have all of them.
        let error = mutex.acquire().lease(Duration::ZERO).await.unwrap_err();
        assert_says(refused(&error), &["lease of 0ns", "500ms"]);
        let multi = locks.multi(["a".into(), locks.semaphore("b", 2).part(1)]);
        let error = multi.acquire().reason(&long).await.unwrap_err();
        assert_says(refused(&error), &["reason", "1025", "1024"]);
        let error = multi.try_acquire().lease(Duration::ZERO).await.unwrap_err();
        assert_says(refused(&error), &["lease of 0ns", "500ms"]);
        let error = multi.acquire().lose_after(Duration::ZERO).await.unwrap_err();
        assert_says(refused(&error), &["0ns", "10ms"]);
        let error = multi.acquire().timeout(Duration::MAX).await.unwrap_err();
        assert_says(refused(&error), &["timeout", "184", "31622400s"]);
        let multi = locks.multi(["a".into(), locks.semaphore("b", 2).part(3)]);
        let error = multi.try_acquire().await.unwrap_err();
        assert_says(refused(&error), &["3", "2"]);
    };
    within(SOON, "nothing is waited for", checks).await;
    // The black hole is one: what is well-formed gets no answer.
    let sent = locks
        .mutex("x")
        .acquire()
        .timeout(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert!(matches!(sent, AcquireError::Unanswered { .. }), "{sent}");
    proxy.heal();
    let documents = ground.documents().await;
    let nameless = doc! { "_id": { "$ne": "x" } };
    assert_eq!(documents.count_documents(nameless).await.unwrap(), 0);
}

/// Values that the driver can't send or the server does not accept, each with the words of its refusal.
fn no_bson() -> Vec<(Bson, &'static str)> {
    let deep = (1..500).fold(Bson::from(1), |inner, _| Bson::from(doc! { "a": inner }));
    vec![
        (doc! { "a\0b": 1 }.into(), r"can't be written as BSON"),
        (doc! { "a": [{ "$gt": { "c\0": 1 } }] }.into(), r"c\0"),
        (deep, "the maximum is 181 levels"),
        ("x".repeat((16 << 20) + 1).into(), "must have at most 16777216"),
    ]
}

/// What the locks of documents refuse, on a server and in memory.
async fn documents_refuse_no_bson(locks: &DocumentLocks<Document>, held: &Held<documents::Document<Document>>) {
    for (value, words) in no_bson() {
        let filter = doc! { "x": &value };
        let mut errors = vec![
            locks.claim(filter.clone()).await.unwrap_err(),
            locks.claim(filter.clone()).timeout(PATIENCE).await.unwrap_err(),
            locks.try_claim(filter.clone()).await.unwrap_err(),
            locks.claim(doc! {}).sort(filter.clone()).await.unwrap_err(),
            locks.try_claim(doc! {}).sort(filter).await.unwrap_err(),
        ];
        if value.as_document().is_some() {
            errors.push(locks.acquire(value.clone()).await.unwrap_err());
            errors.push(locks.try_acquire(value.clone()).await.unwrap_err());
            let error = locks.inspect(value.clone()).await.unwrap_err();
            assert!(matches!(error, OperateError::Invalid(_)), "{error}");
        }
        let mut told: Vec<String> = errors.iter().map(|error| refused(error).to_string()).collect();
        let set = doc! { "$set": { "x": &value } };
        for update in [UpdateModifications::from(set.clone()), vec![doc! {}, set].into()] {
            match held.update(update).await.unwrap_err() {
                HoldError::Invalid(error) => told.push(error.to_string()),
                error => panic!("{error:?}"),
            }
        }
        assert!(told.iter().all(|told| told.contains(words)), "{words}: {told:?}");
    }
}

/// Whatever is sent gets no answer, so whatever answers has sent nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_bson_is_refused_before_anything_is_sent() {
    let ground = Ground::replica_set("no_bson").await;
    let proxy = shared::replica_set().await.proxy(0).unwrap();
    let ground = ground.through(proxy.uri());
    let (driver, locks) = (ground.driver().await, ground.locks().await);
    let collection = ground.of(&driver, "data");
    collection.insert_one(doc! { "_id": 1 }).await.unwrap();
    let documents = locks.documents(collection.clone());
    let held = documents.acquire(1).await.unwrap();
    proxy.black_hole();
    let checks = async {
        documents_refuse_no_bson(&documents, &held).await;
        let fence = held.fence();
        for (value, words) in no_bson() {
            let (one, bad) = (doc! { "_id": 1 }, doc! { "x": value });
            let good = doc! { "$set": { "y": 1 } };
            let set = doc! { "$set": &bad };
            let errors = [
                fence.update_one(&collection, bad.clone(), good.clone()).await.err(),
                fence.update_one(&collection, one.clone(), set.clone()).await.err(),
                fence.update_one(&collection, one.clone(), vec![set]).await.err(),
                fence
                    .update_one(&collection, one.clone(), good)
                    .array_filters([bad.clone()])
                    .await
                    .err(),
                fence.replace_one(&collection, bad.clone(), doc! {}).await.err(),
                fence.replace_one(&collection, one, bad.clone()).await.err(),
                fence.insert_one(&collection, bad.clone()).await.err(),
                fence.delete_one(&collection, bad).await.err(),
            ];
            for error in errors {
                match error {
                    Some(FenceError::Invalid(error)) => assert!(error.to_string().contains(words), "{words}: {error}"),
                    error => panic!("{error:?}"),
                }
            }
        }
    };
    within(PATIENCE, "nothing is waited for", checks).await;
    proxy.heal();
    held.release().await.unwrap();
}

#[tokio::test]
async fn what_is_no_bson_is_refused_in_memory_too() {
    let memory = MemoryCollection::<Document>::new();
    memory.insert_one(doc! { "_id": 1 }).await.unwrap();
    let documents = LockClient::in_memory().documents_in_memory::<Document>(&memory);
    let held = documents.acquire(1).await.unwrap();
    within(
        PATIENCE,
        "nothing is waited for",
        documents_refuse_no_bson(&documents, &held),
    )
    .await;
    for (value, words) in no_bson() {
        let bad = doc! { "x": value };
        let errors = [
            memory.insert_one(bad.clone()).await.unwrap_err(),
            memory.find(bad.clone()).await.unwrap_err(),
            memory
                .update_many(bad.clone(), doc! { "$set": { "y": 1 } })
                .await
                .unwrap_err(),
            memory.update_one(doc! {}, doc! { "$set": &bad }).await.unwrap_err(),
            memory.replace_one(doc! { "_id": 1 }, bad.clone()).await.unwrap_err(),
            memory.delete_many(bad).await.unwrap_err(),
        ];
        assert!(
            errors.iter().all(|error| error.to_string().contains(words)),
            "{words}: {errors:?}"
        );
    }
    assert_eq!(
        memory.find(doc! { "x": { "$exists": true } }).await.unwrap(),
        [] as [Document; 0]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_settings_are_refused_before_anything_is_sent() {
    // Nobody listens there, and the driver would look for half a minute.
    let client = Client::with_uri_str("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=30000")
        .await
        .unwrap();
    let builder = || LockClient::builder(client.database("any"));
    // The bounds are those of the core's settings, whose tests have all of them.
    let cases: [(LockClientBuilder, &[&str]); 3] = [
        (builder().lease(Duration::ZERO), &["lease", "0ns", "500ms"]),
        (builder().collection(""), &["collection", "empty"]),
        (builder().collection("a$b"), &["collection", "a$b", "`$`"]),
    ];
    let checks = async {
        for (builder, words) in cases {
            for error in [
                builder.clone().build_lazily().unwrap_err(),
                builder.build().await.unwrap_err(),
            ] {
                assert_is!(error, BuildError::Invalid(_));
                assert_says(&error, words);
            }
        }
    };
    within(SOON, "nothing is waited for", checks).await;
    // And an address where nobody listens is one.
    let client = Client::with_uri_str("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200")
        .await
        .unwrap();
    let error = LockClient::builder(client.database("any")).build().await.unwrap_err();
    assert!(matches!(error, BuildError::Server(_)), "{error:?}");
    assert!(
        error.to_string().ends_with("; `watchlock doctor` finds the cause"),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_none(), "it is told twice: {error}");
}

/// The driver's client prints its options, and a password can be among them.
#[tokio::test(flavor = "multi_thread")]
async fn no_debug_output_shows_the_options_of_the_driver() {
    let ground = Ground::replica_set("debug").await;
    let locks = ground.locks().await;
    let collection = ground.documents().await;
    let options = format!("{:?}", collection.client());
    let documents = locks.documents(collection.clone());
    let handle = locks.mutex("held").acquire().await.unwrap();
    let shown: [&dyn std::fmt::Debug; 14] = [
        &LockClient::builder(collection.client().database(&ground.database)),
        &handle,
        &handle.view(),
        &locks.mutex("x").acquire(),
        &locks.mutex("x").try_acquire(),
        &locks,
        &locks.mutex("x"),
        &locks.election("x"),
        &locks.election("x").observe(),
        &locks.list(),
        &locks.watch("x"),
        &locks.watch_all(),
        &documents,
        &documents.acquire(1),
    ];
    assert!(options.contains("127.0.0.1"), "or this test shows nothing");
    for shown in shown {
        let shown = format!("{shown:?}");
        assert!(!shown.contains("127.0.0.1") && shown.len() < 2_000, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_reason_and_the_shortest_settings_are_fine() {
    let ground = Ground::replica_set("shortest").await;
    let locks = ground
        .locks_with(|builder| {
            builder
                .lease(Duration::from_millis(500))
                .skew_margin(Duration::from_millis(5))
                .poll_interval(Duration::from_millis(1), Duration::from_millis(1))
                .wake_source(WakeSource::Polling)
                .collection("a.b")
                .label("")
        })
        .await;
    let handle = locks.mutex("x").acquire().reason("").timeout(SOON).await.unwrap();
    let lock = info(&locks, "x").await.unwrap();
    assert_eq!(
        (
            lock.holders[0].owner.reason.as_deref(),
            lock.holders[0].owner.label.as_deref()
        ),
        (Some(""), Some(""))
    );
    // Kept beyond its lease by renewals.
    let until = lock.holders[0].until;
    eventually(2 * SOON, "renewed", async || {
        info(&locks, "x").await.unwrap().holders[0].until > until
    })
    .await;
    handle.release().await.unwrap();
}

/// What `Debug` shows is bounded, and bad input is refused, however long it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_megabytes_is_not_shown() {
    let name = || "x".repeat(40 << 20);
    let locks = LockClient::in_memory();
    let documents = locks.documents_in_memory::<Document>(&MemoryCollection::new());
    let (mutex, semaphore, rw_lock) = (locks.mutex(name()), locks.semaphore(name(), 2), locks.rw_lock(name()));
    let (election, multi) = (locks.election(name()), locks.multi([name(), "y".to_owned()]));
    let shown: [&dyn std::fmt::Debug; 16] = [
        &mutex,
        &mutex.acquire(),
        &mutex.try_acquire(),
        &semaphore,
        &semaphore.acquire_many(2),
        &rw_lock,
        &rw_lock.write(),
        &election,
        &election.campaign(""),
        &multi,
        &multi.acquire(),
        &multi.try_acquire(),
        &documents.acquire(name()),
        &documents.try_acquire(name()),
        &documents.claim(doc! { "a": name() }),
        &documents.try_claim(doc! { "a": name() }),
    ];
    for shown in shown {
        let shown = format!("{shown:?}");
        assert!(shown.len() < 5_000 && shown.contains("xxxx"), "{} bytes", shown.len());
    }
    let mut ended = election.stand("", |_| {}, |_| {});
    let error = format!("{} {ended:?}", ended.ended().await);
    assert!(error.len() < 5_000, "{} bytes", error.len());
    ended = election.stand(name(), |_| {}, |_| {});
    let _ = ended.ended().await;
    assert!(ended.withdraw().await.is_err());
    refused(&mutex.acquire().await.unwrap_err());
    refused(&semaphore.acquire().await.unwrap_err());
    refused(&rw_lock.read().await.unwrap_err());
    refused(&multi.acquire().await.unwrap_err());
}
