//! What stands under a lock's name and is not, or not quite, the document of a lock.
//!
//! Nobody gets a lock that somebody holds, whatever else is wrong with its document; what can't be read is told as
//! such; and who holds a lock whose document is spoiled has lost it.

use std::time::{Instant, SystemTime};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::bson::DateTime;
use watchlock::{FencingToken, errors::OperateError, operate::LockInfo};

use crate::setup::*;

/// The entry that holds the lock in the documents of these tests.
const HOLDER: &str = "somebody-1";

/// The token that this entry was granted.
const TOKEN: i64 = 1_764_000_000_000_000;

const HOUR: Duration = Duration::from_secs(3600);

/// The document of a mutex that is held for another hour.
fn held() -> Document {
    let now = DateTime::now();
    let until = DateTime::from_system_time(SystemTime::now() + HOUR);
    let holder = doc! {
        "id": HOLDER, "permits": 1_i64, "lease": 30_000_i64, "claim": 5_000_i64, "since": now, "until": until,
        "owner": { "host": "elsewhere", "pid": 7_i64 }, "token": TOKEN,
    };
    doc! {
        "kind": "mutex", "capacity": 1_i64, "token": TOKEN, "holders": [holder], "queue": [],
        "wake": "somebody.1:;", "version": 1_i64, "at": now, "purge_at": until,
    }
}

/// What somebody may put in the place of any field.
fn values() -> Vec<Bson> {
    let deep = (0..40).fold(Bson::Null, |inner, _| Bson::from(doc! { "a": [inner] }));
    vec![
        Bson::Null,
        Bson::from(""),
        Bson::from("$$ROOT"),
        Bson::from("x".repeat(1 << 14)),
        Bson::from(-1_i64),
        Bson::from(0_i32),
        Bson::from(i64::MIN),
        Bson::from(i64::MAX),
        Bson::from(f64::NAN),
        Bson::from(1e300),
        Bson::from(0.5),
        Bson::from(true),
        Bson::from(DateTime::from_millis(i64::MAX)),
        Bson::from(DateTime::from_millis(i64::MIN)),
        Bson::MaxKey,
        Bson::MinKey,
        Bson::Array(Vec::new()),
        Bson::from(vec![Bson::from(1), Bson::Null, Bson::from("x")]),
        Bson::from(vec![Bson::from(Document::new())]),
        Bson::from(doc! { "$gt": "" }),
        deep,
    ]
}

/// Documents of a lock with one thing wrong in each, and what that is: each field with every fifth value, and each
/// value in every fifth field; with `WATCHLOCK_SPOILED=all` in the environment, each field with each value.
fn spoiled() -> Vec<(String, Document)> {
    let every = if std::env::var("WATCHLOCK_SPOILED").is_ok_and(|what| what == "all") {
        1
    } else {
        5
    };
    let mut turn = 0;
    let mut values = || {
        turn += 1;
        values().into_iter().skip(turn % every).step_by(every)
    };
    let mut all = vec![("no field of a lock".to_owned(), doc! { "some": "thing" })];
    for field in held().keys() {
        let mut without = held();
        without.remove(field);
        all.push((format!("no {field}"), without));
        for value in values() {
            let mut other = held();
            other.insert(field, value.clone());
            all.push((told(field, &value), other));
        }
    }
    for field in entry(&mut held()).keys() {
        let mut without = held();
        entry(&mut without).remove(field);
        all.push((format!("no holders.{field}"), without));
        for value in values() {
            let mut other = held();
            entry(&mut other).insert(field, value.clone());
            all.push((told(&format!("holders.{field}"), &value), other));
        }
    }
    // Of a lock that others share, the permits decide.
    for value in values() {
        let mut shared = held();
        shared.extend(doc! { "kind": "semaphore", "capacity": 3_i64 });
        entry(&mut shared).insert("permits", value.clone());
        all.push((told("holders.permits of a semaphore", &value), shared));
    }
    let mut huge = held();
    huge.insert("wake", "x".repeat(1 << 20));
    all.push(("a huge wake".to_owned(), huge));
    let mut twice = held();
    let again = entry(&mut twice).clone();
    twice.get_array_mut("holders").unwrap().push(again.into());
    all.push(("the holder twice".to_owned(), twice));
    all
}

fn entry(document: &mut Document) -> &mut Document {
    document.get_array_mut("holders").unwrap()[0].as_document_mut().unwrap()
}

fn told(field: &str, value: &Bson) -> String {
    let value = value.to_string();
    format!("{field}: {}", value.chars().take(60).collect::<String>())
}

