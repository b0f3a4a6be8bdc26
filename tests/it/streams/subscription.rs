//! One bad event, stream or document: nothing else is harmed, and no loop goes on without a pause.

use std::time::Instant;

use mongodb::{
    Database,
    bson::DateTime,
    options::{CollectionOptions, FindOneOptions, ReadConcern, ReadPreference, WriteConcern},
};
use watchlock::operate::{LockEvent, PollingReason, WakeMode};
use watchlock_testkit::Cluster;

use crate::setup::*;

async fn insert_bad(database: &Database, collection: &str, document: Document) {
    run_with_bad_text(database, doc! { "insert": collection, "documents": [document] }).await;
}

async fn delete_bad(database: &Database, collection: &str, id: &str) {
    let delete = doc! { "delete": collection, "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
    run_with_bad_text(database, delete).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_streams_again_soon_after_its_history_was_lost() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "claimlost");
    let driver = ground.by_name().driver().await;
    let admin = ground.driver().await;
    let locks = ground.locks_over(&driver).await;
    let own = ground.collection("events").await;
    let events = locks.documents(ground.of(&driver, "events"));
    let claiming = spawn(events.claim(doc! { "done": false }));
    until_streaming(&ground, &admin, 1).await;
    let old = ground.streams(&admin).await[0];

    let lost = async |command| {
        ground
            .fail(cluster, times(1), &[command], doc! { "errorCode": 286 })
            .await
    };
    let until_open_after = async |old: i64| {
        let mut streams = Vec::new();
        eventually(Duration::from_secs(5), "the stream is open again", async || {
            streams = ground.streams(&admin).await;
            streams.len() == 1 && streams[0] != old
        })
        .await;
        streams[0]
    };
    let breaks = lost("getMore").await;
    // An event ends the `getMore` that is on its way.
    own.insert_one(doc! { "_id": 1, "done": true }).await.unwrap();
    breaks.wait_entered(1, PATIENCE).await.unwrap();
    // One that is still being opened can't be killed.
    let second = until_open_after(old).await;
    let again = lost("aggregate").await;
    ground.kill_streams(&admin, "events").await;
    again.wait_entered(1, PATIENCE).await.unwrap();
    until_open_after(second).await;
    own.insert_one(doc! { "_id": 2, "done": false }).await.unwrap();
    let claimed = within(SOON, "the claim", claiming).await.unwrap().unwrap();
    claimed.release().await.unwrap();
}

/// A document whose `_id` is no text: the event of its writing is passed over, and the one stream goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_read_is_passed_over() {
    let ground = Ground::replica_set("badevent").await;
    let (admin, driver) = (ground.driver().await, ground.driver().await);
    let database = driver.database(&ground.database);
    let holder = ground.polling().await;
    let waiter = ground.locks().await;
    let held = holder.mutex("x").acquire().await.unwrap();
    let waiting = spawn(waiter.mutex("x").acquire());
    until_waiting(&holder, "x", 1).await;
    until_streaming(&ground, &admin, 1).await;
    let stream = ground.streams(&admin).await;

    // By whom it is of no interest, and by whom it is: any deletion in the collection is told.
    insert_bad(&database, COLLECTION, doc! { "_id": "bad?", "wake": "bad?" }).await;
    insert_bad(&database, COLLECTION, doc! { "_id": { "deep": ["bad?"] }, "n": 1 }).await;
    delete_bad(&database, COLLECTION, "bad?").await;
    let start = Instant::now();
    held.release().await.unwrap();
    let next = within(SOON, "the grant by the same stream", waiting)
        .await
        .unwrap()
        .unwrap();
    println!("granted {:?} after the release", start.elapsed());
    // One that was opened again has another id.
    eventually(PATIENCE, "the same stream is seen", async || {
        ground.streams(&admin).await == stream
    })
    .await;
    assert_eq!(waiter.wake_mode(), WakeMode::ChangeStream);
    next.release().await.unwrap();

    // In a collection of the user's own.
    let events = waiter.documents(database.collection::<Document>("events"));
    let own = database.collection::<Document>("events");
    insert_bad(&database, "events", doc! { "_id": "bad?", "done": true }).await;
    let claiming = spawn(events.claim(doc! { "done": false }));
    eventually(PATIENCE, "the claim's stream", async || {
        let operations = ground.operations(&admin).await;
        let on_events = |operation: &&Document| operation.get_str("ns").is_ok_and(|ns| ns.ends_with(".events"));
        operations
            .iter()
            .filter(on_events)
            .any(|operation| stream_id(operation).is_some())
    })
    .await;
    delete_bad(&database, "events", "bad?").await;
    insert_bad(&database, "events", doc! { "_id": "bad?", "done": true }).await;
    own.insert_one(doc! { "_id": 1, "done": false }).await.unwrap();
    let claimed = within(SOON, "the claim", claiming).await.unwrap().unwrap();
    // The claim's own stream tells the loss too.
    own.delete_one(doc! { "_id": 1 }).await.unwrap();
    within(SOON, "the loss", claimed.lost()).await;
}

