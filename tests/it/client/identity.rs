//! Who holds and who waits, told where it matters: in errors, to handles of one client, and over a restart.

use watchlock::{
    LockClientBuilder, locks,
    operate::{LockEvent, WakeSource},
};

use crate::setup::*;

/// Builders for two incarnations of an owner and for somebody else, in each of the three places, and polling on a
/// replica set.
async fn owners(name: &str) -> Vec<[LockClientBuilder; 3]> {
    let memory = InMemory::new();
    let (set, alone) = (Ground::replica_set(name).await, Ground::standalone(name).await);
    let (auto, polling) = (WakeSource::Auto, WakeSource::Polling);
    let mut owners = Vec::new();
    for (ground, source) in [
        (None, auto),
        (Some(&set), auto),
        (Some(&alone), auto),
        (Some(&set), polling),
    ] {
        let owner = async |id: &str| match ground {
            None => memory.builder().owner_id(id),
            Some(ground) => {
                let builder = ground.builder().await.wake_source(source);
                builder.collection(format!("{source:?}")).owner_id(id)
            }
        };
        owners.push([
            owner("worker-3").await,
            owner("worker-3").await,
            owner("worker-4").await,
        ]);
    }
    owners
}

/// Two clients with labels, as two processes would have them, in each of the three places.
async fn places(name: &str) -> Vec<(LockClient, LockClient)> {
    places_with(name, |builder, number| builder.label(["a", "b"][number])).await
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_tell_who_holds_why_and_how_many_come_before() {
    for (a, b) in places("tells").await {
        let held = a.mutex("x").acquire().reason("monthly run").await.unwrap();
        let error = b.mutex("x").try_acquire().or_held().await.unwrap_err();
        let message = error.to_string();
        let told = contention(error);
        let holder = &told.holders[0];
        assert_eq!(holder.token, held.token());
        assert_eq!(
            (holder.owner.label.as_deref(), holder.owner.pid),
            (Some("a"), std::process::id())
        );
        assert!(holder.until > holder.since && told.as_of >= holder.since);
        assert_eq!((told.waiting_before, told.held_here), (0, false));
        assert!(
            message.starts_with("`x` is not free: held by a (") && message.contains("because of \"monthly run\""),
            "{message}"
        );

        // In line behind another client's task and one of its own.
        let _first = in_line(&a, "x", 1, a.mutex("x").acquire()).await;
        let _second = in_line(&a, "x", 2, b.mutex("x").acquire()).await;
        let behind = b.mutex("x").acquire().timeout(Duration::from_millis(200));
        let error = behind.await.unwrap_err();
        let message = error.to_string();
        let told = contention(error);
        assert_eq!(told.holders[0].token, held.token());
        assert_eq!(told.waiting_before, 2, "{message}");
        assert!(
            message.contains("`x` was not free within 200ms: held by a") && message.contains("2 waiters ahead of us")
        );

        // To oneself, it says so.
        let error = a.mutex("x").acquire().timeout(Duration::ZERO).await.unwrap_err();
        assert!(contention(error).held_here);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_does_not_read_like_contention_and_a_try_has_a_bound() {
    let cluster = shared::replica_set().await;
    let ground = Ground::on(cluster, "outage");
    let other = ground.locks().await;
    let held = other.mutex("x").acquire().await.unwrap();
    let proxy = cluster.proxy(0).unwrap();
    let locks = ground.through(proxy.uri()).locks().await;
    let timeout = Duration::from_millis(300);

    // As long as the server answers, which it does within this time on a busy machine too, it is contention.
    let told = locks.mutex("x").acquire().timeout(2 * SOON).await.unwrap_err();
    contention(told);
    until_waiting(&other, "x", 0).await;

    proxy.black_hole();
    for error in [
        within(PATIENCE, "the timeout", locks.mutex("y").acquire().timeout(timeout)).await,
        within(PATIENCE, "the try", locks.mutex("z").try_acquire().timeout(timeout))
            .await
            .map(|tried| tried.expect("an error")),
    ]
    .map(Result::unwrap_err)
    {
        assert_says(&error, &["within 300ms: the server did not answer "]);
        assert_is!(
            error,
            AcquireError::Unanswered {
                contention: None,
                error: Some(_),
                ..
            }
        );
    }
    // There may be no time for an error either.
    let hasty = locks.mutex("y").acquire().timeout(Duration::from_nanos(1)).await;
    let hasty = hasty.unwrap_err();
    assert_is!(hasty, AcquireError::Unanswered { contention: None, .. });
    // No operator waits for longer than it wants to.
    for name in ["x", "y"] {
        tokio::time::timeout(timeout, locks.inspect(name)).await.unwrap_err();
        tokio::time::timeout(timeout, locks.break_lock(name)).await.unwrap_err();
        tokio::time::timeout(timeout, locks.election(name).leader())
            .await
            .unwrap_err();
        tokio::time::timeout(timeout, locks.semaphore(name, 2).available_permits())
            .await
            .unwrap_err();
        tokio::time::timeout(timeout, locks.list().into_future())
            .await
            .unwrap_err();
    }
    proxy.cut();
    proxy.heal();
    // What was asked meanwhile is taken back, and the pool is as good as before: nothing was given up half-way.
    within(PATIENCE, "all is free", async {
        for name in ["y", "z"] {
            eventually(PATIENCE, name, async || is_vacant(&other, name).await).await;
            locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
        }
    })
    .await;
    // Nothing is tried in no time.
    let error = locks
        .mutex("y")
        .try_acquire()
        .timeout(Duration::ZERO)
        .await
        .unwrap_err();
    assert!(matches!(error, AcquireError::Unanswered { error: None, .. }), "{error}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_enters_its_own_hold_where_it_asks_for_that() {
    for (a, b) in places("reentrant").await {
        let outer = a.mutex("x").acquire().await.unwrap();
        let inner = a.mutex("x").acquire().reentrant().await.unwrap();
        let tried = a.mutex("x").try_acquire().reentrant().await.unwrap().unwrap();
        assert!(
            [inner.token(), tried.token()]
                .iter()
                .all(|token| *token == outer.token())
        );
        // The default is another matter, and so are other clients.
        assert!(a.mutex("x").try_acquire().await.unwrap().is_none());
        assert!(b.mutex("x").try_acquire().reentrant().await.unwrap().is_none());
        assert_eq!(info(&b, "x").await.unwrap().holders.len(), 1);

        // In whatever order they go, it is released with the last, be it by release or by drop.
        assert_eq!(outer.release().await.unwrap(), Released::StillHeld);
        drop(tried);
        assert_eq!(inner.status(), LockStatus::Held);
        assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
        inner.renew().await.unwrap();
        let view = inner.view();
        assert_eq!(inner.release().await.unwrap(), Released::Released);
        assert_eq!(view.lost_reason(), Some(LostReason::Released));
        let next = b.mutex("x").try_acquire().await.unwrap().expect("it is free");
        next.release().await.unwrap();

        // Lost for all at once.
        let outer = a.mutex("x").acquire().reentrant().await.unwrap();
        let inner = a.mutex("x").acquire().reentrant().await.unwrap();
        b.break_lock("x").await.unwrap();
        for handle in [&outer, &inner] {
            assert_eq!(within(2 * SOON, "the loss", handle.lost()).await, LostReason::Broken);
        }
        let anew = a.mutex("x").acquire().reentrant().await.unwrap();
        assert!(anew.token() > outer.token(), "what is lost is not entered again");
        assert_eq!(outer.release().await.unwrap(), Released::WasLost);
        assert_eq!(inner.release().await.unwrap(), Released::WasLost);
        assert_eq!(anew.status(), LockStatus::Held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entering_and_leaving_at_once_leaves_one_valid_hold() {
    for (a, b) in places("entering").await {
        let tasks = (0..8).map(|number| {
            let mutex = a.mutex("x");
            spawn(async move {
                for round in 0..25 {
                    let handle: Held<locks::Mutex> = mutex.acquire().reentrant().await.unwrap();
                    assert_eq!(handle.lost_reason(), None);
                    if (number + round) % 2 == 0 {
                        assert_ne!(handle.release().await.unwrap(), Released::WasLost);
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            within(PATIENCE, "all get in", task).await.unwrap();
        }
        let other = within(PATIENCE, "it is free", b.mutex("x").acquire()).await.unwrap();
        assert_eq!(info(&b, "x").await.unwrap().holders[0].token, other.token());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_lives_loses_its_lock_to_its_later_self() {
    for [before, after, other] in owners("adopted").await {
        let before = before.build().await.unwrap();
        let other = other.build().await.unwrap();
        let held = before.mutex("x").acquire().await.unwrap();
        let waiting = in_line(&other, "x", 1, other.mutex("x").acquire()).await;
        let mut events = other.watch("x");
        assert!(matches!(events.next().await, Some(Ok(LockEvent::Granted { .. }))));

        let after = after.build().await.unwrap();
        let again = within(PATIENCE, "at once", after.mutex("x").acquire()).await.unwrap();
        assert!(again.token() > held.token());
        assert_eq!(within(2 * SOON, "the loss", held.lost()).await, LostReason::Adopted);
        let event = within(2 * SOON, "the event", events.next()).await.unwrap().unwrap();
        assert_is!(event, LockEvent::Adopted { token, .. } if *token == held.token());
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        let lock = info(&other, "x").await.unwrap();
        assert_eq!(lock.holders[0].owner.owner_id.as_deref(), Some("worker-3"));
        assert_eq!(lock.waiters[0].owner.owner_id.as_deref(), Some("worker-4"));
        assert_eq!(other.list().owner("worker-3").await.unwrap().len(), 1);

        // The earlier one takes nothing back, nor does anybody from itself.
        for locks in [&before, &after, &other] {
            assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
        }
        assert_eq!(again.status(), LockStatus::Held);
        again.release().await.unwrap();
        let next = within(PATIENCE, "who waited", waiting).await.unwrap().unwrap();
        assert!(next.token() > lock.token);
        // Of one that was released there is nothing to take: it is waited for.
        assert!(after.mutex("x").try_acquire().await.unwrap().is_none());
        assert_eq!(next.status(), LockStatus::Held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_are_adopted_too_and_one_client_is_one_owner() {
    let ground = Ground::replica_set("papers").await;
    let database = ground.driver().await.database(&ground.database);
    let papers = database.collection::<Document>("papers");
    papers.insert_one(doc! { "_id": 1, "text": "kept" }).await.unwrap();
    let owner = async || ground.builder().await.owner_id("worker-3").build().await.unwrap();

    let before = owner().await;
    let held = before.documents(papers.clone()).acquire(1).await.unwrap();
    // In a session of its own, and the same client.
    assert!(before.documents(papers.clone()).try_acquire(1).await.unwrap().is_none());
    let after = owner().await;
    let again = after
        .documents(papers.clone())
        .acquire(1)
        .timeout(PATIENCE)
        .await
        .unwrap();
    assert!(again.token() > held.token());
    assert_eq!(within(2 * SOON, "the loss", held.lost()).await, LostReason::Adopted);
    assert!(before.documents(papers.clone()).try_acquire(1).await.unwrap().is_none());
    again.update(doc! { "$set": { "done": true } }).await.unwrap();
    again.release().await.unwrap();
    let paper = papers.find_one(doc! {}).await.unwrap().unwrap();
    assert!(paper.get_str("text").is_ok_and(|text| text == "kept"));
    assert!(paper.get_bool("done").is_ok_and(|done| done));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_permits_of_the_former_self_come_free() {
    for [before, after, other] in owners("permits").await {
        let before = before.build().await.unwrap();
        let other = other.build().await.unwrap();
        let permits = |locks: &LockClient| locks.semaphore("x", 4);
        let (one, two) = (
            permits(&before).acquire().await.unwrap(),
            permits(&before).acquire_many(2).await.unwrap(),
        );
        let theirs = permits(&other).acquire().await.unwrap();
        let semaphore = permits(&other);
        let waiting = spawn(async move { semaphore.acquire_many(2).await.unwrap() });
        until_waiting(&other, "x", 1).await;

        let after = after.build().await.unwrap();
        let again = permits(&after).acquire().timeout(PATIENCE).await.unwrap();
        for lost in [&one, &two] {
            assert_eq!(within(2 * SOON, "the loss", lost.lost()).await, LostReason::Adopted);
        }
        let next = within(PATIENCE, "there are two left for who waited", waiting)
            .await
            .unwrap();
        assert!(next.token() > again.token(), "it came first");
        assert_eq!(theirs.status(), LockStatus::Held);
        assert_eq!(permits(&other).available_permits().await.unwrap(), 0);
    }
}
