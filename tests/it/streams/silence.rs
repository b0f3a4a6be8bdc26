//! Streams that fall silent behind a router, and the question to a primary that does not answer it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering},
};

use mongodb::bson::oid::ObjectId;
use tokio::task::JoinHandle;
use watchlock::{locks, operate::WakeMode};
use watchlock_testkit::{Liar, liar::Told};

use crate::setup::*;

/// What was answered to a client behind a proxy.
#[derive(Debug, Default)]
struct Asked {
    streams: AtomicUsize,
    /// The cursor of the first stream.
    cursor: AtomicI64,
    /// Questions to the primary, the first of them by a client that connects.
    questions: AtomicUsize,
    /// What was kept from the server.
    dropped: AtomicUsize,
    renewals: AtomicUsize,
}

impl Asked {
    /// Notes a command and its answer.
    fn note(&self, database: &str, command: &Document, answer: &Document) {
        let count = |counter: &AtomicUsize| {
            counter.fetch_add(1, Ordering::SeqCst);
        };
        if opens_stream(command) {
            let cursor = answer.get_document("cursor").and_then(|cursor| cursor.get_i64("id"));
            let first = cursor.unwrap_or_default();
            let _ = self
                .cursor
                .compare_exchange(0, first, Ordering::SeqCst, Ordering::SeqCst);
            count(&self.streams);
        } else if is_question(database, command) {
            count(&self.questions);
        } else if command.contains_key("update") {
            count(&self.renewals);
        }
    }
}

fn opens_stream(command: &Document) -> bool {
    let pipeline = command.get_array("pipeline").ok();
    let first = pipeline.and_then(|pipeline| pipeline.first()?.as_document());
    first.is_some_and(|stage| stage.contains_key("$changeStream"))
}

/// Whether it asks for the primary, and is not the driver's own.
fn is_question(database: &str, command: &Document) -> bool {
    command.contains_key("hello") && command.get_str("$db").is_ok_and(|of| of == database)
}

/// Changes what a member of a replica set says of itself to what a router says.
fn as_router(answer: &mut Document) {
    if answer.remove("setName").is_some() {
        for of_members in [
            "hosts",
            "setVersion",
            "electionId",
            "primary",
            "me",
            "lastWrite",
            "secondary",
        ] {
            answer.remove(of_members);
        }
        answer.insert("msg", "isdbgrid");
    }
}

/// A client behind a proxy.
struct Scene {
    asked: Arc<Asked>,
    documents: Collection<Document>,
    waiter: LockClient,
    _proxy: Liar,
}

/// It waits for a lock that another one holds.
struct HandOver {
    held: Held<locks::Mutex>,
    waiting: JoinHandle<Result<Held<locks::Mutex>, AcquireError>>,
}

impl HandOver {
    async fn within(self, limit: Duration) {
        self.held.release().await.unwrap();
        let handle = within(limit, "the grant", self.waiting).await.unwrap().unwrap();
        handle.release().await.unwrap();
    }
}

impl Scene {
    /// `drops` chooses what is kept from the server; `change` changes answers.
    async fn behind(
        direct: &Ground,
        drops: impl Fn(&Asked, &Document) -> bool + Send + Sync + 'static,
        change: impl Fn(&Asked, &Document, &mut Document) + Send + Sync + 'static,
    ) -> (Self, HandOver) {
        let asked = Arc::<Asked>::default();
        let (sent, answered, database) = (asked.clone(), asked.clone(), direct.database.clone());
        let command = move |command: &mut Document| {
            let is_dropped = drops(&sent, command);
            sent.dropped.fetch_add(usize::from(is_dropped), Ordering::SeqCst);
            if is_dropped { Told::Nobody } else { Told::Server }
        };
        let answer = move |command: &Document, answer: &mut Document| {
            answered.note(&database, command, answer);
            change(&answered, command, answer);
        };
        let server = shared::replica_set().await.addr(0);
        let proxy = Liar::before(server, command, answer).await.unwrap();
        let waiter = direct.through(proxy.uri()).locks().await;
        let holder = direct.polling().await;
        let held = holder.mutex("lock").acquire().await.unwrap();
        let waiting = in_line(&holder, "lock", 1, waiter.mutex("lock").acquire()).await;
        let documents = direct.documents().await;
        let scene = Self {
            asked,
            documents,
            waiter,
            _proxy: proxy,
        };
        scene.until("the stream is open", |asked| &asked.streams, 1).await;
        (scene, HandOver { held, waiting })
    }

