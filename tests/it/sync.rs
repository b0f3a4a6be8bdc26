//! The blocking API, from threads that have no runtime.

use std::{
    env,
    io::{Read as _, Write as _},
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use mongodb::options::ClientOptions;
use watchlock::{LockClientBuilder, errors::HoldError, operate::LockEvent, sync::Blocking};

use crate::setup::*;

type LockClient = watchlock::LockClient<Blocking>;

/// The test kit's servers are started by async code, which is over when this returns: the tests have no runtime.
fn prepared<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

fn driver(ground: &Ground) -> Client {
    Client::with_options(ClientOptions::parse(ground.uri()).run().unwrap()).unwrap()
}

fn builder(ground: &Ground) -> LockClientBuilder<Blocking> {
    watchlock::LockClient::builder(driver(ground).database(&ground.database)).blocking()
}

fn locks(ground: &Ground) -> LockClient {
    builder(ground).build().unwrap()
}

/// Two clients, as two processes would have them, in each of the three places.
fn places(name: &str) -> Vec<(LockClient, LockClient)> {
    let memory = InMemory::new();
    let (set, alone) = prepared(async { (Ground::replica_set(name).await, Ground::standalone(name).await) });
    vec![
        (memory.client().blocking(), memory.client().blocking()),
        (locks(&set), locks(&set)),
        (locks(&alone), locks(&alone)),
    ]
}

fn eventually(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let began = start.elapsed();
        if holds() {
            return;
        }
        assert!(began < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn is_vacant(locks: &LockClient, name: &str) -> bool {
    let lock = locks.inspect(name).unwrap();
    lock.is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
}

fn until_waiting(locks: &LockClient, name: &str, count: usize) {
    eventually(PATIENCE, "all wait", || {
        let lock = locks.inspect(name).unwrap();
        lock.is_some_and(|lock| lock.waiters.len() == count)
    });
}

/// The output of the thread, which must come within `limit`.
fn within<T: Send + 'static>(limit: Duration, what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, output) = mpsc::channel();
    let _detached = thread::spawn(move || to.send(work()));
    match output.recv_timeout(limit) {
        Ok(output) => output,
        Err(error) => panic!("not within {limit:?}: {what}: {error}"),
    }
}

#[test]
fn threads_of_two_clients_take_turns() {
    for (a, b) in places("sync_turns") {
        let (inside, done) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        for locks in [&a, &b] {
            for _ in 0..6 {
                let (mutex, inside, done) = (locks.mutex("x"), inside.clone(), done.0.clone());
                thread::spawn(move || {
                    for _ in 0..4 {
                        let handle = mutex.acquire().timeout(PATIENCE).run().unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst), "held twice");
                        thread::yield_now();
                        inside.store(false, Ordering::SeqCst);
                        let token = handle.token();
                        assert_eq!(handle.release().unwrap(), Released::Released);
                        done.send(token).unwrap();
                    }
                });
            }
        }
        let mut tokens: Vec<_> = (0..48)
            .map(|_| done.1.recv_timeout(2 * PATIENCE).expect("everybody gets through"))
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 48);
        assert!(is_vacant(&a, "x"));
    }
}