/// Text that is not UTF-8, of a field that is not the lock's, does not leave the outcome of a break unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_beside_text_that_cannot_be_read_is_broken_all_the_same() {
    let ground = Ground::replica_set("badbroken").await;
    let driver = ground.driver().await;
    let database = driver.database(&ground.database);
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let note = doc! { "q": { "_id": "x" }, "u": { "$set": { "note": "bad?" } } };
    run_with_bad_text(&database, doc! { "update": COLLECTION, "updates": [note] }).await;
    let broken = locks.break_holder("x", held.token()).await.unwrap();
    assert_eq!(broken.map(|lock| lock.holders.len()), Some(0));
    assert_eq!(within(SOON, "the loss", held.lost()).await, LostReason::Broken);
}

/// `list`, `watch_all` and what reads many documents at once pass over one that can't be read, and tell of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_cannot_be_read_hides_no_others() {
    let ground = Ground::replica_set("baddocument").await;
    let driver = ground.driver().await;
    let database = driver.database(&ground.database);
    let (locks, observer) = (ground.locks().await, ground.locks().await);
    let first = locks.mutex("a").acquire().await.unwrap();
    insert_bad(&database, COLLECTION, doc! { "_id": "bad?", "n": "bad?" }).await;
    let second = locks.mutex("z").acquire().await.unwrap();

    let listed = observer.list().await.unwrap();
    let names: Vec<_> = listed.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, ["a", "z"]);

    let mut watching = observer.watch_all();
    let (mut granted, mut unreadable) = (Vec::new(), Vec::new());
    while granted.len() < 2 || unreadable.is_empty() {
        match within(PATIENCE, "what there is", watching.next()).await {
            Some(Ok((name, LockEvent::Granted { .. }))) => granted.push(name),
            Some(Ok((name, LockEvent::Unreadable { problem, .. }))) => {
                assert!(problem.contains("UTF-8"), "{problem}");
                unreadable.push(name);
            }
            other => panic!("{other:?}"),
        }
    }
    granted.sort();
    assert_eq!(
        (granted, unreadable),
        (vec!["a".to_owned(), "z".to_owned()], vec!["bad\u{fffd}".to_owned()])
    );

    // Who comes later is told of it too: it was not taken back.
    let mut late = observer.watch_all();
    loop {
        let (name, event) = within(PATIENCE, "the unreadable one", late.next())
            .await
            .unwrap()
            .unwrap();
        if matches!(event, LockEvent::Unreadable { .. }) {
            assert_eq!(name, "bad\u{fffd}");
            break;
        }
    }
    drop(late);

    // It goes on, also beyond the events of such documents, and tells of each once.
    insert_bad(&database, COLLECTION, doc! { "_id": "worse?" }).await;
    delete_bad(&database, COLLECTION, "bad?").await;
    first.release().await.unwrap();
    let next = within(SOON, "the next", watching.next()).await.unwrap().unwrap();
    assert_is!(next, (name, LockEvent::Unreadable { .. }) if name == "worse\u{fffd}");
    let next = within(SOON, "the release", watching.next()).await.unwrap().unwrap();
    assert_is!(next, (name, LockEvent::Released { .. }) if name == "a");

    // One whose name is readable and whose contents are not: who held it has lost it, and the others nothing.
    let third = locks.mutex("b").acquire().await.unwrap();
    let replace = doc! { "update": COLLECTION, "updates": [{ "q": { "_id": "b" }, "u": { "kind": "bad?" } }] };
    run_with_bad_text(&database, replace).await;
    within(2 * SOON, "the loss", third.lost()).await;
    assert_eq!(second.status(), LockStatus::Held);
    second.release().await.unwrap();
}

