//! Writes of holders of the past: refused by fences and guards, accepted without.

mod guards;
mod writes;

use std::{
    env,
    io::Write as _,
    time::{Instant, SystemTime},
};

use futures::StreamExt as _;
use mongodb::{
    ClientSession, IndexModel,
    error::{Error, TRANSIENT_TRANSACTION_ERROR},
    options::{Acknowledgment, CollectionOptions, IndexOptions, WriteConcern},
};
use watchlock::{
    Lost,
    errors::{FenceError, GuardError},
    fence::Fence,
    operate::{LockEvent, WakeSource},
};
use watchlock_testkit::{Cluster, signal};

use crate::{
    faults::processes::{Process, TASK, say},
    setup::*,
};

const NAME: &str = "x";

/// The collection of the user's own.
const DATA: &str = "data";

async fn data(ground: &Ground) -> Collection<Document> {
    data_of(&ground.driver().await, ground)
}

fn data_of(client: &Client, ground: &Ground) -> Collection<Document> {
    ground.of(client, DATA)
}

async fn document(data: &Collection<Document>, id: i32) -> Option<Document> {
    data.find_one(doc! { "_id": id }).await.unwrap()
}

/// A lock client and the driver's client that it was built with: a guard wants a session of the latter.
async fn pair(ground: &Ground) -> (LockClient, Client) {
    pair_for(ground, Duration::from_secs(30)).await
}

async fn pair_for(ground: &Ground, lease: Duration) -> (LockClient, Client) {
    let client = ground.driver().await;
    let builder = LockClient::builder(client.database(&ground.database)).lease(lease);
    let locks = builder.build().await.unwrap();
    prepared(ground, &locks).await;
    (locks, client)
}

/// The making of the index takes the collection for itself, for a moment, and ends transactions that would write to it.
async fn prepared(ground: &Ground, locks: &LockClient) {
    let held = locks.mutex("first of all").acquire().await.unwrap();
    held.release().await.unwrap();
    // Answered when it is made, by whomever.
    let options = IndexOptions::builder()
        .name("watchlock_purge_at".to_owned())
        .expire_after(Duration::ZERO)
        .build();
    let index = IndexModel::builder()
        .keys(doc! { "purge_at": 1 })
        .options(options)
        .build();
    ground.documents().await.create_index(index).await.unwrap();
}

/// A pair on a replica set of its own database, with one document.
async fn scene(prefix: &str) -> (Ground, LockClient, Client, Collection<Document>) {
    let ground = Ground::replica_set(prefix).await;
    let (locks, client) = pair(&ground).await;
    let data = data_of(&client, &ground);
    data.insert_one(doc! { "_id": 1 }).await.unwrap();
    (ground, locks, client, data)
}

/// A transaction that has set `field` in document 1 so far.
async fn writing(client: &Client, ground: &Ground, field: &str) -> ClientSession {
    let mut session = transaction(client).await;
    let update = doc! { "$set": { field: true } };
    let written = data_of(client, ground)
        .update_one(doc! { "_id": 1 }, update)
        .session(&mut session)
        .await
        .unwrap();
    assert_eq!(written.matched_count, 1);
    session
}

/// Waits until at least so many operations on the locks hang in the server.
async fn until_held_up(ground: &Ground, on: &Client, count: usize) {
    eventually(PATIENCE, "operations are held up", async || {
        let operations = ground.operations(on).await;
        let held_up = |operation: &&Document| {
            let command = operation.get_document("command");
            command.is_ok_and(|command| command.contains_key("findAndModify"))
                && operation.get_i64("microsecs_running").is_ok_and(|long| long > 200_000)
        };
        operations.iter().filter(held_up).count() >= count
    })
    .await;
}

/// What is refused, as the larger and the smaller token.
fn fenced<T: std::fmt::Debug>(result: Result<T, FenceError>) -> (i64, i64) {
    match result {
        Err(FenceError::Fenced { stored, ours, .. }) => (stored.as_i64(), ours.as_i64()),
        other => panic!("{other:?}"),
    }
}

// Frozen holders.

