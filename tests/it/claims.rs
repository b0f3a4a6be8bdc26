//! Claims beside documents that can't be claimed, with conditions of every kind, and under a stream of changes.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use futures::future::{join, select_all};
use serde::Deserialize;
use watchlock::documents::ElementLocks;
use watchlock_testkit::Cluster;

use crate::{
    documents::{Scene, dead_holder},
    setup::*,
};

/// A lock as it is left by somebody who has released it, but for one field.
fn lock_but(field: &str, value: impl Into<Bson>) -> Document {
    let past = mongodb::bson::DateTime::from_millis(1);
    let mut lock = doc! {
        "kind": "document", "capacity": 1_i64, "token": 7_i64, "holders": [], "queue": [], "wake": "a.1:h;",
        "version": 3_i64, "at": past, "purge_at": past,
    };
    lock.insert(field, value.into());
    lock
}

/// What stands in the place of a lock and can't be one.
fn spoiled() -> Vec<Bson> {
    let decimal: mongodb::bson::Decimal128 = "7".parse().unwrap();
    vec![
        Bson::from(doc! { "enabled": true, "version": "2.1" }),
        Bson::from("mine"),
        Bson::from(vec![1]),
        Bson::from(lock_but("token", 1.5)),
        Bson::from(lock_but("token", i64::MAX)),
        Bson::from(lock_but("token", -1)),
        Bson::from(lock_but("token", f64::NAN)),
        Bson::from(lock_but("token", Bson::Decimal128(decimal))),
        Bson::from(lock_but("version", "2")),
        Bson::from(lock_but("holders", "x")),
        Bson::from(lock_but("queue", 5)),
        Bson::from(lock_but("purge_at", "never")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_pass_over_what_is_no_lock() {
    for scene in Scene::everywhere("claim_spoiled").await {
        let (a, b) = scene.locks();
        for (id, lock) in (0..).zip(spoiled()) {
            scene.insert(doc! { "_id": id, "n": 1, "watchlock": lock }).await;
        }
        // As text, as a number that is not a number is not equal to itself.
        let all = async || format!("{:?}", scene.events.find(doc! { "n": 1 }).await);
        let before = all().await;
        let claim = |locks: &DocumentLocks<Document>| locks.try_claim(doc! { "n": 1 }).sort(doc! { "_id": 1 });
        for tried in [
            claim(&a).await,
            claim(&a).await,
            // A command that is under way when the time is over may come late: it is not to find what is inserted
            // below.
            a.claim(doc! { "n": 1, "_id": { "$lt": 50 } })
                .timeout(SOON / 4)
                .await
                .map(Some),
        ] {
            match tried {
                Err(AcquireError::Unclaimable { name, .. }) => assert!(name.parse::<i32>().is_ok(), "{name}"),
                // What is known already does not fail a claim that waits.
                Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(all().await, before, "none of them was written");
        // One that is whole, and was set by hand in a shell.
        scene
            .insert(doc! { "_id": 100, "n": 1, "watchlock": lock_but("token", 7.0) })
            .await;
        scene
            .insert(doc! { "_id": 101, "n": 1, "watchlock": { "enabled": true } })
            .await;
        let held = claim(&a).await.unwrap().unwrap();
        assert_eq!(held.id(), &Bson::Int32(100));
        let other = claim(&b).await.unwrap().unwrap();
        assert_eq!(other.id(), &Bson::Int32(101));
        assert!(claim(&b).await.unwrap().is_none(), "there are others, which are held");
        // Mended, it can be claimed at once.
        scene.update(3, doc! { "$set": { "watchlock.token": 7 } }).await;
        assert_eq!(claim(&a).await.unwrap().unwrap().id(), &Bson::Int32(3));
        drop((held, other));
    }
}

/// By a validator that came later, and by the bound of 16 MB.
#[tokio::test(flavor = "multi_thread")]
async fn claims_pass_over_what_the_server_refuses_to_write() {
    for ground in Ground::both("claim_refused").await {
        let scene = Scene::on(ground.clone()).await;
        let (a, b) = scene.locks();
        let room = 16 * 1024 * 1024 - 60;
        scene
            .insert(doc! { "_id": 1, "n": 1, "ok": true, "x": "x".repeat(room) })
            .await;
        for id in [2, 3] {
            scene.insert(doc! { "_id": id, "n": 1 }).await;
        }
        let database = ground.driver().await.database(&ground.database);
        let validator = doc! { "collMod": "events", "validator": { "ok": true } };
        database.run_command(validator).await.unwrap();
        let claim = |locks: &DocumentLocks<Document>| locks.try_claim(doc! { "n": 1 }).sort(doc! { "_id": 1 });
        for _ in 0..2 {
            let error = claim(&a).await.unwrap_err();
            assert!(matches!(error, AcquireError::Unclaimable { .. }), "{error:?}");
        }
        // Who waits is served as soon as there is another.
        let waiting = spawn(b.claim(doc! { "n": 1 }).sort(doc! { "_id": 1 }));
        let error = within(PATIENCE, "the first is told", waiting)
            .await
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, AcquireError::Unclaimable { .. }), "{error:?}");
        let waiting = spawn(b.claim(doc! { "n": 1, "y": 1 }).sort(doc! { "_id": 1 }));
        scene.insert(doc! { "_id": 4, "n": 1, "ok": true, "y": 1 }).await;
        let held = within(PATIENCE, "the fourth", waiting).await.unwrap().unwrap();
        assert_eq!(held.id(), &Bson::Int32(4));
        held.release().await.unwrap();
        let held = claim(&a).await.unwrap().unwrap();
        assert_eq!(held.id(), &Bson::Int32(4));
        // Mended, it can be claimed again after a while.
        let mend = doc! { "$set": { "ok": true } };
        scene.update(2, mend).await;
        eventually(PATIENCE, "it is claimed", async || {
            let claimed = a.try_claim(doc! { "n": 1, "_id": 2 }).await;
            matches!(claimed, Ok(Some(_)))
        })
        .await;
        // A filter that is refused is no document's fault.
        let refused = a.try_claim(doc! { "n": { "$nonsense": 1 } }).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Server(_)), "{refused:?}");
    }
}

#[derive(Debug, Deserialize)]
struct Job {
    size: i32,
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_pass_over_what_cannot_be_read() {
    for scene in Scene::everywhere("claim_unreadable").await {
        let locks = scene.locks_of::<Job>(&scene.a);
        for id in 0..3 {
            scene.insert(doc! { "_id": id, "size": "large" }).await;
        }
        let error = locks.claim(doc! {}).sort(doc! { "_id": 1 }).await.unwrap_err();
        assert!(matches!(error, AcquireError::Unreadable { .. }), "{error:?}");
        scene.insert(doc! { "_id": 3, "size": 3 }).await;
        let held = locks.claim(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
        assert_eq!((held.id(), held.document().size), (&Bson::Int32(3), 3));
        // Each was claimed, and given back.
        eventually(SOON * 5, "they are free", async || {
            let free = doc! { "watchlock.holders": [] };
            scene.events.find(free).await.len() == 3
        })
        .await;
    }
}

/// After a second, then two, four and so on.
#[tokio::test(start_paused = true)]
async fn a_document_that_cannot_be_read_comes_back_less_and_less_often() {
    let scene = Scene::in_memory();
    let locks = scene.locks_of::<Job>(&scene.a);
    scene.insert(doc! { "_id": 1, "size": "large" }).await;
    scene.insert(doc! { "_id": 2, "size": 2 }).await;
    // So that a try finds nothing instead of failing.
    let _held = locks.acquire(2).await.unwrap();
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_secs(600) {
        let tried = locks.try_claim(doc! {}).max_attempts(1_000).await;
        assert!(tried.unwrap().is_none());
        tokio::time::sleep(SOON).await;
    }
    let found = scene.find(1).await;
    let attempts = found.get_document("watchlock").unwrap().get_i64("attempts").unwrap();
    assert_eq!(attempts, 10, "in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_document_that_cannot_be_read_as_one_type_is_claimed_as_another() {
    let scene = Scene::in_memory();
    let (jobs, (any, _)) = (scene.locks_of::<Job>(&scene.a), scene.locks());
    scene.insert(doc! { "_id": 1, "size": "large" }).await;
    let waiting = spawn(jobs.claim(doc! { "_id": 2 }));
    let error = jobs.try_claim(doc! {}).await.unwrap_err();
    assert!(matches!(error, AcquireError::Unreadable { .. }), "{error}");
    let again = jobs.try_claim(doc! {}).await.unwrap_err();
    assert!(matches!(again, AcquireError::Unclaimable { .. }), "{again}");
    let claimed = any.claim(doc! {}).timeout(SOON).await.unwrap();
    assert_eq!(claimed.document().get_str("size").unwrap(), "large");
    // It has the turn of its filter and type, and of no other.
    scene.insert(doc! { "_id": 2, "size": "small" }).await;
    let _held = any.claim(doc! { "_id": 2 }).timeout(SOON).await.unwrap();
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_that_claim_is_told_what_cannot_be_read() {
    for scene in Scene::everywhere("claim_unreadable_of_many").await {
        let locks = scene.locks_of::<Job>(&scene.a);
        let claims = (0..3).map(|_| Box::pin(async { locks.claim(doc! {}).await }));
        let claims = select_all(claims.collect::<Vec<_>>());
        let inserted = async {
            tokio::time::sleep(SOON).await;
            scene.insert(doc! { "_id": 1, "size": "large" }).await;
        };
        let ((first, _, others), ()) = within(PATIENCE, "the first", join(claims, inserted)).await;
        assert!(matches!(first, Err(AcquireError::Unreadable { .. })), "{first:?}");
        scene.insert(doc! { "_id": 2, "size": 2 }).await;
        let (second, ..) = within(PATIENCE, "the second", select_all(others)).await;
        assert_eq!(second.unwrap().document().size, 2);
    }
}

/// Some conditions are for finds alone; the end of a lease is seen with them as with others.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_holder_is_noticed_whatever_the_condition() {
    let lease = Duration::from_secs(20);
    for ground in [Ground::replica_set("claim_where").await] {
        let scene = Scene::on(ground.clone()).await;
        let events = ground.collection("events").await;
        let index = mongodb::IndexModel::builder().keys(doc! { "at": "2dsphere" }).build();
        events.create_index(index).await.unwrap();
        let point = doc! { "type": "Point", "coordinates": [1.0, 1.0] };
        let near = |operator: &str| doc! { "at": { operator: { "$geometry": &point, "$maxDistance": 10 } } };
        let conditions = [
            doc! { "$where": "this.n == 1" },
            near("$near"),
            near("$nearSphere"),
            doc! { "n": 1 },
        ];
        for condition in conditions {
            events.delete_many(doc! {}).await.unwrap();
            // As somebody left it who died long ago.
            let holder = dead_holder(1_500);
            let lock = lock_but("holders", vec![holder]);
            scene
                .insert(doc! { "_id": 1, "n": 1, "at": &point, "watchlock": lock })
                .await;
            let locks = scene.locks_of::<Document>(&scene.client_for(lease).await);
            let since = Instant::now();
            let claim = within(PATIENCE, "the claim", locks.claim(condition.clone()));
            let held = claim.await.unwrap();
            assert!(since.elapsed() < lease / 4, "{condition}: {:?}", since.elapsed());
            held.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_has_terms_of_its_own() {
    for scene in Scene::streaming("claim_terms").await {
        let (locks, other) = scene.locks();
        scene.insert(doc! { "_id": 1 }).await;
        // Longer than the server takes as the time for a command.
        let lease = Duration::from_secs(60 * 86_400);
        for waits in [true, false] {
            let claimed = match waits {
                true => locks.claim(doc! {}).lease(lease).await.map(Some),
                false => locks.try_claim(doc! {}).lease(lease).await,
            };
            let holder = locks.inspect(1).await.unwrap().unwrap().holders.remove(0);
            assert_eq!(holder.until.duration_since(holder.since).ok(), Some(lease));
            let claimed = claimed.unwrap().unwrap();
            claimed.update(doc! { "$inc": { "changes": 1 } }).await.unwrap();
            claimed.release().await.unwrap();
        }
        let fixed = locks.claim(doc! {}).fixed(Duration::from_secs(4));
        let fixed = within(PATIENCE, "a document", fixed).await.unwrap();
        let next = spawn(other.claim(doc! {}).lose_after(Duration::from_millis(100)));
        assert_eq!(within(PATIENCE, "the end", fixed.lost()).await, LostReason::Elapsed);
        let next = within(PATIENCE, "the next", next).await.unwrap().unwrap();
        assert_eq!(within(PATIENCE, "its end", next.lost()).await, LostReason::HeldTooLong);
    }
}

/// A lease can end after a try in vain and before the look at when leases end, which tells only of what is ahead then.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_between_a_try_and_the_scan_after_it_is_noticed() {
    let (cluster, _turn, ground) = faulty_ground("claim_between").await;
    let (scene, admin) = (Scene::on(ground.clone()).await, ground.driver().await);
    let lease = Duration::from_secs(60);
    let (locks, sent) = counting(&ground, &scene.client_for(lease).await).await;
    let index = mongodb::IndexModel::builder().keys(doc! { "at": "2dsphere" }).build();
    let events = ground.of(&admin, "events");
    events.create_index(index).await.unwrap();
    let point = doc! { "type": "Point", "coordinates": [1.0, 1.0] };
    // A condition for finds alone.
    let near = doc! { "at": { "$near": { "$geometry": &point, "$maxDistance": 10 } } };
    let claim = spawn(locks.claim(near));
    until_streaming(&ground, &admin, 1).await;
    sent.until_quiet().await;
    let fault =
        doc! { "blockConnection": true, "blockTimeMS": 1_800, "namespace": format!("{}.events", ground.database) };
    let slow = ground.fail(cluster, times(1), &["find"], fault).await;
    // Long enough for the event and the try to come before it on a busy machine: later, there is nothing to look for.
    let holder = dead_holder(1_400);
    // No event comes after this one.
    scene
        .insert(doc! { "_id": 1, "at": point, "watchlock": lock_but("holders", vec![holder]) })
        .await;
    let held = within(lease / 4, "the claim", claim).await.unwrap().unwrap();
    slow.wait_entered(1, PATIENCE).await.unwrap();
    slow.off().await.unwrap();
    held.release().await.unwrap();
}

/// What a client sent for its claims.
#[derive(Default)]
struct Sent {
    tries: AtomicUsize,
    failures: AtomicUsize,
    looks: AtomicUsize,
    /// Those for entries of claims that were not answered.
    searches: AtomicUsize,
    /// How long its tries took in all, in microseconds.
    tried_micros: AtomicU64,
    /// The limits of its tries at the server, in milliseconds.
    limits: Mutex<Vec<i64>>,
}

impl Sent {
    fn tries(&self) -> usize {
        self.tries.load(Ordering::Relaxed)
    }

    fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    fn searches(&self) -> usize {
        self.searches.load(Ordering::Relaxed)
    }

    /// Waits until nothing is tried for a while.
    async fn until_quiet(&self) {
        let mut last = self.tries();
        eventually(PATIENCE, "it waits", async || {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let before = std::mem::replace(&mut last, self.tries());
            last == before
        })
        .await;
    }
}

fn whole(number: &Bson) -> Option<i64> {
    number.as_i64().or_else(|| number.as_i32().map(i64::from))
}

/// A client's locks, with what is sent for them.
async fn counting(ground: &Ground, client: &LockClient) -> (DocumentLocks<Document>, Arc<Sent>) {
    let counts = Arc::new(Sent::default());
    let sent = counts.clone();
    let hear = move |event| match event {
        CommandEvent::Started(started) => {
            let shown = started.command.get_document("projection");
            let by_name = started
                .command
                .get_document("filter")
                .is_ok_and(|filter| filter.contains_key("_id"));
            let is_look = !by_name && shown.as_ref().is_ok_and(|shown| shown.contains_key("_watchlock_now"));
            sent.looks.fetch_add(usize::from(is_look), Ordering::Relaxed);
            let is_search = shown.is_ok_and(|shown| shown.contains_key("watchlock.holders.id"));
            sent.searches.fetch_add(usize::from(is_search), Ordering::Relaxed);
            let is_try = started.command_name == "findAndModify";
            let limit = started.command.get("maxTimeMS").filter(|_| is_try).and_then(whole);
            sent.limits.lock().unwrap().extend(limit);
            sent.tries.fetch_add(usize::from(is_try), Ordering::Relaxed);
        }
        CommandEvent::Succeeded(answered) if answered.command_name == "findAndModify" => {
            let micros = u64::try_from(answered.duration.as_micros()).unwrap();
            sent.tried_micros.fetch_add(micros, Ordering::Relaxed);
        }
        CommandEvent::Failed(failed) if failed.command_name == "findAndModify" => {
            sent.failures.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    };
    let driver = ground.overheard_driver(hear).await;
    let events = ground.of(&driver, "events");
    (client.documents(events), counts)
}

/// Two clients on a server with fail points, the locks of the one that they strike, and what is sent for these.
async fn struck(cluster: &Cluster, prefix: &str) -> (Ground, Scene, DocumentLocks<Document>, Arc<Sent>) {
    let ground = Ground::on(cluster, prefix).by_name();
    let scene = Scene::on(ground.clone()).await;
    let (locks, sent) = counting(&ground, &scene.b).await;
    (ground, scene, locks, sent)
}

/// A client that holds the only document, and the locks of another with what is sent for these.
async fn behind_a_holder(ground: &Ground) -> (Scene, DocumentLocks<Document>, Arc<Sent>, Held<DocumentTarget>) {
    let scene = Scene::on(ground.clone()).await;
    let (b, sent) = counting(ground, &scene.b).await;
    scene.insert(doc! { "_id": 1, "n": 1 }).await;
    let held = scene.locks().0.acquire(1).await.unwrap();
    (scene, b, sent, held)
}

type DocumentTarget = watchlock::documents::Document<Document>;

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_free_nothing_cost_few_tries() {
    let ground = Ground::replica_set("claim_busy").await;
    let (scene, b, sent, held) = behind_a_holder(&ground).await;
    let waiting = spawn(b.claim(doc! { "n": 1 }));
    // The holder has one too, once it has held for a while.
    until_streaming(&ground, &ground.driver().await, 2).await;
    // The stream is open, and nothing happens.
    sent.until_quiet().await;
    // A holder's own changes make nothing free. Only time passes, and a claim asks every few seconds: once in the
    // shortest of times, if that is when it is due.
    let (before, began) = (sent.tries(), Instant::now());
    for n in 0..100 {
        held.update(doc! { "$set": { "m": n } }).await.unwrap();
    }
    held.update(vec![doc! { "$set": { "m": "$n" } }]).await.unwrap();
    sent.until_quiet().await;
    let (tries, lasted) = (sent.tries() - before, began.elapsed());
    assert!(
        tries as u64 <= 1 + lasted.as_secs() / 3,
        "{tries} tries for a holder's own changes in {lasted:?}"
    );
    // Other insertions come one after the other without a pause. A try for each would take all of the time; by its
    // pauses a claim takes a fifth, however long the server needs for one.
    let (before, looked) = (sent.tries(), sent.looks());
    let (tried, began) = (sent.tried_micros.load(Ordering::Relaxed), Instant::now());
    let inserting = (0..4).map(async |part| {
        for number in 0..200 {
            let id = format!("{part}.{number}");
            scene.insert(doc! { "_id": id, "n": 2 }).await;
        }
    });
    futures::future::join_all(inserting).await;
    let lasted = began.elapsed();
    sent.until_quiet().await;
    let (tries, looks) = (sent.tries() - before, sent.looks() - looked);
    let tried = Duration::from_micros(sent.tried_micros.load(Ordering::Relaxed) - tried);
    assert!(
        tries > 0 && looks <= tries && tried < lasted / 3,
        "{tries} tries of {tried:?} and {looks} looks in {lasted:?}"
    );
    held.release().await.unwrap();
    let _claimed = within(SOON * 5, "the claim", waiting).await.unwrap().unwrap();
}

/// Whoever waits for the document itself has a stream, too, which the holder's changes are none of the business of.
#[tokio::test(flavor = "multi_thread")]
async fn a_holders_own_changes_ask_nothing_of_those_who_wait_for_its_document() {
    let ground = Ground::replica_set("waiter_busy").await;
    let (_scene, b, sent, held) = behind_a_holder(&ground).await;
    let waiting = spawn(b.acquire(1));
    // The holder has one too, once it has held for a while.
    until_streaming(&ground, &ground.driver().await, 2).await;
    sent.until_quiet().await;
    let (before, began) = (sent.tries(), Instant::now());
    for n in 0..100 {
        held.update(doc! { "$set": { "m": n } }).await.unwrap();
    }
    sent.until_quiet().await;
    let (asked, lasted) = (sent.tries() - before, began.elapsed());
    assert!(
        asked as u64 <= lasted.as_secs() + 1,
        "asked {asked} times in {lasted:?} beside a holder's own changes"
    );
    held.release().await.unwrap();
    let _acquired = within(SOON * 5, "the hand-over", waiting).await.unwrap().unwrap();
}

/// Nothing of it shows in the place of the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_with_another_value_on_the_way_to_its_lock_fails_a_claim() {
    for scene in Scene::everywhere("claim_on_the_way").await {
        scene.insert(doc! { "_id": 1, "n": 1, "work": 5 }).await;
        let locks = scene.locks_of::<Document>(&scene.a).field("work.lock");
        let failed = within(PATIENCE, "the end", spawn(locks.claim(doc! { "n": 1 }))).await;
        let error = failed.unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Unclaimable { .. }), "{error:?}");
    }
}

/// Otherwise claims whose callers wait for less long than the server takes would never succeed.
#[tokio::test(flavor = "multi_thread")]
async fn the_claim_after_one_that_the_server_gave_up_begins_with_a_longer_limit() {
    let (cluster, _turn, ground) = faulty_ground("claim_limits").await;
    let (locks, sent) = counting(&ground, &ground.locks().await).await;
    let fault = doc! { "errorCode": 50, "blockConnection": true, "blockTimeMS": 1_000 };
    let failing = ground.fail(cluster, "alwaysOn", &["findAndModify"], fault).await;
    let mut limits = Vec::new();
    for _ in 0..2 {
        let begun = sent.limits.lock().unwrap().len();
        let claiming = spawn(locks.try_claim(doc! { "n": 1 }));
        eventually(PATIENCE, "two tries", async || {
            sent.limits.lock().unwrap().len() >= begun + 2
        })
        .await;
        claiming.abort();
        limits.push(sent.limits.lock().unwrap()[begun..begun + 2].to_vec());
    }
    // Each gets three times what the last one took.
    assert!(limits[0][1] >= 3_000 && limits[1][0] >= 3_000, "{limits:?}");
    failing.off().await.unwrap();
    assert!(locks.try_claim(doc! { "n": 1 }).await.unwrap().is_none());
}

/// Others change, again and again, what the condition is about. Whatever is claimed met the condition as it was
/// claimed, and is held by one only.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_claimed_meets_the_condition_whatever_others_write() {
    const DOCUMENTS: u64 = 12;
    const CLAIMS: usize = 100;
    for scene in Scene::everywhere("claim_flip").await {
        for id in 0..DOCUMENTS {
            let id = i32::try_from(id).unwrap();
            scene.insert(doc! { "_id": id, "ready": false }).await;
        }
        let done = AtomicBool::new(false);
        let writing = async {
            let mut random = crate::setup::Dice::new(7);
            while !done.load(Ordering::Relaxed) {
                let id = i32::try_from(random.below(DOCUMENTS)).unwrap();
                let set = doc! { "$set": { "ready": random.below(2) == 0 } };
                scene.update(id, set).await;
                tokio::task::yield_now().await;
            }
        };
        let (a, b) = scene.locks();
        let count = AtomicUsize::new(0);
        let held = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let claiming = async |locks: &DocumentLocks<Document>| {
            while count.fetch_add(1, Ordering::Relaxed) < CLAIMS {
                let handle = locks.claim(doc! { "ready": true }).await.unwrap();
                assert!(handle.document().get_bool("ready").unwrap(), "{}", handle.document());
                let id = handle.id().as_i32().unwrap();
                assert!(held.lock().unwrap().insert(id), "{id} is held by two");
                tokio::task::yield_now().await;
                assert!(held.lock().unwrap().remove(&id));
                handle.release().await.unwrap();
            }
        };
        let claiming = async {
            futures::join!(claiming(&a), claiming(&a), claiming(&b), claiming(&b));
            done.store(true, Ordering::Relaxed);
        };
        within(3 * PATIENCE, "all claims", async { futures::join!(writing, claiming) }).await;
    }
}

/// The ids of the documents whose attempts are used up, as the guide finds them.
async fn dead(scene: &Scene, most: i64) -> Vec<i32> {
    let dead = doc! { "n": 1, "watchlock.attempts": { "$gte": most } };
    let found = scene.events.find(dead).await;
    found.iter().map(|document| document.get_i32("_id").unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_claimed_as_often_as_its_claims_allow_and_no_more() {
    for scene in Scene::everywhere("claim_attempts").await {
        let (a, b) = scene.locks();
        let limited = |locks: &DocumentLocks<Document>| locks.try_claim(doc! { "n": 1 }).max_attempts(2);
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let first = limited(&a).await.unwrap().unwrap();
        assert_eq!(first.attempt(), Some(1));
        // The holder's updates, renewals and release leave the count alone; an operator's break does too.
        first.update(doc! { "$set": { "tried": true } }).await.unwrap();
        first.renew().await.unwrap();
        first.release().await.unwrap();
        let second = limited(&b).await.unwrap().unwrap();
        assert_eq!(second.attempt(), Some(2));
        a.break_lock(1).await.unwrap();
        within(PATIENCE, "the loss", second.lost()).await;
        assert!(limited(&a).await.unwrap().is_none());
        assert_eq!(dead(&scene, 2).await, [1]);

        // Another document is claimed all the same, and others than the limited claims do not count.
        let third = limited(&a).sort(doc! { "_id": 1 });
        scene.insert(doc! { "_id": 2, "n": 1 }).await;
        let third = third.await.unwrap().unwrap();
        assert_eq!((third.id(), third.attempt()), (&Bson::Int32(2), Some(1)));
        let uncounted = a.try_claim(doc! { "n": 1 }).await.unwrap().unwrap();
        assert_eq!((uncounted.id(), uncounted.attempt()), (&Bson::Int32(1), None));
        uncounted.release().await.unwrap();
        a.acquire(1).await.unwrap().release().await.unwrap();
        let found = scene.find(1).await;
        let attempts = found.get_document("watchlock").unwrap().get_i64("attempts");
        assert_eq!(attempts.ok(), Some(2));
        let more = a.try_claim(doc! { "n": 1 }).max_attempts(3).await.unwrap().unwrap();
        assert_eq!((more.id(), more.attempt()), (&Bson::Int32(1), Some(3)));
        more.release().await.unwrap();

        // A claim that waits while all attempts are used up gets the document as soon as its count is cleared.
        let only = doc! { "_id": 1, "n": 1 };
        let mut waiting = Box::pin(a.claim(only.clone()).max_attempts(2));
        assert!(tokio::time::timeout(SOON / 4, &mut waiting).await.is_err());
        assert!(b.clear_attempts(1).await.unwrap());
        assert!(!b.clear_attempts(9).await.unwrap());
        let again = within(PATIENCE, "the claim", waiting).await.unwrap();
        assert_eq!(again.attempt(), Some(1));
        // Also under a holder, who keeps the lock.
        assert!(b.clear_attempts(1).await.unwrap());
        assert!(!b.clear_attempts(1).await.unwrap());
        again.renew().await.unwrap();
        assert_eq!(dead(&scene, 1).await, [2]);
        again.release().await.unwrap();
        third.release().await.unwrap();

        // Nothing is sent.
        for refused in [
            a.claim(only.clone()).max_attempts(0).await.map(Some),
            a.try_claim(only).max_attempts(0).await,
        ] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, AcquireError::Invalid(_)), "{refused:?}");
            assert!(refused.to_string().contains("max_attempts is 0"), "{refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_many_at_once_are_each_counted() {
    const MOST: u32 = 5;
    for scene in Scene::streaming("claim_attempts").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let attempts = std::sync::Mutex::new(Vec::new());
        let worker = async |locks: &DocumentLocks<Document>| {
            loop {
                // One that finds it held asks again; one that finds it used up has done.
                match locks.try_claim(doc! { "n": 1 }).max_attempts(MOST).await.unwrap() {
                    Some(claimed) => {
                        attempts.lock().unwrap().push(claimed.attempt().unwrap());
                        claimed.release().await.unwrap();
                    }
                    None if dead(&scene, MOST.into()).await.is_empty() => tokio::task::yield_now().await,
                    None => break,
                }
            }
        };
        let working = async { futures::join!(worker(&a), worker(&a), worker(&b), worker(&b)) };
        within(PATIENCE, "the attempts", working).await;
        assert_eq!(attempts.into_inner().unwrap(), (1..=MOST).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_is_none_keeps_limited_claims_away_and_fails_nothing() {
    for scene in Scene::streaming("claim_attempts").await {
        let (a, _) = scene.locks();
        let spoiled = [Bson::from("2"), Bson::from(-1), Bson::from(1.5), Bson::from(vec![1])];
        for (id, attempts) in (0..).zip(spoiled) {
            let lock = lock_but("attempts", attempts);
            scene.insert(doc! { "_id": id, "n": 1, "watchlock": lock }).await;
        }
        assert!(a.try_claim(doc! { "n": 1 }).max_attempts(9).await.unwrap().is_none());
        assert!(a.try_claim(doc! { "n": 1 }).await.unwrap().is_some());
        // Of any type of number, and missing.
        for (id, attempts) in (10..).zip([Bson::Null, Bson::from(0), Bson::from(0_i64), Bson::from(0.0)]) {
            let lock = lock_but("attempts", attempts);
            scene.insert(doc! { "_id": id, "n": 2, "watchlock": lock }).await;
            let claimed = a
                .try_claim(doc! { "_id": id, "n": 2 })
                .max_attempts(1)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(claimed.attempt(), Some(1));
            assert!(
                a.try_claim(doc! { "_id": id, "n": 2 })
                    .max_attempts(1)
                    .await
                    .unwrap()
                    .is_none()
            );
        }
    }
}

/// As a try for a lock does: a connection that broke and a fail-over are no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_goes_on_after_a_command_that_failed() {
    let (cluster, _turn) = faulty().await;
    let (ground, scene, locks, _) = struck(cluster, "claim_try_again").await;
    let faults = [
        doc! { "closeConnection": true },
        doc! { "errorCode": 10_107 },
        doc! { "errorCode": 112 },
        doc! { "writeConcernError": { "code": 91, "errmsg": "soon" } },
    ];
    for (id, fault) in (0..).zip(faults) {
        // An answer that was lost leaves its entry in one of them for a moment.
        for number in 0..2 {
            scene.insert(doc! { "_id": 2 * id + number, "n": id }).await;
        }
        let failing = ground.fail(cluster, times(1), &["findAndModify"], fault.clone()).await;
        let claimed = locks.try_claim(doc! { "n": id }).await;
        assert!(matches!(claimed, Ok(Some(_))), "{fault}: {claimed:?}");
        failing.off().await.unwrap();
        // Where nothing is free, that is the answer.
        let failing = ground.fail(cluster, times(1), &["findAndModify"], fault.clone()).await;
        let none = locks.try_claim(doc! { "n": -1 }).await;
        assert!(matches!(none, Ok(None)), "{fault}: {none:?}");
        failing.off().await.unwrap();
    }
}

/// What the server did not do is done anew, and has used no attempt. What it did without its majority has used the attempt
/// up, and a try that says that there is none holds none.
#[tokio::test(flavor = "multi_thread")]
async fn a_counted_try_whose_answer_is_lost_has_used_one_attempt() {
    let (cluster, _turn, ground) = faulty_ground("claim_counted").await;
    let scene = Scene::on(ground.clone()).await;
    let (locks, _) = scene.locks();
    let write_concern = |code| doc! { "writeConcernError": { "code": code, "errmsg": "soon" } };
    let faults = [
        (doc! { "closeConnection": true }, 1_i32),
        (doc! { "errorCode": 10_107 }, 1),
        (write_concern(6), 2),
        (write_concern(64), 2),
    ];
    for (id, (fault, attempt)) in (0..).zip(faults) {
        for most in 1..=2_i32 {
            let wanted = doc! { "_id": 10 * id + most };
            scene.insert(wanted.clone()).await;
            let failing = ground.fail(cluster, times(1), &["findAndModify"], fault.clone()).await;
            let claimed = locks.try_claim(wanted.clone()).max_attempts(most.unsigned_abs()).await;
            let found = scene.events.find(wanted).await.remove(0);
            failing.off().await.unwrap();
            let lock = found.get_document("watchlock").unwrap();
            let expected = (attempt <= most).then_some(attempt.unsigned_abs());
            let claimed = claimed.map(|claimed| claimed.map(|held| held.attempt().unwrap()));
            assert_is!(claimed, Ok(attempt) if *attempt == expected, "{fault}, {most}");
            assert_eq!(
                lock.get_i64("attempts").ok(),
                Some(attempt.min(most).into()),
                "{fault}, {most}"
            );
            assert_eq!(lock.get_array("holders").unwrap().is_empty(), expected.is_none());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_tries_in_doubt_get_what_there_is_and_search_together() {
    let (cluster, _turn) = faulty().await;
    let (ground, scene, locks, sent) = struck(cluster, "claim_doubts").await;
    let all = doc! { "n": 1 };
    assert!(locks.try_claim(all.clone()).await.unwrap().is_none());
    scene.insert(doc! { "_id": 1, "n": 1 }).await;
    let soon = doc! { "writeConcernError": { "code": 91, "errmsg": "soon" } };
    let before = sent.searches();
    let failing = ground.fail(cluster, times(50), &["findAndModify"], soon).await;
    let tries = (0..50).map(|_| locks.try_claim(all.clone()));
    let tried = within(PATIENCE, "the tries", futures::future::join_all(tries)).await;
    failing.off().await.unwrap();
    let claimed = tried.into_iter().filter_map(|tried| tried.unwrap()).count();
    assert_eq!(claimed, 1);
    let searches = sent.searches() - before;
    assert!((1..25).contains(&searches), "{searches}");
}

/// The server answers for the locks, but not what is read after that.
#[tokio::test(flavor = "multi_thread")]
async fn tries_take_no_longer_for_readings_that_are_not_answered() {
    let (cluster, _turn, ground) = faulty_ground("tries_read").await;
    let scene = Scene::on(ground.clone()).await;
    scene.insert(doc! { "_id": 1, "n": 1 }).await;
    let (locks, _) = counting(&ground, &scene.b).await;
    let failing = ground.fail(cluster, "alwaysOn", &["find"], blocks(20_000)).await;
    let begun = Instant::now();
    let (claimed, acquired) = tokio::join!(locks.try_claim(doc! { "n": 2 }), locks.try_acquire(1));
    let took = begun.elapsed().as_secs();
    failing.off().await.unwrap();
    assert!(matches!(claimed, Ok(None)), "{claimed:?}");
    assert!(matches!(acquired, Err(AcquireError::Unanswered { .. })), "{acquired:?}");
    assert!((10..12).contains(&took), "{took}");
}

/// An entry of a claim whose answer was lost is found by the claim's filter. Its own attempt may have been the last,
/// and must not hide it.
#[tokio::test(flavor = "multi_thread")]
async fn the_entry_of_a_last_attempt_whose_answer_was_lost_is_taken_out() {
    let (cluster, _turn) = faulty().await;
    let ground = Ground::on(cluster, "claim_attempts");
    let scene = Scene::on(ground.clone()).await;
    let proxy = cluster.proxy(0).unwrap();
    let behind = ground.through(proxy.uri());
    let collection = ground.of(&behind.driver().await, "events");
    let locks = behind.locks().await.documents::<Document>(collection);
    assert!(
        locks
            .try_claim(doc! { "n": 1 })
            .max_attempts(1)
            .await
            .unwrap()
            .is_none()
    );
    scene.insert(doc! { "_id": 1, "n": 1 }).await;
    let held = doc! { "n": 1, "watchlock.holders.0": { "$exists": true } };
    proxy.black_hole_replies();
    let claiming = locks.try_claim(doc! { "n": 1 }).max_attempts(1);
    let claiming = spawn(claiming);
    eventually(PATIENCE, "it is written", async || {
        !scene.events.find(held.clone()).await.is_empty()
    })
    .await;
    // The answer is lost with its connection.
    proxy.cut();
    let lost = within(PATIENCE, "the end of the claim", claiming)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(lost, AcquireError::Server(_)), "{lost:?}");
    assert_eq!(scene.events.find(held.clone()).await.len(), 1);
    proxy.heal();
    eventually(PATIENCE, "the entry is taken out", async || {
        scene.events.find(held.clone()).await.is_empty()
    })
    .await;
    assert_eq!(dead(&scene, 1).await, [1]);
}

/// A task that waits behind another has no answer of its own.
#[tokio::test(start_paused = true)]
async fn a_claim_behind_one_without_an_answer_says_that_nobody_answered() {
    for (before, after) in [(true, true), (false, false), (true, false), (false, true)] {
        let (memory, collection) = (InMemory::new(), MemoryCollection::new());
        let events = memory.client().documents_in_memory::<Document>(&collection);
        memory.set_outage(before);
        let first = spawn(events.claim(doc! {}));
        tokio::time::sleep(SOON).await;
        let behind = spawn(events.claim(doc! {}).timeout(PATIENCE));
        tokio::time::sleep(SOON).await;
        // What the other hears from then on counts, and not what it had heard when this one came.
        memory.set_outage(after);
        let told = behind.await.unwrap().unwrap_err();
        let is_unanswered = matches!(told, AcquireError::Unanswered { .. });
        assert_eq!(is_unanswered, after, "{before}, {after}: {told:?}");
        first.abort();
    }
}

/// Many claims at once of a filter without an index, by which the server takes a while to find a document: there is one
/// for each, from the beginning or a moment later. Returns the errors of those that got none.
async fn slow_claims(name: &str, timeout: Duration, from_the_beginning: bool) -> Vec<String> {
    let scene = Scene::on(Ground::replica_set(name).await).await;
    let (locks, _) = scene.locks();
    let insert = || futures::future::join_all((0..40).map(|id| scene.insert(doc! { "_id": id, "n": 1 })));
    if from_the_beginning {
        insert().await;
    }
    let slow = doc! { "n": 1, "$where": "sleep(100) || true" };
    // The first takes longer than others, as the server prepares for it.
    drop(locks.try_claim(slow.clone()).await.unwrap());
    let claims = (0..40).map(|_| spawn(locks.claim(slow.clone()).timeout(timeout)));
    let claims: Vec<_> = claims.collect();
    if !from_the_beginning {
        tokio::time::sleep(SOON).await;
        insert().await;
    }
    let ended = futures::future::join_all(claims).await;
    let failed = ended.into_iter().filter_map(|ended| ended.unwrap().err());
    failed.map(|error| error.to_string()).collect()
}

/// One after the other finds a document, so there are others.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_turn_did_not_come_is_not_told_that_nothing_was_free() {
    // On a busy machine, none may have looked since they were inserted: then they get more time.
    for seconds in 2..10 {
        let failed = slow_claims("claim_turns", Duration::from_secs(seconds), false).await;
        let is_untrue = |told: &String| told.contains("none that matches was free");
        if failed.len() < 40 {
            assert!(!failed.is_empty() && !failed.iter().any(is_untrue), "{failed:?}");
            return;
        }
    }
    panic!("no claim has found any");
}

/// Few are sent at once, and those are answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_not_sent_is_not_told_that_the_server_is_silent() {
    let failed = slow_claims("claims_unsent", Duration::from_secs(1), true).await;
    let silent = failed.iter().filter(|told| told.contains("did not answer for"));
    assert!(failed.len() > 10 && silent.count() <= 3, "{failed:?}");
}

/// As in a `select!` loop whose other branch takes long.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_polled_keeps_no_other_waiting() {
    for is_waiting in [true, false] {
        let collection = MemoryCollection::new();
        let events = InMemory::new().client().documents_in_memory::<Document>(&collection);
        let mut left = pin!(events.claim_many(doc! {}, 1));
        let mut left_in_a_round = pin!(events.claim_many(doc! {}, 2));
        if is_waiting {
            tokio::time::timeout(SOON, &mut left).await.unwrap_err();
        } else {
            assert!(futures::poll!(&mut left_in_a_round).is_pending());
        }
        for id in 0..5 {
            collection.insert_one(doc! { "_id": id }).await.unwrap();
        }
        let next = events.claim(doc! {}).timeout(PATIENCE).await.unwrap();
        let tried = tokio::time::timeout(PATIENCE, events.try_claim_many(doc! {}, 2));
        assert_eq!(tried.await.unwrap().unwrap().unwrap().len(), 2, "beside {next:?}");
    }
}

/// As where going through all documents takes longer than the server may, or a transaction has written one of them: that
/// ends with an event.
#[tokio::test(flavor = "multi_thread")]
async fn tries_that_the_server_gives_up_earn_the_rest_of_those_that_it_answers_and_an_event_ends_it() {
    const TAKES: Duration = Duration::from_millis(500);
    let (cluster, _turn) = faulty().await;
    let (ground, scene, locks, sent) = struck(cluster, "claim_tries_fail").await;
    let fault =
        doc! { "errorCode": 50, "blockConnection": true, "blockTimeMS": i64::try_from(TAKES.as_millis()).unwrap() };
    let failing = ground.fail(cluster, "alwaysOn", &["findAndModify"], fault).await;
    let began = Instant::now();
    let waiting = spawn(locks.claim(doc! { "n": 1 }));
    eventually(PATIENCE, "four tries have failed", async || sent.failures() >= 4).await;
    // The first finds out whether it has to wait at all. The second and the third earn twice and four times as long,
    // but the stream opens meanwhile, and after an event a claim rests as long as its try took.
    let lasted = began.elapsed();
    assert!(lasted >= TAKES * (4 + 1 + 4), "four tries in {lasted:?}");
    // The fourth earns more than all before.
    failing.off().await.unwrap();
    let came = Instant::now();
    scene.insert(doc! { "_id": 1, "n": 1 }).await;
    let claimed = within(PATIENCE, "the claim", waiting).await.unwrap().unwrap();
    let took = came.elapsed();
    assert!(took < 3 * TAKES, "{took:?} after the event");
    claimed.release().await.unwrap();
}

/// As of a service's other writes to its documents: the driver sends each again, and it is made once.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_held_document_go_through_a_broken_connection_and_a_fail_over() {
    let (cluster, _turn, ground) = faulty_ground("claim_changes").await;
    let scene = Scene::on(ground.clone()).await;
    let (locks, _) = scene.locks();
    let faults = [
        doc! { "closeConnection": true },
        doc! { "errorCode": 10_107 },
        // After the write. By this code the driver doesn't think that the server steps down: then it would wait for it.
        doc! { "writeConcernError": { "code": 6, "errmsg": "unconfirmed" } },
    ];
    for (id, fault) in (0..).zip(faults) {
        scene.insert(doc! { "_id": id, "n": 0 }).await;
        let held = locks.claim(doc! { "_id": id }).await.unwrap();
        let fail = async || ground.fail(cluster, times(1), &["findAndModify"], fault.clone()).await;
        let failing = fail().await;
        let updated = held.update(doc! { "$inc": { "n": 1 } }).await;
        failing.wait_entered(1, PATIENCE).await.unwrap();
        let updated = updated.unwrap_or_else(|error| panic!("{fault}: {error:?}"));
        assert_eq!(updated.get_i32("n").unwrap(), 1, "{fault}");
        scene
            .insert(doc! { "_id": 10 + id, "lines": [{ "k": 1, "n": 0 }] })
            .await;
        let line: ElementLocks<Document> = locks.element("lines", doc! { "k": 1 });
        let line = line.acquire(10 + id).await.unwrap();
        let failing = fail().await;
        let updated = line.update(doc! { "$inc": { "n": 1 } }).await;
        failing.wait_entered(1, PATIENCE).await.unwrap();
        let updated = updated.unwrap_or_else(|error| panic!("{fault}: {error:?}"));
        assert_eq!(updated.get_i32("n").unwrap(), 1, "{fault}");
        line.release().await.unwrap();
        let failing = fail().await;
        let deleted = held.delete().await;
        failing.wait_entered(1, PATIENCE).await.unwrap();
        deleted.unwrap_or_else(|error| panic!("{fault}: {error:?}"));
    }
}
