//! Single operations: those that write nothing, and the one with the most entries.

use futures::StreamExt;
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    options::ReturnDocument,
};
use watchlock_core::protocol::{
    Evict, Kind, Location, Operation, QUEUE_MOST, Request, ServerTime, State, Use, fixtures, pipeline, state,
};
use watchlock_testkit::shared;

fn request(id: &str, wait: bool, fresh: bool) -> Request {
    Request {
        lease: 60_000,
        claim: 5_000,
        wait,
        fresh,
        ..fixtures::request(id)
    }
}

fn operation(number: i64, leave: &[&str], used: Use, entries: impl IntoIterator<Item = Request>) -> Operation {
    Operation {
        leave: leave.iter().map(|id| (*id).to_owned()).collect(),
        ..fixtures::asking_for(&format!("a.{number}"), used, entries)
    }
}

/// Runs an operation on the server, and returns the document after it.
async fn document_after(collection: &Collection<Document>, operation: &Operation, now: &Bson) -> Document {
    let at = Location::default();
    collection
        .find_one_and_update(
            pipeline::selection(&at, "x".into(), operation),
            pipeline::operation(&at, operation, now),
        )
        .upsert(true)
        .return_document(ReturnDocument::After)
        .await
        .unwrap()
        .unwrap()
}

/// A change that writes nothing raises no event and costs no entry in the log.
#[tokio::test]
async fn a_step_that_changes_nothing_writes_nothing() {
    let cluster = shared::replica_set().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("nothing"));
    let collection = database.collection::<Document>("locks");
    let of_mutex = |number, leave: &[&str], entries: Vec<_>| operation(number, leave, fixtures::MUTEX, entries);
    let run = async |operation: Operation| document_after(&collection, &operation, &"$$NOW".into()).await;
    let held = run(of_mutex(1, &[], vec![request("a-1", true, false)])).await;
    let mut events = collection.watch().await.unwrap();
    assert_eq!(run(of_mutex(2, &[], vec![request("a-1", true, false)])).await, held);
    assert_eq!(run(of_mutex(3, &[], vec![request("b-1", false, false)])).await, held);
    let queued = run(of_mutex(4, &[], vec![request("c-1", true, false)])).await;
    assert_ne!(queued, held);
    assert_eq!(run(of_mutex(5, &[], vec![request("c-1", true, false)])).await, queued);
    let released = run(of_mutex(6, &["a-1"], vec![])).await;
    // Only the two that changed the document are in the stream.
    for expected in [queued, released] {
        let event = events.next().await.unwrap().unwrap();
        let wake = match (&event.full_document, &event.update_description) {
            (Some(document), _) => document.get_str("wake").unwrap().to_owned(),
            (None, Some(update)) => update.updated_fields.get_str("wake").unwrap().to_owned(),
            (None, None) => panic!("an event that changes nothing: {event:?}"),
        };
        assert_eq!(wake, expected.get_str("wake").unwrap());
    }
}

/// A lock of one permit has two holders only where another program wrote: whoever is not named stays.
#[tokio::test]
async fn a_break_of_one_holder_leaves_another_alone() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("one"));
    let collection = database.collection::<Document>("locks");
    let now = ServerTime(1_700_000_000_000);
    let run = async |operation: Operation| document_after(&collection, &operation, &Bson::from(now)).await;
    let held = run(operation(1, &[], fixtures::MUTEX, vec![request("a-1", true, false)])).await;
    let holder = held.get_array("holders").unwrap()[0].as_document().unwrap().clone();
    let token = holder.get_i64("token").unwrap();
    let breaking = |evict| Operation {
        requests: None,
        evict,
        ..operation(2, &[], fixtures::MUTEX, vec![])
    };
    for other in [Some(token + 1), None] {
        let mut second = holder.clone();
        second.insert("id", "b-1");
        second.remove("token");
        second.extend(other.map(|token| ("token".to_owned(), Bson::from(token))));
        let mut both = held.clone();
        both.insert("holders", vec![holder.clone(), second.clone()]);
        collection.replace_one(doc! { "_id": "x" }, &both).await.unwrap();
        let left = run(breaking(Evict::Holder(token))).await;
        assert_eq!(left.get_array("holders").unwrap(), &[Bson::from(second)]);
    }
}

/// The most entries that one operation requests, fresh and repeated, nest no deeper than a command may.
#[tokio::test]
async fn many_entries_fit_one_operation() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("many"));
    let collection = database.collection::<Document>("locks");
    let mut expected: Option<State> = None;
    for (number, fresh) in [(1, true), (2, false), (3, true)] {
        let entries = (0..QUEUE_MOST).map(|entry| request(&format!("a-{entry}"), true, fresh));
        let operation = operation(number, &[], (Kind::Semaphore, 200), entries);
        let now = ServerTime(1_700_000_000_000).plus_millis(number * 10_000);
        expected = state::apply(expected.as_ref(), &operation, now);
        let found = document_after(&collection, &operation, &Bson::from(now)).await;
        let found = State::from_document(&found).unwrap();
        assert_eq!(Some(found), expected, "{number}");
    }
}
