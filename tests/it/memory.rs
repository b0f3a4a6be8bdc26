//! Memory in the place of a server: its collection answers as the driver's, and a test can set faults.

use std::pin::pin;

use futures::{future::join, poll};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use watchlock::{
    errors::HoldError,
    operate::{PollingReason, WakeMode},
};

use crate::setup::*;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i32,
    state: String,
    lines: Vec<i64>,
}

/// The results of the same calls of a collection, whosever it is.
macro_rules! told {
    ($orders:expr) => {{
        let (orders, mut told) = ($orders, Vec::new());
        let open = || doc! { "state": "open" };
        for id in 1..=4 {
            let (state, lines) = ("open".to_owned(), vec![id.into(), 7]);
            let inserted = orders.insert_one(Order { id, state, lines }).await.unwrap();
            told.push(format!("{inserted:?}"));
        }
        let set = doc! { "$set": { "state": "paid" }, "$inc": { "n": 1 } };
        for filter in [open(), doc! { "_id": 1 }, doc! { "_id": 9 }] {
            let updated = orders.update_one(filter, set.clone()).await.unwrap();
            told.push(format!("{updated:?}"));
        }
        let same = orders.update_one(doc! { "lines": 2_i64 }, doc! { "$set": open() });
        told.push(format!("{:?}", same.await.unwrap()));
        told.push(format!(
            "{:?}",
            orders
                .update_many(open(), doc! { "$unset": { "none": "" } })
                .await
                .unwrap()
        ));
        told.push(format!(
            "{:?}",
            orders
                .find_one(doc! { "lines": { "$gt": 3 }, "_id": { "$in": [4, 5] } })
                .await
                .unwrap()
        ));
        let (id, state) = (4, "sent".to_owned());
        let replaced = orders.replace_one(
            doc! { "_id": 4 },
            Order {
                id,
                state,
                lines: vec![],
            },
        );
        told.push(format!("{:?}", replaced.await.unwrap()));
        told.push(format!("{:?}", orders.delete_one(open()).await.unwrap()));
        told.push(format!("{:?}", orders.count_documents(doc! {}).await.unwrap()));
        told.push(format!(
            "{:?}",
            orders.delete_many(doc! { "_id": { "$lte": 3 } }).await.unwrap()
        ));
        told.push(format!("{:?}", orders.find_one(doc! {}).await.unwrap()));
        told.push(format!(
            "{:?}",
            orders.count_documents(doc! { "_id": 1 }).await.unwrap()
        ));
        told
    }};
}

#[tokio::test]
async fn the_collection_in_memory_answers_as_the_drivers() {
    let ground = Ground::replica_set("memory").await;
    let there = ground.collection("orders").await.clone_with_type::<Order>();
    let here = MemoryCollection::<Order>::new();
    assert_eq!(told!(&here), told!(&there));

    // What can't be read as the type is named.
    let raw = here.clone_with_type::<Document>();
    raw.insert_one(doc! { "_id": 8, "state": 8 }).await.unwrap();
    for error in [
        here.find_one(doc! { "_id": 8 }).await.unwrap_err(),
        here.find(doc! {}).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("the `_id` 8"), "{error}");
    }
    assert_eq!(raw.find(doc! {}).await.unwrap().len(), 2);
    // A refusal changes nothing.
    let push = raw.update_many(doc! {}, doc! { "$set": { "n": 1 }, "$push": { "lines": 1 } });
    assert!(push.await.unwrap_err().to_string().contains("`$push`"));
    assert_eq!(raw.count_documents(doc! { "n": 1 }).await.unwrap(), 0);
}

