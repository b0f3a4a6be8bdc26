use std::collections::BTreeSet;

use mongodb::{
    Database,
    bson::{Document, RawDocumentBuf, doc},
    options::ReadPreference,
};
use scopeguard::ScopeGuard;
use watchlock_testkit::shared;

use super::*;
use crate::{
    config::Config,
    error::AcquireError,
    error::ServerError,
    hold_options::Terms,
    protocol::{Evict, Expects, wake},
    session::Session,
    status::LostReason,
    store::{
        Connection, Event, LockLayout, MemoryDocuments, MemoryStore, MongoStore, Store, Wanted, lock_layout::Paths,
    },
    wake_mode::WakeMode,
};

/// A claim whose answer is on its way: the write is done, and the session does not know of it so far.
struct Scene {
    session: Arc<Session>,
    documents: Arc<MemoryDocuments>,
    claimed: Option<Claimed>,
}

fn lease(session: &Arc<Session>) -> Lease {
    Terms::default().lease(&session.config)
}

impl Scene {
    async fn new() -> Self {
        let documents = Arc::new(MemoryDocuments::default());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
        let store = Store::Memory(Arc::new(MemoryStore::new(
            documents.clone(),
            place,
            Connection::default(),
        )));
        let config = Config::default();
        let session = Session::of("0123456789abcdef".into(), config, store, None, WakeMode::ChangeStream);
        let entry = session.ids.claim();
        let owner = session.config.owner(None);
        let operation = session.operation_of_claim(entry, owner, lease(&session));
        let wanted = everything();
        let claimed = session
            .store
            .claim(&wanted, &[], &[operation], Duration::from_secs(1))
            .await
            .unwrap()
            .claimed
            .pop();
        Self {
            session,
            documents,
            claimed,
        }
    }

    /// The news of the session's stream that an operator broke the lock.
    async fn broken(&self) -> Event {
        let operation = Operation {
            evict: Evict::Everybody,
            ..self.session.operation()
        };
        let state = self
            .session
            .store
            .run("1", &operation, Duration::from_secs(1))
            .await
            .unwrap()
            .state
            .unwrap();
        assert!(wake::signals(&state.wake, self.session.ids.session()).count() == 1);
        Event::Addressed {
            name: "1".into(),
            wake: state.wake,
            at: state.at,
            logged_at: None,
        }
    }

