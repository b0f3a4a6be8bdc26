//! The command that runs under a lock: how it is started, signalled, ended and looked after.
//!
//! Where watchlock stands in the foreground of a terminal, the command stays there with it, in the same process group: it
//! can read from the terminal, and what the keyboard sends (^C, ^\, ^Z) reaches it without us. Elsewhere (cron, services,
//! pipelines in the background) it gets a process group of its own, so that all of it can be signalled at once.
//!
//! A command must not go on when watchlock is killed, as nobody renews the lock then. Linux kills a child together with
//! the thread that started it, if the child has asked for it, and only the child itself can ask. So there is a step in
//! between: watchlock starts itself as a step, which asks and then becomes the command.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind},
    os::unix::process::CommandExt as _,
    process::Command,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{self, Pid, Signal, WaitOptions, WaitStatus},
};
use tokio::time::{Instant, interval};

use crate::{
    descendants,
    exit::{Failure, INTERNAL, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, say},
    signals::{ENDING, Received, Signals},
};

/// The first argument by which watchlock knows that it is the step.
pub(crate) const STEP: &str = "__become";

/// How often it is looked whether anything is left of a command that is being terminated.
const LOOK: Duration = Duration::from_millis(20);

/// How long it is tried to kill what can't be killed: somebody else's, or stuck in the kernel.
const STUBBORN: Duration = Duration::from_secs(5);

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Running {
    pid: Pid,
    /// Whether the command leads a process group of its own.
    own_group: bool,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(u8),
    Signal(u8),
}

impl Ended {
    /// As a shell tells it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNALLED.saturating_add(signal),
        }
    }
}

impl Running {
    /// Starts the command. Call it on the main thread: the command is killed when the thread ends that started it.
    pub(crate) fn start(command: &[OsString], environment: &[(&str, &str)]) -> Result<Self, Failure> {
        adopt_orphans();
        let own_group = !in_foreground();
        let us = process::getpid().as_raw_nonzero().to_string();
        let mut step = Command::new(this_program());
        step.arg(STEP).arg(us).args(command).envs(environment.iter().copied());
        if own_group {
            step.process_group(0);
        }
        // Not waited for through this handle: `reap` does that, for orphans too.
        let child = step
            .spawn()
            .map_err(|error| Failure::internal(format!("no process can be started: {error}")))?;
        Ok(Self {
            pid: Pid::from_child(&child),
            own_group,
        })
    }

    /// Looks after all children that have ended; tells how the command ended, if it was among them.
    pub(crate) fn reap(&self) -> Option<Ended> {
        let mut ended = None;
        loop {
            match process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => ended = ended_by(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return ended,
            }
        }
    }

    /// Passes on a signal that was sent to us.
    pub(crate) fn pass_on(&self, signal: Signal, to_us_alone: bool) {
        if self.own_group && ENDING.contains(&signal) {
            // It may have ended meanwhile.
            let _ = process::kill_process_group(self.pid, signal);
        } else if self.own_group || to_us_alone {
            let _ = process::kill_process(self.pid, signal);
        }
        // Else the terminal has sent it to the command, too.
    }

    /// Terminates the command and what it started: by SIGTERM, and what is left after `grace` by SIGKILL. Returns when the
    /// command has ended, and with it all of its descendants that can be found.
    pub(crate) async fn terminate(&self, signals: &mut Signals, grace: Duration) -> Ended {
        let mut ended = None;
        self.signal_all(Signal::TERM, true);
        // A stopped process would not notice.
        self.signal_all(Signal::CONT, true);
        let start = Instant::now();
        let mut look = interval(LOOK);
        loop {
            ended = ended.or(self.reap());
            let passed = start.elapsed();
            if let Some(ended) = ended {
                if !self.is_anything_left() {
                    return ended;
                }
                if passed >= grace.saturating_add(STUBBORN) {
                    say("something that the command started could not be killed");
                    return ended;
                }
            }
            if passed >= grace {
                // Again and again, as what is killed can have started others in that moment.
                self.signal_all(Signal::KILL, ended.is_none());
            }
            tokio::select! {
                _ = look.tick() => {}
                received = signals.next() => if let Received::Signal { signal, to_us_alone } = received
                    && ended.is_none()
                {
                    self.pass_on(signal, to_us_alone);
                },
            }
        }
    }

    /// Signals the command, where it is alive, and what it started.
    fn signal_all(&self, signal: Signal, alive: bool) {
        // Errors: gone, or somebody else's.
        if self.own_group {
            let _ = process::kill_process_group(self.pid, signal);
        } else if alive {
            let _ = process::kill_process(self.pid, signal);
        }
        for pid in descendants::living() {
            let reached = pid == self.pid || (self.own_group && process::getpgid(Some(pid)) == Ok(self.pid));
            if !reached {
                let _ = process::kill_process(pid, signal);
            }
        }
    }

    fn is_anything_left(&self) -> bool {
        let group = self.own_group && process::test_kill_process_group(self.pid).is_ok();
        group || !descendants::living().is_empty()
    }
}

/// The step: becomes the command, or tells why it can't.
pub(crate) fn step(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let starter = arguments.next().and_then(|word| word.to_str()?.parse().ok());
    let (Some(starter), Some(command)) = (starter.and_then(Pid::from_raw), arguments.next()) else {
        say("this is an inner step of `watchlock run`, and not to be called");
        return INTERNAL;
    };
    if let Err(error) = die_with(starter) {
        say(&format!("the command can't be bound to watchlock: {error}"));
        return INTERNAL;
    }
    let error = Command::new(&command).args(arguments).exec();
    let command = command.display();
    match error.kind() {
        ErrorKind::NotFound => {
            say(&format!("{command}: not found"));
            NOT_FOUND
        }
        _ => {
            say(&format!("{command}: {error}"));
            NOT_EXECUTABLE
        }
    }
}

/// Lets the kernel kill this process when `starter` ends.
#[cfg(target_os = "linux")]
fn die_with(starter: Pid) -> io::Result<()> {
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before we asked.
    if process::getppid() != Some(starter) {
        return Err(io::Error::other("it has ended"));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_: Pid) -> io::Result<()> {
    Ok(())
}

/// Makes descendants that lose their parent our children, so that they are found.
fn adopt_orphans() {
    // Where it is refused, they are not found: nothing else depends on it.
    #[cfg(target_os = "linux")]
    let _ = process::set_child_subreaper(Some(process::getpid()));
}

/// The very program that runs, even if another version has been installed meanwhile.
fn this_program() -> OsString {
    if cfg!(target_os = "linux") {
        return OsString::from("/proc/self/exe");
    }
    std::env::current_exe().map_or_else(|_| OsString::from("watchlock"), OsString::from)
}

/// Whether we are in the foreground of a terminal.
fn in_foreground() -> bool {
    let terminal = File::open("/dev/tty").map_err(|_| Errno::NOTTY);
    terminal
        .and_then(rustix::termios::tcgetpgrp)
        .is_ok_and(|group| group == process::getpgrp())
}

fn ended_by(status: WaitStatus) -> Option<Ended> {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let code = status.exit_status().map(|code| Ended::Code(small(code)));
    code.or_else(|| status.terminating_signal().map(|signal| Ended::Signal(small(signal))))
}
