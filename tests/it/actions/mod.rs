//! The one action and the one handle, whatever is acquired: what their types promise.

mod run;

use std::future::pending;

use tokio::time::timeout;
use watchlock::{
    Acquire, View,
    action::{AnyLock, OrHeld, Try},
    documents, election, locks,
};

use crate::setup::*;

/// Compiles for types that any task can have, share, and hold across an await.
fn is_shared<T: Send + Sync + Unpin + 'static>() {}

#[test]
fn actions_handles_and_views_of_all_targets_can_be_shared_among_tasks() {
    is_shared::<Acquire<locks::Mutex>>();
    is_shared::<Acquire<locks::MultiLock, Try>>();
    is_shared::<Acquire<documents::Claim<Document>>>();
    is_shared::<Acquire<documents::Element<Document>, OrHeld>>();
    is_shared::<(Held, View)>();
    is_shared::<(Held<locks::MultiLock>, View<locks::MultiLock>)>();
    is_shared::<(Held<documents::Document<Document>>, View<documents::Document<Document>>)>();
    is_shared::<(Held<locks::Once>, Held<election::Election>)>();
}

#[tokio::test]
async fn an_acquire_is_a_future_that_keeps_its_place_and_a_clone_begins_anew() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let held = a.mutex("x").acquire().await.unwrap();
    let mut acquire = b.mutex("x").acquire().reason("the first");
    let template = acquire.clone();
    for _ in 0..3 {
        let polled = timeout(Duration::from_millis(20), &mut acquire).await;
        assert!(polled.is_err(), "{polled:?}");
        until_waiting(&a, "x", 1).await;
    }
    // The options of one that has begun are those of its beginning.
    let begun = spawn(acquire.reason("too late"));
    assert_eq!(held.release().await.unwrap(), Released::Released);
    let first = within(PATIENCE, "the first", begun).await.unwrap().unwrap();
    let holder = &info(&a, "x").await.unwrap().holders[0];
    assert_eq!(holder.owner.reason.as_deref(), Some("the first"));

    // The template was never polled, so it has no place, and gets in line behind.
    let later = spawn(template.clone());
    until_waiting(&a, "x", 1).await;
    drop(first);
    let second = within(PATIENCE, "the second", later).await.unwrap().unwrap();
    assert_eq!(second.release().await.unwrap(), Released::Released);
    drop(template);
    eventually(PATIENCE, "all is given back", async || is_vacant(&a, "x").await).await;
}

/// Otherwise it would wait behind itself.
#[tokio::test]
async fn an_acquire_that_has_begun_goes_on_from_its_place_to_its_work() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    for is_held in [true, false] {
        let held = a.mutex("x").acquire().await.unwrap();
        let mut begun = b.mutex("x").acquire();
        let polled = timeout(Duration::from_millis(20), &mut begun).await;
        assert!(polled.is_err(), "{polled:?}");
        until_waiting(&a, "x", 1).await;
        let behind = spawn(a.mutex("x").acquire());
        until_waiting(&a, "x", 2).await;
        let release = async {
            if is_held {
                tokio::task::yield_now().await;
            }
            held.release().await.unwrap()
        };
        let run = begun.run(async |held| held.token());
        let (token, _) = if is_held {
            tokio::join!(run, release)
        } else {
            // It is granted before its work is asked for.
            let released = release.await;
            (run.await, released)
        };
        let behind = within(PATIENCE, "the next", behind).await.unwrap().unwrap();
        assert!(token.unwrap() < behind.token());
        assert_eq!(behind.release().await.unwrap(), Released::Released);
        eventually(PATIENCE, "it is free", async || is_vacant(&a, "x").await).await;
    }
}

#[tokio::test]
async fn a_held_lock_of_any_kind_is_one_of_any_kind() {
    let locks = InMemory::new().client();
    let held: [Held; 5] = [
        locks.mutex("m").acquire().await.unwrap().into(),
        locks.semaphore("s", 2).try_acquire().await.unwrap().unwrap().into(),
        locks.rw_lock("r").read().await.unwrap().into(),
        locks.rw_lock("w").try_write().or_held().await.unwrap().into(),
        locks.election("e").campaign("me").await.unwrap().into(),
    ];
    let names: Vec<&str> = held.iter().map(|lock| lock.name()).collect();
    assert_eq!(names, ["m", "s", "r", "w", "e"]);
    let view: View<AnyLock> = locks.mutex("n").acquire().await.unwrap().view().into();
    assert!(!view.is_held(), "its handle was dropped");
    // It is held as it was: the one handle releases it.
    for lock in held {
        let (name, view) = (lock.name().to_owned(), lock.view());
        assert!(view.is_held(), "{name}");
        assert_eq!(lock.release().await.unwrap(), Released::Released, "{name}");
        assert!(is_vacant(&locks, &name).await, "{name}");
    }
}

/// The work has the handle, and the future of a work that is lost is dropped, for all targets alike.
#[tokio::test]
async fn work_on_an_element_runs_under_its_lock() {
    use mongodb::bson::doc;
    use watchlock::{LostReason, testing::MemoryCollection};

    let memory = MemoryCollection::new();
    memory
        .insert_one(doc! { "_id": 7, "lines": [{ "sku": "x", "n": 1 }] })
        .await
        .unwrap();
    let orders = InMemory::new().client().documents_in_memory::<Document>(&memory);
    let line = orders.element::<Document>("lines", doc! { "sku": "x" });
    let count = line
        .acquire(7)
        .run(async |line| line.update(doc! { "$inc": { "n": 1 } }).await);
    assert_eq!(count.await.unwrap().unwrap(), doc! { "sku": "x", "n": 2 });
    let held = line.acquire(7).await.unwrap();
    assert_eq!(line.try_acquire(7).run(async |_| "beside").await.unwrap(), None);
    held.release().await.unwrap();
    let lost = line.acquire(7).run(async |_| {
        line.break_lock(7).await.unwrap();
        pending::<()>().await;
    });
    let lost = within(PATIENCE, "the loss", lost).await;
    assert_is!(lost, Err(AcquireError::Lost(lost)) if *lost == LostReason::Broken);
}