#[test]
fn a_thread_that_waits_learns_of_a_grant_a_loss_and_the_end_of_its_client() {
    for (a, b) in places("sync_blocked") {
        let held = a.mutex("x").acquire().reason("to test").run().unwrap();
        assert!(held.renew().unwrap() > Duration::from_secs(25) && held.safe_for() > Duration::from_secs(20));
        let error = b.mutex("x").try_acquire().or_held().run().unwrap_err();
        assert!(error.to_string().contains("to test"), "{error}");
        let error = b.mutex("x").acquire().timeout(Duration::ZERO).run().unwrap_err();
        assert!(matches!(error, AcquireError::Timeout { .. }), "{error}");
        let mutex = b.mutex("x");
        let waiting = thread::spawn(move || mutex.acquire().run().unwrap());
        until_waiting(&a, "x", 1);
        // A dropped handle releases.
        drop(held);
        let held = within(PATIENCE, "the grant", || waiting.join().unwrap());

        assert_eq!(held.lost_within(Duration::from_millis(20)), None);
        let view = held.view();
        let blocked = thread::spawn(move || view.lost());
        a.break_lock("x").unwrap();
        assert_eq!(
            within(2 * SOON, "the loss", || blocked.join().unwrap()),
            LostReason::Broken
        );
        assert_eq!(held.lost_within(Duration::MAX).unwrap(), LostReason::Broken);
        assert_lost!(HoldError, Broken, held.renew().unwrap_err());

        let held = a.mutex("x").acquire().run().unwrap();
        let mutex = b.mutex("x");
        let waiting = thread::spawn(move || mutex.acquire().run());
        until_waiting(&a, "x", 1);
        b.shutdown();
        let ended = within(SOON, "the wait ends", || waiting.join().unwrap());
        assert!(matches!(ended, Err(AcquireError::Closed)), "{ended:?}");
        a.shutdown();
        assert_eq!(held.lost(), LostReason::Released);
        assert!(is_vacant(&b, "x"));
    }
}

/// In a process of its own, as in this one the threads of other tests drive what is to go on by itself. Time has to
/// pass there: that is what the lock must outlast.
#[test]
fn a_lock_is_renewed_while_the_only_thread_sleeps() {
    const SERVER: &str = "WATCHLOCK_TEST_SERVER";
    let Ok(uri) = env::var(SERVER) else {
        let ground = prepared(Ground::replica_set("sync_renewed"));
        let alone = Command::new(env::current_exe().unwrap())
            .args(["sync::a_lock_is_renewed_while_the_only_thread_sleeps", "--exact"])
            .env(SERVER, ground.uri())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&alone.stdout);
        assert!(alone.status.success() && told.contains("1 passed"), "{told}");
        return;
    };
    let (ground, lease) = (Ground::at(uri, "sync_renewed"), Duration::from_secs(2));
    let (locks, other) = (builder(&ground).lease(lease).build().unwrap(), locks(&ground));
    let held = locks.mutex("x").acquire().run().unwrap();
    thread::sleep(3 * lease);
    assert_eq!(held.status(), LockStatus::Held);
    assert!(other.mutex("x").try_acquire().run().unwrap().is_none());
    let lock = other.inspect("x").unwrap().unwrap();
    assert_eq!(lock.holders[0].token, held.token());
    assert_eq!(held.release().unwrap(), Released::Released);
}

#[test]
fn run_does_the_work_under_the_lock() {
    for (a, b) in places("sync_run") {
        let work = |held: &watchlock::Held<watchlock::locks::Mutex, Blocking>| {
            assert!(b.mutex("x").try_acquire().run().unwrap().is_none());
            held.token()
        };
        let token = a.mutex("x").acquire().run_with(work).unwrap();
        assert!(token < a.mutex("x").acquire().run_with(work).unwrap());
        assert!(is_vacant(&b, "x"));

        let lost = a.mutex("x").acquire().run_with(|held| {
            b.break_lock("x").unwrap();
            held.lost()
        });
        assert_lost!(AcquireError, Broken, lost.unwrap_err());
        let unwound = std::panic::catch_unwind(AssertUnwindSafe(|| {
            a.mutex("x").acquire().run_with(|_| panic!("on purpose"))
        }));
        assert!(unwound.is_err());
        eventually(SOON, "released as it unwinds", || is_vacant(&b, "x"));

        let _held = b.mutex("x").acquire().run().unwrap();
        assert_eq!(a.mutex("x").try_acquire().run_with(|_| ()).unwrap(), None);
        let lost = a.multi(["p", "q"]).acquire().run_with(|held| {
            b.break_lock("q").unwrap();
            held.lost()
        });
        assert_is!(lost, Err(AcquireError::Lost(part)) if part.name == "q");
        let memory = watchlock::testing::MemoryCollection::new();
        prepared(memory.insert_one(doc! { "_id": 1 })).unwrap();
        let events = a.documents_in_memory::<Document>(&memory);
        let deleted = events.acquire(1).run_with(|event| event.delete().is_ok());
        assert!(deleted.unwrap());
        assert_eq!(events.try_claim(doc! {}).run_with(|_| ()).unwrap(), None);
    }
}

