//! Tokens that rise whatever becomes of the documents that count them.

use mongodb::bson::{DateTime, Decimal128};

use crate::setup::*;

/// Longer than the second in which a server before MongoDB 6.0 tells the time of a write.
const OLD_ENOUGH: Duration = Duration::from_millis(1_200);

/// An object mapper reads a document whose lock is free, another client locks it, and the mapper saves the whole
/// document as it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_copy_of_a_lock_ends_the_hold_and_repeats_no_token() {
    let memory = MemoryCollection::new();
    memory.insert_one(doc! { "_id": 1, "n": 1 }).await.unwrap();
    let (a, b) = (LockClient::in_memory(), LockClient::in_memory());
    let locks = (a.documents_in_memory(&memory), b.documents_in_memory(&memory));
    let find = async || memory.find(doc! { "_id": 1 }).await.unwrap().remove(0);
    let save = async |copy: Document| drop(memory.replace_one(doc! { "_id": 1 }, copy).await.unwrap());
    earlier_copy(locks, find, save, async || true).await;

    for (ground, streams) in [
        (Ground::replica_set("earlier").await, true),
        (Ground::standalone("earlier").await, false),
    ] {
        let driver = ground.driver().await;
        let orders = ground.of(&driver, "orders");
        orders.insert_one(doc! { "_id": 1, "n": 1 }).await.unwrap();
        let (a, b) = (ground.locks().await, ground.locks().await);
        let locks = (a.documents(orders.clone()), b.documents(orders.clone()));
        let find = async || orders.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
        let save = async |copy| drop(orders.replace_one(doc! { "_id": 1 }, copy).await.unwrap());
        let watching = async || !streams || !ground.streams(&driver).await.is_empty();
        earlier_copy(locks.clone(), find, save, watching).await;
        // The same by an update of the field.
        let find = async || orders.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
        let save = async |mut copy: Document| {
            let set = doc! { "$set": { "watchlock": copy.remove("watchlock").unwrap() } };
            orders.update_one(doc! { "_id": 1 }, set).await.unwrap();
        };
        earlier_copy(locks, find, save, watching).await;
    }
}

async fn earlier_copy(
    (a, b): (DocumentLocks<Document>, DocumentLocks<Document>),
    find: impl AsyncFn() -> Document,
    save: impl AsyncFn(Document),
    watching: impl AsyncFn() -> bool,
) {
    // Who has waited once has its stream open.
    let first = a.acquire(1).await.unwrap();
    let waiting = spawn({
        let b = b.clone();
        async move { b.acquire(1).await.unwrap() }
    });
    eventually(PATIENCE, "it waits, and watches where that is possible", async || {
        crate::documents::waiting(&a, 1).await == 1 && watching().await
    })
    .await;
    let before = first.token();
    first.release().await.unwrap();
    let second = within(PATIENCE, "the waiter is served", waiting).await.unwrap();
    second.release().await.unwrap();

    let copy = find().await;
    assert!(
        copy.get_document("watchlock")
            .unwrap()
            .get_array("holders")
            .unwrap()
            .is_empty()
    );
    pause(OLD_ENOUGH).await;
    let robbed = b.acquire(1).await.unwrap();
    // In memory all of it may be done within the millisecond that a clock of a server tells.
    pause(Duration::from_millis(2)).await;
    save(copy).await;
    let robber = a.acquire(1).await.unwrap();
    assert!(before < robbed.token() && robbed.token() < robber.token());
    let reason = within(SOON, "the holder sees that it lost the lock", robbed.lost()).await;
    assert_eq!(reason, LostReason::Overwritten);
    assert_eq!(robbed.release().await.unwrap(), Released::WasLost);
    assert!(robber.lost_reason().is_none());
    robber.release().await.unwrap();
}

/// A lock by itself, brought back from a backup or deleted.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_over_documents_that_were_deleted_or_brought_back() {
    let ground = Ground::replica_set("backup").await;
    let (locks, documents) = (ground.locks().await, ground.documents().await);
    let mutex = locks.mutex("x");
    let mut last = None;
    let mut rises = |token| {
        assert!(last.replace(token) < Some(token), "{token}");
    };
    let first = mutex.acquire().await.unwrap();
    rises(first.token());
    first.release().await.unwrap();
    let backup = documents.find_one(doc! { "_id": "x" }).await.unwrap().unwrap();
    for _ in 0..3 {
        let handle = mutex.acquire().await.unwrap();
        rises(handle.token());
        handle.release().await.unwrap();
    }
    // The clock goes on by more than the tokens that were issued.
    pause(Duration::from_millis(2)).await;
    documents.replace_one(doc! { "_id": "x" }, backup).await.unwrap();
    let handle = mutex.acquire().await.unwrap();
    rises(handle.token());
    handle.release().await.unwrap();
    pause(Duration::from_millis(2)).await;
    documents.delete_one(doc! { "_id": "x" }).await.unwrap();
    let handle = mutex.acquire().await.unwrap();
    rises(handle.token());
    handle.release().await.unwrap();
}

