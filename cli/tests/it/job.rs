//! `watchlock run` under job control: a terminal, a shell or a parent that stops it leaves no command without its lock.
//!
//! The commands here write for as long as they run. Once another client holds the lock, nothing more may be written.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use watchlock::{Held, LockClient, Released, locks};
use watchlock_testkit::shared;

use crate::{
    Started,
    common::{Ground, PATIENCE, eventually, is_vacant, pause, until_waiting, within},
    program, signal, started_by,
    terminal::{ENTERED, RESTORED, Terminal, number},
    until_gone,
};

/// A file to which a command adds a line, many times a second.
struct Writes(PathBuf);

impl Writes {
    fn new() -> Self {
        Self(std::env::temp_dir().join(shared::unique_name("watchlock_writes")))
    }

    /// The script of the command.
    fn script(&self) -> String {
        format!("while :; do echo x >> {}; sleep 0.01; done", self.path().display())
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn count(&self) -> u64 {
        fs::metadata(&self.0).map_or(0, |file| file.len() / 2)
    }

    async fn until_more(&self) {
        let before = self.count();
        eventually(PATIENCE, "the command writes", async || self.count() > before).await;
    }

    /// Fails if the command writes although somebody else holds the lock.
    async fn expect_no_more(&self) {
        let before = self.count();
        pause(Duration::from_millis(300)).await;
        assert_eq!(self.count(), before, "the command writes beside the second holder");
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An interactive shell with job control.
fn shell(ground: &Ground) -> Terminal {
    Terminal::new(ground, "PS1='$ ' exec bash --norc --noprofile --noediting -i")
}

async fn second(locks: &LockClient) -> Held<locks::Mutex> {
    let acquired = locks.mutex("x").acquire();
    within(PATIENCE, "the second holder", acquired).await.unwrap()
}

/// A full pipe, with its reading end.
pub(super) fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_nobody_reads_do_not_keep_the_command_running() {
    let ground = Ground::replica_set("cli_blocked").await;
    let locks = ground.locks().await;
    let writes = Writes::new();
    let (_unread, full) = full_pipe();
    let mut program = program(&ground);
    program.args(["run", "--grace", "100ms", "x", "--", "sh", "-c"]);
    program.arg(writes.script()).stderr(full);
    let mut started = program.spawn().unwrap();
    drop(program);
    writes.until_more().await;
    locks.break_lock("x").await.unwrap();
    let second = second(&locks).await;
    let status = within(PATIENCE, "the end", started.wait()).await.unwrap();
    assert_eq!(status.code(), Some(76));
    writes.expect_no_more().await;
    second.release().await.unwrap();
}

/// At a terminal whose output ^S holds up.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_nobody_reads_do_not_hold_up_the_start() {
    let ground = Ground::replica_set("cli_held_up").await;
    let locks = ground.locks().await;
    let first = second(&locks).await;
    let writes = Writes::new();
    let mut terminal = Terminal::new(
        &ground,
        &format!("echo here; exec $W run --grace 0s x -- sh -c '{}'", writes.script()),
    );
    terminal.until_shown("here").await;
    terminal.type_in("\u{13}");
    until_waiting(&locks, "x", 1).await;
    // Long enough for the program to have tried to report whom it waits for.
    pause(Duration::from_millis(1_500)).await;
    assert_eq!(first.release().await.unwrap(), Released::Released);
    writes.until_more().await;
    locks.break_lock("x").await.unwrap();
    let second = second(&locks).await;
    assert_eq!(terminal.code().await, Some(76));
    writes.expect_no_more().await;
    second.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_job_goes_on_while_its_lock_is_held_and_ends_otherwise() {
    let ground = Ground::replica_set("cli_suspend").await;
    let locks = ground.locks().await;
    let writes = Writes::new();
    let mut terminal = shell(&ground);
    terminal.until_shown("$ ").await;
    // `bash`, as dash 0.5.12 swallows a ^C that comes between its fork and the start of the program. Its child has left
    // the job, and ignores a request to stop.
    let script = format!("trap \"\" TSTP; setsid sh -c \"{}\" & wait", writes.script());
    terminal.type_in(&format!("$W run --lease 1s x -- bash -c '{script}'\n"));
    writes.until_more().await;
    terminal.type_until("\u{1a}", "Stopped", 1).await;
    writes.expect_no_more().await;
    let lost = second(&locks).await;
    // The program compares its lock with the clock when it goes on.
    terminal.type_in("fg\n");
    terminal.until_shown("is lost").await;
    terminal.type_in("echo code $?\n");
    terminal.until_shown("code 76").await;
    writes.expect_no_more().await;
    lost.release().await.unwrap();

    terminal.type_in(&format!("$W run x -- bash -c '{}'\n", writes.script()));
    for (times, go_on) in ["fg\n", "bg\n"].into_iter().enumerate() {
        writes.until_more().await;
        terminal.type_until("\u{1a}", "Stopped", times + 2).await;
        writes.expect_no_more().await;
        terminal.type_in(go_on);
    }
    writes.until_more().await;
    // And the keyboard ends it in the foreground.
    terminal.hand_over("fg; echo code $?\n").await;
    // Again, as a shell that has just begun a child leaves it to the child, which may end by itself.
    terminal.type_until("\u{3}", "code 130", 1).await;
    assert!(is_vacant(&locks, "x").await);
    writes.expect_no_more().await;
    // A job in the background that reads waits for the foreground.
    terminal.type_in("$W run --lease 1m x -- sh -c 'read line; echo \"got <$line>\"' &\n");
    eventually(PATIENCE, "it has stopped", async || {
        terminal.type_in("jobs\n");
        pause(Duration::from_millis(200)).await;
        terminal.shown().matches("Stopped").count() > 3
    })
    .await;
    terminal.type_in("fg\nhello\n");
    terminal.until_shown("got <hello>").await;
    terminal.type_in("exit 0\n");
    assert_eq!(terminal.code().await, Some(0));
}

/// The command's whole group ends, not just its shell.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_end_reaches_the_whole_group_at_a_terminal() {
    let ground = Ground::replica_set("cli_whole").await;
    let mut terminal = Terminal::new(
        &ground,
        r#"exec $W run x -- sh -c 'sleep 300 & echo "pid $! here"; echo "pid $PPID there"; wait'"#,
    );
    terminal.until_shown(" there").await;
    let shown = terminal.shown();
    let (child, program) = (number(&shown), number(shown.split_once("here").unwrap().1));
    signal("TERM", program);
    let (code, shown) = terminal.end().await;
    assert_eq!(code, Some(143), "{shown}");
    until_gone(child).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_has_stopped_itself_can_be_ended() {
    let ground = Ground::replica_set("cli_stopped").await;
    let locks = ground.locks().await;
    let script = "echo $$; kill -STOP $$; exec sleep 300";
    for name in ["TERM", "INT", "HUP"] {
        let mut started = Started::detached(program(&ground).args(["run", "x", "--", "sh", "-c", script]));
        let command: u32 = started.line().await.parse().unwrap();
        until_state(command, 'T').await;
        signal(name, started.pid());
        within(PATIENCE, "the end", started.status()).await;
        until_gone(command).await;
        assert!(is_vacant(&locks, "x").await, "{name}");
    }
    // A lost lock gets it killed, and never continued.
    let writes = Writes::new();
    let script = format!("trap '' TERM; echo $$; kill -STOP $$; {}", writes.script());
    let arguments = ["run", "--grace", "1m", "x", "--", "sh", "-c", &script];
    let mut started = Started::detached(program(&ground).args(arguments));
    let command: u32 = started.line().await.parse().unwrap();
    until_state(command, 'T').await;
    locks.break_lock("x").await.unwrap();
    within(PATIENCE, "the end", started.status()).await;
    assert_eq!(writes.count(), 0);
}

/// Waits until the process is in a state reported by `ps`.
async fn until_state(pid: u32, state: char) {
    eventually(PATIENCE, "the state", async || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(state))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_that_a_parent_has_blocked_are_received() {
    let ground = Ground::replica_set("cli_mask").await;
    let blocked = |signals: &str, script: &str| {
        let mut program = program(&ground);
        program.args(["run", "x", "--", "sh", "-c", script]);
        let block = format!("--block-signal={signals}");
        Started::new(&mut started_by("env", &[&block], &program))
    };
    assert_eq!(blocked("CHLD", "exit 3").done().await.expect(3).out, "");
    // And by the command: a command that starts its own jobs needs each of them.
    let mask = blocked("USR1", "grep SigBlk /proc/self/status")
        .done()
        .await
        .expect(0)
        .out;
    assert_eq!(mask.trim_start_matches("SigBlk:").trim(), "0000000000000000");
    let mut started = blocked("CHLD,TERM,INT,HUP", "echo ready; exec sleep 300");
    started.line().await;
    signal("TERM", started.pid());
    started.done().await.expect(143);
    assert!(is_vacant(&ground.locks().await, "x").await);
}

/// A command that takes another user's identity, as `sudo` does, can't be signalled. The program gives up and names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_another_user_does_not_keep_the_program() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create such a program.
        return;
    }
    let ground = Ground::replica_set("cli_setuid").await;
    let folder = std::env::temp_dir().join(shared::unique_name("watchlock_setuid"));
    fs::create_dir(&folder).unwrap();
    let copy = |from: &str, name: &str, mode: u32| {
        let to = folder.join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        to
    };
    let setpriv = copy("/usr/bin/setpriv", "becomes-root", 0o4755);
    let program = program(&ground);
    let ours = copy(program.as_std().get_program().to_str().unwrap(), "watchlock", 0o755);
    let mut user = tokio::process::Command::new("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(ours);
    user.args(["run", "--grace", "100ms", "x", "--"]).arg(setpriv);
    user.args(["--reuid=0", "sh", "-c", "echo $$; exec sleep 300"])
        .kill_on_drop(true);
    let environment = program.as_std().get_envs();
    user.envs(environment.filter_map(|(name, value)| Some((name, value?))));
    user.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut started = Started::new(&mut user);
    let command: u32 = started.line().await.parse().unwrap();
    ground.locks().await.break_lock("x").await.unwrap();
    let status = within(PATIENCE, "the end", started.status()).await;
    assert_eq!(status.code(), Some(76));
    let told = started.told().await;
    assert!(told.contains(&format!("{command} (sleep)")), "{told}");
    watchlock_testkit::signal::kill(command).unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_gives_the_terminal_back_while_it_is_stopped() {
    let ground = Ground::replica_set("cli_view").await;
    let _held = second(&ground.locks().await).await;
    let mut terminal = shell(&ground);
    terminal.until_shown("$ ").await;
    for (times, by_key) in [true, false].into_iter().enumerate() {
        terminal.type_in(if times == 0 { "$W watch\n" } else { "fg\n" });
        // A request to stop is lost if it comes before the shell has continued the job.
        terminal.until_shown_times(ENTERED, times + 1).await;
        match by_key {
            true => terminal.type_in("\u{1a}"),
            false => signal("TSTP", terminal.child_of_shell()),
        }
        terminal.until_shown_times("Stopped", times + 1).await;
        terminal.until_shown_times(RESTORED, times + 1).await;
    }
    terminal.type_in("fg\n");
    terminal.until_shown_times(ENTERED, 3).await;
    terminal.type_in("q");
    terminal.until_shown_times(RESTORED, 3).await;
    // The view may take keys until the shell has the terminal again.
    terminal.until_shown_times("$ ", 4).await;
    terminal.type_in("exit 0\n");
    assert_eq!(terminal.code().await, Some(0));
}