/// Each call is that of the async world: what is told apart here is what returns at once there.
#[test]
fn every_kind_of_lock_works_without_async() {
    for (a, b) in places("sync_kinds") {
        let permits = a.semaphore("semaphore", 3);
        let two = permits.acquire_many(2).run().unwrap();
        assert_eq!(permits.available_permits().unwrap(), 1);
        assert_eq!(permits.set_permits(4).unwrap().capacity, Some(4));
        assert_eq!(two.release().unwrap(), Released::Released);
        let writer = a.rw_lock("rw").write().run().unwrap();
        writer.downgrade().unwrap();
        assert!(b.rw_lock("rw").try_read().run().unwrap().is_some());
        drop(writer);
        let reader = a.rw_lock("rw").upgradeable_read().run().unwrap();
        let writer = reader.upgrade().run().unwrap();
        assert!(b.rw_lock("rw").try_read().run().unwrap().is_none());
        drop((writer, reader));

        let multi = a.multi(["z", "x", "y"]);
        let held = multi.acquire().run().unwrap();
        // On a thread without a runtime.
        let held = held.into_async().into_blocking();
        b.break_lock("y").unwrap();
        let lost = held.lost_within(2 * SOON).unwrap();
        assert_eq!((lost.name.as_str(), lost.reason), ("y", LostReason::Broken));
        assert_eq!(held.release().unwrap(), Released::WasLost);

        let memory = MemoryCollection::new();
        prepared(memory.insert_one(doc! { "_id": 1, "lines": [{ "n": 1 }] })).unwrap();
        let events = a.documents_in_memory::<Document>(&memory);
        let line = events.element::<Document>("lines", doc! { "n": 1 });
        let held = line.acquire(1).run().unwrap();
        let updated = held.update(doc! { "$set": { "done": true } }).unwrap();
        assert_eq!(updated, doc! { "n": 1, "done": true });
        held.release().unwrap();
        let event = events.claim(doc! {}).run().unwrap();
        assert_eq!(events.list().held(true).run().unwrap().len(), 1);
        assert_eq!(events.inspect(1).unwrap().unwrap().holders[0].token, event.token());
        event.update_and_release(doc! { "$set": { "n": 7 } }).unwrap();
        assert_eq!(events.claim_many(doc! {}, 2).run().unwrap().len(), 1);
        eventually(SOON, "those that were dropped are given back", || {
            events
                .try_acquire(1)
                .run()
                .unwrap()
                .is_some_and(|event| event.delete().is_ok())
        });
    }
}

#[test]
fn leaders_are_elected_and_observed_by_threads() {
    for (a, b) in places("sync_election") {
        let (here, there) = (a.election("x"), b.election("x"));
        let (tell, told) = mpsc::channel();
        let observed = there.observe();
        thread::spawn(move || {
            for leader in observed {
                let value = leader.unwrap().map(|leader| leader.value);
                if tell.send(value).is_err() {
                    return;
                }
            }
        });
        let next = || told.recv_timeout(PATIENCE).expect("a change of leaders");
        assert_eq!(next(), None);
        let first = here.campaign("first").reason("to test").run().unwrap();
        assert_eq!(next().as_deref(), Some("first"));
        assert_eq!(there.leader().unwrap().unwrap().token, first.token());
        first.proclaim("still first").unwrap();
        assert_eq!(next().as_deref(), Some("still first"));
        assert!(there.campaign("second").timeout(Duration::ZERO).run().is_err());
        assert_eq!(first.release().unwrap(), Released::Released);
        assert_eq!(next(), None);

        let mut terms = 0;
        let last = there.run("again", |leading| {
            terms += 1;
            if terms == 1 {
                a.break_lock("x").unwrap();
                assert_eq!(leading.lost_within(2 * SOON).unwrap(), LostReason::Broken);
                return ControlFlow::Continue(());
            }
            assert_eq!(leading.lost_reason(), None);
            ControlFlow::Break(leading.token())
        });
        assert!(last.unwrap() < here.campaign("").run().unwrap().token());
        assert_eq!(terms, 2);
    }
}

