//! Tasks that wait for each other, and some that only seem to.

use std::{future::pending, sync::Arc};

use futures::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt as _},
};
use tokio::{
    sync::Barrier,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use watchlock::{errors::Deadlock, locks::Mutex};

use crate::setup::*;

/// The lease, within which a deadlock is told.
const IN_TIME: Duration = Duration::from_secs(30);

/// Long after one would have been told.
const LONG: Duration = Duration::from_secs(300);

type Ended = JoinHandle<Result<(), AcquireError>>;

/// A task that holds `first`, then waits for `second`, and fails on a deadlock.
fn crossing(locks: &LockClient, first: &str, second: &str) -> Ended {
    let (first, second) = (locks.mutex(first).acquire(), locks.mutex(second).acquire());
    spawn(async move {
        let _first = first.reason("a step").await?;
        sleep(Duration::from_secs(1)).await;
        drop(second.fail_on_deadlock().await?);
        Ok(())
    })
}

fn names(deadlock: &Deadlock) -> Vec<&str> {
    let mut names: Vec<&str> = deadlock.locks.iter().map(|lock| lock.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Asserts that of these tasks one fails on a deadlock of these locks, and the others go on then.
async fn assert_one_fails(tasks: Vec<Ended>, locks: &[&str]) {
    let ended = timeout(IN_TIME, futures::future::join_all(tasks))
        .await
        .expect("it is told");
    let errors: Vec<AcquireError> = ended.into_iter().filter_map(|ended| ended.unwrap().err()).collect();
    let [AcquireError::Deadlock(deadlock)] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert_eq!(names(deadlock), locks);
    assert_eq!(deadlock.locks[0].holders[0].owner.reason.as_deref(), Some("a step"));
    assert!(errors[0].to_string().contains("waits for `a`"), "{}", errors[0]);
}

#[tokio::test(start_paused = true)]
async fn of_clients_that_wait_for_each_other_one_fails_and_the_others_go_on() {
    let memory = InMemory::new();
    let clients = [memory.client(), memory.client(), memory.client()];
    for ring in [&["a", "b"][..], &["a", "b", "c"]] {
        let next = ring.iter().cycle().skip(1);
        let tasks = ring.iter().zip(next).zip(&clients);
        let tasks = tasks.map(|((first, second), client)| crossing(client, first, second));
        assert_one_fails(tasks.collect(), ring).await;
    }
}

#[tokio::test(start_paused = true)]
async fn so_it_is_with_the_tasks_of_one_client() {
    let locks = LockClient::in_memory();
    let tasks = vec![crossing(&locks, "a", "b"), crossing(&locks, "b", "a")];
    assert_one_fails(tasks, &["a", "b"]).await;
}

/// Of each client one task acquires, and others do the work and release.
#[tokio::test(start_paused = true)]
async fn a_task_that_gives_its_locks_to_others_does_not_wait_for_itself() {
    let memory = InMemory::new();
    let clients = [memory.client(), memory.client()];
    let dispatching = clients.iter().map(|locks| {
        let locks = locks.clone();
        spawn(async move {
            for _ in 0..4 {
                let permit = locks.semaphore("a", 3).acquire().fail_on_deadlock().await?;
                drop(spawn(async move {
                    sleep(LONG).await;
                    drop(permit);
                }));
            }
            for _ in 0..2 {
                let held = locks.mutex("b").acquire().fail_on_deadlock().await?;
                drop(spawn(async move {
                    sleep(LONG).await;
                    drop(held);
                }));
            }
            Ok::<_, AcquireError>(())
        })
    });
    let dispatching = futures::future::join_all(dispatching);
    let found = async {
        loop {
            assert_eq!(clients[0].deadlocks().await.unwrap(), []);
            sleep(IN_TIME).await;
        }
    };
    tokio::select! {
        ended = dispatching => ended.into_iter().for_each(|ended| ended.unwrap().unwrap()),
        () = found => {}
    }
}

/// The other part can be in another task.
#[tokio::test(start_paused = true)]
async fn permits_that_were_split_are_in_no_deadlock() {
    let memory = InMemory::new();
    let (one, other) = (memory.client(), memory.client());
    let (permits, b) = (one.semaphore("a", 2), one.mutex("b"));
    let split = spawn(async move {
        let permits = permits.acquire_many(2).await?;
        let part = permits.split(1).unwrap();
        drop(spawn(async move {
            sleep(LONG).await;
            drop(part);
        }));
        sleep(Duration::from_secs(1)).await;
        b.acquire().fail_on_deadlock().await.map(drop)
    });
    let (permits, b) = (other.semaphore("a", 2), other.mutex("b"));
    let waiting = spawn(async move {
        let _b = b.acquire().await?;
        sleep(Duration::from_secs(2)).await;
        permits.acquire().fail_on_deadlock().await.map(drop)
    });
    waiting.await.unwrap().unwrap();
    split.await.unwrap().unwrap();
}

/// By default it waits on: the event and the operators' list are all.
#[tokio::test(start_paused = true)]
async fn a_deadlock_is_listed_while_it_lasts() {
    let memory = InMemory::new();
    let (one, other) = (memory.client(), memory.client());
    assert_eq!(one.deadlocks().await.unwrap(), []);
    let (a, b, work) = (other.mutex("a"), other.mutex("b"), sleep(LONG));
    let crossing = spawn(async move {
        let _b = b.acquire().await.unwrap();
        work.await;
        a.acquire().timeout(LONG).await
    });
    let (a, b) = (one.mutex("a"), one.mutex("b"));
    let waiting = spawn(async move {
        let _a = a.acquire().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        b.acquire().await
    });
    sleep(LONG - Duration::from_secs(1)).await;
    assert_eq!(one.deadlocks().await.unwrap(), [], "the holder of `b` is at work");
    sleep(IN_TIME).await;
    let found = one.deadlocks().await.unwrap();
    assert_eq!(found.iter().map(names).collect::<Vec<_>>(), [["a", "b"]]);
    assert!(crossing.await.unwrap().is_err(), "its time is over");
    drop(waiting.await.unwrap().unwrap());
    let begun = Instant::now();
    assert_eq!(one.deadlocks().await.unwrap(), []);
    assert!(begun.elapsed() < Duration::from_secs(1), "there is no sign of one");
}

#[tokio::test(start_paused = true)]
async fn clients_whose_tasks_hold_and_wait_crosswise_are_in_no_deadlock() {
    let memory = InMemory::new();
    let (one, other) = (memory.client(), memory.client());
    let holding = |locks: &LockClient, name: &str| {
        let acquire = locks.mutex(name).acquire();
        spawn(async move {
            let _held = acquire.await.unwrap();
            sleep(LONG).await;
        })
    };
    let held = [holding(&one, "a"), holding(&other, "b")];
    sleep(Duration::from_secs(1)).await;
    let wait = |locks: &LockClient, name: &str| spawn(locks.mutex(name).acquire().fail_on_deadlock().into_future());
    let waiting = [wait(&one, "b"), wait(&other, "a")];
    sleep(LONG / 2).await;
    assert_eq!(one.deadlocks().await.unwrap(), []);
    for task in held {
        task.await.unwrap();
    }
    for task in waiting {
        drop(task.await.unwrap().unwrap());
    }
}

/// A task holds in one branch, at work, and waits in another.
#[tokio::test(start_paused = true)]
async fn branches_of_one_task_are_in_no_deadlock_while_one_goes_on() {
    let memory = InMemory::new();
    let clients = [memory.client(), memory.client()];
    let step = |locks: &LockClient, name: &str, second: u64| {
        let acquire = locks.mutex(name).acquire().fail_on_deadlock();
        async move {
            sleep(Duration::from_secs(second)).await;
            let _held = acquire.await?;
            for _ in 0..LONG.as_secs() {
                sleep(Duration::from_secs(1)).await;
            }
            Ok::<_, AcquireError>(())
        }
    };
    let joined = clients
        .iter()
        .zip([["a", "b"], ["b", "a"]])
        .map(|(locks, [first, second])| {
            let (first, second) = (step(locks, first, 0), step(locks, second, 1));
            spawn(async move { tokio::try_join!(first, second).map(drop) })
        });
    for task in joined.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
    // Each of them is polled by itself.
    let unordered = clients.iter().zip([["a", "b"], ["b", "a"]]).map(|(locks, names)| {
        let mut steps: FuturesUnordered<_> = [step(locks, names[0], 0), step(locks, names[1], 1)]
            .into_iter()
            .collect();
        spawn(async move {
            while let Some(ended) = steps.next().await {
                ended?;
            }
            Ok::<_, AcquireError>(())
        })
    });
    for task in unordered.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
}

/// Another than the one that fails: it waits for `second` from this second on.
fn crossing_from(
    locks: &LockClient,
    first: BoxFuture<'static, Result<Held, AcquireError>>,
    (second, from): (&str, u64),
) -> Ended {
    let second = locks.mutex(second).acquire().fail_on_deadlock();
    spawn(async move {
        sleep(Duration::from_millis(100 * from)).await;
        let _first = first.await?;
        sleep(Duration::from_secs(from)).await;
        second.await.map(drop)
    })
}

#[tokio::test(start_paused = true)]
async fn the_task_fails_that_was_granted_its_lock_last() {
    for [one, other] in [[1, 2], [1, 5], [1, 9], [1, 14], [2, 23]] {
        let memory = InMemory::new();
        let clients = [memory.client(), memory.client()];
        let first = |locks: &LockClient, name: &str| -> BoxFuture<'static, Result<Held, AcquireError>> {
            let acquire = locks.mutex(name).acquire();
            Box::pin(async { acquire.await.map(Into::into) })
        };
        let older = crossing_from(&clients[0], first(&clients[0], "a"), ("b", other));
        let younger = crossing_from(&clients[1], first(&clients[1], "b"), ("a", other + one));
        let error = within(IN_TIME * 2, "the deadlock", younger).await.unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Deadlock(_)), "{error:?}");
        within(IN_TIME, "the grant", older).await.unwrap().unwrap();
    }
}

