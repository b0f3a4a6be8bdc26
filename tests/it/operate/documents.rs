//! Locks in documents as operators see them: lists, events, and breaks.

use std::sync::{Arc, Mutex};

use futures::{Stream, StreamExt as _};
use mongodb::bson::oid::ObjectId;
use watchlock::{
    FencingToken,
    errors::OperateError,
    operate::{Kind, LockEvent, LockInfo, UnreadableInfo},
};

use crate::{
    documents::{Events, Scene},
    setup::*,
};

fn names(locks: &[LockInfo]) -> Vec<&str> {
    locks.iter().map(|lock| &lock.name[..]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_are_listed_by_what_is_asked() {
    for scene in Scene::everywhere("doc_list").await {
        let (a, b) = scene.locks();
        let known = ObjectId::parse_str("507f191e810c19729de860ea").unwrap();
        let pair = Bson::from(doc! { "tenant": "é", "number": 1 });
        let ids = [
            Bson::from("order-1"),
            Bson::from("order-2"),
            Bson::from(known),
            Bson::from(7),
            pair,
        ];
        for id in &ids {
            scene.insert(doc! { "_id": id.clone(), "secret": "s" }).await;
        }
        scene.insert(doc! { "_id": "order-3", "secret": "s" }).await;
        scene.insert(doc! { "_id": "taken", "watchlock": 5 }).await;
        scene.insert(doc! { "_id": "nothing", "watchlock": {} }).await;
        assert!(a.list().await.unwrap().is_empty(), "nothing was locked yet");
        let mut held = Vec::new();
        for id in &ids {
            held.push(a.acquire(id.clone()).reason("a test").await.unwrap());
        }
        assert_eq!(held.remove(1).release().await.unwrap(), Released::Released);

        let listing = b.list().with_unreadable().await.unwrap();
        assert_eq!(listing.locks.len(), ids.len());
        assert!(listing.locks.is_sorted_by_key(|lock| lock.name.clone()));
        for lock in &listing.locks {
            let id = b.id_of(&lock.name).expect(&lock.name);
            let mut inspected = b.inspect(id).await.unwrap().expect(&lock.name);
            assert!(inspected.as_of >= lock.as_of, "{inspected:?}");
            inspected.as_of = lock.as_of;
            assert_eq!(inspected, *lock);
            assert_eq!(lock.kind, Kind::Document);
        }
        let [UnreadableInfo { name, problem, .. }] = &listing.unreadable[..] else {
            panic!("{:?}", listing.unreadable);
        };
        assert_eq!(name, "\"taken\"");
        assert!(problem.contains("`watchlock`"), "{problem}");
        // What is told of one document by itself is the same.
        let error = b.inspect("taken").await.unwrap_err();
        assert!(matches!(error, OperateError::Server(_)), "{error}");
        assert_eq!(b.inspect("nothing").await.unwrap(), None);

        let held_now = b.list().held(true).with_unreadable().await.unwrap();
        assert_eq!(held_now.locks.len(), ids.len() - 1);
        assert_eq!(held_now.unreadable.len(), 1, "it is told whatever is asked for");
        assert_eq!(names(&b.list().held(false).await.unwrap()), ["\"order-2\""]);
        assert_eq!(
            names(&b.list().prefix("order-").await.unwrap()),
            ["\"order-1\"", "\"order-2\""]
        );
        assert_eq!(names(&b.list().prefix("ObjectId(").await.unwrap()), [""; 0]);
        assert_eq!(names(&b.list().kind(Kind::Mutex).await.unwrap()), [""; 0]);
        assert_eq!(
            names(&b.list().older_than(Duration::from_secs(3_600)).await.unwrap()),
            [""; 0]
        );
        // Under another field there is none.
        assert!(b.clone().field("other").list().await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_elements_are_listed_by_what_is_asked() {
    for scene in Scene::everywhere("element_list").await {
        let (a, b) = scene.locks();
        let lines = vec![doc! { "sku": "x", "n": 1 }, doc! { "sku": "y", "n": 2 }];
        for id in [Bson::from("order-1"), Bson::from("order-2"), Bson::from(7)] {
            let document = doc! { "_id": id, "lines": lines.clone(), "others": lines.clone() };
            scene.insert(document).await;
        }
        // Another program's: something in the place of all locks, and of one.
        for (id, locks) in [("all", Bson::from(5)), ("one", doc! { r#"sku="x""#: 5 }.into())] {
            let document = doc! { "_id": id, "watchlock_elements": { "lines": locks } };
            scene.insert(document).await;
        }
        let line = |locks: &DocumentLocks<Document>, key: Document| locks.element::<Document>("lines", key);
        let x = |locks: &DocumentLocks<Document>| line(locks, doc! { "sku": "x" });
        assert!(x(&b).list().await.unwrap().is_empty(), "nothing was locked yet");
        let first = x(&a).acquire("order-1").reason("a test").await.unwrap();
        let second = line(&a, doc! { "n": 2 }).acquire("order-1").await.unwrap();
        let third = line(&a, doc! { "sku": "y" }).acquire(7).await.unwrap();
        let other = a.element::<Document>("others", doc! { "sku": "x" });
        let other = other.acquire("order-1").await.unwrap();
        let whole = a.acquire("order-2").await.unwrap();
        third.release().await.unwrap();

        // Of all keys, whichever is asked.
        let listing = x(&b).list().with_unreadable().await.unwrap();
        let expected = [r#""order-1"/n=2"#, r#""order-1"/sku="x""#, r#"7/sku="y""#];
        assert_eq!(names(&listing.locks), expected);
        let mut inspected = x(&b).inspect("order-1").await.unwrap().unwrap();
        inspected.as_of = listing.locks[1].as_of;
        assert_eq!(inspected, listing.locks[1]);
        assert_eq!(inspected.holders[0].owner.reason.as_deref(), Some("a test"));
        let mut unreadable: Vec<_> = listing.unreadable.iter().map(|found| &found.name[..]).collect();
        unreadable.sort_unstable();
        assert_eq!(unreadable, [r#""all""#, r#""one"/sku="x""#]);

        assert_eq!(names(&x(&b).list().held(true).await.unwrap()), expected[..2]);
        assert_eq!(names(&x(&b).list().held(false).await.unwrap()), expected[2..]);
        assert_eq!(names(&x(&b).list().prefix("order-").await.unwrap()), expected[..2]);
        assert_eq!(names(&b.list().await.unwrap()), [r#""order-2""#]);
        drop((first, second, other, whole));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_of_bounds_is_refused_by_every_observer() {
    let scene = Scene::in_memory();
    let (locks, _) = scene.locks();
    let invalid = |error: &OperateError, bound: &str| {
        let told = error.to_string();
        assert!(
            matches!(error, OperateError::Invalid(_)) && told.contains(bound),
            "{error:?}"
        );
    };
    let nowhere = locks.clone().field("a..b");
    invalid(&nowhere.list().await.unwrap_err(), "`a..b`");
    let mut events = nowhere.watch_all();
    invalid(&events.next().await.unwrap().unwrap_err(), "`a..b`");
    assert!(events.next().await.is_none());
    let long = "x".repeat(9_000);
    let mut events = locks.watch(long.clone());
    invalid(&events.next().await.unwrap().unwrap_err(), "8192");
    assert!(events.next().await.is_none());
    let handle = scene.a.mutex("x").acquire().await.unwrap();
    invalid(
        &locks.break_holder(long.clone(), handle.token()).await.unwrap_err(),
        "8192",
    );
    invalid(&locks.list().prefix(long).await.unwrap_err(), "1024");
}

/// A server reports one event for each write, and while polling one state for several.
async fn next<T>(events: &mut (impl Stream<Item = Result<T, OperateError>> + Unpin)) -> T {
    let event = within(PATIENCE, "an event", events.next()).await;
    event.expect("the client lives").unwrap()
}

fn token_of(event: &LockEvent) -> FencingToken {
    match event {
        LockEvent::Granted { holder, .. } => holder.token,
        LockEvent::Released { token, .. }
        | LockEvent::Broken { token, .. }
        | LockEvent::Expired { token, .. }
        | LockEvent::Deleted { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

/// The next event is of this lock, and of this kind and token.
async fn assert_next(
    events: &mut (impl Stream<Item = Result<(String, LockEvent), OperateError>> + Unpin),
    of: &str,
    what: &str,
    token: FencingToken,
) {
    let (name, event) = next(events).await;
    assert!(event.to_string().starts_with(what), "{name}: {event:?}, and not {what}");
    assert_eq!((&name[..], token_of(&event)), (of, token), "{event:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_what_happens_to_locks_in_documents() {
    for scene in Scene::everywhere("doc_watch").await {
        let (a, b) = scene.locks();
        for id in [1, 2, 3] {
            scene.insert(doc! { "_id": id, "n": 0 }).await;
        }
        let first = a.acquire(1).await.unwrap();
        let (mut all, mut one) = (b.watch_all(), b.watch(1));
        assert_next(&mut all, "1", "granted", first.token()).await;
        assert_is!(next(&mut one).await, LockEvent::Granted { .. });

        // Nothing of this concerns a lock.
        scene.update(2, doc! { "$inc": { "n": 1 } }).await;
        scene.insert(doc! { "_id": 4, "n": 0 }).await;
        scene.events.delete(doc! { "_id": 4 }).await;
        first.update(doc! { "$inc": { "n": 1 } }).await.unwrap();

        let token = first.token();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        assert_next(&mut all, "1", "released", token).await;
        assert_is!(next(&mut one).await, LockEvent::Released { .. });

        let second = a.acquire(2).await.unwrap();
        assert_next(&mut all, "2", "granted", second.token()).await;
        let after = b.break_holder(2, second.token()).await.unwrap().expect("it is held");
        assert!(after.holders.is_empty());
        assert_eq!(within(SOON, "the loss", second.lost()).await, LostReason::Broken);
        assert_next(&mut all, "2", "broken", second.token()).await;
        assert_eq!(b.break_holder(2, second.token()).await.unwrap(), None);
        // Nobody holds it, and its state is told all the same.
        assert_eq!(b.break_lock(2).await.unwrap().map(|lock| lock.holders.len()), Some(0));
        assert_eq!(b.break_lock(5).await.unwrap(), None);

        // The lock goes with its document, by whatever hand.
        let third = a.acquire(3).await.unwrap();
        next(&mut all).await;
        scene.events.replace(3, doc! { "n": 1 }).await;
        assert_next(&mut all, "3", "deleted", third.token()).await;
        let fourth = a.acquire(1).await.unwrap();
        next(&mut all).await;
        // Who polls may skip what is over before it looks.
        assert_is!(next(&mut one).await, LockEvent::Granted { .. });
        fourth.delete().await.unwrap();
        assert_next(&mut all, "1", "deleted", fourth.token()).await;
        assert_is!(next(&mut one).await, LockEvent::Deleted { .. });

        // A document that is spoiled is told once.
        scene.update(2, doc! { "$set": { "watchlock": 5 } }).await;
        let (name, event) = next(&mut all).await;
        assert_is!(event, LockEvent::Unreadable { .. });
        assert_eq!(name, "2");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_what_happens_to_the_locks_of_elements() {
    for scene in Scene::everywhere("element_watch").await {
        let (a, b) = scene.locks();
        let lines = vec![doc! { "sku": "x", "n": 1 }, doc! { "sku": "y", "n": 1 }];
        for id in [1, 2] {
            let padding = "x".repeat(if id == 1 { 0 } else { 50_000 });
            let document = doc! { "_id": id, "lines": lines.clone(), "padding": padding };
            scene.insert(document).await;
        }
        let line = |locks: &DocumentLocks<Document>, sku: &str| locks.element::<Document>("lines", doc! { "sku": sku });
        let first = line(&a, "x").acquire(1).await.unwrap();
        // The key makes no difference to all.
        let (mut all, mut one) = (line(&b, "y").watch_all(), line(&b, "x").watch(1));
        let (name, event) = next(&mut all).await;
        assert_eq!((&name[..], token_of(&event)), (r#"1/sku="x""#, first.token()));
        assert_eq!(b.element_of(&name), Some((Bson::Int64(1), doc! { "sku": "x" })));
        assert!(matches!(next(&mut one).await, LockEvent::Granted { .. }));

        // Nothing of this concerns a lock.
        let saved = doc! { "$set": { "padding": "", "lines": lines.clone() } };
        scene.update(1, saved).await;
        scene.insert(doc! { "_id": 4, "lines": lines.clone() }).await;
        scene.events.delete(doc! { "_id": 4 }).await;
        first.update(doc! { "$inc": { "n": 1 } }).await.unwrap();

        let token = first.token();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        assert_next(&mut all, r#"1/sku="x""#, "released", token).await;
        assert!(matches!(next(&mut one).await, LockEvent::Released { .. }));

        // By its changes, as this document is large.
        let second = line(&a, "y").acquire(2).await.unwrap();
        assert_next(&mut all, r#"2/sku="y""#, "granted", second.token()).await;
        line(&b, "y")
            .break_holder(2, second.token())
            .await
            .unwrap()
            .expect("it is held");
        assert_next(&mut all, r#"2/sku="y""#, "broken", second.token()).await;

        // The locks go with their document, and come with a copy of it, by whatever hand.
        let third = line(&a, "x").acquire(1).await.unwrap();
        next(&mut all).await;
        assert!(matches!(next(&mut one).await, LockEvent::Granted { .. }));
        let copy = scene.find(1).await;
        scene.events.delete(doc! { "_id": 1 }).await;
        assert_next(&mut all, r#"1/sku="x""#, "deleted", third.token()).await;
        assert!(matches!(next(&mut one).await, LockEvent::Deleted { .. }));
        scene.insert(copy).await;
        assert_next(&mut all, r#"1/sku="x""#, "granted", third.token()).await;
        assert!(matches!(next(&mut one).await, LockEvent::Granted { .. }));
        scene.events.replace(1, doc! { "lines": lines }).await;
        assert!(matches!(next(&mut all).await.1, LockEvent::Deleted { .. }));
        assert!(matches!(next(&mut one).await, LockEvent::Deleted { .. }));
    }
}

/// They are read by their codes, and other programs may have put anything there.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_lock_ends_no_watch_of_elements() {
    for scene in Scene::everywhere("element_strange").await {
        let (a, b) = scene.locks();
        let strange = doc! { r#"sku="x""#: 5, "": 5, "no code": 5 };
        for (id, locks) in [("all", Bson::from(5)), ("one", strange.clone().into())] {
            let document = doc! { "_id": id, "watchlock_elements": { "lines": locks } };
            scene.insert(document).await;
        }
        scene
            .insert(doc! { "_id": 1, "lines": [{ "sku": "x" }, { "sku": "y" }] })
            .await;
        let line = |locks: &DocumentLocks<Document>, sku: &str| locks.element::<Document>("lines", doc! { "sku": sku });
        let first = line(&a, "x").acquire(1).await.unwrap();
        for _ in 0..2 {
            let mut all = line(&b, "x").watch_all();
            let mut told = Vec::new();
            for _ in 0..5 {
                let (name, event) = next(&mut all).await;
                let is_unreadable = matches!(event, LockEvent::Unreadable { .. });
                assert_eq!(is_unreadable, !name.starts_with('1'), "{name}: {event:?}");
                told.push(name);
            }
            told.sort_unstable();
            let expected = [
                r#""all""#,
                r#""one"/"#,
                r#""one"/no code"#,
                r#""one"/sku="x""#,
                r#"1/sku="x""#,
            ];
            assert_eq!(told, expected);
            // Each once, whatever is written beside it.
            let again = doc! { "$set": { "n": 1, "watchlock_elements.lines": strange.clone() } };
            scene.update("one", again).await;
            for _ in 0..2 {
                let second = line(&a, "y").acquire(1).await.unwrap();
                assert_next(&mut all, r#"1/sku="y""#, "granted", second.token()).await;
                second.release().await.unwrap();
                assert!(matches!(next(&mut all).await.1, LockEvent::Released { .. }));
            }
        }
        drop(first);
    }
}

/// Names are shown up to a length, and such a document can't be read by what is shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_a_long_name_that_is_no_lock_is_told_once_to_each() {
    for scene in Scene::everywhere("doc_long").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": "x".repeat(2_000), "watchlock": 5 }).await;
        scene.insert(doc! { "_id": 1 }).await;
        for _ in 0..2 {
            let mut all = b.watch_all();
            let (name, event) = next(&mut all).await;
            assert!(matches!(event, LockEvent::Unreadable { .. }), "{name}: {event:?}");
            // While polling, each of these is in another list.
            for _ in 0..2 {
                let held = a.acquire(1).await.unwrap();
                assert_next(&mut all, "1", "granted", held.token()).await;
                held.release().await.unwrap();
                assert!(matches!(next(&mut all).await.1, LockEvent::Released { .. }));
            }
        }
    }
}

/// A client of the driver that notes every answer of the server.
async fn overheard(ground: &Ground) -> (Client, Arc<Mutex<Vec<String>>>) {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let noted = answers.clone();
    let hear = move |event| {
        if let CommandEvent::Succeeded(answer) = event
            && ["getMore", "aggregate", "find"].contains(&&answer.command_name[..])
        {
            noted.lock().unwrap().push(answer.reply.to_string());
        }
    };
    (ground.overheard_driver(hear).await, answers)
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_are_sent_no_field_but_that_of_the_lock() {
    let ground = Ground::replica_set("doc_sent").await;
    let scene = Scene::on(ground.clone()).await;
    let (a, _) = scene.locks();
    let (client, answers) = overheard(&ground).await;
    let locks = ground.locks_over(&client).await;
    let observer: DocumentLocks<Document> = locks.documents(ground.of(&client, "events"));
    for id in [1, 2] {
        scene
            .insert(doc! { "_id": id, "private": "a secret of the user" })
            .await;
    }
    let held = a.acquire(1).await.unwrap();
    let mut all = observer.watch_all();
    next(&mut all).await;
    observer.list().await.unwrap();
    held.update(doc! { "$set": { "private": "another secret of the user" } })
        .await
        .unwrap();
    let told = doc! { "$set": { "private": "a third secret of the user" } };
    scene.events.update(doc! {}, told).await;
    scene
        .insert(doc! { "_id": 3, "private": "a fourth secret of the user" })
        .await;
    scene
        .events
        .replace(2, doc! { "private": "a fifth secret of the user" })
        .await;
    held.release().await.unwrap();
    assert!(matches!(next(&mut all).await, (_, LockEvent::Released { .. })));
    let answers = answers.lock().unwrap();
    let has = |text: &str| answers.iter().filter(|answer| answer.contains(text)).count();
    assert!(has("holders") > 1, "the lock was sent, by the list and by the stream");
    assert_eq!(has("secret of the user"), 0);
}

/// As many free locks as the user has documents, and a field that is no lock's in each of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_documents_is_bounded_and_says_so() {
    let ground = Ground::standalone("doc_many").await;
    let scene = Scene::on(ground.clone()).await;
    let (a, b) = scene.locks();
    scene.insert(doc! { "_id": "n-0" }).await;
    a.acquire("n-0").await.unwrap().release().await.unwrap();
    let Events::Server(events) = &scene.events else {
        unreachable!("it is on a server");
    };
    // Written at once, which costs the server a fraction of as many upserts.
    let copies = [
        doc! { "$set": { "n": { "$range": [0, 100_000] } } },
        doc! { "$unwind": "$n" },
        doc! { "$set": { "_id": { "$concat": ["n-", { "$toString": "$n" }] } } },
        doc! { "$out": events.name() },
    ];
    let mut made = events.aggregate(copies).await.unwrap();
    assert!(!made.advance().await.unwrap());
    scene.insert(doc! { "_id": "one more" }).await;
    let held = a.acquire("one more").await.unwrap();
    let Err(error) = b.list().await else {
        panic!("it has no bound");
    };
    assert_is!(error, OperateError::TooMany { most: 100_000, .. });
    assert!(error.to_string().contains("100000"), "{error}");
    assert_eq!(names(&b.list().held(true).await.unwrap()), ["\"one more\""]);
    assert_eq!(b.list().prefix("n-9999").await.unwrap().len(), 11);
    // Observers keep nothing of free documents.
    let (name, _) = next(&mut b.watch_all()).await;
    assert_eq!(name, "\"one more\"");
    let wrong = b.clone().field("n").list().with_unreadable().await.unwrap();
    assert_eq!((wrong.locks.len(), wrong.unreadable.len()), (0, 1_000));
    held.release().await.unwrap();
}
