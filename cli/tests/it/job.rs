//! `watchlock run` under job control: whatever a terminal, a shell or a parent does to it, there are never two holders.
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
    until_gone, words,
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
    program
        .args(words("run --grace 100ms x -- sh -c"))
        .arg(writes.script())
        .stderr(full);
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
async fn a_stopped_job_writes_no_more_when_another_holds_the_lock() {
    let ground = Ground::replica_set("cli_suspend").await;
    let locks = ground.locks().await;
    // Started in the background and brought to the foreground, or started there.
    for start in ["&", ""] {
        let writes = Writes::new();
        let mut terminal = shell(&ground);
        terminal.until_shown("$ ").await;
        let script = writes.script();
        terminal.type_in(&format!("$W run --lease 1s x -- sh -c '{script}' {start}\n"));
        writes.until_more().await;
        if start == "&" {
            terminal.type_in("fg\n");
            // Keys that mean a signal discard input that was typed but not read.
            terminal.until_shown_times("\n$W run", 1).await;
        }
        terminal.type_until("\u{1a}", "Stopped", 1).await;
        let second = second(&locks).await;
        writes.expect_no_more().await;
        let before = writes.count();
        // The program checks its lock before the command goes on, so the command never does.
        terminal.type_in("fg\n");
        terminal.until_shown("is lost").await;
        terminal.type_in("echo code $?\n");
        terminal.until_shown("code 76").await;
        assert_eq!(writes.count(), before, "{start:?}: {}", terminal.shown());
        second.release().await.unwrap();
        terminal.leave("exit\n").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_job_goes_on_while_its_lock_is_held() {
    let ground = Ground::replica_set("cli_continue").await;
    let locks = ground.locks().await;
    let writes = Writes::new();
    let mut terminal = shell(&ground);
    terminal.until_shown("$ ").await;
    // `bash`, as dash 0.5.12 swallows a ^C that comes between its fork and the start of the program.
    terminal.type_in(&format!("$W run x -- bash -c '{}'\n", writes.script()));
    for (times, go_on) in ["fg\n", "bg\n"].into_iter().enumerate() {
        writes.until_more().await;
        terminal.type_until("\u{1a}", "Stopped", times + 1).await;
        writes.expect_no_more().await;
        terminal.type_in(go_on);
    }
    writes.until_more().await;
    // And the keyboard ends it if it is in the foreground.
    terminal.hand_over("fg; echo code $?; exit 0\n").await;
    terminal.type_in("\u{3}");
    terminal.until_shown("code 130").await;
    assert!(is_vacant(&locks, "x").await);
    terminal.end(0).await;
    writes.expect_no_more().await;
}

/// A job in the background that reads from the terminal is stopped, and so is the program, whose lock then expires like
/// that of any idle holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_reads_in_the_background_waits_for_the_foreground() {
    let ground = Ground::replica_set("cli_ttin").await;
    let locks = ground.locks().await;
    let mut terminal = shell(&ground);
    terminal.until_shown("$ ").await;
    terminal.type_in("$W run --lease 1m x -- sh -c 'read line; echo \"got <$line>\"' &\n");
    terminal.until_stopped().await;
    terminal.type_in("fg\nhello\n");
    terminal.until_shown("got <hello>").await;
    eventually(PATIENCE, "the lock is free", async || is_vacant(&locks, "x").await).await;

    terminal.type_in("$W run --lease 1s x -- sh -c 'read line; echo \"got <$line>\"' &\n");
    terminal.until_stopped().await;
    let second = second(&locks).await;
    terminal.type_in("fg\n");
    terminal.until_shown("is lost").await;
    second.release().await.unwrap();

    // The shell has the terminal again, and so has its next program.
    terminal.type_in("$W run x -- sh -c 'read line; echo \"then <$line>\"'\nthat\n");
    terminal.until_shown("then <that>").await;
    terminal.leave("exit 0\n").await;
}

/// A pager next to the command has the keyboard until the command asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn neighbours_in_a_pipeline_may_read_from_the_terminal() {
    let ground = Ground::replica_set("cli_pipeline").await;
    let mut terminal = shell(&ground);
    terminal.until_shown("$ ").await;
    let pager = r#"sh -c 'read key < /dev/tty; echo "key <$key>"; cat'"#;
    // `exec`, as dash 0.5.12 swallows a ^C that comes between its fork and the start of the program.
    terminal.type_in(&format!("$W run x -- sh -c 'echo output; exec sleep 300' | {pager}\n"));
    eventually(PATIENCE, "it holds the lock", async || {
        !is_vacant(&ground.locks().await, "x").await
    })
    .await;
    terminal.type_in("q\n");
    terminal.until_shown("key <q>").await;
    terminal.until_shown("\noutput").await;
    // ^C is for all of them.
    terminal.type_in("\u{3}");
    eventually(PATIENCE, "the lock is free", async || {
        is_vacant(&ground.locks().await, "x").await
    })
    .await;
    terminal.type_in("$W run x -- sh -c 'read key < /dev/tty; echo \"mine <$key>\"' | cat\nk\n");
    terminal.until_shown("mine <k>").await;
    terminal.leave("exit 0\n").await;
}

/// A script ends with the command that the keyboard ends, as if the program were not there.
#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_ends_the_script_too() {
    let ground = Ground::replica_set("cli_script").await;
    let mut terminal = Terminal::new(
        &ground,
        r#"trap 'echo "script too"; exit 3' INT; $W run x -- sh -c 'echo ready; exec sleep 300'; echo "after it""#,
    );
    terminal.until_shown("ready").await;
    terminal.type_in("\u{3}");
    let shown = terminal.end(3).await;
    assert!(shown.contains("script too") && !shown.contains("after it"), "{shown:?}");
    assert!(is_vacant(&ground.locks().await, "x").await);
}