    /// Gives the stream something to report, that concerns nobody.
    async fn news(&self) {
        let document = doc! { "_id": "news" };
        self.documents.insert_one(&document).await.unwrap();
        self.documents.delete_one(document).await.unwrap();
    }

    async fn until(&self, what: &str, counter: impl Fn(&Asked) -> &AtomicUsize, count: usize) {
        let reached = async || counter(&self.asked).load(Ordering::SeqCst) >= count;
        eventually(PATIENCE, what, reached).await;
    }

    async fn until_opened_anew(&self) {
        self.until("another stream", |asked| &asked.streams, 2).await;
        until_mode(&self.waiter, PATIENCE, |mode| mode == WakeMode::ChangeStream).await;
    }

    fn streams(&self) -> usize {
        self.asked.streams.load(Ordering::SeqCst)
    }
}

/// A router names no election, so its silence alone shows that a stream is gone. What it passes on of the elections of
/// its shards shows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_behind_a_router_is_opened_anew_when_it_is_silent_and_not_before() {
    let direct = Ground::replica_set("silent_router").await;
    let silent = Arc::new(AtomicBool::default());
    let (silence, shard) = (silent.clone(), AtomicU8::default());
    let drops = move |asked: &Asked, command: &Document| {
        let first = asked.cursor.load(Ordering::SeqCst);
        silence.load(Ordering::SeqCst) && command.get_i64("getMore").is_ok_and(|cursor| cursor == first)
    };
    let (scene, hand_over) = Scene::behind(&direct, drops, move |_, _, answer| {
        as_router(answer);
        if answer.contains_key("electionId") {
            let shard = shard.fetch_add(1, Ordering::SeqCst);
            answer.insert("electionId", ObjectId::from_bytes([shard; 12]));
        }
    })
    .await;
    // It is renewed often.
    let renewed = scene.waiter.mutex("another").acquire().lease(3 * SOON);
    let _renewed = renewed.await.unwrap();
    scene.until("renewals name elections", |asked| &asked.renewals, 3).await;
    assert_eq!(scene.streams(), 1);
    silent.store(true, Ordering::SeqCst);
    scene.news().await;
    scene.until("the stream is silent", |asked| &asked.dropped, 1).await;
    // Otherwise it would be asked for after ten seconds.
    hand_over.within(8 * SOON).await;
    scene.until_opened_anew().await;
    assert_eq!(scene.streams(), 2);
}

/// What it would have told may be that there is another primary, and the stream of the old one may be silent for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_to_the_primary_that_is_dropped_is_asked_again() {
    let direct = Ground::replica_set("dropped_question").await;
    let (dropping, database) = (Arc::new(AtomicBool::default()), direct.database.clone());
    let drop_next = dropping.clone();
    let drops =
        move |_: &Asked, command: &Document| is_question(&database, command) && dropping.swap(false, Ordering::SeqCst);
    let database = direct.database.clone();
    let (scene, hand_over) = Scene::behind(&direct, drops, move |asked, command, answer| {
        if is_question(&database, command) && asked.dropped.load(Ordering::SeqCst) > 0 {
            answer.insert("electionId", ObjectId::from_bytes([7; 12]));
        }
    })
    .await;
    // By the client that connects, and about the stream that is open.
    scene.until("it was asked", |asked| &asked.questions, 2).await;
    drop_next.store(true, Ordering::SeqCst);
    scene.news().await;
    scene.until("a question is dropped", |asked| &asked.dropped, 1).await;
    // There is news once more, while that question is not answered.
    scene.news().await;
    scene.until_opened_anew().await;
    hand_over.within(2 * SOON).await;
    assert_eq!(scene.streams(), 2);
}
