//! The program `watchlock`, against real servers.

mod away;
mod codes;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod doctor;
mod doctor_worlds;
mod documents;
mod endings;
mod family;
mod guide;
mod hold;
mod input;
mod job;
mod operate;
mod outage;
mod run;
mod steps;
mod terminal;
mod verify;

use std::{
    process::{ExitStatus, Stdio},
    sync::Once,
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    signal::unix::SignalKind,
};

use crate::common::{Ground, PATIENCE, SOON, eventually, within};

/// The result of a run of the program.
#[derive(Debug)]
struct Done {
    code: i32,
    out: String,
    err: String,
}

impl Done {
    /// Fails unless the program ended as expected; returns its output.
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Returns the program with the locks' location in its environment, which keeps secrets out of the process list.
fn program(ground: &Ground) -> Command {
    let mut program = bare();
    program
        .env("MONGODB_URI", ground.uri())
        .env("WATCHLOCK_DATABASE", &ground.database);
    program
}

/// The program as a shell starts it.
fn bare() -> Command {
    heed_signals();
    let mut program = Command::new(env!("CARGO_BIN_EXE_watchlock"));
    for name in [
        "MONGODB_URI",
        "WATCHLOCK_DATABASE",
        "WATCHLOCK_COLLECTION",
        "WATCHLOCK_LABEL",
    ] {
        program.env_remove(name);
    }
    program.kill_on_drop(true).stdin(Stdio::null());
    program
}

/// Resets signals that the user of the tests has ignored, as `nohup` and background jobs do: the tests' own processes
/// would ignore them too. A signal with a handler here has its default there.
fn heed_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for kind in [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
        ] {
            if ignored & (1 << (kind.as_raw_value() - 1)) != 0 {
                // The handler stays after the stream of signals is dropped.
                drop(tokio::signal::unix::signal(kind).unwrap());
            }
        }
    });
}

/// Returns the program with its environment, started by another.
fn started_by(starter: &str, arguments: &[&str], program: &Command) -> Command {
    let program = program.as_std();
    let mut starter = Command::new(starter);
    starter
        .args(arguments)
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    starter.kill_on_drop(true);
    starter
}

/// Runs a command line to its end; fails unless it exits with this code.
async fn watchlock(ground: &Ground, line: impl AsRef<str>, code: i32) -> Done {
    done(program(ground).args(words(line.as_ref()))).await.expect(code)
}

/// The same of one that prints these words, between bars: to standard output if it succeeds, or else to standard error
/// alone.
async fn tells(ground: &Ground, line: impl AsRef<str>, code: i32, words: &str) -> Done {
    let told = watchlock(ground, line, code).await;
    let output = if code == 0 { &told.out } else { &told.err };
    assert!(
        words.split(" | ").all(|word| output.contains(word)),
        "{words}: {told:?}"
    );
    assert!(code == 0 || told.out.is_empty(), "{told:?}");
    told
}

/// Returns the words of a command line: those between spaces, and those between backquotes, which may have spaces too.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split('`').zip([false, true].into_iter().cycle());
    parts.flat_map(|(part, is_word)| match is_word {
        true => vec![part],
        false => part.split_whitespace().collect(),
    })
}

async fn done(program: &mut Command) -> Done {
    done_within(PATIENCE, program).await
}

async fn done_within(limit: Duration, program: &mut Command) -> Done {
    let output = within(limit, "the program", program.output()).await.unwrap();
    Done {
        code: output.status.code().expect("it exits by itself"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The running program, and its output.
struct Started {
    child: Child,
    /// The line that [`Self::holding`] has waited for: the process id of its command.
    first: String,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    err: ChildStderr,
}

impl Started {
    fn new(program: &mut Command) -> Self {
        let program = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        Self {
            input: child.stdin.take(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            err: child.stderr.take().unwrap(),
            first: String::new(),
            child,
        }
    }

    fn run(ground: &Ground, line: impl AsRef<str>) -> Self {
        Self::new(program(ground).args(words(line.as_ref())))
    }

    /// Starts a command line with a command that surely runs for a while, and returns once that has started.
    async fn holding(ground: &Ground, line: impl AsRef<str>) -> Self {
        let mut started = Self::run(ground, format!("{} -- sh -c `echo $$; exec sleep 300`", line.as_ref()));
        started.first = started.line().await;
        started
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Returns the next line of the program or of its command.
    async fn line(&mut self) -> String {
        let line = within(PATIENCE, "a line", self.lines.next_line()).await.unwrap();
        line.expect("there is more to come")
    }

    /// The next line, which is an object.
    async fn object(&mut self) -> Value {
        serde_json::from_str(&self.line().await).unwrap()
    }

    /// Reads no more of its output, and returns the code with which it then ends.
    async fn unread(self) -> Option<i32> {
        let Self { mut child, lines, .. } = self;
        drop(lines);
        within(PATIENCE, "its end", child.wait()).await.unwrap().code()
    }

    async fn type_in(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    }

    async fn status(&mut self) -> ExitStatus {
        within(PATIENCE, "the program ends", self.child.wait()).await.unwrap()
    }

    /// Starts the program in its own session, where no shell continues stopped processes.
    fn detached(ground: &Ground, line: impl AsRef<str>) -> Self {
        let mut program = program(ground);
        Self::new(&mut started_by(
            "setsid",
            &["--wait"],
            program.args(words(line.as_ref())),
        ))
    }

    /// Waits until standard error has reported it.
    async fn until_told(&mut self, text: &str) {
        let mut told = String::new();
        let read = async {
            while !told.contains(text) {
                let byte = self.err.read_u8().await;
                told.push(byte.unwrap_or_else(|error| panic!("{error}: {told}")).into());
            }
        };
        within(PATIENCE, text, read).await;
    }

    /// Returns everything on standard error, once it has ended.
    async fn told(&mut self) -> String {
        let mut told = Vec::new();
        // Processes that it could not end may keep its outputs for longer.
        let read = tokio::time::timeout(SOON, self.err.read_to_end(&mut told)).await;
        drop(read);
        String::from_utf8(told).unwrap()
    }

    /// Waits for its end.
    async fn done(mut self) -> Done {
        drop(self.input.take());
        let status = self.status().await;
        let (mut out, mut err) = (String::new(), String::new());
        let read = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                out.push_str(&line);
                out.push('\n');
            }
            self.err.read_to_string(&mut err).await.unwrap();
        };
        // No process that it started may keep its outputs.
        within(PATIENCE, "its outputs are closed", read).await;
        Done {
            code: status.code().expect("it exits by itself"),
            out,
            err,
        }
    }
}

fn signal(name: &str, pid: u32) {
    let sent = std::process::Command::new("sh")
        .args(["-c", r#"kill -s "$1" "$2""#, "sh", name, &pid.to_string()])
        .status()
        .unwrap();
    assert!(sent.success(), "SIG{name} to {pid}");
}

/// Waits until the process is gone, or has ended and only waits to be reaped.
async fn until_gone(pid: u32) {
    eventually(PATIENCE, "the process is gone", async || {
        let alive = std::process::Command::new("sh")
            .args(["-c", r#"ps -o stat= -p "$1" | grep -qv Z"#, "sh", &pid.to_string()])
            .status()
            .unwrap();
        !alive.success()
    })
    .await;
}
