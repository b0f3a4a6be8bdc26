//! The program at a terminal: the full-screen view, the keyboard, and questions.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize},
};
use tokio::process::Child;
use watchlock::{LockClient, LostReason};

use crate::{
    Started,
    common::{Ground, PATIENCE, SOON, eventually, is_vacant, until_waiting, within},
    program, signal, started_by, tells, until_gone,
};

/// The start of the view, when the keyboard is its own: it enters the other screen.
pub(super) const ENTERED: &str = "\u{1b}[?1049h";

/// The sequences that restore a terminal: leave the other screen, and show the cursor.
pub(super) const RESTORED: &str = "\u{1b}[?1049l\u{1b}[?25h";

/// A terminal with a program in its foreground.
pub(super) struct Terminal {
    child: Child,
    keyboard: File,
    /// Our own end of the program's terminal, so that its settings can be checked after the program is gone.
    settings: File,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs a shell script with the program as `$W`, in its own session at its own terminal.
    pub(super) fn new(ground: &Ground, script: &str) -> Self {
        Self::sized(ground, script, 120)
    }

    /// The same with this number of columns.
    pub(super) fn sized(ground: &Ground, script: &str, columns: u16) -> Self {
        let (master, settings, child) = open(ground, script, columns);
        let before = tcgetattr(&settings).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, told) = (File::from(master.try_clone().unwrap()), shown.clone());
        thread::spawn(move || {
            let mut part = [0; 4096];
            // An error if nobody has the other end any more.
            while let Ok(length @ 1..) = screen.read(&mut part) {
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.extend_from_slice(&part[..length]);
            }
        });
        Self {
            child,
            keyboard: File::from(master),
            settings,
            before,
            shown,
        }
    }

    pub(super) fn shown(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Returns the current screen, as the full-screen view has drawn it: the program sends only the changes.
    pub(super) fn screen(&self) -> String {
        let (mut cells, mut row, mut column) = (vec![vec![' '; 200]; 60], 0_usize, 0_usize);
        let shown = self.shown();
        let mut characters = shown.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\u{1b}' if characters.peek() == Some(&'[') => {
                    let mut words = String::new();
                    let end = characters.by_ref().skip(1).find(|character| {
                        words.push(*character);
                        character.is_ascii_alphabetic()
                    });
                    let mut numbers = words
                        .trim_end_matches('H')
                        .split(';')
                        .map(|word| word.parse().unwrap_or(1));
                    match end {
                        Some('H') => (row, column) = (numbers.next().unwrap() - 1, numbers.next().unwrap_or(1) - 1),
                        Some('J') => cells.iter_mut().for_each(|row| row.fill(' ')),
                        _ => {}
                    }
                }
                '\r' => column = 0,
                '\n' => row += 1,
                _ => {
                    if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                        *cell = character;
                    }
                    column += 1;
                }
            }
        }
        let lines: Vec<String> = cells.iter().map(|row| row.iter().collect()).collect();
        lines.join("\n")
    }

    pub(super) async fn until_seen(&self, text: &str) {
        eventually(PATIENCE, text, async || self.screen().contains(text)).await;
    }

    /// Waits until a row of the full-screen view has it: its events may come before the row does.
    pub(super) async fn until_listed(&self, text: &str) {
        eventually(PATIENCE, text, async || {
            let screen = self.screen();
            let mut rows = screen.lines().skip(1).take_while(|line| !line.starts_with("Events"));
            rows.any(|row| row.contains(text))
        })
        .await;
    }

    pub(super) async fn until_shown(&self, text: &str) {
        eventually(PATIENCE, text, async || self.shown().contains(text)).await;
    }

    pub(super) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a text has been shown this many times.
    pub(super) async fn until_shown_times(&self, text: &str, times: usize) {
        eventually(PATIENCE, text, async || self.shown().matches(text).count() >= times).await;
    }

    /// Types keys repeatedly until a text has been shown this many times: a shell that brings a job to the foreground
    /// says so before it hands it the keyboard.
    pub(super) async fn type_until(&mut self, keys: &str, text: &str, times: usize) {
        eventually(PATIENCE, text, async || {
            self.type_in(keys);
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.shown().matches(text).count() >= times
        })
        .await;
    }

    /// Types a line by which a shell gives the keyboard to a job, and waits until the job has it. The shell shows the job's
    /// command before that, and takes keys that come in between as its own.
    pub(super) async fn hand_over(&mut self, line: &str) {
        let in_foreground = |keyboard: &File| tcgetpgrp(keyboard).unwrap();
        let shell = in_foreground(&self.keyboard);
        self.type_in(line);
        eventually(PATIENCE, line, async || in_foreground(&self.keyboard) != shell).await;
    }

    /// Makes an interactive shell list its jobs, until one has stopped that has not been seen before.
    pub(super) async fn until_stopped(&mut self) {
        let before = self.shown().matches("Stopped").count();
        eventually(PATIENCE, "a job has stopped", async || {
            self.type_in("jobs\n");
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.shown().matches("Stopped").count() > before
        })
        .await;
    }

    /// Returns the process that the shell has started.
    pub(super) fn child_of_shell(&self) -> u32 {
        children(self.child.id().unwrap())[0]
    }

    /// Types the keys by which the program is left.
    pub(super) async fn leave(mut self, keys: &str) {
        self.type_in(keys);
        self.end(0).await;
    }

    /// Waits for the end; returns the code.
    pub(super) async fn code(&mut self) -> Option<i32> {
        within(PATIENCE, "the end", self.child.wait()).await.unwrap().code()
    }

    /// Waits for the end, with this code or by a signal; returns everything that was shown.
    pub(super) async fn end(&mut self, code: impl Into<Option<i32>>) -> String {
        assert_eq!(self.code().await, code.into());
        // Output appears a moment later.
        let mark = "that was all";
        writeln!(&self.settings, "{mark}").unwrap();
        self.until_shown(mark).await;
        let shown = self.shown();
        shown[..shown.find(mark).unwrap()].to_owned()
    }

    /// Returns whether the terminal has its original settings.
    fn is_as_before(&self) -> bool {
        let now = tcgetattr(&self.settings).unwrap();
        let of = |settings: &Termios| (settings.local_modes, settings.input_modes, settings.output_modes);
        of(&now) == of(&self.before)
    }
}

