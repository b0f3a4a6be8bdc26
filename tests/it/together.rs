//! Many locks in one command: acquires and releases that queue up share the next one.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
};

use futures::future::select_all;
use tokio::time::timeout;
use watchlock::{FencingToken, locks::Mutex};

use crate::setup::*;

const TASKS: usize = 64;

/// One that queues up while all slots are taken, if all acquire at once.
const ODD: usize = 40;

type Outcome = Result<Held<Mutex>, AcquireError>;

fn name(number: usize) -> String {
    format!("name {number:02}")
}

/// Acquires all locks at once.
async fn acquire(locks: &LockClient) -> Vec<Outcome> {
    join_all((0..TASKS).map(|number| locks.mutex(name(number)).acquire())).await
}

async fn release(held: Vec<Outcome>) {
    let released = join_all(held.into_iter().map(|held| held.unwrap().release())).await;
    for released in released {
        assert_eq!(released.unwrap(), Released::Released);
    }
}

/// A client that has had all of the locks, so that they have documents and are expected to be free.
async fn client(ground: &Ground) -> (LockClient, Sent, Client) {
    let (driver, sent) = ground.noting_driver().await;
    let locks = ground.locks_over(&driver).await;
    // The first few show that unknown names are free.
    for number in 0..8 {
        let held = locks.mutex(name(number)).acquire().await.unwrap();
        held.release().await.unwrap();
    }
    release(within(PATIENCE, "new names", acquire(&locks)).await).await;
    (locks, sent, driver)
}

async fn all_are_vacant(locks: &LockClient) -> bool {
    let all = locks.list().await.unwrap();
    all.iter()
        .all(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
}

/// On a busy machine a command can take so long that each of its locks is asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_locks_of_their_own_take_few_commands() {
    let ground = Ground::replica_set("together").await;
    let (locks, sent, _) = client(&ground).await;
    let mut last = BTreeMap::<usize, FencingToken>::new();
    let mut rounds = Vec::new();
    while rounds.len() < 20 {
        let before = sent.names().len();
        let held = acquire(&locks).await;
        for (number, held) in held.iter().enumerate() {
            let token = held.as_ref().unwrap().token();
            assert!(last.insert(number, token).is_none_or(|last| last < token));
        }
        release(held).await;
        let commands = &sent.names()[before..];
        let counted = |name: &str| commands.iter().filter(|sent| *sent == name).count();
        let (alone, together) = (counted("findAndModify"), counted("update") + counted("find"));
        if together > 0 && alone + together <= TASKS / 2 {
            return;
        }
        rounds.push((alone, together));
    }
    panic!("alone and together: {rounds:?}");
}

/// Two crowds that want the same locks: nobody has one beside another, and tokens rise with every grant.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_have_a_lock_whoever_shares_commands() {
    const NAMES: usize = 40;
    const ROUNDS: usize = 5;
    let ground = Ground::replica_set("crowds_together").await;
    let (one, sent, _) = client(&ground).await;
    let (other, ..) = client(&ground).await;
    let taken: &[AtomicBool] = Box::leak((0..NAMES).map(|_| AtomicBool::new(false)).collect());
    let tokens: &[AtomicI64] = Box::leak((0..NAMES).map(|_| AtomicI64::new(0)).collect());
    let before = sent.count("update");
    let tasks = (0..2 * TASKS).map(|task| {
        let locks = if task % 2 == 0 { one.clone() } else { other.clone() };
        spawn(async move {
            for round in 0..ROUNDS {
                let number = (task * 7 + round * 11) % NAMES;
                let held = locks.mutex(name(number)).acquire().await.unwrap();
                assert!(!taken[number].swap(true, Ordering::SeqCst), "{number} is held twice");
                let token = held.token().as_i64();
                assert!(
                    tokens[number].swap(token, Ordering::SeqCst) < token,
                    "{number} under {token}"
                );
                tokio::task::yield_now().await;
                taken[number].store(false, Ordering::SeqCst);
                held.release().await.unwrap();
            }
        })
    });
    let ended = within(2 * PATIENCE, "all turns", join_all(tasks)).await;
    ended.into_iter().for_each(|ended| ended.unwrap());
    assert!(sent.count("update") > before, "nothing went together");
}