/// The client's own by default.
const LEASE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn every_call_during_an_outage_ends_with_its_error_and_goes_on_afterwards() {
    let memory = InMemory::new();
    let (one, other) = (memory.client(), memory.client());
    let events = MemoryCollection::<Document>::new();
    events.insert_one(doc! { "_id": 1 }).await.unwrap();
    let documents = one.documents_in_memory(&events);
    let (held, event) = (
        one.mutex("held").acquire().await.unwrap(),
        documents.acquire(1).await.unwrap(),
    );
    let waiting = tokio::spawn(other.mutex("held").acquire());
    sleep(Duration::from_secs(1)).await;

    memory.set_outage(true);
    let error = other
        .mutex("x")
        .acquire()
        .timeout(Duration::from_secs(5))
        .await
        .unwrap_err();
    assert_is!(error, AcquireError::Unanswered { error: Some(_), .. });
    let mut told = vec![error.to_string()];
    let error = other.mutex("x").try_acquire().await.unwrap_err();
    assert!(matches!(&error, AcquireError::Server(_)), "{error:?}");
    told.push(error.to_string());
    told.push(one.inspect("held").await.unwrap_err().to_string());
    let error = event.update(doc! { "$set": { "n": 1 } }).await.unwrap_err();
    assert!(matches!(&error, HoldError::Server(_)), "{error:?}");
    told.push(error.to_string());
    assert!(told.iter().all(|told| told.contains("outage")), "{told:?}");
    // Less than a lease of the holders has passed, and a client that is built now has the same outage.
    assert!(memory.client().mutex("x").try_acquire().await.is_err());
    assert_eq!((held.lost_reason(), event.lost_reason()), (None, None));
    let mode = other.wake_mode();
    assert_eq!(mode, WakeMode::Polling(PollingReason::Interrupted));

    memory.set_outage(false);
    let x = other.mutex("x").acquire().await.unwrap();
    event.update(doc! { "$set": { "n": 1 } }).await.unwrap();
    sleep(LEASE * 3).await;
    assert_eq!(
        (held.lost_reason(), event.lost_reason(), x.lost_reason()),
        (None, None, None)
    );
    assert_eq!(other.wake_mode(), WakeMode::ChangeStream);
    held.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().lost_reason(), None);
}

/// The clients of other memory have none of it.
#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_ends_every_hold_at_its_deadline() {
    let memory = InMemory::new();
    let (one, other, apart) = (memory.client(), memory.client(), LockClient::in_memory());
    let (held, held_apart) = (
        one.mutex("x").acquire().await.unwrap(),
        apart.mutex("x").acquire().await.unwrap(),
    );
    memory.set_outage(true);
    let begun = Instant::now();
    let lost = within(2 * LEASE, "the lease ends", held.lost());
    assert_eq!(lost.await, LostReason::Expired);
    assert!(begun.elapsed() <= LEASE, "{:?}", begun.elapsed());
    sleep(LEASE).await;
    assert_eq!(held_apart.lost_reason(), None);
    memory.set_outage(false);
    assert!(other.mutex("x").acquire().await.unwrap().token() > held.token());
}

#[tokio::test(start_paused = true)]
async fn a_frozen_client_loses_its_locks_at_the_deadline_and_another_takes_over() {
    let memory = InMemory::new();
    let (frozen, other) = (memory.client(), memory.client());
    let events = MemoryCollection::<Document>::new();
    events.insert_one(doc! { "_id": 1 }).await.unwrap();
    let (held, event) = (
        frozen.mutex("x").acquire().await.unwrap(),
        frozen.documents_in_memory(&events).acquire(1).await.unwrap(),
    );
    let broken = frozen.mutex("broken").acquire().await.unwrap();
    // By then a stream is open for what it holds.
    sleep(Duration::from_secs(5)).await;
    memory.set_frozen(&frozen, true).unwrap();
    // Its stream tells it nothing either.
    other.break_lock("broken").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(broken.lost_reason(), None);
    let begun = Instant::now();
    let events = other.documents_in_memory(&events);
    let both = join(async { (held.lost().await, Instant::now()) }, async {
        (other.mutex("x").acquire().await.unwrap(), Instant::now())
    });
    let both = within(2 * LEASE, "the lease ends", both);
    let ((lost, lost_at), (next, taken_at)) = both.await;
    assert_eq!(lost, LostReason::Expired);
    assert!(lost_at <= taken_at, "{:?} later", lost_at - taken_at);
    assert!(
        begun.elapsed() <= LEASE + Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(next.token() > held.token());
    assert!(events.acquire(1).await.unwrap().token() > event.token());
    assert_eq!(event.lost_reason(), Some(LostReason::Expired));
    // It gets no answer, and no error either.
    let error = frozen.mutex("y").acquire().timeout(LEASE).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Unanswered { .. }) && !error.to_string().contains("outage"),
        "{error}"
    );

    let waiting = tokio::spawn(frozen.mutex("x").acquire());
    memory.set_frozen(&frozen, false).unwrap();
    sleep(LEASE).await;
    // What it sent meanwhile has done no harm, and left nothing.
    assert_eq!(next.lost_reason(), None);
    assert!(other.mutex("y").try_acquire().await.unwrap().is_some());
    let begun = Instant::now();
    let next_token = next.token();
    next.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > next_token);
    assert_eq!(begun.elapsed(), Duration::ZERO, "it is woken by an event");
}