/// A failure shows the contents of the terminal.
impl Drop for Terminal {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the terminal showed: {:?}", self.shown());
        }
    }
}

/// Runs a shell script with the program as `$W`, in its own session at its own terminal. Returns the window, the end of
/// the session in it, and the session.
pub(super) fn open(ground: &Ground, script: &str, columns: u16) -> (OwnedFd, File, Child) {
    let window = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&window).unwrap();
    unlockpt(&window).unwrap();
    let path = ptsname(&window, Vec::new()).unwrap().into_string().unwrap();
    let open = || {
        let mut options = File::options();
        // Our terminal is never that of this process.
        options.custom_flags(OpenptFlags::NOCTTY.bits() as i32);
        options.read(true).write(true).open(&path).unwrap()
    };
    let settings = open();
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&settings, size).unwrap();
    let program = program(ground);
    let mut session = started_by("setsid", &["--ctty", "--wait", "sh", "-c", script], &program);
    session.env("W", program.as_std().get_program()).env("TERM", "xterm");
    let child = session.stdin(open()).stdout(open()).stderr(open()).spawn().unwrap();
    (window, settings, child)
}

pub(super) async fn held(locks: &LockClient) -> watchlock::Held<watchlock::locks::Mutex> {
    locks.mutex("nightly-7").acquire().reason("a-reason").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_is_left_by_any_way_out_and_leaves_the_terminal_as_it_was() {
    let ground = Ground::replica_set("cli_screen").await;
    let locks = ground.locks().await;
    let _held = held(&locks).await;
    for way_out in ["q", "\u{1b}", "\u{3}", "TERM", "HUP"] {
        let mut terminal = Terminal::new(&ground, "exec $W watch");
        terminal.until_shown("nightly-7").await;
        terminal.until_shown("a-reason").await;
        assert!(!terminal.is_as_before(), "keys are read one by one");
        if way_out.len() > 1 {
            let pids = children(terminal.child.id().unwrap());
            signal(way_out, pids[0]);
        } else {
            terminal.type_in(way_out);
        }
        let shown = terminal.end(0).await;
        assert!(shown.trim_end().ends_with(RESTORED), "{way_out:?}: {shown:?}");
        assert!(terminal.is_as_before(), "{way_out:?}");
    }
}

/// Returns the processes that a process has started: `setsid` starts the shell if it can't become it.
fn children(of: u32) -> Vec<u32> {
    let listed = std::process::Command::new("ps")
        .args(["-o", "pid=", "--ppid", &of.to_string()])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let found: Vec<u32> = listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    if found.is_empty() { vec![of] } else { found }
}

/// Text written by others is shown and not obeyed, in the rows and in the events.
#[tokio::test(flavor = "multi_thread")]
async fn the_view_obeys_nobody_but_the_keyboard() {
    let ground = Ground::replica_set("cli_obeys").await;
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}x";
    let locks = ground.builder().await.label(hostile).build().await.unwrap();
    let held = locks.mutex(hostile).acquire().reason(hostile).await.unwrap();
    let mut terminal = Terminal::new(&ground, "exec $W watch");
    terminal.until_shown("]0;owned").await;
    held.release().await.unwrap();
    // The view lists the locks before it follows them, and what happens in between is no event.
    eventually(PATIENCE, "an event", async || {
        let again = locks.mutex(hostile).acquire().reason(hostile).await.unwrap();
        again.release().await.unwrap();
        terminal.shown().contains("released")
    })
    .await;
    terminal.type_in("q");
    let shown = terminal.end(0).await;
    for obeyed in ["\u{1b}]0", "\u{7}", "\u{9b}", "\u{202e}"] {
        assert!(!shown.contains(obeyed), "{obeyed:?}: {shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_follows_what_happens() {
    let ground = Ground::replica_set("cli_live").await;
    let locks = ground.locks().await;
    locks.mutex("quiet").acquire().await.unwrap().release().await.unwrap();
    let mut terminal = Terminal::new(&ground, "exec $W watch");
    terminal.until_shown("HELD BY").await;
    let held = held(&locks).await;
    terminal.until_shown("nightly-7").await;
    let other = ground.builder().await.label("the-waiter").build().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("nightly-7").acquire().await.unwrap() });
    // No event reports new waiters.
    terminal.until_shown("the-waiter@").await;
    held.release().await.unwrap();
    terminal.until_shown("released,").await;
    let next = waiting.await.unwrap();
    next.release().await.unwrap();
    // A free lock is shown on request.
    assert!(!terminal.shown().contains("quiet"));
    terminal.type_in("f");
    terminal.until_shown("quiet").await;
    terminal.leave("q").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_found_looked_at_and_broken_in_the_view() {
    let ground = Ground::replica_set("cli_hands").await;
    let locks = ground.locks().await;
    let other = locks.mutex("other").acquire().await.unwrap();
    let permits = locks.semaphore("nightly-7", 2);
    let first = permits.acquire().reason("first-reason").await.unwrap();
    let second = permits.acquire().reason("second-reason").await.unwrap();
    for columns in [120, 60, 30] {
        let mut terminal = Terminal::sized(&ground, "exec $W watch", columns);
        terminal.until_listed("nightly-7").await;
        // Its keys.
        terminal.type_in("s");
        terminal.until_seen("q quit").await;
        // Selected, and shown in full.
        terminal.type_in("/nightly\rj");
        terminal.until_seen("semaphore of 2").await;
        terminal.type_in("b");
        terminal.until_seen("`nightly-7`: ").await;
        terminal.type_in("n");
        terminal.until_seen("nothing was broken").await;
        terminal.type_in("\u{1b}");
        // The time after an escape distinguishes it from the beginning of a key.
        tokio::time::sleep(Duration::from_millis(200)).await;
        terminal.leave("q").await;
    }
    assert_eq!((first.lost_reason(), second.lost_reason()), (None, None));
    let mut terminal = Terminal::new(&ground, "exec $W watch");
    terminal.until_listed("nightly-7").await;
    terminal.type_in("/nightly\rjj");
    // The same question as that of `break`, for one holder.
    terminal.type_in("b");
    terminal.until_seen("Evict this holder?").await;
    terminal.until_seen("[y/N]").await;
    terminal.type_in("y");
    assert_eq!(within(PATIENCE, "the loss", second.lost()).await, LostReason::Broken);
    terminal.until_seen("is broken, token").await;
    assert_eq!((first.lost_reason(), other.lost_reason()), (None, None));
    terminal.leave("q").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_renewed_has_a_colour_and_a_word() {
    let ground = Ground::replica_set("cli_colour").await;
    let frozen = Started::holding(&ground, "run --lease 10s x").await;
    let terminal = Terminal::new(&ground, "exec $W watch");
    terminal.until_seen("sh").await;
    let yellow = "38;5;3;";
    assert!(!terminal.shown().contains(yellow), "{:?}", terminal.shown());
    signal("STOP", frozen.pid());
    terminal.until_shown(yellow).await;
    tells(&ground, "ls", 0, ", not renewed").await;
    tells(&ground, "show x", 0, ", not renewed in time").await;
    signal("CONT", frozen.pid());
    terminal.leave("q").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_is_the_command_s() {
    let ground = Ground::replica_set("cli_keyboard").await;
    let mut terminal = Terminal::new(
        &ground,
        r#"exec $W run x -- sh -c 'echo ready; read line; echo "got <$line>"'"#,
    );
    terminal.until_shown("ready").await;
    terminal.type_in("hello\n");
    let shown = terminal.end(0).await;
    assert!(shown.contains("got <hello>"), "{shown:?}");

    // It comes once, although the program listens too.
    let mut terminal = Terminal::new(
        &ground,
        r#"exec $W run x -- sh -c 'trap "echo one" INT; echo ready; read line; read line; echo "$line"'"#,
    );
    terminal.until_shown("ready").await;
    terminal.type_in("\u{3}");
    terminal.until_shown("one").await;
    terminal.type_in("a\nb\n");
    let shown = terminal.end(0).await;
    assert!(shown.matches("one").count() == 1, "{shown:?}");
    assert!(is_vacant(&ground.locks().await, "x").await);
}

/// The process id that a command has printed.
pub(super) fn number(shown: &str) -> u32 {
    let told = shown.split("pid ").nth(1).unwrap();
    told.split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_ends_the_command_and_not_its_neighbours_at_the_terminal() {
    let ground = Ground::replica_set("cli_neighbours").await;
    let script =
        r#"$W run --grace 100ms x -- sh -c 'trap "" TERM; sleep 300 & echo "pid $! here"; wait'; echo "code $? told""#;
    let mut terminal = Terminal::new(&ground, script);
    terminal.until_shown(" here").await;
    let pid = number(&terminal.shown());
    ground.locks().await.break_lock("x").await.unwrap();
    let shown = terminal.end(0).await;
    assert!(shown.contains("code 76 told"), "{shown:?}");
    until_gone(pid).await;
}

/// In one line, which is gone before the command begins; and nothing where nobody watches.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_at_a_terminal_is_told_for_whom() {
    let ground = Ground::replica_set("cli_patience").await;
    let locks = ground.locks().await;
    let held = held(&locks).await;
    let silent = Started::run(&ground, "run nightly-7 -- echo ran");
    until_waiting(&locks, "nightly-7", 1).await;
    let mut quiet = Terminal::new(&ground, "exec $W run --quiet --timeout 3s nightly-7 -- echo ran");
    let mut terminal = Terminal::sized(&ground, "$W run nightly-7 -- echo ran; echo over", 60);
    // It is renewed, in its place.
    terminal.until_shown_times("waiting for nightly-7: ", 2).await;
    let shown = terminal.shown();
    for line in shown.split("\r\u{1b}[2K").filter(|line| !line.is_empty()) {
        assert!(
            line.starts_with("waiting for ") && line.chars().count() < 60 && !line.contains('\n'),
            "{line:?}"
        );
    }
    let shown = quiet.end(75).await;
    assert!(!shown.contains("waiting for"), "{shown:?}");
    // A message takes the place of the line.
    let mut late = Terminal::new(&ground, "exec $W run --timeout 3s nightly-7 -- echo ran");
    let shown = late.end(75).await;
    assert!(shown.contains("\r\u{1b}[2Kwatchlock: "), "{shown:?}");
    held.release().await.unwrap();
    let shown = terminal.end(0).await;
    assert!(shown.ends_with("\r\u{1b}[2Kran\r\nover\r\n"), "{shown:?}");
    let silent = silent.done().await.expect(0);
    assert_eq!((&silent.out[..], &silent.err[..]), ("ran\n", ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_only_broken_when_that_is_confirmed() {
    let ground = Ground::replica_set("cli_confirm").await;
    let locks = ground.locks().await;
    let first = held(&locks).await;
    for answer in ["n\n", "\n", "\u{4}"] {
        let mut terminal = Terminal::new(&ground, "exec $W break nightly-7");
        terminal.until_shown("[y/N]").await;
        assert!(terminal.shown().contains("may go on for its --grace (5s by default)"));
        terminal.type_in(answer);
        let shown = terminal.end(1).await;
        assert!(shown.contains("nothing was broken"), "{shown:?}");
    }
    // The question blocks the program's own thread.
    let mut terminal = Terminal::new(&ground, "exec $W break nightly-7");
    terminal.until_shown("[y/N]").await;
    terminal.type_in("\u{3}");
    // It dies by the signal.
    terminal.end(None).await;
    assert_eq!(first.lost_reason(), None);

    // The question is about one holder, and there is another when the answer comes.
    let mut terminal = Terminal::new(&ground, "exec $W break nightly-7");
    terminal.until_shown("[y/N]").await;
    first.release().await.unwrap();
    let second = held(&locks).await;
    terminal.type_in("y\n");
    let shown = terminal.end(1).await;
    assert!(shown.contains("changed hands"), "{shown:?}");
    assert_eq!(second.lost_reason(), None);

    let mut terminal = Terminal::new(&ground, "exec $W break nightly-7");
    terminal.until_shown("[y/N]").await;
    terminal.type_in("y\n");
    terminal.end(0).await;
    assert_eq!(within(SOON, "the loss", second.lost()).await, LostReason::Broken);
}

/// Such a terminal shows what others obey.
#[tokio::test(flavor = "multi_thread")]
async fn a_dumb_terminal_gets_lines() {
    let ground = Ground::replica_set("cli_dumb").await;
    let locks = ground.locks().await;
    let held = held(&locks).await;
    let mut terminal = Terminal::new(&ground, "TERM=dumb exec $W watch");
    terminal.until_shown("  nightly-7  granted to ").await;
    terminal.type_in("\u{3}");
    let shown = terminal.end(None).await;
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    // One that waits, for longer than the line of other terminals would take to appear.
    let wait = "TERM=dumb exec $W run --timeout 2s nightly-7 -- true";
    let shown = Terminal::new(&ground, wait).end(75).await;
    assert!(!shown.contains('\u{1b}') && !shown.contains("waiting for"), "{shown:?}");
    drop(held);
}
