//! Multi-locks whose parts are locks of several kinds.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use watchlock::{
    locks::{MultiLock, Part},
    operate::Access,
};

use crate::setup::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A mutex, a reader, a writer and two of three permits, in an order of their own.
fn one_of_each(locks: &LockClient) -> MultiLock {
    let (b, c, d) = (locks.rw_lock("b"), locks.rw_lock("c"), locks.semaphore("d", 3));
    locks.multi([d.part(2), b.read_part(), "a".into(), c.write_part()])
}

async fn all_vacant(locks: &LockClient) -> bool {
    for name in NAMES {
        if !is_vacant(locks, name).await {
            return false;
        }
    }
    true
}

/// Has every part of [`one_of_each`] taken by itself, so that it can't be had.
async fn taken(locks: &LockClient, name: &str) -> watchlock::Held {
    match name {
        "a" => locks.mutex(name).acquire().await.unwrap().into(),
        "b" => locks.rw_lock(name).write().await.unwrap().into(),
        "c" => locks.rw_lock(name).read().await.unwrap().into(),
        _ => locks.semaphore(name, 3).acquire_many(2).await.unwrap().into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_every_kind_are_held_and_released_together() {
    for (a, b) in places("kinds").await {
        let multi = one_of_each(&a);
        assert_eq!(multi.names().collect::<Vec<_>>(), NAMES);
        let (lease, reason) = (Duration::from_secs(300), "to test");
        let held = multi.acquire().reason(reason).lease(lease).await.unwrap();
        for part in held.parts() {
            let holder = &info(&b, part.name()).await.unwrap().holders[0];
            assert_eq!(
                (holder.token, holder.owner.reason.as_deref()),
                (part.token(), Some("to test"))
            );
            assert_eq!(holder.until.duration_since(holder.since).unwrap(), lease);
            assert_eq!(held.token_of(part.name()), Some(part.token()));
        }
        assert_eq!((held.tokens().count(), held.token_of("w")), (4, None));
        assert_eq!((held.status(), held.check()), (LockStatus::Held, Ok(())));
        let least = held.parts().map(|part| part.safe_for()).min().unwrap();
        assert!(held.safe_for() <= least && held.safe_for() > lease / 2);
        let access = async |name| info(&b, name).await.unwrap().holders[0].access;
        assert_eq!(
            (access("b").await, access("c").await),
            (Some(Access::Read), Some(Access::Write))
        );
        assert_eq!(held.part("d").unwrap().permits(), 2);
        // Each part lets in whom its own kind lets in.
        assert!(b.rw_lock("b").try_read().await.unwrap().is_some());
        assert!(b.rw_lock("c").try_read().await.unwrap().is_none());
        assert!(b.semaphore("d", 3).try_acquire().await.unwrap().is_some());
        assert!(b.semaphore("d", 3).try_acquire_many(2).await.unwrap().is_none());
        assert!(one_of_each(&b).try_acquire().await.unwrap().is_none());
        assert!(held.renew().await.unwrap() > lease / 2);
        let view = held.view();
        assert_eq!(held.release().await.unwrap(), Released::Released);
        assert_eq!(view.lost().await.reason, LostReason::Released);
        eventually(SOON, "those that were dropped are given back", async || {
            all_vacant(&b).await
        })
        .await;
    }
}

/// The others have it for the kinds by which they share a name, and never beyond.
#[tokio::test(flavor = "multi_thread")]
async fn crossing_orders_of_several_kinds_never_dead_lock() {
    const ROUNDS: usize = 3;
    type Choice = fn(&LockClient, &str) -> (Part, i64);
    // How much of a name each takes, of 6.
    const MUTEX: Choice = |locks, name| (locks.mutex(name).part(), 6);
    const READ: Choice = |locks, name| (locks.rw_lock(name).read_part(), 1);
    const WRITE: Choice = |locks, name| (locks.rw_lock(name).write_part(), 6);
    const TWO: Choice = |locks, name| (locks.semaphore(name, 6).part(2), 2);
    const FOUR: Choice = |locks, name| (locks.semaphore(name, 6).part(4), 4);
    const WANTS: [&[(usize, Choice)]; 8] = [
        &[(0, MUTEX), (1, READ)],
        &[(1, WRITE), (0, MUTEX)],
        &[(2, TWO), (1, READ), (0, MUTEX)],
        &[(1, WRITE), (3, READ), (2, FOUR)],
        &[(3, WRITE), (0, MUTEX)],
        &[(2, FOUR), (1, READ)],
        &[(3, READ), (2, TWO), (1, WRITE)],
        &[(3, READ), (2, TWO)],
    ];
    for (a, b) in places("kinds_crossing").await {
        let inside: Arc<[AtomicI64; 4]> = Arc::default();
        let mut tasks = Vec::new();
        for locks in [&a, &b] {
            for wants in WANTS {
                let (locks, inside) = (locks.clone(), inside.clone());
                tasks.push(spawn(async move {
                    let parts = wants.iter().map(|(at, choice)| choice(&locks, NAMES[*at]));
                    let (parts, shares): (Vec<Part>, Vec<i64>) = parts.unzip();
                    let multi = locks.multi(parts);
                    let at = || wants.iter().map(|(at, _)| *at).zip(&shares);
                    for _ in 0..ROUNDS {
                        let held = multi.acquire().await.unwrap();
                        for (at, share) in at() {
                            let taken = inside[at].fetch_add(*share, Ordering::SeqCst) + share;
                            assert!(taken <= 6, "{taken} of 6 of {} are taken", NAMES[at]);
                        }
                        tokio::task::yield_now().await;
                        for (at, share) in at() {
                            inside[at].fetch_sub(*share, Ordering::SeqCst);
                        }
                        assert_eq!(held.release().await.unwrap(), Released::Released);
                    }
                }));
            }
        }
        let done = within(3 * PATIENCE, "everybody gets through", join_all(tasks)).await;
        done.into_iter().for_each(Result::unwrap);
        assert!(all_vacant(&a).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_not_to_be_had_leaves_nothing_behind() {
    let places = places("kinds_taken").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let multi = one_of_each(b);
        let alone = async |name: &str| {
            let mut alone = true;
            for other in NAMES.into_iter().filter(|other| *other != name) {
                alone &= is_vacant(a, other).await;
            }
            alone && info(a, name).await.unwrap().waiters.is_empty()
        };
        for name in NAMES {
            let other = taken(a, name).await;
            assert!(multi.try_acquire().await.unwrap().is_none());
            let error = multi.try_acquire().or_held().await.unwrap_err();
            assert_is!(error, AcquireError::Held { name: held, .. } if held == name);
            // A second is long enough for an answer of a busy server, which shows the holder.
            for timeout in [Duration::ZERO, Duration::from_millis(30), SOON] {
                let waited = match multi.acquire().timeout(timeout).await.unwrap_err() {
                    AcquireError::Timeout { name: held, waited, .. } if held == name => waited,
                    // On a slow machine the time can be over before the last name is asked for.
                    AcquireError::Unanswered { name: held, waited, .. } if timeout < SOON && held.as_str() <= name => {
                        waited
                    }
                    error => panic!("{error:?}"),
                };
                assert_eq!(waited, timeout);
                eventually(PATIENCE, "the rest is given back", async || alone(name).await).await;
            }
            let waiting = in_line(a, name, 1, multi.acquire()).await;
            waiting.abort();
            eventually(SOON, "the rest is given back", async || alone(name).await).await;
            other.release().await.unwrap();
        }
        // In another use, which shows when it is its turn.
        let other = a.election("d").campaign("me").await.unwrap();
        let error = multi.acquire().await.unwrap_err();
        assert_is!(error, AcquireError::KindMismatch(mismatch) if mismatch.name == "d");
        eventually(SOON, "the rest is given back", async || alone("d").await).await;
        other.release().await.unwrap();
        // And at moments that nobody chose.
        let mut dice = Dice::new(11);
        for _ in 0..10 {
            let most = dice.up_to(Duration::from_millis(8));
            let tried = async { tokio::time::timeout(most, one_of_each(a).acquire()).await.is_ok() };
            let other = async { tokio::time::timeout(most, multi.acquire()).await.is_ok() };
            tokio::join!(tried, other);
            eventually(SOON, "nothing is left", async || all_vacant(a).await).await;
        }
    });
    join_all(everywhere).await;
}

/// It is applied all the same: a request of which the client hears nothing, or a grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_silent_in_the_middle_leaves_nothing_behind() {
    let ground = Ground::replica_set("kinds_silent").await;
    let beside = ground.locks().await;
    let timeout = Duration::from_millis(1500);
    for (is_waiting, cancels) in [(false, false), (false, true), (true, false), (true, true)] {
        // A network and a client of its own: what an earlier one still cleans up is none of the commands that count.
        let proxy = shared::replica_set().await.proxy(0).unwrap();
        let locks = ground.through(proxy.uri()).locks().await;
        let other = taken(&beside, "c").await;
        if !is_waiting {
            proxy.black_hole_after("findAndModify");
        }
        let multi = one_of_each(&locks);
        let acquiring = spawn(async move { multi.acquire().timeout(timeout).await });
        if is_waiting {
            until_waiting(&beside, "c", 1).await;
            proxy.black_hole();
        }
        other.release().await.unwrap();
        let name = if is_waiting { "c" } else { "a" };
        eventually(SOON, "the server has it", async || !is_vacant(&beside, name).await).await;
        if cancels {
            acquiring.abort();
        } else {
            let over = within(2 * timeout, "the time is over", acquiring).await;
            let error = over.unwrap().unwrap_err();
            let waited = match &error {
                AcquireError::Unanswered { name: of, waited, .. } if of == name => waited,
                // It was taken when it was seen last.
                AcquireError::Timeout { name: of, waited, .. } if of == name && is_waiting => waited,
                error => panic!("{error}"),
            };
            assert_eq!(*waited, timeout);
        }
        proxy.heal();
        eventually(PATIENCE, "all is given back", async || all_vacant(&beside).await).await;
        // A request that was not answered may be applied yet, and be given back over this network.
        within(PATIENCE, "nothing is on its way", locks.shutdown()).await;
    }
}

/// Whatever is sent gets no answer, so whatever answers has sent nothing.
#[tokio::test(flavor = "multi_thread")]
async fn bad_names_and_parts_are_refused_before_anything_is_sent() {
    let (ground, proxy, behind) = Ground::proxied("kinds_input").await;
    let locks = behind.locks().await;
    proxy.black_hole();
    let numbered = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    let long = "x".repeat(1025);
    let (rw_lock, semaphore) = (locks.rw_lock("x"), locks.semaphore("x", 3));
    let named = |names: &[&str]| names.iter().map(|name| Part::from(*name)).collect::<Vec<_>>();
    let cases: [(Vec<Part>, &[&str]); 11] = [
        (vec![], &["0 names", "1 to 128"]),
        (
            numbered(129).into_iter().map(Part::from).collect(),
            &["129 names", "1 to 128"],
        ),
        (named(&["b", "a\0", "b", "a\0"]), &["`a\\0`", "once"]),
        (named(&["a", ""]), &["empty", "1 to 1024"]),
        (named(&["a", &long]), &["1025", "1 to 1024"]),
        (
            vec!["w".into(), rw_lock.read_part(), rw_lock.write_part()],
            &["`x`", "once"],
        ),
        (vec!["x".into(), "w".into(), semaphore.part(1)], &["`x`", "once"]),
        (vec![semaphore.part(1), "w".into(), semaphore.part(2)], &["`x`", "once"]),
        (vec!["w".into(), semaphore.part(4)], &["4 permits", "1 to 3"]),
        (vec!["w".into(), semaphore.part(0)], &["0 permits", "1 to 3"]),
        (
            vec!["w".into(), locks.semaphore("x", 0).part(1)],
            &["0 permits", "at least 1"],
        ),
    ];
    let checks = async {
        for (names, words) in cases {
            let multi = locks.multi(names);
            let run = multi.acquire().run(async |_| ()).await.unwrap_err();
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
    };
    within(SOON, "nothing is waited for", checks).await;
    proxy.heal();
    // The most that there can be.
    let handle = ground.locks().await.multi(numbered(128)).acquire().await.unwrap();
    assert_eq!(handle.parts().count(), 128);
    handle.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_options_are_those_of_every_part() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let limit = Duration::from_secs(60);
    let held = one_of_each(&a).acquire().lose_after(limit).await.unwrap();
    assert!(held.parts().all(|part| part.safe_for() <= limit));
    let wanted = spawn({
        let view = held.view();
        async move { view.wanted().await }
    });
    let mut writer = Box::pin(b.rw_lock("b").write());
    assert!(futures::poll!(&mut writer).is_pending());
    within(SOON, "the reader is wanted", wanted).await.unwrap();
    let lost = within(2 * limit, "its time ends", held.lost()).await;
    assert_eq!(lost.reason, LostReason::HeldTooLong);
    drop((writer, held));
    eventually(SOON, "all is given back", async || all_vacant(&b).await).await;

    // Each part has a fence of its own, with the token of that part.
    let held = one_of_each(&a).acquire().await.unwrap();
    for part in held.parts() {
        assert_eq!(part.fence().token(), part.token());
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_another_client_stays_that_clients() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.builder().label("other").build().await.unwrap());
    let held = a.multi([b.mutex("x").part(), "y".into()]).acquire().await.unwrap();
    let labels =
        join_all(["x", "y"].map(async |name| info(&a, name).await.unwrap().holders[0].owner.label.clone())).await;
    assert_eq!(labels, [Some("other".to_owned()), None]);
    b.shutdown().await;
    let lost = within(SOON, "the loss", held.lost()).await;
    assert_eq!((lost.name.as_str(), lost.reason), ("x", LostReason::Released));
    drop(held);
    eventually(SOON, "the other is given back", async || is_vacant(&a, "y").await).await;
}
