//! A lock that goes from task to task of one client without the server.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};
use watchlock::{FencingToken, View, errors::GuardError, locks, operate::Access};

use crate::setup::*;

const TASKS: usize = 50;

/// Has the tasks of one client acquire and release a lock until they are told to stop. Each grant is sent while it is
/// held.
fn contend(
    locks: &LockClient,
    tasks: usize,
    stop: &Arc<AtomicBool>,
) -> (JoinSet<()>, mpsc::UnboundedReceiver<FencingToken>) {
    let (to, tokens) = mpsc::unbounded_channel();
    let mut contending = JoinSet::new();
    for _ in 0..tasks {
        let (mutex, stop, to) = (locks.mutex("x"), stop.clone(), to.clone());
        contending.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let handle = mutex.acquire().await.unwrap();
                // Nobody listens any more where a test has seen enough.
                let _ = to.send(handle.token());
                assert_eq!(handle.release().await.unwrap(), Released::Released);
            }
        });
    }
    (contending, tokens)
}

async fn all_end(mut tasks: JoinSet<()>) {
    while let Some(ended) = within(PATIENCE, "all tasks end", tasks.join_next()).await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_client_pass_a_lock_along_without_the_server() {
    const GRANTS: i64 = 300;
    for (ground, passes) in [
        (Ground::replica_set("passed").await, true),
        (Ground::standalone("passed").await, true),
        (Ground::replica_set("unpassed").await, false),
    ] {
        let locks = ground.builder().await.hand_on_locally(passes).build().await.unwrap();
        let stop = Arc::default();
        let (contending, mut tokens) = contend(&locks, TASKS, &stop);
        let mut last = None;
        let mut before = 0;
        for number in 0..GRANTS {
            if number == 100 {
                before = ground.version("x").await;
            }
            let token = within(PATIENCE, "another grant", tokens.recv()).await;
            assert!(token > last, "{token:?} after {last:?}");
            last = token;
        }
        let written = ground.version("x").await - before;
        stop.store(true, Ordering::Relaxed);
        all_end(contending).await;
        // One in 64, and more where the machine takes long; without it, one for each.
        assert_eq!(written < GRANTS / 4, passes, "{written} writes for {GRANTS} grants");
        eventually(SOON, "the lock is free", async || {
            info(&locks, "x")
                .await
                .is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
        })
        .await;
        let next = ground.locks().await.mutex("x").acquire().await.unwrap();
        assert!(Some(next.token()) > last);
    }
}

/// A hold that was handed on, by the view of the task before it, with the tasks that wait behind.
struct HandedOn {
    name: String,
    before: View<locks::Mutex>,
    handle: Held<locks::Mutex>,
    waiting: Vec<JoinHandle<Held<locks::Mutex>>>,
}

impl HandedOn {
    /// Has tasks pass a lock along; `meanwhile` happens before the release that hands it on. While a stream is being
    /// opened the lock goes through the server, so it may take several names.
    async fn new(ground: &Ground, locks: &LockClient, mut meanwhile: impl AsyncFnMut()) -> Self {
        for number in 0..50 {
            let name = format!("x {number}");
            let first = locks.mutex(&name).acquire().reason("the first").await.unwrap();
            let mut waiting = Vec::new();
            for number in 2..=5 {
                let acquire = locks.mutex(&name).acquire().reason(format!("number {number}"));
                waiting.push(spawn(async move { acquire.await.unwrap() }));
                // Until it stands in line.
                tokio::task::yield_now().await;
            }
            until_waiting(locks, &name, 1).await;
            // This goes through the server, which reserves tokens for those that follow.
            first.release().await.unwrap();
            let mut waiting = waiting.into_iter();
            let second = within(SOON, "the second", waiting.next().unwrap()).await.unwrap();
            let (before, writes_before) = (second.view(), ground.version(&name).await);
            meanwhile().await;
            assert_eq!(second.release().await.unwrap(), Released::Released);
            let handle = within(SOON, "the third", waiting.next().unwrap()).await.unwrap();
            assert!(handle.token() > before.token());
            if ground.version(&name).await == writes_before {
                let waiting = waiting.collect();
                return Self {
                    name,
                    before,
                    handle,
                    waiting,
                };
            }
            waiting.for_each(|task| task.abort());
        }
        panic!("the server had a part in each");
    }
}

#[tokio::test]
async fn a_hold_that_is_handed_on_is_lost_by_whoever_has_it() {
    let ground = Ground::replica_set("handedlost").await;
    let (locks, operator) = (ground.locks().await, ground.locks().await);
    let HandedOn {
        name,
        before,
        handle,
        waiting,
    } = HandedOn::new(&ground, &locks, async || {}).await;
    // The document shows the first of them.
    let lock = info(&operator, &name).await.unwrap();
    assert_eq!(
        (lock.holders[0].token, lock.holders[0].owner.reason.as_deref()),
        (before.token(), Some("number 2"))
    );
    operator.break_lock(&name).await.unwrap();
    assert_eq!(within(SOON, "the loss", handle.lost()).await, LostReason::Broken);
    assert_eq!(before.lost_reason(), Some(LostReason::Released));
    let next = within(SOON, "the next", waiting.into_iter().next().unwrap())
        .await
        .unwrap();
    assert!(next.token() > handle.token());
}

/// A transaction that began to read before the hold was handed on does not see what the task before has written.
#[tokio::test]
async fn a_transaction_older_than_a_hold_that_was_handed_on_is_refused() {
    older_is_refused(&Ground::replica_set("handedguard").await, false).await;
    older_is_refused(&Ground::replica_set("handedguardahead").await, true).await;
}

/// `ahead`: the lease was written by a primary whose clock was ahead of the present one's, so that a renewal of now
/// would not make it longer.
async fn older_is_refused(ground: &Ground, ahead: bool) {
    let driver = ground.driver().await;
    let accounts = ground.of(&driver, "accounts");
    let account = || doc! { "_id": "a" };
    accounts.insert_one(doc! { "_id": "a", "balance": 1 }).await.unwrap();
    let locks = ground.locks_over(&driver).await;
    let mut session = driver.start_session().await.unwrap();
    let older = async || {
        // The one of an earlier name, perhaps.
        let _ = session.abort_transaction().await;
        if ahead {
            let until = doc! { "$add": ["$$this.until", 3_600_000] };
            let longer = doc! { "$mergeObjects": ["$$this", { "until": until }] };
            let holders = doc! { "$map": { "input": "$holders", "in": longer } };
            // With a `wake` of its own, so that it is not taken for a change by another program.
            let write = vec![doc! { "$set": { "holders": holders, "wake": "earlier primary:" } }];
            let written = ground.documents().await.update_many(doc! {}, write).await.unwrap();
            assert!(written.modified_count > 0);
        }
        session.start_transaction().await.unwrap();
        accounts.find_one(account()).session(&mut session).await.unwrap();
        accounts
            .update_one(account(), doc! { "$set": { "balance": 2 } })
            .await
            .unwrap();
    };
    let HandedOn { handle, waiting, .. } = HandedOn::new(ground, &locks, older).await;
    match handle.guard_transaction(&mut session).await {
        Err(GuardError::Server(error) | GuardError::Outdated(error)) => {
            assert!(error.contains_label("TransientTransactionError"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Run again, it sees that, and the next task waits for its end.
    session.abort_transaction().await.unwrap();
    session.start_transaction().await.unwrap();
    let read = accounts.find_one(account()).session(&mut session).await.unwrap();
    assert_eq!(read.unwrap().get_i32("balance").ok(), Some(2));
    handle.guard_transaction(&mut session).await.unwrap();
    let token = handle.token();
    let releasing = spawn(handle.release());
    let mut next = waiting.into_iter().next().unwrap();
    let open = tokio::time::timeout(Duration::from_millis(300), &mut next).await;
    assert!(open.is_err(), "the transaction is open");
    session.commit_transaction().await.unwrap();
    let released = within(SOON, "the release", releasing).await.unwrap();
    assert_eq!(released.unwrap(), Released::Released);
    assert!(within(SOON, "the fourth", next).await.unwrap().token() > token);
}

#[tokio::test]
async fn what_a_downgraded_writer_leaves_is_no_writers_hold() {
    let ground = Ground::replica_set("handeddown").await;
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let lock = locks.rw_lock("x");
    let first = lock.write().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let acquire = lock.write();
        waiting.push(spawn(async move { acquire.await.unwrap() }));
        tokio::task::yield_now().await;
    }
    until_waiting(&other, "x", 1).await;
    first.release().await.unwrap();
    let mut waiting = waiting.into_iter();
    let second = within(SOON, "the second", waiting.next().unwrap()).await.unwrap();
    second.release().await.unwrap();
    let third = within(SOON, "the third", waiting.next().unwrap()).await.unwrap();
    third.downgrade().await.unwrap();
    let access = info(&other, "x").await.unwrap().holders[0].access;
    assert_eq!(access, Some(Access::Read));
    let token = third.token();
    assert_eq!(third.release().await.unwrap(), Released::Released);
    let fourth = within(SOON, "the fourth", waiting.next().unwrap()).await.unwrap();
    assert!(fourth.token() > token);
    let document = info(&other, "x").await.unwrap();
    assert_eq!(document.holders.len(), 1, "{document}");
    assert_eq!(document.holders[0].access, Some(Access::Write), "{document}");
    assert!(other.rw_lock("x").try_read().await.unwrap().is_none());
    fourth.release().await.unwrap();
}