/// A holder whose lease is over stays in the document, and no write takes it out.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_never_faster_than_it_may_poll() {
    const LOOK: Duration = Duration::from_secs(3);
    let ground = Ground::replica_set("spin").await;
    let (driver, sent) = ground.by_name().noting_driver().await;
    let documents = ground.documents().await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let observer = ground.locks_over(&driver).await;
    let mut watching = observer.watch("x");
    let first = within(PATIENCE, "the holder", watching.next()).await;
    assert!(matches!(first, Some(Ok(LockEvent::Granted { .. }))), "{first:?}");

    // What a fail-over does that rolls back: the document is an earlier one again, and the observer has seen a later.
    let document = documents.find_one(doc! { "_id": "x" }).await.unwrap().unwrap();
    let mut later = document.clone();
    let Some(Bson::Int64(version)) = document.get("version").cloned() else {
        panic!("{document}");
    };
    let soon = DateTime::from_millis(DateTime::now().timestamp_millis() + 700);
    later.insert("version", version + 100);
    later.get_array_mut("holders").unwrap()[0]
        .as_document_mut()
        .unwrap()
        .insert("until", soon);
    documents.replace_one(doc! { "_id": "x" }, later).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    documents.replace_one(doc! { "_id": "x" }, document).await.unwrap();
    // Until that lease is over.
    tokio::time::sleep(SOON).await;
    let finds = sent.count("find");
    let _ = tokio::time::timeout(LOOK, async { while watching.next().await.is_some() {} }).await;
    let finds = sent.count("find") - finds;
    println!("{finds} finds in {LOOK:?}");
    assert!(finds <= 10, "{finds} finds in {LOOK:?}");
    drop(held);
}

