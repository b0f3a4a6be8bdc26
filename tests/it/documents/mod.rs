//! Locking the documents of the user's own collection, on a replica set, on a standalone, and in memory.

mod ids;

use futures::TryStreamExt;
use mongodb::bson::{DateTime, oid::ObjectId};
use serde::Deserialize;
use watchlock::{LockClientBuilder, documents, errors::HoldError};

use crate::setup::*;

/// Two clients, and the collection as its owner sees it.
pub(crate) struct Scene {
    pub(crate) a: LockClient,
    pub(crate) b: LockClient,
    pub(crate) place: Place,
    pub(crate) events: Events,
}

pub(crate) enum Place {
    Server(Ground),
    Memory(InMemory),
}

/// What other programs do to the collection, which do not heed the locks.
pub(crate) enum Events {
    Server(Collection<Document>),
    Memory(MemoryCollection),
}

impl Scene {
    pub(crate) async fn on(ground: Ground) -> Self {
        Self {
            a: ground.locks().await,
            b: ground.locks().await,
            events: Events::Server(ground.collection("events").await),
            place: Place::Server(ground),
        }
    }

    pub(crate) fn in_memory() -> Self {
        let memory = InMemory::new();
        Self {
            a: memory.client(),
            b: memory.client(),
            events: Events::Memory(MemoryCollection::new()),
            place: Place::Memory(memory),
        }
    }

    /// On a replica set, on a standalone, and in memory.
    pub(crate) async fn everywhere(name: &str) -> [Self; 3] {
        [
            Self::on(Ground::replica_set(name).await).await,
            Self::on(Ground::standalone(name).await).await,
            Self::in_memory(),
        ]
    }

    /// On a replica set and in memory.
    pub(crate) async fn streaming(name: &str) -> [Self; 2] {
        [Self::on(Ground::replica_set(name).await).await, Self::in_memory()]
    }

    pub(crate) fn locks(&self) -> (DocumentLocks<Document>, DocumentLocks<Document>) {
        (self.locks_of(&self.a), self.locks_of(&self.b))
    }

    pub(crate) fn locks_of<T: Send + Sync>(&self, client: &LockClient) -> DocumentLocks<T> {
        match &self.events {
            Events::Server(events) => client.documents(events.clone_with_type()),
            Events::Memory(events) => client.documents_in_memory(&events.clone_with_type()),
        }
    }

    pub(crate) async fn builder(&self) -> LockClientBuilder {
        match &self.place {
            Place::Server(ground) => ground.builder().await,
            Place::Memory(memory) => memory.builder(),
        }
    }

    /// A client with another lease.
    pub(crate) async fn client_for(&self, lease: Duration) -> LockClient {
        self.builder().await.lease(lease).build().await.unwrap()
    }

    pub(crate) async fn insert(&self, document: Document) {
        self.events.insert(document).await;
    }

    /// As another program changes the document.
    pub(crate) async fn update(&self, id: impl Into<Bson>, update: Document) {
        self.events.update(doc! { "_id": id.into() }, update).await;
    }

    pub(crate) async fn find(&self, id: impl Into<Bson>) -> Document {
        let mut found = self.events.find(doc! { "_id": id.into() }).await;
        assert_eq!(found.len(), 1);
        found.remove(0)
    }
}

impl Events {
    pub(crate) async fn insert(&self, document: Document) {
        match self {
            Self::Server(events) => drop(events.insert_one(document).await.unwrap()),
            Self::Memory(events) => drop(events.insert_one(document).await.unwrap()),
        }
    }

    pub(crate) async fn update(&self, filter: Document, update: Document) {
        match self {
            Self::Server(events) => drop(events.update_many(filter, update).await.unwrap()),
            Self::Memory(events) => drop(events.update_many(filter, update).await.unwrap()),
        }
    }

    pub(crate) async fn replace(&self, id: i32, replacement: Document) {
        match self {
            Self::Server(events) => drop(events.replace_one(doc! { "_id": id }, replacement).await.unwrap()),
            Self::Memory(events) => drop(events.replace_one(doc! { "_id": id }, replacement).await.unwrap()),
        }
    }