/// The younger gives up by itself after the deadlock was certain. The older would fail half a minute after it began.
#[tokio::test(start_paused = true)]
async fn nobody_fails_for_a_deadlock_that_is_over() {
    let memory = InMemory::new();
    for seconds in 14..25 {
        let (one, other) = (memory.client(), memory.client());
        let (a, b) = (one.mutex("a"), one.mutex("b"));
        let older = spawn(async move {
            let _a = a.acquire().await.unwrap();
            sleep(Duration::from_secs(2)).await;
            b.acquire().fail_on_deadlock().await.map(drop)
        });
        let (a, b) = (other.mutex("a"), other.mutex("b"));
        let younger = spawn(async move {
            sleep(Duration::from_secs(1)).await;
            let _b = b.acquire().await.unwrap();
            let waited = a.acquire().timeout(Duration::from_secs(seconds)).await;
            assert!(matches!(waited, Err(AcquireError::Timeout { .. })), "{waited:?}");
            sleep(LONG).await;
        });
        younger.await.unwrap();
        let ended = within(IN_TIME, "the grant", older).await.unwrap();
        assert!(ended.is_ok(), "{seconds} s: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_was_given_up_is_in_no_deadlock() {
    let memory = InMemory::new();
    let (one, other) = (memory.client(), memory.client());
    let (a, b) = (one.mutex("a"), one.mutex("b"));
    let held = spawn(async move {
        let _a = a.acquire().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert!(b.acquire().timeout(LONG).await.is_err());
        pending::<()>().await;
    });
    let (a, b) = (other.mutex("a"), other.mutex("b"));
    let waiting = spawn(async move {
        let _b = b.acquire().await.unwrap();
        // Beside the other it is none of the long ones.
        sleep(LONG - Duration::from_secs(4)).await;
        a.acquire().fail_on_deadlock().await
    });
    sleep(LONG * 2).await;
    assert!(!waiting.is_finished() && !held.is_finished());
    assert_eq!(one.deadlocks().await.unwrap(), []);
}

/// Also by what a server keeps, and beside a hold that is watched for its loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_shows_the_deadlocks_of_its_clients() {
    let ground = Ground::replica_set("deadlocks").await;
    let client = async || {
        let builder = ground.builder().await.lease(Duration::from_secs(3));
        builder.label("crossing").build().await.unwrap()
    };
    let (one, other) = (client().await, client().await);
    let both_hold = Arc::new(Barrier::new(2));
    let within_its_hold = |locks: &LockClient, first: &str, second: &str| {
        let (first, second) = (locks.mutex(first).acquire(), locks.mutex(second).acquire());
        let both_hold = both_hold.clone();
        let work = async move |_: &Held<Mutex>| {
            both_hold.wait().await;
            second.await.map(drop)
        };
        spawn(async move { first.run(work).await })
    };
    let tasks = [within_its_hold(&one, "a", "b"), within_its_hold(&other, "b", "a")];
    until_waiting(&one, "a", 1).await;
    until_waiting(&one, "b", 1).await;
    let listed = within(PATIENCE, "the list", async {
        loop {
            match &one.deadlocks().await.unwrap()[..] {
                [] => sleep(Duration::from_millis(100)).await,
                found => return found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }
        }
    })
    .await;
    let [line] = &listed[..] else { panic!("{listed:?}") };
    assert!(line.starts_with("deadlock: `a` is held by crossing ("), "{line}");
    tasks.iter().for_each(JoinHandle::abort);
}

/// A writer waits for all readers, and a permit that comes back lets any waiter in.
#[tokio::test(start_paused = true)]
async fn a_lock_blocks_only_if_all_of_its_holders_wait() {
    for kind in ["readers", "permits"] {
        let memory = InMemory::new();
        let (one, other, third) = (memory.client(), memory.client(), memory.client());
        let (mutex, at_work) = (one.mutex("b"), sleep(LONG));
        let share = move |locks: &LockClient| -> BoxFuture<'static, Result<Held, AcquireError>> {
            let (permits, reads) = (locks.semaphore("a", 2).acquire(), locks.rw_lock("a").read());
            match kind {
                "permits" => Box::pin(async { permits.await.map(Into::into) }),
                _ => Box::pin(async { reads.await.map(Into::into) }),
            }
        };
        let (first, second) = (share(&third), share(&one));
        let working = spawn(async move {
            let _share = first.await.unwrap();
            at_work.await;
        });
        let holding = spawn(async move {
            let _share = second.await.unwrap();
            mutex.acquire().await
        });
        let (permits, writes) = (other.semaphore("a", 2), other.rw_lock("a"));
        let (b, again) = (other.mutex("b"), share(&third));
        let waiting = spawn(async move {
            let _b = b.acquire().await.unwrap();
            sleep(Duration::from_secs(1)).await;
            match kind {
                "permits" => drop(permits.acquire_many(2).fail_on_deadlock().await?),
                _ => drop(writes.write().fail_on_deadlock().await?),
            }
            Ok::<_, AcquireError>(())
        });
        working.await.unwrap();
        assert!(!waiting.is_finished() && !holding.is_finished(), "{kind}");
        let error = within(IN_TIME, "the deadlock", waiting).await.unwrap().unwrap_err();
        assert_is!(error, AcquireError::Deadlock(deadlock) if names(deadlock) == ["a", "b"]);
        drop(within(IN_TIME, "the grant", holding).await.unwrap().unwrap());
        drop(again);
    }
}

/// A thread that blocks is a task too.
#[cfg(feature = "sync")]
#[test]
fn of_threads_that_wait_for_each_other_one_fails() {
    let millis = Duration::from_millis;
    let builder = InMemory::new().builder().lease(millis(600)).skew_margin(millis(50));
    let locks = builder.blocking().build().unwrap();
    let both_hold = std::sync::Barrier::new(2);
    let crossing = |first: &str, second: &str| {
        let _first = locks.mutex(first).acquire().run().unwrap();
        both_hold.wait();
        locks.mutex(second).acquire().fail_on_deadlock().run().err()
    };
    let errors: Vec<_> = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| crossing("a", "b")), scope.spawn(|| crossing("b", "a"))];
        threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(matches!(&errors[..], [AcquireError::Deadlock(_)]), "{errors:?}");
}
