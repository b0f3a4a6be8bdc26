use std::{
    collections::HashSet,
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use mongodb::bson::doc;
use tokio::time::{sleep, timeout};
use tracing::{Dispatch, Subscriber, subscriber::NoSubscriber};
use tracing_subscriber::layer::{Layer, SubscriberExt};

use super::*;
use crate::{
    client::LockClient,
    config::Config,
    operate::watch::LockEvent,
    protocol::{Operation, Request, fixtures},
    session::fixtures::{ONE, client, memory},
    store::{Connection, Event, LockLayout, MemoryDocuments, MemoryStore, Store, lock_layout::Paths},
    tests::simulated::{LISTS, Link},
    wake_mode::{WakeMode, WakeSource},
};

/// More names than are read together twice.
const NAMES: usize = 2 * AT_A_TIME + 500;

#[tokio::test(start_paused = true)]
async fn leases_that_end_together_are_all_reported_without_a_rest() {
    let store = MemoryStore::default();
    let request = Request {
        lease: 10_000,
        ..fixtures::request("of a client that is gone")
    };
    let acquiring = Operation {
        keep: 100_000,
        ..fixtures::asking("1", request)
    };
    for number in 0..NAMES {
        store.run(&format!("lock {number}"), &acquiring).unwrap();
    }
    let config = Config::default();
    let rest = config.poll_interval.1;
    let locks = LockClient::over_memory(&store, config);
    let mut events = locks.watch_all();
    for _ in 0..NAMES {
        let (_, event) = events.next().await.unwrap().unwrap();
        assert!(matches!(event, LockEvent::Granted { .. }), "{event}");
    }
    let (mut first, mut names) = (None, HashSet::new());
    while names.len() < NAMES {
        let (name, event) = events.next().await.unwrap().unwrap();
        assert!(matches!(event, LockEvent::Expired { .. }), "{event}");
        first.get_or_insert_with(Instant::now);
        names.insert(name);
    }
    let took = first.unwrap().elapsed();
    assert!(took < rest, "{took:?}");
}

/// Of very many others, somebody observes all beside it.
#[tokio::test(start_paused = true)]
async fn an_observer_of_one_lock_does_not_wait_for_the_names_of_all() {
    let store = MemoryStore::default();
    let request = fixtures::request("of a client that is gone");
    for number in 0..4 * NAMES {
        let acquiring = fixtures::asking("1", request.clone());
        store.run(&format!("lock {number}"), &acquiring).unwrap();
    }
    let config = Config::default();
    let least = config.poll_interval.0;
    let locks = LockClient::over_memory(&store, config);
    let mut one = locks.watch("z");
    let mut all = locks.watch_all();
    all.next().await.unwrap().unwrap();
    let begun = Instant::now();
    let held = locks.mutex("z").acquire().await.unwrap();
    let event = one.next().await.unwrap().unwrap();
    assert!(matches!(event, LockEvent::Granted { .. }), "{event}");
    let took = begun.elapsed();
    assert!(took <= 2 * least, "{took:?}");
    held.release().await.unwrap();
}

/// One that takes no event holds up neither the others nor the tasks of the client.
#[tokio::test(start_paused = true)]
async fn observers_of_one_lock_see_it_each_for_itself() {
    let locks = LockClient::in_memory();
    let (mut idle, mut all) = (locks.watch("x"), locks.watch_all());
    for round in 0..200 {
        let held = locks.mutex("x").acquire().await.unwrap();
        // One that comes later is told what the others were.
        let mut late = locks.watch("x");
        for event in [
            late.next().await,
            all.next().await.map(|event| event.map(|(_, event)| event)),
        ] {
            let event = event.unwrap().unwrap();
            let LockEvent::Granted { holder, .. } = &event else {
                panic!("{round}: {event}");
            };
            assert_eq!(holder.token, held.token(), "{round}");
        }
        held.release().await.unwrap();
        let (_, event) = all.next().await.unwrap().unwrap();
        assert!(matches!(event, LockEvent::Released { .. }), "{round}: {event}");
    }
    let held = locks.mutex("x").acquire().await.unwrap();
    // It has the first ones, and the last.
    let is_last =
        |event: &LockEvent| matches!(event, LockEvent::Granted { holder, .. } if holder.token == held.token());
    let mut events = Vec::new();
    while !events.last().is_some_and(is_last) {
        events.push(idle.next().await.unwrap().unwrap());
    }
    assert!((60..100).contains(&events.len()), "{}", events.len());
    assert!(matches!(events[0], LockEvent::Granted { .. }));
}

/// A list of very many locks, or of large documents with locks in them, can take half a minute.
#[tokio::test(start_paused = true)]
async fn an_observer_of_one_lock_does_not_wait_for_a_list_of_all() {
    const SOON: Duration = Duration::from_secs(2);
    for wake_source in [WakeSource::ChangeStream, WakeSource::Polling] {
        let settings = Config {
            wake_source,
            ..Config::default()
        };
        let (link, session) = client(&memory(), ONE, settings);
        let locks = LockClient::new(session);
        link.block(LISTS, true);
        let (mut all, mut one) = (locks.watch_all(), locks.watch("x"));
        sleep(SOON).await;
        for _ in 0..3 {
            let held = locks.mutex("x").acquire().await.unwrap();
            let event = timeout(SOON, one.next()).await.unwrap().unwrap().unwrap();
            assert!(matches!(event, LockEvent::Granted { .. }), "{event}");
            held.release().await.unwrap();
            let event = timeout(SOON, one.next()).await.unwrap().unwrap().unwrap();
            assert!(matches!(event, LockEvent::Released { .. }), "{event}");
        }
        link.block(LISTS, false);
        let held = locks.mutex("y").acquire().await.unwrap();
        // Who observes all is told the same meanwhile, and the list takes none of it back.
        for expected in ["x granted", "x over"].repeat(3).into_iter().chain(["y granted"]) {
            let (name, event) = timeout(SOON, all.next()).await.unwrap().unwrap().unwrap();
            let kind = match event {
                LockEvent::Granted { .. } => "granted",
                _ => "over",
            };
            assert_eq!(format!("{name} {kind}"), expected);
        }
        held.release().await.unwrap();
    }
}

/// As of a page that is loaded again.
#[tokio::test(start_paused = true)]
async fn who_begins_to_observe_all_waits_for_the_list_of_another_and_as_long_again_at_most() {
    let documents = Arc::new(MemoryDocuments::default());
    documents.insert(doc! { "_id": 1 }).unwrap();
    let place = LockLayout::in_documents(None, "lock", None, &Paths::default()).unwrap();
    let link = Link::new(Arc::new(MemoryStore::new(documents, place, Connection::default())), 1);
    link.calm();
    let (config, store) = (Config::default(), Store::Simulated(link.clone()));
    let mode = WakeMode::ChangeStream;
    let session = Session::of("0123456789abcdef".to_owned(), config, store, None, mode);
    let locks = LockClient::new(session);
    // Nothing is written that would be read beside the list.
    let _held = locks
        .mutex("1")
        .acquire()
        .fixed(Duration::from_secs(600))
        .await
        .unwrap();
    // The second list runs out of time.
    for (blocked, most) in [(5, 6), (40, 31)].map(|both| (Duration::from_secs(both.0), Duration::from_secs(both.1))) {
        link.block(LISTS, true);
        let all = locks.watch_all();
        sleep(blocked).await;
        link.block(LISTS, false);
        drop(all);
        let mut all = locks.watch_all();
        let event = timeout(most, all.next()).await.unwrap();
        assert!(matches!(event, Some(Ok((_, LockEvent::Granted { .. })))), "{event:?}");
    }
}

/// Ends an observation when it is told of a document that is no lock, and notes whether it could.
struct Ender {
    observed: Mutex<Option<Box<dyn Send>>>,
    ended: Arc<Mutex<Option<bool>>>,
}

impl<S: Subscriber> Layer<S> for Ender {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().name() != "watchlock.unreadable" {
            return;
        }
        let observed = self.observed.lock().unwrap().take();
        // In a thread of its own, as one that waits for itself would never fail the test.
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            drop(observed);
            let _ = done.send(());
        });
        let ended = ended.recv_timeout(Duration::from_secs(5)).is_ok();
        *self.ended.lock().unwrap() = Some(ended);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_is_told_of_what_is_no_lock_may_end_the_observation() {
    // Otherwise a thread of another test could say that nobody listens there.
    let _another = Dispatch::new(NoSubscriber::default());
    let config = Config::default();
    let mode = WakeMode::of(config.wake_source);
    let session = Session::new(config, Store::Memory(Arc::default()), None, mode);
    let locks = LockClient::new(session.clone());
    let ended = Arc::<Mutex<Option<bool>>>::default();
    let ender = Ender {
        observed: Mutex::new(Some(Box::new(locks.watch("odd")))),
        ended: ended.clone(),
    };
    let _listening = tracing::subscriber::set_default(tracing_subscriber::registry().with(ender));
    let unreadable = Unreadable::new("odd".to_owned(), &"it is odd");
    session.on_event(&Event::Unreadable(unreadable));
    assert_eq!(*ended.lock().unwrap(), Some(true));
    assert!(session.observers().are_none());
}