    pub(crate) async fn delete(&self, filter: Document) {
        match self {
            Self::Server(events) => drop(events.delete_many(filter).await.unwrap()),
            Self::Memory(events) => drop(events.delete_many(filter).await.unwrap()),
        }
    }

    pub(crate) async fn find(&self, filter: Document) -> Vec<Document> {
        match self {
            Self::Server(events) => events.find(filter).await.unwrap().try_collect().await.unwrap(),
            Self::Memory(events) => events.find(filter).await.unwrap(),
        }
    }
}

/// A claim on its way.
pub(crate) type Claiming = tokio::task::JoinHandle<Result<Held<documents::Document<Document>>, AcquireError>>;

/// How many wait in the document's queue.
pub(crate) async fn waiting(locks: &DocumentLocks<Document>, id: impl Into<Bson>) -> usize {
    locks.inspect(id).await.unwrap().map_or(0, |lock| lock.waiters.len())
}

/// Spawns an acquire, and waits until it is the only one in the document's queue.
pub(crate) async fn waits<T: Send + 'static>(
    locks: &DocumentLocks<Document>,
    id: impl Into<Bson>,
    acquire: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let (waiter, id) = (spawn(acquire), id.into());
    eventually(PATIENCE, "it waits", async || waiting(locks, id.clone()).await == 1).await;
    waiter
}

/// A holder that died, whose lease ends in so many milliseconds.
pub(crate) fn dead_holder(left: i64) -> Document {
    let now = DateTime::now();
    let until = DateTime::from_millis(now.timestamp_millis() + left);
    doc! {
        "id": "dead-1", "permits": 1_i64, "lease": 20_000_i64, "claim": 500_i64, "token": 7_i64,
        "since": now, "until": until, "owner": { "host": "h", "pid": 1_i64 },
    }
}

