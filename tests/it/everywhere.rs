//! The same promises wherever the locks live: on a replica set with its change stream, on a standalone by polling, and
//! in memory.

use std::{
    ops::ControlFlow,
    task::Poll,
    time::{Duration, SystemTime},
};

use mongodb::bson::doc;
use watchlock::{
    Held, LockClient, LockStatus, Lost, LostReason, Released, action, election,
    errors::{AcquireError, CandidacyError, RenewError, RunError},
    operate::{Access, LockEvent},
    testing::InMemory,
};

use crate::setup::{Ground, PATIENCE, SOON, eventually, is_vacant, spawn, until_waiting, within};

/// Two clients, as two processes would have them, in each of the three places.
pub(crate) async fn places(name: &str) -> Vec<(LockClient, LockClient)> {
    let memory = InMemory::new();
    let (set, alone) = (Ground::replica_set(name).await, Ground::standalone(name).await);
    vec![
        (memory.client(), memory.client()),
        (set.locks().await, set.locks().await),
        (alone.locks().await, alone.locks().await),
    ]
}

/// Waits until `future` is in the server's queue as the `place`th.
macro_rules! in_line {
    ($locks:expr, $name:expr, $place:expr, $acquire:expr) => {{
        let acquire = $acquire;
        let waiting = spawn(acquire);
        until_waiting($locks, $name, $place).await;
        waiting
    }};
}

