//! Locks that stay with a client after their release, for its next task.

use watchlock::{
    Acquire,
    locks::{self, Turn},
    operate::HolderInfo,
};

use crate::setup::*;

const KEEP: Duration = Duration::from_secs(60);

/// Less than the five seconds after which the holder would see by itself that others wait.
const TOLD: Duration = Duration::from_secs(3);

async fn keeping(ground: &Ground) -> LockClient {
    let builder = ground.builder().await.lease(Duration::from_secs(10));
    builder.keep_idle(KEEP).build().await.unwrap()
}

/// Takes a lock for a moment, and leaves it with the client.
async fn leave_idle(locks: &LockClient) {
    let handle = locks.mutex("x").acquire().reason("for a moment").await.unwrap();
    assert_eq!(handle.release().await.unwrap(), Released::Released);
}

async fn holder(locks: &LockClient) -> Option<HolderInfo> {
    info(locks, "x").await.and_then(|lock| lock.holders.into_iter().next())
}

async fn until_shown(locks: &LockClient, idle: bool) {
    eventually(PATIENCE, "the document shows it", async || {
        holder(locks).await.is_some_and(|holder| holder.idle == idle)
    })
    .await;
}

/// Leaves a lock idle until its document shows it, and then takes it without the server: while a command about it is on
/// its way it has to be asked for. Returns its handle, and the holder that the document shows.
async fn taken_again(locks: &LockClient, take: impl Fn() -> Acquire<locks::Mutex>) -> (Held<locks::Mutex>, HolderInfo) {
    loop {
        let kept = locks
            .mutex("x")
            .acquire()
            .reason("for a moment")
            .keep_idle(KEEP)
            .await
            .unwrap();
        kept.release().await.unwrap();
        let shown = eventually(PATIENCE, "the document shows it, or it went back", async || {
            holder(locks).await.is_none_or(|holder| holder.idle)
        });
        shown.await;
        let Some(first) = holder(locks).await.filter(|holder| holder.idle) else {
            continue;
        };
        let handle = take().await.unwrap();
        if holder(locks).await.is_some_and(|holder| holder.token == first.token) {
            return (handle, first);
        }
        handle.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_has_stayed_is_taken_again_without_a_command() {
    let ground = Ground::replica_set("idleagain").await;
    let (driver, sent) = ground.noting_driver().await;
    let builder = LockClient::builder(driver.database(&ground.database)).keep_idle(KEEP);
    let locks = builder.build().await.unwrap();
    leave_idle(&locks).await;
    until_streaming(&ground, &driver, 1).await;
    // While the stream opens, or a command about the lock is on its way, it goes through the server; and so it does
    // once in 64 times.
    let mut last = None;
    eventually(PATIENCE, "it is taken twenty times without a command", async || {
        let before = sent.count("findAndModify");
        for number in 0..20 {
            let mutex = locks.mutex("x");
            let handle = if number % 2 == 0 {
                mutex.acquire().await.unwrap()
            } else {
                mutex.try_acquire().await.unwrap().unwrap()
            };
            assert!(Some(handle.token()) > last);
            last = Some(handle.token());
            assert_eq!(handle.release().await.unwrap(), Released::Released);
        }
        sent.count("findAndModify") == before
    })
    .await;
    // Whoever has it next has a larger token still.
    let other = ground.locks().await;
    let handle = within(TOLD, "its turn", other.mutex("x").acquire()).await.unwrap();
    assert!(Some(handle.token()) > last);
}

#[tokio::test]
async fn another_client_that_waits_gets_it_at_once() {
    let ground = Ground::replica_set("idleother").await;
    let locks = ground.builder().await.keep_idle(KEEP).build().await.unwrap();
    let other = ground.locks().await;
    let driver = ground.driver().await;
    leave_idle(&locks).await;
    until_streaming(&ground, &driver, 1).await;
    for _ in 0..5 {
        leave_idle(&locks).await;
        let handle = within(TOLD, "its turn", other.mutex("x").acquire()).await.unwrap();
        // The client gets in line like any other.
        let waiting = spawn(locks.mutex("x").acquire());
        let token = handle.token();
        handle.release().await.unwrap();
        let again = within(TOLD, "its own", waiting).await.unwrap().unwrap();
        assert!(again.token() > token);
        again.release().await.unwrap();
    }
}

/// It is renewed, and shown for what it is.
#[tokio::test]
async fn its_document_shows_it_as_idle_until_it_is_taken_again() {
    let ground = Ground::replica_set("idleshown").await;
    let (locks, other) = (keeping(&ground).await, ground.locks().await);
    // With the same reason, as it stays idle in its turn where it had to be asked for.
    let take = || locks.mutex("x").acquire().reason("for a moment");
    let (handle, first) = taken_again(&locks, take).await;
    assert_eq!(first.owner.reason.as_deref(), Some("for a moment"));
    assert!(handle.token() > first.token);
    until_shown(&other, false).await;
    assert_eq!(holder(&other).await.unwrap().token, first.token);
    assert_eq!(handle.lost_reason(), None);
    handle.release().await.unwrap();
    // It goes back instead where a command about it is on its way, or a reading is late.
    for _ in 0..20 {
        if is_taken_and_renewed(&locks, &other).await {
            return;
        }
    }
    panic!("it never stays until it is renewed");
}

/// A renewal that was sent while nobody had the lock reaches the server when a task has had it again for a while.
#[tokio::test]
async fn a_renewal_that_comes_late_does_not_show_a_held_lock_as_idle() {
    let (cluster, _turn, ground) = faulty_ground("idlelate").await;
    let driver = cluster.client().await.unwrap();
    let (locks, other) = (
        keeping(&ground).await,
        Ground::through(&ground, cluster.uri()).locks().await,
    );
    let late = async || {
        let operations = ground.operations(&driver).await;
        let update = |operation: &Document| {
            let command = operation.get_document("command");
            command.is_ok_and(|command| command.contains_key("update"))
        };
        operations.iter().any(update)
    };
    for _ in 0..10 {
        leave_idle(&locks).await;
        until_streaming(&ground, &driver, 1).await;
        let fault = ground.fail(cluster, times(1), &["update"], blocks(5_000)).await;
        fault.wait_entered(1, PATIENCE).await.unwrap();
        let Some(idle) = holder(&other).await else { continue };
        // Another goes out beside it.
        eventually(PATIENCE, "it is renewed and shown as idle, or went back", async || {
            holder(&other)
                .await
                .is_none_or(|now| now.idle && now.until > idle.until)
        })
        .await;
        let handle = locks.mutex("x").acquire().reason("for a moment").await.unwrap();
        eventually(PATIENCE, "it is shown as held", async || {
            holder(&other).await.is_some_and(|holder| !holder.idle)
        })
        .await;
        let is_the_same = holder(&other).await.is_some_and(|holder| holder.token == idle.token);
        let comes_later = is_the_same && late().await;
        eventually(PATIENCE, "all renewals are done", async || !late().await).await;
        let shown = holder(&other).await.unwrap();
        assert!(!shown.idle, "{shown:?}");
        assert_eq!(handle.lost_reason(), None);
        handle.release().await.unwrap();
        if comes_later {
            return;
        }
    }
    panic!("no task takes the lock before a late renewal of it comes");
}

/// Leaves a lock idle, and returns whether it stays: then it is taken, to others, and it is renewed.
async fn is_taken_and_renewed(locks: &LockClient, other: &LockClient) -> bool {
    leave_idle(locks).await;
    let shown = eventually(PATIENCE, "the document shows it, or it went back", async || {
        holder(other).await.is_none_or(|holder| holder.idle)
    });
    shown.await;
    let Some(before) = holder(other).await.filter(|holder| holder.idle) else {
        return false;
    };
    match other.mutex("x").try_acquire().or_held().await {
        Err(error @ AcquireError::Held { .. }) => assert!(error.to_string().contains("idle with "), "{error}"),
        Ok(_) => return false,
        other => panic!("{other:?}"),
    }
    let mut stays = true;
    eventually(PATIENCE, "it is renewed, or it went back", async || {
        let now = holder(other).await.filter(|now| now.token == before.token);
        stays = now.is_some();
        now.is_none_or(|now| now.idle && now.until > before.until)
    })
    .await;
    stays
}

#[tokio::test]
async fn it_goes_back_with_its_time_a_shutdown_and_the_client() {
    let ground = Ground::replica_set("idleback").await;
    let other = ground.locks().await;
    let short = ground
        .locks_with(|builder| builder.keep_idle(Duration::from_secs(3)))
        .await;
    leave_idle(&short).await;
    assert!(!is_vacant(&other, "x").await);
    eventually(PATIENCE, "its time is over", async || is_vacant(&other, "x").await).await;

    let ended = keeping(&ground).await;
    leave_idle(&ended).await;
    ended.shutdown().await;
    assert!(is_vacant(&other, "x").await);

    let dropped = keeping(&ground).await;
    leave_idle(&dropped).await;
    assert!(!is_vacant(&other, "x").await);
    drop(dropped);
    eventually(PATIENCE, "nobody is left", async || is_vacant(&other, "x").await).await;
}

#[tokio::test]
async fn of_those_that_go_back_with_the_client_one_that_is_blocked_holds_up_no_others() {
    let ground = Ground::replica_set("idleblocked").await;
    let (other, driver) = (ground.locks().await, ground.driver().await);
    let dropped = keeping(&ground).await;
    let names = ["a", "b", "c"];
    let mut held = Vec::new();
    for name in names {
        held.push(dropped.mutex(name).acquire().await.unwrap());
    }
    until_streaming(&ground, &driver, 1).await;
    for handle in held {
        handle.release().await.unwrap();
    }
    for name in names {
        assert!(!is_vacant(&other, name).await, "{name}");
    }
    let documents = ground.of(&driver, COLLECTION);
    let mut session = writing(&driver, &documents, "a").await;
    drop(dropped);
    eventually(SOON * 4, "the others are free", async || {
        is_vacant(&other, "b").await && is_vacant(&other, "c").await
    })
    .await;
    assert!(!is_vacant(&other, "a").await);
    session.abort_transaction().await.unwrap();
    eventually(SOON * 4, "the last one is free", async || is_vacant(&other, "a").await).await;
}

#[tokio::test]
async fn what_others_do_to_it_is_found_out_before_it_is_taken() {
    let ground = Ground::replica_set("idlebroken").await;
    let (locks, other) = (keeping(&ground).await, ground.locks().await);
    let driver = ground.driver().await;
    leave_idle(&locks).await;
    until_streaming(&ground, &driver, 1).await;
    leave_idle(&locks).await;
    let token = holder(&other).await.unwrap().token;
    other.break_lock("x").await.unwrap();
    let theirs = other.mutex("x").acquire().await.unwrap();
    assert!(theirs.token() > token);
    let mutex = locks.mutex("x");
    let mut waiting = spawn(async move { mutex.acquire().await.unwrap() });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    if let Ok(early) = early {
        // It was taken before the event was there.
        let early = early.unwrap();
        assert_eq!(within(PATIENCE, "the loss", early.lost()).await, LostReason::Broken);
        let mutex = locks.mutex("x");
        waiting = spawn(async move { mutex.acquire().await.unwrap() });
    }
    theirs.release().await.unwrap();
    let ours = within(PATIENCE, "its turn", waiting).await.unwrap();
    ours.release().await.unwrap();
    leave_idle(&locks).await;
    // Its document is deleted. Whoever takes the lock before the event is there has lost it as the event arrives.
    ground.documents().await.drop().await.unwrap();
    let handle = within(PATIENCE, "a grant", locks.mutex("x").acquire()).await.unwrap();
    eventually(PATIENCE, "the deletion is known", async || {
        let is_there = holder(&other)
            .await
            .is_some_and(|holder| holder.token == handle.token());
        is_there || handle.lost_reason() == Some(LostReason::Deleted)
    })
    .await;
}

/// A job's period is reckoned from its grant, so that is the server's in any case.
#[tokio::test]
async fn a_job_that_has_failed_leaves_its_period_open() {
    let ground = Ground::replica_set("idleonce").await;
    let (locks, other) = (keeping(&ground).await, keeping(&ground).await);
    let day = Duration::from_secs(24 * 3600);
    let job = begun(locks.once("x", day)).await;
    job.release().await.unwrap();
    let job = begun(other.once("x", day)).await;
    job.release().await.unwrap();
    // Nor does it take over what a mutex of that name has left.
    leave_idle(&locks).await;
    let before = holder(&other).await.unwrap().token;
    let job = begun(locks.once("x", day)).await;
    assert!(job.token() > before);
    assert_eq!(holder(&other).await.unwrap().token, job.token());
    job.done().await.unwrap();
    assert_is!(other.once("x", day).begin().await.unwrap(), Turn::RanAlready(_));
}