#[test]
fn events_are_iterated_and_end_with_the_client() {
    for (a, b) in places("sync_watch") {
        let (tell, told) = mpsc::channel();
        let events = b.watch("x");
        let watching = thread::spawn(move || events.map(Result::unwrap).for_each(|event| tell.send(event).unwrap()));
        let next = || told.recv_timeout(PATIENCE).expect("an event");
        let held = a.mutex("x").acquire().run().unwrap();
        assert!(matches!(next(), LockEvent::Granted { holder, .. } if holder.token == held.token()));
        held.release().unwrap();
        assert!(matches!(next(), LockEvent::Released { .. }));
        let held = a.mutex("x").acquire().run().unwrap();
        assert!(matches!(next(), LockEvent::Granted { .. }));
        b.break_lock("x").unwrap();
        assert!(matches!(next(), LockEvent::Broken { token, .. } if token == held.token()));
        b.shutdown();
        within(SOON, "the iterator ends", || watching.join().unwrap());
    }
}

/// As with the driver: a call that blocks panics on a thread of a runtime. What does not block does not.
#[tokio::test(flavor = "multi_thread")]
async fn in_an_async_runtime_only_blocking_threads_may_block() {
    let memory = InMemory::new();
    let (locks, other) = (memory.client().blocking(), memory.client());
    let mutex = locks.mutex("x");
    let blocked = tokio::spawn(async move { mutex.acquire().run().map(drop) }).await;
    assert!(blocked.unwrap_err().is_panic());
    assert_eq!(other.inspect("x").await.unwrap(), None, "it was not begun");

    let mutex = locks.mutex("x");
    let held = tokio::task::spawn_blocking(move || mutex.acquire().run())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(held.lost_reason(), None);
    assert!(other.mutex("x").try_acquire().await.unwrap().is_none());
    drop(held);
    let next = crate::setup::within(SOON, "a handle dropped among tasks releases", async {
        other.mutex("x").acquire().await
    })
    .await;
    assert!(next.is_ok());
    drop(next);
    // The same client, for tasks.
    let held = locks.as_async().mutex("x").acquire().await.unwrap();
    assert_eq!(held.release().await.unwrap(), Released::Released);
}

