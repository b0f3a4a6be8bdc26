//! The ends of the program: nothing is left behind, and the exit code tells what happened, whoever ends it and whether
//! or not anybody reads its output.

use std::{process::Stdio, time::Duration};

use futures::future::join_all;
use mongodb::bson::doc;
use rustix::process::{Pid, Signal, kill_process};
use watchlock_testkit::{Proxy, shared};

use crate::{
    Started, bare,
    common::{Ground, PATIENCE, eventually, is_vacant, pause, until_waiting, within},
    done, program, signal, started_by, tells, watchlock, words,
};

/// As `timeout` does, with this pause: to the process, and to its group, which has the same process.
async fn terminate_twice(started: &Started, between: Duration) {
    let pid = Pid::from_raw(i32::try_from(started.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    pause(between).await;
    // It waits to be reaped, at least.
    kill_process(pid, Signal::TERM).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_to_end_abandons_neither_the_release_nor_the_queue_position() {
    const RUNS: u32 = 12;
    let ground = Ground::replica_set("cli_twice").await;
    let locks = ground.locks().await;
    let script = "trap 'exit 0' TERM; echo here; while :; do sleep 0.02; done";
    let holders = (0..RUNS).map(async |run| {
        let name = &format!("held-{run}");
        let mut holder = Started::run(&ground, format!("run {name} -- sh -c `{script}`"));
        holder.line().await;
        // While the command ends, and while the lock is released after that.
        terminate_twice(&holder, Duration::from_millis(4) * run).await;
        holder.status().await;
        assert!(is_vacant(&locks, name).await, "{name}: {:?}", locks.inspect(name).await);
    });
    join_all(holders).await;

    let held = locks.mutex("waited-for").acquire().await.unwrap();
    let waiters: Vec<Started> = (0..RUNS)
        .map(|_| Started::run(&ground, "run waited-for true"))
        .collect();
    until_waiting(&locks, "waited-for", RUNS as usize).await;
    let waiters = waiters.into_iter().zip(0..).map(async |(mut waiter, run)| {
        terminate_twice(&waiter, Duration::from_micros(run * 250)).await;
        assert_eq!(waiter.status().await.code(), Some(143));
    });
    join_all(waiters).await;
    let left = locks.inspect("waited-for").await.unwrap().unwrap().waiters;
    assert!(left.is_empty(), "{left:?}");
    held.release().await.unwrap();
}

/// The kernel spares the first process of a container the default effect of signals.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_of_a_container_ends_when_asked_to() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create such a container.
        return;
    }
    let ground = Ground::replica_set("cli_first").await;
    let held = ground.locks().await.mutex("x").acquire().await.unwrap();
    let ends = ["watch", "wait x", "observe y", "run x true"].map(async |line| {
        let mut program = program(&ground);
        program.args(words(line));
        let container = ["--fork", "--pid", "--mount-proc", "--kill-child"];
        let mut started = Started::new(&mut started_by("unshare", &container, &program));
        let children = format!("/proc/{0}/task/{0}/children", started.pid());
        let mut first = String::new();
        // It listens once it has connected, at the latest.
        eventually(PATIENCE, "it listens to TERM", async || {
            first = std::fs::read_to_string(&children).unwrap_or_default();
            let status = std::fs::read_to_string(format!("/proc/{}/status", first.trim())).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            caught.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
        })
        .await;
        signal("TERM", first.trim().parse().unwrap());
        assert_eq!(started.status().await.code(), Some(143), "{line}");
    });
    join_all(ends).await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_is_the_same_if_nobody_reads_the_output() {
    let ground = Ground::replica_set("cli_unread").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap().detach().await.unwrap();
    let token = held.token().to_string();
    for (code, line) in [
        (0, "ls"),
        (0, "ls --json"),
        (0, "show x"),
        (0, "watch"),
        (0, "man"),
        (0, "completions zsh"),
        (0, "doctor"),
        (0, "renew x --token TOKEN"),
        (1, "show nothing --json"),
        (1, "renew x --token 5 --json"),
        (1, "release x --token 5 --json"),
        (1, "break nothing --yes --json"),
        (1, "break x --holder 5 --yes --json"),
        (1, "observe nothing --once"),
        (1, "observe nothing --once --json"),
        (0, "break x --yes"),
        (64, "show `` --json"),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut program = program(&ground);
        program
            .args(words(&line.replace("TOKEN", &token)))
            .stdout(writer)
            .stderr(Stdio::piped());
        let child = program.spawn().unwrap();
        // It holds the other end of the pipe.
        drop(program);
        let output = within(PATIENCE, "the program", child.wait_with_output()).await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(code > 0 || output.stderr.is_empty(), "{line}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_whose_token_nobody_would_know() {
    let ground = Ground::replica_set("cli_closed").await;
    let mut program = program(&ground);
    program.args(words("acquire x --for 1m"));
    let closed = ["-c", "\"$@\" >&-", "sh"];
    let told = done(&mut started_by("sh", &closed, &program)).await.expect(64);
    assert!(told.err.contains("standard output is closed or discarded"), "{told:?}");
    assert!(is_vacant(&ground.locks().await, "x").await);
    // The null device may be meant.
    let unread = ["-c", "\"$@\" >/dev/null", "sh"];
    done(&mut started_by("sh", &unread, &program)).await.expect(0);
    assert!(!is_vacant(&ground.locks().await, "x").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_has_a_default_server() {
    for line in [
        "run --try x -- echo ran",
        "elect x -- echo ran",
        "acquire x --for 1m",
        "renew x --token 7",
        "release x --token 7",
        "break x --yes",
        "wait x",
        "ls",
        "doctor",
    ] {
        let mut program = bare();
        program.env("WATCHLOCK_DATABASE", "app").args(words(line));
        let told = done(&mut program).await.expect(64);
        assert!(
            told.out.is_empty() && told.err.contains("the server is missing"),
            "{told:?}"
        );
        assert!(!told.err.contains("--keep-uri"), "{told:?}");
        // An empty variable is as good as none.
        done(program.env("MONGODB_URI", "")).await.expect(64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nested_run_locks_on_the_same_server_or_not_at_all() {
    let ground = Ground::replica_set("cli_nested").await;
    let locks = ground.locks().await;
    let _held = locks.mutex("inner").acquire().await.unwrap();
    let inner = concat!(env!("CARGO_BIN_EXE_watchlock"), " run --try inner -- echo ran");
    tells(&ground, format!("run outer -- {inner}"), 64, "--keep-uri").await;
    tells(&ground, format!("run --keep-uri outer -- {inner}"), 75, "`inner`").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_run_is_silent_if_that_is_asked_for() {
    let ground = Ground::replica_set("cli_silent").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    for (code, line) in [
        (75, "run -n -q x true"),
        (3, "run -n -q -E 3 x true"),
        (75, "run -q --timeout 300ms x true"),
        (75, "run -q --once-per 1h x true"),
    ] {
        assert_eq!(watchlock(&ground, line, code).await.err, "", "{line}");
    }
    held.release().await.unwrap();
    let once = "run -q --once-per 366days --since-success y true";
    watchlock(&ground, once, 0).await;
    assert_eq!(watchlock(&ground, once, 74).await.err, "");
    // A lost lock is told, and a failure.
    let running = Started::holding(&ground, "run -q z").await;
    locks.break_lock("z").await.unwrap();
    let told = running.done().await.expect(76);
    assert!(told.err.contains("`z` is lost"), "{told:?}");
    tells(&ground, "run -n -q --semaphore 2 y true", 65, "semaphore").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_tells_whom_it_waits_for_where_no_terminal_shows_it() {
    let ground = Ground::replica_set("cli_whom").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().reason("a long job").await.unwrap();
    let mut waiting = Started::run(&ground, "run -v x echo ran");
    waiting.until_told("waiting for x: 1 of 1, held ").await;
    waiting.until_told(": a long job\n").await;
    held.release().await.unwrap();
    assert_eq!(waiting.done().await.expect(0).out, "ran\n");
}

/// A supervisor in a group of its own is no shell that could continue it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_stops_itself_stops_nothing_else_where_there_is_no_terminal() {
    let ground = Ground::replica_set("cli_no_shell").await;
    let mut program = program(&ground);
    program.args(words(
        "run x -- sh -c `echo $PPID; kill -STOP $$; echo on; exec sleep 300`",
    ));
    let supervised = ["--wait", "sh", "-c", "timeout 300 \"$@\"; exit $?", "sh"];
    let mut started = Started::new(&mut started_by("setsid", &supervised, &program));
    let watchlock: u32 = started.line().await.parse().unwrap();
    started.until_told("the command is stopped (SIGSTOP)").await;
    signal("TERM", watchlock);
    assert_eq!(started.status().await.code(), Some(143));
    assert!(is_vacant(&ground.locks().await, "x").await);
}

/// Of a silent server it is not known whether the lock is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_tells_a_silent_server_from_a_lock_that_is_held() {
    let ground = Ground::replica_set("cli_silent_server").await;
    let proxy = Proxy::before(shared::replica_set().await.addr(0)).unwrap();
    let held = ground.locks().await.mutex("x").acquire().await.unwrap();
    let mut waiting = Started::run(&ground.through(proxy.uri()), "wait --timeout 4s x");
    // It has looked at the lock, and looks again.
    pause(Duration::from_secs(2)).await;
    proxy.black_hole();
    let told = waiting.told().await;
    assert_eq!(waiting.status().await.code(), Some(69), "{told}");
    held.release().await.unwrap();
}

/// The limit is for the lock, however long the server takes to answer at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_out_of_no_time_is_a_try() {
    let ground = Ground::replica_set("cli_no_time").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    for limit in ["0s", "1ms", "30ms"] {
        for (code, line) in [
            (75, "run -t LIMIT x true"),
            (75, "run -t LIMIT x --and z -- true"),
            (75, "acquire -t LIMIT x --for 1m"),
            (75, "hold -t LIMIT x"),
            (75, "wait -t LIMIT x"),
            (0, "run -t LIMIT y true"),
            (0, "elect -t LIMIT e true"),
            (0, "run -t LIMIT y --and z -- true"),
            (0, "wait -t LIMIT y"),
        ] {
            watchlock(&ground, line.replace("LIMIT", limit), code).await;
        }
    }
    held.release().await.unwrap();
}