/// Somebody is in the document with a date that lies ahead: whatever else is wrong, the lock is not free.
fn is_held(document: &Document) -> bool {
    let holders = document.get_array("holders").into_iter().flatten();
    let mut dates = holders.filter_map(|holder| holder.as_document()?.get_datetime("until").ok());
    dates.any(|until| *until > DateTime::now())
}

/// The entries in a document that the tests have not put there.
fn strangers(document: &Document) -> usize {
    let entries = ["holders", "queue"]
        .into_iter()
        .filter_map(|list| document.get_array(list).ok());
    let ids = entries
        .flatten()
        .filter_map(|entry| entry.as_document()?.get_str("id").ok());
    ids.filter(|id| id.contains('-') && *id != HOLDER).count()
}

/// The answers of a lock with such a document, one after the other.
async fn ask(locks: &LockClient, name: &str, case: &str, document: &Document) {
    let taken = is_held(document);
    if let Err(error) = locks.inspect(name).await {
        no_lock(&error, case);
    }
    let shared = document.get_str("kind").is_ok_and(|kind| kind == "semaphore");
    let (mutex, semaphore) = (locks.mutex(name), locks.semaphore(name, 3));
    let trying = async {
        if shared {
            semaphore.try_acquire().await.map(|held| held.map(Into::<Held>::into))
        } else {
            mutex.try_acquire().await.map(|held| held.map(Into::<Held>::into))
        }
    };
    let granted: Option<Held> = match within(PATIENCE, case, trying).await {
        Ok(granted) => granted,
        Err(error) => {
            refused(&error, case);
            None
        }
    };
    if let Some(handle) = granted {
        assert!(!taken, "{case}: granted, and somebody holds it");
        let lock = locks.inspect(name).await.unwrap().expect(case);
        let tokens: Vec<_> = lock.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(tokens, [handle.token()], "{case}");
        handle.renew().await.unwrap();
        assert_eq!(handle.release().await.unwrap(), Released::Released, "{case}");
        return;
    }
    let begun = Instant::now();
    loop {
        let limit = Duration::from_millis(500);
        let acquired: Result<Held, _> = if shared {
            semaphore.acquire().timeout(limit).await.map(Into::<Held>::into)
        } else {
            mutex.acquire().timeout(limit).await.map(Into::<Held>::into)
        };
        match acquired {
            Ok(handle) => panic!("{case}: {handle:?}, and a try was refused"),
            Err(AcquireError::Timeout {
                contention: Some(_), ..
            }) => {
                assert!(taken, "{case}: it waited, and nobody holds it");
            }
            // There was no answer so far, or none any more.
            Err(AcquireError::Unanswered { .. }) if begun.elapsed() < PATIENCE => continue,
            Err(error) => refused(&error, case),
        }
        break;
    }
    // The holder alone in every other case: a lock that has been broken has none.
    let token = FencingToken::try_from(TOKEN).unwrap();
    if case.len().is_multiple_of(2) {
        match within(PATIENCE, case, locks.break_holder(name, token)).await {
            Ok(Some(lock)) => assert!(!has(&lock, token), "{case}: {lock:?}"),
            // Who is told that nobody had it can read that.
            Ok(None) => {
                let lock = locks.inspect(name).await.expect(case);
                assert!(!lock.is_some_and(|lock| has(&lock, token)), "{case}");
            }
            Err(error) => no_lock(&error, case),
        }
    }
    match within(PATIENCE, case, locks.break_lock(name)).await {
        Ok(_) => {}
        Err(error) => no_lock(&error, case),
    }
}

fn has(lock: &LockInfo, token: FencingToken) -> bool {
    lock.holders.iter().any(|holder| holder.token == token)
}

fn refused(error: &AcquireError, case: &str) {
    match error {
        AcquireError::Server(error) => not_a_lock(error, case),
        AcquireError::KindMismatch(_) => {}
        error => panic!("{case}: {error:?}"),
    }
}

fn no_lock(error: &OperateError, case: &str) {
    match error {
        OperateError::Server(error) => not_a_lock(error, case),
        error => panic!("{case}: {error:?}"),
    }
}

