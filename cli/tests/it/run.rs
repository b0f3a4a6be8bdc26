//! `watchlock run`.

use watchlock::Released;
use watchlock_testkit::{shared, signal as process_signal};

use crate::{
    Started,
    common::{Ground, PATIENCE, is_vacant, until_waiting, within},
    done, program, signal, until_gone, watchlock,
};

/// A command that surely runs for a while, and says when it has started.
const LASTING: &str = "echo $$; exec sleep 300";

#[tokio::test(flavor = "multi_thread")]
async fn it_exits_with_the_code_of_its_command() {
    let ground = Ground::replica_set("cli_code").await;
    let locks = ground.locks().await;
    for code in [0, 1, 3, 255] {
        let script = format!("exit {code}");
        watchlock(&ground, ["run", "x", "--", "sh", "-c", &script])
            .await
            .expect(code);
        assert!(is_vacant(&locks, "x").await);
    }
    watchlock(&ground, ["run", "x", "--", "sh", "-c", "kill -KILL $$"])
        .await
        .expect(137);
    assert!(is_vacant(&locks, "x").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_finds_token_and_name() {
    let ground = Ground::replica_set("cli_token").await;
    let script = r#"printf '%s %s' "$WATCHLOCK_TOKEN" "$WATCHLOCK_NAME""#;
    let mut last = 0;
    for _ in 0..3 {
        let told = watchlock(&ground, ["run", "a b", "--", "sh", "-c", script])
            .await
            .expect(0);
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
            program.args(["run", "x", "--", "sh", "-c", script]).arg(&folder);
            tokio::spawn(async move { done(&mut program).await })
        });
        for run in runs.collect::<Vec<_>>() {
            run.await.unwrap().expect(0);
        }
        // It goes wrong without the lock; otherwise this test would show nothing.
        std::fs::create_dir(&folder).unwrap();
        watchlock(&ground, ["run", "x", "--", "mkdir", folder.to_str().unwrap()])
            .await
            .expect(1);
        std::fs::remove_dir(&folder).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_lock_is_refused_or_waited_for() {
    let ground = Ground::replica_set("cli_try").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().reason("a test").await.unwrap();
    let told = watchlock(&ground, ["run", "--try", "x", "--", "echo", "ran"])
        .await
        .expect(75);
    assert!(told.out.is_empty() && told.err.contains("a test"), "{told:?}");
    let told = watchlock(&ground, ["run", "--timeout", "2s", "x", "--", "echo", "ran"])
        .await
        .expect(75);
    assert!(told.out.is_empty() && told.err.contains("2s"), "{told:?}");
    // Its name is that of a mutex.
    let told = watchlock(&ground, ["run", "--try", "--semaphore", "2", "x", "--", "echo", "ran"])
        .await
        .expect(65);
    assert!(told.out.is_empty() && told.err.contains("semaphore"), "{told:?}");

    let waiting = Started::run(&ground, &["run", "--timeout", "1m", "x", "--", "echo", "ran"]);
    until_waiting(&locks, "x", 1).await;
    assert_eq!(held.release().await.unwrap(), Released::Released);
    assert_eq!(waiting.done().await.expect(0).out, "ran\n");
    assert!(is_vacant(&locks, "x").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphores_and_readers_and_writers() {
    let ground = Ground::replica_set("cli_kinds").await;
    let semaphore = [
        "run",
        "--semaphore",
        "3",
        "--permits",
        "2",
        "s",
        "--",
        "sh",
        "-c",
        LASTING,
    ];
    let mut two = Started::run(&ground, &semaphore);
    two.line().await;
    watchlock(&ground, ["run", "--try", "--semaphore", "3", "s", "--", "true"])
        .await
        .expect(0);
    watchlock(
        &ground,
        ["run", "--try", "--semaphore", "3", "--permits", "2", "s", "--", "true"],
    )
    .await
    .expect(75);

    let mut reader = Started::run(&ground, &["run", "--read", "rw", "--", "sh", "-c", LASTING]);
    reader.line().await;
    watchlock(&ground, ["run", "--try", "--read", "rw", "--", "true"])
        .await
        .expect(0);
    watchlock(&ground, ["run", "--try", "--write", "rw", "--", "true"])
        .await
        .expect(75);
    let listed = watchlock(&ground, ["ls", "--kind", "rwlock"]).await.expect(0);
    assert!(listed.out.contains("(reader)"), "{listed:?}");
    for started in [two, reader] {
        signal("TERM", started.pid());
        started.done().await.expect(143);
    }
    watchlock(&ground, ["run", "--try", "--write", "rw", "--", "true"])
        .await
        .expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_are_passed_on() {
    let ground = Ground::replica_set("cli_signals").await;
    let locks = ground.locks().await;
    for name in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"] {
        let script = format!("trap 'echo {name}; exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let mut started = Started::run(&ground, &["run", "x", "--", "sh", "-c", &script]);
        assert_eq!(started.line().await, "ready");
        signal(name, started.pid());
        assert_eq!(started.done().await.expect(7).out, format!("{name}\n"));
        assert!(is_vacant(&locks, "x").await, "{name}");
    }
    let mut started = Started::run(&ground, &["run", "x", "--", "sh", "-c", LASTING]);
    started.line().await;
    signal("TERM", started.pid());
    started.done().await.expect(143);
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_signals_stay_ignored() {
    let ground = Ground::replica_set("cli_nohup").await;
    // Like nohup. A later signal that is obeyed shows that the other was not. The end of the command is noticed even if
    // the parent ignores that of its children.
    let command = "trap 'echo usr1; exit 0' USR1; echo ready; while :; do sleep 0.02; done";
    let script = r#"trap '' HUP; exec env --ignore-signal=CHLD "$W" run x -- sh -c "$0""#;
    let program = program(&ground);
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", script, command]).kill_on_drop(true);
    shell.env("W", program.as_std().get_program());
    let environment = program.as_std().get_envs();
    shell.envs(environment.filter_map(|(name, value)| Some((name, value?))));
    let mut started = Started::new(&mut shell);
    assert_eq!(started.line().await, "ready");
    signal("HUP", started.pid());
    signal("USR1", started.pid());
    assert_eq!(started.done().await.expect(0).out, "usr1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_told_to_end_while_it_waits_leaves_the_queue() {
    let ground = Ground::replica_set("cli_leave").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let started = Started::run(&ground, &["run", "x", "--", "echo", "ran"]);
        until_waiting(&locks, "x", 1).await;
        signal(name, started.pid());
        assert_eq!(started.done().await.expect(code).out, "");
        assert_eq!(locks.inspect("x").await.unwrap().unwrap().waiters, []);
    }
    assert_eq!(held.release().await.unwrap(), Released::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_ends_the_command_and_what_it_started() {
    for ground in Ground::both("cli_lost").await {
        let locks = ground.locks().await;
        // One child in its own session, one whose parent has ended, and all deaf to SIGTERM.
        let script =
            "trap '' TERM; setsid sleep 300 & echo $!; (sleep 300 & echo $!); sleep 300 & echo $!; echo $$; wait";
        let arguments = ["run", "--grace", "100ms", "x", "--", "sh", "-c", script];
        let mut started = Started::run(&ground, &arguments);
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
    let mut started = Started::run(&ground, &["run", "--grace", "1m", "x", "--", "sh", "-c", script]);
    started.line().await;
    ground.locks().await.break_lock("x").await.unwrap();
    assert_eq!(started.done().await.expect(76).out, "cleaned\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_program_ends_its_command_when_it_thaws() {
    let ground = Ground::replica_set("cli_frozen").await;
    let locks = ground.locks().await;
    let arguments = [
        "run", "--lease", "1s", "--grace", "100ms", "x", "--", "sh", "-c", LASTING,
    ];
    let mut started = Started::run(&ground, &arguments);
    let command: u32 = started.line().await.parse().unwrap();
    process_signal::freeze(started.pid()).unwrap();
    let next = within(PATIENCE, "the lease runs out", locks.mutex("x").acquire())
        .await
        .unwrap();
    process_signal::thaw(started.pid()).unwrap();
    started.done().await.expect(76);
    until_gone(command).await;
    // A lock that is no longer ours was not touched.
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_command_does_not_outlive_a_program_that_is_killed() {
    let ground = Ground::replica_set("cli_orphan").await;
    let mut started = Started::run(&ground, &["run", "x", "--", "sh", "-c", LASTING]);
    let command: u32 = started.line().await.parse().unwrap();
    process_signal::kill(started.pid()).unwrap();
    started.status().await;
    until_gone(command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_started_again_takes_its_lock_back() {
    let ground = Ground::replica_set("cli_owner").await;
    let arguments = ["run", "--owner-id", "job-1", "x", "--", "sh", "-c", LASTING];
    let mut killed = Started::run(&ground, &arguments);
    killed.line().await;
    process_signal::kill(killed.pid()).unwrap();
    killed.status().await;
    watchlock(&ground, ["run", "--try", "x", "--", "true"]).await.expect(75);

    let mut again = Started::run(&ground, &arguments);
    again.line().await;
    // No id may run twice at the same time; the earlier run loses.
    let next = ["run", "--try", "--owner-id", "job-1", "x", "--", "true"];
    watchlock(&ground, next).await.expect(0);
    again.done().await.expect(76);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_is_the_program_unless_it_is_told() {
    let ground = Ground::replica_set("cli_reason").await;
    let locks = ground.locks().await;
    let reason = async |arguments: &[&str]| {
        let script = ["x", "--", "sh", "-c", LASTING];
        let mut started = Started::run(&ground, &[&["run"], arguments, &script].concat());
        started.line().await;
        let holder = locks.inspect("x").await.unwrap().unwrap().holders.remove(0);
        signal("TERM", started.pid());
        started.done().await.expect(143);
        (holder.owner.reason, holder.owner.label)
    };
    // Without its arguments, which may have a secret.
    assert_eq!(reason(&[]).await, (Some("sh".to_owned()), None));
    let told = reason(&["--reason", "monthly run", "--label", "billing"]).await;
    assert_eq!(told, (Some("monthly run".to_owned()), Some("billing".to_owned())));
    assert_eq!(reason(&["--reason", ""]).await, (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_typed_as_people_type_it() {
    let ground = Ground::replica_set("cli_typed").await;
    let told = watchlock(&ground, ["run", "x", "echo", "-n", "--try", "hi"])
        .await
        .expect(0);
    assert_eq!((&told.out[..], &told.err[..]), ("--try hi", ""));
    let told = watchlock(&ground, ["run", "-v", "x", "true"]).await.expect(0);
    assert!(
        told.err.contains("is held") && told.err.contains("is released"),
        "{told:?}"
    );
    let _held = ground.locks().await.mutex("x").acquire().await.unwrap();
    watchlock(&ground, ["run", "-n", "-E", "3", "x", "true"])
        .await
        .expect(3);
    watchlock(&ground, ["run", "-t", "2s", "-E", "0", "x", "false"])
        .await
        .expect(0);
    // Values from the environment are not requested in the usage.
    let told = watchlock(&ground, ["run", "x"]).await.expect(64);
    assert!(
        told.err.contains("watchlock run [OPTIONS] <NAME>") && !told.err.contains("--uri"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_does_not_get_the_connection_string() {
    let ground = Ground::replica_set("cli_uri").await;
    let script = r#"echo "<${MONGODB_URI-none}>""#;
    let told = watchlock(&ground, ["run", "x", "--", "sh", "-c", script])
        .await
        .expect(0);
    assert_eq!(told.out, "<none>\n");
    let told = watchlock(&ground, ["run", "--keep-uri", "x", "--", "sh", "-c", script])
        .await
        .expect(0);
    assert_eq!(told.out, format!("<{}>\n", ground.uri()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_command_that_hosts_start_one_after_the_other_runs_once() {
    let ground = Ground::replica_set("cli_least").await;
    let try_it = ["run", "--try", "--at-least-for", "1m", "-v", "x", "--", "echo", "ran"];
    let first = watchlock(&ground, try_it).await.expect(0);
    assert!(
        first.out == "ran\n" && first.err.contains("released, and kept"),
        "{first:?}"
    );
    for _ in 0..2 {
        let told = watchlock(&ground, try_it).await.expect(75);
        assert!(told.out.is_empty() && told.err.contains("kept taken by"), "{told:?}");
    }
    let shown = watchlock(&ground, ["show", "x"]).await.expect(0);
    assert!(
        shown.out.contains("released, and kept") && shown.out.contains("then it opens"),
        "{shown:?}"
    );
    let listed = watchlock(&ground, ["ls"]).await.expect(0);
    assert!(listed.out.contains("(released, kept taken)"), "{listed:?}");
    let json = watchlock(&ground, ["show", "--json", "x"]).await.expect(0).json();
    let holder = &json["holders"][0];
    let (released, until) = (holder["released"].as_str().unwrap(), holder["until"].as_str().unwrap());
    assert!(released < until, "{holder}");
    watchlock(&ground, ["break", "-y", "x"]).await.expect(0);
    watchlock(&ground, ["run", "--try", "x", "--", "true"]).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_holds_its_lock_too_long_is_reported_and_goes_on() {
    let ground = Ground::replica_set("cli_warn_after").await;
    let arguments = [
        "run",
        "--warn-after",
        "100ms",
        "x",
        "--",
        "sh",
        "-c",
        "read line; echo $line",
    ];
    let mut running = Started::run(&ground, &arguments);
    running
        .until_told("`x` has been held for 100ms; the command is still running\n")
        .await;
    assert!(!is_vacant(&ground.locks().await, "x").await);
    running.type_in("done\n").await;
    let done = running.done().await.expect(0);
    // Who held it before is in its document.
    let shown = watchlock(&ground, ["show", "x"]).await.expect(0);
    assert!(
        shown.out.contains("past    process") && shown.out.contains("released\n") && shown.out.contains("sh\n"),
        "{shown:?}"
    );
    let json = watchlock(&ground, ["ls", "--json"]).await.expect(0).json();
    let past = &json[0]["past"][0];
    assert!(
        past["how"] == "released" && past["since"].as_str() <= past["ended"].as_str(),
        "{json}"
    );
    assert_eq!((&*done.out, &*done.err), ("done\n", ""));
    let told = watchlock(&ground, ["run", "--warn-after", "1ms", "x", "--", "true"])
        .await
        .expect(64);
    assert!(told.err.contains("1ms is shorter than 10ms"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_once_in_a_period_and_scripts_can_tell() {
    let ground = Ground::replica_set("cli_once").await;
    let run = async |more: &[&str], command: &str| {
        let options = ["run", "--once-per", "1day", "--since-success"];
        let command = ["job", "--", "sh", "-c", command];
        watchlock(&ground, [&options, more, &command].concat()).await
    };
    // A failure leaves the period open, whatever its code.
    run(&[], "exit 3").await.expect(3);
    run(&[], "kill -KILL $$").await.expect(137);
    let done = run(&["--reason", "night of the 3rd"], "echo ran").await.expect(0);
    assert_eq!(done.out, "ran\n");
    let told = run(&[], "echo ran").await.expect(74);
    assert!(told.out.is_empty(), "{told:?}");
    let words = ["`job` was done", "ago by", "under token", "the next period begins in"];
    assert!(words.iter().all(|word| told.err.contains(word)), "{told:?}");
    let told = run(&["--ran-exit-code", "0"], "echo ran").await.expect(0);
    assert!(told.out.is_empty() && told.err.contains("`job` was done"), "{told:?}");
    let told = run(&["--ran-exit-code", "0", "-q"], "echo ran").await.expect(0);
    assert!(told.out.is_empty() && told.err.is_empty(), "{told:?}");
    // An operator opens it again.
    watchlock(&ground, ["break", "-y", "job"]).await.expect(0);
    run(&["--failures-count"], "exit 3").await.expect(3);
    run(&[], "echo ran").await.expect(74);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_another_run_is_at_is_not_waited_for() {
    let ground = Ground::replica_set("cli_busy").await;
    let once = ["run", "--once-per", "1day", "--since-success", "job", "--"];
    let mut running = Started::run(&ground, &[&once[..], &["sh", "-c", LASTING]].concat());
    running.line().await;
    let at_it = [&once[..], &["true"]].concat();
    let told = watchlock(&ground, &at_it).await.expect(75);
    assert!(
        told.err.contains("another run of `job` is in progress: held by"),
        "{told:?}"
    );
    signal("TERM", running.pid());
    running.done().await.expect(143);
    // It was ended, and is not done.
    watchlock(&ground, &at_it).await.expect(0);
    watchlock(&ground, &at_it).await.expect(74);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_told_once_that_somebody_waits() {
    let ground = Ground::replica_set("cli_wanted").await;
    let locks = ground.locks().await;
    let script = "trap 'told=$((told + 1))' USR1; echo here; while [ \"$told\" = \"\" ]; do sleep 0.02; done; \
                  sleep 0.3; exit $told";
    for run in [&["run"][..], &["elect"]] {
        let arguments = [run, &["--wanted", "SIGUSR1", "x", "--", "sh", "-c", script]].concat();
        let mut running = Started::run(&ground, &arguments);
        running.line().await;
        if run == ["run"] {
            let next = within(PATIENCE, "the lock", locks.mutex("x").acquire()).await.unwrap();
            next.release().await.unwrap();
        } else {
            let next = within(PATIENCE, "the lead", locks.election("x").campaign("next"))
                .await
                .unwrap();
            next.release().await.unwrap();
        }
        running.done().await.expect(1);
    }
    let told = watchlock(&ground, ["run", "--wanted", "NOTHING", "x", "true"])
        .await
        .expect(64);
    assert!(told.err.contains("not the name or the number of a signal"), "{told:?}");
}