/// Not a test but the process that others start, as in `process`. It writes as it is told, whatever it knows.
#[test]
fn child_process() {
    let Ok(task) = env::var(TASK) else { return };
    let [uri, database, lease] = task.split('|').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let lease = Duration::from_millis(lease.parse().unwrap());
    let work = async {
        let client = Client::with_uri_str(uri).await.unwrap();
        let data = client.database(database).collection::<Document>(DATA);
        let locks = LockClient::builder(client.database(database))
            .lease(lease)
            .build()
            .await
            .unwrap();
        say("ready");
        let handle = locks.mutex(NAME).acquire().await.unwrap();
        say(&format!("acquired {}", handle.token()));
        let one = doc! { "_id": 1 };
        let mut session = client.start_session().await.unwrap();
        for order in std::io::stdin().lines().map_while(Result::ok) {
            let update = doc! { "$set": { &order: true } };
            let done = match order.as_str() {
                "fenced" => match handle.fence().update_one(&data, one.clone(), update).await {
                    Ok(written) => format!("{}", written.matched_count),
                    Err(FenceError::Fenced { stored, ours, .. }) => format!("refused {stored} {ours}"),
                    Err(other) => panic!("{other}"),
                },
                "plain" => format!("{}", data.update_one(one.clone(), update).await.unwrap().matched_count),
                "guarded" | "unguarded" | "open" => {
                    let guarded = loop {
                        session.start_transaction().await.unwrap();
                        let written = data.update_one(one.clone(), update.clone());
                        written.session(&mut session).await.unwrap();
                        let guarded = match order.as_str() {
                            "unguarded" => Ok(()),
                            _ => handle.guard_transaction(&mut session).await,
                        };
                        match guarded {
                            // A renewal came in between.
                            Err(GuardError::Server(error)) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                                session.abort_transaction().await.unwrap();
                            }
                            guarded => break guarded,
                        }
                    };
                    let committed = match order.as_str() {
                        "open" => true,
                        // As a program that overlooks the error.
                        _ => session.commit_transaction().await.is_ok(),
                    };
                    format!("{guarded:?} {committed}")
                }
                "commit" => match session.commit_transaction().await {
                    Ok(()) => "done".to_owned(),
                    Err(error) => format!("refused {}", error.contains_label(TRANSIENT_TRANSACTION_ERROR)),
                },
                _ => panic!("{order}"),
            };
            say(&format!("{order}: {done}"));
        }
    };
    let runtime = runtime();
    runtime.block_on(work);
}

async fn told(process: &mut Process, order: &str) -> String {
    writeln!(process.orders, "{order}").unwrap();
    process.hears(&format!("{order}:")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_writes_of_a_frozen_holder_are_refused() {
    let lease = Duration::from_millis(1500);
    let (ground, locks, _, data) = scene("late").await;
    let task = format!(
        "{}|{}|{}",
        shared::replica_set().await.uri(),
        ground.database,
        lease.as_millis()
    );
    let mut old = Process::run("fences::child_process", task).await;
    let old_token: i64 = old.hears("acquired").await.parse().unwrap();
    // While it holds the lock all is well.
    assert_eq!(told(&mut old, "fenced").await, "1");
    assert_eq!(told(&mut old, "guarded").await, "Ok(()) true");
    data.update_one(doc! { "_id": 1 }, doc! { "$unset": { "fenced": 1, "guarded": 1 } })
        .await
        .unwrap();

    signal::freeze(old.pid()).unwrap();
    let next = within(PATIENCE, "the next", locks.mutex(NAME).acquire()).await.unwrap();
    let token = next.token().as_i64();
    let written = next
        .fence()
        .update_one(&data, doc! { "_id": 1 }, doc! { "$set": { "by": "next" } })
        .await
        .unwrap();
    assert_eq!((written.matched_count, written.modified_count), (1, 1));
    signal::thaw(old.pid()).unwrap();

    assert_eq!(told(&mut old, "fenced").await, format!("refused {token} {old_token}"));
    let lost = format!("`{NAME}` is lost: the lease ran out before it could be renewed");
    assert_eq!(
        told(&mut old, "guarded").await,
        format!("Err(GuardError(the transaction was aborted: {lost})) false")
    );
    let untouched = doc! { "_id": 1, "fence": token, "by": "next" };
    assert_eq!(document(&data, 1).await, Some(untouched));
    // Without either, nobody keeps it from writing.
    assert_eq!(told(&mut old, "plain").await, "1");
    assert_eq!(told(&mut old, "unguarded").await, "Ok(()) true");
    let overwritten = document(&data, 1).await.unwrap();
    assert!(overwritten.contains_key("plain") && overwritten.contains_key("unguarded"));
    assert_eq!(next.status(), LockStatus::Held);
}

/// The worst of all moments: it is frozen when the guard has been given. Nobody gets the lock then before the server
/// has given up the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_frozen_between_guard_and_commit_can_not_commit_late() {
    let lease = Duration::from_millis(1500);
    let cluster = Cluster::builder().replica_set(1).in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "between");
    let (locks, client) = pair(&ground).await;
    // A minute by default.
    let limit = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 4 };
    client.database("admin").run_command(limit).await.unwrap();
    let data = data_of(&client, &ground);
    data.insert_one(doc! { "_id": 1 }).await.unwrap();
    let task = format!("{}|{}|{}", cluster.uri(), ground.database, lease.as_millis());
    let mut old = Process::run("fences::child_process", task).await;
    old.hears("acquired").await;
    let before = Instant::now();
    assert_eq!(told(&mut old, "open").await, "Ok(()) true");

    signal::freeze(old.pid()).unwrap();
    let next = within(PATIENCE, "the next", locks.mutex(NAME).acquire()).await.unwrap();
    assert!(
        before.elapsed() > 2 * lease,
        "the lock was taken over from an open transaction"
    );
    signal::thaw(old.pid()).unwrap();
    assert_eq!(told(&mut old, "commit").await, "refused true");
    assert_eq!(document(&data, 1).await, Some(doc! { "_id": 1 }));
    assert_eq!(next.status(), LockStatus::Held);
}