/// In the foreground as elsewhere: the command's whole group ends, not just its shell.
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
    terminal.end(143).await;
    until_gone(child).await;
    // One that the keyboard could send, too.
    let script = r#"exec $W run x -- sh -c 'echo "pid $PPID there"; exec sleep 300'"#;
    let mut terminal = Terminal::new(&ground, script);
    terminal.until_shown(" there").await;
    signal("INT", number(&terminal.shown()));
    terminal.end(130).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_has_stopped_itself_can_be_ended() {
    let ground = Ground::replica_set("cli_stopped").await;
    let locks = ground.locks().await;
    let script = "echo $$; kill -STOP $$; exec sleep 300";
    for name in ["TERM", "INT", "HUP"] {
        let mut started = Started::detached(&ground, format!("run x -- sh -c `{script}`"));
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
    let mut started = Started::detached(&ground, format!("run --grace 1m x -- sh -c `{script}`"));
    let command: u32 = started.line().await.parse().unwrap();
    until_state(command, 'T').await;
    locks.break_lock("x").await.unwrap();
    within(PATIENCE, "the end", started.status()).await;
    assert_eq!(writes.count(), 0);
}

/// In a container, a session and a process group created outside of it have no number but 0.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_groups_without_a_number_are_no_trouble() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create such a container.
        return;
    }
    let ground = Ground::replica_set("cli_container").await;
    // Process numbers differ in there, so the command itself ends the program on request.
    let script = "exec 3<&0; (read line <&3; kill -TERM $PPID) & kill -STOP $$; exec sleep 300";
    for own_session in [true, false] {
        let mut program = program(&ground);
        program.args(words("run x -- sh -c")).arg(script);
        if own_session {
            program = started_by("setsid", &["--wait"], &program);
        }
        let container = words("--fork --pid --mount-proc --kill-child sh -c `\"$@\"; exit $?` sh");
        let mut started = Started::new(&mut started_by("unshare", &container.collect::<Vec<_>>(), &program));
        started.until_told("the command is stopped").await;
        started.type_in("go\n").await;
        started.done().await.expect(143);
        assert!(is_vacant(&ground.locks().await, "x").await);
    }
}

/// The program hears of the loss before it hears of the stop, as after a freeze: it checks the command itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_stopped_unseen_is_killed_with_its_lock() {
    let ground = Ground::replica_set("cli_unseen").await;
    let locks = ground.locks().await;
    let writes = Writes::new();
    let script = format!("trap '' TERM; echo $$; read line; kill -STOP $$; {}", writes.script());
    let mut started = Started::detached(&ground, format!("run --lease 500ms --grace 1m x -- sh -c `{script}`"));
    let command: u32 = started.line().await.parse().unwrap();
    signal("STOP", started.pid());
    started.type_in("go\n").await;
    until_state(command, 'T').await;
    // When it continues, its lease has expired.
    let second = second(&locks).await;
    signal("CONT", started.pid());
    let status = within(PATIENCE, "the end", started.status()).await;
    assert_eq!((status.code(), writes.count()), (Some(76), 0));
    second.release().await.unwrap();
}

/// A shell that has just started a program with `vfork` waits for it in the kernel, where it can't be stopped; the
/// program can. Nothing reports that stop.
#[cfg(target_arch = "x86_64")]
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_stop_yet_is_stopped_all_the_same() {
    let ground = Ground::replica_set("cli_vfork").await;
    let mut terminal = shell(&ground);
    terminal.until_shown("$ ").await;
    // clone with CLONE_VFORK and SIGCHLD.
    let script = "import ctypes, os\n\
        if ctypes.CDLL(None).syscall(56, 0x4011, 0, 0, 0, 0) == 0:\n    \
            os.write(1, b'child <here>\\n'); os.read(0, 9); os._exit(0)\n\
        os.write(1, b'parent <here>\\n')\n";
    let script_at = std::env::temp_dir().join(shared::unique_name("watchlock_vfork"));
    fs::write(&script_at, script).unwrap();
    terminal.type_in(&format!("$W run x -- python3 {}\n", script_at.display()));
    terminal.until_shown("child <here>").await;
    terminal.type_in("\u{1a}");
    terminal.until_shown("Stopped").await;
    terminal.type_in("fg\n\n");
    terminal.until_shown("parent <here>").await;
    terminal.leave("exit 0\n").await;
    fs::remove_file(script_at).unwrap();
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
        program.args(words("run x -- sh -c")).arg(script);
        let block = format!("--block-signal={signals}");
        Started::new(&mut started_by("env", &[&block], &program))
    };
    assert_eq!(blocked("CHLD", "exit 3").done().await.expect(3).out, "");
    // And by the command: a command that starts its own jobs needs each of them.
    let mask = blocked("USR1", "grep SigBlk /proc/self/status").done().await.expect(0);
    assert_eq!(mask.out.trim_start_matches("SigBlk:").trim(), "0000000000000000");
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
    user.args(words("--reuid=65534 --regid=65534 --clear-groups")).arg(ours);
    user.args(words("run --grace 100ms x --")).arg(setpriv);
    user.args(words("--reuid=0 sh -c `echo $$; exec sleep 300`"))
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
    terminal.leave("exit 0\n").await;
}
