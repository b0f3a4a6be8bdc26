//! `watchlock hold`, and the other ways to hold a lock that people know from other programs.

use watchlock_testkit::shared;

use crate::{
    Started, bare,
    common::{Ground, SOON, is_vacant, until_waiting, within},
    done, program, signal, tells, watchlock, words,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_without_a_command_until_the_program_is_asked_to_end() {
    let ground = Ground::replica_set("cli_hold").await;
    let locks = ground.locks().await;
    let first = locks.mutex("x").acquire().await.unwrap();
    let mut holding = Started::run(&ground, "hold x --reason `an upgrade`");
    until_waiting(&locks, "x", 1).await;
    first.release().await.unwrap();
    let token = holding.line().await;
    let lock = locks.inspect("x").await.unwrap().unwrap();
    let holder = &lock.holders[0];
    assert_eq!(
        (holder.token.to_string(), holder.owner.reason.as_deref()),
        (token, Some("an upgrade"))
    );
    watchlock(&ground, "hold --try x", 75).await;
    signal("TERM", holding.pid());
    holding.done().await.expect(0);
    assert!(is_vacant(&locks, "x").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_the_shell_runs_under_the_lock() {
    let ground = Ground::replica_set("cli_line").await;
    let line = r#"run x -c `echo "$WATCHLOCK_NAME" | tr x y; exit 3`"#;
    assert_eq!(watchlock(&ground, line, 3).await.out, "y\n");
    watchlock(&ground, "run x -c true -- true", 64).await;
    watchlock(&ground, "run x", 64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_holds_the_lock_for_too_long_is_ended() {
    let ground = Ground::replica_set("cli_too_long").await;
    tells(&ground, "run --lose-after 500ms x -- sleep 300", 76, "`x` is lost").await;
    let next = ground.locks().await;
    let _next = within(SOON, "the next", next.mutex("x").acquire()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locking_and_unlocking_have_the_names_that_people_expect() {
    let ground = Ground::replica_set("cli_alias").await;
    let token = watchlock(&ground, "lock x --for 1m", 0).await.out;
    assert!(watchlock(&ground, "list", 0).await.out.contains("x "));
    watchlock(&ground, format!("unlock x --token {token}"), 0).await;
    assert!(is_vacant(&ground.locks().await, "x").await);
}

/// As a unit file has it that sets a variable for some hosts only.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_label_is_none() {
    let ground = Ground::replica_set("cli_label").await;
    let mut program = program(&ground);
    let mut holding = Started::new(program.env("WATCHLOCK_LABEL", "").args(["hold", "x"]));
    holding.line().await;
    let lock = ground.locks().await.inspect("x").await.unwrap().unwrap();
    assert_eq!(lock.holders[0].owner.label, None);
    signal("INT", holding.pid());
    holding.done().await.expect(0);
}

#[tokio::test]
async fn all_pages_of_the_manual_come_from_one_command() {
    let folder = std::env::temp_dir().join(shared::unique_name("watchlock_man"));
    done(bare().args(["man", "--into"]).arg(&folder)).await.expect(0);
    for page in ["watchlock.1", "watchlock-run.1", "watchlock-doctor.1"] {
        assert!(folder.join(page).metadata().unwrap().len() > 500, "{page}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_wrong_command_line_is_told_in_json_where_json_is_asked_for() {
    let told = done(bare().args(words("ls --json --kind lock"))).await.expect(64);
    let error = &told.json()["error"];
    assert!(error.as_str().is_some_and(|error| error.contains("--kind")), "{told:?}");
    assert_eq!(told.json()["code"], 64);
    for of_the_command in ["run --tyr x -- ls --json", "run --tyr x jq --json"] {
        assert_eq!(done(bare().args(words(of_the_command))).await.expect(64).out, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_without_a_match_does_not_say_that_there_are_no_locks() {
    let ground = Ground::replica_set("cli_no_match").await;
    assert!(watchlock(&ground, "ls", 0).await.err.contains("no locks in"));
    let held = ground.locks().await;
    let _held = held.mutex("x").acquire().await.unwrap();
    for line in ["ls --owner nobody", "ls --kind semaphore"] {
        let told = watchlock(&ground, line, 0).await;
        assert!(
            told.err.contains("none of the locks in") && told.out.is_empty(),
            "{told:?}"
        );
    }
}