/// Once it is thawed, the updates and the releases that followed them come in any order.
/// The command that grants the lock and the reading each have the time of a try.
#[tokio::test(start_paused = true)]
async fn a_try_that_was_granted_late_reads_its_document() {
    let memory = InMemory::new();
    let (client, orders) = (memory.client(), MemoryCollection::<Document>::new());
    orders.insert_one(doc! { "_id": 1, "total": 7 }).await.unwrap();
    memory.set_frozen(&client, true).unwrap();
    let locks = client.documents_in_memory(&orders);
    let mut trying = pin!(locks.try_acquire(1).into_future());
    assert!(poll!(&mut trying).is_pending());
    sleep(Duration::from_millis(9900)).await;
    memory.set_frozen(&client, false).unwrap();
    let held = doc! { "watchlock.holders": { "$exists": true } };
    while orders.find(held.clone()).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    memory.set_frozen(&client, true).unwrap();
    assert!(poll!(&mut trying).is_pending());
    sleep(Duration::from_secs(3)).await;
    assert!(poll!(&mut trying).is_pending(), "the reading is not answered");
    memory.set_frozen(&client, false).unwrap();
    let held = trying.await.unwrap().expect("nobody else wants it");
    assert_eq!(held.document().get_i32("total").unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn the_callers_of_updates_that_are_not_answered_are_told_in_time_and_the_updates_go_on() {
    let (memory, events) = (InMemory::new(), MemoryCollection::<Document>::new());
    let client = memory.client();
    let jobs = client.documents_in_memory(&events);
    let mut held = Vec::new();
    for id in 0..30 {
        events.insert_one(doc! { "_id": id, "n": 0 }).await.unwrap();
        held.push(jobs.acquire(id).lease(Duration::from_secs(3_600)).await.unwrap());
    }
    memory.set_frozen(&client, true).unwrap();
    let begun = Instant::now();
    let updates = held
        .into_iter()
        .map(|job| job.update_and_release(doc! { "$inc": { "n": 1 } }));
    for told in join_all(updates).await {
        assert!(matches!(&told, Err(HoldError::Server(_))), "{told:?}");
    }
    // Ten minutes, as their lease is longer.
    assert_eq!(begun.elapsed().as_secs(), 600);
    memory.set_frozen(&client, false).unwrap();
    for id in 0..30 {
        drop(jobs.acquire(id).timeout(LEASE).await.unwrap());
    }
    assert_ne!(events.find(doc! { "n": 1 }).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_client_of_other_memory_can_not_be_frozen() {
    let memory = InMemory::new();
    for apart in [LockClient::in_memory(), InMemory::new().client()] {
        let error = memory.set_frozen(&apart, true).unwrap_err();
        assert!(error.to_string().contains("not a client of this memory"), "{error}");
        assert!(apart.mutex("x").try_acquire().await.unwrap().is_some());
    }
    // Each of the clients that one builder builds is one by itself.
    let builder = memory.builder();
    let (one, other) = (builder.clone().build().await.unwrap(), builder.build().await.unwrap());
    memory.set_frozen(&one, true).unwrap();
    assert!(other.mutex("x").try_acquire().await.unwrap().is_some());
}
