//! A read hold that tasks of one client share.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use watchlock::{FencingToken, locks};

use crate::setup::*;

/// Number of tasks that read at once, and for how long each.
const TASKS: usize = 50;
const READ_FOR: Duration = Duration::from_millis(5);

/// Tasks of one client that read again and again until they are told to stop.
struct Readers {
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
    /// Sent while they read.
    tokens: mpsc::UnboundedReceiver<FencingToken>,
}

impl Readers {
    /// `inside`: counts those that read at the moment.
    fn new(locks: &LockClient, inside: &Arc<AtomicUsize>) -> Self {
        let (to, tokens) = mpsc::unbounded_channel();
        let (mut tasks, stop) = (JoinSet::new(), Arc::<AtomicBool>::default());
        for number in 0..TASKS {
            let (lock, stop, to, inside) = (locks.rw_lock("x"), stop.clone(), to.clone(), inside.clone());
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let handle = lock.read().await.unwrap();
                    inside.fetch_add(1, Ordering::SeqCst);
                    // Nobody listens any more where a test has seen enough.
                    let _ = to.send(handle.token());
                    sleep(READ_FOR).await;
                    assert_eq!(handle.lost_reason(), None);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if number % 5 == 0 {
                        drop(handle);
                    } else {
                        assert_eq!(handle.release().await.unwrap(), Released::Released);
                    }
                }
            });
        }
        Self { tasks, stop, tokens }
    }

    async fn next(&mut self) -> FencingToken {
        within(PATIENCE, "another reader", self.tokens.recv()).await.unwrap()
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = within(PATIENCE, "all tasks end", self.tasks.join_next()).await {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_client_read_without_the_server() {
    const READS: i64 = 800;
    for (ground, shares) in [
        (Ground::replica_set("shared").await, true),
        (Ground::standalone("shared").await, true),
        (Ground::replica_set("unshared").await, false),
    ] {
        let locks = ground.builder().await.hand_on_locally(shares).build().await.unwrap();
        let mut readers = Readers::new(&locks, &Arc::default());
        let mut seen = BTreeSet::new();
        let mut before = 0;
        for number in 0..READS {
            if number == 100 {
                before = ground.version("x").await;
            }
            assert!(seen.insert(readers.next().await), "each has a token of its own");
        }
        let written = ground.version("x").await - before;
        readers.end().await;
        // Two for 64 readers, and more where the machine takes long. Otherwise those that come at once go together.
        println!("{written} writes for {READS} reads, shared: {shares}");
        assert!(!shares || written < READS / 10, "{written} writes for {READS} reads");
        eventually(SOON, "the lock is free", async || {
            info(&locks, "x")
                .await
                .is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
        })
        .await;
        let next = ground.locks().await.rw_lock("x").write().await.unwrap();
        assert!(Some(&next.token()) > seen.last());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_gets_its_turn_beside_clients_whose_tasks_read_all_the_time() {
    its_turn(&Ground::replica_set("sharedturn").await).await;
    // No event shows the readers that somebody waits.
    its_turn(&Ground::standalone("sharedturn").await).await;
}

async fn its_turn(ground: &Ground) {
    let (one, two, other) = (ground.locks().await, ground.locks().await, ground.locks().await);
    let inside = Arc::default();
    let mut readers = [Readers::new(&one, &inside), Readers::new(&two, &inside)];
    for locks in [&other, &one].into_iter().cycle().take(8) {
        let mut before = BTreeSet::new();
        for readers in &mut readers {
            before.insert(readers.next().await);
        }
        let acquired = within(PATIENCE, "its turn", locks.rw_lock("x").write()).await;
        let handle = acquired.unwrap();
        for _ in 0..5 {
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            sleep(READ_FOR).await;
        }
        for readers in &mut readers {
            while let Ok(token) = readers.tokens.try_recv() {
                before.insert(token);
            }
        }
        let token = handle.token();
        assert!(Some(&token) > before.last());
        assert_eq!(handle.release().await.unwrap(), Released::Released);
        for readers in &mut readers {
            assert!(readers.next().await > token);
        }
    }
    for readers in readers {
        readers.end().await;
    }
}

/// Returns three readers of one client, of whom the last two share a hold.
async fn three(ground: &Ground, locks: &LockClient) -> [Held<locks::Read>; 3] {
    // The machine may take too long for a hold that is to be shared.
    for number in 0..50 {
        let lock = locks.rw_lock(format!("x {number}"));
        let read = async |reason: &str| lock.read().reason(reason).await.unwrap();
        let (first, second) = (read("the first").await, read("the second").await);
        let before = ground.version(lock.name()).await;
        let third = read("the third").await;
        if ground.version(lock.name()).await == before {
            return [first, second, third];
        }
    }
    panic!("the server had a part in each");
}

#[tokio::test]
async fn a_shared_hold_is_lost_by_all_and_released_by_the_last() {
    let ground = Ground::replica_set("sharedlost").await;
    let (locks, operator) = (ground.locks().await, ground.locks().await);
    let [first, second, third] = three(&ground, &locks).await;
    let name = first.name().to_owned();
    // The document shows the one that came first.
    let lock = info(&operator, &name).await.unwrap();
    let reasons: Vec<_> = lock
        .holders
        .iter()
        .map(|holder| holder.owner.reason.as_deref())
        .collect();
    assert_eq!(reasons, [Some("the first"), Some("the second")]);
    assert!(first.token() < second.token() && second.token() < third.token());
    operator.break_holder(&name, second.token()).await.unwrap();
    for handle in [&second, &third] {
        assert_eq!(within(SOON, "the loss", handle.lost()).await, LostReason::Broken);
    }
    assert_eq!(first.lost_reason(), None);
    for handle in [second, third] {
        assert_eq!(handle.release().await.unwrap(), Released::WasLost);
    }
    first.release().await.unwrap();

    let [first, second, third] = three(&ground, &locks).await;
    let name = first.name().to_owned();
    let (view, before) = (second.view(), Instant::now() + third.safe_for());
    assert_eq!(first.release().await.unwrap(), Released::Released);
    assert_eq!(second.release().await.unwrap(), Released::Released);
    assert_eq!(view.lost_reason(), Some(LostReason::Released));
    assert_eq!(third.lost_reason(), None);
    assert!(operator.rw_lock(&name).try_write().await.unwrap().is_none());
    // It is renewed by whoever is left.
    let safe_for = third.renew().await.unwrap();
    assert!(Instant::now() + safe_for > before);
    assert_eq!(third.release().await.unwrap(), Released::Released);
    assert!(operator.rw_lock(&name).try_write().await.unwrap().is_some());
}

#[tokio::test]
async fn shared_holds_are_renewed_and_a_shutdown_releases_them() {
    let ground = Ground::replica_set("sharedheld").await;
    let lease = Duration::from_secs(2);
    let builder = ground
        .builder()
        .await
        .lease(lease)
        .skew_margin(Duration::from_millis(200));
    let (locks, other) = (builder.build().await.unwrap(), ground.locks().await);
    let handles = three(&ground, &locks).await;
    let name = handles[0].name().to_owned();
    sleep(lease * 2).await;
    for handle in &handles {
        assert_eq!(handle.lost_reason(), None);
    }
    assert_eq!(info(&other, &name).await.unwrap().holders.len(), 2);
    locks.shutdown().await;
    for handle in &handles {
        assert_eq!(handle.lost_reason(), Some(LostReason::Released));
    }
    assert!(other.rw_lock(&name).try_write().await.unwrap().is_some());
}