fn lock_of(document: &Document) -> &Document {
    document.get_document("watchlock").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_locked_in_place_and_handed_over_in_order() {
    for scene in Scene::everywhere("doc_order").await {
        let (a, b) = scene.locks();
        let before = doc! { "_id": 7, "text": "$$NOW", "nested": { "holders": [1, "x"] }, "wake": 3 };
        scene.insert(before.clone()).await;
        let first = a.acquire(7).reason("first").await.unwrap();
        assert_eq!((first.document(), first.id()), (&before, &Bson::Int32(7)));
        assert!(
            b.try_acquire(7_i64).await.unwrap().is_none(),
            "numbers are compared as the server does"
        );
        let second = waits(&a, 7, b.acquire(7)).await;
        let third = spawn(a.acquire(7));
        let lock = a.inspect(7).await.unwrap().unwrap();
        assert_eq!(lock.holders[0].owner.reason.as_deref(), Some("first"));
        let mut last = first.token();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        for next in [second, third] {
            let next = within(PATIENCE, "the grant", next).await.unwrap().unwrap();
            assert!(next.token() > last);
            last = next.token();
            assert_eq!(next.document(), &before);
            next.release().await.unwrap();
        }
        let mut after = scene.find(7).await;
        assert!(lock_of(&after).get_array("holders").unwrap().is_empty());
        after.remove("watchlock");
        assert_eq!(after, before, "no field of the user's is touched");
    }
}

/// The server tells of a write to a large document by its changes, under keys with dots, and of one to a small document
/// by the whole of it: either way the news comes at once, and not with the next routine look, after 15 s.
#[tokio::test(flavor = "multi_thread")]
async fn news_come_by_deltas_and_by_whole_documents() {
    let ground = Ground::replica_set("doc_delta").await;
    let scene = Scene::on(ground.clone()).await;
    let soon = SOON * 5;
    let mut id = 0;
    for padding in [0, 100_000] {
        for path in ["lock", "state.lock", "state.of.it.lock"] {
            id += 1;
            let document =
                doc! { "_id": id, "free": false, "state": { "padding": "x".repeat(padding), "list": [1, 2] } };
            scene.insert(document).await;
            let (a, sent) = noting(&ground, &scene.a).await;
            let a = a.field(path);
            let b = scene.locks_of::<Document>(&scene.b).field(path);
            let held = a.acquire(id).await.unwrap();
            let waiter = waits(&a, id, b.acquire(id)).await;
            held.release().await.unwrap();
            let held = within(soon, "the hand-over", waiter).await.unwrap().unwrap();
            let before = sent.count("findAndModify");
            let waiter = spawn(a.claim(doc! { "_id": id }));
            // Who has found nothing twice waits: the second time it was listening already.
            eventually(PATIENCE, "it waits", async || sent.count("findAndModify") >= before + 2).await;
            held.release().await.unwrap();
            let held = within(soon, "the claim", waiter).await.unwrap().unwrap();
            b.break_lock(id).await.unwrap();
            assert_eq!(within(soon, "the break", held.lost()).await, LostReason::Broken);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_the_first_that_is_free() {
    for scene in Scene::everywhere("claim").await {
        let (a, b) = scene.locks();
        for (id, age) in [(1, 30), (2, 50), (3, 40), (4, 99)] {
            scene.insert(doc! { "_id": id, "age": age, "done": id == 4 }).await;
        }
        let claim = |locks: &DocumentLocks<Document>| locks.try_claim(doc! { "done": false }).sort(doc! { "age": -1 });
        let first = claim(&a).reason("mine").await.unwrap().unwrap();
        assert_eq!(first.document(), &doc! { "_id": 2, "age": 50, "done": false });
        assert!(b.try_acquire(2).await.unwrap().is_none());
        let second = claim(&b).await.unwrap().unwrap();
        assert_eq!(second.id(), &Bson::Int32(3));
        // Somebody holds 1 and somebody waits for it; when the holder goes it is not up for claims.
        let held = a.acquire(1).await.unwrap();
        let waiter = waits(&a, 1, b.acquire(1)).await;
        assert!(claim(&a).await.unwrap().is_none());
        held.release().await.unwrap();
        let waiter = within(PATIENCE, "the grant", waiter).await.unwrap().unwrap();
        assert!(claim(&a).await.unwrap().is_none());
        waiter.release().await.unwrap();
        let third = claim(&a).await.unwrap().unwrap();
        assert_eq!(third.id(), &Bson::Int32(1));
        assert!(third.token() > first.token());
    }
}

/// A client's locks, with what is sent for them.
async fn noting(ground: &Ground, client: &LockClient) -> (DocumentLocks<Document>, Sent) {
    let (driver, sent) = ground.noting_driver().await;
    (client.documents(ground.of(&driver, "events")), sent)
}

/// Has a claim of an open document wait, and be woken, for each of what makes one claimable.
async fn claims_are_woken(
    scene: &Scene,
    claim: impl AsyncFn() -> Claiming,
    woken: impl AsyncFn(Claiming, &str) -> Held<documents::Document<Document>>,
) {
    let a = scene.locks_of::<Document>(&scene.a);
    let set_open = |open: bool| doc! { "$set": { "open": open } };
    let claiming = claim().await;
    scene.insert(doc! { "_id": 1, "open": true }).await;
    let held = woken(claiming, "an insertion").await;
    let claiming = claim().await;
    held.release().await.unwrap();
    let broken = woken(claiming, "a release").await;
    let claiming = claim().await;
    a.break_lock(1).await.unwrap();
    let held = woken(claiming, "a break").await;
    assert_eq!(held.id(), &Bson::Int32(1));
    assert_eq!(within(SOON * 3, "the loss", broken.lost()).await, LostReason::Broken);
    scene.insert(doc! { "_id": 2, "open": false }).await;
    let claiming = claim().await;
    scene.update(2, set_open(true)).await;
    let other = woken(claiming, "a change").await;
    assert_eq!(other.id(), &Bson::Int32(2));

    // By a holder, too.
    other.update(set_open(false)).await.unwrap();
    other.release().await.unwrap();
    let claiming = claim().await;
    held.update(set_open(false)).await.unwrap();
    let another = a.acquire(2).await.unwrap();
    another.update(set_open(true)).await.unwrap();
    another.release().await.unwrap();
    let _claimed = woken(claiming, "a change by a holder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_until_a_document_is_free() {
    for ground in Ground::both("claim_waits").await {
        let scene = Scene::on(ground.clone()).await;
        let (b, sent) = noting(&ground, &scene.b).await;
        let open = || doc! { "open": true };
        let timeout = Duration::from_millis(50);
        let error = b.claim(open()).timeout(timeout).await.unwrap_err();
        let (AcquireError::Timeout { waited, .. } | AcquireError::Unanswered { waited, .. }) = error else {
            panic!("{error}");
        };
        assert_eq!(waited, timeout);
        // Who has found nothing twice waits: the second time it was listening already.
        #[expect(clippy::async_yields_async, reason = "the claim goes on waiting")]
        let claim = async || {
            let before = sent.count("findAndModify");
            let claiming = spawn(b.claim(open()));
            let asks = async || sent.count("findAndModify") >= before + 2;
            eventually(PATIENCE, "it waits", asks).await;
            claiming
        };
        // Without an event the next look would be a routine one, after 15 s.
        let woken = async |claiming: Claiming, what: &str| within(SOON * 5, what, claiming).await.unwrap().unwrap();
        claims_are_woken(&scene, claim, woken).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_dead_holder_ends_in_place() {
    let scenes = Scene::everywhere("stale").await;
    let everywhere = scenes.iter().map(async |scene| {
        scene.insert(doc! { "_id": 1 }).await;
        scene.insert(doc! { "_id": 2 }).await;
        // As it is left by a process that died: written by one, with nobody to renew it.
        let dead = scene.client_for(Duration::from_millis(1_500)).await;
        let lease = async |id: i32| {
            let held = scene.locks_of::<Document>(&dead).acquire(id).await.unwrap();
            held.release().await.unwrap();
            let holder = dead_holder(1_000);
            let left = doc! { "$set": { "watchlock.holders": [holder] } };
            scene.update(id, left).await;
        };
        let (a, b) = scene.locks();
        lease(1).await;
        assert!(a.try_acquire(1).await.unwrap().is_none());
        let _held = within(PATIENCE, "the take-over", a.acquire(1)).await.unwrap();
        lease(2).await;
        assert!(b.try_claim(doc! { "_id": 2 }).await.unwrap().is_none());
        let _claimed = within(PATIENCE, "the claim", b.claim(doc! { "_id": 2 })).await.unwrap();
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_document_is_renewed_and_its_loss_is_told() {
    let scenes = Scene::everywhere("doc_lost").await;
    join_all(scenes.iter().map(hold_and_lose)).await;
}

async fn hold_and_lose(scene: &Scene) {
    // The machine may stand still for most of it.
    let lease = Duration::from_secs(4);
    let short = scene.client_for(lease).await;
    let locks = scene.locks_of::<Document>(&short).field("state.lock");
    let other = scene.locks_of::<Document>(&scene.b).field("state.lock");
    for id in 1..=5 {
        scene.insert(doc! { "_id": id, "state": { "name": "new" } }).await;
    }
    let held: Vec<_> = [
        locks.acquire(1).await.unwrap(),
        locks.claim(doc! { "_id": 2 }).await.unwrap(),
        locks.acquire(3).await.unwrap(),
        locks.claim(doc! { "_id": 4 }).await.unwrap(),
        locks.acquire(5).await.unwrap(),
    ]
    .into();
    let ends = async || {
        let found = scene.events.find(doc! {}).await;
        let ends = found.iter().map(|document| {
            let lock = document.get_document("state").unwrap().get_document("lock").unwrap();
            let holder = lock.get_array("holders").unwrap()[0].as_document().unwrap();
            holder.get_datetime("until").unwrap().timestamp_millis()
        });
        ends.min().unwrap()
    };
    let after_two = ends().await + i64::try_from(lease.as_millis()).unwrap();
    eventually(lease + PATIENCE, "they are held for two leases", async || {
        for handle in &held {
            let theirs = other.try_acquire(handle.id().clone()).await.unwrap();
            // Read later: if another has it, the handle knows.
            let lost = handle.lost_reason();
            assert!(theirs.is_none() || lost.is_some(), "two have {}", handle.name());
            assert_eq!(lost, None, "{} was not renewed in time", handle.name());
        }
        ends().await >= after_two
    })
    .await;
    // What the user changes beside the lock does no harm.
    let beside = doc! { "$set": { "state.name": "changed", "state.lockable": true, "list": [1] } };
    scene.events.update(doc! {}, beside).await;
    let soon = SOON * 3;
    other.break_lock(1).await.unwrap();
    assert_eq!(within(soon, "broken", held[0].lost()).await, LostReason::Broken);
    scene.update(2, doc! { "$set": { "state": 7 } }).await;
    assert_eq!(
        within(soon, "a parent is overwritten", held[1].lost()).await,
        LostReason::Deleted
    );
    scene.events.delete(doc! { "_id": 3 }).await;
    assert_eq!(within(soon, "deleted", held[2].lost()).await, LostReason::Deleted);
    scene.events.replace(4, doc! { "x": 1 }).await;
    assert_eq!(within(soon, "replaced", held[3].lost()).await, LostReason::Deleted);
    assert_eq!(held[4].lost_reason(), None);
    assert_eq!(
        held[4]
            .update(doc! { "$set": { "x": 1 } })
            .await
            .unwrap()
            .get_i32("x")
            .unwrap(),
        1
    );
    let cleared = doc! { "$set": { "state.lock.holders": [] } };
    scene.update(5, cleared).await;
    assert_eq!(within(soon, "cleared", held[4].lost()).await, LostReason::Overwritten);
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_are_done_under_the_lock_or_not_at_all() {
    for scene in Scene::everywhere("doc_update").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let held = a.claim(doc! { "n": 1 }).await.unwrap();
        let updated = held.update(doc! { "$inc": { "n": 1 } }).await.unwrap();
        assert_eq!(updated, doc! { "_id": 1, "n": 2 });
        let by_pipeline = held
            .update(vec![
                doc! { "$set": { "m": { "$add": ["$n", 1] } } },
                doc! { "$unset": "n" },
            ])
            .await;
        let updated = match (&scene.place, by_pipeline) {
            (Place::Server(_), updated) => updated.unwrap(),
            (Place::Memory(_), Err(HoldError::Server(refused))) => {
                let why = refused.to_string();
                assert!(why.contains("pipeline"), "{why}");
                held.update(doc! { "$set": { "m": 3 }, "$unset": { "n": 1 } })
                    .await
                    .unwrap()
            }
            (Place::Memory(_), other) => panic!("{other:?}"),
        };
        assert_eq!(updated, doc! { "_id": 1, "m": 3 });
        assert_eq!(held.lost_reason(), None);
        // The server knows before the holder does: it is another client that polls, and looks seldom.
        b.break_lock(1).await.unwrap();
        let next = b.acquire(1).await.unwrap();
        let error = held.update(doc! { "$set": { "m": 9 } }).await.unwrap_err();
        assert_lost!(HoldError, Broken, error);
        let error = held.delete().await.unwrap_err();
        assert_lost!(HoldError, Broken, error);
        assert_eq!(scene.find(1).await.get_i32("m").unwrap(), 3);
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        // A waiter of a document that is deleted is told so.
        let waiter = waits(&b, 1, a.acquire(1)).await;
        let view = next.view();
        next.delete().await.unwrap();
        assert_eq!(next.release().await.unwrap(), Released::Released);
        assert_is!(view.lost().await.reason, LostReason::Released | LostReason::Deleted);
        let error = within(PATIENCE, "the news", waiter).await.unwrap().unwrap_err();
        assert_is!(error, AcquireError::NoDocument { name, .. } if name == "1");
        assert!(scene.events.find(doc! {}).await.is_empty());
    }
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Strict {
    #[serde(rename = "_id")]
    id: i32,
    key: ObjectId,
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_read_as_any_type() {
    for scene in Scene::streaming("doc_type").await {
        let locks = scene.locks_of::<Strict>(&scene.a);
        let key = ObjectId::new();
        scene.insert(doc! { "_id": 1, "key": key }).await;
        scene.insert(doc! { "_id": 2, "key": "none" }).await;
        let held = locks.claim(doc! { "_id": 1 }).await.unwrap();
        assert_eq!(held.document(), &Strict { id: 1, key });
        held.release().await.unwrap();
        assert_eq!(locks.acquire(1).await.unwrap().document(), &Strict { id: 1, key });
        // What can't be read is given back.
        let errors = [
            locks.acquire(2).await.unwrap_err(),
            locks.claim(doc! { "_id": 2 }).await.unwrap_err(),
        ];
        for error in errors {
            assert_is!(error, AcquireError::Unreadable { name, .. } if name == "2");
            assert!(
                error.to_string().starts_with("the document 2 could not be read: "),
                "{error}"
            );
        }
        eventually(SOON, "it is free", async || {
            let lock = locks.inspect(2).await.unwrap().unwrap();
            lock.holders.is_empty() && lock.waiters.is_empty()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(
    clippy::unnecessary_fallible_conversions,
    reason = "what a pattern is made from differs between the majors of bson"
)]
async fn bad_input_is_refused_before_anything_is_sent() {
    for scene in Scene::streaming("doc_input").await {
        let (locks, _) = scene.locks();
        // The bounds of paths and of terms are the core's, whose tests have all of them.
        let nowhere = scene.locks_of::<Document>(&scene.a).field("a..b");
        let error = nowhere.try_claim(doc! {}).await.unwrap_err();
        assert_is!(error, AcquireError::Invalid(_));
        for id in [
            Bson::from(doc! { "$ne": 1 }),
            Bson::from(vec![1]),
            Bson::RegularExpression(mongodb::bson::Regex {
                pattern: ".".try_into().unwrap(),
                options: "".try_into().unwrap(),
            }),
            Bson::Undefined,
            Bson::from("x".repeat(9_000)),
        ] {
            let error = locks.acquire(id).await.unwrap_err();
            assert!(matches!(error, AcquireError::Invalid(_)), "{error}");
        }
        assert_is!(
            locks.acquire(1).timeout(Duration::MAX).await,
            Err(AcquireError::Invalid(_))
        );
        assert_is!(
            locks.claim(doc! {}).timeout(Duration::MAX).await,
            Err(AcquireError::Invalid(_))
        );
        assert_is!(
            locks.claim(doc! {}).reason("x".repeat(1_025)).await,
            Err(AcquireError::Invalid(_))
        );
        assert_is!(
            locks.try_claim(doc! {}).lease(Duration::ZERO).await,
            Err(AcquireError::Invalid(_))
        );
        let missing = locks.acquire("none").await.unwrap_err();
        assert_is!(missing, AcquireError::NoDocument { name, .. } if name == "\"none\"");
        assert!(scene.events.find(doc! {}).await.is_empty(), "nothing was made");
        let refused = locks.try_claim(doc! { "$nonsense": 1 }).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Server(_)), "{refused}");

        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let held = locks.acquire(1).await.unwrap();
        for update in [
            doc! {},
            doc! { "n": 2 },
            doc! { "$set": { "watchlock": 1 } },
            doc! { "$unset": { "watchlock.holders": 1 } },
            doc! { "$rename": { "n": "watchlock" } },
            doc! { "$set": 3 },
        ] {
            let error = held.update(update.clone()).await.unwrap_err();
            assert!(matches!(error, HoldError::Invalid(_)), "{update}: {error}");
        }
        for stage in [
            doc! { "$replaceWith": { "x": 1 } },
            doc! { "$unset": ["n", "watchlock"] },
            doc! { "$set": { "watchlock.token": 1 } },
            doc! { "$project": { "n": 1 } },
        ] {
            let error = held.update(vec![stage.clone()]).await.unwrap_err();
            assert!(matches!(error, HoldError::Invalid(_)), "{stage}: {error}");
        }
        // Beside it is allowed, be it named alike.
        held.update(doc! { "$set": { "watchlocked": 1 } }).await.unwrap();
        assert_eq!(scene.find(1).await.get_i32("n").unwrap(), 1);
        // What stands in the lock's place and is no lock stays there.
        scene.insert(doc! { "_id": 2, "watchlock": "mine" }).await;
        let refused = locks.acquire(2).await.unwrap_err();
        assert!(matches!(refused, AcquireError::Server(_)), "{refused}");
        assert_eq!(scene.find(2).await.get_str("watchlock").unwrap(), "mine");
    }
}

#[tokio::test]
async fn what_memory_does_not_know_is_named() {
    let scene = Scene::in_memory();
    let (locks, _) = scene.locks();
    // Though there is nothing to be matched.
    let regex = doc! { "$or": [{ "a": { "$regex": "x" } }] };
    for (refused, word) in [
        (locks.try_claim(regex.clone()).await, "`$regex`"),
        (locks.claim(regex).await.map(Some), "`$regex`"),
        (locks.try_claim(doc! { "$expr": true }).await, "`$expr`"),
        (locks.try_claim(doc! { "a.0": 1 }).await, "`a.0`"),
        (
            locks
                .try_claim(doc! {})
                .sort(doc! { "a": { "$meta": "textScore" } })
                .await,
            "$meta",
        ),
    ] {
        let Err(AcquireError::Server(refused)) = refused else {
            panic!("{refused:?}")
        };
        let why = refused.to_string();
        assert!(why.contains(word), "{why}");
    }
    scene.insert(doc! { "_id": 1, "list": [1, 2] }).await;
    let held = locks.acquire(1).await.unwrap();
    for (update, word) in [
        (doc! { "$bit": { "a": { "and": 1 } } }, "`$bit`"),
        (doc! { "$push": { "list": 3 } }, "`$push`"),
        (doc! { "$set": { "list.0": 3 } }, "`list.0`"),
        (doc! { "$inc": { "list": 1 } }, "`list`"),
    ] {
        let Err(HoldError::Server(refused)) = held.update(update).await else {
            panic!("it is not refused")
        };
        let why = refused.to_string();
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(held.lost_reason(), None);
    assert_eq!(
        held.update(doc! { "$inc": { "n": 1 } }).await.unwrap(),
        doc! { "_id": 1, "list": [1, 2], "n": 1 }
    );
}

/// With the clock paused hours go by at once.
#[tokio::test(start_paused = true)]
async fn time_in_memory_is_the_tests() {
    let lease = Duration::from_secs(30);
    let scene = Scene::in_memory();
    let (a, b) = scene.locks();
    scene.insert(doc! { "_id": 1, "done": false }).await;
    let held = a.claim(doc! { "done": false }).await.unwrap();
    // It is renewed for as long as its holder lives.
    tokio::time::sleep(lease * 200).await;
    assert_eq!(held.lost_reason(), None);
    for timeout in [lease * 200, Duration::ZERO] {
        let waiting = b.claim(doc! { "done": false }).timeout(timeout).await;
        assert!(matches!(waiting, Err(AcquireError::Timeout { .. })), "{waiting:?}");
    }

    // Its holder stalls for longer than the lease, and another takes over.
    tokio::time::advance(lease * 2).await;
    let next = b.try_claim(doc! { "done": false }).await.unwrap().unwrap();
    assert!(next.token() > held.token());
    let late = held.update(doc! { "$set": { "done": true } }).await.unwrap_err();
    assert_lost!(HoldError, Expired, late);
    assert!(matches!(held.delete().await, Err(HoldError::Lost(_))));
    assert!(!scene.find(1).await.get_bool("done").unwrap());

    // What a dead process left is taken over the moment that its lease has run out.
    next.release().await.unwrap();
    let since = tokio::time::Instant::now();
    let document = scene.find(1).await;
    let until = lock_of(&document).get_datetime("at").unwrap();
    let until = DateTime::from_millis(until.timestamp_millis() + 20_000);
    let dead = doc! {
        "id": "dead-1", "permits": 1_i64, "lease": 20_000_i64, "claim": 500_i64, "token": 5_i64,
        "since": DateTime::now(), "until": until, "owner": { "host": "h", "pid": 1_i64 },
    };
    scene
        .events
        .update(doc! {}, doc! { "$set": { "watchlock.holders": [dead] } })
        .await;
    assert!(b.try_claim(doc! {}).await.unwrap().is_none());
    let _held = b.claim(doc! {}).await.unwrap();
    let waited = since.elapsed();
    assert!(
        waited >= Duration::from_secs(20) && waited < Duration::from_millis(20_100),
        "{waited:?}"
    );
}

/// Not with the next look: on the paused clock that would be seconds later.
#[tokio::test(start_paused = true)]
async fn claims_in_memory_are_woken_at_once() {
    let scene = Scene::in_memory();
    let b = scene.locks_of::<Document>(&scene.b);
    let since = std::cell::Cell::new(tokio::time::Instant::now());
    #[expect(clippy::async_yields_async, reason = "the claim goes on waiting")]
    let claim = async || {
        let claiming = spawn(b.claim(doc! { "open": true }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        since.set(tokio::time::Instant::now());
        claiming
    };
    let woken = async |claiming: Claiming, what: &str| {
        let handle = claiming.await.unwrap().unwrap();
        let waited = since.get().elapsed();
        assert!(waited < Duration::from_millis(20), "{what}: {waited:?}");
        handle
    };
    claims_are_woken(&scene, claim, woken).await;
}

/// A sub-document that has none of a lock's fields is the user's: nobody holds it, and an acquire adds the lock to it.
#[tokio::test(flavor = "multi_thread")]
async fn fields_of_the_users_own_in_the_place_of_a_lock_are_no_lock() {
    for scene in Scene::everywhere("doc_own_fields").await {
        let (a, b) = scene.locks();
        let document = doc! { "_id": 1, "watchlock": { "size": 7 } };
        scene.insert(document.clone()).await;
        assert!(a.break_lock(1).await.unwrap().is_none());
        assert_eq!(scene.find(1).await, document);
        let held = a.acquire(1).await.unwrap();
        assert!(b.try_acquire(1).await.unwrap().is_none());
        assert_eq!(held.release().await.unwrap(), Released::Released);
        let lock = scene.find(1).await.get_document("watchlock").unwrap().clone();
        assert_eq!(lock.get_i32("size").ok(), Some(7));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_gone_is_handed_on() {
    let scene = Scene::on(Ground::standalone("doc_gone").await).await;
    let (a, b) = scene.locks();
    scene.insert(doc! { "_id": 1 }).await;
    let held = a.acquire(1).await.unwrap();
    let waiter = waits(&b, 1, a.acquire(1)).await;
    scene.events.replace(1, doc! { "x": 1 }).await;
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    let next = within(PATIENCE, "the next", waiter).await.unwrap().unwrap();
    assert_eq!(next.document(), &doc! { "_id": 1, "x": 1 });
}

/// Of a document that a transaction has written the server says nothing until that ends; of the others it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_holds_up_the_renewals_of_its_own_documents_only() {
    let ground = Ground::replica_set("doc_transaction").await;
    let scene = Scene::on(ground.clone()).await;
    let lease = Duration::from_secs(4);
    let locks = scene.locks_of::<Document>(&scene.client_for(lease).await);
    let mut held = Vec::new();
    for id in 0..20 {
        scene.insert(doc! { "_id": id }).await;
        held.push(locks.acquire(id).await.unwrap());
    }
    let driver = ground.driver().await;
    let events = ground.of(&driver, "events");
    let mut session = writing(&driver, &events, 7).await;

    let late = held.remove(7);
    assert_eq!(within(PATIENCE, "its end", late.lost()).await, LostReason::Expired);
    // The others have been renewed meanwhile, and go on being.
    tokio::time::sleep(lease).await;
    for handle in held {
        assert!(handle.safe_for() > Duration::ZERO, "{:?}", handle.id());
        assert_eq!(handle.release().await.unwrap(), Released::Released);
    }
    session.abort_transaction().await.unwrap();
}
