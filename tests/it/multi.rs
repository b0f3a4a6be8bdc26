//! Several locks, all or nothing.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use tokio::time::Instant;
use watchlock::{
    LockClient, LockStatus, LostReason, Released,
    errors::{AcquireError, RunError},
    testing::InMemory,
};
use watchlock_testkit::shared;

use crate::setup::{Dice, Ground, PATIENCE, SOON, eventually, info, is_vacant, places, spawn, until_waiting, within};

async fn all_vacant(locks: &LockClient, names: &[&str]) -> bool {
    for name in names {
        if !is_vacant(locks, name).await {
            return false;
        }
    }
    true
}

/// Which of the names somebody holds.
async fn held(locks: &LockClient, names: &[&str]) -> Vec<String> {
    let mut held = Vec::new();
    for name in names {
        if info(locks, name).await.is_some_and(|lock| !lock.holders.is_empty()) {
            held.push((*name).to_owned());
        }
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn all_parts_are_held_and_released_together() {
    for (a, b) in places("multi").await {
        let multi = a.multi(["y", "z", "x"]);
        assert_eq!(multi.names().collect::<Vec<_>>(), ["x", "y", "z"]);
        let handle = multi.acquire().reason("to test").await.unwrap();
        assert_eq!((handle.status(), handle.check()), (LockStatus::Held, Ok(())));
        for (name, token) in handle.tokens() {
            let holder = &info(&b, name).await.unwrap().holders[0];
            assert_eq!((holder.token, holder.reason.as_deref()), (token, Some("to test")));
            assert_eq!(handle.token_of(name), Some(token));
            assert!(b.mutex(name).try_acquire().await.unwrap().is_none());
        }
        assert_eq!(handle.tokens().count(), 3);
        assert_eq!(handle.token_of("w"), None);
        let least = handle.parts().map(|part| part.safe_for()).min().unwrap();
        assert!(handle.safe_for() <= least && handle.safe_for() > Duration::from_secs(20));
        let view = handle.view();
        assert_eq!(handle.release().await.unwrap(), Released::Released);
        assert!(all_vacant(&b, &["x", "y", "z"]).await);
        assert_eq!(view.lost().await.reason, LostReason::Released);

        let tried = b
            .multi(["z", "x"])
            .try_acquire()
            .reason("again")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(held(&a, &["x", "y", "z"]).await, ["x", "z"]);
        drop(tried);
        eventually(SOON, "a dropped handle releases all", async || {
            all_vacant(&a, &["x", "y", "z"]).await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crossing_orders_never_dead_lock() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    const ORDERS: [&[usize]; 8] = [
        &[0, 1],
        &[1, 0],
        &[2, 1, 0],
        &[1, 3, 2],
        &[3, 0],
        &[0, 3, 1, 2],
        &[3, 2, 1, 0],
        &[2, 3],
    ];
    const ROUNDS: usize = 4;
    for (a, b) in places("crossing").await {
        let inside: Arc<[AtomicBool; 4]> = Arc::default();
        let mut tasks = Vec::new();
        for locks in [&a, &b] {
            for order in ORDERS {
                let (multi, inside) = (locks.multi(order.iter().map(|at| NAMES[*at])), inside.clone());
                tasks.push(spawn(async move {
                    for _ in 0..ROUNDS {
                        let handle = multi.acquire().await.unwrap();
                        for at in order {
                            assert!(
                                !inside[*at].swap(true, Ordering::SeqCst),
                                "{} is held twice",
                                NAMES[*at]
                            );
                        }
                        tokio::task::yield_now().await;
                        for at in order {
                            inside[*at].store(false, Ordering::SeqCst);
                        }
                        assert_eq!(handle.release().await.unwrap(), Released::Released);
                    }
                }));
            }
        }
        for task in tasks {
            within(3 * PATIENCE, "everybody gets through", task).await.unwrap();
        }
        assert!(all_vacant(&a, &NAMES).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_leaves_nothing_behind() {
    const NAMES: [&str; 3] = ["x", "y", "z"];
    for (a, b) in places("multi_timeout").await {
        for taken in NAMES {
            let other = a.mutex(taken).acquire().await.unwrap();
            for timeout in [Duration::ZERO, Duration::from_millis(30)] {
                let error = b.multi(["z", "x", "y"]).acquire().timeout(timeout).await.unwrap_err();
                let waited = match error {
                    AcquireError::Timeout { name, waited, .. } if name == taken => waited,
                    // On a slow machine the time can be over before the last name is asked for.
                    AcquireError::Unanswered { name, waited, .. } if name.as_str() <= taken => waited,
                    error => panic!("{error:?}"),
                };
                assert_eq!(waited, timeout);
                eventually(SOON, "the rest is given back", async || {
                    let waits = info(&a, taken).await.is_some_and(|lock| !lock.waiters.is_empty());
                    !waits && held(&a, &NAMES).await == [taken]
                })
                .await;
            }
            assert_eq!(other.release().await.unwrap(), Released::Released);
        }
        // The first request of an acquire whose time is over may still be on its way, and is undone by what follows it.
        eventually(PATIENCE, "all is given back", async || all_vacant(&a, &NAMES).await).await;
    }
}

/// Three seconds for the first name leave two for the second.
#[tokio::test(start_paused = true)]
async fn the_timeout_is_that_of_all_names_together() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let first = a.mutex("x").acquire().await.unwrap();
    let _second = a.mutex("y").acquire().await.unwrap();
    let start = Instant::now();
    let multi = b.multi(["y", "x"]);
    let waiting = spawn(async move { multi.acquire().timeout(Duration::from_secs(5)).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    first.release().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, AcquireError::Timeout { name, waited, .. } if name == "y" && *waited == Duration::from_secs(5)),
        "{error}"
    );
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_takes_nothing_when_a_part_is_taken() {
    const NAMES: [&str; 3] = ["x", "y", "z"];
    for (a, b) in places("multi_try").await {
        for taken in NAMES {
            let other = a.mutex(taken).acquire().await.unwrap();
            let multi = b.multi(NAMES);
            assert!(multi.try_acquire().await.unwrap().is_none());
            let error = multi.try_acquire().timeout(PATIENCE).or_held().await.unwrap_err();
            let AcquireError::Held { name, contention, .. } = error else {
                panic!("{error:?}")
            };
            assert_eq!((name.as_str(), contention.holders[0].token), (taken, other.token()));
            eventually(SOON, "the rest is given back", async || {
                held(&a, &NAMES).await == [taken]
            })
            .await;
            other.release().await.unwrap();
        }
        assert!(b.multi(NAMES).try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_lost_when_any_part_is() {
    const NAMES: [&str; 3] = ["x", "y", "z"];
    for (a, b) in places("multi_lost").await {
        for broken in NAMES {
            let handle = a.multi(NAMES).acquire().await.unwrap();
            let (early, view) = (handle.lost_token(), handle.view());
            b.break_lock(broken).await.unwrap();
            let lost = within(2 * SOON, "the loss", handle.lost()).await;
            assert_eq!((lost.name.as_str(), lost.reason), (broken, LostReason::Broken));
            assert_eq!(
                lost.to_string(),
                format!("`{broken}` is lost: the lock was broken by an operator")
            );
            within(SOON, "the token", early.cancelled()).await;
            assert!(handle.lost_token().is_cancelled());
            assert_eq!((handle.status(), handle.safe_for()), (LockStatus::Lost, Duration::ZERO));
            assert_eq!(handle.release().await.unwrap(), Released::WasLost);
            // The release of the others does not paint over it.
            assert_eq!(view.check(), Err(lost));
            assert!(all_vacant(&b, &NAMES).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_lost_while_others_are_waited_for_is_waited_for_anew() {
    for (a, b) in places("multi_anew").await {
        let other = b.mutex("z").acquire().await.unwrap();
        let multi = a.multi(["z", "y", "x"]);
        let waiting = spawn(async move { multi.acquire().await });
        until_waiting(&b, "z", 1).await;
        let kept = info(&b, "x").await.unwrap().holders[0].token;

        // An operator takes the middle part away, and it goes to somebody who waits for it.
        let mutex = b.mutex("y");
        let thief = spawn(async move { mutex.acquire().await });
        until_waiting(&b, "y", 1).await;
        b.break_lock("y").await.unwrap();
        let thief = within(PATIENCE, "the next has it", thief).await.unwrap().unwrap();
        until_waiting(&b, "y", 1).await;
        eventually(SOON, "the place for a later name is given up", async || {
            info(&b, "z").await.unwrap().waiters.is_empty()
        })
        .await;

        // All that it waited for first is free now, and still it must not go on.
        other.release().await.unwrap();
        assert!(b.mutex("z").try_acquire().await.unwrap().is_some());
        assert!(!waiting.is_finished());
        let token = thief.token();
        thief.release().await.unwrap();
        let handle = within(PATIENCE, "all parts", waiting).await.unwrap().unwrap();
        assert_eq!(handle.check(), Ok(()));
        assert!(handle.token_of("y").unwrap() > token);
        // What comes before the lost one in the order was never given up.
        assert_eq!(handle.token_of("x"), Some(kept));
    }
}

/// A loss of the first part at the moment at which the last is granted.
#[tokio::test(start_paused = true)]
async fn a_handle_with_a_lost_part_is_never_returned() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let other = b.mutex("y").acquire().await.unwrap();
    let mut acquire = std::pin::pin!(a.multi(["x", "y"]).acquire());
    let before = tokio::select! {
        biased;
        handle = &mut acquire => panic!("{handle:?}"),
        () = until_waiting(&b, "y", 1) => info(&b, "x").await.unwrap().token,
    };
    // The acquire is not polled until both have happened: it finds the grant and the loss there.
    other.release().await.unwrap();
    b.break_lock("x").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let handle = acquire.await.unwrap();
    assert_eq!(handle.check(), Ok(()));
    assert!(handle.token_of("x").unwrap() > before);
}

/// One that asked for it anew might never end.
#[tokio::test(start_paused = true)]
async fn a_try_that_loses_a_part_on_the_way_ends() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let mut trying = std::pin::pin!(a.multi(["x", "y"]).try_acquire());
    assert!(futures::poll!(&mut trying).is_pending());
    eventually(SOON, "the first part", async || !is_vacant(&b, "x").await).await;
    assert!(futures::poll!(&mut trying).is_pending());
    b.break_lock("x").await.unwrap();
    tokio::time::sleep(SOON).await;
    let tried = trying.await;
    assert!(
        matches!(&tried, Err(AcquireError::Unanswered { name, .. }) if name == "x"),
        "{tried:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_at_any_stage_leaves_nothing_behind() {
    const NAMES: [&str; 3] = ["x", "y", "z"];
    for (a, b) in places("multi_cancel").await {
        for taken in NAMES {
            let other = b.mutex(taken).acquire().await.unwrap();
            let multi = a.multi(NAMES);
            let waiting = spawn(async move { multi.acquire().await });
            until_waiting(&b, taken, 1).await;
            waiting.abort();
            assert!(waiting.await.unwrap_err().is_cancelled());
            eventually(SOON, "places and parts are given back", async || {
                info(&b, taken).await.unwrap().waiters.is_empty() && held(&b, &NAMES).await == [taken]
            })
            .await;
            other.release().await.unwrap();
        }
        // And at moments that nobody chose.
        let mut dice = Dice::new(7);
        for _ in 0..40 {
            let most = dice.up_to(Duration::from_millis(8));
            let tried = async { tokio::time::timeout(most, a.multi(NAMES).acquire()).await.is_ok() };
            let other = async { tokio::time::timeout(most, b.multi(NAMES).acquire()).await.is_ok() };
            tokio::join!(tried, other);
            eventually(SOON, "nothing is left", async || all_vacant(&b, &NAMES).await).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn held_parts_are_renewed_while_others_are_waited_for() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let other = b.mutex("y").acquire().await.unwrap();
    let multi = a.multi(["x", "y"]);
    let waiting = spawn(async move { multi.acquire().await.unwrap() });
    until_waiting(&b, "y", 1).await;
    let token = info(&b, "x").await.unwrap().holders[0].token;
    tokio::time::sleep(Duration::from_secs(300)).await;
    other.release().await.unwrap();
    let handle = waiting.await.unwrap();
    assert_eq!((handle.token_of("x"), handle.check()), (Some(token), Ok(())));

    // And run out together with it when nobody renews them.
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(handle.check().unwrap_err(), LostReason::Expired);
    assert_eq!(handle.release().await.unwrap(), Released::WasLost);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_releases_all_and_ends_what_runs_without_a_part() {
    for (a, b) in places("multi_run").await {
        let multi = a.multi(["y", "x"]);
        assert_eq!(
            multi.acquire().run(async |held| held.tokens().count()).await.unwrap(),
            2
        );
        assert!(all_vacant(&a, &["x", "y"]).await);
        let (started, begun) = tokio::sync::oneshot::channel();
        let running = spawn(async move {
            multi
                .acquire()
                .run(async move |_| {
                    let _ = started.send(());
                    std::future::pending::<()>().await;
                })
                .await
        });
        begun.await.unwrap();
        b.break_lock("y").await.unwrap();
        let ended = within(2 * SOON, "the future is dropped", running).await.unwrap();
        assert!(
            matches!(&ended, Err(RunError::Lost(part)) if part.name == "y"),
            "{ended:?}"
        );
        eventually(SOON, "the other part is given back", async || {
            all_vacant(&b, &["x", "y"]).await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shut_down_client_ends_its_multi_locks() {
    for (a, b) in places("multi_shutdown").await {
        let handle = a.multi(["x", "y"]).acquire().await.unwrap();
        let multi = a.multi(["w", "x"]);
        let waiting = spawn(async move { multi.acquire().await });
        eventually(PATIENCE, "it waits", async || held(&b, &["w"]).await == ["w"]).await;
        a.shutdown().await;
        let ended = within(SOON, "the wait ends", waiting).await.unwrap();
        assert!(matches!(ended, Err(AcquireError::Closed)), "{ended:?}");
        assert_eq!(handle.lost().await.reason, LostReason::Released);
        assert!(all_vacant(&b, &["w", "x", "y"]).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_costs_one_round_trip() {
    const NAMES: [&str; 5] = ["v", "w", "x", "y", "z"];
    let ground = Ground::replica_set("multi_cost").await;
    let sent = Arc::new(Mutex::new(Vec::new()));
    let mut options = ClientOptions::parse(ground.uri()).await.unwrap();
    let record = sent.clone();
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        // What is held for long is looked after, which is another matter.
        if let CommandEvent::Started(started) = event
            && ["findAndModify", "createIndexes"].contains(&started.command_name.as_str())
        {
            record.lock().unwrap().push(started.command_name);
        }
    }));
    let driver = Client::with_options(options).unwrap();
    let locks = ground.locks_over(&driver).await;
    // What the first use of a client costs it once.
    let warm = locks.mutex("warm").acquire().await.unwrap();
    warm.release().await.unwrap();
    eventually(PATIENCE, "the index is made", async || {
        sent.lock().unwrap().iter().any(|command| command == "createIndexes")
    })
    .await;
    // Of names that were never seen, and of names that were.
    for _ in 0..2 {
        sent.lock().unwrap().clear();
        let handle = locks.multi(NAMES).acquire().await.unwrap();
        assert_eq!(*sent.lock().unwrap(), ["findAndModify"; NAMES.len()]);
        sent.lock().unwrap().clear();
        handle.release().await.unwrap();
        assert_eq!(*sent.lock().unwrap(), ["findAndModify"; NAMES.len()]);
    }
    let other = ground.locks().await;
    let held = other.mutex("x").acquire().await.unwrap();
    sent.lock().unwrap().clear();
    assert!(locks.multi(NAMES).try_acquire().await.unwrap().is_none());
    eventually(SOON, "it is given back", async || {
        all_vacant(&other, &["v", "w", "y", "z"]).await
    })
    .await;
    let commands = sent.lock().unwrap().clone();
    assert!(
        commands.len() <= 6 && commands.iter().all(|command| command == "findAndModify"),
        "{commands:?}"
    );
    held.release().await.unwrap();
}

/// Whatever is sent gets no answer, so whatever answers has sent nothing.
#[tokio::test(flavor = "multi_thread")]
async fn bad_names_are_refused_before_anything_is_sent() {
    let ground = Ground::replica_set("multi_input").await;
    let proxy = shared::replica_set().await.proxy(0).unwrap();
    let locks = ground.through(proxy.uri()).locks().await;
    proxy.black_hole();
    let numbered = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    let long = "x".repeat(1025);
    let cases: [(Vec<String>, &[&str]); 5] = [
        (vec![], &["0 names", "1 to 128"]),
        (numbered(129), &["129 names", "1 to 128"]),
        (
            vec!["b".into(), "a\0".into(), "b".into(), "a\0".into()],
            &["`a\\0`", "once"],
        ),
        (vec!["a".into(), String::new()], &["empty", "1 to 1024"]),
        (vec!["a".into(), long.clone()], &["1025", "1 to 1024"]),
    ];
    let checks = async {
        for (names, words) in cases {
            let multi = locks.multi(names);
            let run = multi.acquire().run(async |_| ()).await.unwrap_err();
            let RunError::Acquire(run) = run else { panic!("{run:?}") };
            for error in [
                multi.acquire().await.unwrap_err(),
                multi.acquire().timeout(Duration::ZERO).await.unwrap_err(),
                multi.try_acquire().await.unwrap_err(),
                multi.try_acquire().or_held().await.unwrap_err(),
                run,
            ] {
                assert!(matches!(error, AcquireError::Invalid(_)), "{error:?}");
                let message = error.to_string();
                assert!(words.iter().all(|word| message.contains(word)), "{message}");
            }
        }
        let multi = locks.multi(["a", "b"]);
        for error in [
            multi.acquire().reason(&long).await.unwrap_err(),
            multi.try_acquire().reason(&long).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("the reason has 1025 bytes"), "{error}");
        }
        for error in [
            multi.acquire().timeout(Duration::MAX).await.unwrap_err(),
            multi.try_acquire().timeout(Duration::MAX).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("the timeout of 184"), "{error}");
        }
    };
    within(SOON, "nothing is waited for", checks).await;
    // What is well-formed is sent, and is bounded by its timeout when the server does not answer.
    let timeout = Duration::from_millis(100);
    for error in [
        locks.multi(["a", "b"]).acquire().timeout(timeout).await.unwrap_err(),
        locks
            .multi(["a", "b"])
            .try_acquire()
            .timeout(timeout)
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(&error, AcquireError::Unanswered { waited, .. } if *waited == timeout),
            "{error}"
        );
    }
    proxy.heal();
    // The most that there can be.
    let handle = ground.locks().await.multi(numbered(128)).acquire().await.unwrap();
    assert_eq!(handle.parts().count(), 128);
    handle.release().await.unwrap();
}