// Guards.

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_transaction_is_committed_while_the_lock_is_held_and_tells_nobody() {
    let (ground, locks, client, data) = scene("guarded").await;
    let other = ground.locks().await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let mut events = other.watch(NAME);
    assert!(matches!(events.next().await, Some(Ok(LockEvent::Granted { .. }))));
    let documents = ground.documents().await;
    let stored = async || documents.find_one(doc! { "_id": NAME }).await.unwrap().unwrap();

    let mut session = writing(&client, &ground, "first").await;
    let before = stored().await;
    handle.guard_transaction(&mut session).await.unwrap();
    // Twice is as good as once.
    handle.guard_transaction(&mut session).await.unwrap();
    assert_eq!(stored().await, before, "not before the commit");
    session.commit_transaction().await.unwrap();
    let after = stored().await;
    assert_eq!(
        after.get_i64("version").unwrap(),
        before.get_i64("version").unwrap() + 2
    );
    assert_eq!(after.get("token"), before.get("token"));
    assert!(document(&data, 1).await.unwrap().contains_key("first"));

    // And where it is not committed, it was never there.
    let mut session = writing(&client, &ground, "second").await;
    handle.view().guard_transaction(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    assert_eq!(stored().await, after);
    assert_eq!(handle.status(), LockStatus::Held);
    handle.renew().await.unwrap();
    handle.release().await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(LockEvent::Released { .. }))));
    assert_eq!(document(&data, 1).await, Some(doc! { "_id": 1, "first": true }));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_breaks_or_takes_over_waits_for_the_commit() {
    let (ground, locks, client, _) = scene("race").await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let mut session = writing(&client, &ground, "written").await;
    handle.guard_transaction(&mut session).await.unwrap();

    let other = ground.locks().await;
    let waiting = spawn(other.mutex(NAME).acquire());
    let breaking = spawn(async move { other.break_lock(NAME).await.unwrap() });
    until_held_up(&ground, &client, 2).await;
    assert!(!waiting.is_finished() && !breaking.is_finished());
    assert_eq!(handle.status(), LockStatus::Held);
    session.commit_transaction().await.unwrap();
    breaking.await.unwrap();
    assert_eq!(within(SOON, "the loss", handle.lost()).await, LostReason::Broken);
    let next = within(SOON, "the next", waiting).await.unwrap().unwrap();
    assert!(next.token() > handle.token());
    assert!(
        document(&data_of(&client, &ground), 1)
            .await
            .unwrap()
            .contains_key("written")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_after_the_transaction_began_is_a_conflict_and_then_a_loss() {
    let ground = Ground::replica_set("conflict").await;
    let client = ground.driver().await;
    // It learns of the loss from the guard and from nothing else.
    let builder = LockClient::builder(client.database(&ground.database)).wake_source(WakeSource::Polling);
    let locks = builder.build().await.unwrap();
    prepared(&ground, &locks).await;
    data_of(&client, &ground).insert_one(doc! { "_id": 1 }).await.unwrap();
    let other = ground.locks().await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let mut session = writing(&client, &ground, "written").await;
    other.break_lock(NAME).await.unwrap();
    match handle.guard_transaction(&mut session).await {
        Err(GuardError::Server(error)) => assert!(error.contains_label(TRANSIENT_TRANSACTION_ERROR), "{error}"),
        // Noticed in the very moment.
        Err(GuardError::Lost(Lost {
            reason: LostReason::Broken,
            ..
        })) => {}
        other => panic!("{other:?}"),
    }
    assert!(session.commit_transaction().await.is_err());

    let mut attempts = 0;
    let data = data_of(&client, &ground);
    let outcome = session
        .start_transaction()
        .and_run2(async |session| {
            attempts += 1;
            let update = doc! { "$set": { "written": true } };
            data.update_one(doc! { "_id": 1 }, update)
                .session(&mut *session)
                .await?;
            Ok(handle.guard_transaction(session).await?)
        })
        .await;
    let error = outcome.unwrap_err();
    assert_lost!(GuardError, Broken, error.get_custom::<GuardError>().unwrap());
    assert_eq!(attempts, 1, "a loss is final");
    assert_eq!(handle.lost_reason(), Some(LostReason::Broken));
    assert_eq!(document(&data, 1).await, Some(doc! { "_id": 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_after_the_transaction_began_makes_it_run_again() {
    let (_, locks, client, data) = scene("again").await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let mut attempts = 0;
    let mut session = client.start_session().await.unwrap();
    session
        .start_transaction()
        .and_run2(async |session| {
            attempts += 1;
            let update = doc! { "$inc": { "written": 1 } };
            data.update_one(doc! { "_id": 1 }, update)
                .session(&mut *session)
                .await?;
            if attempts == 1 {
                handle.renew().await.unwrap();
            }
            Ok(handle.guard_transaction(session).await?)
        })
        .await
        .unwrap();
    assert_eq!(attempts, 2);
    assert_eq!(document(&data, 1).await, Some(doc! { "_id": 1, "written": 1 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_older_than_the_lock_is_told_from_a_loss() {
    let (ground, locks, client, _) = scene("outdated").await;
    let mut session = writing(&client, &ground, "written").await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    match handle.guard_transaction(&mut session).await {
        Err(GuardError::Outdated(error)) => assert!(error.contains_label(TRANSIENT_TRANSACTION_ERROR), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(handle.status(), LockStatus::Held);
    assert!(session.commit_transaction().await.is_err());
    // Run again as the driver would.
    let mut session = writing(&client, &ground, "written").await;
    handle.guard_transaction(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_refused_guard_nothing_can_be_committed() {
    let (ground, locks, client, data) = scene("refused").await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let view = handle.view();
    handle.release().await.unwrap();
    for written_before in [true, false] {
        let mut session = if written_before {
            writing(&client, &ground, "before").await
        } else {
            transaction(&client).await
        };
        let refused = view.guard_transaction(&mut session).await;
        assert_lost!(GuardError, Released, refused.unwrap_err());
        // A program that goes on all the same.
        let late = data.update_one(doc! { "_id": 1 }, doc! { "$set": { "after": true } });
        late.session(&mut session).await.unwrap_err();
        session.commit_transaction().await.unwrap_err();
        assert_eq!(document(&data, 1).await, Some(doc! { "_id": 1 }));
    }
}

/// The server's clock decides, also for one whose own clock says otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ran_out_on_the_server_is_a_loss() {
    let (ground, locks, client, _) = scene("clock").await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let earlier = doc! { "$subtract": ["$$NOW", 1] };
    let expire = doc! { "$set": { "holders": { "$map": {
        "input": "$holders", "in": { "$mergeObjects": ["$$this", { "until": earlier }] },
    } } } };
    let documents = ground.documents().await;
    documents.update_one(doc! { "_id": NAME }, vec![expire]).await.unwrap();
    let mut session = writing(&client, &ground, "written").await;
    let refused = handle.guard_transaction(&mut session).await;
    assert_lost!(GuardError, Expired, refused.unwrap_err());
    assert_eq!(handle.lost_reason(), Some(LostReason::Expired));
    session.commit_transaction().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_needs_a_transaction_of_the_same_client() {
    let (ground, locks, client, _) = scene("session").await;
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let before = ground.documents().await.find_one(doc! { "_id": NAME }).await.unwrap();

    let mut session = client.start_session().await.unwrap();
    let none = handle.guard_transaction(&mut session).await;
    assert!(matches!(none, Err(GuardError::NotInTransaction)), "{none:?}");
    for commits in [true, false] {
        let mut session = writing(&client, &ground, "written").await;
        match commits {
            true => session.commit_transaction().await.unwrap(),
            false => session.abort_transaction().await.unwrap(),
        }
        let over = handle.guard_transaction(&mut session).await;
        assert!(matches!(over, Err(GuardError::NotInTransaction)), "{over:?}");
    }

    let mut foreign = writing(&ground.driver().await, &ground, "foreign").await;
    match handle.guard_transaction(&mut foreign).await {
        Err(GuardError::Server(error)) => assert!(format!("{error:?}").contains("same client"), "{error:?}"),
        other => panic!("{other:?}"),
    }
    foreign.commit_transaction().await.unwrap_err();
    assert_eq!(
        ground.documents().await.find_one(doc! { "_id": NAME }).await.unwrap(),
        before
    );

    let in_memory = InMemory::new().client();
    let memory = in_memory.mutex(NAME).acquire().await.unwrap();
    let mut session = writing(&client, &ground, "memory").await;
    let refused = memory.guard_transaction(&mut session).await;
    assert!(matches!(refused, Err(GuardError::InMemory)), "{refused:?}");
    session.commit_transaction().await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_has_fences_and_no_guards() {
    let ground = Ground::standalone("alone").await;
    let (locks, client) = pair(&ground).await;
    let data = data_of(&client, &ground);
    data.insert_one(doc! { "_id": 1 }).await.unwrap();
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let mut session = client.start_session().await.unwrap();
    let refused = handle.guard_transaction(&mut session).await;
    assert!(matches!(refused, Err(GuardError::NotInTransaction)), "{refused:?}");
    // So far the driver goes along.
    session.start_transaction().await.unwrap();
    let refused = handle.guard_transaction(&mut session).await;
    assert!(matches!(refused, Err(GuardError::Standalone)), "{refused:?}");

    let one = doc! { "_id": 1 };
    let token = handle.token().as_i64();
    handle.fence().update_one(&data, one.clone(), doc! {}).await.unwrap();
    let late = Fence::new(token - 1).update_one(&data, one, doc! {}).await;
    assert_eq!(fenced(late), (token, token - 1));
}

/// The lease ends by the server's clock, and the lock is lost to its holder; but nobody else gets it before the commit.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_end_of_a_lease_waits_for_the_commit() {
    let lease = Duration::from_millis(1500);
    let ground = Ground::replica_set("end").await;
    let (locks, client) = pair_for(&ground, lease).await;
    data_of(&client, &ground).insert_one(doc! { "_id": 1 }).await.unwrap();
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let mut session = writing(&client, &ground, "written").await;
    handle.guard_transaction(&mut session).await.unwrap();
    assert_eq!(within(PATIENCE, "the loss", handle.lost()).await, LostReason::Expired);
    let until = info(&locks, NAME).await.unwrap().holders[0].until;
    eventually(PATIENCE, "the server's clock has come to the end", async || {
        SystemTime::now() > until
    })
    .await;

    let other = ground.locks().await;
    let waiting = spawn(other.mutex(NAME).acquire());
    // What is left of the old holder is held up beside it, until its client gives that up.
    until_held_up(&ground, &client, 1).await;
    assert!(!waiting.is_finished());
    session.commit_transaction().await.unwrap();
    let next = within(PATIENCE, "the next", waiting).await.unwrap().unwrap();
    assert!(next.token() > handle.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_after_the_other_does_not_starve_renewals() {
    let lease = Duration::from_secs(2);
    let ground = Ground::replica_set("renewed").await;
    let (locks, client) = pair_for(&ground, lease).await;
    let data = data_of(&client, &ground);
    data.insert_one(doc! { "_id": 1 }).await.unwrap();
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let start = Instant::now();
    let mut session = client.start_session().await.unwrap();
    while start.elapsed() < 2 * lease {
        let transaction = session.start_transaction();
        // A renewal may come in between.
        transaction
            .and_run2(async |session| Ok(handle.guard_transaction(session).await?))
            .await
            .unwrap();
    }
    assert_eq!(handle.lost_reason(), None);
    assert_eq!(info(&locks, NAME).await.unwrap().holders[0].token, handle.token());
}

// Fences.

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_refuses_what_is_smaller_and_nothing_else() {
    let ground = Ground::replica_set("fence").await;
    let data = data(&ground).await;
    let one = || doc! { "_id": 1 };
    let [small, large] = [5, 7].map(Fence::new);
    let set = |value: i32| doc! { "$set": { "value": value } };
    data.insert_one(doc! { "_id": 1, "value": 0, "mine": [1, 2] })
        .await
        .unwrap();

    let written = small.update_one(&data, one(), set(1)).await.unwrap();
    assert_eq!((written.matched_count, written.modified_count), (1, 1));
    // Several writes under one hold.
    small.update_one(&data, one(), set(2)).await.unwrap();
    large.update_one(&data, one(), set(3)).await.unwrap();
    for refused in [
        small.update_one(&data, one(), set(4)).await.map(drop),
        small.update_one(&data, one(), set(4)).upsert(true).await.map(drop),
        small.update_one(&data, one(), vec![set(4)]).await.map(drop),
        small.replace_one(&data, one(), doc! { "value": 4 }).await.map(drop),
        small.replace_one(&data, one(), doc! {}).upsert(true).await.map(drop),
        small.insert_one(&data, one()).await.map(drop),
        small.delete_one(&data, one()).await.map(drop),
    ] {
        assert_eq!(fenced(refused), (7, 5));
    }
    let untouched = doc! { "_id": 1, "value": 3, "mine": [1, 2], "fence": 7_i64 };
    assert_eq!(document(&data, 1).await, Some(untouched));

    // Not refused, but not there.
    let none = || doc! { "_id": 1, "value": 99 };
    assert_eq!(small.update_one(&data, none(), set(4)).await.unwrap().matched_count, 0);
    assert_eq!(large.update_one(&data, none(), set(4)).await.unwrap().matched_count, 0);
    assert_eq!(
        large.replace_one(&data, none(), doc! {}).await.unwrap().matched_count,
        0
    );
    assert_eq!(large.delete_one(&data, none()).await.unwrap().deleted_count, 0);
    // There, and not what the filter says: the server's own error for an upsert.
    match large.update_one(&data, none(), set(4)).upsert(true).await {
        Err(FenceError::Server(error)) => assert_eq!(error.code(), Some(11_000), "{error:?}"),
        other => panic!("{other:?}"),
    }
    match large.insert_one(&data, one()).await {
        Err(FenceError::Server(error)) => assert_eq!(error.code(), Some(11_000), "{error:?}"),
        other => panic!("{other:?}"),
    }

    large.update_one(&data, one(), vec![set(5)]).await.unwrap();
    large.replace_one(&data, one(), doc! { "value": 6 }).await.unwrap();
    assert_eq!(
        document(&data, 1).await,
        Some(doc! { "_id": 1, "value": 6, "fence": 7_i64 })
    );
    // As a type that was read brings it along.
    let read = doc! { "value": 7, "fence": 1_i64 };
    large.replace_one(&data, one(), read).await.unwrap();
    assert_eq!(
        document(&data, 1).await,
        Some(doc! { "_id": 1, "value": 7, "fence": 7_i64 })
    );
    assert_eq!(large.delete_one(&data, one()).await.unwrap().deleted_count, 1);
    assert_eq!(document(&data, 1).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_works_where_there_is_no_document_yet_and_in_sub_documents() {
    let ground = Ground::replica_set("nested").await;
    let data = data(&ground).await;
    for (at, field) in ["fence", "meta.fence", "a.b.c"].into_iter().enumerate() {
        let [small, large] = [5, 7].map(|token| Fence::new(token).field(field).unwrap());
        let id = |n: i32| i32::try_from(at).unwrap() * 100 + n;
        let (set, get) = (doc! { "$set": { "value": 1 } }, format!("${field}"));
        let stored = async |n: i32| {
            let one = doc! { "_id": id(n) };
            let found = data.aggregate([doc! { "$match": one }, doc! { "$project": { "t": &get, "value": 1 } }]);
            let found = found.await.unwrap().next().await.unwrap().unwrap();
            (found.get_i64("t").unwrap(), found.get_i32("value").ok())
        };
        for (n, upserted) in [
            large
                .update_one(&data, doc! { "_id": id(1) }, set.clone())
                .upsert(true)
                .await,
            large
                .update_one(&data, doc! { "_id": id(2) }, vec![set.clone()])
                .upsert(true)
                .await,
            large
                .replace_one(&data, doc! { "_id": { "$eq": id(3) } }, doc! { "value": 1 })
                .upsert(true)
                .await,
        ]
        .into_iter()
        .enumerate()
        {
            let n = i32::try_from(n).unwrap() + 1;
            assert_eq!(upserted.unwrap().upserted_id, Some(Bson::from(id(n))));
            assert_eq!(stored(n).await, (7, Some(1)));
            assert_eq!(
                fenced(
                    small
                        .update_one(&data, doc! { "_id": id(n) }, doc! {})
                        .upsert(true)
                        .await
                ),
                (7, 5)
            );
        }
        large
            .insert_one(&data, doc! { "_id": id(4), "value": 1 })
            .await
            .unwrap();
        assert_eq!(stored(4).await, (7, Some(1)));
        // What else is in the sub-documents stays.
        let whole = doc! { "_id": id(5), "meta": { "x": 1 }, "a": { "x": 1, "b": { "x": 1 } } };
        data.insert_one(whole).await.unwrap();
        small
            .update_one(&data, doc! { "_id": id(5) }, vec![set.clone()])
            .await
            .unwrap();
        large
            .update_one(&data, doc! { "_id": id(5) }, set.clone())
            .await
            .unwrap();
        assert_eq!(stored(5).await, (7, Some(1)));
        let kept = doc! { "_id": id(5), "meta.x": 1, "a.x": 1, "a.b.x": 1 };
        assert!(data.find_one(kept).await.unwrap().is_some());
    }
    let without_id = Fence::new(1).insert_one(&data, doc! { "value": 1 }).await.unwrap();
    assert!(without_id.inserted_id.as_object_id().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_place_of_the_token_is_left_alone() {
    let ground = Ground::replica_set("occupied").await;
    let data = data(&ground).await;
    let cases = [
        ("fence", doc! { "fence": "garden" }),
        ("fence", doc! { "fence": [1, 2] }),
        ("fence", doc! { "fence": f64::NAN }),
        ("fence", doc! { "fence": {} }),
        ("a.b", doc! { "a": 1 }),
        ("a.b", doc! { "a": Bson::Null }),
        ("a.b", doc! { "a": [] }),
        ("a.b", doc! { "a": [{ "b": 1 }] }),
        ("a.b.c", doc! { "a": { "b": [{ "c": 1 }] } }),
    ];
    for (id, (field, mut whole)) in (0..).zip(cases) {
        whole.insert("_id", id);
        data.insert_one(&whole).await.unwrap();
        let fence = Fence::new(7).field(field).unwrap();
        let one = || doc! { "_id": id };
        for refused in [
            fence.update_one(&data, one(), doc! {}).await,
            fence.update_one(&data, one(), doc! {}).upsert(true).await,
            fence.update_one(&data, one(), vec![doc! { "$set": { "x": 1 } }]).await,
            fence.replace_one(&data, one(), doc! {}).await,
        ] {
            assert_is!(refused, Err(FenceError::Occupied { .. }), "{whole}");
        }
        let stored = document(&data, id).await.unwrap();
        assert_eq!(
            stored.to_string(),
            doc! { "_id": id }
                .into_iter()
                .chain(whole.into_iter().filter(|(key, _)| key != "_id"))
                .collect::<Document>()
                .to_string()
        );
    }
    // Numbers of other types are read, and null is nothing.
    for (id, found) in (100..).zip([Bson::from(9), Bson::from(9_i64), Bson::from(9.0), Bson::Null]) {
        data.insert_one(doc! { "_id": id, "fence": &found }).await.unwrap();
        let written = Fence::new(7).update_one(&data, doc! { "_id": id }, doc! {}).await;
        match found {
            Bson::Null => assert_eq!(written.unwrap().modified_count, 1),
            _ => assert_eq!(fenced(written), (9, 7)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_only_rise_whoever_races() {
    let ground = Ground::replica_set("rise").await;
    let data = data(&ground).await;
    let one = || doc! { "_id": 1 };
    let writes = (0..120_i64).map(|n| {
        let data = &data;
        async move {
            let token = n * 7 % 40;
            let fence = Fence::new(token);
            let outcome = match n % 3 {
                0 => {
                    fence
                        .update_one(data, one(), doc! { "$push": { "seen": token } })
                        .upsert(true)
                        .await
                }
                1 => {
                    let seen = doc! { "$concatArrays": [{ "$ifNull": ["$seen", []] }, [token]] };
                    fence
                        .update_one(data, one(), vec![doc! { "$set": { "seen": seen } }])
                        .upsert(true)
                        .await
                }
                _ => fence.update_one(data, one(), doc! { "$push": { "seen": token } }).await,
            };
            match outcome {
                Ok(result) => u64::from(result.matched_count > 0 || result.upserted_id.is_some()),
                Err(FenceError::Fenced { stored, .. }) => {
                    assert!(stored.as_i64() > token);
                    0
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    let written: u64 = join_all(writes).await.into_iter().sum();
    let end = document(&data, 1).await.unwrap();
    let seen: Vec<i64> = end
        .get_array("seen")
        .unwrap()
        .iter()
        .map(|token| token.as_i64().unwrap())
        .collect();
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.len() as u64, written);
    assert_eq!(end.get_i64("fence").unwrap(), 39);
    assert_eq!(data.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_work_in_transactions_too() {
    let ground = Ground::replica_set("both").await;
    let (locks, client) = pair(&ground).await;
    // What the collection itself would have is no obstacle.
    let weak = CollectionOptions::builder()
        .write_concern(WriteConcern::builder().w(Acknowledgment::Nodes(1)).build())
        .build();
    let data = client
        .database(&ground.database)
        .collection_with_options::<Document>(DATA, weak);
    data.insert_many([doc! { "_id": 1, "fence": 1_i64 }, doc! { "_id": 2, "fence": i64::MAX }])
        .await
        .unwrap();
    let handle = locks.mutex(NAME).acquire().await.unwrap();
    let (fence, token) = (handle.fence(), handle.token().as_i64());
    let mut session = transaction(&client).await;
    let update = doc! { "$set": { "written": true } };
    let written = fence
        .update_one(&data, doc! { "_id": 1 }, update.clone())
        .session(&mut session)
        .await
        .unwrap();
    assert_eq!(written.matched_count, 1);
    let upsert = fence.update_one(&data, doc! { "_id": 3 }, update.clone()).upsert(true);
    assert!(upsert.session(&mut session).await.unwrap().upserted_id.is_some());
    fence
        .insert_one(&data, doc! { "_id": 4 })
        .session(&mut session)
        .await
        .unwrap();
    // A refusal is no end of the transaction, which is for the program to decide.
    let refused = fence
        .update_one(&data, doc! { "_id": 2 }, update.clone())
        .session(&mut session)
        .await;
    assert_eq!(fenced(refused), (i64::MAX, token));
    let upsert = fence.replace_one(&data, doc! { "_id": 2 }, doc! {}).upsert(true);
    assert_eq!(fenced(upsert.session(&mut session).await), (i64::MAX, token));
    assert_eq!(
        fenced(fence.insert_one(&data, doc! { "_id": 2 }).session(&mut session).await),
        (i64::MAX, token)
    );
    assert_eq!(
        fenced(fence.delete_one(&data, doc! { "_id": 2 }).session(&mut session).await),
        (i64::MAX, token)
    );
    handle.guard_transaction(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    for id in [1, 3, 4] {
        assert_eq!(document(&data, id).await.unwrap().get_i64("fence").unwrap(), token);
    }

    // As the driver's own error, and back.
    let outcome: Result<(), Error> = session
        .start_transaction()
        .and_run2(async |session| {
            let update = fence.update_one(&data, doc! { "_id": 2 }, doc! {}).session(session);
            update.await?;
            Ok(())
        })
        .await;
    let error = outcome.unwrap_err();
    assert!(
        matches!(error.get_custom::<FenceError>(), Some(FenceError::Fenced { .. })),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_a_fence_is_refused_before_it_is_sent() {
    // Nobody listens there.
    let client = Client::with_uri_str("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1")
        .await
        .unwrap();
    let data = client.database("x").collection::<Document>(DATA);
    let fence = Fence::new(1).field("a.b").unwrap();
    let one = || doc! { "_id": 1 };
    for update in [
        doc! { "$set": { "a.b": 1 } },
        doc! { "$unset": { "a": 1 } },
        doc! { "$inc": { "a.b.c": 1 } },
        doc! { "$max": { "a.b": 9 } },
        doc! { "$rename": { "x": "a.b" } },
        doc! { "$set": { "a.$[].b": 1 } },
        doc! { "$max": 1 },
        doc! { "value": 1 },
    ] {
        let refused = fence.update_one(&data, one(), update.clone()).await;
        assert!(matches!(refused, Err(FenceError::Invalid(_))), "{update} {refused:?}");
    }
    for stage in [
        doc! { "$set": { "a.b": 1 } },
        doc! { "$addFields": { "a": {} } },
        doc! { "$unset": "a.b" },
        doc! { "$unset": ["x", "a"] },
        doc! { "$project": { "a.b": 0 } },
    ] {
        let refused = fence.update_one(&data, one(), vec![stage.clone()]).await;
        assert!(matches!(refused, Err(FenceError::Invalid(_))), "{stage} {refused:?}");
    }
    for filter in [
        doc! {},
        doc! { "name": "x" },
        doc! { "_id": { "$in": [1] } },
        doc! { "_id": { "$eq": 1, "$ne": 2 } },
    ] {
        let refused = fence.update_one(&data, filter.clone(), doc! {}).upsert(true).await;
        assert!(matches!(refused, Err(FenceError::Invalid(_))), "{filter} {refused:?}");
    }
    let misplaced = fence.replace_one(&data, one(), doc! { "$set": { "x": 1 } }).await;
    assert!(matches!(misplaced, Err(FenceError::Invalid(_))), "{misplaced:?}");
    let misplaced = fence.insert_one(&data, doc! { "a": { "b": "x" } }).await;
    assert!(matches!(misplaced, Err(FenceError::Invalid(_))), "{misplaced:?}");
    let misplaced = fence.insert_one(&data, doc! { "a": 1 }).await;
    assert!(matches!(misplaced, Err(FenceError::Invalid(_))), "{misplaced:?}");
    // What only looks alike is none of the fence's business, and then nobody is there.
    let fit = fence
        .update_one(&data, one(), doc! { "$set": { "a.bc": 1, "ab": 1, "b": 1 } })
        .await;
    assert!(matches!(fit, Err(FenceError::Server(_))), "{fit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_numbers_to_others() {
    let locks = LockClient::in_memory();
    let token = locks.mutex(NAME).acquire().await.unwrap().token();
    assert_eq!(i64::from(token), token.as_i64());
    assert_eq!(Bson::from(token), Bson::Int64(token.as_i64()));
    assert_eq!(Fence::new(token).token(), token);
}