/// A fork has a copy of all that its parent knows, and none of the threads that see to it.
#[test]
fn a_process_that_is_forked_is_told_so_at_once() {
    let ground = prepared(Ground::replica_set("sync_forked"));
    let locks = locks(&ground);
    let held = locks.mutex("x").acquire().run().unwrap();
    let detached = locks.mutex("z").acquire().run().unwrap().detach().unwrap();
    let mut events = locks.watch("x");
    assert!(matches!(events.next(), Some(Ok(LockEvent::Granted { .. }))));
    let (mut told, mut tell) = std::io::pipe().unwrap();
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            let begun = Instant::now();
            let view = held.view();
            let states = (held.lost_reason(), held.safe_for(), held.status(), view.lost().reason);
            let errors = [
                locks.mutex("y").acquire().run().unwrap_err().to_string(),
                locks.mutex("y").try_acquire().run().unwrap_err().to_string(),
                locks.inspect("x").unwrap_err().to_string(),
                locks.list().run().unwrap_err().to_string(),
                locks.break_lock("x").unwrap_err().to_string(),
                held.renew().unwrap_err().to_string(),
                locks.attach(&detached).unwrap_err().to_string(),
            ];
            let released = held.release().unwrap();
            let over = (events.next().is_none(), locks.watch("y").next().is_none());
            locks.wake_mode_changed(locks.wake_mode());
            locks.shutdown();
            let _ = write!(
                tell,
                "{states:?} {released:?} {over:?} {errors:#?} in {}",
                begun.elapsed().as_secs()
            );
            // The test goes on in the parent alone.
            watchlock_testkit::signal::kill(std::process::id()).unwrap();
            unreachable!("it is killed");
        }
        fork::Fork::Parent(child) => {
            drop(tell);
            let (to, read) = mpsc::channel();
            thread::spawn(move || {
                let mut text = String::new();
                told.read_to_string(&mut text).unwrap();
                to.send(text).unwrap();
            });
            let told = read.recv_timeout(PATIENCE);
            let _ = watchlock_testkit::signal::kill(child.try_into().unwrap());
            fork::waitpid(child).unwrap();
            let told = told.unwrap();
            assert!(
                told.starts_with("(Some(Forked), 0ns, Lost, Forked) WasLost (true, true)"),
                "{told}"
            );
            assert_eq!(told.matches("forked from the one").count(), 7, "{told}");
            assert!(told.ends_with("in 0"), "{told}");
        }
    }
    assert_eq!(held.lost_reason(), None);
    assert_eq!(held.release().unwrap(), Released::Released);
}

#[test]
fn a_scope_shuts_down_after_an_error_and_a_panic() {
    let ground = prepared(Ground::replica_set("syncscope"));
    let other = locks(&ground);
    let vacant = || other.inspect("x").unwrap().is_none_or(|lock| !lock.is_held());
    let failed: Result<(), &str> = builder(&ground)
        .scope(|locks| {
            let _handle = locks.mutex("x").acquire().run().unwrap();
            Err("no")
        })
        .unwrap();
    assert_eq!(failed, Err("no"));
    assert!(vacant());
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        builder(&ground).scope(|locks| {
            let _handle = locks.mutex("x").acquire().run().unwrap();
            panic!("in the work");
        })
    }));
    assert!(panicked.is_err());
    assert!(vacant());
}

/// The time is over before the first answer.
#[test]
fn a_latch_that_is_waited_for_a_moment_is_told_as_it_is() {
    for (a, b) in places("sync_latch") {
        let (here, there) = (a.latch("x", 2), b.latch("x", 2));
        there.count_down().unwrap();
        assert!(!here.wait_timeout(Duration::ZERO).unwrap());
        there.count_down().unwrap();
        assert!(here.wait_timeout(Duration::ZERO).unwrap());
    }
    let memory = InMemory::new();
    let latch = memory.client().blocking().latch("x", 1);
    memory.set_outage(true);
    let error = latch.wait_timeout(Duration::ZERO).unwrap_err();
    assert_is!(error, AcquireError::Server(_));
}

#[test]
fn a_thread_waits_at_a_barrier_for_as_long_as_it_says() {
    for (a, b) in places("sync_barrier") {
        let (here, there) = (a.barrier("x", 2), b.barrier("x", 2));
        let error = here.wait_timeout(Duration::MAX).unwrap_err();
        assert_says(&error, &["timeout", "31622400s"]);
        assert!(here.wait_timeout(Duration::from_millis(50)).unwrap().is_none());
        eventually(SOON, "its place is given back", || is_vacant(&a, "x"));
        let other = thread::spawn(move || there.wait_timeout(PATIENCE));
        let passed = here.wait_timeout(PATIENCE).unwrap().unwrap();
        let other = within(SOON, "the other party", || other.join().unwrap());
        assert_eq!(other.unwrap().unwrap().generation(), passed.generation());
    }
}
