//! `acquire` and `release`: a lock that is held from one step of a pipeline to a later one, by no process.

use std::time::Duration;

use serde_json::Value;
use watchlock::LostReason;

use crate::{
    Started,
    common::{Ground, PATIENCE, eventually, info, is_vacant, until_waiting},
    done, program, signal, started_by, tells, watchlock, words,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_later_step_gives_back_what_an_earlier_one_took() {
    for ground in Ground::both("cli_steps").await {
        let locks = ground.locks().await;
        let taken = watchlock(&ground, "acquire deploy --for 30m --reason `run 7`", 0).await;
        let token = taken.out.trim().to_owned();
        let held = info(&locks, "deploy").await.unwrap();
        let [holder] = &held.holders[..] else {
            panic!("{held:?}")
        };
        assert_eq!(holder.token.to_string(), token);
        assert_eq!(holder.owner.reason.as_deref(), Some("run 7"));
        assert_eq!(holder.until.duration_since(holder.since).unwrap().as_secs() / 60, 30);

        // Its process is gone, and is not looked for.
        tells(&ground, "show deploy", 0, "detached: no process has it\n").await;

        // Others wait, or do not.
        watchlock(&ground, "acquire deploy --for 1m --try", 75).await;
        tells(&ground, "acquire deploy --for 1m -t 300ms -E 3", 3, "run 7").await;
        let waiting = Started::run(&ground, "acquire deploy --for 20m --json");
        until_waiting(&locks, "deploy", 1).await;

        // Only this hold is given back, and only once.
        let wrong = (token.parse::<i64>().unwrap() + 1).to_string();
        for token in [&wrong, "1"] {
            watchlock(&ground, format!("release deploy --token {token}"), 1).await;
        }
        assert_eq!(info(&locks, "deploy").await.unwrap().holders, held.holders);
        let mut releasing = program(&ground);
        releasing
            .args(words("release deploy --json"))
            .env("WATCHLOCK_TOKEN", &token);
        let released = done(&mut releasing).await.expect(0).json();
        assert_eq!(released["released"]["token"].to_string(), token);
        let shown = watchlock(&ground, "show deploy --json", 0).await.json();
        // It names who had it, and not who gave it back.
        assert_eq!(shown["past"][0]["reason"], "run 7", "{shown}");
        assert_eq!(shown["past"][0]["pid"], held.holders[0].owner.pid, "{shown}");
        let again = watchlock(&ground, format!("release deploy --token {token} --json"), 1).await;
        assert_eq!(again.json()["released"], Value::Null);
        assert!(again.err.contains(&token), "{again:?}");

        // The one that was woken has the lock for its own whole time, and not for the seconds of a first grant.
        let next = waiting.done().await.expect(0).json();
        assert_eq!(next["name"], "deploy");
        let next = next["holder"]["token"].to_string();
        let held = info(&locks, "deploy").await.unwrap();
        assert_eq!(held.holders[0].token.to_string(), next);
        assert!(held.holders[0].until.duration_since(held.holders[0].since).unwrap() >= Duration::from_secs(1_200));
        watchlock(&ground, format!("release deploy --token {next}"), 0).await;
        assert!(is_vacant(&locks, "deploy").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_step_renews_what_an_earlier_one_took() {
    for ground in Ground::both("cli_renew").await {
        let locks = ground.locks().await;
        let taken = watchlock(&ground, "acquire deploy --for 30m", 0).await;
        let token = taken.out.trim().to_owned();
        let before = info(&locks, "deploy").await.unwrap().holders[0].until;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let renewed = watchlock(&ground, format!("renew deploy --token {token} --json"), 0).await;
        assert_eq!(renewed.json()["renewed"]["token"].to_string(), token);
        let after = info(&locks, "deploy").await.unwrap().holders[0].until;
        assert!(after >= before + Duration::from_millis(50), "{before:?} {after:?}");
        let told = watchlock(&ground, format!("renew deploy --token {token}"), 0).await;
        assert!(told.out.contains('T') && told.out.trim().ends_with('Z'), "{told:?}");

        let wrong = (token.parse::<i64>().unwrap() + 1).to_string();
        let failed = watchlock(&ground, format!("renew deploy --token {wrong} --json"), 1).await;
        assert!(
            failed.json()["renewed"].is_null() && failed.err.contains(&wrong),
            "{failed:?}"
        );
        watchlock(&ground, format!("release deploy --token {token}"), 0).await;
        watchlock(&ground, format!("renew deploy --token {token}"), 1).await;
        assert!(is_vacant(&locks, "deploy").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_token_nobody_gets_is_not_left_held() {
    let ground = Ground::replica_set("cli_steps").await;
    let locks = ground.locks().await;
    // It is told to end while it waits.
    let held = locks.mutex("deploy").acquire().await.unwrap();
    let waiting = Started::run(&ground, "acquire deploy --for 30m");
    until_waiting(&locks, "deploy", 1).await;
    signal("TERM", waiting.pid());
    assert!(waiting.done().await.expect(128 + 15).out.is_empty());
    until_waiting(&locks, "deploy", 0).await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_holds_the_lock_learns_that_it_was_given_back_under_its_token() {
    let ground = Ground::replica_set("cli_steps").await;
    let locks = ground.locks().await;
    let exports = locks.semaphore("exports", 2);
    let (held, other) = (exports.acquire().await.unwrap(), exports.acquire().await.unwrap());
    let token = held.token().to_string();
    watchlock(&ground, format!("release exports --token {token}"), 0).await;
    assert_eq!(held.lost().await, LostReason::Broken);
    watchlock(&ground, "acquire exports --for 1m --semaphore 2 --try", 0).await;
    assert_eq!(other.lost_reason(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_token_can_not_be_written_is_given_back() {
    let ground = Ground::replica_set("cli_unwritten").await;
    let unwritten = "the token of `deploy` can't be written, so the lock is given back: ";
    for (line, problem) in [
        ("acquire deploy --for 30m", unwritten),
        ("hold deploy", "the output can't be written: "),
    ] {
        let mut taking = program(&ground);
        taking.args(words(line));
        let told = done(&mut started_by("sh", &["-c", "\"$@\" >/dev/full", "sh"], &taking))
            .await
            .expect(70)
            .err;
        assert!(told.contains(problem) && told.lines().count() == 1, "{told}");
        assert!(is_vacant(&ground.locks().await, "deploy").await);
    }
}

/// A step that took longer than its time is told so, whether or not anybody has asked for the lock since.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_time_is_over_is_not_there_to_release_or_to_break() {
    for ground in Ground::both("cli_over").await {
        let locks = ground.locks().await;
        let taken = watchlock(&ground, "acquire deploy --for 2200ms", 0).await;
        let token = taken.out.trim().to_owned();
        eventually(PATIENCE, "its time is over", async || {
            !info(&locks, "deploy").await.unwrap().is_held()
        })
        .await;
        let before = info(&locks, "deploy").await.unwrap().holders;
        for line in [
            "release deploy --token TOKEN",
            "renew deploy --token TOKEN",
            "break deploy --yes --holder TOKEN",
            "break deploy --yes",
        ] {
            tells(&ground, line.replace("TOKEN", &token), 1, "`deploy`").await;
        }
        // Nothing was written.
        assert_eq!(info(&locks, "deploy").await.unwrap().holders, before);
    }
}