/// Nobody needs the stream any more that could not be opened: that is no state to be alarmed of.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_needs_no_stream_is_not_interrupted() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "idle");
    let (holder, waiter) = (ground.locks().await, ground.by_name().locks().await);
    let held = holder.mutex("x").acquire().await.unwrap();
    let fault = ground
        .fail(cluster, "alwaysOn", &["aggregate"], doc! { "errorCode": 6 })
        .await;
    let waiting = spawn(waiter.mutex("x").acquire());
    until_mode(&waiter, PATIENCE, |mode| {
        mode == WakeMode::Polling(PollingReason::Interrupted)
    })
    .await;
    held.release().await.unwrap();
    let handle = within(2 * SOON, "granted by polling", waiting).await.unwrap().unwrap();
    handle.release().await.unwrap();
    until_mode(&waiter, PATIENCE, |mode| mode == WakeMode::ChangeStream).await;
    fault.off().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_leave_room_in_the_connection_pool() {
    const COLLECTIONS: usize = 8;
    const ROUNDS: usize = 3;
    let ground = Ground::replica_set("pool").await;
    let admin = ground.driver().await;
    // One for each collection and one for the locks, and as many as the default pool has.
    let driver = ground.by_name().with("maxPoolSize=19").driver().await;
    let database = driver.database(&ground.database);
    let locks = LockClient::builder(database.clone()).build().await.unwrap();
    let own = admin.database(&ground.database);
    // It does not watch, so all streams are those of the one client.
    let holder = ground.polling().await;
    let held = holder.mutex("x").acquire().await.unwrap();
    let waiting = spawn(locks.mutex("x").acquire());

    let (done, ended) = tokio::sync::watch::channel(false);
    let traffic = (0..4).map(|task| {
        let (data, ended) = (database.collection::<Document>("data"), ended.clone());
        spawn(async move {
            let (mut slowest, mut count) = (Duration::ZERO, 0_u32);
            while !*ended.borrow() {
                let start = Instant::now();
                data.insert_one(doc! { "task": task }).await.unwrap();
                slowest = slowest.max(start.elapsed());
                count += 1;
                // Other tests need the server too.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (slowest, count)
        })
    });
    let traffic: Vec<_> = traffic.collect();

    let mut slowest_claim = Duration::ZERO;
    for round in 0..ROUNDS {
        // Made anew each time, as many programs do.
        let events =
            (0..COLLECTIONS).map(|number| locks.documents(database.collection::<Document>(&format!("events{number}"))));
        let events: Vec<_> = events.collect();
        let claims = events.iter().map(|events| spawn(events.claim(doc! { "done": false })));
        let claims: Vec<_> = claims.collect();
        // All have tried, and found nothing.
        eventually(PATIENCE, "a stream for each collection", async || {
            streams(&ground, &admin).await == COLLECTIONS + 1
        })
        .await;
        let start = Instant::now();
        let id = i32::try_from(round).unwrap();
        let inserts = (0..COLLECTIONS).map(|number| {
            let events = own.collection::<Document>(&format!("events{number}"));
            async move { events.insert_one(doc! { "_id": id, "done": false }).await.unwrap() }
        });
        join_all(inserts).await;
        for claim in claims {
            let claimed = within(PATIENCE, "a claim", claim).await.unwrap().unwrap();
            claimed.delete().await.unwrap();
        }
        slowest_claim = slowest_claim.max(start.elapsed());
    }
    println!("slowest round of claims: {slowest_claim:?}");
    assert!(slowest_claim < 5 * SOON, "{slowest_claim:?}");
    assert_eq!(locks.wake_mode(), WakeMode::ChangeStream);
    let start = Instant::now();
    held.release().await.unwrap();
    let next = within(2 * SOON, "the hand-over", waiting).await.unwrap().unwrap();
    println!("handed over in {:?}", start.elapsed());
    next.release().await.unwrap();
    done.send_replace(true);
    for (slowest, count) in join_all(traffic).await.into_iter().map(Result::unwrap) {
        println!("{count} inserts, the slowest {slowest:?}");
        assert!(slowest < 3 * SOON, "an insert of the user's took {slowest:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_a_client_shares_one_stream() {
    const EACH: usize = 6;
    let ground = Ground::replica_set("onestream").await;
    let admin = ground.driver().await;
    let (other, locks) = (ground.polling().await, ground.locks().await);
    let name = |what: &str, number: usize| format!("{what} {number}");

    let (mut holds, mut before, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..EACH {
        holds.push(locks.mutex(name("held", number)).acquire().await.unwrap());
        before.push(other.mutex(name("awaited", number)).acquire().await.unwrap());
        waits.push(spawn(locks.mutex(name("awaited", number)).acquire()));
    }
    let events: Vec<_> = (0..EACH).map(|number| locks.watch(&name("watched", number))).collect();
    let mut leaders: Vec<_> = (0..EACH)
        .map(|number| locks.election(name("led", number)).observe())
        .collect();
    let latches: Vec<_> = (0..EACH)
        .map(|number| {
            let latch = locks.latch(name("latch", number), 1);
            spawn(async move { latch.wait().await })
        })
        .collect();
    let barriers: Vec<_> = (0..EACH)
        .map(|number| {
            let barrier = locks.barrier(name("barrier", number), 2);
            spawn(async move { barrier.wait().await })
        })
        .collect();
    for observed in &mut leaders {
        let first = within(PATIENCE, "that nobody leads", observed.next()).await;
        assert_eq!(first.unwrap().unwrap(), None);
    }
    eventually(PATIENCE, "all parties are at their barriers", async || {
        let present = locks.list().prefix("barrier ").held(true).await.unwrap();
        present.len() == EACH
    })
    .await;
    assert_eq!(streams(&ground, &admin).await, 1);
    let mut all = locks.watch_all();
    within(PATIENCE, "what there is", all.next()).await.unwrap().unwrap();
    eventually(PATIENCE, "the stream is that of all", async || {
        streams(&ground, &admin).await == 1
    })
    .await;

    // Each is told what concerns it.
    for (held, waiting) in before.into_iter().zip(waits) {
        held.release().await.unwrap();
        let next = within(SOON, "the hand-over", waiting).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
    for (number, mut watching) in events.into_iter().enumerate() {
        let held = other.mutex(name("watched", number)).acquire().await.unwrap();
        let event = within(SOON, "a grant", watching.next()).await.unwrap().unwrap();
        assert!(matches!(event, LockEvent::Granted { .. }), "{event}");
        held.release().await.unwrap();
    }
    for (number, mut observed) in leaders.into_iter().enumerate() {
        let leading = other.election(name("led", number)).campaign("node 7").await.unwrap();
        let leader = within(SOON, "a leader", observed.next()).await.unwrap().unwrap();
        assert_eq!(leader.map(|leader| leader.value).as_deref(), Some("node 7"));
        leading.release().await.unwrap();
    }
    for (number, waiting) in latches.into_iter().enumerate() {
        other.latch(name("latch", number), 1).count_down().await.unwrap();
        within(SOON, "an open latch", waiting).await.unwrap().unwrap();
    }
    for (number, waiting) in barriers.into_iter().enumerate() {
        let barrier = other.barrier(name("barrier", number), 2);
        let passed = within(PATIENCE, "the other party", barrier.wait()).await.unwrap();
        let first = within(SOON, "the first party", waiting).await.unwrap().unwrap();
        assert_eq!(first.generation(), passed.generation());
    }
    for (number, held) in holds.iter().enumerate() {
        other.break_lock(&name("held", number)).await.unwrap();
        assert_eq!(within(SOON, "the loss", held.lost()).await, LostReason::Broken);
    }
    assert_eq!(streams(&ground, &admin).await, 1);
}

/// Each new name has the stream opened anew, from its last event on.
#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_missed_or_told_twice_while_names_come_and_go() {
    const ROUNDS: usize = 20;
    let ground = Ground::replica_set("turned").await;
    let (other, locks) = (ground.polling().await, ground.locks().await);
    let mut watching = locks.watch("x");
    let (told, seen) = tokio::sync::watch::channel(Vec::new());
    let observing = spawn(async move {
        while let Some(event) = watching.next().await.transpose().unwrap() {
            if let LockEvent::Granted { holder, .. } = event {
                told.send_modify(|tokens| tokens.push(holder.token));
            }
        }
    });
    let comes_and_goes = {
        let locks = locks.clone();
        spawn(async move {
            for number in 0_u64.. {
                let mut other = locks.election(format!("other {number}")).observe();
                let first = within(PATIENCE, "that nobody leads", other.next()).await;
                assert_eq!(first.unwrap().unwrap(), None);
            }
        })
    };
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let held = other.mutex("x").acquire().await.unwrap();
        let waiting = spawn(locks.mutex("x").acquire());
        until_waiting(&other, "x", 1).await;
        let begun = Instant::now();
        held.release().await.unwrap();
        let next = within(PATIENCE, "the hand-over", waiting).await.unwrap().unwrap();
        slowest = slowest.max(begun.elapsed());
        // Without the event, it would ask again after seconds.
        assert!(begun.elapsed() < SOON, "{round}: {:?}", begun.elapsed());
        next.release().await.unwrap();
    }
    println!("slowest hand-over: {slowest:?}");
    let last = other.mutex("x").acquire().await.unwrap();
    eventually(SOON, "the last state is told", async || {
        seen.borrow().last() == Some(&last.token())
    })
    .await;
    let tokens = seen.borrow().clone();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    comes_and_goes.abort();
    observing.abort();
}

/// How many change streams are open in the database, whatever the collection.
async fn streams(ground: &Ground, admin: &Client) -> usize {
    ground.streams(admin).await.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_collection_has_one_stream_for_grants_and_claims() {
    let ground = Ground::replica_set("shared").await;
    let (admin, driver) = (ground.driver().await, ground.driver().await);
    let database = driver.database(&ground.database);
    let locks = LockClient::builder(database.clone()).build().await.unwrap();
    let own = ground.of(&admin, "events");
    own.insert_one(doc! { "_id": 0, "held": true }).await.unwrap();
    let documents = || locks.documents(database.collection::<Document>("events"));
    let held = documents().claim(doc! { "held": true }).await.unwrap();
    let claims: Vec<_> = (0..6)
        .map(|number| spawn(documents().claim(doc! { "number": number })))
        .collect();
    until_streaming(&ground, &admin, 1).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(streams(&ground, &admin).await, 1);
    for (number, claim) in claims.into_iter().enumerate() {
        let number = i32::try_from(number).unwrap();
        own.insert_one(doc! { "_id": number + 1, "number": number })
            .await
            .unwrap();
        let claimed = within(SOON, "a claim", claim).await.unwrap().unwrap();
        claimed.release().await.unwrap();
    }
    own.delete_one(doc! { "_id": 0 }).await.unwrap();
    within(SOON, "the loss", held.lost()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_served_by_the_members_that_the_client_prefers() {
    let cluster = Cluster::builder().replica_set(3).in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "preferred");
    let holder = ground.polling().await;
    let waiter = ground
        .locks_with(|builder| builder.stream_read_preference(ReadPreference::Secondary { options: None }))
        .await;
    let primary = cluster.primary().await.unwrap();
    let (mut on_primary, mut on_others) = (None, Vec::new());
    for node in 0..cluster.len() {
        let client = cluster.node_client(node).await.unwrap();
        if node == primary {
            on_primary = Some(client);
        } else {
            on_others.push(client);
        }
    }
    let streams = async |clients: &[Client]| {
        let mut open = 0;
        for client in clients {
            open += ground.streams(client).await.len();
        }
        open
    };
    let own = ground.collection("orders").await;
    own.insert_one(doc! { "_id": 1 }).await.unwrap();
    let (held, order) = (
        holder.mutex("x").acquire().await.unwrap(),
        holder.documents(own.clone()).acquire(1).await.unwrap(),
    );
    let waits = spawn(waiter.mutex("x").acquire());
    let orders = waiter.documents(own.clone());
    let wants_order = spawn(orders.acquire(1));
    eventually(PATIENCE, "both streams are open", async || {
        streams(&on_others).await == 2
    })
    .await;
    assert_eq!(streams(on_primary.as_slice()).await, 0);
    held.release().await.unwrap();
    order.release().await.unwrap();
    let next = within(SOON, "the lock", waits).await.unwrap().unwrap();
    let next_order = within(SOON, "the document", wants_order).await.unwrap().unwrap();
    assert_eq!(waiter.wake_mode(), WakeMode::ChangeStream);

    // What another program overwrites is lost by the same stream.
    own.delete_one(doc! { "_id": 1 }).await.unwrap();
    within(SOON, "the loss", next_order.lost()).await;
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_no_leader_that_no_majority_has() {
    let cluster = Cluster::builder().replica_set(3).in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "majority");
    let (locks, driver) = (ground.locks().await, ground.driver().await);
    let leader = locks.election("before").campaign("somebody").await.unwrap();
    let documents = ground.of(&driver, COLLECTION);
    let mut document = documents.find_one(doc! { "_id": "before" }).await.unwrap().unwrap();
    document.insert("_id", "now");
    let mut observed = locks.election("before").observe();
    let first = within(PATIENCE, "the leader", observed.next()).await.unwrap().unwrap();
    assert_eq!(first.map(|leader| leader.value), Some("somebody".to_owned()));

    let primary = cluster.primary().await.unwrap();
    let others: Vec<usize> = (0..3).filter(|node| *node != primary).collect();
    for node in &others {
        cluster.freeze(*node).unwrap();
    }
    // Confirmed by the primary alone.
    let one = CollectionOptions::builder()
        .write_concern(WriteConcern::nodes(1))
        .build();
    let alone = driver
        .database(&ground.database)
        .collection_with_options::<Document>(COLLECTION, one);
    alone.insert_one(document).await.unwrap();
    let local = FindOneOptions::builder().read_concern(ReadConcern::local()).build();
    let found = alone.find_one(doc! { "_id": "now" }).with_options(local).await.unwrap();
    assert!(found.is_some());
    let mut observed = locks.election("now").observe();
    let first = within(SOON * 5, "what is there", observed.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first, None);
    for node in others {
        cluster.thaw(node).unwrap();
    }
    drop(leader);
}
