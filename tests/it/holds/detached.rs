//! Holds that live without their handle, and the clients that take them up.

use watchlock::{Detached, errors::HoldError};

use crate::setup::*;

const SECOND: Duration = Duration::from_secs(1);

/// Not much longer than twice the skew margin, which is the least.
const BRIEF: Duration = Duration::from_millis(2_200);

/// One hold of each kind that can be detached.
async fn one_of_each(locks: &LockClient) -> Vec<Held> {
    vec![
        locks.mutex("mutex").acquire().lease(BRIEF).await.unwrap().into(),
        locks
            .semaphore("permits", 5)
            .acquire_many(3)
            .lease(BRIEF)
            .await
            .unwrap()
            .into(),
        locks.rw_lock("read").read().lease(BRIEF).await.unwrap().into(),
        locks.rw_lock("write").write().lease(BRIEF).await.unwrap().into(),
        locks.mutex("fixed").acquire().fixed(BRIEF).await.unwrap().into(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_hold_is_taken_up_by_another_client_under_its_token() {
    for (a, b) in places("detached").await {
        let holds = join_all(one_of_each(&a).await.into_iter().map(async |held| {
            let (view, permits) = (held.view(), held.permits());
            let detached = held.detach().await.unwrap();
            assert_eq!((detached.name(), detached.token()), (view.name(), view.token()));
            assert_eq!(view.lost().await, LostReason::Released);
            let shown = info(&b, detached.name()).await.unwrap();
            assert!(shown.is_held() && shown.holders[0].detached, "{shown:?}");
            // By its name and its token alone, too.
            let named = Detached::new(detached.name(), detached.token());
            let held = b.attach(&named).await.unwrap().expect("it is held");
            assert_eq!((held.token(), held.permits()), (detached.token(), permits));
            let shown = info(&a, detached.name()).await.unwrap();
            assert_eq!(
                (shown.holders[0].token, shown.holders[0].detached),
                (detached.token(), false)
            );
            (detached, held)
        }))
        .await;
        // It is renewed, also if it was not before.
        pause(2 * BRIEF).await;
        for (detached, held) in holds {
            assert!(held.is_held(), "{held:?}");
            assert_eq!(held.release().await.unwrap(), Released::Released);
            assert!(is_vacant(&a, detached.name()).await, "{detached:?}");
            assert!(b.attach(&detached).await.unwrap().is_none());
        }
        assert!(a.mutex("mutex").acquire().await.unwrap().is_held());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_attach_one_hold_one_has_it_at_a_time() {
    for (a, b) in places("attached").await {
        let mut detached = a.mutex("x").acquire().await.unwrap().detach().await.unwrap();
        let token = detached.token();
        for _ in 0..3 {
            let many = (0..50).map(|number| {
                let (locks, detached) = (if number % 2 == 0 { &a } else { &b }.clone(), detached.clone());
                spawn(async move { locks.attach(&detached).await })
            });
            let mut held = Vec::new();
            for attached in join_all(many).await {
                match attached.unwrap() {
                    Ok(Some(handle)) => held.push(handle),
                    Err(AcquireError::Held { contention, .. }) => {
                        assert_eq!(contention.holders[0].token, token);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(held.len(), 1, "{held:?}");
            let handle = held.remove(0);
            assert_eq!(handle.lost_reason(), None);
            // A handle is not taken away from its client, nor renewed for it.
            assert!(matches!(b.attach(&detached).await, Err(AcquireError::Held { .. })));
            assert_eq!(b.renew_detached(&detached).await.unwrap(), None);
            detached = handle.detach().await.unwrap();
            assert_eq!(detached.token(), token);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_hold_lasts_for_its_lease_unless_it_is_renewed() {
    let places = places("alone").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let over = a
            .mutex("over")
            .acquire()
            .lease(BRIEF)
            .await
            .unwrap()
            .detach()
            .await
            .unwrap();
        let renewed = a
            .mutex("renewed")
            .acquire()
            .lease(2 * BRIEF)
            .await
            .unwrap()
            .detach()
            .await
            .unwrap();
        pause(BRIEF).await;
        let before = info(b, "renewed").await.unwrap().holders[0].until;
        let after = b.renew_detached(&renewed).await.unwrap().expect("it is held");
        assert!(after.holders[0].until > before + BRIEF / 2, "{after:?}");
        assert!(after.holders[0].detached && after.is_held());
        eventually(PATIENCE, "its time is over", async || {
            !info(b, "over").await.unwrap().is_held()
        })
        .await;
        assert!(b.attach(&over).await.unwrap().is_none());
        assert_eq!(b.renew_detached(&over).await.unwrap(), None);
        assert!(b.mutex("over").try_acquire().await.unwrap().is_some());
        pause(BRIEF).await;
        assert!(b.attach(&renewed).await.unwrap().is_some());
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_broken_is_lost_to_its_detached_value_and_to_its_new_handle() {
    for (a, b) in places("broken").await {
        let detached = a.mutex("x").acquire().await.unwrap().detach().await.unwrap();
        assert!(b.break_holder("x", detached.token()).await.unwrap().is_some());
        assert!(b.attach(&detached).await.unwrap().is_none());
        let detached = a.mutex("x").acquire().await.unwrap().detach().await.unwrap();
        let held = b.attach(&detached).await.unwrap().expect("it is held");
        pause(SOON).await;
        a.break_lock("x").await.unwrap();
        assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Broken);
        assert!(a.attach(&detached).await.unwrap().is_none());
    }
}

/// Those of the client are not handed it inside the process, although nobody else waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_of_the_client_has_no_part_in_a_detached_hold() {
    for (a, b) in places("behind").await {
        let held = a.mutex("x").acquire().await.unwrap();
        let behind = in_line(&b, "x", 1, a.mutex("x").acquire()).await;
        let detached = held.detach().await.unwrap();
        let held = b.attach(&detached).await.unwrap().expect("it is held");
        assert!(held.is_held() && !behind.is_finished());
        held.release().await.unwrap();
        assert!(granted(behind).await.token() > detached.token());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_others_share_is_not_detached() {
    for (a, b) in places("shared").await {
        let outer = a.mutex("x").acquire().await.unwrap();
        let inner = a.mutex("x").acquire().reentrant().await.unwrap();
        let error = inner.detach().await.unwrap_err();
        assert!(matches!(error, HoldError::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains("2 handles"), "{error}");
        assert!(outer.is_held());
        assert_eq!(outer.release().await.unwrap(), Released::Released);
        let (one, other) = (
            a.rw_lock("r").read().await.unwrap(),
            a.rw_lock("r").read().await.unwrap(),
        );
        // They share one entry, unless the second came before the answer to the first.
        if info(&b, "r").await.unwrap().holders.len() == 1 {
            assert!(matches!(one.detach().await.unwrap_err(), HoldError::Invalid(_)));
            assert!(other.is_held());
            assert!(b.rw_lock("r").try_write().await.unwrap().is_none());
            other.release().await.unwrap();
            assert!(is_vacant(&b, "r").await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_document_is_not_detached() {
    let ground = Ground::replica_set("detached").await;
    let documents = ground.documents().await;
    documents.insert_one(doc! { "_id": 7 }).await.unwrap();
    let locks = ground.locks().await.documents::<Document>(documents);
    let held: Held = locks.acquire(7).await.unwrap().into();
    let error = held.detach().await.unwrap_err();
    assert!(error.to_string().contains("document 7"), "{error}");
    eventually(PATIENCE, "its release", async || {
        locks.try_acquire(7).await.unwrap().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_for_which_a_lock_is_kept_goes_with_a_detached_hold() {
    for (a, b) in places("kept").await {
        let held = a.mutex("x").acquire().at_least_for(60 * SECOND).await.unwrap();
        let detached = held.detach().await.unwrap();
        let held = b.attach(&detached).await.unwrap().expect("it is held");
        assert_eq!(held.release().await.unwrap(), Released::Kept);
        assert!(b.attach(&detached).await.unwrap().is_none(), "nobody holds it");
    }
}

/// The command was carried out, and its answer came late: the client that sent it and the one that takes the hold up
/// never have it at the same time.
#[tokio::test(start_paused = true)]
async fn a_hold_is_given_up_here_before_it_is_anybody_elses() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let held = a.mutex("x").acquire().await.unwrap();
    let view = held.view();
    memory.set_frozen(&a, true).unwrap();
    let detaching = tokio::spawn(held.detach());
    pause(SECOND).await;
    assert!(!view.is_held());
    let named = Detached::new("x", view.token());
    assert!(
        matches!(b.attach(&named).await, Err(AcquireError::Held { .. })),
        "it is not detached so far"
    );
    memory.set_frozen(&a, false).unwrap();
    let detached = detaching.await.unwrap().unwrap();
    assert!(b.attach(&detached).await.unwrap().expect("it is held").is_held());
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn a_detached_hold_goes_through_json() {
    let locks = LockClient::in_memory();
    let held = locks.mutex("x").acquire().at_least_for(SECOND).await.unwrap();
    let detached = held.detach().await.unwrap();
    let text = serde_json::to_string(&detached).unwrap();
    assert_eq!(serde_json::from_str::<Detached>(&text).unwrap(), detached);
    let short = serde_json::json!({ "name": "x", "token": detached.token() });
    let short: Detached = serde_json::from_value(short).unwrap();
    assert_eq!(short, Detached::new("x", detached.token()));
}
