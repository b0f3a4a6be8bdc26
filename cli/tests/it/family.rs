//! `wait`, `elect`, `observe`, and `run` with several names.

use mongodb::bson::{DateTime, doc};
use serde_json::{Value, json};
use watchlock::{Released, operate::LockEvent};

use crate::{
    Started,
    common::{Ground, PATIENCE, SOON, eventually, is_vacant, until_waiting, within},
    signal, tells, watchlock,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_when_the_lock_is_free_and_not_before() {
    for ground in Ground::both("cli_wait").await {
        let locks = ground.locks().await;
        // Nobody has ever held it.
        watchlock(&ground, "wait x", 0).await;
        let first = locks.mutex("x").acquire().reason("a reason").await.unwrap();
        tells(&ground, "wait --timeout 300ms x", 75, "held by | 300ms").await;
        watchlock(&ground, "wait --timeout 0s -E 3 x", 3).await;

        let mut waiting = Started::run(&ground, "wait x");
        let mut other = Started::run(&ground, "wait --timeout 1m x");
        // A hand-over is no moment at which it is free.
        let (next, mut events) = (ground.locks().await, locks.watch("x"));
        let second = tokio::spawn(async move { next.mutex("x").acquire().await.unwrap() });
        until_waiting(&locks, "x", 1).await;
        assert_eq!(first.release().await.unwrap(), Released::Released);
        let second = second.await.unwrap();
        loop {
            let event = within(PATIENCE, "the hand-over", events.next()).await.unwrap().unwrap();
            if matches!(&event, LockEvent::Granted { holder, .. } if holder.token == second.token()) {
                break;
            }
        }
        // It has had the time to see that too.
        watchlock(&ground, "wait --timeout 300ms x", 75).await;
        assert!(waiting.child.try_wait().unwrap().is_none() && other.child.try_wait().unwrap().is_none());
        locks.break_lock("x").await.unwrap();
        for waiting in [&mut waiting, &mut other] {
            assert_eq!(waiting.status().await.code(), Some(0));
        }

        // A lease that runs out is the end of a holder too, and nobody reports that.
        let until = DateTime::from_millis(DateTime::now().timestamp_millis() + 1_500);
        let dead = doc! {
            "id": "dead-1", "permits": 1_i64, "lease": 1_000_i64, "claim": 500_i64, "token": 5_i64,
            "since": DateTime::now(), "until": until, "owner": { "host": "h", "pid": 1_i64 },
        };
        let left = doc! { "$set": { "holders": [dead] } };
        ground
            .documents()
            .await
            .update_one(doc! { "_id": "x" }, left)
            .await
            .unwrap();
        watchlock(&ground, "wait --timeout 0s x", 75).await;
        watchlock(&ground, "wait x", 0).await;
        let now = DateTime::now();
        assert!(now >= until, "{now} {until}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_document_ends_when_that_is_free() {
    let ground = Ground::replica_set("cli_wait").await;
    let collection = ground.driver().await.database(&ground.database).collection("orders");
    collection.insert_one(doc! { "_id": 7 }).await.unwrap();
    let orders = ground.locks().await.documents(collection);
    let held = orders.acquire(7).await.unwrap();
    let mut waiting = Started::run(&ground, "wait --documents orders 7");
    watchlock(&ground, "wait --documents orders --timeout 300ms 7", 75).await;
    assert!(waiting.child.try_wait().unwrap().is_none());
    held.release().await.unwrap();
    assert_eq!(waiting.status().await.code(), Some(0));
    watchlock(&ground, "wait --documents orders 8", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elected_command_leads_until_it_ends_or_the_lead_is_lost() {
    let ground = Ground::replica_set("cli_elect").await;
    let locks = ground.locks().await;
    let election = locks.election("scheduler");
    let mut lines = Started::run(&ground, "observe scheduler");
    let mut objects = Started::run(&ground, "observe scheduler --json");
    assert!(lines.line().await.ends_with("  scheduler  nobody leads"));
    let change = objects.object().await;
    assert!(
        change["election"] == "scheduler" && change["leader"].is_null(),
        "{change}"
    );
    assert!(change["at"].as_str().unwrap().ends_with('Z'));
    // A reader that has read enough ends it, without another change.
    let mut read = Started::run(&ground, "observe scheduler");
    read.line().await;
    assert_eq!(read.unread().await, Some(0));
    let told = watchlock(&ground, "observe --once scheduler", 1).await;
    assert!(told.out.ends_with("nobody leads\n"), "{told:?}");

    let elect = "elect scheduler --value 10.0.0.7:8080 -- sh -c `echo $WATCHLOCK_TOKEN; exec sleep 300`";
    let mut leading = Started::run(&ground, elect);
    let token: i64 = leading.line().await.parse().unwrap();
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((&leader.value[..], leader.token.as_i64()), ("10.0.0.7:8080", token));
    let told = lines.line().await;
    assert!(
        told.contains("led by ") && told.ends_with(&format!("token {token}: 10.0.0.7:8080")),
        "{told}"
    );
    assert_eq!(objects.object().await["leader"]["value"], "10.0.0.7:8080");
    let told = watchlock(&ground, "observe --once --json scheduler", 0).await;
    assert_eq!(told.json()["leader"]["token"], token);

    // Another candidate gives up, or follows.
    tells(&ground, "elect scheduler -t 300ms -- true", 75, "300ms").await;
    let mut next = Started::run(&ground, "elect scheduler -- sh -c `echo elected; exec sleep 300`");
    until_waiting(&locks, "scheduler", 1).await;
    locks.break_lock("scheduler").await.unwrap();
    assert_eq!(leading.status().await.code(), Some(76));
    assert_eq!(next.line().await, "elected");
    // Nobody proclaims nothing.
    let told = loop {
        let line = lines.line().await;
        if line.contains("led by") {
            break line;
        }
    };
    assert!(!told.contains(": 10.0.0.7"), "{told}");
    signal("TERM", next.pid());
    assert_eq!(next.status().await.code(), Some(143));
    assert!(lines.line().await.ends_with("nobody leads"));
    watchlock(&ground, "elect scheduler -- sh -c `exit 3`", 3).await;

    // A lock of another kind has no leader.
    let _held = locks.mutex("m").acquire().await.unwrap();
    watchlock(&ground, "observe m", 65).await;
    watchlock(&ground, "elect m -- true", 65).await;
    for started in [lines, objects] {
        signal("TERM", started.pid());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_held_by_one_command_or_none_is() {
    let ground = Ground::replica_set("cli_several").await;
    let locks = ground.locks().await;
    let script = r#"printf '%s\n%s\n%s\n' "$WATCHLOCK_NAME" "$WATCHLOCK_TOKEN" "$WATCHLOCK_TOKENS"; exec sleep 300"#;
    let mut running = Started::run(&ground, format!("run b --and c --and a -- sh -c `{script}`"));
    assert_eq!(running.line().await, "b");
    let token: i64 = running.line().await.parse().unwrap();
    let tokens: Value = serde_json::from_str(&running.line().await).unwrap();
    for name in ["a", "b", "c"] {
        let lock = locks.inspect(name).await.unwrap().unwrap();
        assert_eq!(tokens[name], json!(lock.holders[0].token.as_i64()));
    }
    assert_eq!(tokens["b"], json!(token));
    tells(&ground, "run --try d --and c -- echo ran", 75, "`c`").await;
    assert!(is_vacant(&locks, "d").await, "none is held");
    tells(&ground, "run -t 300ms d --and c -- echo ran", 75, "300ms").await;

    // One that is lost ends the command, and the others are free.
    locks.break_lock("c").await.unwrap();
    assert_eq!(running.status().await.code(), Some(76));
    let told = running.told().await;
    assert!(told.contains("`c` is lost"), "{told}");
    for name in ["a", "b", "c", "d"] {
        eventually(SOON, "it is free", async || is_vacant(&locks, name).await).await;
    }
    tells(&ground, "run a --and b -v -- sh -c `exit 4`", 4, "`a`, `b` is held").await;
    assert!(is_vacant(&locks, "a").await && is_vacant(&locks, "b").await);
}
