//! `watchlock run`.

use watchlock::{Held, Released};
use watchlock_testkit::{shared, signal as process_signal};

use crate::{
    Started,
    common::{Ground, PATIENCE, is_vacant, until_waiting, within},
    done, program, signal, started_by, tells, until_gone, watchlock, words,
};

#[tokio::test(flavor = "multi_thread")]
async fn it_exits_with_the_code_of_its_command() {
    let ground = Ground::replica_set("cli_code").await;
    let locks = ground.locks().await;
    for code in [0, 1, 3, 255] {
        watchlock(&ground, format!("run x -- sh -c `exit {code}`"), code).await;
        assert!(is_vacant(&locks, "x").await);
    }
    watchlock(&ground, "run x -- sh -c `kill -KILL $$`", 137).await;
    assert!(is_vacant(&locks, "x").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_finds_token_and_name() {
    let ground = Ground::replica_set("cli_token").await;
    let script = r#"printf '%s %s' "$WATCHLOCK_TOKEN" "$WATCHLOCK_NAME""#;
    let mut last = 0;
    for _ in 0..3 {
        let told = watchlock(&ground, format!("run `a b` -- sh -c `{script}`"), 0).await;
        let (token, name) = told.out.split_once(' ').unwrap();
        let token: i64 = token.parse().unwrap();
        assert!(token > last && name == "a b", "{told:?}");
        last = token;
    }
    let lock = ground.locks().await.inspect("a b").await.unwrap().unwrap();
    assert_eq!(lock.token.as_i64(), last);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_exclude_each_other() {
    for ground in Ground::both("cli_exclude").await {
        let folder = std::env::temp_dir().join(shared::unique_name("watchlock_cli"));
        // Fails if the folder exists already: while another run is in progress.
        let script = r#"mkdir "$0" && sleep 0.05 && rmdir "$0""#;
        let runs = (0..6).map(|_| {
            let mut program = program(&ground);
            program.args(words("run x -- sh -c")).arg(script).arg(&folder);
            tokio::spawn(async move { done(&mut program).await })
        });
        for run in runs.collect::<Vec<_>>() {
            run.await.unwrap().expect(0);
        }
        // It goes wrong without the lock; otherwise this test would show nothing.
        std::fs::create_dir(&folder).unwrap();
        watchlock(&ground, format!("run x -- mkdir {}", folder.display()), 1).await;
        std::fs::remove_dir(&folder).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_lock_is_refused_or_waited_for() {
    let ground = Ground::replica_set("cli_try").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().reason("a test").await.unwrap();
    tells(&ground, "run --try x -- echo ran", 75, "a test").await;
    tells(&ground, "run --timeout 2s x -- echo ran", 75, "2s").await;
    // Its name is that of a mutex.
    tells(&ground, "run --try --semaphore 2 x -- echo ran", 65, "semaphore").await;

    let waiting = Started::run(&ground, "run --timeout 1m x -- echo ran");
    until_waiting(&locks, "x", 1).await;
    assert_eq!(held.release().await.unwrap(), Released::Released);
    assert_eq!(waiting.done().await.expect(0).out, "ran\n");
    assert!(is_vacant(&locks, "x").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphores_and_readers_and_writers() {
    let ground = Ground::replica_set("cli_kinds").await;
    let two = Started::holding(&ground, "run --semaphore 3 --permits 2 s").await;
    watchlock(&ground, "run --try --semaphore 3 s -- true", 0).await;
    watchlock(&ground, "run --try --semaphore 3 --permits 2 s -- true", 75).await;

    let reader = Started::holding(&ground, "run --read rw").await;
    watchlock(&ground, "run --try --read rw -- true", 0).await;
    watchlock(&ground, "run --try --write rw -- true", 75).await;
    tells(&ground, "ls --kind rwlock", 0, "(reader)").await;
    for started in [two, reader] {
        signal("TERM", started.pid());
        started.done().await.expect(143);
    }
    watchlock(&ground, "run --try --write rw -- true", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_are_passed_on() {
    let ground = Ground::replica_set("cli_signals").await;
    let locks = ground.locks().await;
    for name in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"] {
        let script = format!("trap 'echo {name}; exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let mut started = Started::run(&ground, format!("run x -- sh -c `{script}`"));
        assert_eq!(started.line().await, "ready");
        signal(name, started.pid());
        assert_eq!(started.done().await.expect(7).out, format!("{name}\n"));
        assert!(is_vacant(&locks, "x").await, "{name}");
    }
    let started = Started::holding(&ground, "run x").await;
    signal("TERM", started.pid());
    started.done().await.expect(143);
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_signals_stay_ignored() {
    let ground = Ground::replica_set("cli_nohup").await;
    // Like nohup. A later signal that is obeyed shows that the other was not. The end of the command is noticed even if
    // the parent ignores that of its children.
    let command = "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.02; done";
    let script = r#"trap '' HUP; exec env --ignore-signal=CHLD "$@""#;
    let mut program = program(&ground);
    program.args(words("run x -- sh -c")).arg(command);
    let mut started = Started::new(&mut started_by("sh", &["-c", script, "sh"], &program));
    assert_eq!(started.line().await, "ready");
    signal("HUP", started.pid());
    signal("USR1", started.pid());
    assert_eq!(started.done().await.expect(0).out, "usr1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_ends_the_command_and_what_it_started() {
    for ground in Ground::both("cli_lost").await {
        let locks = ground.locks().await;
        // One child in its own session, one whose parent has ended, and all deaf to SIGTERM.
        let script =
            "trap '' TERM; setsid sleep 300 & echo $!; (sleep 300 & echo $!); sleep 300 & echo $!; echo $$; wait";
        let mut started = Started::run(&ground, format!("run --grace 100ms x -- sh -c `{script}`"));
        let mut pids: Vec<u32> = Vec::new();
        for _ in 0..4 {
            pids.push(started.line().await.parse().unwrap());
        }
        locks.break_lock("x").await.unwrap();
        let told = started.done().await.expect(76);
        assert!(told.err.contains("broken by an operator"), "{told:?}");
        for pid in pids {
            until_gone(pid).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_may_clean_up_when_its_lock_is_lost() {
    let ground = Ground::replica_set("cli_grace").await;
    let script = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut started = Started::run(&ground, format!("run --grace 1m x -- sh -c `{script}`"));
    started.line().await;
    ground.locks().await.break_lock("x").await.unwrap();
    assert_eq!(started.done().await.expect(76).out, "cleaned\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_program_ends_its_command_when_it_thaws() {
    let ground = Ground::replica_set("cli_frozen").await;
    let locks = ground.locks().await;
    let started = Started::holding(&ground, "run --lease 1s --grace 100ms x").await;
    process_signal::freeze(started.pid()).unwrap();
    let next = within(PATIENCE, "the lease runs out", locks.mutex("x").acquire())
        .await
        .unwrap();
    process_signal::thaw(started.pid()).unwrap();
    let command = started.first.parse().unwrap();
    started.done().await.expect(76);
    until_gone(command).await;
    // A lock that is no longer ours was not touched.
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_outlive_a_program_that_is_killed() {
    let ground = Ground::replica_set("cli_orphan").await;
    let mut started = Started::holding(&ground, "run x").await;
    process_signal::kill(started.pid()).unwrap();
    started.status().await;
    until_gone(started.first.parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_started_again_takes_its_lock_back() {
    let ground = Ground::replica_set("cli_owner").await;
    let mut killed = Started::holding(&ground, "run --owner-id job-1 x").await;
    process_signal::kill(killed.pid()).unwrap();
    killed.status().await;
    watchlock(&ground, "run --try x -- true", 75).await;

    let again = Started::holding(&ground, "run --owner-id job-1 x").await;
    // No id may run twice at the same time; the earlier run loses.
    watchlock(&ground, "run --try --owner-id job-1 x -- true", 0).await;
    again.done().await.expect(76);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_is_the_program_unless_it_is_told() {
    let ground = Ground::replica_set("cli_reason").await;
    let locks = ground.locks().await;
    let reason = async |options: &str| {
        let started = Started::holding(&ground, format!("run {options} x")).await;
        let holder = locks.inspect("x").await.unwrap().unwrap().holders.remove(0);
        signal("TERM", started.pid());
        started.done().await.expect(143);
        (holder.owner.reason, holder.owner.label)
    };
    // Without its arguments, which may have a secret.
    assert_eq!(reason("").await, (Some("sh".to_owned()), None));
    let told = reason("--reason `monthly run` --label billing").await;
    assert_eq!(told, (Some("monthly run".to_owned()), Some("billing".to_owned())));
    assert_eq!(reason("--reason ``").await, (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_typed_as_people_type_it() {
    let ground = Ground::replica_set("cli_typed").await;
    let told = watchlock(&ground, "run x echo -n --try hi", 0).await;
    assert_eq!((&told.out[..], &told.err[..]), ("--try hi", ""));
    let told = watchlock(&ground, "run -v x true", 0).await;
    assert!(
        told.err.contains("is held") && told.err.contains("is released"),
        "{told:?}"
    );
    let _held = ground.locks().await.mutex("x").acquire().await.unwrap();
    watchlock(&ground, "run -n -E 3 x true", 3).await;
    watchlock(&ground, "run -t 2s -E 0 x false", 0).await;
    // Values from the environment are not requested in the usage.
    let told = watchlock(&ground, "run x", 64).await;
    assert!(
        told.err.contains("watchlock run [OPTIONS] <NAME>") && !told.err.contains("--uri"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_does_not_get_the_connection_string() {
    let ground = Ground::replica_set("cli_uri").await;
    let script = r#"echo "<${MONGODB_URI-none}>""#;
    let told = watchlock(&ground, format!("run x -- sh -c `{script}`"), 0).await;
    assert_eq!(told.out, "<none>\n");
    let told = watchlock(&ground, format!("run --keep-uri x -- sh -c `{script}`"), 0).await;
    assert_eq!(told.out, format!("<{}>\n", ground.uri()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_command_that_hosts_start_one_after_the_other_runs_once() {
    let ground = Ground::replica_set("cli_least").await;
    let try_it = "run --try --at-least-for 1m -v x -- echo ran";
    let first = watchlock(&ground, try_it, 0).await;
    assert!(
        first.out == "ran\n" && first.err.contains("released, and kept"),
        "{first:?}"
    );
    for _ in 0..2 {
        tells(&ground, try_it, 75, "kept taken by").await;
    }
    tells(&ground, "show x", 0, "released, and kept | then it opens").await;
    tells(&ground, "ls", 0, "(released, kept taken)").await;
    let json = watchlock(&ground, "show --json x", 0).await.json();
    let holder = &json["holders"][0];
    let (released, until) = (holder["released"].as_str().unwrap(), holder["until"].as_str().unwrap());
    assert!(released < until, "{holder}");
    watchlock(&ground, "break -y x", 0).await;
    watchlock(&ground, "run --try x -- true", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_holds_its_lock_too_long_is_reported_and_goes_on() {
    let ground = Ground::replica_set("cli_warn_after").await;
    let mut running = Started::run(&ground, "run --warn-after 100ms x -- sh -c `read line; echo $line`");
    running
        .until_told("`x` has been held for 100ms; the command is still running\n")
        .await;
    assert!(!is_vacant(&ground.locks().await, "x").await);
    running.type_in("done\n").await;
    let done = running.done().await.expect(0);
    // Who held it before is in its document.
    tells(&ground, "show x", 0, "past    process | released\n | sh\n").await;
    let json = watchlock(&ground, "ls --json", 0).await.json();
    let past = &json[0]["past"][0];
    assert!(
        past["how"] == "released" && past["since"].as_str() <= past["ended"].as_str(),
        "{json}"
    );
    assert_eq!((&*done.out, &*done.err), ("done\n", ""));
    tells(
        &ground,
        "run --warn-after 1ms x -- true",
        64,
        "1ms is shorter than 10ms",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_once_in_a_period_and_scripts_can_tell() {
    let ground = Ground::replica_set("cli_once").await;
    let run = async |options: &str, command: &str, code| {
        let line = format!("run --once-per 1day --since-success {options} job -- sh -c `{command}`");
        watchlock(&ground, line, code).await
    };
    // A failure leaves the period open, whatever its code.
    run("", "exit 3", 3).await;
    run("", "kill -KILL $$", 137).await;
    assert_eq!(run("--reason `night of the 3rd`", "echo ran", 0).await.out, "ran\n");
    let told = run("", "echo ran", 74).await;
    let words = ["`job` was done", "ago by", "under token", "the next period begins in"];
    assert!(
        told.out.is_empty() && words.iter().all(|word| told.err.contains(word)),
        "{told:?}"
    );
    let told = run("--ran-exit-code 0", "echo ran", 0).await;
    assert!(told.out.is_empty() && told.err.contains("`job` was done"), "{told:?}");
    let told = run("--ran-exit-code 0 -q", "echo ran", 0).await;
    assert!(told.out.is_empty() && told.err.is_empty(), "{told:?}");
    // An operator opens it again.
    watchlock(&ground, "break -y job", 0).await;
    run("--failures-count", "exit 3", 3).await;
    run("", "echo ran", 74).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_another_run_is_at_is_not_waited_for() {
    let ground = Ground::replica_set("cli_busy").await;
    let running = Started::holding(&ground, "run --once-per 1day --since-success job").await;
    let at_it = "run --once-per 1day --since-success job -- true";
    tells(&ground, at_it, 75, "another run of `job` is in progress: held by").await;
    signal("TERM", running.pid());
    running.done().await.expect(143);
    // It was ended, and is not done.
    watchlock(&ground, at_it, 0).await;
    watchlock(&ground, at_it, 74).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_told_once_that_somebody_waits() {
    let ground = Ground::replica_set("cli_wanted").await;
    let locks = ground.locks().await;
    let script = "trap 'told=$((told + 1))' USR1; echo here; while [ \"$told\" = \"\" ]; do sleep 0.02; done; \
                  sleep 0.3; exit $told";
    for command in ["run", "elect"] {
        let mut running = Started::run(&ground, format!("{command} --wanted SIGUSR1 x -- sh -c `{script}`"));
        running.line().await;
        let next: Held = match command {
            "run" => within(PATIENCE, "the lock", locks.mutex("x").acquire())
                .await
                .unwrap()
                .into(),
            _ => within(PATIENCE, "the lead", locks.election("x").campaign("next"))
                .await
                .unwrap()
                .into(),
        };
        next.release().await.unwrap();
        running.done().await.expect(1);
    }
    tells(
        &ground,
        "run --wanted NOTHING x true",
        64,
        "not the name or the number of a signal",
    )
    .await;
}