/// It says what is wrong, and where; not what an operator of a pipeline did not like.
fn not_a_lock(error: &dyn std::error::Error, case: &str) {
    let told = error.to_string();
    // What MongoDB 4.4 lets in with an insertion, it does not let through a pipeline.
    let not_stored = told.contains("not valid for storage");
    assert!(not_stored || told.contains("is not a lock: field `"), "{case}: {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoiled_document_is_told_and_never_granted_twice() {
    let ground = Ground::replica_set("spoiled").await;
    let (documents, driver) = (ground.documents().await, ground.driver().await);
    let cases = spoiled();
    let documents_of = cases.iter().enumerate().map(|(number, (_, document))| {
        let mut document = document.clone();
        document.insert("_id", format!("lock {number}"));
        document
    });
    let before: Vec<Document> = documents_of.collect();
    for some in before.chunks(20) {
        documents.insert_many(some).await.unwrap();
    }
    let locks = ground.locks().await;
    let mut all = locks.watch_all();
    let watched = spawn(async move { while all.next().await.transpose().unwrap().is_some() {} });
    let listed = locks.list().await.unwrap();
    assert!(listed.len() < cases.len());
    until_streaming(&ground, &driver, 1).await;
    let observing = ground.streams(&driver).await;
    let asked = stream::iter(cases.iter().enumerate());
    let ask = async |(number, (case, document)): (usize, &(String, Document))| {
        let name = format!("lock {number}");
        let mut seen = (number % 25 == 0).then(|| locks.watch(&name));
        ask(&locks, &name, case, document).await;
        if let Some(seen) = &mut seen {
            // It shows the lock, or nothing: nobody is held up by what can't be read.
            let seeing = tokio::time::timeout(Duration::from_millis(10), seen.next()).await;
            assert!(!matches!(seeing, Ok(Some(Err(_)) | None)), "{seeing:?}");
        }
    };
    asked.for_each_concurrent(30, ask).await;
    // What was asked for may be in a document that could not be read afterwards; and then it is taken out again.
    eventually(PATIENCE, "nothing of ours is left", async || {
        let all: Vec<Document> = documents.find(doc! {}).await.unwrap().try_collect().await.unwrap();
        all.len() == cases.len() && all.iter().all(|document| strangers(document) == 0)
    })
    .await;
    locks.list().await.unwrap();
    // The stream is the one that it was: no event was too odd for it.
    eventually(PATIENCE, "the observer's stream is seen", async || {
        let streams = ground.streams(&driver).await;
        observing.iter().all(|stream| streams.contains(stream))
    })
    .await;
    assert!(!watched.is_finished());
    locks.shutdown().await;
    within(PATIENCE, "the events end with the client", watched)
        .await
        .unwrap();
}

/// As where the collection of somebody's own data was named: with the fields of a lock they would be purged with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_somebody_else_is_told_and_left_as_it_is() {
    let ground = Ground::replica_set("not_ours").await;
    let (documents, locks) = (ground.documents().await, ground.locks().await);
    let kinds = [
        doc! { "some": "thing" },
        doc! { "kind": "mutex" },
        doc! { "kind": "invoice", "token": "abc", "capacity": 5 },
        doc! { "holders": [], "version": 3_i64 },
        doc! { "queue": ["some", { "job": 1 }] },
        doc! { "queue": [], "owner": "me" },
    ];
    let before = kinds.iter().enumerate().flat_map(|(number, kind)| {
        ["x", "y"].map(|name| {
            let mut document = doc! { "_id": format!("{name}{number}") };
            document.extend(kind.clone());
            document
        })
    });
    let before: Vec<Document> = before.collect();
    documents.insert_many(&before).await.unwrap();
    let owner = ground.locks_with(|builder| builder.owner_id("somebody")).await;
    for number in 0..kinds.len() {
        let (x, y) = (format!("x{number}"), format!("y{number}"));
        // Several at once are asked for together.
        let at_once = [&x, &y].map(|name| locks.mutex(name).acquire());
        let mut errors: Vec<_> = join_all(at_once).await.into_iter().map(Result::unwrap_err).collect();
        errors.push(locks.mutex(&x).try_acquire().await.unwrap_err());
        errors.push(owner.mutex(&x).acquire().await.unwrap_err());
        errors.push(locks.semaphore(&x, 3).acquire().await.unwrap_err());
        errors.push(locks.rw_lock(&x).read().await.unwrap_err());
        errors.push(locks.election(&x).campaign("me").await.unwrap_err());
        errors.push(locks.latch(&x, 1).count_down().await.unwrap_err());
        errors.push(locks.barrier(&x, 1).wait().await.unwrap_err());
        for error in &errors {
            refused(error, &x);
        }
        no_lock(&locks.semaphore(&x, 3).set_permits(5).await.unwrap_err(), &x);
        no_lock(&locks.break_lock(&x).await.unwrap_err(), &x);
    }
    let after: Vec<Document> = documents.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_lock_whose_document_is_spoiled_has_lost_it() {
    let ground = Ground::replica_set("spoiled_hold").await;
    let (documents, driver) = (ground.documents().await, ground.driver().await);
    let locks = ground.locks().await;
    let holder = |field: &str| format!("holders.0.{field}");
    let fouls: Vec<(String, Bson)> = vec![
        ("kind".into(), "none".into()),
        ("kind".into(), 5.into()),
        ("capacity".into(), 0.into()),
        ("token".into(), "x".into()),
        ("token".into(), f64::NAN.into()),
        ("version".into(), (-1_i64).into()),
        ("wake".into(), 7.into()),
        ("at".into(), "now".into()),
        ("purge_at".into(), Bson::Null),
        ("queue".into(), "x".into()),
        ("queue".into(), vec![5].into()),
        ("holders".into(), "x".into()),
        ("holders".into(), vec![5].into()),
        ("holders.0".into(), 5.into()),
        (holder("id"), "x".into()),
        (holder("id"), Bson::MaxKey),
        (holder("token"), 1_i64.into()),
        (holder("token"), i64::MIN.into()),
        (holder("permits"), 0.into()),
        (holder("permits"), i64::MAX.into()),
        (holder("lease"), "30s".into()),
        (holder("until"), "tomorrow".into()),
        (holder("since"), 0.into()),
    ];
    let holding = (0..fouls.len()).map(async |number| locks.mutex(format!("{number}")).acquire().await.unwrap());
    let handles = join_all(holding).await;
    until_streaming(&ground, &driver, 1).await;
    let fouled = fouls
        .iter()
        .zip(&handles)
        .enumerate()
        .map(async |(number, ((field, value), handle))| {
            let case = told(field, value);
            let set = doc! { "$set": { field: value } };
            documents
                .update_one(doc! { "_id": format!("{number}") }, set)
                .await
                .unwrap();
            let lost = within(2 * SOON, &case, handle.lost()).await;
            assert_eq!(
                (lost.reason, handle.status()),
                (LostReason::Overwritten, LockStatus::Lost),
                "{case}"
            );
            handle.renew().await.unwrap_err();
        });
    join_all(fouled).await;
    for handle in handles {
        assert_eq!(handle.release().await.unwrap(), Released::WasLost);
    }
    // What is spoiled is nobody's, and harms nobody.
    assert!(locks.mutex("another").try_acquire().await.unwrap().is_some());
}

/// The same in a document of the user's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_spoiled_lock_in_a_document_is_told_and_never_granted_twice() {
    let ground = Ground::replica_set("spoiled_in_place").await;
    let orders = ground.collection("orders").await;
    let mut cases = spoiled();
    cases.retain(|(case, _)| !case.contains("xxx"));
    for value in values() {
        cases.push((told("the lock", &value), doc! { "instead": value }));
    }
    let insertions = cases.iter().enumerate().map(|(number, (_, document))| {
        let lock = document.get("instead").cloned().unwrap_or_else(|| {
            let mut document = document.clone();
            if document.get_str("kind").is_ok_and(|kind| kind == "mutex") {
                document.insert("kind", "document");
            }
            Bson::from(document)
        });
        doc! { "_id": i32::try_from(number).unwrap(), "total": 7, "watchlock": lock }
    });
    let before: Vec<Document> = insertions.collect();
    for some in before.chunks(20) {
        orders.insert_many(some).await.unwrap();
    }
    let locks = ground.locks().await.documents(orders.clone());
    let asked = cases.iter().zip(&before).map(async |((case, _), document)| {
        let id = document.get("_id").unwrap().clone();
        let taken = document.get_document("watchlock").is_ok_and(is_held);
        if let Err(error) = locks.inspect(id.clone()).await {
            no_lock(&error, case);
        }
        match within(PATIENCE, case, locks.try_acquire(id.clone())).await {
            Ok(Some(handle)) => {
                assert!(!taken, "{case}: granted, and somebody holds it");
                assert_eq!(handle.release().await.unwrap(), Released::Released, "{case}");
            }
            Ok(None) => assert!(taken, "{case}: not granted, and nobody holds it"),
            Err(error) => refused(&error, case),
        }
    });
    join_all(asked).await;
    eventually(PATIENCE, "nothing of ours is left", async || {
        let all: Vec<Document> = orders.find(doc! {}).await.unwrap().try_collect().await.unwrap();
        let theirs = |order: &Document| order.get_i32("total").is_ok_and(|total| total == 7);
        let locks = all.iter().filter_map(|order| order.get_document("watchlock").ok());
        all.len() == cases.len() && all.iter().all(theirs) && locks.map(strangers).all(|count| count == 0)
    })
    .await;
}