async fn granted<T: action::Target>(waiting: tokio::task::JoinHandle<Result<Held<T>, AcquireError>>) -> Held<T> {
    within(PATIENCE, "the grant", waiting).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_is_handed_over_in_order() {
    for (a, b) in places("order").await {
        let first = a.mutex("x").acquire().await.unwrap();
        assert_eq!(first.status(), LockStatus::Held);
        let second = in_line!(&a, "x", 1, b.mutex("x").acquire());
        let third = in_line!(&a, "x", 2, a.mutex("x").acquire());
        assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
        let mut last = first.token();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        for next in [second, third] {
            let next = granted(next).await;
            assert!(next.token() > last, "tokens rise");
            last = next.token();
            next.release().await.unwrap();
        }
        assert!(is_vacant(&a, "x").await);
        assert!(b.mutex("x").try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wake_mode_tells_how_waiters_are_woken() {
    let modes: Vec<String> = places("mode")
        .await
        .iter()
        .map(|(a, _)| a.wake_mode().to_string())
        .collect();
    assert_eq!(
        modes,
        [
            "change stream",
            "change stream",
            "polling, as the server is a standalone"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_leaves_no_place_in_the_queue() {
    for (a, b) in places("timeout").await {
        let held = a.mutex("x").acquire().await.unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(30)] {
            let error = b.mutex("x").acquire().timeout(timeout).await.unwrap_err();
            assert!(
                matches!(&error, AcquireError::Timeout { name, waited, .. } | AcquireError::Unanswered { name, waited, .. } if name == "x" && *waited == timeout)
            );
        }
        eventually(SOON, "the place is given up", async || {
            a.inspect("x").await.unwrap().unwrap().waiters.is_empty()
        })
        .await;
        assert_eq!(held.status(), LockStatus::Held);
        drop(held);
        let next = within(SOON, "a dropped handle releases", async {
            b.mutex("x").acquire().await
        })
        .await;
        assert!(next.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn people_can_read_who_holds_and_who_waits() {
    for (a, b) in places("inspect").await {
        assert_eq!(a.inspect("x").await.unwrap(), None);
        let held = a.mutex("x").acquire().reason("the $$NOW of {it}").await.unwrap();
        let _waiting = in_line!(&a, "x", 1, b.mutex("x").acquire().reason("me too"));
        let lock = b.inspect("x").await.unwrap().unwrap();
        assert_eq!((lock.holders.len(), lock.waiters.len()), (1, 1));
        assert_eq!(lock.holders[0].token, held.token());
        assert_eq!(lock.holders[0].reason.as_deref(), Some("the $$NOW of {it}"));
        assert_eq!(lock.holders[0].pid, std::process::id());
        assert_eq!(lock.waiters[0].reason.as_deref(), Some("me too"));
        assert!(lock.holders[0].until > lock.holders[0].since);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lock_is_lost_and_goes_to_the_next() {
    for (a, b) in places("break").await {
        let held = a.mutex("x").acquire().await.unwrap();
        let (view, token) = (held.view(), held.lost_token());
        let next = in_line!(&a, "x", 1, b.mutex("x").acquire());
        b.break_lock("x").await.unwrap();
        let next = granted(next).await;
        assert_eq!(within(2 * SOON, "the loss", held.lost()).await, LostReason::Broken);
        assert!(token.is_cancelled());
        assert_eq!(view.lost_reason(), Some(LostReason::Broken));
        assert_eq!((held.status(), held.safe_for()), (LockStatus::Lost, Duration::ZERO));
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        // The old holder's release harmed nobody.
        assert_eq!(next.status(), LockStatus::Held);
        assert_eq!(b.inspect("x").await.unwrap().unwrap().holders[0].token, next.token());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_holder_is_put_out_and_the_others_go_on() {
    for (a, b) in places("holder").await {
        let permits = a.semaphore("x", 3);
        let held = [
            permits.acquire().await.unwrap(),
            permits.acquire().await.unwrap(),
            permits.acquire().await.unwrap(),
        ];
        let next = in_line!(&a, "x", 1, b.semaphore("x", 3).acquire());
        let mut events = b.watch("x");
        for _ in 0..3 {
            events.next().await.unwrap().unwrap();
        }
        let lock = b.break_holder("x", held[1].token()).await.unwrap().unwrap();
        let next = granted(next).await;
        assert_eq!(within(2 * SOON, "the loss", held[1].lost()).await, LostReason::Broken);
        assert_eq!(lock.holders.len(), 3);
        // Nobody has that token any more.
        let again = b.break_holder("x", held[1].token()).await.unwrap();
        assert!(again.is_none());
        let told = within(PATIENCE, "it is told", events.next()).await.unwrap().unwrap();
        let token = held[1].token();
        assert!(
            matches!(told, LockEvent::Broken { token: of, .. } if of == token),
            "{told:?}"
        );
        within(PATIENCE, "the grant", events.next()).await.unwrap().unwrap();
        for other in [&held[0], &held[2], &next] {
            other.renew().await.unwrap();
            assert_eq!(other.status(), LockStatus::Held);
        }
        // What is released later was not broken, though its token is smaller.
        let [smallest, _, largest] = held;
        let token = smallest.token();
        smallest.release().await.unwrap();
        let told = within(PATIENCE, "it is told", events.next()).await.unwrap().unwrap();
        assert!(
            matches!(told, LockEvent::Released { token: of, .. } if of == token),
            "{told:?}"
        );

        // A reader, without the others.
        let lock = a.rw_lock("y");
        let (stays, goes) = (lock.read().await.unwrap(), b.rw_lock("y").read().await.unwrap());
        a.break_holder("y", goes.token()).await.unwrap().unwrap();
        assert_eq!(within(2 * SOON, "the loss", goes.lost()).await, LostReason::Broken);
        stays.renew().await.unwrap();
        assert_eq!(largest.lost_reason(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_releases_and_ends_what_runs_without_the_lock() {
    for (a, b) in places("run").await {
        assert_eq!(a.mutex("x").run(async |held| held.name().len()).await.unwrap(), 1);
        assert!(is_vacant(&a, "x").await);
        let (started, begun) = tokio::sync::oneshot::channel();
        let mutex = a.mutex("x");
        let running = spawn(async move {
            mutex
                .run(async move |_| {
                    let _ = started.send(());
                    std::future::pending::<()>().await;
                })
                .await
        });
        begun.await.unwrap();
        b.break_lock("x").await.unwrap();
        let ended = within(2 * SOON, "the future is dropped", running).await.unwrap();
        assert!(matches!(
            ended,
            Err(RunError::Lost(Lost {
                reason: LostReason::Broken,
                ..
            }))
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_by_hand_and_a_shutdown() {
    for (a, b) in places("shutdown").await {
        let held = a.mutex("x").acquire().await.unwrap();
        assert!(held.renew().await.unwrap() > Duration::from_secs(25));
        let waiting = in_line!(&a, "x", 1, b.mutex("x").acquire());
        b.shutdown().await;
        assert!(matches!(waiting.await.unwrap(), Err(AcquireError::Closed)));
        assert!(matches!(b.mutex("x").acquire().await, Err(AcquireError::Closed)));
        assert!(a.inspect("x").await.unwrap().unwrap().waiters.is_empty());
        let view = held.view();
        a.shutdown().await;
        assert_eq!(held.lost_reason(), Some(LostReason::Released));
        assert_eq!(view.lost().await, LostReason::Released);
        assert!(is_vacant(&a, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_gives_out_its_permits_and_no_more() {
    for (a, b) in places("semaphore").await {
        let (here, there) = (a.semaphore("x", 3), b.semaphore("x", 3));
        assert_eq!(here.available_permits().await.unwrap(), 3);
        let two = here.acquire_many(2).await.unwrap();
        let one = there.acquire().await.unwrap();
        assert_eq!((two.permits(), here.available_permits().await.unwrap()), (2, 0));
        assert!(there.try_acquire().await.unwrap().is_none());
        // Who wants all is not overtaken by who wants one, although there would be one.
        let all = in_line!(&a, "x", 1, here.acquire_many(3));
        one.release().await.unwrap();
        assert!(there.try_acquire().await.unwrap().is_none());
        let small = in_line!(&a, "x", 2, there.acquire());
        two.release().await.unwrap();
        let all = granted(all).await;
        assert!(!small.is_finished());
        all.release().await.unwrap();
        assert_eq!(granted(small).await.permits(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_for_many_tasks_of_one_client_come_together() {
    for (a, b) in places("permits").await {
        let semaphore = a.semaphore("x", 20);
        let gate = b.semaphore("x", 20).acquire_many(20).await.unwrap();
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let semaphore = semaphore.clone();
                spawn(async move { semaphore.acquire().await.unwrap() })
            })
            .collect();
        until_waiting(&b, "x", 1).await;
        gate.release().await.unwrap();
        let mut handles = Vec::new();
        for task in tasks {
            handles.push(within(PATIENCE, "the permits", task).await.unwrap());
        }
        assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_share_and_a_waiting_writer_comes_before_later_readers() {
    for (a, b) in places("rw").await {
        let (here, there) = (a.rw_lock("x"), b.rw_lock("x"));
        let (one, other) = (here.read().await.unwrap(), there.read().await.unwrap());
        assert!(there.try_write().await.unwrap().is_none());
        let writer = in_line!(&a, "x", 1, here.write());
        assert!(there.try_read().await.unwrap().is_none());
        let reader = in_line!(&a, "x", 2, there.read());
        drop((one, other));
        let writer = granted(writer).await;
        assert!(!reader.is_finished() && there.try_read().await.unwrap().is_none());
        writer.release().await.unwrap();
        let reader = granted(reader).await;
        assert!(here.try_read().await.unwrap().is_some());
        assert_eq!(reader.status(), LockStatus::Held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reading_has_the_servers_time_by_which_an_expired_holder_counts_as_nobody() {
    for (a, b) in places("readings").await {
        let held = a.mutex("x").acquire().at_least_for(SOON).await.unwrap();
        assert!(held.is_held());
        let first = b.inspect("x").await.unwrap().unwrap();
        assert!(first.is_held(), "{first:?}");
        let [holder] = &first.holders[..] else {
            panic!("{first:?}")
        };
        assert!(holder.since <= first.as_of && first.as_of < holder.until, "{first:?}");
        let view = held.view();
        held.release().await.unwrap();
        assert!(!view.is_held());

        // It is kept taken, and then its time is over; nobody asks for it.
        let kept = b.inspect("x").await.unwrap().unwrap();
        assert!(kept.as_of >= first.as_of, "{kept:?}");
        assert_eq!(kept.is_held(), kept.holders[0].until > kept.as_of);
        let is_over = async || !b.inspect("x").await.unwrap().unwrap().is_held();
        eventually(PATIENCE, "its time is over", is_over).await;
        let expired = b.inspect("x").await.unwrap().unwrap();
        assert_eq!(expired.holders.len(), 1, "{expired:?}");
        assert!(expired.as_of >= expired.holders[0].until, "{expired:?}");
        assert!(b.list().held(true).await.unwrap().is_empty());
        let listed = b.list().held(false).await.unwrap();
        assert!(
            matches!(&listed[..], [lock] if lock.holders.is_empty() && !lock.is_held() && lock.as_of >= expired.as_of),
            "{listed:?}"
        );

        // What a write returns has the time of that write, or of the reading after it.
        let held = a.mutex("y").acquire().await.unwrap();
        let renewed = b.renew_holder("y", held.token()).await.unwrap().unwrap();
        assert!(renewed.is_held() && renewed.as_of >= expired.as_of, "{renewed:?}");
        let broken = b.break_lock("y").await.unwrap().unwrap();
        assert!(!broken.is_held() && broken.as_of >= renewed.as_of, "{broken:?}");
        within(PATIENCE, "the loss", held.lost()).await;
        assert!(!held.is_held());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_name_is_one_kind_of_lock_while_it_is_used() {
    for (a, b) in places("kinds").await {
        let held = a.semaphore("x", 3).acquire().await.unwrap();
        let before = a.inspect("x").await.unwrap().unwrap();
        let errors = [
            (
                b.semaphore("x", 4).acquire().await.unwrap_err(),
                "a semaphore of 4 permits",
            ),
            (b.mutex("x").acquire().await.unwrap_err(), "a mutex"),
            (b.rw_lock("x").read().await.unwrap_err(), "a rwlock"),
            (b.rw_lock("x").write().timeout(SOON).await.unwrap_err(), "a rwlock"),
            (b.election("x").campaign("node 7").await.unwrap_err(), "an election"),
        ];
        for (error, wanted) in errors {
            let AcquireError::KindMismatch(error) = error else {
                panic!("{error}")
            };
            let expected = format!("`x` is in use as a semaphore of 3 permits, and was requested as {wanted}");
            assert_eq!(error.to_string(), expected);
        }
        assert!(b.semaphore("x", 4).available_permits().await.is_err());
        assert!(b.election("x").leader().await.is_err());
        let mut after = a.inspect("x").await.unwrap().unwrap();
        after.as_of = before.as_of;
        assert_eq!(after, before, "nothing was changed");
        held.release().await.unwrap();
        // Idle, it is whatever is wanted next.
        assert!(b.mutex("x").try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_permits_as_there_never_are_can_not_be_asked_for() {
    for (a, _) in places("bounds").await {
        for (error, words) in [
            (
                a.semaphore("x", 3).acquire_many(4).await.unwrap_err(),
                "4 permits are requested; for this semaphore it must be 1 to 3",
            ),
            (
                a.semaphore("x", 3).acquire_many(0).await.unwrap_err(),
                "0 permits are requested",
            ),
            (
                a.semaphore("x", 0).try_acquire().await.unwrap_err(),
                "has 0 permits; it must have at least 1",
            ),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(a.inspect("x").await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_follow_each_other_and_are_observed() {
    for (a, b) in places("election").await {
        let (here, there) = (a.election("x"), b.election("x"));
        let mut leaders = there.observe();
        let mut next = async || {
            within(PATIENCE, "the next leader", leaders.next())
                .await
                .unwrap()
                .unwrap()
        };
        assert_eq!(next().await, None);
        let first = here.campaign("first").reason("to test").await.unwrap();
        let leader = next().await.unwrap();
        assert_eq!(
            (leader.value.as_str(), leader.token, leader.pid),
            ("first", first.token(), std::process::id())
        );
        assert_eq!(there.leader().await.unwrap(), Some(leader));

        first.proclaim("still $first").await.unwrap();
        assert_eq!(next().await.unwrap().value, "still $first");
        let second = in_line!(&a, "x", 1, there.campaign("second"));
        assert_eq!(first.resign().await.unwrap(), Released::Released);
        let second = within(PATIENCE, "the second leader", second).await.unwrap().unwrap();
        let leader = next().await.unwrap();
        assert_eq!((leader.value.as_str(), leader.token), ("second", second.token()));

        a.break_lock("x").await.unwrap();
        // What it had asked while it was granted can come after the break: its client takes that out again.
        while let Some(leader) = next().await {
            assert!(leader.value == "second" && leader.token > second.token(), "{leader:?}");
        }
        within(2 * SOON, "the loss", second.lost()).await;
        second.proclaim("too late").await.unwrap_err();
        // What it had asked while it was granted can come after the break; its client takes that out again.
        eventually(PATIENCE, "nobody leads", async || {
            here.leader().await.unwrap().is_none()
        })
        .await;
        let error = here.campaign("x".repeat(1025)).await.unwrap_err().to_string();
        assert!(error.contains("1025") && error.contains("1024"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_runs_an_election_leads_again_after_a_loss() {
    for (a, b) in places("terms").await {
        let election = a.election("x");
        let (terms, mut told) = tokio::sync::mpsc::unbounded_channel();
        let running = spawn(async move {
            let mut count = 0;
            let lead = |leading: watchlock::View<election::Election>| {
                count += 1;
                let (term, terms) = (count, terms.clone());
                async move {
                    terms.send(leading.token()).unwrap();
                    match term {
                        1 => std::future::pending().await,
                        2 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break("done"),
                    }
                }
            };
            election.run("me", lead).await
        });
        let first = told.recv().await.unwrap();
        b.break_lock("x").await.unwrap();
        let second = within(PATIENCE, "a second term", told.recv()).await.unwrap();
        let third = within(PATIENCE, "a third term", told.recv()).await.unwrap();
        assert!(first < second && second < third);
        assert_eq!(within(PATIENCE, "the end", running).await.unwrap().unwrap(), "done");
        assert!(is_vacant(&a, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_tell_of_terms() {
    for (a, b) in places("callbacks").await {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let tell_lost = tell.clone();
        let candidacy = a.election("x").stand(
            "me",
            move |leading| tell.send(format!("elected {}", leading.name())).unwrap(),
            move |reason| tell_lost.send(reason.to_string()).unwrap(),
        );
        let mut next = async || within(PATIENCE, "a callback", told.recv()).await.unwrap();
        assert_eq!(next().await, "elected x");
        b.break_lock("x").await.unwrap();
        assert_eq!(next().await, "`x` is lost: the lock was broken by an operator");
        assert_eq!(next().await, "elected x");
        candidacy.withdraw().await.unwrap();
        assert_eq!(next().await, "`x` is no longer held: the lock was released");
        assert!(is_vacant(&b, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidacy_tells_when_it_ends_by_itself() {
    for (a, b) in places("ended").await {
        // A panic in a callback: nobody leads, and it is not told as a withdrawal.
        let candidacy = a.election("x").stand("me", |_| panic!("no leader"), |_| {});
        let ended = within(PATIENCE, "the end", candidacy.ended()).await;
        assert!(ended.to_string().contains("no leader"), "{ended}");
        eventually(PATIENCE, "it has resigned", async || is_vacant(&b, "x").await).await;
        assert!(matches!(
            candidacy.withdraw().await,
            Err(CandidacyError::Panicked { .. })
        ));

        // The name is a mutex for a while: told, or waited out.
        let other = b.mutex("x").acquire().await.unwrap();
        let candidacy = a.election("x").stand("me", |_| {}, |_| {});
        let ended = within(PATIENCE, "the end", candidacy.ended()).await;
        assert!(
            matches!(ended, CandidacyError::Campaign(AcquireError::KindMismatch(_))),
            "{ended}"
        );
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let patient = a.election("x").wait_out_other_uses(true);
        let candidacy = patient.stand("me", move |_| tell.send(()).unwrap(), |_| {});
        let mut ended = Box::pin(candidacy.ended());
        assert!(matches!(futures::poll!(&mut ended), Poll::Pending));
        other.release().await.unwrap();
        within(PATIENCE, "the election", told.recv()).await.unwrap();
        assert!(futures::poll!(&mut ended).is_pending());
        drop(ended);
        candidacy.withdraw().await.unwrap();

        // The client ends.
        let candidacy = a.election("x").stand("me", |_| {}, |_| {});
        a.shutdown().await;
        let ended = within(PATIENCE, "the end", candidacy.ended()).await;
        assert!(
            matches!(ended, CandidacyError::Campaign(AcquireError::Closed)),
            "{ended}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_grants_releases_breaks_and_expiries() {
    for (a, b) in places("watch").await {
        let mut events = b.watch("x");
        let mut next = async || {
            within(PATIENCE, "the next event", events.next())
                .await
                .unwrap()
                .unwrap()
        };
        let held = a.mutex("x").acquire().reason("first").await.unwrap();
        let LockEvent::Granted { holder, .. } = next().await else {
            panic!("no grant")
        };
        assert_eq!((holder.reason.as_deref(), holder.token), (Some("first"), held.token()));
        let token = held.token();
        held.release().await.unwrap();
        assert!(matches!(next().await, LockEvent::Released { token: released, .. } if released == token));
        let held = a.mutex("x").acquire().await.unwrap();
        assert!(matches!(next().await, LockEvent::Granted { .. }));
        b.break_lock("x").await.unwrap();
        assert!(matches!(next().await, LockEvent::Broken { token, .. } if token == held.token()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_watcher_sees_all_locks() {
    for (a, b) in places("watch_all").await {
        let before = a.rw_lock("first").write().await.unwrap();
        let mut events = b.watch_all();
        let mut next = async || {
            let next = within(PATIENCE, "the next event", events.next()).await;
            let (name, event) = next.unwrap().unwrap();
            format!("{name} {event}")
        };
        // What is held already comes first, and a writer is not so many permits.
        let told = next().await;
        assert!(
            told.starts_with("first granted to ") && told.contains(" as writer "),
            "{told}"
        );
        let held = a.semaphore("second", 3).acquire_many(2).await.unwrap();
        let told = next().await;
        assert!(
            told.starts_with("second granted to ") && told.contains(" with 2 permits "),
            "{told}"
        );
        let token = before.token();
        before.release().await.unwrap();
        assert_eq!(next().await, format!("first released, token {token}"));
        b.break_lock("second").await.unwrap();
        assert_eq!(next().await, format!("second broken, token {}", held.token()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_watcher_sees_leases_run_out_and_documents_go() {
    for ground in [
        Ground::replica_set("watch_end").await,
        Ground::standalone("watch_end").await,
    ] {
        let locks = ground.locks().await;
        let mut events = locks.watch_all();
        let mut next = async |what: &str| {
            let next = within(PATIENCE, what, events.next()).await;
            let (name, event) = next.unwrap().unwrap();
            format!("{name} {event}")
        };
        // Held by nobody that lives: nothing is written when its lease ends.
        let (at, until) = (SystemTime::now(), SystemTime::now() + Duration::from_secs(3600));
        let date = |time: SystemTime| mongodb::bson::DateTime::from(time);
        let held = locks.mutex("other").acquire().await.unwrap();
        assert!(next("a grant").await.starts_with("other granted"));
        let owner = doc! { "host": "gone", "pid": 1_i64 };
        let holder = doc! {
            "id": "gone-1", "permits": 1_i64, "token": 7_i64, "lease": 1_000_i64, "claim": 1_000_i64,
            "since": date(at), "until": date(until), "owner": owner,
        };
        let lock = doc! {
            "_id": "dead", "kind": "mutex", "capacity": 1_i64, "token": 7_i64, "holders": [holder], "queue": [],
            "wake": "gone:;", "version": 1_i64, "at": date(at), "purge_at": date(at + Duration::from_secs(3600)),
        };
        let documents = ground.documents().await;
        documents.insert_one(lock).await.unwrap();
        assert_eq!(
            next("a foreign grant").await,
            "dead granted to process 1 on gone under token 7"
        );
        let soon = doc! { "$set": { "holders.0.until": date(SystemTime::now()) } };
        documents.update_one(doc! { "_id": "dead" }, soon).await.unwrap();
        assert_eq!(next("an expiry").await, "dead expired, token 7");
        documents.delete_one(doc! { "_id": "other" }).await.unwrap();
        assert_eq!(
            next("a deletion").await,
            format!("other deleted, token {}", held.token())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_found_by_what_is_known_of_them() {
    for (a, _) in places("list").await {
        let names = async |list: watchlock::operate::List| -> Vec<String> {
            list.await.unwrap().into_iter().map(|lock| lock.name).collect()
        };
        let _one = a.mutex("job-1").acquire().await.unwrap();
        let _two = a.semaphore("job-2", 3).acquire().await.unwrap();
        a.mutex("job-3").acquire().await.unwrap().release().await.unwrap();
        let _other = a.mutex("other-$[").acquire().await.unwrap();
        assert_eq!(names(a.list()).await, ["job-1", "job-2", "job-3", "other-$["]);
        assert_eq!(names(a.list().prefix("job-")).await, ["job-1", "job-2", "job-3"]);
        assert_eq!(names(a.list().prefix("job-").held(true)).await, ["job-1", "job-2"]);
        assert_eq!(names(a.list().held(false)).await, ["job-3"]);
        assert_eq!(
            names(a.list().kind(watchlock::operate::Kind::Semaphore)).await,
            ["job-2"]
        );
        assert_eq!(names(a.list().prefix("other-$[")).await, ["other-$["]);
        assert_eq!(names(a.list().owner("nobody")).await, [""; 0]);
        let host = a.inspect("job-1").await.unwrap().unwrap().holders[0].host.clone();
        assert_eq!(names(a.list().owner(host)).await, ["job-1", "job-2", "other-$["]);
        assert_eq!(names(a.list().older_than(Duration::from_secs(60))).await, [""; 0]);
        let older = Duration::ZERO;
        eventually(SOON, "some time passes", async || {
            names(a.list().older_than(older)).await.len() == 3
        })
        .await;
    }
}

/// Time is tokio's in memory: as it passes leases are renewed, and when it leaps they run out, as those of a process
/// that was frozen.
#[tokio::test(start_paused = true)]
async fn leases_are_renewed_and_run_out_on_paused_time() {
    let memory = InMemory::new();
    let (a, b) = (memory.client(), memory.client());
    let held = a.mutex("x").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(held.status(), LockStatus::Held);
    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());

    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(held.lost_reason(), Some(LostReason::Expired));
    let next = b.mutex("x").acquire().timeout(SOON).await.unwrap();
    assert!(next.token() > held.token());
    assert_eq!(held.release().await.unwrap(), Released::WasLost);
    assert_eq!(next.status(), LockStatus::Held);
}

/// Those behind it that read get in with the same write, and a writer among them keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_becomes_a_reader_without_letting_go() {
    for (a, b) in places("downgrade").await {
        let (ours, theirs) = (a.rw_lock("x"), b.rw_lock("x"));
        let writer = ours.write().await.unwrap();
        let reader = in_line!(&a, "x", 1, theirs.read());
        let mine = ours.clone();
        let waiting = in_line!(&a, "x", 2, mine.write());
        let token = writer.token();
        writer.downgrade().await.unwrap();
        let reader = granted(reader).await;
        assert_eq!(
            (writer.permits(), writer.token(), writer.status()),
            (1, token, LockStatus::Held)
        );
        assert!(reader.token() > token);
        let lock = a.inspect("x").await.unwrap().unwrap();
        assert!(
            lock.holders.iter().all(|holder| holder.access == Some(Access::Read)),
            "{lock}"
        );
        assert_eq!((lock.holders.len(), lock.waiters.len()), (2, 1), "{lock}");
        assert!(theirs.try_read().await.unwrap().is_none(), "the writer came first");
        // Once more changes nothing, and it is renewed and released as any other.
        writer.downgrade().await.unwrap();
        writer.renew().await.unwrap();
        assert_eq!(writer.release().await.unwrap(), Released::Released);
        assert_eq!(reader.release().await.unwrap(), Released::Released);
        let next = granted(waiting).await;
        assert!(next.permits() > 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_writer_with_one_handle_can_be_downgraded() {
    for (a, b) in places("not_downgraded").await {
        let (outer, prices) = (a.rw_lock("x").write().await.unwrap(), a.rw_lock("x"));
        let inner = prices.write().reentrant().await.unwrap();
        let error = outer.downgrade().await.unwrap_err();
        assert!(matches!(error, RenewError::Invalid(_)), "{error:?}");
        assert!(
            error.to_string().contains("2 handles") && error.to_string().contains("must have 1"),
            "{error}"
        );
        assert!(b.rw_lock("x").try_read().await.unwrap().is_none());
        inner.release().await.unwrap();
        outer.downgrade().await.unwrap();
        // From now on it is shared as a reader's, and not as a writer's.
        assert!(prices.try_write().reentrant().await.unwrap().is_none());
        assert_eq!(prices.read().reentrant().await.unwrap().token(), outer.token());
        b.break_lock("x").await.unwrap();
        within(PATIENCE, "the loss", outer.lost()).await;
        assert!(matches!(
            outer.downgrade().await.unwrap_err(),
            RenewError::Lost(Lost {
                reason: LostReason::Broken,
                ..
            })
        ));
    }
}
