use mongodb::bson::doc;

use super::*;
use crate::{
    config::Settings,
    protocol::{Evict, wake},
    session::Session,
    status::LostReason,
    store::{Event, InPlace, MemoryDocuments, MemoryInPlace, place::Paths},
    wake_mode::WakeMode,
};

/// A claim whose answer is on its way: the write is done, and the session does not know of it so far.
struct Scene {
    session: DocumentSession,
    documents: Arc<MemoryDocuments>,
    entry: String,
    claimed: Option<Claimed>,
}

impl Scene {
    async fn new() -> Self {
        let documents = Arc::new(MemoryDocuments::new());
        documents.insert(doc! { "_id": 1 }).unwrap();
        let place = InPlace::new(None, "lock", &Paths::default()).unwrap();
        let store = DocumentStore::Memory(Arc::new(MemoryInPlace::new(&documents, place)));
        let config = Settings::default().validate().unwrap();
        let session = Session::of(
            "0123456789abcdef".into(),
            config,
            store.store(),
            None,
            WakeMode::ChangeStream,
        );
        let session = DocumentSession::new(session, Arc::new(store));
        let entry = session.ids.claim();
        let owner = session.config.owner(None);
        let operation = session.operation_of_claim(entry.clone(), owner);
        let wanted = Wanted {
            filter: doc! {},
            sort: None,
            attempts_most: None,
        };
        let claimed = session
            .documents()
            .claim(&wanted, Among::AllBut(&[]), &operation, Duration::from_secs(1))
            .await
            .unwrap();
        Self {
            session,
            documents,
            entry,
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
        match self.session.claimed(&self.entry, claimed, How::AtOnce) {
            Round::Claimed(given) => given,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_comes_before_the_answer_of_a_claim_ends_it() {
    let mut scene = Scene::new().await;
    let broken = scene.broken().await;
    scene.session.on_event(&broken);
    let (hold, _) = scene.answered().take();
    assert_eq!(hold.unwrap().lost_reason(), Some(LostReason::Broken));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_write_that_comes_before_the_answer_of_a_claim_is_looked_into() {
    for gap in [false, true] {
        let mut scene = Scene::new().await;
        scene.documents.replace(&1.into(), doc! { "x": 1 }).unwrap();
        scene.session.on_event(&if gap {
            Event::Everything
        } else {
            Event::Foreign {
                name: "1".into(),
                after: None,
            }
        });
        let (hold, _) = scene.answered().take();
        let since = Instant::now();
        // The lock was overwritten together with the document.
        assert_eq!(hold.unwrap().lost().await, LostReason::Deleted);
        assert!(since.elapsed() < Duration::from_millis(10));
        // Another document's news is none.
        let mut scene = Scene::new().await;
        scene.session.on_event(&Event::Foreign {
            name: "2".into(),
            after: None,
        });
        let (hold, _) = scene.answered().take();
        assert_eq!(hold.unwrap().lost_reason(), None);
    }
}