    fn answered(&mut self) -> ClaimedDocument {
        let claimed = self.claimed.take().unwrap();
        let mut round = Round::default();
        let asked = (lease(&self.session), How::AtOnce, TypeId::of::<()>());
        self.session.claimed(claimed, asked, &mut round).unwrap();
        assert!(round.1.is_none());
        round.0.pop().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_comes_before_the_answer_of_a_claim_ends_it() {
    let mut scene = Scene::new().await;
    let broken = scene.broken().await;
    scene.session.on_event(&broken);
    let (hold, ..) = scene.answered();
    assert_eq!(hold.lost().await, LostReason::Broken);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_write_that_comes_before_the_answer_of_a_claim_is_looked_into() {
    for gap in [false, true] {
        let mut scene = Scene::new().await;
        scene.documents.replace(&doc! { "_id": 1 }, doc! { "x": 1 }).unwrap();
        scene.session.on_event(&if gap {
            Event::Everything
        } else {
            Event::Foreign {
                name: "1".into(),
                after: None,
            }
        });
        let (hold, ..) = scene.answered();
        let since = Instant::now();
        // The lock was overwritten together with the document.
        assert_eq!(hold.lost().await, LostReason::Deleted);
        assert!(since.elapsed() < Duration::from_millis(10));
        // Another document's news is none, and costs no reading: workers of a queue change documents all the time.
        let mut scene = Scene::new().await;
        scene.session.on_event(&Event::Foreign {
            name: "2".into(),
            after: None,
        });
        let (hold, ..) = scene.answered();
        assert!(scene.session.table().doubted.is_empty());
        assert_eq!(hold.lost_reason(), None);
    }
}

/// That a document was free is known then, so it would be wrong to say that there was none.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_lease_is_one_that_took_too_long() {
    let mut scene = Scene::new().await;
    let claimed = scene.claimed.take().unwrap();
    let asked = (lease(&scene.session), How::AtOnce, TypeId::of::<()>());
    tokio::time::advance(asked.0.length).await;
    let answer = scene.session.claimed(claimed, asked, &mut Round::default());
    assert!(matches!(&answer, Err(error) if !error.is_final()), "{answer:?}");
}

/// The release of a claimed document is as short as that of a lock, unless somebody may have come to wait for it.
#[tokio::test(start_paused = true)]
async fn a_claim_took_a_document_without_entries() {
    for (later, expects) in [(1, Expects::Alone), (3, Expects::OnlyHolder)] {
        let mut scene = Scene::new().await;
        let hold = ScopeGuard::into_inner(scene.answered().0);
        tokio::time::advance(Duration::from_millis(later)).await;
        let mut releases = None;
        scene.session.update("1", None, |lines, context| {
            let line = lines.line("1");
            line.waitlist.step(context).let_go(&hold, None);
            releases = line.next(context);
        });
        assert_eq!(releases.unwrap().expects, expects);
    }
}

/// A scheduler would read "nothing is free" as "all is done".
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_new_does_not_say_that_nothing_is_free() {
    let scene = Scene::new().await;
    scene.documents.insert(doc! { "_id": 2 }).unwrap();
    scene.session.table().lines.closed = true;
    for waits in [false, true] {
        let owner = scene.session.config.owner(None);
        let claiming = scene
            .session
            .claiming(everything(), TypeId::of::<()>(), owner, Terms::default(), 1);
        let claimed = timeout(Duration::from_millis(1), claiming.claim(waits)).await;
        // A wait goes on until the next step of the end.
        let told = match claimed {
            Ok(claimed) => matches!(claimed, Err(AcquireError::Closed)),
            Err(_) => waits,
        };
        assert!(told);
    }
}

fn everything() -> Wanted {
    Wanted {
        filter: doc! {},
        sort: None,
        attempts_most: None,
    }
}

/// So many documents in a collection of their own.
async fn on_a_server(name: &str, count: usize) -> (Store, Database) {
    let driver = shared::standalone().await.client().await.unwrap();
    let database = driver.database(&shared::unique_name(name));
    let collection = database.collection::<Document>("events");
    let documents = (0..count as i32).map(|id| doc! { "_id": id });
    collection.insert_many(documents).await.unwrap();
    let place = LockLayout::in_documents(Some(collection.namespace()), "lock", None, &Paths::default()).unwrap();
    let store = MongoStore::new(&collection, place, ReadPreference::Primary);
    (Store::Mongo(Arc::new(store)), database)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_search_finds_the_documents_of_several_entries() {
    let scene = Scene::new().await;
    for id in 2..5 {
        scene.documents.insert(doc! { "_id": id }).unwrap();
    }
    let (session, (on_a_server, database)) = (&scene.session, on_a_server("held_by", 4).await);
    // One of these documents has an id that the driver does not read: `?` stands for a byte that no text has.
    let holders = doc! { "token": 1_i64, "holders": [{ "id": "of a claim that was not applied" }] };
    let insert = doc! { "insert": "events", "documents": [{ "_id": "?", "lock": holders }] };
    let mut bytes = Vec::new();
    insert.to_writer(&mut bytes).unwrap();
    let at = bytes.iter().position(|byte| *byte == b'?').unwrap();
    bytes[at] = 0xff;
    let insert = RawDocumentBuf::from_bytes(bytes).unwrap();
    database.run_raw_command(insert).await.unwrap();
    for documents in [&session.store, &on_a_server] {
        let (mut held, mut searched) = (BTreeSet::new(), vec!["of a claim that was not applied".to_owned()]);
        for is_searched in [true, false, true] {
            let entry = session.ids.claim();
            let operation = session.operation_of_claim(entry.clone(), session.config.owner(None), lease(session));
            let (wanted, within) = (everything(), Duration::from_secs(60));
            let operations = [operation];
            let claiming = documents.claim(&wanted, &[], &operations, within);
            let name = claiming.await.unwrap().claimed.remove(0).name;
            if is_searched {
                searched.push(entry.clone());
                held.insert((name, entry));
            }
        }
        let found = documents.held_by(&everything(), &searched).await.unwrap();
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), held);
    }
}

/// Many claim the same, each by the way of a claim that was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_another_claimed_first_is_not_the_last_one() {
    const COUNT: usize = 60;
    let (documents, database) = on_a_server("one_by_one", COUNT).await;
    let Store::Mongo(documents) = documents else {
        unreachable!()
    };
    let Scene { session, .. } = Scene::new().await;
    let claimed = futures::future::join_all((0..8).map(async |_| {
        let wanted = everything();
        for claimed in 0.. {
            let operation =
                [session.operation_of_claim(session.ids.claim(), session.config.owner(None), lease(&session))];
            let taken = documents.claim_found(&wanted, &[], &operation, Duration::from_secs(60));
            if taken.await.unwrap().claimed.is_empty() {
                let free = doc! { "lock.holders.0": { "$exists": false } };
                let left = database.collection::<Document>("events").find_one(free).await.unwrap();
                assert_eq!(left, None, "although nothing was free");
                return claimed;
            }
        }
        unreachable!("there are so many only");
    }));
    assert_eq!(claimed.await.iter().sum::<usize>(), COUNT);
}

/// Only what may have been written is searched for: there is no room for more.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_many_that_wrote_nothing_leaves_no_orphans() {
    let (store, _) = on_a_server("unsent", 2).await;
    let config = Config::default();
    let session = Session::of("0123456789abcdef".into(), config, store, None, WakeMode::ChangeStream);
    // The time is over while it looks for documents.
    let wanted = Wanted {
        filter: doc! { "$where": "sleep(200) || true" },
        ..everything()
    };
    let operations =
        [(); 2].map(|()| session.operation_of_claim(session.ids.claim(), session.config.owner(None), lease(&session)));
    let claiming = session
        .store
        .claim(&wanted, &[], &operations, Duration::from_millis(20));
    let taken = claiming.await.unwrap();
    assert!(taken.unsent.is_some_and(|error| error.ran_out_of_time()) && taken.failed.is_none());
}

#[tokio::test]
async fn documents_whose_long_ids_begin_alike_are_passed_over_each_by_itself() {
    let scene = Scene::new().await;
    let ids = ["a", "b"].map(|end| Bson::from(format!("{}{end}", "x".repeat(300))));
    for id in &ids {
        scene
            .session
            .pass_over(TypeId::of::<()>(), id.clone(), Arc::new(ServerError::overdue()), true);
    }
    assert_eq!(
        scene
            .session
            .claims
            .skip_list()
            .ids(TypeId::of::<()>(), Instant::now())
            .len(),
        ids.len()
    );
}