/// A counter that somebody set: a token that can be read, or a refusal that changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_no_token_is_got_over_or_refused() {
    let ground = Ground::replica_set("counters").await;
    let (locks, driver) = (ground.locks().await, ground.driver().await);
    let orders = ground.of(&driver, "orders");
    let documents = ground.documents().await;
    let decimal = |text: &str| Bson::from(text.parse::<Decimal128>().unwrap());
    let counters = [
        (Bson::from(1.5), true),
        (Bson::from(-7), true),
        (Bson::from(f64::NAN), true),
        (Bson::from(3e15), true),
        (Bson::from(3_000_000_000_000_000.5), true),
        (decimal("12.5"), true),
        (decimal("3E+15"), true),
        (decimal("NaN"), true),
        (Bson::from(i64::MAX), false),
        (Bson::from(i64::MAX - 1), false),
        (Bson::from(1e300), false),
        (Bson::from(f64::INFINITY), false),
        (decimal("1E+40"), false),
        (Bson::from("7"), false),
        (Bson::from(DateTime::now()), false),
    ];
    for (number, (counter, good)) in counters.into_iter().enumerate() {
        let case = counter.to_string();
        let name = format!("{number}");
        for capacity in [1_i64, 3] {
            let kind = if capacity == 1 { "mutex" } else { "semaphore" };
            let now = DateTime::now();
            let lock = doc! {
                "kind": kind, "capacity": capacity, "token": counter.clone(), "holders": [], "queue": [], "wake": "a.1:;",
                "version": 1_i64, "at": now, "purge_at": DateTime::from_millis(now.timestamp_millis() + 3_600_000),
            };
            let mut whole = doc! { "_id": &name };
            whole.extend(lock);
            documents.delete_one(doc! { "_id": &name }).await.unwrap();
            documents.insert_one(&whole).await.unwrap();
            let acquired = if capacity == 1 {
                locks.mutex(&name).acquire().await.map(Into::<Held>::into)
            } else {
                locks.semaphore(&name, 3).acquire().await.map(Into::<Held>::into)
            };
            match acquired {
                Ok(handle) => {
                    assert!(good, "{case}");
                    assert!(
                        handle.token().as_i64() > 1_700_000_000_000_000,
                        "{case}: {}",
                        handle.token()
                    );
                    assert_eq!(handle.release().await.unwrap(), Released::Released, "{case}");
                    let after = locks.inspect(&name).await.unwrap().expect(&case);
                    assert!(after.holders.is_empty(), "{case}");
                }
                Err(AcquireError::Server(error)) => {
                    assert!(!good, "{case}: {error:?}");
                    assert!(error.to_string().contains("`token`"), "{case}: {error}");
                    let after = documents.find_one(doc! { "_id": &name }).await.unwrap();
                    assert_eq!(after.map(|after| after.to_string()), Some(whole.to_string()), "{case}");
                }
                Err(error) => panic!("{case}: {error:?}"),
            }
        }
        // A claim passes over what it could not read afterwards.
        let lock = doc! {
            "kind": "document", "capacity": 1, "token": counter.clone(), "holders": [], "queue": [], "wake": "a.1:;", "version": 1,
            "at": DateTime::now(), "purge_at": DateTime::now(),
        };
        orders.delete_many(doc! {}).await.unwrap();
        orders.insert_one(doc! { "_id": 1, "watchlock": lock }).await.unwrap();
        let claimed = locks.documents(orders.clone()).try_claim(doc! {}).await;
        match claimed {
            Ok(Some(claimed)) => {
                assert!(good, "{case}");
                claimed.release().await.unwrap();
            }
            // More strictly than an acquire, which begins such a counter anew.
            Err(AcquireError::Unclaimable { .. }) => {
                let plain = matches!(counter, Bson::Int32(0..) | Bson::Int64(0..));
                assert!(!(good && plain), "{case}");
            }
            other => panic!("{case}: {other:?}"),
        }
    }
    until_streaming(&ground, &driver, 0).await;
}
