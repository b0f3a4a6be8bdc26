//! The end of a client: by its shutdown, by a scope, or by that of its program.

use std::{env, panic::AssertUnwindSafe, time::Instant};

use futures::FutureExt as _;
use tokio::sync::oneshot;
use watchlock::{LockClientBuilder, errors::BuildError};

use crate::{
    faults::processes::{Process, TASK, say},
    setup::*,
};

/// How long a shutdown may take after one lost answer, where others load the machine too. Alone it takes half a second;
/// sweeps that are waited for take twelve.
const ENDED: Duration = Duration::from_secs(6);

/// Longer than anything is waited for here.
const LEASE: Duration = Duration::from_secs(60);

/// The command whose answer is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// A request that was asked for again and granted since: it may still come.
    Earlier,
    /// A request that is on its way as the shutdown begins.
    OnItsWay,
    /// One of the commands that release.
    Release,
}

/// A program that was blocked, or stopped, for longer than a lease, and then shuts down before anything else looks.
#[tokio::test]
async fn a_shutdown_does_not_call_a_hold_released_whose_time_is_over() {
    let memory = InMemory::new();
    let margin = Duration::from_millis(50);
    let builder = memory.builder().lease(Duration::from_millis(500)).skew_margin(margin);
    let locks = builder.build().await.unwrap();
    let handle = locks.mutex("x").acquire().await.unwrap();
    std::thread::sleep(Duration::from_millis(700));
    locks.shutdown().await;
    assert_eq!(handle.lost_reason(), Some(LostReason::Expired));
    assert_eq!(handle.release().await.unwrap(), Released::WasLost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_after_a_lost_answer_waits_for_no_more_than_the_request_can_take() {
    let cluster = shared::replica_set().await;
    let direct = Ground::on(cluster, "endlost");
    let other = direct.locks().await;
    for count in [0, 1, 200] {
        for lost in [Lost::Earlier, Lost::OnItsWay, Lost::Release] {
            let proxy = cluster.proxy(0).unwrap();
            let locks = direct.through(proxy.uri()).locks_for(LEASE).await;
            let acquires = (0..count).map(|number| locks.mutex(format!("{number}")).acquire());
            let held: Vec<_> = join_all(acquires).await.into_iter().map(Result::unwrap).collect();
            let mutex = locks.mutex("uncertain");
            match lost {
                Lost::Earlier => {
                    proxy.lose_next("findAndModify");
                    mutex.acquire().await.unwrap().release().await.unwrap();
                }
                Lost::OnItsWay => {
                    proxy.lose_next("findAndModify");
                    spawn(mutex.acquire());
                    eventually(PATIENCE, "it is on its way", async || !proxy.is_losing()).await;
                }
                Lost::Release => proxy.lose_next("update"),
            }
            let begun = Instant::now();
            locks.shutdown().await;
            let took = begun.elapsed();
            println!("{count} held, {lost:?} lost: shut down after {took:?}");
            assert!(took < ENDED, "{count} held, {lost:?} lost: {took:?}");
            assert!(
                held.iter()
                    .all(|handle| handle.lost_reason() == Some(LostReason::Released))
            );
            let left = other.list().await.unwrap();
            let left: Vec<_> = left
                .iter()
                .filter(|lock| lock.is_held() || !lock.waiters.is_empty())
                .collect();
            assert!(left.is_empty(), "{count} held, {lost:?} lost: {left:?}");
        }
    }
}

/// The entry of the claim is in a document that nobody here knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_takes_out_what_a_claim_without_an_answer_has_taken() {
    let (direct, proxy, behind) = Ground::proxied("endclaim").await;
    let ground = behind;
    let driver = ground.driver().await;
    let events = ground.of(&driver, "events");
    events.insert_one(doc! { "_id": 1 }).await.unwrap();
    let locks = LockClient::builder(driver.database(&ground.database)).lease(LEASE);
    let locks = locks.build().await.unwrap();
    let documents = locks.documents(events);
    // The answer is lost, and not the claim.
    proxy.black_hole_replies();
    let claiming = spawn(documents.claim(doc! {}));
    let other = direct.driver().await;
    let seen = ground.locks_over(&other).await;
    let seen = seen.documents(ground.of(&other, "events"));
    eventually(PATIENCE, "it is claimed", async || {
        seen.inspect(1).await.unwrap().is_some_and(|lock| lock.is_held())
    })
    .await;
    let ending = locks.clone();
    let ending = spawn(async move { ending.shutdown().await });
    // Until the claim counts as unanswered; and without answers it can't be searched for.
    let healing = spawn(async move {
        pause(2 * SOON).await;
        proxy.heal();
        proxy
    });
    within(PATIENCE, "the shutdown", ending).await.unwrap();
    let lock = seen.inspect(1).await.unwrap();
    assert!(lock.as_ref().is_none_or(|lock| !lock.is_held()), "{lock:?}");
    let claimed = within(PATIENCE, "the claim", claiming).await.unwrap();
    assert!(matches!(claimed, Err(AcquireError::Closed)), "{claimed:?}");
    drop(healing.await);
}

/// As where it is stopped from outside: its thread runs on.
#[tokio::test(flavor = "multi_thread")]
async fn blocking_work_that_a_shutdown_overtakes_sees_that_its_lock_is_lost() {
    let memory = InMemory::new();
    let (locks, other) = (memory.client(), memory.client());
    let handle = locks.mutex("x").acquire().await.unwrap();
    let (begun, begins) = oneshot::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let working = tokio::task::spawn_blocking(move || {
        assert!(handle.is_held());
        begun.send(()).unwrap();
        goes_on.recv().unwrap();
        (handle.is_held(), handle.lost_reason())
    });
    begins.await.unwrap();
    working.abort();
    within(SOON, "the shutdown", locks.shutdown()).await;
    assert!(other.mutex("x").try_acquire().await.unwrap().is_some());
    go_on.send(()).unwrap();
    assert_eq!(working.await.unwrap(), (false, Some(LostReason::Released)));
}

/// A server, and memory, each with a builder and another client.
async fn places(name: &str) -> [(LockClientBuilder, LockClient); 2] {
    let (memory, ground) = (InMemory::new(), Ground::replica_set(name).await);
    [
        (memory.builder().lease(LEASE), memory.client()),
        (ground.builder().await.lease(LEASE), ground.locks().await),
    ]
}

#[tokio::test]
async fn a_scope_returns_what_its_work_does_and_leaves_nothing() {
    for (builder, other) in places("endscope").await {
        let failing = |locks: LockClient, fails: bool| async move {
            let documents = locks.documents_in_memory::<Document>(&MemoryCollection::new());
            let handle = locks.mutex("x").acquire().await.unwrap();
            if fails {
                Err("no")
            } else {
                Ok((locks, documents, handle))
            }
        };
        let failed = builder.clone().scope(|locks| failing(locks, true)).await.unwrap();
        assert_eq!(failed.unwrap_err(), "no");
        assert!(is_vacant(&other, "x").await);

        // What outlives the scope is of no use any more.
        let (locks, documents, handle) = builder.scope(|locks| failing(locks, false)).await.unwrap().unwrap();
        assert_eq!(handle.lost_reason(), Some(LostReason::Released));
        assert!(is_vacant(&other, "x").await);
        let closed = locks.mutex("y").acquire().await;
        assert!(matches!(closed, Err(AcquireError::Closed)), "{closed:?}");
        let closed = documents.try_acquire(1).await;
        assert!(matches!(closed, Err(AcquireError::Closed)), "{closed:?}");
    }
}

#[tokio::test]
async fn a_scope_that_is_not_built_does_no_work() {
    let scope = InMemory::new()
        .builder()
        .lease(Duration::ZERO)
        .scope(|_| async { panic!("it works") });
    assert!(matches!(scope.await, Err(BuildError::Invalid(_))));
}

#[tokio::test]
async fn a_panic_goes_on_after_the_scope_is_shut_down() {
    for (builder, other) in places("endpanic").await {
        for awaits in [false, true] {
            let scope = builder.clone().scope(|locks| {
                assert!(awaits, "at once");
                async move {
                    let _handle = locks.mutex("x").acquire().await.unwrap();
                    panic!("in the work");
                }
            });
            let panic = AssertUnwindSafe(scope).catch_unwind().await.unwrap_err();
            let expected = if awaits { "in the work" } else { "at once" };
            assert_eq!(panic.downcast_ref(), Some(&expected));
            assert!(is_vacant(&other, "x").await);
        }
    }
}

#[tokio::test]
async fn a_scope_that_is_dropped_shuts_down_in_the_background() {
    for (builder, other) in places("enddropped").await {
        let (to, kept) = oneshot::channel();
        let scope = builder.scope(|locks| async move {
            let handle = locks.mutex("x").acquire().await.unwrap();
            // The work may have given away what is its own.
            to.send((locks, handle)).ok().unwrap();
            std::future::pending::<()>().await;
        });
        let scope = spawn(scope);
        let (locks, handle) = kept.await.unwrap();
        assert_eq!(handle.lost_reason(), None);
        scope.abort();
        assert_eq!(within(PATIENCE, "the loss", handle.lost()).await, LostReason::Released);
        eventually(SOON, "it is free", async || is_vacant(&other, "x").await).await;
        let closed = locks.mutex("y").acquire().await;
        assert!(matches!(closed, Err(AcquireError::Closed)), "{closed:?}");
    }
}

/// Not a test but the process that the next one starts: a program whose `main` ends in this way.
#[test]
fn child_process() {
    let Ok(task) = env::var(TASK) else { return };
    let [uri, database, end] = task.split('|').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let runtime = runtime();
    let main = async {
        let client = Client::with_uri_str(uri).await.unwrap();
        say("ready");
        let locks = LockClient::builder(client.database(database)).lease(LEASE);
        locks
            .scope(|locks| async move {
                let _handle = locks.mutex("x").acquire().await.unwrap();
                say("acquired");
                match end {
                    "return" => Ok(()),
                    "error" => Err("an error"),
                    _ => panic!("a panic of the child's"),
                }
            })
            .await
            .unwrap()
    };
    let ended = runtime.block_on(main);
    assert_eq!(ended.is_err(), end == "error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_in_any_way_leaves_no_lock_taken() {
    let ground = Ground::replica_set("endprogram").await;
    let other = ground.locks().await;
    for end in ["return", "error", "panic"] {
        let task = format!("{}|{}|{end}", ground.uri(), ground.database);
        let mut program = Process::run("client::shutdown::child_process", task).await;
        program.hears("acquired").await;
        // Long before the lease is over.
        let handle = within(PATIENCE, end, other.mutex("x").acquire()).await.unwrap();
        handle.release().await.unwrap();
    }
}

/// While something is on its way for a client, an idle lock of it goes back as its last handle goes.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_idle_for_an_answer_that_a_task_waits_for() {
    let cluster = shared::replica_set().await;
    for waits_for in ["a renewal", "the renewal of a handle", "a sweep"] {
        let direct = Ground::on(cluster, "endidle");
        let proxy = cluster.proxy(0).unwrap();
        let other = direct.locks().await;
        let keeping = |locks: LockClientBuilder| locks.lease(LEASE).renewal_interval(SOON / 4).keep_idle(LEASE);
        let locks = direct.through(proxy.uri()).locks_with(keeping).await;
        // While the stream opens it does not stay.
        eventually(PATIENCE, "it stays", async || {
            locks.mutex("idle").acquire().await.unwrap().release().await.unwrap();
            // A second is as long as one stays without a stream.
            pause(SOON + SOON / 2).await;
            !is_vacant(&other, "idle").await
        })
        .await;
        if waits_for == "a sweep" {
            proxy.lose_next("findAndModify");
            locks.mutex("other").acquire().await.unwrap().release().await.unwrap();
        } else {
            let handle = locks.mutex("other").acquire().await.unwrap();
            proxy.lose_next("update");
            let renewing = async {
                match waits_for {
                    "a renewal" => std::future::pending().await,
                    _ => drop(handle.renew().await),
                }
            };
            tokio::select! {
                () = renewing => panic!("{waits_for} was answered"),
                _ = eventually(PATIENCE, waits_for, async || !proxy.is_losing()) => {}
            }
        }
        assert!(!is_vacant(&other, "idle").await, "{waits_for}");
        drop(locks);
        // Not by an acquire, for which a client that lives on would give it back.
        let freed = eventually(SOON, waits_for, async || is_vacant(&other, "idle").await).await;
        println!("{waits_for} has no answer: free after {freed:?}");
    }
}
