//! Commands that are never answered, or not for long: they hold up what they are about, and nothing else.

use std::time::Instant;

use mongodb::options::WriteConcern;
use watchlock::locks;
use watchlock_testkit::Cluster;

use crate::setup::*;

/// By when a lock is answered for although connections are dead: within two seconds on a machine that has nothing else
/// to do, and here others run their tests. Who is not asked beside waits for the driver to notice, which takes 30 s and
/// more.
const ASKED_BESIDE: Duration = Duration::from_secs(6);

/// By when a release has followed the primary, once there is another.
const FOLLOWED: Duration = Duration::from_secs(5);

/// Holds so many locks at once that several connections of the pool have carried what takes a lock.
async fn held(locks: &LockClient, count: usize) -> Vec<Held<locks::Mutex>> {
    let acquires = (0..count).map(|number| locks.mutex(format!("held {number}")).acquire());
    join_all(acquires).await.into_iter().map(Result::unwrap).collect()
}

/// As a firewall does that has forgotten some connections: they stay open, and nothing comes through any more. The
/// driver's monitor has a connection of its own, and finds nothing wrong.
#[tokio::test(flavor = "multi_thread")]
async fn dead_connections_hold_up_no_lock_for_long() {
    let cluster = shared::replica_set().await;
    let direct = Ground::on(cluster, "silent");
    let other = direct.locks().await;
    for count in [1, 6] {
        let proxy = cluster.proxy(0).unwrap();
        let locks = direct.through(proxy.uri()).locks().await;
        let mut held = held(&locks, count).await;
        let carriers = proxy.lose(|flow| flow.has_carried("findAndModify"));
        assert!(carriers > 0);

        // A release, and the other gets the lock.
        let start = Instant::now();
        let handle = held.pop().unwrap();
        let name = handle.name().to_owned();
        let released = within(ASKED_BESIDE, "a release", handle.release()).await.unwrap();
        println!("{carriers} dead: released after {:?}", start.elapsed());
        assert_eq!(released, Released::Released);
        within(SOON, "the other", other.mutex(&name).acquire())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        // What is wanted of the same name, and of one that has nothing to do with it.
        let again = within(ASKED_BESIDE, "the same name", locks.mutex(&name).acquire());
        again.await.unwrap().release().await.unwrap();
        let start = Instant::now();
        let unrelated = within(SOON, "another name", locks.mutex("unrelated").acquire());
        unrelated.await.unwrap().release().await.unwrap();
        println!("{carriers} dead: another name took {:?}", start.elapsed());
        for handle in held {
            assert_eq!(handle.release().await.unwrap(), Released::Released);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_locks_takes_a_way_round_dead_connections() {
    let (direct, proxy, behind) = Ground::proxied("silent_look").await;
    let (locks, other) = (behind.locks().await, direct.locks().await);
    let handle = other.mutex("x").acquire().await.unwrap();
    for look in 0..3 {
        join_all((0..3).map(|_| locks.inspect("x"))).await;
        assert!(proxy.lose(|flow| flow.has_carried("find")) > 0);
        match look {
            0 => assert!(
                within(ASKED_BESIDE, "inspect", locks.inspect("x"))
                    .await
                    .unwrap()
                    .is_some()
            ),
            1 => {
                // It may be long, so it is waited for longer.
                let listed = within(PATIENCE, "list", locks.list().into_future()).await.unwrap();
                assert_eq!(listed.len(), 1);
            }
            _ => {
                within(PATIENCE, "break", locks.break_lock("x")).await.unwrap();
                within(PATIENCE, "the loss", handle.lost()).await;
            }
        }
    }
}

/// What a transaction of the user's has written can't be locked until it ends, and the server says nothing until then.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_transactions_have_written_hold_up_no_others() {
    const BLOCKED: i32 = 6;
    let ground = Ground::replica_set("blocked").await;
    let driver = ground.driver().await;
    let events = ground.of(&driver, "events");
    events
        .insert_many((0..2 * BLOCKED).map(|id| doc! { "_id": id }))
        .await
        .unwrap();
    // The pool of the locks is the driver's default.
    let locks = ground.locks().await;
    let documents = locks.documents(ground.collection("events").await);
    let held = documents.acquire(BLOCKED).await.unwrap();
    let mutex = locks.mutex("m").acquire().await.unwrap();
    let mut transactions = Vec::new();
    for id in 0..BLOCKED {
        let session = writing(&driver, &events, id).await;
        transactions.push(session);
    }
    let waiting: Vec<_> = (0..BLOCKED).map(|id| spawn(documents.acquire(id))).collect();
    eventually(PATIENCE, "the server holds them up", async || {
        let operations = ground.operations(&driver).await;
        let blocked = |operation: &&Document| {
            let command = operation.get_document("command");
            command.is_ok_and(|command| command.contains_key("findAndModify") && command.contains_key("update"))
        };
        operations.iter().filter(blocked).count() >= 4
    })
    .await;
    for round in 0..20 {
        let start = Instant::now();
        let unrelated = within(SOON, "another document", documents.acquire(BLOCKED + 1 + round % 5));
        unrelated.await.unwrap().release().await.unwrap();
        println!("another document took {:?}", start.elapsed());
    }
    assert_eq!(
        within(SOON, "a release", held.release()).await.unwrap(),
        Released::Released
    );
    assert_eq!(
        within(SOON, "a mutex", mutex.release()).await.unwrap(),
        Released::Released
    );
    for mut session in transactions {
        session.abort_transaction().await.unwrap();
    }
    let waited = within(PATIENCE, "the six", join_all(waiting)).await;
    for handle in waited {
        assert_eq!(handle.unwrap().unwrap().release().await.unwrap(), Released::Released);
    }
}

/// A frozen primary keeps its connections open and says nothing; a release follows the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_follows_the_primary_away_from_a_frozen_one() {
    // How long the others take to elect one that a majority follows is not asked here: what follows is counted from
    // then on. It can be a minute, as a node that asks the frozen one for something to copy waits for 30 s. The lease
    // is longer: a release ends with it.
    let cluster = Cluster::builder()
        .replica_set(3)
        .in_memory(true)
        .election_timeout(Duration::from_secs(2))
        .start()
        .await
        .unwrap();
    let ground = Ground::on(&cluster, "frozen");
    let locks = ground.locks_for(Duration::from_secs(300)).await;
    let handles = held(&locks, 8).await;
    let primary = cluster.primary().await.unwrap();
    cluster.freeze(primary).unwrap();
    let frozen = Instant::now();
    let releases = handles
        .into_iter()
        .map(|handle| spawn(async move { (handle.release().await, Instant::now()) }));
    let releases: Vec<_> = releases.collect();
    let next = loop {
        let found = cluster.wait_for_primary(3 * PATIENCE).await.unwrap();
        if found != primary {
            break found;
        }
    };
    println!("node {next} is the primary after {:?}", frozen.elapsed());
    // A majority acknowledges what it writes some time later: the other one has copied from the frozen one so far.
    let written = cluster.node_client(next).await.unwrap();
    let written = ground.of(&written, "probe");
    let majority = WriteConcern::majority();
    written.insert_one(doc! {}).write_concern(majority).await.unwrap();
    let standing = Instant::now();
    println!("and writes after {:?}", frozen.elapsed());
    for release in releases {
        let (released, at) = within(FOLLOWED, "a release", release).await.unwrap();
        println!("released {:?} after that", at.saturating_duration_since(standing));
        assert_eq!(released.unwrap(), Released::Released);
    }
    cluster.thaw(primary).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_locks_ends_where_there_is_no_way_round() {
    let (direct, proxy, behind) = Ground::proxied("silent_all").await;
    let (locks, other) = (behind.locks().await, direct.locks().await);
    let _held = other.mutex("x").acquire().await.unwrap();
    assert!(locks.inspect("x").await.unwrap().is_some());
    proxy.black_hole();
    let looks = async {
        let (inspected, broken) = tokio::join!(locks.inspect("x"), locks.break_lock("x"));
        (inspected.is_err(), broken.is_err())
    };
    assert_eq!(within(2 * PATIENCE, "errors", looks).await, (true, true));
}
