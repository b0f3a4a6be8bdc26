//! The last holds of a lock, as its document keeps them.

use watchlock::operate::{HoldEnd, PastHold};

use crate::setup::*;

const SECOND: Duration = Duration::from_secs(1);

/// Two clients that keep a history, in each of the three places.
async fn places(name: &str) -> Vec<(LockClient, LockClient)> {
    places_with(name, |builder, number| {
        builder.history(3).label(["first", "second"][number])
    })
    .await
}

async fn past(locks: &LockClient, name: &str) -> Vec<PastHold> {
    info(locks, name).await.unwrap().past
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_holds_are_kept_with_how_they_ended_newest_first() {
    for (a, b) in places("history").await {
        // A release of a lock that nobody waits for, and one that hands over.
        let first = a.mutex("x").acquire().reason("of the 1st").await.unwrap();
        let mut tokens = vec![first.token()];
        first.release().await.unwrap();
        let second = a.mutex("x").acquire().await.unwrap();
        tokens.push(second.token());
        let waiting = in_line(&a, "x", 1, b.mutex("x").acquire().reason("of the 3rd")).await;
        second.release().await.unwrap();
        let third = within(PATIENCE, "the grant", waiting).await.unwrap().unwrap();
        tokens.push(third.token());
        // A client has one operation on its way for a name: after this try, none that was sent before the grant. One
        // that came after the break would be granted for a moment, and be a hold of its own.
        assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
        a.break_lock("x").await.unwrap();
        assert_eq!(within(PATIENCE, "the loss", third.lost()).await, LostReason::Broken);
        assert_eq!(third.release().await.unwrap(), Released::WasLost);

        tokens.reverse();
        let held = past(&b, "x").await;
        assert_eq!(held.iter().map(|past| past.token).collect::<Vec<_>>(), tokens);
        let ends = held
            .iter()
            .map(|past| (past.owner.label.as_deref(), past.owner.reason.as_deref(), past.how));
        assert_eq!(
            ends.collect::<Vec<_>>(),
            [
                (Some("second"), Some("of the 3rd"), HoldEnd::Broken),
                (Some("first"), None, HoldEnd::Released),
                (Some("first"), Some("of the 1st"), HoldEnd::Released),
            ]
        );
        assert!(held.windows(2).all(|two| two[0].since >= two[1].ended), "{held:?}");
        assert!(
            held.iter()
                .all(|past| past.ended >= past.since && past.permits == Some(1))
        );

        // No more than were asked for.
        let fourth = b.mutex("x").acquire().await.unwrap();
        tokens.insert(0, fourth.token());
        drop(fourth);
        eventually(PATIENCE, "the release", async || is_vacant(&a, "x").await).await;
        let held = past(&a, "x").await;
        assert_eq!(held.iter().map(|past| past.token).collect::<Vec<_>>(), tokens[..3]);
        assert_eq!(a.list().await.unwrap()[0].past, held);
    }
}

#[tokio::test(start_paused = true)]
async fn every_end_is_told_apart() {
    let memory = InMemory::new();
    let builder = || memory.builder().history(20).owner_id("job");
    let locks = builder().build().await.unwrap();
    let kept = locks.mutex("kept").acquire().at_least_for(60 * SECOND).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(kept.release().await.unwrap(), Released::Kept);
    assert_eq!(past(&locks, "kept").await, [], "it is still taken");
    let next = locks.mutex("kept").acquire().await.unwrap();
    let ended = past(&locks, "kept").await.remove(0);
    let held = ended.ended.duration_since(ended.since).unwrap();
    assert_eq!(ended.how, HoldEnd::Released);
    assert!((SECOND..2 * SECOND).contains(&held), "{held:?}");

    let adopts = builder().build().await.unwrap();
    let _again = adopts.mutex("kept").acquire().await.unwrap();
    assert_eq!(next.lost().await, LostReason::Adopted);
    assert_eq!(past(&locks, "kept").await[0].how, HoldEnd::Adopted);

    let long = locks.mutex("long").acquire().lose_after(5 * SECOND).await.unwrap();
    assert_eq!(long.lost().await, LostReason::HeldTooLong);
    eventually(PATIENCE, "the release", async || is_vacant(&locks, "long").await).await;
    let _after = adopts.mutex("long").acquire().await.unwrap();
    assert_eq!(past(&locks, "long").await[0].how, HoldEnd::HeldTooLong);

    let semaphore = locks.semaphore("s", 4);
    let (two, one) = (
        semaphore.acquire_many(2).await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    two.release().await.unwrap();
    one.release().await.unwrap();
    let permits = past(&locks, "s")
        .await
        .iter()
        .map(|past| past.permits)
        .collect::<Vec<_>>();
    assert_eq!(permits, [Some(1), Some(2)]);
}

/// Nobody releases it: the next client that asks finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ran_out_is_recorded_by_the_next_client() {
    for ground in Ground::both("history_expired").await {
        let locks = ground.builder().await.history(3).build().await.unwrap();
        // As of a process that died.
        let held = locks.mutex("x").acquire().reason("dies").await.unwrap();
        held.release().await.unwrap();
        let documents = ground.documents().await;
        let dead = doc! { "$set": { "holders": [{
            "$let": { "vars": { "past": { "$arrayElemAt": ["$ends", 0] } }, "in": {
                "id": "dead-1", "permits": 1_i64, "lease": 30_000_i64, "claim": 5_000_i64, "token": "$token",
                "since": "$$past.since", "until": "$$past.ended", "owner": "$$past.owner",
            } },
        }], "ends": "nonsense" } };
        documents.update_one(doc! { "_id": "x" }, vec![dead]).await.unwrap();
        let held = locks.mutex("x").acquire().await.unwrap();
        let ended = past(&locks, "x").await;
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(
            (ended[0].how, ended[0].owner.reason.as_deref()),
            (HoldEnd::Expired, Some("dies"))
        );
        assert_eq!(ended[0].ended, info(&locks, "x").await.unwrap().past[0].ended);
        held.release().await.unwrap();
    }
}

/// A document of an earlier version, and a client that keeps none.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_history_leaves_that_of_others_alone() {
    let ground = Ground::replica_set("history_none").await;
    let (with, without) = (
        ground.builder().await.history(2).build().await.unwrap(),
        ground.locks().await,
    );
    without.mutex("x").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(past(&with, "x").await, []);
    let stored = async || -> Option<Document> { ground.documents().await.find_one(doc! { "_id": "x" }).await.unwrap() };
    assert!(!stored().await.unwrap().contains_key("ends"), "nothing is written");
    with.mutex("x").acquire().await.unwrap().release().await.unwrap();
    let before = past(&with, "x").await;
    assert_eq!(before.len(), 1);
    without.mutex("x").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(past(&without, "x").await, before);
}

/// A claim finds the documents whose lease is over, and records that.
#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_have_a_history() {
    let ground = Ground::replica_set("history_documents").await;
    let database = ground.driver().await.database(&ground.database);
    let jobs = database.collection::<Document>("jobs");
    let locks = LockClient::builder(database).history(3).build().await.unwrap();
    jobs.insert_one(doc! { "_id": 1, "open": true }).await.unwrap();
    let documents = locks.documents(jobs);
    documents
        .acquire(1)
        .reason("first")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    documents
        .claim(doc! { "open": true })
        .reason("second")
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let past = documents.inspect(1).await.unwrap().unwrap().past;
    let reasons = past.iter().map(|past| past.owner.reason.as_deref().unwrap());
    assert_eq!(reasons.collect::<Vec<_>>(), ["second", "first"]);
}