/// It costs the others one round, and goes alone from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_in_a_transaction_holds_up_its_own_lock_only() {
    let ground = Ground::replica_set("open").await;
    let (locks, _, driver) = client(&ground).await;
    let documents = ground.of(&driver, COLLECTION);
    let mut session = writing(&driver, &documents, name(ODD)).await;
    let mut acquires: Vec<_> = (0..TASKS)
        .map(|number| Box::pin(locks.mutex(name(number)).acquire().into_future()))
        .collect();
    let mut held = Vec::new();
    while held.len() < TASKS - 1 {
        let (acquired, _, rest) = within(PATIENCE, "the others", select_all(acquires)).await;
        held.push(acquired);
        acquires = rest;
    }
    assert!(
        timeout(Duration::from_millis(300), &mut acquires[0]).await.is_err(),
        "the transaction is open"
    );
    session.abort_transaction().await.unwrap();
    held.push(within(PATIENCE, "the one", acquires.pop().unwrap()).await);
    release(held).await;
    assert!(all_are_vacant(&locks).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_validator_refuses_costs_no_other_its_lock_or_its_release() {
    let ground = Ground::replica_set("strict").await;
    let (locks, sent, driver) = client(&ground).await;
    let validate = async |validator: Document| {
        let validator = doc! { "collMod": COLLECTION, "validator": validator };
        driver.database(&ground.database).run_command(validator).await.unwrap();
    };
    validate(doc! { "_id": { "$ne": name(ODD) } }).await;
    let mut held = within(PATIENCE, "an answer", acquire(&locks)).await;
    let refused = held.remove(ODD).map(drop).unwrap_err();
    assert_says(&refused, &["DocumentValidationFailure (121)"]);
    release(held).await;
    assert!(all_are_vacant(&locks).await);

    validate(doc! {}).await;
    let mut held = within(PATIENCE, "an answer", acquire(&locks)).await;
    validate(doc! { "_id": { "$ne": name(ODD) } }).await;
    let before = sent.count("update");
    let odd = held.remove(ODD).unwrap();
    let releases = async { futures::join!(odd.release(), release(held)) };
    let (refused, ()) = within(PATIENCE, "an answer", releases).await;
    assert!(sent.count("update") > before, "nothing went together");
    assert_says(&refused.unwrap_err(), &["DocumentValidationFailure (121)"]);
    let left = locks.list().held(true).await.unwrap();
    assert_eq!(left.iter().map(|lock| &lock.name).collect::<Vec<_>>(), [&name(ODD)]);
}

/// Answers that are lost, of the command and of the reading after it, and a write that no majority confirms.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_costs_a_round_and_grants_nothing_twice() {
    let (cluster, _turn, ground) = faulty_ground("lost").await;
    let (locks, ..) = client(&ground).await;
    let unconfirmed = doc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "no" };
    for (command, fault) in [
        ("update", doc! { "closeConnection": true }),
        ("find", doc! { "closeConnection": true }),
        ("update", doc! { "writeConcernError": unconfirmed }),
        ("update", doc! { "errorCode": 50 }),
        ("find", doc! { "errorCode": 50 }),
        // The reading alone is refused.
        ("find", doc! { "errorCode": 148 }),
    ] {
        let failing = ground.fail(cluster, times(1), &[command], fault.clone()).await;
        let held = within(PATIENCE, "all locks", acquire(&locks)).await;
        failing.wait_entered(1, PATIENCE).await.unwrap();
        release(held).await;
        assert!(all_are_vacant(&locks).await, "{fault}");
        failing.off().await.unwrap();
        // The same for releases.
        let held = within(PATIENCE, "all locks", acquire(&locks)).await;
        let failing = ground.fail(cluster, times(1), &[command], fault.clone()).await;
        within(PATIENCE, "the releases", release(held)).await;
        failing.off().await.unwrap();
        assert!(all_are_vacant(&locks).await, "{fault}");
    }
}

/// Their entries may be written, or be about to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_gives_up_leaves_no_lock_behind() {
    let (cluster, _turn, ground) = faulty_ground("given_up").await;
    let (locks, ..) = client(&ground).await;
    let mut given_up = 0;
    for command in ["update", "find"] {
        let fault = ground.fail(cluster, times(1), &[command], blocks(600)).await;
        let tasks: Vec<_> = (0..TASKS)
            .map(|number| spawn(locks.mutex(name(number)).acquire()))
            .collect();
        fault.wait_entered(1, PATIENCE).await.unwrap();
        tasks.iter().step_by(2).for_each(|task| task.abort());
        let ended = within(PATIENCE, "an end", join_all(tasks)).await;
        let kept: Vec<Outcome> = ended.into_iter().flatten().collect();
        given_up += TASKS - kept.len();
        release(kept).await;
        eventually(PATIENCE, "all are vacant", async || all_are_vacant(&locks).await).await;
        fault.off().await.unwrap();
    }
    assert!(given_up > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_locked_by_a_command_each() {
    let ground = Ground::replica_set("own").await;
    let (driver, sent) = ground.noting_driver().await;
    let orders = ground.of(&driver, "orders");
    let documents = (0..TASKS).map(|number| doc! { "_id": name(number), "paid": true });
    orders.insert_many(documents).await.unwrap();
    let locks = ground.locks_over(&driver).await;
    let documents = locks.documents::<Document>(orders.clone());
    for _ in 0..2 {
        let held = join_all((0..TASKS).map(|number| documents.acquire(name(number)).into_future())).await;
        let released = join_all(held.into_iter().map(|held| held.unwrap().release())).await;
        released
            .into_iter()
            .for_each(|released| assert_eq!(released.unwrap(), Released::Released));
    }
    assert!(sent.count("findAndModify") >= 4 * TASKS);
}
